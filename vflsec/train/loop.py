"""The one training loop: epochs, selection on validation rows, early stopping."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch
from torch import Tensor

from vflsec.core.algorithm import Algorithm
from vflsec.core.federation import Federation, Phase
from vflsec.errors import ConfigError
from vflsec.nn.replicas import Replicas
from vflsec.train.cuda_graphs import taken
from vflsec.train.label_stages import find_staged_policy, rehearse

EVALUATION_BATCH = 4096


def predict(algorithm: Algorithm, fed: Federation, rows: Tensor) -> Tensor:
    """Logits (R, n, C) for sample ids (R, n), in batches."""
    parts = [algorithm.predict(fed, r) for r in rows.split(EVALUATION_BATCH, dim=1)]
    return torch.cat(parts, dim=1)


def compute_regret(algorithm: Algorithm, fed: Federation, rows: Tensor, by: str = "loss") -> Tensor:
    """What a good epoch has little of, on validation rows and labels as trained on, (R,).

    The mean loss, or with ``by = "auc"`` one minus the area under the ROC curve.
    """
    with torch.no_grad():
        logits, y = predict(algorithm, fed, rows), fed.targets(rows)
        if by == "auc":
            hard = y if y.dim() == 2 else y.argmax(-1)
            return 1 - compute_auc(logits[..., 1] - logits[..., 0], hard)
        return fed.loss(logits, y, train=False).double()


def compute_auc(scores: Tensor, y: Tensor) -> Tensor:
    """Area under the ROC curve of scores (R, n) for labels (R, n) in {0, 1}; ties count half.

    Raises:
        ConfigError: a replica has rows of one class only.
    """
    out = []
    for s, here in zip(scores, y, strict=True):
        above, below = s[here == 1].contiguous(), s[here == 0].sort().values
        if not len(above) or not len(below):
            raise ConfigError(
                'select_by = "auc" needs validation rows of both classes. Raise data.validation, '
                'or use select_by = "loss".'
            )
        beaten = torch.searchsorted(below, above) + torch.searchsorted(below, above, right=True)
        out.append(beaten.double().mean() / (2 * len(below)))
    return torch.stack(out)


def run_phases(
    algorithm: Algorithm,
    fed: Federation,
    progress: Callable[[str, int, int], None] | None = None,
) -> Iterator[Phase]:
    """Train; yields each phase when it has ended, so that it can be audited.

    Args:
        algorithm: its modules must be built.
        fed: the cohort.
        progress: called with (phase name, epochs done, epochs in all) after every epoch.
    """
    every = torch.ones(fed.replicas, dtype=torch.bool, device=fed.stack.device)
    in_stages = find_staged_policy(fed)
    if in_stages is not None:

        def once(change: Callable[[Phase], Phase], on: Tensor) -> None:
            for _ in _train(algorithm, fed, progress, on, change):
                pass

        rehearse(
            fed, in_stages, lambda: algorithm.build(fed), once,
            lambda rows: predict(algorithm, fed, rows),
        )  # fmt: skip
    yield from _train(algorithm, fed, progress, every)


def _train(
    algorithm: Algorithm,
    fed: Federation,
    progress: Callable[[str, int, int], None] | None,
    on: Tensor,
    change: Callable[[Phase], Phase] | None = None,
) -> Iterator[Phase]:
    """All phases, each as `change` makes it, for the replicas `on` (R,)."""
    fed.channel.set_alive(on)
    every = algorithm.phases(fed)
    fed.audited = [p.name for p in every if p.audited]
    for planned in every:
        phase = planned if change is None else change(planned)
        fed.phase, fed.epoch, fed.steps = phase.name, 0, 0
        fed.channel.begin(phase.name, phase.epochs)
        alive = on.clone()
        fed.channel.set_alive(alive)
        if phase.before is not None:
            phase.before()
        best = build_judges(algorithm, fed, phase)
        steps = [taken(algorithm, fed, walk.step) for walk in phase.walks()]
        for epoch in range(phase.epochs):
            fed.epoch = epoch
            for walk, step in zip(phase.walks(), steps, strict=True):
                for rows in fed.batches(walk):
                    fed.batch = rows
                    step(rows)
                    fed.steps += 1
            fed.batch = None
            if phase.after_epoch is not None:
                phase.after_epoch(epoch)
            if best:
                alive = torch.stack([one.update(on) for one in best]).any(0)
                for name in phase.listeners if phase.patience else ():
                    signal = alive.to(torch.uint8).unsqueeze(1)
                    fed.send("signal", fed.active.name, name, signal, name="continue")
                fed.channel.set_alive(alive)
            if progress is not None:
                progress(phase.name, epoch + 1, phase.epochs)
            if not bool(alive.any()):
                break
        fed.channel.set_alive(on)
        fed.epochs[phase.name] = _end(fed, phase, best) if best else [phase.epochs] * fed.replicas
        yield phase


def _end(fed: Federation, phase: Phase, best: list[_Best]) -> list[int]:
    """Restore what was best, and note it; returns how many epochs each replica trained."""
    for one in best:
        one.restore()
    epochs = torch.stack([one.epochs for one in best]).amax(0)
    fed.channel.end(phase.name, epochs, phase.epochs, phase.judged)
    if phase.judged:
        by = zip(phase.judged, (one.kept for one in best), strict=True)
        fed.extra[f"best.{phase.name}"] = dict(by)
    kept = torch.stack([one.kept for one in best]).amin(0)
    fed.kept[phase.name] = kept.tolist()
    if phase.patience:
        fed.draw_anew()
    return [int(n) for n in epochs]


def build_judges(algorithm: Algorithm, fed: Federation, phase: Phase) -> list[_Best]:
    """Who keeps a best epoch: each party its own, or all parties one by validation rows."""
    if not phase.epochs:
        return []
    if phase.judged:
        return [
            _Best(fed, fed.parties[name].modules.values(), regret, phase.patience)
            for name, regret in phase.judged.items()
        ]
    if not phase.select:
        return []
    every = [m for party in fed.parties.values() for m in party.modules.values()]
    rows = fed.stack.rows("validation")
    return [
        _Best(
            fed, every, partial(compute_regret, algorithm, fed, rows, phase.select_by),
            phase.patience,
        )
    ]  # fmt: skip


class _Best:
    """The best epoch of every replica for some modules, and which replicas still train.

    Args:
        fed: the cohort.
        modules: whose weights are kept.
        regret: how bad they are now, (R,).
        patience: epochs without a better one before a replica stops; 0 = never.

    Attributes:
        epochs: (R,) how many were trained.
        kept: (R,) the best of them, counted from 1; 0 is none.
    """

    def __init__(
        self,
        fed: Federation,
        modules: Iterable[Replicas],
        regret: Callable[[], Tensor],
        patience: int,
    ) -> None:
        self.modules, self.regret, self.patience = list(modules), regret, patience
        self.states = [m.state() for m in self.modules]
        device = fed.stack.device
        self.least = torch.full((fed.replicas,), torch.inf, dtype=torch.float64, device=device)
        self.since = torch.zeros(fed.replicas, dtype=torch.int64, device=device)
        self.epochs, self.kept = torch.zeros_like(self.since), torch.zeros_like(self.since)

    def _going(self, on: Tensor) -> Tensor:
        return on & (self.since < self.patience) if self.patience else on

    @torch.no_grad()
    def update(self, on: Tensor) -> Tensor:
        """Judge the epoch that has ended; which of the replicas `on` (R,) go on."""
        going = self._going(on)
        now = self.regret()
        better = (now < self.least) & going
        self.least = torch.where(better, now.double(), self.least)
        self.since = torch.where(better, 0, self.since + 1)
        self.epochs += going.long()
        self.kept = torch.where(better, self.epochs, self.kept)
        if bool(better.any()):
            which = better.nonzero().squeeze(1)
            for module, state in zip(self.modules, self.states, strict=True):
                for key, value in module.state().items():
                    state[key][which] = value[which]
        return self._going(on)

    def restore(self) -> None:
        """The weights of the best epoch take their places again."""
        for module, state in zip(self.modules, self.states, strict=True):
            module.load(state)
