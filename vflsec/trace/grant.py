"""Adds to a sealed trace what its party is granted later; each earlier seal stays on record."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vflsec.core import check
from vflsec.errors import ConfigError, first_line
from vflsec.trace.leaves import read_texts
from vflsec.trace.limits import Limits, replace_file
from vflsec.trace.manifest import LaterGrant, LaterName, dump, say_now
from vflsec.trace.reader import Trace
from vflsec.trace.recorder_inputs import Ids, known_rows, read_shares
from vflsec.trace.seal import write_seal
from vflsec.trace.tables import write_known


def grant(
    folder: str | Path, party: str = "", *, known: tuple[Any, Any] | Path | None = None,
    prior: Sequence[float] | None = None, classes: int | None = None, limits: Limits | None = None,
) -> LaterGrant:  # fmt: skip
    """Add labelled rows, class shares and the number of classes, and seal the trace again.

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
    replace_file(folder / "view" / who / "observer.json", dump(info))
    replace_file(folder / "manifest.json", dump(manifest))
    write_seal(folder, limits)
    return entry


def _read_known(path: Path) -> tuple[list[int], list[float]]:
    """Row ids and labels of a CSV file.

    Raises:
        ConfigError: something is no number.
    """
    row, label = read_texts(path, ("row", "label"))
    try:
        return row.astype(int).tolist(), label.astype(float).tolist()
    except (ValueError, OverflowError) as why:
        raise ConfigError.must(path, "hold whole rows and labels from 0", first_line(why)) from None
