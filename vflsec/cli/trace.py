"""``vflsec trace``: audits of what somebody else trained, from recorded traces."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vflsec.cli.arguments import DeviceOption, SetOption, find_meaning, folder_name
from vflsec.cli.output import ProgressLines, print_audit, print_json, say
from vflsec.errors import ConfigError

if TYPE_CHECKING:
    from vflsec.audit.gate import Gate
    from vflsec.measure.attack import Answer
    from vflsec.runtime.plain_values import Table
    from vflsec.trace.limits import Limits

trace_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Record and audit what one party of another system saw.\n\n"
    "Example: vflsec trace validate trace/",
)

_UNDECIDED = 3  # the exit code where nothing was found out
_NO_GUESS = "No attack made a guess"

TraceArg = Annotated[Path, typer.Argument(help="A trace.")]
TracesArg = Annotated[list[Path], typer.Argument(help="Traces; other seeds are repetitions.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
NonfiniteOption = Annotated[
    bool, typer.Option("--allow-nonfinite", help="Leave out rows that are not finite.")
]
OutOption = Annotated[Path, typer.Option(help="A new folder.", parser=folder_name)]
AttackOption = Annotated[list[str] | None, typer.Option(help="Only this attack.")]
MaxOption = Annotated[float | None, typer.Option("--max", help=find_meaning("Gate", "max"))]
MetricOption = Annotated[str, typer.Option(help=find_meaning("Gate", "metric"))]
DefenseOption = Annotated[str, typer.Option(help=find_meaning("Gate", "defense"))]
GatesOption = Annotated[Path | None, typer.Option("--gates", help="TOML with [[gate]] sections.")]
ConfidenceOption = Annotated[float, typer.Option(help=find_meaning("Audit", "confidence"))]
ClaimOption = Annotated[float | None, typer.Option(min=0, help="Claimed epsilon of the labels.")]
DeltaOption = Annotated[float, typer.Option(min=0, max=1, help="Delta of that claim.")]
TauOption = Annotated[float, typer.Option(min=0, help="Log odds by which class shares may be off.")]


@trace_app.command()
def record(
    scenario: Annotated[str, typer.Argument(help="A scenario.")],
    out: Annotated[Path, typer.Option(help="A folder.", parser=folder_name)] = Path("traces"),
    party: Annotated[str, typer.Option(help="Only what this party sees.")] = "",
    set_: SetOption = None,
    known_rows: Annotated[int, typer.Option(min=0, help="Fewest labelled rows.")] = 20,
    device: DeviceOption = "auto",
    max_bytes: Annotated[int | None, typer.Option(min=1, help="Most bytes of an observer.")] = None,
) -> None:
    """Write a trace of each training of a scenario.

    In a loop of your own use vflsec.record, see docs/traces.md.

    Example: vflsec trace record quickstart --set audit.seeds=3 --out traces
    """
    from vflsec.engine.recordings import record_scenario

    found = record_scenario(
        scenario, out, party=party, set=set_ or (), device=device, known_rows=known_rows,
        max_bytes=max_bytes, progress=ProgressLines(),
    )  # fmt: skip
    for folder in found:
        say(f"Wrote {folder}")


@trace_app.command()
def seal(
    folder: TraceArg,
    ended: Annotated[bool, typer.Option("--ended", help="The run came to its end.")] = False,
) -> None:
    """Seal what a killed recorder left.

    Also what several processes recorded side by side, none of which knows when all have ended.

    Example: vflsec trace seal trace/
    """
    from vflsec.trace.seal import seal as sealed

    notes = sealed(folder, ended=ended)
    for note in notes:
        say(f"note: {note}")
    say(f"Sealed {folder}{' (partial)' if notes else ''}.")


@trace_app.command()
def grant(
    folder: TraceArg,
    known: Annotated[Path | None, typer.Option(help="CSV with row, label.")] = None,
    prior: Annotated[str, typer.Option(metavar="P,Q,...", help="Class shares.")] = "",
    classes: Annotated[int | None, typer.Option(min=1, help="Classes; 1 of a quantity.")] = None,
    party: Annotated[str, typer.Option(help="The party that is granted them.")] = "",
) -> None:
    """Add what the label owner grants, and seal the trace again.

    What a trace has is never replaced; the manifest keeps when it was added, and the seal before.

    Example: vflsec trace grant trace/ --known known.csv --prior 0.7,0.3 --classes 2
    """
    from vflsec.core import check
    from vflsec.trace.validate import grant as add

    try:
        shares = [float(text) for text in prior.split(",")] if prior else None
    except ValueError:
        raise check.fail("--prior", "numbers and commas", prior) from None
    say(f"{folder}: {add(folder, party, known=known, prior=shares, classes=classes).words}.")


@trace_app.command()
def join(folders: TracesArg, out: OutOption = Path("out/joined")) -> None:
    """Put the traces of several parties of one run into one.

    Row k must be the same sample in all of them.

    Example: vflsec trace join bank/trace shop/trace --out joined
    """
    from vflsec.trace.validate import join as joined

    say(f"Wrote {joined(folders, out)}")


@trace_app.command("import-leaves")
def import_leaves(
    leaves: Annotated[Path, typer.Argument(help="CSV with tree, row, leaf.")],
    out: OutOption = Path("out/leaves"),
    known: Annotated[
        Path | None, typer.Option(help="CSV with row, label: known to the party.")
    ] = None,
    columns: Annotated[Path | None, typer.Option(help="CSV with row and own columns.")] = None,
    truth: Annotated[Path | None, typer.Option(help="CSV with row, label: all.")] = None,
    party: Annotated[str, typer.Option(help="Who saw the leaves.")] = "host",
    dataset: Annotated[
        str, typer.Option(help="Name of the data set, where there are several.")
    ] = "",
    profile: Annotated[str, typer.Option(help="The system: fate-2, secretflow, ...")] = "",
    defense: Annotated[str, typer.Option(help="NAME=STRENGTH, none or other.")] = "none",
    seed: Annotated[int, typer.Option(min=0, help="Seed of this run.")] = 0,
) -> None:
    """Make a trace of boosted trees from a table.

    A leaf of -1: the party was not sent it. See docs/howto/trees.md.

    Example: vflsec trace import-leaves leaves.csv --known known.csv --out out/leaves
    """
    from vflsec.trace.leaves import Beside
    from vflsec.trace.leaves import import_leaves as made

    folder = made(
        leaves, out, Beside(known, columns, truth), party=party, dataset=dataset, profile=profile,
        defense=defense, seed=seed,
    )  # fmt: skip
    say(f"Wrote {folder}")
    say(f"Next: {shlex.join(['vflsec', 'trace', 'audit', str(folder)])}")


@trace_app.command()
def info(folder: TraceArg, as_json: JsonOption = False) -> None:
    """Show what a trace says about itself.

    Example: vflsec trace info trace/
    """
    from vflsec.trace.validate import info as told

    found = told(folder)
    if as_json:
        print_json(found)
        return
    run = found["run"]
    parties = ", ".join(f"{n} ({r})" for n, r in found["parties"].items())
    say(f"{folder}: version {found['version']}, {found['status']}, {found['bytes']} bytes")
    say(f"parties: {parties}; {found['rows']} rows, {found['classes'] or '?'} classes")
    strength = "" if run["strength"] is None else f" {run['strength']:g}"
    say(
        f"run: {run['dataset'] or '?'}, {run['algorithm'] or '?'}, defense {run['defense']}"
        f"{strength}, seed {run['seed']}; recorded by {found['framework'] or '?'}"
    )
    for name, has in found["observers"].items():
        say(f"{name}: {'whole' if has['complete'] else 'not whole'}, own columns {has['own']}")
        say(
            f"  granted: {has['known_rows']} labels, prior {'yes' if has['prior'] else 'no'}"
            f"; models: {', '.join(has['models']) or 'none'}"
        )
        for h in has["have"]:
            epochs = h["epochs"] if isinstance(h["epochs"], str) else f"{len(h['epochs'])} epochs"
            kind = h["kind"] if h["values"] else f"{h['kind']} (sizes only)"
            say(
                f"  {h['phase']}: {kind} from {h['sender']} to {h['receiver']}: "
                f"{h['messages']} messages, {epochs}"
            )
    for note in found["notes"]:
        say(f"note: {note}")


@trace_app.command()
def validate(
    folder: TraceArg, allow_nonfinite: NonfiniteOption = False, as_json: JsonOption = False
) -> None:
    """Check a trace to the last row, in a process of its own.

    Exits with 2 and one sentence if something is wrong.

    Example: vflsec trace validate trace/
    """
    from vflsec.trace.validate import validate_in_subprocess

    found = validate_in_subprocess(folder, _limits(allow_nonfinite))
    if as_json:
        print_json(asdict(found))
        return
    for name, count in found.messages.items():
        last = found.last_step[name]
        where = f"; last whole step {last[2]} of {last[0]}" if last else ""
        say(f"{name}: {count} messages{where}")
    for note in found.notes:
        say(f"note: {note}")
    say(f"{folder} is valid.")


@trace_app.command()
def audit(
    folders: TracesArg,
    out: OutOption = Path("out/trace"),
    attack: AttackOption = None,
    known_rows: Annotated[
        int | None, typer.Option(min=0, help="Most labelled rows to use.")
    ] = None,
    classes: Annotated[int | None, typer.Option(min=2, help="Number of classes.")] = None,
    together: Annotated[
        list[str] | None, typer.Option(metavar="A+B", help="Observers who collude.")
    ] = None,
    truth: Annotated[list[Path] | None, typer.Option(help="The truth, for each trace.")] = None,
    blind: Annotated[bool, typer.Option("--blind", help="Open no truth that traces have.")] = False,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="PARTY=PACKAGE.MODULE:NAME", help="A party's model class."),
    ] = None,
    max_: MaxOption = None,
    metric: MetricOption = "advantage",
    defense: DefenseOption = "*",
    gates: GatesOption = None,
    confidence: ConfidenceOption = 0.95,
    claimed_epsilon: ClaimOption = None,
    claimed_delta: DeltaOption = 0.0,
    tau: TauOption = 0.0,
    allow_nonfinite: NonfiniteOption = False,
) -> None:
    """Make every attack that traces allow.

    Without a truth the guesses are written to OUT/guesses; `vflsec trace score` turns them into
    verdicts at the label owner's.

    Example: vflsec trace audit traces/* --out out/trace --max 0.05
    """
    from vflsec.engine.trace_attacks import infer

    truths, asked = list(truth or ()), _gates(gates, metric, max_, defense, confidence)
    if not truths and not blind:
        truths = [f for f in folders if (f / "truth" / "labels.parquet").is_file()]
        truths = truths if len(truths) == len(folders) else []
    if asked and (blind or not truths):
        raise ConfigError(
            "--max, --gates: need the truth of every trace. Add --truth, or give them to `vflsec "
            "trace score`."
        )
    guesses = infer(
        folders, out / "guesses", attacks=attack or (), known_rows=known_rows,
        together=[t.split("+") for t in together or ()], classes=classes,
        limits=_limits(allow_nonfinite), models=_models(model or ()), progress=ProgressLines(),
    )  # fmt: skip
    if not truths or blind:
        found = _told(guesses)
        if not found:
            raise typer.Exit(_UNDECIDED)
        say(
            f"Next, at the label owner: {shlex.join(['vflsec', 'trace', 'score', str(guesses)])} "
            "--truth FOLDER --out RESULTS"
        )
        return
    claim = None if claimed_epsilon is None else (claimed_epsilon, claimed_delta)
    _score(guesses, truths, out, asked, confidence, claim, tau)


@trace_app.command()
def score(
    guesses: Annotated[Path, typer.Argument(help="Guesses of `vflsec trace audit`.")],
    truth: Annotated[list[Path], typer.Option(help="The truth; one, or for each trace.")],
    out: OutOption = Path("out/trace"),
    attack: AttackOption = None,
    max_: MaxOption = None,
    metric: MetricOption = "advantage",
    defense: DefenseOption = "*",
    gates: GatesOption = None,
    confidence: ConfidenceOption = 0.95,
    claimed_epsilon: ClaimOption = None,
    claimed_delta: DeltaOption = 0.0,
    tau: TauOption = 0.0,
) -> None:
    """Compare guesses with the truth, judge and report.

    Example: vflsec trace score guesses/ --truth labels/ --out out/trace --max 0.05
    """
    claim = None if claimed_epsilon is None else (claimed_epsilon, claimed_delta)
    asked = _gates(gates, metric, max_, defense, confidence)
    _score(guesses, truth, out, asked, confidence, claim, tau, attack or ())


def _limits(allow_nonfinite: bool) -> Limits:
    from vflsec.trace.limits import Limits

    return Limits(nonfinite="drop" if allow_nonfinite else "refuse")


def _told(guesses: Path) -> bool:
    """Whether an attack made a guess; says what could not run, and why where that is short, or
    where nothing did.
    """
    from vflsec.errors import format_count
    from vflsec.measure.guess_files import thaw
    from vflsec.report.curve import FEW, count_unmade

    frozen = thaw(guesses)
    ran: set[tuple[str, str]] = set()
    idle: dict[tuple[str, str], Answer] = {}
    for a in (a for of in frozen.answers for a in of):
        key = (a.of.spec.label, "+".join(a.of.spec.adversary))
        if a.guess is not None:
            ran.add(key)
        else:
            idle.setdefault(key, a)
    idle = {key: a for key, a in idle.items() if key not in ran}
    if ran:
        names = ", ".join(sorted({label for label, _ in ran}))
        say(f"{format_count(len(ran), 'attack')} made guesses: {names}.")
    else:
        say(f"{_NO_GUESS}. `vflsec trace grant` adds known labels, classes and prior.")
    unmade = {key: a.status for key, a in idle.items() if a.status != "error"}
    unmade = unmade if ran and len(unmade) > FEW else {}
    for (label, who), a in idle.items():
        if (label, who) not in unmade:
            say(f"  {label} by {who}: {a.status}: {a.reason}")
    if unmade:
        say(f"{count_unmade(unmade)}. Why: {guesses / 'answers.json'} (status, reason).")
    for note in frozen.notes:
        say(f"note: {note}")
    return bool(ran)


def _score(
    guesses: Path, truths: list[Path], out: Path, gates: list[Gate], confidence: float,
    claim: tuple[float, float] | None, tau: float, attacks: Sequence[str] = (),
) -> None:  # fmt: skip
    from vflsec.engine.trace_attacks import score as scored

    result = scored(
        guesses, truths, out, attacks=attacks, gates=gates, confidence=confidence, claimed=claim,
        tau=tau,
    )  # fmt: skip
    end = print_audit(result, notes=result.found.notes)
    if not any(p.attack and p.status == "ok" for p in result.found.points):
        say(f"{_NO_GUESS}: nothing was audited.", err=True)
        raise typer.Exit(end.exit_code or _UNDECIDED)
    raise end


def _gates(
    file: Path | None, metric: str, most: float | None, defense: str, confidence: float
) -> list[Gate]:
    """The gates of a file and of --max."""
    from vflsec.config.scenario import load_gates

    made = [] if file is None else [*load_gates(file, confidence)]
    if most is not None:
        section: Table = {"metric": metric, "max": most, "defense": defense}
        return [*made, *load_gates([section], confidence)]
    if (defense, metric) != ("*", "advantage"):
        raise ConfigError("--defense, --metric: each needs --max.")
    return made


def _models(texts: Any) -> dict[str, Any]:
    """{party: factory(schema)} from the auditor's own import paths."""
    from vflsec.core import check
    from vflsec.nn.models import of_class
    from vflsec.plugins.loading import allow_imports

    found: dict[str, Any] = {}
    for text in texts:
        party, equals, path = text.partition("=")
        if not (equals and party and all(path.partition(":"))):
            raise check.fail("--model", "PARTY=PACKAGE.MODULE:NAME", text)
        allow_imports(Path.cwd())
        found[party] = of_class(path)
    return found
