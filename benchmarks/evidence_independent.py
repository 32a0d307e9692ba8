"""Every attack beside an independent implementation: writes docs/evidence/independent.md.

Run ``python benchmarks/evidence_independent.py`` (see the page for its time); ``--only NAME`` runs
the trainings whose name contains this and prints. Figures of finished trainings are kept in
build/evidence/independent; ``--fresh`` makes them again: use it after a change of the code.

Each training is recorded once. The attack of this package and a straightforward one of
``benchmarks/independent`` are given the same View, answer for the same rows, and are scored by the
same metric against the same truth. The script ends with an error if an attack is weaker and
:data:`WHY` does not say why.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from evidence_pages import opening, table
from independent import features, hijack, imitation, labels
from independent.seen import Answer, Seen
from numpy.typing import NDArray
from scipy import stats

from vflsec import __version__
from vflsec.attacks.swap_probe import donors
from vflsec.audit.intervals import t_interval
from vflsec.audit.metrics import METRICS, choose_primary, score
from vflsec.audit.truth import choose_goal
from vflsec.core.guess import Guess
from vflsec.core.source import Given
from vflsec.core.task import Task
from vflsec.core.view import View, as_needs
from vflsec.data.prepare import make_task
from vflsec.data.source import Source
from vflsec.engine.membership_queries import Asking
from vflsec.measure.attack import Bench
from vflsec.measure.prepared import Prepared, prepare
from vflsec.nn.replicas import LEAST
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, CellSpec, DefenseSpec, hash_value
from vflsec.train.cohort import Moment, Training
from vflsec.train.demand import Demand

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs" / "evidence" / "independent.md"
PARTS = ROOT / "build" / "evidence" / "independent"
SEEDS, MARGIN, WIDE = 5, 0.01, 0.05
DEFENSES = {
    "undefended": DefenseSpec("iso", strength=0.0),
    "iso 1": DefenseSpec("iso", strength=1.0),
    "iso 5": DefenseSpec("iso", strength=5.0),
}
TOP: dict[str, Any] = {
    "epochs": 20, "batch_size": 128, "cut": 16, "hidden": [64], "top": [32], "patience": 0,
}  # fmt: skip
LINEAR: dict[str, Any] = {**TOP, "top": []}
SUM: dict[str, Any] = {**LINEAR, "linear_top": False, "aggregation": "sum"}
AUX: dict[str, Any] = {"aux_rows": 100}
WHITE: dict[str, Any] = {**AUX, "peer_model": True}
ALL = ("gradient:all", "sent.embedding:all")


@dataclass(frozen=True)
class Pair:
    """An attack, and what stands beside it.

    `defenses` are those of its training under which it is made.
    """

    attack: str
    other: Callable[[Seen], Answer]
    params: dict[str, Any] = field(default_factory=dict)
    grants: dict[str, Any] = field(default_factory=dict)
    defenses: tuple[str, ...] = ("undefended", "iso 1")

    @property
    def name(self) -> str:
        inner = ", ".join(f"{k}={v}" for k, v in self.params.items())
        return f"{self.attack}({inner})" if inner else self.attack

    def spec(self, task: Task) -> AttackSpec:
        """As the engine takes it: grants of columns or models are the label party's."""
        party = task.active if self.grants else task.passive[0]
        return AttackSpec(self.attack, self.params, (party,), **self.grants)


@dataclass(frozen=True)
class Recorded:
    """One training and the pairs that look at it.

    With `skewed` the passive party's normal columns are made exponential, rank by rank.
    """

    name: str
    data: str
    world: dict[str, Any]
    settings: dict[str, Any]
    pairs: tuple[Pair, ...]
    skewed: bool = False

    def source(self, seed: int) -> Source:
        """The world of `seed`."""
        found = registry.datasets.create(self.data, self.world).load(seed)
        if not self.skewed:
            return found
        table = found.parties["passive"]
        values = -stats.norm.logsf(table.values) - 1
        return replace(found, parties={**found.parties, "passive": replace(table, values=values)})


@dataclass(frozen=True)
class Line:
    """Figures of one pair by seed."""

    attack: str
    other: str
    training: str
    defense: str
    metric: str
    ours: list[float]
    beside: list[float]

    @property
    def gains(self) -> list[float]:
        """How much the attack does better, by seed."""
        sign = 1.0 if METRICS[self.metric].larger_is_better else -1.0
        return [sign * (a - b) for a, b in zip(self.ours, self.beside, strict=True)]

    @property
    def verdict(self) -> str:
        behind = self.interval[1] < 0 and float(np.mean(self.gains)) < -MARGIN
        if behind:
            return "weaker"
        return "undecided" if self.interval[0] < -WIDE else "at least as strong"

    @property
    def interval(self) -> tuple[float, float]:
        found = t_interval(self.gains)
        return float(found.low or 0.0), float(found.high or 0.0)


