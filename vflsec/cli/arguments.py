"""Arguments and options that commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from vflsec.cli.output import say
from vflsec.errors import VflsecError
from vflsec.runtime.progress_protocol import NOTE


class Format(StrEnum):
    """How a command prints."""

    text = "text"
    json = "json"


class Kind(StrEnum):
    """What `list` lists."""

    attacks = "attacks"
    defenses = "defenses"
    algorithms = "algorithms"
    datasets = "datasets"
    scenarios = "scenarios"


ScenarioArg = Annotated[str, typer.Argument(help="A scenario file or a packaged name.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a value, e.g. audit.seeds=3."),
]
FreshOption = Annotated[bool, typer.Option("--fresh", help="Replace an earlier audit.")]
SeedsOption = Annotated[int | None, typer.Option(min=1, help="Number of seeds.")]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or cuda+graphs.")]
FormatOption = Annotated[Format, typer.Option("--format", help="Text or JSON.")]


def noted(text: str, share: float) -> None:
    """Progress of which notes alone are printed, beside the output."""
    if share == NOTE:
        say(text, err=True)


def folder_name(text: str | Path) -> Path:
    """A folder to write into.

    Raises:
        VflsecError: the name is empty.
    """
    if not str(text).strip():
        raise VflsecError("a folder must have a name, got ''.")
    return Path(text)


FolderArg = Annotated[Path, typer.Argument(help="Results of `vflsec audit`.")]
