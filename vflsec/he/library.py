"""TenSEAL, imported where it is needed."""

from __future__ import annotations

from typing import Any

from vflsec.errors import MissingDependencyError


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
