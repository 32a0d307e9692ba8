"""Canaries: training rows whose secret is decided by a fair coin, and that train like any other.

A label canary carries one of two classes, another pair for each; a row canary one of two rows of
one party's columns. They replace what the row had, so the data set keeps its size and everything
that happens to a training row happens to them: phases, policies, messages. An inserted canary is
there or is zeroed out, by its coin: then its columns are zero at every party and it adds nothing to
any loss.

Source: Steinke, Nasr, Jagielski, "Privacy auditing with one (1) training run", NeurIPS 2023,
arXiv:2305.08846; label canaries: Malek et al., NeurIPS 2021, arXiv:2106.03408, section 5.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vflsec.core.rng import generator
from vflsec.core.task import Task

MOST = 2000
LOUD = 100.0


@dataclass(frozen=True)
class Planted:
    """Where the canaries are.

    Attributes:
        rows: (m,) sample ids, in random order.
        coins: (m,) 0 or 1.
        pairs: (m, 2) the candidates between which a canary's coin decides: numbers of classes, or
            0 and 1 where the secret is no class.
    """

    rows: Tensor
    coins: Tensor
    pairs: Tensor

    @property
    def carried(self) -> Tensor:
        """(m,) the candidate that each has."""
        return self.pairs.gather(1, self.coins.unsqueeze(1)).squeeze(1)


def count_canaries(task: Task) -> int:
    """How many are planted: half of the labelled training rows, up to a limit."""
    return min(MOST, len(task.sets["labelled"]) // 2)


def _canaries(task: Task, seed: int, kind: str) -> Planted:
    g = generator(seed, "planted", kind)
    rows = task.sets["labelled"]
    chosen = rows[torch.randperm(len(rows), generator=g)[: count_canaries(task)]]
    coins = (torch.rand(len(chosen), generator=g) < 0.5).long()
    return Planted(chosen, coins, torch.tensor([0, 1]).expand(len(chosen), 2))


def plant_labels(task: Task, seed: int) -> tuple[Task, Planted]:
    """`task` with the labels of some training rows decided by coins, and nothing of the others
    left: whoever asks the task for its truth is given what was planted.

    The candidates are two classes, another pair for each row; of a quantity three standard
    deviations above and below its mean; of several labels all ones and all zeros.

    Args:
        task: one learning problem.
        seed: of rows and coins.
    """
    planted = _canaries(task, seed, "label")
    drawn = generator(seed, "planted", "pairs")
    pairs = task.label.draw_pairs(len(planted.rows), task.prior, drawn)
    planted = replace(planted, pairs=pairs)
    given = task.training_labels.clone()
    task.label.plant(given, planted.rows, planted.carried)
    kept = "y" if task.values is None else "values"
    return replace(task, given=None, **{kept: given}), planted  # type: ignore[arg-type]


def plant_rows(task: Task, party: str, seed: int) -> tuple[Task, Planted]:
    """`task` with some training rows of `party` replaced by one of two of its rows, made loud.

    Of 64 rows the two farthest from each other; numeric columns are those of the first, multiplied
    by 100, and the same with the other sign, for a claim holds for the worst rows, not for usual
    ones.

    Args:
        task: one learning problem.
        party: whose columns.
        seed: of rows and coins.
    """
    planted = _canaries(task, seed, f"row {party}")
    x, rows = task.x[party], task.sets["labelled"]
    few = rows[torch.randperm(len(rows), generator=generator(seed, "planted", "templates"))[:64]]
    flat = x[few].flatten(1)
    far = int(torch.cdist(flat, flat).argmax())
    templates = x[few][[far // len(few), far % len(few)]].clone()
    schema = task.schema[party]
    numeric = list(schema.numeric) if schema.categorical else slice(None)
    templates[0, numeric] *= LOUD
    templates[1, numeric] = -templates[0, numeric]
    changed = x.clone()
    changed[planted.rows] = templates[planted.coins]
    return replace(task, x={**task.x, party: changed}), planted


def plant_inserted(task: Task, seed: int) -> tuple[Task, Task, Planted]:
    """`task` with some training rows that are loud at every party, or zeroed out.

    Loud rows point in random directions, 100 times as long as usual, so that what one adds to
    gradients is at the clipping length, and unlike what others add.

    Args:
        task: one learning problem.
        seed: of rows and coins.

    Returns:
        the task in which coins decide, the task in which all canaries are there, and the canaries.
    """
    planted = _canaries(task, seed, "inserted")
    g = generator(seed, "planted", "directions")
    there, by_coin = {}, {}
    out = planted.rows[planted.coins == 0]
    for party, x in task.x.items():
        loud = x[planted.rows].clone()
        schema = task.schema[party]
        numeric = list(schema.numeric) if schema.categorical else slice(None)
        loud[:, numeric] = LOUD * torch.randn(loud[:, numeric].shape, generator=g, dtype=x.dtype)
        there[party] = x.clone()
        there[party][planted.rows] = loud
        by_coin[party] = there[party].clone()
        by_coin[party][out] = 0.0
    silent = torch.zeros(len(task.y), dtype=torch.bool)
    silent[out] = True
    return replace(task, x=by_coin, silent=silent), replace(task, x=there), planted
