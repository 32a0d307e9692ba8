"""A party's own model in a trace: classes as people write them, and weights before training."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sampled import sampled
from torch import Tensor, nn
from torch.nn import functional
from trace_audits import audit, first_of_each, record

from vflsec.core.view import Schema
from vflsec.engine.trace_attacks import infer
from vflsec.errors import ConfigError
from vflsec.nn.models import build_bottom
from vflsec.nn.module_spec import LayerSpec, build_module, describe_module, unwrap
from vflsec.trace.limits import TRUSTED
from vflsec.trace.reader import Trace


class Layers(nn.Module):
    """Layers by name, one activation for all."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.last = nn.Linear(6, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)
        self.body = nn.Sequential(nn.Linear(5, 5), nn.Dropout(0.2))
        self.norm = nn.BatchNorm1d(5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.body(self.act(self.first(x))))
        return torch.tanh(self.last(functional.leaky_relu(self.norm(x), 0.2)))


class Around(nn.Module):
    """A class around another."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).relu()


class Image(nn.Module):
    """Of squares; `way` flattens."""

    def __init__(self, way: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.pool, self.out = nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.Linear(36, 4)
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.way(self.pool(functional.relu(self.conv(x)))))


class Residual(Layers):
    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.last(self.norm(self.body(h)) + h)


class Branch(Layers):
    def forward(self, x: Tensor) -> Tensor:
        return self.first(x) if x.sum() > 0 else self.first(-x)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.same = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.same(self.same(x))


class Doubled(Layers):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.body(self.first(x * 2))))


class Unused(Layers):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x))


CHAINS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "layers": (Layers, (6,)),
    "around": (lambda: Around(Around(Layers())), (6,)),
    "in a sequence": (lambda: nn.Sequential(Layers(), nn.Tanh()), (6,)),
    "in parallel": (lambda: nn.DataParallel(Layers()), (6,)),
    "view": (lambda: Image(lambda x: x.view(x.size(0), -1)), (1, 8, 8)),
    "reshape": (lambda: Image(lambda x: x.reshape(x.shape[0], -1)), (1, 8, 8)),
    "flatten": (lambda: Image(lambda x: torch.flatten(x, 1)), (1, 8, 8)),
    "flatten by name": (lambda: Image(lambda x: x.flatten(start_dim=1)), (1, 8, 8)),
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_class_that_is_a_chain_of_layers_is_the_same_function(name: str) -> None:
    """No class of one's own was described, so that five families of attacks were left out."""
    make, shape = CHAINS[name]
    module = make().eval()
    for p in module.parameters():
        torch.nn.init.normal_(p)
    layers = describe_module(module)
    assert layers is not None
    inner = unwrap(module)
    built = build_module(layers, inner.state_dict(), Schema.numbers(shape), "it")
    x = torch.randn(7, *shape)
    assert torch.equal(built(x), module(x))
    assert set(built.state_dict()) == set(inner.state_dict())


@pytest.mark.parametrize("width", [0, 4])
@pytest.mark.parametrize("rows", [0, 5])
def test_categories_are_embedded_as_they_were(width: int, rows: int) -> None:
    schema = Schema(("a", "b", "c"), (40, 0, 3), (3,))
    module = build_bottom(schema, (4,), 2, width=width, rows=rows)
    layers = describe_module(module)
    assert layers is not None
    written = LayerSpec.model_validate_json(layers.model_dump_json())
    built = build_module(written, module.state_dict(), schema, "it")
    x = torch.stack([torch.arange(40.0), torch.randn(40), torch.arange(40.0) % 3], dim=1)
    assert torch.equal(built(x), module(x))


@pytest.mark.parametrize("make", [Residual, Branch, Twice, Doubled, Unused, lambda: nn.LSTM(6, 3)])
def test_what_is_no_chain_is_not_described(make: Callable[[], nn.Module]) -> None:
    assert describe_module(make()) is None


def test_looking_at_a_model_draws_nothing_from_the_loop() -> None:
    class Noisy(Layers):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x + torch.randn(6))

    module = Noisy()
    before = torch.get_rng_state()
    assert describe_module(module) is None
    assert torch.equal(before, torch.get_rng_state())


def test_looking_at_a_model_leaves_it_as_it_was() -> None:
    """What a forward pass keeps was a stand-in for numbers afterwards, which nothing can save."""

    class Keeps(Layers):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("steps", torch.zeros(()), persistent=False)
            self.body.seen = torch.ones(2)

        def forward(self, x: Tensor) -> Tensor:
            self.steps += 1
            self.hidden = self.body.seen = self.first(x)
            return self.last(self.norm(self.body(self.hidden)))

    module = Keeps()
    assert describe_module(module) is not None
    assert not hasattr(module, "hidden")
    assert torch.equal(module.body.seen, torch.ones(2))
    assert module.steps == 0
    kept = module(torch.zeros(2, 6)) is not None and module.hidden
    assert describe_module(module) is not None
    assert module.hidden is kept
    assert module.steps == 1


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(1, 1, 3, dilation=2), nn.Conv2d(2, 2, 1, padding="same", padding_mode="circular"),
        nn.GELU(approximate="tanh"), nn.MaxPool2d(2, ceil_mode=True),
        nn.AvgPool2d(2, padding=1, count_include_pad=False), nn.Embedding(4, 2, max_norm=0.1),
    ],
)  # fmt: skip
def test_layers_with_settings_that_are_not_kept_are_not_described(layer: nn.Module) -> None:
    """They were built without: another function of the same weights."""
    assert describe_module(layer) is None
    assert describe_module(nn.Sequential(layer)) is None


