"""Dictionary: a large family of simple functions of a row's messages, each tested exactly.

A function says 1 or 0 of a row, or nothing. Of the known rows of a class (n1) and of the others
(n0) on which it says something it is 1 on a and on b, and
    p = P(|A / n1 - B / n0| >= |a / n1 - b / n0|),  A ~ Binomial(n1, s), B ~ Binomial(n0, s),
with s its share among all rows, or among known rows where p is larger then. It survives where p
times the functions tried (Bonferroni over FUNCTIONS, weighted: 1/10 of the level for marks, 1/10
for the plain ones, 8/10 for all others, and split among the classes) is at most LEVEL. What tells
two classes apart in full has p = 2^-19 with 20 known rows, and survives among 20,000.
Survivors whose log p is at least 0.8 of the least add up their log likelihood ratios, a cut of a
real value one that rises with the value. Where none survives all scores are equal.

Tried, of each message, of the mean message, of mean sizes and of what most visits say:
    marks    values of some rows 8 robust standard deviations off the median, and their signs
    plain    signs; entries, sizes, length, sum and number of zeros above five quantiles; place of
             the row in its batch and of the batch in its epoch (bits, remainders, ends, quarters),
             parity of ids beside it; how often and when the row came; exact zeros, -0.0, numbers
             that are not finite
    others   products of two and of three signs; which of two entries is larger, and which of all is
             largest or smallest, by value or size; a sign xor a bit of the row id, or the parity of
             the place or of the batch; the eight lowest bits that vary; remainders by 2 to 12 of
             numbers on a grid; signs of the rows before and after, and products with them
Of wide messages the 64 entries of largest mean square are looked at, 32 of them in pairs, 16 in
threes. Single epochs are tried as far as the level lets them, evenly spread, the last one first;
places in 20 of them.

Attacker: any passive party that receives messages of rows; uses neither own columns nor shares.
Needs: known rows of two classes, and for a rare mark one label more, of a row of its choice.
Does not work: on sums over many weak entries (`gradient_completion` adds them up); on products of
four signs, or of three entries that are not among the largest; on products of signs and two bits;
on ids or an order by them, which hold without a message; on lengths of a batch's other messages,
codes over several rows, changes between epochs (`message_completion`); on a mark that fewer than
ten known rows have, of several classes; on a leak in an epoch that is not among those tried.

Source: exact tests of many 0/1 functions are this package's own; tests of real values cut at
quantiles: Brown and Mood, "On median tests for linear hypotheses", Berkeley Symposium 1951; sum
over weighted levels: Genovese, Roeder, Wasserman, "False discovery control with p-value weighting",
Biometrika 2006; log likelihood ratios of 0/1 marks: Fellegi and Sunter, JASA 1969.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from vflsec.attacks.message_completion import TWO_CLASSES, ReadsMessages
from vflsec.inference import row_functions as functions
from vflsec.inference.batch_order import compute_gap_chance
from vflsec.inference.row_functions import FAMILIES, Family, Index, Messages, Signs, Visit
from vflsec.plugin import Guess, Plain, View, registry
from vflsec.specs import ORIENTED_BY

ALIASES = ("simple_functions",)
FAMILY = "counts"

LEVEL = 0.05
"""Chance that a function survives where none says anything of the label."""
WEIGHTS = {"marks": 0.1, "plain": 0.1, "others": 0.8}
PLAIN = ("sign", "value above", "place", "visits", "zero")
SINGLE = tuple(f for f in FAMILIES if f.single)
EVERY = "place"
"""The family that is tried in every epoch, for one alone may be in order."""
MOST, LEAST = 20_000, 2_000
"""Functions that are tried, and that are tried even if known rows are too few for so many."""
SAMPLE = 400
"""Rows on which shares, cuts and medians are read, beside the known ones."""
NEAR, KEPT = 0.8, 32
"""Log p of a survivor that counts, in shares of the least, and how many do."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Block:
    """Functions of a family in one version, their values on some rows, and what ids alone say."""

    family: Family
    version: int
    index: NDArray[Any]
    values: Signs
    id_part: Signs
    tier: str


@dataclass(frozen=True)
class Survivor:
    """A function that tells a class of the known rows from the others."""

    family: Family
    version: int
    index: NDArray[Any]
    p: float
    corrected: float
    yes: float
    no: float


