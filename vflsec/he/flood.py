"""Flooding: the noise that a key holder adds to what it decrypts before the answer leaves.

A CKKS result decrypts to v + e, where e is the noise of its ciphertext: small, and a known linear
function of the secret key. Whoever made the ciphertext and learns v + e exactly solves for the key.
So the key holder answers with a multiple of a grid near v + e + F, F ~ N(0, 2^(-2 flood_bits)).

The bits. With real parts of slots in units of the encoding scale, rounding a fresh ciphertext of
degree N adds noise of standard deviation sqrt((1 + 2 N / 3) / 12) sqrt(N / 2), 2^10.4 for N = 8192:
uniform errors times one and times a ternary key. A product with a column w multiplies it by |w|; it
is not rescaled, and the mask is encrypted at the square of the scale, which adds next to nothing.
GROWTH = 4 bits allow |w| = 16, and e is at most 2^``noise_bits`` in all. Flooding is larger by

    margin = scale_bits - noise_bits - flood_bits   (bits; at least MARGIN)

and the noise of a ciphertext, N / 2 slots, moves its answer by a Kullback-Leibler divergence of at
most N / 4 * 2^(-2 margin) nats (:func:`divergence`). Divergences of ciphertexts
add up; the advantage in telling a run's answers from ones without noise is at most
sqrt(divergence / 2) (:func:`advantage`).
At the defaults margin is 23: 2^-35 nats a ciphertext, an advantage of 2^-11.4 after 10,000. Read as
noisy linear hints on the key instead, 10,000 answers shrink the noise of the remaining LWE problem
by a share of 2^-33, so the attacks that a key must withstand stay as hard as the 128-bit table
says. That is a heuristic; the advantage is the proof, for honest ciphertexts alone.

Source: Li and Micciancio, "On the security of homomorphic encryption on approximate numbers",
EUROCRYPT 2021 (IND-CPA-D, the attack); Li, Micciancio, Schultz and Sorrell, "Securing approximate
homomorphic encryption using differential privacy", CRYPTO 2022 (Gaussian flooding by divergence);
Dachman-Soled, Ducas, Gong and Rossi, "LWE with side information", CRYPTO 2020 (hints).
"""

from __future__ import annotations

import math
import os

import numpy as np
import scipy
from numpy.typing import NDArray

from vflsec.core import check
from vflsec.core.rng import numpy_generator
from vflsec.he.ckks import Parameters

Array = NDArray[np.float64]
MASK_BITS = 16
FLOOD_BITS = 12
LEAST_MASK = 8
MARGIN = 16
"""Least margin of flooding over the noise of a ciphertext, in bits."""
GROWTH = 4
GRID = 10
"""The grid of an answer is 2 ** -GRID of the flooding noise."""
EXACT = 52
"""Bits of a float64 behind its leading one."""
TAIL = 3
"""A mask is at most 2 ** TAIL standard deviations."""


def noise_bits(degree: int) -> int:
    """Bits of the noise of a decrypted answer, in units of the encoding scale."""
    rounding = math.sqrt((1 + 2 * degree / 3) / 12 * degree / 2)
    return math.ceil(math.log2(rounding) + GROWTH)


def margin(parameters: Parameters, flood_bits: int) -> int:
    """Bits by which flooding exceeds the noise of a ciphertext."""
    return parameters.scale_bits - noise_bits(parameters.degree) - flood_bits


def divergence(parameters: Parameters, flood_bits: int, ciphertexts: int = 1) -> float:
    """Bound in nats on what the answers to some ciphertexts tell about their noise."""
    return ciphertexts * parameters.slots / 2 * 4.0 ** -margin(parameters, flood_bits)


def advantage(parameters: Parameters, flood_bits: int, ciphertexts: int) -> float:
    """Bound on the advantage in telling the answers from ones without noise (Pinsker)."""
    return min(1.0, math.sqrt(divergence(parameters, flood_bits, ciphertexts) / 2))


def check_answers(parameters: Parameters, mask_bits: int, flood_bits: int) -> None:
    """Refuse masks and flooding that do not fit the modulus, the noise, or a float64.

    Raises:
        ConfigError: the flooding is less than MARGIN bits above the noise; a mask of 8 standard
            deviations exceeds what still decrypts; or an answer with such a mask has no room for
            the grid of its flooding in a float64.
    """
    for key, bits, low in (("mask_bits", mask_bits, LEAST_MASK), ("flood_bits", flood_bits, 1)):
        check.integer(f"he: {key}", bits, low=low, high=EXACT)
    p = parameters
    most = p.scale_bits - noise_bits(p.degree) - MARGIN
    if flood_bits > most:
        need = f"at most {most} for {p.label}" if most > 0 else f"another encoding than {p.label}"
        remedy = f"Noise of answers must stay {MARGIN} bits below. Raise scale_bits."
        raise check.fail("he: flood_bits", need, flood_bits, remedy)
    room = p.room - TAIL
    if mask_bits + p.scale_bits > room:
        rule, got = f"at most {room} for {p.label}", mask_bits + p.scale_bits
        raise check.fail("he: mask_bits + scale_bits", rule, got, "Add a middle prime.")
    room = EXACT - TAIL - GRID
    if mask_bits + flood_bits > room:
        rule, got = f"at most {room}", mask_bits + flood_bits
        raise check.fail("he: mask_bits + flood_bits", rule, got)


def draw_normal(*shape: int) -> Array:
    """Normal numbers out of the operating system's randomness, by inversion of 53 bits each."""
    bits = np.frombuffer(os.urandom(8 * math.prod(shape)), np.uint64) >> np.uint64(64 - EXACT - 1)
    return np.asarray(scipy.special.ndtri((bits + 0.5) * 2.0 ** -(EXACT + 1))).reshape(shape)


class Flood:
    """Answers of one key holder.

    Emulated answers have a stream each, named by its number, so that a repeated audit repeats them.
    Answers of a real key must not: who knows the seed would take the flooding off.

    Args:
        seed, party: name the streams; a seed of None takes the operating system's randomness.
        bits: the noise has standard deviation 2 ** -bits.
    """

    def __init__(self, seed: int | None, party: str, bits: int = FLOOD_BITS) -> None:
        self.seed, self.party, self.bits = seed, party, bits

    def noise(self, answer: int, *shape: int) -> Array:
        """F for the numbers of one answer."""
        if self.seed is None:
            return draw_normal(*shape) * 2.0**-self.bits
        rng = numpy_generator(self.seed, "he", self.party, "flood", answer)
        return rng.standard_normal(shape) * 2.0**-self.bits

    def answer(self, x: Array, answer: int = 0) -> Array:
        """`x` as it may leave: x + F on the grid."""
        return self.snap(x + self.noise(answer, *x.shape))

    def snap(self, x: Array) -> Array:
        """The nearest multiples of 2 ** -(bits + GRID): no low bits of a sum of floats leave."""
        step = 2.0 ** -(self.bits + GRID)
        return np.asarray(np.rint(x / step) * step)
