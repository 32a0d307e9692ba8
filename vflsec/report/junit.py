"""JUnit XML: one test case for each verdict, for the test view of a CI server.

FAIL is a ``failure``; INCONCLUSIVE is an ``error``, because a server shows what is skipped as
harmless. A PASS that warns does so in the suite's output, for a case has no place for it, and so do
leaks that no gate limits and messages that no attack reads. Elements stand in the order of the
Apache Ant schema, which every reader accepts.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from vflsec.audit.gate import Verdict
from vflsec.audit.summary import Summary
from vflsec.report.coverage import find_older, list_unread
from vflsec.report.first_screen import describe_attacker, list_codes
from vflsec.report.numbers import format_number
from vflsec.report.sanitize import clean
from vflsec.report.ungated_leaks import describe_unjudged
from vflsec.report.verdicts import count_outcomes, find_unfinished, format_titles


def junit_xml(summary: Summary) -> str:
    """The verdicts of a summary as a JUnit document."""
    verdicts = summary.gates
    n = count_outcomes(verdicts)
    missing = not summary.complete
    totals = {
        "tests": str(len(verdicts) + missing),
        "failures": str(n["FAIL"]),
        "errors": str(n["INCONCLUSIVE"] + missing),
    }
    seconds = f"{summary.cost.run_seconds or 0:.3f}"
    root = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(
        root, "testsuite",
        {
            "name": clean(f"vflsec {summary.name}"), "package": "vflsec", "id": "0",
            "timestamp": summary.when or "1970-01-01T00:00:00", "hostname": "localhost",
            **totals, "skipped": "0", "time": seconds,
        },
    )  # fmt: skip
    names = format_titles(verdicts)
    _add_properties(suite, summary, names)
    for v, name in zip(verdicts, names, strict=True):
        case = ElementTree.SubElement(
            suite, "testcase",
            {"name": name, "classname": clean(f"vflsec.{summary.name}"), "time": "0"},
        )  # fmt: skip
        if v.verdict != "PASS":
            kind = "failure" if v.verdict == "FAIL" else "error"
            found = {"message": clean(v.reason), "type": v.verdict}
            ElementTree.SubElement(case, kind, found).text = _body(v)
    if missing:
        whole = {
            "name": "everything that was planned is measured",
            "classname": "vflsec",
            "time": "0",
        }
        why = find_unfinished(summary)
        case = ElementTree.SubElement(suite, "testcase", whole)
        ElementTree.SubElement(case, "error", {"message": why, "type": "UNFINISHED"}).text = why
    named = zip(verdicts, names, strict=True)
    warned = [f"warning: {name}: {v.warning}" for v, name in named if v.warning]
    unsaid = [*find_older(summary), *describe_unjudged(summary), *list_unread(summary)]
    said = [clean(line) for line in [*warned, *unsaid, *(f.text for f in summary.findings)]]
    ElementTree.SubElement(suite, "system-out").text = "\n".join(said)
    ElementTree.SubElement(suite, "system-err").text = ""
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode", xml_declaration=False)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _add_properties(suite: ElementTree.Element, summary: Summary, names: Sequence[str]) -> None:
    """What was audited and how, with the rule and the warnings of each verdict."""
    properties = ElementTree.SubElement(suite, "properties")
    facts = {
        "scenario_hash": summary.scenario_hash,
        "confidence": summary.confidence,
        "device": summary.device,
        "attacker": describe_attacker(summary),
        **{f"version.{k}": v for k, v in summary.versions.items()},
        **{f"data.{k}": v for k, v in summary.data.items()},
        **list_codes(summary),
    }
    for v, name in zip(summary.gates, names, strict=True):
        facts |= {f"rule.{name}": v.rule, f"warnings.{name}": " ".join(v.warnings)}
    for name, value in facts.items():
        pair = {"name": clean(name), "value": clean(value)}
        ElementTree.SubElement(properties, "property", pair)


def _body(v: Verdict) -> str:
    lines = [clean(v.reason)]
    for name, figure in (("value", v.value), ("low", v.low), ("high", v.high)):
        lines += [] if figure is None else [f"{name}: {format_number(figure, limit=v.threshold)}"]
    facts = {"threshold": v.threshold, "seeds": v.n, **v.identity.as_dict()}
    lines += [f"{name}: {clean(fact)}" for name, fact in facts.items() if fact not in ("", None)]
    return "\n".join(lines)
