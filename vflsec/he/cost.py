"""What encryption costs: bytes and seconds of one batch, for a run that is only emulated or
planned.

Sizes and times depend on the numbers of ciphertexts and products alone, so a few measured constants
give both. The constants below were measured with TenSEAL 0.3.18 on one thread of a 2-core x86-64
machine; :func:`measure` takes the times anew where it matters.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, fields

import numpy as np

from vflsec.errors import ConfigError
from vflsec.he.blocks import layout
from vflsec.he.ckks import KeyPair, Parameters, PublicKey


@dataclass(frozen=True)
class Unit:
    """Bytes of one ciphertext and seconds of one operation on it.

    Attributes:
        fresh, product: bytes of a serialised ciphertext, new, and after one product.
        encrypt: seconds to encode and encrypt one.
        scalar: seconds of one product with a scalar and its addition, in the packing ``rows``.
        slots: seconds of one product with a vector and its addition, in the packing ``blocks``.
        decrypt: seconds to decrypt and decode one.
        load: seconds to write and read one.
    """

    fresh: int
    product: int
    encrypt: float
    scalar: float
    slots: float
    decrypt: float
    load: float


_MEASURED = {
    Parameters(8192, (60, 40, 60), 40): Unit(
        235050, 235050, 0.0040, 0.00018, 0.0011, 0.0009, 0.0015
    ),
    Parameters(): Unit(368400, 368400, 0.0049, 0.00028, 0.0016, 0.0014, 0.0025),
}
"""Measured by :func:`measure`; seconds depend on degree and number of primes."""

HEADER = 260
"""Bytes of an envelope beside its parts, about."""


def unit(parameters: Parameters) -> Unit:
    """Measured constants of these parameters; measured now if they are not tabulated."""
    return _MEASURED.get(parameters) or measure(parameters)


def measure(parameters: Parameters, threads: int = 1, width: int = 8) -> Unit:
    """Measure the constants on this machine, in about a second.

    Raises:
        MissingDependencyError: TenSEAL is not installed.
    """
    keys = KeyPair(parameters, threads)
    public = PublicKey(keys.public_bytes, threads)
    x = np.linspace(-1, 1, 64 * width).reshape(64, width)
    w = np.linspace(-1, 1, width * width).reshape(width, width)
    start = time.perf_counter()
    fresh = keys.encrypt(x)
    encrypted = time.perf_counter()
    product = public.matmul(fresh, w)
    multiplied = time.perf_counter()
    keys.decrypt(product)
    decrypted = time.perf_counter()
    one = keys.vector(np.ones(parameters.slots))
    written = one.serialize()
    vectors = time.perf_counter()
    for _ in range(4):
        product_of_slots = one * np.linspace(1, 2, parameters.slots).tolist()
        product_of_slots + product_of_slots
    by_slots = (time.perf_counter() - vectors) / 4
    vectors = time.perf_counter()
    public.load_vectors(public.pack_vectors((1, parameters.slots), [one]))
    load = time.perf_counter() - vectors
    return Unit(
        fresh=len(written),
        product=len(product) // width,
        encrypt=(encrypted - start) / width,
        scalar=(multiplied - encrypted) / width**2,
        slots=by_slots,
        decrypt=(decrypted - multiplied) / width,
        load=load,
    )


@dataclass(frozen=True)
class Batch:
    """Bytes by direction and seconds by operation of one step.

    Attributes:
        embedding, product: bytes of Enc(h) up and of the masked product down.
        blocks, gradient: bytes of Enc(h) in blocks up and of the masked weight gradient down.
        share, embedding_gradient: bytes of Enc(W_p) up and of the embedding gradient down (shared
            weights only).
        masked: bytes of masked plain numbers up.
        encrypt, multiply, decrypt, transfer: seconds; transfer is writing and reading ciphertexts,
            not the network.
    """

    embedding: int = 0
    product: int = 0
    blocks: int = 0
    gradient: int = 0
    share: int = 0
    embedding_gradient: int = 0
    masked: int = 0
    encrypt: float = 0.0
    multiply: float = 0.0
    decrypt: float = 0.0
    transfer: float = 0.0

    @property
    def bytes(self) -> int:
        """All of them."""
        return sum(getattr(self, f.name) for f in fields(self) if f.type == "int")

    @property
    def seconds(self) -> float:
        """All of them."""
        return self.encrypt + self.multiply + self.decrypt + self.transfer

    @property
    def by_operation(self) -> dict[str, float]:
        """Seconds of each operation."""
        return {k: getattr(self, k) for k in ("encrypt", "multiply", "decrypt", "transfer")}

    def __add__(self, other: Batch) -> Batch:
        return Batch(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __mul__(self, times: int) -> Batch:
        return Batch(*(getattr(self, f.name) * times for f in fields(self)))


def batch(
    rows: int, width: int, out: int, *, shared: bool = False, train: bool = True,
    parameters: Parameters | None = None,
) -> Batch:  # fmt: skip
    """One step of the interactive layer on a batch (rows, width) -> (rows, out).

    Args:
        rows, width, out: b, m, o.
        shared: shared weights.
        train: False for prediction, which has no way back.
        parameters: of CKKS; None for the default.

    Raises:
        ConfigError: the batch has more rows than a ciphertext has slots.
    """
    p = parameters or Parameters()
    u = unit(p)
    if rows > p.rows:
        what = f"batch_size for {p.slots} slots"
        raise ConfigError.at_most(what, p.rows, rows)
    forward = Batch(
        embedding=width * u.fresh + HEADER, product=out * u.product + HEADER, masked=8 * rows * out,
        encrypt=(width + out) * u.encrypt, multiply=width * out * u.scalar, decrypt=out * u.decrypt,
        transfer=(width + out) * u.load,
    )  # fmt: skip
    if not train:
        return forward
    _, chunks = layout(rows, width, p.slots)
    total = forward + summed(rows, width, out - 1, parameters=p)  # h^T g has no bias
    if shared:
        total = total + Batch(
            share=out * u.fresh + HEADER, embedding_gradient=chunks * u.product + HEADER,
            encrypt=(chunks + out) * u.encrypt, multiply=chunks * out * u.slots,
            decrypt=chunks * u.decrypt, transfer=(chunks + out) * u.load,
        )  # fmt: skip
    return total


def summed(rows: int, out: int, columns: int, *, parameters: Parameters | None = None) -> Batch:
    """One step of summed gradients, [X 1]^T Enc(g), for X (rows, columns) and g (rows, out).

    Args:
        rows, out, columns: b, o, d.
        parameters: as for :func:`batch`.
    """
    p = parameters or Parameters()
    u = unit(p)
    _, chunks = layout(rows, out, p.slots)
    sums = columns + 1
    return Batch(
        blocks=chunks * u.fresh + HEADER, gradient=sums * u.product + HEADER, masked=8 * sums * out,
        encrypt=(chunks + sums) * u.encrypt, multiply=chunks * sums * u.slots,
        decrypt=sums * u.decrypt, transfer=(chunks + sums) * u.load,
    )  # fmt: skip
