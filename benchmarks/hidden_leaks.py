"""Leaks that hide and worlds without one under default attacks: docs/evidence/hidden_leaks.md.

``python benchmarks/hidden_leaks.py [NAME ...]`` audits these worlds, all of them by default, of
which the page is written. Messages are arrays, so nothing is trained: Gaussian noise of width 8 for
each row and epoch, in batches in random order, with what is planted. A decoder that knows what was
planted names every row that has it. Beside the system stand recordings of one without a defense,
which reveals every label, so that attacks are shown to work. Each audit has five seeds of both and
two gates on the system, as drafts have: an advantage of at most 0.1, and exposed rows at the
least of 1, 2, 5 and 10 % that luck leaves open.

``--nulls`` audits 60 systems that are really trained and leak nothing, ``--completions`` has such
attacks beside their controls where labels are learnt; each writes its part of the page alone.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import vflsec
from vflsec.audit.controls import Leakage
from vflsec.audit.exposed import LUCKY, count_nameable
from vflsec.audit.intervals import clopper_pearson, t_interval
from vflsec.audit.leakage_claims import find_claims
from vflsec.audit.point import Point
from vflsec.cli.draft_text import SETTINGS

OUT = Path(__file__).resolve().parent.parent / "docs" / "evidence" / "hidden_leaks.md"
SEEDS, ROWS, EPOCHS, BATCH, WIDTH = 5, 1200, 3, 48, 8
LIMITS = (0.01, 0.02, 0.05, 0.1)

Ints = NDArray[np.int64]
Array = NDArray[Any]
Plant = Callable[["World", Array, Ints, np.random.Generator], Array]


@dataclass(frozen=True)
class World:
    """One system.

    Attributes:
        name: what is planted, or what is special.
        plant: makes messages (n, width) of noise (n, width), rows (n,) and a generator.
        wanted: verdicts that are right, of both gates together (the worst of them).
        classes, rows, share, known: number of classes, of rows, share of class 1, known rows.
        columns: AUC of own columns; none at 0.5.
        order: rows of an epoch in the order in which they come; None for random order.
        epochs: of the training.
        truth: share of rows that are exposed, where it is planted; else None.
    """

    name: str
    plant: Plant
    wanted: tuple[str, ...] = ("FAIL",)
    classes: int = 2
    rows: int = ROWS
    share: float = 0.5
    known: int = 20
    columns: float = 0.5
    order: Callable[[Ints, np.random.Generator], Ints] | None = None
    epochs: int = EPOCHS
    truth: float | None = None
    labels: Ints = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng([1, self.rows, self.classes])
        y = np.arange(self.rows) % self.classes
        if self.classes == 2:
            y = (np.arange(self.rows) < self.share * self.rows).astype(np.int64)
        object.__setattr__(self, "labels", rng.permutation(y))

    def see(self, seed: int, defense: str = "none") -> vflsec.Messages:
        """What the party saw of one training, without a defense of the open system."""
        order_of = self.order if defense != "none" else None
        plant = self.plant if defense != "none" else _open
        rng = np.random.default_rng([seed, self.rows, len(self.name)])
        ids, sent = [], []
        for _ in range(self.epochs):
            order = rng.permutation(self.rows)
            if order_of is not None:
                order = order_of(self.labels, rng)
            x = plant(self, rng.standard_normal((self.rows, WIDTH)), order, rng)
            starts = range(0, self.rows, BATCH)
            ids += [order[i : i + BATCH] for i in starts]
            sent += [x[i : i + BATCH].astype(np.float32) for i in starts]
        columns = None
        if self.columns > 0.5:
            from scipy.special import ndtri

            noise = np.random.default_rng(7).standard_normal(self.rows)
            columns = (noise + np.sqrt(2) * ndtri(self.columns) * self.labels)[:, None]
        return vflsec.Messages(
            gradients=sent, ids=ids, columns=columns, loss_reduction="sum", defense=defense,
            strength=float(defense != "none"),
        )  # fmt: skip

    @property
    def gates(self) -> list[dict[str, Any]]:
        """As drafts have them."""
        many, luck = count_nameable(self.labels)
        fits = [x for x in LIMITS if many and x * many >= LUCKY[0] + LUCKY[1] * luck]
        people = {"max": (fits or LIMITS[-1:])[0], "of": "exposed", "target": "label"}
        return [{"defense": "defended", **gate} for gate in ({"max": 0.1}, people)]


def signs(y: Ints) -> Array:
    return 2.0 * y - 1


def _open(w: World, x: Array, rows: Ints, rng: np.random.Generator) -> Array:
    means = np.random.default_rng(3).standard_normal((w.classes, WIDTH))
    return 0.01 * x + means[w.labels[rows]] - means.mean(0)


def _noise(w: World, x: Array, rows: Ints, rng: np.random.Generator) -> Array:
    return x


def _marked(share: float) -> Plant:
    def plant(w: World, x: Array, rows: Ints, rng: np.random.Generator) -> Array:
        every = round(1 / share)
        rank = np.empty(w.rows, np.int64)  # as many of each class
        for c in range(w.classes):
            mine = np.flatnonzero(w.labels == c)
            rank[mine] = np.arange(len(mine))
        x = 0.01 * x
        x[:, 0] += 0.2 * (rank[rows] % every == 0) * signs(w.labels[rows])
        return x

    return plant


def _product(*entries: int, of_id: bool = False, only: int | None = None) -> Plant:
    def plant(w: World, x: Array, rows: Ints, rng: np.random.Generator) -> Array:
        y = w.labels if only is None else (w.labels == only).astype(np.int64)
        sign = signs(y[rows]) * (signs(rows & 1) if of_id else 1)
        x[:, entries[0]] *= np.sign(x[:, list(entries)].prod(1)) * sign
        return x

    return plant


def _low_bit(w: World, x: Array, rows: Ints, rng: np.random.Generator) -> Array:
    short = x.astype(np.float32)
    bits = short[:, 3].copy().view(np.int32)
    short[:, 3] = ((bits & ~1) | w.labels[rows]).astype(np.int32).view(np.float32)
    return short


def _modulo(w: World, x: Array, rows: Ints, rng: np.random.Generator) -> Array:
    x = (1000 * x).round()
    x[:, 0] = 10 * (x[:, 0] // 10) + rng.integers(5, size=len(x)) * 2 + w.labels[rows]
    return x


def _odd_places(y: Ints, rng: np.random.Generator) -> Ints:
    ones, none = (rng.permutation(np.flatnonzero(y == c)) for c in (1, 0))
    return np.stack([none, ones], axis=1).ravel()


def _all(w: World, x: Array, rows: Ints, rng: np.random.Generator) -> Array:
    x[:, 0] += 20 * signs(w.labels[rows])
    return x


def _shuffled(w: World, x: Array, rows: Ints, rng: np.random.Generator) -> Array:
    other = np.random.default_rng(99).permutation(w.labels)
    x[:, 0] += 3 * signs(other[rows])
    return x


def _constant(w: World, x: Array, rows: Ints, rng: np.random.Generator) -> Array:
    return np.ones_like(x)


SAFE = ("PASS", "INCONCLUSIVE")
LEAKS = (
    World("5 % of rows marked by class", _marked(0.05), truth=0.05),
    World(
        "1 % of rows marked by class",
        _marked(0.01),
        ("FAIL", "INCONCLUSIVE"),
        truth=0.01,
        rows=2000,
    ),
    World("sign of a product of two entries", _product(0, 1)),
    World("sign of a product of three entries", _product(2, 5, 7)),
    World("sign xor a bit of the public row id", _product(4, of_id=True)),
    World("last bit of the mantissa", _low_bit),
    World("value modulo 10 under integer noise", _modulo),
    World("odd places of a batch hold class 1", _noise, order=_odd_places),
    World("one class of twelve", _product(0, 1, only=7), classes=12, known=120),
    World("every label beside a baseline of AUC 0.97", _all, columns=0.97, truth=None),
)
NULLS = (
    World("sealed", _noise, ("PASS",)),
    World("sealed beside a baseline of AUC 0.97", _noise, SAFE, columns=0.97),
    World("labels of other rows", _shuffled, ("PASS",)),
    World("constant messages", _constant, SAFE),
    World("1 % positive", _noise, SAFE, share=0.01, rows=2000),
    World("20 classes", _noise, SAFE, classes=20, known=80),
    World("60 rows", _noise, SAFE, rows=60),
)


@dataclass(frozen=True)
class Found:
    """What an audit says of a world."""

    world: World
    verdicts: Sequence[dict[str, Any]]
    people: dict[str, Any] | None
    seconds: float

    @property
    def worst(self) -> str:
        """FAIL if a gate failed, else INCONCLUSIVE if one is."""
        said = {v["verdict"] for v in self.verdicts}
        return next(v for v in ("FAIL", "INCONCLUSIVE", "PASS") if v in said)

    @property
    def is_right(self) -> bool:
        """Whether it is as wanted."""
        return self.worst in self.world.wanted

    def cells(self) -> tuple[str, ...]:
        """A line of the page."""
        gates = []
        for v in self.verdicts:
            value = "" if v["value"] is None else f" {v['value']:+.3f}"
            gates.append(f"{v['verdict']}{value} ({v['attack'] or '-'}, {v['rule']})")
        p = self.people
        who = "" if p is None else f"{p['share']:.4f} [{p['low']:.4f}, {p['high']:.4f}]"
        who += "" if self.world.truth is None else f" of {self.world.truth:g}"
        right = "as wanted" if self.is_right else f"**wanted {' or '.join(self.world.wanted)}**"
        return self.world.name, *gates, who, right


def audit(world: World) -> Found:
    """Audit a world by every attack that its messages allow."""
    start = time.process_time()
    with tempfile.TemporaryDirectory() as out:
        seen = [world.see(s, how) for how in ("none", "planted") for s in range(SEEDS)]
        found = vflsec.audit_messages(
            seen, world.labels, known=world.known, gates=world.gates, out=out
        )
        points = [p["exposed"] for p in found.summary["points"] if p.get("exposed")
                  and p["metric"] == "exposed" and p["defense"] == "planted"]  # fmt: skip
        people = max(points, key=lambda p: p["low"], default=None)
        return Found(world, found.summary["gates"], people, time.process_time() - start)


def pick(worlds: Sequence[World], names: Sequence[str]) -> Iterator[World]:
    """The worlds whose name has one of these in it; all if there are none."""
    return (w for w in worlds if not names or any(n in w.name for n in names))


@dataclass(frozen=True)
class System:
    """A kind of system that is really trained, on tables that are drawn.

    Attributes:
        name: what is special.
        rows, classes, share, parties, known: of the table; share of class 1 and known rows.
        signal: standard deviation of the means of the classes, in those of their rows.
        two_values: whether columns of the passive parties are all one, of two values.
        sealed: whether labels are dealt out anew before anything is trained on them.
    """

    name: str
    rows: int = 400
    classes: int = 2
    share: float = 0.3
    parties: int = 2
    known: int = 20
    signal: float = 0.35
    two_values: bool = False
    sealed: bool = True

    def draw(self, audit: int) -> dict[str, Any]:
        """The ``[data]`` section of an audit, with its table."""
        rng = np.random.default_rng([2, audit])
        y = np.arange(self.rows) % self.classes
        if self.classes == 2:
            y = (np.arange(self.rows) < self.share * self.rows).astype(np.int64)
        y, owners = rng.permutation(y), ["active", *"abc"[: self.parties - 1]]
        columns = {p: [f"{p}{i}" for i in range(6)] for p in owners}
        names = [c for of in columns.values() for c in of]
        means = self.signal * rng.standard_normal((self.classes, len(names)))
        x = rng.standard_normal((self.rows, len(names))) + means[y]
        if self.two_values:
            x[:, 6:] = x[:, 6:7] > 1.5
        table = pd.DataFrame(x, columns=names).assign(row=np.arange(self.rows), label=y)
        sealed = {"shuffle_labels": True} if self.sealed else {}
        return {"file": table, "id": "row", "label": "label", "active": "active",
                "columns": columns, **sealed}  # fmt: skip

    def audit(self, audit: int, attacks: Sequence[str]) -> dict[str, Any]:
        """The summary of an audit of :data:`SEEDS` trainings under these attacks."""
        few = {"known_rows": self.known}
        with tempfile.TemporaryDirectory() as out:
            return vflsec.run_audit({
                "data": [self.draw(audit)],
                "algorithm": {"name": "splitnn", "epochs": 3, "batch_size": 64},
                "attack": [
                    {"name": a, **({} if a in UNTOLD else few), **SETTINGS.get(a, {})}
                    for a in attacks
                ],
                "gate": [{"metric": "advantage", "target": "label", "max": x} for x in (0.1, 0.0)],
                "audit": {"seeds": [SEEDS * audit + s for s in range(SEEDS)], "references": [],
                          "positive_control": False, "canaries": False},
            }, out, device="cpu", jobs=1).summary  # fmt: skip


SYSTEMS = (
    System("labels of other rows", share=0.5),
    System("columns without a signal too", signal=0.0),
    System("columns of two values", two_values=True),
    System("1 % positive", rows=1500, share=0.01),
    System("20 classes", rows=800, classes=20, known=80),
    System("three parties", parties=3),
    System("60 rows", rows=60, known=10, share=0.5),
)
TRAINED, AUDITS = "## Trained systems without a leak", 60
ASKED = ((0.1, "FAIL"), (0.0, "FAIL"))
COMPLETIONS = ("model_completion", "message_completion", "gradient_completion", "joint_completion")
UNTOLD = ("norm", "zero_pattern")
REST = ("zero_pattern", "dictionary", "similarity")
LEARNT = (
    System("1 % positive", rows=2000, share=0.01, sealed=False),
    System("5 % positive", rows=1000, share=0.05, sealed=False),
    System("20 % positive", share=0.2, sealed=False),
    System("50 % positive", share=0.5, sealed=False),
    System("3 classes", rows=600, classes=3, known=40, sealed=False),
    System("12 classes", rows=1200, classes=12, known=48, sealed=False),
)
BESIDE, TABLES = "## Completions beside their best control", 4


def train_nulls(count: int) -> list[str]:
    """The part of the page on trained systems, of so many audits."""
    lines, start = [], time.process_time()
    total, shown = [0] * 2, [0, 0]
    for k, system in enumerate(SYSTEMS):
        verdicts, claims = [], []
        attacks = [*COMPLETIONS, *REST]
        attacks += ["norm", "direction"] if system.classes == 2 else ["cluster"]
        for audit in range(k, count, len(SYSTEMS)):
            found = system.audit(audit, attacks)
            verdicts += [(v["gate"]["max"], v["verdict"]) for v in found["gates"]]
            claims += find_claims(map(Point.read, found["points"]))
        said = [verdicts.count(v) for v in ASKED]
        stars = [sum(c.is_leak for c in claims), len(claims)]
        total = [a + b for a, b in zip(total, said, strict=True)]
        shown = [a + b for a, b in zip(shown, stars, strict=True)]
        audits = len(range(k, count, len(SYSTEMS)))
        lines.append(f"| {system.name} | {audits} | {' | '.join(map(str, said))} | "
                     f"{stars[0]} of {stars[1]} |")  # fmt: skip
        print(lines[-1], f"[{time.process_time() - start:.0f} s]", flush=True)
    low, high = (100 * x for x in clopper_pearson(shown[0], shown[1]))
    return [
        TRAINED, "",
        f"Made by `python benchmarks/hidden_leaks.py --nulls` ({time.process_time() - start:.0f} s "
        f"of one CPU core): {count} audits of {SEEDS} split networks each, on tables that are "
        "drawn anew, trained on labels that were dealt out anew, under the attacks of a draft and "
        "a gate of an advantage of at most 0.1 on labels, and one of at most 0, which may fail in "
        "5 % of them. Of each attacker and quantity (advantage, flipped, exposed rows) the "
        "strongest test is called significant at 2.5 %, corrected for the number of tests. With "
        "no positive control no attack is validated, so that nothing can pass.",
        "",
        "| system | audits | FAIL at 0.1 | FAIL at 0 | significant |",
        "|---" * 5 + "|",
        *lines,
        f"| all | {count} | {' | '.join(map(str, total))} | {shown[0]} of {shown[1]} "
        f"({100 * shown[0] / shown[1]:.1f} %, {low:.1f} to {high:.1f}) |", "",
    ]  # fmt: skip


@dataclass(frozen=True)
class Gain:
    """What a completion gains on one table over its best control and over the one named beforehand.

    The best is chosen by the truth, over all seeds of the table; the other by cross-validation on
    the known rows.
    """

    best: float
    named: float
    names: tuple[str, str]

    @classmethod
    def of(cls, leakage: Leakage) -> Gain:
        """From a point's advantages."""
        best, named = leakage.least, leakage.ahead
        return cls(best.mean or 0.0, named.mean or 0.0, (best.name, named.name))


