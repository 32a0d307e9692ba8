"""No step of training waits for the host, but for the defenses that are known to."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from device_watch import cells, make_tasks, watched_steps
from sampled import sampled

from vflsec.core.rng import Streams
from vflsec.engine.cohort import run_cohort
from vflsec.nn.replicas import DRAWS, ReplicaFallbackWarning, Replicas
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, CellSpec, DefenseSpec
from vflsec.train.cohort import Training
from vflsec.train.demand import Demand

STEPS = 3
ATTACKS = [
    AttackSpec(name, adversary=("passive",), known_rows=10)
    for name in ("norm", "direction", "similarity", "model_completion")
]
NEAR = 0.02
"""How far figures of a GPU may lie from those of a CPU, which drew equal numbers."""
ROUNDED = 2e-3
"""How far numbers of a message may lie apart, as a share of its largest: steps of float32."""
WAITS = {
    "compression": {"defenses/compression.py:outgoing"},
    "gradient_average": {"defenses/gradient_average.py:outgoing"},
    "he_embedding": {"he/layer.py:_answer"},
    "he_gradient": {"he/links.py:_flooded"},
    "marvell": {
        "defenses/marvell.py:outgoing", "defenses/marvell.py:_shape", "defenses/marvell.py:solve",
        "defenses/marvell.py:<genexpr>",
    },
    "ppdl": {"defenses/ppdl.py:outgoing"},
}  # fmt: skip
"""Defenses that look at numbers of every step, and where: one taken off this list stays off."""


@pytest.fixture(scope="module")
def tasks() -> dict[int, Any]:
    return make_tasks()


def waits(given: list[CellSpec], tasks: dict[int, Any]) -> Counter[str]:
    demands = [Demand.of(a, registry.attacks.create(a.name)) for a in ATTACKS]
    training = Training(given, demands, tasks, torch.device("cpu"))
    with watched_steps() as watch:
        for _ in training.run(predictions=False):
            pass
    return watch.found


@pytest.mark.parametrize("algorithm", ["splitnn", "fedbcd"])
def test_no_step_of_training_waits(algorithm: str, tasks: dict[int, Any]) -> None:
    assert waits(cells(algorithm), tasks) == {}


@pytest.mark.parametrize("defense", sampled(registry.defenses.names(), every=4))
def test_no_defense_waits_in_every_step(defense: str, tasks: dict[int, Any]) -> None:
    """Beside the known ones; what is looked at once in a run does not count."""
    trial = registry.defenses.get(defense).trial
    strength = trial[1] if getattr(registry.defenses.get(defense), "strengths", "") else None
    spec = DefenseSpec(defense, strength=strength)
    found = waits(cells("splitnn", spec), tasks)
    ours = {k: n for k, n in found.items() if k.startswith(("defenses", "he/", "core/policy"))}
    often = {k for k, n in ours.items() if n >= STEPS}
    assert often <= WAITS.get(defense, set())


def test_the_watch_finds_what_it_should() -> None:
    """Each way to make a device wait is seen, so that an empty list means something."""
    from vflsec.core.federation import Federation

    x, seen = torch.arange(4.0), {}
    looks = {
        "item": lambda: x[0].item(), "bool": lambda: bool(x[0] > 0), "tolist": lambda: x.tolist(),
        "numpy": lambda: x.numpy(), "cpu": lambda: x.cpu(), "float": lambda: float(x[1]),
        "mask": lambda: x[x > 1], "nonzero": lambda: (x > 1).nonzero(), "unique": x.unique,
        "plain": lambda: torch.where(x > 1, x, 0 * x).sum(),
    }  # fmt: skip

    def batches(self: Any) -> Any:
        yield from looks

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Federation, "batches", batches)
        with watched_steps() as watch:
            watch.saw = lambda: seen.__setitem__(name, True)  # type: ignore[method-assign]
            for name in Federation.batches(None):  # type: ignore[arg-type]
                looks[name]()
    assert set(seen) == set(looks) - {"plain"}


@pytest.fixture
def drawn_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers for a GPU are drawn on the CPU: its own generator gives others for the same seed."""
    start = Streams.__init__

    def begin(self: Any, *args: Any, device: Any = "cpu", **kwargs: Any) -> None:
        start(self, *args, **kwargs)
        self.there = device

    monkeypatch.setattr(Streams, "__init__", begin)
    for name in ("normal", "uniform", "integers", "permutations"):
        real = getattr(Streams, name)

        def moved(self: Any, *args: Any, _real: Any = real, **kwargs: Any) -> Any:
            return _real(self, *args, **kwargs).to(self.there)

        monkeypatch.setattr(Streams, name, moved)


def sent(given: list[CellSpec], tasks: dict[int, Any], device: str) -> list[tuple[str, Any]]:
    """All messages of a training with a tensor of fractions, in their order, on the CPU."""
    demands = [Demand.of(a, registry.attacks.create(a.name)) for a in ATTACKS]
    training = Training(given, demands, tasks, torch.device(device))
    out: list[tuple[str, Any]] = []

    def keep(message: Any, *_: Any) -> None:
        if message.tensor.is_floating_point():
            name = f"{message.kind} {message.sender} {message.epoch} {message.step}"
            out.append((name, message.tensor.detach().cpu().clone()))

    training.taps.append(keep)
    for _ in training.run(predictions=False):
        pass
    return out


def farthest_message(here: Any, there: Any) -> float:
    """The largest difference of two messages, as a share of the message's largest number."""
    assert [name for name, _ in here] == [name for name, _ in there]
    return max(
        float((a - b).abs().max() / a.abs().max().clamp_min(1e-12))
        for (_, a), (_, b) in zip(here, there, strict=True)
    )


