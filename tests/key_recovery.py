"""Key recovery from decrypted CKKS answers, with what the receiver of the answers holds.

The receiver knows a ciphertext (c0, c1) modulo one prime q, the public context, and the real parts
of all N / 2 slots of d = c0 + c1 s. If the slots are exact enough, d(X) + d(1/X) rounds to
integers, and at every pair of conjugate roots z, 1/z of X^N + 1

    d(z) + d(1/z) = c0(z) + c0(1/z) + c1(z) s(z) + c1(1/z) s(1/z)   (mod q),

one equation in two unknowns. Two ciphertexts give the key.

Source: Li and Micciancio, "On the security of homomorphic encryption on approximate numbers",
EUROCRYPT 2021, section 4 (key recovery by linear algebra), for real slots.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from vflsec.he.ckks import PublicKey
from vflsec.he.envelope import pack, unpack

MAGIC = b"\x5e\xa1\x10\x04"  # of SEAL 4: header of 16 bytes
Array = np.ndarray


def blobs(data: bytes) -> list[bytes]:
    """The bodies of SEAL objects in a byte string, decompressed."""
    out, at = [], data.find(MAGIC)
    while at >= 0:
        packed, size = data[at + 5], struct.unpack_from("<Q", data, at + 8)[0]
        body = data[at + 16 : at + size]
        out.append(
            pa.input_stream(pa.py_buffer(body), compression="zstd").read() if packed else body
        )
        at = data.find(MAGIC, at + size)
    return out


@dataclass(frozen=True)
class Ciphertext:
    """`scale`, and `parts` (2, primes, N) uint64 at the roots, in SEAL's order."""

    scale: float
    parts: Array


def ciphertexts(data: bytes, kind: str) -> list[Ciphertext]:
    """The ciphertexts in an envelope."""
    found = []
    for part in unpack(data, kind).parts:
        for body in blobs(part):
            _, size, n, primes, scale = struct.unpack_from("<BQQQd", body, 32)
            numbers = np.frombuffer(body[-8 * size * n * primes :], dtype="<u8")
            found.append(Ciphertext(scale, numbers.reshape(size, primes, n)))
    return found


def modulus(public: bytes) -> int:
    """The first prime of a public context."""
    body = blobs(unpack(public, "public key").parts[0])[0]
    return int(struct.unpack_from("<Q", blobs(body)[0])[0])


