"""Opens a trace: names, sizes and hashes are checked before anything is read; never the truth."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vflsec.core import check
from vflsec.errors import TraceError
from vflsec.trace.claims import RAW
from vflsec.trace.columns import Stored
from vflsec.trace.limits import Limits, files_of, read_bytes
from vflsec.trace.manifest import Manifest, ObserverInfo, Seal, load
from vflsec.trace.observer_reader import Observer
from vflsec.trace.seal import digest
from vflsec.trace.trace_files import TraceFiles

__all__ = ["Trace", "check_seal"]

_ROOT = ("manifest.json", "seal.json")
_TRUTH_WORDS = ("truth", "label", "labels", "target_values")


@dataclass
class Trace(TraceFiles):
    """A trace whose names, sizes and hashes were checked; its tables are checked as they are read.

    See :class:`vflsec.trace.trace_files.TraceFiles`.
    """

    @classmethod
    def open(
        cls, folder: str | Path, limits: Limits | None = None, *, verify: bool = True
    ) -> Trace:
        """Open a trace, sealed or as its recorder left it.

        Args:
            folder: of the trace.
            limits: what is read at most.
            verify: compare hashes (reads every file once).

        Raises:
            TraceError: it is none, or not as its seal says, or holds what does not belong there.
        """
        folder, limits = Path(folder), limits or Limits()
        found = files_of(folder, limits)
        files = {f: s for f, s in found.items() if not f.endswith(".tmp")}
        if "manifest.json" not in files:
            raise TraceError(f"{folder}: has no manifest.json, so it is no trace.")
        data = read_bytes(folder, "manifest.json", limits.manifest_bytes)
        manifest = load(data, Manifest, "manifest.json")
        trace = cls(folder, manifest, files, "seal.json" in files, limits)
        trace._places()
        trace._public()
        truth = [f for f in files if f.startswith("truth/")]
        trace.files = {f: s for f, s in files.items() if f not in truth}
        if trace.sealed:
            seal = check_seal(folder, trace.files, limits, verify=verify)
            trace._rows = {f.path: f.rows for f in seal.files}
            trace.payloads = tuple(f.sha256 for f in seal.files if "/tensors-" in f.path and f.rows)
        else:
            trace.notes.append(
                "not sealed: nothing says how much was recorded, and damage cannot be told from "
                "data. Run 'vflsec trace seal' where it was recorded."
            )
        if manifest.status == "partial":
            trace.notes.append("recording stopped before the run did; what is there is whole.")
        return trace

    def _public(self) -> None:
        names = self.manifest.names
        if len(set(names)) != len(names):
            raise TraceError(f"manifest.json: parties: names must differ, got {', '.join(names)}.")
        if sum(p.role == "active" for p in self.manifest.parties) > 1:
            raise TraceError("manifest.json: parties: at most one is active.")
        if self.manifest.rows > self.limits.rows:
            raise TraceError(
                f"manifest.json: rows {self.manifest.rows}; at most {self.limits.rows} are read."
            )
        held = sum(self.files.values())
        if self.manifest.rows > max(self.limits.named, held):
            raise TraceError(
                f"manifest.json: rows {self.manifest.rows}, of which {held} bytes of files can "
                "tell nothing. Raise Limits.named if you trust it."
            )

    def _places(self) -> None:
        """Every file stands where the format has a place for it."""
        for path in self.files:
            parts = path.split("/")
            name = parts[-1]
            if name.endswith((".pt", ".pth", ".pkl", ".pickle", ".npy", ".npz", ".bin", ".ckpt")):
                raise TraceError(
                    f"{path}: pickled or unnamed numbers are not read; weights of a trace are "
                    "safetensors, tables are Parquet."
                )
            if len(parts) == 1 and name in _ROOT:
                continue
            if parts[0] == "truth" and len(parts) == 2:
                continue
            if parts[0] == "view" and len(parts) == 3:
                if _is_truth(name):
                    raise TraceError(
                        f"{path}: the folder of an observer must not hold labels; they belong "
                        "into truth/, which only the scorer opens. Move it there."
                    )
                if _in_view(name):
                    continue
            raise TraceError(
                f"{path}: a trace has no such file. Remove what does not belong there."
            )

    @property
    def observers(self) -> tuple[str, ...]:
        """Whose folders are there."""
        return tuple(sorted({f.split("/")[1] for f in self.files if f.startswith("view/")}))

    def observer(self, name: str) -> Observer:
        """One observer's folder.

        Raises:
            TraceError: there is none, or it is not described rightly.
        """
        check.one_of("the observer of a trace", name, self.observers)
        where = f"view/{name}/observer.json"
        data = read_bytes(self.folder, where, self.limits.manifest_bytes)
        info = load(data, ObserverInfo, where)
        if info.party != name or name not in self.manifest.names:
            raise TraceError(
                f"{where}: party {info.party!r} must be the folder's name and one of "
                f"{', '.join(self.manifest.names)}."
            )
        prior, classes = info.prior, self.manifest.classes
        if prior is not None and (
            len(prior) != (classes or len(prior)) or abs(sum(prior) - 1) > 1e-3
        ):
            raise TraceError(
                f"{where}: prior must be one share for each of the {classes or '?'} classes that "
                f"add up to 1, got {len(prior)} that add up to {sum(prior):.4g}."
            )
        return Observer(self, name, info)


def _is_truth(name: str) -> bool:
    stem = name.lower().split(".")[0]
    return any(stem == w or stem.startswith(f"{w}-") for w in _TRUTH_WORDS)


def _in_view(name: str) -> bool:
    if name in ("observer.json", "messages.parquet", "known.parquet", "known-values.parquet"):
        return True
    if RAW.fullmatch(name):
        return True
    if name.endswith(".safetensors"):
        return name.startswith(("model-", "update-"))
    if not name.endswith(".parquet"):
        return False
    stem = name.removesuffix(".parquet")
    if stem.startswith("tensors-"):
        return Stored.parse(stem.removeprefix("tensors-")) is not None
    return stem in ("targets-train", "targets-test") or stem.startswith(("own-f", "aux-"))


def check_seal(folder: Path, files: dict[str, int], limits: Limits, *, verify: bool = True) -> Seal:
    """Compare a folder with its seal.

    Raises:
        TraceError: a file is missing, new, of another size, or has another hash.
    """
    data = read_bytes(folder, "seal.json", 16 * limits.manifest_bytes)
    seal = load(data, Seal, "seal.json")
    listed = {f.path: f for f in seal.files}
    there = {f: s for f, s in files.items() if f != "seal.json"}
    for path in sorted(set(listed) - set(there)):
        raise TraceError(f"{path}: is missing; the seal lists it. Copy the whole trace again.")
    for path in sorted(set(there) - set(listed)):
        raise TraceError(f"{path}: is not in the seal. Remove what does not belong there.")
    for path, entry in listed.items():
        if there[path] != entry.bytes:
            raise TraceError(
                f"{path}: has {there[path]} bytes; the seal says {entry.bytes}. It was cut or "
                "changed; copy it again."
            )
        if verify and digest(folder, path) != entry.sha256:
            raise TraceError(f"{path}: its SHA-256 is not that of the seal. Copy it again.")
    return seal
