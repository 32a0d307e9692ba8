"""The record of an audit survives being kept, and says what it lacks."""

import json
from typing import Any

import pytest

from vflsec.audit.gate import Gate
from vflsec.audit.looks import Looks
from vflsec.audit.point import Training
from vflsec.audit.record import AuditRecord, read_record, write_record
from vflsec.specs import CellResult, CellSpec, DefenseSpec

FIRST: dict[str, Any] = {
    "name": "toy", "scenario_hash": "f00", "scenario_toml": "", "confidence": 0.95,
    "gates": (Gate(max=0.1),), "datasets": {"audit:c": "toy"},
    "wanted": {"c": ["a"]}, "known_rows": {"a": 20}, "data": {"toy": "d"}, "refused": [],
    "notes": ["said"], "device": "cpu", "versions": {"vflsec": "0.1.0"},
}  # fmt: skip
"""What no record lacks."""


def test_a_record_is_read_back_as_it_was_kept() -> None:
    record = AuditRecord(**FIRST, algorithms={"audit:c": "splitnn"}, families={"f": ["a"]},
                         looks=Looks(((0, 1), (0, 1, 2))), shard="1/2")  # fmt: skip
    kept = json.loads(json.dumps(write_record(record)))
    read = read_record(kept)
    assert json.loads(json.dumps(write_record(read))) == kept
    assert (read.looks, read.shard) == (Looks(((0, 1), (0, 1, 2))), "1/2")
    assert read.algorithms == record.algorithms
    assert read == record


def test_a_record_says_what_it_lacks() -> None:
    kept = write_record(AuditRecord(**FIRST))
    for key in FIRST:
        with pytest.raises(ValueError, match=key):
            read_record({k: v for k, v in kept.items() if k != key})
    with pytest.raises(ValueError, match="keys"):
        read_record(["no", "record"])


def test_a_cell_has_a_training_in_its_roles_alone() -> None:
    spec = CellSpec({"name": "toy"}, "splitnn", defenses=(DefenseSpec("iso", strength=2.0),))
    cell = CellResult("c", spec)
    record = AuditRecord(**FIRST, algorithms={"audit:c": "splitnn(cut=2)"})
    here = Training("toy", "splitnn(cut=2)", "iso", 2.0)
    assert list(record.locate([cell], "control", "audit")) == [(here, cell, "audit")]
    assert not list(record.locate([cell], "control"))
