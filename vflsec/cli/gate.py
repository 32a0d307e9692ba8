"""``vflsec gate``: stored results judged again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vflsec.cli.arguments import FolderArg, add_options, find_given, folder_name
from vflsec.cli.output import notify_github, say
from vflsec.errors import VflsecError, format_count, join_some
from vflsec.report.terminal import console_for

if TYPE_CHECKING:
    from rich.console import Console

    from vflsec.audit.baseline import Baseline
    from vflsec.audit.gate import Gate
    from vflsec.audit.record import AuditRecord
    from vflsec.audit.result import Audit
    from vflsec.report.tree import Report
    from vflsec.storage.store import Store


@add_options("Gate")
def gate(
    folder: FolderArg,
    baseline: Annotated[
        Path | None, typer.Option(help="Also fail where the advantage rose above this file.")
    ] = None,
    update_baseline: Annotated[
        bool, typer.Option("--update-baseline", help="Write these results to --baseline.")
    ] = False,
    scenario: Annotated[
        str | None, typer.Option("--scenario", help="Judge the gates of this scenario.")
    ] = None,
    report_to: Annotated[
        Path | None, typer.Option("--report", help="A folder for the reports.", parser=folder_name)
    ] = None,
    **asked: Any,
) -> None:
    """Judge stored results again, or against an earlier audit.

    Example: vflsec gate out/quickstart --max 0.05 --attack direction
    """
    from vflsec.audit.gate import USUAL
    from vflsec.config.scenario import load_gates
    from vflsec.engine.read_results import read_any
    from vflsec.report.console import print_last, print_results
    from vflsec.report.exports import write_reports
    from vflsec.storage.results_folder import for_reports
    from vflsec.storage.store import Store

    if update_baseline and baseline is None:
        raise VflsecError("gate: --update-baseline needs --baseline FILE.")
    limit = _find_limit(asked, scenario)
    also = load_gates([limit], USUAL) if limit else ()
    console = console_for()
    before = None if update_baseline or baseline is None else read_any(baseline)
    with Store(folder, readonly=True) as store:
        record = _asked(store, scenario, None if limit else asked["detect"])
        if "confidence" not in limit:
            also = tuple(gate.with_confidence(record.confidence) for gate in also)
        record = replace(record, command=replace(record.command, gate=bool(also)))
        result = _judged(store, record, also, before, scenario, console)
        if not result.verdicts and baseline is None and result.found.complete:
            raise VflsecError(
                f"{folder}: has no gate. Give one: "
                + shlex.join(["vflsec", "gate", str(folder), "--max", "0.1"])
            )
        shown = _print(result, console)
        if update_baseline and baseline is not None:
            _renew_baseline(baseline, result, store, record, also)
        if report_to is not None:
            for_reports(report_to, folder)
            if result.found.complete:
                write_reports(report_to, result.found)
                print_results(report_to, console)
        notify_github(result.found)
        print_last(shown, console)
    raise typer.Exit(result.exit_code)


def _find_limit(asked: Mapping[str, Any], scenario: str | None) -> dict[str, Any]:
    """The gate of the options, if they set a limit; the others then say what it is about."""
    said = find_given("Gate", asked)
    if {"max", "min"} & said.keys():
        if scenario is None:
            return said
        raise VflsecError(
            "gate: --max or --min, and --scenario, exclude each other. Leave one out."
        )
    if about := [f"--{k}" for k in said if k != "detect"]:  # something else would be judged
        raise VflsecError(f"gate: {', '.join(about)}: needs --max or --min.")
    return {}


def _renew_baseline(
    path: Path, result: Audit, store: Store, record: AuditRecord, also: Sequence[Gate]
) -> None:
    """Write the results to the file, and say what it lacks."""
    from vflsec.audit.baseline import write_baseline
    from vflsec.audit.gate import MIN_SEEDS
    from vflsec.engine.evaluate_store import judge
    from vflsec.engine.read_results import read_any

    wrote = write_baseline(path, result)
    say(f"Wrote {path}.")
    if wrote.kept:
        count = f"{wrote.kept} of {format_count(wrote.figures, 'figure')}"
        say(f"{count} stay as they were: what changed by no more than is tolerated.")
    if wrote.seeds < MIN_SEEDS:
        say(f"It has {wrote.seeds} of the {MIN_SEEDS} seeds that a PASS against it takes.")
        return
    beside = judge(store, record, export=False, also=also, only=bool(also), before=read_any(path))
    if still := _describe_open(beside):
        say(f"{still} vflsec gate {store.folder} --baseline {path} says why.")


def _describe_open(beside: Audit) -> str:
    """How many figures of a baseline its own results leave open, and which; '' if none."""
    from vflsec.audit.gate import Origin

    asked = [v for v in beside.verdicts if v.origin is Origin.BASELINE]
    still = [v for v in asked if not v.passes]
    if not still or not asked[0].attack:
        return asked[0].reason if still else ""
    names = join_some(list(dict.fromkeys(f"{v.attack} by {v.adversary}" for v in still)))
    count = f"{len(still)} of {format_count(len(asked), 'figure')}"
    return f"{count} are inconclusive even against themselves, so no build passes: {names}."


def _asked(store: Store, scenario: str | None, detect: float | None) -> AuditRecord:
    """The record with the gates to judge: its own, or an edited scenario's; with this `detect`."""
    from vflsec.engine.audit_record import replace_gates

    record = store.record() if scenario is None else replace_gates(store.record(), scenario)
    if record.shard:
        raise VflsecError(
            f"{store.folder}: is shard {record.shard}. First: vflsec merge DIR... --out DIR"
        )
    if detect is None:
        return record
    if not any(g.limits_leaks for g in record.gates):
        raise VflsecError("gate: --detect: no gate limits an advantage. Add --max 0.1")
    gates = (replace(g, detect=detect) if g.limits_leaks else g for g in record.gates)
    return replace(record, gates=tuple(gates))


def _judged(
    store: Store, record: AuditRecord, also: Sequence[Gate], before: Baseline | None,
    scenario: str | None, console: Console,
) -> Audit:  # fmt: skip
    """The stored results judged by `also`, else by their scenario's gates; says whose they are."""
    from vflsec.audit.gate_selection import list_measured, list_unanswerable
    from vflsec.engine.audit_record import edited_tables, find_edited
    from vflsec.engine.evaluate_store import judge
    from vflsec.report.verdicts import judged_line

    result = judge(store, record, export=False, also=also, only=bool(also), before=before)
    rows = list_measured(result.rows)
    asked = also or (record.gates if scenario is not None else ())
    for given in asked if result.found.complete else ():
        for wrong in list_unanswerable(given, rows):
            option = f"--{wrong.key} " if wrong.key else ""
            raise VflsecError(f"gate: {option}{wrong.rule}")
    if not also:
        newer = None if scenario is not None else find_edited(record, store.folder)
        console.print(judged_line(result.found, newer, store.folder), soft_wrap=True)
    for table in edited_tables(record, store.folder):
        say(
            f"warning: {table} was changed since this audit. Run the audit again.", err=True,
        )  # fmt: skip
    return result


def _print(result: Audit, console: Console) -> Report:
    """Print every gate; gives the report that they stand in."""
    from vflsec.report.build import build_printed
    from vflsec.report.console import print_section

    shown = build_printed(result.found)
    print_section(shown, "gates", console)
    print_section(shown, "steps", console)
    return shown
