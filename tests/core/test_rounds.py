"""An algorithm that is no network is one file: views, ledger and predictions come of themselves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from vflsec.core.message_kinds import KINDS
from vflsec.core.recorder_stores import All
from vflsec.core.view import Facts, Table, View
from vflsec.errors import PolicyError, ShapeError, ThreatModelError
from vflsec.inference.leaf_groups import find_leaves, find_trees
from vflsec.plugin import Learner, Message, Own, Policy, Rounds, Wire
from vflsec.plugins import registry
from vflsec.specs import AttackSpec
from vflsec.testing import small_stack, train
from vflsec.train.loop import predict
from vflsec.train.views import make_view


class Sums:
    """Adds up the labels, and sends the sum so far of each row's own label."""

    def __init__(self, wire: Wire) -> None:
        self.wire, self.round = wire, 0

    def take_round(self) -> None:
        y = self.wire.labels * (self.round + 1.0)
        for host in self.wire.task.passive:
            self.wire.send("partition", "active", host, y.astype(int), self.wire.rows)
            self.wire.send("histogram", host, "active", self.wire.columns(host).sum(0))
        self.round += 1

    def predict(self, rows: np.ndarray) -> np.ndarray:
        return np.stack([rows * 0.0, rows * 1.0 + self.round], axis=1)


@dataclass(frozen=True)
class Toy(Rounds):
    name: ClassVar[str] = "toy"
    sends: ClassVar[frozenset[tuple[str, str, str]]] = frozenset(
        {("partition", "active", "passive"), ("histogram", "passive", "active")}
    )
    rounds: ClassVar[int] = 3  # type: ignore[misc]

    def start(self, wire: Wire) -> Learner:
        return Sums(wire)


class Reusing(Sums):
    """Goes on with the arrays that it sends."""

    def take_round(self) -> None:
        self.round += 1
        sent, rows = self.wire.labels * self.round, self.wire.rows.copy()
        for host in self.wire.task.passive:
            self.wire.send("partition", "active", host, sent, rows)
            self.wire.send("histogram", host, "active", self.wire.columns(host).sum(0))
        sent[:] = rows[:] = 0


@dataclass(frozen=True)
class Careless(Toy):
    def start(self, wire: Wire) -> Learner:
        return Reusing(wire)


@dataclass(frozen=True)
class Covering(Policy):
    name: ClassVar[str] = "cover"
    covers = frozenset({"partition"})

    def outgoing(self, message: Message, own: Own) -> torch.Tensor:
        return message.tensor + 1


@dataclass(frozen=True)
class Shaken(Policy):
    """Noise on own columns that grows with the strength."""

    name: ClassVar[str] = "shaken"
    strengths: ClassVar[str] = "noise"

    def columns(self, x: torch.Tensor, own: Own) -> torch.Tensor:
        noise = own.rng.normal(x.shape[1:], dtype=torch.float64).to(x)
        return own.choose(x + own.column(x) * noise, x)


WANTED = [
    ("passive1", "received", "partition", "all"), ("passive1", "sent", "histogram", "all"),
    ("active", "received", "histogram", "all"),
]  # fmt: skip


@pytest.mark.parametrize("algorithm", [Toy(), Careless()], ids=["new", "reused"])
def test_every_cell_has_its_own_messages(algorithm: Toy) -> None:
    stack = small_stack([0, 1, 0])
    trained = train(algorithm, stack, [0, 1, 0], wanted=WANTED)
    fed = trained.fed
    for r in range(3):
        task = stack.tasks[int(stack.of[r])]
        spec = AttackSpec("", adversary=("passive1",))
        view = make_view(algorithm, fed, trained.initial, spec, r)
        table = view.received("partition", "all")
        rows = task.sets["labelled"]
        assert torch.equal(table.rows, rows.repeat(3))
        assert torch.equal(table.tensor, torch.cat([task.y[rows] * k for k in (1, 2, 3)]))
        assert table.epoch.unique().tolist() == [0, 1, 2]
        (down, up) = fed.channel.ledger.of(r)
        assert (down["messages"], down["elements"]) == (3, 3 * len(rows))
        assert (up["messages"], up["elements"]) == (3, 3 * 6)
    test = stack.rows("test")
    assert torch.equal(predict(algorithm, fed, test)[..., 1], (test + 3).to(stack.dtype))


