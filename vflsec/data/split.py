"""Which rows train, validate and test: chosen by seed, with sizes that no seed changes.

Every choice is the beginning of a *stratified order*: a random order in which each prefix holds
the classes in proportion. So sizes never depend on the seed, a smaller grant is a subset of a
larger one, and replicas of different seeds can be stacked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vflsec.core import check
from vflsec.core.rng import numpy_generator
from vflsec.data.source import Source
from vflsec.errors import DataError

Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]

LEAST: Mapping[str, int] = {"test": 1, "validation": 2, "train": 2}
"""Fewest rows of each class in a row set; with fewer no metric by class has a meaning."""
_WHOLE = sum(LEAST.values())
_DRAWS = 100


@dataclass(frozen=True)
class RowSets:
    """Positions in the union of rows, sorted; see :class:`vflsec.core.task.Task` for the meaning.

    Attributes:
        train: (N,) bool, every row that may be used in training by some party.
    """

    test: Rows
    validation: Rows
    aligned: Rows
    labelled: Rows
    train: Mask


def stratified_order(strata: NDArray[np.int64], rng: np.random.Generator) -> Rows:
    """A random order of 0..n-1 in which every prefix holds the strata in proportion.

    The j-th row of a stratum of n_c rows is placed at (j + 1/2) / n_c (the divisor rule of
    Sainte-Laguë), so the counts of a prefix depend on the sizes of the strata only.

    Args:
        strata: (n,) stratum of each row, integers >= 0.
        rng: where the order within each stratum comes from.
    """
    shuffled = rng.permutation(len(strata))
    s = strata[shuffled]
    counts = np.bincount(s, minlength=1)
    by_stratum = np.argsort(s, kind="stable")
    starts = np.cumsum(counts) - counts
    place = np.empty(len(s), dtype=np.int64)
    place[by_stratum] = np.arange(len(s)) - starts[s[by_stratum]]
    return shuffled[np.lexsort((s, (place + 0.5) / counts[s]))]


def take(order: Rows, strata: NDArray[np.int64], count: int, least: int = 0) -> Rows:
    """The first `count` rows of `order`, exchanged so that each stratum has at least `least`.

    The total stays `count`; the largest strata give way.

    Args:
        order: (n,) from :func:`stratified_order`.
        strata: (n,) the same strata.
        count: how many rows, at least `least` times the number of strata.
        least: fewest rows of a stratum that has any.
    """
    present = np.bincount(strata, minlength=1)
    wanted = np.bincount(strata[order[:count]], minlength=len(present))
    wanted = np.maximum(wanted, np.minimum(least, present))
    while wanted.sum() > count:
        wanted[np.argmax(wanted)] -= 1
    s = strata[order]
    chosen = np.zeros(len(order), dtype=bool)
    for c in np.flatnonzero(wanted):
        chosen[np.flatnonzero(s == c)[: wanted[c]]] = True
    return order[chosen]


def shuffled_rows(source: Source, aligned: Mask, seed: int) -> Rows:
    """Whose label each row (N,) has in a null world: labels are permuted over the labelled rows.

    Rows change places only with rows of the same standing (aligned or not, fixed side of the
    split), so that class counts, and with them all set sizes, stay the same for every seed.
    """
    whose = np.arange(len(source.y))
    standing = aligned.astype(np.int64)
    if source.split is not None:
        standing = standing + 2 * np.unique(source.split.astype(str), return_inverse=True)[1]
    rng = numpy_generator(seed, "shuffle_labels")
    for value in np.unique(standing):
        rows = np.flatnonzero((standing == value) & (source.y >= 0))
        whose[rows] = rng.permutation(rows)
    return whose


def row_sets(
    source: Source, seed: int, *, validation: float = 0.15, test: float = 0.25,
    labelled: int | None = None, aligned: float | int | None = None,
) -> RowSets:  # fmt: skip
    """The rows of one seed; options are those of `vflsec.data.prepare.make_task`.

    How many there are of each kind is the same for every seed. Shares count from the rows that all
    parties hold and that are labelled ("eligible"). Classes, and each of several labels, are in
    proportion in all sets. With a fixed split, `test` is not used and `validation` is a share of
    the training side. With groups, whole groups go to one side; the group that crosses a border is
    cut and its other rows are left out, training is trimmed to the size that is certain for every
    seed, classes are balanced only by chance (a draw in which a row set lacks a class is drawn
    again, at most 100 times), and rows that are not eligible are used only if
    nobody of their group is.

    Raises:
        ConfigError: an option is out of range.
        DataError: some class has too few rows, or an option asks for more than there is.
    """
    _check_options(validation, test, labelled, aligned)
    everyone = np.logical_and.reduce(list(present_rows(source).values()))
    eligible = everyone & (source.y >= 0)
    strata = source.label.find_strata(source.y, source.values, eligible, _WHOLE)
    _enough(source, eligible, _WHOLE, "the whole table")
    free = ~eligible
    pool = np.flatnonzero(eligible)
    if source.group is not None:
        free &= ~np.isin(source.group, source.group[pool])

    fixed = None if source.split is None else _fixed_split(source)
    if fixed is not None:
        free &= fixed == "train"
    chosen, held_out, rest = _sides(
        source, strata, eligible, fixed, seed, validation, test, labelled
    )
    for name, rows in (("test", chosen), ("validation", held_out), ("train", rest)):
        _enough(source, rows, LEAST[name], f"row set {name!r}")
    train = free.copy()
    train[rest] = True
    overlap = np.flatnonzero(train & everyone)
    kept = _aligned(source, strata, overlap, aligned, seed)
    return RowSets(
        test=np.sort(chosen), validation=np.sort(held_out), aligned=kept,
        labelled=_labelled(source, strata, kept, labelled, seed), train=train,
    )  # fmt: skip


def _sides(
    source: Source, strata: NDArray[np.int64], eligible: Mask, fixed: NDArray[np.str_] | None,
    seed: int, validation: float, test: float, labelled: int | None,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:  # fmt: skip
    """Eligible rows to test on, to validate on, and to train on; `fixed` names sides that are."""
    if fixed is None:
        pool = np.flatnonzero(eligible)
        size_v = _validation_size(source, validation * len(pool), labelled)
        sizes = {"test": round(test * len(pool)), "validation": size_v}
        chosen, held_out, rest = _cut(source, strata, pool, sizes, seed)
        return chosen, held_out, rest
    chosen, held_out, rest = (
        np.flatnonzero(eligible & (fixed == side)) for side in ("test", "validation", "train")
    )
    if not len(held_out):
        sizes = {"validation": _validation_size(source, validation * len(rest), labelled)}
        held_out, rest = _cut(source, strata, rest, sizes, seed)
    return chosen, held_out, rest


def _cut(
    source: Source, strata: NDArray[np.int64], pool: Rows, sizes: Mapping[str, int], seed: int
) -> list[Rows]:
    """So many rows of the ascending `pool` for each row set, and the rest."""
    if source.group is not None:
        return _by_group(source, pool, sizes, seed)
    out = []
    for name, count in sizes.items():
        own = strata[pool]
        order = stratified_order(own, numpy_generator(seed, "split", name))
        count = max(count, LEAST[name] * len(np.unique(own)))
        out.append(pool[take(order, own, count, LEAST[name])])
        pool = pool[~np.isin(pool, out[-1])]
    return [*out, pool]


def present_rows(source: Source) -> dict[str, Mask]:
    """Which rows of the union each party holds, (N,) bool."""
    present = {}
    for name, data in source.parties.items():
        present[name] = np.zeros(len(source.y), dtype=bool)
        present[name][data.rows] = True
    return present


def count_rarest(source: Source, rows: Rows) -> int:
    """How many of `rows` are of the rarest class, of any label; 0 for a quantity."""
    label = source.label
    told = (y[rows] for _, y in label.split_classes(source.y, source.values))
    return min((int(np.bincount(y, minlength=label.sides).min()) for y in told), default=0)


def _validation_size(source: Source, wanted: float, labelled: int | None) -> int:
    size = round(wanted) if labelled is None else min(round(wanted), labelled)
    return max(size, LEAST["validation"] * len(source.class_names))


def _by_group(source: Source, pool: Rows, sizes: Mapping[str, int], seed: int) -> list[Rows]:
    """Cut the groups, in random order, into runs of `sizes` rows and the rest.

    Of the orders that are drawn, the first that leaves each row set enough rows of each class.
    """
    rng, names = numpy_generator(seed, "split", "group"), [*sizes, "train"]
    for _ in range(_DRAWS):
        out = _cut_groups(source, pool, [*sizes.values()], rng)
        if not any(_find_scarce(source, r, LEAST[n]) for n, r in zip(names, out, strict=True)):
            break
    return out


def _cut_groups(
    source: Source, pool: Rows, sizes: Sequence[int], rng: np.random.Generator
) -> list[Rows]:
    """Cut the groups, in an order that is drawn, into runs of `sizes` rows and the rest."""
    assert source.group is not None
    _, group, counts = np.unique(source.group[pool], return_inverse=True, return_counts=True)
    turn = rng.permutation(len(counts))
    rows = pool[np.argsort(turn[group], kind="stable")]
    ends = np.cumsum(counts[np.argsort(turn)])
    target = len(pool) - sum(sizes) - len(sizes) * (int(counts.max()) - 1)
    if target < 1:
        got = f"{counts.max()} of {len(pool)} rows"
        remedy = "Use a finer group column or smaller shares."
        raise DataError.must(
            f"{source.name}: the largest group", "leave training rows", got, remedy
        )
    out, start = [], 0
    for size in sizes:
        out.append(np.sort(rows[start : start + size]))
        start = int(ends[np.searchsorted(ends, start + size)])
    out.append(np.sort(rows[start : start + target]))
    return out


def _fixed_split(source: Source) -> NDArray[np.str_]:
    assert source.split is not None
    side = np.char.strip(source.split.astype(str))
    wrong = ~np.isin(side, ("train", "validation", "test"))
    if wrong.any():
        got = repr(str(side[wrong][0]))
        raise DataError.must(f"{source.name}: split", "be 'train', 'validation' or 'test'", got)
    if source.group is not None:
        code = np.unique(side, return_inverse=True)[1]
        pairs = np.unique(np.stack([source.group, code], axis=1), axis=0)
        both = pairs[1:][pairs[1:, 0] == pairs[:-1, 0], 0]
        if len(both):
            got = f"{len(np.unique(both))} groups on two"
            raise DataError.must(f"{source.name}: a group", "be on one side of the split", got)
    return side


def _aligned(
    source: Source, strata: NDArray[np.int64], overlap: Rows, aligned: float | int | None, seed: int
) -> Rows:
    if aligned is None:
        return overlap
    count = aligned if isinstance(aligned, int) else round(aligned * len(overlap))
    if count > len(overlap):
        rule = f"be at most {len(overlap)} (training rows that all parties hold)"
        raise DataError.must(f"{source.name}: aligned", rule, repr(aligned))
    own = strata[overlap]
    own = np.where(own < 0, own.max(initial=0) + 1, own)
    if source.group is not None:
        own = (strata[overlap] < 0).astype(np.int64)
    order = stratified_order(own, numpy_generator(seed, "split", "aligned"))
    kept = np.sort(overlap[order[:count]])
    _enough(source, kept[strata[kept] >= 0], LEAST["train"], f"the {count} aligned rows")
    return kept


def _labelled(
    source: Source, strata: NDArray[np.int64], aligned: Rows, labelled: int | None, seed: int
) -> Rows:
    rows = aligned[strata[aligned] >= 0]
    if labelled is None:
        return rows
    low = LEAST["train"] * len(np.unique(strata[rows]))
    if not low <= labelled <= len(rows):
        rule = f"be in [{low}, {len(rows)}] ({LEAST['train']} rows a class to all labelled ones)"
        raise DataError.must(f"{source.name}: labelled", rule, labelled)
    order = stratified_order(strata[rows], numpy_generator(seed, "split", "labelled"))
    kept = np.sort(rows[take(order, strata[rows], labelled, LEAST["train"])])
    _enough(source, kept, LEAST["train"], f"the {labelled} labelled rows")
    return kept


def _find_scarce(source: Source, rows: Rows | Mask, least: int) -> list[tuple[str, str, str]]:
    """What has fewer than `least` of these rows, as the label says it."""
    values = None if source.values is None else source.values[rows]
    return [*source.label.find_scarce(source.y[rows], values, source.class_names, least)]


def _enough(source: Source, rows: Rows | Mask, least: int, where: str) -> None:
    for must, got, remedy in _find_scarce(source, rows, least):
        where = f"{source.name}: {must} {where} (labelled and held by every party)"
        raise DataError(f"{where}, got {got}. {remedy}, add rows, or change the split's shares.")


def _check_options(
    validation: float, test: float, labelled: int | None, aligned: float | int | None
) -> None:
    """Refuse shares and counts that no data set could satisfy."""
    check.in_unit("data: validation", validation, low_open=True, high_open=True)
    check.in_unit("data: test", test, low_open=True, high_open=True)
    if validation + test >= 1:
        raise check.fail("data: validation + test", "below 1", validation + test)
    if labelled is not None:
        check.integer("data: labelled", labelled, low=1)
    if isinstance(aligned, int) and not isinstance(aligned, bool):
        check.integer("data: aligned", aligned, low=1)
    elif aligned is not None:
        check.in_unit("data: aligned", aligned, low_open=True)
