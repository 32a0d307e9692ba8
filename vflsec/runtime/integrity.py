"""Seals: whether what is read back is what vflsec wrote.

A seal is a hash beside the value. No key is in it, so it finds damage and edits by hand, and is no
proof against somebody who writes vflsec's files with a program of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from vflsec.errors import VflsecError
from vflsec.plugins.loading import describe_error

EDITED = "it was edited or damaged since vflsec wrote it"


@contextmanager
def damage_unless(
    sealed: Callable[[], bool], damaged: Callable[[str], VflsecError]
) -> Iterator[None]:
    """While stored values are judged or shown: what breaks is damage, unless every seal held.

    Results of versions without seals have none, so their values are taken as they are.

    Args:
        sealed: whether all that was read had its seal; then an error is vflsec's own.
        damaged: makes the error to raise.
    """
    try:
        yield
    except VflsecError:
        raise
    except Exception as error:
        if sealed():
            raise
        raise damaged(f"it cannot be read as results: {describe_error(error)}") from error
