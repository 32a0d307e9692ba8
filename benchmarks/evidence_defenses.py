"""Every defense against every kind of attack, with utility: writes docs/evidence/defenses.md.

Run ``python benchmarks/evidence_defenses.py --data ../shared/data`` from the root (about half an
hour on one free core). Five seeds; strengths are chosen per defense so that the grid runs from weak
to strong; the undefended run (strength 0) is in every grid. Figures are kept in
docs/evidence/defenses.csv as they come; what is there is not trained again (``--fresh`` starts
anew), so an interrupted run goes on. Without ``--data`` the real table is left out. What the
figures mean where they differ from what is published stands in evidence_defenses_comments.md.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from evidence_pages import opening, table

from vflsec.audit import leakage
from vflsec.audit.point import UNDEFENDED, Training
from vflsec.audit.tradeoff_curves import build_curves
from vflsec.core.policy import Policy
from vflsec.core.rng import generator
from vflsec.core.task import Task
from vflsec.data.load import load_source
from vflsec.data.prepare import make_task
from vflsec.engine.cohort import run_cohort
from vflsec.errors import VflsecError
from vflsec.measure.control_cache import SharedControls
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, CellSpec, DefenseSpec, Params

SEEDS = range(5)
EPOCHS = 10
DROPS = (0.03, 0.1)
COMMENTS = Path(__file__).with_name("evidence_defenses_comments.md")
GRID: dict[str, tuple[str, dict[str, Any], Sequence[float]]] = {
    "iso": ("iso", {}, (1, 5, 25, 100)),
    "marvell": ("marvell", {}, (0.25, 1, 4, 25)),
    "max_norm": ("max_norm", {}, (0.25, 0.5, 1, 2)),
    "laplace": ("noise", {}, (1e-4, 2.5e-4, 2.5e-3, 2.5e-2)),
    "clipped gaussian": ("noise", {"clip": 1.0, "distribution": "gaussian"}, (0.25, 1, 4, 16)),
    "compression": ("compression", {}, (1 / 3, 1, 3, 9)),
    "discrete": ("discrete", {}, (1 / 24, 1 / 12, 1 / 6, 1 / 2)),
    "ppdl": ("ppdl", {"limit": 1.0, "threshold": 0.01}, (1e-5, 1e-4, 1e-3, 0.1)),
    "gradient_average": ("gradient_average", {}, (0.5, 0.9, 0.99, 1.0)),
    "label_dp": ("label_dp", {}, (1 / 4, 1 / 2, 1, 2)),
    "rr_prior": ("rr_prior", {}, (1 / 4, 1 / 2, 1, 2)),
    "lp_mst": ("lp_mst", {}, (1 / 4, 1 / 2, 1, 2)),
    "alibi": ("alibi", {}, (1 / 4, 1 / 2, 1, 2)),
    "gradperturb": ("gradperturb", {}, (1 / 4, 1, 4, 16)),
    "coae": ("coae", {"steps": 150}, (1e-9, 0.1, 0.5, 1)),
    "dcor": ("dcor", {}, (0.01, 0.1, 1, 10)),
    "mid": ("mid", {}, (1e-12, 1e-3, 0.1, 10)),
    "embedding_noise": ("embedding_noise", {}, (0.25, 1, 4, 16)),
    "mixup": ("mixup", {}, (0.1, 0.2, 0.35, 0.5)),
    "dpsgd": ("dpsgd", {"clip_norm": 1.0}, (0.5, 1, 4, 16)),
    "dpsgd, clip 1, hardly any noise": ("dpsgd", {"clip_norm": 1.0}, (1e-6,)),
    "dpsgd, clip 10": ("dpsgd", {"clip_norm": 10.0}, (1e-6, 0.5, 4, 16)),
    "he_embedding": ("he_embedding", {}, (1,)),
    "he_gradient": ("he_gradient", {}, (1,)),
}
SPLIT: dict[str, Any] = {
    "epochs": EPOCHS, "patience": 0, "hidden": [32], "cut": 16, "batch_size": 128,
    "embedding": 0,
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "top": SPLIT,
    "sum": {**SPLIT, "top": [], "linear_top": False, "aggregation": "sum"},
}
FREE: dict[str, tuple[str, dict[str, Any]]] = {
    "as above": ("top", {}),
    "2 epochs": ("top", {"epochs": 2}),
    "5 epochs": ("top", {"epochs": 5}),
    "30 epochs": ("top", {"epochs": 30}),
    "30 epochs, patience 3": ("top", {"epochs": 30, "patience": 3}),
    "cut 2": ("top", {"cut": 2}),
    "cut 64": ("top", {"cut": 64}),
    "linear bottoms": ("top", {"hidden": []}),
    "bottoms 64-64": ("top", {"hidden": [64, 64]}),
    "dropout 0.25": ("top", {"dropout": 0.25}),
    "dropout 0.5": ("top", {"dropout": 0.5}),
    "weight decay 0.01": ("top", {"weight_decay": 0.01}),
}


@dataclass(frozen=True)
class Column:
    """One attack of the matrix, and behind which kind of top model it is made."""

    attack: str
    params: dict[str, Any] = field(default_factory=dict)
    kind: str = "top"
    adversary: str = "passive"
    grants: dict[str, Any] = field(default_factory=dict)

    def spec(self, task: Task) -> AttackSpec:
        party = task.active if self.adversary == "active" else task.passive[0]
        return AttackSpec(self.attack, self.params, (party,), **self.grants)


COLUMNS = {
    "direct": Column("direct", kind="sum"),
    "norm": Column("norm"),
    "direction": Column("direction", {"positives": 5}),
    "spectral, gradients": Column("spectral", {"on": "gradient"}),
    "spectral, embeddings": Column("spectral"),
    "similarity": Column("similarity"),
    "lea": Column("lea"),
    "zero_pattern": Column("zero_pattern"),
    "gradient_completion": Column("gradient_completion"),
    "model_completion": Column("model_completion"),
    "batch_inference": Column("batch_inference", {"steps": 50, "starts": 2}, kind="sum"),
    "exploit": Column("exploit", {"steps": 50, "starts": 1}),
    "embedding_inversion": Column(
        "embedding_inversion", {"variants": ("linear",)}, adversary="active",
        grants={"aux_rows": 60},
    ),
}  # fmt: skip
LABEL = [name for name, column in COLUMNS.items() if column.adversary == "passive"]
NEWER = ("lea", "zero_pattern", "gradient_completion")
MORE = 0.02
# The published or derived expectation: S stops, P partly, N does not, S/P either; "" none stated.
PLACES = (
    "direct", "norm", "direction", "spectral, gradients", "spectral, embeddings",
    "model_completion", "batch_inference", "exploit", "embedding_inversion",
)  # fmt: skip
EXPECTED: dict[tuple[str, float], str] = {
    ("iso", 1): "P N N N N N P P N",
    ("iso", 25): "S S P P P P S S N",
    ("max_norm", 1): "N S/P N N N N P N N",
    ("marvell", 4): "- S S P N N - P N",
    ("laplace", 2.5e-4): "N P N N N N P P N",
    ("compression", 9): "N N N N N N P P N",
    ("ppdl", 0.1): "P P P P P P P P N",
    ("discrete", 1 / 2): "P P N N N N P P N",
    ("label_dp", 1): "P P P P P P P P N",
    ("gradperturb", 1): "S S S P P P S P N",
    ("coae", 1e-9): "S/N N N N N N S/N P N",
    ("dcor", 10): "P P P P S/P P P P N",
    ("mid", 10): "P P P P P P S P P",
    ("gradient_average", 1): "S S S S P P S S N",
    ("he_embedding", 1): "N N N N N N N N P",
    ("he_gradient", 1): "S S S S N N N S P",
}


def worlds(folder: Path | None) -> dict[str, dict[int, Task]]:
    """Tasks by seed of every data set."""
    out = {}
    for name, rate in (("control, 15 % positive", 0.15), ("control, balanced", 0.5)):
        size = {"rows": 1500, "validation_rows": 300, "test_rows": 700}
        section: Params = {"name": "control_gaussian", "params": {"positive_rate": rate, **size}}
        out[name] = {s: make_task(load_source(section, s, Path()), s) for s in SEEDS}
    if folder is not None and (folder / "credit_default").is_dir():
        from vflsec.data.table_spec import TableSpec
        from vflsec.data.tables import load_tables

        here = folder / "credit_default"
        source = load_tables(
            {
                "bank": here / "fate_default_credit_hetero_guest.csv.gz",
                "bureau": here / "fate_default_credit_hetero_host.csv.gz",
            },
            TableSpec(
                id="id",
                label="y",
                active="bank",
            ),
        )
        out["credit_default, 6000 rows"] = {s: _fewer(make_task(source, s), s) for s in SEEDS}
    return out


def _fewer(task: Task, seed: int) -> Task:
    """The task on 4000 training, 1000 validation and 1000 test rows drawn by seed."""
    g = generator(seed, "evidence")
    sets = {}
    for name, size in (("labelled", 4000), ("validation", 1000), ("test", 1000)):
        ids = task.sets[name]
        sets[name] = ids[torch.randperm(len(ids), generator=g)[:size]].sort().values
    same = dict.fromkeys((k for k in task.sets if k not in sets), sets["labelled"])
    return replace(task, sets=same | sets, active_labelled=sets["labelled"])


def run(
    data: str, tasks: dict[int, Task], kind: str, change: dict[str, Any], name: str,
    controls: SharedControls,
) -> list[dict[str, Any]]:  # fmt: skip
    """All strengths of one defense (or none, "") behind one kind of top model: a row a figure."""
    defense, params, grid = GRID[name] if name else ("", {}, ())
    columns = {c: column.spec(tasks[0]) for c, column in COLUMNS.items() if column.kind == kind}
    made = registry.defenses.get(defense) if name else Policy
    swept = issubclass(made, Policy) and bool(made.strengths)
    cohorts: dict[str, list[tuple[float, CellSpec]]] = {}
    for strength, seed in itertools.product((0.0, *map(float, grid)), SEEDS):
        used: tuple[DefenseSpec, ...] = ()
        if swept:
            used = (DefenseSpec(defense, params, strength=strength),)
        elif strength:  # encryption is on or not there
            used = (DefenseSpec(defense, params),)
        cell = CellSpec({"name": data}, "splitnn", {**KINDS[kind], **change}, used, seed)
        cohorts.setdefault(cell.cohort, []).append((strength, cell))
    found = []
    for cohort in cohorts.values():
        cells = [cell for _, cell in cohort]
        results = run_cohort(cells, list(columns.values()), tasks, device="cpu", shared=controls)
        for (strength, _), result in zip(cohort, results, strict=True):
            at = Training(data, "splitnn", name or UNDEFENDED, strength)
            found += [replace(r, known_rows=20) for r in leakage.list_rows(result, at)]
    points = leakage.summarise(leakage.complete_rows(found), 0.95)
    points = [p for p in points if p.split == "train" and p.metric == p.primary]
    caps = {c.attack: c.cap for c in build_curves(points) if c.cap is not None}
    labels = {spec.label: c for c, spec in columns.items()}
    return [
        {
            "data": data, "kind": kind, "defense": name, "strength": p.strength,
            "attack": labels[p.attack], "utility": _round(p.utility.mean, 4),
            "advantage": _round(p.advantage.mean, 3), "low": _round(p.advantage.low, 3),
            "high": _round(p.advantage.high, 3), "cap": _round(caps.get(p.attack), 4),
        }
        for p in points
        if p.attack and p.advantage.mean
    ]  # fmt: skip


def _round(value: float | None, digits: int) -> float:
    return math.nan if value is None else round(value, digits)


def jobs() -> list[tuple[str, str, dict[str, Any], str]]:
    """Title, kind of top model, changed settings and defense of everything that is trained."""
    free = [(title, kind, change, "") for title, (kind, change) in FREE.items()]
    return free + [(name, kind, {}, name) for name in GRID for kind in KINDS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--only", nargs="*", default=None, help="only these defenses")
    parser.add_argument("--world", default="", help="only data whose name contains this")
    parser.add_argument("--fresh", action="store_true", help="forget figures of earlier runs")
    parser.add_argument("--only-page", action="store_true", help="from the kept figures alone")
    parser.add_argument("--out", type=Path, default=Path("docs/evidence/defenses.md"))
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    store = args.out.with_suffix(".csv")
    there = store.exists() and not args.fresh
    found = pd.read_csv(store, keep_default_na=False, na_values=["nan"]) if there else None
    for data, tasks in ({} if args.only_page else worlds(args.data)).items():
        controls = SharedControls()
        for title, kind, change, defense in jobs():
            known = found is not None and bool(
                (
                    (found["data"] == data) & (found["title"] == title) & (found["kind"] == kind)
                ).any()
            )
            if args.world not in data or known or (args.only and title not in args.only):
                continue
            begin = time.perf_counter()
            kept = controls if not change else SharedControls()
            try:
                rows = run(data, tasks, kind, change, defense, kept)
            except VflsecError as error:  # MID needs a top model, encryption one of its own
                print(f"{title} behind {kind} is left out: {error}")
                continue
            new = pd.DataFrame([{"title": title} | r for r in rows])
            found = new if found is None else pd.concat([found, new], ignore_index=True)
            found.to_csv(store, index=False, na_rep="nan")
            print(data, title, kind, f"{time.perf_counter() - begin:.0f} s", flush=True)
    if found is not None:
        args.out.write_text(page(found), encoding="utf-8")


ANSWER = """What does each defense stop, and at what cost? On gradients nothing is free. A defense
that brings the strongest attack down to its baseline on the drawn data costs at least a tenth of
AUC, or leaves a model to which the passive party contributes nothing. Randomised labels
(`label_dp`, `rr_prior`, `lp_mst`) are the best trade at a drop of up to 0.1 on both drawn data
sets. With `alibi` they give the only guarantee that more epochs do not weaken;
`gradient_completion` finds most of what they leave. Compression, rounding, CoAE, mixup, DP-SGD of
models and noise on embeddings protect no labels here. Fewer epochs and linear bottoms weaken
completion; no free setting stops attacks on gradients. Encrypting embeddings changes nothing for
labels. Encrypting gradients leaves completion, embeddings and batch sums."""


def page(found: pd.DataFrame) -> str:
    """The evidence as Markdown."""
    defended, free = found[found["defense"] != ""], found[found["defense"] == ""]
    wanted, agree, cells = _comparison(defended)
    return "\n".join([
        *opening("What each defense stops, and what it costs", ANSWER, [
            f"""`python benchmarks/evidence_defenses.py --data FOLDER`. FedSplitNN with bottoms
            32-16 and top 32, batches of 128, `embedding = 0`, {EPOCHS} epochs, best epoch by
            validation loss, seeds 0 to 4. The attacker is the passive party with 20 labelled rows
            and the class prior. `direct` and `batch_inference` run behind a plain sum of the
            parties' logits. For `embedding_inversion` the attacker is the active party with 60
            auxiliary rows.""",
            """A value is the attack's AUC on unknown **training** rows (R² for
            `embedding_inversion`) minus that of its strongest baseline, mean over five seeds; 0 or
            less means no leak. The 95 % t interval's lower end holds over all baselines; its upper
            end rests on the one that cross-validation named beforehand
            ([statistics](../statistics.md)).""",
            """Strength 0 is the undefended run; the [scale](../defenses.md) is the defense's own.
            `laplace` is `noise` as published, `clipped gaussian` is `noise` with rows clipped to
            length 1. *Not there*: the attack found nothing to work on, or the defense cannot be
            used behind a plain sum.""",
        ]),
        "## Which defense to choose", "",
        f"""Per defense, the smallest advantage that the strongest label attack keeps at an AUC drop
