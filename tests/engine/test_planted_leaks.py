"""Leaks that are planted in a whole training: a gate that passed on them fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sampled import sampled
from torch import Tensor

from vflsec.algorithms.splitnn import SplitNN
from vflsec.cli import main
from vflsec.core.federation import Federation
from vflsec.plugins import registry
from vflsec.report.exports import load_summary

HEAD = """name = "case"
[data]
files = {{ clinic = "clinic.csv", shop = "shop.csv" }}
id = "id"
label = "y"
{task}
[algorithm]
name = "splitnn"
epochs = 10
patience = 0
batch_size = 50
[[defense]]
name = "iso"
strength = [0, {noise}]
[audit]
seeds = 3
references = []
positive_control = false
"""
GATE = """
[[gate]]
max = 0.1
defense = "defended"
split = "train"
"""


def tables(folder: Path, y: Any, width: int = 60, seed: int = 3, lift: float = 0.07) -> None:
    """Columns of which the shop's tell `y` (n,) to whoever trains on them."""
    rng = np.random.default_rng(seed)
    theirs = rng.standard_normal((len(y), width))
    theirs += lift * ((y - np.mean(y)) / np.std(y))[:, None] * rng.standard_normal(width)
    own = pd.DataFrame(rng.standard_normal((len(y), 3))).add_prefix("a")
    own.assign(y=y).to_csv(folder / "clinic.csv", index_label="id")
    pd.DataFrame(theirs).add_prefix("b").to_csv(folder / "shop.csv", index_label="id")


def summary_of(folder: Path, rest: str, task: str = "", noise: int = 50) -> dict[str, Any]:
    path, out = folder / "case.toml", folder / "out"
    path.write_text(HEAD.format(task=task, noise=noise) + rest + GATE, encoding="utf-8")
    main.main(["audit", str(path), "--out", str(out), "--device", "cpu"])
    return dict(load_summary(out))


def verdict_of(folder: Path, rest: str, task: str = "") -> dict[str, Any]:
    (verdict,) = summary_of(folder, rest, task)["gates"]
    return dict(verdict)


def test_one_epoch_in_order_fails_the_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of the third epoch of ten come sorted by class, all others at random."""
    plain = Federation.batches

    def batches(self: Federation, walk: Any) -> Iterator[Tensor]:
        drawn = list(plain(self, walk))
        if self.epoch == 2 and len(drawn) > 1:
            whole = torch.cat(drawn, dim=1)
            order = self.stack.labels().gather(1, whole).argsort(dim=1, stable=True)
            drawn = list(whole.gather(1, order).split(drawn[0].shape[1], dim=1))
        yield from drawn

    tables(tmp_path, np.random.default_rng(0).permutation(400) % 2)
    attacks = '[[attack]]\nname = "similarity"\n[[attack]]\nname = "zero_pattern"\n'
    (tmp_path / "still").mkdir()
    tables(tmp_path / "still", np.random.default_rng(0).permutation(400) % 2)
    assert verdict_of(tmp_path / "still", attacks)["verdict"] == "PASS"
    monkeypatch.setattr(Federation, "batches", batches)
    verdict = verdict_of(tmp_path, attacks)
    assert (verdict["verdict"], verdict["attack"]) == ("FAIL", "zero_pattern")
    assert verdict["value"] > 0.15


SUMMED = """batch_size = 48
hidden = []
top = []
linear_top = false
aggregation = "sum"
"""


@pytest.mark.parametrize(
    ("attack", "strength", "settings"), sampled([("lea", 12, ""), ("batch_inference", 2, SUMMED)])
)
def test_noise_that_hid_the_labels_of_one_epoch_fails_the_gate(
    attack: str, strength: int, settings: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gates that passed on attacks of one epoch: what all of them tell together fails."""
    y, rng = np.random.default_rng(0).permutation(1000) % 2, np.random.default_rng(3)
    theirs, own = rng.standard_normal((1000, 8)), rng.standard_normal((1000, 3))
    pd.DataFrame(theirs).add_prefix("b").to_csv(tmp_path / "shop.csv", index_label="id")
    own = pd.DataFrame(own + (y - 0.5)[:, None]).add_prefix("a").assign(y=y)
    own.to_csv(tmp_path / "clinic.csv", index_label="id")
    monkeypatch.setattr(f"{__name__}.HEAD", HEAD.replace("batch_size = 50\n", settings))
    (verdict,) = summary_of(tmp_path, f'[[attack]]\nname = "{attack}"\n', noise=strength)["gates"]
    assert (verdict["verdict"], verdict["attack"]) == ("FAIL", attack)
    assert verdict["value"] > 0.12