_GROUPS = (
    Pair("norm", labels.norm),
    Pair("direction", labels.direction, {"positives": 5}),
    Pair("hints", labels.hints),
    Pair("spectral", labels.spectral),
    Pair("similarity", labels.similarity),
    Pair("lea", labels.lea),
    Pair("model_completion", labels.completion),
    Pair("model_completion", labels.completion_network),
    Pair("gradient_completion", labels.gradient_completion),
)
LOUD, NOISY = ("undefended",), ("undefended", "iso 5")
RARE = {"rows": 1000, "test_rows": 500, "positive_rate": 0.15}
EVEN = {"rows": 1000, "test_rows": 500}
NARROW = {"rows": 900, "test_rows": 100, "d_passive": 2, "d_active": 2}
FEW = {"rows": 500, "test_rows": 200, "d_passive": 4}
TRAININGS = (
    Recorded(
        "balanced", "control_gaussian", EVEN, {**TOP, "returns_predictions": True},
        (*(replace(p, defenses=NOISY) for p in _GROUPS),
         Pair("cluster", labels.cluster, {"names": "known"}, defenses=NOISY),
         Pair("exploit", imitation.exploit, defenses=LOUD),
         Pair("output", labels.output, defenses=LOUD)),
    ),
    Recorded(
        "15 % positives", "control_gaussian", RARE, TOP,
        (*_GROUPS, Pair("cluster", labels.cluster_by_size)),
    ),
    Recorded("linear top", "control_gaussian", EVEN, LINEAR, (Pair("unsplit", imitation.unsplit),)),
    Recorded(
        "summed logits", "control_gaussian", EVEN, SUM,
        (Pair("direct", labels.direct),),
    ),
    Recorded(
        "summed logits, 256 rows", "control_gaussian", {**EVEN, "rows": 256}, SUM,
        (Pair("batch_inference", imitation.batch_inference, defenses=LOUD),),
    ),
    Recorded(
        "summed logits, saturated", "control_gaussian", EVEN, {**SUM, "lr": 0.05},
        (Pair("zero_pattern", labels.zero_pattern, defenses=LOUD),),
    ),
    Recorded("swaps", "control_gaussian", EVEN, TOP, (Pair("swap_probe", labels.swap_probe),)),
    Recorded(
        "malicious steps", "control_gaussian", EVEN, TOP,
        (Pair("active_completion", labels.completion, defenses=LOUD),),
    ),
    Recorded(
        "asked", "control_gaussian", EVEN, {**TOP, "returns_predictions": True},
        (Pair("membership", labels.membership),
         Pair("membership", labels.likelihood_ratio, {"references": 8}, defenses=LOUD)),
    ),
    Recorded(
        "4 passive columns", "control_gaussian", FEW, TOP,
        (Pair("embedding_inversion", features.decoder, grants=AUX, defenses=LOUD),
         Pair("embedding_inversion", features.decoder_network, grants=AUX, defenses=LOUD),
         Pair("attribute", features.attribute, grants=AUX, defenses=LOUD),
         Pair("property", features.property_share, grants=AUX, defenses=LOUD),
         Pair("grn", features.generator, {"match": "embedding"}, WHITE, LOUD),
         Pair("unsplit_input", features.inputs, grants=WHITE, defenses=LOUD),
         Pair("unsplit_input", features.inputs_of_model, {"weights": "granted"}, WHITE, LOUD)),
    ),
    Recorded(
        "2 skewed passive columns", "control_gaussian",
        NARROW, TOP,
        (Pair("sdar", features.simulator, grants={"aux_rows": 300}, defenses=LOUD),), skewed=True,
    ),
    *(
        Recorded(
            f"hijacked by {use}", "control_gaussian", NARROW, {**TOP, "epochs": hijack.EPOCHS},
            (Pair("fsha", hijack.hijacked, {"use": use}, {"aux_rows": 300}, LOUD),), skewed=True,
        )
        for use in ("pairs", "critic")
    ),
    Recorded(
        "4 passive columns, linear", "control_gaussian", FEW,
        {**SUM, "hidden": [], "select": False},
        (Pair("equation_solving", features.equations, grants=WHITE, defenses=LOUD),),
    ),
    Recorded(
        "a quantity", "quantity_gaussian", EVEN, TOP,
        (Pair("residual", labels.residual), Pair("value_completion", labels.value_completion)),
    ),
)  # fmt: skip
LEFT_OUT = {
    "dictionary": "it is this package's own; its tests are compared with scipy's.",
    "glm_gradient, reverse_multiplication, woe_inversion": "they read messages of regressions; "
    "their closed forms are tests.",
    "psi_membership": "it reads what matching of lists says; its answer is the definition.",
    "bin_sums, gradient_pair, leaf_columns, leaf_counts, leaf_graph, leaf_vote, leaf_weight, "
    "sample_list": (
        "they read messages of trees, which these trainings of networks do not send; their closed "
        "forms are tests."
    ),
    "gradient_replacement, replay, villain": "their figure is the share of predictions that an act "
    "in training or at inference turns, so there are no recorded rows to score; the labels that "
    "villain uses are those of swap_probe.",
    "joint_completion": "it is this package's own combination; its parts are compared above.",
    "linear_inversion": "it solves one linear system; a second solution of it would be the same.",
    "message_completion": "it is this package's own; nobody else has written down what it does.",
}
WHY: dict[tuple[str, str, str, str], str] = {}
"""(attack, beside, training, defense) -> why it is weaker there."""


