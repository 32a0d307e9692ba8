"""vflsec: privacy audits of vertical federated learning.

Reading order for the mental model: `message`, `channel`, `policy`, `view`, `guess`.
`run_audit` and the other public names are imported when they are first used, so that
``import vflsec`` stays light. `vflsec.audit`, `vflsec.train` and `vflsec.measure` are packages that
can be called: see `vflsec.audit_tables` and `vflsec.api`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vflsec._version import __version__
from vflsec.runtime.lazy_names import lazy_names
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
    from vflsec.message_arrays import Messages, audit_messages
    from vflsec.report import figures
    from vflsec.report.notebook import Audit
    from vflsec.specs import DefenseSpec
    from vflsec.trace.record_api import record
    from vflsec.trace.truth import write_truth

__all__ = [
    "Audit", "DefenseSpec", "Messages", "Scenario", "Trained", "__version__", "audit",
    "audit_messages", "figures",
    "guess_traces", "infer", "load_scenario", "make_plan", "measure", "merge", "record",
    "run_audit", "score_traces", "train", "write_truth",
]  # fmt: skip

in_one_order()

__getattr__, __dir__ = lazy_names(__name__, ("audit", "measure", "train"))
