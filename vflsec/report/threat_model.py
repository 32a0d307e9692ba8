"""What findings mean to a reviewer: the threat model in words, and the means that were assumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vflsec.report.sanitize import clean

__all__ = ["OUTSIDE", "POINTERS", "WORDS", "assumed", "threats"]

OUTSIDE = (
    "side channels such as timing",
    "a party that departs from the protocol otherwise than the attacks above say of theirs",
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
    holders = {of["parties"][0] for of in summary.get("parties", {}).values() if of.get("parties")}
    for spec in summary["attacks"].values():
        who = " and ".join(clean(p) for p in spec["adversary"]) or "someone"
        seen = [_SEES.get(w, w.replace("_", " ")) for w in _uses(spec)]
        known = [] if holders & set(spec["adversary"]) else _labels(spec, summary)
        known += [f"{spec['aux_rows']} rows of the others' columns"] if spec.get("aux_rows") else []
        known += ["the others' models"] if spec.get("peer_model") else []
        if spec["target"] == "membership":
            known = ["the columns and labels of the records it asks about"]
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


def _labels(spec: Mapping[str, Any], summary: Mapping[str, Any]) -> list[str]:
    """What somebody without labels was told of them."""
    chosen = " of the tails and the middle" if "(question=" in spec["label"] else ""
    out = [f"{spec['known_rows']} labelled rows{chosen}"] if spec["known_rows"] else []
    return out + ["the class shares"] * bool(spec["prior"] and not only_quantities(summary))


def only_quantities(summary: Mapping[str, Any]) -> bool:
    """Whether every label is a quantity, so that nothing can be said of classes."""
    found = [facts.get("classes") for facts in summary.get("parties", {}).values()]
    return bool(found) and all(c == 1 for c in found)


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
    "rows), untrained (the same attack on its network before training), reassigned (and on one "
    "trained on another task), randomised (its own columns, trained on the "
    "randomised labels of all other rows), alone (an encoder it could have "
    "pre-trained by itself), mean, linear and network (for features), sample (of a share: that "
    "among the rows it knows), labelled (of columns: from own labels too), value (of a question "
    "about a quantity: what a learner of its values answers), left out (of membership: what the "
    "same signal says of systems that were not trained on the rows)",
    "AUC": "how well scores rank: 0.5 is guessing, 1 is without error",
    "concordance": "the AUC of a quantity: of two rows with different values, how often the larger "
    "one has the larger score",
    "macro AUC": "of several labels: the mean of the AUC of each",
    "R²": "of a column, how much of its variance an answer explains: 1 is the column itself, 0 its "
    "mean",
    "error of the share": "how far the share of rows that was answered is from the true one",
    "family": "published attacks on one secret by one means",
    "utility": "how well the trained system does its own task",
    "strength": "how strong a defense is set; 0 is no defense",
    "seed": "one whole run; each has its own split of the rows, its own training and known rows",
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
    aux = max(s.get("aux_rows", 0) for s in specs)
    more = [f"at most {aux} rows of the others' columns"] if aux else []
    more += ["the others' models"] if any(s.get("peer_model") for s in specs) else []
    active = sorted({clean(s["label"]) for s in specs if s["active"]})
    if together > 1:
        joined = f"up to {together} parties"
    else:
        joined = "nobody: every party acts alone"
    return [
        {"means": "labels known beforehand",
         "tried": f"at most {known} rows" + ", and the class shares" * (
             any(s["prior"] for s in specs) and not only_quantities(summary)),
         "beyond": "more rows, for example from an earlier project or a leak"},
        {"means": "what is seen", "tried": _list(seen) or "nothing that is received",
         "beyond": "anything that another party stores or logs"},
        {"means": "behaviour",
         "tried": f"departs from the protocol in {', '.join(active)}" if active
         else "keeps to the protocol",
         "beyond": "other departures from it" if active else "any departure from it"},
        {"means": "joining forces", "tried": joined,
         "beyond": "larger coalitions" if together > 1 else "coalitions, and outsiders who join"},
        {"means": "further knowledge",
         "tried": _list(["its own columns of the audited rows", *more]),
         "beyond": "other data on the same people, bought or public"},
    ]  # fmt: skip


def _uses(spec: Mapping[str, Any]) -> list[str]:
    words = [n.partition(":")[0] for n in spec["needs"]]
    return [w for w in words if w not in ("known_rows", "prior", "aux_rows")]