@pytest.mark.gpu
@pytest.mark.parametrize("defense", ["", "iso", "noise", "alibi", "max_norm"])
@pytest.mark.parametrize("algorithm", ["splitnn", "fedbcd"])
@pytest.mark.usefixtures("drawn_here")
def test_a_gpu_sends_what_the_cpu_sends(
    algorithm: str, defense: str, tasks: dict[int, Any]
) -> None:
    """The same streams, so messages differ by rounding alone.

    Figures do so only where attacks do not weigh rounding errors themselves: 2-means of messages
    that hide the labels, or hits among a few rows of equal length, move as far on a CPU whose
    inputs were rounded otherwise.
    """
    given = cells(algorithm, *([DefenseSpec(defense, strength=1.0)] if defense else []))
    here, there = (sent(given, tasks, d) for d in ("cpu", "cuda"))
    assert len(here) >= 7  # two in each of three steps, and a table's embeddings
    assert farthest_message(here, there) <= ROUNDED
    if defense in ("", "iso"):
        found = [run_cohort(given, ATTACKS, tasks, device=d) for d in ("cpu", "cuda")]
        assert furthest(*found) <= NEAR


def furthest(here: Any, there: Any) -> float:
    """How far figures lie apart at most; all else must be alike."""
    out = 0.0
    for one, other in zip(here, there, strict=True):
        for a, b in zip(one.measures, other.measures, strict=True):
            assert (a.attack, a.metric, a.split) == (b.attack, b.metric, b.split)
            assert (a.status, a.value is None) == (b.status, b.value is None)
            if a.value is not None and b.value is not None:
                out = max(out, abs(a.value - b.value))
    return out


@pytest.mark.parametrize("defense", ["", "noise", "alibi", "max_norm"])
def test_messages_move_by_rounding_alone(defense: str, tasks: dict[int, Any]) -> None:
    """Columns that are rounded otherwise stand for another device; other noise does not pass."""
    g = torch.Generator().manual_seed(0)
    rounded = {
        s: replace(
            t, x={p: v * (1 + 1e-6 * torch.randn(v.shape, generator=g)) for p, v in t.x.items()}
        )
        for s, t in tasks.items()
    }
    given = cells("splitnn", *([DefenseSpec(defense, strength=1.0)] if defense else []))
    here = sent(given, tasks, "cpu")
    assert farthest_message(here, sent(given, rounded, "cpu")) <= ROUNDED
    if defense:
        other = cells("splitnn", DefenseSpec(defense, strength=0.9))
        assert farthest_message(here, sent(other, tasks, "cpu")) > 5 * ROUNDED


@pytest.mark.slow
@pytest.mark.parametrize("defense", sampled(["iso", "noise", "alibi"]))
def test_the_comparison_with_a_gpu_would_see_that_nothing_is_drawn(
    defense: str, tasks: dict[int, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = cells("splitnn", DefenseSpec(defense, strength=1.0))
    whole = run_cohort(given, ATTACKS, tasks, device="cpu", main=False)
    for name in ("normal", "uniform", "laplace"):
        real = getattr(Streams, name)

        def middle(self: Any, *args: Any, _real: Any = real, **kwargs: Any) -> Any:
            drawn = _real(self, *args, **kwargs)
            return torch.full_like(drawn, 0.5 if _real.__name__ == "uniform" else 0.0)

        monkeypatch.setattr(Streams, name, middle)
    bare = run_cohort(given, ATTACKS, tasks, device="cpu", main=False)
    assert furthest(whole, bare) > 5 * NEAR


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
@pytest.mark.parametrize("defense", ["", "iso", "noise", "max_norm", "alibi", "mid"])
def test_no_step_waits_on_a_gpu(defense: str, tasks: dict[int, Any]) -> None:
    """By CUDA's own count of synchronisations, in steps of training only."""
    from collections.abc import Iterator

    from vflsec.core.federation import Federation

    specs = (DefenseSpec(defense, strength=1.0),) if defense else ()
    demands = [Demand.of(a, registry.attacks.create(a.name)) for a in ATTACKS]
    training = Training(cells("splitnn", *specs), demands, tasks, torch.device("cuda"))
    batches = Federation.batches

    def strict(self: Federation, *args: Any, **kwargs: Any) -> Iterator[Any]:
        for k, rows in enumerate(batches(self, *args, **kwargs)):
            torch.cuda.set_sync_debug_mode("error" if k else "default")  # the first makes things
            try:
                yield rows
            finally:
                torch.cuda.set_sync_debug_mode("default")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Federation, "batches", strict)
        for _ in training.run(predictions=False):
            pass


class Drops(torch.nn.Module):
    """Dropout that no rule stacks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5, self.training)


setattr(Drops, DRAWS, True)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_dropout_within_a_layer_is_of_the_replicas_own_stream(device: str) -> None:
    """Whatever else was drawn on the device, and in whatever company."""

    def dropped(seeds: list[int]) -> torch.Tensor:
        torch.rand(7, device=device)
        with pytest.warns(ReplicaFallbackWarning):
            stack = Replicas(
                [Drops() for _ in seeds], device=device, rng=Streams(seeds, "m", device=device)
            )
        x = torch.ones(len(seeds), 3, 50, device=device)
        return torch.stack([stack(x), stack(x)]).cpu()

    a, b = dropped([0, 1, 2]), dropped([2, 0])
    assert torch.equal(a[:, [2, 0]], b)
    assert not torch.equal(a[:, 0], a[:, 1])
    assert not torch.equal(a[0], a[1])
