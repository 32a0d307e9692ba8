"""Writes what parties of a simulation saw as a trace, beside whatever the simulation keeps.

Attached to a live recorder (:attr:`vflsec.core.channel.Recorder.taps`), it streams the messages of
one replica; after each phase it writes the state that attacks may look at.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from vflsec._version import __version__
from vflsec.core.algorithm import Algorithm
from vflsec.core.federation import Federation
from vflsec.core.message import Message
from vflsec.core.message_kinds import KINDS
from vflsec.core.task import Task
from vflsec.core.view import Schema
from vflsec.errors import ConfigError
from vflsec.label import make_label
from vflsec.nn.module_spec import describe_module
from vflsec.nn.weights import write_weights
from vflsec.specs import AttackSpec
from vflsec.trace.limits import Limits, check_name, check_new
from vflsec.trace.manifest import (
    Have,
    Layout,
    ModelFile,
    Moment,
    ObserverInfo,
    PartyInfo,
    PublicFacts,
    Run,
    Software,
    begin_manifest,
)
from vflsec.trace.reader import OURS
from vflsec.trace.seal import seal
from vflsec.trace.tables import write_known, write_own, write_targets, write_vectors
from vflsec.trace.truth import write_truth
from vflsec.trace.writer import Heading, Timing, Writer, begin, plan_messages
from vflsec.train.views import draw_aux_rows, draw_known_rows, find_victims


def check_writable(classes: int, parties: Iterable[str], what: str) -> None:
    """Refuse to write `what` of a training whose label is a quantity (1 class) or several (0), or
    of parties that no folder can be called after.

    Raises:
        ConfigError: it is.
    """
    for name in parties:
        check_name(what, name)
    label = make_label(classes)
    if label.floating:
        remedy = f"Audit without, or {label.format_remedy('name')} under [data]."
        raise ConfigError(f"{what} holds classes, and {label.sentence} here. {remedy}")


class Export:
    """A trace of one replica in the making.

    Args:
        folder: an empty folder, or one to be made.
        task: of the replica.
        attacks: whose adversaries observe, and whose grants the trace holds. Their grants must be
            the same: a trace holds one set.
        r: the replica.
        run: which point of an experiment this is, and its seed.
        max_bytes: as in :class:`vflsec.trace.writer.Writer`, for each observer.
        servers: ends of messages that hold neither labels nor columns.
        whole: for whoever ran the training itself and will make views of any grant: with top models
            as they were before training, without own optimisation steps.
    """

    def __init__(
        self,
        folder: str | Path,
        task: Task,
        attacks: Sequence[AttackSpec],
        *,
        r: int = 0,
        run: Run | None = None,
        max_bytes: int | None = None,
        servers: Sequence[str] = (),
        whole: bool = False,
    ) -> None:
        check_writable(task.classes, task.parties, "a trace")
        self.folder, self.task, self.attacks = Path(folder), task, tuple(attacks)
        run = run or Run()
        self.r, self.seed, self.whole = r, run.seed, whole
        parties = [
            PartyInfo(name=p, role="active" if p == task.active else "passive")
            for p in task.parties
        ] + [PartyInfo(name=p, role="server") for p in servers]
        self.manifest = begin_manifest(
            OURS, Software(name="vflsec", version=__version__), tap="after_defense",
            parties=parties, rows=len(task.y), classes=task.classes, loss_reduction="mean",
            amp=False, shuffle="by seed", run=run,
        )  # fmt: skip
        begin(check_new(self.folder), self.manifest)
        every = dict.fromkeys(p for a in self.attacks for p in a.adversary if p in task.parties)
        names = [p for p in every if not task.schema[p].empty]
        self.writers = {p: Writer(self.folder, p, max_bytes=max_bytes) for p in names}
        self.infos = {p: self._describe(p) for p in names}
        self._have: dict[str, dict[tuple[str, str, str, str], None]] = {p: {} for p in names}
        self._updates = dict.fromkeys(names, 0)
        write_truth(self.folder, torch.arange(len(task.y)), task.y, hidden=self._hidden())

    def _hidden(self) -> dict[str, tuple[Tensor, Schema]]:
        """Columns that attacks on them are scored by: of victims that hold all rows."""
        if self.whole:
            return {}
        about = [a for a in self.attacks if a.aux_rows or a.peer_model]
        whose = dict.fromkeys(v for a in about for v in find_victims(a, self.task))
        held = [v for v in whose if bool(self.task.present[v].all())]
        return {v: (self.task.x[v], self.task.schema[v]) for v in held}

    def __call__(self, message: Message, alive: Tensor | None, ways: Sequence[str]) -> None:
        """Write a message to the folders of its observers."""
        if alive is not None and not bool(alive[self.r]):
            return
        if message.phase == "predict" and message.kind != "prediction":
            return  # as a live recorder, which keeps of inference the predictions only
        if KINDS[message.kind].opened_by == "key":
            return  # an observer's folder holds what it reads by itself
        ends = {"received": message.receiver, "sent": message.sender}
        for way in ways:
            writer = self.writers.get(ends[way])
            if writer is not None:
                self._write(writer, message)

    def _write(self, writer: Writer, message: Message) -> None:
        x = message.tensor[self.r].detach().cpu()
        width = x.numel() // max(1, len(x)) if message.rows is not None else x.numel()
        kind = KINDS[message.kind]
        whole = kind.is_readable and not self.whole  # a view reader asks for them with their type
        bare = kind.is_encrypted or not (whole or x.is_floating_point())
        bare = bare or width > Limits().width
        rows = None if message.rows is None else message.rows[self.r].cpu().numpy()
        reduction, factor = "none", None
        if message.kind == "gradient":
            mean = rows is not None and message.scale == float(len(rows))
            reduction = "mean" if mean else "sum"
            factor = None if mean or message.scale == 1.0 else 1.0 / message.scale
        key = (message.kind, message.sender, message.receiver, message.phase)
        self._have[writer.observer][key] = None
        payload = None if bare else x.numpy()
        heading = Heading(
            message.kind, message.sender, message.receiver,
            None if payload is None else (payload.shape, payload.dtype.char), tuple(x.shape),
            phase=message.phase, name=message.name,
            wire_dtype=str(x.dtype).removeprefix("torch."),
            wire_bytes=x.numel() * x.element_size(), loss_reduction=reduction,
            protection="unknown" if message.policies else "none",
            row_wise=message.rows is not None,
        )  # fmt: skip
        timing = Timing(message.epoch, message.step, grad_scale=factor)
        writer.put(plan_messages(heading), payload, rows, timing)

    def _describe(self, party: str) -> ObserverInfo:
        task = self.task
        folder = self.folder / "view" / party
        write_own(folder, task.x[party], task.present[party])
        write_targets(folder, "train", task.sets["labelled"])
        write_targets(folder, "test", task.sets["test"])
        mine = [a for a in self.attacks if party in a.adversary]
        known = max((a.known_rows for a in mine), default=0)
        granted = draw_known_rows(task, self.seed, known) if known else None
        if granted is not None:
            write_known(folder, granted)
        count = max((a.aux_rows for a in mine), default=0)
        layouts = {party: Layout.of(task.schema[party])}
        aux: list[str] = []
        for a in mine:
            others = find_victims(a, task) if a.aux_rows or a.peer_model else ()
            layouts |= {v: Layout.of(task.schema[v]) for v in others}
            aux += [v for v in others if a.aux_rows and v not in aux]
        if count:
            rows = draw_aux_rows(task, self.seed, count, granted)
            for v in aux:
                write_vectors(folder, f"aux-{v}", rows, task.x[v][rows])
        held = bool(task.present[party].all())
        info = ObserverInfo(
            party=party, own="all" if held else "some", layouts=layouts,
            prior=task.prior.tolist() if any(a.prior for a in mine) else None,
            known=0 if granted is None else len(granted), aux=aux, targets=["train", "test"],
        )  # fmt: skip
        self.writers[party].describe(info)
        return info

    def moment(
        self,
        algorithm: Algorithm,
        fed: Federation,
        initial: Mapping[str, Mapping[str, Tensor]],
    ) -> None:
        """Write the state after the phase that just ended.

        Args:
            algorithm, fed: after the phase.
            initial: initial bottom weights by party, (R, ...) each.
        """
        for party, info in self.infos.items():
            models = self._models(fed, initial, party, party)
            for spec in self.attacks:
                if spec.peer_model and spec.adversary[0] == party:
                    for victim in find_victims(spec, self.task):
                        if not any(m.party == victim for m in models):
                            models += self._models(fed, {}, party, victim)
            if not self.whole:
                self._steps(fed, party)
            done = Moment(
                phase=fed.phase, messages=self.writers[party].count,
                facts=PublicFacts.of(algorithm.facts(fed)), models=models,
                updates=self._updates[party],
            )  # fmt: skip
            moments = [*info.moments, done]
            self.infos[party] = info.model_copy(update={"moments": moments})
            self.writers[party].describe(self.infos[party])

    def _models(
        self,
        fed: Federation,
        initial: Mapping[str, Mapping[str, Tensor]],
        observer: str,
        party: str,
    ) -> list[ModelFile]:
        folder = self.folder / "view" / observer
        modules = fed.parties[party].modules
        made = {part: m.one(self.r) for part, m in modules.items()}
        if party in initial:
            made["initial"] = modules["bottom"].one(self.r, dict(initial[party]))
        if self.whole and f"{party}.top" in initial:
            made["initial_top"] = modules["top"].one(self.r, dict(initial[f"{party}.top"]))
        out = []
        for part, module in made.items():
            name = f"model-{fed.phase}-{party}-{part}.safetensors"
            write_weights(folder / name, module.state_dict())
            layers = describe_module(module)
            out.append(ModelFile(party=party, part=part, file=name, layers=layers))
        return out

    def _steps(self, fed: Federation, party: str) -> None:
        """Own optimisation steps of the phase, one file each."""
        recorder = fed.channel.recorder
        for update in recorder.updates(self.r, (party,), fed.phase).get(party, ()):
            number = self._updates[party]
            path = self.folder / "view" / party / f"update-{number:06d}.safetensors"
            tensors = {"when": torch.tensor([update.epoch, update.step]), "rows": update.rows}
            tensors |= {f"g.{k}": v for k, v in update.gradients.items()}
            tensors |= {f"w.{k}": v for k, v in update.weights.items()}
            write_weights(path, tensors)
            self._updates[party] = number + 1

    def drop(self) -> None:
        """End the recording and remove it."""
        for writer in self.writers.values():
            writer.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def close(self) -> list[str]:
        """End the recording and seal it; returns what was left out."""
        full = False
        for party, writer in self.writers.items():
            full |= writer.full
            writer.close()
            have = [
                Have(kind=k[0], sender=k[1], receiver=k[2], phase=k[3], epochs="all")
                for k in self._have[party]
            ]
            update = {"have": have, "complete": not full}
            writer.describe(self.infos[party].model_copy(update=update))
        return seal(self.folder)
