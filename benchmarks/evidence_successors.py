"""What came after the five papers: LASER-VFL, FALSE-VFL and APC-VFL, with and without a partner,
and what they leak. Writes docs/evidence/successors.md.

Run ``python benchmarks/evidence_successors.py`` from the root, beside ``VFLSEC_TEST_DATA`` or
../shared/data; it takes some fifteen minutes. ``--seeds N`` and ``--data WORD`` try less, and print
the page instead of writing it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from defaults_of.trials import TABLES
from evidence_pages import known, opening, table
from seeds.run import ROOT, section
from torch import Tensor

from vflsec.algorithms.apcvfl import APCVFL
from vflsec.algorithms.falsevfl import FalseVfl
from vflsec.algorithms.laser import Laser
from vflsec.algorithms.local import Local
from vflsec.algorithms.splitnn import SplitNN
from vflsec.audit.intervals import mean_of, t_interval
from vflsec.audit.result_row import ResultRow
from vflsec.core.federation import Federation
from vflsec.core.task import Stack
from vflsec.data.load import load_source, split_options
from vflsec.data.prepare import make_task
from vflsec.engine.run import run_audit
from vflsec.runtime.grouping import group_by
from vflsec.train.loop import compute_auc, predict, run_phases

PAGE = ROOT / "docs" / "evidence" / "successors.md"
BUILD = ROOT / "build" / "evidence" / "successors"
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
    "FALSE-VFL": (FalseVfl(), FalseVfl()),
    "FALSE-VFL, partner missing": (FalseVfl(), FalseVfl(absent=GONE)),
    "APC-VFL": (APCVFL(), APCVFL()),
    "APC-VFL, nothing distilled": (APCVFL(distill=0.0), APCVFL(distill=0.0)),
}  # fmt: skip
"""What trains, and what answers; APC-VFL answers alone."""

PAIRS = (
    ("LASER", "VFL"),
    ("LASER, partner missing", "Local, all own rows"),
    ("LASER, aligned rows, partner missing", "Local, aligned rows"),
    ("LASER, partner missing", "VFL (mean), partner missing"),
    ("FALSE-VFL", "VFL"),
    ("FALSE-VFL, partner missing", "Local, all own rows"),
    ("APC-VFL", "Local, all own rows"),
    ("APC-VFL", "APC-VFL, nothing distilled"),
)


@dataclass(frozen=True)
class Leaky:
    """What is attacked, under which defenses, one at a time."""

    algorithm: str
    attacks: Sequence[Mapping[str, Any]]
    defenses: Sequence[Mapping[str, Any]]


def _columns(adversary: str) -> dict[str, Any]:
    return {"name": "embedding_inversion", "adversary": adversary, "aux_rows": 50}


_LABELS = [{"name": n} for n in ("direction", "norm", "cluster", "model_completion")]
_NOISE = [
    {"name": "iso", "strength": [0.0, 5.0, 25.0]},
    {"name": "label_dp", "epsilon": [1.0]},
]
LEAKS = (
    Leaky("laser", [*_LABELS, _columns("active")],
          [*_NOISE, {"name": "he_embedding"}, {"name": "he_gradient"}]),
    Leaky("falsevfl",
          [*_LABELS, {"name": "message_completion"}, _columns("active"), _columns("passive")],
          [*_NOISE, {"name": "embedding_noise", "party": "active", "strength": [1.0]}]),
    Leaky("apcvfl", [{"name": "model_completion"}, _columns("active")],
          [*_NOISE, {"name": "embedding_noise", "strength": [1.0]}, {"name": "he_embedding"}]),
)  # fmt: skip
Leaks = Mapping[str, Sequence[ResultRow]]
ATTACKED = "credit_default"

METHOD = (
    """`python benchmarks/evidence_successors.py`; seeds 0 to 2, all algorithms at their defaults,
    the tables and sizes of [the defaults](defaults.md): 1,000 aligned of some 4,000 to 6,000
    training rows. Figures of the first two tables are AUC (covtype: balanced accuracy of seven
    classes) on **validation** rows; no test row is read. Intervals are 95 % t intervals over seeds,
    paired.""",
    """*Partner missing*: validation rows are answered without the passive party. For VFL it is the
    mean of the embeddings that are left; FedSplitNN has no such answer of its own. `absent` says so
    to LASER, which then also chooses its epoch on such answers; FALSE-VFL is trained once for
    both. APC-VFL answers without a partner always; with nothing distilled it never had one.""",
    f"""Leakage is that on {ATTACKED}: the advantage over the same party's baseline without the
    federation and, in brackets, the attack's own AUC (of columns: R²), on training rows, with 20
    known labels or 50 auxiliary rows. `embedding_inversion` is by the party that is named. A dash:
    the message that the attack reads is not there. No encrypted layer goes with FALSE-VFL, which
    combines means, variances and samples in the clear; noise on embeddings is tried in its place.
    It is FALSE-VFL-I; FALSE-VFL-II, which models why a block is missing, is not built.""",
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
    leaks = {of.algorithm: measure_leaks(of, list(seeds)) for of in LEAKS}
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
    found, trained = {}, dict[str, Federation]()
    for title, (trains, answers) in SYSTEMS.items():
        if (key := repr(trains)) not in trained:
            trained[key] = fed = Federation.create(stack, list(seeds), None)
            trains.build(fed)
            for _ in run_phases(trains, fed):
                pass
        fed = trained[key]
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


def measure_leaks(of: Leaky, seeds: list[int]) -> list[ResultRow]:
    """Rows of the results of attacks on training rows, and the main task on validation rows."""
    made: dict[str, Any] = {
        "data": [section(TABLES[ATTACKED])], "algorithm": [{"name": of.algorithm}],
        "attack": of.attacks, "defense": [{**d, "choice": "protection"} for d in of.defenses],
        "audit": {"seeds": seeds, "references": [], "positive_control": False, "canaries": False},
    }  # fmt: skip
    to = BUILD / "_".join([of.algorithm, *map(str, seeds)])
    to.mkdir(parents=True, exist_ok=True)
    found = run_audit(made, to, device="cpu", jobs=1).rows
    return [r for r in found if r.role == "audit" and r.metric == r.primary]


def page(utility: Mapping[str, Mapping[str, Tensor]], leaks: Leaks) -> str:
    """The page as Markdown."""
    text = opening("What came after: a missing partner, one upload", answer(utility, leaks), METHOD)
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
    for of in LEAKS:
        text += [f"## What `{of.algorithm}` leaks", ""]
        heads, rows = _leak_rows(of, leaks[of.algorithm])
        text += table(("defense", "validation AUC", *heads), rows)
    return "\n".join(text).rstrip("\n") + "\n"


def answer(utility: Mapping[str, Mapping[str, Tensor]], leaks: Leaks) -> str:
    """The first paragraph."""

    def ends(pair: tuple[str, str]) -> str:
        every = [float(_differ(of, *pair).mean()) for of in utility.values()]
        return f"{min(every):+.3f} to {max(every):+.3f}"

    plain = {of.algorithm: _leak_rows(of, leaks[of.algorithm])[1][0] for of in LEAKS}
    laser, false, apc = (plain[of.algorithm] for of in LEAKS)
    return f"""What do the newer algorithms keep when the partner does not answer, and what do they
        reveal? LASER-VFL without its partner is {ends(PAIRS[1])} beside local training on the same
        labels, FALSE-VFL {ends(PAIRS[5])}, APC-VFL, which never asks again, {ends(PAIRS[6])}. With
        the partner LASER is {ends(PAIRS[0])} beside FedSplitNN and FALSE-VFL {ends(PAIRS[4])}.
        LASER's gradients reveal labels as FedSplitNN's do (`direction` {laser[2]}). FALSE-VFL sends
        none in its second stage, but reveals columns both ways (R² gained, and R²: {false[7]} by
        the active party, {false[8]} by the passive one). The one upload of APC-VFL reveals
        columns, too ({apc[3]}), and it is not shown that it helps: {ends(PAIRS[7])}."""


def _differ(of: Mapping[str, Tensor], first: str, second: str) -> Tensor:
    return of[first] - of[second]


def _show(values: Tensor) -> str:
    low, high = t_interval(values.numpy())
    if low is None or high is None:
        return f"{float(values.mean()):+.3f}"
    text = f"{float(values.mean()):+.3f} [{low:+.3f}, {high:+.3f}]"
    return f"**{text}**" if low > 0 or high < 0 else text


def _leak_rows(of: Leaky, rows: Sequence[ResultRow]) -> tuple[list[str], list[list[str]]]:
    """Attacks, and of each defense its name, the main task and what each attack finds."""
    asked = [(str(a["name"]), str(a.get("adversary", ""))) for a in of.attacks]
    out = []
    for (defense, strength), some in group_by(rows, lambda r: (r.defense, r.strength)).items():
        train = [r for r in some if r.split == "train" and r.advantage is not None]
        main = _last(r for r in some if not r.attack and r.split == "validation")
        shown = defense if strength is None else f"{defense} {strength:g}"
        row = [shown, f"{mean_of(known(r.value for r in main)):.3f}"]
        for name, adversary in asked:
            mine = _last(r for r in train if r.attack == name and adversary in ("", r.adversary))
            gains, values = known(r.advantage for r in mine), known(r.value for r in mine)
            row.append(f"{mean_of(gains):+.3f} ({mean_of(values):.3f})" if mine else "–")
        out.append(row)
    return [f"{name} by {who}" if who else name for name, who in asked], out


def _last(rows: Iterable[ResultRow]) -> list[ResultRow]:
    """Those with a figure, of the last phase that has one."""
    of = [r for r in rows if r.value is not None]
    return [r for r in of if r.phase == of[-1].phase]


if __name__ == "__main__":
    main()
