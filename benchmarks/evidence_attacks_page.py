"""The page of the attacks: tables, the comparison with the expectation, and the explanations.

Explanations come from evidence_attacks_comments.md and hold no figure; a section is printed if the
tables call for it: `### FAMILY, COLUMN` explains a disagreement with the expectation, `### below,
FAMILY` figures that are below their baseline and not at chance, `### remark, TITLE` stands always.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from evidence_pages import line, opening, table

from vflsec.audit.intervals import t_interval

__all__ = ["Cell", "page"]


@dataclass(frozen=True)
class Cell:
    """One attack against one kind of training.

    Attributes:
        name, attack, kind, column: of the row and the column of the table.
        target, split, control, reason: of the measure; `reason` says why there is none.
        gains, values, clean: advantage, figure, and accuracy of the clean task by seed.
    """

    name: str
    attack: str
    kind: str
    column: str
    target: str
    split: str
    control: str
    reason: str
    gains: list[float]
    values: list[float]
    clean: list[float]

    @property
    def gain(self) -> tuple[float, float, float]:
        """Mean advantage and its interval."""
        return mean_interval(self.gains)


FAMILY = {
    "direct": "direct", "norm": "norm", "direction": "direction, hints",
    "hints": "direction, hints", "cluster": "on gradients", "similarity": "on gradients",
    "spectral": "on gradients", "spectral z": "on embeddings", "similarity z": "on embeddings",
    "model_completion": "completion", "active_completion": "completion", "lea": "on gradients",
    "gradient_completion": "gradient_completion", "joint_completion": "gradient_completion",
    "zero_pattern": "zero_pattern",
    "batch_inference": "batch_inference", "exploit": "exploit", "unsplit": "unsplit",
    "output": "output", "embedding_inversion": "embedding_inversion", "grn": "grn",
    "equation_solving": "equation_solving", "attribute": "attribute",
    "gradient_replacement": "backdoors", "replay": "backdoors", "villain": "backdoors",
    "swap_probe": "swap_probe", "sdar": "sdar", "fsha": "fsha",
    "unsplit_input": "unsplit_input", "property": "property", "membership": "membership",
}  # fmt: skip
STOPS, PARTLY, NOT, BOUND = "stops", "partly", "does not stop", "within the bound"
EXPECTED: dict[str, tuple[str, str, str]] = {
    "direct": (PARTLY, STOPS, BOUND),
    "norm": (NOT, STOPS, BOUND),
    "direction, hints": (NOT, PARTLY, BOUND),
    "on gradients": (NOT, PARTLY, BOUND),
    "on embeddings": (NOT, PARTLY, BOUND),
    "completion": (NOT, PARTLY, BOUND),
    "gradient_completion": (NOT, PARTLY, BOUND),
    "batch_inference": (PARTLY, STOPS, BOUND),
    "exploit": (PARTLY, STOPS, BOUND),
    "embedding_inversion": (NOT, NOT, NOT),
    "grn": (NOT, NOT, NOT),
    "equation_solving": (NOT, NOT, NOT),
    "attribute": (NOT, NOT, NOT),
    "swap_probe": (NOT, STOPS, BOUND),
    "sdar": (NOT, NOT, NOT),
    "fsha": (NOT, NOT, NOT),
    "unsplit_input": (NOT, NOT, NOT),
    "property": (NOT, NOT, NOT),
}
"""What mechanism and publications let expect of iso 1, iso 25 and label-DP ε = 1, by family."""

ANSWER = """What does each attack find, and how much of it is left under noise or label privacy?
Undefended, attacks on gradients find the labels nearly perfectly on all three data sets. Noise of
strength 1 leaves most of that, for the attacks average it out over epochs. Noise of strength 25
stops most of them, at a cost to the main task. Label privacy at ε = 1 keeps every attack within
its bound. Neither protects the passive party's columns."""
METHOD = (
    """`python benchmarks/evidence_attacks.py`: seeds 0 to 4, 20 labelled rows, 20 epochs of batches
    of 256, cut width 16, `embedding = 0`, one active and one passive party. Cells are
    **advantages** with the half width of their 95 % t interval over seeds.""",
    """Attacks on labels, and `attribute`: AUC less the AUC of the strongest baseline (the one that
    leaves the least mean advantage), on test rows where the attack can label them, else on training
    rows.""",
    """`embedding_inversion`, `sdar`, `fsha`, `grn`, `unsplit_input`, `equation_solving`: R² above
    regression on own columns. The first three have 60 auxiliary rows, the others none but the
    victim's model.""",
    """`gradient_replacement`, `replay`: share of test rows of class 0 that are predicted as class 1
    while the attack runs, less the share while it does not. Below them is the accuracy of the main
    task while it does not run.""",
    """*Behind* is what stands between the embeddings and the loss: a top model with a hidden layer,
    one linear layer, a plain sum, the U-shaped split (`ushaped`), or linear bottoms and a plain sum
    (linear model). With *numbers*, category codes are read as numbers. Attacks without parameters
    in parentheses run with their defaults, which average gradients over epochs. `linear_inversion`
    needs an encrypted layer and stands in [he.md](he.md).""",
)
RULE = """## What differs from the expectation

Whether a defense stops a family of attacks, by its strongest attack in each cell. **stops**: the
interval of the advantage touches zero or lies below it. **does not stop**: 80 % or more of the
undefended advantage is left. **partly**: in between. **within the bound**: the AUC is no higher
than the released label and all columns allow together at this ε.

"""


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95 % t interval over seeds; NaN without values."""
    if not values:
        return math.nan, math.nan, math.nan
    low, high = t_interval(values)
    mean = sum(values) / len(values)
    return mean, mean if low is None else low, mean if high is None else high


def page(
    found: Mapping[str, Sequence[Mapping[str, Any]]], order: Sequence[tuple[str, str]],
    columns: Sequence[str], comments: str,
) -> tuple[str, list[str]]:  # fmt: skip
    """The whole page, and the cells that disagree without an explanation.

    Args:
        found: the parts of every world.
        order: (name, kind) of the table's rows.
        columns: of the table, undefended first.
        comments: text of the comments file.
    """
    rows, cells = [], {}
    for world, made in found.items():
        if made:
            cells[world] = [Cell(**c) for part in made for c in part["cells"]]
            rows += [[world, *row] for row in _rows(cells[world], made, order, columns)]
    head = ["data", "attack", "behind", *columns]
    title = "Attacks: what each finds, and what is left under a defense"
    text = [*opening(title, ANSWER, METHOD), "## Every attack", "", *table(head, rows)]
    mains = {w: _main(found[w], "top", columns[0], "auc")[0] for w in cells}
    told = _sections(comments)
    compared, wanted = _compare(cells, mains, columns, told)
    below, more = _below(cells, columns, told)
    remarks = {k.split(", ", 1)[1]: t for k, t in told.items() if k.startswith("remark, ")}
    text += [
        RULE + compared[0], "", *compared[1:],
        "## Below the baseline", "",
        "An attack below its baseline protects nobody: the attacker would use the baseline, which "
        "needs no message. The others are at chance, where the baseline is not.", "", *below,
        "## Remarks", "", *table(["on", "remark"], ([k, line(t)] for k, t in remarks.items())),
    ]  # fmt: skip
    return "\n".join(text), [k for k in (*wanted, *more) if k not in told]


def _rows(
    cells: Sequence[Cell], made: Sequence[Mapping[str, Any]],
    order: Sequence[tuple[str, str]], columns: Sequence[str],
) -> Iterator[list[str]]:  # fmt: skip
    by = {(c.name, c.kind, c.column): c for c in cells}
    for name, kind in order:
        row = [by[name, kind, c] for c in columns]
        yield [name, kind, *map(_figure, row)]
        if row[0].target == "integrity":
            clean = [f"{mean_interval(c.clean)[0]:.3f}" for c in row]
            yield [f"*{name}: clean accuracy*", kind, *clean]
    for kind in dict.fromkeys(kind for _, kind in order):
        for metric in ("auc", "accuracy") if kind == "top" else ("auc",):
            label = {"auc": "AUC", "accuracy": "accuracy"}[metric]
            figures = [f"{_main(made, kind, c, metric)[0]:.3f}" for c in columns]
            yield [f"*main task, test {label}*", kind, *figures]


def _figure(cell: Cell) -> str:
    if not cell.gains:
        return f"({cell.reason[:60]})"
    mean, low, high = cell.gain
    return f"{mean:+.3f} ± {(high - low) / 2:.3f}"


def _main(
    made: Sequence[Mapping[str, Any]], kind: str, column: str, metric: str
) -> tuple[float, float, float]:
    """The main task of the first training of a kind, in which no active attacker takes part."""
    of: Mapping[str, Mapping[str, Sequence[float]]]
    of = next((p["main"] for p in made if p["kind"] == kind and column in p["main"]), {})
    return mean_interval(of.get(column, {}).get(metric, []))


def family(cell: Cell) -> str:
    on_embeddings = cell.attack in ("spectral", "similarity") and (
        cell.name == "spectral" or "on=embedding" in cell.name
    )
    return FAMILY[f"{cell.attack} z" if on_embeddings else cell.attack]


def _compare(
    cells: Mapping[str, Sequence[Cell]], mains: Mapping[str, float], columns: Sequence[str],
    told: Mapping[str, str],
) -> tuple[list[str], list[str]]:  # fmt: skip
    """How many cells agree and a table of the others; their (family, column) pairs."""
    rows: dict[tuple[str, ...], list[str]] = {}
    wanted, tried, other = [], 0, 0
    for name, expected in EXPECTED.items():
        for column, says in zip(columns[1:], expected, strict=True):
            for world, of in cells.items():
                mine = [c for c in of if family(c) == name and c.gains]
                seen = _verdict(mine, columns[0], column, says, mains[world])
                tried += seen != "-"
                if seen not in ("-", says):
                    key = f"{name}, {column}"
                    wanted.append(key)
                    why = line(told.get(key, "UNEXPLAINED."))
                    rows.setdefault((name, column, says, seen, why), []).append(world)
                    other += 1
    head = ["family", "defense", "expected", "found", "why", "data"]
    said = f"{tried - other} of {tried} cells agree with mechanism and publications, not these:"
    made = [[*key, "; ".join(at)] for key, at in rows.items()]
    return [said, *table(head, made)], list(dict.fromkeys(wanted))


def _verdict(cells: Sequence[Cell], bare: str, column: str, expected: str, main: float) -> str:
    def best(at: str) -> Cell | None:
        there = [c for c in cells if c.column == at]
        return max(there, key=lambda c: c.gain[0], default=None)

    before, after = best(bare), best(column)
    if before is None or after is None or before.gain[1] <= 0:
        return "-"
    if expected == BOUND:
        limit = together(main, 1.0)
        highest = max(mean_interval(c.values)[1] for c in cells if c.column == column)
        return BOUND if highest <= limit else "beyond the bound"
    if after.gain[1] <= 0:
        return STOPS
    return NOT if after.gain[0] >= 0.8 * before.gain[0] else PARTLY


def together(auc: float, epsilon: float) -> float:
    """AUC of the best score from columns of this AUC and a label released at epsilon.

    Columns give a log likelihood ratio N(+-d^2/2, d^2) with d = sqrt(2) Phi^-1(auc); the released
    label adds epsilon or -epsilon, and is right with probability q = e^eps / (1 + e^eps).
    """
    d = math.sqrt(2) * NormalDist().inv_cdf(auc)
    q = 1 / (1 + math.exp(-epsilon))
    pairs = ((q * q, 2), (2 * q * (1 - q), 0), ((1 - q) ** 2, -2))
    if d <= 0:
        return q * q + q * (1 - q)
    normal = NormalDist(0, math.sqrt(2) * d)
    return sum(w * normal.cdf(d * d + k * epsilon) for w, k in pairs)


def _below(
    cells: Mapping[str, Sequence[Cell]], columns: Sequence[str], told: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    """Attacks whose whole interval is below zero and that are not at chance; their families."""
    rows: dict[tuple[str, str], list[str]] = {}
    wanted = []
    order = [(world, column, c) for world, of in cells.items() for column in columns for c in of]
    for world, column, c in order:
        mean, low, high = mean_interval(c.values)
        chance = 0.5 if c.target in ("label", "attribute") else 0.0
        if c.column != column or not c.gains or c.gain[2] >= 0 or low <= chance <= high:
            continue
        key = f"below, {family(c)}"
        wanted.append(key)
        why = line(told.get(key, "UNEXPLAINED."))
        rows.setdefault((c.name, why), []).append(f"{world}, {column}: {mean:.2f}")
    made = [[*key, "; ".join(at)] for key, at in rows.items()]
    return table(["attack", "why", "AUC or R²"], made), list(dict.fromkeys(wanted))


def _sections(comments: str) -> dict[str, str]:
    """Explanations by key."""
    parts = re.split(r"^### (.+)$", comments, flags=re.MULTILINE)
    return {k.strip(): t.strip() for k, t in zip(parts[1::2], parts[2::2], strict=True)}
