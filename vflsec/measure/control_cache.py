"""Controls kept over cohorts: a defense of the others changes nothing that a control may look at.

They are found again by what they were made of, not by name: the grants, own columns, own untrained
model and the rows to guess, as a hash. A defense that does change one of these (a policy of the
adversary's own, say) finds nothing here and makes its own.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from vflsec.core.guess import Guess
from vflsec.core.view import View
from vflsec.errors import ConfigError, VflsecError
from vflsec.measure.controls import Control
from vflsec.nn.weights import parse, write_weights
from vflsec.runtime.atomic_files import write_atomic
from vflsec.runtime.file_locks import lock

Key = TypeVar("Key", bound=Hashable)


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

    @contextmanager
    def claim(self, keys: Sequence[Key]) -> Iterator[Sequence[Key]]:
        """Those of `keys`, of which nothing is kept, that are to be made here and now."""
        yield keys


class SharedFolder(SharedControls):
    """Controls in a folder, where those of a large table are no burden, beside those at hand.

    The workers of one machine share them.

    What one makes lies in a folder for the others, and nobody makes what another is making. Of what
    is missing a worker takes half, so that two who want the same make half of it each.

    Args:
        folder: which is there, and empty when the audit begins.
        most: bytes of all answers at hand.
        room: bytes of the folder; what does not fit is made by every worker who needs it.
    """

    def __init__(self, folder: Path, most: int = 2**26, room: int = 2**32) -> None:
        super().__init__(most)
        self.folder, self.room = folder, room

    def get(self, key: Hashable) -> list[Control] | None:
        found = super().get(key)
        if found is None:
            with suppress(OSError, VflsecError):  # not there, or damaged: it is made again
                found = _read(self._path(key))
                super().put(key, found)
        return found

    def put(self, key: Hashable, controls: list[Control]) -> None:
        super().put(key, controls)
        with suppress(ConfigError, OSError):  # the disk is full, say
            used = sum(p.stat().st_size for p in self.folder.glob(f"*{_KEPT}"))
            if used + _bytes(controls) > self.room or not _writable(controls):
                return
            write_atomic(self._path(key), lambda path: _write(path, controls))

    @contextmanager
    def claim(self, keys: Sequence[Key]) -> Iterator[Sequence[Key]]:
        """Half of `keys`, as far as no other worker is at them; none once one of those is done."""
        with ExitStack() as held:
            mine: list[Key] = []
            for key in keys:
                if 2 * len(mine) < len(keys) and self._locked(key, held, wait=False):
                    mine.append(key)
            if not mine:
                self._locked(keys[0], held, wait=True)
            yield mine

    def _locked(self, key: Hashable, held: ExitStack, *, wait: bool) -> bool:
        try:
            file = os.open(self._path(key).with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            return True  # in a folder that cannot be written everybody makes all
        held.callback(os.close, file)  # which lets it go
        try:
            lock(file, wait=wait)
        except BlockingIOError:
            return False
        return True

    def _path(self, key: Hashable) -> Path:
        return self.folder / f"{hashlib.sha256(repr(key).encode()).hexdigest()[:32]}{_KEPT}"


_KEPT = ".safetensors"
_HEADER, _BODY = 1 << 26, 1 << 40  # most bytes of a file that this package wrote a moment ago


def _told(controls: Sequence[Control]) -> str:
    """What belongs to the numbers, in words."""
    return json.dumps(
        [
            {"name": c.name, "cv": c.cv, "target": c.guess.target, "notes": c.guess.notes}
            for c in controls
        ]
    )


def _writable(controls: Sequence[Control]) -> bool:
    """Whether they are read again as they are."""
    if not all(np.isfinite(c.guess.scores).all() for c in controls):
        return False
    try:
        return bool(_told(controls))
    except (TypeError, ValueError):
        return False


def _write(path: Path, controls: Sequence[Control]) -> None:
    tensors: dict[str, torch.Tensor] = {}
    for i, c in enumerate(controls):
        arrays = {k: getattr(c.guess, k) for k in ("rows", "scores", "group", "abstain")}
        there = {k: torch.from_numpy(a) for k, a in arrays.items() if a is not None}
        tensors |= {f"{i}.{k}": a for k, a in there.items()}
    text = bytearray(_told(controls).encode())
    write_weights(path, {**tensors, "told": torch.frombuffer(text, dtype=torch.uint8)})


def _read(path: Path) -> list[Control]:
    with path.open("rb") as file:
        tensors = parse(file, path.name, _HEADER, _BODY, VflsecError)
    told = json.loads(tensors.pop("told").numpy().tobytes())
    parts: list[dict[str, torch.Tensor]] = [{} for _ in told]
    for name, tensor in tensors.items():
        i, _, what = name.partition(".")
        parts[int(i)][what] = tensor
    return [
        Control(t["name"], Guess(t["target"], notes=t["notes"], **arrays), t["cv"])
        for t, arrays in zip(told, parts, strict=True)
    ]


def _bytes(controls: Sequence[Control]) -> int:
    return sum(c.guess.scores.nbytes + c.guess.rows.nbytes for c in controls)


def hash_view(view: View) -> str:
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
