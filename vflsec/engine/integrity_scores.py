"""What an attacker of predictions achieves: success rate, and what it costs the main task."""

from __future__ import annotations

from functools import partial

import torch

from vflsec.audit.intervals import clopper_pearson
from vflsec.core.algorithm import Algorithm
from vflsec.core.attack import Attack
from vflsec.core.federation import Federation, Phase
from vflsec.specs import AttackSpec, Measure, list_victims
from vflsec.train.loop import predict


def measure_success(
    algorithm: Algorithm, fed: Federation, attack: Attack, spec: AttackSpec, phase: Phase
) -> list[list[Measure]]:
    """Measures of each replica: ``success_rate`` and ``clean_accuracy`` on test rows.

    ``success_rate``: share of test rows of other classes that are predicted as the attacker's goal
    while it attacks; its control ``clean`` is the same share while it does not.
    ``clean_accuracy``: accuracy of the trained system while it does not attack.
    """
    rows = fed.stack.rows("test")
    measure = partial(
        Measure, phase.name, "test", adversary="+".join(spec.adversary), attack=spec.label,
        attack_key=spec.key, target=attack.target,
        victim="+".join(list_victims(attack.target, spec.adversary, fed.stack.first.parties)),
    )  # fmt: skip
    goal = int(getattr(attack, "goal", 1))
    if not phase.predicts or goal >= fed.classes:
        why = "there are no predictions after this phase."
        if phase.predicts:
            why = f"goal {goal} is no class; there are {fed.classes}, from 0."
        return [[measure("", None, status="not-applicable", reason=why)] for _ in fed.seeds]
    clean = fed.decode(predict(algorithm, fed, rows)).argmax(2)
    forced = _attacking(algorithm, fed, spec, rows)
    out = []
    for r in range(fed.replicas):
        task = fed.stack.tasks[int(fed.stack.of[r])]
        y = task.y[task.sets["test"]].to(rows.device)
        others = y != goal
        n = int(others.sum())
        hits, before = int((forced[r][others] == goal).sum()), int((clean[r][others] == goal).sum())
        right = int((clean[r] == y).sum())
        low, high = clopper_pearson(hits, n)
        floor, top = clopper_pearson(right, len(y))
        notes = {"goal": goal}
        out.append(
            [
                measure(
                    metric="success_rate", value=hits / n, low=low, high=high, n=n,
                    chance=before / n, controls={"clean": {"value": before / n, "cv": None}},
                    notes=notes,
                ),
                measure(
                    metric="clean_accuracy", value=right / len(y), low=floor, high=top, n=len(y),
                    chance=float(task.prior.max()), notes=notes,
                ),
            ]
        )  # fmt: skip
    return out


def _attacking(
    algorithm: Algorithm, fed: Federation, spec: AttackSpec, rows: torch.Tensor
) -> torch.Tensor:
    """Predicted classes (R, n) while the adversary attacks."""
    own = [b.own for p in spec.adversary for b in fed.parties[p].bindings]
    for o in own:
        o.memory["attacking"] = True
    fed.attacked = spec.adversary[0]
    try:
        return fed.decode(predict(algorithm, fed, rows)).argmax(2)
    finally:
        fed.attacked = ""
        for o in own:
            o.memory.pop("attacking")
