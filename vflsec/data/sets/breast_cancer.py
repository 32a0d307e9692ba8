"""Breast Cancer Wisconsin (diagnostic): 569 rows, columns dealt out to the parties.

With two parties the passive party holds the first 14 columns and the active party the next 14, as
in the label-inference literature; the last two columns are not used. Malignant (37 %) is the
positive class. With K parties each gets 28 // K columns (``split="all"``: 30 // K), the passive
parties first.

What a sound audit finds: no reliable advantage of model completion over logistic regression on the
passive party's own 14 columns with the same 20 known labels (0.91 to 0.92 accuracy; 0.95 to 0.97
with all labels; the federation 0.97). Either half of the columns carries nearly the whole task, so
this is a test of the wiring, not a positive control.

Source: W. N. Street, W. H. Wolberg, O. L. Mangasarian (1993), "Nuclear feature extraction for
breast tumor diagnosis"; UCI Machine Learning Repository, CC BY 4.0; as bundled with scikit-learn.
Party split after C. Fu et al. (2022), "Label Inference Attacks Against Vertical Federated
Learning", USENIX Security.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from vflsec.core import check
from vflsec.data.names import party_names
from vflsec.data.sets._parts import DataSet, hash_parts, numeric_table, split_blocks
from vflsec.data.source import Source
from vflsec.plugins import registry

ALIASES = ("bcw",)
_OF = ("radius", "texture", "perimeter", "area", "smoothness", "compactness", "concavity",
       "concave_points", "symmetry", "fractal_dimension")  # fmt: skip


@registry.dataset
@dataclass(frozen=True)
class BreastCancer(DataSet):
    """The bundled table; the seed is not used.

    Args:
        parties: number of parties, 2 to 14.
        split: ``halves`` uses 28 columns (14 and 14 with two parties), ``all`` uses 30.
    """

    parties: Annotated[int, partial(check.integer, low=2, high=14)] = 2
    split: Literal["halves", "all"] = "halves"

    def load(self, seed: int) -> Source:
        """The table as a Source."""
        x, benign = _bundled()
        names = [n for kind in ("mean_{}", "{}_error", "worst_{}") for n in map(kind.format, _OF)]
        cuts = split_blocks(28 if self.split == "halves" else 30, self.parties)
        tables = {
            party: numeric_table(x[:, cut], names[cut])
            for party, cut in zip(party_names(self.parties), [cuts[-1], *cuts[:-1]])
        }
        y = (1 - benign).astype(np.int64)
        return Source(
            name="breast_cancer", parties=tables, active="active", y=y,
            class_names=("benign", "malignant"), digest=hash_parts(tables, y),
        )  # fmt: skip


def _bundled() -> tuple[np.ndarray, np.ndarray]:
    """Columns (569, 30) and whether each row is benign, as scikit-learn has them.

    From its file, for importing it takes longer than a small audit's plan.
    """
    spec = importlib.util.find_spec("sklearn")
    for folder in spec.submodule_search_locations or () if spec else ():
        file = Path(folder) / "datasets" / "data" / "breast_cancer.csv"
        if file.is_file():
            table = np.loadtxt(file, delimiter=",", skiprows=1)
            return table[:, :-1], table[:, -1].astype(np.int64)
    from sklearn.datasets import load_breast_cancer

    x, benign = load_breast_cancer(return_X_y=True)
    return x, benign
