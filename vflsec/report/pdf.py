"""Pages as PDF files, printed by a browser of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from vflsec.errors import MissingDependencyError, VflsecError

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "msedge")
_SECONDS = 120


def print_pages(pages: Iterable[Path]) -> list[Path]:
    """The PDF of each page, beside it.

    Raises:
        MissingDependencyError: no browser is there.
        VflsecError: it printed nothing.
    """
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise MissingDependencyError(
            "--pdf: needs Chromium, Chrome or Edge. Install one, or print the page in any browser."
        )
    root = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    made = []
    for page in pages:
        out = page.resolve().with_suffix(".pdf")
        with TemporaryDirectory() as profile:
            words = [browser, "--headless", "--disable-gpu", "--no-pdf-header-footer", *root,
                     f"--user-data-dir={profile}", f"--print-to-pdf={out}",
                     page.resolve().as_uri()]  # fmt: skip
            try:
                failed = subprocess.run(words, capture_output=True, timeout=_SECONDS).returncode
            except subprocess.TimeoutExpired:
                failed = 1
        if failed or not out.is_file():
            raise VflsecError(f"--pdf: {browser} could not print {page}.")
        made.append(out)
    return made