def test_what_all_messages_are_about_is_kept_once() -> None:
    fed = train(Toy(), small_stack([0]), [0], wanted=WANTED[:1]).fed
    (store,) = fed.channel.recorder.stores.values()
    assert len({m.rows.data_ptr() for m, _ in store.kept}) == 1  # of three rounds
    (learner,) = fed.extra["learners"].values()
    with pytest.raises(ValueError, match="read-only"):
        learner.wire.rows[0] = 1


class Residuals(Sums):
    """Sends a number of each row in plain, as a regression would its residuals."""

    def take_round(self) -> None:
        y = self.wire.labels + 10.0 * self.round
        self.wire.send("gradient", "active", "passive1", y[:, None], self.wire.rows)
        self.round += 1


@dataclass(frozen=True)
class Plain(Toy):
    sends: ClassVar[frozenset[tuple[str, str, str]]] = frozenset(
        {("gradient", "active", "passive")}
    )

    def start(self, wire: Wire) -> Learner:
        return Residuals(wire)


def test_learners_that_take_turns_send_first_messages_of_a_step_each() -> None:
    """Ten trainings send one after the other: none is the second exchange of another's step, and
    none was beyond the eight that are kept. Replica by replica all messages are there.
    """
    seeds = list(range(10))
    algorithm, stack = Plain(), small_stack(seeds)
    wanted = [("passive1", "received", "gradient", form) for form in ("all", "mean")]
    trained = train(algorithm, stack, seeds, wanted=wanted)
    for r in seeds:
        task, spec = stack.tasks[r], AttackSpec("", adversary=("passive1",))
        view = make_view(algorithm, trained.fed, {}, spec, r)
        rows = task.sets["labelled"]
        mean = view.received("gradient", "mean")
        assert mean.tensor.shape == (len(rows), 1)
        assert torch.equal(mean.tensor[:, 0], task.y[rows] + 10.0)
        assert torch.equal(view.received("gradient", "all").rows, rows.repeat(3))
    assert not trained.fed.channel.recorder.left_out


@pytest.mark.parametrize("depth", [1, 3])
def test_a_step_is_of_one_round_and_so_is_a_tree(depth: int) -> None:
    """Who names no step gets one for each round, and leaves of ten trees do not become one."""

    @dataclass(frozen=True)
    class Deep(Toy):
        def planned_facts(self, *args: Any) -> Facts:
            return replace(super().planned_facts(*args), extra={"depth": depth})

    trained = train(Deep(), small_stack([0]), [0], wanted=WANTED)
    view = make_view(trained.algorithm, trained.fed, {}, AttackSpec("", adversary=("passive1",)), 0)
    table = view.received("partition", "all")
    assert torch.equal(table.step, table.epoch)
    leaves, y = find_leaves(view), trained.fed.stack.tasks[0].y
    assert torch.equal(leaves.nodes, y[leaves.rows].unsqueeze(1) * torch.tensor([1, 2, 3]))


def test_the_number_of_a_tree_says_which_of_its_round_it_is() -> None:
    """Of three trees a round with two levels each, also where steps begin anew in a round."""
    step, epoch = torch.arange(12), torch.arange(12) // 6
    shown = {"depth": 2, "trees_a_round": 3}
    facts = Facts("", "train", "a", ("a", "b"), 3, extra=shown)
    view = View(("b",), {}, {}, {}, {}, {}, facts, {})
    for steps in (step, step % 6):
        trees = find_trees(view, Table(step[:, None], step, epoch, steps))
        assert (trees % 3).tolist() == [0, 0, 1, 1, 2, 2] * 2
        assert len(trees.unique()) == 6
        assert torch.equal(trees, trees.sort().values)


