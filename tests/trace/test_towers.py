"""A party that sends several embeddings of a row: attacks look at all of them, or it is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from trace_audits import audit

import vflsec
from vflsec.engine.trace_attacks import infer
from vflsec.errors import ShapeError, TraceError
from vflsec.trace.limits import TRUSTED
from vflsec.trace.record_api import Recording

N = 120
Y = np.arange(N) % 3 % 2


def recording(folder: Path) -> Recording:
    return vflsec.record(
        folder / "t", party="bank", role="passive", rows=N, classes=2, loss_reduction="sum",
        known=(np.arange(12), Y[:12]), prior=(2 / 3, 1 / 3),
    )  # fmt: skip


def towers(rec: Recording, second: Any = None, width: int = 3) -> None:
    """Two epochs: the gradient of the first tower is noise, that of the second the label."""
    g = torch.Generator().manual_seed(0)
    for _ in range(2):
        for rows in torch.randperm(N, generator=g).split(32):
            ids = rows if second is None else second(rows)
            z = [torch.randn(len(r), w, generator=g) for r, w in ((rows, 2), (ids, width))]
            ends = [
                rec.cut(x.requires_grad_(), r, name=name)
                for x, r, name in zip(z, (rows, ids), ("text", "image"), strict=True)
            ]
            told = (torch.from_numpy(Y)[ids] * 2.0 - 1).unsqueeze(1).expand(-1, width)
            torch.autograd.backward(ends, [torch.randn(len(rows), 2, generator=g), told])


def auc(folder: Path) -> tuple[float, list[str]]:
    result = audit(folder, [folder / "t"], ("similarity",), Y)
    (row,) = result.results.query("metric == 'auc'").to_dict("records")
    return row["value"], result.summary["notes"]


def test_a_leak_in_the_second_tower_is_found(tmp_path: Path) -> None:
    """Only messages of the first name were looked at: AUC 0.5, and no word."""
    with recording(tmp_path) as rec:
        towers(rec)
    found, notes = auc(tmp_path)
    assert found > 0.97
    assert not [n for n in notes if "unseen by attacks" in n]


def test_messages_of_other_rows_are_said_to_be_left_out(tmp_path: Path) -> None:
    def others(rows: Tensor) -> Tensor:
        return rows[rows < N // 2]

    with recording(tmp_path) as rec:
        towers(rec, others)
    found, notes = auc(tmp_path)
    assert found < 0.75
    (said,) = [n for n in notes if "unseen by attacks" in n]
    assert "gradient messages named 'image'" in said


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
    g = torch.Generator().manual_seed(0)
    known = np.arange(10, 40)  # 20 to 39 are never trained on
    with vflsec.record(
        tmp_path / "t", party="bank", role="passive", rows=N, classes=2, loss_reduction="sum",
        known=(known, Y[known]), prior=(2 / 3, 1 / 3), grad_scale=1,
    ) as rec:  # fmt: skip
        train = torch.tensor([i for i in range(N) if not 20 <= i < 40])
        for _ in range(2):
            for rows in train[torch.randperm(len(train), generator=g)].split(32):
                z = rec.cut(torch.randn(len(rows), 3, generator=g).requires_grad_(), rows)
                z.backward((torch.from_numpy(Y)[rows] * 2.0 - 1).unsqueeze(1).expand(-1, 3))
            rec.cut(torch.randn(20, 3, generator=g).requires_grad_(), torch.arange(20, 40))
    names = ("similarity", "direction", "norm", "cluster")
    result = audit(tmp_path, [tmp_path / "t"], names, Y)
    found = result.results.query("metric == 'auc'").set_index("attack")
    assert (found["n"] == 90).all()  # 100 without 10 known
    assert set(found.index) == set(names)
    assert found.loc["similarity", "value"] == found.loc["direction", "value"] == 1.0
    said = [n for n in result.summary["notes"] if "lack a gradient" in n]
    assert any("20 of 120 rows of bank" in n for n in said)


@pytest.mark.parametrize("label_first", [True, False])
def test_a_leak_in_one_of_two_exchanges_of_a_step_is_found(
    tmp_path: Path, label_first: bool
) -> None:
    """Two backward passes through one cut were added up: noise in one hid the label in the other
    (AUC 0.5).
    """
    g = torch.Generator().manual_seed(0)
    with recording(tmp_path) as rec:
        for epoch in range(2):
            rec.epoch(epoch)
            for rows in torch.randperm(N, generator=g).split(32):
                z = rec.cut(torch.randn(len(rows), 3, generator=g).requires_grad_(), rows)
                told = (torch.from_numpy(Y)[rows] * 2.0 - 1).unsqueeze(1).expand(-1, 3)
                noise = 1e3 * torch.randn(len(rows), 3, generator=g)
                for gradient in (told, noise) if label_first else (noise, told):
                    z.backward(gradient, retain_graph=True)
    found, notes = auc(tmp_path)
    assert found > 0.97
    assert not [n for n in notes if "unseen by attacks" in n]


@pytest.mark.parametrize("part_first", [False, True])
@pytest.mark.parametrize("label_first", [True, False])
def test_an_exchange_for_a_part_of_the_rows_neither_hides_nor_is_hidden(
    tmp_path: Path, label_first: bool, part_first: bool
) -> None:
    """Noise for half of the rows hid their labels, and labels of half of them hid behind noise.

    Where the part came first, what followed took its place for the other rows (AUC 0.5 of all).
    """
    g = torch.Generator().manual_seed(0)
    some = torch.arange(N) % 2 == 0
    with recording(tmp_path) as rec:
        for step, rows in enumerate(
            r for _ in range(2) for r in torch.randperm(N, generator=g).split(32)
        ):
            told = (torch.from_numpy(Y)[rows] * 2.0 - 1).unsqueeze(1).expand(-1, 3)
            noise = 1e3 * torch.randn(len(rows), 3, generator=g)
            for turn, sent in enumerate((told, noise) if label_first else (noise, told)):
                of = some[rows] if (turn == 0) == part_first else torch.ones_like(rows).bool()
                rec.tell("gradient", sent[of], rows[of], sent=False, step=step)
    found, notes = auc(tmp_path)
    assert found > (0.97 if label_first != part_first else 0.7)
    assert not [n for n in notes if "unseen by attacks" in n]


def test_parts_of_one_exchange_with_a_row_in_common_are_read_together(tmp_path: Path) -> None:
    """Parts of a batch that all hold its first row: each is an exchange, of which few rows are."""
    g = torch.Generator().manual_seed(0)
    with recording(tmp_path) as rec:
        for step, rows in enumerate(torch.randperm(N, generator=g).split(40)):
            for part in rows[1:].split(8):
                both = torch.cat([rows[:1], part])
                told = (torch.from_numpy(Y)[both] * 2.0 - 1).unsqueeze(1).expand(-1, 3)
                rec.tell("gradient", told, both, sent=False, step=step)
    found, notes = auc(tmp_path)
    assert found > 0.97
    assert not [n for n in notes if "unseen by attacks" in n]


@pytest.mark.slow
def test_embeddings_that_come_twice_are_replayed_one_exchange_at_a_time(tmp_path: Path) -> None:
    """The second embedding of a step was lost, and with it the one that its gradient is of."""
    g = torch.Generator().manual_seed(0)
    w = torch.randn(2, 3, generator=g)
    hot = torch.eye(2)[torch.from_numpy(Y)]
    with recording(tmp_path) as rec:
        for step, rows in enumerate(torch.randperm(N, generator=g).split(32)):
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
    g = torch.Generator().manual_seed(0)
    w = torch.randn(2, 3, generator=g)
    hot = torch.eye(2)[torch.from_numpy(Y)]
    with recording(tmp_path) as rec:
        for rows in torch.randperm(N, generator=g).split(32):
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
