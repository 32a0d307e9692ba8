"""The page docs/evidence/seeds.md, from figures by seed; nothing is trained."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pandas as pd
from evidence_pages import opening, table

from seeds.claims import CEILINGS, CLAIMS, FRESH, HEAVY, SYSTEMS, WIDENED, WORLDS, Claim
from seeds.figures import SHORT, bytes_of, caps, counted, first, reached, to_target, utility
from seeds.run import ENCRYPTED
from seeds.verdict import RULE, WORDS, Effect, judged
from seeds.why import why
from vflsec.audit.intervals import t_interval

__all__ = ["effects", "page"]

PROTECTIONS: dict[str, tuple[str, float | None]] = {
    "none": ("iso", 0.0), "iso 5": ("iso", 5.0), "label-DP 1": ("label_dp", 1.0),
    "HE": ("he_embedding", None),
}  # fmt: skip
"""Defense and strength; None for one that is on or off."""

BESIDE = "it sends embeddings that no encrypted layer takes in"


def effects(found: pd.DataFrame, claim: Claim) -> dict[str, Effect]:
    """What every data set that was tried says of a claim."""
    figure = {"cap": caps, "bytes": to_target}.get(claim.figure, utility)
    paper = claim.effect
    if claim.figure == "bytes":
        paper = (math.log(paper[0]), math.log(paper[1]))
    paired: dict[str, tuple[list[float], list[float]]] = {}
    for name in [n for n, w in WORLDS.items() if w.family == claim.family]:
        better, worse = (counted(figure(found, name, t), name) for t in (claim.better, claim.worse))
        seeds = [s for s in better.index if s in worse.index]
        if seeds:
            paired[name] = better[seeds].tolist(), worse[seeds].tolist()
    tries = max(1, sum(WORLDS[n].real and len(b) > 1 for n, (b, _) in paired.items()))
    return {
        name: judged(
            better, worse, paper, room=_room(found, name, claim),
            tries=tries if WORLDS[name].real else 1,
        )
        for name, (better, worse) in paired.items()
    }  # fmt: skip


def _room(found: pd.DataFrame, name: str, claim: Claim) -> float | None:
    """How far the worse system with everything it lacks is above it."""
    ceiling = CEILINGS.get(claim.worse)
    if ceiling is None or claim.figure != "main":
        return None
    above, below = (utility(found, name, t) for t in (ceiling, claim.worse))
    seeds = [s for s in above.index if s in below.index]
    return float((above[seeds] - below[seeds]).mean()) if seeds else None


def page(found: pd.DataFrame, seeds: int) -> str:
    """The page as Markdown."""
    told = {claim: effects(found, claim) for claim in CLAIMS}
    held = [_share(e) for e in told.values()]
    every, some = held.count(1.0), sum(0 < h < 1 for h in held)
    return "\n".join([
        *opening(
            "The papers' claims, where they can show",
            "Do the headline claims of the five source papers hold on other data? Each was tried "
            f"with {seeds} paired seeds{_single(found)}. Of {len(CLAIMS)} headline claims {every} "
            f"hold on every real data set tried, {some} on some, {len(held) - every - some} on "
            "none.",
            [
                "`python benchmarks/evidence_seeds.py`, from [seeds.csv](seeds.csv).",
                RULE,
                "Settings of each system were chosen by the mean of the main task on validation "
                "rows; no test value was looked at for that. A category has a vector by the number "
                "of codes (`embedding = 0`) where a world names no width. CAP is the mean over "
                "noise of 1, 5 and 25 of main task x (1 - accuracy of model completion). Bytes are "
                "those of the "
                f"shortest training that comes within {SHORT:g} of the best validation AUC of "
                "FedSplitNN, over rates and epochs by seed, and are compared as ratios; a seed "
                f"that never comes there counts with its longest training. {WIDENED}"
                f"{_reseeded(found)}",
            ],
        ),
        "## One line for each claim", "",
        *table(["paper", "claim", "effect [interval] on every real data set", "the paper",
                "holds on"], (_line(found, c, e) for c, e in told.items())),
        "## All data sets", "",
        "*Room* is how far the worse system would be above itself with everything it lacks: "
        "all labels, all aligned rows, or (of Local) the teacher, which needs the partner.", "",
        *table(["claim", "where", "effect [interval]", "room", "verdict"],
               (row for c, e in told.items() for row in _details(found, c, e))),
        *why(found),
        *_section(LEAKS, _leaks(found)),
        *_section(PROBES, _probes(found)),
        "## Data sets", "",
        *table(["where", "data"], ([n, w.words.removeprefix(f"{n}: ")] for n, w in WORLDS.items()
                                  if (found.world == n).any())),
    ])  # fmt: skip


def _reseeded(found: pd.DataFrame) -> str:
    """What was run again because it was open, and which seeds count there."""
    out = []
    for name, least in FRESH.items():
        more = found[(found.world == name) & (found.seed >= least)].seed.nunique()
        if more:
            out.append(
                f" On {name} claims were open after {least} seeds; {more} further ones were run, "
                "and these alone count there."
            )
    return "".join(out)


LEAKS = (
    "## What each system gives away",
    "",
    "*Labels*: the strongest attack by a passive party with 80 labelled rows, on training rows. "
    "*Columns*: what the active party infers of the others' columns with 50 labelled rows (R²). "
    "Beside each: its advantage over the strongest baseline. `embedding_inversion` read the last "
    "embeddings alone when these values were made. It reads all now, and finds as much or more "
    "undefended: 0.51 for 0.40 (FedSplitNN) and 0.47 for 0.25 (FedBCD) on credit, counted; 0.61 "
    "for 0.54 (VFL) on credit, 200 aligned.",
    "",
    "| where | system | protection | main task | labels to passive | advantage | columns to "
    "active | advantage | bytes |",
    "|---|---|---|---|---|---|---|---|---|",
)
PROBES = (
    "## What pre-training alone holds",
    "",
    "The passive party's encoder is frozen after pre-training and gets a head from 80 labelled "
    "rows (model completion at that moment). Test rows; the advantage is over all baselines.",
    "",
    "| where | system | head on the frozen encoder | advantage |",
    "|---|---|---|---|",
)


def _section(head: Sequence[str], rows: Iterator[str]) -> list[str]:
    """A heading with its table; where there are no figures, that says so."""
    lines = list(rows)
    return [*head, *lines, ""] if lines else [head[0], "", "Not measured in this run.", ""]


def _share(told: dict[str, Effect]) -> float:
    """On which share of its real data sets a claim holds, at the paper's size or smaller."""
    some = _judged(told)
    return sum(e.word != WORDS[2] for e in some) / max(1, len(some))


