"""Keeps what the parties of a training saw, so that it can be attacked again without training.

One file for each replica: a compressed folder with a trace (``docs/trace_format.md``) of every
party, and beside it what belongs to the auditor alone, the labels that were trained on.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import proxy

import torch
from torch import Tensor

from vflsec.core.message import Message
from vflsec.core.message_kinds import KINDS
from vflsec.core.view import Facts, as_needs
from vflsec.errors import VflsecError
from vflsec.nn.module_spec import describe_module
from vflsec.nn.weights import write_weights
from vflsec.plugins import registry
from vflsec.runtime.atomic_files import write_atomic
from vflsec.specs import AttackSpec
from vflsec.trace.manifest import ObserverInfo, PublicFacts, Run, load
from vflsec.trace.truth import write_truth
from vflsec.train.export import Export

if TYPE_CHECKING:
    from vflsec.train.cohort import Moment, Training

ABOUT = "kept.json"
"""What a file of kept views says of itself."""

Way = tuple[str, str]
"""(``received`` or ``sent``, message kind)."""

_LEVEL = 6  # of compression


@dataclass(frozen=True)
class Keep:
    """Where views are kept.

    Attributes:
        folder: for the files; made if it is not there.
        most: bytes that all files in it may have together.
        share: how many processes write there at the same time.
    """

    folder: Path
    most: int
    share: int = 1

    def room(self) -> int:
        """Bytes that one of the processes may still write."""
        used = sum(p.stat().st_size for p in self.folder.glob("*.zip")) if self.used else 0
        return max(0, self.most - used) // self.share

    @property
    def used(self) -> bool:
        """Whether anything was ever kept there."""
        return self.folder.is_dir()


def name_local_weights(party: str) -> str:
    """The weights of the bottom that a party could have trained without the others."""
    return f"alone-{party}.safetensors"


def kept_ways(more: Iterable[Any] = ()) -> frozenset[Way]:
    """What some registered attack that does not act during training reads of messages.

    Args:
        more: further attacks, which may not be registered by themselves.
    """
    found = set()
    for attack in (*_registered(), *more):
        for need in as_needs(attack.looks_at):
            if need.kind:
                found.add(("sent" if need.sent else "received", need.kind))
    return frozenset(found)


def _registered() -> Iterable[Any]:
    for name in registry.attacks.names():
        try:
            attack = registry.attacks.create(name)
            if not attack.needs_own_training:
                yield attack
        except VflsecError:  # it has parameters without a default, or cannot be loaded
            continue


class Keeper:
    """Writes the views of a training's replicas while it runs.

    Where they would have more bytes than there is room for, the last replicas' are dropped.

    Args:
        keep: where, and how much.
        training: not yet run.
        count: how many of its replicas are kept, the first ones.
        attacks: that are made on it.
    """

    def __init__(
        self, keep: Keep, training: Training, count: int, attacks: Sequence[Any] = ()
    ) -> None:
        self.keep = keep
        self.training: Training = proxy(training)  # which holds what it tells
        self.room = keep.room()
        self.ways = kept_ways(attacks)
        self.bare: set[str] = set()
        self.weak: dict[str, str] = {}
        self.phases: list[dict[str, Any]] = []
        keep.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.exports = [self._export(r) for r in range(count)]
        training.taps.append(self)

    def _export(self, r: int) -> Export:
        cell, task = self.training.cells[r], self.training.task(r)
        part = self.keep.folder / f".{cell.key}.part"  # while they are recorded
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(mode=0o700)
        specs = [AttackSpec("", adversary=(p,), known_rows=0, prior=False) for p in task.parties]
        run = Run(algorithm=cell.algorithm[:200], seed=cell.seed)
        servers = self.training.algorithm.servers
        return Export(part / "trace", task, specs, r=r, run=run, servers=servers, whole=True)

    def __call__(self, message: Message, alive: Tensor | None, ways: Sequence[str]) -> None:
        """Write a message of the training to each replica's trace; see `Recorder.taps`."""
        wanted = [w for w in ways if (w, message.kind) in self.ways]
        if not wanted:
            return
        if not KINDS[message.kind].is_encrypted and not message.tensor.is_floating_point():
            self.bare.add(message.kind)
        for export in self.exports:
            export(message, alive, wanted)
        while self.exports and self._bytes() > self.room:
            _remove(self.exports.pop())

    def _bytes(self) -> int:
        return sum(w.bytes for e in self.exports for w in e.writers.values())

    def moment(self, moment: Moment) -> None:
        """Write the state after an audited phase."""
        t, phase = self.training, moment.phase
        self.phases.append({"name": phase.name, "epochs": phase.epochs})
        facts = t.algorithm.facts(t.fed)
        for export in self.exports:
            export.moment(t.algorithm, t.fed, t.initial)
            labels = moment.randomised(export.r)
            if labels is not None:
                rows = torch.arange(len(labels))
                write_truth(export.folder.parent, rows, labels, at=f"labels-{phase.name}")
        for server in t.algorithm.servers:
            self.weak[server] = f"of {server}, which has no columns, nothing is written"
        for party in t.stack.first.parties:
            why = self._weakness(party, facts)
            if why:
                self.weak.setdefault(party, why)

    def _weakness(self, party: str, facts: Facts) -> str:
        """Why what is written of a party does not give its views back, or ''."""
        t = self.training
        if t.stack.first.schema[party].empty:
            return f"of {party}, which has no columns, nothing is written"
        modules = {k: m.one(0) for k, m in t.fed.parties[party].modules.items()}
        if t.algorithm.encoder(t.fed, party, modules) is not None:
            return f"{party} has several towers, which are not kept"
        odd = [k for k, m in modules.items() if describe_module(m) is None]
        if odd:
            return f"{party}'s {odd[0]} has layers that cannot be written"
        text = PublicFacts.of(facts).model_dump_json().encode()
        manifest = self.exports[0].manifest if self.exports else None
        if manifest is not None:
            same = load(text, PublicFacts, "facts").facts(manifest, facts.phase)
            if same != facts:
                return "some public facts of the training cannot be written"
        return ""

    def close(self) -> None:
        """Pack the views of as many replicas as there is room for."""
        for n, export in enumerate(self.exports):
            export.close()
            if not self._pack(export):
                for other in self.exports[n:]:
                    _remove(other)
                break

    def _pack(self, export: Export) -> bool:
        """Compress one replica's folder into its file; False if there is no room for it."""
        part, cell = export.folder.parent, self.training.cells[export.r]
        bare = set(self.bare)
        for party in export.writers:
            data = (export.folder / "view" / party / "observer.json").read_bytes()
            info = load(data, ObserverInfo, "observer.json")
            bare |= {h.kind for h in info.have if not h.values and not KINDS[h.kind].is_encrypted}
            if info.nonfinite:
                self.weak.setdefault(party, f"{party}'s messages hold NaN or infinity")
        about = {
            "version": 1, "cell": cell.key, "dtype": cell.dtype, "phases": self.phases,
            "ways": sorted(w for w in self.ways if w[1] not in bare), "weak": self.weak,
        }  # fmt: skip
        about["alone"] = self._alone(part, cell.seed)
        (part / ABOUT).write_text(json.dumps(about), encoding="utf-8")
        packed = part / "packed"
        names = sorted(p for p in part.rglob("*") if p.is_file())
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as out:
            for path in names:
                out.write(path, path.relative_to(part).as_posix())
        target = self.keep.folder / f"{cell.key}.zip"
        target.unlink(missing_ok=True)
        fits = packed.stat().st_size <= self.keep.room()
        if fits:
            write_atomic(target, lambda new: packed.replace(new))
            shutil.rmtree(part, ignore_errors=True)
        return fits

    def _alone(self, part: Path, seed: int) -> dict[str, Any]:
        """Write the bottoms that lone adversaries could have trained; their layers, by party."""
        out: dict[str, Any] = {}
        for party in self.training.stack.first.parties:
            bottom = self.training.alone(seed, (party,))
            if bottom is None:
                continue
            layers = describe_module(bottom)
            if layers is not None:
                write_weights(part / name_local_weights(party), bottom.state_dict())
                out[party] = layers.model_dump()
        return out


def _remove(export: Export) -> None:
    export.drop()
    shutil.rmtree(export.folder.parent, ignore_errors=True)
