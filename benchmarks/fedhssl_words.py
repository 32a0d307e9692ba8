"""Tables and sentences of docs/evidence/fedhssl.md, from figures by seed; nothing is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from evidence_pages import table

from vflsec.audit.cap_score import cap
from vflsec.audit.intervals import t_interval

__all__ = [
    "ALGORITHMS", "CODE_VIEWS", "METHODS", "NONE", "POOLED", "Seeds", "Utility", "answer",
    "differs", "length_lines", "ordering", "privacy_lines", "references", "show", "utility_lines",
]  # fmt: skip

METHODS = {"simsiam": "SimSiam", "byol": "BYOL", "moco": "MoCo"}
ALGORITHMS = ("fedlocal_ssl", "fedcssl", "fedgssl", "fedhssl")
NONE = "FedSplitNN"
CODE_VIEWS = "fedlocal_ssl, the code's views"
POOLED = {"pooled_logistic": "logistic regression", "pooled_boosting": "gradient boosting"}
WORDS = ("above", "below", "not significant")
SETS = ("NUS-WIDE", "Avazu", "BHI", "ModelNet")

PAPER = {
    NONE: (0.495, 0.588, 0.731, 0.612),
    "fedlocal_ssl": (0.505, 0.575, 0.760, 0.622),
    "fedcssl": (0.550, 0.622, 0.778, 0.684),
    "fedhssl": (0.607, 0.623, 0.805, 0.707),
}
"""With 200 labels, SimSiam, 40 % aligned: tables IV and IX; FedGSSL is in a figure only."""

STEPS = [
    ("fedhssl", NONE), ("fedlocal_ssl", NONE), ("fedcssl", NONE), ("fedcssl", "fedlocal_ssl"),
    ("fedgssl", "fedcssl"), ("fedhssl", "fedgssl"), ("fedhssl", "fedcssl"),
    ("fedhssl", "fedlocal_ssl"),
]  # fmt: skip

Seeds = Sequence[float]


@dataclass(frozen=True)
class Utility:
    """Of one data set the figures and the chosen rate by method, and its sizes."""

    figures: Mapping[str, Seeds]
    rates: Mapping[str, float]
    sizes: Sequence[str]


def show(values: Seeds) -> str:
    """Mean and half width of the 95 % t interval over seeds."""
    low, high = t_interval(values)
    half = 0.0 if low is None or high is None else (high - low) / 2
    return f"{np.mean(values):.3f} ± {half:.3f}"


def word(a: Seeds, b: Seeds) -> str:
    """What the interval of the paired difference a - b says."""
    low, high = t_interval(np.subtract(a, b))
    if low is None or high is None:
        return WORDS[2]
    return WORDS[0] if low > 0 else WORDS[1] if high < 0 else WORDS[2]


def differs(a: Seeds, b: Seeds) -> str:
    """The paired difference a - b with its interval, and its word if that leaves out 0."""
    d = np.subtract(a, b)
    low, high = t_interval(d)
    said = word(a, b).removesuffix(WORDS[2])
    return f"{d.mean():+.3f} [{low or 0:+.3f}, {high or 0:+.3f}] {said}".rstrip()


def pooled(got: Mapping[str, Seeds], name: str) -> Seeds:
    """Figures of an algorithm by seed, averaged over the SSL methods."""
    if name == NONE:
        return got[NONE]
    return list(np.mean([got[f"{name}-{s}"] for s in METHODS], axis=0))


def utility_lines(everything: Mapping[str, Utility]) -> list[str]:
    """Table IV of every data set, with the rate of fine-tuning that validation rows chose."""
    rows, steps = [], []
    for name, made in everything.items():
        got, rates = made.figures, made.rates
        rows.append([name, NONE, *[f"{show(got[NONE])}, rate {rates[NONE]:g}"] * 3])
        for a in ALGORITHMS:
            cells = [f"{show(got[f'{a}-{s}'])}, rate {rates[f'{a}-{s}']:g}" for s in METHODS]
            rows.append([name, a, *cells])
        rows += [[name, title, *[show(got[key])] * 3] for key, title in POOLED.items()]
        for a, b in STEPS:
            cells = [differs(got[f"{a}-{s}"], got[b if b == NONE else f"{b}-{s}"]) for s in METHODS]
            steps.append([name, f"{a} − {b}", *cells])
    heads = [*METHODS.values()]
    return [*table(["data", "method", *heads], rows), *table(["data", "difference", *heads], steps)]


def length_lines(found: Mapping[str, Mapping[str, Seeds]], lengths: Sequence[int]) -> list[str]:
    """Gain over FedSplitNN by data set, algorithm and number of global iterations."""
    lines = ["| data set | algorithm | " + " | ".join(f"{n} iterations" for n in lengths) + " |",
             "|---|---|" + "---|" * len(lengths)]  # fmt: skip
    for data, got in found.items():
        for a in ("fedlocal_ssl", CODE_VIEWS, "fedcssl", "fedhssl"):
            cells = [
                differs(got[f"{a}-{n}"], got[NONE]) if f"{a}-{n}" in got else "" for n in lengths
            ]
            lines.append(f"| {data} | {a} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def privacy_lines(privacy: Mapping[str, Mapping], grid: Sequence[float]) -> list[str]:
    """Columns of tables VI, VII, XI and XII of every data set."""
    own, rows, noisy = [], [], []
    for name, found in privacy.items():
        base = found["controls"]
        shares = [show(base[k]) for k in ("alone", "scratch", "logistic")]
        own.append([name, *shares, f"{base['majority']:.3f}"])
        for title, run in found["runs"].items():
            for phase in ("pretrain", "finetune"):
                a = run["attack"][phase][0]
                gains = [differs(a, base[k]) for k in ("alone", "logistic")]
                rows.append([name, f"after {phase}", title, show(a), *gains, show(run["main"][0])])
            attack, main = run["attack"]["finetune"][1:], run["main"][1:]
            cells = [f"{show(a)} / {show(m)}" for a, m in zip(attack, main, strict=True)]
            caps = [cap([m[s] for m in main], [a[s] for a in attack]) for s in range(len(main[0]))]
            noisy.append([name, title, *cells, show(caps)])
    return [
        *table(["data", "phase", "algorithm", "attack", "attack − A_SimSiam", "attack − logistic",
                "main task"], rows),
        "The baselines on the same 80 labelled rows:", "",
        *table(["data", "own self-supervised encoder (A_SimSiam)", "own network from scratch",
                "logistic regression on own columns", "majority share"], own),
        "Attack / main task after fine-tuning with iso on the gradients:", "",
        *table(["data", "algorithm", *(f"λ_f = {f:g}" for f in grid), "CAP"], noisy),
    ]  # fmt: skip


def _gain(got: Mapping[str, Seeds], a: str, b: str) -> float:
    return float(np.mean(pooled(got, a)) - np.mean(pooled(got, b)))


def ordering(everything: Mapping[str, Mapping[str, Seeds]]) -> list[str]:
    """The paper's ordering, step by step; its way counted over data sets and methods."""
    rows = []
    for a, b in STEPS:
        cells = [differs(pooled(got, a), pooled(got, b)) for got in everything.values()]
        theirs = "figure only"
        if a in PAPER and b in PAPER:
            theirs = ", ".join(f"{x - y:+.3f}" for x, y in zip(PAPER[a], PAPER[b], strict=True))
        words = [word(x, y) for x, y in pairs(everything, a, b)]
        way = sum(float(np.mean(np.subtract(x, y))) > 0 for x, y in pairs(everything, a, b))
        tally = [f"{words.count(w)} of {len(words)}" for w in WORDS[:2]]
        rows.append([f"{a} − {b}", *cells, theirs, *tally, f"{way} of {len(words)}"])
    return [
        "The paper orders them FedHSSL > FedGSSL > FedCSSL > FedLocalSSL > FedSplitNN. Cells "
        "are means over the three SSL methods; the last three columns count each on its own.",
        "",
        *table(["difference", *everything, f"the paper ({', '.join(SETS)})", "above", "below",
                "mean above 0"], rows),
    ]  # fmt: skip


