"""A claimed epsilon against a trace: labels in the clear contradict it, randomised ones do not."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import Cli
from trace_audits import first_of_each, record

import vflsec
from vflsec.engine.trace_attacks import infer, score
from vflsec.epsilon.randomised_labels import cross_shares
from vflsec.errors import ConfigError
from vflsec.trace.limits import TRUSTED

N, EPSILON = 5000, 1.0


def world(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Columns of both parties side by side (N, 4), labels, and labels by randomised response."""
    g = np.random.default_rng(seed)
    x = g.normal(size=(N, 4))
    y = (g.random(N) < 1 / (1 + np.exp(-1.2 * x.sum(1)))).astype(int)
    keep = math.exp(EPSILON) / (1 + math.exp(EPSILON))
    return x, y, np.where(g.random(N) < keep, y, 1 - y)


def traced(folder: Path, trained_on: str, seed: int = 0, **how: Any) -> tuple[Path, Path]:
    """A trace whose gradients are p - label of the best model, and the truth of the labels.

    `trained_on` is ``labels``, ``randomised`` or ``nothing``.
    """
    x, y, released = world(seed)
    p = 1 / (1 + np.exp(-1.2 * x.sum(1)))  # by columns of both, which the adversary reads off
    target = {"labels": y, "randomised": released, "nothing": 0.5}[trained_on]
    x_bank = torch.from_numpy(x[:, :2]).float()
    trace = folder / f"{trained_on}-{seed}"
    how |= {
        "grad_scale": None,
        "prior": (1 - y.mean(), y.mean()),
        "run": {"dataset": trained_on, "seed": seed},
    }
    with record(trace, y, first_of_each(y, 20), columns=x_bank, **how) as rec:
        for rows in torch.arange(N).split(200):
            z = rec.cut(x_bank[rows].requires_grad_(), rows)
            slope = torch.from_numpy(p - target)[rows].float()
            z.backward(torch.stack([slope, -slope], 1))
    labels = folder / f"labels-{trained_on}-{seed}"
    vflsec.write_truth(labels, np.arange(N), y, shares=cross_shares(x, y, 2))
    return trace, labels


@pytest.fixture(scope="module")
def guessed(tmp_path_factory: pytest.TempPathFactory) -> Guessed:
    """Guesses and truths of two seeds, by what was trained on."""

    @cache
    def of(what: str) -> tuple[Path, list[Path]]:
        folder = tmp_path_factory.mktemp(what)
        made = [traced(folder, what, s) for s in range(2)]
        traces = [t for t, _ in made]
        guesses = infer(traces, folder / "g", attacks=("direction", "norm"), limits=TRUSTED)
        return guesses, [t for _, t in made]

    return of


def verdict(made: tuple[Path, list[Path]], out: Path, epsilon: float, **how: Any) -> Any:
    result = score(*made, out, claimed=(epsilon, 0.0), **how)
    (found,) = [g for g in result.summary["gates"] if "claimed epsilon" in g["label"]]
    return found


Guessed = Callable[[str], tuple[Path, list[Path]]]


@pytest.mark.slow
def test_labels_in_the_clear_contradict_a_claim(guessed: Guessed, tmp_path: Path) -> None:
    found = verdict(guessed("labels"), tmp_path / "o", EPSILON)
    assert found["verdict"] == "FAIL"
    assert found["value"] > 3


def test_randomised_response_is_not_contradicted_at_its_epsilon(
    guessed: Guessed, tmp_path: Path
) -> None:
    found = verdict(guessed("randomised"), tmp_path / "o", EPSILON)
    assert found["verdict"] == "PASS"
    assert 0.3 < found["value"] <= EPSILON


def test_a_smaller_claim_is_contradicted(guessed: Guessed, tmp_path: Path) -> None:
    """The same traces, said to be of a fifth of that epsilon."""
    assert verdict(guessed("randomised"), tmp_path / "o", EPSILON / 5)["verdict"] == "FAIL"


def test_without_labels_in_the_gradients_nothing_is_measured(
    guessed: Guessed, tmp_path: Path
) -> None:
    """The null: gradients that tell columns of the other party and no label."""
    found = verdict(guessed("nothing"), tmp_path / "o", 0.2)
    assert found["verdict"] in ("INCONCLUSIVE", "PASS")
    assert found["value"] <= 0.2


@pytest.mark.slow
def test_columns_that_the_proxy_does_not_know_are_counted_as_leaked(
    guessed: Guessed, tmp_path: Path
) -> None:
    """Why the shares need every column: with too weak a proxy even the null seems to leak.

    The log odds by which it is off repair it.
    """
    weak = []
    for seed in range(2):
        x, y, _ = world(seed)
        q = cross_shares(x[:, :1], y, 2)
        weak.append(vflsec.write_truth(tmp_path / f"t{seed}", np.arange(N), y, shares=q))
    guesses = guessed("nothing")[0]
    assert verdict((guesses, weak), tmp_path / "a", 0.1)["value"] > 0.4
    assert verdict((guesses, weak), tmp_path / "b", 0.1, tau=3.0)["value"] == 0.0


def test_the_claim_of_the_manifest_and_of_the_option(tmp_path: Path, cli: Cli) -> None:
    trace, labels = traced(tmp_path, "labels", claim=EPSILON)
    args = ["trace", "audit", str(trace), "--attack", "direction", "--truth", str(labels)]
    assert "claimed epsilon 1 is not contradicted" in cli.says(
        *args, "--out", tmp_path / "a", code=1
    )
    score_it = ["trace", "score", str(tmp_path / "a" / "guesses"), "--truth", str(labels)]
    assert cli(*score_it, "--out", tmp_path / "b", "--claimed-epsilon", "50") == 0


def test_a_claim_needs_class_shares(tmp_path: Path) -> None:
    trace, labels = traced(tmp_path, "labels", claim=EPSILON)
    _, y, _ = world(0)
    for path in (labels / "truth").iterdir():
        path.unlink()
    vflsec.write_truth(labels, np.arange(N), y)
    guesses = infer([trace], tmp_path / "g", attacks=("direction",), limits=TRUSTED)
    with pytest.raises(ConfigError, match="has no class shares"):
        score(guesses, [labels], tmp_path / "a", claimed=(1.0, 0.0))
    result = score(guesses, [labels], tmp_path / "b")  # of the manifest: said, not judged
    assert any("not checked" in n for n in result.summary["notes"])
    assert not result.summary["gates"]
