"""Names that a module offers and that are imported when they are first asked for.

They stand once: in its imports under ``if TYPE_CHECKING``, which are read here as well.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Collection
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy_names(
    module: str, packages: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of the module of this name.

    Args:
        module: whose names they are.
        packages: names for which its packages stand, which can be called as what is imported.
    """

    @cache
    def homes() -> dict[str, tuple[str, str]]:
        source = Path(str(sys.modules[module].__file__)).read_text("utf-8")
        block = next(n for n in ast.parse(source).body if isinstance(n, ast.If))
        imports = [n for n in block.body if isinstance(n, ast.ImportFrom)]
        return {a.asname or a.name: (str(n.module), a.name) for n in imports for a in n.names}

    def find(name: str) -> Any:
        if name in packages:
            return import_module(f"{module}.{name}")
        if name.startswith("__") or name not in homes():
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, own = homes()[name]
        found = import_module(home)
        return getattr(found, own) if hasattr(found, own) else import_module(f"{home}.{own}")

    def names() -> list[str]:
        return sorted(sys.modules[module].__all__)

    return find, names
