"""Output that nobody reads: a closed pipe or a full disk never changes a verdict."""

from __future__ import annotations

import errno
import os
import re
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from vflsec.errors import VflsecError
from vflsec.report.sanitize import clean, disarm
from vflsec.report.terminal import console_for
from vflsec.runtime.atomic_files import json_text
from vflsec.runtime.progress_protocol import NOTE

if TYPE_CHECKING:
    from vflsec.audit.result import Audit
    from vflsec.audit.summary import Summary

_CLOSED = (ValueError, AttributeError)  # of a stream that somebody closed or took away


@dataclass
class Lost:
    """Why output was lost; empty while none was, or where its reader had heard enough."""

    why: str = ""


class _Stream:
    """A text stream that goes silent when it cannot be written."""

    def __init__(self, stream: Any, lost: Lost) -> None:
        self._stream, self._lost, self._silent = stream, lost, False

    def write(self, text: str) -> int:
        """Write; what a build server would take for a command is none any more."""
        return self.exactly(disarm(text))

    def exactly(self, text: str) -> int:
        """Write as it stands."""
        if not self._silent:
            try:
                self._plainly(text)
            except (OSError, *_CLOSED) as error:
                self._silence(error)
        return len(text)

    def _plainly(self, text: str) -> None:
        """Write; where the terminal's encoding lacks a letter, a question mark stands for it."""
        try:
            self._stream.write(text)
        except UnicodeEncodeError:
            encoding = self._stream.encoding
            self._stream.write(text.encode(encoding, "replace").decode(encoding))

    def flush(self) -> None:
        if not self._silent:
            try:
                self._stream.flush()
            except (OSError, *_CLOSED) as error:
                self._silence(error)

    def _silence(self, error: Exception) -> None:
        self._silent = True
        if getattr(error, "errno", None) != errno.EPIPE:
            self._lost.why = getattr(error, "strerror", None) or str(error)
        with suppress(OSError, *_CLOSED):  # what is buffered goes nowhere
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def silence_broken_streams() -> Iterator[Lost]:
    """Let standard output and error go silent where they cannot be written; tells why."""
    lost, before = Lost(), (sys.stdout, sys.stderr)
    sys.stdout, sys.stderr = out, err = _Stream(sys.stdout, lost), _Stream(sys.stderr, Lost())  # type: ignore[assignment]
    try:
        yield lost
    finally:
        out.flush()
        err.flush()
        sys.stdout, sys.stderr = before


def print_json(value: Any) -> None:
    """Print plain values as JSON; what looks like a command to a build server is spelt out."""
    typer.echo(json_text(value).replace("##", "#\\u0023"), nl=False)


def say(text: object, *, err: bool = False) -> None:
    """Print a line that holds names of users, or of a trace."""
    typer.echo(clean(text), err=err)


class ProgressLines:
    """Progress of a command beside its output: notes at once, else a line in `pause` seconds."""

    def __init__(self, pause: float = 10.0) -> None:
        self.pause, self.start = pause, time.monotonic()
        self.said = self.start

    def __call__(self, text: str, share: float) -> None:
        """Told what is being done, and the share done or :data:`NOTE`."""
        now = time.monotonic()
        if share == NOTE:
            say(text, err=True)
        elif now - self.said >= self.pause:
            from vflsec.report.numbers import format_duration

            self.said, took = now, now - self.start
            left = f"; about {format_duration(took * (1 - share) / share)} to go" if share else ""
            say(f"[{share:.0%}] {text} ({format_duration(took)}{left})", err=True)


def print_audit(result: Audit, *, notes: Sequence[str] = ()) -> typer.Exit:
    """Print the report of an audit that ended, and where it is; gives the exit to raise."""
    from vflsec.report.build import build_printed
    from vflsec.report.console import print_last, print_report, print_results

    console, shown = console_for(), build_printed(result.found)
    print_report(shown, console)
    for note in notes:
        say(f"note: {note}")
    print_results(result.folder, console)
    notify_github(result.found)
    print_last(shown, console)
    return typer.Exit(result.exit_code)


def notify_github(summary: Summary) -> None:
    """Annotations and the step summary, where the environment asks for them.

    A summary that cannot be written is told; it changes no verdict.
    """
    from vflsec.report.github import workflow_commands, write_step_summary

    for line in workflow_commands(summary):
        send_to_server(line)
    try:
        write_step_summary(summary)
    except VflsecError as error:
        say(f"warning: {error}", err=True)


def send_to_server(line: str) -> None:
    """Print a command to the build server."""
    stream = sys.stdout
    if isinstance(stream, _Stream):
        stream.exactly(f"{line}\n")
    else:
        typer.echo(line)


def report_defect(error: Exception, show_traceback: bool) -> int:
    """Say that vflsec itself is wrong; returns the exit code."""
    text = (
        f"internal error: {type(error).__name__}: {error}\n"
        "Please report this defect with the command, the scenario and --traceback."
    )
    return fail(text, 4, show_traceback)


def fail(text: str, code: int, show_traceback: bool) -> int:
    """Say what is wrong; returns the exit code."""
    if show_traceback:
        traceback.print_exc()
    text = re.sub(r"\S{400,}", lambda m: f"{m[0][:200]}...{m[0][-40:]}", text)
    typer.echo("\n".join(clean(line) for line in text.split("\n")), err=True)
    return code
