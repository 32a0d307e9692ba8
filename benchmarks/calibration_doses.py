"""Whether leaks that are trained are found as often as planted ones: writes docs/evidence/doses.md.

Run ``python benchmarks/calibration_doses.py`` (see the page for its time); ``--audits 4`` prints a
tenth of it without writing.

One world, two ways to the same leak. *Planted*: every row's gradient is replaced by noise before it
leaves, so nothing is told, and the audit lays doses over what the attacker saw
(`vflsec.audit.dosing`). *Trained*: the same defense forgets a share of the rows, whose gradients go
out as they are, in every epoch, and the passive party's bottom learns from them. Every audit has
five seeds of its own. Both are judged by one rule: the lower bound of the advantage over all
controls is above 0.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from evidence_pages import opening
from torch import Tensor

from vflsec.audit import dosing
from vflsec.audit.intervals import clopper_pearson
from vflsec.audit.leakage import complete_rows, list_rows, summarise
from vflsec.audit.result_row import ResultRow
from vflsec.core.message import Message
from vflsec.core.policy import Own, Policy
from vflsec.data.load import load_source
from vflsec.data.prepare import make_task
from vflsec.engine.cohort import run_cohort
from vflsec.runtime.typed_values import write_plain
from vflsec.specs import AttackSpec, CellSpec, DefenseSpec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from broken_claims import registered

OUT = Path(__file__).resolve().parent.parent / "docs" / "evidence" / "doses.md"
AUDITS, SEEDS, CONFIDENCE = 40, 5, 0.95
ALPHA = (1 - CONFIDENCE) * CONFIDENCE  # as a gate tests
SHARES = (0.05, 0.1, 0.2, 0.4)
ATTACKS = ("direction", "gradient_completion")
TRAINING = {"epochs": 5, "batch_size": 64}


@dataclass(frozen=True)
class Forgets(Policy):
    """Noise of the batch's root mean square in place of gradients, but for the rows it forgets.

    The strength is the share of rows that are protected; which ones is the same in every epoch.
    """

    name: ClassVar[str] = "broken"
    strengths: ClassVar[str] = "share of rows"
    covers = frozenset({"gradient"})

    def outgoing(self, message: Message, own: Own) -> Tensor:
        d = message.tensor
        assert message.rows is not None
        coin = (message.rows * 2_654_435_761 % 2**32).double() / 2**32
        size = d.square().mean(dim=(1, 2), keepdim=True).sqrt()
        noise = size * own.rng.normal(d.shape[1:]).to(d)
        return torch.where((coin < own.strength[:, None]).unsqueeze(2), noise, d)


@dataclass(frozen=True)
class Line:
    """One attack at one share: audits that found it, and the mean advantage, each way."""

    attack: str
    split: str
    share: float
    size: float
    chance: float
    planted: tuple[int, int, float]
    trained: tuple[int, int, float]


def audits(count: int, shares: Sequence[float], doses: Sequence[float]) -> Iterator[ResultRow]:
    """Rows of audits with five seeds each, the defense forgetting each share of the rows."""
    section: dict[str, Any] = {"name": "leaky"}
    specs = [
        AttackSpec(n, adversary=("passive",), known_rows=20, dosing=tuple(doses)) for n in ATTACKS
    ]
    keys = {s.key for s in specs}
    for first in range(0, count, 4):
        here = range(first, min(first + 4, count))
        seeds = [1000 * a + s for a in here for s in range(SEEDS)]
        tasks = {s: make_task(load_source(section, s, Path()), s) for s in seeds}
        cells = [
            CellSpec(section, "splitnn", TRAINING, (DefenseSpec("broken", {}, "", 1 - share),), s)
            for share in shares
            for s in seeds
        ]
        with registered(Forgets()):
            for result in run_cohort(cells, specs, tasks, device="cpu"):
                for row in list_rows(result):
                    if row.attack_key in keys:
                        yield replace(row, dataset=f"d{result.spec.seed // 1000}", known_rows=20)


def planted(count: int) -> list[dict[str, Any]]:
    """What was found of each dose in audits of a training that tells nothing."""
    every = complete_rows(audits(count, (0.0,), SHARES))
    laid = [r for r in every if dosing.MARK in r.phase]
    return write_plain(dosing.build_curve(summarise(laid, CONFIDENCE), CONFIDENCE))


def trained(count: int) -> list[dict[str, Any]]:
    """The same of trainings that forget as many rows."""
    out = []
    for p in summarise(complete_rows(audits(count, (0.0, *SHARES), ())), CONFIDENCE):
        leak = p.leakage
        if leak is not None and p.is_main:
            out.append({
                "attack": p.attack, "split": p.split, "share": 1 - float(p.strength or 0.0),
                "advantage": leak.least.mean, "found": leak.p_above(0.0) < ALPHA,
                "detectable": leak.detectable(ALPHA),
            })  # fmt: skip
    return out


def lines(laid: Sequence[dict[str, Any]], real: Sequence[dict[str, Any]]) -> list[Line]:
    """Both ways beside each other; without a leak only the trained one is there."""
    out = []
    for attack, split in sorted({(r["attack"], r["split"]) for r in real}):
        for share in (0.0, *SHARES):
            a, b = (
                [r for r in rows if (r["attack"], r["split"]) == (attack, split)
                 and abs(r["share"] - share) < 1e-9]
                for rows in (laid, real)
            )  # fmt: skip
            if b:
                size, chance = (_mean(a, k) for k in ("planted", "chance"))
                out.append(Line(attack, split, share, size, chance, _seen(a), _seen(b)))
    return out


def _seen(rows: Sequence[dict[str, Any]]) -> tuple[int, int, float]:
    return sum(bool(r["found"]) for r in rows), len(rows), _mean(rows, "advantage")


def _mean(rows: Sequence[dict[str, Any]], key: str) -> float:
    return float(np.mean([r[key] for r in rows])) if rows else float("nan")


def share_of(k: int, n: int) -> str:
    """``12 of 40 (17 to 46 %)``, with the exact 95 % interval."""
    if not n:
        return ""
    low, high = clopper_pearson(k, n)
    return f"{k} of {n} ({100 * low:.0f} to {100 * high:.0f} %)"


ANSWER = """A PASS says how small a leak the audit could have detected, from leaks that are
[planted](../statistics.md) over what the attacker saw. Are leaks of that size found when they are
real? Here the same shares of rows leak in the training itself, and are found at least as often as
the planted ones."""


def text(found: Sequence[Line], real: Sequence[dict[str, Any]], seconds: float) -> str:
    """The page."""
    out = [
        *opening("Planted leaks beside trained ones", ANSWER, [
            f"`python benchmarks/calibration_doses.py` ({seconds:.0f} s of one CPU core). {AUDITS} "
            f"audits of {SEEDS} seeds each on fresh worlds of `leaky`, split networks of 5 epochs, "
            "20 labelled rows. A defense replaces gradients by noise and forgets some rows, in "
            "every epoch, and the passive party's bottom learns from them.",
            "*Found*: the lower bound of the advantage over all baselines is above 0. *Chance* is "
            "what the audit says of itself, from the spread over its seeds. *Size* is what the "
            "best attacker would gain.",
        ]),
        "| attack, rows | share | size | chance | planted: found | advantage | trained: found | "
        "advantage |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for r in found:
        there = bool(r.planted[1])
        out.append(
            f"| {r.attack}, {r.split} | {r.share:g} | {f'{r.size:.3f}' if there else ''} | "
            f"{f'{r.chance:.2f}' if there else ''} | {share_of(*r.planted[:2])} | "
            f"{f'{r.planted[2]:+.3f}' if there else ''} | {share_of(*r.trained[:2])} | "
            f"{r.trained[2]:+.3f} |"
        )
    out += ["", "## By the spread over seeds", "",
            "The other figure of a PASS needs no planting: the least advantage whose lower bound "
            "would be above 0 with a chance of 0.8. It is right if leaks of that size are found "
            "in 0.8 of the audits. All trained audits, by how many times that size their true "
            "advantage is (the mean over all audits of the same attack and share):", "",
            "| true advantage / least detectable | audits | found |", "|---|---|---|"]  # fmt: skip
    for low, high in ((-np.inf, 0.25), (0.25, 0.75), (0.75, 1.25), (1.25, 2.0), (2.0, np.inf)):
        hit = [r["found"] for r in real if low <= _relative(r, real) < high]
        name = f"{low:g} to {high:g}" if np.isfinite([low, high]).all() else (
            f"below {high:g}" if np.isfinite(high) else f"{low:g} and more"
        )  # fmt: skip
        out.append(f"| {name} | {len(hit)} | {share_of(sum(hit), len(hit))} |")
    return "\n".join(out) + "\n"


def _relative(row: dict[str, Any], real: Sequence[dict[str, Any]]) -> float:
    alike = [
        r for r in real
        if (r["attack"], r["split"], r["share"]) == (row["attack"], row["split"], row["share"])
    ]  # fmt: skip
    return _mean(alike, "advantage") / row["detectable"]


def main() -> None:
    """Run both ways and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--audits", type=int, default=AUDITS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    start = time.process_time()
    laid, real = planted(given.audits), trained(given.audits)
    page = text(lines(laid, real), real, time.process_time() - start)
    print(page)
    if given.audits == AUDITS:
        OUT.write_text(page, encoding="utf-8")
        print(f"wrote {OUT}")


if __name__ == "__main__":
    main()
