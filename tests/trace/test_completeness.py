"""Recordings that do not show all that passed: a leak that is found stands, nothing passes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from hostile import reseal
from sampled import sampled
from torch import Tensor
from trace_audits import first_of_each, record

from vflsec.engine.trace_attacks import infer, score
from vflsec.measure.guess_files import thaw
from vflsec.trace.limits import TRUSTED, Limits
from vflsec.trace.record_api import Recording
from vflsec.trace.tables import open_writer
from vflsec.trace.truth import write_truth

N, D, EPOCHS = 200, 3, 4
Loop = Callable[[Recording, "Told"], None]


class Told:
    """The labels, and gradients that tell them, or do not."""

    def __init__(self, seed: int, y: np.ndarray, leaks: bool) -> None:
        self.g = torch.Generator().manual_seed(seed)
        self.y, self.leaks = torch.from_numpy(y), leaks

    def gradient(self, rows: Tensor, leaks: bool) -> Tensor:
        noise = torch.randn(len(rows), D, generator=self.g)
        return noise + 3.0 * (leaks and self.leaks) * (self.y[rows] * 2.0 - 1).unsqueeze(1)

    def batches(self) -> list[Tensor]:
        return list(torch.randperm(N, generator=self.g).split(50))

    def steps(self) -> list[Tensor]:
        return [rows for _ in range(EPOCHS) for rows in self.batches()]

    def z(self, rows: Tensor) -> Tensor:
        return torch.randn(len(rows), D, generator=self.g).requires_grad_() * 1


def leaking(when: Callable[[int], bool]) -> Loop:
    """Leaks in some epochs."""

    def loop(rec: Recording, told: Told) -> None:
        for epoch in range(EPOCHS):
            rec.epoch(epoch)
            for rows in told.batches():
                rec.cut(told.z(rows), rows).backward(told.gradient(rows, when(epoch)))

    return loop


honest, later = leaking(lambda _: True), leaking(lambda epoch: epoch % 2 == 1)
late = leaking(lambda epoch: epoch >= 2)
"""What is recorded every second time, and stops, shows none of what is leaked `later`."""
FIRST = 16
"""Messages of the first two epochs, in which nothing is leaked `late`."""


def nameless(rec: Recording, told: Told) -> None:
    """Leaks where the loop does not say of which rows."""
    for epoch in range(EPOCHS):
        for rows in told.batches():
            named = rows if epoch % 2 == 0 else None
            rec.cut(told.z(rows), named).backward(told.gradient(rows, named is None))


def past(rec: Recording, told: Told) -> None:
    """The second tower leaks, whose loop does not go on with what cut() returned."""
    for _ in range(EPOCHS):
        for rows in told.batches():
            one, two = rec.cut(told.z(rows), rows, name="one"), told.z(rows)
            rec.cut(two, rows, name="two")
            ends = [told.gradient(rows, leaks) for leaks in (False, True)]
            torch.autograd.backward([one, two], ends)


def not_finite(rec: Recording, told: Told) -> None:
    """Half of the rows of a class are no numbers, others every time."""
    for _ in range(EPOCHS):
        for rows in told.batches():
            gradient = told.gradient(rows, False)
            some = (told.y[rows] == 1) & (torch.rand(len(rows), generator=told.g) < 0.5)
            gradient[some if told.leaks else some & False] = float("nan")
            rec.cut(told.z(rows), rows).backward(gradient)


def overflows(rec: Recording, told: Told) -> None:
    """The first step of a scaled loss: no number of it is one, and no row is told apart."""
    for step, rows in enumerate(told.steps()):
        gradient = told.gradient(rows, False)
        rec.cut(told.z(rows), rows).backward(gradient * float("inf") if step == 0 else gradient)


def evaluates(rec: Recording, told: Told) -> None:
    """Rows of somebody else are evaluated in between, of which no id is known."""
    for _ in range(EPOCHS):
        for rows in told.batches():
            rec.cut(told.z(rows), rows).backward(told.gradient(rows, False))
        rec.cut(torch.randn(7, D, generator=told.g))


def warmed_up(rec: Recording, told: Told) -> None:
    """Leaks in a stage that goes by another name."""
    for epoch in range(EPOCHS):
        for rows in told.batches():
            first = epoch < 2
            z = rec.cut(told.z(rows), rows, phase="warmup" if first else "train")
            z.backward(told.gradient(rows, first))


def timeless(rec: Recording, told: Told) -> None:
    """All rows at once, every time as step 0: leaks beyond what stands side by side."""
    for epoch in range(12):
        rows = torch.arange(N)
        gradient = told.gradient(rows, epoch >= 8)
        rec.tell("gradient", gradient, rows, sent=False, step=0)


def unanswered(rec: Recording, told: Told) -> None:
    """Every second row of class 1 never gets a gradient; the others of its batch do."""
    for step, rows in enumerate(told.steps()):
        some = rows[(told.y[rows] == 0) | (rows % 2 == 0) | (not told.leaks)]
        rec.tell("embedding", told.z(rows).detach(), rows, sent=True, step=step)
        rec.tell("gradient", told.gradient(some, False), some, sent=False, step=step)


def in_parts(rec: Recording, told: Told) -> None:
    """Gradients of a batch come in two messages, and batches of an evaluation get none."""
    for step, rows in enumerate(told.steps()):
        rec.tell("embedding", told.z(rows).detach(), rows, sent=True, step=step)
        if step % 4 == 3 and step < 12:
            continue
        for part in rows.split(25):
            rec.tell("gradient", told.gradient(part, False), part, sent=False, step=step)


GAPS: dict[str, tuple[Loop, dict[str, Any], str]] = {
    "every second epoch": (
        later, {"every_n_epochs": 2}, "not all embedding and gradient messages of phase 'train'",
    ),
    "stopped": (later, {"max_bytes": 15_000}, "recording stopped before the run did"),
    "rows without names": (nameless, {}, "8 of 16 gradient messages that it received name no rows"),
    "past the cut": (past, {}, "not all gradient messages of phase 'train'"),
    "another phase": (warmed_up, {}, "gradient messages of phase 'warmup' came to bank"),
    "twelve times in a step": (timeless, {}, "gradient messages that came for a row 9 times"),
    "rows without gradients": (
        unanswered, {}, "rows that it sent never got a gradient",
    ),
    "not finite": (not_finite, {}, "16 gradient messages only some rows are not finite"),
}  # fmt: skip


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    table = change(pq.read_table(path))
    with open_writer(path, table.schema) as out:
        out.write_table(table)


def dropped(view: Path) -> None:
    rewrite(view / "messages.parquet", lambda t: t.slice(0, FIRST))
    for path in view.glob("tensors-*"):
        rewrite(path, lambda t: t.filter(pc.less(t["msg"], FIRST)))


def looked_at_before(view: Path) -> None:
    path = view / "observer.json"
    info = json.loads(path.read_text())
    info["moments"][0]["messages"] = FIRST
    path.write_text(json.dumps(info))


def renamed(field: str, name: str) -> Callable[[Path], None]:
    def edit(view: Path) -> None:
        def change(t: pa.Table) -> pa.Table:
            values = [v if i < FIRST else name for i, v in enumerate(t[field].to_pylist())]
            at = t.schema.get_field_index(field)
            return t.set_column(at, t.schema.field(at), pa.array(values, t.schema.field(at).type))

        rewrite(view / "messages.parquet", change)

    return edit


EDITS: dict[str, tuple[Callable[[Path], None], str]] = {
    "messages dropped": (dropped, "gradient from active to bank in train: declared 16 messages"),
    "an earlier moment": (looked_at_before, "16 messages came after phase 'train'"),
    "phases renamed": (renamed("phase", "other"), "in other: declared 0 messages, got 8"),
    "kinds renamed": (renamed("kind", "ids"), "ids from active to bank in train: declared 0"),
}  # fmt: skip
WHOLE: dict[str, Loop] = {
    "honest": honest, "overflows": overflows, "evaluates": evaluates, "in parts": in_parts,
}  # fmt: skip


def recorded(
    folder: Path, loop: Loop, *, leaks: bool, run: dict[str, Any], of: int, **how: Any
) -> Path:
    y = (np.random.default_rng(of).random(N) < 0.4).astype(int)
    with record(folder, y, first_of_each(y, 10), prior=(0.6, 0.4), run=run, **how) as rec:
        loop(rec, Told(of, y, leaks))
    write_truth(folder, np.arange(N), y)
    return folder


@pytest.fixture(scope="module")
def undefended(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Traces that show the attack to work."""
    base = tmp_path_factory.mktemp("undefended")
    return [
        recorded(base / str(s), honest, leaks=True, run={"seed": s}, of=s) for s in range(3)
    ]  # fmt: skip


