"""The store keeps what is finished, once, whatever happens to the writers."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from engine_fakes import SCENARIO, result_of, source

from vflsec import load_scenario
from vflsec.engine.dry_run import make_plan
from vflsec.errors import ConfigError
from vflsec.plan.values import Group
from vflsec.specs import CellFacts, Claim, Measure
from vflsec.storage.store import STORE_NAME, Store


@pytest.fixture(scope="module")
def group() -> Group:
    return make_plan(load_scenario(tomllib.loads(SCENARIO)), load=source, try_out=False).groups[0]


def test_what_was_put_in_comes_out(tmp_path: Path, group: Group) -> None:
    cell = group.cells[3]
    result = replace(
        result_of(cell, group.attacks),
        guarantees=[Claim("label", 1.0)],
        facts=CellFacts(rows={"test": 5}, gaps={"a": ("why",)}, epochs={"train": 3}),
    )
    with Store(tmp_path) as store:
        store.commit(result, group.attacks)
    with Store(tmp_path, readonly=True) as store:
        (found,) = store.results({cell.key: [a.key for a in group.attacks]})
    assert found == result
    assert found.spec.key == cell.key


def test_a_finished_attack_is_never_overwritten(tmp_path: Path, group: Group) -> None:
    cell, attacks = group.cells[0], group.attacks
    first = result_of(cell, attacks[:1])
    second = result_of(cell, attacks)
    second.measures = [replace(m, value=0.123) for m in second.measures]
    second.seconds = 99.0
    wanted = {cell.key: [a.key for a in attacks]}
    with Store(tmp_path) as store:
        assert store.missing(group.cells[:1], attacks) == [(cell, attacks)]
        store.commit(first, attacks[:1])
        assert store.missing(group.cells[:1], attacks) == [(cell, attacks[1:])]
        store.commit(second, attacks)
        assert store.missing(group.cells[:1], attacks) == []
        (found,) = store.results(wanted)
    assert found.measures[:2] == first.measures
    assert {m.value for m in found.measures[2:]} == {0.123}
    assert found.seconds == first.seconds


def test_an_error_is_kept_and_may_be_tried_again(tmp_path: Path, group: Group) -> None:
    cell, (attack, *_) = group.cells[0], group.attacks
    bad = result_of(cell, [])
    bad.measures.append(
        Measure("train", "", "", None, attack_key=attack.key, status="error", reason="diverged")
    )
    wanted = {cell.key: [attack.key]}
    with Store(tmp_path) as store:
        store.commit(bad, [attack])
        assert store.missing([cell], [attack]) == [(cell, (attack,))]
        assert store.missing([cell], [attack], retry=False) == []
        assert store.unfinished(wanted) == 0
        store.commit(result_of(cell, [attack]), [attack])
        assert store.missing([cell], [attack]) == []
        (found,) = store.results(wanted)
    assert [m.status for m in found.measures] == ["ok", "ok"]


def test_an_attack_without_a_measure_is_an_error_not_a_success(
    tmp_path: Path, group: Group
) -> None:
    cell, (attack, *_) = group.cells[0], group.attacks
    with Store(tmp_path) as store:
        store.commit(result_of(cell, []), [attack])
        (found,) = store.results({cell.key: [attack.key]})
        assert store.missing([cell], [attack]) == [(cell, (attack,))]
    assert found.measures[-1].status == "error"
    assert "no measure" in found.measures[-1].reason


def test_main_figures_of_an_attacked_training_are_not_the_cells(
    tmp_path: Path, group: Group
) -> None:
    cell, (attack, *_) = group.cells[0], group.attacks
    with Store(tmp_path) as store:
        store.commit(result_of(cell, [attack]), [attack], main=False)
        assert store.missing([cell], [attack]) == [(cell, ())]
        assert store.missing([cell], [attack], main=False) == []
        assert store.count([cell.key]) == 0


def test_numbers_that_are_not_finite_are_missing(tmp_path: Path, group: Group) -> None:
    cell = group.cells[0]
    result = result_of(cell, [])
    result.measures = [replace(result.measures[0], value=float("nan"), high=float("inf"))]
    with Store(tmp_path) as store:
        store.commit(result, [])
        (found,) = store.results({cell.key: []})
    assert (found.measures[0].value, found.measures[0].high) == (None, None)


def test_a_cell_is_committed_whole_or_not_at_all(tmp_path: Path, group: Group) -> None:
    cell, attacks = group.cells[0], group.attacks
    result = result_of(cell, attacks)
    result.measures.append(result.measures[-1])  # the same measure twice: refused late
    with Store(tmp_path) as store:
        with pytest.raises(ValueError, match="two measures have one identity"):
            store.commit(result, attacks)
        assert store.missing([cell], attacks) == [(cell, attacks)]
        assert store.results({cell.key: []}) == []


@pytest.mark.parametrize("column", ["spec", "seconds", "device", "ledger", "guarantees", "facts"])
def test_an_edited_training_is_refused_by_every_reader(
    column: str, tmp_path: Path, group: Group
) -> None:
    cell, versions = group.cells[0], {"torch": "2"}
    with Store(tmp_path) as store:
        store.commit(replace(result_of(cell, []), facts=CellFacts(versions=versions)), [])
        assert store.made_with([cell.key]) == [versions]
        store._db.execute(f"update cells set {column} = 'x'")
        for read in (lambda: store.results({cell.key: []}), lambda: store.made_with([cell.key])):
            with pytest.raises(ConfigError, match="edited"):
                read()


def test_two_writers_may_hold_the_store_open(tmp_path: Path, group: Group) -> None:
    with Store(tmp_path) as one, Store(tmp_path) as two:
        for store, cell in zip([one, two, one, two], group.cells, strict=False):
            store.commit(result_of(cell, group.attacks), group.attacks)
        assert one.count(c.key for c in group.cells) == two.count(c.key for c in group.cells) == 4


def test_an_unknown_version_is_refused(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.set_meta("schema_version", 99)
    for readonly in (False, True):
        with pytest.raises(ConfigError, match="schema version must be 1, got 99"):
            Store(tmp_path, readonly=readonly)


def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(ConfigError, match="is a file"):
        Store(file)
    with pytest.raises(ConfigError, match="below one"):
        Store(file / "below")
    for name in ("null\0", "lone\ud800"):
        with pytest.raises(ConfigError, match="cannot be written"):
            Store(tmp_path / name)
    with pytest.raises(ConfigError, match=r"has no results\.sqlite"):
        Store(tmp_path, readonly=True)
    (tmp_path / STORE_NAME).write_bytes(b"not a database at all, but long enough to be read")
    with pytest.raises(ConfigError, match=r"results\.sqlite"):
        Store(tmp_path)
    assert file.read_text() == "mine"


def test_a_read_only_folder_can_be_read(tmp_path: Path, group: Group) -> None:
    cell = group.cells[0]
    with Store(tmp_path) as store:
        store.commit(result_of(cell, []), [])
    (tmp_path / STORE_NAME).chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        with Store(tmp_path, readonly=True) as store:
            assert store.count([cell.key]) == 1
            with pytest.raises(ConfigError, match="cannot be stored: attempt to write a readonly"):
                store.set_meta("x", 1)
    finally:
        tmp_path.chmod(0o755)


@pytest.mark.parametrize("more", [{}, {"gates": 1}, {"looks": 1}])
def test_a_record_of_another_version_is_refused(tmp_path: Path, more: dict[str, int]) -> None:
    """A value had another type, and every command ended with an internal error."""
    texts = dict.fromkeys(("name", "scenario_hash", "scenario_toml", "device"), "")
    lists = {key: [] for key in ("gates", "refused", "notes")}
    tables = {key: {} for key in ("datasets", "wanted", "known_rows", "data", "versions")}
    with Store(tmp_path) as store:
        store.set_meta("audit", {**texts, **lists, **tables, "confidence": 0.95, **more})
        if more:
            with pytest.raises(ConfigError, match="--fresh"):
                store.record()
        else:
            assert store.record().confidence == 0.95
