"""The secret key from decrypted answers: found in the exchange without flooding, not in ours."""

from __future__ import annotations

import numpy as np
import pytest
from key_recovery import attack, ciphertexts, decrypt, is_ternary

pytest.importorskip("tenseal")

from vflsec.he.ckks import KeyPair, Parameters, PublicKey

RNG = np.random.default_rng(5)
N = 4096


@pytest.mark.parametrize(
    ("mask_bits", "scale_bits", "own"),
    [(8, 40, 1.0), (14, 40, 1.0), (16, 30, 1.0), (16, 36, 1.0), (16, 40, 0.0)],
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
    product = public.matmul(sealed, w, mask)  # active -> passive
    answer = keys.decrypt(product)  # passive -> active
    ring, key = attack(keys.public_bytes, product, answer)
    assert is_ternary(key)
    found = np.stack([decrypt(ring, key, c) for c in ciphertexts(sealed, "rows")], axis=1)
    assert np.abs(found - h).max() < 2.0 ** (14 - scale_bits)