def lines(recorded: Recorded, seeds: Sequence[int]) -> Iterator[Line]:
    """Train once, and make every pair of attacks on the same views."""
    tasks = {s: make_task(recorded.source(s), s) for s in seeds}
    for columns in dict.fromkeys(p.defenses for p in recorded.pairs):
        pairs = [p for p in recorded.pairs if p.defenses == columns]
        yield from _lines(replace(recorded, pairs=tuple(pairs)), tasks, columns)


def _lines(recorded: Recorded, tasks: Mapping[int, Task], columns: Sequence[str]) -> Iterator[Line]:
    cells = [
        CellSpec({"name": recorded.data}, "splitnn", recorded.settings, (DEFENSES[c],), seed=s)
        for c in columns
        for s in tasks
    ]
    cells = cells * LEAST if len(cells) < LEAST else cells
    first = next(iter(tasks.values()))
    asked = prepare([p.spec(first) for p in recorded.pairs])
    demands = [Demand.of(p.spec, p.attack) for p in asked]
    demands.append(Demand((first.passive[0],), as_needs(ALL)))
    training = Training(cells, demands, tasks, torch.device("cpu"))
    asking = {
        i: Asking(training, p) for i, p in enumerate(asked) if p.attack.target == "membership"
    }
    (moment,) = training.run(predictions=False)
    for i, (pair, p) in enumerate(zip(recorded.pairs, asked, strict=True)):
        views = asking[i].give(moment).views if i in asking else moment.views(p.spec)
        guesses = _ours(p, views, training.seeds, moment)
        figures = []
        for view, guess, cell in zip(views, guesses, cells, strict=True):
            task = tasks[cell.seed]
            beside = Guess(guess.target, *pair.other(seen(view, cell.seed, p, task)))
            figures.append([figure(p, task, view, g) for g in (guess, beside)])
        for k, column in enumerate(columns):
            mine = figures[k * len(tasks) : (k + 1) * len(tasks)]
            ours, other = zip(*([value for _, value in row] for row in mine), strict=True)
            yield Line(
                pair.name, pair.other.__name__, recorded.name, column, mine[0][0][0],
                list(ours), list(other),
            )  # fmt: skip


def _ours(p: Prepared, views: Sequence[View], seeds: Sequence[int], moment: Moment) -> list[Guess]:
    (answers,) = Bench().attack(p, Given(views, seeds, moment.phase))
    failed = next((f"{p.spec.label}: {a.reason}" for a in answers if a.guess is None), "")
    if failed:
        raise RuntimeError(failed)
    return [a.guess for a in answers if a.guess is not None]


def figure(p: Prepared, task: Task, view: View, guess: Guess) -> tuple[str, float]:
    """The metric of an answer and its value on the rows that were to be guessed."""
    goal = choose_goal(p.attack, p.spec, task)
    truth = goal.truth
    metric = (
        goal.metrics[0] if goal.metrics else choose_primary(goal.classes, goal.prior, truth.target)
    )
    split = "test" if "train" not in p.attack.splits else "train"
    (found,) = score(
        replace(guess, target=truth.target), truth, view.targets[split].numpy(),
        classes=goal.classes, prior=goal.prior, metrics=[metric],
    )  # fmt: skip
    assert found.value is not None
    return metric, float(found.value)


