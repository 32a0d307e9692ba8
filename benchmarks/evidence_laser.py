"""LASER-VFL where a partner is missing, and what it leaks. Writes docs/evidence/laser.md.

Run ``python benchmarks/evidence_laser.py`` from the root, beside ``VFLSEC_TEST_DATA`` or
../shared/data; it takes some five minutes. ``--seeds N`` and ``--data WORD`` try less, and print
the page instead of writing it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from defaults_of.trials import TABLES
from evidence_pages import opening, table
from seeds.run import ROOT, section
from torch import Tensor

from vflsec.algorithms.laser import Laser
from vflsec.algorithms.local import Local
from vflsec.algorithms.splitnn import SplitNN
from vflsec.audit.intervals import t_interval
from vflsec.core.federation import Federation
from vflsec.core.task import Stack
from vflsec.data.load import load_source, split_options
from vflsec.data.prepare import make_task
from vflsec.engine.run import run_audit
from vflsec.train.loop import compute_auc, predict, run_phases

PAGE = ROOT / "docs" / "evidence" / "laser.md"
BUILD = ROOT / "build" / "evidence" / "laser"
REAL = [name for name in TABLES if "drawn" not in name]
GONE = ("passive",)

SYSTEMS: dict[str, tuple[SplitNN, SplitNN]] = {
    "Local, aligned rows": (Local(), Local()),
    "Local, all own rows": (Local(own_labels=True), Local(own_labels=True)),
    "VFL": (SplitNN(), SplitNN()),
    "VFL (mean), partner missing": (SplitNN(aggregation="mean"), Laser(absent=GONE)),
    "LASER": (Laser(), Laser()),
    "LASER, partner missing": (Laser(absent=GONE), Laser(absent=GONE)),
    "LASER, aligned rows, partner missing": (
        Laser(absent=GONE, own_labels=False), Laser(absent=GONE, own_labels=False)
    ),
}  # fmt: skip
"""What trains, and what answers."""

PAIRS = (
    ("LASER", "VFL"),
    ("LASER, partner missing", "Local, all own rows"),
    ("LASER, aligned rows, partner missing", "Local, aligned rows"),
    ("LASER, partner missing", "VFL (mean), partner missing"),
)

ATTACKS: list[dict[str, Any]] = [
    {"name": "direction"}, {"name": "norm"}, {"name": "cluster"}, {"name": "model_completion"},
    {"name": "embedding_inversion", "adversary": "active", "aux_rows": 50},
]  # fmt: skip
DEFENSES: list[dict[str, Any]] = [
    {"name": "iso", "choice": "protection", "strength": [0.0, 5.0, 25.0]},
    {"name": "label_dp", "choice": "protection", "epsilon": [1.0]},
    {"name": "he_embedding", "choice": "protection"},
    {"name": "he_gradient", "choice": "protection"},
]
ATTACKED = "credit_default"

METHOD = (
    """`python benchmarks/evidence_laser.py`; seeds 0 to 2, every algorithm at its defaults, the
    tables and sizes of [the defaults](defaults.md): 1,000 aligned of some 4,000 to 6,000 training
    rows. Figures of the first two tables are AUC (covtype: balanced accuracy of seven classes) on
    **validation** rows; no test row is read. Intervals are 95 % t intervals over seeds, paired.""",
    """*Partner missing*: validation rows are answered without the passive party. For VFL it is the
    mean of the embeddings that are left; FedSplitNN has no such answer of its own. `absent` says so
    to LASER, which then also chooses its epoch on such answers.""",
    f"""Leakage is that on {ATTACKED}: the advantage over the same party's baseline without the
    federation and, in brackets, the attack's own AUC (of columns: R²), on training rows, with 20
    known labels or 50 auxiliary rows. A dash: the message that the attack reads is not there.""",
)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", default="")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    seeds, whole = range(args.seeds), args.seeds >= 3 and not args.data
    names = [t for t in REAL if args.data in t]
    utility = {name: measure_utility(name, seeds) for name in names}
    leaks = measure_leaks(list(seeds))
    text = page(utility, leaks)
    print(text)
    if whole:
        PAGE.write_text(text, encoding="utf-8")


def measure_utility(name: str, seeds: Sequence[int]) -> dict[str, Tensor]:
    """The main task on validation rows, by system a value a seed."""
    data = section(TABLES[name])
    split = split_options(data)
    named = {k: v for k, v in data.items() if k not in split}
    tasks = {s: make_task(load_source(named, s, Path()), s, **split) for s in seeds}
    stack = Stack.build(tasks, list(seeds))
    found = {}
    for title, (trains, answers) in SYSTEMS.items():
        fed = Federation.create(stack, list(seeds), None)
        trains.build(fed)
        for _ in run_phases(trains, fed):
            pass
        rows = stack.rows("validation")
        with torch.no_grad():
            logits = predict(answers, fed, rows)
        truth = torch.stack([tasks[s].y[of] for s, of in zip(seeds, rows, strict=True)])
        found[title] = _score(logits, truth)
        print(f"{name}, {title}: {found[title].mean():.4f}", flush=True)
    return found


def _score(logits: Tensor, y: Tensor) -> Tensor:
    """AUC of two classes, balanced accuracy of more, (R,)."""
    if logits.shape[-1] == 2:
        return compute_auc(logits[..., 1] - logits[..., 0], y)
    right = (logits.argmax(-1) == y).double()
    classes = range(logits.shape[-1])
    by_class = [[r[of == c].mean() for c in classes] for r, of in zip(right, y, strict=True)]
    return torch.tensor(by_class).mean(1)


def measure_leaks(seeds: list[int]) -> pd.DataFrame:
    """Rows of the results of attacks on training rows, and the main task on validation rows."""
    made: dict[str, Any] = {
        "data": [section(TABLES[ATTACKED])], "algorithm": [{"name": "laser"}], "attack": ATTACKS,
        "defense": DEFENSES,
        "audit": {"seeds": seeds, "references": [], "positive_control": False, "canaries": False},
    }  # fmt: skip
    to = BUILD / "_".join(map(str, seeds))
    to.mkdir(parents=True, exist_ok=True)
    found = run_audit(made, to, device="cpu", jobs=1).results
    return found[(found.role == "audit") & (found.metric == found.primary)]


def page(utility: Mapping[str, Mapping[str, Tensor]], leaks: pd.DataFrame) -> str:
    """The page as Markdown."""
    text = opening("When a partner is missing", answer(utility, leaks), METHOD)
    text += table(
        ("system", *utility),
        ([s, *(f"{of[s].mean():.3f}" for of in utility.values())] for s in SYSTEMS),
    )
    text += ["## Differences", ""]
    text += table(
        ("first and second", *utility),
        (
            [f"{a} and {b}", *(_show(_differ(of, a, b)) for of in utility.values())]
            for a, b in PAIRS
        ),
    )
    text += ["## What it leaks", ""]
    names = [a["name"] for a in ATTACKS]
    text += table(("defense", "validation AUC", *names), _leak_rows(leaks, names))
    return "\n".join(text).rstrip("\n") + "\n"


def answer(utility: Mapping[str, Mapping[str, Tensor]], leaks: pd.DataFrame) -> str:
    """The first paragraph."""
    gone, lost, plain = (
        [float(_differ(of, *PAIRS[i]).mean()) for of in utility.values()] for i in (1, 3, 0)
    )
    read = [(row[0], row[2]) for row in _leak_rows(leaks, ["direction"])]
    said = "; ".join(f"{defense}: {found}" for defense, found in read)
    return f"""What does a model answer when the partner does not? LASER-VFL then stays within
        {min(gone):+.3f} to {max(gone):+.3f} of local training on the same labels; FedSplitNN, from
        which the partner is taken away, is {min(lost):.3f} to {max(lost):.3f} below that. With the
        partner LASER is {min(plain):+.3f} to {max(plain):+.3f} beside FedSplitNN. Its gradients
        tell labels as FedSplitNN's do (advantage and AUC of `direction` by defense: {said})."""


def _differ(of: Mapping[str, Tensor], first: str, second: str) -> Tensor:
    return of[first] - of[second]


def _show(values: Tensor) -> str:
    low, high = t_interval(values.numpy())
    if low is None or high is None:
        return f"{float(values.mean()):+.3f}"
    text = f"{float(values.mean()):+.3f} [{low:+.3f}, {high:+.3f}]"
    return f"**{text}**" if low > 0 or high < 0 else text


def _leak_rows(found: pd.DataFrame, names: Sequence[str]) -> list[list[str]]:
    out = []
    for (defense, strength), some in found.groupby(
        ["defense", "strength"], dropna=False, sort=False
    ):
        main = some[(some.attack == "") & (some.split == "validation")]
        row = [
            defense if pd.isna(strength) else f"{defense} {strength:g}",
            f"{main.value.mean():.3f}",
        ]

        for name in names:
            of = some[(some.attack == name) & (some.split == "train")].dropna(subset=["advantage"])
            mean, known = of.advantage.mean(), of.value.mean()
            row.append("–" if of.empty else f"{mean:+.3f} ({known:.3f})")
        out.append(row)
    return out


if __name__ == "__main__":
    main()
