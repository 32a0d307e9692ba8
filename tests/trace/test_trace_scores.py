"""Guesses that were edited and truths of something else: refused in one sentence, never a PASS."""

from __future__ import annotations

import copy
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trace_audits
from trace_audits import signs

from vflsec.engine.trace_attacks import infer, score
from vflsec.errors import ConfigError, TraceError
from vflsec.measure.guess_files import thaw
from vflsec.trace.limits import TRUSTED
from vflsec.trace.tables import ROWS, write_table
from vflsec.trace.truth import read_truth, write_truth

N = 120
Y = np.arange(N) % 2


def record(folder: Path, seed: int) -> Path:
    """Gradients whose direction is the label."""
    g = torch.Generator().manual_seed(seed)
    way = torch.tensor([1.0, -2.0, 0.5])
    how = {"prior": (0.5, 0.5), "run": {"seed": seed}}
    with trace_audits.record(folder, Y, np.arange(20), **how) as rec:
        for rows in torch.randperm(N, generator=g).split(30):
            z = rec.cut(torch.randn(30, 3, generator=g).requires_grad_() * 1, rows)
            z.backward(signs(Y, rows) * way)
    return folder


@pytest.fixture(scope="module")
def guesses(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("abuse")
    traces = [record(folder / f"t{s}", s) for s in range(2)]
    return infer(traces, folder / "g", attacks=("direction",), limits=TRUSTED)


def each(**values: Any) -> Callable[[dict[str, Any]], None]:
    def edit(index: dict[str, Any]) -> None:
        for entry in index["answers"]:
            entry.update(copy.deepcopy(values))

    return edit


def asked(**values: Any) -> Callable[[dict[str, Any]], None]:
    def edit(index: dict[str, Any]) -> None:
        for entry in index["answers"]:
            entry["attack"].update(values)

    return edit


def run(**values: Any) -> Callable[[dict[str, Any]], None]:
    def edit(index: dict[str, Any]) -> None:
        for source in index["sources"]:
            source["manifest"]["run"].update(values)

    return edit


def twice(index: dict[str, Any]) -> None:
    index["answers"] *= 2


def unlisted(index: dict[str, Any]) -> None:
    index["files"] = {k: v for k, v in index["files"].items() if not k.startswith("guess")}


def many_rows(index: dict[str, Any]) -> None:
    index["sources"][0]["manifest"]["rows"] = 10**15


def nowhere(index: dict[str, Any]) -> None:
    for entry in index["answers"]:
        entry["targets"].update(train="../../etc/passwd")


def controls(index: dict[str, Any]) -> None:
    for entry in index["answers"]:
        for control in entry["controls"]:
            control["cv"] = float("inf")


EDITS: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "a source from the end": (each(source=-1), "source: -1"),
    "a source that is no number": (each(source=True), "source: True"),
    "a source that is not there": (each(source=7), "source: 7"),
    "a file of rows that is a path": (nowhere, "is not listed"),
    "an attack that does not exist": (asked(name="nothing"), "nothing"),
    "every answer twice": (twice, "repeated: 'direction'"),
    "one run twice": (run(seed=0), "two sources are the same run"),
    "a status without its guess": (each(guess=None), "status: 'ok'"),
    "a guess of an attack that failed": (each(status="error"), "status: 'error'"),
    "more classes": (each(classes=50), "classes: 50"),
    "classes in words": (each(classes="two"), "classes: 'two'"),
    "a phase that is no text": (each(phase=3), "phase: 3"),
    "letters as parties": (asked(adversary="bank"), "adversary: 'bank'"),
    "nobody": (asked(adversary=[]), r"adversary: \[\]"),
    "a party of no trace": (asked(adversary=["eve"]), "adversary: .*eve"),
    "known rows in words": (asked(known_rows="x"), "known_rows: 'x'"),
    "a field of later versions": (asked(more=1), "unexpected keyword"),
    "a table without a hash": (unlisted, "is not listed"),
    "rows beyond memory": (many_rows, "at most 1000000000 are read"),
    "a control that is too good": (controls, "cv: .*inf"),
    "notes that are none": (lambda i: i.update(notes=5), "notes: 5"),
}  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_edited_guesses(name: str, guesses: Path, tmp_path: Path) -> None:
    edit, words = EDITS[name]
    shutil.copytree(guesses, tmp_path / "g")
    path = tmp_path / "g" / "answers.json"
    index = json.loads(path.read_text())
    edit(index)
    path.write_text(json.dumps(index))
    kind = ConfigError if name == "an attack that does not exist" else TraceError
    with pytest.raises(kind, match=words):
        thaw(tmp_path / "g")


