"""Homomorphic encryption that is real: CKKS through TenSEAL, and the audit of what stays visible.

`ckks` (keys, ciphertexts, arithmetic), `flood` (noise on decrypted answers), `interactive` (the two
roles of the interactive layer), `process` (the roles as processes of their own), `links` (the same
inside training, real and emulated), `cost` (seconds and bytes), `visibility` (who sees what).
Nothing here is imported by the rest of the package unless a scenario asks for encryption; TenSEAL
is installed wherever its wheels exist.
"""

from __future__ import annotations

from typing import Any

from vflsec.errors import MissingDependencyError

__all__ = ["tenseal"]


def tenseal() -> Any:
    """The TenSEAL module.

    Raises:
        MissingDependencyError: it is not installed; the message says how to.
    """
    try:
        import tenseal as module
    except ImportError as why:
        raise MissingDependencyError(
            "homomorphic encryption needs the package 'tenseal', which is not installed "
            f"({why}). It has wheels for CPython on Linux (glibc), macOS on arm64 and Windows; "
            "elsewhere build it with: pip install 'vflsec[he]'. Mode 'emulated' runs without it."
        ) from why
    return module
