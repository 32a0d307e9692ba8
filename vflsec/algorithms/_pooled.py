"""What both pooled references share: fit on everybody's columns in one place, exchange nothing."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from vflsec.core.algorithm import Algorithm
from vflsec.core.federation import Federation, Phase
from vflsec.core.task import Task
from vflsec.core.view import Facts
from vflsec.errors import PolicyError


class Pooled(Algorithm):
    """Fits one scikit-learn classifier a seed on the labelled rows with all parties' columns.

    It is no federated protocol: raw columns and labels meet in one place. It stands in reports as
    the level that a federation could reach at best with that model.
    """

    sends: ClassVar[frozenset[tuple[str, str, str]]] = frozenset()
    modules: ClassVar[frozenset[str]] = frozenset({"active"})
    label_holder: ClassVar[bool] = True

    def classifier(self, seed: int) -> Any:
        """A fresh scikit-learn classifier."""
        raise NotImplementedError("abstract")

    def design(self, task: Task, rows: Tensor) -> np.ndarray:
        """All parties' columns of `rows`, (n, p) float64, categoricals one-hot."""
        parts = [task.schema[p].design(task.x[p][rows]) for p in task.parties]
        return torch.cat(parts, dim=1).double().numpy()

    def build(self, fed: Federation) -> None:
        self._refuse(fed)
        models: list[Any] = []
        labels = fed.labels.cpu()
        if labels.dim() == 3:
            labels = labels.argmax(2)
        for r, seed in enumerate(fed.seeds):
            task = fed.stack.tasks[int(fed.stack.of[r])]
            rows = task.sets["labelled"]
            same = next((q for q in range(r) if self._same(fed, labels, rows, q, r)), None)
            models.append(
                self.classifier(seed).fit(self.design(task, rows), labels[r, rows].numpy())
                if same is None
                else models[same]
            )
        fed.extra["models"] = models

    @staticmethod
    def _same(fed: Federation, labels: Tensor, rows: Tensor, q: int, r: int) -> bool:
        """Whether replicas `q` and `r` train on the same rows and labels."""
        return fed.seeds[q] == fed.seeds[r] and torch.equal(labels[q, rows], labels[r, rows])

    def _refuse(self, fed: Federation) -> None:
        """Only what changes the labels once, before training, has any effect here.

        Raises:
            PolicyError: another policy is there, whose hooks nothing would call.
        """
        for party in fed.parties.values():
            for b in party.bindings:
                if any(b.own.active) and (
                    not b.policy.overrides("labels") or b.policy.trainings > 1
                ):
                    raise PolicyError(
                        f"{b.policy.name}: does nothing under {self.name}. Leave it out."
                    )

    def phases(self, fed: Federation) -> list[Phase]:
        rows = fed.stack.rows("labelled")
        return [Phase("train", rows, max(1, rows.shape[1]), 0, lambda _: None, audited=False)]

    def predict(self, fed: Federation, rows: Tensor) -> Tensor:
        out = torch.full((*rows.shape, fed.classes), -30.0, dtype=torch.float64)
        done: dict[int, Tensor] = {}
        for r, model in enumerate(fed.extra["models"]):
            if id(model) not in done:  # shared by replicas of one seed alone, whose rows are one
                task = fed.stack.tasks[int(fed.stack.of[r])]
                p = model.predict_proba(self.design(task, rows[r].cpu()))
                answer = torch.full((rows.shape[1], fed.classes), -30.0, dtype=torch.float64)
                answer[:, model.classes_] = torch.from_numpy(np.log(np.clip(p, 1e-13, None)))
                done[id(model)] = answer
            out[r] = done[id(model)]
        return out.to(fed.stack.device, fed.stack.dtype)

    def facts(self, fed: Federation) -> Facts:
        task = fed.stack.first
        return self.planned_facts(task.active, task.parties, task.classes)

    def planned_facts(self, active: str, parties: tuple[str, ...], classes: int) -> Facts:
        return Facts(self.name, "train", active, parties, classes, aggregation="pooled", top=False)
