"""Weights of a user's model from a safetensors file: numbers, identity, what is refused."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from vflsec.cli.main import main
from vflsec.config.scenario import load_scenario
from vflsec.errors import ConfigError
from vflsec.nn.weights import starting_at, write_weights
from vflsec.plan.planner import make_plan
from vflsec.plugins import registry
from vflsec.plugins.loading import allow_imports
from vflsec.testing import small_stack
from vflsec.testing.worlds import train

KEY = ("passive1", "sent", "embedding", "all")
VIEWED = ("sent", "embedding", "all", "passive1")


@pytest.fixture(autouse=True)
def _found(tmp_path: Path) -> None:
    allow_imports(tmp_path)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    made = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=made, dtype=torch.float64)


def linear(
    folder: Path, inputs: int, out: int, name: str = "bank.safetensors"
) -> dict[str, Tensor]:
    """A file for ``own_models:straight``."""
    state = {"weight": numbers(out, inputs), "bias": numbers(out, seed=1)}
    write_weights(folder / name, state)
    return state


def split(**more: Any) -> Any:
    params = {"epochs": 1, "patience": 0, "batch_size": 32, "cut": 4, "lr": 0.02} | more
    return registry.algorithms.create("splitnn", params)


def own(weights: str = "bank.safetensors") -> dict[str, Any]:
    return {"parties": {"passive1": {"module": "own_models:straight", "weights": weights}}}


def test_the_first_embedding_is_that_of_the_file(tmp_path: Path) -> None:
    """z = W x + b by hand, for every seed, to the last digits of float64."""
    state = linear(tmp_path, 6, 4)
    stack = small_stack([0, 1], unaligned=0)
    run = train(split(**own()), stack, [0, 1], wanted=[KEY])
    for r in range(2):
        sent = run.fed.channel.recorder.tables(r, ("passive1",), "train")[VIEWED]
        first = sent.step == 0
        assert first.sum() == 32
        x = run.fed.columns("passive1", sent.rows[first].expand(2, -1), train=False)[r]
        by_hand = x @ state["weight"].T + state["bias"]
        torch.testing.assert_close(sent.tensor[first], by_hand, rtol=1e-12, atol=1e-12)
    fresh = train(split(parties={"passive1": {"module": "own_models:straight"}}), stack, [0, 1],
                  wanted=[KEY])  # fmt: skip
    other = fresh.fed.channel.recorder.tables(1, ("passive1",), "train")[VIEWED]
    assert (other.tensor[other.step == 0] - sent.tensor[first]).abs().max() > 0.1


def test_layers_of_the_package_and_a_top(tmp_path: Path) -> None:
    """Widths alone and a top by import path start from files as well."""
    run = train(split(epochs=0, hidden=(3,)), small_stack([0, 1], unaligned=0), [0, 1])
    bottom = run.fed.parties["passive1"].modules["bottom"].state()
    write_weights(tmp_path / "b.safetensors", {k: v[1] for k, v in bottom.items()})
    gated = {"a.weight": (6, 8), "a.bias": (6,), "b.weight": (6, 8), "b.bias": (6,),
             "out.weight": (2, 6), "out.bias": (2,)}  # fmt: skip
    top = {k: numbers(*s, seed=i) for i, (k, s) in enumerate(gated.items())}
    write_weights(tmp_path / "t.safetensors", top)
    again = train(
        split(epochs=0, hidden=(3,), parties={"passive1": {"weights": "b.safetensors"}},
              top_module="own_models:Gated", top_args={"hidden": 6}, top_weights="t.safetensors"),
        small_stack([5, 6], unaligned=0), [5, 6],
    ).fed.parties  # fmt: skip
    for r in range(2):
        for k, v in again["passive1"].modules["bottom"].state().items():
            assert torch.equal(v[r], bottom[k][1])
        for k, v in again["active"].modules["top"].state().items():
            assert torch.equal(v[r], top[k])


def test_the_user_s_module_of_a_self_supervised_encoder(tmp_path: Path) -> None:
    state = linear(tmp_path, 6, 5)
    method = registry.algorithms.create("fedhssl", {"hidden": (5,), "cut": 4, "epochs": 0,
                                        "pretrain_iterations": 0, **own()})  # fmt: skip
    fed = train(method, small_stack([0, 1], unaligned=20), [0, 1]).fed
    held = fed.parties["passive1"].modules["bottom"].state()
    found = {k: v for k, v in held.items() if ".bottom." in f".{k}"}
    assert len(found) >= 2
    for k, v in found.items():
        assert torch.equal(v[1], state[k.rpartition(".")[2]])
    bare = {"parties": {"passive1": {"weights": "bank.safetensors"}}}
    method = registry.algorithms.create("fedhssl", {"hidden": (5,), "cut": 4, **bare})
    stack = small_stack([0, 1], unaligned=20)
    with pytest.raises(ConfigError, match="weights need a module"):
        train(method, stack, [0, 1])


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_number_types(tmp_path: Path, kind: torch.dtype) -> None:
    """Written by the format's own bytes, bfloat16 as the upper halves of float32."""
    x = numbers(4, 6).to(kind)
    raw = x.float().numpy().view("<u4") >> 16 if kind == torch.bfloat16 else x.numpy()
    data = (raw.astype("<u2") if kind == torch.bfloat16 else raw).tobytes()
    name = {"torch.float16": "F16", "torch.bfloat16": "BF16", "torch.float32": "F32",
            "torch.float64": "F64"}[str(kind)]  # fmt: skip
    head = json.dumps({"weight": {"dtype": name, "shape": [4, 6], "data_offsets": [0, len(data)]}})
    (tmp_path / "w.safetensors").write_bytes(len(head).to_bytes(8, "little") + head.encode() + data)
    made = starting_at("w.safetensors", "w", lambda: nn.Linear(6, 4, bias=False))()
    assert torch.equal(made.weight.double(), x.double())


