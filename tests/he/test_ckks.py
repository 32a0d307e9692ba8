"""CKKS on matrices: errors, keys, parameters, damage."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from vflsec.errors import CiphertextError, ConfigError, ShapeError
from vflsec.he.blocks import (
    block_sum,
    encrypt_blocks,
    encrypt_columns,
    layout,
    open_rows,
    row_product,
    transposed_product,
)
from vflsec.he.ckks import MAX_BITS, KeyPair, Parameters, PublicKey

pytest.importorskip("tenseal")
RNG = np.random.default_rng(0)
H, W = RNG.normal(size=(40, 6)), RNG.normal(size=(6, 5))


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e3, 1e5])
def test_round_trip_error(keys: Any, scale: float) -> None:
    x = H * scale
    assert np.abs(keys.decrypt(keys.encrypt(x)) - x).max() < 1e-4


def test_sums_and_products(keys: Any, public: Any) -> None:
    sealed = public.encrypt(H)
    two = public.add(sealed, public.encrypt(2 * H))
    assert np.abs(keys.decrypt(two) - 3 * H).max() < 1e-4
    assert np.abs(keys.decrypt(public.add(sealed, H)) - 2 * H).max() < 1e-4
    plus = RNG.normal(size=(40, 5))
    product = public.matmul(sealed, W, plus)
    assert np.abs(keys.decrypt(product) - (H @ W + plus)).max() < 1e-4
    zero = public.matmul(sealed, np.zeros((6, 2)), np.zeros((40, 2)))
    assert np.abs(keys.decrypt(zero)).max() < 1e-4


@pytest.mark.parametrize("rows", [1, 4096])
def test_smallest_and_largest_batch(keys: Any, public: Any, rows: int) -> None:
    x = RNG.normal(size=(rows, 2))
    product = public.matmul(keys.encrypt(x), W[:2])
    assert np.abs(keys.decrypt(product) - x @ W[:2]).max() < 1e-4


@pytest.mark.parametrize(("m", "o"), [(1, 1), (1, 3), (3, 1), (2, 2)])
def test_narrow_matrices(keys: Any, public: Any, m: int, o: int) -> None:
    """A batch of 1 x 1 matrices is packed wrongly by TenSEAL 0.3.18, without an error."""
    x, w, plus = RNG.normal(size=(7, m)), RNG.normal(size=(m, o)), RNG.normal(size=(7, o))
    assert np.abs(keys.decrypt(keys.encrypt(x)) - x).max() < 1e-4
    assert (
        np.abs(keys.decrypt(public.matmul(keys.encrypt(x), w, plus)) - (x @ w + plus)).max() < 1e-4
    )
    assert np.abs(keys.decrypt(public.add(keys.encrypt(x), x)) - 2 * x).max() < 1e-4


def test_a_batch_beyond_the_slots_is_refused(keys: Any) -> None:
    with pytest.raises(ShapeError, match=r"at most 4096, got 4097"):
        keys.encrypt(np.zeros((4097, 1)))
    with pytest.raises(ShapeError, match="finite"):
        keys.encrypt(np.full((2, 2), np.nan))


@pytest.mark.parametrize(("b", "m", "o"), [(1, 1, 1), (3, 4, 5), (700, 8, 3), (5, 2048, 1)])
def test_products_in_blocks(keys: Any, public: Any, b: int, m: int, o: int) -> None:
    rng = np.random.default_rng(b)
    a, g, v = rng.normal(size=(b, m)), rng.normal(size=(b, o)), rng.normal(size=(m, o))
    k, chunks = layout(b, m, 4096)
    assert k * chunks >= b
    mask = rng.normal(size=(o, k * m)) * 2.0**16
    got = block_sum(keys, transposed_product(public, encrypt_blocks(keys, a), g, mask))
    got = got - mask.reshape(o, k, m).sum(1).T
    assert np.abs(got - a.T @ g).max() < 1e-4
    plus = rng.normal(size=(b, m))
    rows = open_rows(keys, row_product(public, encrypt_columns(keys, v, b), g, plus))
    assert np.abs(rows - (g @ v.T + plus)).max() < 1e-4


def test_a_zero_column_is_not_betrayed_by_its_size(keys: Any, public: Any) -> None:
    g = RNG.normal(size=(40, 2))
    g[:, 0] = 0
    sealed = encrypt_blocks(keys, H)
    k, _ = layout(40, 6, 4096)
    _, vectors = keys.load_vectors(transposed_product(public, sealed, g, np.zeros((2, k * 6))))
    a, b = (len(v.serialize()) for v in vectors)
    assert abs(a - b) < 0.01 * b


def test_two_encryptions_differ(keys: Any) -> None:
    assert keys.encrypt(H) != keys.encrypt(H)


def test_the_public_context_cannot_decrypt(keys: Any, public: Any) -> None:
    assert not public._context.has_secret_key()
    assert not hasattr(public, "decrypt")
    _, tensor = public._load(keys.encrypt(H))
    with pytest.raises(ValueError, match="secret"):
        tensor.decrypt()


def test_a_secret_key_sent_as_public_is_refused(keys: Any) -> None:
    from vflsec.he.envelope import fingerprint, pack

    data = keys._context.serialize(
        save_public_key=True, save_secret_key=True, save_galois_keys=False, save_relin_keys=True
    )
    blob = pack("public key", fingerprint(data), (8192, 50, 60, 50, 50, 58), [data])
    with pytest.raises(CiphertextError, match="must hold no secret key"):
        PublicKey(blob)


def test_a_key_pair_does_not_pickle(keys: Any) -> None:
    with pytest.raises(ConfigError, match="must stay in its process"):
        pickle.dumps(keys)


@pytest.mark.parametrize(
    ("degree", "bits"),
    [(4096, (60, 40, 40, 60)), (8192, (60, 40, 40, 40, 60)), (2048, (40, 20, 40))],
)
def test_parameters_beyond_the_table_are_refused(degree: int, bits: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError) as error:
        Parameters(degree, bits, bits[1])
    assert f"at most {MAX_BITS[degree]} bits in all for N = {degree}" in str(error.value)
    assert "4096: 109, 8192: 218, 16384: 438" in str(error.value)


@pytest.mark.parametrize(
    ("bits", "scale", "rule"),
    [((36, 36, 36), 30, "middle primes of scale_bits = 30"), ((60, 60), 40, "three primes"),
     ((40, 40, 60), 40, "first prime of more than 41")],
)  # fmt: skip
def test_parameters_that_go_wrong_silently_are_refused(
    bits: tuple[int, ...], scale: int, rule: str
) -> None:
    with pytest.raises(ConfigError, match=rule):
        Parameters(8192, bits, scale)


def test_what_the_modulus_holds() -> None:
    assert Parameters(8192, (60, 40, 60), 40).room - 40 == 19
    assert Parameters().room - 50 == 59
    assert Parameters().slots == 4096
    assert Parameters().rows == 2048


def test_a_wrong_key_is_an_error(keys: Any) -> None:
    other = KeyPair()
    with pytest.raises(CiphertextError, match=f"must be under key {other.key}, got {keys.key}"):
        other.decrypt(keys.encrypt(H))


@pytest.mark.parametrize("keep", [0, 3, 20, 300, -1])
def test_truncated_ciphertexts_are_errors(keys: Any, keep: int) -> None:
    with pytest.raises(CiphertextError):
        keys.decrypt(keys.encrypt(H[:2, :1])[:keep])


def test_damaged_ciphertexts_are_errors(keys: Any, public: Any) -> None:
    sealed = bytearray(keys.encrypt(H[:2, :1]))
    sealed[-100] ^= 1
    with pytest.raises(CiphertextError, match="digest"):
        keys.decrypt(bytes(sealed))
    with pytest.raises(CiphertextError, match="must hold 'blocks', got 'rows'"):
        public.load_vectors(keys.encrypt(H[:2, :1]))
    with pytest.raises(CiphertextError, match="no envelope"):
        PublicKey(b"x" * 50)
