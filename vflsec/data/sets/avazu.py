"""Avazu click-through log: the user's copy of the competition's training file, 40,428,967 rows.

The loader reads ``train.csv`` (or ``train.csv.gz``, or ``train.gz`` as downloaded) in `folder` and
draws `rows` of its rows; nothing is fetched. The party split is that of FedHSSL's public code: the
active party holds the labels (``click``), device_ip, device_model, C14, C17, C19, C20, C21 and the
numbers C15, C16, C18; the passive party site, app and device ids, domains and categories, and the
numbers C1, banner_pos, device_type, device_conn_type. ``hour`` and ``id`` are not used. Rarer
categories than the 10,000 most frequent ones of a column are one category. With ``test = 0.1667``
in [data] the 120,000 rows split into 100,000 and 20,000, as in the papers.

What a sound audit finds: about 17 % clicks, so 0.83 accuracy for who always says no: compare by
AUC. On the first 10,000 rows pooled logistic regression reaches an AUC of 0.71, and each party's
columns alone 0.69 to 0.70, so an attack's 0.69 after plenty of labels is no leak.

Source: S. Wang, W. Cukierski, "Click-through rate prediction", Kaggle (2014),
https://www.kaggle.com/c/avazu-ctr-prediction, under its competition rules. Split after the code of
He, Kang et al., "A hybrid self-supervised learning framework for vertical federated learning",
arXiv:2208.08934 (2022).
"""

from __future__ import annotations

from dataclasses import dataclass

from vflsec.core import check
from vflsec.data.sets._parts import DataSet
from vflsec.data.sets._published import draw_source
from vflsec.data.source import Source
from vflsec.plugins import registry

FILES = ("train.csv", "train.csv.gz", "train.gz")
SITE = "https://www.kaggle.com/c/avazu-ctr-prediction"
COLUMNS = {
    "active": (
        ("device_ip", "device_model", "C14", "C17", "C19", "C20", "C21"), ("C15", "C16", "C18"),
    ),
    "passive": (
        ("site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category",
         "device_id"),
        ("C1", "banner_pos", "device_type", "device_conn_type"),
    ),
}  # fmt: skip
"""Categorical and numeric ones by party."""


@registry.dataset
@dataclass(frozen=True)
class Avazu(DataSet):
    """Rows drawn from the user's file, the same for every seed.

    Args:
        folder: where ``train.csv``, ``train.csv.gz`` or ``train.gz`` lies; a relative path starts
            from the scenario's folder.
        rows: how many to draw; 0 takes all, which needs memory for all of them.
    """

    folder: str
    rows: check.Whole = 120_000

    def load(self, seed: int) -> Source:
        """The drawn rows as a Source.

        Raises:
            DataError: the file is missing, has fewer rows, or lacks a column.
        """
        return draw_source("avazu", self.folder, FILES, SITE, self.rows, "click", COLUMNS)
