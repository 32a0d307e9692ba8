"""Exit 1 if files of the package import each other in a circle.

Every import counts: those for type checkers only and those inside a function, too. A circle is a
strongly connected group of files (Tarjan 1972); each is printed with the imports that close it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "vflsec"
# Folders of the root that are linked into the package, and are read there once.
FOLDERS = (PACKAGE, "attacks", "defenses")


def find_modules(root: Path) -> dict[str, Path]:
    """Map the dotted name of every module to its file."""
    modules = {}
    for folder in FOLDERS:
        prefix = () if folder == PACKAGE else (PACKAGE,)
        for file in sorted((root / folder).rglob("*.py")):
            parts = (*prefix, *file.relative_to(root).with_suffix("").parts)
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            modules.setdefault(name, file)
    return modules


def find_imports(name: str, file: Path) -> Iterator[tuple[str, str]]:
    """Yield (module, name or "") for every import statement of the file, wherever it stands."""
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] if node.level else ""
            source = ".".join(part for part in (base, node.module) if part)
            yield from ((source, alias.name) for alias in node.names)


def build_graph(modules: dict[str, Path]) -> dict[str, set[str]]:
    """Map every module to the modules that its file imports."""
    graph: dict[str, set[str]] = {}
    for name, file in modules.items():
        found = set()
        for source, member in find_imports(name, file):
            inner = f"{source}.{member}"
            found.add(inner if inner in modules else source)
        graph[name] = (found & modules.keys()) - {name}
    return graph


def find_circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected groups of two modules and more, each in alphabetical order."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    circles: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                circles.append(sorted(group))

    sys.setrecursionlimit(10_000)
    for name in sorted(graph):
        if name not in index:
            visit(name)
    return sorted(circles)


def main(root: Path = ROOT) -> int:
    """Print every circle, and return 1 if there is one."""
    graph = build_graph(find_modules(root))
    circles = find_circles(graph)
    for circle in circles:
        print(f"{len(circle)} files import each other in a circle:")
        for name in circle:
            print(f"  {name} imports {', '.join(sorted(graph[name] & set(circle)))}")
    return 1 if circles else 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT))
