"""Finds waits for the host: what would make a GPU stop in every step, seen on any machine.

On a CUDA device each of these copies a number to the host and waits for all work before it:
``.item()``, ``bool()``, ``.tolist()``, ``.numpy()``, ``.cpu()``, and operations whose result has a
size that depends on values (``nonzero``, indexing by a mask, ``unique``, ``masked_select``). Here
tensors are on the host already, so nothing waits; the calls are what is counted.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import vflsec
from vflsec.core.federation import Federation
from vflsec.data.prepare import make_task
from vflsec.plugins import registry
from vflsec.specs import CellSpec, DefenseSpec


def make_tasks() -> dict[int, Any]:
    """Two seeds, half of whose rows are aligned."""
    source = registry.datasets.create("breast_cancer").load(0)
    return {s: make_task(source, s, aligned=0.5) for s in range(2)}


def cells(algorithm: str, *defenses: DefenseSpec) -> list[CellSpec]:
    """Of one epoch each."""
    known = registry.list_parameters(registry.algorithms.get(algorithm))
    params = {k: 1 for k in known if k.endswith("epochs")} | {"batch_size": 64}
    of = {k: v for k, v in params.items() if k in known}
    return [CellSpec({"name": "breast_cancer"}, algorithm, of, defenses, s) for s in range(2)]


METHODS = ("item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__",
           "__array__")  # fmt: skip
SIZED = {"nonzero", "masked_select", "unique_dim", "_unique2", "unique_consecutive"}
_PACKAGE = str(Path(vflsec.__file__).resolve().parent)
_ROOT = str(Path(vflsec.__file__).resolve().parent.parent)


@cache
def _find_ours(name: str) -> str:
    """A file of the package by its path there; '' for any other."""
    file = str(Path(name).resolve())
    if not file.startswith(_ROOT) or "/site-packages/" in file or "/tests/" in file:
        return ""
    return file.removeprefix(_PACKAGE).removeprefix(_ROOT).lstrip("/")


COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>")
"""Have frames of their own before Python 3.12 alone, so their function is named."""


class Watch(TorchDispatchMode):
    """Counts waits by the place in the package that asked for them: ``file:function``."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self.on = False

    def saw(self) -> None:
        """A wait, asked for by the innermost frame of the package."""
        frame = sys._getframe(1)
        while frame is not None:
            short = _find_ours(frame.f_code.co_filename)
            if short and frame.f_code.co_name not in COMPREHENSIONS:
                self.found[f"{short}:{frame.f_code.co_name}"] += 1
                return
            frame = frame.f_back  # type: ignore[assignment]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.partition(".")[0]
        masked = name in ("index", "index_put", "index_put_") and any(
            isinstance(i, torch.Tensor) and i.dtype == torch.bool for i in args[1]
        )
        if self.on and (name in SIZED or masked):
            self.saw()
        return func(*args, **(kwargs or {}))


def watch_steps(watch: Watch, patch: pytest.MonkeyPatch) -> None:
    """Let `watch` look from one batch to the next, and not between two passes."""
    batches = Federation.batches

    def stepped(self: Federation, *args: Any, **kwargs: Any) -> Iterator[Any]:
        for rows in batches(self, *args, **kwargs):
            watch.on = True
            try:
                yield rows
            finally:
                watch.on = False

    patch.setattr(Federation, "batches", stepped)


@contextmanager
def watched_steps() -> Iterator[Watch]:
    """Counts the waits within steps of training: between one batch and the next."""
    watch = Watch()
    with pytest.MonkeyPatch.context() as patch, watch:
        for method in METHODS:
            real = getattr(torch.Tensor, method)

            def noted(self: Any, *args: Any, _real: Any = real, **kwargs: Any) -> Any:
                if watch.on:
                    watch.saw()
                return _real(self, *args, **kwargs)

            patch.setattr(torch.Tensor, method, noted)
        watch_steps(watch, patch)
        yield watch
