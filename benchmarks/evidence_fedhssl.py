"""What self-supervision buys with few labels, and what it leaks: writes docs/evidence/fedhssl.md.

Run ``python benchmarks/evidence_fedhssl.py``. The tables lie in the folder that VFLSEC_TEST_DATA
names, or in ../shared/data beside the repository: credit_default, handwritten_mfeat, avazu_10k.
``--only NAME`` runs one data set and prints without writing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vflsec.audit.intervals import t_interval
from vflsec.audit.summary import cap
from vflsec.data.load import load_source
from vflsec.data.prepare import make_task
from vflsec.data.source import PartyData, Source
from vflsec.engine.cohort import run_cohort
from vflsec.engine.spec import AttackSpec, CellResult, CellSpec, DefenseSpec
from vflsec.task import Task

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("VFLSEC_TEST_DATA", ROOT.parent / "shared" / "data"))
SEEDS = range(5)
METHODS = ("simsiam", "byol", "moco")
ALGORITHMS = ("fedlocal_ssl", "fedcssl", "fedgssl", "fedhssl")
GRID = (1.0, 5.0, 25.0)
SMALL = {
    "hidden": [64], "cut": 64, "embedding": 8, "projector_hidden": 64, "projector_out": 64,
    "predictor_hidden": 16, "pretrain_iterations": 10, "pretrain_batch_size": 128,
    "pretrain_lr": 0.2, "batch_size": 64, "epochs": 60, "lr": 0.01, "patience": 15,
}  # fmt: skip


@dataclass
class Set:
    """One data set of the evidence."""

    name: str
    load: Callable[[], Source]
    aligned: float
    metric: str
    scale: str = "zscore"


def tables(name: str, split: str, rows: int, drop: Sequence[str] = ()) -> Source:
    """A table with two parties, cut down to `rows` drawn once for all seeds."""
    import pandas as pd

    folder = DATA / name
    meta = json.loads((folder / "meta.json").read_text())
    parts = meta["splits"][split]
    columns = {
        "active": [c for c in parts["label_party"] if c not in drop],
        "passive": [c for c in parts["passive"] if c not in drop],
    }
    kept = [*columns["active"], *columns["passive"]]
    frame = pd.read_csv(folder / f"{name}.csv.gz").sample(rows, random_state=0)
    short = ROOT / "build" / "evidence" / f"{name}.csv"
    short.parent.mkdir(parents=True, exist_ok=True)
    frame[[*kept, meta["label"]]].to_csv(short, index=False)
    section = {
        "file": str(short), "label": meta["label"], "active": "active", "columns": columns,
        "categorical": [c for c in meta["categorical"] if c in kept], "name": name,
    }  # fmt: skip
    return load_source(section, 0, ROOT)


def mfeat(parties: dict[str, Sequence[str]]) -> Source:
    """Handwritten digits by feature view."""
    raw = np.load(DATA / "handwritten_mfeat" / "handwritten_mfeat.npz")
    label = next(k for k in ("label", "y", "labels") if k in raw)
    y = np.unique(raw[label], return_inverse=True)[1].astype(np.int64)
    rows = np.arange(len(y))
    made = {}
    for name, views in parties.items():
        x = np.concatenate([raw[v] for v in views], axis=1).astype(np.float64)
        names = tuple(f"{name}{i}" for i in range(x.shape[1]))
        made[name] = PartyData(x, rows, names, (None,) * x.shape[1])
    classes = tuple(str(c) for c in range(10))
    return Source("mfeat", made, "active", y, classes, digest="-".join(parties))


SETS = [
    Set("credit_default", lambda: tables("credit_default", "fate", 2000), 0.4, "auc", "rank"),
    Set("avazu_10k",
        lambda: tables("avazu_10k", "publisher_vs_device_ad", 2000, ("hour", "device_ip")),
        0.4, "auc"),
    Set("mfeat, 2 parties",
        lambda: mfeat({"active": ["zer47", "mor6"], "passive": ["fou76"]}), 0.4, "accuracy"),
    Set("mfeat, 4 parties",
        lambda: mfeat({"active": ["mor6"], "passive1": ["fou76"], "passive2": ["zer47"],
                       "passive3": ["kar64"]}), 0.4, "accuracy"),
]  # fmt: skip


def settings(name: str, ssl: str, **change: Any) -> dict[str, Any]:
    own = {"queue": 1024} if name != "fedcssl" else {}
    return SMALL | own | {"ssl": ssl} | change


def tasks_of(data: Set, aligned: float) -> dict[int, Task]:
    source = data.load()
    return {
        s: make_task(source, s, labelled=200, aligned=aligned, scale=data.scale)  # type: ignore[arg-type]
        for s in SEEDS
    }


def train(
    tasks: dict[int, Task],
    algorithm: str,
    params: dict[str, Any],
    stacks: Sequence[tuple[DefenseSpec, ...]] = ((),),
    attacks: Sequence[AttackSpec] = (),
) -> list[list[CellResult]]:
    """Results by stack of defenses and seed, all trained as one model."""
    cells = [
        CellSpec({"name": tasks[0].name}, algorithm, params, d, seed=s)
        for d in stacks
        for s in SEEDS
    ]
    found = run_cohort(cells, list(attacks), tasks, device="cpu")
    return [found[i : i + len(SEEDS)] for i in range(0, len(found), len(SEEDS))]


def figure(results: Sequence[CellResult], metric: str, **where: str) -> list[float]:
    """One value a seed: a main-task or an attack metric on test rows."""
    wanted = {"split": "test", "attack": "", "metric": metric} | where
    out = []
    for r in results:
        (m,) = [m for m in r.measures if all(getattr(m, k) == v for k, v in wanted.items())]
        out.append(float(m.value))  # type: ignore[arg-type]
    return out


def controls(results: Sequence[CellResult], metric: str, name: str, phase: str) -> list[float]:
    out = []
    for r in results:
        (m,) = [
            m for m in r.measures
            if m.attack and m.split == "test" and m.metric == metric and m.phase == phase
        ]  # fmt: skip
        out.append(float(m.controls[name]["value"]))  # type: ignore[arg-type]
    return out


def show(values: Sequence[float]) -> str:
    low, high = t_interval(values)
    return f"{np.mean(values):.3f} ± {(high - low) / 2:.3f}"  # type: ignore[operator]


def differs(a: Sequence[float], b: Sequence[float]) -> str:
    """The paired difference a - b with its interval, and in a word what it says."""
    d = np.subtract(a, b)
    low, high = t_interval(d)
    assert low is not None
    assert high is not None
    word = "above" if low > 0 else "below" if high < 0 else "not told apart"
    return f"{d.mean():+.3f} [{low:+.3f}, {high:+.3f}] {word}"


def utility(data: Set) -> list[str]:
    """Table IV's columns for one data set."""
    tasks = tasks_of(data, data.aligned)
    first = tasks[0]
    zero = settings("fedcssl", "simsiam", pretrain_iterations=0)
    got = {"FedSplitNN": figure(train(tasks, "fedcssl", zero)[0], data.metric)}
    for name in ALGORITHMS:
        for ssl in METHODS:
            (results,) = train(tasks, name, settings(name, ssl, own_control=False))
            got[f"{name}-{ssl}"] = figure(results, data.metric)
    sizes = {k: len(v) for k, v in first.sets.items()}
    lines = [
        f"### {data.name}", "",
        f"{sizes['aligned']} aligned rows, {sizes['labelled']} labelled, "
        f"{sizes['local:active']} rows of each party, {sizes['test']} test rows; {data.metric}. "
        f"FedSplitNN: {show(got['FedSplitNN'])}.", "",
        "| method | SimSiam | BYOL | MoCo |", "|---|---|---|---|",
    ]  # fmt: skip
    lines += [
        f"| {name} | " + " | ".join(show(got[f"{name}-{s}"]) for s in METHODS) + " |"
        for name in ALGORITHMS
    ]
    lines += ["", "| paired difference | SimSiam | BYOL | MoCo |", "|---|---|---|---|"]
    pairs = [("fedhssl", "FedSplitNN"), ("fedcssl", "fedlocal_ssl"), ("fedgssl", "fedcssl"),
             ("fedhssl", "fedgssl"), ("fedhssl", "fedlocal_ssl")]  # fmt: skip
    for a, b in pairs:
        cells = [
            differs(got[f"{a}-{s}"], got[b if b == "FedSplitNN" else f"{b}-{s}"]) for s in METHODS
        ]
        lines.append(f"| {a} − {b} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def noise(on: str, phase: str, strength: float) -> DefenseSpec:
    return DefenseSpec("iso", {"on": on, "phase": phase}, "active", strength)


def privacy(data: Set) -> list[str]:
    """Columns of tables VI, VII and XI for one data set: SimSiam, 20 % aligned."""
    tasks = tasks_of(data, 0.2)
    passive = tasks[0].passive[0]
    known = {"variants": ["logistic", "finetune"], "steps": 40}
    attacks = [AttackSpec("model_completion", known, (passive,), known_rows=80)]
    label = attacks[0].label
    majority = float(np.mean([tasks[s].prior.max() for s in SEEDS]))

    before, after, curves = [], [], []
    shown: dict[str, list[float]] = {}
    for name, strength in (("fedlocal_ssl", 0.0), ("fedhssl", 0.0), ("fedhssl", 0.4)):
        stacks = [
            (noise("embedding", "pretrain", strength), noise("state", "pretrain", strength),
             noise("gradient", "finetune", f))
            for f in (0.0, *GRID)
        ]  # fmt: skip
        change: dict[str, Any] = {"own_control": not shown}
        if name == "fedhssl":
            change["server"] = "third"
        results = train(tasks, name, settings(name, "simsiam", **change), stacks, attacks)
        title = name + (f", λ_p {strength}" if strength else "")
        attacked = [
            {p: figure(r, data.metric, attack=label, phase=p) for p in ("pretrain", "finetune")}
            for r in results
        ]
        main = [figure(r, data.metric, phase="finetune") for r in results]
        if not shown:
            shown = {
                c: controls(results[0], data.metric, c, "pretrain")
                for c in ("alone", "scratch", "logistic")
            }
            before.append(
                f"Prior attackers on the same 80 rows: own self-supervised encoder "
                f"(A_SimSiam) {show(shown['alone'])}, own network from scratch "
                f"{show(shown['scratch'])}, logistic regression on own columns "
                f"{show(shown['logistic'])}; majority share {majority:.3f}."
            )
            before += ["", "| phase | algorithm | attack | attack − A_SimSiam | "
                       "attack − logistic | main |", "|---|---|---|---|---|---|"]  # fmt: skip
        for phase in ("pretrain", "finetune"):
            a = attacked[0][phase]
            after.append(
                f"| after {phase} | {title} | {show(a)} | {differs(a, shown['alone'])} | "
                f"{differs(a, shown['logistic'])} | {show(main[0])} |"
            )
        row = [f"{show(attacked[i]['finetune'])} / {show(main[i])}" for i in (1, 2, 3)]
        caps = [
            cap([main[i][s] for i in (1, 2, 3)], [attacked[i]["finetune"][s] for i in (1, 2, 3)])
            for s in range(len(SEEDS))
        ]
        curves.append(f"| {title} | " + " | ".join(row) + f" | {show(caps)} |")
    head = ["", "Attack / main after fine-tuning with iso on the gradients:", "",
            "| algorithm | λ_f = 1 | λ_f = 5 | λ_f = 25 | CAP |",
            "|---|---|---|---|---|"]  # fmt: skip
    return [f"### {data.name}", "", *before, *after, *head, *curves, ""]


WORDS = ("above", "below", "not told apart")


def counted(cells: Sequence[str]) -> str:
    return " | ".join(str(sum(c.strip().endswith(w) for c in cells)) for w in WORDS)


def plain_words(lines: Sequence[str]) -> list[str]:
    """The report's differences counted: where the paper's ordering holds, where not."""
    rows = [line.split("|")[1:-1] for line in lines if line.startswith("| ")]
    relations: dict[str, list[str]] = {}
    leaks: dict[tuple[str, str], list[str]] = {}
    for head, *cells in rows:
        if " − " in head and not head.strip().startswith("attack"):
            relations.setdefault(head.strip(), []).extend(cells)
        if head.startswith(" after"):
            for against, cell in (("A_SimSiam", cells[2]), ("logistic", cells[3])):
                leaks.setdefault((head.strip(), against), []).append(cell)
    out = ["## In plain words", "",
           "The paper orders the methods FedHSSL > FedGSSL > FedCSSL > FedLocalSSL > FedSplitNN. "
           "Here, over all data sets and SSL methods, each step of that order, counted (FedCSSL "
           "with SimSiam and with BYOL is one method: its step has no target network):", "",
           "| difference | above | below | not told apart | mean points the paper's way |",
           "|---|---|---|---|---|"]  # fmt: skip
    for name, cells in relations.items():
        way = sum(c.strip().startswith("+") for c in cells)
        out.append(f"| {name} | {counted(cells)} | {way} of {len(cells)} |")
    shown = [w for cells in relations.values() for c in cells for w in WORDS[:2]
             if c.strip().endswith(w)]  # fmt: skip
    total = sum(len(c) for c in relations.values())
    out += ["",
            f"The paper's way is shown in {shown.count('above')} of {total} comparisons, the "
            f"opposite in {shown.count('below')}; the others are within the noise of five seeds at "
            "this size. With a 95 % interval about one comparison in twenty leaves out zero by "
            "chance. A row with few entries under *above* means: that step of the paper's ordering "
            "is not shown here.", "",
            "What model completion adds to what the attacker could do alone, counted over data "
            "sets, algorithms and λ_p:", "",
            "| attack | against | above | below | not told apart |",
            "|---|---|---|---|---|"]  # fmt: skip
    out += [
        f"| {when} | {against} | {counted(cells)} |" for (when, against), cells in leaks.items()
    ]
    return [*out, "",
            "Only *above* against the strongest control is leakage: an attack above A_SimSiam and "
            "not above logistic regression says that this encoder is a poor use of 80 labels, not "
            "that labels leaked.", ""]  # fmt: skip


def say(what: str, since: float) -> None:
    print(f"{what} done after {time.process_time() - since:.0f} s of CPU", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    only = parser.parse_args().only
    started, cpu = time.time(), time.process_time()
    chosen = [s for s in SETS if only in s.name]
    out = [(HEAD + "\n")]
    out += ["## With 200 labels", ""]
    for data in chosen:
        out += utility(data)
        say(f"{data.name}: utility", cpu)
    out += ["## What a passive party learns", "", PRIVACY, ""]
    for data in chosen:
        if data.name != "mfeat, 4 parties":
            out += privacy(data)
            say(f"{data.name}: privacy", cpu)
    lines = "\n".join(out).split("\n")
    place = lines.index("## With 200 labels")
    text = "\n".join([*lines[:place], *plain_words(lines), *lines[place:]])
    print(text)
    print(f"{time.time() - started:.0f} s, {time.process_time() - cpu:.0f} s of CPU")
    if not only:
        (ROOT / "docs" / "evidence" / "fedhssl.md").write_text(text)


HEAD = """# Self-supervised VFL with few labels: what it buys and what it leaks

Made by `python benchmarks/evidence_fedhssl.py`; seeds 0 to 4. "±" is the half width of the 95 % t
interval over seeds; differences are paired by seed. A word follows each: *above* or *below* where
the interval leaves out zero, else *not told apart*; no correction for the number of comparisons.

Everything is reduced against the paper (He, Kang et al., arXiv:2208.08934): 2,000 rows of a table,
encoders of width 64 instead of 512, batches of 128 at the paper's code's rates (0.1, or 0.05 at
γ = 0.5), 10 global iterations, fine-tuning by SGD at rate 0.01, best epoch by validation loss.
Rows, architectures and data sets differ, so orderings are compared with the paper's, not
numbers. FedSplitNN is FedCSSL without pre-training: the same encoder from scratch (bit-equal to
`splitnn` with that encoder, by test). γ = 0.5; pooling is the mean of both towers; the targets'
momentum is the paper's."""

PRIVACY = """SimSiam, 20 % of the rows aligned, 200 labels, 80 known rows of the first passive
party. The attack is model completion (head on the frozen encoder, or encoder trained along; chosen
by cross-validation on the known rows). λ_p is iso on the active party's projections and on its
shared parameters in pre-training, with a server that is no party; λ_f is iso on gradients in
fine-tuning. AUC for two classes, accuracy for ten; CAP is the mean of main × (1 − attack) over λ_f
= 1, 5, 25 in that one metric."""

if __name__ == "__main__":
    main()
