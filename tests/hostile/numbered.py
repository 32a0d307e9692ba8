"""Fourteen kinds of holes that a break test found, as data: what was done, the exit code that it
had then as far as it was reported, the one that it must have, and words that must be said.
"""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plugins
import pytest
from audited import SCENARIO, Planted, gate
from cases import CASES, lay
from corpus import GOOD, TABLE, changed
from packages import packaged

from vflsec.cli import main
from vflsec.engine import run as engine
from vflsec.specs import AttackSpec, CellResult, CellSpec

LEAKS = {"norm": 0.3, "model_completion": 0.2}
SAFE = {"norm": 0.0, "model_completion": 0.02}
STRICT, LAX = gate(max=0.1), gate(max=0.4)
HANGS = -1  # for an exit code: it did not end


@dataclass
class World:
    """A folder and a command line.

    Attributes:
        folder: an empty one.
        patch: undone after the case.
        capsys: what is printed.
    """

    folder: Path
    patch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def file(self, name: str, content: str | bytes) -> Path:
        """Write a file."""
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def call(self, *args: object) -> tuple[int, str]:
        """The exit code of a command, and all that it says on one line."""
        code = main.main([str(a) for a in args])
        seen = self.capsys.readouterr()
        return code, " ".join((seen.out + seen.err).split())

    def planted(self, planted: Planted, text: str = "", *args: object) -> tuple[int, str]:
        """Audit a scenario whose figures are planted, into the folder ``out``."""
        self.patch.setattr(engine, "default_backend", planted.backend)
        path = self.file("case.toml", SCENARIO + text)
        return self.call("audit", path, "--out", self.folder / "out", "-q", *args)

    def real(self, text: str, *args: object) -> tuple[int, str]:
        """Audit a scenario of 60 rows for real, into the folder ``out``."""
        self.file("t.csv", TABLE)
        path = self.file("case.toml", text)
        return self.call("audit", path, "--out", self.folder / "out", "-q", *args)

    def case(self, name: str) -> tuple[int, str]:
        """A case of the corpus."""
        return self.call(*lay(CASES[name], self.folder))


Act = Callable[[World], tuple[int, str]]


@dataclass(frozen=True)
class Numbered:
    """One hole.

    Attributes:
        kind: its number.
        what: is done, in words.
        before: exit code of the version in which it was found.
        now: exit code that must come.
        words: that must be said.
        act: does it.
    """

    kind: int
    what: str
    before: int
    now: int
    words: str
    act: Act


class _Without(Planted):
    """Some seeds have no figure of an attack."""

    def _cell(self, cell: CellSpec, attacks: Sequence[AttackSpec]) -> CellResult:
        out = super()._cell(cell, attacks)
        if cell.seed < 3:
            out.measures = [m for m in out.measures if not m.attack]
        return out


def _two_audits(world: World) -> tuple[int, str]:
    codes: list[tuple[int, str]] = []

    class Meanwhile(Planted):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            if not codes:
                lax = world.file("lax.toml", SCENARIO + LAX)
                import threading

                other = threading.Thread(
                    target=lambda: codes.append(
                        (main.main(["audit", str(lax), "--out", str(world.folder / "out")]), "")
                    )
                )
                other.start()
                other.join()
            return super().__call__(*args, **kwargs)

    world.patch.setattr("signal.signal", lambda *_: None)  # only a main thread may
    found = world.planted(Meanwhile(LEAKS), STRICT)
    assert codes == [(2, "")]
    return found


def _module(text: str, command: str = "check") -> Act:
    def act(world: World) -> tuple[int, str]:
        world.file("mine.py", text)
        world.file("t.csv", TABLE)
        path = world.file("case.toml", f'{GOOD}[parties.b]\nmodule = "mine:Net"\n')
        more = ("--out", world.folder / "out") if command == "audit" else ()
        return world.call(command, path, *more)

    return act


