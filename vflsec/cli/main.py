"""The command line: parses, calls, prints, and turns outcomes into exit codes.

Nothing here imports torch before a command needs it.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import signal
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vflsec._version import __version__
from vflsec.cli.arguments import (
    DeviceOption,
    FolderArg,
    Format,
    FormatOption,
    FreshOption,
    Kind,
    ScenarioArg,
    SeedsOption,
    SetOption,
    find_meaning,
    folder_name,
)
from vflsec.cli.attack import attack
from vflsec.cli.gate import gate
from vflsec.cli.init import init
from vflsec.cli.merge import merge
from vflsec.cli.new import new_app
from vflsec.cli.output import (
    fail,
    print_audit,
    print_json,
    report_defect,
    say,
    silence_broken_streams,
)
from vflsec.cli.trace import trace_app
from vflsec.cli.tune import tune
from vflsec.errors import AGAIN, VflsecError, format_count, repeat_set
from vflsec.plugins.loading import allow_imports, find_last_place, guard_exit, seal_exit
from vflsec.report.terminal import console_for
from vflsec.runtime.lazy_imports import importing, leaving, patient

if TYPE_CHECKING:
    from vflsec.report.notebook import Audit

EXIT_CODES = {
    0: "done, gates passed",
    1: "a gate failed",
    2: "the command, the scenario or the data cannot be used",
    3: "inconclusive, and no gate failed",
    4: "internal error",
    130: "interrupted; the same command resumes",
}
"""What each exit code means, in the words of the README."""
_INTERRUPTED = 130
_COMPLETION = (["--show-completion"], ["--install-completion"])

app = typer.Typer(
    name="vflsec",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Audit what vertical federated learning leaks.\n\nExample: vflsec audit quickstart",
    epilog="Your own tables: vflsec init bank.csv shop.csv --label COLUMN",
)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"vflsec {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    show_traceback: Annotated[bool, typer.Option("--traceback", help="Show tracebacks.")] = False,
) -> None:
    pass


def audit(
    scenario: ScenarioArg,
    out: Annotated[
        Path | None,
        typer.Option(help="Results directory.", show_default="out/NAME", parser=folder_name),
    ] = None,
    seeds: SeedsOption = None,
    attacker: Annotated[str | None, typer.Option(help=find_meaning("Audit", "attacker"))] = None,
    device: DeviceOption = "auto",
    jobs: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 1,
    replicas: Annotated[
        int, typer.Option(min=1, help="Most trainings at once; bounds memory.")
    ] = 32,
    set_: SetOption = None,
    fresh: FreshOption = False,
    until_decided: Annotated[
        int | None,
        typer.Option(min=1, metavar="SEEDS", help="Add seeds while they decide, up to this many."),
    ] = None,
    keep_views: Annotated[
        bool, typer.Option("--keep-views", help="Keep what attackers saw, for `vflsec attack`.")
    ] = False,
    views_mb: Annotated[int, typer.Option(min=1, help="Most megabytes of kept views.")] = 4096,
    shard: Annotated[str, typer.Option(metavar="I/N", help="Run part I of N, to merge.")] = "",
    cluster: Annotated[
        str,
        typer.Option(metavar="WHERE", help="Work at dask://HOST:PORT, local:N, ray://HOST:PORT."),
    ] = "",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Audit again when the scenario or a table changes.")
    ] = False,
) -> None:
    """Train, attack, judge and report. Interrupted, it resumes.

    Example: vflsec audit quickstart --seeds 3 --out out/first
    """
    _end_in_order()
    how: dict[str, Any] = {
        "seeds": seeds, "attacker": attacker, "device": device, "jobs": jobs,
        "set": set_ or (), "fresh": fresh, "replicas": replicas, "keep_views": keep_views,
        "views_mb": views_mb, "shard": shard, "cluster": cluster,
    }  # fmt: skip

    if watch:
        from vflsec.cli.watch import watch_files
        from vflsec.config.scenario import list_files

        files = partial(list_files, scenario, set_ or ())
        watch_files(files, lambda: _audit_once(scenario, out, until_decided, quiet, **how))
    raise _audit_once(scenario, out, until_decided, quiet, **how)


def _audit_once(
    scenario: str, out: Path | None, most: int | None, quiet: bool, **how: Any
) -> typer.Exit:
    """Run an audit and print it; gives the exit to raise."""
    early: AbstractContextManager[None] = nullcontext()
    if how["jobs"] > 1:  # they import what they need while this process does
        from vflsec.engine.worker_pools import warm_workers

        folder = out or Path("out") / Path(scenario).stem
        early = warm_workers(folder, how["jobs"], how["cluster"], how["fresh"])
    with early:
        result = _audited(scenario, out, most, quiet, **how)
    return print_audit(result)


def _audited(scenario: str, out: Path | None, most: int | None, quiet: bool, **how: Any) -> Audit:
    """Run an audit, with more seeds up to `most` if it is given."""
    with importing():
        from vflsec.engine.run import Interrupted, run_audit
        from vflsec.engine.until_decided import run_until_decided
    how["progress"] = not quiet
    try:
        if most is None:
            return run_audit(scenario, out, **how)
        return run_until_decided(scenario, out, most=most, **how)
    except Interrupted as stop:
        again = shlex.join(["vflsec", *[a for a in sys.argv[1:] if a != "--fresh"]])
        raise _Stopped(
            f"Interrupted: {stop.done} of {format_count(stop.total, 'training')} stored. "
            f"Resume: {again}"
        ) from None


class _Stopped(Exception):
    """An audit was interrupted, and this says how to go on."""


def _end_in_order() -> None:
    """Let what asks this process to end do so as Ctrl-C does; `nohup` stays what it is."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)


