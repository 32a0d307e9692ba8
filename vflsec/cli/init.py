"""`vflsec init`: a first scenario for the user's own tables."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from vflsec.cli.arguments import find_meaning
from vflsec.cli.output import say
from vflsec.report.terminal import console_for

_EACH, _COLUMNS = "TEXT | PARTY=TEXT", "COLUMN | PARTY.COLUMN"
Texts = list[str] | None


def _says(key: str, metavar: str, *names: str) -> Any:
    """The option that sets a key of ``[data]``."""
    return typer.Option(*names, metavar=metavar, help=find_meaning("Data", key))


def init(
    tables: Annotated[list[Path], typer.Argument(help="One table for each party.")],
    label: Annotated[
        Texts,
        typer.Option(help="The column to predict; repeat it for yes/no labels.", metavar="COLUMN"),
    ] = None,
    out: Annotated[Path, typer.Option(help="The scenario to write.")] = Path("scenario.toml"),
    id_: Annotated[Texts, _says("id", "COLUMN | PARTY=COLUMN", "--id")] = None,
    id_match: Annotated[str, _says("id_match", "WAYS")] = "",
    duplicates: Annotated[str, _says("duplicates", "first")] = "",
    aggregate: Annotated[Texts, _says("aggregate", "[PARTY.]COLUMN=WAY")] = None,
    missing: Annotated[Texts, _says("missing", "[PARTY.]COLUMN=VALUE")] = None,
    rare: Annotated[
        str,
        typer.Option(help="Classes of too few rows: drop or merge them.", metavar="drop | merge"),
    ] = "",
    bins: Annotated[int, typer.Option(help="Cut a quantity into this many classes.")] = 0,
    regression: Annotated[
        bool, typer.Option("--regression", help="The label is a number.")
    ] = False,
    separator: Annotated[Texts, _says("separator", _EACH)] = None,
    decimal: Annotated[Texts, _says("decimal", _EACH)] = None,
    encoding: Annotated[Texts, _says("encoding", _EACH)] = None,
    numeric: Annotated[Texts, _says("numeric", _COLUMNS)] = None,
    categorical: Annotated[Texts, _says("categorical", _COLUMNS)] = None,
    drop: Annotated[Texts, _says("drop", "COLUMN")] = None,
    group: Annotated[str, _says("group", "COLUMN")] = "",
    algorithm: Annotated[
        str,
        typer.Option(
            help="How the parties train.",
            metavar="splitnn | secureboost | vertical_glm | scorecard",
        ),
    ] = "splitnn",
    name: Annotated[str, typer.Option(help="Name of the data.", show_default="the tables")] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace --out if it exists.")] = False,
) -> None:
    """Write a scenario for your own tables.

    The table that has the label is the active party's; ids, separators, dates and the like are
    found, and said.

    Example: vflsec init bank.csv bureau.csv --label default
    """
    from vflsec.cli.draft import Wishes, draft_scenario
    from vflsec.cli.draft_text import EDITOR_SCHEMA
    from vflsec.config.schema import SCHEMA_FILE
    from vflsec.errors import ConfigError
    from vflsec.report.console import print_blocks
    from vflsec.report.tables import build_profile
    from vflsec.runtime.atomic_files import refuse_there, write_new

    wishes = Wishes(
        label[0] if label and len(label) == 1 else tuple(label or ()),
        tuple(id_ or ()), tuple(separator or ()),
        tuple(decimal or ()), tuple(encoding or ()), rare, bins, regression, name,
        numeric=tuple(numeric or ()), categorical=tuple(categorical or ()),
        algorithm=algorithm, group=group,
        duplicates=duplicates, aggregate=tuple(aggregate or ()), missing=tuple(missing or ()),
        drop=tuple(drop or ()),
        id_match=tuple(n.strip() for n in id_match.split(",") if n.strip()),
    )  # fmt: skip
    if not out.parent.is_dir():
        raise ConfigError(f"{out}: no folder {out.parent}. Make it.")
    draft = draft_scenario(tables, wishes, out.parent)
    refuse_there(out, force=force)
    write_new(out.with_name(EDITOR_SCHEMA), SCHEMA_FILE.read_text(encoding="utf-8"), force=True)
    write_new(out, draft.text, force=force)
    print_blocks([build_profile(draft.tables)], console_for())
    for note in draft.notes:
        say(f"note: {note}")
    say(f"Wrote {out}. Next: {shlex.join(['vflsec', 'check', str(out)])}")
