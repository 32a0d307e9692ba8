"""What a trace can be asked is said at once, added later, and never taken for safety."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import Cli

import vflsec
from vflsec.errors import ConfigError, TraceError, VflsecError
from vflsec.report.exports import load_summary
from vflsec.trace.adapters.base import Wire
from vflsec.trace.reader import Trace
from vflsec.trace.truth import write_truth
from vflsec.trace.validate import grant, validate

N = 60
LABELS = (torch.arange(N) % 3 == 0).long()
GRANTS = {"known": (range(20), LABELS[:20]), "prior": [2 / 3, 1 / 3], "classes": 2}


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of gradients that tell the labels, recorded as the shortest recipe does."""
    folder = tmp_path_factory.mktemp("bare") / "trace"
    rng = torch.Generator().manual_seed(0)
    with vflsec.record(folder, party="bank", role="passive", rows=N, loss_reduction="mean") as rec:
        for rows in torch.randperm(N, generator=rng).split(15):
            z = rec.cut(torch.randn(15, 3, generator=rng, requires_grad=True), rows)
            (z.sum(1) * (2 * LABELS[rows] - 1.0)).mean().backward()
    return folder


@pytest.fixture
def trace(bare: Path, tmp_path: Path) -> Path:
    return shutil.copytree(bare, tmp_path / "trace")


def known_file(folder: Path) -> Path:
    lines = [f"{i},{LABELS[i]}" for i in range(20)]
    (folder / "known.csv").write_text("\n".join(["row,label", *lines]) + "\n")
    return folder / "known.csv"


