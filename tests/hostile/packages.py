"""Modules as an installed package's entry points."""

from __future__ import annotations

from pathlib import Path

import pytest

__all__ = ["packaged"]


def packaged(patch: pytest.MonkeyPatch, folder: Path, kind: str, modules: dict[str, str]) -> None:
    """Modules in `folder` as the entry points of a package that looks installed."""
    patch.syspath_prepend(str(folder))
    info = folder / "faulty-1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 1.0\n")
    lines = [f"[vflsec.{kind}s]", *(f"{name} = {name}" for name in modules)]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