class Replies(Sums):
    """Tells in the second round alone what the host split itself."""

    def take_round(self) -> None:
        if self.round == 1:
            y, rows = self.wire.labels.astype(int) + 1, self.wire.rows
            self.wire.send("partition", "passive1", "active", 10 * y, rows)
        super().take_round()


def test_a_tree_has_one_number_in_all_tables() -> None:
    """A table of one round has no tree twice, and its tree was the first one of other tables."""

    @dataclass(frozen=True)
    class Deep(Toy):
        sends: ClassVar[frozenset[tuple[str, str, str]]] = frozenset(
            {*Toy.sends, ("partition", "passive", "active")}
        )

        def start(self, wire: Wire) -> Learner:
            return Replies(wire)

        def planned_facts(self, *args: Any) -> Facts:
            return replace(super().planned_facts(*args), extra={"depth": 3})

    wanted = [("passive1", way, "partition", "all") for way in ("received", "sent")]
    trained = train(Deep(), small_stack([0]), [0], wanted=wanted)
    view = make_view(trained.algorithm, trained.fed, {}, AttackSpec("", adversary=("passive1",)), 0)
    leaves, y = find_leaves(view), trained.fed.stack.tasks[0].y
    mine = y[leaves.rows]
    expected = torch.stack([mine, torch.maximum(2 * mine, 10 * (mine + 1)), 3 * mine], dim=1)
    assert torch.equal(leaves.nodes, expected)


def test_a_step_of_an_earlier_round_is_refused() -> None:
    class Anew(Sums):
        def take_round(self) -> None:
            for level in (0, 1):
                y = self.wire.labels.astype(int)
                self.wire.send("partition", "active", "passive1", y, self.wire.rows, step=level)

    class Levels(Toy):
        def start(self, wire: Wire) -> Learner:
            return Anew(wire)

    with pytest.raises(ShapeError, match="step in round 1 must be 2 or more, got 0"):
        train(Levels(), small_stack([0]), [0])


def test_who_cannot_open_a_message_has_it_not() -> None:
    """A host works out sums under the active party's key; only that party reads them."""
    algorithm, stack = Toy(), small_stack([0, 0])
    trained = train(algorithm, stack, [0, 0], wanted=WANTED)
    views = {
        p: make_view(algorithm, trained.fed, {}, AttackSpec("", adversary=(p,)), 0)
        for p in ("active", "passive1")
    }
    assert KINDS["histogram"].opened_by == "receiver"
    assert len(views["active"].received("histogram", "all")) == 3
    with pytest.raises(ThreatModelError):
        views["passive1"].sent("histogram", "all")


def test_a_policy_made_for_batches_is_refused() -> None:
    on = [(Covering(), torch.ones(2, dtype=torch.float64))]
    with pytest.raises(PolicyError, match="cover: needs batches of a network, toy has none"):
        train(Toy(), small_stack([0, 0]), [0, 0], {"active": on})


@pytest.mark.parametrize("name", ["mixup", "he_gradient"])
def test_half_a_policy_is_refused(name: str) -> None:
    on = [(registry.defenses.create(name), torch.full((2,), 0.5, dtype=torch.float64))]
    algorithm = registry.algorithms.create("secureboost", {"trees": 1})
    with pytest.raises(PolicyError, match=f"{name}: needs batches of a network"):
        train(algorithm, small_stack([0, 0]), [0, 0], {"passive1": on})


def test_columns_after_a_policy_do_not_depend_on_other_cells() -> None:
    """The same noise for one seed, whatever else trains beside it."""
    sums = {}
    for strengths in ([1.0], [0.5, 1.0], [1.0, 2.0, 0.0]):
        at = torch.tensor(strengths, dtype=torch.float64)
        seeds = [0] * len(strengths)
        on = {"passive1": [(Shaken(), at)]}
        trained = train(Toy(), small_stack(seeds), seeds, on, wanted=WANTED)
        r = strengths.index(1.0)
        got = trained.fed.channel.recorder.tables(r, ["active"], "train")
        sums[len(strengths)] = got[("received", "histogram", "all", "active")].tensor
    assert torch.equal(sums[1], sums[2])
    assert torch.equal(sums[1], sums[3])
    assert torch.equal(sums[1][0], sums[1][1])


