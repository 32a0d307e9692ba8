"""Traces of a system whose label is a quantity: recorded, attacked and judged as such."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from trace_audits import audit, record

import vflsec
from vflsec.core.view import Known
from vflsec.engine.trace_attacks import infer, score
from vflsec.errors import ConfigError, TraceError
from vflsec.report.notebook import Audit
from vflsec.specs import QUESTIONS
from vflsec.trace.limits import TRUSTED
from vflsec.trace.reader import Trace
from vflsec.trace.seal import write_seal
from vflsec.trace.tables import hash_grant
from vflsec.trace.truth import read_truth, write_truth
from vflsec.trace.views import derive_known

N, D, EPOCHS = 300, 4, 3
Y = 250_000 + 90_000 * np.random.default_rng(3).normal(size=N)
KNOWN = np.arange(30)
ATTACKS = ("message_completion", "residual")
AWAY = next(iter(QUESTIONS))


def recorded(folder: Path, seed: int, leaks: bool, *, known: Any = KNOWN, **how: Any) -> Path:
    """Gradients of a squared error whose answers are near the mean, or noise."""
    g = torch.Generator().manual_seed(seed)
    way = torch.randn(D, generator=g)
    error = torch.from_numpy((Y - Y.mean()) / Y.std()).float()
    with record(folder, Y, known, **{"classes": 1, "run": {"seed": seed}, **how}) as rec:
        for epoch in range(EPOCHS):
            rec.epoch(epoch)
            for rows in torch.randperm(N, generator=g).split(50):
                z = rec.cut(torch.randn(len(rows), D, generator=g).requires_grad_() * 1, rows)
                noise = 0.3 * torch.randn(len(rows), D, generator=g)
                z.backward(-leaks * error[rows].unsqueeze(1) * way + noise)
    return folder


def judged(base: Path, leaks: tuple[bool, bool], truth: Any = Y) -> Audit:
    runs = [("none", tells, s) for tells in leaks[:1] for s in range(3)]
    runs += [("noise", tells, s) for tells in leaks[1:] for s in range(3)]
    traces = [
        recorded(
            base / f"{d}-{s}", s + 10 * (d != "none"), tells,
            run={"seed": s, "defense": d, "strength": 1.0 * (d != "none")},
        )
        for d, tells, s in runs
    ]  # fmt: skip
    gate = {"max": 0.15, "defense": "defended"}
    return audit(base, traces, ATTACKS, truth, quantity=True, gates=[gate])


def test_values_and_questions_about_them_are_told_by_gradients(tmp_path: Path) -> None:
    """No trace of a quantity was audited."""
    result = judged(tmp_path, (True, True))
    assert result.verdict == "FAIL"
    here = result.results.query("role == 'audit' and metric == primary and defense == 'none'")
    mean = here.groupby("attack").value.mean()
    assert set(here.metric) == {"concordance", "auc"}
    assert min(mean["message_completion"], mean["residual"]) > 0.85
    asked = [a for a in mean.index if "question" in a]
    assert sorted(asked) == sorted(f"message_completion(question={q})" for q in QUESTIONS)
    assert mean[asked].min() > 0.65
    assert mean[asked].max() > 0.95


@pytest.mark.slow
def test_noise_passes_and_the_planted_value_is_found(tmp_path: Path) -> None:
    result = judged(tmp_path, (True, False))
    (verdict,) = result.verdicts
    assert verdict.verdict == "PASS", verdict.reason
    control = result.results.query("role == 'control' and metric == primary")
    assert control.groupby("attack").value.mean().min() > 0.9
    assert set(control.groupby("attack").groups) == {
        *ATTACKS, *(f"message_completion(question={q})" for q in QUESTIONS)
    }  # fmt: skip


@pytest.mark.slow
def test_a_truth_of_other_rows_or_of_another_kind_is_refused(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "t", 0, True)
    infer([trace], tmp_path / "g", attacks=ATTACKS, limits=TRUSTED)
    write_truth(tmp_path / "rolled", np.arange(N), np.roll(Y, 1), quantity=True)
    with pytest.raises(TraceError, match="have the 30 labels"):
        score(tmp_path / "g", [tmp_path / "rolled"], tmp_path / "o")
    write_truth(tmp_path / "classes", np.arange(N), (Y.mean() < Y).astype(int))
    with pytest.raises(TraceError, match=r"be a quantity .* got classes"):
        score(tmp_path / "g", [tmp_path / "classes"], tmp_path / "o")
    gaps = Y.copy()
    gaps[100:] = np.nan
    write_truth(tmp_path / "gaps", np.arange(N), gaps, quantity=True)
    found = score(tmp_path / "g", [tmp_path / "gaps"], tmp_path / "o").results
    assert set(found.query("metric == primary and role == 'audit'").n) == {70}


@pytest.mark.slow
def test_a_truth_without_a_value_finds_nothing_and_a_claim_is_refused(tmp_path: Path) -> None:
    """The first ended in an IndexError; of the second class shares were asked for."""
    trace = recorded(tmp_path / "t", 0, True)
    infer([trace], tmp_path / "g", attacks=ATTACKS, limits=TRUSTED)
    write_truth(tmp_path / "none", np.arange(N), np.full(N, np.nan), quantity=True)
    result = score(tmp_path / "g", [tmp_path / "none"], tmp_path / "o", gates=[{"max": 0.1}])
    assert result.verdict == "INCONCLUSIVE"
    assert set(result.results.query("role == 'audit' and attack != ''").status) == {"error"}
    write_truth(tmp_path / "y", np.arange(N), Y, quantity=True)
    with pytest.raises(ConfigError, match=r"epsilon: is for classes, not a quantity"):
        score(tmp_path / "g", [tmp_path / "y"], tmp_path / "p", claimed=(1.0, 0.0))


def test_few_known_values_are_not_asked_about_tails(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "t", 0, True, known=KNOWN[:9])
    infer([trace], tmp_path / "g", attacks=("message_completion",), limits=TRUSTED)
    of = json.loads((tmp_path / "g" / "answers.json").read_text())["answers"]
    assert [a["status"] for a in of] == ["ok", *["not-applicable"] * 3]
    assert "needs 10 known values, there are 9" in of[1]["reason"]


def test_known_values_are_standardised_and_questions_answered_by_them() -> None:
    known = Known(torch.arange(20), torch.arange(20.0, dtype=torch.float64) * 1e6 + 5e9)
    values = derive_known(known, "")
    assert float(values.labels.mean()) == pytest.approx(0, abs=1e-9)
    assert float(values.labels.std(correction=0)) == pytest.approx(1)
    tails = derive_known(known, "largest tenth")
    assert tails.labels.nonzero().flatten().tolist() == [18, 19]
    assert torch.equal(tails.values, values.labels)
    away = derive_known(known, AWAY)
    assert away.labels[9:11].tolist() == [0, 0]
    same = derive_known(Known(torch.arange(3), torch.ones(3, dtype=torch.float64)), "")
    assert same.labels.tolist() == [0, 0, 0]


def test_hashes_of_grants_tell_values_that_differ_little() -> None:
    rows = np.arange(3)
    assert hash_grant(rows, Y[:3]) == hash_grant(rows[::-1], Y[:3][::-1])
    assert hash_grant(rows, Y[:3]) != hash_grant(rows, Y[:3] + 1e-9)
    assert hash_grant(rows, np.array([0, 1, 1])) != hash_grant(rows, np.array([0.0, 1.0, 1.0]))


def test_a_truth_of_values_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="quantity=True"):
        write_truth(tmp_path, range(2), [0.5, 1.5])
    with pytest.raises(ConfigError, match="infinity"):
        write_truth(tmp_path, range(2), [0.5, np.inf], quantity=True)
    truth = read_truth(write_truth(tmp_path, range(3), [0.5, np.nan, 2.5], quantity=True)).labels
    assert (truth.target, truth.rows.tolist()) == ("value", [0, 2])
    assert truth.values.tolist() == [0.5, 2.5]
    again = read_truth(write_truth(tmp_path, range(3), [-1, 1, 0], quantity=False)).labels
    assert (again.target, again.rows.tolist()) == ("label", [1, 2])


def test_grants_of_the_other_kind_are_refused(tmp_path: Path) -> None:
    """A manifest that was edited and sealed again."""
    trace = recorded(tmp_path / "t", 0, True)
    path = trace / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"classes": 2}))
    write_seal(trace, vflsec.trace.limits.Limits())
    with pytest.raises(TraceError, match=r"known-values.parquet, got 2"):
        Trace.open(trace).observer("bank").known()
