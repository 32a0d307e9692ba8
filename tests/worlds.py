"""Short names for the small worlds of `vflsec.testing`."""

from __future__ import annotations

from dataclasses import replace

import torch

from vflsec.core.task import Stack, Task
from vflsec.testing import small_stack as stack
from vflsec.testing import small_task

__all__ = ["few_aligned", "small_task", "stack", "with_category"]


def few_aligned(task: Task, aligned: int, *, labelled: int | None = None) -> Task:
    """The same task with only `aligned` aligned training rows, spread evenly.

    All aligned rows are labelled, or `labelled` of them. The others stay rows of each party alone;
    the active party keeps their labels.
    """
    train = task.sets["aligned"]
    chosen = train[torch.linspace(0, len(train) - 1, aligned).long()]
    few = chosen if labelled is None else chosen[torch.linspace(0, aligned - 1, labelled).long()]
    return replace(
        task, sets={**task.sets, "aligned": chosen, "labelled": few}, active_labelled=train
    )


def with_category(stacked: Stack) -> Stack:
    """The same rows with the active party's first column as a category of four codes."""
    tasks = {}
    for s, task in enumerate(stacked.tasks):
        x = task.x["active"].clone()
        x[:, 0] = sum((x[:, 0] > cut).to(x) for cut in (-0.5, 0.0, 0.5))
        schema = task.schema["active"]
        coded = replace(schema, cardinalities=(4, *schema.cardinalities[1:]))
        tasks[s] = replace(task, x={**task.x, "active": x}, schema={**task.schema, "active": coded})
    return Stack.build(tasks, list(tasks), dtype=stacked.dtype)
