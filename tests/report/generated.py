"""Evaluations drawn from a seed: typed points, verdicts and findings, of which nothing was run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from vflsec.audit.controls import Against, Leakage
from vflsec.audit.exposed import ClassCount, Counts, Exposed
from vflsec.audit.facts import DatasetFacts
from vflsec.audit.findings import build_findings
from vflsec.audit.gate import Gate
from vflsec.audit.judge import judge
from vflsec.audit.point import Estimate, Point, Training
from vflsec.audit.record import AttackFacts, Command
from vflsec.audit.summary import Cells, Summary
from vflsec.audit.validated import Validation
from vflsec.engine.audit_record import list_families

SEEDS = 5
_GAINS = (-0.2, 0.0, 0.01, 0.04, 0.12, 0.3)
_SPREADS = (0.003, 0.02, 0.08)
TARGETS = (("label", "auc", "bank"), ("feature", "r2", "shop"))


def make_point(
    at: Training, attack: str, target: str, gain: float, spread: float = 0.01, *,
    adversary: str = "shop", victim: str = "bank", metric: str = "auc", split: str = "train",
    seeds: int = SEEDS,
) -> Point:  # fmt: skip
    """An attack's point beside two controls, with a gain of that mean and spread over seeds."""
    sd = spread if seeds > 1 else None
    own = 0.6 if metric == "auc" else 0.1
    against = (
        Against("logistic", own, gain, sd, seeds),
        Against("chance", 0.5, gain + 0.1, sd, seeds),
    )
    flipped = Estimate(1 - 2 * own - gain, sd, seeds=seeds) if metric == "auc" else Estimate()
    return Point(
        at.dataset, at.algorithm, at.defense, at.strength, phase="train", adversary=adversary,
        attack=attack, attack_key=f"{attack}{adversary}{target}", known_rows=20.0, target=target,
        victim=victim, split=split, metric=metric, primary=metric, n=500, n_least=500,
        chance=0.5 if metric == "auc" else 0.0, leakage=Leakage(against, "logistic"),
        planned=seeds, seeds=seeds, value=Estimate(own + gain, spread, seeds=seeds),
        control_value=Estimate(own), advantage=Estimate(gain, sd, seeds=seeds),
        turned=replace(flipped, mean=1 - own - gain), mirrored=flipped, utility_metric="auc",
        utility=Estimate(0.9, 0.01, 0.89, 0.91, 0.89, 0.91),
        utility_drop=Estimate(0.02, 0.01, 0.01, 0.03, 0.01, 0.03),
    )  # fmt: skip


def expose(p: Point, named: float) -> Point:
    """The same answer's point in exposed rows, of 900 rows in each training."""
    counts = Counts(named, 10.0, 4500, 10.0, SEEDS)
    half: dict[str, Any] = {"rows": 450, "luck": 1.0, "own_sure": {"chance": 0.5}, "people": 900}
    seed = [ClassCount(0, named / 20, **half), ClassCount(1, 3 * named / 20, **half)]
    against = Against("logistic", 10 / 4500, counts.share, 0.001, SEEDS, counts)
    return replace(
        p, metric="exposed", leakage=Leakage((against,), "logistic"), mirrored=Estimate(),
        value=Estimate(counts.share), advantage=Estimate(counts.share, 0.001, seeds=SEEDS),
        exposed=Exposed.of("exposed", "logistic", counts, [seed] * SEEDS, 0.95),
    )  # fmt: skip


def make_summary(
    points: list[Point], gates: list[Gate], *, validated: bool = True, **more: object
) -> Summary:
    """The summary of an audit that measured these points, with every attack validated or none."""
    why = "planted" if validated else "advantage +0.01 over 5 seeds"
    shown = {p.place: Validation(validated, why) for p in points if p.attack}
    verdicts = judge(points, gates, shown)
    attacks = {
        p.attack_key: AttackFacts(p.attack, p.attack, adversary=(p.adversary,), target=p.target,
                                  known_rows=20, needs=("gradient",))
        for p in points if p.attack
    }  # fmt: skip
    facts = DatasetFacts(("bank", "shop"), 2, seeds=tuple(range(SEEDS)))
    made = Summary(
        name="case", points=tuple(points), gates=tuple(verdicts),
        findings=tuple(build_findings(points, verdicts)), attacks=attacks,
        parties={p.dataset: facts for p in points}, versions={"vflsec": "0.1.0"},
        scenario_file="case.toml", scenario="# case", device="cpu", families=list_families(()),
        command=Command("case.toml", "out"), cells=Cells(10, 10),
        alive={p.attack: shown[p.place] for p in points if p.attack},
    )  # fmt: skip
    return replace(made, **more)  # type: ignore[arg-type]


def draw_summary(seed: int) -> Summary:
    """One of many evaluations: attacks that leak, that do not, in reverse, and of people alone."""
    rng = np.random.default_rng(seed)
    strengths = [0.0, *([1.0, 5.0][: rng.integers(0, 3)])]
    points = []
    for s in strengths:
        at = Training("toy", "splitnn", "iso", s)
        for target, metric, victim in TARGETS[: rng.integers(1, 3)]:
            for k in range(rng.integers(1, 4)):
                for split in ("train", "test")[: rng.integers(1, 3)]:
                    p = make_point(
                        at, f"attack{k}", target, float(rng.choice(_GAINS)),
                        float(rng.choice(_SPREADS)), metric=metric, victim=victim, split=split,
                        adversary="shop" if victim == "bank" else "bank",
                        seeds=1 if seed % 10 == 9 else SEEDS,
                    )  # fmt: skip
                    points.append(p)
                    if metric == "auc" and seed % 10 != 9 and rng.random() < 0.3:
                        points.append(expose(p, float(rng.choice((12.0, 36.0, 235.0)))))
    gates = [
        Gate(max=0.1), Gate(max=0.1, strength=strengths[-1]), Gate(max=0.02, attack="attack0"),
        Gate(max=0.03, of="exposed", target="label"), Gate(max=0.2, target="label"),
    ]  # fmt: skip
    kept = [g for g in gates if rng.random() < 0.5]
    return make_summary(points, kept)
