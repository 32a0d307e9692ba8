"""Every decision is a code: what is said may be reworded, and nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from audited import Planted, audited, gate
from printed import beside_verdicts, headline, junit_xml, next_steps, sarif
from sampled import sampled

from vflsec.audit.findings import Finding
from vflsec.audit.gate import Reason, Verdict
from vflsec.audit.gate_selection import Unanswerable
from vflsec.audit.validated import Validation
from vflsec.report.exports import load_summary

LEAKS = {"norm": 0.3, "model_completion": 0.2}
CASES: dict[str, tuple[Planted, str]] = {
    "exceeded": (Planted(LEAKS), gate(max=0.1)),
    "within": (Planted(LEAKS, {"norm": 0.0, "model_completion": 0.02}),
               gate(max=0.1, defense="defended")),
    "insensitive": (Planted(LEAKS, {"norm": 0.0, "model_completion": 0.02}),
                    gate(max=0.1, defense="defended", detect=0.005)),
    "undecided": (Planted(LEAKS, LEAKS, sd=0.04), gate(max=0.3, attack="norm", strength=5)),
    "reversed_ranking": (Planted(LEAKS, {"norm": -0.5, "model_completion": 0.02}),
                         gate(max=0.1, strength=5)),
    "not_validated": (Planted({"norm": -0.03, "model_completion": -0.04}), gate(max=0.1)),
    "failed_runs": (Planted(LEAKS, fails=["norm"]), gate(max=0.4)),
    "claim_contradicted": (Planted(LEAKS, epsilon=1.0, measured=1.7), gate(max=0.4)),
}  # fmt: skip
SAID = {Reason: ("text",), Validation: ("text",), Finding: ("text",), Unanswerable: ("rule",),
        Verdict: ("reason", "warning")}  # fmt: skip


def shout(patch: pytest.MonkeyPatch) -> None:
    """Let every value that holds a sentence hold it in capitals."""
    for cls, names in SAID.items():
        made = cls.__init__

        def louder(self: Any, *args: Any, made: Any = made, names: Any = names, **kw: Any) -> None:
            made(self, *args, **kw)
            for name in names:
                object.__setattr__(self, name, getattr(self, name).upper())

        patch.setattr(cls, "__init__", louder)


def decided(folder: Path, planted: Planted, text: str) -> tuple[dict[str, Any], str]:
    """What was decided, without a word of what was said; and all that was said."""
    result = audited(folder, planted, text)
    summary = load_summary(result.folder)
    run = sarif(summary)["runs"][0]
    cases = ElementTree.fromstring(junit_xml(summary)).iter("testcase")
    where = str(folder)
    kept = ("verdict", "rule", "detail", "origin", "warnings", "dead", "stuck", "more_seeds",
            "value", "low", "high", "attack")  # fmt: skip
    return {
        "exit": result.exit_code,
        "headline": headline(summary)[0],
        "gates": [{k: v[k] for k in kept} for v in summary["gates"]],
        "alive": {k: (a["alive"], a["code"]) for k, a in summary["alive"].items()},
        "findings": [{**f, "text": ""} for f in summary["findings"]],
        "shown": len(beside_verdicts(summary)),
        "grid": summary["grid"],
        "advice": [step.command.replace(where, "") for step in next_steps(summary)],
        "rules": [rule["id"] for rule in run["tool"]["driver"]["rules"]],
        "results": [(r["ruleId"], r["level"], r["properties"]) for r in run["results"]],
        "junit": [(case.attrib["name"], [part.tag for part in case]) for case in cases],
    }, " ".join(f["text"] for f in summary["findings"])


@pytest.mark.parametrize("rule", sampled(CASES, every=3))
def test_rewording_every_sentence_changes_no_decision(rule: str, tmp_path: Path) -> None:
    planted, text = CASES[rule]
    plain, said = decided(tmp_path / "plain", planted, text)
    with pytest.MonkeyPatch.context() as patch:
        shout(patch)
        loud, shouted = decided(tmp_path / "loud", planted, text)
    assert rule in {v["rule"] for v in plain["gates"]}
    assert loud == plain
    assert shouted == said.upper() != said