def pairs(
    everything: Mapping[str, Mapping[str, Seeds]], a: str, b: str
) -> list[tuple[Seeds, Seeds]]:
    """Values of `a` and of `b` by seed, for every data set and SSL method."""
    return [
        (got[f"{a}-{s}"], got[NONE if b == NONE else f"{b}-{s}"])
        for got in everything.values()
        for s in METHODS
    ]


def references(everything: Mapping[str, Mapping[str, Seeds]]) -> list[str]:
    """The best of the family beside a model of all columns in one place."""
    rows = []
    for name, got in everything.items():
        best = max(ALGORITHMS, key=lambda a: float(np.mean(pooled(got, a))))
        key = max(POOLED, key=lambda r: np.mean(got[r]))
        d = float(np.mean(np.subtract(pooled(got, best), got[key])))
        rows.append([name, best, POOLED[key], f"{d:+.3f}", word(pooled(got, best), got[key])])
    return table(["data", "best of the family", "better pooled model", "difference", ""], rows)


def leaking(privacy: Mapping[str, Mapping]) -> list[str]:
    """Where the attack learns more than by either baseline."""
    return [
        f"{title} on {name} after {phase}"
        for phase in ("pretrain", "finetune")
        for name, found in privacy.items()
        for title, run in found["runs"].items()
        if {word(run["attack"][phase][0], found["controls"][c]) for c in ("alone", "logistic")}
        == {WORDS[0]}
    ]


def answer(everything: Mapping[str, Mapping[str, Seeds]], privacy: Mapping[str, Mapping]) -> str:
    """The first paragraph: the paper's way counted, and the attacks above both baselines."""
    every = [word(x, y) for a, b in STEPS for x, y in pairs(everything, a, b)]
    tried = 2 * sum(len(found["runs"]) for found in privacy.values())
    leaks = leaking(privacy)
    where = f" ({'; '.join(leaks)})" if leaks else ""
    gain = [_gain(got, "fedhssl", NONE) for got in everything.values()]
    return f"""Does self-supervision pay with 200 labels, and does it leak? It adds {min(gain):+.3f}
        to {max(gain):+.3f} to the main task (FedHSSL over FedSplitNN, by data set). The paper's
        ordering is significant in {every.count(WORDS[0])} of {len(every)} comparisons, the opposite
        in {every.count(WORDS[1])}; at 95 % about one in twenty is by chance. Model completion
        learns labels beyond both baselines in {len(leaks)} of {tried} attacks{where}."""