def train_completions(tables: int) -> list[str]:
    """The part of the page on completions, over so many tables of each kind."""
    lines, start = [], time.process_time()
    every: dict[tuple[str, str], list[Gain]] = {}
    for system in LEARNT:
        gained: dict[tuple[str, str], list[Gain]] = {}
        for audit in range(tables):
            for p in map(Point.read, system.audit(audit, COMPLETIONS)["points"]):
                if p.is_main and p.leakage is not None:
                    gained.setdefault((p.attack, p.split), []).append(Gain.of(p.leakage))
        for at, of in gained.items():
            every.setdefault(at, []).extend(of)
            names = (", ".join(dict.fromkeys(g.names[k] for g in of)) for k in range(2))
            lines.append(_gain_line(system.name, at, of, *names))
            print(lines[-1], f"[{time.process_time() - start:.0f} s]", flush=True)
    below = [" on ".join(at) for at, of in every.items()
             if (t_interval([g.best for g in of]).high or 0.0) < 0]  # fmt: skip
    return [
        BESIDE, "",
        "Over all six kinds of labels, below its best control by more than its interval: "
        f"{', '.join(f'{name} rows' for name in below) or 'none'}.", "",
        f"Made by `python benchmarks/hidden_leaks.py --completions` "
        f"({time.process_time() - start:.0f} s of one CPU core): {tables} tables of each kind that "
        f"are drawn, of each {SEEDS} split networks, and the completions of a draft. What one "
        "gains in the metric that verdicts rest on, mean over tables with its 95 % interval: over "
        "the control that is best on that table, which only the truth tells, and over the control "
        "that cross-validation on the known rows names. A completion does not know which of about "
        "ten controls will be best; so the first is below the second.", "",
        "| labels | completion | rows | over its best control | over the control named beforehand "
        "|", "|---" * 5 + "|",
        *(_gain_line("all six", at, of) for at, of in every.items()), "",
        "| labels | completion | rows | over its best control | over the control named beforehand "
        "| best controls | named beforehand |", "|---" * 7 + "|",
        *lines, "",
    ]  # fmt: skip