of at most {DROPS[1]} and {DROPS[0]}, and the strength that reaches it. These are the runs it was
chosen on; `vflsec tune` judges on other seeds. CAP (the mean of utility x (1 - attack) over the
strengths) rewards strengths that destroy training, so do not choose by it.""", "",
        *_ranking(defended[defended["attack"].isin(LABEL)]),
        "## Every strength", "",
        "The value of every attack is in [defenses.csv](defenses.csv).", "",
        *_strengths(defended, ["defense", "strength"]),
        "## Without a defense: other settings of the training", "",
        *_strengths(free, ["setting"]),
        "## What newer attacks add", "",
        f"""Where {", ".join(f"`{n}`" for n in NEWER)} have a lower bound above 0 and more than
{MORE} beyond every other attack on labels.""", "",
        *_added(defended),
        "## What differs from the expectation", "",
        f"""The literature or the mechanism leads one to expect whether a defense stops an attack.
{agree} of {cells} cells agree; these do not. *Stopped*: the upper bound is at most 0.05. *Not
stopped*: at least 80 % of the undefended advantage remains. *Partly*: in between. *At a price*: the
AUC drops by more than {DROPS[0]}; that agrees where *partly* is expected.""", "",
        *wanted,
        COMMENTS.read_text("utf-8").strip(), "",
    ])  # fmt: skip


def _cell(of: pd.DataFrame) -> str:
    """The advantage of a row with its interval."""
    if of.empty:
        return "not there"
    r = of.to_dict("records")[0]
    return f"{r['advantage']:+.2f} [{r['low']:+.2f}, {r['high']:+.2f}]"


def _strengths(of: pd.DataFrame, first: list[str]) -> list[str]:
    """A row for every defense and strength, or setting: cost and leakage."""
    shown, rows, bare = ("model_completion", "embedding_inversion"), [], set()
    for (data, title, strength), each in of.groupby(["data", "title", "strength"], sort=False):
        if "strength" in first and not strength:  # the undefended run is the same of all
            if data in bare:
                continue
            bare.add(data)
            title = "none"
        best = each[each["attack"].isin(LABEL)].nlargest(1, "advantage")
        cells = [str(data), str(title), *([f"{strength:.3g}"] * ("strength" in first))]
        cells.append(f"{each[each['kind'] == 'top']['utility'].iloc[0]:.3f}")
        cells += [str(best["attack"].iloc[0]), _cell(best)]
        rows.append([*cells, *(_cell(each[each["attack"] == name]) for name in shown)])
    head = ["data", *first, "test AUC", "strongest label attack", "its advantage", *shown]
    return table(head, rows)


def _added(of: pd.DataFrame) -> list[str]:
    """Where one of NEWER gains more than every other attack on labels, by more than MORE."""
    made = []
    labels = of[of["attack"].isin(LABEL) & (of["strength"] > 0)]
    for (data, title, strength), rows in labels.groupby(["data", "title", "strength"], sort=False):
        newer = rows["attack"].isin(NEWER)
        if not newer.any() or newer.all():
            continue
        best, other = (p.nlargest(1, "advantage") for p in (rows[newer], rows[~newer]))
        gain = float(best["advantage"].iloc[0]) - float(other["advantage"].iloc[0])
        if float(best["low"].iloc[0]) > 0 and gain > MORE:
            figures = [c for p in (best, other) for c in (str(p["attack"].iloc[0]), _cell(p))]
            made.append([str(data), str(title), f"{strength:.3g}", *figures])
    head = ["data", "defense", "strength", "newer attack", "advantage", "best of the others",
            "its advantage"]  # fmt: skip
    return table(head, made)


def _dropped(of: pd.DataFrame) -> pd.DataFrame:
    """With the drop of utility against the undefended run behind the same kind of top model."""
    bare = of[of["strength"] == 0].groupby("kind")["utility"].first()
    return of.assign(drop=of["kind"].map(bare) - of["utility"])


def _ranking(of: pd.DataFrame) -> list[str]:
    rows = []
    for data, here in of.groupby("data", sort=False):
        found: list[tuple[float, float, list[str]]] = []
        for defense, each in here.groupby("defense", sort=False):
            each = _dropped(each)
            each = each[each["kind"] == "top"]
            cells, least = [str(data), str(defense)], []
            for drop in DROPS[::-1]:
                worst = each[each["drop"] <= drop].groupby("strength")["advantage"].max()
                least.append(float(worst.min()))
                cells += [f"{worst.min():+.3f}", f"{worst.index.to_numpy()[worst.argmin()]:.3g}"]
            found.append((least[0], least[1], [*cells, f"{float(each['cap'].min()):.3f}"]))
        rows += [r for _, _, r in sorted(found, key=lambda f: f[:2])]
    head = ["data", "defense", *(h for d in DROPS[::-1] for h in (f"at drop <= {d}", "strength")),
            "CAP"]  # fmt: skip
    return table(head, rows)


LETTERS = {"S": "stopped", "P": "partly", "N": "not stopped", "S!": "stopped at a price"}


def _comparison(of: pd.DataFrame) -> tuple[list[str], int, int]:
    """The cells that differ from what is expected; how many agree, and of how many."""
    rows, cells = [], 0
    for data, here in of.groupby("data", sort=False):
        for (defense, strength), letters in EXPECTED.items():
            each = _dropped(here[here["defense"] == defense])
            for name, wanted in zip(PLACES, letters.split(), strict=True):
                at = each[each["attack"] == name]
                letter = _letter(at[at["strength"] == 0], at[at["strength"] == strength])
                if "-" in (letter, wanted):
                    continue
                cells += 1
                same = letter.strip("!") in wanted.split("/") or (letter == "S!" and "P" in wanted)
                if not same:
                    said = " or ".join(LETTERS[w] for w in wanted.split("/"))
                    rows.append(
                        [str(data), defense, f"{strength:.3g}", name, said, LETTERS[letter]]
                    )
    head = ["data", "defense", "strength", "attack", "expected", "found"]
    return table(head, rows), cells - len(rows), cells


def _letter(bare: pd.DataFrame, on: pd.DataFrame) -> str:
    if bare.empty or float(bare["advantage"].iloc[0]) < 0.05:
        return "-"
    if on.empty:
        return "S"
    if float(on["high"].iloc[0]) <= 0.05:
        return "S!" if float(on["drop"].iloc[0]) > DROPS[0] else "S"
    return "N" if float(on["advantage"].iloc[0]) >= 0.8 * float(bare["advantage"].iloc[0]) else "P"


if __name__ == "__main__":
    main()
