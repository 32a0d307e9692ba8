"""Breast histopathology images: 277,524 patches of 162 slides, with or without invasive carcinoma.

The loader reads the user's copy; nothing is fetched. In `folder`, or in ``IDC_regular_ps50_idx5``
within it, each patient has a folder with ``0`` and ``1``, which hold the patches (50 x 50 pixels,
``8863_idx5_x1001_y1301_class0.png``) without and with carcinoma. A row is two patches of one
patient *with one label*, in the order of the files, the first at the active party; an odd one is
left out. The rows of a patient stay on one side of a split.

What a sound audit finds: the pairing itself uses the label, so matching rows already tells a party
that its patch and the other one agree; and patches of a patient are alike. The paper (F1) has 0.73
for split training with 200 labels and 0.81 for FedHSSL, and an attacker 0.73 against 0.72 alone.
1 patch in 3.5 has carcinoma.

Source: A. Cruz-Roa et al., "Automatic detection of invasive ductal carcinoma in whole slide images
with convolutional neural networks", SPIE Medical Imaging 2014; A. Janowczyk, A. Madabhushi (2016),
https://www.kaggle.com/datasets/paultimothymooney/breast-histopathology-images; parties after He,
Kang et al., arXiv:2208.08934 (2022), and its code.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import numpy as np

from vflsec.core import check
from vflsec.core.rng import numpy_generator
from vflsec.data.sets._images import files_in, folders_in, party_of, read_pictures, stamp_files
from vflsec.data.sets._parts import DataSet
from vflsec.data.sets._published import find_files, refuse_count, refuse_folder
from vflsec.data.source import Source
from vflsec.data.table_facts import Noticed
from vflsec.plugins import registry

SITE = "https://www.kaggle.com/datasets/paultimothymooney/breast-histopathology-images"
INNER = "IDC_regular_ps50_idx5"


@registry.dataset
@dataclass(frozen=True)
class Bhi(DataSet):
    """The user's images; the seed is not used.

    Args:
        folder: where the patients' folders lie; a relative path starts from the scenario's folder.
        side: pixels of a side, to which patches are shrunk; the paper has 32.
        rows: draw so many pairs, the same for every seed; 0 takes all of them.
    """

    folder: str
    side: Annotated[int, check.at_least(8)] = 32
    rows: check.Whole = 0

    def load(self, seed: int) -> Source:
        """The pairs as a Source, grouped by patient.

        Raises:
            DataError: folders are missing, or there are too few pairs.
        """
        find_files("bhi", self.folder, (), SITE)
        root = Path(self.folder)
        root = root / INNER if (root / INNER).is_dir() else root
        patients = [p for p in folders_in(root) if (p / "0").is_dir() or (p / "1").is_dir()]
        found: list[tuple[int, int, Path, Path]] = []
        for number, patient in enumerate(patients):
            for label in (0, 1):
                place = patient / str(label)
                files = files_in(place) if place.is_dir() else []
                found += [(number, label, *pair) for pair in zip(files[::2], files[1::2])]
        if len({label for _, label, *_ in found}) < 2:
            rule = "hold patients' folders with two patches or more in 0 and in 1"
            got = f"{len(patients)} with {len(found)} pairs"
            raise refuse_folder("bhi", self.folder, rule, got, SITE)
        if self.rows > len(found):
            raise refuse_count(self.folder, "rows", self.rows, "pairs", len(found))
        if self.rows:
            rng = numpy_generator(0, "rows", "bhi")
            found = [found[i] for i in np.sort(rng.choice(len(found), self.rows, replace=False))]
        files = [f for *_, first, second in found for f in (first, second)]
        return _source(tuple(found), self.side, stamp_files(files))


@lru_cache(maxsize=1)
def _source(
    found: tuple[tuple[int, int, Path, Path], ...], side: int, state: tuple[int, int, int]
) -> Source:
    """The same object for every seed, so that its images are in memory once."""
    y = np.asarray([label for _, label, *_ in found], dtype=np.int64)
    patients = np.asarray([number for number, *_ in found], dtype=np.int64)
    content = hashlib.sha256(y.tobytes() + patients.tobytes())
    tables = {}
    for party, k in (("active", 2), ("passive", 3)):
        images = read_pictures([row[k] for row in found], side)  # type: ignore[misc]
        content.update(images.data)
        tables[party] = party_of(images)
    return Source(
        name="bhi",
        parties=tables,
        active="active",
        y=y,
        class_names=("no carcinoma", "carcinoma"),
        digest=content.hexdigest(),
        group=patients,
        facts=Noticed(
            notes=("both patches of a row have one label, so matching reveals that they agree.",)
        ),
    )
