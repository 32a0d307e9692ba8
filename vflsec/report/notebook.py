"""A finished audit that shows itself in a notebook: verdict, gates, findings, curve, table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from vflsec.audit import result, strongest_attack
from vflsec.report import first_screen
from vflsec.report.coverage import gaps
from vflsec.report.numbers import against, interval, number
from vflsec.report.sanitize import clean
from vflsec.report.ungated_leaks import beyond
from vflsec.report.verdicts import beside_verdicts, headline, place, point_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Audit", "html_of"]

_MOST = 20


class Audit(result.Audit):
    """A finished audit.

    Attributes:
        folder: the results directory.
        results: one row for each measure, see `vflsec.audit.leakage.COLUMNS`, and ``role``.
        summary: what ``summary.json`` holds.
        verdicts: one for each gate and point.
        exit_code: 0 passed, 1 a gate failed, 3 inconclusive (or not all was measured).
    """

    @property
    def verdict(self) -> str:
        """``PASS``, ``FAIL``, ``INCONCLUSIVE``, ``NO GATE`` or ``UNFINISHED``, over all gates."""
        return headline(self.summary)[0]

    def plot(self, kind: str = "advantage_by_strength", *, dataset: str | None = None) -> Figure:
        """A figure of the audit.

        Args:
            kind: one of the functions of :mod:`vflsec.report.figures` that draw.
            dataset: which; None takes the first.

        Raises:
            ConfigError: there is no such figure or data set, or no attack ran.
        """
        from vflsec.core import check
        from vflsec.report import figures

        kinds: dict[str, Callable[..., Any]] = {
            f.__name__: f for f in (
                figures.advantage_by_strength, figures.privacy_utility, figures.attack_by_defense,
                figures.cost_utility_leakage, figures.leakage_over_epochs,
            )
        }  # fmt: skip
        draw = kinds[check.one_of("plot: kind", kind, kinds)]
        figure: Figure = draw(self.summary, dataset=dataset).figure
        return figure

    def __repr__(self) -> str:
        found, how = headline(self.summary)
        return f"<Audit of {clean(self.summary['name'])}: {found}. {how} {len(self.results)} rows>"

    def _repr_html_(self) -> str:
        return html_of(self.summary)


def html_of(summary: Mapping[str, Any]) -> str:
    """The summary as a fragment of HTML; every text in it is escaped, nothing in it is loaded."""
    found, _ = headline(summary)
    shown = strongest_attack.told(summary["points"])
    parts = [
        f"<h3>{_text(summary['name'])}: {_text(found)}</h3><p>{_text(first_screen.scope(summary))}</p>"
    ]
    parts.append(
        _list([*first_screen.answers(summary), *first_screen.cheapest(summary), *gaps(summary)])
    )
    if summary["gates"]:
        parts.append(
            _table(
                ("verdict", "gate", "where", "value", "bounds", "why"),
                [
                    (v["verdict"], v["label"], point_of(v), against(v, "value"),
                     f"{against(v, 'low')} to {against(v, 'high')}", v["reason"])
                    for v in summary["gates"]
                ],
            )
        )  # fmt: skip
    findings = beside_verdicts(summary)
    said = [f"Not judged by any gate, and leaking: {line}" for line in beyond(summary)]
    said += [first_screen.each(summary)] * bool(findings)
    said += [*findings, *(f"Note: {note}" for note in summary["notes"])]
    if said:
        parts.append(_list(said[:_MOST]))
    if shown:
        parts.append(_curve(summary, shown))
        parts.append(
            _table(
                ("data", "training", "defense", "attack", "by", "rows", "attack's figure",
                 "control", "advantage"),
                [
                    (p["dataset"], p["algorithm"], place(p), p["attack"], p["adversary"],
                     p["split"], f"{p['metric']} {number(p['value'])}",
                     f"{number(p['control_value'])} {p['control']}",
                     interval(p, "advantage", sign=True))
                    for p in shown[:_MOST]
                ],
            )
        )  # fmt: skip
        if len(shown) > _MOST:
            parts.append(f"<p>{len(shown) - _MOST} more rows are in <code>.results</code>.</p>")
    return f"<div class='vflsec-audit'>{''.join(parts)}</div>"


def _list(said: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{_text(s)}</li>' for s in said)}</ul>"


def _curve(summary: Mapping[str, Any], shown: Sequence[Mapping[str, Any]]) -> str:
    from vflsec.report.figures import advantage_by_strength
    from vflsec.report.html import svg

    prefix = f"n{str(summary['scenario_hash'])[:8]}"
    return str(svg(advantage_by_strength, summary, shown[0]["dataset"], prefix))


def _table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    top = "".join(f"<th>{_text(h)}</th>" for h in head)
    body = "".join(f"<tr>{''.join(f'<td>{_text(c)}</td>' for c in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _text(text: object) -> str:
    return escape(clean(text))
