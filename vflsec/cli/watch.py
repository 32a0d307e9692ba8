"""Audit again when a scenario or one of its tables changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from vflsec.cli.output import fail, say
from vflsec.config.scenario import find_scenario, load_scenario
from vflsec.errors import VflsecError

Stamps = dict[Path, tuple[int, int] | None]
"""Time of change and size by file; None where there is no such file."""
_PAUSE = 1.0


def watch_files(
    scenario: str, overrides: Sequence[str], audit: Callable[[], object],
    *, sleep: Callable[[float], None] = time.sleep,
) -> None:  # fmt: skip
    """Call `audit` now and after each change of a file, until it is interrupted.

    Raises:
        ScenarioError: there is no such scenario.
    """
    files = [find_scenario(scenario)]
    while True:
        stamps = _stamp(files)
        try:
            files = _list_files(scenario, overrides)
            stamps = _stamp(files)
            audit()
        except VflsecError as error:
            fail(f"error: {error}", 2, False)
        say(f"Watching {', '.join(path.name for path in files)}. Ctrl-C ends.")
        _await_change(stamps, sleep)


def _list_files(scenario: str, overrides: Sequence[str]) -> list[Path]:
    """The scenario and its tables."""
    loaded = load_scenario(scenario, overrides, components=False)
    tables = [t for data in loaded.root.data for t in (data.file, *data.files.values()) if t]
    return [find_scenario(scenario), *(loaded.base / t for t in dict.fromkeys(tables))]


def _stamp(files: Iterable[Path]) -> Stamps:
    out: Stamps = {}
    for path in files:
        try:
            found = path.stat()
            out[path] = (found.st_mtime_ns, found.st_size)
        except OSError:
            out[path] = None
    return out


def _await_change(stamps: Stamps, sleep: Callable[[float], None]) -> None:
    """Return when a file has changed and none was being written for one pause."""
    before = stamps
    while True:
        sleep(_PAUSE)
        now = _stamp(stamps)
        if now != stamps and now == before:
            return
        before = now
