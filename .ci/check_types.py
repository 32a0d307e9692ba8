"""Type-check the wheel: what a user installs, with vflsec.attacks and vflsec.defenses in it.

An editable install hides both folders from mypy, which is then green on the rest. So the wheel is
built and unpacked, the number of checked files must be that of the tree, and an error planted in
each of the two folders must be found. A user's script must pass `--strict`, but for its last line.
The scripts in benchmarks are checked against the wheel, so that none lags behind an interface.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "types"


SCRIPT = """import pandas as pd
import vflsec

tables = {"bank": pd.DataFrame(), "shop": pd.DataFrame()}
audit = vflsec.audit(tables, "defaulted", seeds=3)
print(audit.verdict, audit.exit_code)
trained = vflsec.train({"files": tables, "label": "defaulted"}, "splitnn", seeds=2)
frame: pd.DataFrame = vflsec.measure(trained, "norm")
view = trained.view("passive")
print(vflsec.infer(view, "norm").scores.shape, frame.shape)
vflsec.audit(tables, 5)
"""


def wheel() -> Path:
    """Build the wheel from a copy of the tree, so that no stale build folder gets in."""
    copy = BUILD / "tree"
    for name in ("vflsec", "attacks", "defenses", "scenarios"):
        if (ROOT / name).is_dir():
            junk = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=junk)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, copy / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(BUILD)]
    subprocess.run([*command, str(copy)], check=True)
    return next(BUILD.glob("vflsec-*.whl"))


PROJECT = ("--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(BUILD / "cache"))


def mypy(*command: str, beside: Sequence[Path]) -> subprocess.CompletedProcess[str]:
    """Check with modules of these folders, from one that is not the repository's root."""
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--no-color-output", *command], cwd=BUILD, text=True,
        env={**os.environ, "MYPYPATH": os.pathsep.join(map(str, beside))}, capture_output=True,
    )  # fmt: skip


def check_script(site: Path) -> bool:
    """Whether a user's script is found right by the types of the package, but for its last line."""
    (BUILD / "script.py").write_text(SCRIPT, encoding="utf-8")
    done = mypy(
        "--strict", "--ignore-missing-imports", "--follow-imports=silent",
        "--cache-dir", str(BUILD / "cache-script"), "script.py", beside=[site],
    )  # fmt: skip
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    last = f"script.py:{len(SCRIPT.splitlines())}:"
    if len(errors) == 1 and errors[0].startswith(last) and "arg-type" in errors[0]:
        return True
    print(f"a script of a user, whose last line alone is wrong:\n{done.stdout}{done.stderr}")
    return False


def main() -> int:
    """0 if mypy is content, saw every file, and finds what is planted."""
    cache = BUILD / "cache"
    kept = cache.rename(ROOT / "build" / "types-cache") if cache.is_dir() else None
    shutil.rmtree(BUILD, ignore_errors=True)
    (BUILD / "tree").mkdir(parents=True)
    if kept is not None:
        kept.rename(cache)
    site = BUILD / "site"
    with zipfile.ZipFile(wheel()) as archive:
        archive.extractall(site)

    package = partial(mypy, "-p", "vflsec", *PROJECT, beside=[site])
    scripts = ROOT / "benchmarks"
    done = package()
    with_scripts = mypy(str(scripts), *PROJECT, beside=[site, scripts, ROOT / "tests"])
    print(done.stdout + done.stderr + with_scripts.stdout + with_scripts.stderr, end="")
    if done.returncode or with_scripts.returncode:
        return 1
    checked = int((re.search(r"in (\d+) source file", done.stdout) or [0, 0])[1])
    folders = (ROOT / "vflsec", ROOT / "attacks", ROOT / "defenses")
    expected = len([p for f in folders for p in f.rglob("*.py")])
    if checked < expected:  # it also counts folders without code, such as the scenarios
        print(f"mypy checked {checked} files of the wheel, the tree has {expected}")
        return 1

    planted = [site / "vflsec" / folder / "planted.py" for folder in ("attacks", "defenses")]
    for path in planted:
        path.write_text("number: int = 'text'\n", encoding="utf-8")
    found = package()
    for path in planted:
        path.unlink()
        if f"{path.parent.name}/planted.py" not in found.stdout:
            print(f"mypy does not see vflsec.{path.parent.name}: a planted error was not found")
            return 1
    if not check_script(site):
        return 1
    print(f"{checked} files checked; planted errors in attacks and defenses were found")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
