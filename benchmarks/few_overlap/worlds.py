"""The data of the page: tables cut down to two parties, and digits in halves."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd

from vflsec.core.task import Task
from vflsec.data.load import load_source
from vflsec.data.prepare import make_task
from vflsec.data.source import Source
from vflsec.plugins import registry

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "evidence"
FOUND = [ROOT.parent / "shared" / "data", ROOT.parent.parent / "shared" / "data"]
DATA = Path(os.environ.get("VFLSEC_TEST_DATA") or next((f for f in FOUND if f.is_dir()), FOUND[0]))


@dataclass(frozen=True)
class Table:
    """A real table with two parties.

    Attributes:
        name, split: of the table, and how its columns go to two parties.
        words: what the parties hold.
        rows: of the table, drawn once for all seeds.
        most: categorical columns with more values than this are left out.
    """

    name: str
    split: str
    words: str
    rows: int = 6000
    most: int = 500

    def load(self) -> Source:
        """The table with two parties, cut down."""
        folder = DATA / self.name
        meta = json.loads((folder / "meta.json").read_text())
        frame = pd.read_csv(folder / f"{self.name}.csv.gz").sample(self.rows, random_state=0)
        wide = {c for c in meta["categorical"] if frame[c].nunique() > self.most}
        parts = meta["splits"][self.split]
        columns = {
            party: [c for c in parts[key] if c not in wide]
            for party, key in (("active", "label_party"), ("passive", "passive"))
        }
        kept = [c for own in columns.values() for c in own]
        short = BUILD / f"{self.name}_few.csv"
        short.parent.mkdir(parents=True, exist_ok=True)
        frame[[*kept, meta["label"]]].to_csv(short, index=False)
        section = {
            "file": str(short), "label": meta["label"], "active": "active", "columns": columns,
            "categorical": [c for c in meta["categorical"] if c in kept], "name": self.name,
        }  # fmt: skip
        return load_source(section, 0, ROOT)

    def tasks(self, aligned: int, seeds: Sequence[int]) -> dict[int, Task]:
        """`aligned` labelled aligned rows, and no more validation rows than those."""
        source, share = self.load(), min(0.15, aligned / self.rows)
        return {
            s: make_task(source, s, aligned=aligned, validation=share, test=0.25, scale="rank")
            for s in seeds
        }


@dataclass(frozen=True)
class Digits:
    """The digits of scikit-learn in halves, as a table of pixels or as images."""

    as_images: bool
    words: str

    @property
    def name(self) -> str:
        return f"digits as {'images' if self.as_images else 'a table'}"

    def tasks(self, aligned: int, seeds: Sequence[int]) -> dict[int, Task]:
        """`aligned` labelled aligned rows."""
        source = registry.datasets.create("digits", {"as_images": self.as_images}).load(0)
        return {s: make_task(source, s, aligned=aligned, validation=0.1) for s in seeds}


@dataclass(frozen=True)
class World:
    """A data set with a number of aligned rows.

    Attributes:
        data: where the rows come from.
        aligned: how many rows are known to match.
        metric: of the main task and of label attacks.
    """

    data: Table | Digits
    aligned: int
    metric: str = "auc"

    @property
    def key(self) -> str:
        return f"{self.data.name}, {self.aligned}"


@cache
def tasks_of(world: World, seeds: range) -> dict[int, Task]:
    """The task of each seed."""
    return world.data.tasks(world.aligned, seeds)


CREDIT = Table(
    "credit_default", "fate",
    "the active party holds bills and payments, the passive one limit, person and repayment "
    "history",
)  # fmt: skip
CRITEO = Table(
    "criteo_dac_10k", "categorical_vs_numeric",
    "the active party holds the categorical columns, the passive one the counts",
)  # fmt: skip
AVAZU = Table(
    "avazu_10k", "device_ad_vs_publisher",
    "the active party holds device and advertisement, the passive one the publisher",
)  # fmt: skip
PIXELS = Digits(False, "each party holds half of every digit, as 32 columns")
IMAGES = Digits(True, "each party holds half of every digit, as an image of 8 x 4 pixels")
