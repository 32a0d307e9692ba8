"""Keys are made once: parameters N = 8192, primes 60, 50, 50, 58, scale 2^50."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def keys():  # type: ignore[no-untyped-def]
    pytest.importorskip("tenseal")
    from vflsec.he.ckks import KeyPair

    return KeyPair()


@pytest.fixture(scope="session")
def public(keys):  # type: ignore[no-untyped-def]
    from vflsec.he.ckks import PublicKey

    return PublicKey(keys.public_bytes)
