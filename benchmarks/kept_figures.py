"""Figures by seed in a CSV file, to which a script of evidence adds what is missing."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import pandas as pd

from vflsec.runtime.atomic_files import write_atomic

Trial = TypeVar("Trial")


def make_parser(about: str | None) -> argparse.ArgumentParser:
    """The options of a script that can be run in parts; its first line is its help."""
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    parser.add_argument("--data", default="")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--only-page", action="store_true")
    return parser


@dataclass(frozen=True)
class Kept:
    """The file at `path`, with the columns `fields`."""

    path: Path
    fields: tuple[str, ...]

    def read(self) -> pd.DataFrame:
        """The figures so far."""
        if not self.path.exists():
            return pd.DataFrame(columns=[*self.fields])
        return pd.read_csv(self.path, keep_default_na=False)

    def fill(
        self,
        trials: Iterable[Trial],
        seeds: Iterable[int],
        minutes: float,
        find: Callable[[pd.DataFrame, Trial], Iterable[int]],
        run: Callable[[Trial, list[int]], pd.DataFrame],
    ) -> None:
        """Run what is missing until so much processor time is used; each is kept once it ended.

        Args:
            trials: what to run.
            seeds: of each.
            minutes: before which a trial begins.
            find: seeds of a trial that are there.
            run: figures of a trial on some seeds.
        """
        for trial in trials:
            missing = sorted(set(seeds) - set(find(self.read(), trial)))
            if missing and time.process_time() < 60 * minutes:
                whole = pd.concat([self.read(), run(trial, missing)], ignore_index=True)
                write_atomic(self.path, partial(whole.to_csv, index=False, lineterminator="\n"))
