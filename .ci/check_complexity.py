"""Exit 1 if a function is too complex, takes too many arguments, or is excepted without need.

Complexity is counted as radon does: one for every branch, boolean operator and comprehension.
Arguments are counted as ruff's PLR0913: all but self, cls, ``*args`` and ``**kwargs``. What may
have more stands with its reason in pyproject.toml, under ``[tool.vflsec.exceptions]``.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from radon.complexity import cc_visit_ast
from radon.visitors import Class, Function

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("vflsec", "attacks", "defenses")
MOST_COMPLEX = 20
MOST_ARGUMENTS = 8


def find_complex(tree: ast.Module) -> Iterator[tuple[str, int, str]]:
    """Yield (name, line, what is wrong) of functions and classes that are too complex."""
    for block in cc_visit_ast(tree):
        if block.complexity > MOST_COMPLEX:
            yield _qualify(block), block.lineno, f"complexity {block.complexity}"


def _qualify(block: Function | Class) -> str:
    owner = getattr(block, "classname", None)
    return f"{owner}.{block.name}" if owner else str(block.name)


def find_long_signatures(tree: ast.AST, owner: str = "") -> Iterator[tuple[str, int, str]]:
    """Yield (name, line, what is wrong) of functions that take too many arguments."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            taken = len(node.args.posonlyargs + node.args.args + node.args.kwonlyargs)
            static = any(getattr(d, "id", "") == "staticmethod" for d in node.decorator_list)
            taken -= bool(owner) and not static
            if taken > MOST_ARGUMENTS:
                name = f"{owner}.{node.name}" if owner else node.name
                yield name, node.lineno, f"{taken} arguments"
            yield from find_long_signatures(node)
        else:
            inner = node.name if isinstance(node, ast.ClassDef) else owner
            yield from find_long_signatures(node, inner)


def main(root: Path = ROOT) -> int:
    """Print what is too much, and exceptions that nothing needs; 1 if there is either."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    excepted: dict[str, str] = settings["tool"]["vflsec"]["exceptions"]
    used, wrong = set(), 0
    for file in sorted(f for folder in FOLDERS for f in (root / folder).rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for name, line, why in (*find_complex(tree), *find_long_signatures(tree)):
            place = file.relative_to(root)
            key = f"{place.as_posix()}:{name}"
            if key in excepted:
                used.add(key)
            else:
                wrong += 1
                print(f"{place}:{line}: {name}: {why}")
    unneeded = sorted(excepted.keys() - used)
    for key in unneeded:
        print(f"pyproject.toml: {key}: needs no exception any more")
    return 1 if wrong or unneeded else 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT))
