"""What an algorithm plans: phases of training, and the walks over rows they are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Pass:
    """One walk over some rows, in a fresh order every time.

    Attributes:
        name: of the stream that shuffles; passes of one name and seed see the same orders.
        rows: sample ids, (R, n).
        batch_size, step: as in :class:`Phase`.
        smallest: a last batch of fewer rows is left out.
    """

    name: str
    rows: Tensor
    batch_size: int
    step: Callable[[Tensor], None]
    smallest: int = 1


@dataclass
class Phase:
    """One stretch of training.

    Attributes:
        name: of the phase, for example ``train``, ``pretrain``, ``finetune``.
        rows: sample ids to train on, (R, n).
        batch_size, epochs: how; an epoch is one pass over `rows` in a fresh order.
        step: one optimisation step on sample ids (R, b).
        after_epoch: called after each epoch, for example to aggregate; may be None.
        select: True if the best epoch on validation rows is kept.
        select_by: what is best: the lowest ``loss``, or the highest ``auc`` (two classes).
        judged: for local phases, by party, how bad its own modules are, (R,), on what it holds out
            at home: each party keeps its own best epoch and stops by itself, and nothing is sent.
        patience: epochs without a better one before a replica stops; 0 = never.
        audited: True if attacks look at the state after this phase.
        predicts: True if the main task can be evaluated after this phase.
        listeners: passive parties that are told each epoch whether training goes on.
        passes: what an epoch consists of, in order; empty means one pass over `rows` by `step`.
        before: called once before the first epoch, for example to drop modules; may be None.
        smallest: a last batch of fewer rows is left out.
        drawn: row sets (R, n) from which steps draw further rows, with replacement; for the plan.
    """

    name: str
    rows: Tensor
    batch_size: int
    epochs: int
    step: Callable[[Tensor], None]
    after_epoch: Callable[[int], None] | None = None
    select: bool = False
    select_by: str = "loss"
    patience: int = 0
    judged: Mapping[str, Callable[[], Tensor]] = field(default_factory=dict)
    audited: bool = True
    predicts: bool = True
    listeners: tuple[str, ...] = ()
    passes: tuple[Pass, ...] = ()
    before: Callable[[], None] | None = None
    drawn: tuple[Tensor, ...] = ()
    smallest: int = 1

    def walks(self) -> tuple[Pass, ...]:
        """The passes of an epoch."""
        return self.passes or (
            Pass(self.name, self.rows, self.batch_size, self.step, self.smallest),
        )


_STOPPED = 0.75
"""Most of the epochs that are trained where training may stop early; 0.4 to 1 were seen."""
_STOPS_AFTER = 3, 250
"""Where there are many epochs, training ends after so many times its patience, in epochs, and so
many steps: 11 to 27 epochs were seen where this says 18 to 32."""


def expect_epochs(epochs: float, patience: int, batches: int) -> float:
    """About how many epochs of so many batches are trained: not fewer than patience waits for."""
    if not patience or not epochs:
        return epochs
    waits, steps = _STOPS_AFTER
    usual = min(_STOPPED * epochs, waits * patience + steps / max(1, batches))
    return max(usual, min(epochs, patience + 1))


def hold_out(rows: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Rows (R, n) to train on, and a share in [0, 1) of them to judge by: every so many, so that
    all who know the rows know which without a word.
    """
    reached = torch.arange(rows.shape[1] + 1, device=rows.device) * share
    held = reached.floor().diff() > 0
    return rows[:, ~held], rows[:, held]
