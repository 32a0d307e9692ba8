"""Tables and sentences of docs/evidence/fedhssl.md, from figures by seed; nothing is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from vflsec.audit.cap_score import cap
from vflsec.audit.intervals import t_interval

__all__ = [
    "ALGORITHMS", "CODE_VIEWS", "METHODS", "NONE", "differs", "length_lines", "page",
    "privacy_lines", "show", "utility_lines",
]  # fmt: skip

METHODS = {"simsiam": "SimSiam", "byol": "BYOL", "moco": "MoCo"}
ALGORITHMS = ("fedlocal_ssl", "fedcssl", "fedgssl", "fedhssl")
NONE = "FedSplitNN"
CODE_VIEWS = "fedlocal_ssl, the code's views"
WORDS = ("above", "below", "not told apart")
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
    """The paired difference a - b with its interval, and in a word what it says."""
    d = np.subtract(a, b)
    low, high = t_interval(d)
    return f"{d.mean():+.3f} [{low or 0:+.3f}, {high or 0:+.3f}] {word(a, b)}"


def pooled(got: Mapping[str, Seeds], name: str) -> Seeds:
    """Figures of an algorithm by seed, averaged over the SSL methods."""
    if name == NONE:
        return got[NONE]
    return list(np.mean([got[f"{name}-{s}"] for s in METHODS], axis=0))


def utility_lines(
    name: str, about: str, got: Mapping[str, Seeds], rates: Mapping[str, float]
) -> list[str]:
    """One data set of table IV."""
    references = ", ".join(
        f"{title} {show(got[key])}"
        for key, title in (("pooled_logistic", "logistic regression"),
                           ("pooled_boosting", "gradient boosting"))
    )  # fmt: skip
    by = {a: [f"{rates[f'{a}-{s}']:g}" for s in METHODS] for a in ALGORITHMS}
    chosen = f"{NONE} {rates[NONE]:g}; " + "; ".join(f"{a} {', '.join(r)}" for a, r in by.items())
    lines = [
        f"### {name}", "",
        f"{about} All columns in one place with the same 200 labels, for reference: {references}.",
        "",
        "| method | SimSiam | BYOL | MoCo |", "|---|---|---|---|",
        f"| {NONE} | " + " | ".join([show(got[NONE])] * 3) + " |",
    ]  # fmt: skip
    lines += [
        f"| {a} | " + " | ".join(show(got[f"{a}-{s}"]) for s in METHODS) + " |" for a in ALGORITHMS
    ]
    lines += ["", "| paired difference | SimSiam | BYOL | MoCo |", "|---|---|---|---|"]
    for a, b in STEPS:
        cells = [differs(got[f"{a}-{s}"], got[b if b == NONE else f"{b}-{s}"]) for s in METHODS]
        lines.append(f"| {a} − {b} | " + " | ".join(cells) + " |")
    return [
        *lines,
        "",
        "Fine-tuning rates chosen on validation rows (SimSiam, BYOL, MoCo): " + chosen + ".",
        "",
    ]


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


def privacy_lines(name: str, found: Mapping[str, Mapping], grid: Sequence[float]) -> list[str]:
    """Columns of tables VI, VII, XI and XII for one data set."""
    own = found["controls"]
    lines = [
        f"### {name}", "",
        f"Prior attackers on the same 80 rows: own self-supervised encoder (A_SimSiam) "
        f"{show(own['alone'])}, own network from scratch {show(own['scratch'])}, logistic "
        f"regression on own columns {show(own['logistic'])}; majority share "
        f"{own['majority']:.3f}.", "",
        "| phase | algorithm | attack | attack − A_SimSiam | attack − logistic | main |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for title, run in found["runs"].items():
        for phase in ("pretrain", "finetune"):
            a = run["attack"][phase][0]
            lines.append(
                f"| after {phase} | {title} | {show(a)} | {differs(a, own['alone'])} | "
                f"{differs(a, own['logistic'])} | {show(run['main'][0])} |"
            )
    lines += ["", "Attack / main after fine-tuning with iso on the gradients:", "",
              "| algorithm | " + " | ".join(f"λ_f = {f:g}" for f in grid) + " | CAP |",
              "|---|" + "---|" * (len(grid) + 1)]  # fmt: skip
    for title, run in found["runs"].items():
        attack, main = run["attack"]["finetune"][1:], run["main"][1:]
        cells = [f"{show(a)} / {show(m)}" for a, m in zip(attack, main, strict=True)]
        caps = [cap([m[s] for m in main], [a[s] for a in attack]) for s in range(len(main[0]))]
        lines.append(f"| {title} | " + " | ".join([*cells, show(caps)]) + " |")
    return [*lines, ""]


def _tally(words: Sequence[str]) -> str:
    return " | ".join(str(words.count(w)) for w in WORDS)


def _gain(got: Mapping[str, Seeds], a: str, b: str) -> float:
    return float(np.mean(pooled(got, a)) - np.mean(pooled(got, b)))


def ordering(everything: Mapping[str, Mapping[str, Seeds]]) -> list[str]:
    """The paper's ordering, step by step, and a sentence on each of its claims."""
    names = list(everything)
    lines = [
        "The paper orders the methods FedHSSL > FedGSSL > FedCSSL > FedLocalSSL > FedSplitNN "
        "(in its own table FedLocalSSL is *below* FedSplitNN on Avazu). The mean over the three "
        "SSL methods, paired by seed, beside the paper's difference with 200 labels (SimSiam, 40 % "
        f"aligned; {', '.join(SETS)}):", "",
        "| difference | " + " | ".join(names) + " | the paper |",
        "|---|" + "---|" * (len(names) + 1),
    ]  # fmt: skip
    for a, b in STEPS:
        cells = [differs(pooled(got, a), pooled(got, b)) for got in everything.values()]
        theirs = "figure only"
        if a in PAPER and b in PAPER:
            theirs = ", ".join(f"{x - y:+.3f}" for x, y in zip(PAPER[a], PAPER[b], strict=True))
        lines.append(f"| {a} − {b} | " + " | ".join(cells) + f" | {theirs} |")
    lines += ["", "The same steps for each SSL method on its own, counted over data sets and "
              "methods (FedCSSL with SimSiam and with BYOL is one method: its step has no "
              "target):", "",
              "| difference | above | below | not told apart | mean points the paper's way |",
              "|---|---|---|---|---|"]  # fmt: skip
    every: list[str] = []
    for a, b in STEPS:
        pairs = [
            (got[f"{a}-{s}"], got[NONE if b == NONE else f"{b}-{s}"])
            for got in everything.values()
            for s in METHODS
        ]
        words = [word(x, y) for x, y in pairs]
        every += words
        way = sum(float(np.mean(np.subtract(x, y))) > 0 for x, y in pairs)
        lines.append(f"| {a} − {b} | {_tally(words)} | {way} of {len(pairs)} |")
    ways = (every.count(WORDS[0]), len(every), every.count(WORDS[1]))
    counted = "The paper's way is shown in {} of {} comparisons, the opposite in {}.".format(*ways)
    lines += ["", f"{counted} With a 95 % interval about one comparison in twenty leaves out zero "
              "by chance.", ""]  # fmt: skip
    return [*lines, *(f"- {s}" for s in sentences(everything)), ""]


