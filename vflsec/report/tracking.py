"""A finished audit as one MLflow run: verdict, figures, and the reports as its files."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from vflsec.audit.summary import Summary
from vflsec.errors import MissingDependencyError
from vflsec.report import first_screen
from vflsec.report.sanitize import clean
from vflsec.report.verdicts import format_headline, format_place, format_titles

FILES = ("report.html", "statement.html", "summary.json", "points.parquet", "summary.md",
         "scenario.resolved.toml", "results.parquet")  # fmt: skip


def log_audit(folder: Path, summary: Summary, experiment: str) -> str:
    """Log an audit to the store that MLflow is set up for (``MLFLOW_TRACKING_URI``).

    Args:
        folder: the results directory, whose reports become files of the run.
        summary: of the audit.
        experiment: name of the MLflow experiment; made if it is not there.

    Returns:
        the id of the run.

    Raises:
        MissingDependencyError: MLflow is not installed.
    """
    try:
        import mlflow
    except ImportError:
        raise MissingDependencyError(
            "--mlflow: needs MLflow, which is not installed. Install it: "
            "pip install 'vflsec[mlflow]'"
        ) from None
    mlflow.set_experiment(experiment)
    with mlflow.start_run(run_name=clean(summary.name)) as run:
        mlflow.set_tags(list_tags(summary))
        mlflow.log_metrics(list_metrics(summary))
        for name in FILES:
            if (folder / name).is_file():
                mlflow.log_artifact(str(folder / name))
    return str(run.info.run_id)


def list_tags(summary: Summary) -> dict[str, str]:
    """Verdict, what it holds for, and what the audit was of."""
    out = {
        "vflsec.verdict": format_headline(summary)[0],
        "vflsec.scope": clean(first_screen.describe_scope(summary)),
        "vflsec.scenario": clean(summary.scenario_hash),
        "vflsec.version": clean(summary.versions["vflsec"]),
    }
    for v, title in zip(summary.gates, format_titles(summary.gates), strict=True):
        out[_free(out, "vflsec.gate", title)] = clean(v.verdict)
    return out


def list_metrics(summary: Summary) -> dict[str, float]:
    """Means over seeds by point: advantages of attacks in their primary metric, and utility."""
    out: dict[str, float] = {}
    for p in summary.points:
        where: tuple[str, ...] = (clean(p.dataset), clean(p.algorithm), format_place(p))
        figures: dict[str, float | None] = {}
        if p.is_main:
            where += (clean(p.attack), clean(p.adversary), clean(p.split), clean(p.phase))
            gain = p.advantage
            figures = {"advantage": gain.mean, "advantage_low": gain.low,
                       "advantage_high": gain.high}  # fmt: skip
        elif not p.attack and p.metric == p.utility_metric:
            figures = {"utility": p.value.mean}
        for key, value in figures.items():
            if value is not None:
                out[_free(out, key, *where)] = value
    return out


def _free(taken: Collection[str], *parts: str) -> str:
    """A name that MLflow takes, at most 250 letters, digits and a few signs, and that none has.

    Signs that it does not take and what is behind the 250th become alike, so that a second
    ``utility __ 0.9`` would stand in the place of the first.
    """
    name = re.sub(r"[^\w\-. /]", "_", "/".join(x for x in parts if x))
    found, n = name[:250], 1
    while found in taken:
        n += 1
        found = f"{name[:240]} _{n}_"
    return found
