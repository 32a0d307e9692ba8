"""Trials as scenarios, run by the ordinary engine into results directories that resume."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from seeds.claims import SYSTEMS, WORLDS, System, World
from vflsec.engine.run import run_audit

__all__ = [
    "DATA", "FIELDS", "chosen", "figures", "main_task", "scenario", "section", "train", "trials",
]  # fmt: skip

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "evidence" / "seeds"
FOUND = [ROOT.parent / "shared" / "data", ROOT.parent.parent / "shared" / "data"]
DATA = Path(os.environ.get("VFLSEC_TEST_DATA") or next((f for f in FOUND if f.is_dir()), FOUND[0]))
KNOWN, AUX = 80, 50
GRID = [0.0, 1.0, 5.0, 25.0]
FIELDS = (
    "world", "system", "setting", "stage", "seed", "phase", "defense", "strength", "adversary",
    "attack", "target", "split", "metric", "value", "control_value", "advantage", "bytes",
)  # fmt: skip
"""Columns of the figures; ``stage`` is ``settings`` or ``leakage``."""

ATTACKS: list[dict[str, Any]] = [
    {"name": "model_completion", "known_rows": KNOWN, "variants": ["logistic", "finetune"]},
    {"name": "direction", "known_rows": KNOWN},
    {"name": "cluster", "names": "known", "metric": "cosine", "known_rows": KNOWN},
    {"name": "embedding_inversion", "adversary": "active", "aux_rows": AUX},
]
DEFENSES: list[dict[str, Any]] = [
    {"name": "iso", "choice": "protection", "strength": GRID},
    {"name": "label_dp", "choice": "protection", "strength": [1.0]},
]
ENCRYPTED: dict[str, Any] = {"name": "he_embedding", "choice": "protection", "out": 16}


def section(world: World, *, plenty: bool = False) -> dict[str, Any]:
    """The ``[data]`` section of a world, or of the same where nothing is short."""
    out: dict[str, Any] = {}
    if world.table is not None:
        name, split = world.table
        folder = DATA / name
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        if "views" in meta and split:
            out = _two_views(name, *split.split(" and "))
        elif split:
            parts = meta["splits"][split]
            out = {
                "name": name, "file": str(folder / f"{name}.csv.gz"), "label": meta["label"],
                "active": "active", "categorical": meta["categorical"],
                "columns": {"active": parts["label_party"], "passive": parts["passive"]},
            }  # fmt: skip
        else:
            archive = next(folder.glob("*.npz")).name
            out = {"params": {"folder": str(folder), "file": archive, "server": True}}
    out |= world.data
    if plenty:
        out |= world.plenty
    return {k: v for k, v in out.items() if v is not None}


def _two_views(name: str, active: str, passive: str) -> dict[str, Any]:
    """The section of an archive of views, of which each party has one; writes them as a table."""
    with np.load(DATA / name / f"{name}.npz", allow_pickle=False) as archive:
        views = {
            party: pd.DataFrame(archive[view]).add_prefix(f"{view}_")
            for party, view in (("active", active), ("passive", passive))
        }
        label = pd.Series(archive["label"], name="label")
    BUILD.mkdir(parents=True, exist_ok=True)
    file = BUILD / f"{name}.csv"
    pd.concat([*views.values(), label], axis=1).to_csv(file, index=False)
    return {
        "name": name, "file": str(file), "label": "label", "active": "active",
        "columns": {party: [*view.columns] for party, view in views.items()},
    }  # fmt: skip


def scenario(
    world: World, system: System, setting: int, seeds: Sequence[int], *, leakage: bool
) -> dict[str, Any]:
    """The audit of one system with one setting: its main task, or also who learns what."""
    params = {**world.shared, **system.params, **system.grid[setting]}
    made: dict[str, Any] = {
        "data": [section(world, plenty=system.plenty)],
        "algorithm": [{"name": system.algorithm, **params}],
        "audit": {"seeds": list(seeds), "references": [], "positive_control": False,
                  "canaries": False},
    }  # fmt: skip
    if leakage:
        made |= {"attack": ATTACKS, "defense": [*DEFENSES, *[ENCRYPTED] * system.encrypted]}
    return made


def figures(
    name: str, title: str, setting: int, seeds: Sequence[int], *, leakage: bool, **options: Any
) -> pd.DataFrame:
    """The figures of one trial, :data:`FIELDS`; what is finished already is not done again."""
    world = WORLDS[name]
    system = SYSTEMS[world.family][title]
    stage = "leakage" if leakage else "settings"
    out = options.pop("build", BUILD) / folder(name) / folder(title) / f"{stage}{setting}"
    out.mkdir(parents=True, exist_ok=True)
    wanted = scenario(world, system, setting, seeds, leakage=leakage)
    found = run_audit(wanted, out, **options).results
    found = found[(found.role == "audit") & (found.status == "ok")]
    found = found[(found.metric == found.primary) | (found.metric == "accuracy")]
    return found.assign(world=name, system=title, setting=setting, stage=stage)[[*FIELDS]]


def train(
    data: dict[str, Any], algorithm: dict[str, Any], seeds: Sequence[int], to: Path, *, split: str
) -> pd.DataFrame:
    """The main task after the last phase by seed, with the seconds of a seed; nothing is attacked.

    Args:
        data, algorithm: sections of a scenario.
        seeds: of the trainings.
        to: folder of the audit.
        split: ``validation`` or ``test`` rows.
    """
    made: dict[str, Any] = {
        "data": [data], "algorithm": [algorithm],
        "audit": {"seeds": [*seeds], "references": [], "positive_control": False,
                  "canaries": False},
    }  # fmt: skip
    to.mkdir(parents=True, exist_ok=True)
    started = time.process_time()
    some = run_audit(made, to, device="cpu", jobs=1).results
    seconds = round((time.process_time() - started) / len(seeds), 1)
    some = some[(some.role == "audit") & (some.status == "ok") & (some.attack == "")]
    some = some[(some.split == split) & (some.metric == some.primary)]
    some = some[some.phase == some.phase.iloc[-1]]
    name = "/".join(to.parts[-4:])
    print(f"{name}: {some.value.mean():.4f}, {seconds:.1f} s a seed", flush=True)
    return some.assign(seconds=seconds)


def folder(name: str) -> str:
    """A name as the name of a folder."""
    return "".join(c if c.isalnum() else "_" for c in name)


def chosen(found: pd.DataFrame, name: str, title: str) -> int:
    """The setting with the best mean of the main task on validation rows, over shared seeds."""
    some = main_task(found, name, title, "settings", "validation")
    means = some.pivot(index="seed", columns="setting", values="value").dropna().mean()
    return int(means.index.to_numpy()[means.argmax()])


def main_task(
    found: pd.DataFrame, name: str, title: str, stage: str, split: str = "test"
) -> pd.DataFrame:
    """The undefended main task after the last phase: AUC of two classes, else accuracy."""
    some = found[(found.world == name) & (found.system == title) & (found.stage == stage)]
    some = some[(some.attack == "") & (some.split == split) & (some.strength == 0)]
    if some.empty:
        return some
    metric = "auc" if (some.metric == "auc").any() else "accuracy"
    return some[(some.phase == some.phase.iloc[-1]) & (some.metric == metric)]


def trials(name: str) -> Iterator[tuple[str, int]]:
    """Every system of a world with every setting."""
    for title, system in SYSTEMS[WORLDS[name].family].items():
        for setting in range(len(system.grid)):
            yield title, setting
