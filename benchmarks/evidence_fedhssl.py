"""What self-supervision buys with few labels, and what it leaks: writes docs/evidence/fedhssl.md.

Run ``python benchmarks/evidence_fedhssl.py``. The tables lie in the folder that VFLSEC_TEST_DATA
names, or in ../shared/data beside the repository: credit_default, handwritten_mfeat, avazu_10k.
Finished trainings are kept in build/evidence/fedhssl.json, so an interrupted run goes on;
``--fresh`` starts anew. To try something without writing the page: ``--only WORD`` runs the data
sets whose name has the word, ``--quick`` two seeds and one iteration.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from evidence_pages import opening, table
from fedhssl_words import (
    ALGORITHMS,
    CODE_VIEWS,
    METHODS,
    NONE,
    POOLED,
    Seeds,
    Utility,
    answer,
    length_lines,
    ordering,
    privacy_lines,
    references,
    utility_lines,
)

from vflsec._version import __version__
from vflsec.audit.metrics import score
from vflsec.core.federation import Federation
from vflsec.core.guess import Guess, Truth
from vflsec.core.task import Stack, Task
from vflsec.data.load import load_source
from vflsec.data.prepare import make_task
from vflsec.data.preprocess import Scale
from vflsec.data.source import PartyData, Source
from vflsec.engine.cohort import run_cohort
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, CellResult, CellSpec, DefenseSpec, Params, hash_value
from vflsec.train.loop import predict, run_phases

ROOT = Path(__file__).resolve().parent.parent
FOUND = [ROOT.parent / "shared" / "data", ROOT.parent.parent / "shared" / "data"]
DATA = Path(os.environ.get("VFLSEC_TEST_DATA") or next((f for f in FOUND if f.is_dir()), FOUND[0]))
BUILD = ROOT / "build" / "evidence"
ROWS = 3000
GRID = (1.0, 5.0, 25.0)
RATES = (0.005, 0.01, 0.03)
"""The paper's grid of fine-tuning rates."""

LENGTHS = (10, 40, 160)
SMALL: dict[str, Any] = {
    "hidden": [64], "cut": 64, "embedding": 8, "projector_hidden": 64, "projector_out": 64,
    "predictor_hidden": 16, "pretrain_iterations": 40, "pretrain_batch_size": 128,
    "pretrain_lr": 0.2, "batch_size": 64, "epochs": 60, "patience": 15, "own_control": False,
}  # fmt: skip
LOCAL: dict[str, Any] = {"queue": 1024, "views": "both", "corruption": "marginal"}
"""As the paper's text has the views: both corrupted, SCARF style. See docs/self_supervised.md."""


@dataclass(frozen=True)
class Set:
    """One data set of the evidence."""

    name: str
    load: Callable[[], Source]
    metric: str
    scale: Scale = "zscore"
    lengths: bool = False
    attacked: bool = True


def tables(name: str, split: str, drop: Sequence[str] = ()) -> Source:
    """A table with two parties, cut down to ROWS drawn once for all seeds."""
    import pandas as pd

    folder = DATA / name
    meta = json.loads((folder / "meta.json").read_text())
    parts = meta["splits"][split]
    columns = {
        "active": [c for c in parts["label_party"] if c not in drop],
        "passive": [c for c in parts["passive"] if c not in drop],
    }
    kept = [*columns["active"], *columns["passive"]]
    frame = pd.read_csv(folder / f"{name}.csv.gz").sample(ROWS, random_state=0)
    short = BUILD / f"{name}.csv"
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
    Set("credit_default", lambda: tables("credit_default", "fate"), "auc", "rank", lengths=True),
    Set("avazu_10k",
        lambda: tables("avazu_10k", "publisher_vs_device_ad", ("hour", "device_ip")), "auc",
        lengths=True),
    Set("mfeat, 2 parties",
        lambda: mfeat({"active": ["zer47", "mor6"], "passive": ["fou76"]}), "accuracy"),
    Set("mfeat, 4 parties",
        lambda: mfeat({"active": ["mor6"], "passive1": ["fou76"], "passive2": ["zer47"],
                       "passive3": ["kar64"]}), "accuracy", attacked=False),
]  # fmt: skip


class Kept:
    """Figures of finished trainings on disk, by what was trained."""

    def __init__(self, path: Path, fresh: bool) -> None:
        self.path, self.cpu = path, 0.0
        there = path.exists() and not fresh
        self.known: dict[str, Any] = json.loads(path.read_text()) if there else {}

    def __call__(self, say: str, what: Mapping[str, Any], compute: Callable[[], Any]) -> Any:
        key = hash_value({**what, "rows": ROWS, "version": __version__})
        if key not in self.known:
            started = time.process_time()
            self.known[key] = compute()
            self.cpu += time.process_time() - started
            self.path.parent.mkdir(parents=True, exist_ok=True)
            half = self.path.with_suffix(".part")
            half.write_text(json.dumps(self.known))
            half.replace(self.path)
            print(f"{say}: {self.cpu:.0f} s of CPU so far", file=sys.stderr, flush=True)
        return self.known[key]


