"""Several parties' traces of one run as one, for an audit of what they know together."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from vflsec.errors import ConfigError, TraceError
from vflsec.trace.limits import Limits
from vflsec.trace.manifest import Manifest, dump
from vflsec.trace.reader import Trace
from vflsec.trace.seal import write_seal

__all__ = ["join"]


def join(folders: Sequence[str | Path], out: str | Path, limits: Limits | None = None) -> Path:
    """Copy the observers of several sealed traces into one; never a truth.

    Row *k* must be the same sample in all of them: the parties agree on it as they did in training.

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
        raise ConfigError("trace join: give the traces of at least two observers.")
    first, held = traces[0].manifest, dict[str, Path]()
    for trace in traces:
        if not trace.sealed:
            raise TraceError(f"{trace.folder}: is not sealed; run 'vflsec trace seal' on it first.")
        for what in ("names", "active", "rows", "classes", "run"):
            mine, other = getattr(trace.manifest, what), getattr(first, what)
            if mine != other:
                raise ConfigError(
                    f"{trace.folder}: {what} {mine} differ from {other} of {traces[0].folder}. "
                    "Join traces of one run."
                )
        for name in trace.observers:
            if name in held:
                raise ConfigError(f"{trace.folder} and {held[name]} both hold what {name} saw.")
            held[name] = trace.folder
    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"{out}: is not empty. Give a new folder.")
    out.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name, folder in held.items():
        shutil.copytree(folder / "view" / name, out / "view" / name)
    partial = any(t.manifest.status == "partial" for t in traces)
    joined: Manifest = first.model_copy(update={"status": "partial" if partial else "sealed"})
    (out / "manifest.json").write_bytes(dump(joined))
    write_seal(out, {}, limits or Limits())
    return out
