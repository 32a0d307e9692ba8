"""What canaries measure of the epsilons that the defenses of a cell claim."""

from __future__ import annotations

from collections.abc import Iterator

from vflsec.audit import canary
from vflsec.cell import Measure
from vflsec.train.cohort import Training

__all__ = ["claims"]


def claims(training: Training, r: int) -> Iterator[Measure]:
    """One row for every claim of replica `r`, metric ``epsilon_lower``."""
    task, phase = training.task(r), training.fed.phase
    for spec, policy in zip(training.cells[r].defenses, training.defenses, strict=True):
        if not spec.strength:
            continue
        found = canary.audit_policy(
            policy, spec.strength, classes=task.classes, prior=task.prior.tolist(),
            facts=training.facts, seed=training.seeds[r],
        )  # fmt: skip
        if found is None or found.claimed is None:
            continue
        notes = {"defense": policy.name, "guesses": found.guesses, "right": found.right,
                 "says": found.sentence()}  # fmt: skip
        yield Measure(
            phase, "", "epsilon_lower", found.epsilon, n=found.canaries, target="claim",
            notes=notes,
        )  # fmt: skip