@pytest.mark.parametrize(
    ("given", "said", "level"),
    [
        ({}, "labels: no attack can be made. Missing: classes, known, prior.", "WARNING"),
        ({"classes": 2}, "labels: hardly any can be made. Missing: known, prior.", "WARNING"),
        (
            {k: GRANTS[k] for k in ("classes", "prior")},
            "labels: few attacks can be made. Missing: known.",
            "WARNING",
        ),
        (GRANTS, "labels: every attack can be made.", "INFO"),
        ({"role": "active"}, "columns: no attack can be made. Missing: aux.", "WARNING"),
    ],
)
@pytest.mark.parametrize("adapter", [False, True])
def test_what_can_be_asked_is_said_at_the_first_message(
    given: dict[str, object], said: str, level: str, adapter: bool, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    caplog.set_level(logging.INFO)
    how = {"party": "bank", "role": "passive", "rows": N} | given
    folder = tmp_path / "trace"
    made = (
        Wire(folder, framework=("loop", "1"), adapter="test", **how) if adapter
        else vflsec.record(folder, **how)
    )  # fmt: skip
    with closing(made) if adapter else made as rec:
        assert not caplog.records
        for step in range(2):
            rec.tell("embedding", np.ones((N, 2)), range(N), sent=True, step=step)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("vflsec.record", level)
    assert said in record.getMessage()
    later = f"vflsec trace grant {folder}" in record.getMessage()
    assert later == (level == "WARNING" and how["role"] == "passive")


def test_no_guess_is_no_success(trace: Path, tmp_path: Path, cli: Cli) -> None:
    audit = ["trace", "audit", str(trace), "--attack", "direction", "--out", str(tmp_path / "o")]
    said = cli.says(*audit, code=3)
    assert "No attack made a guess." in said
    assert "trace score" not in said
    write_truth(tmp_path / "labels", np.arange(N), LABELS.numpy())
    score = ["trace", "score", str(tmp_path / "o" / "guesses"), "--truth", str(tmp_path / "labels")]
    assert cli(*score, "--out", tmp_path / "s") == 3
    assert "No attack made a guess: nothing was audited." in cli.err


def test_a_limit_on_a_run_that_was_cut_off_is_left_open(tmp_path: Path, cli: Cli) -> None:
    """No attack looks at it. Without a limit that ended with 3, with one in an error."""
    how = {"party": "bank", "role": "passive", "rows": N} | GRANTS
    with vflsec.record(tmp_path / "whole", **how) as rec:  # type: ignore[arg-type]
        rec.tell("gradient", np.ones((N, 2)), range(N), sent=False)
        cut = shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    kept = cut / "view" / "bank" / "observer.json"  # a simulation ends its phases one by one
    kept.write_text(json.dumps(json.loads(kept.read_text()) | {"moments": []}))
    write_truth(cut, np.arange(N), LABELS.numpy())
    out = tmp_path / "o"
    assert cli("trace", "audit", cut, "--max", "0.1", "--out", out) == 3, cli.err
    (verdict,) = load_summary(out)["gates"]
    assert (verdict["verdict"], verdict["rule"]) == ("INCONCLUSIVE", "nothing_selected")


def test_what_is_granted_later_is_as_if_recorded_with_it(
    trace: Path, tmp_path: Path, cli: Cli
) -> None:
    before = hashlib.sha256((trace / "seal.json").read_bytes()).hexdigest()
    options = ["--known", str(known_file(tmp_path)), "--prior", "0.667,0.333", "--classes", "2"]
    assert cli("trace", "grant", trace, *options) == 0
    said = "known and prior and classes granted to bank on "
    assert said in cli.out
    assert validate(trace).notes[0].startswith(said)
    opened = Trace.open(trace)
    (later,) = opened.manifest.later
    assert (later.seal, later.added) == (before, ["known", "prior", "classes"])
    held = opened.observer("bank").known()
    assert held is not None
    assert torch.equal(held.labels, LABELS[:20])
    audit = ["trace", "audit", str(trace), "--attack", "direction", "--out", str(tmp_path / "o")]
    assert said in cli.says(*audit)
    write_truth(tmp_path / "labels", np.arange(N), LABELS.numpy())
    score = ["trace", "score", str(tmp_path / "o" / "guesses"), "--truth", str(tmp_path / "labels")]
    assert cli(*score, "--out", tmp_path / "s") == 0
    summary = load_summary(tmp_path / "s")
    figures = [p["value"] for p in summary["points"] if p["attack"] == "direction"]
    assert max(figures) > 0.99


def test_each_grant_keeps_the_seal_before(trace: Path) -> None:
    seals = []
    for name, value in GRANTS.items():
        seals.append(hashlib.sha256((trace / "seal.json").read_bytes()).hexdigest())
        assert grant(trace, **{name: value}).added == [name]
    assert [g.seal for g in Trace.open(trace).manifest.later] == seals


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "--known"),
        ({"prior": [0.9, 0.3]}, "shares that add up to 1"),
        ({"known": ([0, N], [0, 1])}, "none of the"),
        ({"known": ([0, 1], [0, 2]), "classes": 2}, "from 0 to 1"),
        ({"classes": 0}, "classes"),
        ({"classes": 2, "party": "shop"}, "bank"),
        ({"known": Path("text.csv")}, "from 0"),
        ({"known": Path("huge.csv")}, "from 0"),
        ({"known": Path("gone.csv")}, "existing file"),
    ],
)
def test_what_cannot_be_granted_leaves_the_trace_as_it_is(
    given: dict[str, object], said: str, trace: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("text.csv").write_text("row,label\n1,yes\n")
    Path("huge.csv").write_text(f"row,label\n{10**30},1\n")
    with pytest.raises(VflsecError, match=said):
        grant(trace, **given)  # type: ignore[arg-type]
    assert Trace.open(trace).manifest.later == []


def test_nothing_is_granted_twice_or_against_what_is_there(trace: Path) -> None:
    grant(trace, known=([0, 1, 2], [0, 1, 2]))
    with pytest.raises(ConfigError, match="holds known already"):
        grant(trace, known=([3], [0]))
    with pytest.raises(TraceError, match="known"):
        grant(trace, classes=2)
    assert Trace.open(trace).manifest.classes is None
    (trace / "seal.json").unlink()
    with pytest.raises(TraceError, match="not sealed"):
        grant(trace, classes=3)