def test_rows_twice_in_guesses_are_refused(guesses: Path, tmp_path: Path) -> None:
    """A row that stands there twice would count twice, and narrow every interval."""
    shutil.copytree(guesses, tmp_path / "g")
    path = tmp_path / "g" / "answers.json"
    index = json.loads(path.read_text())
    name = index["answers"][0]["targets"]["train"]
    write_table(tmp_path / "g" / name, ROWS, {"row": np.repeat(np.arange(50), 4)})
    index["files"][name] = hashlib.sha256((tmp_path / "g" / name).read_bytes()).hexdigest()
    path.write_text(json.dumps(index))
    with pytest.raises(TraceError, match="each row once"):
        thaw(tmp_path / "g")


def test_the_same_guesses_untouched(guesses: Path, tmp_path: Path) -> None:
    """What the edits above start from leaks, and a manifest of a billion rows takes no memory."""
    shutil.copytree(guesses, tmp_path / "g")
    path = tmp_path / "g" / "answers.json"
    index = json.loads(path.read_text())
    for source in index["sources"]:
        source["manifest"]["rows"] = 10**9
    path.write_text(json.dumps(index))
    write_truth(tmp_path / "y", np.arange(N), Y)
    result = score(tmp_path / "g", [tmp_path / "y"], tmp_path / "o")
    values = result.results.query("metric == 'auc' and attack == 'direction' and role == 'audit'")[
        "value"
    ]
    assert values.tolist() == [1.0, 1.0]


def test_a_truth_of_other_rows_is_refused(guesses: Path, tmp_path: Path) -> None:
    """Rows in another order would let every attack end at chance, and a gate pass."""
    orders = {"reversed": Y[::-1], "shifted": np.roll(Y, 1), "drawn": np.roll(Y, 3),
              "of one class": np.zeros(N, int)}  # fmt: skip
    for name, labels in orders.items():
        write_truth(tmp_path / name, np.arange(N), labels)
        with pytest.raises(TraceError, match="have the 20 labels that were granted"):
            score(guesses, [tmp_path / name], tmp_path / "o", gates=[{"max": 0.05}])


ODD_LABELS: dict[str, tuple[Any, str]] = {
    "shares": ([0.9, 0.2, 0.6, 0.1], "whole numbers, got .*0.9"),
    "gaps": ([0.0, float("nan"), 1.0, 1.0], "no label"),
    "names": (["no", "yes", "no", "no"], "Number classes from 0"),
    "signs": ([-1, 1, 1, -1], "-1 and 1"),
    "one hot": (np.eye(4, 2), "got \\(4, 2\\)"),
    "too few": ([0, 1], "4 whole numbers"),
    "none": ([0, None, 1, 1], "no label"),
}


@pytest.mark.parametrize("name", ODD_LABELS)
def test_labels_that_are_no_class_numbers_are_refused(name: str, tmp_path: Path) -> None:
    """Fractions were cut off: a score of 0.9 was class 0. Of -1 and 1 one class was left."""
    labels, why = ODD_LABELS[name]
    with pytest.raises(ConfigError, match=why):
        write_truth(tmp_path, np.arange(4), labels)
    with pytest.raises(ConfigError, match="places in 'rows' of the recording"):
        write_truth(tmp_path, ["a", "b", "c", "d"], [0, 1, 0, 1])
    assert not (tmp_path / "truth").exists()


