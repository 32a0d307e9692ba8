"""Arguments and options that commands share."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from vflsec.errors import VflsecError


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


Command = TypeVar("Command", bound=Callable[..., None])
_SCHEMA = Path(__file__).parents[1] / "config" / "scenario.schema.json"  # as a file: imports less
_SECTIONS: dict[str, Any] = json.loads(_SCHEMA.read_text(encoding="utf-8"))["$defs"]


def find_meaning(section: str, key: str) -> str:
    """The first sentence on a key of a scenario: the help of the option that sets it."""
    text: str = _SECTIONS[section]["properties"][key]["description"]
    return f"{' '.join(text.split()).partition('. ')[0].rstrip('.')}."


def add_options(section: str) -> Callable[[Command], Command]:
    """Give a command an option for each key of a section, in the place of its ``**asked``."""

    def add(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True)
        kept = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        more = [_make_option(section, key) for key in _SECTIONS[section]["properties"]]
        command.__signature__ = own.replace(parameters=[*kept, *more])  # type: ignore[attr-defined]
        return command

    return add


def _make_option(section: str, key: str) -> inspect.Parameter:
    found = _SECTIONS[section]["properties"][key]
    kind: Any = str if found.get("type") == "string" else float | None
    told = Annotated[kind, typer.Option(f"--{key}", help=find_meaning(section, key))]
    default = found["default"]
    return inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=told)


def find_given(section: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What was asked for by options of :func:`add_options`, without what is usual."""
    keys = _SECTIONS[section]["properties"]
    return {key: value for key, value in asked.items() if value != keys[key]["default"]}


ScenarioArg = Annotated[str, typer.Argument(help="A scenario file or a packaged name.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a value, e.g. audit.seeds=3."),
]
FreshOption = Annotated[bool, typer.Option("--fresh", help="Replace an earlier audit.")]
SeedsOption = Annotated[int | None, typer.Option(min=1, help="How many seeds.")]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or cuda+graphs.")]
FormatOption = Annotated[Format, typer.Option("--format", help="Text or JSON.")]


def folder_name(text: str | Path) -> Path:
    """A folder to write into.

    Raises:
        VflsecError: the name is empty.
    """
    if not str(text).strip():
        raise VflsecError("a folder must have a name, got ''.")
    return Path(text)


FolderArg = Annotated[Path, typer.Argument(help="Results of `vflsec audit`.")]
