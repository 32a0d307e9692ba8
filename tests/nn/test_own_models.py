"""Own modules in training: sequences and images, tops, arguments; loops give the same numbers."""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from by_hand import assert_same
from torch import nn

from vflsec.cli.main import main
from vflsec.core.view import Schema
from vflsec.errors import ConfigError
from vflsec.nn.models import from_path, top_from_path
from vflsec.nn.module_check import rows_of
from vflsec.nn.replicas import ReplicaFallbackWarning, Replicas, draws_random
from vflsec.plugins import registry
from vflsec.testing import small_stack
from vflsec.testing.worlds import train

SCHEMA = Schema(tuple("abcdef"), (0,) * 6, (6,))


@pytest.mark.parametrize("kind", ["GRU", "LSTM", "RNN"])
def test_a_sequence_model_runs_in_a_loop_and_says_so(kind: str) -> None:
    made = [
        from_path("own_models:Recurrent", SCHEMA, 3, {"kind": kind}).double() for _ in range(3)
    ]  # fmt: skip
    x = torch.randn(3, 7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    stack = Replicas(made, dtype=torch.float64)
    with pytest.warns(ReplicaFallbackWarning, match="Recurrent cannot be stacked .*one after"):
        out = stack(x)
    assert stack.path == "loop"
    gradients = torch.autograd.grad(out.square().sum(), stack.parameters())
    for r, module in enumerate(made):
        alone = module(x[r])
        assert torch.equal(out[r], alone)
        single = torch.autograd.grad(alone.square().sum(), list(module.parameters()))
        for g, s in zip(gradients, single, strict=True):
            assert torch.equal(g[r], s)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stack(x)  # said once


def algorithm(**more: Any) -> Any:
    params = {"epochs": 3, "patience": 0, "batch_size": 32, "cut": 4, "lr": 0.02} | more
    return registry.algorithms.create("splitnn", params)


def trained(seeds: tuple[int, ...], **more: Any) -> Any:
    return train(algorithm(**more), small_stack(list(seeds), unaligned=0), list(seeds))


OWN: dict[str, dict[str, Any]] = {
    "sequence": {"parties": {"passive1": {"module": "own_models:Recurrent"}}},
    "sequence that draws": {
        "parties": {"passive1": {"module": "own_models:Recurrent", "args": {"dropout": 0.5}}}
    },
    "top": {"top_module": "own_models:Gated", "top_args": {"hidden": 6}},
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::vflsec.nn.replicas.ReplicaFallbackWarning")
@pytest.mark.parametrize("name", OWN)
def test_a_cell_does_not_depend_on_its_company(name: str) -> None:
    """Seed 1 beside seed 0 is seed 1 beside seed 2, in a loop as well, draws included."""
    first, second = (trained(s, **OWN[name]).fed.state() for s in ((0, 1), (1, 2)))
    assert_same(first, second, of=(torch.tensor([1]), torch.tensor([0])))


def test_paths_that_are_chosen() -> None:
    with pytest.warns(ReplicaFallbackWarning, match="aten::gru"):
        fed = trained((0, 1), **OWN["sequence"]).fed
    assert fed.parties["passive1"].modules["bottom"].path == "loop"
    assert fed.parties["active"].modules["bottom"].path == "stacked"
    top = trained((0, 1), **OWN["top"]).fed.parties["active"].modules["top"]
    assert top.path == "vmap"
    assert top.template.a.out_features == 6


def test_an_image_as_a_sequence() -> None:
    image = Schema((), (), (1, 8, 4))
    module = from_path("own_models:Rows", image, 5)
    assert module(torch.zeros(2, 1, 8, 4)).shape == (2, 5)


def test_draws_within_a_layer_are_seen() -> None:
    assert not draws_random(nn.GRU(2, 2))
    assert draws_random(nn.Sequential(nn.GRU(2, 2, 2, dropout=0.1)))
    assert draws_random(nn.MultiheadAttention(2, 1, dropout=0.1))
    assert not draws_random(nn.MultiheadAttention(2, 1))
    assert draws_random(nn.Sequential(nn.Dropout(0.5)))


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "unknown argument": ({"kinds": "GRU"}, "an argument must be one of .*Did you mean 'kind'"),
    "what vflsec gives": ({"out": 3}, "an argument must be one of"),
    "a value it refuses": ({"kind": "Nothing"}, "cannot be made"),
    "rows that do not divide": ({"features": 4}, "fails on a batch of 3 rows"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name: str) -> None:
    args, words = BAD[name]
    with pytest.raises(ConfigError, match=words):
        from_path("own_models:Recurrent", SCHEMA, 3, args)


@pytest.mark.parametrize("how", ["all", "a column", "in training"])
def test_rows_may_not_be_changed_in_place(how: str) -> None:
    """A control that is fitted in steps would see them halved 150 times, and tell nothing."""
    with pytest.raises(ConfigError, match=r"changes its rows in place .*x\.clone\(\)"):
        from_path("own_models:Halves", SCHEMA, 3, {"how": how})


def test_a_copy_of_the_rows_may_be_changed() -> None:
    made = from_path("own_models:Halves", SCHEMA, 3, {"how": "a copy"})
    x = torch.ones(2, SCHEMA.shape[0])
    assert made.training
    assert made(x).shape == (2, 3)
    assert bool((x == 1).all())


ERRATIC = {
    "noise": "answers the same rows otherwise each time",
    "numpy": "answers the same rows otherwise each time",
    "numpy in training": "draws random numbers that no seed",
    "neighbours": "answers a row otherwise beside other rows",
    "graph": "answers otherwise where gradients are recorded",
    "mode": "gives all rows one answer in evaluation",
    "one row": "fails on a batch of 1 row of shape",
    "idle": r"answers without its parameters more\.weight, more\.bias\. Use",
    "detached": r"answers without its parameters last\.weight, last\.bias\. Use",
}


@pytest.mark.parametrize("how", ERRATIC)
def test_a_module_must_answer_by_its_rows(how: str) -> None:
    with pytest.raises(ConfigError, match=ERRATIC[how]):
        from_path("own_models:Erratic", SCHEMA, 3, {"how": how})


def test_a_top_must_answer_by_its_rows_too(monkeypatch: pytest.MonkeyPatch) -> None:
    own = importlib.import_module("own_models")
    monkeypatch.setattr(own, "centred", lambda out: nn.Sequential(nn.Linear(6, out), Centred()),
                        raising=False)  # fmt: skip
    with pytest.raises(ConfigError, match="answers a row otherwise beside other rows"):
        top_from_path("own_models:centred", 6, 2)


class Centred(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)


def test_statistics_of_a_batch_may_be_used_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    own = importlib.import_module("own_models")
    monkeypatch.setattr(own, "normed", lambda out: nn.Sequential(nn.Linear(6, out),
                        nn.BatchNorm1d(out)), raising=False)  # fmt: skip
    before = from_path("own_models:normed", SCHEMA, 3).state_dict()
    assert before["1.num_batches_tracked"] == 0  # the trial left no trace
    assert before["1.running_mean"].tolist() == [0, 0, 0]


def test_frozen_parameters_may_lie_idle() -> None:
    made = from_path("own_models:Erratic", SCHEMA, 3, {"how": "frozen"})
    assert [k for k, p in made.named_parameters() if not p.requires_grad] == [
        "more.weight", "more.bias"]  # fmt: skip


def test_a_blank_start_behind_draws_is_not_blank_on_purpose() -> None:
    """A last layer that begins with zeros, and dropout: only training looks as if it told rows."""
    assert draws_random(
        from_path("own_models:Erratic", SCHEMA, 3, {"how": "constant but for draws"})
    )


def test_rows_of_a_trial_differ_in_their_categories() -> None:
    rows = rows_of(Schema(("a", "b", "c"), (0, 2, 5), (3,)))
    assert rows[:, 1:].tolist() == [[0, 0], [1, 1], [0, 2]]
    assert len(rows[:, 0].unique()) == 3
    assert rows_of(Schema((), (), (1, 4, 4))).shape == (3, 1, 4, 4)


def test_draws_of_a_function_are_seen() -> None:
    """Fine-tuning attacks evaluate what draws; they would have drawn from no seed."""
    assert draws_random(from_path("own_models:Erratic", SCHEMA, 3, {"how": "draws in training"}))
    assert not draws_random(from_path("own_models:Erratic", SCHEMA, 3))


def test_trying_a_module_draws_nothing() -> None:
    """Its dropout is tried in training, too, and the next module starts as if it had not been."""
    recurrent = importlib.import_module("own_models").Recurrent
    torch.manual_seed(5)
    recurrent(SCHEMA, 3, dropout=0.5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    from_path("own_models:Recurrent", SCHEMA, 3, {"dropout": 0.5})
    assert torch.equal(torch.rand(3), expected)


def test_tops_by_path() -> None:
    assert top_from_path("own_models:Gated", 6, 2)(torch.zeros(4, 6)).shape == (4, 2)
    with pytest.raises(ConfigError, match=r"must map a batch of 3 to \(3, 2\), got \(3, 6\)"):
        top_from_path("torch.nn:Identity", 6, 2)
    with pytest.raises(ConfigError, match="top_module stands instead of top"):
        algorithm(top_module="own_models:Gated", top=[4])
    with pytest.raises(ConfigError, match="top_args need a top_module"):
        algorithm(top_args={"hidden": 3})
    with pytest.raises(ConfigError, match="args need a module"):
        algorithm(parties={"passive1": {"args": {"hidden": 3}}})
    with pytest.raises(ConfigError, match="ushaped: has several tops"):
        registry.algorithms.create("ushaped", {"top_module": "own_models:Gated"})


def test_a_scenario_with_own_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`check` builds them, takes the first step, and says what runs in a loop."""
    source = Path(__file__).resolve().parent / "own_models.py"
    (tmp_path / "their_models.py").write_text(source.read_text())
    scenario = """
[[data]]
name = "breast_cancer"

[[algorithm]]
name = "splitnn"
epochs = 1
top_module = "their_models:Gated"
top_args = { hidden = 5 }

[parties.passive]
module = "their_models:Recurrent"
args = { features = 7 }
cut = 4

[[attack]]
name = "norm"
"""
    (tmp_path / "s.toml").write_text(scenario)
    assert main(["check", str(tmp_path / "s.toml")]) == 0, capsys.readouterr()
    said = " ".join(capsys.readouterr().out.split())
    assert "note: Recurrent cannot be stacked (Batching rule not implemented for aten::gru" in said
    (tmp_path / "s.toml").write_text(scenario.replace("features = 7", "feature = 7"))
    assert main(["check", str(tmp_path / "s.toml")]) == 2
    assert "Did you mean 'features'?" in " ".join(capsys.readouterr().err.split())