def check_(
    scenarios: Annotated[list[str], typer.Argument(help="Scenarios.")],
    set_: SetOption = None,
    format_: FormatOption = Format.text,
) -> None:
    """Say what would run, what cannot, and about how long it takes.

    Example: vflsec check quickstart --set audit.seeds=3
    """
    from vflsec.config.scenario import find_scenario, load_scenario

    with importing():
        from vflsec.engine.dry_run import make_plan
    from vflsec.report.plan_table import print_plan
    from vflsec.runtime.typed_values import write_plain

    found = []
    for scenario in scenarios:
        loaded = load_scenario(scenario, set_ or ())
        plan = make_plan(loaded)
        if format_ is Format.json:
            from vflsec.cli.catalog import scenario_summary

            path = find_scenario(scenario)
            source = f"scenarios/{path.name}" if path != Path(scenario) else scenario
            about = {"name": loaded.name, "summary": scenario_summary(path), "source": source}
            found.append(about | {"plan": write_plain(plan.to_json())})
        else:
            print_plan(plan, console_for())
            say(f"Next: {shlex.join(['vflsec', 'audit', scenario, *repeat_set(set_ or ())])}")
    if format_ is Format.json:
        print_json(found)


def report(
    folders: Annotated[list[Path], typer.Argument(help="Results; several with --index.")],
    to: Annotated[
        Path | None,
        typer.Option(
            help="Write the HTML pages, Markdown, JUnit and SARIF there.", parser=folder_name
        ),
    ] = None,
    mlflow: Annotated[str, typer.Option(metavar="EXPERIMENT", help="Log a run of MLflow.")] = "",
    pdf: Annotated[bool, typer.Option("--pdf", help="Print PDFs by a browser.")] = False,
    index: Annotated[bool, typer.Option("--index", help="One page over all audits below.")] = False,
) -> None:
    """Print every figure of an audit; with --to, write its reports.

    Example: vflsec report out/quickstart --to public
    """
    if index:
        _index(folders, to or folders[0])
        return
    folder, *more = folders
    if more:
        raise VflsecError(
            f"report: takes one folder, got {len(folders)}. One page over all: --index."
        )
    from vflsec.audit.summary import read_summary
    from vflsec.engine.read_results import refuse_damaged
    from vflsec.report.build import build_printed
    from vflsec.report.console import print_last, print_report, print_results
    from vflsec.report.exports import load_summary
    from vflsec.storage.store import STORE_NAME

    if (folder / STORE_NAME).is_file() and not (folder / "summary.json").exists():
        raise VflsecError(f"{folder}: its audit has not ended, or is a shard. {AGAIN} Or merge.")
    summary = read_summary(load_summary(folder))
    refuse_damaged(folder, summary)
    if to is not None:
        from vflsec.report.exports import write_reports
        from vflsec.storage.results_folder import for_reports

        for_reports(to, folder)
        write_reports(to, summary)
    shown = build_printed(summary, whole=True)
    print_report(shown, console_for())
    if mlflow:
        from vflsec.report.tracking import log_audit

        typer.echo(f"MLflow run: {log_audit(folder, summary, mlflow)}")
    if pdf:
        from vflsec.report.pdf import print_pages

        for path in print_pages((to or folder) / f"{n}.html" for n in ("report", "statement")):
            say(f"PDF: {path}")
    if to is not None:
        print_results(to, console_for())
    print_last(shown, console_for())


