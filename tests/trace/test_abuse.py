"""Odd uses of the recorder, and ways to a verdict that the evidence does not carry."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hostile import reseal
from torch import Tensor
from trace_audits import audit, first_of_each, read, record, signs

from vflsec.engine.trace_attacks import infer, score
from vflsec.errors import ConfigError, ShapeError, VflsecError
from vflsec.trace.limits import TRUSTED
from vflsec.trace.record_api import Recording
from vflsec.trace.truth import write_truth
from vflsec.trace.validate import validate

N, D = 24, 3


def recording(folder: Path, **how: Any) -> Recording:
    return record(folder / "t", **{"rows": N, "classes": 2} | how)


def found(folder: Path) -> list[Any]:
    validate(folder / "t")
    return read(folder / "t")


def z_of(rows: Tensor) -> Tensor:
    return rows.double().float().unsqueeze(1).repeat(1, D).requires_grad_() * 1.0


def in_place_edits(rec: Recording) -> None:
    rows = torch.arange(8)
    z = rec.cut(z_of(rows), rows)
    g = torch.full((8, D), 2.0)
    z.backward(g)
    with torch.no_grad():
        z.zero_()
        g.zero_()
        rows.zero_()


def a_hook_that_edits_in_place(rec: Recording) -> None:
    z = rec.cut(z_of(torch.arange(8)), torch.arange(8))
    z.register_hook(lambda g: g.mul_(0))
    z.backward(torch.full((8, D), 2.0))


def a_hook_that_replaces(rec: Recording) -> None:
    z = rec.cut(z_of(torch.arange(8)), torch.arange(8))
    z.register_hook(lambda g: torch.zeros_like(g))
    z.backward(torch.full((8, D), 2.0))


def an_in_place_step_after_the_cut(rec: Recording) -> None:
    z = rec.cut(z_of(torch.arange(8)), torch.arange(8))
    z.mul_(0.5)  # the tensor that was sent has left already
    z.backward(torch.full((8, D), 4.0))


def twice_differentiable(rec: Recording) -> None:
    z = rec.cut(z_of(torch.arange(8)), torch.arange(8))
    (g,) = torch.autograd.grad((z * z).sum(), z, create_graph=True)
    assert g.requires_grad


def not_contiguous(rec: Recording) -> None:
    z = rec.cut(z_of(torch.arange(8)).T.contiguous().T, torch.arange(8))
    z.backward(torch.full((D, 8), 2.0).T)


USES: dict[str, Callable[[Recording], None]] = {
    f.__name__: f
    for f in (in_place_edits, a_hook_that_edits_in_place, a_hook_that_replaces, not_contiguous,
              an_in_place_step_after_the_cut)
}  # fmt: skip


@pytest.mark.parametrize("use", USES)
def test_what_crossed_is_written(use: str, tmp_path: Path) -> None:
    with recording(tmp_path) as rec:
        USES[use](rec)
    z, g = found(tmp_path)
    assert np.array_equal(z.values[:, 0], np.arange(8))
    assert (g.values == 2).all()
    assert z.rows.tolist() == g.rows.tolist() == list(range(8))


def test_second_derivatives(tmp_path: Path) -> None:
    with recording(tmp_path) as rec:
        twice_differentiable(rec)
    z, g = found(tmp_path)
    assert np.array_equal(g.values, 2 * z.values)


def test_rows_that_repeat_in_a_batch_count_once(tmp_path: Path) -> None:
    """Batches drawn with replacement: every visit is written, every row is guessed once."""
    ids = torch.tensor([3, 3, 5, 3, 7, 5, 0, 1])
    y = np.arange(N) % 2
    with recording(tmp_path, known=([0, 1], [0, 1]), prior=(0.5, 0.5)) as rec:
        for _ in range(3):
            z = rec.cut(z_of(ids), ids)
            z.backward(signs(y, ids, D))
    assert [len(m.values) for m in found(tmp_path)] == [8] * 6
    result = audit(tmp_path, [tmp_path / "t"], ("direction",), y)
    (row,) = result.results.query("metric == 'accuracy'").to_dict("records")
    assert row["n"] == 3  # 3, 5 and 7; 0 and 1 are known


def test_an_empty_batch_and_one_number_a_row(tmp_path: Path) -> None:
    with recording(tmp_path) as rec:
        rec.cut(torch.zeros(0, D), torch.arange(0))
        rec.cut(torch.arange(4.0), torch.arange(4))
    empty, flat = found(tmp_path)
    assert empty.fields.shape == [0, D]
    assert flat.values.shape == (4,)


def test_close_twice_and_late_gradients(tmp_path: Path) -> None:
    with recording(tmp_path) as rec:
        z = rec.cut(z_of(torch.arange(8)), torch.arange(8))
    rec.close()
    z.backward(torch.ones(8, D))  # after the end: not written, and no error in the loop
    assert [m.kind for m in found(tmp_path)] == ["embedding"]
    with pytest.raises(ConfigError, match=r"vflsec\.record"):
        rec.cut(z, torch.arange(8))
    with pytest.raises(ConfigError, match="holds a seal"):
        rec.__enter__()


def test_a_scale_of_zero_is_recorded_as_unknown(tmp_path: Path) -> None:
    """A scaler that was never asked, or has overflowed, must not make the trace unreadable."""
    scales = iter([0.0, float("nan"), float("inf"), 2.0])
    with recording(tmp_path, grad_scale=lambda: next(scales)) as rec:

        def loop() -> None:
            for _ in range(4):
                z = rec.cut(z_of(torch.arange(8)), torch.arange(8))
                z.backward(torch.ones(8, D))

        with pytest.warns(RuntimeWarning, match="above 0, got 0.0"):
            loop()
    got = [m.grad_scale for m in found(tmp_path) if m.kind == "gradient"]
    assert got == [None, None, None, 2.0]


BAD: dict[str, tuple[Callable[[Recording], Any], str]] = {
    "a scalar": (lambda r: r.cut(torch.tensor(1.0)), "payload must have 1 to"),
    "complex": (lambda r: r.cut(torch.zeros(4, D).cfloat(), range(4)), "dense array of real"),
    "sparse": (lambda r: r.cut(torch.eye(4).to_sparse(), range(4)), "dense array"),
    "wider than any reader": (lambda r: r.cut(torch.zeros(1, 70_000), [0]), "65536 numbers"),
    "ids between rows": (lambda r: r.cut(torch.zeros(2, D), [0.5, 1.0]), "whole numbers"),
    "ids of truth values": (
        lambda r: r.cut(torch.zeros(2, D), torch.tensor([True, False])), "whole numbers",
    ),
    "a phase with a path": (lambda r: r.cut(torch.zeros(1, D), [0], phase="../x"), "a name of"),
    "an epoch beyond all": (lambda r: r.epoch(10**6), "epoch must be an integer in"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_no_reader_would_take_is_refused_at_once(name: str, tmp_path: Path) -> None:
    use, words = BAD[name]
    with recording(tmp_path) as rec, pytest.raises(VflsecError, match=words):
        use(rec)
    assert found(tmp_path) == []


# verdicts


def leaky(folder: Path, columns: Any, known: Any) -> Path:
    """A trace whose gradients tell the labels, and the truth beside it."""
    y = (np.random.default_rng(0).random(160) < 0.5).astype(int)
    x = columns(y, np.random.default_rng(9))
    how = {"prior": (0.5, 0.5), "columns": x, "grad_scale": None}
    with record(folder / "t", y, known(y), **how) as rec:
        for ids in torch.arange(160).split(32):
            rec.cut(torch.randn(32, D).requires_grad_(), ids).backward(signs(y, ids, D))
    write_truth(folder / "y", np.arange(160), y)
    return folder / "t"


def guessed(folder: Path, columns: Any, known: Any) -> Path:
    trace = leaky(folder, columns, known)
    return infer([trace], folder / "g", attacks=("direction",), limits=TRUSTED)


def noise(y: np.ndarray, g: np.random.Generator) -> np.ndarray:
    return g.normal(size=(len(y), 2)).astype(np.float32)


def test_labels_among_own_columns_are_said(tmp_path: Path) -> None:
    """With the label as a column nothing leaks beyond columns; the verdict says so."""

    def smuggled(y: np.ndarray, g: np.random.Generator) -> np.ndarray:
        return np.concatenate([noise(y, g), y[:, None]], 1).astype(np.float32)

    guesses = guessed(tmp_path, smuggled, first_of_each)
    result = score(guesses, [tmp_path / "y"], tmp_path / "o", gates=[{"max": 0.05}])
    assert any("reveal the labels" in n for n in result.summary["notes"])
    honest = tmp_path / "honest"
    honest.mkdir()
    guesses = guessed(honest, noise, first_of_each)
    result = score(guesses, [honest / "y"], honest / "o", gates=[{"max": 0.05}])
    assert not any("tell the labels" in n for n in result.summary["notes"])
    assert result.results.query("metric == 'auc'").iloc[0]["value"] == 1.0


def test_one_sample_under_two_ids_is_said(tmp_path: Path) -> None:
    def doubled(y: np.ndarray, g: np.random.Generator) -> np.ndarray:
        x = noise(y, g)
        x[-20:] = x[first_of_each(y)]
        return x

    guesses = guessed(tmp_path, doubled, first_of_each)
    notes = json.loads((guesses / "answers.json").read_text())["notes"]
    assert any("20 rows equal a known row" in n for n in notes)


def test_a_copy_of_a_trace_is_no_repetition(tmp_path: Path) -> None:
    trace = leaky(tmp_path, noise, first_of_each)
    shutil.copytree(trace, tmp_path / "copy")
    path = tmp_path / "copy" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["run"]["seed"] = 1
    path.write_text(json.dumps(manifest))
    reseal(tmp_path / "copy")
    with pytest.raises(ConfigError, match="hold the same messages"):
        infer([trace, tmp_path / "copy"], tmp_path / "g", limits=TRUSTED)


def test_a_grant_of_every_label_leaves_nothing_to_score(tmp_path: Path) -> None:
    guesses = guessed(tmp_path, noise, lambda y: np.arange(len(y)))
    result = score(guesses, [tmp_path / "y"], tmp_path / "o", gates=[{"max": 0.05}])
    assert result.exit_code == 3
    assert set(result.results.status) <= {"not-applicable", "error"}


def test_truth_of_rows_that_never_passed_is_not_scored(tmp_path: Path) -> None:
    y = np.arange(N) % 2
    with recording(tmp_path, known=([0, 1], [0, 1]), prior=(0.5, 0.5)) as rec:
        ids = torch.arange(12)
        z = rec.cut(z_of(ids), ids)
        z.backward(signs(y, ids, D))
    result = audit(tmp_path, [tmp_path / "t"], ("direction",), y)
    assert set(result.results.query("metric == 'auc'")["n"]) == {10}


ODD_IDS: dict[str, tuple[Any, Any, str]] = {
    "missing numbers": ([0.0, 1.0, float("nan")], [1.0], "without an id must be 0, got 1"),
    "missing text": (["a", None, "b"], ["a"], "without an id must be 0, got 1"),
    "numbers and text": (np.array([1, "a"], object), ["a"], "or all text, got 'int, str'"),
    "dates as text": (np.array(["2020-01-01"], "M8[D]"), ["2020-01-01"], "must be of the type"),
    "numbers, rows as text": (["7", "8"], [7], "of the type of rows .<U1., got 'int64'"),
    "floats, rows as text": (["7", "8"], [7.0], "of the type of rows .<U1., got 'float64'"),
    "bytes": (["a", "b"], np.array([b"a"]), "of the type of rows .<U1., got '|S1'"),
    "numbers and zeros": (["007", "008"], [7], "differ only in leading zeros, as '9' and '009'"),
    "other zeros": (["007", "008"], ["7"], "differ only in leading zeros, as '9' and '009'"),
    "case": (["K1", "K2"], ["k2", "k1"], "2 ids of a batch and rows differ only in case"),
    "days": (["2020-01-31", "2020-02-01"], ["31.01.2020"], "are the same days"),
    "a hash": (["7", "8"], ["8f14e45fceea167a5a36dedd4bea2543"], "are MD5 values of each other"),
    "a float's rounding": (["1234567890123456789"], ["1234567890123456768"], "only rounded"),
    "places": (
        [101, 102, 103],
        [0, 2],
        "a batch .* must be 0, got 2. They look like places",
    ),
    "from one": ([1, 2, 3], [0, 1, 2], "a batch .* must be 0, got 1. They look like places"),
    "rows left out": ([101, 102], [103], "none of the 2 rows must be 0, got 1. Give record.. all"),
    "text of two kinds": (np.array(["a", "b"], object), ["a", "z"], "none of the 2 rows must be 0"),
    "a mask": ([0, 1, 2], [True, False, True], "true and false, a mask"),
    "text for a number of rows": (3, ["a"], "0 to 2, got .*U1.*give record.. as rows all"),
}


@pytest.mark.parametrize("name", ODD_IDS)
def test_ids_that_name_no_rows_are_one_error(name: str, tmp_path: Path) -> None:
    rows, batch, words = ODD_IDS[name]
    with (
        pytest.raises(ConfigError, match=words.replace("|", "[|]")),
        recording(tmp_path, rows=rows) as rec,
    ):
        rec.cut(torch.zeros(len(batch), D), batch)


def test_a_number_of_rows_of_any_kind(tmp_path: Path) -> None:
    with recording(tmp_path, rows=np.int64(5)) as rec:
        rec.cut(torch.zeros(2, D), [3, 4])
    assert found(tmp_path)[0].rows.tolist() == [3, 4]


def shuffled(rec: Recording, ids: str, same: bool = False) -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(50, D, generator=g)
    for step in range(3):
        rows = torch.arange(10) if same else torch.randperm(50, generator=g)[:10]
        z = (x[rows] + 0.1 * step).requires_grad_() * 1
        rec.cut(z, np.arange(10) if ids == "places" else rows).sum().backward()


@pytest.mark.parametrize(
    ("ids", "same", "told"), [("places", False, 1), ("rows", False, 0), ("places", True, 0)]
)
def test_places_in_a_batch_are_said_to_be_no_ids(
    ids: str, same: bool, told: int, tmp_path: Path
) -> None:
    """It was recorded without a word, and every attack was at chance hours later."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with recording(tmp_path, rows=50) as rec:
            shuffled(rec, ids, same)
    assert [str(w.message) for w in said].count(
        "vflsec.record: two different batches both name rows 0 to 9. Give ids of rows, "
        "not places in a batch, or no attack finds anything."
    ) == told


@pytest.mark.parametrize("z", [(torch.zeros(2, D), torch.zeros(2, D)), {"a": torch.zeros(2, D)}])
def test_several_embeddings_at_once_are_refused(z: Any, tmp_path: Path) -> None:
    with (
        recording(tmp_path) as rec,
        pytest.raises(ShapeError, match=r"one tensor, got (tuple|dict)\."),
    ):
        rec.cut(z, [0, 1])
