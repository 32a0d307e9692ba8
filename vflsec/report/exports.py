"""Files beside the store: tidy results, a machine-readable summary, the resolved scenario.

Every file is written under another name and moved into place, so a reader never meets half a file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyarrow import BufferReader, parquet

from vflsec.audit.exposure import describe_outcomes
from vflsec.audit.facts import collect_costs, describe_datasets, describe_older
from vflsec.audit.image_samples import collect_pictures
from vflsec.audit.leakage_claims import correct, find_claims, find_leaks, find_strongest
from vflsec.audit.point import build_frame, write_points
from vflsec.audit.record import AuditRecord, Recorded
from vflsec.audit.result_row import ResultRow, build_rows
from vflsec.audit.summary import Summary
from vflsec.audit.validated import name_places
from vflsec.errors import EDITED, ConfigError
from vflsec.runtime.atomic_files import json_text, read_bytes, read_text, write_atomic
from vflsec.runtime.typed_values import write_plain
from vflsec.specs import CellResult, hash_value

if TYPE_CHECKING:
    import pandas as pd

    from vflsec.audit.evaluate import Evaluation

SUMMARY_VERSION = 2
RESULTS = "results.parquet"
POINTS = "points.parquet"
"""What a summary says of every point, one row each: beside ``summary.json``, not in it."""
_ROWS = ("points", "over_time")
_NESTED = ("controls", "exposed")
_RECORDED = (*(f.name for f in fields(Recorded)), "tables", "refused")
"""What a summary takes from the record of an audit as it is."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write_exports(
    folder: Path, scenario: str, frame: pd.DataFrame, summary: Mapping[str, Any]
) -> None:
    """Rewrite the tables of results and points, ``summary.json`` and ``scenario.resolved.toml``.

    Args:
        folder: the results directory.
        scenario: the resolved scenario.
        frame: one row for each measure.
        summary: of :func:`make_summary`.
    """
    made = build_frame([row for key in _ROWS for row in summary[key]])
    made = made.assign(**{c: made[c].map(json.dumps) for c in _NESTED if c in made})
    rest = {key: value for key, value in summary.items() if key not in _ROWS}
    write_atomic(folder / RESULTS, lambda p: _parquet(frame, p))
    write_atomic(folder / POINTS, lambda p: _parquet(made, p))
    text = json_text(rest | {"seal": _seal(rest, (folder / POINTS).read_bytes())})
    write_atomic(folder / "results.csv", lambda p: _harmless(frame).to_csv(p, index=False))
    write_atomic(folder / "summary.json", lambda p: p.write_text(text, encoding="utf-8"))
    resolved = folder / "scenario.resolved.toml"
    write_atomic(resolved, lambda p: p.write_text(scenario, encoding="utf-8"))


def _seal(summary: Mapping[str, Any], points: bytes) -> str:
    """Of what ``summary.json`` holds and the file of points beside it."""
    return hash_value([summary, hashlib.blake2b(points).hexdigest()])


def _parquet(frame: pd.DataFrame, path: Path) -> None:
    path.write_bytes(frame.to_parquet(index=False))  # by its name it would have to be UTF-8


def _harmless(frame: pd.DataFrame) -> pd.DataFrame:
    """A frame whose texts no spreadsheet takes for formulas: such a text gets a quote before it.

    ``results.parquet`` holds the texts as they are.
    """
    from pandas.api.types import is_numeric_dtype

    texts = [c for c in frame.columns if not is_numeric_dtype(frame[c])]
    return frame.assign(**{c: frame[c].map(_quoted) for c in texts})