def settings(name: str, ssl: str, **change: Any) -> dict[str, Any]:
    return SMALL | (LOCAL if name != "fedcssl" else {}) | {"ssl": ssl} | change


def tasks_of(data: Set, aligned: float, seeds: Sequence[int]) -> dict[int, Task]:
    source = data.load()
    return {s: make_task(source, s, labelled=200, aligned=aligned, scale=data.scale) for s in seeds}


# Utility


def measured(algorithm: Any, fed: Federation, split: str, metric: str) -> list[float]:
    """The main task's metric on validation or test rows, by replica."""
    rows = fed.stack.rows(split)
    logits = torch.log_softmax(fed.decode(predict(algorithm, fed, rows)), dim=-1)
    out = []
    for r, task in enumerate(fed.stack.tasks):
        truth = Truth("label", np.arange(len(task.y)), task.y)
        guess = Guess("label", rows[r], logits[r])
        (found,) = score(guess, truth, guess.rows, classes=task.classes,
                         prior=task.prior.numpy(), metrics=[metric])  # fmt: skip
        assert found.value is not None
        out.append(found.value)
    return out


def fine_tuned(
    tasks: dict[int, Task], name: str, params: Mapping[str, Any], metric: str
) -> dict[str, Any]:
    """Pre-train once and fine-tune at every rate of the grid; the best on validation rows is kept.

    Without a cross-party or local tower left to train, fine-tuning from a pre-trained bottom is
    the algorithm with no pre-training whose bottom starts there; the rest has the same streams.
    """
    seeds = list(tasks)
    stack = Stack.build(tasks, seeds)
    given = {k: tuple(v) if isinstance(v, list) else v for k, v in params.items()}
    started = None
    if given["pretrain_iterations"]:
        algorithm = registry.algorithms.create(name, given)
        fed = Federation.create(stack, seeds)
        algorithm.build(fed)
        next(iter(run_phases(algorithm, fed)))
        started = {p: {"bottom": parts["bottom"]} for p, parts in fed.state().items()}
    found: dict[float, tuple[list[float], list[float]]] = {}
    for rate in RATES:
        algorithm = registry.algorithms.create(name, given | {"pretrain_iterations": 0, "lr": rate})
        fed = Federation.create(stack, seeds)
        algorithm.build(fed)
        if started is not None:
            fed.load(started, torch.arange(fed.replicas))
        for _ in run_phases(algorithm, fed):
            pass
        found[rate] = (
            measured(algorithm, fed, "validation", metric), measured(algorithm, fed, "test", metric)
        )  # fmt: skip
    best = max(RATES, key=lambda rate: np.mean(found[rate][0]))
    return {"rate": best, "validation": float(np.mean(found[best][0])), "test": found[best][1]}


def reference(tasks: dict[int, Task], name: str, metric: str) -> list[float]:
    (results,) = train(tasks, name, {})
    return figure(results, metric)


def utility(data: Set, seeds: Sequence[int], keep: Kept) -> Utility:
    """Table IV's columns for one data set by method and seed, with rates and sizes."""
    tasks = tasks_of(data, 0.4, seeds)
    got: dict[str, Seeds] = {}
    rates: dict[str, float] = {}

    def run(key: str, name: str, params: dict[str, Any]) -> None:
        what = {"utility": data.name, "algorithm": name, "params": params, "seeds": list(seeds)}
        found = keep(
            f"{data.name}: {key}", what, lambda: fine_tuned(tasks, name, params, data.metric)
        )
        got[key], rates[key] = found["test"], found["rate"]

    run(NONE, "fedcssl", settings("fedcssl", "simsiam", pretrain_iterations=0))
    for name in ALGORITHMS:
        for ssl in METHODS:
            same = name == "fedcssl" and ssl == "byol"  # the cross-party step has no target
            run(f"{name}-{ssl}", name, settings(name, "simsiam" if same else ssl))
    for name in POOLED:
        what = {"reference": data.name, "algorithm": name, "seeds": list(seeds)}
        got[name] = keep(f"{data.name}: {name}", what, partial(reference, tasks, name, data.metric))
    for n in LENGTHS if data.lengths else ():
        for name in ("fedlocal_ssl", "fedcssl", "fedhssl"):
            if n == SMALL["pretrain_iterations"]:
                got[f"{name}-{n}"] = got[f"{name}-simsiam"]
            elif n < 100 or name == "fedcssl":  # the others are dear
                run(f"{name}-{n}", name, settings(name, "simsiam", pretrain_iterations=n))
    if data.lengths:
        n = SMALL["pretrain_iterations"]
        params = settings("fedlocal_ssl", "simsiam", views="one", corruption="uniform")
        run(f"{CODE_VIEWS}-{n}", "fedlocal_ssl", params)
    sizes = {k: len(v) for k, v in tasks[seeds[0]].sets.items()}
    batch, n = SMALL["pretrain_batch_size"], SMALL["pretrain_iterations"]
    aligned, own = sizes["aligned"], sizes["local:active"]
    about = (aligned, sizes["labelled"], own, sizes["test"], data.metric,
             f"{n * aligned / batch:.0f}", f"{n * own / batch:.0f}")  # fmt: skip
    return Utility(got, rates, [str(v) for v in about])