def judged(
    base: Path, undefended: list[Path], loop: Loop, leaks: bool, of: Any = lambda s: 10 + s,
    edit: Callable[[Path], None] | None = None, **how: Any,
) -> tuple[Any, list[str]]:  # fmt: skip
    """The verdict on three defended trainings, whose traces somebody may `edit`, and the notes."""
    mine = [
        recorded(
            base / f"t{s}", loop, leaks=leaks, of=of(s), **how,
            run={"defense": "noise", "strength": 1.0, "seed": s},
        )
        for s in range(3)
    ]  # fmt: skip
    for folder in mine if edit else ():
        edit(folder / "view" / "bank")
        reseal(folder)
    traces = [*undefended, *mine]
    guesses = infer(
        traces, base / "g", attacks=("direction",), limits=Limits(trusted=True, nonfinite="drop")
    )
    gate = {"max": 0.25, "attack": "direction", "defense": "defended"}
    result = score(guesses, traces, base / "o", gates=[gate])
    (verdict,) = result.verdicts
    return verdict, result.summary["notes"]


@pytest.mark.parametrize("name", sampled(WHOLE))
def test_what_is_whole_passes(name: str, undefended: list[Path], tmp_path: Path) -> None:
    verdict, notes = judged(tmp_path, undefended, WHOLE[name], leaks=False)
    assert verdict.verdict == "PASS", verdict.reason
    assert not [n for n in notes if "carries no pass" in n]


