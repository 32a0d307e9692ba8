"""DP-SGD of a federation: Poisson batches, composition over parties, and what one party cannot."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from broken_claims import one_row
from sampled import sampled
from torch import Tensor, nn

from vflsec.algorithms.splitnn import SplitNN
from vflsec.core import accountants
from vflsec.core.federation import Federation, Pass, Phase
from vflsec.core.privacy_usage import Batches, RunFacts, Uses
from vflsec.epsilon import canary_bounds
from vflsec.errors import PolicyError
from vflsec.plugins import registry
from vflsec.specs import CellSpec, DefenseSpec
from vflsec.testing import small_stack, small_task, train
from vflsec.train.cohort import Training
from vflsec.train.mechanism_counts import collect_uses

COLUMNS = 6  # of the passive party of `small_task`
TINY = {"hidden": [], "cut": 2, "epochs": 3, "patience": 0, "select": False, "batch_size": 32}


def training(
    strength: float = 1.0, party: str = "all", seeds: tuple[int, ...] = (0, 1),
    params: dict[str, Any] | None = None, tasks: dict[int, Any] | None = None,
    dtype: str = "float64", **defense: Any,
) -> Training:  # fmt: skip
    """A trained cohort under dpsgd."""
    cells = [
        CellSpec(
            {"name": "small"}, "splitnn", {**TINY, **(params or {})},
            (DefenseSpec("dpsgd", defense, party, strength),), s, dtype,
        )
        for s in seeds
    ]  # fmt: skip
    made = Training(cells, (), tasks or {s: small_task(s) for s in seeds}, torch.device("cpu"))
    for _ in made.run(predictions=False):
        pass
    return made


def claim(made: Training) -> Any:
    return made.guarantee(made.defenses[0], made.cells[0].defenses[0].strength or 0.0, 0)


class Centred(nn.Module):
    """Takes the mean of the batch off, in training alone, where a trial of it does not look."""

    def __init__(self, out: int, off: float = 0.9) -> None:
        super().__init__()
        self.linear, self.off = nn.Linear(COLUMNS, out), off

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.linear(x)
        return h - self.off * h.mean(0, keepdim=True) if self.training else h


@pytest.mark.parametrize(("off", "couples"), [(0.9, True), (0.0, False)])
@pytest.mark.parametrize("accountant", sampled(["shuffled", "rdp"]))
def test_a_module_that_mixes_rows_in_training_ends_it(
    off: float, couples: bool, accountant: str
) -> None:
    """Each row's part was limited as if it were alone, and epsilon 4.4 claimed."""
    if accountant == "rdp":
        pytest.importorskip("opacus")
    own = {"module": "test_joint_dpsgd:Centred", "args": {"off": off}}
    made = claim(training(2.0, params={"parties": {"passive1": own}}, accountant=accountant))
    assert (made.epsilon is None) == couples
    assert ("rows of a batch are coupled" in made.reason) == couples


class Late(nn.Module):
    """Takes the mean of the batch off in training, once it was called `start` times."""

    def __init__(self, out: int, start: int) -> None:
        super().__init__()
        self.linear, self.start = nn.Linear(COLUMNS, out), start
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.linear(x)
        if not self.training:
            return h
        self.calls += 1
        return h - 0.9 * (self.calls > self.start) * h.mean(0, keepdim=True)


@pytest.mark.parametrize(
    ("start", "couples"), sampled([(7, True), (100, False), (0, True), (3, True)], 2)
)
def test_what_mixes_rows_later_in_a_phase_ends_it_too(start: int, couples: bool) -> None:
    """The first step of a training was looked at alone: epsilon 5.54 was claimed of rows that are
    mixed from the fourth step on.
    """
    own = {"module": "test_joint_dpsgd:Late", "args": {"start": start}}
    made = claim(training(2.0, params={"parties": {"passive1": own}}))
    assert (made.epsilon is None) == couples
    assert ("rows of a batch are coupled" in made.reason) == couples


