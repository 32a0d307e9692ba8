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
   long is not published: see `vflsec.algorithms._local_work`. Counted in updates: with few aligned
   rows an epoch is a handful of them.
5. It uploads its new H^k once; the label holder trains f_c on them, extractors frozen. That costs
   no message either, so `epochs` and `patience` are ten times those of split training.

The label holder here is the active party. With columns it is a client too, and trains on its own
true labels unless ``active_labels = "clusters"``; without (as published) it trains f_c alone.
``finetune = true`` ends with split training from these weights. Messages by client: two
embeddings up, one gradient and one signal (C) down, ids once; with `finetune` those of split
learning. Row sets: aligned = ``labelled``, unaligned = ``local:PARTY`` minus ``aligned``.

Source: Sun, Xu, Yang, Nath, Li, Zhao, Xu, Chen, Roth, "Communication-efficient vertical federated
learning with limited overlapping samples", ICCV 2023, algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from vflsec.algorithms._local_work import HOME, JUDGES, LocalWork
from vflsec.core.federation import Federation, Phase
from vflsec.core.phase import hold_out
from vflsec.core.view import Facts
from vflsec.inference.clustering_points import find_clusters
from vflsec.nn.models import mlp
from vflsec.plugins import registry


@registry.algorithm
@dataclass(frozen=True)
class OneShot(LocalWork):
    """Hyper-parameters: those of split training, whose `epochs`, `patience` and `select` are those
    of the final classifier, and of local work.
    """

    def build(self, fed: Federation) -> None:
        super().build(fed)
        for party in self.clients(fed):
            width = self.width(party.name, fed.classes)
            fed.add(party.name, "head", lambda width=width: mlp([width, fed.classes]))  # type: ignore[misc]

    def phases(self, fed: Federation) -> list[Phase]:
        self.intersect(fed, "exchange")
        rows = fed.stack.rows("labelled")
        exchange = Phase(
            "exchange", rows, rows.shape[1], 1, partial(self.exchange, fed), predicts=False
        )
        return [exchange, *self._local_phases(fed, "local"), *self._ending(fed)]

    def _local_phases(
        self, fed: Federation, name: str, before: Callable[[], None] | None = None
    ) -> list[Phase]:
        """Local training: how long, by held out labels, and then that long on all aligned rows."""
        every = fed.released(fed.stack.rows("labelled"))
        start = before or (lambda: self.restart(fed))
        home, held = hold_out(every, self.local_held_out)
        if held.shape[1] < JUDGES * fed.classes:
            home, held = hold_out(every, 0.0)
        batches = math.ceil(home.shape[1] / self.batch_size)
        passes = self.local_epochs or math.ceil(self.local_steps / batches)
        most = passes * batches if self.local_epochs else self.local_steps
        train = Phase(
            name, home, self.batch_size, passes, lambda rows: self.local_step(fed, rows, most),
            after_epoch=lambda epoch: self._average(fed) if epoch == passes - 1 else None,
            before=start, audited=False, predicts=False, smallest=self.smallest,
        )  # fmt: skip
        if not held.shape[1]:
            return [train]
        length, began = f"{name}_length", dict[str, dict[str, dict[str, Tensor]]]()

        def begin() -> None:
            start()
            self._draw_anew(fed)
            for party in self.clients(fed):
                began[party.name] = {part: party.modules[part].state() for part in HOME}

        def begin_again() -> None:
            for party, parts in began.items():
                for part, state in parts.items():
                    fed.parties[party].modules[part].load(state)
            self.restart(fed)
            self._draw_anew(fed)

        clients = self.clients(fed)
        again = passes * math.ceil(every.shape[1] / self.batch_size)
        return [
            replace(
                train, name=length, before=begin, patience=math.ceil(self.local_patience / batches),
                judged={p.name: partial(self._judge, fed, p, held) for p in clients},
            ),
            replace(
                train, rows=every, before=begin_again, patience=1,
                step=lambda rows: self.local_step(fed, rows, again),
                judged={p.name: partial(self._miss, fed, p, length) for p in clients},
            ),
        ]  # fmt: skip

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
        split = replace(
            self.split_phase(fed, "finetune", self.finetune_epochs),
            before=lambda: self.drop_heads(fed), patience=self.finetune_patience,
        )  # fmt: skip
        return [classifier, split]

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
            found = find_clusters(
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

    # Step 4: training at home.

    def collect(self, fed: Federation, name: str) -> None:
        """The active party gets and keeps every client's representations of the aligned rows."""
        rows = fed.stack.rows("labelled")
        self.number(fed, rows)
        fed.extra["collected"] = self.upload(fed, rows, name)
        self.restart(fed)

    def collected(self, fed: Federation, rows: Tensor) -> dict[str, Tensor]:
        """Kept representations (R, b, d_k) of aligned rows (R, b), by party."""
        return {p: self.recall(fed, h, rows) for p, h in fed.extra["collected"].items()}

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
