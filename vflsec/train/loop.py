"""The one training loop: epochs, selection on validation rows, early stopping."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from vflsec.core.algorithm import Algorithm
from vflsec.core.federation import Federation, Phase
from vflsec.errors import ConfigError
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
                'select_by = "auc" needs validation rows of both classes, got one class. Raise '
                'data.validation, or use select_by = "loss".'
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
    for planned in algorithm.phases(fed):
        phase = planned if change is None else change(planned)
        fed.phase, fed.epoch, fed.steps = phase.name, 0, 0
        fed.channel.begin(phase.name, phase.epochs)
        alive = on.clone()
        fed.channel.set_alive(alive)
        if phase.before is not None:
            phase.before()
        best: _Best | None = None
        if phase.select and phase.epochs:
            best = _Best(fed, phase.select_by)
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
            if best is not None:
                alive = best.update(algorithm, phase, alive)
                fed.channel.set_alive(alive)
            if progress is not None:
                progress(phase.name, epoch + 1, phase.epochs)
            if not bool(alive.any()):
                break
        fed.channel.set_alive(on)
        if best is not None:
            best.restore()
            fed.channel.end(phase.name, best.epochs, phase.epochs)
        fed.extra[f"epochs.{phase.name}"] = best.epochs.tolist() if best else phase.epochs
        if best is not None:
            fed.extra[f"kept.{phase.name}"] = best.kept.tolist()
        yield phase


class _Best:
    """The best epoch of every replica on validation rows, and who still trains."""

    def __init__(self, fed: Federation, by: str) -> None:
        self.fed, self.by = fed, by
        self.rows = fed.stack.rows("validation")
        device = fed.stack.device
        self.least = torch.full((fed.replicas,), torch.inf, dtype=torch.float64, device=device)
        self.since = torch.zeros(fed.replicas, dtype=torch.int64, device=device)
        self.epochs = torch.zeros(fed.replicas, dtype=torch.int64, device=device)
        self.kept = torch.zeros(fed.replicas, dtype=torch.int64, device=device)
        self.state: Any = fed.state()

    def update(self, algorithm: Algorithm, phase: Phase, alive: Tensor) -> Tensor:
        fed = self.fed
        now = compute_regret(algorithm, fed, self.rows, self.by)
        better = (now < self.least) & alive
        self.least = torch.where(better, now, self.least)
        self.since = torch.where(better, 0, self.since + 1)
        self.epochs += alive.long()
        self.kept = torch.where(better, self.epochs, self.kept)
        if bool(better.any()):
            which = better.nonzero().squeeze(1)
            for name, parts in fed.state().items():
                for part, weights in parts.items():
                    for key, value in weights.items():
                        self.state[name][part][key][which] = value[which]
        if phase.patience:
            alive = alive & (self.since < phase.patience)
            for name in phase.listeners:
                signal = alive.to(torch.uint8).unsqueeze(1)
                fed.send("signal", fed.active.name, name, signal, name="continue")
        return alive

    def restore(self) -> None:
        self.fed.load(self.state, torch.arange(self.fed.replicas, device=self.fed.stack.device))