def _index(folders: Sequence[Path], to: Path) -> None:
    """Write and print the page over several audits."""
    from vflsec.report.console import print_report
    from vflsec.report.html import render_page
    from vflsec.report.index import PAGE, build_index, find_audits
    from vflsec.runtime.atomic_files import make_folder, write_atomic
    from vflsec.storage.results_folder import only_our_file

    found = build_index(find_audits(folders, to))
    make_folder(to)
    only_our_file(to / PAGE)
    text = render_page(found, "Privacy audits").encode("utf-8")
    write_atomic(to / PAGE, lambda path: path.write_bytes(text))
    print_report(found, console_for())
    say(f"Index: {to / PAGE}")


def compare(
    before: FolderArg,
    after: Annotated[Path, typer.Argument(help="Results to compare with.")],
    format_: FormatOption = Format.text,
) -> None:
    """Say what changed between two audits.

    Example: vflsec compare out/before out/after
    """
    from vflsec.engine.read_results import compare_folders
    from vflsec.report.comparison import print_changes
    from vflsec.runtime.typed_values import write_plain

    found = compare_folders(before, after)
    if format_ is Format.json:
        print_json(write_plain(found))
        return
    print_changes(found, console_for())


def list_(
    kind: Annotated[Kind, typer.Argument(help="What to list.")],
    format_: FormatOption = Format.text,
) -> None:
    """List attacks, defenses, algorithms, datasets or scenarios.

    Example: vflsec list attacks --format json
    """
    from vflsec.cli.catalog import list_kind

    allow_imports(Path.cwd())
    items = list_kind(kind.value)
    if format_ is Format.json:
        print_json(items)
        return
    width = max((len(i["name"]) for i in items), default=0)
    for item in items:
        say(f"{item['name']:<{width}}  {item['summary']}")


def show(
    name: Annotated[str, typer.Argument(help="A name, an alias, a scenario or a section.")],
    format_: FormatOption = Format.text,
) -> None:
    """Explain an attack, a defense or a section of a scenario.

    Sections of a scenario: data, parties, algorithm, defense, attack, audit, gate.

    Example: vflsec show norm
    """
    from vflsec.cli.catalog import lookup

    allow_imports(Path.cwd())
    found = lookup(name)
    if format_ is Format.json:
        print_json(found)
        return
    for item in found:
        typer.echo(f"{item['kind']} {item['name']}\n\n{item['doc'].strip()}\n")
        if item.get("parameters"):
            typer.echo("Keys:" if item["kind"] == "section" else "Parameters:")
        for p in item.get("parameters", []):
            needed = "" if item["kind"] == "section" else " (required)"
            default = f" (default {p['default']})" if p["default"] else needed
            typer.echo(f"  {p['name']}: {p['type']}{default}")
            if p.get("meaning"):
                typer.echo(f"      {p['meaning']}")
        for key in ("needs", "optional", "target", "strengths"):
            if said := _words(item.get(key, "")):
                typer.echo(f"{key}: {said}" + (" (0 = off)" if key == "strengths" else ""))
        if item.get("aliases"):
            typer.echo(f"also called: {', '.join(item['aliases'])}")


