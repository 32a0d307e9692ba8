"""The positive control of recorded traces: what would find a planted leak may pass, by grounds."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import Cli
from gate_rows import rows
from sampled import sampled
from torch import Tensor, nn
from trace_audits import audit, first_of_each, record, signs

import vflsec
from vflsec.engine import trace_positive_control
from vflsec.engine.trace_attacks import infer, score
from vflsec.errors import TraceError
from vflsec.measure.guess_files import thaw
from vflsec.report.notebook import Audit
from vflsec.trace.limits import TRUSTED
from vflsec.trace.truth import write_truth

N, D = 240, 4
Y = np.random.default_rng(1).permutation(N) % 2
X = torch.from_numpy(np.random.default_rng(0).normal(size=(N, 3)).astype("float32"))
KNOWN = first_of_each(Y, 10)
REST = np.setdiff1d(np.arange(N), KNOWN)
ATTACKS = ("direction", "norm", "model_completion", "joint_completion")
Names = Callable[[Tensor], Tensor]


def as_they_are(rows: Tensor) -> Tensor:
    return rows


def of_others(rows: Tensor) -> Tensor:
    """The ids of a batch beside the rows of another."""
    return (rows * 7 + 3) % N


def recorded(
    base: Path, seed: int, leaks: bool, *, defense: str = "none", names: Names = as_they_are,
    own: bool = True, told: Names = as_they_are, **run: Any,
) -> Path:  # fmt: skip
    """Gradients of one length whatever the class, along a direction or against it if `leaks`.

    Without its `own` columns and model what it would find alone is the majority.
    """
    g = torch.Generator().manual_seed(seed + 50 * (defense != "none"))
    bottom, before = nn.Linear(3, D), nn.Linear(3, D)
    for p in [*bottom.parameters(), *before.parameters()]:
        p.data = torch.randn(p.shape, generator=g)
    folder = base / "-".join([defense, str(seed), *run.values()])
    way = torch.randn(D, generator=g)
    of = {"seed": seed, "defense": defense, "strength": float(defense != "none"), **run}
    with record(folder, Y, KNOWN, prior=(0.5, 0.5), run=of,
                **({"columns": X} if own else {})) as rec:  # fmt: skip
        for epoch in range(3):
            rec.epoch(epoch)
            for rows in torch.randperm(N, generator=g).split(40):
                z = rec.cut(bottom(X[rows]), names(rows))
                noise = torch.randn(len(rows), D, generator=g)
                leak = signs(Y, told(rows)) * way + 0.1 * noise
                z.backward(leak / leak.norm(dim=1, keepdim=True) if leaks else noise)
        if own:
            rec.model(bottom, before.state_dict())
    return folder


def judged(
    base: Path, leaks: tuple[bool, bool], limit: float = 0.2,
    attacks: tuple[str, ...] = ATTACKS, **how: Any,
) -> Audit:  # fmt: skip
    """Of three runs without a defense and three with one."""
    traces = [
        recorded(base, seed, tells, defense=defense, **how)
        for defense, tells in zip(("none", "noise"), leaks, strict=True) for seed in range(3)
    ]  # fmt: skip
    gate = {"max": limit, "defense": "defended"}
    return audit(base, traces, attacks, Y, gates=[gate])


@pytest.fixture(scope="module")
def passing(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Audit]:
    """The folder and the audit of a system whose leak the defense stops."""
    base = tmp_path_factory.mktemp("passing")
    return base, judged(base, (True, False))


@pytest.mark.slow
def test_a_system_without_a_leak_passes_every_attack(passing: tuple[Path, Audit]) -> None:
    """Lengths and the bottom tell nothing even without a defense, so that nothing ever passed."""
    _, result = passing
    (verdict,) = result.verdicts
    assert verdict.verdict == "PASS", verdict.reason
    shown = result.summary["alive"]
    assert all(shown[a]["alive"] for a in ATTACKS)
    for name in ("norm", "model_completion"):
        assert "in the positive control" in shown[name]["evidence"]
    here = result.results[result.results.metric == "auc"]
    bare = here[(here.defense == "none") & (here.role == "audit")].groupby("attack").value.mean()
    assert bare["direction"] == 1.0
    assert max(bare["norm"], bare["model_completion"]) < 0.6
    control = here[here.role == "control"].groupby("attack").value.mean()
    assert control.drop("joint_completion").min() == 1.0
    assert control["joint_completion"] > 0.75
    assert set(here[here.role == "control"].dataset) == {trace_positive_control.NAME}


@pytest.mark.slow
def test_the_reference_does_not_fail_what_is_deployed(
    passing: tuple[Path, Audit], tmp_path: Path, cli: Cli
) -> None:
    """--max was about every recording, so that those without a defense failed each command."""
    base, _ = passing
    words = ["trace", "score", str(base / "g"), "--truth", str(base / "y"), "--max", "0.2"]
    said = " ".join(cli.says(*words, "--out", tmp_path / "a", code=1).split())
    again = re.search(r"vflsec (gate \S+(?: --\w+(?:=\S+| \S+))+)", said)
    assert again is not None
    assert cli(*shlex.split(again[1])) == 0
    assert "6 recordings, nothing was trained" in said
    assert cli(*words, "--out", tmp_path / "b", "--defense", "defended") == 0
    assert "needs --max" in cli.refuses(
        *words[:-2], "--out", tmp_path / "c", "--defense", "defended"
    )
    words = ["trace", "audit", *(str(base / f"noise-{s}") for s in range(3)), "--max", "0.2"]
    words += ["--truth", str(base / "y"), "--attack", "direction", "--out", str(tmp_path / "d")]
    assert cli(*words) == 3
    assert "traces without a defense" in " ".join(cli.out.split())


@pytest.mark.slow
def test_without_it_what_finds_nothing_anywhere_kept_every_gate_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_positive_control, "can_plant", lambda _: False)
    (verdict,) = judged(tmp_path, (True, False)).verdicts
    assert verdict.verdict == "INCONCLUSIVE"
    assert verdict.rule == "not_validated"
    assert "norm" in verdict.reason


def test_a_leak_that_is_left_fails(tmp_path: Path) -> None:
    (verdict,) = judged(tmp_path, (True, True), attacks=ATTACKS[:2], own=False).verdicts
    assert (verdict.verdict, verdict.attack) == ("FAIL", "direction")


@pytest.mark.slow
def test_gradients_of_other_rows_pass_nothing(tmp_path: Path) -> None:
    """The planted leak is found there too: it stands at the rows that the trace names."""
    result = judged(tmp_path, (True, True), names=of_others)
    (verdict,) = result.verdicts
    assert verdict.verdict == "INCONCLUSIVE", verdict.reason
    assert verdict.rule == "not_validated"
    assert not any(of["alive"] for of in result.summary["alive"].values())
    assert "control" not in set(result.results.role)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "told", "verdict"),
    sampled(
        [("dataset", of_others, "INCONCLUSIVE"), ("algorithm", as_they_are, "FAIL"),
         ("dataset", as_they_are, "FAIL"), ("algorithm", of_others, "INCONCLUSIVE")], 2,
    ),
)  # fmt: skip
def test_a_leak_of_another_system_shows_nothing_of_this_one(
    key: str, told: Names, verdict: str, tmp_path: Path
) -> None:
    """Gradients of other rows passed beside traces of another data set whose leak was found."""
    traces = [
        recorded(tmp_path, seed, True, told=of, own=False, **{key: system})
        for system, of, seeds in (("a", as_they_are, range(3)), ("b", told, range(3, 6)))
        for seed in seeds
    ]  # fmt: skip
    gate = {"max": 0.2, key: "b"}
    found = audit(tmp_path, traces, ATTACKS[:2], Y, gates=[gate]).verdicts[0]
    assert found.verdict == verdict, found.reason


def test_it_counts_for_whoever_finds_the_leak_by_gradients_alone() -> None:
    specs = [
        trace_positive_control.Prepared(
            vflsec.specs.AttackSpec(name, adversary=("bank",)),
            vflsec.plugins.registry.attacks.create(name),
        )
        for name in ("direction", "gradient_completion")
    ]
    (direction, beside) = (p.spec.key for p in specs)
    finds, misses, both = (
        rows(gain, (0.0, 0.01, 0.02), attack=attack, attack_key=key, split="train")
        for gain, attack, key in (
            (0.4, "direction", direction), (0.0, "direction", direction),
            (0.4, "gradient_completion", beside),
        )
    )  # fmt: skip
    assert trace_positive_control.find_shown(finds, specs, 0.95) == {"bank"}
    other = [replace(r, dataset="e") for r in misses]
    assert trace_positive_control.find_shown([*finds, *other], specs, 0.95) == set()
    assert trace_positive_control.find_shown(
        [*finds, *(replace(r, value=0.9) for r in other)], specs, 0.95
    ) == {"bank"}
    assert trace_positive_control.find_shown([*misses, *both], specs, 0.95) == set()
    assert trace_positive_control.find_shown([], specs, 0.95) == set()


def test_labels_that_are_planted_are_drawn_anew(tmp_path: Path) -> None:
    """Nothing in the guesses tells a label; class 1 of the drawn ones is rare."""
    trace = recorded(tmp_path, 0, True)
    frozen = thaw(infer([trace], tmp_path / "g", attacks=("direction",), limits=TRUSTED))
    truth = frozen.planted[0].truth
    assert np.array_equal(truth.rows, REST)
    assert abs(truth.values.mean() - 0.15) < 0.07
    assert abs(np.corrcoef(truth.values, Y[REST])[0, 1]) < 0.15
    other = recorded(tmp_path, 1, True, defense="noise")
    assert (
        thaw(infer([other], tmp_path / "h", attacks=("direction",), limits=TRUSTED)).planted == {}
    )


@pytest.mark.parametrize(("rows", "y"), sampled([([N], [0]), ([200], [2]), ([200], [-1])]))
def test_planted_labels_that_cannot_be_are_refused(
    rows: list[int], y: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = [recorded(tmp_path, s, True) for s in range(3)]
    made = trace_positive_control.join_answers

    def edited(*how: Any) -> Any:
        of = made(*how)
        assert of is not None
        return trace_positive_control.Planted(of.answers, vflsec.core.guess.Truth("label", rows, y))

    monkeypatch.setattr(trace_positive_control, "join_answers", edited)
    infer(traces, tmp_path / "g", attacks=("direction",), limits=TRUSTED)
    write_truth(tmp_path / "y", np.arange(N), Y)
    with pytest.raises(TraceError, match=r"row ids|labels|planted"):
        score(tmp_path / "g", [tmp_path / "y"], tmp_path / "o")


def test_of_many_rows_some_stand_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack is made again on no more rows than that, known ones beside them."""
    monkeypatch.setattr(trace_positive_control, "ROWS", 100)
    trace = recorded(tmp_path, 0, True)
    frozen = thaw(infer([trace], tmp_path / "g", attacks=ATTACKS, limits=TRUSTED))
    of = frozen.planted[0]
    assert len(of.truth.rows) == 100
    assert set(of.truth.rows) <= set(REST)
    made = [len(a.guess.rows) for a in of.answers if a.guess is not None]
    assert len(made) == 4
    assert max(made) <= 120  # with known rows
    assert min(len(a.guess.rows) for a in frozen.answers[0] if a.guess is not None) >= 220
