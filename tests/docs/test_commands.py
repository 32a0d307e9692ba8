"""Every command that README and docs show works: run if it is quick, at least understood if not.

A command in a fence marked ``console`` or ``sh`` is one of four things: run here, page by page in
one folder with small tables; a `vflsec` command that reads finished audits, run here on planted
ones; one that trains, whose arguments are parsed by the command line itself and whose results are
then planted (those of the tutorials are trained in a slow test); or of another program, listed
below with the reason why it is not run.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pandas as pd
import pytest
import typer
from audited import SCENARIO, Planted, audited, gate
from scripts import load

from vflsec.cli import main
from vflsec.engine.run import run_audit
from vflsec.report.pdf import BROWSERS
from vflsec.specs import AttackSpec, CellResult, CellSpec

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


class _People(Planted):
    """Exposed rows beside each AUC."""

    def _cell(self, cell: CellSpec, attacks: Sequence[AttackSpec]) -> CellResult:
        out = super()._cell(cell, attacks)
        told = [m for m in out.measures if m.attack and m.metric == "auc"]
        none = {"majority": {"value": 0.0, "cv": None}}
        for m in told:
            found = replace(m, metric="exposed", value=0.02, low=0.01, high=0.04, controls=none)
            out.measures.append(found)
        return out


PLANTED = _People({"norm": 0.3, "model_completion": 0.2})

QUICK = {"init", "check", "list", "show", "new"}
"""Commands that are run; `vflsec --version` and `--help` too."""

READS = {"gate", "report", "compare", "merge"}
"""Commands on finished audits; run on planted ones, so their verdict is no matter."""

NOT_RUN = {
    "make": "installs an environment, or runs this test",
    "pip": "needs a package index",
    "pytest": "would run the tests within a test",
    "cd": "moves the test",
    "git": "needs a repository of the user's",
    "python": "scripts of the repository run minutes; examples have tests of their own",
    "dask": "needs a scheduler",
    "sbatch": "needs SLURM",
    "srun": "needs SLURM",
    "docker": "needs a container runtime",
    "podman": "needs a container runtime",
    "apptainer": "needs a container runtime",
}
"""Other programs, each with the reason."""


def commands(page: Path) -> list[str]:
    """Commands of the fences, continuation lines joined, comments and output left out."""
    text = page.read_text(encoding="utf-8")
    out = []
    for _, body in re.findall(r"^```(console|sh|bash)\n(.*?)^```", text, re.M | re.S):
        for line in body.replace("\\\n", " ").splitlines():
            words = shlex.split(re.sub(r"^\w*\$ ", "", line), comments=True)
            if words:
                end = next((i for i, w in enumerate(words) if w in ("||", "&&", "|", ">")), None)
                out.append(shlex.join(words[:end]))
    return out


def refused(page: Path) -> list[str]:
    """Commands that a page shows because they are refused: what they print begins with error."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"^```console\n(vflsec .+)\n```\n\n```text\nerror:", text, re.M)
    return [shlex.join(shlex.split(f)) for f in found]


def subcommand(words: list[str]) -> list[str]:
    """The words of a `vflsec` command, ``new attack`` among them."""
    return words[1:3] if words[1:2] == ["new"] else words[1:2]


def parse(words: list[str]) -> None:
    """Let the command line read the arguments, without running anything."""
    command = typer.main.get_command(main.app)
    with command.make_context("vflsec", list(words[1:]), resilient_parsing=False) as context:
        rest = [*context._protected_args, *context.args]
        name, below, args = command.resolve_command(context, rest)  # type: ignore[attr-defined]
        with below.make_context(name, args, parent=context) as inner:
            if hasattr(below, "resolve_command"):
                rest = [*inner._protected_args, *inner.args]
                name, last, args = below.resolve_command(inner, rest)
                last.make_context(name, args, parent=inner).close()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results directory with planted figures."""
    grid = ("defense.0.strength=[0, 1, 5, 25]",)  # of a draft
    folder = tmp_path_factory.mktemp("finished")
    return audited(folder, PLANTED, gate(max=0.1), set=grid).folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tables by the names that the pages use."""
    rng = np.random.default_rng(0)
    ids = [f"c{i}" for i in range(120)]
    shop = pd.DataFrame({"customer": ids, "basket": rng.normal(size=120)})
    bank = pd.DataFrame({"customer": ids[20:], "income": rng.normal(size=100)})
    bank["defaulted"] = (bank.income + rng.normal(size=100) > 0).astype(int)
    shop.to_csv(tmp_path / "shop.csv", index=False)
    bank.to_csv(tmp_path / "bank.csv", index=False)
    bank.rename(columns={"customer": "customer_id"}).to_csv(tmp_path / "accounts.csv", index=False)
    shop.rename(columns={"customer": "Customer ID"}).to_csv(tmp_path / "visits.csv", index=False)
    (tmp_path / "edited.toml").write_text(SCENARIO + gate(max=0.2))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "mlflow", MagicMock())
    return tmp_path


def planted_at(place: Path, finished: Path, shard: str = "") -> None:
    """Results of planted figures where a page's audit, or a shard of one, would have written."""
    if re.fullmatch(r"\d+/\d+", shard):
        scenario = finished.parent / "case.toml"
        run_audit(scenario, place, backend=PLANTED.backend(), shard=shard)
    elif not place.exists():
        shutil.copytree(finished, place)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_commands_work(
    page: Path, folder: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if page.parent.name == "tutorials":
        load(ROOT / "docs" / "tutorials" / "make_tables.py").make(folder)
    for text in commands(page):
        words = shlex.split(text)
        if "=" in words[0]:  # a variable before the command
            words = words[1:]
        if words[0] != "vflsec":
            assert words[0] in NOT_RUN, f"{page.name}: {text}: run it, or say why not"
            continue
        parse(words)
        if words[1:2] == ["audit"]:
            out = Path("out", Path(words[2]).stem)
            out = Path(words[words.index("--out") + 1]) if "--out" in words else out
            shard = words[words.index("--shard") + 1] if "--shard" in words else ""
            planted_at(folder / out, finished, shard)
        if words[1:2] and words[1] in READS:
            for given in words[2:4] if words[1] in ("compare", "merge") else words[2:3]:
                planted_at(folder / given, finished)
            if words[1] == "gate" and "--defense" in words:  # the planted audit has another one
                at = words.index("--defense")
                words = [*words[:at], "--defense", "iso", *words[at + 2 :]]
                if "--strength" in words:
                    words[words.index("--strength") + 1] = "5"
            unprinted = "--pdf" in words and not any(map(shutil.which, BROWSERS))
            assert main.main(words[1:]) in ((2,) if unprinted else (0, 1, 3)), text
            assert capsys.readouterr().out
        if subcommand(words)[:1] and subcommand(words)[0] in QUICK:
            if words[1] == "new":
                (folder / f"{words[2]}s").mkdir(exist_ok=True)
            code = main.main(words[1:])
            said = capsys.readouterr()
            wanted = 2 if text in refused(page) else 0
            assert code == wanted, f"{page.name}: {text}: {said.err}"
            assert said.err if wanted else said.out


def test_wrong_commands_would_be_found() -> None:
    for text in ("vflsec adit x", "vflsec audit x --outt y", "vflsec gate out --max high"):
        with pytest.raises(Exception) as caught:
            parse(shlex.split(text))
        assert getattr(caught.value, "exit_code", None) == 2


def test_there_are_commands() -> None:
    found = {p.name: commands(p) for p in PAGES}
    assert "vflsec check scenario.toml" in found["README.md"]
    assert sum(len(c) for c in found.values()) > 25