@pytest.mark.parametrize(("shaken", "made"), [(False, 2), (True, 3)])
def test_what_columns_alone_make_is_made_once_for_each_of_their_kinds(
    shaken: bool, made: int
) -> None:
    """Seeds have their own, and so has each cell of a policy on columns; names are kept apart."""
    found: list[tuple[float, float]] = []
    calls: list[str] = []

    @dataclass(frozen=True)
    class Sharing(Toy):
        def start(self, wire: Wire) -> Learner:
            def make(name: str, sign: int) -> float:
                calls.append(name)
                return sign * float(wire.columns("passive1").sum())

            found.append((wire.share("up", partial(make, "up", 1)),
                          wire.share("down", partial(make, "down", -1))))  # fmt: skip
            return Sums(wire)

    seeds = [0, 1, 0]
    on = {"passive1": [(Shaken(), torch.tensor([1.0, 1.0, 2.0], dtype=torch.float64))]}
    train(Sharing(), small_stack(seeds), seeds, on if shaken else None, wanted=WANTED)
    assert (calls.count("up"), calls.count("down")) == (made, made)
    assert all(up == -down != 0 for up, down in found)
    assert len({up for up, _ in found}) == made


def test_labels_after_a_policy_are_what_is_trained_on() -> None:
    """Strength 0 changes nothing, and cells of one seed with other strengths train apart."""
    algorithm, stack = Toy(), small_stack([0, 0, 0])
    noise = registry.defenses.create("label_dp")
    on = [(noise, torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64))]
    trained = train(algorithm, stack, [0, 0, 0], {"active": on}, wanted=WANTED)
    tables = trained.fed.channel.recorder
    got = [tables.tables(r, ["passive1"], "train") for r in range(3)]
    key = ("received", "partition", "all", "passive1")
    assert torch.equal(got[0][key].tensor, got[2][key].tensor)
    assert not torch.equal(got[0][key].tensor, got[1][key].tensor)
    rows = stack.tasks[0].sets["labelled"]
    assert torch.equal(got[0][key].tensor[: len(rows)], stack.tasks[0].y[rows])


def test_the_last_word_of_an_epoch_about_a_row_is_kept() -> None:
    """Of messages that refine each other, for each name and each set of replicas by itself."""
    store = All(6, refines=True)
    told = [
        (0, "", [0, 1, 2, 3], [1, 2, 1, 2]), (0, "", [3, 1], [5, 6]), (0, "", [9], [7]),
        (1, "", [0, 1], [1, 1]), (1, "1", [0, 1], [2, 2]), (1, "1", [0, 1], [4, 4]),
    ]  # fmt: skip
    for epoch, name, rows, nodes in told:
        spread = [torch.tensor(v).expand(2, -1) for v in (nodes, rows)]
        store.add(
            Message("partition", "a", "b", spread[0], spread[1], epoch=epoch, name=name), None
        )
    table = store.table(1)
    found = list(zip(table.epoch.tolist(), table.rows.tolist(), table.tensor.tolist(), strict=True))
    assert found == [
        (0, 0, 1), (0, 2, 1), (0, 3, 5), (0, 1, 6), (0, 9, 7), (1, 0, 1), (1, 1, 1), (1, 0, 4),
        (1, 1, 4),
    ]  # fmt: skip


def test_of_messages_that_replicas_share_the_rows_that_these_ask_for_are_kept() -> None:
    asked = torch.tensor([1, 3, 6 + 2, 12 + 5])
    store = All(6, refines=True, asked=asked)
    rows, nodes = (torch.arange(n, n + 6).expand(3, 6) for n in (0, 10))
    for alive in ([True, False, False], [False, True, True]):
        store.add(Message("partition", "a", "b", nodes, rows), torch.tensor(alive))
    assert [store.table(r).rows.tolist() for r in range(3)] == [[1, 3], [2, 5], [2, 5]]
    assert store.table(0).tensor.tolist() == [11, 13]
    assert {m.tensor.untyped_storage().nbytes() for m, _ in store.kept} == {2 * 8}
