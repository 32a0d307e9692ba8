"""The report as one HTML file: no script, no network, figures inside.

The same summary gives the same bytes. Names that users gave are escaped by jinja2 and freed of
control characters.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vflsec.audit import strongest_attack
from vflsec.audit.controls import leaks
from vflsec.audit.leakage import is_undefended
from vflsec.core.visibility import HEADS, Line, cells
from vflsec.report import advice, coverage, figures, first_screen, threat_model
from vflsec.report.curve import curves, means
from vflsec.report.numbers import against, corrected, interval, number
from vflsec.report.sanitize import clean
from vflsec.report.scores import CAP_MEANS, DCS_MEANS, after, scores
from vflsec.report.tables import MATCHING, matched
from vflsec.report.ungated_leaks import beyond
from vflsec.report.verdicts import beside_verdicts, headline, judged, place, point_of

__all__ = ["html", "render", "svg"]

_TEMPLATE = "report.html.j2"
_INK = "#0a0b0c"  # stands for the page's own text colour
_STYLE: Any = {
    "svg.fonttype": "none", "svg.hashsalt": "vflsec", "font.size": 10.0, "text.color": _INK,
    "axes.labelcolor": _INK, "axes.edgecolor": _INK, "xtick.color": _INK, "ytick.color": _INK,
    "axes.facecolor": "none", "figure.facecolor": "none", "savefig.facecolor": "none",
    "legend.labelcolor": _INK, "grid.color": "#808080", "font.family": ["sans-serif"],
}  # fmt: skip


def html(summary: Mapping[str, Any]) -> str:
    """The report of a summary (`vflsec.report.exports.summary_of`)."""
    return render(
        _TEMPLATE,
        summary,
        judged=judged(summary),
        beyond=beyond(summary),
        steps=advice.next_steps(summary),
        assumed=threat_model.assumed(summary),
        pointers=threat_model.POINTERS,
        datasets=_datasets(summary),
        costs=_costs(summary),
        sealed=_sealed(summary),
        ledger=_ledger(summary),
        matching=MATCHING,
        means=(CAP_MEANS, DCS_MEANS),
        words=threat_model.WORDS,
        trainings=sorted({p["algorithm"] for p in summary["points"] if p["attack"]}),
        visible=[
            e | {"rows": [cells(Line(**line)) for line in e["lines"]]}
            for e in summary.get("visibility", [])
        ],
        heads=[h.capitalize() for h in HEADS],
        choices=_choices(summary),
        findings=beside_verdicts(summary),
        raw=_block(summary.get("scenario", "")),
    )


def render(template: str, summary: Mapping[str, Any], **more: Any) -> str:
    """A page of this folder: names are escaped and cleaned, and what every page says is there.

    Args:
        template: file in this folder.
        summary: of the audit.
        more: what this page needs besides.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(Path(__file__).parent)
    env = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, finalize=lambda x: clean(x) if type(x) is str else x,
    )  # fmt: skip
    env.filters.update(number=number, bytes=_bytes, short=_short, bounds=_bounds, against=against)
    found, how = headline(summary)
    whole = {"tables": {}, "who": "", "when": "", "attacker": None} | dict(summary)
    shared = {
        "s": whole, "verdict": found, "how": how, "scope": first_screen.scope(summary),
        "answers": first_screen.answers(summary), "cheapest": first_screen.cheapest(summary),
        "gaps": coverage.gaps(summary), "families_": coverage.families(summary),
        "messages_": coverage.messages(summary), "bounds": first_screen.bounds(summary),
        "curves": curves(summary), "curve_means": means(summary),
        "each": first_screen.each(summary), "corrected": first_screen.CORRECTED,
        "work": first_screen.work(summary), "attacker": first_screen.attacker(summary),
        "outside": threat_model.OUTSIDE,
        "gates": [v | {"where": point_of(v)} for v in summary["gates"]],
        "threats": threat_model.threats(summary), "guarantees": _guarantees(summary),
    }  # fmt: skip
    return env.get_template(template).render(shared | more)


