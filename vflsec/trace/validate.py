"""What commands do with whole traces: check, describe, join them, grant what was not granted.

The libraries that decode tables are written in C++ and were seen to abort on damaged files whose
hashes somebody made right again. So a trace from outside is first read in a process of its own:
what makes a decoder crash or eat memory ends there.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vflsec.core import check
from vflsec.errors import ConfigError, TraceError, first_line
from vflsec.runtime.atomic_files import name_when_whole
from vflsec.trace.completeness import Passed, find_miscounts
from vflsec.trace.limits import Limits, check_new
from vflsec.trace.manifest import LaterGrant, LaterName, Manifest, say_now, write_json
from vflsec.trace.reader import Observer, Trace
from vflsec.trace.recorder_inputs import Ids, known_rows, read_shares
from vflsec.trace.seal import write_seal
from vflsec.trace.tables import write_known

ONE_RUN = "Join traces of one run."
_SECONDS = 3600
_ROOM = 4 << 30

Step = tuple[str, int | None, int | None]
"""(phase, epoch, step)."""


@dataclass(frozen=True)
class Report:
    """What a trace holds.

    Attributes:
        messages: number of messages by observer.
        last_step: by observer, the last step whose messages are all there.
        notes: what a reader should know, one sentence each.
    """

    messages: dict[str, int] = field(default_factory=dict)
    last_step: dict[str, Step | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def validate(folder: str | Path, limits: Limits | None = None) -> Report:
    """Check a trace to the last row; needs memory for one row group at a time.

    Raises:
        TraceError: the first thing that is wrong, where, and what to do.
    """
    trace = Trace.open(folder, limits)
    report = Report(notes=trace.notes)
    for name in trace.observers:
        observer = trace.observer(name)
        seen = Passed()
        kinds: dict[Step, set[tuple[str, str]]] = defaultdict(set)
        for found in observer.messages():
            f = found.fields
            seen.add(f)
            kinds[f.phase, f.epoch, f.step].add((f.kind, f.sender))
        report.messages[name] = sum(size.messages for size in seen.sizes.values())
        report.last_step[name] = _find_last(kinds)
        if trace.sealed:
            odd = find_miscounts(observer.info.have, seen.have())
            trace.notes += [f"{name}: {clause}." for clause in odd]
        _read_rest(observer)
    if not trace.observers:
        trace.notes.append("no observer is there: nothing can be audited.")
    return report


def _read_rest(observer: Observer) -> None:
    """Read all that an observer has beside messages."""
    observer.own()
    observer.known()
    for split in observer.info.targets:
        observer.targets(split)
    for party in observer.info.aux:
        observer.aux(party)
    for moment in observer.info.moments:
        observer.updates(moment)
        for entry in moment.models:
            observer.weights(entry) if entry.layers is None else observer.model(entry)


def _find_last(kinds: dict[Step, set[tuple[str, str]]]) -> Step | None:
    """The last training step with as many kinds of messages as the fullest of its phase."""
    timed = {at: len(found) for at, found in kinds.items() if at[2] is not None}
    full: dict[str, int] = defaultdict(int)
    for (phase, _, _), count in timed.items():
        full[phase] = max(full[phase], count)
    whole = [at for at, count in timed.items() if count == full[at[0]]]
    trained = [at for at in whole if at[0] not in ("eval", "predict")]
    found = trained or whole
    return found[-1] if found else None


def validate_in_subprocess(folder: str | Path, limits: Limits | None = None) -> Report:
    """:func:`validate` in a child process with bounded memory and time; nothing if it is trusted.

    Raises:
        TraceError: what is wrong, also if the child died of it.
    """
    limits = limits or Limits()
    if limits.trusted:
        return Report()
    asked = {"folder": str(folder), "limits": asdict(limits)}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "vflsec.trace.validate"],
            input=json.dumps(asked), capture_output=True,
            text=True, timeout=_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise TraceError.unreadable(folder, f"{_SECONDS} seconds passed") from None
    try:
        found = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        why = f"exit code {done.returncode}"
        raise TraceError.unreadable(folder, why, "Ask for another copy.") from None
    if "error" in found:
        raise TraceError(found["error"])
    return Report(**found["report"])


def _bound_memory(limits: Limits) -> None:
    try:
        import resource
    except ImportError:  # not on this system
        return
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    room = now + _ROOM + 2 * limits.batch_bytes
    if most == resource.RLIM_INFINITY or room < most:
        resource.setrlimit(resource.RLIMIT_AS, (room, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _main() -> None:
    asked = json.loads(sys.stdin.read())
    limits = Limits(**asked["limits"])
    if sys.platform == "linux":
        _bound_memory(limits)
    try:
        found = validate(asked["folder"], limits)
        out: dict[str, object] = {"report": asdict(found)}
    except TraceError as why:
        out = {"error": str(why)}
    except MemoryError:
        out = {"error": str(TraceError.unreadable(asked["folder"], "out of memory"))}
    sys.stdout.write(json.dumps(out) + "\n")


def info(folder: str | Path) -> dict[str, Any]:
    """What a trace says about itself, as plain values; reads no tables.

    Raises:
        TraceError: it cannot be opened.
    """
    trace = Trace.open(folder, verify=False)
    m, infos = trace.manifest, [trace.observer(name).info for name in trace.observers]
    return {
        "folder": str(folder), "version": m.version, "status": m.status, "sealed": trace.sealed,
        "framework": f"{m.framework.name} {m.framework.version}".strip(),
        "parties": {p.name: p.role for p in m.parties}, "rows": m.rows, "classes": m.classes,
        "run": m.run.model_dump(), "bytes": sum(trace.files.values()),
        "observers": {
            i.party: {
                "complete": i.complete, "own": i.own, "known_rows": i.known,
                "prior": i.prior is not None, "aux": i.aux,
                "moments": [moment.phase for moment in i.moments],
                "models": sorted({f"{e.party}.{e.part}" for at in i.moments for e in at.models}),
                "have": [h.model_dump() for h in i.have],
            }
            for i in infos
        },
        "notes": list(trace.notes),
    }  # fmt: skip


def join(folders: Sequence[str | Path], out: str | Path, limits: Limits | None = None) -> Path:
    """Copy the observers of several sealed traces of one run into one; never a truth.

    Row *k* must be the same sample in all of them: the parties agree on it as they did in training.
    A party may know fewer of the others than there are: those of all traces are put together.

    Args:
        folders: traces of the same run, of different observers.
        out: a new folder.

    Raises:
        ConfigError: they are not of one run, share an observer, or `out` holds something.
        TraceError: one is damaged or not sealed.
    """
    out = Path(out)
    traces = [Trace.open(f, limits) for f in folders]
    if len(traces) < 2:
        raise check.fail("trace join: folders", "two or more", len(traces))
    first, held = traces[0].manifest, dict[str, Path]()
    parties = {p.name: p for t in traces for p in t.manifest.parties}
    for trace in traces:
        trace.need_seal()
        for what in ("active", "rows", "classes", "run"):
            mine, other = getattr(trace.manifest, what), getattr(first, what)
            if mine != other:
                raise ConfigError.must(f"{trace.folder}: {what}", f"be {other}", mine, ONE_RUN)
        for party in trace.manifest.parties:
            if (other := parties[party.name]) != party:
                where = f"{trace.folder}: {party.name}"
                raise ConfigError.must(where, f"be {other.role}", party.role, ONE_RUN)
        for name in trace.observers:
            if name in held:
                raise ConfigError(f"{trace.folder} and {held[name]} are both of {name}.")
            held[name] = trace.folder
    check_new(out).parent.mkdir(parents=True, exist_ok=True)
    partial = any(t.manifest.status == "partial" for t in traces)
    joined: Manifest = first.model_copy(
        update={"status": "partial" if partial else "sealed", "parties": list(parties.values())}
    )
    with name_when_whole(out.absolute()) as new:
        new.mkdir(mode=0o700)
        for name, folder in held.items():
            shutil.copytree(folder / "view" / name, new / "view" / name)
        write_json(new / "manifest.json", joined)
        write_seal(new, limits or Limits())
        if out.exists():
            out.rmdir()
    return out


def grant(
    folder: str | Path, party: str = "", *, known: tuple[Any, Any] | Path | None = None,
    prior: Sequence[float] | None = None, classes: int | None = None, limits: Limits | None = None,
) -> LaterGrant:  # fmt: skip
    """Add labelled rows, class shares and the number of classes, and seal the trace again.

    Each earlier seal stays on record.

    Args:
        folder: of a sealed trace.
        party: who is granted them; may be left out if one party recorded.
        known: (row ids of the trace, class numbers or values), or a CSV file of them with the
            columns row and label.
        prior: class shares.
        classes: number of classes, 1 of a quantity.

    Returns:
        what was added; the manifest keeps it.

    Raises:
        ConfigError: nothing is given, the trace has it already, or it cannot be used.
        TraceError: the trace is damaged or not sealed.
    """
    folder, limits = Path(folder), limits or Limits()
    given: dict[LaterName, Any] = {"known": known, "prior": prior, "classes": classes}
    added = [name for name, value in given.items() if value is not None]
    if not added:
        raise check.fail("trace grant", "given --known, --prior or --classes", "none")
    trace = Trace.open(folder, limits)
    trace.need_seal()
    who = party or trace.observers[0]
    if not party and len(trace.observers) > 1:
        who = ""
    check.one_of("trace grant: --party", who, trace.observers)
    info, manifest = trace.observer(who).info, trace.manifest
    has = {"known": info.known > 0, "prior": info.prior is not None,
           "classes": manifest.classes is not None}  # fmt: skip
    if twice := [name for name in added if has[name]]:
        raise ConfigError.taken(folder, f"{' and '.join(twice)} already", "Leave it out.")
    if classes is not None:
        check.integer("--classes", classes, low=1, high=100_000)
    classes = manifest.classes or classes
    rows = known_rows(_read_known(known) if isinstance(known, Path) else known,
                      Ids(manifest.rows), classes)  # fmt: skip
    told = read_shares(info.prior if prior is None else prior, classes)
    entry = LaterGrant(
        when=say_now(), party=who, added=added,
        seal=hashlib.sha256((folder / "seal.json").read_bytes()).hexdigest(),
    )  # fmt: skip
    info = info.model_copy(update={"prior": told, "known": len(rows) if rows else info.known})
    manifest = manifest.model_copy(update={"classes": classes, "later": [*manifest.later, entry]})
    trace.manifest = manifest
    for name in trace.observers:  # labels that were granted before must be of these classes
        trace.observer(name).known()
    (folder / "seal.json").unlink()  # what is stopped here is sealed by `vflsec trace seal`
    if rows is not None:
        write_known(folder / "view" / who, rows)
    write_json(folder / "view" / who / "observer.json", info)
    write_json(folder / "manifest.json", manifest)
    write_seal(folder, limits)
    return entry


def _read_known(path: Path) -> tuple[list[int], list[float]]:
    """Row ids and labels of a CSV file."""
    from vflsec.trace.leaves import read_texts

    row, label = read_texts(path, ("row", "label"))
    try:
        return row.astype(int).tolist(), label.astype(float).tolist()
    except (ValueError, OverflowError) as why:
        raise ConfigError.must(path, "hold whole rows and labels from 0", first_line(why)) from None


if __name__ == "__main__":
    _main()
