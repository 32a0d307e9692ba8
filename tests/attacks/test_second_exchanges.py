"""Active attacks on an algorithm that sends something else beside what it trains on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import mean
from typing import Any

import pytest
import torch
from cohorts import cohort
from sampled import sampled
from torch import Tensor

from vflsec.algorithms.splitnn import Exchange, SplitNN
from vflsec.core.exchange_order import EXCHANGES, Step, exchange
from vflsec.core.federation import Federation
from vflsec.core.message import Message
from vflsec.specs import AttackSpec
from vflsec.testing import small_task

SEEDS = (0, 1)
ATTACKS: list[tuple[str, dict[str, Any], str]] = [
    ("gradient_replacement", {"value": 6.0}, "success_rate"),
    ("villain", {}, "success_rate"),
    ("replay", {}, "success_rate"),
    ("swap_probe", {}, "auc"),
]


def found(name: str, params: dict[str, Any], metric: str) -> float:
    tasks = {s: small_task(s, n=600, signal=2.0) for s in SEEDS}
    values = []
    attack = AttackSpec(name, params, ("passive1",))
    for result in cohort(attack, tasks, epochs=12, batch_size=32):
        (value,) = [m.value for m in result.measures if m.metric == metric]
        assert value is not None
        values.append(value)
    return mean(values)


@pytest.fixture(scope="module")
def alone() -> Callable[[str, dict[str, Any], str], float]:
    held: dict[str, float] = {}

    def of(name: str, params: dict[str, Any], metric: str) -> float:
        if name not in held:
            held[name] = found(name, params, metric)
        return held[name]

    return of


def beside(monkeypatch: pytest.MonkeyPatch, kind: str, first: bool, name: str, rows: int) -> None:
    """Send noise beside each message of a kind, for the first `rows` of every batch."""
    g = torch.Generator().manual_seed(0)
    up, down = SplitNN.up, SplitNN.down

    def noise(fed: Federation, ids: Tensor, width: int, ends: tuple[str, str]) -> None:
        some = ids[:, :rows]
        x = torch.randn(*some.shape, width, generator=g)
        fed.send(kind, *ends, x, some, name=name, scale=float(ids.shape[1]))  # type: ignore[arg-type]

    def changed(plain: Callable[..., Any], back: bool) -> Callable[..., Any]:
        def turn(self: SplitNN, fed: Federation, of: Any, *rest: Any) -> Any:
            made: list[Any] = []
            for now in (first, not first):
                if not now:
                    made.append(plain(self, fed, of, *rest))
                    continue
                for p in self.passive(fed):
                    ids = of.rows if isinstance(of, Exchange) else of
                    width, ends = (8, (p.name, "active")) if not back else (32, ("active", p.name))
                    noise(fed, ids, width, ends)
            return made[0]

        return turn

    if kind == "embedding":
        monkeypatch.setattr(SplitNN, "up", changed(up, False))
    else:
        monkeypatch.setattr(SplitNN, "down", changed(down, True))


@pytest.mark.parametrize(
    ("kind", "name", "rows", "first"),
    sampled(
        [("gradient", "", 32, True), ("gradient", "", 32, False), ("gradient", "aux", 32, True),
         ("gradient", "", 16, False), ("embedding", "", 32, True), ("gradient", "aux", 32, False),
         ("gradient", "", 16, True), ("embedding", "", 32, False)],
    ),
)  # fmt: skip
@pytest.mark.parametrize(
    ("attack", "params", "metric"), sampled([*ATTACKS[::2], *ATTACKS[1::2]], 2)
)
def test_noise_beside_what_is_trained_on_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, alone: Callable[..., float], attack: str,
    params: dict[str, Any], metric: str, kind: str, name: str, rows: int, first: bool,
) -> None:  # fmt: skip
    """They copied the noise, or took its length for that of gradients, or broke on its width."""
    without = alone(attack, params, metric)
    assert without > 0.8
    beside(monkeypatch, kind, first, name, rows)
    assert found(attack, params, metric) == pytest.approx(without, abs=0.03)


@pytest.mark.parametrize(
    ("attack", "first"),
    sampled([("embedding_inversion", False), ("attribute", True), ("embedding_inversion", True),
             ("attribute", False)]),
)  # fmt: skip
def test_columns_in_a_second_embedding_are_found(
    monkeypatch: pytest.MonkeyPatch, attack: str, first: bool
) -> None:
    """Beside noise that came first nobody read it: R^2 -0.05, and AUC 0.58 of an attribute."""
    up, g = SplitNN.up, torch.Generator().manual_seed(0)

    def told(self: SplitNN, fed: Federation, ids: Tensor) -> Exchange:
        for p in self.passive(fed):
            x = fed.columns(p.name, ids).flatten(2)
            noise = torch.randn(x.shape, generator=g)
            for z in (x, noise) if first else (noise, x):
                fed.send("embedding", p.name, "active", z, ids)
        return up(self, fed, ids)

    monkeypatch.setattr(SplitNN, "up", told)
    tasks = {s: small_task(s, n=600) for s in SEEDS}
    asked = AttackSpec(attack, {}, ("active",), aux_rows=60)
    for result in cohort(asked, tasks, epochs=3, batch_size=32):
        assert result.measures[0].value is not None
        assert result.measures[0].value > 0.95
        assert result.facts.unread == ()


def test_messages_of_a_step_are_told_apart_by_their_rows() -> None:
    memory: dict[str, Any] = {}

    def turn(rows: list[int], step: int, name: str = "", phase: str = "train") -> int:
        ids = torch.tensor([rows])
        m = Message("gradient", "a", "b", torch.zeros(1, len(rows), 2), ids, phase, 0, step, name)
        kind, said, which = exchange(memory, m)
        assert (kind, said) == ("gradient", name)
        return which

    assert [turn(r, 0) for r in ([0, 1], [2, 3], [9])] == [1, 1, 1]
    assert [turn(r, 0) for r in ([3, 20], [20, 3], [4, 9], [20], [2])] == [2, 3, 2, 1, 2]
    assert turn([0, 1], 0, "other") == 1
    assert turn([0, 1], 1) == turn([0, 1], 1, phase="later") == 1
    assert [turn([0], 2) for _ in range(12)] == [*range(1, 10), 9, 9, 9]
    assert EXCHANGES + 1 == 9


def test_a_step_that_knows_how_many_rows_there_are_counts_the_same() -> None:
    known, grown = Step(40), Step()
    g = torch.Generator().manual_seed(1)
    for k in range(30):
        rows = torch.stack([torch.randperm(40, generator=g)[:5] for _ in range(2)])
        one, two = (s.turn(("t", k // 4), rows) for s in (known, grown))
        assert (one is None) == (two is None) == (k % 4 == 0)
        assert one is None or two is None or torch.equal(one, two)


REPLAYING: list[tuple[str, dict[str, Any], dict[str, Any], bool]] = [
    ("sdar", {"steps": 20, "starts": 2}, {"aux_rows": 60}, True),
    ("grn", {"epochs": 3, "hidden": [16]}, {"peer_model": True}, False),
    ("unsplit_input", {"weights": "granted", "rounds": 1}, {"peer_model": True}, True),
    ("fsha", {"use": "critic"}, {"aux_rows": 60}, False),
]


def told_columns(name: str, params: dict[str, Any], grants: dict[str, Any]) -> list[Any]:
    tasks = {s: small_task(s, n=400) for s in SEEDS}
    asked = AttackSpec(name, params, ("active",), **grants)
    return [r.measures[0] for r in cohort(asked, tasks, epochs=2, batch_size=32)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "params", "grants", "tells"), sampled(REPLAYING))
def test_replays_of_columns_take_the_embedding_that_the_model_reads(
    monkeypatch: pytest.MonkeyPatch, name: str, params: dict[str, Any], grants: dict[str, Any],
    tells: bool,
) -> None:  # fmt: skip
    """They broke on its width, or read the noise that came first: R^2 -2.4 instead of 0.97."""
    plain = [m.value for m in told_columns(name, params, grants)]
    assert None not in plain
    for wide, first in ((8, True), (8, False), (32, True)):
        with monkeypatch.context() as now:
            wide_noise(now, wide, first)
            found = told_columns(name, params, grants)
        if wide == 8 or tells:
            assert [m.value for m in found] == pytest.approx(plain, abs=1e-6)
            assert {m.notes["exchange"] for m in found} == {2 if first else 1}
        else:
            assert {m.status for m in found} == {"error"}
            assert f"{name}: 2 embeddings of a step are as wide" in found[0].reason


def test_where_none_is_as_wide_as_the_model_reads_it_is_one_clear_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SplitNN, "facts", _narrow(SplitNN.facts))
    wide_noise(monkeypatch, 8, True)
    for m in told_columns("unsplit_input", {"rounds": 1}, {"peer_model": True}):
        assert m.status == "error"
        assert "unsplit_input: no embedding of all rows has 5 numbers" in m.reason


def _narrow(plain: Callable[..., Any]) -> Callable[..., Any]:
    def facts(self: SplitNN, fed: Federation) -> Any:
        return replace(plain(self, fed), widths={"active": 32, "passive1": 5})

    return facts


def wide_noise(monkeypatch: pytest.MonkeyPatch, width: int, first: bool, name: str = "") -> None:
    """Send noise of this width beside each embedding."""
    plain, g = SplitNN.up, torch.Generator().manual_seed(0)

    def told(self: SplitNN, fed: Federation, ids: Tensor) -> Exchange:
        def noise() -> None:
            for p in self.passive(fed):
                z = torch.randn(*ids.shape, width, generator=g)
                fed.send("embedding", p.name, "active", z, ids, name=name)

        if first:
            noise()
        out = plain(self, fed, ids)
        if not first:
            noise()
        return out

    monkeypatch.setattr(SplitNN, "up", told)


@pytest.mark.parametrize("attack", sampled(["attribute", "embedding_inversion"]))
def test_an_embedding_under_another_name_than_the_first_is_read(
    monkeypatch: pytest.MonkeyPatch, attack: str
) -> None:
    """Noise that came first, called aux, was all that was read: R^2 -0.02, and an AUC of 0.5."""
    wide_noise(monkeypatch, 8, True, "aux")
    for m in told_columns(attack, {}, {"aux_rows": 60}):
        assert m.value > 0.8


@pytest.mark.slow
def test_gradients_of_fsha_answer_the_embedding_they_belong_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An embedding of another width that came last left the gradients honest."""
    plain = [m.value for m in told_columns("fsha", {"use": "critic"}, {"aux_rows": 60})]
    wide_noise(monkeypatch, 8, False)
    found = [m.value for m in told_columns("fsha", {"use": "critic"}, {"aux_rows": 60})]
    assert found == pytest.approx(plain, abs=1e-6)
