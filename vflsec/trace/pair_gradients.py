"""Which embedding a gradient belongs to, where its recorder could only say the step of both.

A recorder on a wire often sees a gradient in another process, or after the next embedding has left.
What both messages say is then the one thing that tells; the last embedding that was sent does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

__all__ = ["pair_gradients"]

Found = tuple[dict[str, Any], pa.RecordBatch]


def pair_gradients(stream: Iterable[Found]) -> Iterator[Found]:
    """Messages as they come; gradients without a pair get it by phase, ends, step and micro step.

    Row ids of the embedding are then those of its gradient, if that came without and has as many
    rows. A step that was used for two embeddings tells nothing: such gradients stay without.
    """
    sent: dict[tuple[Any, ...], tuple[int | None, NDArray[np.int64] | None]] = {}
    for meta, batch in stream:
        step, kind = meta.get("step"), meta.get("kind")
        if step is not None and kind == "embedding":
            key = (meta.get("phase"), meta.get("sender"), meta.get("receiver"), step,
                   meta.get("micro"), meta.get("name"))  # fmt: skip
            rows = _rows(batch)
            if key in sent:
                before = sent[key][1]
                same = rows is not None and before is not None and np.array_equal(rows, before)
                sent[key] = (None, rows if same else None)
            else:
                sent[key] = (meta["msg"], rows)
        elif step is not None and kind == "gradient" and meta.get("pair") is None:
            key = (meta.get("phase"), meta.get("receiver"), meta.get("sender"), step,
                   meta.get("micro"), meta.get("name"))  # fmt: skip
            number, rows = sent.get(key, (None, None))
            meta = {**meta, "pair": number}
            if rows is not None and len(rows) == len(batch) and _rows(batch) is None:
                at = batch.schema.get_field_index("row")
                batch = batch.set_column(at, batch.schema.field(at), pa.array(rows, pa.int64()))
        yield meta, batch


def _rows(batch: pa.RecordBatch) -> NDArray[np.int64] | None:
    """Row ids, copied; None if one is not known."""
    ids = batch.column("row")
    return None if ids.null_count or not len(ids) else ids.to_numpy().copy()