def _quoted(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def make_summary(
    record: AuditRecord,
    evaluation: Evaluation,
    results: Sequence[CellResult],
    seconds: float | None,
    worked: float = 0.0,
) -> dict[str, Any]:
    """The summary as plain values that JSON can hold (missing numbers are null)."""
    trained = [r for r in results if r.facts.versions]  # what they were trained with
    points, level = evaluation.points, record.level
    rows = write_points([*points, *evaluation.over_time])
    verdicts = evaluation.verdicts
    claimed = [] if evaluation.partial else correct(points, verdicts, level)
    claims = find_claims(claimed, verdicts, level)
    summary: dict[str, Any] = write_plain(
        {
            "schema_version": SUMMARY_VERSION,
            **{key: getattr(record, key) for key in _RECORDED},
            "versions": {
                name: _several(r.facts.versions.get(name, now) for r in trained) or now
                for name, now in record.versions.items()
            },
            "made_before": describe_older((r.facts.versions for r in trained), record.versions),
            "device": _several(r.device for r in trained) or record.device,
            "scenario": record.scenario_toml,
            "parties": describe_datasets(record, results),
            "confidence": level,
            "cells": {"planned": len(record.wanted), "finished": len(results)},
            "curves": evaluation.curves,
            "improvements": evaluation.improvements,
            "points": rows[: len(points)],
            "leaks": find_leaks(claims),
            "strongest": find_strongest(claims),
            "over_time": rows[len(points) :],
            "dosing": evaluation.dosing,
            "labels": evaluation.labels,
            "pictures": collect_pictures(record, results),
            "grid": evaluation.grid,
            "alive": {
                name: evaluation.validated[place]
                for name, place in name_places(evaluation.validated, record.grants).items()
            },
            "gates": evaluation.verdicts,
            "findings": evaluation.findings,
            "visibility": describe_outcomes(
                record.visibility, evaluation.rows, float(level), record.grants
            ),
            "cost": {
                "training_seconds": sum(r.seconds for r in results),
                "cpu_seconds": _cpu(results, worked),
                "run_seconds": seconds,
                "points": collect_costs(record, results),
            },
        }
    )
    return summary


def _several(values: Iterable[str]) -> str:
    return ", ".join(sorted({*values}))


def _cpu(results: Sequence[CellResult], worked: float) -> float | None:
    """Seconds that processors worked on all cells, or on the last run if that is more; None where
    some were not timed.
    """
    spent = [s for r in results if (s := r.facts.cpu_seconds) is not None]
    return max(float(sum(spent)), worked) if len(spent) == len(results) else None


def load_summary(folder: Path) -> dict[str, Any]:
    """The summary in a results directory, with its points.

    Raises:
        ConfigError: there is none, it is of another version, or not what vflsec wrote.
    """
    path = folder / "summary.json"
    try:
        found = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        remedy = "Name a folder that `vflsec audit` wrote."
        raise ConfigError.unreadable(path, error, remedy) from None
    version = found.get("schema_version") if isinstance(found, dict) else None
    if version != SUMMARY_VERSION:
        raise ConfigError(
            f"{path}: schema_version must be {SUMMARY_VERSION}, got {version!r}. Run `vflsec "
            "audit` again."
        )
    try:
        table = read_bytes(folder / POINTS)
    except OSError as error:
        raise ConfigError(
            f"{path}: stands without its {POINTS} ({error}). Name the folder of both."
        ) from None
    if found.pop("seal", None) != _seal(found, table):
        raise ConfigError(f"{path}: is not what vflsec wrote: {EDITED}. Run `vflsec audit` again.")
    kept: dict[str, list[dict[str, Any]]] = {key: [] for key in _ROWS}
    for row in parquet.ParquetFile(BufferReader(table)).read().to_pylist():
        row |= {name: json.loads(row[name]) for name in _NESTED if name in row}
        kept["over_time" if "@" in row["phase"] else "points"].append(row)
    return found | kept | {"command": locate_results(found, folder)}


def load_rows(folder: Path) -> Callable[[], Sequence[ResultRow]]:
    """The measures in a results directory as it is now, read as rows when they are asked for."""
    held = BufferReader(read_bytes(folder / RESULTS))
    return lambda: build_rows(parquet.ParquetFile(held).read().to_pylist())


def locate_results(summary: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """What commands about an audit name, its results being where they are read now."""
    return {**(summary.get("command") or {}), "folder": str(folder)}


def write_reports(folder: Path, summary: Summary) -> None:
    """Write the HTML reports, ``summary.md``, ``junit.xml`` and ``results.sarif``.

    Args:
        folder: where; it must exist.
        summary: of the audit.

    Raises:
        ConfigError: the folder cannot be written.
    """
    from vflsec.report.build import build_report
    from vflsec.report.html import render_page, render_statement
    from vflsec.report.junit import junit_xml
    from vflsec.report.markdown import render_markdown
    from vflsec.report.sarif import build_sarif
    from vflsec.report.tree import View

    report = build_report(summary, View.PAGE, View.STATEMENT, View.SUMMARY)
    texts = {
        "report.html": render_page(report),
        "statement.html": render_statement(report),
        "summary.md": render_markdown(report),
        "junit.xml": junit_xml(summary),
        "results.sarif": json_text(build_sarif(summary)),
    }
    for name, text in texts.items():
        write_atomic(folder / name, partial(Path.write_bytes, data=text.encode("utf-8")))
