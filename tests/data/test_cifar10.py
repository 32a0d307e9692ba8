"""The loader of CIFAR-10, on small files of exactly the published formats."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from user_tables import load_set

from vflsec.data.prepare import make_task
from vflsec.data.sets.cifar10 import CLASSES, TEST, TRAIN
from vflsec.errors import ConfigError, DataError

ROWS = 20
"""Images in each of the six files."""


def pictures() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images (120, 32, 32, 3), classes and test marks, in the order of the files."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (6 * ROWS, 32, 32, 3), dtype=np.uint8)
    y = np.arange(6 * ROWS) % 10
    return images, y, np.arange(6 * ROWS) >= 5 * ROWS


def binary(folder: Path) -> Path:
    images, y, _ = pictures()
    folder.mkdir(exist_ok=True, parents=True)
    for i, name in enumerate((*TRAIN, TEST)):
        here = slice(i * ROWS, (i + 1) * ROWS)
        planes = images[here].transpose(0, 3, 1, 2).reshape(ROWS, -1)
        rows = np.concatenate([y[here, None].astype(np.uint8), planes], axis=1)
        (folder / name).write_bytes(rows.tobytes())
    return folder


def archive(folder: Path, *, jpeg: bool = False, **other: Any) -> Path:
    from PIL import Image

    images, y, test = pictures()
    held: dict[str, Any] = {"label": y.astype(np.uint8), "is_test": test}
    if jpeg:
        files = []
        for image in images // 64 * 64:
            out = io.BytesIO()
            Image.fromarray(image).save(out, "JPEG", quality=100, subsampling=0)
            files.append(out.getvalue())
        held["jpeg"] = np.frombuffer(b"".join(files), dtype=np.uint8)
        held["offset"] = np.cumsum([0, *map(len, files)])
    else:
        held["image"] = images
    np.savez_compressed(folder / "cifar.npz", **{**held, **other})
    return folder


load = partial(load_set, "cifar10")


@pytest.mark.parametrize("inner", ["", "cifar-10-batches-bin"])
def test_the_binary_version_is_cut_into_halves(tmp_path: Path, inner: str) -> None:
    binary(tmp_path / inner)
    source = load(tmp_path)
    images, y, test = pictures()
    whole = images.transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255)
    assert source.active == "active"
    for party, cut in (("active", slice(0, 16)), ("passive", slice(16, 32))):
        np.testing.assert_array_equal(source.parties[party].values, whole[..., cut])
    np.testing.assert_array_equal(source.y, y)
    assert source.split is not None
    np.testing.assert_array_equal(source.split == "test", test)
    assert source.class_names == CLASSES
    task = make_task(source, 0, validation=0.3, aligned=40)
    assert task.schema["passive"].shape == (3, 32, 16)
    assert {k: len(task.sets[k]) for k in ("test", "aligned", "local:passive")} == {
        "test": 20, "aligned": 40, "local:passive": 70,
    }  # fmt: skip
    assert torch.equal(task.x["active"], torch.from_numpy(whole[..., :16]))


def test_archives_say_the_same(tmp_path: Path) -> None:
    source = load(archive(tmp_path), file="cifar.npz")
    assert source.digest == load(binary(tmp_path / "bin")).digest
    images, y, _ = pictures()
    (tmp_path / "jpeg").mkdir()
    packed = load(archive(tmp_path / "jpeg", jpeg=True), file="cifar.npz")
    np.testing.assert_array_equal(packed.y, y)
    found = np.concatenate([packed.parties[p].values for p in ("active", "passive")], axis=3)
    near = (images // 64 * 64).transpose(0, 3, 1, 2) / 255
    assert float(np.abs(found - near).mean()) < 0.02


def test_rows_are_drawn_once_for_all_seeds_from_each_side(tmp_path: Path) -> None:
    binary(tmp_path)
    source = load(tmp_path, rows=30, test_rows=10)
    again = load(tmp_path, rows=30, test_rows=10)
    assert source is again
    assert source.digest != load(tmp_path).digest
    sides, counts = np.unique(source.split, return_counts=True)  # type: ignore[arg-type]
    assert dict(zip(sides.tolist(), counts.tolist(), strict=True)) == {"test": 10, "train": 30}
    images, _, _ = pictures()
    whole = {i.tobytes() for i in images.transpose(0, 3, 1, 2)[..., :16].copy()}
    drawn = (source.parties["active"].values * 255).round().astype(np.uint8)
    assert {i.tobytes() for i in drawn} <= whole


def without_jpegs(folder: Path) -> None:
    archive(folder, jpeg=True)
    with np.load(folder / "cifar.npz") as held:
        kept = dict(held)
    kept["jpeg"] = np.zeros_like(kept["jpeg"])
    np.savez(folder / "cifar.npz", **kept)


IMAGES = pictures()[0]
NPZ = {"file": "cifar.npz"}

# what makes the files, what the loader is told, and its error
BROKEN: dict[str, tuple[Callable[[Path], Any], dict[str, Any], str]] = {
    "cut short": (
        lambda f: (binary(f) / TRAIN[2]).write_bytes(b"\0" * 5000), {},
        r"data_batch_3.bin: the file must hold rows of 3073 bytes.*5000 bytes",
    ),
    "a wrong label": (
        lambda f: (binary(f) / TEST).write_bytes(b"\x0b" + b"\0" * 3072), {},
        "labels must be 0 to 9, got 0 to 11",
    ),
    "pickled": (
        lambda f: archive(f, image=np.array([{"an": "object"}], dtype=object)), NPZ,
        "Object arrays cannot",
    ),
    "no archive": (
        lambda f: (f / "cifar.npz").write_text("no archive"), NPZ, "cannot be read",
    ),
    "no marks": (
        lambda f: np.savez(f / "cifar.npz", label=np.zeros(3), image=IMAGES[:3]), NPZ,
        "the archive must hold label, is_test, image, got no is_test",
    ),
    "grey": (
        lambda f: archive(f, image=IMAGES[..., 0]), NPZ,
        r"image must be bytes of shape \(n, 32, 32, 3\), got uint8 \(120, 32, 32\)",
    ),
    "fewer images": (
        lambda f: archive(f, image=IMAGES[:7]), NPZ,
        "image must have 120 entries for 120 labels, got 7",
    ),
    "no JPEG": (without_jpegs, NPZ, "image 0 must be a JPEG file"),
    "empty": (lambda f: None, {}, r"data_batch_1.bin"),
    "too few": (binary, {"rows": 101}, "at least rows = 101 training images, got 100"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_files_of_another_shape_are_refused(name: str, tmp_path: Path) -> None:
    make, params, text = BROKEN[name]
    make(tmp_path)
    with pytest.raises(DataError, match=text):
        load(tmp_path, **params)


def test_counts_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cifar10\.rows must be an integer >= 0, got -1"):
        load(tmp_path, rows=-1)
