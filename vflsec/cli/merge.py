"""``vflsec merge``: the shards of an audit become one audit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vflsec.cli.arguments import FreshOption, folder_name
from vflsec.cli.output import print_audit


def merge(
    folders: Annotated[list[Path], typer.Argument(help="All shards.")],
    out: Annotated[Path, typer.Option(help="The whole audit.", parser=folder_name)],
    fresh: FreshOption = False,
) -> None:
    """Put the shards of an audit together, judge and report.

    Exits like audit: with 3 while something is missing, which `vflsec audit SCENARIO --out DIR`
    then finishes.

    Example: vflsec merge out/shard1 out/shard2 --out out/whole
    """
    from vflsec.engine.merge import merge as together

    raise print_audit(together(folders, out, fresh=fresh))
