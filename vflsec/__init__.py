"""vflsec: privacy audits of vertical federated learning.

Reading order for the mental model: `message`, `channel`, `policy`, `view`, `guess`.
`run_audit` and the other public names are imported when they are first used, so that
``import vflsec`` stays light. `vflsec.audit`, `vflsec.train` and `vflsec.measure` are packages that
can be called: see `vflsec.audit_tables` and `vflsec.api`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vflsec._version import __version__
from vflsec.runtime.mkl import in_one_order

if TYPE_CHECKING:
    from vflsec.api import Trained, infer, measure, train
    from vflsec.audit_tables import audit
    from vflsec.config.scenario import Scenario, load_scenario
    from vflsec.engine.dry_run import make_plan
    from vflsec.engine.merge import merge
    from vflsec.engine.run import run_audit
    from vflsec.engine.trace_attacks import infer as guess_traces
    from vflsec.engine.trace_attacks import score as score_traces
    from vflsec.report import figures
    from vflsec.report.notebook import Audit
    from vflsec.specs import DefenseSpec
    from vflsec.trace.record_api import record
    from vflsec.trace.truth import write_truth

__all__ = [
    "Audit", "DefenseSpec", "Scenario", "Trained", "__version__", "audit", "figures",
    "guess_traces", "infer", "load_scenario", "make_plan", "measure", "merge", "record",
    "run_audit", "score_traces", "train", "write_truth",
]  # fmt: skip

_HOME = {
    "Trained": "vflsec.api",
    "infer": "vflsec.api",
    "Audit": "vflsec.report.notebook",
    "DefenseSpec": "vflsec.specs",
    "run_audit": "vflsec.engine.run",
    "Scenario": "vflsec.config.scenario",
    "load_scenario": "vflsec.config.scenario",
    "guess_traces": "vflsec.engine.trace_attacks:infer",
    "record": "vflsec.trace.record_api",
    "score_traces": "vflsec.engine.trace_attacks:score",
    "write_truth": "vflsec.trace.truth",
    "make_plan": "vflsec.engine.dry_run",
    "merge": "vflsec.engine.merge",
}
_PACKAGES = {
    "audit": "vflsec.audit",
    "figures": "vflsec.report.figures",
    "measure": "vflsec.measure",
    "train": "vflsec.train",
}

in_one_order()


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(_PACKAGES[name])
    if name in _HOME:
        home, _, own = _HOME[name].partition(":")
        return getattr(import_module(home), own or name)
    raise AttributeError(f"module 'vflsec' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
