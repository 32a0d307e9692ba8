"""``vflsec attack``: one attack on a finished audit."""

from __future__ import annotations

from typing import Annotated

import typer

from vflsec.cli.arguments import FolderArg, Format, FormatOption
from vflsec.cli.output import ProgressLines, print_json
from vflsec.report.terminal import console_for


def attack(
    folder: FolderArg,
    name: Annotated[str, typer.Argument(help="A registered attack.")],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A key, e.g. known_rows=50."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    format_: FormatOption = Format.text,
) -> None:
    """Try one more attack on an audit that ran with `--keep-views`.

    Example: vflsec attack out/quickstart norm --set accumulate=false
    """
    from vflsec.audit.summary import read_summary
    from vflsec.engine.attack_kept_views import attempt
    from vflsec.report.build import build_printed
    from vflsec.report.console import print_section
    from vflsec.runtime.typed_values import write_plain

    summary = attempt(folder, name, set_ or (), device=device, progress=ProgressLines())
    if format_ is Format.json:
        print_json(write_plain(summary))
    else:
        shown = build_printed(read_summary(summary), whole=True)
        print_section(shown, "leakage", console_for())