def seen(
    view: View, seed: int, p: Prepared | None = None, task: Task | None = None
) -> Seen:  # fmt: skip
    """The arrays of a View; of `task` what the victim of an act in training trains on."""
    found: dict[str, Any] = {"target": view.targets["train"].numpy()}
    if view.known is not None:
        found |= {"known": view.known.rows.numpy(), "labels": view.known.labels.numpy()}
    if view.prior is not None:
        found["prior"] = view.prior.numpy()
    if view.columns:
        every = torch.arange(len(view.columns[view.party]))
        found |= {"x": _plain(view.design(every)), "z": _plain(view.embed(every, view.party))}
    if view.models:
        found["models"] = {"bottom": view.model("bottom", view.party)}
        peers = [q for q in view.victims if q in view.models]
        if peers:
            found["models"]["peer"] = view.models[peers[0]]["bottom"]
        if "top" in view.models[view.party]:
            found["models"]["top"] = view.model("top", view.party)
    if view.labels is not None:
        found["own_labels"] = view.labels.numpy()
    if view.aux:
        aux, columns = view.require_aux()
        found |= {"aux": aux.numpy(), "columns": _plain(columns)}
    if task is not None and p is not None and p.spec.name == "fsha":
        found |= {"training": task.sets["aligned"].numpy(), "theirs": _plain(task.x["passive"])}
    held = {(way, kind, form) for way, kind, form, _ in view.tables}
    if ("received", "gradient", "all") in held:
        found |= _by_epoch(view, p)
    if ("received", "embedding", "last") in held:
        table = view.received("embedding", "last")
        last = np.zeros((len(found["x"]), table.tensor.shape[1]))
        last[table.rows.numpy()] = _plain(table.tensor)
        found["received"] = last
    if ("received", "prediction", "last") in held:
        table = view.received("prediction", "last", view.party)
        answers = _plain(table.tensor)
        answers = np.log(answers.clip(1e-30)) if (answers >= 0).all() else answers
        found |= {"told": table.rows.numpy(), "answers": answers}
    if view.references is not None:
        given = view.references
        found |= {"others": _plain(given.answers[:, -1]), "inside": given.trained.numpy()}
    updates = view.updates.get(view.party, ())
    found["updates"] = [
        (u.rows.numpy(), *({k.removeprefix("bottom."): v for k, v in of.items()
                            if k.startswith("bottom.")} for of in (u.weights, u.gradients)))
        for u in updates if u.epoch == updates[0].epoch
    ]  # fmt: skip
    return Seen(view.facts.classes, seed, **found)


def _by_epoch(view: View, p: Prepared | None) -> dict[str, Any]:
    """Messages (T, n, d) of the rows that passed in every epoch, and what was swapped."""
    received, sent = view.received("gradient", "all"), view.sent("embedding", "all")
    epochs = [received.epoch == e for e in received.epoch.unique()]
    rows = received.rows.unique()
    for e in epochs:
        rows = rows[torch.isin(rows, received.rows[e])]
    tables = [(received.take(e), sent.take(sent.epoch == received.epoch[e][0])) for e in epochs]
    found: dict[str, Any] = {
        "rows": rows.numpy(),
        "gradients": np.stack([_plain(g.of_rows(rows).flatten(1)) for g, _ in tables]),
        "sent": np.stack([_plain(z.of_rows(rows).flatten(1)) for _, z in tables]),
    }
    if p is not None and p.spec.name == "swap_probe" and view.known is not None:
        start, period = (int(p.attack.params()[k]) for k in ("start", "period"))
        found["probes"] = np.stack(
            [donors(rows, e, view.known, start, period).numpy() for e in range(len(epochs))]
        )
    return found


def _plain(x: torch.Tensor) -> NDArray[np.float64]:
    return x.detach().double().numpy()


