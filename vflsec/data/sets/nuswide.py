"""NUS-WIDE: 269,648 Flickr images as 634 low-level features and 1,000 tags, labelled by concept.

The loader reads the published text files in `folder`; nothing is fetched. The active party holds
the labels and the image features (colour histogram 64, correlogram 144, edges 73, wavelets 128,
colour moments 225), the passive party the tags (0 or 1 each). A row is kept if it has exactly one
of the chosen concepts; by default these are the ten of FedHSSL's public code. The official training
and test files are the fixed split. Files, each with one image a line:

``Groundtruth/TrainTestLabels/Labels_CONCEPT_Train.txt`` (and ``_Test``): 0 or 1;
``Low_Level_Features/Train_Normalized_CH.dat`` (and CORR, EDH, WT, CM55; and ``Test_``): numbers
between blanks; ``NUS_WID_Tags/Train_Tags1k.dat`` (and ``Test_``): 1,000 of 0 or 1 between tabs.
The two feature folders may lie one level deeper, as some archives unpack them.

What a sound audit finds: ten unbalanced classes, so print the majority share. With 200 labels the
paper has 0.50 accuracy for split training and 0.61 for FedHSSL, and the largest leak of its four
data sets after pre-training (0.51 against 0.44 for the attacker alone).

Source: T.-S. Chua, J. Tang, R. Hong, H. Li, Z. Luo, Y. Zheng, "NUS-WIDE: a real-world web image
database from National University of Singapore", CIVR (2009),
https://lms.comp.nus.edu.sg/wp-content/uploads/2019/research/nuswide/NUS-WIDE.html, for research;
concepts and parties after the code of He, Kang et al., arXiv:2208.08934 (2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vflsec.core import check
from vflsec.data.sets._parts import DataSet, hash_parts, numeric_table
from vflsec.data.sets._published import find_files
from vflsec.data.source import Source
from vflsec.errors import DataError, data_error, first_line
from vflsec.plugins import registry

SITE = "https://lms.comp.nus.edu.sg/wp-content/uploads/2019/research/nuswide/NUS-WIDE.html"
TEN = (
    "sky", "clouds", "person", "water", "animal", "grass", "buildings", "window", "plants", "lake",
)  # fmt: skip
KINDS = {"CH": 64, "CORR": 144, "EDH": 73, "WT": 128, "CM55": 225}
TAGS = 1000
SIDES = ("Train", "Test")
CHUNK = 20_000


@registry.dataset
@dataclass(frozen=True)
class NusWide(DataSet):
    """The user's files; the seed is not used.

    Args:
        folder: where ``Groundtruth``, ``Low_Level_Features`` and ``NUS_WID_Tags`` lie; a relative
            path starts from the scenario's folder.
        concepts: the classes; a row with none or several of them is left out.
        rows: take this many rows of the training and as many of the test files, the first that are
            kept; 0 takes all.
    """

    folder: str
    concepts: tuple[str, ...] = TEN
    rows: check.Whole = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(set(self.concepts)) < 2 or len(set(self.concepts)) != len(self.concepts):
            raise check.fail("nuswide.concepts", "at least two, each once", self.concepts)

    def load(self, seed: int) -> Source:
        """The rows with exactly one concept as a Source with the official split.

        Raises:
            DataError: files are missing, or do not have the published shape.
        """
        deeper = Path(self.folder) / "NUS_WID_Low_Level_Features" / "Low_Level_Features"
        low = "NUS_WID_Low_Level_Features/Low_Level_Features" if deeper.is_dir() else (
            "Low_Level_Features"
        )  # fmt: skip
        labels = [f"Groundtruth/TrainTestLabels/Labels_{c}_{s}.txt" for s in SIDES
                  for c in self.concepts]  # fmt: skip
        images = [f"{low}/{s}_Normalized_{k}.dat" for s in SIDES for k in KINDS]
        tags = [f"NUS_WID_Tags/{s}_Tags1k.dat" for s in SIDES]
        found = find_files("nuswide", self.folder, [*labels, *images, *tags], SITE)
        n, m = len(labels) // 2, len(KINDS)
        parts = []
        for i in range(2):
            own = found[i * n : (i + 1) * n]
            first = len(labels) + i * m
            parts.append(self._side(own, found[first : first + m], found[len(labels) + 2 * m + i]))
        y = np.concatenate([p[0] for p in parts])
        values = [np.concatenate([p[k] for p in parts]) for k in (1, 2)]
        names = [f"{k}_{j}" for k, width in KINDS.items() for j in range(width)]
        tables = {
            "active": numeric_table(values[0], names),
            "passive": numeric_table(values[1], [f"tag_{j}" for j in range(TAGS)]),
        }
        split = np.repeat(["train", "test"], [len(p[0]) for p in parts])
        return Source(
            "nuswide", tables, "active", y, tuple(self.concepts), split=split,
            digest=hash_parts(tables, y),
        )  # fmt: skip

    def _side(
        self, labels: Sequence[Path], images: Sequence[Path], tags: Path
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """Class (n,), image features (n, 634) and tags (n, 1000) of one official side."""
        marks = np.concatenate([_numbers(f, 1) for f in labels], axis=1)
        keep = np.flatnonzero(marks.sum(1) == 1)
        if self.rows:
            keep = keep[: self.rows]
        if not len(keep):
            where = labels[0].parent
            raise data_error(where, "the concepts", "leave rows with exactly one", "none")
        read = [
            _numbers(f, width, keep, len(marks))
            for f, width in zip([*images, tags], [*KINDS.values(), TAGS], strict=True)
        ]
        y = marks[keep].argmax(1).astype(np.int64)
        return y, np.concatenate(read[:-1], axis=1), read[-1]


def _numbers(
    path: Path, width: int, keep: NDArray[np.int64] | None = None, lines: int | None = None
) -> NDArray[np.float64]:
    """Rows (n, width) of a file of numbers between blanks or tabs; only `keep` of its `lines`."""
    parts, start = [], 0
    try:
        with pd.read_csv(path, sep=r"\s+", header=None, dtype=float, chunksize=CHUNK) as chunks:
            for chunk in chunks:
                block = chunk.to_numpy()
                if block.shape[1] != width or np.isnan(block).any():
                    raise ValueError(f"up to {block.shape[1]}")
                end = start + len(block)
                wanted = slice(None) if keep is None else (
                    keep[(keep >= start) & (keep < end)] - start
                )  # fmt: skip
                parts.append(block[wanted])
                start = end
    except (ValueError, pd.errors.ParserError) as error:
        rule = f"hold {width} numbers in each line"
        raise DataError.must(path, rule, first_line(error)) from None
    if lines is not None and start != lines:
        raise DataError.must(path, f"have {lines} lines, one an image", start)
    return np.concatenate(parts)
