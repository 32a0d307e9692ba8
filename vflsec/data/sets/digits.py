"""Handwritten digits, 1,797 images of 8 x 8 pixels in ten classes, cut into vertical strips.

With two parties the active party holds the left half of each image and the passive party the right
half, as a table of 32 columns or as an image of shape (1, 8, 4).

What a sound audit finds: the federation reaches 0.97 accuracy, the passive half alone 0.87 with all
labels. With one or two known labels a class, logistic regression on the trained passive embedding
beats the same on raw pixels (0.59 against 0.46, and 0.68 against 0.60); with ten a class the two
are equal (0.79). It is the small, fast stand-in for image sets cut in halves.

Source: E. Alpaydin, C. Kaynak (1998), "Optical Recognition of Handwritten Digits", UCI Machine
Learning Repository, CC BY 4.0; test part as bundled with scikit-learn. Cut into halves after C. Fu
et al. (2022), "Label Inference Attacks Against Vertical Federated Learning", USENIX Security.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from vflsec.core import check
from vflsec.data.names import party_names
from vflsec.data.sets._parts import DataSet, hash_parts, no_columns, numeric_table, split_blocks
from vflsec.data.source import PartyData, Source
from vflsec.plugins import registry


@registry.dataset
@dataclass(frozen=True)
class Digits(DataSet):
    """The bundled images; the seed is not used.

    Args:
        parties: number of vertical strips: 2, 4 or 8.
        as_images: give images (1, 8, 8 / parties) with values in [0, 1] instead of table columns.
        server: put the labels at an active party of its own, which has no columns, beside `parties`
            passive ones.
    """

    parties: Annotated[int, check.among(2, 4, 8)] = 2
    as_images: bool = False
    server: bool = False

    def load(self, seed: int) -> Source:
        """The images as a Source."""
        from sklearn.datasets import load_digits

        bunch = load_digits()
        tables: dict[str, PartyData] = {}
        names_of = party_names(self.parties + self.server)
        if self.server:
            tables["active"] = no_columns(len(bunch.target))
        for party, cut in zip(names_of[self.server :], split_blocks(8, self.parties), strict=True):
            strip = bunch.images[:, :, cut]
            if self.as_images:
                values = np.ascontiguousarray(strip[:, None] / 16, dtype=np.float32)
                tables[party] = PartyData(values, np.arange(len(values), dtype=np.int64))
            else:
                names = [f"pixel_{r}_{c}" for r in range(8) for c in range(cut.start, cut.stop)]
                tables[party] = numeric_table(strip.reshape(len(strip), -1), names)
        y = bunch.target.astype(np.int64)
        return Source(
            name="digits", parties=tables, active="active", y=y,
            class_names=tuple(str(c) for c in range(10)), digest=hash_parts(tables, y),
        )  # fmt: skip
