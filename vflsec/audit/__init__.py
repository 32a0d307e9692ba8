"""The statistics of leakage: metrics, intervals, controls, advantage, summaries, gates.

Called itself, the package audits tables in one call: see `vflsec.audit_tables.audit`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vflsec.runtime.callable_package import callable_as

if TYPE_CHECKING:
    from vflsec.audit.cap_score import cap, dcs, relative_improvement, relative_risk
    from vflsec.audit.intervals import t_interval
    from vflsec.audit.pareto_front import Trial, pareto, trials
    from vflsec.epsilon.canary_bounds import LabelWorld, Measured, audit_labels, audit_rows
    from vflsec.epsilon.one_run_bound import one_run

__all__ = [
    "LabelWorld", "Measured", "Trial", "audit_labels", "audit_rows", "cap", "dcs", "one_run",
    "pareto", "relative_improvement", "relative_risk", "t_interval", "trials",
]  # fmt: skip

_HOME = {
    "vflsec.epsilon.canary_bounds": ("LabelWorld", "Measured", "audit_labels", "audit_rows"),
    "vflsec.epsilon.one_run_bound": ("one_run",),
    "vflsec.audit.intervals": ("t_interval",),
    "vflsec.audit.cap_score": ("cap", "dcs", "relative_improvement", "relative_risk"),
    "vflsec.audit.pareto_front": ("Trial", "pareto", "trials"),
}

callable_as(__name__)


def __getattr__(name: str) -> Any:
    for module, names in _HOME.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'vflsec.audit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
