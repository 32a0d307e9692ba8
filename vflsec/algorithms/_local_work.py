"""What a client of one-shot learning does at home: FixMatch on temporary labels.

How long is not published. Here a client holds a share of the aligned rows out, trains on the others
and judges itself by the temporary labels of those held out after every pass; then it begins again
and makes as many passes over all aligned rows as were best. Nothing is sent for that and no true
label is read (`local_held_out`, docs/evidence/when_it_helps.md).

Source: Sun et al., ICCV 2023, algorithm 1; Goodfellow, Bengio, Courville, "Deep learning", MIT
Press 2016, algorithm 7.2 (early stopping for the length of a training on all rows, in passes).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from vflsec.algorithms.splitnn import SplitNN
from vflsec.core import check
from vflsec.core.federation import Federation
from vflsec.core.party import Party
from vflsec.core.rng import Streams
from vflsec.nn.fixmatch import ImageViews, TabularViews, Views, column_centres
from vflsec.nn.loss import cross_entropy

HOME = ("bottom", "head")
"""A client's modules that local training trains."""
JUDGES = 10
"""Held-out rows for each class below which none are held out: three say nothing of a length."""


@dataclass(frozen=True)
class LocalWork(SplitNN):
    """Hyper-parameters of what a client does at home, and of the ending.

    Attributes:
        epochs, patience: of the final classifier, which costs no message.
        top: its hidden layers; not published. One is no worse than none on six tables, and better
            on adult (docs/evidence/defaults.md).
        local_steps: the most updates of each client in local training; where some rows are held
            out, in training on the others.
        local_epochs: passes over the aligned rows instead, if above 0.
        local_held_out: share of the aligned rows on whose temporary labels a client judges itself
            after every pass over the others, to train on all for as many as were best. 0, and fewer
            than :data:`JUDGES` of a class, train all updates.
        local_patience: updates without a better judgement before a client stops.
        local_schedule: of the rate in local training: ``constant``, or ``cosine``, FixMatch's
            cos(7 pi t / 16 T) of update t of T.
        local_ema: momentum of an average of the weights over local training, which takes their
            place at its end, in [0, 1); 0 is none. FixMatch has .999 over 2^20 updates.
        unlabelled_ratio: unaligned rows in a local batch for each aligned one (mu).
        unlabelled_weight: lambda_u; 0 trains on the temporary labels alone.
        threshold: confidence above which a pseudo-label counts, in [0, 1].
        replaced: r_m, share of a table's entries that a view replaces.
        sigma: noise of a table's strong view.
        flip: mirror images left to right in weak views.
        augment: of images' strong views: ``jitter`` (contrast and brightness), or FixMatch's
            ``randaugment`` (:mod:`vflsec.nn.randaugment`); a hole comes after either.
        starts: k-means starts, of which the best is kept.
        active_labels: what the active party's own extractor is trained on: its ``true`` labels, or
            ``clusters`` like any other client.
        finetune, finetune_epochs, finetune_patience: split training from the final weights, its
            epochs, and of those how many without a better one end it.
    """

    epochs: check.Whole = 300
    patience: check.Whole = 50
    top: tuple[check.Count, ...] = (64,)
    local_steps: check.Count = 1000
    local_epochs: check.Whole = 0
    local_held_out: check.BelowOne = 0.5
    local_patience: check.Count = 200
    local_schedule: Literal["constant", "cosine"] = "constant"
    local_ema: check.BelowOne = 0.0
    unlabelled_ratio: check.Count = 7
    unlabelled_weight: check.NonNegative = 1.0
    threshold: check.Unit = 0.95
    replaced: check.Unit = 0.2
    sigma: check.NonNegative = 0.1
    flip: bool = False
    augment: Literal["jitter", "randaugment"] = "jitter"
    starts: check.Count = 10
    active_labels: Literal["true", "clusters"] = "true"
    finetune: bool = False
    finetune_epochs: check.Whole = 15
    finetune_patience: check.Whole = 5

    quantities: ClassVar[bool] = False
    world = {"task": {"unaligned": 40}, "local_epochs": 4}

    def __post_init__(self) -> None:
        super().__post_init__()
        check.integer(f"{self.name}.epochs", self.epochs)
        self.need_head()
        if self.local_ema and self.local_held_out:
            rule = "0 with local_ema, which is for a fixed length"
            raise check.fail(f"{self.name}.local_held_out", rule, self.local_held_out)

    def clients(self, fed: Federation) -> list[Party]:
        """All parties with columns, the active one first if it has any."""
        return self.holders(fed)

    def _judge(self, fed: Federation, party: Party, held: Tensor) -> Tensor:
        """A client's loss (R,) on the labels it has itself for held out rows (R, n)."""
        bottom, head = party.modules["bottom"], party.modules["head"]
        h = bottom(fed.columns(party.name, held, train=False), train=False)
        logits = head(h, train=False)
        return self._supervised(fed, party, held, logits, train=False) / held.shape[1]

    def _miss(self, fed: Federation, party: Party, length: str) -> Tensor:
        """How many passes (R,) training is away from the best of the phase `length`."""
        best: dict[str, Tensor] | None = fed.extra.get(f"best.{length}")
        if best is None:  # steps are tried out, nothing is trained
            return torch.zeros(fed.replicas, device=fed.stack.device)
        return (best[party.name] - (fed.epoch + 1)).abs()

    def local_step(self, fed: Federation, rows: Tensor, most: int) -> None:
        """One update of every client on aligned rows (R, b) and on unaligned rows of its own.

        At most `most` in all.
        """
        if fed.steps >= most:
            return  # in the middle of the last epoch
        for party in self.clients(fed):
            if self.local_schedule == "cosine":
                rate = self.lr * math.cos(7 * math.pi * fed.steps / (16 * most))
                for group in getattr(party.optimizer, "param_groups", ()):
                    group["lr"] = rate
            self._update(fed, party, rows)
            if self.local_ema:
                self._follow(fed, party)

    @torch.no_grad()
    def _follow(self, fed: Federation, party: Party) -> None:
        """Move the running average of a client's weights; statistics are taken as they are."""
        average = fed.extra.setdefault("ema", {}).setdefault(party.name, {})
        for part in HOME:
            now = party.modules[part]
            kept = average.setdefault(part, now.state())
            for key, value in {**now.params, **now.buffers}.items():
                if key in now.params:
                    kept[key].mul_(self.local_ema).add_(value, alpha=1 - self.local_ema)
                else:
                    kept[key].copy_(value)

    def _average(self, fed: Federation) -> None:
        """The averages take the weights' place."""
        for name, parts in fed.extra.pop("ema", {}).items():
            for part, state in parts.items():
                fed.parties[name].modules[part].load(state)

    def _update(self, fed: Federation, party: Party, rows: Tensor) -> None:
        views, b = self._views(fed, party), rows.shape[1]
        bottom, head = party.modules["bottom"], party.modules["head"]
        x = fed.columns(party.name, rows)
        inputs, own = [views.weak(x)], self._draw(fed, party, b)
        if own is not None:
            weak, strong = views.pair(fed.columns(party.name, own))
            with torch.no_grad():
                sure, guess = head(bottom(weak, train=False), train=False).softmax(-1).max(-1)
            inputs += [strong] if self._chosen(fed, party, own) is None else [strong, weak]
        h = bottom(torch.cat(inputs, dim=1))
        logits = head(h)
        loss, count = (
            self._supervised(fed, party, rows, logits[:, :b]),
            torch.full_like(rows[:, 0], b),
        )
        if own is None:
            loss = loss / count
        else:
            chosen, m = self._chosen(fed, party, own), own.shape[1]
            confident, free = sure >= self.threshold, torch.full_like(count, m)
            if chosen is not None:  # they count as labelled, by names given at home
                names = fed.extra[f"names.{party.name}"].gather(1, own)
                loss = loss + (cross_entropy(logits[:, b + m :], names) * chosen).sum(1)
                confident, free = confident & ~chosen, (~chosen).sum(1).clamp_min(1)
                count = count + chosen.sum(1)
            consistent = (cross_entropy(logits[:, b : b + m], guess) * confident).sum(1) / free
            loss = loss / count + self.unlabelled_weight * consistent
        y = fed.targets(rows) if party.active else None
        penalty = fed.penalty(party.name, x, {party.name: h[:, :b]}, y)
        total = loss.sum() if penalty is None else loss.sum() + penalty.sum()
        party.update(torch.autograd.grad(total, party.parameters(HOME)), HOME)

    def _supervised(
        self, fed: Federation, party: Party, rows: Tensor, logits: Tensor, *, train: bool = True
    ) -> Tensor:
        """Sum of the losses on the aligned rows, (R,)."""
        if party.active and self.active_labels == "true":
            return fed.loss(logits, fed.targets(rows), train=train) * float(rows.shape[1])
        labels = fed.extra[f"temporary.{party.name}"].gather(1, rows)
        return cross_entropy(logits, labels).sum(1)

    def _draw(self, fed: Federation, party: Party, b: int) -> Tensor | None:
        """Unaligned rows of a client for one step, drawn with replacement, (R, mu b), or None."""
        rows = fed.stack.unaligned(party.name)
        if self.unlabelled_weight == 0 or rows.shape[1] == 0:
            return None
        draws = fed.extra.setdefault(
            f"unlabelled.{party.name}",
            Streams(fed.seeds, "unlabelled", party.name, device=fed.stack.device),
        )
        return rows.gather(1, draws.integers(rows.shape[1], (b * self.unlabelled_ratio,)))

    def _draw_anew(self, fed: Federation) -> None:
        """Draw at home from streams of this phase: where others stand after a phase of no fixed
        length hangs on the replicas beside.
        """
        for party in self.clients(fed):
            key, views = f"unlabelled.{party.name}", fed.extra.get(f"views.{party.name}")
            if key in fed.extra:
                fed.extra[key] = fed.extra[key].spawn(fed.phase)
            if views is not None:
                views.rng = views.rng.spawn(fed.phase)

    def _chosen(self, fed: Federation, party: Party, rows: Tensor) -> Tensor | None:
        """Which of a client's unaligned rows (R, m) count as labelled; None if none ever do."""
        return None

    def _views(self, fed: Federation, party: Party) -> Views:
        key = f"views.{party.name}"
        if key not in fed.extra:
            schema = fed.stack.first.schema[party.name]
            rng = Streams(
                fed.seeds, "views", party.name, device=fed.stack.device, dtype=fed.stack.dtype
            )
            if len(schema.shape) == 3:
                fed.extra[key] = ImageViews(rng, self.flip, random=self.augment == "randaugment")
            else:
                own = fed.stack.columns(party.name, fed.stack.rows(f"local:{party.name}"))
                numeric = schema.numeric if schema.cardinalities else tuple(range(own.shape[2]))
                fed.extra[key] = TabularViews(
                    column_centres(own, schema), numeric, self.replaced, self.sigma, rng
                )
        made: Views = fed.extra[key]
        return made

    # Steps 5 and 6: second upload, final classifier.