def _gain_line(labels: str, at: tuple[str, str], of: Sequence[Gain], *names: str) -> str:
    cells = []
    for gains in ([g.best for g in of], [g.named for g in of]):
        low, high = t_interval(np.array(gains))
        cells.append(f"{np.mean(gains):+.3f} [{low:+.3f}, {high:+.3f}]")
    return f"| {' | '.join((labels, *at, *cells, *names))} |"


def _put(part: Sequence[str]) -> None:
    """Put a part in its place on the page, behind what is made without training."""
    page = OUT.read_text(encoding="utf-8")
    before, _, after = page.partition(part[0])
    rest = after.partition("\n## ")
    OUT.write_text(before.rstrip() + "\n\n" + "\n".join(part) + "".join(rest[1:]), encoding="utf-8")


def main() -> None:
    """Audit, print, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names of worlds; nothing is written")
    for name, many, what in (
        ("--nulls", AUDITS, "audit N trained systems without a leak"),
        ("--completions", TABLES, "completions on N tables of each kind"),
    ):
        parser.add_argument(
            name, type=int, nargs="?", const=many, default=0, metavar="N",
            help=f"{what}; {many} are written",
        )  # fmt: skip
    given = parser.parse_args()
    names = given.names
    logging.disable(logging.WARNING)
    for many, whole, make in ((given.nulls, AUDITS, train_nulls),
                              (given.completions, TABLES, train_completions)):  # fmt: skip
        if many:
            lines = make(many)
            if many == whole:
                _put(lines)
            print("\n".join(lines))
    if given.nulls or given.completions:
        return
    parts = {"Leaks": LEAKS, "Nothing leaks": NULLS}
    table: dict[str, list[Found]] = {}
    for part, worlds in parts.items():
        for world in pick(worlds, names):
            found = audit(world)
            table.setdefault(part, []).append(found)
            print(" | ".join(found.cells()), f"[{found.seconds:.0f} s]", flush=True)
    if not names:
        kept = OUT.read_text(encoding="utf-8").partition(TRAINED)
        OUT.write_text(_page(table) + "\n" + "".join(kept[1:]), encoding="utf-8")
    sys.exit(any(not f.is_right for of in table.values() for f in of))


def _page(table: dict[str, list[Found]]) -> str:
    seconds = sum(f.seconds for of in table.values() for f in of)
    lines = [
        "# Leaks that hide",
        "",
        f"Made by `python benchmarks/hidden_leaks.py` ({seconds:.0f} s of one CPU core). Each "
        f"world is {ROWS} rows in {EPOCHS} epochs and {SEEDS} seeds unless the line says "
        "otherwise, with 20 known rows and Gaussian messages of width 8; nothing is trained. All "
        "attacks that such messages allow are made. A decoder that knows what was planted has an "
        "AUC of 1 on the rows that have it. Each gate has its verdict, the value, the attack that "
        "decides and the rule.",
        "",
    ]
    for part, rows in table.items():
        lines += [
            f"## {part}", "",
            "| world | advantage at most 0.1 | exposed rows | exposed, with 95 % interval | |",
            "|---|---|---|---|---|",
            *(f"| {' | '.join(f.cells())} |" for f in rows), "",
        ]  # fmt: skip
    return "\n".join(lines)


if __name__ == "__main__":
    main()