def _judged(told: dict[str, Effect]) -> list[Effect]:
    """Those of real data sets with more than one seed."""
    return [e for k, e in told.items() if WORLDS[k].real and e.low is not None]


def _single(found: pd.DataFrame) -> str:
    """Which data sets have one seed alone, where any has."""
    alone = [n for n in sorted(HEAVY) if found[found.world == n].seed.nunique() == 1]
    return f" ({', '.join(alone)}: one, which decides nothing)" if alone else ""


def _said(claim: Claim) -> str:
    if claim.figure == "bytes":
        return f"{claim.better} reaches what {claim.worse} reaches with fewer bytes"
    what = "CAP of " if claim.figure == "cap" else ""
    fewer = f", at {claim.bytes:.0f} times fewer bytes" if claim.bytes else ""
    return f"{what}{claim.better} > {claim.worse}{fewer}"


def _interval(claim: Claim, effect: Effect) -> str:
    if effect.low is None or effect.high is None:
        return f"{effect.mean:+.3f}"
    if claim.figure == "bytes":
        mean, low, high = (math.exp(v) for v in (effect.mean, effect.low, effect.high))
        return f"1/{mean:.2f} of the bytes [1/{low:.2f}, 1/{high:.2f}]"
    return f"{effect.mean:+.3f} [{effect.low:+.3f}, {effect.high:+.3f}]"


def _never(found: pd.DataFrame, name: str, claim: Claim) -> str:
    """In how many seeds the better system never reaches the target of bytes."""
    if claim.figure != "bytes":
        return ""
    there, _ = reached(found, name, claim.better)
    return f" ({int(there.isna().sum())} of {len(there)} seeds never come there)"


def _reason(effect: Effect) -> str:
    return effect.word + (f": {effect.reason}" if effect.reason else "")


def _plain(value: float) -> str:
    """With three decimals, or four where the fourth is printed."""
    text = f"{value:+.4f}"
    return text.removesuffix("0")