N = 400
X = torch.from_numpy(np.random.default_rng(0).normal(size=(N, 10)).astype("float32"))
Y = (X[:, 0] * X[:, 1] > 0).numpy().astype(int)
KNOWN = first_of_each(Y, 15)


class Bottom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(10, 24), nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(functional.relu(self.hidden(x)))


def trained(folder: Path, how: str) -> Path:
    """A bottom that learns the label; `how` its weights before training are given."""
    seed = int(folder.name)
    rng = torch.Generator().manual_seed(seed)
    bottom, top = Bottom(), nn.Linear(3, 1)
    for p in [*bottom.parameters(), *top.parameters()]:
        p.data = torch.randn(p.shape, generator=rng) * 0.5
    before = bottom.state_dict()
    copied = {k: v.clone() for k, v in before.items()}
    optimizer = torch.optim.Adam([*bottom.parameters(), *top.parameters()], 0.02)
    given = {"model": bottom} if how == "model" else {}
    about = {"loss_reduction": "unknown", "grad_scale": None, "columns": X, "run": {"seed": seed}}
    with record(folder, Y, KNOWN, **about | given) as rec:
        for _ in range(25):
            for rows in torch.randperm(N, generator=rng).split(50):
                logit = top(rec.cut(bottom(X[rows]), rows)).squeeze(1)
                y = torch.from_numpy(Y)[rows].float()
                optimizer.zero_grad()
                functional.binary_cross_entropy_with_logits(logit, y).backward()
                optimizer.step()
        if how != "model":
            rec.model(bottom, copied if how == "copied" else before)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("how", sampled(["state_dict", "model", "copied"]))
def test_what_a_trained_bottom_tells_is_not_taken_for_what_it_told_before(
    how: str, tmp_path: Path
) -> None:
    """state_dict() returns the weights that are trained: the leak was its own control, +0.00."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        traces = [trained(tmp_path / str(s), how) for s in range(3)]
    told = [w for w in said if "the initial weights" in str(w.message)]
    assert bool(told) == (how == "state_dict")
    gate = {"max": 0.1}
    result = audit(tmp_path, traces, ("model_completion",), Y, gates=[gate])
    found = result.results.query("metric == 'auc' and role == 'audit'")
    assert found.advantage.mean() > 0.25
    assert result.verdict == "FAIL"
    beside = [c for c in found.controls if '"untrained"' in c]
    assert len(beside) == (0 if how == "state_dict" else 3)


def test_a_model_of_other_layers_is_said_when_it_is_recorded(tmp_path: Path) -> None:
    with (
        pytest.warns(RuntimeWarning, match=r"--model bank=package.module:Residual"),
        record(tmp_path / "t", Y, KNOWN, columns=torch.randn(N, 6), model=Residual()) as rec,
    ):
        rec.cut(torch.zeros(N, 3, requires_grad=True), range(N)).backward(torch.ones(N, 3))
    parts = [e.part for e in Trace.open(tmp_path / "t").observer("bank").info.moments[-1].models]
    assert parts == ["bottom", "initial"]
    infer([tmp_path / "t"], tmp_path / "g", attacks=("model_completion",), limits=TRUSTED)
    said = (tmp_path / "g" / "answers.json").read_text()
    assert "(--model bank=package.module:Name)" in said


class Held(nn.Module):
    """Weights under a name that a wrapper gives, too."""

    def __init__(self) -> None:
        super().__init__()
        self.module, self.last = nn.Linear(4, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.module(x).relu())


@pytest.mark.parametrize("make", [Held, lambda: nn.Sequential(nn.Linear(4, 3))])
@pytest.mark.parametrize("given", ["model", "of the wrapper"])
@pytest.mark.parametrize("wrapped", [0, 1, 2])
def test_weights_before_training_keep_the_names_that_the_model_gives_them(
    make: Callable[[], nn.Module], given: str, wrapped: int, tmp_path: Path
) -> None:
    """A part called `module` lost its name in them, so that no audit could read the trace."""
    bottom = outer = make()
    for _ in range(wrapped):
        outer = nn.DataParallel(outer)
    before = {k: v.clone() for k, v in outer.state_dict().items()}
    with record(tmp_path / "t", rows=8, columns=torch.randn(8, 4)) as rec:
        rec.model(outer, before if given == "of the wrapper" else None)
        rec.cut(bottom(torch.randn(8, 4)), range(8)).sum().backward()
    observer = Trace.open(tmp_path / "t").observer("bank")
    held = {e.part: observer.model(e) for e in observer.info.moments[-1].models}
    assert set(held) == {"bottom", "initial"}
    for module in held.values():
        for name, tensor in bottom.state_dict().items():
            assert torch.equal(module.state_dict()[name], tensor)


def test_a_model_takes_columns(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs columns"):
        record(tmp_path, rows=N, model=Bottom())
