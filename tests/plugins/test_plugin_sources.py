"""What a plug-in's sources are asked, safe with threads."""

from __future__ import annotations

import ast
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from vflsec.plugins import loading


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
        source = Path(__file__).read_bytes()
        found = list(pool.map(lambda n: loading._imports(source, f"p{n}"), range(8)))
    assert max(most) == 1
    assert found == [found[0]] * 8
    assert "vflsec.plugins" in found[0]


def test_imports_are_found_wherever_a_statement_may_stand() -> None:
    places = (
        "import a1\n",
        "if x:\n    import a2\nelif y:\n    import a3\nelse:\n    import a4\n",
        "try:\n    import a5\nexcept* E:\n    import a6\nelse:\n    import a7\n"
        "finally:\n    import a8\n",
        "for i in x:\n    import a9\nelse:\n    import a10\n",
        "match x:\n    case 1:\n        with y:\n            import a11\n",
        "class C:\n    async def f(self):\n        async with y:\n            import a12\n",
        "while (lambda: 1 if x else 2)():\n    import a13\n",
    )
    found = loading._imports("".join(places).encode(), "it")
    assert sorted(found) == sorted(f"a{k}" for k in range(1, 14))


def test_what_is_installed_beside_a_plug_in_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under `pip install --user` or `--target` torch lies beside it: its 1,900 files were read each
    time the identity of the plug-in was asked, a minute and more.
    """
    seen = {}
    for place in ("installed", "project"):
        folder = tmp_path / place
        folder.mkdir()
        if place == "installed":
            (folder / "other-1.0.dist-info").mkdir()
        (folder / f"one_{place}.py").write_text(f"import other_{place}\n")
        other = folder / f"other_{place}.py"
        other.write_text("x = 1\n")
        monkeypatch.syspath_prepend(str(folder))
        before = loading.hash_source([f"one_{place}"])
        other.write_text("x = 2\n")
        seen[place] = loading.hash_source([f"one_{place}"]) == before
    assert seen == {"installed": True, "project": False}


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize("package", [True, False])
def test_own_modules_are_followed_wherever_they_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool, package: bool
) -> None:
    """An edited library in another folder than the plug-in's left the results of the old one."""
    name = f"mine_{installed}_{package}".lower()
    plug, library = tmp_path / "plug", tmp_path / "library"
    for folder in (plug, library):
        folder.mkdir()
        monkeypatch.syspath_prepend(str(folder))
    if installed:
        (plug / "plug-1.0.dist-info").mkdir()
    (plug / f"plug_{name}.py").write_text(f"import numpy\nfrom {name} import x\n")
    place = library / name / "__init__.py" if package else library / f"{name}.py"
    place.parent.mkdir(exist_ok=True)
    seen = []
    for text in ("from inner_{} import x\n", "from inner_{} import x\ny = 1\n"):
        for inner in ("x = 1\n", "x = 2\n"):
            place.write_text(text.format(name))
            (library / f"inner_{name}.py").write_text(inner)
            seen.append(loading.hash_source([f"plug_{name}"]))
    assert len({*seen}) == 4
