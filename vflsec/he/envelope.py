"""Bytes that travel between two roles: what they are, under which key, how long, and a digest.

CKKS decrypts a ciphertext of another key to numbers without an error, so every blob names the key
it was made under (a digest of the public context) and is checked before it is used. The digest
finds damage and truncation; it is no authentication.

Layout: magic (5 bytes), length of the header (4 bytes, big endian), header (JSON), parts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vflsec.errors import CiphertextError

MAGIC = b"VFHE1"


@dataclass(frozen=True)
class Blob:
    """An opened envelope.

    Attributes:
        kind: what the parts are (``rows``, ``blocks``, ``masked``, ``public key``).
        key: fingerprint of the key they belong to.
        shape: shape of the plaintext.
        parts: the payload.
    """

    kind: str
    key: str
    shape: tuple[int, ...]
    parts: tuple[bytes, ...]


def fingerprint(public: bytes) -> str:
    """32 hexadecimal digits that name a public context."""
    return hashlib.blake2b(public, digest_size=16).hexdigest()


def pack(kind: str, key: str, shape: Sequence[int], parts: Sequence[bytes]) -> bytes:
    """An envelope with these parts."""
    payload = b"".join(parts)
    header = json.dumps(
        {
            "kind": kind, "key": key, "shape": [int(s) for s in shape],
            "sizes": [len(p) for p in parts],
            "digest": hashlib.blake2b(payload, digest_size=16).hexdigest(),
        }
    ).encode()  # fmt: skip
    return MAGIC + len(header).to_bytes(4, "big") + header + payload


def unpack(data: bytes, kind: str, key: str = "") -> Blob:
    """Open an envelope.

    Args:
        data: as received.
        kind: what it must hold.
        key: fingerprint it must carry, if given.

    Raises:
        CiphertextError: it is no envelope, damaged, truncated, of another kind or another key.
    """
    start = len(MAGIC) + 4
    if data[: len(MAGIC)] != MAGIC or len(data) < start:
        raise CiphertextError.damaged("ciphertext", "no envelope")
    end = start + int.from_bytes(data[len(MAGIC) : start], "big")
    try:
        header = json.loads(data[start:end])
    except ValueError as why:
        raise CiphertextError.damaged("ciphertext", "its header is no JSON") from why
    expected = sum(header["sizes"])
    payload = memoryview(data)[end:]
    if len(payload) != expected:
        raise CiphertextError.damaged("ciphertext", f"{len(payload)} bytes for {expected}")
    if hashlib.blake2b(payload, digest_size=16).hexdigest() != header["digest"]:
        raise CiphertextError.damaged("ciphertext", "another digest")
    if header["kind"] != kind:
        raise CiphertextError.must("envelope", f"hold {kind!r}", repr(header["kind"]))
    if key and header["key"] != key:
        what, remedy = f"be under key {key}", "Exchange public contexts again."
        raise CiphertextError.must("ciphertext", what, header["key"], remedy)
    parts, at = [], 0
    for size in header["sizes"]:
        parts.append(bytes(payload[at : at + size]))
        at += size
    return Blob(kind, header["key"], tuple(header["shape"]), tuple(parts))


def pack_masked(key: str, x: NDArray[np.float64]) -> bytes:
    """An envelope around masked numbers."""
    return pack("masked", key, x.shape, [np.ascontiguousarray(x, dtype="<f8").tobytes()])


def unpack_masked(data: bytes, key: str = "") -> NDArray[np.float64]:
    """The numbers in an envelope made by :func:`pack_masked`."""
    blob = unpack(data, "masked", key)
    return np.frombuffer(blob.parts[0], dtype="<f8").reshape(blob.shape).astype(np.float64)
