"""An audit of traces in one call, of a truth that has every row in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vflsec.engine.trace_attacks import infer, score
from vflsec.report.notebook import Audit
from vflsec.trace.limits import TRUSTED
from vflsec.trace.truth import write_truth


def audit(
    base: Path, traces: Sequence[Path], attacks: Sequence[str], y: Any, *,
    gates: Sequence[Mapping[str, Any]] = (), **told: Any,
) -> Audit:  # fmt: skip
    """Attack traces, guesses in ``g``, and compare them with `y`, written to ``y``, in ``o``."""
    infer(traces, base / "g", attacks=attacks, limits=TRUSTED)
    write_truth(base / "y", np.arange(len(y)), y, **told)
    return score(base / "g", [base / "y"], base / "o", gates=gates)
