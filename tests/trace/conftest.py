"""A trace that a test has recorded is read in this process; what reads it apart: test_validate."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from vflsec.engine import trace_attacks
from vflsec.trace.limits import Limits
from vflsec.trace.validate import Report, validate, validate_in_subprocess

APART = trace_attacks.validate_in_subprocess


def validate_here(folder: str | Path, limits: Limits | None = None) -> Report:
    """The same, without the half second that a process takes to begin."""
    limits = limits or Limits()
    if limits.trusted:
        return Report()
    return Report(**json.loads(json.dumps(asdict(validate(folder, limits)))))


@pytest.fixture(autouse=True)
def _read_here(monkeypatch: pytest.MonkeyPatch) -> None:
    assert APART is validate_in_subprocess, "what is attacked is not read apart first"
    monkeypatch.setattr(trace_attacks, "validate_in_subprocess", validate_here)
