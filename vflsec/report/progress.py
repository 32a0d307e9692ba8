"""Progress of an audit: bars and the latest figures on a terminal, plain lines when piped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from vflsec.errors import format_count
from vflsec.report.numbers import format_bytes, format_duration
from vflsec.report.sanitize import clean
from vflsec.report.terminal import console_for
from vflsec.runtime.grouping import group_by
from vflsec.runtime.out_of_memory import count_memory
from vflsec.runtime.progress_protocol import Reporter

if TYPE_CHECKING:
    from vflsec.audit.result_row import ResultRow
    from vflsec.plan.values import Plan, Price, Work


def reporter_for(console: Console) -> Reporter:
    """Bars if `console` is a terminal, else lines: for each piece of work, and while none ends."""
    return Terminal(console) if console.is_terminal else Lines(console)


def pick_reporter(asked: Reporter | bool | None) -> Reporter:
    """Who is told: `asked` itself, standard output if True, and by None if it is a terminal."""
    if isinstance(asked, Reporter):
        return asked
    console = console_for()
    return reporter_for(console) if asked or (asked is None and console.is_terminal) else Reporter()


@contextmanager
def show_steps(asked: bool | None) -> Iterator[Callable[[str, float], None]]:
    """A bar that is told of one piece of work: what is being done, and the share done in [0, 1].

    Args:
        asked: whether it is shown; None shows it on a terminal alone.
    """
    console = console_for()
    if not (console.is_terminal if asked is None else asked):
        yield lambda *_: None
        return
    with _make_bars(console) as bars:
        one = bars.add_task("", total=1.0)
        yield lambda what, share: bars.update(one, completed=share, description=clean(what)[:60])
        bars.update(one, completed=1.0)


def _make_bars(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False), BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"), TimeRemainingColumn(), console=console,
        transient=console.is_terminal,
    )  # fmt: skip


def _opening(plan: Plan, folder: Path, works: Sequence[Work]) -> str:
    todo = len({c.key for w in works for c in w.cells})
    total = len(plan.cells)
    if works and set(plan.cells.values()) == {"tuning"}:
        return f"First {format_count(todo, 'training')} on drawn worlds."
    if all(w.kept for w in works):
        more = "; attacking kept views" if works else ""
        return f"{total} of {format_count(total, 'training')} done in {folder}{more}."
    if todo < total:
        return f"Resuming in {folder}: {total - todo} of {format_count(total, 'training')} done."
    return f"{format_count(total, 'training')} into {folder}. {warn_of_memory(plan.cost)}".rstrip()


def warn_of_memory(cost: Price) -> str:
    """That this machine has less memory than is needed, or ''."""
    needed, there = cost.memory_bytes, count_memory()
    if needed <= there:
        return ""
    return (
        f"About {format_bytes(needed)} of memory are needed, this machine has "
        f"{format_bytes(there)}. Attack fewer rows (sample under [audit]) or train fewer systems "
        "at once (--replicas)."
    )


_PAUSE = 60.0


class Lines(Reporter):
    """A plain line for each piece of work, and while none ends at first soon, then one a minute.

    Args:
        console: where to print.
        pause: seconds after which something is said at the latest, the first time.
    """

    def __init__(self, console: Console, pause: float = 10.0) -> None:
        self.console, self.pause = console, pause
        self.done, self.total, self.start = 0, 0, time.monotonic()
        self.cells, self.all, self.said = 0.0, 0, self.start
        self.now: tuple[Work, str, float] | None = None
        self._stop = threading.Event()

    def open(self) -> None:
        threading.Thread(target=self._beat, daemon=True).start()

    def plan(self, plan: Plan, folder: Path, works: Sequence[Work]) -> None:
        """Called twice where settings are searched first."""
        self.total, self.all = len(works), sum(len(w.cells) for w in works)
        self.done, self.cells, self.start = 0, 0.0, time.monotonic()
        self.console.print(clean(_opening(plan, folder, works)), highlight=False)

    def begin(self, work: Work) -> None:
        self.now = work, "", 0.0

    def step(self, work: Work, event: str, fraction: float) -> None:
        self.now = work, event, fraction

    def finish(self, work: Work) -> None:
        self.done, self.now = self.done + 1, None
        self.cells += len(work.cells)
        seconds = time.monotonic() - self.start
        self._say(
            f"[{self.done}/{self.total}] {work.title}: "
            f"{format_count(len(work.cells), 'training')}, "
            f"{format_count(len(work.attacks), 'attack')} ({seconds:.0f} s{self._remains()})"
        )

    def note(self, text: str) -> None:
        self._say(text)

    def close(self) -> None:
        self._stop.set()

    def _say(self, text: str) -> None:
        self.said = time.monotonic()
        self.console.print(clean(text), highlight=False, markup=False, soft_wrap=True)

    def _remains(self) -> str:
        """What is left, by the cells that are done; '' before any is and after all are."""
        share = self.cells
        if self.now is not None:
            work, _, fraction = self.now
            share += len(work.cells) * min(max(fraction, 0.0), 1.0)
        share /= max(self.all, 1)
        if not 0 < share < 1:
            return ""
        left = (time.monotonic() - self.start) * (1 - share) / share
        return f"; about {format_duration(left)} to go"

    def _beat(self) -> None:
        pause = self.pause
        while not self._stop.wait(min(1.0, pause / 4)):
            if time.monotonic() - self.said >= pause:
                pause = min(2 * pause, _PAUSE)
                self._say(self._running(time.monotonic() - self.start))

    def _running(self, seconds: float) -> str:
        if not self.all:
            return f"Reading tables and planning since {format_duration(seconds)}."
        now = self.now
        at = f", at {now[0].title}: {now[1]}".rstrip(": ") if now else ""
        ran = f"running for {format_duration(seconds)}"
        return f"[{self.done}/{self.total}] {ran}{self._remains()}{at}"


class Terminal(Reporter):
    """Two bars and a table of the figures so far."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bars = _make_bars(console)
        self.table: Table | None = None
        self.live = Live(console=console, refresh_per_second=4, transient=True)

    def open(self) -> None:
        self.live.start()
        self.live.update("Reading tables and planning ...")

    def plan(self, plan: Plan, folder: Path, works: Sequence[Work]) -> None:
        self.console.print(clean(_opening(plan, folder, works)), highlight=False)
        if not works:
            self._show()
            return
        for old in self.bars.task_ids:
            self.bars.remove_task(old)
        self.all = self.bars.add_task("all trainings", total=sum(len(w.cells) for w in works))
        self.one = self.bars.add_task("", total=1.0)
        self._show()

    def begin(self, work: Work) -> None:
        self.bars.reset(self.one, description=clean(work.title)[:60], total=1.0)

    def step(self, work: Work, event: str, fraction: float) -> None:
        title = clean(f"{work.title}: {event}")[:60]
        self.bars.update(self.one, completed=fraction, description=title)

    def finish(self, work: Work) -> None:
        self.bars.advance(self.all, len(work.cells))
        self.bars.update(self.one, completed=1.0, description=clean(work.title)[:60])

    def note(self, text: str) -> None:
        self.console.print(clean(text), highlight=False, markup=False)

    def results(self, rows: Sequence[ResultRow]) -> None:
        self.table = _latest(rows)
        self._show()

    def close(self) -> None:
        self.live.stop()

    def _show(self) -> None:
        self.live.update(Group(*[x for x in (self.table, self.bars) if x is not None]))


def _latest(rows: Sequence[ResultRow]) -> Table | None:
    """Mean advantage so far of every attack in its primary metric."""
    ok = [r for r in rows if r.attack and r.status == "ok" and r.metric == r.primary]
    if not ok:
        return None
    table = Table(title="so far", box=None, header_style="dim", pad_edge=False)
    for name in ("data", "defense", "attack", "rows", "advantage", "seeds"):
        table.add_column(name)
    groups = group_by(ok, lambda r: (r.dataset, r.defense, r.strength, r.attack, r.split))
    for (dataset, defense, strength, attack, split), of in list(groups.items())[-12:]:
        point = defense if strength is None else f"{defense} {strength:g}"
        gains = [r.advantage for r in of if r.advantage is not None]
        mean = f"{sum(gains) / len(gains):+.3f}" if gains else "-"
        seeds = str(len({r.seed for r in of}))
        table.add_row(*map(clean, (dataset, point, attack, split)), mean, seeds)
    return table
