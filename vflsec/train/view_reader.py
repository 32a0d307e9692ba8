"""Views of finished trainings, from what :mod:`vflsec.train.view_writer` wrote; nothing is
trained.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from vflsec.core.attack import Attack
from vflsec.core.channel import Key
from vflsec.core.source import Ended, Simulated
from vflsec.core.task import Task
from vflsec.core.view import Table, View, as_needs
from vflsec.errors import ThreatModelError, TraceError
from vflsec.nn.module_spec import LayerSpec, build_module
from vflsec.nn.reduced_precision import find_stored
from vflsec.nn.replicas import LEAST
from vflsec.specs import AttackSpec, CellSpec
from vflsec.trace.limits import Limits
from vflsec.trace.reader import Trace
from vflsec.trace.tables import read_weights
from vflsec.trace.truth import read_truth
from vflsec.trace.views import fold_messages
from vflsec.train.demand import Demand, list_recordings
from vflsec.train.view_writer import ABOUT, name_local_weights
from vflsec.train.views import assemble, find_victims


def read_about(path: Path) -> dict[str, Any]:
    """What a file of kept views says of itself.

    Raises:
        TraceError: it is none, or damaged.
    """
    try:
        with zipfile.ZipFile(path) as file:
            info = file.getinfo(ABOUT)
            Limits().hold(f"{path}: {ABOUT}", "manifest_bytes", info.file_size)
            found = json.loads(file.read(info))
        kinds = {"cell": str, "dtype": str, "phases": list, "ways": list, "weak": dict}
        if found.get("version") != 1 or not all(
            isinstance(found.get(k), t) for k, t in kinds.items()
        ):
            raise ValueError("version")
        alone = dict(found.get("alone", {}))
        found["alone"] = {p: LayerSpec.model_validate(v) for p, v in alone.items()}
        found["ways"] = {(str(w), str(k)) for w, k in found["ways"]}
    except (OSError, ValueError, KeyError, AttributeError, TypeError, zipfile.BadZipFile) as why:
        raise TraceError.damaged(path, why) from None
    return dict(found)


def find_insufficient(spec: AttackSpec, attack: Attack, said: Mapping[str, Any]) -> str:
    """Why an attack cannot be made on kept views, in words, or ''.

    Args:
        spec, attack: the attack.
        said: by :func:`read_about` of the views; empty for what no views could give.
    """
    if attack.policy() is not None:
        return "it acts during training"
    if attack.target in ("integrity", "embedding", "membership"):
        return "its answer is judged on the training itself"
    if attack.trains:
        return "it is compared with systems of its own"
    for need in as_needs(attack.needs):
        if need.what == "parameter_gradient":
            return "parameter gradients are not kept"
        way = ("sent" if need.sent else "received", need.kind)
        if said and need.kind and way not in said["ways"]:
            return f"{need.kind!r} messages are not kept"
    weak = said["weak"] if said else {}
    for party, why in weak.items():
        if spec.peer_model or party in spec.adversary:
            return str(why)
    return ""


class KeptTraining:
    """Trainings of one cohort as they were kept: enough of `Training` to be attacked.

    Args:
        cells: of one cohort.
        folders: the unpacked views of each.
        said: by :func:`read_about` of the first.
        demands: what the attacks ask for.
        tasks: of each seed.
        device: where views are made.
    """

    def __init__(
        self,
        cells: Sequence[CellSpec],
        folders: Sequence[Path],
        said: Mapping[str, Any],
        demands: Sequence[Demand],
        tasks: Mapping[int, Task],
        device: torch.device,
    ) -> None:
        self.cells, self.folders, self.tasks, self.device = cells, folders, tasks, device
        self.seeds = [c.seed for c in cells]
        self.dtype: torch.dtype = find_stored(cells[0].dtype)
        self.phases = [Ended(str(p["name"]), int(p["epochs"])) for p in said["phases"]]
        self.wanted: list[Key] = [k for k in list_recordings(demands) if k[1] != "own"]
        self.lone: Mapping[str, LayerSpec] = said.get("alone", {})
        self.traces = [Trace.open(f / "trace") for f in folders]

    def task(self, r: int) -> Task:
        """The task of replica `r`."""
        return self.tasks[self.seeds[r]]

    def alone(self, seed: int, adversary: Sequence[str]) -> nn.Module | None:
        """The bottom that a lone adversary could have trained without the federation."""
        if len(adversary) != 1 or adversary[0] not in self.lone:
            return None
        (party,) = adversary
        r, name = self.seeds.index(seed), name_local_weights(party)
        weights = read_weights(self.folders[r], name, Limits())
        schema = self.task(r).schema[party]
        return build_module(self.lone[party], weights, schema, name).to(self.device)

    def run(self) -> Iterator[KeptMoment]:
        """The moments after each audited phase."""
        for phase in self.phases:
            yield KeptMoment(self, phase)


class KeptMoment(Simulated):
    """Kept trainings after one phase; what `Moment` is of a live one."""

    def __init__(self, training: KeptTraining, phase: Ended) -> None:
        self.training, self.phase = training, phase
        self.observers = [{p: t.observer(p) for p in t.observers} for t in training.traces]
        self.recorders = [
            fold_messages(trace, found, training.wanted, phase.name)
            for trace, found in zip(training.traces, self.observers, strict=True)
        ]

    def view(self, spec: AttackSpec, r: int) -> View:
        t, mine = self.training, spec.adversary
        tables = self.recorders[r].tables(0, mine, self.phase.name)
        models = {p: self._modules(r, p, but="initial_top") for p in mine}
        if spec.peer_model:
            others = find_victims(spec, t.task(r))
            models |= {p: self._modules(r, p, but="initial") for p in others}
        moment = self.observers[r][mine[0]].moment(self.phase.name)
        return assemble(
            t.task(r), t.seeds[r], spec, t.device, t.dtype,
            tables={k: _on(v, t.device) for k, v in tables.items()},
            models=models,
            facts=moment.facts.facts(t.traces[r].manifest, self.phase.name),
        )  # fmt: skip

    @property
    def seeds(self) -> Sequence[int]:
        return self.training.seeds

    def task(self, r: int) -> Task:
        return self.training.task(r)

    def _modules(self, r: int, party: str, but: str) -> dict[str, nn.Module]:
        observer = self.observers[r][party]
        entries = observer.moment(self.phase.name).models
        return {
            e.part: observer.model(e).to(self.training.device)
            for e in entries
            if e.party == party and e.part != but
        }

    def randomised(self, r: int) -> Tensor | None:
        folder = self.training.folders[r] / f"labels-{self.phase.name}"
        if not folder.is_dir():
            return None
        found = read_truth(folder).labels
        labels = torch.full((len(self.training.task(r).y),), -1, dtype=torch.int64)
        labels[torch.as_tensor(found.rows)] = torch.as_tensor(found.values)
        return labels

    def embeddings(self, spec: AttackSpec, r: int) -> Table:
        raise ThreatModelError("embeddings behind an encrypted layer are not kept.")


def _on(table: Table, device: torch.device) -> Table:
    if table.tensor.device == device:
        return table
    moved = {k: getattr(table, k).to(device) for k in ("tensor", "rows", "epoch", "step")}
    return replace(table, **moved)


@contextmanager
def open_kept(
    cells: Sequence[CellSpec],
    paths: Sequence[Path],
    demands: Sequence[Demand],
    tasks: Mapping[int, Task],
    device: torch.device,
) -> Iterator[KeptTraining]:
    """Kept trainings, unpacked for as long as the context lasts.

    Args:
        cells: of one cohort.
        paths: the files of each.
        demands, tasks, device: as in :class:`KeptTraining`.

    Raises:
        TraceError: a file is damaged, or is not that of its cell.
    """
    with TemporaryDirectory(prefix="vflsec-views-") as base:
        folders, said = {}, {}
        for cell, path in zip(cells, paths, strict=True):
            if cell.key in folders:
                continue
            said[cell.key] = read_about(path)
            if said[cell.key]["cell"] != cell.key:
                raise TraceError.damaged(path, "views of another training")
            folders[cell.key] = _unpack(path, Path(base) / cell.key)
        cells = list(cells) * (LEAST if len(cells) < LEAST else 1)
        where = [folders[c.key] for c in cells]
        yield KeptTraining(cells, where, said[cells[0].key], demands, tasks, device)


def _unpack(path: Path, to: Path) -> Path:
    limits = Limits()
    try:
        with zipfile.ZipFile(path) as file:
            infos = file.infolist()
            limits.hold(path, "trace_bytes", sum(i.file_size for i in infos))
            limits.hold(path, "files", len(infos))
            for info in infos:
                parts = info.filename.split("/")
                if info.is_dir() or ".." in parts or info.filename.startswith("/"):
                    raise TraceError.damaged(path, f"{info.filename[:80]!r} has no place")
                file.extract(info, to)
    except TraceError:
        raise
    except Exception as why:  # zlib.error has no base in common with others
        raise TraceError.damaged(path, why) from None
    return to
