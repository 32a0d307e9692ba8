"""The package is what it says: its layout, its wheel, its rules, and the words about them."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

import vflsec

ROOT = Path(__file__).resolve().parent.parent
LINKS = ("attacks", "defenses", "scenarios")


def python(code: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=cwd, text=True, capture_output=True, check=False)


def sources(*folders: str) -> list[Path]:
    """Python files below real folders, not through links, without what tools leave behind."""
    found = []
    for folder in folders:
        for here, below, files in os.walk(ROOT / folder, followlinks=False):
            below[:] = [b for b in below if not b.startswith((".", "__pycache__"))]
            found += [Path(here) / f for f in files if f.endswith(".py")]
    return sorted(found)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


PACKAGE = sources("vflsec", "attacks", "defenses")


def test_there_are_files_to_check() -> None:
    names = {name_of(p) for p in PACKAGE}
    assert {"vflsec/core/view.py", "attacks/__init__.py", "defenses/__init__.py"} <= names
    assert len(PACKAGE) > 20


# Layout


@pytest.mark.parametrize("name", ["attacks", "defenses"])
def test_root_folder_is_not_importable_by_its_own_name(name: str) -> None:
    done = python(f"import {name}")
    assert done.returncode == 1
    assert f"ImportError: import 'vflsec.{name}', not '{name}'" in done.stderr


def test_importing_vflsec_makes_no_second_copy() -> None:
    code = (
        "import sys, vflsec, vflsec.attacks, vflsec.defenses\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('attacks', 'defenses')])"
    )
    done = python(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"


def test_importing_vflsec_does_not_import_torch() -> None:
    done = python(
        "import sys, vflsec, vflsec.plugins.registry, vflsec.specs; print(sorted(\n"
        "{'torch', 'pandas', 'opacus', 'matplotlib'} & set(sys.modules)))"
    )
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize("name", LINKS)
def test_links_are_links(name: str) -> None:
    link = ROOT / "vflsec" / name
    assert link.is_symlink(), "this checkout lacks symbolic links (git config core.symlinks true)"
    assert os.readlink(link) == f"../{name}"


def test_links_are_committed_as_links() -> None:
    command = ["git", "ls-files", "--stage", *(f"vflsec/{name}" for name in LINKS)]
    try:
        done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    modes = {line.split()[3]: line.split()[0] for line in done.stdout.splitlines()}
    assert modes == {f"vflsec/{name}": "120000" for name in LINKS}


# Wheel

PROBES = ("scenarios/probe.toml", "scenarios/deep/probe.toml")


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """The wheel, made from the sdist, made from a copy of the tree; no network, no isolation."""
    pytest.importorskip("setuptools", minversion="77")
    import shutil
    import tarfile

    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "tree"
    junk = shutil.ignore_patterns("__pycache__", "*.egg-info", ".*", "build", "out", "dist")
    shutil.copytree(ROOT, tree, symlinks=True, ignore=junk)
    (tree / "scenarios" / "deep").mkdir(parents=True, exist_ok=True)
    for name in PROBES:
        (tree / name).write_text("# a file that must come along\n", encoding="utf-8")
    build = "import sys, setuptools.build_meta as b; b.build_{}(sys.argv[1])"
    for kind, where in (("sdist", tree), ("wheel", folder / "unpacked")):
        command = [sys.executable, "-W", "ignore", "-c", build.format(kind), str(folder)]
        done = subprocess.run(command, cwd=where, text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        if kind == "sdist":
            with tarfile.open(next(folder.glob("*.tar.gz"))) as tar:
                tar.extractall(folder / "raw", filter="data")
            next((folder / "raw").iterdir()).rename(folder / "unpacked")
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        yield wheel


@pytest.mark.slow
def test_wheel_holds_every_module(archive: zipfile.ZipFile) -> None:
    names = set(archive.namelist())
    wanted = set()
    for path in PACKAGE:
        name = name_of(path)
        wanted.add(name if name.startswith("vflsec/") else f"vflsec/{name}")
    assert wanted <= names, f"missing: {sorted(wanted - names)}"
    assert {n for n in names if n.endswith(".py")} == wanted


def test_wheel_holds_scenarios_and_the_typing_marker(archive: zipfile.ZipFile) -> None:
    names = set(archive.namelist())
    scenarios = {f"vflsec/{name_of(p)}" for p in (ROOT / "scenarios").rglob("*.toml")}
    assert scenarios | {f"vflsec/{name}" for name in PROBES} <= names
    assert "vflsec/py.typed" in names


def test_wheel_holds_nothing_else(archive: zipfile.ZipFile) -> None:
    tops = {n.split("/")[0] for n in archive.namelist()}
    assert tops == {"vflsec", f"vflsec-{vflsec.__version__}.dist-info"}
    names = [n.rsplit("/", 1)[-1] for n in archive.namelist()]
    assert not [n for n in names if n.startswith("test_") or "conftest" in n]


def test_wheel_has_the_command_and_the_licence(archive: zipfile.ZipFile) -> None:
    info = f"vflsec-{vflsec.__version__}.dist-info"
    assert archive.read(f"{info}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    entry = archive.read(f"{info}/entry_points.txt").decode()
    assert "vflsec = vflsec.cli.main:main" in entry
    assert "[pytest11]\nvflsec = vflsec.pytest_plugin" in entry
    assert "vflsec/report/report.html.j2" in archive.namelist()


# Names and versions


def test_version_is_one() -> None:
    assert version("vflsec") == vflsec.__version__


def modules() -> list[str]:
    out = []
    for path in PACKAGE:
        name = name_of(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        out.append(name if name.startswith("vflsec") else f"vflsec.{name}")
    return [m for m in out if not m.endswith("__main__")]


def test_every_public_name_exists() -> None:
    for name in modules():
        module = importlib.import_module(name)
        public = getattr(module, "__all__", [])
        assert [n for n in public if not hasattr(module, n)] == [], name
        assert sorted(set(public)) == sorted(public), name


# House rules, on the syntax tree rather than on words


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


FORBIDDEN_IMPORTS = {"pickle", "cPickle", "dill", "shelve", "marshal", "telnetlib", "ftplib"}
FORBIDDEN_CALLS = {
    "eval", "exec", "compile", "breakpoint",
    "torch.load", "torch.save", "torch.manual_seed", "torch.seed", "torch.cuda.manual_seed",
    "torch.cuda.manual_seed_all", "torch.random.manual_seed",
    "np.random.seed", "numpy.random.seed", "np.random.set_state", "numpy.random.set_state",
    "random.seed", "yaml.load", "os.system", "os.popen", "joblib.load", "pd.read_pickle",
    "pandas.read_pickle",
}  # fmt: skip


def dotted(node: ast.expr) -> str:
    """``a.b.c`` of a name or attribute chain, '' for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        left = dotted(node.value)
        return f"{left}.{node.attr}" if left else ""
    return ""


