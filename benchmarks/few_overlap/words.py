"""Numbers as tables and as sentences; no outcome is written here that was not computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from few_overlap.parts import AUXILIARY, Claim, Part, Probe
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


def lines_of(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table in Markdown."""
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head),
            *(f"| {' | '.join(r)} |" for r in rows), ""]  # fmt: skip


def table(part: Part, world: World, found: Mapping[str, Found], sizes: Mapping[str, int]) -> str:
    """Utility, cost and leakage of every row in one world."""
    head = ["algorithm", f"test {world.metric}"]
    head += ["RelImp over Local, %"] * bool(part.reference) + ["epoch kept"] * part.epochs
    head += ["MB", "data messages"]
    head += [f"{p.title} {'/'.join(p.metrics[:1]) or world.metric} (advantage)"
             for p in part.probes]  # fmt: skip
    swept = any(f.chosen for f in found.values())
    head += ["chosen"] * swept
    rows = []
    for title, f in found.items():
        cells = [title, show(f.utility)]
        if part.reference:
            cells.append("–" if title == part.reference else lift(found, title, part.reference))
        cells += [f"{np.mean(f.kept):.1f}"] * part.epochs
        cells += [show(f.megabytes, 2), f"{np.mean(f.messages):.0f}"]
        cells += [leak(f, p) for p in part.probes] + [f.chosen] * swept
        rows.append(cells)
    return "\n".join([
        f"### {world.key} aligned rows", "",
        f"{sizes['local:active']} training rows of each party, {sizes['validation']} validation "
        f"and {sizes['test']} test rows; {world.data.words}.", "", *lines_of(head, rows),
    ])  # fmt: skip


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
        return figures, "refuted" if low > 0 or high < 0 else "not told apart"
    return figures, "confirmed" if low > 0 else "refuted" if high < 0 else "not told apart"


def claims(part: Part, results: Results) -> list[str]:
    """The orderings as a table, and then in words."""
    points, rows, words = list(results), [], []
    for c in part.claims:
        if any(t not in results[points[0]] for t in (c.better, c.worse)):
            continue
        judged = {p: judge(c, results[p]) for p in points}
        rows.append([c.text, *(f"{figures} **{word}**" for figures, word in judged.values())])
        words.append(sentence(c, {p: word for p, (_, word) in judged.items()}))
    if not rows:
        return []
    return [
        "### Orderings", "",
        "Paired difference in test utility by seed, with its 95 % t interval, not corrected for "
        f"the number of comparisons. \"About equal\" is confirmed within {EQUAL}.", "",
        *lines_of(["claim", *points], rows), *words, "",
    ]  # fmt: skip


def sentence(claim: Claim, found: Mapping[str, str]) -> str:
    """One claim in words: the verdict over all worlds, then where."""
    where = {
        word: [p for p in found if found[p] == word]
        for word in ("confirmed", "refuted", "not told apart", "the same")
    }
    yes, no = bool(where["confirmed"]), bool(where["refuted"])
    if yes and no:
        verdict = "Mixed"
    elif yes:
        every = len(where["confirmed"]) == len(found)
        verdict = "Confirmed" if every else "Confirmed in part"
    elif no:
        verdict = "Refuted" if len(where["refuted"]) == len(found) else "Refuted in part"
    else:
        verdict = "Neither confirmed nor refuted"
    told = "; ".join(f"{w} at {' / '.join(at)}" for w, at in where.items() if at)
    source = f" ({claim.source})" if claim.source else " (ours, not published)"
    return f"- {claim.text}{source}. **{verdict}**: {told}."


