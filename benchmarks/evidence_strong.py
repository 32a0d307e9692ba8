"""What a strong attacker finds that the default one misses: writes docs/evidence/strong.md.

Run ``python benchmarks/evidence_strong.py`` from the root. The tables lie in the folder that
VFLSEC_TEST_DATA names, or in ../shared/data beside the repository. It is one ordinary audit in
build/evidence/strong, so an interrupted run goes on where it was; ``--fresh`` makes it again. The
data sets, defenses and attacks below were fixed before it was run.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from evidence_attacks_page import mean_interval
from evidence_pages import opening, table
from seeds.claims import World
from seeds.run import ROOT, section

from vflsec.audit.intervals import mean_of
from vflsec.audit.record import Choice
from vflsec.audit.result import Audit
from vflsec.engine.run import run_audit
from vflsec.runtime.typed_values import read_as

SIZES = {"labelled": 3000, "test": 0.5}
WORLDS = (
    World("", "", SIZES, ("credit_default", "fate")),
    World("", "", SIZES, ("adult", "employer_vs_registry")),
    World("", "", {**SIZES, "shuffle_labels": True}, ("credit_default", "fate")),
)
PROTECTIONS = {
    "none": ("iso", 0.0), "iso 5": ("iso", 5.0), "max_norm": ("max_norm", 0.0),
    "label-DP 1": ("label_dp", 1.0),
}  # fmt: skip
DEFENSES: list[dict[str, Any]] = [
    {"name": "iso", "strength": [0, 5], "choice": "protection"},
    {"name": "max_norm", "choice": "protection"},
    {"name": "label_dp", "strength": [1], "choice": "protection"},
]
KNOWN = ("direction", "hints", "spectral", "cluster", "similarity", "model_completion",
         "gradient_completion")  # fmt: skip
SCENARIO: dict[str, Any] = {
    "name": "strong",
    "algorithm": {"name": "splitnn", "epochs": 8, "batch_size": 128, "embedding": 0},
    "defense": DEFENSES,
    "attack": [{"name": "norm"}, *({"name": name, "known_rows": 20} for name in KNOWN)],
    "audit": {"seeds": 5, "references": [], "attacker": "strong"},
}
METHOD = (
    """`python benchmarks/evidence_strong.py` ({searched} trainings on drawn worlds, {audited}
    audited). `--attacker strong` runs settings of each attack on three drawn worlds of the table's
    shape. Settings that do better there join those that are written
    ([which attacker](../concepts.md#which-attacker)).""",
    """Real tables of 3,000 rows, five seeds, FedSplitNN (8 epochs of batches of 128, `embedding =
    0`), an attacker with 20 labelled rows. Attacks as written are the defaults. The last table has
    its labels shuffled.""",
    """Values are AUC on training rows, means over seeds. Beside an attack that got other settings
    stands the one that was best **on the drawn worlds** at that protection. The *difference* is
    paired by seed, with a 95 % t interval. *Advantage* is over the strongest baseline, with the
    interval of the audit.""",
)


def main() -> None:
    """Audit, and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--fresh", action="store_true")
    out = ROOT / "build" / "evidence" / "strong"
    out.parent.mkdir(parents=True, exist_ok=True)
    fresh = parser.parse_args().fresh
    scenario = {**SCENARIO, "data": [section(world) for world in WORLDS]}
    audit = run_audit(scenario, out, fresh=fresh, device="cpu")
    text = page(audit)
    print(text)
    (ROOT / "docs" / "evidence" / "strong.md").write_text(text, encoding="utf-8")


def page(audit: Audit) -> str:
    """The page as Markdown."""
    compared = list(_compared(audit))
    real = [c for c in compared if "shuffled" not in c.data]
    null = [c for c in compared if c not in real]
    better, worse = (sum(sign * c.gain[i] > 0 for c in real) for sign, i in ((1, 1), (-1, 2)))
    counts = {"searched": audit.summary["attacker"]["trainings"],
              "audited": audit.summary["cells"]["finished"]}  # fmt: skip
    answer = f"""Does it pay to search for an attack's settings on drawn data? Of {len(real)}
        comparisons on real labels the setting found is better in {better} and worse in {worse} (the
        interval excludes zero). As written, {sum(c.own[1] > 0 for c in real)} of these attacks beat
        all baselines; with the setting found, {sum(c.found[1] > 0 for c in real)} do. On shuffled
        labels, where there is nothing to find, {sum(c.found[1] > 0 for c in null)} of {len(null)}
        do."""
    head = ["data", "protection", "attack", "AUC", "advantage", "found", "AUC", "advantage",
            "difference"]  # fmt: skip
    title = "The strong attacker: settings found on drawn worlds"
    return "\n".join([
        *opening(title, answer, [m.format(**counts) for m in METHOD]),
        *table(head, (c.cells for c in compared)),
    ])  # fmt: skip


Span = tuple[float, float, float]
"""A mean and its interval."""


@dataclass(frozen=True)
class Compared:
    """An attack as written, and with the setting that was best on drawn worlds."""

    data: str
    protection: str
    written: str
    auc: float
    own: Span
    chosen: str
    better: float
    found: Span
    gain: Span

    @property
    def cells(self) -> list[str]:
        """A line of the table."""
        own, found, gain = (
            f"{m:+.3f} [{low:+.3f}, {high:+.3f}]"
            for m, low, high in (self.own, self.found, self.gain)
        )
        return [
            self.data, self.protection, self.written, f"{self.auc:.3f}", own, self.chosen,
            f"{self.better:.3f}", found, gain,
        ]  # fmt: skip


def _compared(audit: Audit) -> Iterator[Compared]:
    for of in read_as(tuple[Choice, ...], audit.summary["attacker"]["choices"]):
        if not of.joins or of.split != "train" or not of.written:
            continue
        own, found = (_by_seed(audit, of, label) for label in (of.written, of.chosen))
        yield Compared(
            _short(of.dataset),
            next(word for word, at in PROTECTIONS.items() if at == (of.defense, of.strength)),
            of.written, mean_of([*own.values()]), _above(audit, of, of.written),
            of.chosen, mean_of([*found.values()]), _above(audit, of, of.chosen),
            mean_interval([found[seed] - own[seed] for seed in own]),
        )  # fmt: skip


def _short(dataset: str) -> str:
    name = dataset.partition("(")[0]
    return name + (", shuffled" if "shuffle_labels" in dataset else "")


def _by_seed(audit: Audit, of: Choice, label: str) -> dict[int, float]:
    """AUC of an attack by seed."""
    return {
        r.seed: r.value
        for r in audit.rows
        if (r.dataset, r.defense, r.strength) == (of.dataset, of.defense, of.strength)
        and (r.attack, r.split, r.metric) == (label, "train", "auc")
        and r.role == "audit" and r.value is not None
    }  # fmt: skip


def _above(audit: Audit, of: Choice, label: str) -> Span:
    (found,) = [
        p.advantage
        for p in audit.points
        if (p.dataset, p.defense, p.strength) == (of.dataset, of.defense, of.strength)
        and (p.attack, p.split, p.metric) == (label, "train", "auc")
    ]
    assert found.mean is not None
    assert found.low is not None
    assert found.high is not None
    return found.mean, found.low, found.high


if __name__ == "__main__":
    main()
