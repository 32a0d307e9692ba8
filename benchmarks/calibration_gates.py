"""How often gates accuse a sealed system and miss a leaking one: writes docs/evidence/gates.md.

Run ``python benchmarks/calibration_gates.py`` (about five minutes on one core); ``--quick`` prints
a tenth of it without writing.

Simulated audits: guesses are drawn, scored on their rows by `vflsec.audit.metrics.score`, compared
with a control that is scored on the same rows, summarised over seeds and judged by `vflsec.gate`.
Trained audits: split networks are trained and attacked by the engine. In a sealed world the active
party trains on shuffled labels, so what the passive party sees says nothing about the truth.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import special

from vflsec.audit.intervals import clopper_pearson
from vflsec.audit.leakage import records, results_frame, summarise
from vflsec.audit.metrics import score
from vflsec.data.load import load_source
from vflsec.data.prepare import make_task
from vflsec.engine.cohort import run_cohort
from vflsec.engine.spec import AttackSpec, CellSpec
from vflsec.gate import Gate, Verdict, judge
from vflsec.guess import Guess, Truth

OUT = Path(__file__).resolve().parent.parent / "docs" / "evidence" / "gates.md"
SEEDS = 5
LEVEL = 0.05
ROWS = 400
CONTROL = 0.6  # AUC of the attacker's own means


def separation(auc: float) -> float:
    """Distance of two unit Gaussians whose AUC is `auc`."""
    return float(np.sqrt(2) * special.ndtri(auc))


def guesses(rng: np.random.Generator, truth: np.ndarray, auc: float, own: np.ndarray) -> np.ndarray:
    """Scores with this AUC, correlated with the control's scores `own` (noise part) by a half."""
    noise = 0.5 * own + np.sqrt(0.75) * rng.normal(size=len(truth))
    return separation(auc) * truth + noise


def simulated(
    count: int, advantage: float, attacks: int, spread: float, first: int
) -> Iterator[dict[str, Any]]:
    """Records of `count` audits; each seed's true advantage varies by `spread` around the mean."""
    ids = np.arange(ROWS)
    for a in range(count):
        rng = np.random.default_rng([first, a])
        for seed in range(SEEDS):
            labels = (rng.random(ROWS) < 0.3).astype(np.int64)
            truth = Truth("label", ids, labels)
            noise = rng.normal(size=ROWS)
            control = _auc(separation(CONTROL) * labels + noise, truth, ids)
            for k in range(attacks):
                gain = advantage if k == 0 or advantage == 0 else 0.0
                real = float(np.clip(CONTROL + gain + rng.normal(0, spread), 0.02, 0.995))
                value = _auc(guesses(rng, labels, real, noise), truth, ids)
                yield {
                    "cell": f"{a}-{seed}", "dataset": f"d{a}", "algorithm": "simulated",
                    "seed": seed, "phase": "train", "split": "test", "adversary": "passive",
                    "attack": f"a{k}", "target": "label", "metric": "auc", "value": value,
                    "n": ROWS, "chance": 0.5, "controls": {"own": {"value": control, "cv": 0.6}},
                }  # fmt: skip


def _auc(scores: np.ndarray, truth: Truth, ids: np.ndarray) -> float:
    found = score(
        Guess("label", ids, scores), truth, ids, classes=2, prior=[0.7, 0.3], metrics=["auc"]
    )
    assert found[0].value is not None
    return found[0].value


def verdicts(made: Sequence[dict[str, Any]], gate: Gate) -> list[Verdict]:
    """One verdict for every audit; every attack counts as shown to work."""
    summary = summarise(results_frame(made))
    alive = {str(a): (True, "planted") for a in summary["attack"].unique()}
    return judge(summary, [gate], alive)


def trained(name: str, audits: int, shuffle: bool) -> list[dict[str, Any]]:
    """Records of really trained audits: fresh worlds, split networks, three attacks.

    Every audit has its own five seeds, and so its own worlds, networks and known rows.
    """
    section: dict[str, Any] = {"name": name}
    split = {"shuffle_labels": True} if shuffle else {}
    params = {"epochs": 5, "batch_size": 64}
    attacks = [
        AttackSpec(n, adversary=("passive",), known_rows=20)
        for n in ("model_completion", "norm", "direction")
    ]
    known = {a.key: a.known_rows for a in attacks}
    out: list[dict[str, Any]] = []
    for chunk in (range(i, min(i + 6, audits)) for i in range(0, audits, 6)):
        seeds = [1000 * a + s for a in chunk for s in range(SEEDS)]
        tasks, cells = {}, []
        for seed in seeds:
            source = load_source(section, seed, Path())
            tasks[seed] = make_task(source, seed, **split)
            cells.append(CellSpec({**section, **split}, "splitnn", params, (), seed))
        for result in run_cohort(cells, attacks, tasks, device="cpu"):
            audit = result.spec.seed // 1000
            for row in records(result):
                extra = {"dataset": f"d{audit}", "known_rows": known.get(row["attack_key"])}
                out.append(row | extra)
    return out


