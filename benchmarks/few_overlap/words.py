"""Numbers as tables; no outcome is written here that was not computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from evidence_pages import table as lines_of

from few_overlap.parts import Claim, Part, Probe
from few_overlap.run import Found
from few_overlap.worlds import World
from vflsec.audit import relative_improvement
from vflsec.audit.intervals import t_interval

EQUAL = 0.02
BASE = "FedSplitNN"

Results = Mapping[str, Mapping[str, Found]]
"""{key of a world: {title of a row: what it came to}}."""


def show(values: Sequence[float], digits: int = 3) -> str:
    """Mean and half width of the 95 % t interval."""
    if not values:
        return "–"
    low, high = t_interval(values)
    half = 0.0 if low is None or high is None else (high - low) / 2
    return f"{np.mean(values):.{digits}f} ± {half:.{digits}f}"


def table(part: Part, results: Results) -> list[str]:
    """Utility, cost and leakage of every row in every world of a part."""
    swept = any(f.chosen for found in results.values() for f in found.values())
    head = ["data, aligned rows", "algorithm", "metric", "test"]
    head += ["RelImp over Local, %"] * bool(part.reference) + ["epoch kept"] * part.epochs
    head += ["MB", "data messages"]
    head += [f"{', '.join([p.title, *p.metrics[:1]])} (advantage)" for p in part.probes]
    rows = []
    for world in part.worlds:
        found = results[world.key]
        for title, f in found.items():
            cells = [world.key, title, world.metric, show(f.utility)]
            if part.reference:
                same = title == part.reference
                cells.append("–" if same else lift(found, title, part.reference))
            cells += [f"{np.mean(f.kept):.1f}"] * part.epochs
            cells += [show(f.megabytes, 2), f"{np.mean(f.messages):.0f}"]
            rows.append([*cells, *(leak(f, p) for p in part.probes), *[f.chosen] * swept])
    return lines_of([*head, *["chosen"] * swept], rows)


def sizes(worlds: Mapping[str, tuple[World, Mapping[str, int]]]) -> list[str]:
    """How many rows there are, and who holds what."""
    head = ["data, aligned rows", "training rows of each party", "validation rows", "test rows",
            "who holds what"]  # fmt: skip
    keys = ("local:active", "validation", "test")
    return lines_of(head, (
        [key, *(str(rows[k]) for k in keys), world.data.words]
        for key, (world, rows) in worlds.items()
    ))  # fmt: skip


def lift(found: Mapping[str, Found], title: str, reference: str) -> str:
    """RelImp in percent, mean and half width over seeds."""
    pairs = zip(found[title].utility, found[reference].utility, strict=True)
    return show([100 * relative_improvement(a, b) for a, b in pairs], 1)


def leak(found: Found, probe: Probe) -> str:
    value, advantage = found.leaks.get(probe.title, ([], []))
    return f"{show(value)} ({show(advantage)})" if value else "–"


def judge(claim: Claim, found: Mapping[str, Found]) -> tuple[str, str]:
    """The paired difference with its interval, and the word for it."""
    d = np.subtract(found[claim.better].utility, found[claim.worse].utility)
    if not d.any():
        return "0", "the same"
    low, high = t_interval(d)
    assert low is not None
    assert high is not None
    figures = f"{d.mean():+.3f} [{low:+.3f}, {high:+.3f}]"
    if claim.equal:
        if max(abs(low), abs(high)) <= EQUAL:
            return figures, "confirmed"
        return figures, "refuted" if low > 0 or high < 0 else "undecided"
    return figures, "confirmed" if low > 0 else "refuted" if high < 0 else "undecided"


def judged(part: Part, results: Results) -> dict[Claim, dict[str, tuple[str, str]]]:
    """The figures and the word for every claim in every world."""
    titles = next(iter(results.values()))
    return {
        c: {key: judge(c, found) for key, found in results.items()}
        for c in part.claims
        if c.better in titles and c.worse in titles
    }


def claims(found: Mapping[Claim, Mapping[str, tuple[str, str]]]) -> list[str]:
    """The orderings as a table: over all worlds, then each."""
    points = list(next(iter(found.values()), ()))
    rows = [
        [c.text, c.source or "ours, not published", overall([word for _, word in at.values()]),
         *(f"{figures} {word}" for figures, word in at.values())]
        for c, at in found.items()
    ]  # fmt: skip
    return lines_of(["ordering", "source", "over all", *points], rows) if rows else []


def overall(found: Sequence[str]) -> str:
    """The verdict on a claim over all worlds."""
    yes, no = "confirmed" in found, "refuted" in found
    if yes and no:
        return "mixed"
    word = "confirmed" if yes else "refuted" if no else "undecided"
    return word if word == "undecided" or set(found) == {word} else f"{word} in part"


def span(values: Sequence[float], digits: int = 3) -> str:
    """``0.1 to 0.3``, or one number."""
    low, high = (f"{v:.{digits}f}" for v in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def ratios(results: Results, title: str) -> list[float]:
    """Bytes in training over those of FedSplitNN, world by world."""
    return [
        float(np.mean(f[title].megabytes) / np.mean(f[BASE].megabytes)) for f in results.values()
    ]


def costs(results: Results, published: Mapping[str, str]) -> list[str]:
    """Bytes and data messages against FedSplitNN's, by row, over all worlds.

    `published` says what the papers have, by the beginning of a title.
    """
    if any(BASE not in found for found in results.values()):
        return []
    rows = []
    for title, row in next(iter(results.values())).items():
        if title != BASE and np.sum(row.megabytes):
            count = [float(np.mean(f[title].messages)) for f in results.values()]
            known = next((text for t, text in published.items() if title.startswith(t)), "")
            rows.append([title, span(ratios(results, title), 2), span(count, 0), known])
    return lines_of(["algorithm", "bytes, FedSplitNN = 1", "data messages", "published"], rows)


def after_the_teacher(results: Results) -> list[str]:
    """What passive parties receive in the last stage of FPD and JPL."""
    alone = [
        f for found in results.values() for t, f in found.items() if t.startswith(("FPD", "JPL"))
    ]
    received = sum(sum(f.told) for f in alone)
    quiet = sum(any(a.startswith("cluster") for a, _ in f.silent) for f in alone)
    return [
        f"In stage `student` passive parties received {received:.0f} bytes in all seeds of the "
        f"{len(alone)} rows of FPD and JPL, and `cluster` had nothing to work on in {quiet} of "
        "them. The active party keeps an embedding of every aligned row.", "",
    ]  # fmt: skip


def selection(results: Results) -> list[str]:
    """JPL with its epoch chosen by loss and by AUC."""
    rows = []
    for key, found in results.items():
        a, b = found.get("JPL"), found.get("JPL, epoch by AUC")
        if a is not None and b is not None:
            early = f"{np.sum(np.less(a.kept, b.kept))} of {len(a.kept)}"
            rows.append([key, early, f"{np.mean(a.utility):.3f}", f"{np.mean(b.utility):.3f}"])
    head = ["data, aligned rows", "seeds in which loss keeps an earlier epoch than AUC",
            "test AUC by loss", "by AUC"]  # fmt: skip
    return lines_of(head, rows) if rows else []