def test_every_party_that_trains_has_to_run_it() -> None:
    alone = claim(training(party="active"))
    assert alone.epsilon is None
    assert "passive1 trains without it" in alone.reason
    assert "with the other models given" in alone.reason
    assert claim(training(party="passive")).epsilon is None
    both = claim(training(party="all"))
    assert both.epsilon == pytest.approx(accountants.gaussian(1.0, 6, 1e-5).epsilon)
    assert (both.releases, both.neighbours) == (3, "zeroing it out")


def test_other_policies_that_couple_rows_end_it() -> None:
    on = torch.ones(2, dtype=torch.float64)
    policy = registry.defenses.create("dpsgd")
    # what noise makes of the gradient of a row that adds nothing is no more nothing
    for name, owner in ((n, "active") for n in ("iso", "max_norm", "discrete", "noise")):
        bound = {p: [(policy, on)] for p in ("active", "passive1")}
        bound[owner] = [*bound[owner], (registry.defenses.create(name), on)]
        made = train(
            registry.algorithms.create("splitnn", TINY), small_stack([0, 0]), [0, 0], bound
        )
        found = policy.guarantee(1.0, RunFacts(uses=collect_uses(made.fed, policy, 0)))
        assert found.epsilon is None
        assert f"{name} beside it may couple" in found.reason


BESIDE: dict[str, tuple[str, dict[str, Any], float, str]] = {
    "nothing": ("label_dp", {}, 0.0, "active"),
    "label_dp": ("label_dp", {}, 0.5, "active"),
    "label_dp, corrected": ("label_dp", {"correct": True}, 0.5, "active"),
    "alibi": ("alibi", {}, 0.5, "active"),
    "embedding_noise": ("embedding_noise", {}, 1.0, "passive1"),
}


@pytest.mark.parametrize("name", BESIDE)
def test_what_treats_each_row_by_itself_ends_no_claim(name: str) -> None:
    """dpsgd beside embedding_noise, which advises it, or beside label_dp claimed nothing or was
    refused. A row that adds nothing moves a step of either party by at most the clipping length,
    with all other draws as they were, and by that where it is loud.
    """
    defense, params, strength, owner = BESIDE[name]
    clip = 0.05
    steps = []
    for out in (False, True):
        task = small_task(0)
        row = int(task.sets["labelled"][0])
        x = {p: v.clone() for p, v in task.x.items()}
        for v in x.values():
            v[row] = 0.0 if out else 3.0
        silent = torch.zeros(len(task.y), dtype=torch.bool)
        silent[row] = out
        made = (
            DefenseSpec(defense, params, owner, strength),
            DefenseSpec("dpsgd", {"clip_norm": clip}, "all", 1e-12),
        )
        plain = {**TINY, "epochs": 1, "batch_size": 1000, "optimizer": "sgd", "lr": 1.0}
        cell = CellSpec({"name": "small"}, "splitnn", plain, made, 0, "float64")
        task = replace(task, x=x, silent=silent)
        run = Training([cell, cell], (), {0: task}, torch.device("cpu"))
        before = {p: [w.clone() for w in q.parameters()] for p, q in run.build().parties.items()}
        for _ in run.run(predictions=False):
            pass
        b = len(task.sets["labelled"])
        moves = {
            p: [(w - o)[0].detach().flatten() for w, o in zip(q.parameters(), before[p])]
            for p, q in run.fed.parties.items()
        }
        steps.append({p: torch.cat(of) * b for p, of in moves.items()})
        uses = collect_uses(run.fed, run.defenses[1], 0)
        assert (uses.past, uses.most) == ((), 1)
    moved = [float((step - steps[1][party]).norm()) for party, step in steps[0].items()]
    assert moved == pytest.approx([clip, clip], rel=1e-9)


