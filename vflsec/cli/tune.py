"""`vflsec tune`: the least strength of a defense that is enough."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vflsec.cli.arguments import (
    DeviceOption,
    Format,
    FormatOption,
    ScenarioArg,
    SeedsOption,
    find_meaning,
    folder_name,
)
from vflsec.cli.output import console_for, print_json, say


def tune(
    scenario: ScenarioArg,
    defense: Annotated[list[str], typer.Option(help="A defense.")],
    leak: Annotated[float, typer.Option(help="Largest advantage.")] = 0.05,
    drop: Annotated[float, typer.Option(help="Largest loss of utility.")] = 0.03,
    low: Annotated[float, typer.Option(help="Weakest strength.")] = 0.1,
    high: Annotated[float, typer.Option(help="Strongest strength.")] = 100.0,
    rounds: Annotated[int, typer.Option(min=0, help="Halvings of the interval.")] = 5,
    confirm: Annotated[bool, typer.Option(help="Judge on fresh seeds.")] = True,
    target: Annotated[str, typer.Option(help=find_meaning("Gate", "target"))] = "*",
    out: Annotated[
        Path | None,
        typer.Option(help="Results directory.", show_default="out/tune", parser=folder_name),
    ] = None,
    seeds: SeedsOption = None,
    device: DeviceOption = "auto",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress.")] = False,
    format_: FormatOption = Format.text,
) -> None:
    """Find the least strength of a defense that is enough.

    The choice is judged once more on seeds that had no part in it. Exits with 3 if some defense
    has no such strength, fresh seeds do not confirm it, or an attack is not shown to work.

    Example: vflsec tune quickstart --defense iso --leak 0.05 --drop 0.03
    """
    from dataclasses import asdict

    from vflsec.audit.pareto_front import pareto
    from vflsec.audit.rounding import show_exact
    from vflsec.engine.tune_search import tune as search
    from vflsec.report.progress import reporter_for
    from vflsec.runtime.progress_protocol import Reporter
    from vflsec.runtime.typed_values import write_plain

    def progress() -> Reporter:
        return Reporter() if quiet or format_ is Format.json else reporter_for(console_for())

    base = out if out is not None else Path("out") / "tune"
    found = []
    for name in defense:
        f = search(
            scenario, name, leak=leak, drop=drop, between=(low, high), rounds=rounds,
            confirm=confirm, target=target, out=base / name, seeds=seeds, device=device,
            progress=progress,
        )  # fmt: skip
        found.append(f)
        if format_ is not Format.json:  # at once, for the next may be refused
            chosen = "none" if f.strength is None else show_exact(f.strength)
            say(f"{f.defense}: strength {chosen}. {f.reason}")
            for line in f.next:
                say(f"  Next: {line}")
            if f.deploy:
                say(f"  In the scenario: {f.deploy}")
    front = pareto([t for f in found for t in f.trials])
    if format_ is Format.json:
        print_json([write_plain(asdict(f)) for f in found])
    else:
        say("Pareto front (utility, worst advantage):")
        for t in front:
            say(f"  {t.defense} {t.strength:g}: {t.utility:.3f}, {t.leak:+.3f}.{t.epsilons()}")
    lost = any(f.strength is None or f.confirmed is False or f.silent for f in found)
    raise typer.Exit(3 if lost else 0)
