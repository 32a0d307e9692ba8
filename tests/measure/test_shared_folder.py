"""Controls that workers share in a folder: the same numbers, made once, whoever dies meanwhile."""

from __future__ import annotations

import math
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forked import CONTEXT
from test_shared import cells, figures

from vflsec.core.guess import Guess
from vflsec.data.prepare import make_task
from vflsec.engine.cohort import run_cohort
from vflsec.measure import control_maker
from vflsec.measure.control_cache import SharedControls, SharedFolder
from vflsec.measure.controls import Control, controls_for
from vflsec.plugins import registry
from vflsec.runtime.file_locks import LOCKS
from vflsec.specs import AttackSpec

KEYS = [("training", seed, seed + 9, "of") for seed in range(5)]


def controls(seed: int = 0) -> list[Control]:
    rng = np.random.default_rng(seed)
    rows = rng.permutation(7)
    one = Guess("label", rows, rng.standard_normal((7, 3)), notes={"cv": {"mlp": 0.1}, "c": None})
    group, abstain = np.arange(7) % 2, np.arange(7) > 4
    two = Guess("label", rows, rng.standard_normal(7), group, abstain)
    return [Control("majority", one, math.nan), Control("logistic(C=0.1)", two, 0.1 + 0.2)]


def same(a: list[Control], b: list[Control]) -> bool:
    def told(c: Control) -> list[Any]:
        g = c.guess
        arrays = [None if x is None else (x.dtype.str, x.shape, x.tobytes())
                  for x in (g.rows, g.scores, g.group, g.abstain)]  # fmt: skip
        return [c.name, repr(c.cv), g.target, g.notes, *arrays]

    return [told(c) for c in a] == [told(c) for c in b]


def test_what_one_worker_keeps_another_finds_to_the_last_bit(tmp_path: Path) -> None:
    one, other = SharedFolder(tmp_path), SharedFolder(tmp_path)
    one.put(KEYS[0], controls())
    found = other.get(KEYS[0])
    assert found is not None
    assert same(found, controls())
    assert other.get(KEYS[0]) is found  # read once
    assert other.get(KEYS[1]) is None
    assert SharedControls().get(KEYS[0]) is None


@pytest.mark.parametrize("spoiled", ["not finite", "no text"])
def test_what_cannot_be_written_as_it_is_stays_at_hand_only(tmp_path: Path, spoiled: str) -> None:
    made = controls()
    if spoiled == "not finite":
        made[0].guess.scores[0, 0] = math.nan
    else:
        made[0].guess.notes["of"] = object()
    one = SharedFolder(tmp_path)
    one.put(KEYS[0], made)
    assert one.get(KEYS[0]) is made
    assert SharedFolder(tmp_path).get(KEYS[0]) is None


def test_the_folder_has_an_end(tmp_path: Path) -> None:
    size = sum(c.guess.scores.nbytes + c.guess.rows.nbytes for c in controls())
    one = SharedFolder(tmp_path, room=2 * size)
    for key in KEYS:
        one.put(key, controls())
    written = [key for key in KEYS if SharedFolder(tmp_path).get(key) is not None]
    assert written == KEYS[:1]  # a file has a header too
    assert all(one.get(key) is not None for key in KEYS)


@pytest.mark.skipif(not LOCKS, reason="this system has no locks on files")
@pytest.mark.parametrize("what", ["half", "empty", "a folder", "no folder", "a file"])
def test_a_folder_that_is_damaged_or_gone_costs_time_alone(what: str, tmp_path: Path) -> None:
    """Each of these ended the attack, or the worker, in an error."""
    folder = tmp_path / "shared"
    folder.mkdir()
    SharedFolder(folder).put(KEYS[0], controls())
    (kept,) = folder.iterdir()
    whole = kept.read_bytes()
    kept.unlink()
    if what in ("half", "empty"):
        kept.write_bytes(whole[: len(whole) // 2] if what == "half" else b"")
    elif what == "a folder":
        kept.mkdir()
    else:
        folder.rmdir()
        if what == "a file":
            folder.write_bytes(b"")
    shared = SharedFolder(folder)
    assert shared.get(KEYS[0]) is None
    with shared.claim(KEYS[:1]) as mine:
        assert list(mine) == KEYS[:1]
        shared.put(KEYS[0], controls(1))
    found = shared.get(KEYS[0])
    assert found is not None
    assert same(found, controls(1))
    again = SharedFolder(folder).get(KEYS[0])
    assert (again is not None) == (what in ("half", "empty"))


def test_of_what_is_missing_each_worker_takes_half(tmp_path: Path) -> None:
    one, other, third = (SharedFolder(tmp_path) for _ in range(3))
    with one.claim(KEYS) as mine, other.claim(KEYS) as theirs:
        assert list(mine) == KEYS[:3]
        assert list(theirs) == KEYS[3:]
        waited = threading.Event()

        def wait() -> None:
            with third.claim(KEYS) as rest:
                assert list(rest) == []
            waited.set()

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        assert not waited.wait(0.3)  # until one of them is done
    assert waited.wait(10)
    thread.join()
    with third.claim(KEYS[:1]) as mine:
        assert list(mine) == KEYS[:1]


def _hold(folder: Path, told: Connection) -> None:
    with SharedFolder(folder).claim([("a", 1)]) as mine:
        told.send(len(mine))
        time.sleep(60)


@pytest.mark.skipif(not LOCKS, reason="this system has no locks on files")
def test_what_a_worker_held_that_was_killed_is_free(tmp_path: Path) -> None:
    heard, told = CONTEXT.Pipe(duplex=False)
    held = CONTEXT.Process(target=_hold, args=(tmp_path, told), daemon=True)
    held.start()
    told.close()  # so that its end is heard
    try:
        assert heard.recv() == 1
    finally:
        held.kill()
        held.join(timeout=60)
    with SharedFolder(tmp_path).claim([("a", 1)]) as mine:
        assert list(mine) == [("a", 1)]


@pytest.mark.slow
@pytest.mark.skipif(not LOCKS, reason="this system has no locks on files")
def test_two_workers_make_every_control_once_and_find_the_figures_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two defenses on the same seeds, audited at the same time."""
    made: list[int] = []
    meet = threading.Barrier(2)
    real = controls_for

    def counted(attack: Any, views: Any, *rest: Any) -> Any:
        made.append(len(views))
        return real(attack, views, *rest)

    monkeypatch.setattr(control_maker, "controls_for", counted)
    source = registry.datasets.create("breast_cancer").load(0)
    tasks = {s: make_task(source, s) for s in range(3)}
    attacks = [AttackSpec("norm", adversary=("passive",), known_rows=10)]
    names = ("iso", "noise")
    found: dict[str, Any] = {}

    class Meeting(SharedFolder):
        """Both workers come to the controls together."""

        first = True

        def get(self, key: Any) -> list[Control] | None:
            if self.first:
                self.first = False
                meet.wait(60)
            return super().get(key)

    def work(name: str) -> None:
        shared = Meeting(tmp_path)
        found[name] = run_cohort(cells(name, range(3)), attacks, tasks, device="cpu", shared=shared)

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(made) == 3
    alone = {n: run_cohort(cells(n, range(3)), attacks, tasks, device="cpu") for n in names}
    assert sum(made) == 9
    for name in names:
        assert figures(found[name]) == figures(alone[name])