def page(found: Sequence[Line], seconds: float) -> str:
    """The whole page."""
    behind = [f for f in found if f.verdict == "weaker"]
    below = [f for f in found if f.verdict != "weaker" and float(np.mean(f.gains)) < -MARGIN]
    open_ = sum(f.verdict == "undecided" for f in found)
    few = "; ".join(f"{f.attack}, {f.training}, {f.defense}" for f in below) or "none"
    said = (
        "Is an attack that finds nothing merely a weak version of what was published? No: of "
        f"{len(found)} comparisons of {len({f.attack.partition('(')[0] for f in found})} attacks "
        "with an independent implementation of their paper, "
        f"{len(found) - len(behind) - open_} are at least as strong, {open_} undecided and "
        f"{len(behind)} weaker."
    )
    if behind:
        said = said.replace("? No: of", "? Of")
    return "\n".join([
        *opening("Beside independent implementations", said, [
            f"`python benchmarks/evidence_independent.py` ({seconds:.0f} s of one CPU core). The "
            "implementations in `benchmarks/independent` are numpy, scikit-learn or plain PyTorch, "
            "with the paper's settings, no choice between variants and no shared line. Both are "
            "given the same recorded training and answer for the same rows; labelled rows are not "
            f"scored. {SEEDS} seeds, 1,000 training rows (500 where the passive party has four "
            "columns, 256 for batch_inference), 20 epochs of batches of 128, 20 labelled rows. "
            "Where columns of the other party are guessed, 100 auxiliary rows (sdar and fsha: 300 "
            "of 900). `iso` is isotropic noise on gradients.",
            "fsha acts in training: its independent one trains a victim of its own on the same "
            "rows, with as many messages (700). With 10,000, as many as published, it has R² of "
            "-1.18, -0.34 and 0.83 in three seeds, for it cannot see a reflection.",
            "The *difference* is paired by seed, with a 95 % t interval over seeds. Above 0 the "
            "package's attack does better (where smaller is better, the sign is turned). *Weaker*: "
            f"the whole interval lies below 0 and the mean below -{MARGIN:g}. *Undecided*: not "
            f"that, but the interval reaches below -{WIDE:g}. Behind by more than {MARGIN:g} on "
            f"average, but not by the interval: {few}.",
        ]),
        *table(["attack", "beside", "training", "defense", "metric", "package", "independent",
                "difference", "verdict"], (_row(f) for f in found)),
        *_why(behind),
        "## Left out", "",
        *table(["attacks", "why"], LEFT_OUT.items()),
    ])  # fmt: skip


def _row(f: Line) -> list[str]:
    low, high = f.interval
    return [
        f.attack, f.other, f.training, f.defense, f.metric, f"{np.mean(f.ours):.3f}",
        f"{np.mean(f.beside):.3f}", f"{np.mean(f.gains):+.3f} ({low:+.3f} to {high:+.3f})",
        f.verdict,
    ]  # fmt: skip


def _key(f: Line) -> tuple[str, str, str, str]:
    return f.attack, f.other, f.training, f.defense


def _why(behind: Sequence[Line]) -> list[str]:
    if not behind:
        return []
    said = [f"- **{f.attack}, {f.training}, {f.defense}**: {WHY.get(_key(f), '')}" for f in behind]
    return ["## Where it is weaker", "", *said, ""]


def part(recorded: Recorded) -> dict[str, Any]:
    """Lines of one training and what they cost: kept ones, or made now."""
    pairs = [(p.name, p.other.__name__, p.grants, p.defenses) for p in recorded.pairs]
    what = [recorded.name, recorded.data, recorded.world, recorded.settings, pairs, __version__,
            *[recorded.skewed] * bool(recorded.skewed)]  # fmt: skip
    path = PARTS / f"{hash_value(what)}.json"
    if not path.is_file():
        since = time.process_time()
        found = [asdict(f) for f in lines(recorded, range(SEEDS))]
        PARTS.mkdir(parents=True, exist_ok=True)
        made = {"lines": found, "seconds": time.process_time() - since}
        path.write_text(json.dumps(made), encoding="utf-8")
    return dict(json.loads(path.read_text("utf-8")))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="run and print trainings with this in the name")
    parser.add_argument("--fresh", action="store_true", help="make every training again")
    asked = parser.parse_args()
    if asked.fresh:
        shutil.rmtree(PARTS, ignore_errors=True)
    torch.set_num_threads(1)
    found: list[Line] = []
    seconds = 0.0
    for recorded in TRAININGS:
        if asked.only in recorded.name:
            made = part(recorded)
            mine = [Line(**f) for f in made["lines"]]
            print(
                *map(_row, mine), f"{recorded.name}: {made['seconds']:.0f} s", sep="\n", flush=True
            )
            found, seconds = [*found, *mine], seconds + made["seconds"]
    if asked.only:
        return 0
    OUT.write_text(page(found, seconds), encoding="utf-8")
    silent = [_key(f) for f in found if f.verdict == "weaker" and _key(f) not in WHY]
    for key in silent:
        print(f"WHY says nothing about {', '.join(key)}", file=sys.stderr)
    return 1 if silent else 0


if __name__ == "__main__":
    sys.exit(main())