@dataclass(frozen=True)
class Oversampled(SplitNN):
    """Every training row stands in an epoch so many times."""

    times: int = 2

    def phases(self, fed: Federation) -> list[Any]:
        return [replace(p, rows=p.rows.repeat(1, self.times)) for p in super().phases(fed)]


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("accountant", sampled(["rdp", "shuffled"]))
def test_a_row_that_stands_twice_in_a_step_ends_it(times: int, accountant: str) -> None:
    """It moves the step by two clipping lengths, which costs four uses; two were composed."""
    if accountant == "rdp":
        pytest.importorskip("opacus")
    policy = registry.defenses.create("dpsgd", {"accountant": accountant})
    both = {p: [(policy, torch.full((2,), 2.0).double())] for p in ("active", "passive1")}
    algorithm = Oversampled(**{**TINY, "epochs": 1, "batch_size": 250, "times": times})
    made = train(algorithm, small_stack([0, 0]), [0, 0], both)
    said = policy.guarantee(2.0, RunFacts(uses=collect_uses(made.fed, policy, 0)))
    assert (said.epsilon is None) == (times == 2)
    assert ("a row stands twice in a step of active" in said.reason) == (times == 2)


def test_pre_training_without_it_ends_it() -> None:
    cell = CellSpec(
        {"name": "small"}, "fedlocal_ssl",
        {"epochs": 1, "hidden": [4], "cut": 4, "pretrain_iterations": 1},
        (DefenseSpec("dpsgd", {}, "all", 1.0),),
    )  # fmt: skip
    made = Training([cell, cell], (), {0: small_task(0)}, torch.device("cpu"))
    with pytest.raises(PolicyError, match=r"batch normalisation|couple|BatchNorm|cannot be split"):
        for _ in made.run(predictions=False):
            pass
    assert "pre-training" in made.fed.parties["active"].unprotected
    assert claim(made).epsilon is None


def test_canaries_at_the_hook_are_sampled_as_rows_are() -> None:
    """Unsampled they would measure a mechanism without amplification, and accuse a true claim."""
    policy = registry.defenses.create("dpsgd", {"accountant": "rdp"})
    claimed = accountants.subsampled_gaussians([(4.0, 0.05, 60)], 1e-5, "rdp").epsilon
    how = {"canaries": 600, "epochs": 60, "confidence": 0.99, "claimed": claimed}
    assert not canary_bounds.audit_rows(policy, 4.0, rate=0.05, **how).contradicts
    assert canary_bounds.audit_rows(policy, 4.0, **how).contradicts


# Poisson batches


def drawn(rate_rows: int = 32, seeds: tuple[int, ...] = (0, 1)) -> tuple[Federation, list[Any]]:
    policy = registry.defenses.create("dpsgd", {"accountant": "rdp"})
    on = torch.ones(len(seeds), dtype=torch.float64)
    stack = small_stack(list(seeds), n=2000)
    fed = Federation.create(stack, seeds, {p: [(policy, on)] for p in ("active", "passive1")})
    algorithm = registry.algorithms.create("splitnn", {**TINY, "batch_size": rate_rows})
    algorithm.build(fed)
    (phase,) = algorithm.phases(fed)
    fed.phase = phase.name
    own = fed.active.bindings[0].own
    return fed, [(b, own.sample) for b in fed.batches(phase)]


def test_a_phase_that_looks_at_batches_and_takes_no_step_costs_nothing() -> None:
    """Its noise multiplier was that of no step, one divided by 0, after all was trained."""
    pytest.importorskip("opacus")
    policy = registry.defenses.create("dpsgd", {"accountant": "rdp"})
    trained = Batches("train", 0.1, 100, 1, 0.0)
    made = [
        policy.guarantee(2.0, RunFacts(uses=Uses(10, phases={"train": 10}, batches=batches)))
        for batches in ((trained,), (trained, Batches("look", 0.1, 100, 0, 0.0)))
    ]
    assert made[0].epsilon == made[1].epsilon is not None


