"""Counts that wait and are settled: the ledger, sums of recorded rows, what a strength gives."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch

from vflsec.core import recorder_stores
from vflsec.core.channel import Channel, Ledger, Recorder
from vflsec.core.message import Message
from vflsec.core.policy import Own, Policy
from vflsec.core.policy_binding import Binding
from vflsec.core.rng import Streams
from vflsec.core.view import Table
from vflsec.errors import ConfigError, PolicyError

REPLICAS, ROWS = 3, 10


def message(step: int, rows: torch.Tensor, scale: float = 1.0) -> Message:
    g = torch.Generator().manual_seed(step)
    x = torch.randn(*rows.shape, 2, generator=g, dtype=torch.float64)
    return Message("gradient", "a", "b", x, rows, step=step, epoch=step // 2, scale=scale)


def test_a_ledger_counts_for_those_who_lived_at_the_time() -> None:
    ledger, expected = Ledger(REPLICAS), np.zeros((4, REPLICAS), dtype=np.int64)
    lives = [np.array(v, dtype=np.int64) for v in ([1, 1, 1], [1, 0, 1], [0, 0, 1])]
    rows = torch.arange(4).expand(REPLICAS, 4)
    for step, new in ((0, 1), (1, 1), (1, 0), (2, 1), (3, 1), (3, 0)):
        alive = lives[step % 3]
        ledger.count(message(step, rows), alive)
        expected += np.outer([1, 8, 64, new], alive)
        if step == 2:  # asking in between changes nothing
            assert ledger.of(0)[0]["messages"] == expected[0, 0]
    for r in range(REPLICAS):
        (row,) = ledger.of(r)
        found = [row[k] for k in ("messages", "elements", "bytes", "rounds")]
        assert found == expected[:, r].tolist()


@pytest.mark.parametrize("waiting", [1, 1 << 17])
def test_sums_of_rows_are_those_of_messages_one_by_one(
    waiting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_stores, "WAITING", waiting)
    recorder = Recorder([("b", "received", "gradient", "mean")], REPLICAS, ROWS)
    sums = torch.zeros(REPLICAS, ROWS, 2, dtype=torch.float64)
    count = torch.zeros(REPLICAS, ROWS, dtype=torch.int64)
    when = torch.zeros(REPLICAS, 2, dtype=torch.int64)
    g = torch.Generator().manual_seed(0)
    lives = [None, torch.tensor([True, False, True]), torch.tensor([False, False, True])]
    for step in range(6):
        rows = torch.stack([torch.randperm(ROWS, generator=g)[:4] for _ in range(REPLICAS)])
        alive, sent = lives[step // 2], message(step, rows, scale=3.0)
        recorder.add(sent, alive)
        for r in range(REPLICAS):
            if alive is None or alive[r]:
                sums[r, rows[r]] += sent.tensor[r] * 3.0
                count[r, rows[r]] += 1
                when[r] = torch.tensor([step // 2, step])
    for r in range(REPLICAS):
        (table,) = recorder.tables(r, ["b"], "train").values()
        seen = count[r] > 0
        assert torch.equal(table.rows, seen.nonzero().squeeze(1))
        assert torch.equal(table.tensor, sums[r, seen] / count[r, seen].unsqueeze(1))
        assert bool((table.epoch == when[r, 0]).all())
        assert bool((table.step == when[r, 1]).all())


@pytest.mark.parametrize("form", ["mean", "first", "last", "all"])
@pytest.mark.parametrize("names", [("", "second"), ("second", ""), ("first", "second")])
def test_gradients_of_two_names_are_both_seen(form: str, names: tuple[str, str]) -> None:
    recorder = Recorder([("b", "received", "gradient", form)], REPLICAS, ROWS)
    rows = torch.arange(4).expand(REPLICAS, 4)
    for step in range(3):
        recorder.add(replace(message(step, rows, scale=1e3), name=names[0]), None)
        recorder.add(replace(message(step + 5, rows), name=names[1], step=step), None)
    (table,) = recorder.tables(0, ["b"], "train").values()
    assert table.tensor.shape[1] == 2 * message(0, rows).tensor.shape[2]
    first, second = (x.square().mean().sqrt() for x in table.tensor.split(2, dim=1))
    assert float(second / first) == pytest.approx(1.0)  # else the larger one drowns the other
    assert not recorder.left_out
    assert not recorder.passed


@pytest.mark.parametrize("form", ["mean", "first", "last", "all"])
@pytest.mark.parametrize("order", [[0, 1, 2, 3], [2, 0, 3, 1]])
def test_both_exchanges_of_a_step_are_seen(form: str, order: list[int]) -> None:
    recorder = Recorder([("b", "received", "gradient", form)], REPLICAS, ROWS)
    rows = torch.arange(4).expand(REPLICAS, 4)
    label = (torch.arange(4) % 2 * 2.0 - 1).double().reshape(1, 4, 1).expand(REPLICAS, 4, 2)
    for step in range(3):
        recorder.add(message(step, rows, scale=1e3), None)
        recorder.add(replace(message(step, rows[:, order]), tensor=label[:, order]), None)
    (table,) = recorder.tables(0, ["b"], "train").values()
    assert table.tensor.shape[1] == 4
    told = table.tensor[:, 2] * label[0, table.rows, 0]
    assert bool((told > 0).all())
    assert float(told.std() / told.mean()) < 1e-9
    assert not recorder.left_out


def test_parts_of_one_batch_are_one_exchange() -> None:
    """Micro batches of a step, and other steps of the same rows."""
    recorder = Recorder([("b", "received", "gradient", "all")], REPLICAS, ROWS)
    for step in range(2):
        for start in (0, 3, 6):
            recorder.add(message(step, (torch.arange(3) + start).expand(REPLICAS, 3)), None)
    (table,) = recorder.tables(0, ["b"], "train").values()
    assert table.rows.tolist() == [*range(9)] * 2
    assert table.tensor.shape[1] == 2
    assert not recorder.left_out


@pytest.mark.parametrize("form", ["mean", "first", "last", "all"])
def test_what_comes_again_for_a_part_of_the_rows_stands_beside(form: str) -> None:
    recorder = Recorder([("b", "received", "gradient", form)], REPLICAS, ROWS)
    rows = torch.stack([torch.arange(4) + r for r in range(REPLICAS)])
    for step in range(3):
        recorder.add(message(step, rows), None)
        noise = replace(message(step + 7, rows[:, :2], scale=1e3), step=step, epoch=step // 2)
        recorder.add(noise, None)
    for r in range(REPLICAS):
        (table,) = recorder.tables(r, ["b"], "train").values()
        alone = Recorder([("b", "received", "gradient", form)], REPLICAS, ROWS)
        for step in range(3):
            alone.add(message(step, rows), None)
        (first,) = alone.tables(r, ["b"], "train").values()
        assert torch.equal(table.rows, first.rows)
        assert torch.equal(table.tensor[:, :2], first.tensor)
        again = table.rows < r + 2
        assert bool((table.tensor[again, 2:] != 0).all())
        assert bool((table.tensor[~again, 2:] == 0).all())
        sizes = [x.square().mean().sqrt() for x in (table.tensor[again, 2:], first.tensor)]
        assert float(sizes[0] / sizes[1]) == pytest.approx(1.0)
    assert not recorder.left_out


@pytest.mark.parametrize("form", ["mean", "first", "last", "all"])
def test_a_message_of_new_rows_and_rows_that_came_is_an_exchange(form: str) -> None:
    """Micro batches with rows in common, which are others in each replica."""
    recorder = Recorder([("b", "received", "gradient", form)], REPLICAS, ROWS)
    sent = []
    for step in range(2):
        for start in (0, 2, 4):
            rows = (torch.arange(3) + start).expand(REPLICAS, 3).clone()
            rows[1] += start == 4  # the last two parts have no row in common there
            told = message(start, rows).tensor.abs() + 1  # the same in both steps
            sent.append(replace(message(step, rows), tensor=told))
            recorder.add(sent[-1], None)
    tables = [*(recorder.tables(r, ["b"], "train") for r in range(REPLICAS))]
    table, other = (next(iter(t.values())) for t in tables[:2])
    often = 2 if form == "all" else 1
    assert sorted(table.rows.tolist()) == sorted([0, 1, 2, 3, 4, 5, 6] * often)
    assert sorted(other.rows.tolist()) == sorted([0, 1, 2, 3, 4, 5, 6, 7] * often)
    assert table.tensor.shape[1] == other.tensor.shape[1] == 6
    for of, again in ((table, {2, 3, 4}), (other, {2, 3, 4})):
        one, two, every = (of.tensor[:, 2 * k : 2 * k + 2] for k in range(3))
        assert {int(r) for r in of.rows[(two != 0).all(1)]} == again
        assert {int(r) for r in of.rows[(one == 0).all(1)]} == ({3} if of is table else {3, 4})
        assert bool((every != 0).all())
        alone = (one == 0).all(1)
        assert torch.equal(every[~alone], one[~alone])
        assert torch.equal(every[alone], two[alone])
    at = int((table.rows == 4).nonzero()[0])
    assert torch.equal(table.tensor[at, :2], sent[2].tensor[0, 0])
    assert not recorder.left_out


def test_what_is_not_timed_is_one_exchange() -> None:
    untimed = Recorder([("b", "received", "gradient", "all")], REPLICAS, ROWS)
    for _ in range(3):
        untimed.add(message(0, torch.arange(4).expand(REPLICAS, 4)), None, timed=False)
    (table,) = untimed.tables(0, ["b"], "train").values()
    assert tuple(table.tensor.shape) == (12, 2)


def test_an_exchange_that_comes_again_at_some_steps_stands_beside() -> None:
    recorder = Recorder([("b", "received", "gradient", "mean")], REPLICAS, ROWS)
    for step in range(3):
        rows = (torch.arange(3) + 3 * step).expand(REPLICAS, 3)
        for _ in range(1 + (step == 1)):
            recorder.add(message(step, rows), None)
    (table,) = recorder.tables(0, ["b"], "train").values()
    assert torch.equal(table.tensor[3:6, :2], message(1, rows).tensor[0])
    ratio = table.tensor[3:6, 2:] / table.tensor[3:6, :2]
    assert float(ratio.min()) == pytest.approx(float(ratio.max()))
    assert bool((table.tensor[[0, 1, 2, 6, 7, 8], 2:] == 0).all())
    assert not recorder.left_out


def test_an_embedding_that_comes_again_in_a_step_hides_the_first_one_no_more() -> None:
    recorder = Recorder([("b", "received", "embedding", "last")], REPLICAS, ROWS)
    rows = torch.arange(4).expand(REPLICAS, 4)
    for step in range(2):
        for k in range(2):
            sent = message(2 * k + step, rows)
            recorder.add(replace(sent, kind="embedding", step=step, epoch=0), None)
    (table,) = recorder.tables(0, ["b"], "train").values()
    assert torch.equal(table.tensor, message(1, rows).tensor[0])
    assert recorder.passed == {("embedding", "#2")}


@pytest.mark.parametrize("also", [(), ("last",), ("last", "all")])
def test_an_embedding_that_comes_again_stands_beside_for_who_takes_any_width(
    also: tuple[str, ...],
) -> None:
    """It was read by none, nor what another name said; who needs one width has each by itself."""
    forms = ("last+", *also)
    recorder = Recorder([("b", "received", "embedding", f) for f in forms], REPLICAS, ROWS)
    rows = torch.arange(4).expand(REPLICAS, 4)
    for step in range(2):
        for k in range(2):
            sent = message(2 * k + step, rows[:, : 4 - k])
            recorder.add(replace(sent, kind="embedding", step=step, epoch=0), None)
        other = replace(message(9, rows), kind="embedding", step=step, epoch=0, name="other")
        recorder.add(other, None)
    tables = recorder.tables(0, ["b"], "train")
    first = tables["received", "embedding", "last", "b"].tensor
    both = tables["received", "embedding", "last+", "b"].tensor
    assert torch.equal(first, message(1, rows).tensor[0])
    assert torch.equal(both[:, :2], first)
    again = message(3, rows[:, :3]).tensor[0]
    ratio = both[:3, 2:4] / again
    assert float(ratio.min()) == pytest.approx(float(ratio.max()))
    assert bool((both[3, 2:4] == 0).all())
    other = both[:, 4:] / message(9, rows).tensor[0]
    assert float(other.min()) == pytest.approx(float(other.max()))
    assert recorder.passed == recorder.left_out == set()
    assert {key[2] for key in tables} == {"last", "last+", "last#2", "last#3", *also}
    assert torch.equal(tables["received", "embedding", "last#2", "b"].tensor, again)
    assert torch.equal(tables["received", "embedding", "last#3", "b"].tensor,
                       message(9, rows).tensor[0])  # fmt: skip


def test_a_loop_within_a_step_takes_no_table_for_every_turn() -> None:
    recorder = Recorder([("b", "received", "gradient", "mean")], REPLICAS, ROWS)
    for _ in range(200):
        recorder.add(message(0, torch.arange(4).expand(REPLICAS, 4)), None)
    (table,) = recorder.tables(0, ["b"], "train").values()
    assert tuple(table.tensor.shape) == (4, 8 * 2)
    assert recorder.left_out == {("gradient", "#9")}


@pytest.mark.parametrize("loud", [1e-6, 1e6])
def test_what_comes_under_one_name_drowns_no_other(loud: float) -> None:
    g = torch.Generator().manual_seed(0)
    rows = torch.arange(ROWS).expand(REPLICAS, ROWS)
    label = torch.arange(ROWS) % 2 * 2.0 - 1
    first = label.reshape(1, -1, 1) * torch.ones(REPLICAS, ROWS, 4)
    noise = loud * torch.randn(REPLICAS, ROWS, 4, generator=g)
    recorder = Recorder([("b", "received", "gradient", "first")], REPLICAS, ROWS)
    told = replace(message(0, rows), tensor=first)
    recorder.add(told, None)
    recorder.add(replace(told, tensor=noise, name="second"), None)
    (table,) = recorder.tables(0, ["b"], "train").values()
    sizes = table.tensor.reshape(ROWS, 2, 4).square().mean((0, 2)).sqrt()
    assert torch.equal(table.tensor[:, :4], first[0])
    assert float(sizes[1] / sizes[0]) == pytest.approx(1.0, rel=1e-5)


def test_numbers_of_other_names_or_rows_are_said_to_be_unread() -> None:
    kinds = ("gradient", "embedding")
    recorder = Recorder([("b", "received", k, "first") for k in kinds], REPLICAS, ROWS)
    rows = torch.arange(4).expand(REPLICAS, 4)
    for kind in kinds:
        recorder.add(replace(message(0, rows), kind=kind), None)
        recorder.add(replace(message(1, rows + 1), kind=kind, name="second"), None)
    assert len(recorder.tables(0, ["b"], "train")) == 2
    assert recorder.left_out == {("gradient", "second")}
    assert recorder.passed == {("embedding", "second")}


def test_who_lives_is_what_it_was_when_it_was_said() -> None:
    carried = Channel({}, Recorder((), REPLICAS, ROWS), Ledger(REPLICAS))
    alive = torch.tensor([True, False, True])
    carried.set_alive(alive)
    alive[0] = False
    carried.send(message(0, torch.arange(4).expand(REPLICAS, 4)))
    assert [row[0]["messages"] for row in map(carried.ledger.of, range(REPLICAS))] == [1, 0, 1]
    assert carried.alive_mask is not None
    assert carried.alive_mask.tolist() == [True, False, True]


def test_what_was_delivered_may_not_change() -> None:
    """It may lie in the record: a receiver that works in place would change what was seen."""
    carried = Channel({}, Recorder((), REPLICAS, ROWS), Ledger(REPLICAS))
    rows = torch.arange(4).expand(REPLICAS, 4)
    first = carried.send(message(0, rows))
    assert carried.send(message(1, rows)).shape == first.shape
    other = carried.send(replace(message(2, rows), name="other"))
    other.add_(1)
    carried.send(message(3, rows))  # of another name
    with pytest.raises(PolicyError, match=r"a message .* was changed after it was"):
        carried.send(replace(message(4, rows), name="other"))


class Reused(Policy):
    """Doubles messages in so many arrays that it uses in turn."""

    name: ClassVar[str] = "reused"
    covers = frozenset({"gradient"})

    def __init__(self, buffers: int) -> None:
        self.kept = [np.zeros((REPLICAS, 4, 2)) for _ in range(buffers)]

    def outgoing(self, message: Message, own: Own) -> torch.Tensor:
        self.kept.append(self.kept.pop(0))
        self.kept[0][:] = 2 * message.tensor.numpy()
        return torch.from_numpy(self.kept[0])


@pytest.mark.parametrize("buffers", [1, 2, 3])
def test_a_policy_may_use_its_memory_again(buffers: int) -> None:
    own = Own("a", torch.ones(REPLICAS, dtype=torch.float64), Streams([0, 1, 2], "x"))
    bound = Binding(Reused(buffers), own)
    bound.witness = lambda b, _, given, made: b.policy.outgoing(
        replace(given[0], tensor=made * 0), b.own
    )  # as who tests a claim calls it again
    recorder = Recorder([("b", "received", "gradient", "all")], REPLICAS, ROWS)
    carried = Channel({"a": [bound]}, recorder, Ledger(REPLICAS))
    rows = torch.arange(4).expand(REPLICAS, 4)
    sent = [message(step, rows) for step in range(5)]
    delivered = [carried.send(m) for m in sent]
    (table,) = recorder.tables(0, ["b"], "train").values()
    assert torch.equal(table.tensor, 2 * torch.cat([m.tensor[0] for m in sent]))
    assert torch.equal(torch.stack(delivered), 2 * torch.stack([m.tensor for m in sent]))


def test_what_a_strength_gives_follows_it() -> None:
    own = Own("a", torch.tensor([0.0, 1.0], dtype=torch.float64), Streams([0, 1], "x"))
    like = torch.zeros(2, 3, 4)
    assert own.column(like) is own.column(like)
    assert own.column(like).shape == (2, 1, 1)
    assert own.column(like.double()).dtype == torch.float64
    assert own.active == (False, True)
    assert own.choose(like + 1, like).sum((1, 2)).tolist() == [0.0, 12.0]
    own.strength[0] = 2.0  # in place
    assert own.column(like).flatten().tolist() == [2.0, 1.0]
    assert own.active == (True, True)
    own.strength = torch.tensor([3.0, 0.0], dtype=torch.float64)
    assert own.active == (True, False)
    assert own.choose(like + 1, like).sum((1, 2)).tolist() == [12.0, 0.0]


def test_predictions_of_training_and_of_inference_are_one_table() -> None:
    """They are of other rows: side by side nothing was left of either."""
    keys = [("p", "received", "prediction", form) for form in ("all", "last", "mean")]
    recorder = Recorder(keys, 1, 20)

    def came(phase: str, rows: list[int], step: int, value: float) -> None:
        ids = torch.tensor([rows])
        shares = torch.full((1, len(rows), 2), value)
        recorder.add(Message("prediction", "a", "p", shares, ids, phase=phase, step=step), None)

    came("train", [0, 1, 2], 0, 0.1)
    came("train", [0, 1, 2], 1, 0.3)
    came("predict", [2, 10, 11], 0, 0.9)
    found = recorder.tables(0, ("p",), "train")
    told = {form: found["received", "prediction", form, "p"] for form in ("all", "last", "mean")}
    assert told["last"].rows.tolist() == [0, 1, 2, 10, 11]
    assert told["last"].tensor[:, 0].tolist() == pytest.approx([0.3, 0.3, 0.9, 0.9, 0.9])
    assert told["mean"].tensor[:, 0].tolist() == pytest.approx([0.2, 0.2, 0.2, 0.9, 0.9])
    assert told["all"].rows.tolist() == [0, 1, 2, 0, 1, 2, 2, 10, 11]
    assert told["all"].step.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    other = recorder.tables(0, ("p",), "another")
    assert other["received", "prediction", "last", "p"].rows.tolist() == [2, 10, 11]


def test_who_asks_again_gets_the_same_numbers_as_long_as_nobody_changed_them() -> None:
    recorder = Recorder([("b", "received", "gradient", "mean")], REPLICAS, ROWS)
    for step in range(4):
        recorder.add(message(step, torch.arange(6).expand(REPLICAS, 6)), None)

    def asked(r: int = 0, phase: str = "train") -> Table:
        (table,) = recorder.tables(r, ["b"], phase).values()
        return table

    first = asked()
    place = first.tensor.data_ptr()
    assert asked().tensor.data_ptr() == place
    assert asked(1).tensor.data_ptr() != place
    assert asked().tensor.data_ptr() == place
    first.by_row[0][0] = 99  # what an attack works out is its own
    assert asked().by_row[0][0] == 0
    want = first.tensor.clone()
    for change in (lambda x: x.add_(1.0), lambda x: x.numpy().sort(axis=0)):
        change(asked().tensor)
        assert torch.equal(asked().tensor, want)
    recorder.add(message(4, torch.arange(6).expand(REPLICAS, 6)), None)
    assert not torch.equal(asked().tensor, want)


def test_what_came_before_somebody_asked_stays_when_more_comes() -> None:
    forms = ("mean", "last", "first")
    asked, other = (
        Recorder([("b", "received", "gradient", f) for f in forms], REPLICAS, ROWS) for _ in "ab"
    )
    g = torch.Generator().manual_seed(0)
    for step in range(4):
        rows = torch.stack([torch.randperm(ROWS, generator=g)[:4] for _ in range(REPLICAS)])
        for recorder in (asked, other):
            recorder.add(message(step, rows), None)
        for r in range(REPLICAS):
            asked.tables(r, ["b"], "train")
    for r in range(REPLICAS):
        found, want = (recorder.tables(r, ["b"], "train") for recorder in (asked, other))
        for key, table in want.items():
            pairs = zip(vars(found[key]).values(), vars(table).values(), strict=True)
            assert all(torch.equal(a, b) for a, b in pairs)
    store = asked.stores["train", "b", "received", "gradient", "last", "a"]
    assert isinstance(store, recorder_stores.Dense)
    assert store.value is not None
    assert len(store.value) == sum(
        len(asked.tables(r, ["b"], "train")["received", "gradient", "last", "b"])
        for r in range(REPLICAS)
    )


def test_the_mean_without_what_rows_share_is_kept_once_where_they_share_nothing() -> None:
    forms = ("centred+", "mean+")
    recorder = Recorder([("b", "received", "gradient", f) for f in forms], REPLICAS, ROWS)
    g = torch.Generator().manual_seed(0)
    for step in range(40):
        sent = message(step, torch.arange(6).expand(REPLICAS, 6))
        drawn = torch.randn(*sent.tensor.shape[:2], 99, generator=g, dtype=torch.float64)
        recorder.add(replace(sent, tensor=drawn), None)
    tables = recorder.tables(0, ["b"], "train")
    mean, centred = (tables["received", "gradient", form, "b"] for form in forms)
    assert mean.tensor.data_ptr() == centred.tensor.data_ptr()
    store = recorder.stores["train", "b", "received", "gradient", "centred+", "a"]
    assert isinstance(store, recorder_stores.Centred)
    assert store.value is None
    want = store.origin().table(1)
    recorder.forget("train", [("b", "received", "gradient", "centred+")])  # which needs the means
    left = recorder.tables(1, ["b"], "train")
    assert ("received", "gradient", "mean+", "b") not in left
    assert torch.equal(left["received", "gradient", "centred+", "b"].tensor, want.tensor)


def test_what_nobody_asks_for_any_more_is_dropped() -> None:
    wanted = [("b", "received", "gradient", f) for f in ("first+", "last", "mean")]
    recorder = Recorder(wanted, REPLICAS, ROWS)
    for step in range(4):
        recorder.add(message(step, torch.arange(6).expand(REPLICAS, 6)), None)
    recorder.forget("another", ())
    assert len(recorder.stores) == 3
    recorder.forget("train", [("b", "received", "gradient", f) for f in ("first", "mean")])
    assert sorted(key[4] for key in recorder.stores) == ["first+", "mean"]
    recorder.forget("train", ())
    assert not recorder.stores


@pytest.mark.parametrize("shared", [False, True])
def test_messages_of_the_rows_that_are_asked_for_are_those_of_a_whole_record(
    shared: bool,
) -> None:
    """Bit for bit in every form, whatever batches share; of no other row anything is kept."""
    forms = ("mean", "scaled", "centred", "first", "last", "all")
    wanted = [("b", "received", "gradient", f) for f in forms]
    rows = [torch.tensor(r) for r in ([1, 4, 9], [0, 4], [2, 3, 5, 6])]
    places = torch.cat([of + r * ROWS for r, of in enumerate(rows)])
    asked = {("b", "received", "gradient", f): places for f in forms if f != "centred"}
    whole, some = Recorder(wanted, REPLICAS, ROWS), Recorder(wanted, REPLICAS, ROWS, asked=asked)
    g = torch.Generator().manual_seed(0)
    for step in range(40):
        batch = torch.stack([torch.randperm(ROWS, generator=g)[:7] for _ in range(REPLICAS)])
        sent = message(step, batch, scale=2.0)
        if shared:
            sent = replace(sent, tensor=sent.tensor + 50 * torch.randn(1, 1, 2, generator=g))
        alive = None if step < 30 else torch.tensor([True, step < 35, True])
        for recorder in (whole, some):
            recorder.add(sent, alive)
        if step == 20:  # asking in between changes nothing
            some.tables(0, ["b"], "train")
    for r, of in enumerate(rows):
        found, want = (recorder.tables(r, ["b"], "train") for recorder in (some, whole))
        assert found.keys() == want.keys()
        for key, table in want.items():
            got, table = (t.take(torch.isin(t.rows, of)) for t in (found[key], table))
            if key[2] != "all":
                assert torch.equal(got.rows, of)
                assert len(got) == len(found[key])
            pairs = zip(vars(got).values(), vars(table).values(), strict=False)
            assert all(torch.equal(a, b) for a, b in pairs), key
    kept = [s for s in some.stores.values() if isinstance(s, recorder_stores.Dense)]
    assert {len(s.value) for s in kept if s.value is not None} == {len(places)}


def test_how_large_a_second_name_is_beside_the_first_all_rows_tell() -> None:
    key = ("b", "received", "gradient", "mean")
    recorder = Recorder([key], REPLICAS, ROWS, asked={key: torch.tensor([0, ROWS])})
    sent = message(0, torch.arange(4).expand(REPLICAS, 4))
    recorder.add(sent, None)
    with pytest.raises(ConfigError, match='messages = "all"'):
        recorder.add(replace(sent, name="second"), None)
