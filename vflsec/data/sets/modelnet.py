"""ModelNet as multi-view images: rendered objects, of which every party sees another side.

The loader reads the user's folder of rendered views; nothing is fetched. In it each class has a
folder with ``train`` and ``test``, in which the views of object 12 of class ``chair`` are files
whose names begin with ``chair_0012`` and end with the number of the view, as published in several
renderings: ``chair_0012_060_000_001.png`` (angle, turn, view), ``chair_0012_001.png``,
``chair_0012.obj.shaded_v001.png``. Party k of K holds the k-th run of neighbouring views; with 12
views 30 degrees apart and four parties that is three views each. An object gives as many rows as a
party has views of it: in training, each party's views in an order drawn once for all seeds; in
test, in order. All rows of an object stay on one side. The first party has the labels.

What a sound audit finds: with 200 labels and ten classes the paper has 0.61 accuracy for split
training, 0.71 for FedHSSL with 40 % aligned, and hardly a leak by pre-training (0.44 against 0.43).

Source: Z. Wu et al., "3D ShapeNets", CVPR 2015, https://modelnet.cs.princeton.edu; views after
H. Su, S. Maji, E. Kalogerakis, E. Learned-Miller, "Multi-view convolutional neural networks for 3D
shape recognition", ICCV 2015; parties after He, Kang et al., arXiv:2208.08934 (2022), and its code,
which says ten classes with 24,630 training and 6,204 test rows; where these come from is not known.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import numpy as np

from vflsec.core import check
from vflsec.core.rng import numpy_generator
from vflsec.data.names import party_names
from vflsec.data.sets._images import (
    files_in,
    folders_in,
    make_natural_key,
    party_of,
    read_pictures,
    stamp_files,
)
from vflsec.data.sets._parts import DataSet
from vflsec.data.sets._published import find_files, refuse_folder
from vflsec.data.source import PartyData, Source
from vflsec.errors import data_error, format_list
from vflsec.plugins import registry

SITE = "https://modelnet.cs.princeton.edu, as rendered views"
SIDES = ("train", "test")


@registry.dataset
@dataclass(frozen=True)
class ModelNet(DataSet):
    """The user's images; the seed is not used.

    Args:
        folder: where the classes' folders lie; a relative path starts from the scenario's folder.
        parties: among which the views are dealt out.
        views: of each object; an object with fewer is left out, further ones are not read.
        classes: the first so many folders by name; 0 takes all.
        side: pixels of a side, to which images are shrunk.
        objects: draw so many objects of each class and side, the same for every seed; 0 takes all.
    """

    folder: str
    parties: Annotated[int, check.at_least(2)] = 4
    views: int = 12
    classes: check.Whole = 10
    side: Annotated[int, check.at_least(8)] = 32
    objects: check.Whole = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check.integer("modelnet.views", self.views, low=self.parties)
        if self.classes == 1:
            raise check.fail("modelnet.classes", "0 (all) or at least 2", 1)
        if self.views % self.parties:
            raise check.fail("modelnet.views", f"a multiple of {self.parties} parties", self.views)

    def load(self, seed: int) -> Source:
        """The views as a Source with the published split.

        Raises:
            DataError: folders are missing, or no object of a class has enough views.
        """
        find_files("modelnet", self.folder, (), SITE)
        root = Path(self.folder)
        names = [p.name for p in folders_in(root) if all((p / s).is_dir() for s in SIDES)]
        if len(names) < max(2, self.classes):
            least, got = max(2, self.classes), format_list(names) if names else "none"
            rule = f"hold train and test of {least} classes"
            raise refuse_folder("modelnet", self.folder, rule, got, SITE)
        chosen = tuple(names[: self.classes] if self.classes else names)
        everything = [f for c in chosen for s in SIDES for f in files_in(root / c / s)]
        return _source(self, chosen, stamp_files(everything))


@lru_cache(maxsize=1)
def _source(made: ModelNet, names: tuple[str, ...], state: tuple[int, int, int]) -> Source:
    """The same object for every seed, so that its images are in memory once."""
    each = made.views // made.parties
    rng = numpy_generator(0, "views", "modelnet")
    files: list[list[Path]] = [[] for _ in range(made.parties)]
    y, sides, objects = [], [], 0
    whose: list[int] = []
    for label, name in enumerate(names):
        for side in SIDES:
            for views in _objects(made, name, side):
                runs = [views[k * each : (k + 1) * each] for k in range(made.parties)]
                orders = [rng.permutation(each) if side == "train" else np.arange(each)
                          for _ in runs]  # fmt: skip
                for i in range(each):
                    for k, run in enumerate(runs):
                        files[k].append(run[orders[k][i]])
                y += [label] * each
                sides += [side] * each
                whose += [objects] * each
                objects += 1
    parties = party_names(made.parties)
    content = hashlib.sha256(repr((made.parties, made.views, made.side, names)).encode())
    tables: dict[str, PartyData] = {}
    for party, own in zip(parties, files, strict=True):
        images = read_pictures(own, made.side)
        content.update(images.data)
        tables[party] = party_of(images)
    return Source(
        name="modelnet", parties=tables, active="active", y=np.asarray(y, dtype=np.int64),
        class_names=names, split=np.asarray(sides), digest=content.hexdigest(),
        group=np.asarray(whose, dtype=np.int64),
    )  # fmt: skip


def _objects(made: ModelNet, name: str, side: str) -> list[list[Path]]:
    """The views of each object of a class, in order; those with too few are left out."""
    folder = Path(made.folder) / name / side
    found: dict[str, list[Path]] = {}
    for path in files_in(folder):
        match = re.match(rf"{re.escape(name)}_(\d+)(?=\D)", path.name)
        if match:
            found.setdefault(match[1], []).append(path)
    whole = [found[k][: made.views] for k in sorted(found, key=make_natural_key)
             if len(found[k]) >= made.views]  # fmt: skip
    wanted = max(made.objects, 1)
    if len(whole) < wanted:
        rule = f"hold {made.views} views of {wanted} objects, {name}_NUMBER...VIEW.png"
        got = f"{len(whole)} of {len(found)} objects"
        raise data_error(folder, "folder", rule, got, "Lower `views` or `objects`.")
    if not made.objects:
        return whole
    rng = numpy_generator(0, "objects", "modelnet", name, side)
    return [whole[i] for i in np.sort(rng.choice(len(whole), made.objects, replace=False))]
