"""Products that differ from slot to slot: several rows side by side in one ciphertext.

With m columns a ciphertext of S slots holds k = S // m rows: row i of chunk c lies in the slots
[i m, (i + 1) m). Then, without any rotation,

* transposed product  A^T g, A (b, m) encrypted and g (b, o) plain: o ciphertexts
  sum_c A_c * (g_ck repeated over each row's slots); the key holder adds the k blocks after
  decryption, each of which carries a mask of its own;
* row product  g V^T, V (m, o) encrypted and g (b, o) plain: b / k ciphertexts
  sum_j V_j (repeated k times) * (g_cj repeated).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vflsec.errors import ShapeError
from vflsec.he.ckks import KeyPair, PublicKey

Array = NDArray[np.float64]


def layout(rows: int, columns: int, slots: int) -> tuple[int, int]:
    """(rows in one ciphertext, number of ciphertexts) for a matrix (rows, columns).

    Raises:
        ShapeError: a single row takes more than half the slots (:attr:`Parameters.rows`).
    """
    if columns > slots // 2:
        raise ShapeError.at_most("numbers of a row", slots // 2, columns)
    k = min(rows, slots // columns)
    return k, -(-rows // k)


def encrypt_blocks(key: PublicKey, a: Array) -> bytes:
    """A matrix (b, m), rows side by side."""
    b, m = a.shape
    k, chunks = layout(b, m, key.parameters.slots)
    return key.pack_vectors(a.shape, [key.vector(part) for part in _chunks(a, k, chunks)])


def encrypt_columns(key: PublicKey, v: Array, rows: int) -> bytes:
    """A matrix (m, o) as o ciphertexts, each column repeated for :func:`row_product` on `rows`."""
    k, _ = layout(rows, len(v), key.parameters.slots)
    return key.pack_vectors(v.shape, [key.vector(np.tile(v[:, j], k)) for j in range(v.shape[1])])


def transposed_product(key: PublicKey, data: bytes, g: Array, mask: Array) -> bytes:
    """Masked A^T g as o ciphertexts of unsummed blocks.

    Args:
        key: under which `data` is encrypted.
        data: A (b, m) from :func:`encrypt_blocks`.
        g: plain (b, o).
        mask: (o, k m) added by a fresh encryption, k the rows in one ciphertext.

    Raises:
        ShapeError: `g` or `mask` do not fit.
    """
    (b, m), vectors = key.load_vectors(data)
    k, chunks = layout(b, m, key.parameters.slots)
    if g.shape[0] != b or mask.shape != (g.shape[1], k * m):
        raise ShapeError(f"A (b, m) is {(b, m)}, but g is {g.shape} and mask {mask.shape}.")
    out = []
    for j in range(g.shape[1]):
        total = key.vector(mask[j], 2)
        for part, vector in zip(_chunks(g[:, j : j + 1], k, chunks), vectors, strict=True):
            total = total + vector * _factor(part, m)
        out.append(total)
    return key.pack_vectors((m, g.shape[1]), out)


def block_sum(keys: KeyPair, data: bytes) -> Array:
    """(m, o): decrypt the result of :func:`transposed_product` and add its blocks."""
    (m, _), slots = keys.decrypt_vectors(data)
    return slots.reshape(len(slots), -1, m).sum(1).T


def row_product(key: PublicKey, data: bytes, g: Array, plus: Array) -> bytes:
    """g V^T + plus as ciphertexts of rows; `data` is V (m, o), g (b, o) and plus (b, m) plain."""
    (m, o), vectors = key.load_vectors(data)
    b = len(g)
    if g.shape != (b, o) or plus.shape != (b, m):
        raise ShapeError(f"V (m, o) is {(m, o)}, but g is {g.shape} and plus {plus.shape}.")
    k, chunks = layout(b, m, key.parameters.slots)
    added = _chunks(plus, k, chunks)
    out = []
    for c in range(chunks):
        rows = np.zeros((k, o))
        rows[: len(g[c * k : (c + 1) * k])] = g[c * k : (c + 1) * k]
        total = key.vector(added[c], 2)
        for j, vector in enumerate(vectors):
            total = total + vector * _factor(rows[:, j], m)
        out.append(total)
    return key.pack_vectors((b, m), out)


def open_rows(keys: KeyPair, data: bytes) -> Array:
    """(b, m): decrypt the result of :func:`row_product`."""
    (b, m), slots = keys.decrypt_vectors(data)
    return slots.reshape(-1, m)[:b]


def _chunks(a: Array, k: int, chunks: int) -> Array:
    """(chunks, k * columns): rows side by side, zero rows at the end."""
    padded = np.zeros((k * chunks, a.shape[1]))
    padded[: len(a)] = a
    return padded.reshape(chunks, k * a.shape[1])


def _factor(values: Array, m: int) -> list[float]:
    """Each value over the `m` slots of its row.

    TenSEAL answers a product with zero by a fresh encryption of zero, whose other size would tell
    the key holder that a column is zero; a factor of 2^-30 keeps the size and is below the error.
    """
    if np.abs(values).max() < 2.0**-30:
        values = np.full(values.shape, 2.0**-30)
    return np.repeat(values, m).tolist()
