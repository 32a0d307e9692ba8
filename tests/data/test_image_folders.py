"""The loaders of ModelNet's views and of breast patches, on small folders as published."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from user_tables import load_set as load
from user_tables import refused

from vflsec.data.prepare import make_task
from vflsec.data.sets import _images
from vflsec.data.source import Source
from vflsec.data.table_warnings import list_warnings
from vflsec.errors import ConfigError, DataError

CLASSES = ("airplane", "night_stand", "xbox")
STYLES: dict[str, Callable[[str, int, int], str]] = {
    "angles": lambda c, o, v: f"{c}_{o:04d}_060_{30 * (v - 1):03d}_{v:03d}.png",
    "plain": lambda c, o, v: f"{c}_{o:09d}_{v}.png",
    "shaded": lambda c, o, v: f"{c}_{o:04d}.obj.shaded_v{v:03d}.png",
}


def draw(path: Path, colour: tuple[int, int, int], size: int = 16, kind: str = "PNG") -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    Image.new("RGB", (size, size), colour).save(path, kind)


def modelnet(folder: Path, style: str = "angles", views: int = 4, objects: int = 6) -> Path:
    """Every image has the colour (class, object, view) in tens."""
    for c, name in enumerate(CLASSES):
        for side in ("train", "test"):
            for o in range(1, objects + 1):
                for v in range(1, views + 1):
                    colour = (10 * c, 10 * o + 100 * (side == "test"), 10 * v)
                    draw(folder / name / side / STYLES[style](name, o, v), colour)
            (folder / name / side / "readme.txt").write_text("no image")
    (folder / ".cache").mkdir()
    return folder


def colours(source: Source, party: str) -> np.ndarray:
    return (source.parties[party].values[:, :, 0, 0] * 255).round().astype(int)


@pytest.mark.parametrize("style", list(STYLES))
def test_neighbouring_views_go_to_one_party(tmp_path: Path, style: str) -> None:
    source = load("modelnet", modelnet(tmp_path, style), parties=2, views=4, classes=3, side=8)
    a, b = colours(source, "active"), colours(source, "passive")
    assert source.parties["passive"].values.shape == (72, 3, 8, 8)
    assert (a[:, 0] == 10 * source.y).all()
    assert (a[:, :2] == b[:, :2]).all()  # one object a row
    assert set(a[:, 2]) == {10, 20}
    assert set(b[:, 2]) == {30, 40}
    assert source.split is not None
    test = source.split == "test"
    assert test.sum() == 36
    assert ((a[:, 1] > 100) == test).all()
    assert (a[test, 2] == np.tile([10, 20], 18)).all()  # in order
    assert len({tuple(r) for r in np.c_[a, b[:, 2:]]}) == 72
    assert (np.c_[a, b][~test, 2] != np.tile([10, 20], 18)).any()  # and drawn in training
    assert source.group is not None
    assert len(np.unique(source.group)) == 36
    assert all(len({tuple(x) for x in a[source.group == g, :2]}) == 1 for g in range(36))
    task = make_task(source, 0, validation=0.55)
    groups = {k: set(source.group[task.sets[k].numpy()]) for k in ("labelled", "validation")}
    assert not groups["labelled"] & groups["validation"]
    assert source.class_names == CLASSES


def test_fewer_classes_and_drawn_objects(tmp_path: Path) -> None:
    modelnet(tmp_path, views=5)
    source = load("modelnet", tmp_path, parties=4, views=4, classes=2, side=8, objects=3)
    assert source.class_names == ("airplane", "night_stand")
    assert len(source.y) == 2 * 2 * 3
    assert list(source.parties) == ["active", "passive1", "passive2", "passive3"]
    assert source is load("modelnet", tmp_path, parties=4, views=4, classes=2, side=8, objects=3)
    views = np.stack([colours(source, p)[:, 2] for p in source.parties], axis=1)
    assert (views == [10, 20, 30, 40]).all()
    assert source.digest != load("modelnet", tmp_path, views=4, classes=3, side=8).digest


def bhi(folder: Path, patients: int = 8) -> Path:
    """Seven patches of each label a patient; colour (patient, 200 for carcinoma, number)."""
    for p in range(patients):
        for label in (0, 1):
            for k in range(7):
                name = f"{8800 + p}_idx5_x{1001 + 50 * k}_y901_class{label}.png"
                draw(folder / str(8800 + p) / str(label) / name, (20 * p, 200 * label, 10 * k))
    return folder


@pytest.mark.parametrize("inner", ["", "IDC_regular_ps50_idx5"])
def test_a_row_is_two_patches_of_one_patient_and_label(tmp_path: Path, inner: str) -> None:
    bhi(tmp_path / inner)
    source = load("bhi", tmp_path, side=16)
    a, b = colours(source, "active"), colours(source, "passive")
    assert len(source.y) == 8 * 2 * 3  # the seventh is left out
    assert (a[:, 1] == 200 * source.y).all()
    assert (a[:, :2] == b[:, :2]).all()
    assert (b[:, 2] - a[:, 2] == 10).all()
    assert source.group is not None
    assert (source.group == a[:, 0] // 20).all()
    task = make_task(source, 1, test=0.25, validation=0.2)
    kept = {k: set(source.group[task.sets[k].numpy()]) for k in ("labelled", "validation", "test")}
    assert not kept["test"] & (kept["labelled"] | kept["validation"])
    assert "both patches of a row have one label" in list_warnings(source)[0]
    some = load("bhi", tmp_path, side=16, rows=20)
    assert len(some.y) == 20
    assert len(some.parties["active"].values) == 20


FIRST = "xbox/train/xbox_0001_060_000_001.png"

# what makes the folder, what the loader is told, and its error
UNFIT: dict[str, tuple[Callable[[Path], Any], dict[str, Any], str]] = {
    "broken": (
        lambda f: (modelnet(f) / FIRST).write_bytes(b"\x89PNG\r\n\x1a\nno"), {"views": 4},
        "xbox_0001_060_000_001.png must be a whole PNG or JPEG file",
    ),
    "huge": (
        lambda f: Image.new("L", (5000, 5000)).save(modelnet(f) / FIRST, "PNG"), {"views": 4},
        "at most 16,777,216, got 5000 x 5000",
    ),
    "few views": (
        modelnet, {"views": 12},
        "airplane/train: folder must hold 12 views of 1 objects, "
        "airplane_NUMBER...VIEW.png, got 0 of 6 objects. Lower `views`",
    ),
    "few classes": (
        modelnet, {"classes": 10},
        "must hold train and test of 10 classes, got 'airplane', 'night_stand', 'xbox'",
    ),
    "empty": (
        lambda f: None, {"classes": 10}, "must hold train and test of 10 classes, got none",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNFIT)
def test_folders_that_do_not_fit_are_named(name: str, tmp_path: Path) -> None:
    make, params, text = UNFIT[name]
    make(tmp_path)
    with refused(DataError, text):
        load("modelnet", tmp_path, **{"side": 8, "classes": 3, **params})


def test_large_files_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bhi(tmp_path)
    monkeypatch.setattr(_images, "MOST_BYTES", 50)
    with pytest.raises(DataError, match="at most 50, got 73"):
        load("bhi", tmp_path, side=8)


def test_patches_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"bhi: folder .* must exist"):
        load("bhi", tmp_path / "none")
    with pytest.raises(DataError, match=r"got 0 with 0 pairs\."):
        load("bhi", tmp_path)
    bhi(tmp_path, 2)
    with pytest.raises(DataError, match=r"rows = 99 pairs, got 12\."):
        load("bhi", tmp_path, rows=99)


@pytest.mark.parametrize(
    ("params", "text"),
    [({"views": 10}, "modelnet.views must be a multiple of 4 parties, got 10"),
     ({"classes": 1}, "modelnet.classes must be 0"),
     ({"side": 4}, "modelnet.side must be an integer >= 8, got 4"),
     ({"parties": 1}, "modelnet.parties must be an integer >= 2, got 1")],
)  # fmt: skip
def test_options_out_of_range(params: dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=text.replace("(", r"\(")):
        load("modelnet", tmp_path, **params)