def test_labels_come_in_many_types(tmp_path: Path) -> None:
    for i, labels in enumerate(
        ([True, False], [1.0, 0.0], torch.tensor([1, 0]), np.array([1, 0], object))
    ):
        assert read_truth(
            write_truth(tmp_path / str(i), [0, 1], labels)
        ).labels.values.tolist() == [1, 0]
    write_truth(tmp_path / "gaps", [0, 1, 2], [1, -1, 0])
    assert read_truth(tmp_path / "gaps").labels.rows.tolist() == [0, 2]


def test_the_guesses_of_some_attacks_are_scored_alone(tmp_path: Path) -> None:
    traces = [record(tmp_path / f"t{s}", s) for s in range(2)]
    made = infer(traces, tmp_path / "g", attacks=("direction", "norm"), limits=TRUSTED)
    write_truth(tmp_path / "y", np.arange(N), Y)
    truth = [tmp_path / "y"]
    both = score(made, truth, tmp_path / "both")
    one = score(made, truth, tmp_path / "one", attacks=["direction"])
    names = [set(a.results.query("role == 'audit'").attack) - {""} for a in (both, one)]
    assert names == [{"direction", "norm"}, {"direction"}]
    assert len(one.summary["notes"]) == len(both.summary["notes"]) + 1
    with pytest.raises(ConfigError):
        score(made, truth, tmp_path / "none", attacks=["similarity"])
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("place", ["engine.trace_scores.judge", "report.exports.write_reports"])
def test_a_killed_score_is_made_by_the_same_command(
    place: str, guesses: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It left nothing in the store, so that labels of the second call are the ones compared."""

    def kill(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    write_truth(tmp_path / "wrong", np.arange(N), np.where(np.arange(N) < 20, Y, 1 - Y))
    write_truth(tmp_path / "y", np.arange(N), Y)
    monkeypatch.setattr(f"vflsec.{place}", kill)
    with pytest.raises(KeyboardInterrupt):
        score(guesses, [tmp_path / "wrong"], tmp_path / "out")
    monkeypatch.undo()
    again = score(guesses, [tmp_path / "y"], tmp_path / "out")
    whole = score(guesses, [tmp_path / "y"], tmp_path / "whole")
    assert again.results.equals(whole.results)
    assert again.summary["complete"]
    with pytest.raises(ConfigError):
        score(guesses, [tmp_path / "y"], tmp_path / "out")


def test_a_truth_without_what_was_granted_is_said(guesses: Path, tmp_path: Path) -> None:
    write_truth(tmp_path / "y", np.arange(20, N), Y[20:])
    result = score(guesses, [tmp_path / "y"], tmp_path / "o")
    said = [n for n in result.summary["notes"] if "may not be those" in n]
    assert len(said) == 2


def test_rows_without_a_truth_are_left_out_and_others_show_nothing(
    guesses: Path, tmp_path: Path
) -> None:
    """Labels of 90 rows, and labels that have nothing to do with the traces but where granted."""
    permuted = Y.copy()
    permuted[20:] = np.random.default_rng(3).permutation(Y[20:])
    found = {}
    for name, rows, labels in (("some", np.arange(90), Y), ("null", np.arange(N), permuted)):
        write_truth(tmp_path / name, rows, labels[rows])
        result = score(guesses, [tmp_path / name], tmp_path / f"o-{name}")
        of = result.results.query("metric == 'auc' and role == 'audit' and attack == 'direction'")
        said = [n for n in result.summary["notes"] if "rows without a truth are left out" in n]
        found[name] = of.n.tolist(), of.value.mean(), len(said) > 0
    assert found["some"] == ([70, 70], 1.0, True)
    assert found["null"][0] == [100, 100]
    assert 0.35 < found["null"][1] < 0.65


@pytest.mark.slow
def test_attacks_that_need_a_running_system(tmp_path: Path) -> None:
    """They are named with the reason, and none of them is taken for safe."""
    trace = record(tmp_path / "t", 0)
    with pytest.raises(ConfigError, match="membership act during training or ask its system"):
        infer([trace], tmp_path / "a", attacks=("norm", "membership"), limits=TRUSTED)
    (said,) = thaw(infer([trace], tmp_path / "b", limits=TRUSTED)).notes[:1]
    assert said.startswith("not assessed: ")
    for name in ("active_completion", "gradient_replacement", "membership", "replay", "villain"):
        assert name in said
