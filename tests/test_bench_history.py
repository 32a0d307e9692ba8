"""The history of ratios: what is written, what is compared, and when it warns."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = {"cpu": "one", "cores": 2}
THERE = {"cpu": "another", "cores": 2}


@pytest.fixture
def history(benchmark_script: Callable[[str], Any]) -> Any:
    return benchmark_script("history")


def test_a_line_is_added_and_the_first_has_nothing_to_fall_from(
    history: Any, tmp_path: Path
) -> None:
    file = tmp_path / "h.jsonl"
    assert history.add(file, {"a": 0.81234}, HERE, "2026-01-01") == []
    assert history.add(file, {"a": 0.79}, HERE, "2026-01-02") == []
    lines = [json.loads(s) for s in file.read_text().splitlines()]
    assert lines == [
        {"when": "2026-01-01", "machine": HERE, "ratios": {"a": 0.812}},
        {"when": "2026-01-02", "machine": HERE, "ratios": {"a": 0.79}},
    ]
    assert history.read(file) == lines


@pytest.mark.parametrize(("now", "warned"), [(0.81, False), (0.79, True), (2.0, False)])
def test_it_warns_below_four_fifths(history: Any, tmp_path: Path, now: float, warned: bool) -> None:
    file = tmp_path / "h.jsonl"
    history.add(file, {"a": 1.0, "b": 0.5}, HERE, "2026-01-01")
    found = history.add(file, {"a": now, "b": 0.5}, HERE, "2026-01-02")
    assert found == (["a: fell by 21 %, from 1.00 to 0.79."] if warned else [])
    assert len(history.read(file)) == 2  # what fell is written too


def test_only_the_same_machine_is_compared(history: Any, tmp_path: Path) -> None:
    file = tmp_path / "h.jsonl"
    history.add(file, {"a": 1.0}, THERE, "2026-01-01")
    assert history.add(file, {"a": 0.1}, HERE, "2026-01-02") == []
    assert history.add(file, {"a": 0.1}, {**THERE, "cores": 4}, "2026-01-02") == []
    assert history.add(file, {"a": 0.1}, THERE, "2026-01-02") == [
        "a: fell by 90 %, from 1.00 to 0.10."
    ]


def test_one_odd_run_is_no_standard_and_small_steps_down_are_seen(history: Any) -> None:
    def of(*ratios: float) -> list[dict[str, Any]]:
        return [{"machine": HERE, "ratios": {"a": r}} for r in ratios]

    assert history.usual(of(1.0, 1.0, 9.0, 1.0, 1.0), HERE) == {"a": 1.0}
    assert history.usual(of(7.0, 7.0, 7.0, 1.0, 2.0, 3.0, 4.0, 5.0), HERE) == {
        "a": 3.0
    }  # last five
    falling = of(1.0, 0.9, 0.81, 0.73, 0.66)
    assert history.fallen({"a": 0.6}, history.usual(falling, HERE)) == [
        "a: fell by 26 %, from 0.81 to 0.60."
    ]


def test_what_is_not_measured_any_more_is_said(history: Any) -> None:
    assert history.fallen({"b": 1.0}, {"a": 0.5}) == ["a: is not measured any more, was 0.50."]


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"machine": {}}', '{"machine": "x", "ratios": {}}',
             '{"machine": {}, "ratios": {"a": "x"}}', '{"machine": {}, "ratios": {"a": 0}}'],
)  # fmt: skip
def test_a_damaged_history_is_refused(history: Any, tmp_path: Path, text: str) -> None:
    file = tmp_path / "h.jsonl"
    file.write_text('{"machine": {}, "ratios": {"a": 1}}\n' + text + "\n", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"h\.jsonl:2: is not a line of a history"):
        history.add(file, {"a": 1.0}, HERE, "2026-01-01")
    assert len(file.read_text().splitlines()) == 2


def test_the_machine_is_described_without_names(history: Any) -> None:
    import platform

    found = history.machine()
    assert set(found) == {"cpu", "cores", "memory_gb", "vectors", "python", "torch", "numpy"}
    assert found["memory_gb"] >= 1
    assert platform.node() not in json.dumps(found)


def test_the_history_that_comes_along_can_be_read(history: Any) -> None:
    names = {n for line in history.read(history.FILE) for n in line["ratios"]}
    assert all("/" in n for n in names)