def span(values: Sequence[float], digits: int = 3) -> str:
    """``0.1 to 0.3``, or one number."""
    low, high = (f"{v:.{digits}f}" for v in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def costs(results: Results, published: Mapping[str, str]) -> list[str]:
    """Bytes and data messages against FedSplitNN's, by row, over all worlds.

    `published` says what the papers have, by the beginning of a title.
    """
    lines = []
    titles = [t for t, f in next(iter(results.values())).items() if np.sum(f.megabytes)]
    for title in titles:
        if title == BASE or any(BASE not in found for found in results.values()):
            continue
        ratio = [
            float(np.mean(f[title].megabytes) / np.mean(f[BASE].megabytes))
            for f in results.values()
        ]
        count = [float(np.mean(f[title].messages)) for f in results.values()]
        known = next((text for t, text in published.items() if title.startswith(t)), "")
        lines.append(
            f"- {title} sends {span(ratio, 2)} times FedSplitNN's bytes, in {span(count, 0)} "
            f"embeddings and gradients.{known and f' Published: {known}.'}"
        )
    return lines


def leakage(part: Part, results: Results) -> list[str]:
    """What every probe comes to, over all rows and worlds, and in which row least."""
    lines = []
    for probe in part.probes:
        seen = {
            (key, title): tuple(float(np.mean(v)) for v in f.leaks[probe.title])
            for key, found in results.items()
            for title, f in found.items()
            if probe.title in f.leaks
        }
        if not seen:
            continue
        least, most = min(seen, key=seen.__getitem__), max(seen, key=seen.__getitem__)
        gain = [a for _, a in seen.values()]
        values = [v for v, _ in seen.values()]
        ends = f"least under {least[1]} at {least[0]}, most under {most[1]} at {most[0]}"
        if max(values) - min(values) < 0.001:
            ends = "the same everywhere"
        lines.append(
            f"- `{probe.title}` by the {probe.by} party: {span(values)}, advantage {span(gain)}; "
            f"{ends}."
        )
    return lines


def _means(rows: Iterable[Found], probe: str, figure: int) -> list[float]:
    """Mean over seeds of a probe's value (figure 0) or advantage (1), for every row."""
    return [float(np.mean(f.leaks[probe][figure])) for f in rows]


def downloads(results: Results) -> list[str]:
    """What the single download of one-shot and few-shot VFL gives away, beside split training."""
    lines = []
    for key, found in results.items():
        both = [f for t, f in found.items() if t.startswith(("One-shot", "Few-shot"))]
        if not both or BASE not in found:
            continue
        value = _means(both, "cluster", 0)
        gain = _means(both, "cluster", 1)
        split, more = (float(np.mean(v)) for v in found[BASE].leaks["cluster"])
        lines.append(
            f"- {key}: `cluster` on the single download reaches {span(value)}, the strongest "
            f"control {span([v - g for v, g in zip(value, gain, strict=True)])}; on all gradients "
            f"of FedSplitNN it reaches {split:.3f} (advantage {more:.3f})."
        )
    return lines


def after_the_teacher(results: Results) -> list[str]:
    """That nothing reaches the partner in the last stage, and what stays at the active party."""
    lines = []
    for key, found in results.items():
        alone = {t: f for t, f in found.items() if t.startswith(("FPD", "JPL"))}
        if not alone:
            continue
        told = sum(sum(f.told) for f in alone.values())
        quiet = sum(any(a.startswith("cluster") for a, _ in f.silent) for f in alone.values())
        stays = _means(alone.values(), "embedding inversion", 0)
        gain = _means(alone.values(), "embedding inversion", 1)
        first = _means(alone.values(), "cluster", 0)
        lines.append(
            f"- {key}: `cluster` on the gradients of stage `teacher` {span(first)}; in stage "
            f"`student` passive parties received {told:.0f} bytes in all seeds of {len(alone)} "
            f"rows, and `cluster` was not observable in {quiet} of {len(alone)}. The active party "
            f"keeps an embedding of every aligned row: with {AUXILIARY} auxiliary rows R^2 "
            f"{span(stays)} on the partner's columns, {span(gain)} above its own means."
        )
    return lines


def selection(results: Results) -> list[str]:
    """Ranking weight x choice of the epoch: epoch kept and test AUC of JPL."""
    rows = []
    for key, found in results.items():
        for title, f in found.items():
            if title.startswith("JPL") and "printed" not in title:
                by = "AUC" if title.endswith("by AUC") else "loss"
                weight = title.partition("ranking ")[2].partition(",")[0] or "1"
                kept = f"{np.mean(f.kept):.1f} ({min(f.kept):.0f} to {max(f.kept):.0f})"
                rows.append([key, weight, by, kept, show(f.utility)])
    if not rows:
        return []
    lines = [
        "### Ranking weight and the choice of the epoch", "",
        "The ranking term moves margins apart, which cross entropy punishes and AUC does not. If "
        "that spoils the choice by validation loss, then loss keeps an earlier and a worse epoch "
        "than AUC does. Mean over seeds of the epoch that was kept (smallest to largest):", "",
        *lines_of(["data", "ranking weight", "epoch by", "epoch kept", "test AUC"], rows),
    ]  # fmt: skip
    for key, found in results.items():
        a, b = found.get("JPL"), found.get("JPL, epoch by AUC")
        if a is None or b is None:
            continue
        early = int(np.sum(np.less(a.kept, b.kept)))
        lines.append(
            f"- {key}: by loss an earlier epoch is kept than by AUC in {early} of {len(a.kept)} "
            f"seeds; test AUC {np.mean(a.utility):.3f} by loss, {np.mean(b.utility):.3f} by AUC."
        )
    return [*lines, ""]
