"""What findings mean to a reviewer: the threat model in words, what was tried, what to do next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vflsec.report.text import clean
from vflsec.report.verdicts import headline, place

__all__ = ["FAMILIES", "OUTSIDE", "POINTERS", "WORDS", "assumed", "families", "next_steps",
           "threats"]  # fmt: skip

FAMILIES: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("Labels read off single gradients", ("direct", "norm", "direction", "hints"),
     "Li et al. 2022 (arXiv:2102.08504); Fu et al. 2022"),
    ("Labels from zeros, signs, sizes and visits", ("zero_pattern",),
     "Politis 2026 (arXiv:2609.04382)"),
    ("Labels by grouping gradients or embeddings", ("spectral", "cluster", "similarity", "lea"),
     "Sun et al. 2022 (arXiv:2203.01451)"),
    ("Labels by completing the own model",
     ("model_completion", "active_completion", "gradient_completion"),
     "Fu et al. 2022 (USENIX Security)"),
    ("Labels by imitating the label owner", ("exploit", "unsplit"),
     "Kariyappa and Qureshi 2023 (arXiv:2112.01299); Erdogan et al. 2022"),
    ("Labels by swapped embeddings", ("swap_probe",), "Bai et al. 2023 (USENIX Security)"),
    ("Labels from batch averages, also under encryption", ("batch_inference",),
     "Zou et al. 2022 (arXiv:2212.00322)"),
    ("Labels from the predictions that come back", ("output",), "the deployment's own oracle"),
    ("Features of another party",
     ("equation_solving", "linear_inversion", "grn", "embedding_inversion"),
     "Luo et al. 2021 (arXiv:2010.10152); He et al. 2019"),
    ("Attributes that were not shared, and their shares", ("attribute", "property"),
     "Song and Shmatikov 2020; Ganju et al. 2018"),
    ("Membership in the training set", ("membership",),
     "Carlini et al. 2022 (arXiv:2112.03570)"),
    ("Wrong predictions on demand", ("gradient_replacement", "replay", "villain"),
     "Liu et al. 2020; Bai et al. 2023 (USENIX Security)"),
)  # fmt: skip
"""Published attack families, the registered attacks of each, and where it was published."""

OUTSIDE = (
    "side channels such as timing",
    "a server that sends false gradients to steer a client's encoder (feature-space hijacking)",
)
"""What no attack here tries."""

POINTERS = (
    "GDPR, recital 26: whether a person is identifiable depends on all the means reasonably likely "
    "to be used. Compare the attacker's means above with those a partner or an outsider would "
    "reasonably have: the rows they know, the messages they see, the computing they can pay for.",
    "EDPB Opinion 28/2024 on AI models, on when a model may be considered anonymous: it asks for "
    "documented tests against attacks at the state of the art. The lists here say which families "
    "were tried and which were not.",
)
"""Where a reviewer may read on; not legal advice."""

_SEES = {
    "gradient": "the gradients it receives",
    "embedding": "the embeddings it receives",
    "prediction": "the predictions it receives",
    "state": "the model states it receives",
    "sent.embedding": "the embeddings it sends",
    "sent.gradient": "the gradients it sends",
    "model": "its own trained model",
    "parameter_gradient": "the gradients of its own model's parameters",
}
_WANTS = {
    "label": "the labels",
    "feature": "another party's features",
    "attribute": "an attribute that was not shared",
    "integrity": "a prediction of its choice",
    "membership": "which rows were trained on",
    "property": "the share of rows with an attribute",
}


def threats(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    """Each attack as a sentence: who, wants what, sees what, knows how much."""
    out = []
    for spec in summary["attacks"].values():
        who = " and ".join(clean(p) for p in spec["adversary"]) or "someone"
        seen = [_SEES.get(w, w.replace("_", " ")) for w in _uses(spec)]
        known = [f"{spec['known_rows']} labelled rows"] if spec["known_rows"] else []
        known += ["the class shares"] if spec["prior"] else []
        one = len(spec["adversary"]) < 2
        verb = "keeps to the protocol" if one else "keep to the protocol"
        verb = "may change its own training" if spec["active"] else verb
        together = ", together," if len(spec["adversary"]) > 1 else ""
        out.append(
            {
                "attack": clean(spec["label"]),
                "words": f"{who}{together} want{'s' if one else ''} "
                f"{_WANTS.get(spec['target'], clean(spec['target']))}, {verb}, "
                f"use{'s' if one else ''} {_list([*dict.fromkeys(seen)]) or 'nothing it receives'} "
                f"and was granted {_list(known) or 'no knowledge beyond its own columns'}.",
                "how": clean(spec["summary"]),
                "source": clean(spec["source"]),
            }
        )
    return out


def _list(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


WORDS = {
    "advantage": "the attack's figure less that of its strongest control, both on the same rows; "
    "its lower bound holds against every control, its upper bound against the one that "
    "cross-validation on the known rows named beforehand",
    "strongest control": "the best the same attacker does without the federation, which is the "
    "control that leaves the least advantage: chance, majority (the class shares), logistic "
    "(regression on its own columns, under several penalties C), trees and boosting (on them), "
    "principal (their first principal direction), scratch (its own network, trained on the known "
    "rows), untrained (the same attack on its network before training), randomised (its own "
    "columns, trained on the randomised labels of all other rows), alone (an encoder it could have "
    "pre-trained by itself), mean and linear (for features)",
    "AUC": "how well scores rank: 0.5 is guessing, 1 is without error",
    "utility": "how well the trained system does its own task",
    "strength": "how strong a defense is set; 0 is no defense",
    "interval": "t interval over seeds; every seed has its own split, training and known rows",
}
"""Words of the report that a reader may not know."""


def assumed(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    """The attacker's means that this audit assumed, beside what it did not try.

    For the comparison with all the means reasonably likely to be used.
    """
    specs = list(summary["attacks"].values())
    if not specs:
        return []
    known = max(s["known_rows"] for s in specs)
    seen = sorted({_SEES.get(w, w.replace("_", " ")) for s in specs for w in _uses(s)})
    together = max(len(s["adversary"]) for s in specs)
    active = sorted({clean(s["label"]) for s in specs if s["active"]})
    if together > 1:
        joined = f"up to {together} parties"
    else:
        joined = "nobody: every party acts alone"
    return [
        {"means": "labels known beforehand",
         "tried": f"at most {known} rows" + (", and the class shares" * any(
             s["prior"] for s in specs)),
         "beyond": "more rows, for example from an earlier project or a leak"},
        {"means": "what is seen", "tried": _list(seen) or "nothing that is received",
         "beyond": "anything that another party stores or logs"},
        {"means": "behaviour",
         "tried": f"departs from the protocol in {', '.join(active)}" if active
         else "keeps to the protocol",
         "beyond": "other departures from it" if active else "any departure from it"},
        {"means": "joining forces", "tried": joined,
         "beyond": "larger coalitions" if together > 1 else "coalitions, and outsiders who join"},
        {"means": "further knowledge", "tried": "its own columns of the audited rows",
         "beyond": "other data on the same people, bought or public"},
    ]  # fmt: skip


def _uses(spec: Mapping[str, Any]) -> list[str]:
    words = [n.partition(":")[0] for n in spec["needs"]]
    return [w for w in words if w not in ("known_rows", "prior", "aux_rows")]


def families(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every published family with the attacks of it that gave a figure, or why none did."""
    ran = {p["attack_key"] for p in summary["points"] if p["attack"] and p["status"] == "ok"}
    names = {s["name"] for k, s in summary["attacks"].items() if k in ran}
    asked = {s["name"] for s in summary["attacks"].values()}
    out = []
    for family, members, source in FAMILIES:
        tried = [m for m in members if m in names]
        refused = [m for m in members if m in asked and m not in names]
        state = "tried" if tried else "not observable here" if refused else "not tried"
        out.append(
            {"family": family, "state": state, "tried": tried, "refused": refused, "source": source}
        )
    known = {m for _, members, _ in FAMILIES for m in members}
    own = sorted(clean(n) for n in names - known)
    if own:
        out.append({"family": "Others", "state": "tried", "tried": own, "refused": [],
                    "source": "this scenario"})  # fmt: skip
    return out


