"""Run more seeds until nothing asks for more, up to a budget, without deciding by peeking.

Looking at the verdict after each batch of seeds and stopping at the first that decides would accuse
a sealed system too often. So each look has its share of the error, and the results keep how many
there were (:class:`vflsec.audit.looks.Looks`): a second run with a larger budget goes on from them,
and from those of audits without a budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vflsec.audit.controls import MOST_FORESEEN
from vflsec.audit.looks import Looks
from vflsec.config.overrides import ask_seeds
from vflsec.config.scenario import load_scenario
from vflsec.core import check
from vflsec.engine.read_results import read_looks
from vflsec.engine.run import run_audit
from vflsec.report.advice import next_steps
from vflsec.report.notebook import Audit
from vflsec.report.steps import find_step
from vflsec.report.tree import StepKind

BY_SEEDS = (StepKind.MORE_SEEDS, StepKind.VALIDATE_BY_SEEDS)
"""Steps that more seeds are."""


def run_until_decided(
    scenario: Any,
    out: Any = None,
    *,
    most: int,
    seeds: int | Sequence[int] | None = None,
    set: Sequence[str] = (),
    fresh: bool = False,
    **options: Any,
) -> Audit:
    """`vflsec.run_audit`, repeated with more seeds while more could decide or validate: gates, or
    without one whether anything leaks.

    Args:
        scenario, out, seeds, set, fresh, options: as for :func:`vflsec.engine.run.run_audit`.
        most: budget, in seeds.

    Raises:
        ConfigError: the budget is below the number of seeds to start with.
    """
    if seeds is not None:
        set = [*set, ask_seeds(seeds)]
    loaded = load_scenario(scenario, set)
    chosen = list(loaded.root.audit.seeds)
    check.integer("--until-decided", most, low=len(chosen))
    folder = Path("out") / loaded.name if out is None else Path(out)
    before = Looks() if fresh else read_looks(folder)
    plan = before.plan(len(chosen), most)
    spare = (s for s in range(len(chosen) + plan[-1] + 1) if s not in chosen)
    chosen += [next(spare) for _ in range(plan[-1] - len(chosen))]
    for i, count in enumerate(plan):
        audit = run_audit(
            scenario, out, seeds=chosen[:count], set=set, fresh=fresh and i == 0,
            sequential=True, **options,
        )  # fmt: skip
        if not asks_for_seeds(audit, count, most):
            return audit
    return audit


def asks_for_seeds(audit: Audit, seeds: int, most: int) -> bool:
    """Whether a step is to add seeds; none is where a gate failed.

    A forecast that no number of seeds would do is believed as far as it looks, for a budget beyond
    that it is none.

    Args:
        seeds: of the audit.
        most: the budget.
    """
    by = (*BY_SEEDS, StepKind.STUCK) if most > MOST_FORESEEN * seeds else BY_SEEDS
    steps = {s.kind for s in next_steps(audit.found)}
    asked = {*map(find_step, audit.verdicts), *steps}
    return audit.exit_code != 1 and not asked.isdisjoint(by)
