"""`vflsec tune`: the least strength of a defense that is enough."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vflsec.cli.arguments import (
    DeviceOption,
    Format,
    FormatOption,
    ScenarioArg,
    SeedsOption,
    SetOption,
    find_meaning,
    folder_name,
)
from vflsec.cli.output import print_json, say
from vflsec.errors import repeat_set

if TYPE_CHECKING:
    from vflsec.audit.pareto_front import Trial
    from vflsec.engine.tune_search import Deployment, Tuned
    from vflsec.report.tree import Step


def tune(
    scenario: ScenarioArg,
    defense: Annotated[list[str], typer.Option(help="A defense.")],
    leak: Annotated[float, typer.Option(help="Largest advantage.")] = 0.05,
    of: Annotated[str, typer.Option(help=find_meaning("Gate", "of"))] = "",
    drop: Annotated[float, typer.Option(help="Largest loss of utility (of AUC).")] = 0.03,
    low: Annotated[float, typer.Option(help="Weakest strength to try.")] = 0.1,
    high: Annotated[float, typer.Option(help="Strongest strength to try.")] = 100.0,
    rounds: Annotated[int, typer.Option(min=0, help="Halvings between the two.")] = 5,
    confirm: Annotated[bool, typer.Option(help="Judge on fresh seeds.")] = True,
    target: Annotated[str, typer.Option(help=find_meaning("Gate", "target"))] = "*",
    out: Annotated[
        Path | None,
        typer.Option(help="Results directory.", show_default="out/tune", parser=folder_name),
    ] = None,
    seeds: SeedsOption = None,
    device: DeviceOption = "auto",
    set_: SetOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress.")] = False,
    format_: FormatOption = Format.text,
) -> None:
    """Find the least strength of a defense that is enough.

    The choice is judged once more on fresh seeds: by these limits and by every gate of the
    scenario, even one that names another strength. Exits with 3 if a defense has no such strength,
    fresh seeds do not confirm it, or an attack is not validated.

    Example: vflsec tune quickstart --defense iso --leak 0.05 --drop 0.03
    """
    from vflsec.engine.tune_search import tune as search
    from vflsec.runtime.typed_values import write_plain

    given = {"leak": leak, "of": of, "drop": drop, "low": low, "high": high, "rounds": rounds,
             "target": target, "out": out, "seeds": seeds, "device": device}  # fmt: skip
    usual = signature(tune).parameters
    words = {f"--{k}": _word(value) for k, value in given.items() if value != usual[k].default}
    words |= {} if confirm else {"--no-confirm": ""}
    asked = [scenario, *repeat_set(set_ or ())]
    base = out if out is not None else Path("out") / "tune"
    found = []
    for name in defense:
        f = search(
            scenario, name, leak=leak, of=of, drop=drop, between=(low, high), rounds=rounds,
            confirm=confirm, target=target, out=base / name, seeds=seeds, device=device,
            set=set_ or (), progress=not quiet and format_ is not Format.json,
        )  # fmt: skip
        steps = (replace(s, command=_format_command(name, asked, words, s)) for s in f.next)
        found.append(f := replace(f, next=tuple(steps)))
        if format_ is not Format.json:  # at once, for the next may be refused
            _print_found(f)
            say(f"  Results: {base / name}")
    if format_ is Format.json:
        print_json([write_plain(f) for f in found])
    else:
        _print_fronts([t for f in found for t in f.trials])
    lost = any(f.strength is None or f.confirmed is False or f.silent for f in found)
    raise typer.Exit(3 if lost else 0)


def _word(value: object) -> str:
    from vflsec.audit.rounding import show_exact

    return show_exact(value) if isinstance(value, float) else str(value)


def _print_found(found: Tuned) -> None:
    """What a search found, the gates that do not pass, and what to do next."""
    from vflsec.audit.rounding import show_exact

    at = found.strength
    chosen = "no strength is enough" if at is None else f"strength {show_exact(at)}"
    say(f"{found.defense}: {chosen}. {found.reason}")
    for gate in found.fresh.gates if found.fresh else ():
        if not gate.passes:
            say(f"  {gate.verdict} {gate.label}. {gate.reason}")
    if found.without:
        say(f"  The search leaves out {', '.join(found.without)}, which the scenario has.")
    for label, why in found.unasked.items():
        say(f"  Not judged here: {label} ({why.words}).")
    for step in found.next:
        say(f"  Next: {step.text}")
        if step.command:
            say(f"    {step.command}")
    if found.deploy:
        _print_deployment(found.deploy)


def _print_fronts(trials: Sequence[Trial]) -> None:
    from vflsec.audit.metrics import find_scale, format_size, metric_name
    from vflsec.audit.pareto_front import pareto

    for metric, front in pareto(trials).items():
        unit = metric_name(metric)
        say(f"Best trade-offs (Pareto front, means; the largest advantage in {unit} of an attack):")
        for t in front:
            gain = format_size(t.find_mean(metric), metric, spec="+.3f")
            gain += " of 1,000" if find_scale(metric) > 1 else ""
            figures = f"utility {t.utility:.3f}, advantage {gain}"
            say(f"  {t.defense} {t.strength:g}: {figures}.{t.epsilons()}")


def _print_deployment(to: Deployment) -> None:
    from vflsec.audit.rounding import show_exact

    value = show_exact(to.strength)  # another one was not tried
    where = f", behind that of {' and '.join(to.behind)}" if to.behind else ""
    where += f" in place of {' and '.join(to.instead)}" if to.instead else ""
    say(f"  In the scenario, add or change the [[defense]] of {to.defense}{where}:")
    say(f"    strength = [0, {value}]")
    say(f"  In its gates, name {'this point' if len(to.points) == 1 else 'one of these points'}:")
    for name, strength in to.points:
        say(f"    defense = {json.dumps(name, ensure_ascii=False)}")
        if strength is not None:
            say(f"    strength = {show_exact(strength)}")


def _format_command(
    defense: str, scenario: Sequence[str], given: Mapping[str, str], step: Step
) -> str:
    """The command of a step: its own, or that which was given, with other options."""
    if not step.options:
        return step.command
    gone = {*step.options[::2]}
    if "--defense" in gone:
        gone |= {"--low", "--high"}  # strengths of another defense mean something else
    kept = {k: value for k, value in {"--defense": defense, **given}.items() if k not in gone}
    words = [word for pair in kept.items() for word in pair if word]
    return shlex.join(["vflsec", "tune", *scenario, *words, *step.options])
