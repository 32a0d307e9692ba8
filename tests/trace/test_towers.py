"""A party that gets several messages of a row: attacks look at all of them, or it is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sampled import sampled
from torch import Tensor
from trace_audits import audit, record, signs

from vflsec.engine.trace_attacks import infer
from vflsec.errors import ShapeError, TraceError
from vflsec.trace.limits import TRUSTED
from vflsec.trace.record_api import Recording

pytestmark = pytest.mark.long  # its slow tests

N = 120
Y = np.arange(N) % 3 % 2


def recording(folder: Path) -> Recording:
    return record(folder / "t", Y, np.arange(12), prior=(2 / 3, 1 / 3), grad_scale=None)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def batches(g: torch.Generator, size: int = 32) -> list[Tensor]:
    return list(torch.randperm(N, generator=g).split(size))


def towers(rec: Recording, second: Any = None, width: int = 3) -> None:
    """Two epochs: the gradient of the first tower is noise, that of the second the label."""
    g = seeded()
    for _ in range(2):
        for rows in batches(g):
            ids = rows if second is None else second(rows)
            z = [torch.randn(len(r), w, generator=g) for r, w in ((rows, 2), (ids, width))]
            ends = [
                rec.cut(x.requires_grad_(), r, name=name)
                for x, r, name in zip(z, (rows, ids), ("text", "image"), strict=True)
            ]
            told = signs(Y, ids, width)
            torch.autograd.backward(ends, [torch.randn(len(rows), 2, generator=g), told])


def exchanges(label_first: bool) -> Callable[[Recording], None]:
    """Two backward passes through one cut, which were added up: noise in one hid the label."""

    def loop(rec: Recording) -> None:
        g = seeded()
        for epoch in range(2):
            rec.epoch(epoch)
            for rows in batches(g):
                z = rec.cut(torch.randn(len(rows), 3, generator=g).requires_grad_(), rows)
                told, noise = signs(Y, rows, 3), 1e3 * torch.randn(len(rows), 3, generator=g)
                for gradient in (told, noise) if label_first else (noise, told):
                    z.backward(gradient, retain_graph=True)

    return loop


def of_a_part(label_first: bool, part_first: bool) -> Callable[[Recording], None]:
    """Noise for half of the rows hid their labels, and labels of half of them hid behind noise.

    Where the part came first, what followed took its place for the other rows (AUC 0.5 of all).
    """

    def loop(rec: Recording) -> None:
        g, some = seeded(), torch.arange(N) % 2 == 0
        for step, rows in enumerate(r for _ in range(2) for r in batches(g)):
            told, noise = signs(Y, rows, 3), 1e3 * torch.randn(len(rows), 3, generator=g)
            for turn, sent in enumerate((told, noise) if label_first else (noise, told)):
                of = some[rows] if (turn == 0) == part_first else torch.ones_like(rows).bool()
                rec.tell("gradient", sent[of], rows[of], sent=False, step=step)

    return loop


def with_a_row_in_common(rec: Recording) -> None:
    """Parts of a batch that all hold its first row: each is an exchange, of which few rows are."""
    for step, rows in enumerate(batches(seeded(), 40)):
        for part in rows[1:].split(8):
            both = torch.cat([rows[:1], part])
            rec.tell("gradient", signs(Y, both, 3), both, sent=False, step=step)


def auc(folder: Path) -> tuple[float, list[str]]:
    result = audit(folder, [folder / "t"], ("similarity",), Y)
    (row,) = result.results.query("metric == 'auc'").to_dict("records")
    return row["value"], [n for n in result.summary["notes"] if "unseen by attacks" in n]


@pytest.mark.parametrize(
    ("loop", "least"),
    sampled(
        [(towers, 0.97), (exchanges(True), 0.97), (exchanges(False), 0.97),
         (of_a_part(True, False), 0.97), (of_a_part(False, True), 0.97),
         (of_a_part(True, True), 0.7), (of_a_part(False, False), 0.7),
         (with_a_row_in_common, 0.97)],
        every=3,
    ),
)  # fmt: skip
def test_a_leak_in_one_of_several_messages_is_found(
    loop: Callable[[Recording], None], least: float, tmp_path: Path
) -> None:
    """Only messages of the first name were looked at: AUC 0.5, and no word."""
    with recording(tmp_path) as rec:
        loop(rec)
    found, unseen = auc(tmp_path)
    assert found > least
    assert not unseen


def test_messages_of_other_rows_are_said_to_be_left_out(tmp_path: Path) -> None:
    with recording(tmp_path) as rec:
        towers(rec, lambda rows: rows[rows < N // 2])
    found, (said,) = auc(tmp_path)
    assert found < 0.75
    assert "gradient messages named 'image'" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    "types",
    sampled([((torch.int64, torch.float32),), ((torch.float32, torch.float64),),
             ((torch.float64, torch.float32),), ((torch.float16, torch.float64, torch.bfloat16),)]),
)  # fmt: skip
def test_a_leak_in_messages_of_several_types_is_found(
    types: tuple[torch.dtype, ...], tmp_path: Path
) -> None:
    """Such a trace was valid, and its audit ended in an internal error."""
    g = seeded()
    with record(tmp_path / "t", Y, np.arange(12), prior=(2 / 3, 1 / 3)) as rec:
        for step, rows in enumerate(r for _ in range(3) for r in torch.randperm(N).split(30)):
            noise = 10 * torch.randn(30, 3, generator=g)
            for kind, x in (("embedding", noise), ("gradient", noise + 20 * signs(Y, rows, 3))):
                x = x.to(types[step % len(types)])
                rec.tell(kind, x, rows, sent=kind == "embedding", step=step)
    names = ("direction", "similarity", "message_completion", "exploit")
    result = audit(tmp_path, [tmp_path / "t"], names, Y)
    found = result.results.query("metric == 'auc'").set_index("attack")["value"]
    assert set(found.index) == set(names)
    assert min(found["direction"], found["similarity"]) > 0.97


def test_two_widths_without_names_are_refused(tmp_path: Path) -> None:
    """Such a trace ended in an internal error, after the training."""
    with recording(tmp_path) as rec:
        rec.cut(torch.zeros(4, 2), torch.arange(4))
        rec.cut(torch.zeros(2, 3), torch.arange(2), phase="other")
        with pytest.raises(ShapeError, match=r"shape \(2,\), got \(3,\).*name="):
            rec.cut(torch.zeros(4, 3), torch.arange(4))
        with pytest.raises(ShapeError, match="under name="):
            rec.tell("embedding", np.zeros((4, 3)), np.arange(4), sent=True, phase="eval")
        rec.tell("state", np.zeros((4, 3)), sent=True)
        rec.tell("state", np.zeros((4, 2)), sent=True)


def test_two_widths_in_somebodys_trace_are_one_error(tmp_path: Path) -> None:
    with recording(tmp_path) as rec:
        for width in (2, 3):
            rec._widths.clear()  # a recorder that does not look
            z = rec.cut(torch.zeros(N, width).requires_grad_(), torch.arange(N))
            z.backward(torch.zeros(N, width))
    with pytest.raises(TraceError, match=r"have the shape \(2,\), got \(3,\)"):
        infer([tmp_path / "t"], tmp_path / "g", attacks=("similarity",), limits=TRUSTED)


def test_rows_that_passed_forward_alone_are_rows_of_no_attack_on_gradients(tmp_path: Path) -> None:
    """An evaluation that keeps gradients looks like training: nothing could be scored at all."""
    g, known = seeded(), np.arange(10, 40)  # 20 to 39 are never trained on
    with record(tmp_path / "t", Y, known, prior=(2 / 3, 1 / 3)) as rec:
        train = torch.tensor([i for i in range(N) if not 20 <= i < 40])
        for _ in range(2):
            for rows in train[torch.randperm(len(train), generator=g)].split(32):
                z = rec.cut(torch.randn(len(rows), 3, generator=g).requires_grad_(), rows)
                z.backward(signs(Y, rows, 3))
            rec.cut(torch.randn(20, 3, generator=g).requires_grad_(), torch.arange(20, 40))
    names = ("similarity", "direction", "norm", "cluster")
    result = audit(tmp_path, [tmp_path / "t"], names, Y)
    found = result.results.query("metric == 'auc'").set_index("attack")
    assert (found["n"] == 90).all()  # 100 without 10 known
    assert set(found.index) == set(names)
    assert found.loc["similarity", "value"] == found.loc["direction", "value"] == 1.0
    said = [n for n in result.summary["notes"] if "lack the gradient" in n]
    assert any("20 of 120 rows of bank" in n for n in said)


@pytest.mark.slow
def test_embeddings_that_come_twice_are_replayed_one_exchange_at_a_time(tmp_path: Path) -> None:
    """The second embedding of a step was lost, and with it the one that its gradient is of."""
    g = seeded()
    w = torch.randn(2, 3, generator=g)
    hot = torch.eye(2)[torch.from_numpy(Y)]
    with recording(tmp_path) as rec:
        for step, rows in enumerate(batches(g)):
            z = torch.randn(2, len(rows), 3, generator=g)
            told = (torch.softmax(z[1] @ w.T, 1) - hot[rows]) @ w
            for sent in z:
                rec.tell("embedding", sent, rows, sent=True, step=step)
            rec.tell("gradient", told, rows, sent=False, step=step)
    result = audit(tmp_path, [tmp_path / "t"], ("exploit", "unsplit"), Y).results
    found = result.query("metric == 'auc'")
    assert len(found) == 3
    assert found.value.min() > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("label_first", [True, False])
def test_attacks_that_replay_gradients_take_one_exchange_at_a_time(
    tmp_path: Path, label_first: bool
) -> None:
    """Two gradients for one embedding are twice as wide: they could not be replayed (an error)."""
    g = seeded()
    w = torch.randn(2, 3, generator=g)
    hot = torch.eye(2)[torch.from_numpy(Y)]
    with recording(tmp_path) as rec:
        for rows in batches(g):
            z = rec.cut(torch.randn(len(rows), 3, generator=g).requires_grad_(), rows)
            told = (torch.softmax(z.detach() @ w.T, 1) - hot[rows]) @ w
            noise = 30 * torch.randn(len(rows), 3, generator=g)
            for gradient in (told, noise) if label_first else (noise, told):
                z.backward(gradient, retain_graph=True)
    names = ("exploit", "unsplit")
    found = audit(tmp_path, [tmp_path / "t"], names, Y).results.query("metric == 'auc'")
    by = dict(zip(found.attack, found.value, strict=True))
    assert set(by) == {"exploit", "exploit(scaled=True)", "unsplit"}
    assert min(by.values()) > 0.95
