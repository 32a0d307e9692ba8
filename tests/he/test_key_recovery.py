"""The secret key from decrypted answers: found in the exchange without flooding, not in ours."""

from __future__ import annotations

import numpy as np
import pytest
from key_recovery import (
    attack,
    ciphertexts,
    decrypt,
    is_ternary,
    rescaled,
    symmetric,
)
from sampled import sampled

from vflsec.errors import CiphertextError, ConfigError, ShapeError
from vflsec.he.blocks import layout
from vflsec.he.ckks import KeyPair, Parameters, PublicKey
from vflsec.he.flood import (
    MARGIN,
    Flood,
    advantage,
    check_answers,
    divergence,
    margin,
    noise_bits,
)
from vflsec.he.interactive import ActiveRole, PassiveRole
from vflsec.plugins import registry

pytest.importorskip("tenseal")

RNG = np.random.default_rng(5)
N = 4096


@pytest.mark.parametrize(
    ("mask_bits", "scale_bits", "own"),
    sampled([(8, 40, 1.0), (14, 40, 1.0), (16, 30, 1.0), (16, 36, 1.0), (16, 40, 0.0)]),
)
def test_unflooded_answers_give_key_and_embeddings(
    mask_bits: int, scale_bits: int, own: float
) -> None:
    """One full forward pass and two output columns; `own` = 0: the mask's owner chose it so."""
    keys = KeyPair(Parameters(8192, (60, scale_bits, 60), scale_bits))
    public = PublicKey(keys.public_bytes)
    h, w = RNG.normal(size=(N, 3)), RNG.normal(size=(3, 2))
    mask = own * RNG.normal(size=(N, 2)) * 2.0**mask_bits
    sealed = keys.encrypt(h)  # passive -> active
    product = rescaled(public, sealed, w, mask)  # active -> passive
    answer = keys.decrypt(product)  # passive -> active
    ring, key = attack(keys.public_bytes, product, answer)
    assert is_ternary(key)
    found = np.stack([decrypt(ring, key, c) for c in ciphertexts(sealed, "rows")], axis=1)
    assert np.sqrt(np.mean((found - h) ** 2)) < 2.0 ** (
        11 - scale_bits
    )  # the largest is heavy-tailed


CORNERS = [  # of what is accepted: degree, bits, scale_bits, mask_bits, flood_bits, own
    (8192, (60, 50, 50, 58), 50, 16, 12, 1.0),
    (8192, (60, 50, 50, 58), 50, 16, 12, 0.0),
    (8192, (60, 50, 50, 58), 50, 8, 19, 0.0),
    (8192, (60, 40, 60), 40, 8, 9, 1.0),
    (8192, (60, 40, 60), 40, 16, 1, 0.0),
    (8192, (60, 32, 60), 32, 24, 1, 0.0),
    (4096, (53, 36, 20), 36, 13, 6, 0.0),
    (16384, (60, 54, 54, 60), 54, 8, 22, 0.0),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("degree", "bits", "scale_bits", "mask_bits", "flood_bits", "own"), sampled(CORNERS)
)
def test_flooded_answers_do_not(
    degree: int, bits: tuple[int, ...], scale_bits: int, mask_bits: int, flood_bits: int, own: float
) -> None:
    """The attack gets more than the protocol gives: all slots of two columns, its mask at will.

    It needs every coefficient to less than 1/2; flooding leaves each far beyond. Where exact
    answers would have given the key, they do: a double holds 53 bits, so at a scale of 2^54 each
    coefficient is off by up to 0.25 for columns of norm 1, and by more in proportion.
    """
    parameters = Parameters(degree, bits, scale_bits)
    check_answers(parameters, mask_bits, flood_bits)
    keys = KeyPair(parameters)
    public = PublicKey(keys.public_bytes)
    n = parameters.slots
    h, w = RNG.normal(size=(n, 3)), RNG.normal(size=(3, 2))
    w /= np.linalg.norm(w, axis=0)
    mask = own * RNG.normal(size=(n, 2)) * 2.0**mask_bits
    sealed = keys.encrypt(h)
    once, now = rescaled(public, sealed, w, mask), public.matmul(sealed, w, mask)
    exact = keys.decrypt(once)
    flooded = Flood(0, "p", flood_bits).answer(exact, 0)
    off = [symmetric((flooded - exact)[:, j] * 2.0**scale_bits, degree) for j in range(2)]
    assert np.std(off) > 2.0 ** (MARGIN + 4)
    assert not is_ternary(attack(keys.public_bytes, once, flooded)[1])
    answer = Flood(0, "p", flood_bits).answer(keys.decrypt(now), 1)
    assert not is_ternary(attack(keys.public_bytes, now, answer)[1])
    if own == 0 or mask_bits + scale_bits <= 54:
        assert is_ternary(attack(keys.public_bytes, once, exact)[1])