@dataclass(frozen=True)
class Ring:
    """Polynomials modulo X^n + 1 and a prime q, by values at the odd powers of a root of -1."""

    n: int
    q: int

    @cached_property
    def root(self) -> int:
        """The smallest primitive 2n-th root of one, as SEAL has it."""
        powers = (pow(x, (self.q - 1) // (2 * self.n), self.q) for x in range(2, 1000))
        g = next(x for x in powers if pow(x, self.n, self.q) == self.q - 1)
        square, least, now = g * g % self.q, g, g
        for _ in range(self.n - 1):
            now = now * square % self.q
            least = min(least, now)
        return least

    def _powers(self, base: int, count: int) -> Array:
        out = [1]
        for _ in range(count - 1):
            out.append(out[-1] * base % self.q)
        return np.array(out, dtype=object)

    def _transform(self, a: Array, w: int) -> Array:
        if len(a) == 1:
            return a
        even, odd = (self._transform(a[i::2], w * w % self.q) for i in (0, 1))
        odd = odd * self._powers(w, len(odd)) % self.q
        return np.concatenate([even + odd, even - odd]) % self.q

    def values(self, a: Array) -> Array:
        """Coefficients -> values; entry k at root ** (2 k + 1)."""
        return self._transform(
            a * self._powers(self.root, self.n) % self.q, self.root * self.root % self.q
        )

    def coefficients(self, values: Array) -> Array:
        """The inverse of :meth:`values`, centred."""
        back = pow(self.root, -1, self.q)
        a = self._transform(values, back * back % self.q)
        a = a * self._powers(back, self.n) * pow(self.n, -1, self.q) % self.q
        return np.where(a > self.q // 2, a - self.q, a)

    def natural(self, values: Array) -> Array:
        """Values in SEAL's order (bits reversed) -> in the order of :meth:`values`."""
        bits = self.n.bit_length() - 1
        order = [int(f"{i:0{bits}b}"[::-1], 2) for i in range(self.n)]
        return values[order].astype(object)


def positions(n: int) -> Array:
    """Where slot k lies among the odd powers of exp(i pi / n): (3^k - 1) / 2."""
    out, now = [], 1
    for _ in range(n // 2):
        out.append((now - 1) // 2)
        now = now * 3 % (2 * n)
    return np.array(out)


def symmetric(slots: Array, n: int) -> Array:
    """Coefficients (n,) of d(X) + d(1/X), for real parts of the slots (n / 2,) of d."""
    at = np.zeros(n, dtype=np.longdouble)
    where = positions(n)
    at[where] = at[n - 1 - where] = 2 * slots
    turn = np.longdouble("3.14159265358979323846") * np.arange(n) / n
    return np.real(np.fft.fft(at) / n * (np.cos(turn) - 1j * np.sin(turn)))


def slots(coefficients: Array, n: int) -> Array:
    """Real parts of the slots (n / 2,) of a polynomial."""
    twist = np.exp(1j * np.pi * np.arange(n) / n)
    return np.real(np.fft.ifft(coefficients.astype(np.float64) * twist) * n)[positions(n)]


def guess_key(ring: Ring, products: list[Ciphertext], answers: Array) -> Array:
    """The polynomial (N,) that explains two answers: the secret key if they are exact.

    Args:
        ring: of the products.
        products: two ciphertexts that were decrypted.
        answers: what came back, (2, N / 2).
    """
    q, rows = ring.q, []
    for product, answer in zip(products, answers, strict=True):
        known = symmetric(answer * product.scale, ring.n)
        sums = ring.values(np.array([round(x) for x in known], dtype=object))
        c0, c1 = (ring.natural(p) for p in product.parts[:, 0])
        rows.append((sums - c0 - c0[::-1], c1, c1[::-1]))  # root ** -(2 k + 1) is entry n - 1 - k
    (t, a, b), (u, c, d) = rows
    inverse = np.array([pow(int(x), -1, q) for x in (a * d - b * c) % q], dtype=object)
    return ring.coefficients((t * d - u * b) * inverse % q)


def is_ternary(key: Array) -> bool:
    """True for a possible secret key; a wrong guess has coefficients of the size of q."""
    return bool(set(key.tolist()) <= {-1, 0, 1})


def decrypt(ring: Ring, key: Array, sealed: Ciphertext) -> Array:
    """Slots (N / 2,) of a ciphertext, by the first of its primes alone."""
    c0, c1 = (ring.natural(p) for p in sealed.parts[:, 0])
    return slots(ring.coefficients((c0 + c1 * ring.values(key)) % ring.q), ring.n) / sealed.scale


def rescaled(public: PublicKey, sealed: bytes, w: Array, mask: Array) -> bytes:
    """Enc(h W + R) as it was once made: each product rescaled, left with a single prime."""
    from vflsec.he.ckks import import_tenseal

    ts, context = import_tenseal(), public._context
    _, x = public._load(sealed)
    context.auto_rescale = True
    product = x.mm(ts.plain_tensor(w.tolist()))
    product = product + ts.ckks_tensor(context, mask.reshape(len(mask), 1, -1), batch=True)
    context.auto_rescale = False
    return pack("rows", public.key, mask.shape, [product.serialize()])


def attack(public: bytes, product: bytes, answers: Array) -> tuple[Ring, Array]:
    """The ring and the guessed key, from an envelope of two columns and the slots (N / 2, 2)."""
    pair: list[Any] = ciphertexts(product, "rows")[:2]
    ring = Ring(pair[0].parts.shape[2], modulus(public))
    return ring, guess_key(ring, pair, answers.T[:2])
