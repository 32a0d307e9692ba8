"""Write the tutorials: what a new user types on tables that are not in the project, and sees.

    python .ci/tutorials.py [NAME ...]

Each is run anew in an empty folder, so its output is what this version prints. Needs some minutes.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs" / "tutorials"


@dataclass(frozen=True)
class Tutorial:
    """One page: what the table is, the commands, and a sentence before each."""

    title: str
    about: str
    steps: tuple[tuple[str, str], ...]
    after: str


TUTORIALS = {
    "loans": Tutorial(
        "A spreadsheet with semicolons",
        "**For** people whose table is a spreadsheet. **You get** a verdict from two "
        "commands, and what stronger noise does to the average from a third. **Start with** "
        "`vflsec init`.\n\n"
        "`loans.csv` has semicolons, decimal commas, dates, empty cells, 3,000 loans, and a "
        "column that says which were not paid.",
        (("What is in the table, and a scenario for it:",
          "vflsec init loans.csv --label SeriousDelinquency --out loans.toml"),
         ("The audit:", "vflsec audit loans.toml"),
         ("It fails at strength 5, where drafts begin. At 25 the limit on the average holds, that "
          "on exposed rows does not. The average alone, without training:",
          "vflsec gate out/loans --defense iso --strength 25 --max 0.1 --target label")),
        "Noise on gradients stops what they reveal of the labels. It does not stop what "
        "embeddings reveal of columns, as the audit says; [Start](../start.md#from-fail-to-pass) "
        "goes on from here. One table has no parties yet: `init` gave half of the columns to each. "
        "Say under `[data.columns]` in `loans.toml` who holds what, and run the second command "
        "again.",
    ),
    "customers": Tutorial(
        "Three parties that call their customers otherwise",
        "**For** parties that name their id columns otherwise. **You get** a verdict from "
        "three commands, one of which is refused. **Start with** `vflsec init`.\n\n"
        "The tables are a bank's export in Latin-1 with decimal commas (`Kunde`), a shop's "
        "(`Customer ID`), and a telco's, separated by tabs (`subscriber`).",
        (("The first try names what is in the way and the option that settles it:",
          "vflsec init accounts.csv shop.csv telco.csv --label Ausfall --out customers.toml"),
         ("With that option. The three id columns are found, for their values match:",
          "vflsec init accounts.csv shop.csv telco.csv --label Ausfall --encoding latin-1 "
          "--out customers.toml"),
         ("The audit:", "vflsec audit customers.toml")),
        "Rows that a party lacks are counted (*unmatched*), and trained on by nobody. Each passive "
        "party attacks alone; `adversary = [\"shop\", \"telco\"]` in an `[[attack]]` lets them "
        "join.",
    ),
    "applications": Tutorial(
        "Several classes, one of two rows",
        "**For** people whose label has several classes. **You get** a verdict from three "
        "commands, one of which is refused. **Start with** `vflsec init`.\n\n"
        "`applications.csv` holds categories only, and a rank of four classes, one of which "
        "two families have.",
        (("A class of two rows cannot be trained on and tested:",
          "vflsec init applications.csv --label rank --out applications.toml"),
         ("It can join the next smallest:",
          "vflsec init applications.csv --label rank --rare merge --out applications.toml"),
         ("The audit:", "vflsec audit applications.toml")),
        "`init` writes attacks that exist for several classes; those for two are left out.",
    ),
    "scorecard": Tutorial(
        "A bank's scorecard, from tables to a passing gate",
        "**For** banks and credit bureaus. **You get** a scorecard of both, audited, and a "
        "gate that passes, from three commands. **Start with** `vflsec init ... --algorithm "
        "scorecard`.\n\n"
        "A bank (`applicants.csv`) knows who defaulted; a credit bureau (`bureau.csv`) has "
        "the records of the same people, a tenth of them missing. A scorecard is bins, "
        "weights of evidence, and a logistic regression.",
        (("Both tables, and a scenario with the bank's labels randomised at an epsilon of 2 and 1:",
          "vflsec init applicants.csv bureau.csv --label defaulted --algorithm scorecard "
          "--out scorecard.toml"),
         ("The audit, with a bureau that knows how 400 of these people paid. By its own records it "
          "predicts the others nearly as well as by what the bank returns. The bank reads scores "
          "of the bureau's columns:",
          "vflsec audit scorecard.toml --set attack.0.known_rows=400 "
          "--set attack.1.known_rows=400"),
         ("Strength 1, where drafts begin, costs more utility than the limit allows. An epsilon of "
          "2 (strength 0.5) does not:",
          "vflsec gate out/scorecard --defense label_dp --strength 0.5 --max 0.1 --target label")),
        "A bureau that knows 20 labels leaves the gate open: its baseline is then so uncertain "
        "that no number of seeds decides. What a weight of evidence reveals, and the regression "
        "behind it: [Regressions](../howto/regressions.md#scorecards).",
    ),
    "vehicles": Tutorial(
        "Two Parquet files, four classes, rows missing on one side",
        "**For** people with Parquet files. **You get** a verdict from two commands. "
        "**Start with** `vflsec init`.\n\n"
        "Two cameras describe the same vehicles; one table has a tenth fewer.",
        (("Both tables, and the number that links them:",
          "vflsec init side.parquet top.parquet --label kind --out vehicles.toml"),
         ("The audit:", "vflsec audit vehicles.toml")),
        "The summary by row, [statement and report](../ci.md) lie in `out/vehicles`.",
    ),
}  # fmt: skip


def page(name: str) -> str:
    """One tutorial, its commands run."""
    t = TUTORIALS[name]
    lines = [
        f"# {t.title}", "", t.about, "",
        f"[make_tables.py](make_tables.py) makes the tables by a rule. The output is that of "
        f"`python .ci/tutorials.py {name}`, shortened at the marks `[...]`.", "",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        _maker().make(here)  # type: ignore[attr-defined]
        for before, command in t.steps:
            lines += [before, "", "```console", command, "```", "", "```text",
                      *shown(_run(command, here), folder), "```", ""]  # fmt: skip
    return "\n".join([*lines, t.after]) + "\n"


def shown(text: str, folder: str) -> list[str]:
    """Output as it is printed on a page: progress cut, the answers whole."""
    rows = [re.sub(r"\s+$", "", r).replace(folder, ".") for r in text.splitlines()]
    if not any(r.startswith("Does it leak") for r in rows):
        return rows
    return ["[...]", *rows[rows.index("") + 1 :]]


def _run(command: str, folder: Path) -> str:
    """What a command prints; of the installation that ``TUTORIAL_PYTHON`` names, else of this."""
    other = os.environ.get("TUTORIAL_PYTHON", "")
    env = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    env.pop("PYTHONPATH", None)
    if not other:
        env["PYTHONPATH"] = str(ROOT)
    words = [other or sys.executable, "-m", *command.split()]
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1, 2, 3):
        raise SystemExit(f"{command}: exit {done.returncode}\n{done.stderr}")
    return done.stdout + done.stderr


def _maker() -> object:
    spec = importlib.util.spec_from_file_location("make_tables", DOCS / "make_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    for chosen in sys.argv[1:] or TUTORIALS:
        (DOCS / f"{chosen}.md").write_text(page(chosen), encoding="utf-8")
        print(f"wrote docs/tutorials/{chosen}.md")
