"""The statistics of leakage: metrics, intervals, controls, advantage, summaries, gates.

Called itself, the package audits tables in one call: see `vflsec.audit_tables.audit`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vflsec.runtime.callable_package import callable_as
from vflsec.runtime.lazy_names import lazy_names

if TYPE_CHECKING:
    from vflsec.audit.cap_score import cap, dcs, relative_improvement, relative_risk
    from vflsec.audit.gate import Gate
    from vflsec.audit.intervals import t_interval
    from vflsec.audit.pareto_front import Trial, pareto, trials
    from vflsec.epsilon.canary_bounds import LabelWorld, Measured, audit_labels, audit_rows
    from vflsec.epsilon.one_run_bound import one_run

__all__ = [
    "Gate", "LabelWorld", "Measured", "Trial", "audit_labels", "audit_rows", "cap", "dcs",
    "one_run", "pareto", "relative_improvement", "relative_risk", "t_interval", "trials",
]  # fmt: skip


callable_as(__name__)

__getattr__, __dir__ = lazy_names(__name__)