def _attack(body: str, text: str = GOOD) -> Act:
    def act(world: World) -> tuple[int, str]:
        world.patch.syspath_prepend(str(world.folder))
        packaged(world.folder, "attack", {"mine": plugins.ATTACK.format(extra="", body=body)})
        return world.real(text + '[[attack]]\nname = "mine"\n')

    return act


def _defense(body: str) -> Act:
    def act(world: World) -> tuple[int, str]:
        world.patch.syspath_prepend(str(world.folder))
        packaged(world.folder, "defense", {"mine": plugins.DEFENSE.format(extra="", body=body)})
        return world.real(GOOD + '[[defense]]\nname = "mine"\nstrength = [0, 0.5]\n')

    return act


def _edited_module(world: World) -> tuple[int, str]:
    net = "import torch\ndef Net(schema, out): return torch.nn.Linear(schema.shape[0], out){}\n"
    text = LAX.replace("0.4", "0.25") + '[parties.shop]\nmodule = "mine:Net"\n'
    world.file("mine.py", net.format(""))
    assert world.planted(Planted(LEAKS | {"norm": 0.2}), text)[0] == 0
    from vflsec.plugins import loading as code

    sys.modules.pop("mine", None)
    world.patch.setattr(code, "_known", {})  # as in a new process
    world.file("mine.py", net.format("  # edited"))
    return world.planted(Planted(LEAKS | {"norm": 0.4}), text)


def _edited_gates(*more: str) -> Act:
    def act(world: World) -> tuple[int, str]:
        assert world.planted(Planted(LEAKS), LAX)[0] == 0
        path = world.file("case.toml", SCENARIO + STRICT)
        more_ = [str(path) if m == "{}" else m for m in more]
        return world.call("gate", world.folder / "out", *more_)

    return act


def _closed_pipe(error: int) -> Act:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(error, os.strerror(error))

    def act(world: World) -> tuple[int, str]:
        world.patch.setattr(sys, "stdout", Broken())
        found = world.planted(Planted(LEAKS), LAX)
        assert (world.folder / "out" / "report.html").stat().st_size > 0
        return found

    return act


def _markup(world: World) -> tuple[int, str]:
    world.patch.chdir(world.folder)
    world.patch.setattr(engine, "default_backend", Planted(LEAKS).backend)
    return world.call("audit", world.file("case.toml", SCENARIO + LAX), "--out", "[red]x")


def _no_color(world: World) -> tuple[int, str]:
    for name, value in (("NO_COLOR", "1"), ("FORCE_COLOR", "1"), ("TERM", "xterm-256color")):
        world.patch.setenv(name, value)
    code, said = world.planted(Planted(LEAKS), LAX)
    assert "\x1b" not in said
    return code, said


def _foreign(world: World) -> tuple[int, str]:
    (world.folder / "out").mkdir()
    world.file("out/results.csv", "mine\n")
    found = world.planted(Planted(LEAKS), LAX)
    assert (world.folder / "out" / "results.csv").read_text() == "mine\n"
    return found


def _leftover(world: World) -> tuple[int, str]:
    (world.folder / "out").mkdir()
    world.file("out/.results.csv.abcd1234", "half")
    found = world.planted(Planted(LEAKS), LAX)
    assert not (world.folder / "out" / ".results.csv.abcd1234").exists()
    return found


def _bomb(world: World) -> tuple[int, str]:
    world.file("t.csv.gz", gzip.compress(b"id,x1,x2,y\n" + b"1" * 30_000_000))
    text = changed("t.csv", "t.csv.gz").replace("[data]\n", "[data]\nmax_bytes = 1000000\n")
    return world.call("check", world.file("case.toml", text))


def _broken_store(world: World) -> tuple[int, str]:
    import sqlite3

    assert world.planted(Planted(LEAKS), LAX)[0] == 0
    with sqlite3.connect(world.folder / "out" / "results.sqlite") as db:
        db.execute("drop table measures")
    db.close()
    return world.call("gate", world.folder / "out")