def _pickled(folder: Path) -> None:
    torch.save({"weight": numbers(4, 6)}, folder / "bank.safetensors")


def _old_pickle(folder: Path) -> None:
    with (folder / "bank.safetensors").open("wb") as file:
        pickle.dump({"weight": np.ones(3)}, file)


def _cut(folder: Path) -> None:
    linear(folder, 6, 4)
    path = folder / "bank.safetensors"
    path.write_bytes(path.read_bytes()[:-8])


def _quantised(folder: Path) -> None:
    head = b'{"weight":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]}}'
    (folder / "bank.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + b"\0")


W, B = numbers(4, 6), numbers(4)
BAD: list[tuple[Any, str]] = [
    ({"weight": W}, r"bias must be floats \(4,\).*got absent"),
    (
        {"weight": W, "bias": B, "head.scale": B},
        r"head\.scale must be absent.*got floats \(4,\)",
    ),
    ({"weight": numbers(6, 4), "bias": B}, r"weight must be floats \(4, 6\).*got floats \(6, 4\)"),
    ({"weight": W.long(), "bias": B}, "weight must be floats.*got integers"),
    (_pickled, "a pickle"),
    (_old_pickle, "a pickle"),
    ({"weight": W, "bias": B * torch.nan}, "'bias' must be finite"),
    (_cut, "offsets"),
    (_quantised, "'F64', 'F32'.*F8_E4M3"),
    (lambda _: None, "cannot be read .No such file"),
]


@pytest.mark.parametrize(("damage", "words"), BAD, ids=[words for _, words in BAD])
def test_what_is_refused(tmp_path: Path, damage: Any, words: str) -> None:
    if callable(damage):
        damage(tmp_path)
    else:
        write_weights(tmp_path / "bank.safetensors", damage)
    stack = small_stack([0, 1], unaligned=0)
    with pytest.raises(ConfigError, match=words):
        train(split(**own()), stack, [0, 1])


def test_weights_without_a_place() -> None:
    with pytest.raises(ConfigError, match="top_weights need one top model"):
        split(top_weights="t.safetensors", linear_top=False, aggregation="sum")
    with pytest.raises(ConfigError, match="top_weights need one top model"):
        registry.algorithms.create("ushaped", {"top_weights": "t.safetensors"})


SCENARIO = """
[data]
name = "breast_cancer"
[algorithm]
name = "splitnn"
epochs = 1
[parties.passive]
weights = "bank.safetensors"
hidden = []
cut = 4
[[attack]]
name = "norm"
[audit]
seeds = 1
references = []
positive_control = false
"""


def test_a_scenario_with_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are part of a cell's identity, wherever the folder lies; what is wrong is said."""
    keys = []
    for place, seed in (("a", 0), ("b", 0), ("c", 1)):
        folder = tmp_path / place
        folder.mkdir()
        state = {"1.weight": numbers(4, 14, seed=seed), "1.bias": numbers(4)}
        write_weights(folder / "bank.safetensors", state)
        (folder / "s.toml").write_text(SCENARIO)
        keys.append(sorted(make_plan(load_scenario(folder / "s.toml")).cells))
    assert keys[0] == keys[1]
    assert not set(keys[0]) & set(keys[2])
    assert main(["check", str(folder / "s.toml")]) == 0, capsys.readouterr()
    write_weights(folder / "bank.safetensors", {"1.weight": numbers(4, 15), "1.bias": numbers(4)})
    assert main(["check", str(folder / "s.toml")]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "1.weight must be floats (4, 14) as in the module, got floats (4, 15)" in said
    (folder / "bank.safetensors").unlink()
    assert main(["check", str(folder / "s.toml")]) == 2
    assert "cannot be read (No such file" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("length", [640, 896, 1152, 1408, 0x4B50])
def test_a_header_whose_length_looks_like_a_pickle_is_read(tmp_path: Path, length: int) -> None:
    """The first bytes of a file are the length of its header, and 640 begins as pickles do."""
    state = linear(tmp_path, 6, 4)
    data = (tmp_path / "bank.safetensors").read_bytes()
    old = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + old].ljust(length)
    padded = length.to_bytes(8, "little") + header + data[8 + old :]
    (tmp_path / "bank.safetensors").write_bytes(padded)
    made = starting_at("bank.safetensors", "bank", lambda: nn.Linear(6, 4).double())()
    assert {k: v.tolist() for k, v in made.state_dict().items()} == {
        k: v.tolist() for k, v in state.items()
    }
