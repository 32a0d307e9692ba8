"""Homomorphic encryption that is real: CKKS through TenSEAL, and the audit of what stays visible.

`ckks` (keys, ciphertexts, arithmetic), `flood` (noise on decrypted answers), `interactive` (the two
roles of the interactive layer), `process` (the roles as processes of their own), `links` (the same
inside training, real and emulated), `cost` (seconds and bytes), `visibility` (who sees what).
Nothing here is imported by the rest of the package unless a scenario asks for encryption; TenSEAL
is installed wherever its wheels exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vflsec.runtime.lazy_names import lazy_names

if TYPE_CHECKING:
    from vflsec.core.visibility import claim
    from vflsec.he.ckks import KeyPair, Parameters, PublicKey
    from vflsec.he.interactive import ActiveRole, PassiveRole
    from vflsec.he.visibility import visibility_table

__all__ = [
    "ActiveRole", "KeyPair", "Parameters", "PassiveRole", "PublicKey", "claim", "visibility_table",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__)
