"""vflsec: privacy audits of vertical federated learning.

Reading order for the mental model: `message`, `channel`, `policy`, `view`, `guess`.
`run_audit` and the other public names are imported when they are first used, so that
``import vflsec`` stays light. `vflsec.audit`, `vflsec.train` and `vflsec.measure` are packages that
can be called: see `vflsec.one_call` and `vflsec.api`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vflsec._products import in_one_order
from vflsec._version import __version__

if TYPE_CHECKING:
    from vflsec.api import Trained, infer, measure, train
    from vflsec.cell import DefenseSpec
    from vflsec.config.scenario import Scenario, load_scenario
    from vflsec.engine.merge import merge
    from vflsec.engine.rehearse import make_plan
    from vflsec.engine.run import run_audit
    from vflsec.engine.traces import infer as guess_traces
    from vflsec.engine.traces import score as score_traces
    from vflsec.one_call import audit
    from vflsec.report import figures
    from vflsec.report.notebook import Audit
    from vflsec.trace.record import record
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
    "DefenseSpec": "vflsec.cell",
    "run_audit": "vflsec.engine.run",
    "Scenario": "vflsec.config.scenario",
    "load_scenario": "vflsec.config.scenario",
    "guess_traces": "vflsec.engine.traces:infer",
    "record": "vflsec.trace.record",
    "score_traces": "vflsec.engine.traces:score",
    "write_truth": "vflsec.trace.truth",
    "make_plan": "vflsec.engine.rehearse",
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