def _line(found: pd.DataFrame, claim: Claim, told: dict[str, Effect]) -> list[str]:
    low, high = claim.effect
    paper = f"{_plain(low)} to {_plain(high)} ({claim.source})"
    if claim.figure == "bytes":
        paper = f"1/{low:.2f} to 1/{high:.2f} ({claim.source})"
    shown = []
    for name, effect in told.items():
        if WORLDS[name].real:
            fewer = ""
            if claim.bytes:
                ratio = bytes_of(found, name, claim.worse) / bytes_of(found, name, claim.better)
                fewer = f", {ratio:.0f} times fewer bytes"
            shown.append(f"{name}: {_interval(claim, effect)}{fewer}")
    words = [e.word for e in _judged(told)]
    smaller = words.count(WORDS[1])
    holds = f"{words.count(WORDS[0]) + smaller} of {len(words)}"
    if smaller:
        holds += f" ({smaller} smaller)"
    return [claim.paper, _said(claim), "; ".join(shown), paper, holds if words else "not tried"]


def _where(name: str) -> str:
    return name if WORLDS[name].real else f"{name} (drawn)"


def _details(found: pd.DataFrame, claim: Claim, told: dict[str, Effect]) -> Iterator[list[str]]:
    for name, effect in told.items():
        room = _room(found, name, claim)
        shown = f"{_interval(claim, effect)}{_never(found, name, claim)}"
        beyond = "" if room is None else f"{room:+.3f}"
        yield [_said(claim), _where(name), shown, beyond, _reason(effect)]


def _leaks(found: pd.DataFrame) -> Iterator[str]:
    for name in [n for n in WORLDS if (found.world == n).any()]:
        for title, system in SYSTEMS[WORLDS[name].family].items():
            every = first(found[(found.world == name) & (found.system == title)], name)
            some = every[every.stage == "leakage"]
            if some.empty and system.audited:
                yield f"| {name} | {title} | | not measured | | | | | |"
            if 0 < some.seed.nunique() < every.seed.nunique():
                title = f"{title} ({some.seed.nunique()} seeds)"
            for word, (defense, strength) in PROTECTIONS.items() if len(some) else ():
                at = some[some.defense.str.startswith(defense)]
                at = at if strength is None else at[at.strength == strength]
                if len(at):
                    yield f"| {name} | {title} | {word} | {' | '.join(_cells(at))} |"
                elif defense == ENCRYPTED["name"]:
                    why = "not measured" if system.encrypted else f"cannot: {BESIDE}"
                    yield f"| {name} | {title} | {word} | {why} | | | | | |"


def _probes(found: pd.DataFrame) -> Iterator[str]:
    """What a head on an encoder reaches that no label has touched."""
    some = found[(found.stage == "leakage") & (found.defense == "iso") & (found.strength == 0)]
    some = some[(some.phase == "pretrain") & (some.split == "test")]
    some = some[some.attack.str.startswith("model_completion")]
    for (name, title), at in some.groupby(["world", "system"], sort=False):
        at = first(at, str(name))
        at = at[at.metric == ("auc" if (at.metric == "auc").any() else "accuracy")]
        yield f"| {name} | {title} | {_mean(at.value)} | {_mean(at.advantage)} |"


def _cells(at: pd.DataFrame) -> Iterator[str]:
    """Main task, labels and columns with what is above controls, bytes."""
    main = at[(at.attack == "") & (at.split == "test")]
    main = main[main.phase == main.phase.iloc[-1]]
    main = main[main.metric == ("auc" if (main.metric == "auc").any() else "accuracy")]
    yield _mean(main.value)
    for target in ("label", "feature"):
        tried = at[(at.target == target) & (at.split == "train")]
        metrics = [m for m in ("auc", "accuracy", "r2") if (tried.metric == m).any()]
        tried = tried[tried.metric == metrics[0]] if metrics else tried[:0]
        if tried.empty:
            yield from ("not observable", "")
            continue
        by = tried.groupby(["phase", "attack", "adversary"])
        one = by.get_group(by.advantage.mean().idxmax())
        yield f"{_mean(one.value)} ({one.attack.iloc[0].split('(')[0]})"
        yield _mean(one.advantage)
    yield f"{main.bytes.mean():,.0f}"


def _mean(values: pd.Series) -> str:
    low, high = t_interval(values.to_numpy())
    half = "" if low is None or high is None else f" ± {(high - low) / 2:.3f}"
    return f"{values.mean():.3f}{half}"
