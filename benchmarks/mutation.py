"""A mutation score of the tests: faults put into the code that decides, one at a time.

Run ``python benchmarks/mutation.py`` (ten to twenty minutes on one core; ``--of 0`` tries every
mutant, ``gate`` one area only). A comparison, an operator, a number, a condition or a bound of a
module is changed, and the tests of its area run on it in a process of their own. A mutant that
they pass survives; ``--survivors`` prints each. No file is changed.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import numpy as np
import pytest

from vflsec.audit.intervals import clopper_pearson

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 120
"""After which a mutant that does not end counts as found."""


@dataclass(frozen=True)
class Area:
    """Modules that decide one thing, and the tests that must find a fault in them."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]


AREAS = {
    "gate": Area(
        ("audit.gate_rules", "audit.judge"),
        ("audit/test_gate.py", "audit/test_gate_detect.py", "audit/test_seed_apart.py",
         "audit/test_unsettled.py", "audit/test_error_removed.py", "audit/test_named.py",
         "audit/test_who_decides.py"),
    ),
    "leakage": Area(
        ("audit.leakage", "audit.controls", "audit.intervals"),
        ("audit/test_leakage.py", "audit/test_intervals.py", "audit/test_beside.py",
         "audit/test_exposed.py", "audit/test_point.py", "audit/test_gate.py",
         "audit/test_controls.py", "audit/test_error_removed.py",
         "audit/test_leakage_by_hand.py"),
    ),
    "join": Area(
        ("data.tables", "data.id_spelling", "data.repeated_rows"),
        ("data/test_tables.py", "data/test_respelled_ids.py", "data/test_repeated_rows.py",
         "data/test_hostile_tables.py", "data/test_twins.py"),
    ),
    "accounting": Area(
        ("core.accountants", "core.privacy_usage"),
        ("core/test_uses_counted.py", "defenses/test_accounting.py"),
    ),
}  # fmt: skip

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult,
}  # fmt: skip
_CALLED = {"max": "min", "min": "max", "any": "all", "all": "any"}
_SKIPPED = (ast.Assert, ast.Raise, ast.AnnAssign, ast.JoinedStr)
"""What narrows types, words of errors and types of fields: no decision."""


def find_places(tree: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """Nodes that can be changed, in the order of the source."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, _SKIPPED):
            continue
        if isinstance(node, ast.expr | ast.stmt) and is_changeable(node):
            yield node
        yield from find_places(node)


def is_changeable(node: ast.AST) -> bool:
    """Whether :func:`change` has another form of it."""
    match node:
        case ast.Compare(ops=[op]):
            return type(op) in _COMPARED
        case ast.BinOp(op=op, left=left, right=right):
            texts = (isinstance(x, ast.Constant | ast.JoinedStr | ast.List) for x in (left, right))
            return type(op) in _OPERATORS and not all(texts)
        case ast.BoolOp() | ast.UnaryOp(op=ast.Not()) | ast.If() | ast.IfExp():
            return True
        case ast.Constant(value=value):
            return isinstance(value, bool | int | float)
        case ast.Call(func=ast.Name(id=name)):
            return name in _CALLED
    return False


def change(node: ast.expr | ast.stmt) -> str:
    """Change a node of a tree; returns what was done, in a word or two."""
    match node:
        case ast.Compare():
            node.ops = [_COMPARED[type(node.ops[0])]()]
        case ast.BinOp():
            node.op = _OPERATORS[type(node.op)]()
        case ast.BoolOp():
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        case ast.If() | ast.IfExp():
            node.test = ast.UnaryOp(ast.Not(), node.test)
            return "condition negated"
        case ast.UnaryOp():
            node.op, node.operand = ast.Not(), ast.UnaryOp(ast.Not(), node.operand)
            return "negation dropped"
        case ast.Constant(value=bool(value)):
            node.value = not value
        case ast.Constant(value=int(value) | float(value)):
            node.value = value + 1
        case ast.Call(func=ast.Name() as func):
            func.id = _CALLED[func.id]
    return f"to `{ast.unparse(ast.fix_missing_locations(node))}`"


@dataclass(frozen=True)
class Mutant:
    """One fault: the module, where it stands, what it is, and the code with it."""

    module: str
    line: int
    what: str
    code: CodeType


def make_mutants(module: str) -> list[Mutant]:
    """Every fault of a module."""
    path = ROOT / "vflsec" / f"{module.replace('.', '/')}.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = []
    for i in range(sum(1 for _ in find_places(tree))):
        mine = copy.deepcopy(tree)
        node = list(find_places(mine))[i]
        what = change(node)
        code = compile(ast.fix_missing_locations(mine), str(path), "exec", dont_inherit=True)
        found.append(Mutant(f"vflsec.{module}", node.lineno, what, code))
    return found


class _Faulty(MetaPathFinder, Loader):
    """Gives a module the code of a mutant when it is imported; a plug-in of pytest."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return spec_from_loader(name, self) if name == self.mutant.module else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_load_initial_conftests(self) -> None:
        """Stand before pytest's own finder, which reads the files of plug-ins."""
        sys.meta_path.insert(0, self)

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = self.mutant.code.co_filename
        exec(self.mutant.code, module.__dict__)  # noqa: S102 (that is what importing is)


def is_found(mutant: Mutant | None, tests: tuple[str, ...]) -> bool:
    """Whether the tests fail on a mutant; None: on the code as it is."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
    import signal

    signal.alarm(SECONDS if mutant else 10 * SECONDS)
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    paths = [str(ROOT / "tests" / t) for t in tests]
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow"]
    os._exit(int(pytest.main([*options, *paths], [_Faulty(mutant)] if mutant else [])))


def import_what_tests_import() -> None:
    """What is no part of this project, once for all mutants."""
    for name in ("torch", "pandas", "scipy.stats", "sklearn.ensemble", "pydantic",
                 "matplotlib.figure", "rich.console", "jinja2", "typer"):  # fmt: skip
        importlib.import_module(name)


def main() -> None:
    """Try mutants of each area and print the share that its tests find."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("areas", nargs="*", help=f"of {', '.join(AREAS)}; all by default")
    parser.add_argument("--of", type=int, default=60, help="mutants an area; 0 for all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--survivors", action="store_true", help="print each that is not found")
    given = parser.parse_args()
    import_what_tests_import()
    for module in [name for name in sys.modules if name.partition(".")[0] == "vflsec"]:
        del sys.modules[module]
    for name in given.areas or AREAS:
        area = AREAS[name]
        if is_found(None, area.tests):
            sys.exit(f"{name}: the tests fail on the code as it is")
        every = [m for module in area.modules for m in make_mutants(module)]
        rng = np.random.default_rng(given.seed)
        tried = sorted(rng.permutation(len(every))[: given.of or len(every)])
        left = [every[i] for i in tried if not is_found(every[i], area.tests)]
        found = len(tried) - len(left)
        low, high = clopper_pearson(found, len(tried), 0.95)
        print(f"{name:12s}{found:5d} of {len(tried):4d} found: {found / len(tried):.2f} "
              f"[{low:.2f}, {high:.2f}], {len(every)} in all", flush=True)  # fmt: skip
        for m in left if given.survivors else []:
            print(f"    {m.module}:{m.line} {m.what}", flush=True)


if __name__ == "__main__":
    main()
