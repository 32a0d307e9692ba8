"""Run more seeds until every gate is decided, up to a budget, without deciding by peeking.

Looking at the verdict after each batch of seeds and stopping at the first that decides would accuse
a sealed system too often. So the looks are fixed before the first training (the scenario's seeds,
then doubling up to the budget), and each bound is taken at 1 - (1 - confidence) / looks
(Bonferroni): over all looks together an error is as likely as in a single one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vflsec.config.scenario import load_scenario
from vflsec.core import check
from vflsec.engine.run import run_audit
from vflsec.report.notebook import Audit
from vflsec.runtime.progress_protocol import Reporter


def list_looks(first: int, most: int) -> list[int]:
    """Numbers of seeds at which the gates are judged: doubling, the last one is the budget."""
    out = [first]
    while out[-1] < most:
        out.append(min(2 * out[-1], most))
    return out


def run_until_decided(
    scenario: Any,
    out: Any = None,
    *,
    most: int,
    seeds: int | Sequence[int] | None = None,
    set: Sequence[str] = (),
    fresh: bool = False,
    progress: Callable[[], Reporter] = Reporter,
    **options: Any,
) -> Audit:
    """`vflsec.run_audit`, repeated with more seeds while more seeds could decide a gate.

    Args:
        scenario, out, seeds, set, fresh: as for :func:`vflsec.engine.run.run_audit`.
        most: budget, in seeds.
        progress: makes what is told of one round.
        options: further ones of `run_audit`.

    Raises:
        ConfigError: the budget is below the number of seeds to start with.
    """
    if seeds is not None:
        set = [*set, f"audit.seeds={seeds if isinstance(seeds, int) else list(seeds)}"]
    loaded = load_scenario(scenario, set)
    chosen = list(loaded.root.audit.seeds)
    check.integer("--until-decided", most, low=len(chosen))
    spare = (s for s in range(len(chosen) + most + 1) if s not in chosen)
    chosen += [next(spare) for _ in range(most - len(chosen))]
    plan = list_looks(len(loaded.root.audit.seeds), most)
    for i, count in enumerate(plan):
        audit = run_audit(
            scenario, out, seeds=chosen[:count], set=set, fresh=fresh and i == 0,
            looks=len(plan), progress=progress(), **options,
        )  # fmt: skip
        open_ = any(v.verdict == "INCONCLUSIVE" and v.more_seeds for v in audit.verdicts)
        if audit.exit_code != 3 or not open_:
            return audit
    return audit
