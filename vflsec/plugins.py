"""Code of users that an audit runs: where it is found."""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["importable"]


def importable(base: Path) -> None:
    """Let the user's own modules, which lie beside the scenario, be imported."""
    folder = str(base.resolve())
    if folder not in sys.path:
        sys.path.append(folder)
