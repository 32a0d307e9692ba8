"""Folders of images that the user downloaded: what lies in them, and one image of bounded size."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vflsec.data.source import PartyData
from vflsec.errors import DataError, first_line

ENDINGS = (".png", ".jpg", ".jpeg")
MOST_BYTES, MOST_PIXELS = 8 << 20, 1 << 24
"""The largest file that is opened, and the most pixels of an image that is decoded."""

MOST_FILES = 2_000_000


def folders_in(folder: Path) -> list[Path]:
    """Folders within `folder`, by name; hidden ones are left out."""
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def files_in(folder: Path) -> list[Path]:
    """Image files within `folder`, by name with numbers in order.

    Raises:
        DataError: there are more than two million.
    """
    found = [p for p in folder.iterdir() if p.suffix.lower() in ENDINGS and p.is_file()]
    if len(found) > MOST_FILES:
        raise DataError.at_most(f"{folder}: images", f"{MOST_FILES:,}", f"{len(found):,}")
    return sorted(found, key=lambda p: make_natural_key(p.name))


def make_natural_key(name: str) -> list[tuple[int, str]]:
    """A name as a key under which ``v2`` stands before ``v10``."""
    parts = re.split(r"(\d+)", name)
    return [(int(t), "") if t.isdigit() else (-1, t) for t in parts]


def stamp_files(files: Sequence[Path]) -> tuple[int, int, int]:
    """Number, size and latest change of files, by which they are known to be the same."""
    stats = [f.stat() for f in files]
    return len(stats), sum(s.st_size for s in stats), max((s.st_mtime_ns for s in stats), default=0)


def read_pictures(files: Sequence[Path], side: int) -> NDArray[np.uint8]:
    """Images as (n, 3, side, side), shrunk or stretched to a square.

    Raises:
        DataError: one is no PNG or JPEG file, or too large.
    """
    out = np.empty((len(files), 3, side, side), dtype=np.uint8)
    for i, path in enumerate(files):
        out[i] = _picture(path, side)
    return out


def _picture(path: Path, side: int) -> NDArray[np.uint8]:
    from PIL import Image, UnidentifiedImageError

    if path.stat().st_size > MOST_BYTES:
        raise DataError.at_most(f"{path}: bytes", f"{MOST_BYTES:,}", f"{path.stat().st_size:,}")
    try:
        with Image.open(path, formats=("PNG", "JPEG")) as opened:
            if opened.width * opened.height > MOST_PIXELS:
                got = f"{opened.width} x {opened.height}"
                raise DataError.at_most(f"{path}: pixels", f"{MOST_PIXELS:,}", got)
            plain = opened.convert("RGB")
            if plain.size != (side, side):
                plain = plain.resize((side, side), Image.Resampling.BILINEAR)
            return np.asarray(plain, dtype=np.uint8).transpose(2, 0, 1)
    except DataError:
        raise
    except (
        UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError
    ) as error:  # fmt: skip
        raise DataError.must(path, "be a whole PNG or JPEG file", first_line(error)) from None


def party_of(images: NDArray[np.uint8]) -> PartyData:
    """A party's images (n, 3, h, w) as values in [0, 1]."""
    values = images.astype(np.float32)
    values /= np.float32(255)
    return PartyData(values, np.arange(len(values), dtype=np.int64))