def offences(tree: ast.Module) -> list[str]:
    """What the package must not do, with line numbers."""
    found: list[tuple[int, str]] = []
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for a in node.names:
                if a.name.split(".")[0] in FORBIDDEN_IMPORTS:
                    found.append((node.lineno, f"import {a.name}"))
                if a.asname:
                    aliases[a.asname] = a.name
        elif isinstance(node, ast.ImportFrom):
            if (node.module or "").split(".")[0] in FORBIDDEN_IMPORTS:
                found.append((node.lineno, f"from {node.module} import"))
            for a in node.names:
                aliases[a.asname or a.name] = f"{node.module}.{a.name}"
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = dotted(node.func)
        head, _, rest = name.partition(".")
        full = f"{aliases.get(head, head)}.{rest}" if rest else aliases.get(head, head)
        if {name, full} & FORBIDDEN_CALLS:
            found.append((node.lineno, f"{name}()"))
        for keyword in node.keywords:
            true = isinstance(keyword.value, ast.Constant) and keyword.value.value is True
            if keyword.arg in ("shell", "allow_pickle") and true:
                found.append((node.lineno, f"{keyword.arg}=True"))
    return [f"line {line}: {what}" for line, what in sorted(found)]


@pytest.mark.slow
def test_nothing_forbidden_is_called() -> None:
    assert {name_of(p): found for p in PACKAGE if (found := offences(parse(p)))} == {}


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads",
        "import torch\ntorch.load('x')",
        "import torch as t\nt.manual_seed(0)",
        "from torch import manual_seed\nmanual_seed(0)",
        "import numpy\nnumpy.random.seed(0)",
        "import numpy as np\nnp.random.seed(0)",
        "from numpy import random as r\nr.seed(0)",
        "import random\nrandom.seed(0)",
        "import subprocess\nsubprocess.run('ls', shell=True)",
        "import os\nos.system('ls')",
        "import yaml\nyaml.load('a')",
        "eval('1')",
        "exec('1')",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
    ],
)
def test_the_walk_finds_what_is_forbidden(text: str) -> None:
    assert len(offences(ast.parse(text))) == 1


