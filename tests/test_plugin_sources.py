"""What a plug-in's sources are asked, safe with threads."""

from __future__ import annotations

import ast
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from vflsec import plugins


def test_sources_are_parsed_by_one_thread_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython counts the depth of a tree for all threads: workers in threads met a SystemError."""
    parse, now, most = ast.parse, list[int](), list[int]()

    def slow(*given: Any) -> ast.AST:
        now.append(1)
        most.append(len(now))
        time.sleep(0.01)
        now.pop()
        return parse(*given)

    monkeypatch.setattr(ast, "parse", slow)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: plugins._imports(Path(__file__), ""), range(8)))
    assert max(most) == 1
    assert found == [found[0]] * 8
    assert "vflsec" in found[0]
