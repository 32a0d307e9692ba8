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
    typer.echo(f"Wrote {path}.")
    if is_registered(kind, path):
        typer.echo(f"Next: vflsec show {name}")
        return
    here = path.parent
    if (here / "pyproject.toml").exists() or (here / "__init__.py").exists():
        typer.echo(
            "To register it, add to pyproject.toml, and run `pip install -e .`:\n"
            f'  [project.entry-points."vflsec.{kind}s"]\n  {name} = "YOUR_PACKAGE.{name}"'
        )
        return
    typer.echo(
        "To register it, write this pyproject.toml, and run `pip install -e .`:\n\n"
        + project_text(kind, name)
    )


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
