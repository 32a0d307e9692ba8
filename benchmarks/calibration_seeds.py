"""What skewed, heavy-tailed and two-valued seeds do to a gate: a part of docs/evidence/gates.md.

Advantages of single seeds are drawn with mean 0.1, which is the limit, or 0.2, and spread 0.05, and
judged by the t test that gates use and by three others. ``python benchmarks/calibration_gates.py
--seeds`` writes the part alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special
from scipy.stats import rankdata

from vflsec.audit.controls import has_outlier

TITLE = "Seeds whose advantages are not normal"
LIMIT, LEAK, SPREAD, LEVEL = 0.1, 0.2, 0.05, 0.05
AUDITS, RESAMPLED, DRAWS = 20_000, 2_000, 399

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, int]], Floats]


def _two(share: float) -> Draw:
    def draw(rng: np.random.Generator, size: tuple[int, int]) -> Floats:
        apart = (rng.random(size) < share) - share
        return apart / np.sqrt(share * (1 - share)) + 0.1 * rng.standard_normal(size)

    return draw


NOISE: dict[str, Draw] = {
    "normal": lambda rng, size: rng.standard_normal(size),
    "skewed up (exponential)": lambda rng, size: rng.exponential(size=size) - 1,
    "skewed down (exponential)": lambda rng, size: 1 - rng.exponential(size=size),
    "heavy tails (t, 3 degrees)": lambda rng, size: rng.standard_t(3, size) / np.sqrt(3),
    "one training in five leaks": _two(0.2),
    "four in five leak": _two(0.8),
    "one in two leaks": _two(0.5),
}
"""Noise of mean 0 and spread 1 by name; two values have a tenth of it as normal noise beside."""


def by_t(x: Floats) -> Floats:
    """p-values (m,) of "the mean of x (m, n) is at most 0": those of gates."""
    n = x.shape[1]
    t = x.mean(1) * np.sqrt(n) / x.std(1, ddof=1)
    return np.asarray(special.stdtr(n - 1, -t))


def by_johnson(x: Floats) -> Floats:
    """The same with Johnson's correction for skewness (JASA 1978)."""
    n, mean, s = x.shape[1], x.mean(1), x.std(1, ddof=1)
    third = ((x - mean[:, None]) ** 3).mean(1)
    t = (mean + third / (6 * n * s**2) + third * mean**2 / (3 * s**4)) * np.sqrt(n) / s
    return np.asarray(special.stdtr(n - 1, -t))


@lru_cache
def _sums(n: int) -> tuple[float, ...]:
    """P(sum of the signed ranks of n >= k) by k (Wilcoxon 1945)."""
    ways = np.ones(1)
    for rank in range(1, n + 1):
        ways = np.concatenate([ways, np.zeros(rank)]) + np.concatenate([np.zeros(rank), ways])
    return tuple((ways[::-1].cumsum()[::-1] / ways.sum()).tolist())


def by_ranks(x: Floats) -> Floats:
    """The same by signed ranks."""
    ranks = rankdata(np.abs(x), axis=1)
    return np.array(_sums(x.shape[1]))[(ranks * (x > 0)).sum(1).astype(int)]


def by_bootstrap(x: Floats) -> Floats:
    """The same by the bootstrap of the t statistic (Efron 1979)."""
    n, rng = x.shape[1], np.random.default_rng(5)
    centred, s = x - x.mean(1, keepdims=True), x.std(1, ddof=1)
    t, beyond, many = x.mean(1) * np.sqrt(n) / s, np.zeros(len(x)), np.zeros(len(x))
    for _ in range(DRAWS):
        again = np.take_along_axis(centred, rng.integers(n, size=x.shape), axis=1)
        sd = again.std(1, ddof=1)
        drawn = again.mean(1) * np.sqrt(n) / np.maximum(sd, 1e-300)
        beyond += (drawn >= t) & (sd > 0)
        many += sd > 0
    return (beyond + 1) / (many + 1)


TESTS = {"t": by_t, "Johnson": by_johnson, "signed ranks": by_ranks, "bootstrap-t": by_bootstrap}


def make_table() -> list[str]:
    """The part of the page, in lines."""
    lines = [
        f"Advantages of single seeds have the true mean {LIMIT}, the limit, and the spread "
        f"{SPREAD}, in {AUDITS} audits a line ({RESAMPLED} for the bootstrap). False PASS and "
        f"false FAIL are to be {LEVEL:.0%} at most. *Found* is the share of FAIL at a true mean of "
        f"{LEAK}. All are in percent, for four tests: {', '.join(TESTS)}; gates use the first. "
        "*Apart* is the share of audits with the warning `seed_apart`, *of wrong* that among the "
        "wrong verdicts.",
        "",
        "| noise of seeds | seeds | false PASS | false FAIL | found | apart | of wrong |",
        "|---" * 7 + "|",
    ]  # fmt: skip
    for i, (name, draw) in enumerate(NOISE.items()):
        for n in (3, 5, 10):
            x = SPREAD * draw(np.random.default_rng([i, n]), (AUDITS, n))
            wrong = [[], [], []]  # type: list[list[str]]
            for test in TESTS.values():
                some = x[:RESAMPLED] if test is by_bootstrap else x
                for of, y in zip(wrong, (-some, some, some + LEAK - LIMIT), strict=True):
                    of.append(f"{100 * (test(y) < LEVEL).mean():.1f}")
            apart = np.array([has_outlier(row) for row in x])
            mistaken = (by_t(x) < LEVEL) | (by_t(-x) < LEVEL)
            of_wrong = apart[mistaken].mean()
            cells = [", ".join(of) for of in wrong]
            lines.append(
                f"| {name} | {n} | {' | '.join(cells)} | {100 * apart.mean():.1f} | "
                f"{100 * of_wrong:.0f} |"
            )
    return lines


def put_into(page: str) -> str:
    """The page with the part made anew, before *Trained systems*."""
    head, _, rest = page.partition(f"## {TITLE}\n")
    if rest:
        rest = rest[rest.index("\n## ") + 1 :]
    else:
        head, mark, rest = page.partition("## Trained systems\n")
        rest = mark + rest
    return head + "\n".join([f"## {TITLE}", "", *make_table(), "", rest])
