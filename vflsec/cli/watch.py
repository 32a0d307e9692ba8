"""Audit again when a scenario or one of its tables changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from vflsec.cli.output import fail, say
from vflsec.config.scenario import find_scenario, load_scenario
from vflsec.errors import VflsecError


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
        before = now = stamps
        while now == stamps or now != before:  # nothing changed, or it is being written
            sleep(1.0)
            before, now = now, _stamp(files)


def _list_files(scenario: str, overrides: Sequence[str]) -> list[Path]:
    """The scenario and its tables."""
    loaded = load_scenario(scenario, overrides, components=False)
    tables = [t for data in loaded.root.data for t in (data.file, *data.files.values()) if t]
    return [find_scenario(scenario), *(loaded.base / t for t in dict.fromkeys(tables))]


def _stamp(files: Sequence[Path]) -> list[tuple[int, int]]:
    """Time of change and size of each file; (0, 0) where there is none."""
    found = [path.stat() if path.exists() else None for path in files]
    return [(of.st_mtime_ns, of.st_size) if of else (0, 0) for of in found]
