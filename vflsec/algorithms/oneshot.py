"""One-shot VFL: one gradient down, clustered into labels, then training at home.

1. Each client k uploads H^k = f^k(x^k) (N_o, d_k) of all aligned labelled rows, with f^k at its
   initial weights.
2. The label holder, its classifier f_c at its initial weights, returns G^k = dL/dH^k (N_o, d_k),
   L summed over the rows (one full batch), and the number of classes C.
3. The client clusters the length-normalised rows of G^k into C temporary classes (k-means, best of
   several starts). Rows of one class share a direction, so the clusters are the classes up to their
   names: every aligned label is handed out, by design.
4. The client trains f^k and a local head on the temporary labels and on its unaligned rows:
   l = l_s + lambda l_u with FixMatch's confident pseudo-labels (see `vflsec.nn.fixmatch`). How
   long is counted in updates: with few aligned rows an epoch is a handful of them, and FixMatch
   needs a thousand before its pseudo-labels are worth anything.
5. It uploads its new H^k once; the label holder trains f_c on them, extractors frozen.

The label holder here is the active party; it is a client too, and trains on its own true labels
unless ``active_labels = "clusters"``. ``finetune = true`` ends with split training from these
weights. Messages by client: two embeddings up, one gradient and one signal (C) down, ids once; with
`finetune` those of split learning. Row sets: aligned = ``labelled``, unaligned = ``local:PARTY``
minus ``aligned``.

Source: Sun, Xu, Yang, Nath, Li, Zhao, Xu, Chen, Roth, "Communication-efficient vertical federated
learning with limited overlapping samples", ICCV 2023, algorithm 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from vflsec import check, registry
from vflsec.algorithms.splitnn import SplitNN
from vflsec.errors import ConfigError
from vflsec.federation import Federation, Phase
from vflsec.hooks import cross_entropy
from vflsec.nn.clusters import clusters
from vflsec.nn.fixmatch import ImageViews, TabularViews, Views, column_centres
from vflsec.nn.models import mlp
from vflsec.party import Party
from vflsec.rng import Streams
from vflsec.view import Facts


@registry.algorithm
@dataclass(frozen=True)
class OneShot(SplitNN):
    """Hyper-parameters beside FedSplitNN's, whose `epochs`, `patience` and `select` are those of
    the final classifier.

    Attributes:
        local_steps: updates of each client in local training.
        local_epochs: passes over the aligned rows instead, if above 0.
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
        starts: k-means starts, of which the best is kept.
        active_labels: what the active party's own extractor is trained on: its ``true`` labels, or
            ``clusters`` like any other client.
        finetune, finetune_epochs: split training from the final weights, and its epochs.
    """

    local_steps: int = 1000
    local_epochs: int = 0
    local_schedule: Literal["constant", "cosine"] = "constant"
    local_ema: float = 0.0
    unlabelled_ratio: int = 7
    unlabelled_weight: float = 1.0
    threshold: float = 0.95
    replaced: float = 0.2
    sigma: float = 0.1
    flip: bool = False
    starts: int = 10
    active_labels: Literal["true", "clusters"] = "true"
    finetune: bool = False
    finetune_epochs: int = 15

    world: ClassVar[dict[str, Any]] = {"task": {"unaligned": 40}, "local_epochs": 4}

    def __post_init__(self) -> None:
        super().__post_init__()
        check.integer(f"{self.name}.local_steps", self.local_steps)
        check.integer(f"{self.name}.local_epochs", self.local_epochs, low=0)
        check.one_of(f"{self.name}.local_schedule", self.local_schedule, ("constant", "cosine"))
        check.in_unit(f"{self.name}.local_ema", self.local_ema, high_open=True)
        check.integer(f"{self.name}.epochs", self.epochs)
        check.integer(f"{self.name}.unlabelled_ratio", self.unlabelled_ratio)
        check.non_negative(f"{self.name}.unlabelled_weight", self.unlabelled_weight)
        check.in_unit(f"{self.name}.threshold", self.threshold)
        check.in_unit(f"{self.name}.replaced", self.replaced)
        check.non_negative(f"{self.name}.sigma", self.sigma)
        check.integer(f"{self.name}.starts", self.starts)
        check.one_of(f"{self.name}.active_labels", self.active_labels, ("true", "clusters"))
        check.integer(f"{self.name}.finetune_epochs", self.finetune_epochs, low=0)
        if not self.has_top:
            raise ConfigError(
                f"{self.name}: must have a classifier that can be trained without the clients, got "
                "top = [] and linear_top = false. Leave linear_top at true."
            )

    def build(self, fed: Federation) -> None:
        super().build(fed)
        for party in self.clients(fed):
            width = self.width(party.name, fed.classes)
            fed.add(party.name, "head", lambda width=width: mlp([width, fed.classes]))  # type: ignore[misc]

    def clients(self, fed: Federation) -> list[Party]:
        """All parties, the active one first."""
        return [fed.active, *self.passive(fed)]

    def phases(self, fed: Federation) -> list[Phase]:
        self.intersect(fed, "exchange")
        return [self._exchange_phase(fed), self._local_phase(fed, "local"), *self._ending(fed)]

    def _exchange_phase(self, fed: Federation) -> Phase:
        rows = fed.stack.rows("labelled")
        return Phase(
            "exchange", rows, rows.shape[1], 1, lambda batch: self.exchange(fed, batch),
            predicts=False,
        )  # fmt: skip

    def _local_phase(self, fed: Federation, name: str) -> Phase:
        rows = fed.stack.rows("labelled")
        epochs = math.ceil(self._local_updates(fed) / self._local_batches(fed))
        return Phase(
            name, rows, self.batch_size, epochs, lambda batch: self.local_step(fed, batch),
            after_epoch=lambda epoch: self._average(fed) if epoch == epochs - 1 else None,
            before=lambda: self.restart(fed), audited=False, predicts=False,
        )  # fmt: skip

    def _local_batches(self, fed: Federation) -> int:
        return math.ceil(fed.stack.rows("labelled").shape[1] / self.batch_size)

    def _local_updates(self, fed: Federation) -> int:
        """Updates of each client in local training."""
        return self.local_epochs * self._local_batches(fed) or self.local_steps

    def _ending(self, fed: Federation) -> list[Phase]:
        """The final classifier, and split training from there on demand."""
        classifier = Phase(
            "classifier", fed.stack.rows("labelled"), self.batch_size, self.epochs,
            lambda batch: self.classifier_step(fed, batch),
            select=self.select, select_by=self.select_by, patience=self.patience,
            before=lambda: self.collect(fed, "trained"),
        )  # fmt: skip
        if not self.finetune:
            return [classifier]
        split = self.split_phase(fed, "finetune", self.finetune_epochs)
        return [classifier, replace(split, before=lambda: self.drop_heads(fed))]

    def restart(self, fed: Federation) -> None:
        """Fresh optimizers for a new phase."""
        for party in self.clients(fed):
            party.start(self.optimizer, self.lr, self.weight_decay, embedding_l2=self.embedding_l2)

    def drop_heads(self, fed: Federation) -> None:
        """Forget the local heads, which split training does not use."""
        for party in self.clients(fed):
            party.modules.pop("head", None)
        self.restart(fed)

    # Steps 1 to 3: one upload, one download, temporary labels.

    def exchange(self, fed: Federation, rows: Tensor) -> None:
        """Upload, gradient and clustering for all aligned rows (R, N_o); updates no weight."""
        active = fed.active
        got = self.upload(fed, rows, "initial")
        for h in got.values():
            h.requires_grad_()
        y = fed.targets(rows)
        logits = self.logits(fed, list(got.values()), train=False)
        total = fed.loss(logits, y).sum() * rows.shape[1]
        gradients = dict(zip(got, torch.autograd.grad(total, list(got.values())), strict=True))
        for party in self.passive(fed):
            gradients[party.name] = fed.send(
                "gradient", active.name, party.name, gradients[party.name], rows,
                labels=y, logits=logits.detach(),
            )  # fmt: skip
            count = torch.full(
                (fed.replicas, 1), fed.classes, dtype=torch.int64, device=rows.device
            )
            fed.send("signal", active.name, party.name, count, name="classes")
        for party in self.clients(fed):
            if party.active and self.active_labels == "true":
                continue
            found = clusters(
                gradients[party.name], fed.classes, fed.seeds, party.name, starts=self.starts
            )
            labels = torch.full(fed.labels.shape[:2], -1, device=rows.device)
            fed.extra[f"temporary.{party.name}"] = labels.scatter(1, rows, found.to(rows.device))

    @torch.no_grad()
    def upload(self, fed: Federation, rows: Tensor, name: str) -> dict[str, Tensor]:
        """Every party's representations (R, n, d_k) of `rows` as the active party gets them."""
        got = {}
        for party in self.clients(fed):
            h = self.represent(fed, party, rows)
            if not party.active:
                h = fed.send("embedding", party.name, fed.active.name, h, rows, name=name)
            got[party.name] = h
        return got

    @torch.no_grad()
    def represent(self, fed: Federation, party: Party, rows: Tensor) -> Tensor:
        """A party's own representations (R, n, d_k) of `rows`, in eval mode, in blocks."""
        bottom = party.modules["bottom"]
        blocks = [bottom(fed.columns(party.name, r), train=False) for r in rows.split(4096, dim=1)]
        return torch.cat(blocks, dim=1)

    # Step 4: training at home.

    def local_step(self, fed: Federation, rows: Tensor) -> None:
        """One update of every client on aligned rows (R, b) and on unaligned rows of its own."""
        steps = self._local_updates(fed)
        if not self.local_epochs and fed.steps >= steps:
            return  # in the middle of the last epoch
        for party in self.clients(fed):
            if self.local_schedule == "cosine":
                rate = self.lr * math.cos(7 * math.pi * fed.steps / (16 * steps))
                for group in getattr(party.optimizer, "param_groups", ()):
                    group["lr"] = rate
            self._update(fed, party, rows)
            if self.local_ema:
                self._follow(fed, party)

    @torch.no_grad()
    def _follow(self, fed: Federation, party: Party) -> None:
        """Move the running average of a client's weights; statistics are taken as they are."""
        average = fed.extra.setdefault("ema", {}).setdefault(party.name, {})
        for part in ("bottom", "head"):
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
        parts = ("bottom", "head")
        party.update(torch.autograd.grad(total, party.parameters(parts)), parts)

    def _supervised(self, fed: Federation, party: Party, rows: Tensor, logits: Tensor) -> Tensor:
        """Sum of the losses on the aligned rows, (R,)."""
        if party.active and self.active_labels == "true":
            return fed.loss(logits, fed.targets(rows)) * float(rows.shape[1])
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
                fed.extra[key] = ImageViews(rng, self.flip)
            else:
                own = fed.stack.columns(party.name, fed.stack.rows(f"local:{party.name}"))
                numeric = schema.numeric if schema.cardinalities else tuple(range(own.shape[2]))
                fed.extra[key] = TabularViews(
                    column_centres(own, schema), numeric, self.replaced, self.sigma, rng
                )
        made: Views = fed.extra[key]
        return made

    # Steps 5 and 6: second upload, final classifier.

    def collect(self, fed: Federation, name: str) -> None:
        """The active party gets and keeps every client's representations of the aligned rows."""
        rows = fed.stack.rows("labelled")
        place = torch.zeros(fed.labels.shape[:2], dtype=torch.int64, device=rows.device)
        fed.extra["place"] = place.scatter(
            1, rows, torch.arange(rows.shape[1], device=rows.device).expand_as(rows)
        )
        fed.extra["collected"] = self.upload(fed, rows, name)
        self.restart(fed)

    def collected(self, fed: Federation, rows: Tensor) -> dict[str, Tensor]:
        """Kept representations (R, b, d_k) of aligned rows (R, b), by party."""
        place = fed.extra["place"].gather(1, rows).unsqueeze(2)
        kept: dict[str, Tensor] = fed.extra["collected"]
        return {p: h.gather(1, place.expand(-1, -1, h.shape[2])) for p, h in kept.items()}

    def classifier_step(self, fed: Federation, rows: Tensor) -> None:
        """One update of the classifier on kept representations."""
        logits = self.logits(fed, list(self.collected(fed, rows).values()), train=True)
        total = fed.loss(logits, fed.targets(rows)).sum()
        params = fed.active.parameters(("top",))
        fed.active.update(torch.autograd.grad(total, params), ("top",))

    def facts(self, fed: Federation) -> Facts:
        facts = super().facts(fed)
        if fed.phase == "finetune":
            return replace(facts, epochs=self.finetune_epochs)
        if fed.phase == "exchange":
            facts = replace(facts, batch_size=fed.stack.rows("labelled").shape[1], epochs=1)
        return replace(facts, reduction="sum")

    def planned_facts(self, active: str, parties: tuple[str, ...], classes: int) -> Facts:
        planned = super().planned_facts(active, parties, classes)
        return replace(planned, phase="exchange", epochs=1, reduction="sum")
