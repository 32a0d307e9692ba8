"""SARIF 2.1.0 (OASIS standard, 2020): failed and inconclusive gates, for code scanning.

A result points at the gate's line in the scenario. FAIL has level ``error``; INCONCLUSIVE has
``warning``; a PASS that warns has ``note``. The rule is the metric that a gate asks about; one
whose gates all passed has no result.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.parse import quote

from vflsec.audit.gate import Verdict
from vflsec.audit.gate_selection import strip_label
from vflsec.audit.point import Identity
from vflsec.audit.summary import Summary
from vflsec.report.first_screen import describe_attacker, list_attacks, list_codes
from vflsec.report.sanitize import clean
from vflsec.report.taxonomies import FAMILIES, group_members, list_extensions, list_references
from vflsec.report.verdicts import GATE_RULE, format_titles, hash_identity
from vflsec.runtime.typed_values import write_plain

Json = dict[str, Any]
"""An object of the log."""

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVEL = {"FAIL": "error", "INCONCLUSIVE": "warning"}


def build_sarif(summary: Summary) -> Json:
    """The verdicts of a summary as a SARIF log."""
    asked = list(dict.fromkeys(v.gate.metric for v in summary.gates))
    tags = {metric: _tags(metric, summary) for metric in asked}
    rules = [
        _rule(m) | ({"relationships": list_references(tags[m])} if tags[m] else {}) for m in asked
    ]
    named = {tag for of in tags.values() for tag in of}
    results = [
        _result(v, name, asked.index(v.gate.metric), summary)
        for v, name in zip(summary.gates, format_titles(summary.gates), strict=True)
        if v.verdict in _LEVEL or v.warning
    ]
    driver = {
        "name": "vflsec",
        "version": clean(summary.versions["vflsec"]),
        "informationUri": "https://pypi.org/project/vflsec/",
        "rules": rules,
    }
    invocation = {
        "executionSuccessful": bool(summary.complete),
        "exitCode": summary.exit_code,
    }
    run = {
        "tool": {"driver": driver, "extensions": list_extensions(named)},
        "invocations": [invocation],
        "columnKind": "unicodeCodePoints",
        "results": results,
        "properties": {
            "scenarioHash": clean(summary.scenario_hash),
            "attacker": clean(describe_attacker(summary)),
            "data": {clean(k): clean(v) for k, v in summary.data.items()},
            "claims": list_codes(summary),
        },
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _tags(metric: str, summary: Summary) -> list[str]:
    """Entries of taxonomies that the families of the attacks under gates on a metric have."""
    of = group_members(summary.families)
    found: dict[str, None] = {}
    for v in summary.gates:
        if v.gate.metric == metric:
            names = {strip_label(n) for n in list_attacks(v, summary)}
            for family in FAMILIES:
                if names & set(of[family.name]):
                    found |= dict.fromkeys(family.tags)
    return list(found)


def _rule(metric: str) -> Json:
    asked = _ASKED.get(metric, f"what attacks reach in {metric}")
    return {
        "id": f"vflsec/{metric}",
        "name": "PrivacyGate",
        "shortDescription": {"text": f"A limit on {asked}"},
        "fullDescription": {"text": GATE_RULE},
        "help": {"text": GATE_RULE},
        "defaultConfiguration": {"level": "error"},
    }


_ASKED = {
    "advantage": "what attacks gain over their baselines",
    "utility": "how well the system does its own task",
    "utility_drop": "what a defense costs in utility",
    "epsilon_lower": "the epsilon that is measured",
}


_PROPERTIES = (
    "rule", "detail", "warnings", "value", "low", "high", "threshold", "n",
    *(f.name for f in fields(Identity)),
)  # fmt: skip
"""Fields of a verdict that a result has."""


def _uri(file: str) -> str:
    """Relative to the checkout; absolute of a file outside it; of none, what stands in the results.

    A code host shows no file for an absolute one, where a relative one might name another.
    """
    path = Path(file or "scenario.resolved.toml")
    return path.as_uri() if path.is_absolute() else quote(path.as_posix(), safe="/.-_~")


def _result(v: Verdict, name: str, index: int, summary: Summary) -> Json:
    line = max(int(v.gate.line), 1) if summary.scenario_file else 1
    return {
        "ruleId": f"vflsec/{v.gate.metric}",
        "ruleIndex": index,
        "level": _LEVEL.get(v.verdict, "note"),
        "message": {"text": f"{v.verdict}: {name}. {clean(v.reason)}"},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": _uri(clean(summary.scenario_file))},
                    "region": {"startLine": line},
                }
            }
        ],
        "partialFingerprints": {"vflsecGate/v1": hash_identity(v, name)},
        "properties": {
            key: clean(value) if isinstance(value, str) else write_plain(value)
            for key in _PROPERTIES
            if (value := getattr(v, key)) is not None
        },
    }