@pytest.mark.parametrize("loop", sampled([late, honest]))
def test_what_leaks_fails(loop: Loop, undefended: list[Path], tmp_path: Path) -> None:
    verdict, _ = judged(tmp_path, undefended, loop, leaks=True)
    assert verdict.verdict == "FAIL"


@pytest.mark.parametrize("name", sampled(EDITS))
def test_a_leak_that_was_edited_away_passes_nothing(
    name: str, undefended: list[Path], tmp_path: Path
) -> None:
    """All of these passed; of an earlier moment no word was said."""
    edit, words = EDITS[name]
    verdict, _ = judged(tmp_path, undefended, late, leaks=True, edit=edit)
    assert verdict.value < 0.25
    assert verdict.verdict == "INCONCLUSIVE"
    assert words in verdict.reason


@pytest.mark.filterwarnings("ignore:vflsec.record")
@pytest.mark.parametrize("name", sampled(GAPS))
def test_a_leak_that_was_not_recorded_passes_nothing(
    name: str, undefended: list[Path], tmp_path: Path
) -> None:
    """Each of these passed, most of them without a word."""
    loop, how, words = GAPS[name]
    verdict, notes = judged(tmp_path, undefended, loop, leaks=True, **how)
    assert verdict.value < 0.25  # the leak is in what no attack could look at
    assert verdict.verdict == "INCONCLUSIVE"
    assert words in verdict.reason
    assert "carries no pass" in verdict.reason
    assert len([n for n in notes if words in n and "carries no pass" in n]) == 3


def beside(kind: str, named: bool) -> Loop:
    """The label comes in a message of another kind, beside gradients that do not tell it."""

    def loop(rec: Recording, told: Told) -> None:
        for step, rows in enumerate(told.steps()):
            plain = torch.stack([1 - told.y[rows], told.y[rows]], 1).float()
            rec.tell("embedding", told.z(rows).detach(), rows, sent=True, step=step)
            rec.tell("gradient", told.gradient(rows, False), rows, sent=False, step=step)
            rec.tell(kind, plain, rows if named else None, sent=False, step=step)

    return loop


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "named", "gap"),
    sampled([("prediction", False, True), ("ids", False, False), ("weights", True, True),
             ("state", True, False)]),
)  # fmt: skip
def test_what_no_attack_read_passes_nothing(
    kind: str, named: bool, gap: bool, tmp_path: Path
) -> None:
    """Of all attacks none read it; where some were chosen, a note says so."""
    (words, found) = f"{kind} messages came to bank, read by no attack that made a guess", []
    trace = recorded(tmp_path / "t", beside(kind, named), leaks=True, run={}, of=1)
    for attacks in ((), ("direction",)):
        found.append(
            thaw(infer([trace], tmp_path / f"g{len(found)}", attacks=attacks, limits=TRUSTED))
        )
    assert [c for c in found[0].sources[0].gaps.get("bank", ()) if words in c] == [words] * gap
    assert not found[1].sources[0].gaps
    assert bool([n for n in found[1].notes if words in n]) == (kind != "ids")


@pytest.mark.slow
@pytest.mark.parametrize(("leaks", "verdict"), [(True, "FAIL"), (False, "INCONCLUSIVE")])
def test_labels_in_states_are_read(leaks: bool, verdict: str, tmp_path: Path) -> None:
    """Only `joint_completion` read them, which takes a model that was not recorded."""
    told = beside("state", True)
    traces = [
        recorded(tmp_path / f"t{s}", told if leaks else honest, leaks=False, run={"seed": s}, of=s)
        for s in range(3)
    ]  # fmt: skip
    infer(traces, tmp_path / "g", attacks=("message_completion",), limits=TRUSTED)
    (found,) = score(tmp_path / "g", traces, tmp_path / "o", gates=[{"max": 0.1}]).verdicts
    assert found.verdict == verdict
    assert (found.attack == "message_completion(kind=state)") == leaks


def test_one_training_under_three_seeds_passes_nothing(
    undefended: list[Path], tmp_path: Path
) -> None:
    """Each holds the messages of the one before and more, so that no file is that of another."""

    def longer(rec: Recording, told: Told) -> None:
        for epoch in range(EPOCHS + rec.manifest.run.seed):
            rec.epoch(epoch)
            for rows in told.batches():
                rec.cut(told.z(rows), rows).backward(told.gradient(rows, False))

    verdict, notes = judged(tmp_path, undefended, longer, leaks=False, of=lambda s: 10)
    assert verdict.verdict == "INCONCLUSIVE"
    assert "16 of 16 messages are those of seed 0" in verdict.reason
    assert len([n for n in notes if "no repetition" in n]) == 3