def _broken_summary(world: World) -> tuple[int, str]:
    world.file("summary.json", "[1]")
    return world.call("report", world.folder)


def _corpus(name: str) -> Act:
    return lambda world: world.case(name)


def _set(text: str) -> Act:
    return lambda world: world.planted(Planted(LEAKS), LAX, "--set", text)


def _plan(text: str, table: str = TABLE) -> Act:
    def act(world: World) -> tuple[int, str]:
        world.file("t.csv", table)
        return world.call("check", world.file("case.toml", text))

    return act


def _seeds(world: World) -> tuple[int, str]:
    return world.planted(Planted(LEAKS, sd=0.0), LAX, "--seeds", 2)


EXIT = "import sys\nsys.exit(0)\n"
NUMBERED: tuple[Numbered, ...] = (
    Numbered(1, "a lax audit is started into the folder of a strict one", 0, 1, "FAIL",
             _two_audits),
    Numbered(2, "a module exits at import, check", 0, 2, "sys.exit(0)", _module(EXIT)),
    Numbered(2, "a module exits at import, audit", 0, 2, "sys.exit(0)", _module(EXIT, "audit")),
    Numbered(2, "a module really exits", 0, 2, "os._exit(0)", _module("import os\nos._exit(0)\n")),
    Numbered(2, "an attack exits", 0, 3, "sys.exit(0)", _attack("sys.exit(0)")),
    Numbered(2, "an attack really exits", 0, 3, "os._exit(0)", _attack("os._exit(0)")),
    Numbered(2, "a defense exits", 0, 2, "sys.exit(0)", _defense("sys.exit(0)")),
    Numbered(3, "a module is edited and then leaks", 0, 1, "FAIL", _edited_module),
    # of the fourth kind `audit` ended with 3, when everything was trained
    Numbered(4, "a misspelt attack", 0, 2, "Did you mean 'norm'?",
             _corpus("gate of an attack that is not there")),
    Numbered(4, "a misspelt data set", 0, 2, "gate.0.dataset must be one of t,",
             _corpus("gate of other data")),
    Numbered(4, "an algorithm that is not there", 0, 2, "gate.0.algorithm must be one of splitnn,",
             _corpus("gate of another algorithm")),
    Numbered(4, "an adversary that is not there", 0, 2, "gate.0.adversary must be one of b,",
             _corpus("gate of a coalition")),
    Numbered(4, "a defense that is not there", 0, 2, "gate.0.defense must be one of none,",
             _corpus("gate of a defense")),
    Numbered(4, "a strength that is not swept", 0, 2, "must be one of",
             _corpus("gate of a strength")),
    Numbered(4, "a phase that is not there", 0, 2, "gate.0.phase must be one of train,",
             _corpus("gate of a phase")),
    Numbered(4, "rows that are not scored", 0, 2, "gate.0.split must be one of train,",
             _corpus("gate of other rows")),
    Numbered(4, "a limit that nothing can reach", 0, 2, "can reach",
             _corpus("gate advantage that cannot fail")),
    Numbered(5, "two seeds without spread", 0, 3, "of the 3 seeds needed", _seeds),
    Numbered(5, "three of five seeds without a figure", 0, 3, "INCONCLUSIVE",
             lambda world: world.planted(_Without(LEAKS), LAX)),
    Numbered(5, "a confidence of 0.55", 0, 2, "at least 0.8",
             lambda world: world.planted(Planted(LEAKS), gate(max=0.4, confidence=0.55))),
    Numbered(6, "gate after an edit", 0, 0, "was edited since",
             _edited_gates()),
    Numbered(6, "gate of the edited scenario", 2, 1, "FAIL", _edited_gates("--scenario", "{}")),
    Numbered(7, "a defense is noise at strength 0", 0, 2, "at strength 0",
             _defense("return message.tensor + 1e-6")),
    Numbered(8, "an attack raises KeyError", 4, 3, "KeyError: 'lost'", _attack('{}["lost"]')),
    Numbered(8, "an attack raises TypeError", 4, 3, "TypeError", _attack('1 + "x"')),
    Numbered(8, "an attack runs out of memory", 4, 3, "MemoryError", _attack("raise MemoryError")),
    Numbered(8, "an attack returns None", 4, 3, "returned NoneType", _attack("return None")),
    Numbered(8, "an attack guesses other rows", 4, 3, "row", _attack("rows = rows + 10**6")),
    Numbered(8, "an attack guesses something else", 2, 3, "got 'feature'",
             _attack('return Guess("feature", rows, scores)')),
    Numbered(8, "an attack hangs", HANGS, 3, "took longer than its timeout",
             _attack("while True: pass", changed("seeds = 2", "seeds = 2\ntimeout = 0.2"))),
    Numbered(9, "nested arrays", 4, 2, "nested deeper", _corpus("deep list")),
    Numbered(9, "nested tables", 4, 2, "nested deeper", _corpus("deep inline table")),
    Numbered(9, "an integer of 5000 digits", 4, 2, "64 bits", _corpus("5000 digits")),
    Numbered(9, "a module raises", 4, 2, "KeyError: 'at import'", _corpus("module raises")),
    Numbered(9, "a module is not Python", 4, 2, "SyntaxError", _corpus("module is not Python")),
    Numbered(9, "a relative module", 4, 2, "package.module:Name", _corpus("module relative")),
    Numbered(9, "os:system", 4, 2, "cannot be made", _corpus("module of the system")),
    Numbered(9, "a module that is a number", 4, 2, "make a torch.nn.Module",
             _corpus("module is a number")),
    Numbered(9, "a file name of 5000 characters", 4, 2, "error:", _corpus("a long file name")),
    Numbered(9, "a store without a table", 4, 2, "is damaged", _broken_store),
    Numbered(9, "a summary that is a list", 4, 2, "summary.json", _broken_summary),
    Numbered(10, "a closed pipe", 1, 0, "", _closed_pipe(errno.EPIPE)),
    Numbered(10, "a full disk under the output", 4, 0, "", _closed_pipe(errno.ENOSPC)),
    Numbered(10, "markup in --out", 4, 0, "Results: [red]x", _markup),
    Numbered(10, "NO_COLOR", 0, 0, "PASS", _no_color),
    Numbered(11, "a name that leads elsewhere", 0, 2, "must be a plain name",
             _corpus("name is traversal")),
    Numbered(11, "an absolute name", 0, 2, "must be a plain name", _corpus("name is absolute")),
    Numbered(11, "an empty --out", 0, 2, "must have a name", _corpus("command: out is empty")),
    Numbered(11, "a results.csv of the user", 0, 2, "results.csv: was not written by", _foreign),
    Numbered(12, "a formula as the name of data", 0, 2, "begin with a letter",
             _plan(changed('label = "y"', 'label = "y"\nname = "=cmd|x!A0"'))),
    Numbered(12, "a null character in an id", 4, 2, "",
             _plan(GOOD, TABLE.replace("\n8,", "\n8\0,"))),
    Numbered(12, "a party called passive", 3, 2, "'passive'", _corpus("a party called passive")),
    Numbered(12, "nothing is trained", 0, 2, "must be >= 1", _corpus("nothing trained")),
    Numbered(12, "a gzip bomb", HANGS, 2, "at most", _bomb),
    Numbered(12, "a killed export left half a file", 0, 0, "PASS", _leftover),
    Numbered(13, "a layer of a billion", HANGS, 2, "memory", _corpus("a layer beyond memory")),
    Numbered(13, "a sweep of a hundred million", HANGS, 2, "must make at most 10000",
             _corpus("a sweep without end")),
)  # fmt: skip


def summary_of(world: World) -> dict[str, Any]:
    """What the audit wrote."""
    found: dict[str, Any] = json.loads((world.folder / "out" / "summary.json").read_text())
    return found
