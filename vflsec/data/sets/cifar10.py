"""CIFAR-10, 60,000 colour images of 32 x 32 pixels in ten classes, cut into left and right halves.

The loader reads the user's copy; nothing is fetched. In `folder`, or in ``cifar-10-batches-bin``
within it, lie the files of the binary version, ``data_batch_1.bin`` to ``data_batch_5.bin`` and
``test_batch.bin``: 10,000 rows each, a byte of label and 3,072 of pixels, red, green, blue. (The
Python version is pickled, and pickles are not loaded.) Or `file` names one NumPy archive with
``label`` (n,), ``is_test`` (n,) and the images, as ``image`` (n, 32, 32, 3) bytes or as JPEG files,
``jpeg`` of all their bytes on end and ``offset`` (n + 1,) where each begins. The official test
images are the fixed test side. The active party holds the labels and the left halves, the passive
party the right ones, each (3, 32, 16) with values in [0, 1].

What a sound audit finds: on 12,000 of the images, as JPEG, a small convolutional network reaches
0.65 accuracy on whole images, 0.58 on either half.

Source: A. Krizhevsky, "Learning multiple layers of features from tiny images", University of
Toronto (2009), https://www.cs.toronto.edu/~kriz/cifar.html; halves after Sun et al.,
"Communication-efficient vertical federated learning with limited overlapping samples", ICCV 2023.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vflsec.core import check
from vflsec.core.rng import numpy_generator
from vflsec.data.names import party_names
from vflsec.data.sets._parts import DataSet, no_columns, split_blocks
from vflsec.data.sets._published import find_files, refuse_count
from vflsec.data.source import PartyData, Source
from vflsec.errors import DataError, data_error
from vflsec.plugins import registry

SITE = "https://www.cs.toronto.edu/~kriz/cifar.html (binary version)"
TRAIN = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
TEST = "test_batch.bin"
CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
SIDE = 32
PIXELS = 3 * SIDE * SIDE

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


@registry.dataset
@dataclass(frozen=True)
class Cifar10(DataSet):
    """The user's images; the seed is not used.

    Args:
        folder: where the files lie; a relative path starts from the scenario's folder.
        file: name of a NumPy archive in it; "" reads the binary version.
        server: put the labels at an active party without columns, beside two passive ones with a
            half each: the parties of the source.
        rows, test_rows: draw so many training and test images, the same for every seed; 0 takes
            all of them.
    """

    folder: str
    file: str = ""
    rows: check.Whole = 0
    test_rows: check.Whole = 0
    server: bool = False

    def load(self, seed: int) -> Source:
        """The images as a Source with the official split.

        Raises:
            DataError: files are missing or not of the published shape, or have fewer rows.
        """
        if self.file:
            paths = find_files("cifar10", self.folder, (self.file,), SITE)
        else:
            inner = Path(self.folder) / "cifar-10-batches-bin"
            folder = str(inner) if inner.is_dir() else self.folder
            paths = find_files("cifar10", folder, (*TRAIN, TEST), SITE)
        state = tuple((p, p.stat().st_mtime_ns, p.stat().st_size) for p in paths)
        return _source(state, bool(self.file), self.rows, self.test_rows, self.server)


@lru_cache(maxsize=1)
def _source(
    state: tuple[tuple[Path, int, int], ...], archive: bool, rows: int, test_rows: int, server: bool
) -> Source:
    """The same object for every seed, so that its images are in memory once."""
    paths = [path for path, _, _ in state]
    read = _archive if archive else _binary
    images, y, test = read(paths, (rows, test_rows))
    x = np.ascontiguousarray(images.transpose(0, 3, 1, 2), dtype=np.float32) / np.float32(255)
    own = np.arange(len(y), dtype=np.int64)
    cuts = dict(zip(party_names(2 + server)[server:], split_blocks(SIDE, 2), strict=True))
    tables = {"active": no_columns(len(y))} if server else {}
    tables |= {p: PartyData(np.ascontiguousarray(x[..., cut]), own) for p, cut in cuts.items()}
    content = hashlib.sha256(y.tobytes() + test.tobytes())
    content.update(np.ascontiguousarray(images).data)
    return Source(
        name="cifar10", parties=tables, active="active", y=y, class_names=CLASSES,
        split=np.where(test, "test", "train"), digest=content.hexdigest(),
    )  # fmt: skip


def _chosen(test: NDArray[np.bool_], counts: tuple[int, int], where: Path) -> NDArray[np.int64]:
    """Positions of the drawn training and test images, in file order."""
    parts = []
    for side, count, key in zip((False, True), counts, ("rows", "test_rows"), strict=True):
        there = np.flatnonzero(test == side)
        if count > len(there) or not len(there):
            kind = "test" if side else "training"
            raise refuse_count(where, key, max(count, 1), f"{kind} images", len(there))
        rng = numpy_generator(0, "rows", "cifar10", key)
        parts.append(rng.choice(there, size=count, replace=False) if count else there)
    return np.sort(np.concatenate(parts))


def _binary(paths: list[Path], counts: tuple[int, int]) -> tuple[Images, Labels, NDArray[np.bool_]]:
    """Images (n, 32, 32, 3), classes (n,) and test marks (n,) of the binary version."""
    blocks = []
    for path in paths:
        raw = np.fromfile(path, dtype=np.uint8)
        if not len(raw) or len(raw) % (PIXELS + 1):
            rule, got = f"hold rows of {PIXELS + 1} bytes", f"{len(raw)} bytes"
            raise data_error(path, "the file", rule, got, f"Download it from {SITE}.")
        blocks.append(raw.reshape(-1, PIXELS + 1))
    test = np.repeat([p.name == TEST for p in paths], [len(b) for b in blocks])
    rows = np.concatenate(blocks)
    y = _classes(rows[:, 0], paths[0].parent)
    keep = _chosen(test, counts, paths[0].parent)
    images = rows[keep, 1:].reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
    return images, y[keep], test[keep]


def _archive(
    paths: list[Path], counts: tuple[int, int]
) -> tuple[Images, Labels, NDArray[np.bool_]]:
    """The same from a NumPy archive."""
    (path,) = paths
    try:
        with np.load(path, allow_pickle=False) as opened:
            held = {k: opened[k] for k in opened.files if k != "path"}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise DataError.unreadable(path, error) from None
    need = ("label", "is_test", *(("image",) if "image" in held else ("jpeg", "offset")))
    gone = [k for k in need if k not in held]
    if gone:
        raise data_error(path, "the archive", f"hold {', '.join(need)}", f"no {', '.join(gone)}")
    n = len(held["label"])
    sizes = {"is_test": n, "image": n, "offset": n + 1}
    for key in need:
        if key in sizes and len(held[key]) != sizes[key]:
            rule = f"have {sizes[key]} entries for {n} labels"
            raise data_error(path, key, rule, f"{len(held[key])}")
    test = held["is_test"].astype(bool)
    y = _classes(held["label"], path)
    keep = _chosen(test, counts, path)
    if "image" in held:
        images = held["image"]
        if images.dtype != np.uint8 or images.shape[1:] != (SIDE, SIDE, 3):
            got = f"{images.dtype} {images.shape}"
            raise data_error(path, "image", "be bytes of shape (n, 32, 32, 3)", got)
        return images[keep], y[keep], test[keep]
    data, offset = held["jpeg"].tobytes(), held["offset"]
    made = [_decoded(data[offset[i] : offset[i + 1]], path, int(i)) for i in keep]
    return np.stack(made), y[keep], test[keep]


def _decoded(data: bytes, path: Path, row: int) -> Images:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data), formats=("JPEG",)) as opened:
            if opened.size != (SIDE, SIDE):
                raise data_error(path, f"image {row}", "have 32 x 32 pixels", f"{opened.size}")
            return np.asarray(opened.convert("RGB"), dtype=np.uint8)
    except (UnidentifiedImageError, OSError) as error:
        raise data_error(path, f"image {row}", "be a JPEG file", f"{error}".rstrip(".")) from None


def _classes(found: NDArray[np.integer], where: Path) -> Labels:
    y = found.astype(np.int64)
    if len(y) and (y.min() < 0 or y.max() >= len(CLASSES)):
        raise DataError.between(f"{where}: labels", 0, 9, f"{y.min()} to {y.max()}")
    return y