@pytest.mark.parametrize("degree", sampled([4096, 8192, 16384]))
def test_noise_is_below_its_bound(degree: int) -> None:
    """What flooding is sized against, for columns of norm 4: the bound holds, and is not idle."""
    bits, scale = ((53, 36, 20), 36) if degree == 4096 else ((60, 50, 50, 58), 50)
    keys = KeyPair(Parameters(degree, bits, scale))
    w = RNG.normal(size=(100, 2))
    w *= 4 / np.linalg.norm(w, axis=0)
    zeros = np.zeros((degree // 2, 100))
    noise = keys.decrypt(keys.matmul(keys.encrypt(zeros), w, zeros[:, :2])).std()
    assert 2.0**-3 < noise * 2.0 ** (scale - noise_bits(degree)) < 1


def test_half_the_slots_are_answered_at_most() -> None:
    passive = PassiveRole(None, 0, "p")
    with pytest.raises(ShapeError, match=r"at most 2048, got 2049"):
        passive.embed(np.zeros((2049, 1)))
    passive.embed(np.zeros((8, 1)))
    active = ActiveRole(passive.public(), 0, "p")
    active.load(np.ones((1, 2)), np.zeros(2))
    other = KeyPair.encrypt(passive.keys, np.zeros((4096, 1)))
    with pytest.raises(CiphertextError, match="8 rows of the batch, got 4096"):
        passive.open(active.forward(other))
    with pytest.raises(ShapeError, match="at most 2048, got 2049"):
        layout(1, 2049, 4096)


@pytest.mark.parametrize(
    ("bits", "scale_bits", "mask_bits", "flood_bits", "rule"),
    [
        ((60, 40, 60), 40, 16, 10, "flood_bits must be at most 9 for N=8192"),
        ((60, 30, 60), 30, 16, 1, "flood_bits must be another encoding"),
        ((60, 40, 60), 40, 17, 9, r"mask_bits \+ scale_bits must be at most 56 for N=8192"),
        ((60, 50, 50, 58), 50, 28, 12, r"mask_bits \+ flood_bits must be at most 39"),
        ((60, 50, 50, 58), 50, 7, 12, r"mask_bits must be an integer in \[8, 52\]"),
        ((60, 50, 50, 58), 50, 16, 0, r"flood_bits must be an integer in \[1, 52\]"),
    ],
)
def test_what_does_not_fit_is_refused(
    bits: tuple[int, ...], scale_bits: int, mask_bits: int, flood_bits: int, rule: str
) -> None:
    with pytest.raises(ConfigError, match=rule):
        check_answers(Parameters(8192, bits, scale_bits), mask_bits, flood_bits)
    for name in ("he_embedding", "he_gradient"):
        with pytest.raises(ConfigError, match=rule):
            registry.defenses.create(
                name, {"bits": bits, "scale_bits": scale_bits, "mask_bits": mask_bits,
                       "flood_bits": flood_bits},
            )  # fmt: skip


def test_the_bits_that_are_stated() -> None:
    """The figures of docs/he.md and of the docstring."""
    p = Parameters()
    assert margin(p, 12) == 23
    assert divergence(p, 12) == 2.0**-35
    assert np.log2(advantage(p, 12, 10_000)) == pytest.approx(-11.4, abs=0.05)
    assert advantage(p, 19, 10**9) > 2 * advantage(p, 12, 10**9)


@pytest.mark.parametrize("seed", [0, None])
def test_flooding_is_gaussian_on_a_grid_and_fresh(seed: int | None) -> None:
    """The divergence is of a Gaussian: its size, and nothing finer than the grid leaves."""
    flood = Flood(seed, "p", 12)
    x = RNG.normal(size=(2048, 8)) * 2.0**16
    noise = (flood.answer(x, 0) - x) * 2.0**12
    k = noise.size
    assert abs(noise.std() - 1) < 4 / np.sqrt(2 * k)
    assert abs(noise.mean()) < 4 / np.sqrt(k)
    assert abs(np.mean(np.abs(noise) < 1) - 0.6827) < 4 * np.sqrt(0.22 / k)
    steps = flood.answer(x, 0) * 2.0 ** (12 + 10)
    assert (steps == np.rint(steps)).all()
    other = (flood.answer(x, 1) - x) * 2.0**12
    assert abs(np.mean(noise * other)) < 4 / np.sqrt(k)
    again = Flood(seed, "p", 12).answer(x, 0)  # a seed repeats it, the operating system never does
    assert np.array_equal(again, flood.answer(x, 0)) == (seed is not None)