@registry.attack
@dataclass(frozen=True)
class Dictionary(ReadsMessages):
    """Hyper-parameters: those of an attack on every message of a kind."""

    silent: ClassVar[bool] = True
    seconds: ClassVar[float] = 0.3

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        granted, classes = view.require_known(), view.facts.classes
        messages = Messages(view.received(self.kind, "all+"))
        known = granted.rows.cpu().numpy()
        there = np.isin(known, messages.rows)
        labels = granted.labels.cpu().numpy()[there]
        if len(np.unique(labels)) < 2:
            raise self.lacks(TWO_CLASSES, len(np.unique(labels)))
        at = np.searchsorted(messages.rows, known[there])
        some = torch.randperm(len(messages.rows), generator=rng)[:SAMPLE].numpy()
        with np.errstate(all="ignore"):  # messages may hold anything
            blocks = _blocks(messages, np.concatenate([at, some]), _most(labels))
            found = _survivors(blocks, labels, [1] if classes == 2 else range(classes))
            scores = _scores(messages, found, classes)
            bit = None if found or classes > 2 else functions.find_mark(messages)
        keep = ~np.isin(messages.rows, known)
        best = min((s for of in found.values() for s in of), key=lambda s: s.p, default=None)
        notes: dict[str, Plain] = {
            "tried": sum(b.values.shape[1] for b in blocks),
            "survived": sum(map(len, found.values())),
            "best": "nothing" if best is None else best.family.name,
            "p": 1.0 if best is None else best.corrected,
        }
        if bit is not None and (asked := keep & (bit != 0)).any():
            scores = bit
            notes |= {"best": "mark", ORIENTED_BY: int(messages.rows[asked][0])}
        return Guess(self.target, messages.rows[keep], scores[keep], notes=notes)


def _most(labels: NDArray[np.int64]) -> int:
    """How many functions may be tried for one that tells all known rows to survive."""
    share = np.bincount(labels).max() / len(labels)
    sure = 2 * max(share, 0.5) ** len(labels)
    return int(np.clip(LEVEL * WEIGHTS["others"] / sure, LEAST, MOST))


def _varying(
    family: Family, version: int, visit: Visit, index: Index, values: Signs, folded: bool
) -> Block:
    """Functions that are not the same on all rows looked at; of equal marks the first."""
    use = np.flatnonzero((values == 1).any(0) & (values == 0).any(0))
    tier = "plain" if folded and family.name in PLAIN else "others"
    if family.name == "outlying value":
        tier = "marks"
        use = use[np.sort(np.unique(values[:, use], axis=1, return_index=True)[1])]
    index, values = index[use], values[:, use]
    return Block(family, version, index, values, family.id_part(visit, index, values), tier)