def test_batches_are_poisson_samples() -> None:
    """Sizes are binomial, rows come by coins of their own, and every filler repeats a drawn row."""
    _, batches = drawn()
    n, b = 1200, 32
    assert len(batches) == 38
    sizes = torch.stack([m.sum(1) for _, (m, _) in batches]).double()
    assert float(sizes.mean()) == pytest.approx(b, abs=3 * (b / sizes.numel()) ** 0.5)
    spread = b * (1 - b / n)
    assert float(sizes.var()) == pytest.approx(spread, rel=0.4)
    for rows, (mask, size) in batches:
        assert size == b
        assert rows.shape == mask.shape
        for r in range(2):
            chosen = rows[r][mask[r]]
            assert len(chosen.unique()) == len(chosen)
            assert set(rows[r].tolist()) <= set(chosen.tolist())
    often = torch.cat([rows[0][mask[0]] for rows, (mask, _) in batches]).bincount(minlength=2000)
    assert int(often.max()) >= 4  # a shuffled epoch has every row once


def test_a_row_that_was_not_drawn_changes_nothing() -> None:
    """The first step's weights are the same bits whatever a filled-in row's columns are."""
    policy = registry.defenses.create("dpsgd", {"accountant": "rdp"})
    on = torch.ones(2, dtype=torch.float64)
    states = []
    for loud in (False, True):
        stack = small_stack([0, 0])
        fed = Federation.create(stack, [0, 0], {p: [(policy, on)] for p in ("active", "passive1")})
        algorithm = registry.algorithms.create("splitnn", TINY)
        algorithm.build(fed)
        (phase,) = algorithm.phases(fed)
        fed.phase = phase.name
        batch = next(iter(fed.batches(phase)))
        mask = fed.active.bindings[0].own.sample[0]  # type: ignore[index]
        out = [int(i) for i in stack.rows("labelled")[0] if i not in batch[0][mask[0]]]
        if loud:
            stack.first.x["passive1"][out] *= 1e4
            stack._x.clear()
        algorithm.step(fed, batch)  # type: ignore[attr-defined]
        states.append(fed.state())
    for party in states[0]:
        for part in states[0][party]:
            for key, value in states[0][party][part].items():
                assert torch.equal(value, states[1][party][part][key])


def test_poisson_batches_need_every_party() -> None:
    with pytest.raises(PolicyError, match=r"passive1 without\. Set party"):
        training(party="active", accountant="prv")