def rate(found: Sequence[Verdict], verdict: str) -> str:
    """``12 of 600 (2.0 %, 95 % interval 1.0 to 3.5)``."""
    n, k = len(found), sum(v.verdict == verdict for v in found)
    low, high = clopper_pearson(k, n)
    return f"{k} of {n} ({100 * k / n:.1f} %, {100 * low:.1f} to {100 * high:.1f})"


def main() -> None:
    """Run everything and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth, printed only")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    scale = 10 if quick else 1
    start = time.process_time()
    table: list[tuple[str, ...]] = []

    def add(what: str, gate: Gate, found: Sequence[Verdict]) -> None:
        line = (what, gate.label, *(rate(found, v) for v in ("FAIL", "INCONCLUSIVE", "PASS")))
        table.append(line)
        print(" | ".join(line), f"[{time.process_time() - start:.0f} s]", flush=True)

    zero, tenth = Gate(max=0.0), Gate(max=0.1)
    sealed = "sealed, simulated, {} attack{}, true spread over seeds {}"
    for attacks, spread, first in ((1, 0.0, 1), (1, 0.03, 2), (4, 0.03, 3)):
        made = list(simulated(600 // scale, 0.0, attacks, spread, first))
        what = sealed.format(attacks, "s" if attacks > 1 else "", spread)
        add(what, zero, verdicts(made, zero))
        add(what, tenth, verdicts(made, tenth))
    leaky = "advantage 0.2, simulated, {} attack{}, true spread over seeds {}"
    for attacks, spread, first in ((1, 0.0, 4), (1, 0.03, 5), (4, 0.03, 6)):
        made = list(simulated(600 // scale, 0.2, attacks, spread, first))
        what = leaky.format(attacks, "s" if attacks > 1 else "", spread)
        add(what, tenth, verdicts(made, tenth))
    real = trained("sealed", 40 // scale, shuffle=True)
    add("sealed, trained, 3 attacks", zero, verdicts(real, zero))
    add("sealed, trained, 3 attacks", tenth, verdicts(real, tenth))
    real = trained("leaky", 20 // scale, shuffle=False)
    add("leaky, trained, 3 attacks", tenth, verdicts(real, tenth))
    gain = summarise(results_frame(real))
    gain = gain[gain["metric"] == gain["primary"]].groupby(["attack", "split"])["advantage"].mean()
    note = ", ".join(f"{a} {v:+.2f} ({s} rows)" for (a, s), v in gain.items() if a)
    if quick:
        print(note)
        return
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(_text(table, note, time.process_time() - start), encoding="utf-8")
    print(f"wrote {OUT}")


def _text(table: Sequence[tuple[str, ...]], note: str, seconds: float) -> str:
    lines = [
        "# How often gates are wrong",
        "",
        f"Made by `python benchmarks/calibration_gates.py` ({seconds:.0f} s of one CPU core). Each "
        f"audit has {SEEDS} seeds, the default; confidence {1 - LEVEL:.0%}. Shares are given with "
        "exact 95 % intervals.",
        "",
        "| worlds | gate | FAIL | INCONCLUSIVE | PASS |",
        "|---|---|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in table),
        "",
        f"Simulated audits score {ROWS} rows per seed (30 % positive) against a control of AUC "
        f"{CONTROL}, whose noise the attack shares by half; generators are seeded by (set "
        "of worlds, audit). Where four attacks are made on a leaky system, one of them leaks. "
        "Trained audits are split networks (5 epochs) on fresh worlds of 1000 rows under model "
        "completion, "
        f"norm and direction with 20 known rows, seeds 1000 a + 0..{SEEDS - 1} for audit a. Mean "
        f"advantage in the leaky ones: {note}.",
        "",
        "What it must show: in sealed worlds FAIL at most at the stated level of 5 % even for the "
        "strictest gate, a limit of 0, where the true advantage is on the limit; at an advantage "
        "of 0.2 and a limit of 0.1 never PASS, and FAIL in 95 % or more. A limit of 0 cannot be "
        "passed by a system on the limit, so INCONCLUSIVE is the right answer there.",
        "",
        "All of it holds but one share: where only one of four attacks leaks and its true "
        "advantage differs between seeds by 0.03, FAIL falls short of 95 % with five seeds, "
        "because Holm's "
        "correction pays for four attacks; the rest is INCONCLUSIVE and never PASS, and names the "
        "seeds to add. The four attacks share the control and half of their noise.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