def next_steps(summary: Mapping[str, Any]) -> list[str]:
    """What to do now, most urgent first."""
    found, _ = headline(summary)
    verdicts = summary["gates"]
    if found == "NO GATE":
        return ['Set a threshold: add [[gate]] with metric = "advantage" and max = 0.1.']
    if found == "UNFINISHED":
        return [
            "Run the same audit again: it goes on from what is stored, and tries again what failed."
        ]
    out = []
    for dataset in dict.fromkeys(v["dataset"] for v in verdicts if v["verdict"] == "FAIL"):
        out.append(_cure(dataset, verdicts, summary))
    dead = sorted(k for k, a in summary["alive"].items() if not a["alive"])
    if dead and any(v["verdict"] == "INCONCLUSIVE" for v in verdicts):
        out.append(
            f"Not shown to work, so their silence proves nothing: {clean(', '.join(dead))}. Check "
            "their settings, raise known_rows, or name in a gate the attacks that count."
        )
    if any("would decide it" in v["reason"] for v in verdicts if v["verdict"] == "INCONCLUSIVE"):
        out.append("Decide what is open with more seeds: vflsec audit SCENARIO --until-decided.")
    if found == "PASS":
        out.append(
            "Keep these results as the baseline, so that a later rise fails: vflsec gate DIR "
            "--baseline baseline.json --update-baseline."
        )
    untried = [f["family"] for f in families(summary) if f["state"] == "not tried"]
    if untried:
        listed = "; ".join(f[0].lower() + f[1:] for f in untried)
        out.append(f"Consider the families of attacks that were not tried: {listed}.")
    return out


def _cure(dataset: str, verdicts: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> str:
    by_point: dict[tuple[Any, ...], list[str]] = {}
    for v in verdicts:
        if v["dataset"] == dataset and v["defense"]:
            key = (v["algorithm"], v["defense"], v["strength"] or 0.0)
            by_point.setdefault(key, []).append(v["verdict"])
    good = [k for k, found in by_point.items() if set(found) == {"PASS"} and k[1] != "none"]
    good = [k for k in good if k[2] != 0]
    where = clean(dataset)
    if not good:
        return (
            f"On {where} no point that was tried passes every gate. Try a stronger or another "
            "defense (vflsec list defenses), or share less."
        )
    drops = {
        (p["algorithm"], p["defense"], p["strength"] or 0.0): p["utility_drop"]
        for p in summary["points"]
        if p["dataset"] == dataset
    }
    best = min(good, key=lambda k: (drops.get(k) if drops.get(k) is not None else 1.0, k[2]))
    drop = drops.get(best)
    point = place({"defense": best[1], "strength": best[2]})
    cost = "" if drop is None else f", at a loss of {drop:.3f} of utility"
    return f"On {where} use {point} with {clean(best[0])}: it passes every gate{cost}."