def _choices(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a strong attacker's settings reached on drawn worlds, where several were tried."""
    return [
        r | {"where": place(r), "before": r["written"] or "what is written cannot run"}
        for r in (summary.get("attacker") or {}).get("choices", [])
    ]


def _block(text: str) -> Any:
    """Several lines of text, cleaned line by line and escaped."""
    from markupsafe import Markup, escape

    return Markup("\n").join(escape(clean(line)) for line in text.splitlines())


def _datasets(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What is shown for each data set: facts, figures, tables."""
    names = dict.fromkeys([*summary["parties"], *(p["dataset"] for p in summary["points"])])
    out = []
    for i, name in enumerate(names):
        rows = figures.points(summary, name) if _has(summary, name) else []
        every = [p for p in strongest_attack.told(summary["points"]) if p["dataset"] == name]
        several = len({p["phase"] for p in every}) > 1
        out.append(
            {
                "name": name,
                "alignment": matched(summary, name),
                "facts": {"parties": [], "classes": None, "labels": [], "seeds": []}
                | summary["parties"].get(name, {}),
                "figures": _figures(summary, name, rows, f"d{i}"),
                "matrix": _matrix(summary, name, every),
                "strongest": _strongest(summary, every),
                "dosing": [_dose(r) for r in summary.get("dosing", []) if r["dataset"] == name],
                "labels": [
                    _label(r)
                    for r in summary.get("labels", [])
                    if r["dataset"] == name and r.get("most")
                ],
                "utility": _utility(summary, name),
                "attacks": [_attack(p, several) for p in every],
                "phases": _phases(summary, name),
                "gaps": _gaps(summary, name),
                "scores": scores(summary, name),
            }
        )
    return out


def _has(summary: Mapping[str, Any], name: str) -> bool:
    return any(
        p["dataset"] == name and p["attack"] and p["status"] == "ok" for p in summary["points"]
    )


def _figures(
    summary: Mapping[str, Any], name: str, rows: Sequence[Mapping[str, Any]], prefix: str
) -> list[dict[str, Any]]:
    if not rows:
        return []
    several = len({(r["defense"], r["strength"]) for r in rows}) > 1
    wanted: list[tuple[str, Callable[..., Any]]] = [
        ("What attacks gain as the defense grows", figures.advantage_by_strength),
        ("Privacy against utility", figures.privacy_utility),
        ("Every attack against every defense", figures.attack_by_defense),
    ]
    if not several:
        wanted = wanted[:1]
    sides = figures.trade_offs(summary, name)
    sent = [p["bytes"] for p in sides]
    if len({p["algorithm"] for p in sides}) > 1 or (sent and max(sent) > 1.05 * min(sent)):
        wanted.append(("Cost, utility and leakage together", figures.cost_utility_leakage))
    if any(r["dataset"] == name for r in summary.get("over_time", [])):
        wanted.append(("Leakage over the epochs", figures.leakage_over_epochs))
    drawn = [p for p in summary.get("pictures", []) if p["dataset"] == name]
    if drawn:
        wanted.append(("Images, and what was made of them", figures.reconstructions))
    out = []
    for i, (title, draw) in enumerate(wanted):
        words = _together(summary, name) if draw is figures.cost_utility_leakage else ""
        words = _pictures(drawn) if draw is figures.reconstructions else words
        alt = f"{title}, {name}. {words or _alt(rows, draw)}"
        out.append({"title": title, "alt": alt, "svg": svg(draw, summary, name, f"{prefix}f{i}")})
    return out


def _alt(rows: Sequence[Mapping[str, Any]], draw: Callable[..., Any]) -> str:
    """The figure in words: the first and the last value of each line."""
    said = []
    for label, line in figures.series(figures.drawn(rows)).items():
        a, b = line[0], line[-1]
        if draw is figures.privacy_utility and len({r["primary"] for r in rows}) == 1:
            text = f"{label}: {number(a['value'])} at a utility of {number(a['utility'])}"
            text += f", {number(b['value'])} at {number(b['utility'])}" if b is not a else ""
        else:
            text = f"{label}: advantage {number(a['advantage'], True)} ({place(a)})"
            text += f" to {number(b['advantage'], True)} ({place(b)})" if b is not a else ""
        said.append(text)
    return "; ".join(said) + "."


def _pictures(drawn: Sequence[Mapping[str, Any]]) -> str:
    """Which images the figure holds."""
    return "; ".join(
        f"{len(p['rows'])} images of {p['party']} and what {p['attack']} by {p['adversary']} made "
        f"of them ({place(p)}), seed {p['seed']}"
        for p in drawn
    ) + "."  # fmt: skip


def _together(summary: Mapping[str, Any], name: str) -> str:
    """The figure of cost, utility and leakage in words: one clause for each training."""
    return "; ".join(
        f"{p['algorithm']} ({place(p)}): {_bytes(p['bytes'])}, {p['utility_metric']} "
        f"{number(p['utility'])}, largest advantage {number(p['advantage'], True)}"
        for p in figures.trade_offs(summary, name)
    ) + "."  # fmt: skip


def svg(draw: Callable[..., Any], data: Any, dataset: str, prefix: str) -> Any:
    """A figure of `vflsec.report.figures` as markup to put inside a page; byte-stable.

    Args:
        draw: the function.
        data: what it takes.
        dataset: which data set.
        prefix: put before every id, so that several figures can share a page.
    """
    import matplotlib as mpl
    from markupsafe import Markup
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # glyphs the page has and matplotlib has not; tight labels
        canvas = FigureCanvasSVG(draw(data, dataset=dataset).figure)
        out = io.StringIO()
        none = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        canvas.print_svg(out, metadata=none)  # draws once; savefig draws a second time for layout
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'<svg [^>]*?viewBox="([^"]+)"[^>]*>', _open, text, count=1)
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r"url\(#", f"url(#{prefix}-", text)
    text = text.replace('xlink:href="#', f'href="#{prefix}-').replace(_INK, "currentColor")
    return Markup(clean_lines(text))


def _open(match: re.Match[str]) -> str:
    width = match.group(1).split()[2]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{match.group(1)}" '
        f'style="width: {float(width) * 1.25:.0f}px" aria-hidden="true" focusable="false">'
    )


def clean_lines(text: str) -> str:
    """Text with every line freed of trailing blanks and control characters."""
    return "\n".join(clean(line).rstrip() for line in text.split("\n"))


def _matrix(
    summary: Mapping[str, Any], name: str, rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Who leaks to whom, on the undefended training: rows whose secret, columns who learns it."""
    if not rows:
        return {}
    parties = summary["parties"].get(name, {}).get("parties", [])
    found = strongest_attack.leaks(rows, summary["confidence"])
    cells = {(strongest_attack.secret(r), r["adversary"]): r for r in found}
    across = list(dict.fromkeys([*parties, *(k[1] for k in cells)]))
    down = []
    for held, victim in {strongest_attack.secret(r): r["victim"] or "" for r in found}.items():
        row = []
        for who in across:
            cell = cells.get((held, who))
            own = bool(victim) and set(victim.split("+")) <= set(who.split("+"))
            value = None if cell is None else cell["advantage"]
            level = 0 if value is None or value <= 0 else min(4, 1 + int(value * 10))
            text = number(value, sign=True) if cell else "its own" if own else "not attacked"
            row.append(
                {
                    "text": text,
                    "level": level,
                    "attack": strongest_attack.named(cell) if cell else "",
                }
            )
        down.append({"name": held, "cells": row})
    return {"across": across, "down": down}


def _strongest(
    summary: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The strongest attacker of each target, as texts."""
    return [
        {
            "secret": strongest_attack.secret(r), "training": r["algorithm"], "defense": place(r),
            "attack": strongest_attack.named(r), "by": r["adversary"],
            "advantage": corrected(r).partition(", of")[0], "tried": r["tried"],
            "leaks": leaks(r["advantage"], r["low"]),
        }
        for r in strongest_attack.strongest(rows, summary["confidence"])
    ]  # fmt: skip


def _utility(summary: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    seen: dict[tuple[Any, ...], dict[str, Any]] = {}
    worst = {
        (p["algorithm"], p["defense"], p["strength"]): p
        for p in (figures.trade_offs(summary, name) if _has(summary, name) else [])
    }
    for p in summary["points"]:
        if p["dataset"] == name:
            key = (p["algorithm"], p["defense"], p["strength"])
            sent, most = p.get("bytes"), worst.get(key)
            bare = is_undefended(p)
            drop = "-" if bare else interval(p, "utility_drop")
            seen.setdefault(
                key,
                {"training": p["algorithm"], "defense": place(p), "metric": p["utility_metric"],
                 "utility": interval(p, "utility"), "drop": drop, "seeds": p["utility_seeds"],
                 "sent": "-" if sent is None else _bytes(sent),
                 "advantage": interval(most, "advantage", sign=True) if most else "-",
                 "attack": f"{most['attack']} by {most['adversary']}" if most else ""},
            )  # fmt: skip
    return list(seen.values())


def _attack(p: Mapping[str, Any], several: bool = False) -> dict[str, Any]:
    return {
        "training": p["algorithm"],
        "defense": place(p),
        "attack": p["attack"] + (after(p) if several else ""),
        "adversary": p["adversary"],
        "split": p["split"],
        "metric": p["primary"],
        "value": interval(p, "value"),
        "control": f"{number(p['control_value'])} ({p['control']})",
        "controls": ", ".join(
            f"{clean(k)} {number(v['control'])}" for k, v in (p.get("controls") or {}).items()
        ),
        "advantage": interval(p, "advantage", sign=True),
        "leaks": leaks(p["advantage"], p["advantage_low"]),
        "rows": p["n"],
    }


def _dose(r: Mapping[str, Any]) -> dict[str, Any]:
    bounds = {"advantage_low": r["low"], "advantage_high": r["high"]}
    return {
        "training": r["algorithm"], "defense": place(r), "attack": r["attack"],
        "by": r["adversary"], "rows": f"{100 * r['share']:g} % {r['split']}",
        "planted": number(r["planted"]), "chance": number(r["chance"]),
        "found": interval({**r, **bounds}, "advantage", sign=True), "shown": r["found"],
    }  # fmt: skip


def _label(r: Mapping[str, Any]) -> dict[str, Any]:
    bounds = {"value": r["value"], "value_low": r["low"], "value_high": r["high"]}
    return {
        "training": r["algorithm"], "defense": place(r), "attack": r["attack"],
        "by": r["adversary"], "rows": r["split"], "labels": r["labels"],
        "left_out": ", ".join(r["left_out"]), "mean": interval(bounds, "value"),
        "own": number(r["control_value"]), "most": r["most"],
        "most_value": f"{number(r['most_value'])} against {number(r['most_control'])}",
    }  # fmt: skip


def _phases(summary: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Leakage as the training goes on, where it was measured after more than one phase."""
    rows = [
        p
        for p in summary["points"]
        if p["dataset"] == name and p["attack"] and p["metric"] == p["primary"]
        and p["status"] == "ok" and is_undefended(p)
    ]  # fmt: skip
    if len({p["phase"] for p in rows}) < 2:
        return []
    return [_attack(p) | {"phase": p["phase"]} for p in rows]


def _gaps(summary: Mapping[str, Any], name: str) -> list[dict[str, str]]:
    """What could not be measured, and why; several adversaries of one attack as one line."""
    found: dict[tuple[str, ...], dict[str, None]] = {}
    for p in summary["points"]:
        if p["dataset"] == name and p["attack"] and (p["status"] != "ok" or p["failed"]):
            status = p["status"] if p["status"] != "ok" else f"error in {p['failed']} seeds"
            found.setdefault((p["attack"], status, p["reason"]), {})[p["adversary"]] = None
    return [
        {"attack": a, "status": s, "reason": r, "adversary": ", ".join(who)}
        for (a, s, r), who in found.items()
    ]


def _costs(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "role": c["role"], "dataset": c["dataset"], "training": c["algorithm"],
            "defense": place(c), "cells": c["cells"], "seconds": c["seconds"],
            "bytes": sum(t["bytes"] for t in c["traffic"]),
            "rounds": sum(t["rounds"] for t in c["traffic"]),
        }
        for c in summary["cost"]["points"]
    ]  # fmt: skip


def _sealed(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What ciphertexts cost, for every point that has any: measured seconds, bytes, batches."""
    out = []
    for c in summary["cost"]["points"]:
        sent = [t for t in c["traffic"] if t["kind"] == "ciphertext"]
        if sent:
            batches = max(t["rounds"] for t in sent)
            size, seconds = sum(t["bytes"] for t in sent), c.get("encryption", {})
            out.append(
                {"dataset": c["dataset"], "defense": place(c), "batches": batches, "bytes": size,
                 "each": size / max(batches, 1), "seconds": seconds,
                 "all": sum(seconds.values()) if seconds else None}
            )  # fmt: skip
    return out


def _ledger(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Messages by direction for one training of every (data, algorithm): the first point of each.

    Where defenses change the traffic, the table of costs shows it.
    """
    out, seen = [], set()
    for c in summary["cost"]["points"]:
        key = (c["dataset"], c["algorithm"])
        if c["role"] == "audit" and key not in seen and c["traffic"]:
            seen.add(key)
            title = f"{c['dataset']}, {c['algorithm']}, {place(c)}"
            out.append({"title": title, "rows": c["traffic"]})
    return out


def _guarantees(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What defenses claim by their accountants, each claim once."""
    out: dict[str, dict[str, Any]] = {}
    for c in summary["cost"]["points"]:
        for g in c["guarantees"]:
            row = {
                "dataset": c["dataset"], "defense": place(g),
                "epsilon": g["epsilon"], "delta": g["delta"], "accountant": g["accountant"],
                "says": g.get("says") or g.get("covers", ""),
            }  # fmt: skip
            if g["epsilon"] is not None or "called" in g or g.get("idle"):
                out.setdefault(str(row), row)
    return list(out.values())


def _short(value: float | None) -> str:
    """Three digits, also of small errors."""
    return "-" if value is None else f"{value:.3g}"


def _bounds(row: Mapping[str, Any], name: str) -> str:
    """A figure of three digits with its bounds, where it has any."""
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    text = _short(row[name])
    return text if low is None or row[name] is None else f"{text} [{_short(low)}, {_short(high)}]"


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