@pytest.mark.parametrize(
    "text", ["model.eval()", "g.manual_seed(1)", "re.compile('x')", "json.load(f)"]
)
def test_the_walk_lets_other_things_be(text: str) -> None:
    assert offences(ast.parse(text)) == []


def test_attacks_and_defenses_import_absolutely_and_attacks_not_the_truth() -> None:
    seen = 0
    for path in sources("attacks", "defenses"):
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.ImportFrom):
                seen += 1
                where = f"{name_of(path)}:{node.lineno}"
                assert node.level == 0, f"{where}: import from vflsec.... instead"
                if name_of(path).startswith("attacks"):
                    assert "Truth" not in {a.name for a in node.names}, where
                    assert not (node.module or "").startswith("vflsec.audit"), where
    assert seen > 100


# Words: what is written about commands is so


def makefile_verbs() -> set[str]:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z-]+):", text, re.M))


def commands(name: str) -> list[str]:
    """The ``make ...`` commands in the code blocks and code spans of a document, in order."""
    text = (ROOT / name).read_text(encoding="utf-8")
    blocks = re.findall(r"^```(?:console|bash|sh)\n(.*?)^```", text, re.M | re.S)
    lines = [line.strip().removeprefix("$ ") for b in blocks for line in b.splitlines()]
    spans = re.findall(r"`(make [a-z]+[^`]*)`", text)
    return [line for line in (*lines, *spans) if line.startswith("make ")]


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_commands_that_are_written_exist(name: str) -> None:
    found = commands(name)
    assert len(found) >= 2
    verbs = {command.split()[1] for command in found}
    assert verbs <= makefile_verbs()


def test_readme_starts_with_two_commands() -> None:
    assert [" ".join(c.split("#")[0].split()) for c in commands("README.md")[:2]] == [
        "make audit",
        "make test",
    ]


def test_the_clean_clone_check_runs_the_readme_s_test_command() -> None:
    text = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    lines = [line.strip() for line in text.splitlines()]
    assert "set -euo pipefail" in lines
    for command in ("make test", "make lint", "make types", "make docs"):
        assert any(re.search(rf"(^|\(|&& ){command}(\)| &&|$)", line) for line in lines)
    assert any(line.startswith("make notebooks NOTEBOOKS=") for line in lines)
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_readme_states_the_quickstart_s_exit_code_once() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.findall(r"quickstart exits with \*\*(\d)\*\*", text)
    assert len(found) == 1
    assert found[0] in "0123"


def test_licence_is_the_whole_apache_licence() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    for part in ("Version 2.0, January 2004", "9. Accepting Warranty", "APPENDIX: How to apply"):
        assert part in text
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["license"] == "Apache-2.0"


def test_package_sources_are_named_nowhere() -> None:
    """Which mirror pip uses is the user's business; where the project is at home is said."""
    for name in ("Makefile", ".ci/run", ".ci/check_types.py", "constraints.txt", "pyproject.toml"):
        text = (ROOT / name).read_text(encoding="utf-8")
        text = re.sub(r'(?m)^[\w" ]+ = "https://github\.com/vflsec/vflsec[^"]*"$', "", text)
        assert not re.search(r"--(extra-)?index-url|--find-links|--trusted-host|https?://", text)


def _bounds(lines: Iterator[str], sign: str) -> dict[str, tuple[int, ...]]:
    """Version by name; 1.5 and 1.5.0 are one."""
    found = {}
    for line in lines:
        name, _, text = line.partition(sign)
        numbers = [int(n) for n in text.partition(";")[0].strip().split(".")]
        while numbers and not numbers[-1]:
            numbers.pop()
        found[name.strip()] = tuple(numbers)
    return found


def test_the_lowest_versions_that_are_tested_are_those_that_are_declared() -> None:
    """`pyarrow>=13` was declared, and 15.0.0 broke every table."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    text = (ROOT / "constraints-lowest.txt").read_text().partition("\n\n")[0]
    tested = (line for line in text.splitlines() if not line.startswith("#"))
    assert _bounds(tested, "==") == _bounds(iter(declared), ">=")
    assert not any(">=" not in d for d in declared)
