"""Audit again when a scenario or one of its tables changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from vflsec.cli.output import fail, say
from vflsec.errors import VflsecError
from vflsec.runtime.atomic_files import stamp_files


def watch_files(
    list_files: Callable[[], Sequence[Path]], audit: Callable[[], object],
    *, sleep: Callable[[float], None] = time.sleep,
) -> None:  # fmt: skip
    """Call `audit` now and after each change of a file that is listed, until it is interrupted."""
    files = list_files()
    while True:
        before = now = stamps = stamp_files(files)
        try:
            audit()
        except VflsecError as error:
            fail(f"error: {error}", 2, False)
        say(f"Watching {', '.join(path.name for path in files)}. Ctrl-C ends.")
        while now == stamps or now != before:  # nothing changed, or it is being written
            sleep(1.0)
            before, now = now, stamp_files(files)
        with suppress(VflsecError):  # the audit says it
            files = list_files()
