"""What a worker process runs is the source that was planned."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from engine_fakes import SCENARIO, Trainer, backend, source

import vflsec
from vflsec.engine import executor
from vflsec.engine.dry_run import make_plan
from vflsec.errors import ConfigError
from vflsec.plan.values import Work


def test_a_process_beside_reads_the_source_that_was_planned_or_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that was edited between the plan and its import by a worker gave figures under the key
    of the source before. What is imported is kept, so a later edit stops nothing.
    """
    plan = make_plan(vflsec.load_scenario(tomllib.loads(SCENARIO)), try_out=False, load=source)
    group = plan.groups[0]
    works = [Work(group.data, group.cells[:1], group.attacks, main=True)]
    monkeypatch.setattr(executor, "_seen", set())
    real, asked = executor.hash_code, []

    def told(*args: Any) -> str:
        asked.append(args)
        return real(*args) if len(asked) > 1 else "edited"

    monkeypatch.setattr(executor, "hash_code", told)
    order = executor.Order(works, tmp_path, "cpu", backend(Trainer()), {}, tmp_path)
    with pytest.raises(ConfigError, match=r"breast_cancer · .* its source changed"):
        executor.do_order(order)
    assert len(executor.do_order(order)) == 1
    monkeypatch.setattr(executor, "hash_code", lambda *_: "edited again")
    assert len(executor.do_order(order)) == 1
