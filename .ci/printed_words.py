"""How many words the program can print: texts of two words or more that are no docstring, by room.

python .ci/printed_words.py [ROOT]
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path


def read_texts(path: Path) -> Iterator[str]:
    """The texts of a module, without its docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    for n in ast.walk(tree):
        if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in docs:
            yield n.value


def count_words(root: Path) -> Counter[str]:
    """Words by room of the package."""
    found: Counter[str] = Counter()
    for folder in ("vflsec", "attacks", "defenses"):
        for path in sorted((root / folder).rglob("*.py")):
            words = [[w for w in text.split() if any(map(str.isalpha, w))]
                     for text in read_texts(path)]  # fmt: skip
            room = "/".join(path.relative_to(root).parts[: 2 if folder == "vflsec" else 1])
            found[room] += sum(len(of) for of in words if len(of) > 1)
    return found


if __name__ == "__main__":
    counts = count_words(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
    for room, count in counts.most_common():
        print(f"{count:6d}  {room}")
    print(f"{sum(counts.values()):6d}  in all")