# Privacy


def train(
    tasks: dict[int, Task],
    algorithm: str,
    params: dict[str, Any],
    stacks: Sequence[tuple[DefenseSpec, ...]] = ((),),
    attacks: Sequence[AttackSpec] = (),
) -> list[list[CellResult]]:
    """Results by stack of defenses and seed, all trained as one model."""
    seeds = list(tasks)
    cells = [
        CellSpec({"name": tasks[seeds[0]].name}, algorithm, params, d, seed=s)
        for d in stacks
        for s in seeds
    ]
    found = run_cohort(cells, list(attacks), tasks, device="cpu")
    return [found[i : i + len(seeds)] for i in range(0, len(found), len(seeds))]


def figure(results: Sequence[CellResult], metric: str, **where: str) -> list[float]:
    """One value a seed: a main-task or an attack metric on test rows."""
    wanted = {"split": "test", "attack": "", "metric": metric} | where
    out = []
    for r in results:
        (m,) = [m for m in r.measures if all(getattr(m, k) == v for k, v in wanted.items())]
        assert m.value is not None
        out.append(m.value)
    return out


def controls(results: Sequence[CellResult], metric: str, name: str, phase: str) -> list[float]:
    """One value a seed: what a control reaches on the same rows."""
    out = []
    for r in results:
        (m,) = [
            m for m in r.measures
            if m.attack and m.split == "test" and m.metric == metric and m.phase == phase
        ]  # fmt: skip
        value = m.controls[name]["value"]
        assert value is not None
        out.append(value)
    return out


def noise(on: str, phase: str, strength: float) -> DefenseSpec:
    return DefenseSpec("iso", {"on": on, "phase": phase}, "active", strength)


def attacked(
    data: Set,
    tasks: dict[int, Task],
    name: str,
    params: dict[str, Any],
    strength: float,
    steps: int,
) -> dict[str, Any]:
    """One algorithm at one λ_p under model completion, over λ_f: by phase, strength and seed."""
    passive = tasks[next(iter(tasks))].passive[0]
    known: Params = {"variants": ["logistic", "finetune"], "steps": steps}
    attacks = [AttackSpec("model_completion", known, (passive,), known_rows=80)]
    stacks = [
        (noise("embedding", "pretrain", strength), noise("state", "pretrain", strength),
         noise("gradient", "finetune", f))
        for f in (0.0, *GRID)
    ]  # fmt: skip
    results = train(tasks, name, params, stacks, attacks)
    label = attacks[0].label
    found: dict[str, Any] = {
        "attack": {
            p: [figure(r, data.metric, attack=label, phase=p) for r in results]
            for p in ("pretrain", "finetune")
        },
        "main": [figure(r, data.metric, phase="finetune") for r in results],
    }
    if params["own_control"]:
        found["controls"] = {
            c: controls(results[0], data.metric, c, "pretrain")
            for c in ("alone", "scratch", "logistic")
        }
    return found