def _words(source: str) -> str:
    """A text or a set of texts as it is written in a source, without Python's marks."""
    inner = re.fullmatch(r"frozenset\(\{?([^*]*?)\}?\)", source)
    return (inner[1] if inner else source).strip("'\"").replace("', '", ", ")


_COMMANDS = (
    ("init", init), ("check", check_), ("audit", audit), ("report", report), ("gate", gate),
    ("tune", tune), ("compare", compare), ("attack", attack), ("merge", merge), ("list", list_),
    ("show", show),
)  # fmt: skip
"""In the order in which they are used, which is that of the help."""
for _name, _command in _COMMANDS:
    app.command(_name)(_command)
app.add_typer(new_app, name="new")
app.add_typer(trace_app, name="trace")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    show_traceback = "--traceback" in args or bool(os.environ.get("VFLSEC_TRACEBACK"))
    args = [a for a in args if a != "--traceback"]
    if argv is None:
        guard_exit(2)
        patient()
    with silence_broken_streams() as lost:
        code = _run(args, show_traceback)
    if lost.why and args[:1] not in (["audit"], ["gate"]):  # their verdict stands, heard or not
        code = fail(f"error: output cannot be written: {lost.why}.", 2, False)
    if argv is None:
        seal_exit(code)
        leaving()
    return code


_PLAINLY = {
    "Value error, ": "",
    "Input should be a valid number, unable to parse string as a number": "Write a number as 0.1.",
    "is not a valid float.": "is no number. Write it as 0.1.",
}
"""What usage errors of the parser say, in plain words."""
_DISK = {getattr(errno, name, None) for name in ("ENOSPC", "EDQUOT", "EROFS", "EIO")} - {None}
"""Errors of a disk, whose file is not always named."""


@cache  # it takes longer than most commands that refuse their input
def _build_parser() -> Any:
    return typer.main.get_command(app)


def _run(args: list[str], show_traceback: bool) -> int:
    completes = "_VFLSEC_COMPLETE" in os.environ or args[:1] in _COMPLETION
    try:
        code = _build_parser().main(args=args, prog_name="vflsec", standalone_mode=False)
        if code == _INTERRUPTED:  # the parser caught it, and said nothing
            return fail("Interrupted.", code, False)
        return code if isinstance(code, int) else 0
    except _Stopped as told:
        return fail(str(told), _INTERRUPTED, False)
    except VflsecError as error:
        return fail(f"error: {error}", 2, show_traceback)
    except (KeyboardInterrupt, typer.Abort):
        return fail("Interrupted.", _INTERRUPTED, False)
    except SystemExit as stop:  # of the parser where it completes names; else of the user's code
        if completes:
            return stop.code if isinstance(stop.code, int) else 0
        where = find_last_place(stop)
        return fail(
            f"error: {where}: sys.exit({stop.code!r}) was called. Return, or raise an error.",
            2, show_traceback,
        )  # fmt: skip
    except OSError as error:
        if error.filename:
            return fail(f"error: {error.filename}: {error.strerror}.", 2, show_traceback)
        if (number := error.errno) is not None and number in _DISK:
            why = os.strerror(number)
            text = f"error: a file cannot be written: {why}. Mend that, and run it again."
            return fail(text, 2, show_traceback)
        return report_defect(error, show_traceback)
    except Exception as error:
        if hasattr(error, "show") and hasattr(error, "exit_code"):  # a usage error of the parser
            for was, now in _PLAINLY.items():
                error.message = str(getattr(error, "message", "") or "").replace(was, now)  # type: ignore[attr-defined]
            error.show()
            return 2
        return report_defect(error, show_traceback)


if __name__ == "__main__":
    sys.exit(main())
