"""Criteo display advertising: the user's copy of the challenge's training file, 45,840,617 rows.

The loader reads ``train.txt`` (or ``train.txt.gz``) in `folder` and draws `rows` of its rows;
nothing is fetched. The file has no header; its columns are the label, 13 counts I1 to I13 and 26
hashed categories C1 to C26, between tabs; an empty field is missing. The active party holds the
labels and the counts, the passive party the categories. Rarer categories than the 10,000 most
frequent ones of a column are one category.

What a sound audit finds: about 25 % positives. On the first 10,000 rows pooled logistic regression
reaches an AUC of 0.73, the counts alone 0.69, the categories alone 0.70.

Source: Criteo AI Lab, "Display advertising challenge", Kaggle (2014),
https://www.kaggle.com/c/criteo-display-ad-challenge, for research under its terms; split into
counts and categories.
"""

from __future__ import annotations

from dataclasses import dataclass

from vflsec.core import check
from vflsec.data.sets._parts import DataSet
from vflsec.data.sets._published import draw_source
from vflsec.data.source import Source
from vflsec.plugins import registry

COUNTS = tuple(f"I{i}" for i in range(1, 14))
CATEGORIES = tuple(f"C{i}" for i in range(1, 27))


@registry.dataset
@dataclass(frozen=True)
class Criteo(DataSet):
    """Rows drawn from the user's file, the same for every seed.

    Args:
        folder: where ``train.txt`` or ``train.txt.gz`` lies; a relative path starts from the
            scenario's folder.
        rows: how many to draw; 0 takes all, which needs memory for all of them.
    """

    folder: str
    rows: check.Whole = 100_000

    def load(self, seed: int) -> Source:
        """The drawn rows as a Source.

        Raises:
            DataError: the file is missing, has fewer rows, or has other columns.
        """
        site = "https://www.kaggle.com/c/criteo-display-ad-challenge (or Criteo AI Lab)"
        columns = {"active": ((), COUNTS), "passive": (CATEGORIES, ())}
        header = ("label", *COUNTS, *CATEGORIES)
        files = ("train.txt", "train.txt.gz")
        return draw_source(
            "criteo", self.folder, files, site, self.rows, "label", columns, header
        )  # fmt: skip
