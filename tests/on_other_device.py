"""What is trained and attacked on another device than the CPU: nothing mixes both or waits.

Collected by `test_other_device` alone, in a process of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from device_watch import Watch, cells, make_tasks, watch_steps
from other_device import emulated, place
from sampled import sampled

from vflsec.engine import cohort
from vflsec.inference import ridge_regression
from vflsec.inference.inference_heads import HeadSettings
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, CellSpec, DefenseSpec
from vflsec.train.cohort import Training
from vflsec.train.demand import Demand

NORM = AttackSpec("norm", adversary=("passive",), known_rows=10)
OF_THE_LABEL_PARTY = ("feature", "attribute", "property")
AGAIN = {"compression", "gradient_average", "he_embedding", "he_gradient", "marvell", "ppdl"}
"""Defenses that are known to wait in every step, see `test_device`."""
CLUSTERS = {"inference/clustering_points.py:_plus_plus", "inference/clustering_points.py:k_means"}
ROUNDS = {"core/rounds.py:task", "core/rounds.py:_spread"}
ON_HOST = ("psi", "scorecard", "secureboost", "vertical_glm")
LATER = {"fewshot": CLUSTERS, "oneshot": CLUSTERS, **dict.fromkeys(ON_HOST, ROUNDS)}
"""Work between two passes, which are no steps; and rounds that are computed on the host."""
ONCE = {"core/task.py:_flat", "core/policy.py:<lambda>", "algorithms/laser.py:list_sets"}
"""What is brought to the device when it is first asked for."""


@pytest.fixture(scope="module")
def tasks() -> dict[int, Any]:
    return make_tasks()


@pytest.fixture(scope="module", autouse=True)
def _few_steps() -> Iterator[None]:
    """Heads of attacks and controls are fitted in ten steps; the next ones would do the same."""
    with pytest.MonkeyPatch.context() as patch:
        init = HeadSettings.__init__

        def few(self: HeadSettings, hidden: Sequence[int], *_: Any, **of: Any) -> None:
            init(self, hidden, **{**of, "steps": 10})

        patch.setattr(HeadSettings, "__init__", few)
        fit = ridge_regression._networks
        patch.setattr(ridge_regression, "_networks", lambda *of: fit(*of[:6], 10, *of[7:]))
        yield


def audited(
    given: Sequence[CellSpec], attacks: Sequence[AttackSpec], tasks: Any, device: torch.device
) -> list[tuple[Any, ...]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cohort, "pick_device", lambda _: device)
        found = cohort.run_cohort(given, attacks, tasks)
    return [
        (m.phase, m.split, m.metric, m.attack, m.status, m.reason, m.value)
        for result in found for m in result.measures
    ]  # fmt: skip


def assert_alike(given: Sequence[CellSpec], attacks: Sequence[AttackSpec], tasks: Any) -> None:
    """Figures are those of the CPU, whose kernels do the work; only what is fused differs."""
    here = audited(given, attacks, tasks, torch.device("cpu"))
    with emulated():
        assert_near(audited(given, attacks, tasks, place()), here)


def assert_near(there: Sequence[tuple[Any, ...]], here: Sequence[tuple[Any, ...]]) -> None:
    assert [m[:-1] for m in there] == [m[:-1] for m in here]
    assert any(m[-1] is not None for m in here)
    for a, b in zip(here, there, strict=True):
        assert b[-1] == (None if a[-1] is None else pytest.approx(a[-1], abs=5e-3, nan_ok=True)), b


def defended(name: str) -> DefenseSpec:
    cls = registry.defenses.get(name)
    return DefenseSpec(name, strength=cls.trial[1] if getattr(cls, "strengths", "") else None)


def attack(name: str) -> AttackSpec:
    cls: Any = registry.attacks.get(name)
    made = registry.attacks.create(name)
    needs = made.needs | made.optional
    return AttackSpec(
        name, dict(cls.quick), known_rows=20, aux_rows=60 if "aux_rows" in needs else 0,
        adversary=("active" if made.target in OF_THE_LABEL_PARTY else "passive",),
        peer_model="peer_model" in needs,
    )  # fmt: skip


def test_an_audit_is_that_of_the_cpu(tasks: dict[int, Any]) -> None:
    names = ("norm", "direction")
    assert_alike(cells("splitnn", defended("max_norm")), [attack(n) for n in names], tasks)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in registry.attacks.names() if n != "linear_inversion"])
def test_no_attack_mixes_devices(name: str, tasks: dict[int, Any]) -> None:
    assert_alike(cells("splitnn"), [attack(name), NORM], tasks)


@pytest.mark.slow
@pytest.mark.parametrize("name", registry.defenses.names())
def test_no_defense_mixes_devices(name: str, tasks: dict[int, Any]) -> None:
    assert_alike(cells("splitnn", defended(name)), [NORM], tasks)


@pytest.mark.slow
@pytest.mark.parametrize("name", registry.algorithms.names())
def test_no_algorithm_mixes_devices(name: str, tasks: dict[int, Any]) -> None:
    attacks = [NORM, attack("model_completion"), attack("embedding_inversion")]
    here, given = torch.device("cpu"), cells(name)
    with emulated():
        found = audited(given, attacks, tasks, place())
    assert [m[:-1] for m in found] == [m[:-1] for m in audited(given, attacks, tasks, here)]


def crossings(given: list[CellSpec], tasks: dict[int, Any]) -> Counter[str]:
    """How often numbers cross to or from the device within steps, by place."""
    watch = Watch()
    names = ("norm", "direction", "model_completion", "unsplit", "message_completion")
    demands = [Demand.of(attack(n), registry.attacks.create(n)) for n in names]
    with pytest.MonkeyPatch.context() as patch:
        watch_steps(watch, patch)
        with emulated(lambda: watch.saw() if watch.on else None):
            for _ in Training(given, demands, tasks, place()).run(predictions=False):
                pass
    return Counter({k: n for k, n in watch.found.items() if k not in ONCE})


@pytest.mark.parametrize(
    "name", sampled(["", *(n for n in registry.defenses.names() if n not in AGAIN)])
)
def test_nothing_crosses_in_every_step(name: str, tasks: dict[int, Any]) -> None:
    """A number of the host that is brought to the device waits for it as one that is read does."""
    found = crossings(cells("splitnn", *([defended(name)] if name else [])), tasks)
    assert {k for k, n in found.items() if n >= 3} == set()


@pytest.mark.slow
@pytest.mark.parametrize("name", registry.algorithms.names())
def test_no_step_of_an_algorithm_brings_numbers(name: str, tasks: dict[int, Any]) -> None:
    found = crossings(cells(name), tasks)
    assert {k for k, n in found.items() if n >= 3} <= LATER.get(name, set())


def test_dropout_is_drawn_on_the_device() -> None:
    """No mask crosses to it in every step."""
    from vflsec.core.rng import Streams
    from vflsec.nn.replicas import Replicas

    crossed: list[int] = []
    with emulated(lambda: crossed.append(1)):
        made = [torch.nn.Sequential(torch.nn.Dropout(0.5)) for _ in range(2)]
        streams = Streams([0, 1], "module", device=place())
        x = torch.ones(2, 3, 40, device=place())
        stack, many = Replicas(made, device=place(), rng=streams), len(crossed)
        out = stack(x)
        assert len(crossed) == many
        assert sorted(set(out.cpu().flatten().tolist())) == [0.0, 2.0]


def test_the_device_refuses_what_a_gpu_refuses() -> None:
    """Each kind of mistake is seen, so that an audit that passes means something."""
    with emulated():
        x = torch.arange(4.0, device=place())
        g, there = torch.Generator(), torch.Generator(device=place())
        here = torch.arange(4)
        mistakes: dict[str, Callable[[], Any]] = {
            "add": lambda: x + torch.ones(4), "numpy": x.numpy, "asarray": lambda: np.asarray(x),
            "cat": lambda: torch.cat([x, torch.ones(1)]), "index": lambda: here[x.long()],
            "gather": lambda: x.gather(0, here), "isin": lambda: torch.isin(x.long(), here),
            "where": lambda: torch.where(here > 1, x, x), "out": lambda: torch.mul(x, 2, out=here),
            "search": lambda: torch.searchsorted(x, torch.ones(2)),
            "scatter": lambda: x.index_add(0, here, x), "stack": lambda: torch.stack([x, x.cpu()]),
            "generator": lambda: torch.randn(3, generator=g, device=place()),
            "normal": lambda: x.normal_(generator=g),
            "rand": lambda: torch.rand(3, generator=there),
            "integers": lambda: x.long().reshape(2, 2) @ x.long().reshape(2, 2),
            "driver": lambda: torch.linalg.lstsq(x.reshape(2, 2), x.reshape(2, 2)),
            "zero-dim": lambda: torch.ones(4) + x[0],
        }  # fmt: skip
        seen = []
        for name, make in mistakes.items():
            try:
                make()
            except RuntimeError:
                seen.append(name)
        assert seen == list(mistakes)
        fine = [
            x[here], x + torch.tensor(1.0), torch.where(x > 1, x, torch.tensor(0.0)), x.cpu() + 1,
            torch.randn(3, generator=there, device=place()), torch.tensor([1.0], device=place()),
            torch.autograd.grad((x.requires_grad_() ** 2).sum(), x)[0], x.detach()[:2] @ x[:2],
        ]  # fmt: skip
        assert [t.is_cuda for t in fine] == [True] * 3 + [False] + [True] * 4
        assert fine[6].tolist() == [0.0, 2.0, 4.0, 6.0]
