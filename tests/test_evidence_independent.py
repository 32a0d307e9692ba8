"""The package's attacks and independent ones stand side by side on the same rows."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

import vflsec
from vflsec.plugins import registry


@pytest.fixture
def script(benchmark_script: Callable[[str], Any]) -> Any:
    return benchmark_script("evidence_independent")


def test_a_line_holds_what_both_attacks_reach_on_the_same_rows(script: Any) -> None:
    from independent import labels

    world = {"rows": 120, "test_rows": 60, "validation_rows": 60, "positive_rate": 0.3}
    settings = {**script.TOP, "epochs": 2, "batch_size": 40}
    pairs = (
        script.Pair("norm", labels.norm, defenses=("undefended",)),
        script.Pair("similarity", labels.similarity, defenses=("undefended",)),
    )
    made = script.Recorded("tiny", "control_gaussian", world, settings, pairs)
    found = list(script.lines(made, range(2)))
    trained = vflsec.train(
        {"name": "control_gaussian", "params": world}, seeds=2, **settings,
        defenses=[script.DEFENSES["undefended"]], record=script.ALL, device="cpu",
    )  # fmt: skip
    for line, pair in zip(found, pairs, strict=True):
        for k, seed in enumerate(trained.seeds):
            view, y = trained.view(seed=seed), trained.tasks[seed].y.numpy()
            ours = vflsec.infer(view, pair.attack)
            rows, scores = pair.other(script.seen(view, seed))
            target = view.targets["train"].numpy()
            assert len(target) == 100
            for value, of, s in (
                (line.ours[k], ours.rows, ours.scores), (line.beside[k], rows, scores),
            ):  # fmt: skip
                mine = s[np.argsort(of)][np.searchsorted(np.sort(of), target)]
                margin = mine if mine.ndim == 1 else mine[:, 1] - mine[:, 0]
                assert value == pytest.approx(roc_auc_score(y[target], margin), abs=1e-6)
    line = found[0]
    gains = np.subtract(line.ours, line.beside)
    half = stats.t.ppf(0.975, 1) * gains.std(ddof=1) / np.sqrt(2)
    assert line.interval == pytest.approx((gains.mean() - half, gains.mean() + half))
    assert (
        f"| {np.mean(line.ours):.3f} | {np.mean(line.beside):.3f} | {gains.mean():+.3f} "
        f"({gains.mean() - half:+.3f} to {gains.mean() + half:+.3f}) |" in script.page(found, 1.0)
    )


@pytest.mark.parametrize(
    ("metric", "ours", "beside", "verdict"),
    [
        ("auc", [0.70, 0.71, 0.72], [0.80, 0.81, 0.82], "weaker"),
        ("auc", [0.70, 0.71, 0.72], [0.705, 0.715, 0.725], "at least as strong"),  # in the margin
        ("auc", [0.60, 0.70, 0.80], [0.80, 0.70, 0.65], "undecided"),  # a wide interval
        ("auc", [0.71, 0.70, 0.72], [0.70, 0.71, 0.72], "at least as strong"),  # ends at -0.029
        ("auc", [0.70, 0.71, 0.72], [0.712, 0.727, 0.733], "weaker"),  # its end within the margin
        ("share_error", [0.10, 0.11, 0.12], [0.01, 0.02, 0.03], "weaker"),
        ("share_error", [0.01, 0.02, 0.03], [0.10, 0.11, 0.12], "at least as strong"),
    ],
)
def test_weaker_is_an_interval_below_zero_and_a_mean_below_the_margin(
    script: Any, metric: str, ours: list[float], beside: list[float], verdict: str
) -> None:
    line = script.Line("a", "b", "c", "d", metric, ours, beside)
    assert line.verdict == verdict
    assert ("## Where it is weaker" in script.page([line], 1.0)) is (verdict == "weaker")


def test_every_attack_is_compared_or_said_to_be_left_out(script: Any, root: Path) -> None:
    compared = {p.attack for t in script.TRAININGS for p in t.pairs}
    left = {name for names in script.LEFT_OUT for name in names.split(", ")}
    packaged = {k for k, e in registry.attacks.entries().items() if e.module.startswith("vflsec.")}
    assert compared | left == packaged
    assert not compared & left
    text = (root / "docs" / "evidence" / "independent.md").read_text(encoding="utf-8")
    figures = r"([+-]\d\.\d+) \(([+-]\d\.\d+) to ([+-]\d\.\d+)\)"
    rows = re.findall(rf"^\| (\w+)[^|]* \| (\w+) \| .* \| {figures} \| (.+) \|$", text, re.M)
    pairs = {(p.attack, p.other.__name__) for t in script.TRAININGS for p in t.pairs}
    assert {(attack, beside) for attack, beside, *_ in rows} == pairs
    for _, _, mean, low, high, verdict in rows:
        behind = float(high) < 0 and float(mean) < -script.MARGIN
        wide = "undecided" if float(low) < -script.WIDE else "at least as strong"
        assert verdict == ("weaker" if behind else wide)


def test_the_independent_ones_share_nothing_with_the_package(script: Any, root: Path) -> None:
    files = sorted((root / "benchmarks" / "independent").glob("*.py"))
    assert len(files) >= 4
    for file in files:
        assert not re.search(r"^\s*(import|from) vflsec", file.read_text("utf-8"), re.M), file.name
