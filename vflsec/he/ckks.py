"""CKKS keys and arithmetic on numpy matrices, through TenSEAL; everything travels as bytes.

Parameters are checked against the 128-bit table of the homomorphic encryption standard (Albrecht et
al., "Homomorphic encryption security standard", 2018, table 1, ternary secret): the primes of the
coefficient modulus must not exceed 109, 218 or 438 bits in all for N = 4096, 8192, 16384.

Two packings are used. ``rows``: a matrix (b, m) as m ciphertexts, one sample a slot, so that a
product with a plain matrix costs m o scalar products and no rotation. ``blocks``: several rows side
by side in the slots of one ciphertext, for products that differ from slot to slot.

There is one product at most, so results keep its scale, the square, and are not rescaled: that
would take most of the time of a product and add noise.

Every sum made by the holder of the public key alone adds a *fresh encryption*: a plaintext sum
would leave the second ciphertext component a linear map (up to rounding) of the key holder's own
ciphertexts: thousands of equations for the few weights that they were multiplied by.

Source: Cheon, Kim, Kim, Song, "Homomorphic encryption for arithmetic of approximate numbers",
ASIACRYPT 2017; Benaissa et al., "TenSEAL", arXiv:2104.03152 (2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vflsec.core import check
from vflsec.errors import CiphertextError, ConfigError, MissingDependencyError, ShapeError
from vflsec.he.envelope import Blob, fingerprint, pack, unpack

MAX_BITS = {1024: 27, 2048: 54, 4096: 109, 8192: 218, 16384: 438, 32768: 881}
"""Largest coefficient modulus in bits for 128-bit security, by polynomial degree N."""

Array = NDArray[np.float64]


def import_tenseal() -> Any:
    """The TenSEAL module.

    Raises:
        MissingDependencyError: it is not installed; the message says how to.
    """
    try:
        import tenseal as module
    except ImportError as why:
        remedy = "Mode 'emulated' runs without it."
        raise MissingDependencyError.lacks("mode 'real'", "tenseal", "he", remedy) from why
    return module


@dataclass(frozen=True)
class Parameters:
    """CKKS parameters.

    Attributes:
        degree: N of the polynomial ring; N / 2 slots.
        bits: sizes of the primes of the coefficient modulus, the special prime last.
        scale_bits: the encoding scale is 2 ** scale_bits, and the size of every middle prime.
    """

    degree: int = 8192
    bits: tuple[int, ...] = (60, 50, 50, 58)
    scale_bits: int = 50

    def __post_init__(self) -> None:
        check.one_of("ckks.degree", self.degree, tuple(MAX_BITS))
        total, most = sum(self.bits), MAX_BITS[self.degree]
        if total > most:
            rule = f"at most {most} bits in all for N = {self.degree} (128-bit security)"
            sums = ", ".join(f"{n}: {b}" for n, b in MAX_BITS.items())
            raise check.fail("ckks.bits", rule, total, f"Largest sums: {sums}.")
        if len(self.bits) < 3:
            raise check.fail("ckks.bits", "at least three primes", self.bits)
        if any(b != self.scale_bits for b in self.bits[1:-1]):
            rule = f"middle primes of scale_bits = {self.scale_bits} bits each"
            raise check.fail("ckks.bits", rule, self.bits)
        if self.bits[0] <= self.scale_bits + 1:
            rule = f"a first prime of more than {self.scale_bits + 1} bits"
            raise check.fail("ckks.bits", rule, self.bits)

    @property
    def slots(self) -> int:
        """How many numbers one ciphertext holds."""
        return self.degree // 2

    @property
    def rows(self) -> int:
        """How many numbers of one ciphertext may be answered in the clear: half of them, so that
        the rest leaves any equation about its noise open.
        """
        return self.slots // 2

    @property
    def room(self) -> int:
        """Bits that a number times its scale may have after one product to decrypt correctly."""
        return sum(self.bits[:-1]) - self.scale_bits - 1

    def scale(self, power: int = 1) -> float:
        """The scale of an encoding (1), or of a product of two (2), which is never rescaled."""
        return 2.0 ** (power * self.scale_bits)

    @property
    def label(self) -> str:
        """The parameters in words, for reports."""
        return f"N={self.degree}, primes {','.join(map(str, self.bits))}, scale 2^{self.scale_bits}"


def refuse_rows(parameters: Parameters, rows: int, most: int) -> ShapeError:
    """The error for a batch that no ciphertext holds."""
    what, remedy = f"rows for N = {parameters.degree}", "Use a smaller batch or a larger N."
    return ShapeError.at_most(what, most, rows, remedy)


class PublicKey:
    """A CKKS context without the secret key: encrypts and computes, cannot decrypt.

    Args:
        data: as from :attr:`KeyPair.public_bytes`.
        threads: of TenSEAL.

    Raises:
        CiphertextError: the bytes are damaged, or they hold a secret key.
    """

    def __init__(self, data: bytes, threads: int = 1) -> None:
        blob = unpack(data, "public key")
        degree, scale_bits, *bits = blob.shape
        self.parameters = Parameters(degree, tuple(bits), scale_bits)
        if fingerprint(blob.parts[0]) != blob.key:
            raise CiphertextError.damaged("public key", "another fingerprint")
        self.key = blob.key
        try:
            self._context = import_tenseal().context_from(blob.parts[0], n_threads=threads)
        except (ValueError, RuntimeError) as why:
            raise CiphertextError.damaged("public key", why) from why
        self._context.auto_rescale = False
        if self._context.has_secret_key():
            raise CiphertextError.must("public key", "hold no secret key", "one", "Refuse it.")

    def _rows(self, x: Array, power: int = 1) -> Any:
        x = _matrix(x)
        if len(x) > self.parameters.slots:
            raise refuse_rows(self.parameters, len(x), self.parameters.slots)
        x = _wide(x)
        scale = self.parameters.scale(power)
        return import_tenseal().ckks_tensor(
            self._context, x.reshape(len(x), 1, -1), scale, batch=True
        )

    def encrypt(self, x: Array) -> bytes:
        """A matrix (b, m), b at most `slots`, in the packing ``rows``: m ciphertexts."""
        return pack("rows", self.key, np.shape(x), [self._rows(x).serialize()])

    def _load(self, data: bytes) -> tuple[Blob, Any]:
        blob = unpack(data, "rows", self.key)
        try:
            return blob, import_tenseal().ckks_tensor_from(self._context, blob.parts[0])
        except (ValueError, RuntimeError) as why:
            raise CiphertextError.damaged("ciphertext", why) from why

    def add(self, data: bytes, other: bytes | Array) -> bytes:
        """Sum of a ciphertext and another one, or a matrix of the same shape (freshly
        encrypted).
        """
        blob, x = self._load(data)
        if isinstance(other, bytes):
            second, y = self._load(other)
            shape = second.shape
        else:
            shape, y = np.shape(other), self._rows(other)
        if tuple(shape) != blob.shape:
            raise ShapeError.shaped("a sum", blob.shape, tuple(shape))
        return pack("rows", self.key, blob.shape, [(x + y).serialize()])

    def matmul(self, data: bytes, w: Array, plus: Array | None = None) -> bytes:
        """Encrypted (b, m) times plain (m, o), plus a fresh encryption of `plus` (b, o)."""
        blob, x = self._load(data)
        w = _matrix(w)
        if blob.shape[1] != len(w):
            raise ShapeError.must("a product", f"take {blob.shape[1]} rows", w.shape)
        product = x.mm(import_tenseal().plain_tensor(_seen(_wide(_wide(w).T).T).tolist()))
        if plus is not None:
            product = product + self._rows(plus, 2)
        return pack("rows", self.key, (blob.shape[0], w.shape[1]), [product.serialize()])

    def vector(self, x: Array, power: int = 1) -> Any:
        """One ciphertext with a number in each slot; power 2 to be added to products."""
        numbers = np.asarray(x, dtype=np.float64).tolist()
        return import_tenseal().ckks_vector(self._context, numbers, self.parameters.scale(power))

    def load_vectors(self, data: bytes) -> tuple[tuple[int, ...], list[Any]]:
        """Shape and ciphertexts of an envelope of kind ``blocks``."""
        blob = unpack(data, "blocks", self.key)
        try:
            read = import_tenseal().ckks_vector_from
            return blob.shape, [read(self._context, p) for p in blob.parts]
        except (ValueError, RuntimeError) as why:
            raise CiphertextError.damaged("ciphertext", why) from why

    def pack_vectors(self, shape: Sequence[int], vectors: Sequence[Any]) -> bytes:
        """An envelope of kind ``blocks``; `shape` is the plaintext's."""
        return pack("blocks", self.key, shape, [v.serialize() for v in vectors])


