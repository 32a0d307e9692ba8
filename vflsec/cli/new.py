"""``vflsec new``: writes the file of a new attack or defense."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

new_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Write the file of a new attack or defense.\n\nExample: vflsec new attack tail_score",
)


def _new(kind: str, name: str) -> None:
    from vflsec.cli.templates import is_registered, project_text, write_component

    path = write_component(kind, name, Path.cwd())
    ours = is_registered(kind, path)
    beside = path.parent == Path.cwd() and not path.with_name("__init__.py").exists()
    typer.echo(f"Wrote {path}." + (f" Next: vflsec show {name}" if ours or beside else ""))
    if ours:
        return
    here, project = path.parent, path.with_name("pyproject.toml")
    written = project.read_text(encoding="utf-8", errors="replace") if project.exists() else ""
    if (here / "__init__.py").exists() or (project.exists() and "py-modules" not in written):
        do = "add to pyproject.toml"
        text = f'  [project.entry-points."vflsec.{kind}s"]\n  {name} = "YOUR_PACKAGE.{name}"'
    else:
        do = "change these sections of pyproject.toml" if written else "write this pyproject.toml"
        text = f"\n{project_text(here, whole=not written)}"
    known = "Scenarios and scripts in this folder know it by its name.\n" if beside else ""
    typer.echo(f"{known}To register it, {do}, and run `pip install -e .`:\n{text}")


NewName = Annotated[str, typer.Argument(help="Its registered name, in snake_case.")]


@new_app.command("attack")
def new_attack(name: NewName) -> None:
    """Write the file of a new attack.

    Example: vflsec new attack tail_score
    """
    _new("attack", name)


@new_app.command("defense")
def new_defense(name: NewName) -> None:
    """Write the file of a new defense.

    Example: vflsec new defense clip_gradient
    """
    _new("defense", name)
