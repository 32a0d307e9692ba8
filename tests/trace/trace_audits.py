"""Traces in one call each: recorded by the passive party ``bank``, read, and audited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import vflsec
from vflsec.engine.trace_attacks import infer, score
from vflsec.report.notebook import Audit
from vflsec.trace.limits import TRUSTED
from vflsec.trace.reader import Trace
from vflsec.trace.record_api import Recording
from vflsec.trace.truth import write_truth


def record(folder: Path, y: Any = None, known: Any = None, **how: Any) -> Recording:
    """A recording of the bank, of a summed loss over rows with the labels `y`, if they are given.

    `known` are rows whose labels it was granted, or these with others.
    """
    about: dict[str, Any] = {"party": "bank", "role": "passive", "loss_reduction": "sum"}
    if y is not None:
        about |= {"rows": len(y), "classes": 2, "grad_scale": 1}
    if known is not None:
        about |= {"known": known if isinstance(known, tuple) else (known, y[known])}
    return vflsec.record(folder, **about | how)


def read(folder: Path, party: str = "bank") -> list[Any]:
    """All messages of a party in a trace."""
    return list(Trace.open(folder).observer(party).messages())


def first_of_each(y: Any, n: int = 10) -> np.ndarray:
    """The first `n` rows of class 0, and those of class 1."""
    return np.concatenate([np.nonzero(np.asarray(y) == c)[0][:n] for c in (0, 1)])


def signs(y: Any, rows: Any, width: int = 1) -> Tensor:
    """What tells labels (len(rows), width): 1 of class 1 and -1 of class 0."""
    return (torch.as_tensor(y)[rows] * 2.0 - 1).float().unsqueeze(1).expand(-1, width)


def audit(
    base: Path, traces: Sequence[Path], attacks: Sequence[str], y: Any, *,
    gates: Sequence[Mapping[str, Any]] = (), **told: Any,
) -> Audit:  # fmt: skip
    """Attack traces, guesses in ``g``, and compare them with `y`, written to ``y``, in ``o``."""
    infer(traces, base / "g", attacks=attacks, limits=TRUSTED)
    write_truth(base / "y", np.arange(len(y)), y, **told)
    return score(base / "g", [base / "y"], base / "o", gates=gates)
