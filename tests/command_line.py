"""The command line in this process: what a command prints, and that it ends as it must."""

from __future__ import annotations

import pytest

from vflsec.cli import main

__all__ = ["Cli"]


class Cli:
    """Runs commands; what a test asks for is printed by the command alone.

    Attributes:
        out, err: what the last command printed.
    """

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys
        self.out = self.err = ""

    def __call__(self, *args: object) -> int:
        """The exit code of a command."""
        self.capsys.readouterr()
        code = main.main([str(a) for a in args])
        self.out, self.err = self.capsys.readouterr()
        return code

    def says(self, *args: object, code: int = 0) -> str:
        """What a command prints that must end with `code`."""
        assert self(*args) == code, self.err
        return self.out

    def refuses(self, *args: object) -> str:
        """The error of a command that must be refused: 2, and no traceback."""
        assert self(*args) == 2, self.err
        assert "Traceback" not in self.err
        return self.err