@pytest.mark.slow
def test_poisson_claim_is_that_of_opacus_over_all_parties() -> None:
    pytest.importorskip("opacus")
    made = training(strength=2.0, accountant="rdp", params={"epochs": 2})
    found = claim(made)
    n = len(made.stack.first.sets["labelled"])
    steps = 2 * -(-n // 32)
    expected = accountants.subsampled_gaussians([(2 / 2**0.5, 32 / n, steps)], 1e-5, "rdp").epsilon
    assert found.epsilon == pytest.approx(expected, rel=1e-4)
    assert found.accountant == "Opacus RDP"
    assert f"{steps} at rate {32 / n:.4g}" in found.over


@dataclass(frozen=True)
class TwoWalks(SplitNN):
    """Walks over its rows twice in an epoch, in batches of two sizes."""

    sizes: tuple[int, int] = (16, 72)

    def phases(self, fed: Federation) -> list[Phase]:
        (phase,) = super().phases(fed)
        step = partial(self.step, fed)
        walks = [Pass(f"of {size}", phase.rows, size, step) for size in self.sizes]
        return [replace(phase, passes=tuple(walks))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "accountant"),
    sampled([((16, 72), "rdp"), ((16, 72), "prv"), ((72, 16), "prv"), ((16, 144), "prv"),
             ((16, 16), "prv")]),
)  # fmt: skip
def test_walks_of_one_phase_are_composed_each_at_its_own_rate(
    sizes: tuple[int, int], accountant: str
) -> None:
    """Of two walks the first one's rate and batches were taken for all: of batches of 16 and of 72
    rows epsilon 2.37 was claimed, and it is 5.42.
    """
    pytest.importorskip("opacus")
    policy = registry.defenses.create("dpsgd", {"accountant": accountant})
    on = torch.full((2,), 2.0, dtype=torch.float64)
    bound = {p: [(policy, on)] for p in ("active", "passive1")}
    made = train(TwoWalks(**TINY, sizes=sizes), small_stack([0, 1]), [0, 1], bound)
    found = policy.guarantee(2.0, RunFacts(uses=collect_uses(made.fed, policy, 0)))
    history = [(2 / 2**0.5, size / 144, 3 * -(-144 // size)) for size in sizes]
    true = accountants.subsampled_gaussians(history, 1e-5, accountant).epsilon
    assert found.epsilon == pytest.approx(true, rel=1e-4)


def weights(made: Training, r: int, party: str = "active") -> Tensor:
    modules = made.fed.parties[party].modules.values()
    return torch.cat([v[r].flatten() for m in modules for v in m.state().values()])


def test_a_replica_does_not_depend_on_its_company() -> None:
    alone, company = training(seeds=(1, 1), accountant="rdp"), training(accountant="rdp")
    assert torch.equal(weights(alone, 0), weights(company, 1))


def test_off_it_is_the_undefended_training_up_to_rounding() -> None:
    tasks = {0: small_task(0)}
    cells = [
        CellSpec(
            {"name": "small"}, "splitnn", TINY,
            (DefenseSpec("dpsgd", {"accountant": "rdp"}, "all", s),), 0, "float64",
        )
        for s in (0.0, 1.0)
    ]  # fmt: skip
    made = Training(cells, (), tasks, torch.device("cpu"))
    for _ in made.run(predictions=False):
        pass
    plain = training(strength=0.0, seeds=(0, 0))
    assert torch.allclose(weights(made, 0), weights(plain, 0), atol=1e-10)
    assert not torch.allclose(weights(made, 1), weights(plain, 0), atol=1e-3)


# One party alone, measured


def test_one_unprotected_party_breaks_what_the_other_would_have_claimed() -> None:
    """The row is not even the protected party's: it changes all other rows' embeddings."""
    found = one_row(small_task(0), ("active",), signs=torch.ones(1, COLUMNS))
    assert found.claimed == pytest.approx(0.726, abs=1e-3)
    assert found.epsilon > 2.0, found.sentence()


def test_the_row_that_the_model_gets_most_wrong_breaks_it_too() -> None:
    """Chosen among random signs without a look at the trained weights."""
    found = one_row(small_task(0), ("active",), epochs=8)
    assert found.claimed == pytest.approx(1.061, abs=1e-3)
    assert found.epsilon > 2.0, found.sentence()


@pytest.mark.parametrize("signs", sampled([None, torch.ones(1, COLUMNS)]), ids=["worst", "plus"])
def test_both_protected_are_not_contradicted(signs: Tensor | None) -> None:
    found = one_row(small_task(0), ("active", "passive1"), signs=signs)
    assert not found.contradicts, found.sentence()
    assert found.epsilon < 0.5


@pytest.mark.parametrize("dtype", ["bf16", pytest.param("tf32", marks=pytest.mark.slow)])
def test_rounded_products_are_no_coupling(dtype: str) -> None:
    """Rows and batches round on their own; a module that mixes rows by a tenth still ends it."""
    small = {"hidden": [16], "batch_size": 4}
    kept = claim(training(2.0, params=small)).epsilon
    assert claim(training(2.0, params=small, dtype=dtype)).epsilon == kept > 0
    own = {"module": "test_joint_dpsgd:Centred", "args": {"off": 0.1}}
    mixed = claim(training(2.0, dtype=dtype, params={"parties": {"passive1": own}}))
    assert "rows of a batch are coupled" in mixed.reason