def sentences(everything: Mapping[str, Mapping[str, Seeds]]) -> list[str]:
    """Where the paper's claims hold here and where not, in words that follow from the figures."""
    claims = [
        ("fedhssl", NONE, "Self-supervision pays with 200 labels (FedHSSL above FedSplitNN)"),
        ("fedcssl", NONE, "Cross-party self-supervision alone pays (FedCSSL above FedSplitNN)"),
        ("fedlocal_ssl", NONE, "Local self-supervision alone pays (FedLocalSSL above FedSplitNN)"),
        ("fedcssl", "fedlocal_ssl", "Cross-party self-supervision beats local one"),
        ("fedhssl", "fedcssl", "The whole beats its cross-party part (FedHSSL above FedCSSL)"),
        ("fedhssl", "fedgssl", "Averaging the tops helps (FedHSSL above FedGSSL)"),
    ]
    out = []
    for a, b, text in claims:
        by = {w: [n for n, g in everything.items() if word(pooled(g, a), pooled(g, b)) == w]
              for w in WORDS}  # fmt: skip
        parts = [
            f"{label} on {', '.join(by[w])}"
            for w, label in zip(WORDS, ("shown", "the opposite is shown", "not told apart"))
            if by[w]
        ]
        gains = [_gain(g, a, b) for g in everything.values()]
        out.append(
            f"{text}: {'; '.join(parts)}. Mean differences from {min(gains):+.3f} to "
            f"{max(gains):+.3f}."
        )
    for name, got in everything.items():
        best = max(ALGORITHMS, key=lambda a: float(np.mean(pooled(got, a))))
        reference = max(("pooled_logistic", "pooled_boosting"), key=lambda r: np.mean(got[r]))
        d = np.subtract(pooled(got, best), got[reference])
        out.append(
            f"On {name} the best of the family is {best}; against the better of the two pooled "
            f"references ({reference}) it is {word(pooled(got, best), got[reference])} "
            f"({d.mean():+.3f})."
        )
    return out


def leaking(privacy: Mapping[str, Mapping]) -> list[str]:
    """How often the attack says more than the attacker could know alone."""
    lines = ["What model completion adds to what the attacker could do alone, counted over data "
             "sets, algorithms and λ_p:", "",
             "| attack | against | above | below | not told apart |",
             "|---|---|---|---|---|"]  # fmt: skip
    leaks: list[str] = []
    for phase in ("pretrain", "finetune"):
        both: dict[str, list[str]] = {"alone": [], "logistic": []}
        for name, found in privacy.items():
            for title, run in found["runs"].items():
                said = {c: word(run["attack"][phase][0], found["controls"][c]) for c in both}
                for c, w in said.items():
                    both[c].append(w)
                if set(said.values()) == {WORDS[0]}:
                    leaks.append(f"{title} on {name} after {phase}")
        lines += [f"| after {phase} | {'A_SimSiam' if c == 'alone' else c} | {_tally(w)} |"
                  for c, w in both.items()]  # fmt: skip
    told = f"Above both controls: {'; '.join(leaks)}." if leaks else (
        "No attack is above both: nothing here shows that labels leak through the bottom model."
    )  # fmt: skip
    return [*lines, "",
            "Only an attack above the strongest control is leakage: above A_SimSiam and not above "
            "logistic regression says that this encoder is a poor use of 80 labels. " + told,
            ""]  # fmt: skip


def page(
    head: str,
    everything: Mapping[str, Mapping[str, Seeds]],
    privacy: Mapping[str, Mapping],
    sections: Sequence[str],
) -> str:
    """The whole page: head, plain words, then the sections."""
    lines = [head, "", "## In plain words", "", *ordering(everything), *leaking(privacy), *sections]
    return "\n".join(lines).rstrip() + "\n"