def privacy(
    data: Set, seeds: Sequence[int], rates: Mapping[str, float], keep: Kept, steps: int
) -> dict[str, Any]:
    """Columns of tables VI, VII, XI and XII for one data set: SimSiam, 20 % aligned."""
    tasks = tasks_of(data, 0.2, seeds)
    found: dict[str, Any] = {"runs": {}}
    for name, strength in (("fedlocal_ssl", 0.0), ("fedhssl", 0.0), ("fedhssl", 0.4)):
        change: dict[str, Any] = {"own_control": not found["runs"]}
        if name == "fedhssl":
            change["server"] = "third"
        params = settings(name, "simsiam", lr=rates[f"{name}-simsiam"], **change)
        title = name + (f", λ_p {strength}" if strength else "")
        what = {"privacy": data.name, "algorithm": name, "params": params, "seeds": list(seeds),
                "strength": strength, "steps": steps}  # fmt: skip
        run = keep(
            f"{data.name}: attack on {title}", what,
            partial(attacked, data, tasks, name, params, strength, steps),
        )  # fmt: skip
        found["runs"][title] = run
        found.setdefault("controls", run.get("controls"))
    majority = float(np.mean([t.prior.max() for t in tasks.values()]))
    found["controls"] = {**found["controls"], "majority": majority}
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--fresh", action="store_true")
    given = parser.parse_args()
    seeds, steps = range(5), 40
    if given.quick:
        seeds, steps = range(2), 2
        SMALL.update(pretrain_iterations=1, epochs=2)
    keep = Kept(BUILD / ("fedhssl_quick.json" if given.quick else "fedhssl.json"), given.fresh)
    torch.set_num_threads(1)
    everything: dict[str, Utility] = {}
    attacks: dict[str, Any] = {}
    chosen = [s for s in SETS if given.only in s.name]
    for data in chosen:
        everything[data.name] = utility(data, list(seeds), keep)
    for data in chosen:
        if data.attacked:
            rates = everything[data.name].rates
            attacks[data.name] = privacy(data, list(seeds), rates, keep, steps)
    long = [d.name for d in chosen if d.lengths and not given.quick]
    text = page(everything, attacks, long)
    print(text)
    print(f"{keep.cpu:.0f} s of CPU in this run", file=sys.stderr)
    if not (given.only or given.quick):
        (ROOT / "docs" / "evidence" / "fedhssl.md").write_text(text, encoding="utf-8")


def page(everything: Mapping[str, Utility], attacks: Mapping[str, Any], long: Sequence[str]) -> str:
    """The whole page."""
    figures = {name: made.figures for name, made in everything.items()}
    sizes = ["data", "aligned rows", "labelled", "rows of each party", "test rows", "metric",
             "cross-party updates", "local updates of a party"]  # fmt: skip
    text = [
        *opening(TITLE, answer(figures, attacks), METHOD),
        "## Does the paper's ordering hold?", "", *ordering(figures), *references(figures),
        "## With 200 labels", "", *utility_lines(everything),
        "## What a passive party learns", "",
        "Only an attack above both baselines is a leak. Above A_SimSiam alone, the encoder makes "
        "poor use of its 80 labels.", "",
        *privacy_lines(attacks, GRID),
    ]  # fmt: skip
    if long:
        title = "## Is it trained long enough, and on which views?"
        text += [title, "", LONG, "", *length_lines({d: figures[d] for d in long}, LENGTHS)]
    rows = [[name, *made.sizes] for name, made in everything.items()]
    return "\n".join([*text, "## Data sets", "", *table(sizes, rows)]).rstrip() + "\n"


TITLE = "Self-supervised VFL with few labels"
METHOD = (
    """`python benchmarks/evidence_fedhssl.py`; seeds 0 to 4. "±" is the half width of the 95 % t
    interval over seeds. Differences are paired by seed; *above* and *below* mark intervals that
    leave out zero, with no correction for the number of comparisons.""",
    """Protocol of the paper (He, Kang et al., arXiv:2208.08934): 40 % of the rows aligned, 200
    labels, 40 global iterations, the fine-tuning rate out of its grid (0.005, 0.01, 0.03) with the
    best mean validation value for each method, γ = 0.5, the mean of both towers, the paper's
    momentum of targets. Both views of a row are corrupted with values of the column (its text; its
    code keeps one view clean and draws from the column's range).""",
    """Reduced against it: 3,000 rows of a table (mfeat has 2,000), encoders of width 64 instead of
    512, and batches of 128 instead of 512 at the rate of a batch of 512 (0.1, or 0.05 at γ = 0.5),
    so that 40 iterations are hundreds of updates. Compare orderings and gains, not values.""",
    """The best epoch is kept by validation loss; the script chooses nothing on test rows. The
    numbers of rows and iterations and the form of the views were set beforehand, in trials on
    credit_default and avazu_10k that printed test values beside validation ones. FedSplitNN is
    FedCSSL without pre-training: the same encoder from scratch.""",
    """A passive party's attack: SimSiam, 20 % of the rows aligned, 200 labels, 80 labelled rows of
    the first passive party. The attack is model completion (head on the frozen encoder, or encoder
    trained along; chosen by cross-validation on these rows). λ_p is iso on the active party's
    projections and shared parameters in pre-training, with a server that is no party; λ_f is iso on
    gradients in fine-tuning. AUC for two classes, accuracy for ten. CAP is the mean of main × (1 −
    attack) over λ_f = 1, 5, 25.""",
)

LONG = """Gain over FedSplitNN by the number of global iterations (SimSiam). The paper trains 40 on
100,000 rows (Avazu): about 3,100 cross-party and 7,800 local updates at batches of 512. Beside it,
FedLocalSSL with the views of the code: one clean, the other uniform on the column's range."""

if __name__ == "__main__":
    main()
