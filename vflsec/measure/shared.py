"""Controls kept over cohorts: a defense of the others changes nothing that a control may look at.

They are found again by what they were made of, not by name: the grants, own columns, own untrained
model and the rows to guess, as a hash. A defense that does change one of these (a policy of the
adversary's own, say) finds nothing here and makes its own.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from vflsec.measure.controls import Control
from vflsec.view import View

__all__ = ["SharedControls", "made_of"]


class SharedControls:
    """Controls by what they were made of, the latest used ones up to a size.

    Args:
        most: bytes of all answers.
    """

    def __init__(self, most: int = 2**29) -> None:
        self.most, self.size = most, 0
        self._kept: OrderedDict[Hashable, list[Control]] = OrderedDict()

    def get(self, key: Hashable) -> list[Control] | None:
        """What was kept under `key`, or None."""
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found

    def put(self, key: Hashable, controls: list[Control]) -> None:
        """Keep controls; the longest unused ones go where there is no room."""
        self._kept[key] = controls
        self.size += _bytes(controls)
        while self.size > self.most and self._kept:
            _, gone = self._kept.popitem(last=False)
            self.size -= _bytes(gone)


def _bytes(controls: Sequence[Control]) -> int:
    return sum(c.guess.scores.nbytes + c.guess.rows.nbytes for c in controls)


def made_of(view: View) -> str:
    """Hash of all of a view that a control may look at."""
    sums = hashlib.sha256()  # processors have instructions for it
    for part in _parts(view):
        if isinstance(part, torch.Tensor):
            array = part.detach().cpu().contiguous().numpy()
            sums.update(f"{array.dtype}{array.shape}".encode())
            sums.update(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"")
        else:
            sums.update(repr(part).encode())
        sums.update(b"\x1f")
    return sums.hexdigest()[:32]


def _parts(view: View) -> Iterator[Any]:
    yield view.adversary, view.facts.classes, view.facts.parties, view.facts.active
    for party in sorted(view.schema):
        yield party, view.schema[party]
    for party in view.adversary:
        yield party, party in view.columns
        if party in view.columns:
            yield view.columns[party]
        if party in view.present:
            yield view.present[party]
        initial = view.models.get(party, {}).get("initial")
        yield initial
        if initial is not None:
            for name, tensor in initial.state_dict().items():
                yield name
                yield tensor
    for split in sorted(view.targets):
        yield split
        yield view.targets[split]
    known = view.known
    for tensor in () if known is None else (known.rows, known.labels, known.values):
        yield tensor
    yield view.facts.extra.get("question")
    yield view.labels
    yield view.prior
    for party, (rows, values) in sorted((view.aux or {}).items()):
        yield party
        yield rows
        yield values