class KeyPair(PublicKey):
    """A CKKS context with its secret key; never leaves the process that made it.

    Key and encryption randomness come from the operating system, not from a seed.

    Attributes:
        public_bytes: what the other party gets: parameters, public key, relinearisation keys.
    """

    def __init__(self, parameters: Parameters | None = None, threads: int = 1) -> None:
        ts = import_tenseal()
        p = parameters or Parameters()
        context = ts.context(
            ts.SCHEME_TYPE.CKKS, p.degree, coeff_mod_bit_sizes=list(p.bits), n_threads=threads
        )
        context.global_scale = 2**p.scale_bits
        context.auto_rescale = False
        data = context.serialize(
            save_public_key=True, save_secret_key=False, save_galois_keys=False,
            save_relin_keys=True,
        )  # fmt: skip
        self.key = fingerprint(data)
        self.public_bytes = pack("public key", self.key, (p.degree, p.scale_bits, *p.bits), [data])
        self.parameters = p
        self._context = context

    def decrypt(self, data: bytes) -> Array:
        """The matrix (b, m) in an envelope of kind ``rows``.

        Raises:
            CiphertextError: it is damaged or was made under another key.
        """
        blob, x = self._load(data)
        wide = np.asarray(x.decrypt().tolist(), dtype=np.float64).reshape(blob.shape[0], -1)
        return wide[:, : blob.shape[1]]

    def decrypt_vectors(self, data: bytes) -> tuple[tuple[int, ...], Array]:
        """Shape, and slots (count, length), of an envelope of kind ``blocks``."""
        shape, vectors = self.load_vectors(data)
        return shape, np.asarray([v.decrypt() for v in vectors], dtype=np.float64)

    def __reduce__(self) -> Any:
        raise ConfigError("a key pair must stay in its process. Send public_bytes.")


def _wide(x: Array) -> Array:
    """At least two columns: TenSEAL 0.3.18 silently packs a batch of 1 x 1 matrices wrongly."""
    return x if x.shape[1] > 1 else np.hstack([x, np.zeros_like(x)])


def _seen(w: Array) -> Array:
    """No factor that encodes to zero: TenSEAL answers such a product by a fresh encryption of zero,
    of another scale and size. 2^-30 is below the error that matters.
    """
    return np.where(np.abs(w) < 2.0**-30, 2.0**-30, w)


def _matrix(x: Any) -> Array:
    x = np.asarray(x, dtype=np.float64)
    if x.ndim != 2 or 0 in x.shape:
        raise ShapeError.must("encrypted arithmetic", "have a matrix (b, m)", x.shape)
    if not np.isfinite(x).all():
        raise ShapeError("encrypted arithmetic needs finite numbers.")
    return x
