"""Asks MKL, before its first product, to add in one order wherever a matrix lies in memory.

A training alone must equal itself among others, bit for bit (`vflsec.nn.batch_invariance`). On
processors that are not Intel's, MKL's batched products keep to that only in its mode of
conditional numerical reproducibility, which costs nothing there; on Intel's they do without, and
are faster so.
Source: Intel, "oneMKL developer guide", chapter "Obtaining numerically reproducible results".
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path

__all__ = ["NAME", "VALUE", "in_one_order"]

NAME, VALUE = "MKL_CBWR", "AUTO,STRICT"
_TOLD = Path("/proc/cpuinfo")


def in_one_order(environment: MutableMapping[str, str] = os.environ, told: Path = _TOLD) -> None:
    """Set :data:`NAME` unless it is set, or the processor is one of Intel's.

    Args:
        environment: what this process and its children read.
        told: where Linux describes the processor; elsewhere ``PROCESSOR_IDENTIFIER`` does.
    """
    try:
        with told.open(encoding="utf-8", errors="replace") as lines:
            described = lines.read(512)
    except OSError:
        described = environment.get("PROCESSOR_IDENTIFIER", "")
    if "GenuineIntel" not in described:
        environment.setdefault(NAME, VALUE)