def _blocks(messages: Messages, at: NDArray[np.int64], most: int) -> list[Block]:
    """All functions that are tried and their values at some rows (r,), chosen without a label."""
    epochs, out = messages.wire.epochs, list(_over_epochs(messages, at))
    last = messages.visit(at, epochs - 1)
    sizes = {family.name: len(family.index(last)) for family in SINGLE}
    left = most - sum(sizes.values()) - sizes[EVERY] * len(messages.folded)
    left -= sum(b.values.shape[1] for b in out)
    chosen = functions.spread_evenly(epochs, max(1, left // sum(sizes.values())))
    return out + list(_in_epochs(messages, at, chosen))


def _over_epochs(messages: Messages, at: NDArray[np.int64]) -> Iterator[Block]:
    """Functions of means, of mean sizes and of visits."""
    for version in (functions.MEAN, functions.SIZE, functions.VISITS):
        visit = messages.visit(at, version)
        again = version == functions.MEAN and messages.wire.epochs == 1
        for family in FAMILIES:
            if version in family.on and not (again and family.single):
                index = family.index(visit)
                yield _varying(family, version, visit, index, family.of(visit, index), True)


def _in_epochs(messages: Messages, at: NDArray[np.int64], chosen: list[int]) -> Iterator[Block]:
    """Functions of the messages of single epochs, and of what most of them say."""
    once, votes = messages.wire.epochs == 1, dict[str, Any]()
    for epoch in sorted({*chosen, *messages.folded}):
        visit = messages.visit(at, epoch)
        for family in SINGLE:
            tried = epoch in chosen or family.name == EVERY
            voting = not once and family.voted and epoch in messages.folded
            if tried or voting:
                index = family.index(visit)
                values = family.of(visit, index)
            if tried:
                yield _varying(family, epoch, visit, index, values, once)
            if voting:
                votes[family.name] = functions.encode_votes(values) + votes.get(family.name, 0)
    for family in SINGLE:
        if family.name in votes:
            values = functions.decide_votes(votes[family.name])
            yield _varying(family, functions.EACH, visit, family.index(visit), values, True)


def _survivors(
    blocks: list[Block], labels: NDArray[np.int64], asked: Any
) -> dict[int, list[Survivor]]:
    """By class the functions that tell it from the others, the surest first."""
    tried = dict.fromkeys(WEIGHTS, 0)
    for block in blocks:
        tried[block.tier] += block.values.shape[1]
    used = sum(w for tier, w in WEIGHTS.items() if tried[tier])
    factors = [tried[b.tier] * len(asked) * used / WEIGHTS[b.tier] for b in blocks]
    sizes = [b.values.shape[1] for b in blocks]
    every, by_id = (np.hstack([getattr(b, k) for b in blocks]) for k in ("values", "id_part"))
    yes, no = ((every == v).astype(np.float32) for v in (1, 0))
    ends, factor = np.cumsum(sizes), np.repeat(factors, sizes)
    found: dict[int, list[Survivor]] = {}
    for c in asked:
        counts, p = _told(yes, no, labels == c, factor)
        p[~functions.find_beyond(p, every, by_id, labels == c, LEVEL / factor)] = np.inf
        best = np.argsort(p, kind="stable")[: min(KEPT, int(np.isfinite(p).sum()))]
        for k in best[np.log(p[best]) <= NEAR * np.log(p[best[:1]])]:
            of = int(np.searchsorted(ends, k, side="right"))
            block, at = blocks[of], k - (ends[of] - sizes[of])
            a, b, n1, n0 = (float(x[k]) for x in counts)
            ones, others = (a + 0.5) / (n1 + 1), (b + 0.5) / (n0 + 1)
            up, down = np.log(ones / others), np.log((1 - ones) / (1 - others))
            what = block.family, block.version, block.index[at : at + 1], float(p[k])
            found.setdefault(c, []).append(Survivor(*what, float(p[k] * factor[k]), up, down))
    return found


def _told(
    yes: NDArray[np.float32], no: NDArray[np.float32], mine: NDArray[np.bool_], factor: Floats
) -> tuple[tuple[Floats, ...], Floats]:
    """Of each function the known rows of a class and of others that say yes and that say anything,
    (K,) each, and its chance p (K,), infinite of one that does not survive among `factor`.
    """
    q, many = len(mine), len(yes)
    sets = np.zeros((3, many), np.float32)  # the class, the others, rows that are not known
    sets[0, :q], sets[1, :q], sets[2, q:] = mine, ~mine, 1
    a, b, most = (sets @ yes).astype(np.float64)  # whole numbers
    n1, n0, all_ = (a, b, most) + (sets @ no).astype(np.float64)
    share, here = most / np.maximum(all_, 1), (a + b) / np.maximum(n1 + n0, 1)
    gap = np.abs(a / np.maximum(n1, 1) - b / np.maximum(n0, 1))
    error = share * (1 - share) * (1 / np.maximum(n1, 1) + 1 / np.maximum(n0, 1))
    p = np.full(len(gap), np.inf)
    at = np.flatnonzero((n1 > 0) & (n0 > 0) & (gap**2 >= 9 * error) & (gap > 0))
    every = (x[at].tolist() for x in (gap, n1.astype(int), n0.astype(int), share, here))
    cases = zip(*every, strict=True)
    p[at] = [max(compute_gap_chance(*of, s), compute_gap_chance(*of, h)) for *of, s, h in cases]
    p[p * factor > LEVEL] = np.inf
    return (a, b, n1, n0), p


def _scores(messages: Messages, found: dict[int, list[Survivor]], classes: int) -> Floats:
    """Scores (n,) of two classes, or (n, C): mean log likelihood ratios; 0 where nothing is."""
    at = np.arange(len(messages.rows))
    out = np.zeros((len(at), classes))
    alike: dict[tuple[int, str], list[tuple[int, Survivor, float]]] = {}
    for c, survivors in found.items():
        for s in survivors:
            alike.setdefault((s.version, s.family.name), []).append((c, s, 1 / len(survivors)))
    visit: Visit | None = None
    for (version, _), of in sorted(alike.items(), key=lambda item: item[0]):  # one visit at a time
        family, index = of[0][1].family, np.concatenate([s.index for _, s, _ in of])
        if version == functions.EACH:
            values = functions.most_visits(messages, at, family, index)
        else:
            if visit is None or visit.version != version:
                visit = messages.visit(at, version)
            values = family.of(visit, index)
        for (c, s, weight), column in zip(of, values.T, strict=True):
            out[:, c] += weight * _evidence(s, visit, column)
    return out[:, 1] if classes == 2 else out


def _evidence(s: Survivor, visit: Visit | None, values: NDArray[np.int8]) -> Floats:
    """The log likelihood ratio (n,) of what a survivor says of each row."""
    step = (values == 1).astype(np.float64)
    if s.family.value is not None and visit is not None:
        x = s.family.value(visit, s.index[0])
        rank = np.searchsorted(np.sort(x[values >= 0]), x) / max((values >= 0).sum(), 1)
        step = (step + rank) / 2
    return np.where(values >= 0, s.no + (s.yes - s.no) * step, 0.0)
