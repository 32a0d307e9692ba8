"""The audit that reports are made of in most of these tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from audited import LEAKY, SEALED, Planted, audited, gate

from vflsec.audit.result import Audit
from vflsec.report.exports import load_summary


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    """What leaks is gone at strength 5; a module with other gates has an `audit` of its own."""
    gates = gate(max=0.1) + gate(metric="utility_drop", max=0.1)
    return audited(tmp_path_factory.mktemp("audit"), Planted(LEAKY, SEALED), gates)


@pytest.fixture(scope="module")
def folder(audit: Audit) -> Path:
    return audit.folder


@pytest.fixture(scope="module")
def summary(audit: Audit) -> dict[str, Any]:
    return load_summary(audit.folder)