def quantity(folder: Path, rows: int = 600) -> None:
    tables(folder, np.random.default_rng(0).standard_normal(rows), lift=0.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("told", "question"),
    [("far", "far from the median"), ("upper", "largest tenth"), ("nothing", "")],
)
def test_a_distance_or_a_tail_that_is_told_plainly_fails_the_gate(
    told: str, question: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One entry of noise of ratio 50 carries |y - median|, or marks the largest tenth."""
    quantity(tmp_path)
    iso = type(registry.defenses.create("iso", {}))
    plain = iso.outgoing

    def outgoing(self: Any, message: Any, own: Any) -> Tensor:
        out = plain(self, message, own)
        v = own.labels.reshape(out.shape[:2])
        tell = {"far": v.abs(), "upper": (v > 1.2816).to(v)}.get(told)
        if tell is None:
            return out
        out = out.clone()
        large = 5 * out.flatten(1).std(1)[:, None] * tell
        out[:, :, 0] += own.choose(large.unsqueeze(2), torch.zeros_like(large).unsqueeze(2))[..., 0]
        return out

    monkeypatch.setattr(iso, "outgoing", outgoing)
    attacks = '[[attack]]\nname = "message_completion"\n'
    verdict = verdict_of(tmp_path, attacks, 'task = "regression"')
    if question:
        assert verdict["verdict"] == "FAIL"
        assert verdict["attack"] == f"message_completion(question={question})"
        said = (tmp_path / "out" / "summary.md").read_text(encoding="utf-8").splitlines()[2]
        assert f"reveals whether a value is {'in the ' * (told == 'upper')}{question}" in said
    else:
        assert verdict["verdict"] == "PASS"
        assert verdict["attack"] == "message_completion"
        assert "question_underpowered" in verdict["warnings"]
        assert "far from the median or in the largest tenth or in " in verdict["warning"]


@pytest.mark.slow
@pytest.mark.parametrize("told", ["order", "zeros", "nothing"])
def test_a_tail_that_comes_first_or_gets_zeros_fails_the_gate(
    told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of the largest tenth come first in every epoch, or their gradients are 0."""
    quantity(tmp_path)
    iso = type(registry.defenses.create("iso", {}))
    drawn, noised = Federation.batches, iso.outgoing

    def batches(self: Federation, walk: Any) -> Iterator[Tensor]:
        parts = list(drawn(self, walk))
        if len(parts) > 1:
            whole = torch.cat(parts, dim=1)
            most = (self.stack.labels().squeeze(2).gather(1, whole) > 1.2816).long()
            parts = list(whole.gather(1, most.argsort(dim=1, stable=True, descending=True))
                         .split(parts[0].shape[1], dim=1))  # fmt: skip
        yield from parts

    def outgoing(self: Any, message: Any, own: Any) -> Tensor:
        out = noised(self, message, own)
        keep = (own.labels.reshape(out.shape[:2]) <= 1.2816).unsqueeze(2).expand(out.shape)
        return own.choose(torch.where(keep, out, torch.zeros_like(out)), out)

    if told == "order":
        monkeypatch.setattr(Federation, "batches", batches)
    elif told == "zeros":
        monkeypatch.setattr(iso, "outgoing", outgoing)
    attacks = '[[attack]]\nname = "residual"\n[[attack]]\nname = "zero_pattern"\n'
    verdict = verdict_of(tmp_path, attacks, 'task = "regression"')
    if told == "nothing":
        assert (verdict["verdict"], verdict["attack"]) == ("PASS", "residual")
        assert "question_underpowered" not in verdict["warnings"]
    else:
        assert verdict["verdict"] == "FAIL"
        assert verdict["attack"] == "zero_pattern(question=largest tenth)"
        assert verdict["value"] > 0.3


def beside_own_columns(folder: Path, classes: int, noise: int) -> tuple[dict[str, Any], Any]:
    """The verdict, and by attack the advantages under noise, where own columns tell much.

    The label is the class with the largest sum of what the clinic, the shop and nobody knows.
    """
    g, n = np.random.default_rng(0), 300 * classes + 600
    a, b = g.standard_normal((2, n, 5))
    y = (1.5 * b[:, :classes] + a[:, :classes] + g.standard_normal((n, classes))).argmax(1)
    pd.DataFrame(a).add_prefix("a").assign(y=y).to_csv(folder / "clinic.csv", index_label="id")
    pd.DataFrame(b).add_prefix("b").to_csv(folder / "shop.csv", index_label="id")
    names = ["direction"] * (classes == 2) + ["model_completion", "gradient_completion"]
    attacks = "".join(f'[[attack]]\nname = "{n}"\nknown_rows = 60\n' for n in names)
    summary = summary_of(folder, attacks, noise=noise)
    found = {
        p["attack"]: p["advantage"]
        for p in summary["points"]
        if p["attack"] and p["primary"] == p["metric"] and p["strength"] == noise
        and p["split"] == "train"
    }  # fmt: skip
    assert len(found) == len(names)
    (verdict,) = summary["gates"]
    return verdict, found


@pytest.mark.parametrize("classes", sampled([2, 3]))
def test_gradients_and_own_columns_together_fail_the_gate(classes: int, tmp_path: Path) -> None:
    """Noise that leaves each gradient telling less than own columns do: attacks that read
    gradients alone stand below their controls, and all epochs and own columns name the labels.
    """
    verdict, found = beside_own_columns(tmp_path, classes, 5)
    assert (verdict["verdict"], verdict["attack"]) == ("FAIL", "gradient_completion")
    assert found["gradient_completion"] > 0.13
    assert max(v for k, v in found.items() if k != "gradient_completion") < 0.06


def noisy_state(patch: pytest.MonkeyPatch) -> None:
    """Six numbers for each row, noise that is drawn once; the first is 0.95 larger for class 1."""
    drawn, once = torch.Generator().manual_seed(1), dict[int, Tensor]()
    plain = SplitNN.step

    def step(self: Any, fed: Federation, rows: Tensor) -> None:
        n = len(fed.stack.first.y)
        told = once.setdefault(n, torch.randn(n, 6, generator=drawn))[rows].clone()
        told[..., 0] += 0.95 * (fed.stack.labels().gather(1, rows).float() - 0.5)
        fed.send("state", fed.active.name, "shop", told, rows)
        plain(self, fed, rows)

    patch.setattr(SplitNN, "step", step)
    patch.setattr(SplitNN, "sends", SplitNN.sends | {("state", "active", "passive")})


def uneven_draws(patch: pytest.MonkeyPatch) -> None:
    """Batches are drawn with replacement, of class 1 a third more often."""
    drawn, plain = torch.Generator().manual_seed(1), Federation.batches

    def batches(self: Federation, walk: Any) -> Iterator[Tensor]:
        parts = list(plain(self, walk))
        if len(parts) > 1:
            whole = torch.cat(parts, dim=1)
            odds = 1 + 0.165 * (2 * self.stack.labels().gather(1, whole).double() - 1)
            at = torch.stack([
                torch.multinomial(p, len(p), replacement=True, generator=drawn) for p in odds
            ])  # fmt: skip
            parts = list(whole.gather(1, at).split(parts[0].shape[1], dim=1))
        yield from parts

    patch.setattr(Federation, "batches", batches)


def noisy_predictions(patch: pytest.MonkeyPatch) -> None:
    """The share of class 1 comes back with noise of 0.43."""
    drawn = torch.Generator().manual_seed(1)

    def shares(answers: Tensor, classes: int) -> Tensor:
        out = torch.softmax(answers, dim=-1)
        noise = 0.43 * torch.randn(out.shape[:-1], generator=drawn).to(out) / 2
        return torch.stack([out[..., 0] - noise, out[..., 1] + noise], dim=-1)

    patch.setattr(SplitNN, "shares", staticmethod(shares))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "alone"),
    [
        (noisy_state, 'name = "message_completion"\nkind = "state"'),
        (uneven_draws, 'name = "zero_pattern"'),
        (noisy_predictions, 'name = "output"'),
    ],
)
def test_what_messages_add_to_own_columns_fails_the_gate(
    plant: Any, alone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack that reads such messages alone is not surely above the limit, with own columns it
    is; what else `vflsec init` writes finds nothing.
    """
    plant(monkeypatch)
    back = plant is noisy_predictions
    g, n, mine = np.random.default_rng(0), 2000 if back else 1200, 1.1 if back else 0.8
    a, b = g.standard_normal((2, n, 5))
    odds = mine * (b[:, 0] - b[:, 1]) + a[:, 0] - a[:, 1]
    y = (odds + (1.2 if back else 1.4) * g.standard_normal(n) > 0).astype(int)
    pd.DataFrame(a).add_prefix("a").assign(y=y).to_csv(tmp_path / "clinic.csv", index_label="id")
    pd.DataFrame(b).add_prefix("b").to_csv(tmp_path / "shop.csv", index_label="id")
    names = ["model_completion", "direction", "similarity", "message_completion",
             "gradient_completion", "joint_completion"]  # fmt: skip
    attacks = "".join(f'[[attack]]\nname = "{n}"\nknown_rows = 60\n' for n in names)
    attacks += f"[[attack]]\n{alone}\nknown_rows = 60\n"
    head = HEAD.replace("seeds = 3", "seeds = 5").replace("patience = 0", "patience = 0\n" + (
        "returns_predictions = true" if back else ""))  # fmt: skip
    monkeypatch.setattr(f"{__name__}.HEAD", head)
    monkeypatch.setattr(f"{__name__}.GATE", '[[gate]]\nmax = 0.05\ndefense = "defended"\n')
    summary = summary_of(tmp_path, attacks)
    (verdict,) = summary["gates"]
    assert (verdict["verdict"], verdict["attack"]) == ("FAIL", "joint_completion")
    low: dict[str, float] = {}  # of the rows, training or test, where it is largest
    for p in summary["points"]:
        if p["attack"] and p["primary"] == p["metric"] and p["strength"] == 50:
            low[p["attack"]] = max(low.get(p["attack"], -1.0), p["advantage_lower"])
    assert low.pop("joint_completion") > 0.05
    assert max(low.values(), default=0) < 0.05


@pytest.mark.slow
def test_under_much_noise_gradients_add_nothing_to_own_columns(tmp_path: Path) -> None:
    verdict, found = beside_own_columns(tmp_path, 3, 500)
    assert verdict["verdict"] != "FAIL"
    assert found["gradient_completion"] < 0.02
