"""What encryption of embeddings hides, and what not: writes docs/evidence/he.md.

    python benchmarks/evidence_he.py            emulated, five seeds: some minutes
    python benchmarks/evidence_he.py --quick    one seed of breast cancer, printed and not written
    python benchmarks/evidence_he.py --real     and breast cancer through ciphertexts, one seed

The cells are those of scenarios/he_vs_attacks.toml and scenarios/he_gradient.toml. Without
``--real`` the file keeps the section on ciphertexts that it has.
"""

from __future__ import annotations

import argparse
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from evidence_pages import opening, table

from vflsec.audit.intervals import t_interval
from vflsec.data.prepare import make_task
from vflsec.engine.cohort import run_cohort
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, CellResult, CellSpec, DefenseSpec

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs" / "evidence" / "he.md"
REAL = "## Through real ciphertexts"
OWN = ("name", "choice", "adversary", "known_rows", "aux_rows")
Row = tuple[str, dict[str, Any], list[CellResult]]


def cells(
    scenario: dict[str, Any],
    data: dict[str, Any],
    params: dict[str, Any],
    seeds: Sequence[int],
    algorithm: dict[str, Any] | None = None,
) -> list[CellResult]:
    """Train and attack one layer (or one gradient protocol) on one data set."""
    made = registry.datasets.create(data["name"], data.get("params", {}))
    tasks = {s: make_task(made.load(s), s) for s in seeds}
    algorithm = {k: v for k, v in (algorithm or scenario["algorithm"]).items() if k != "name"}
    defense = DefenseSpec(scenario["defense"][0]["name"], params)
    specs = [CellSpec(data, "splitnn", algorithm, (defense,), s) for s in seeds]
    attacks = [
        AttackSpec(
            a["name"],
            {k: v for k, v in a.items() if k not in OWN},
            (a.get("adversary", "passive"),),
            a.get("known_rows", 20),
            aux_rows=a.get("aux_rows", 0),
        )
        for a in scenario["attack"]
        if params.get("mode") == "clear" or a.get("on") != "embedding"  # the plan refuses it
    ]
    return run_cohort(specs, attacks, tasks, device="cpu")


def values(results: list[CellResult], attack: str, metric: str, split: str) -> list[float]:
    """One figure a seed."""
    return [
        float(m.value)
        for r in results
        for m in r.measures
        if m.attack == attack and m.metric == metric and m.split == split and m.value is not None
    ]


def controls(
    results: list[CellResult], attack: str, metric: str, split: str = "train"
) -> list[float]:
    """The strongest control's figure, one a seed."""
    return [
        max(float(c["value"]) for c in m.controls.values() if c["value"] is not None)
        for r in results
        for m in r.measures
        if m.attack == attack and m.metric == metric and m.split == split and m.controls
    ]


def title(data: dict[str, Any]) -> str:
    """A data set with its parameters."""
    inner = ", ".join(f"{k}={v}" for k, v in data.get("params", {}).items())
    return f"{data['name']}({inner})" if inner else str(data["name"])


def shown(found: list[float]) -> str:
    """Mean with its 95 % t interval over seeds."""
    if len(found) < 2:
        return f"{found[0]:.3g}" if found else "not observable"
    low, high = t_interval(np.asarray(found))[:2]
    return f"{np.mean(found):.3g} ({low:.3g} to {high:.3g})"


def name(params: dict[str, Any]) -> str:
    """A layer in words."""
    if params.get("mode") == "clear":
        return f"in the clear, {params['out']} wide"
    return f"encrypted, {params.get('weights', 'plain')} weights, {params['out']} wide"


COLUMNS = (
    ("main task, test AUC", "", "auc", "test"),
    ("inversion from z", "linear_inversion(use=output)", "relative_error", "train"),
    ("joint inversion", "linear_inversion(use=joint)", "relative_error", "train"),
    ("decoder on h, R²", "embedding_inversion(on=embedding)", "r2", "train"),
    ("decoder on z, R²", "embedding_inversion(on=activation)", "r2", "train"),
    ("model completion, AUC", "model_completion", "auc", "test"),
    ("norm, AUC", "norm", "auc", "train"),
    ("direction, AUC", "direction(positives=5)", "auc", "train"),
)


def layers(rows: list[Row]) -> list[str]:
    """One line a layer and data set."""
    heads = ["data", "layer", *(c[0] for c in COLUMNS)]
    heads += ["decoder's baseline, R²", "best linear guess", "column means"]
    out = []
    for data, params, results in rows:
        found = [shown(values(results, *c[1:])) for c in COLUMNS]
        inversions = [
            m
            for r in results
            for m in r.measures
            if m.attack == COLUMNS[1][1] and m.metric == "relative_error"
        ]
        best = shown([float(m.notes["best_linear_error"]) for m in inversions])
        control = shown([float(m.controls["mean"]["value"] or 0) for m in inversions])
        decoder = shown(controls(results, COLUMNS[4][1], "r2"))
        out.append([data, name(params), *found, decoder, best, control])
    return table(heads, out)


def emulated(scenario: dict[str, Any], seeds: Sequence[int]) -> list[str]:
    """Some seeds of every layer on every data set."""
    rows: list[Row] = []
    for data in scenario["data"]:
        for d in scenario["defense"]:
            params = {k: v for k, v in d.items() if k not in OWN}
            rows.append((title(data), params, cells(scenario, data, params, seeds)))
    cut = scenario["algorithm"]["cut"]
    claims = [
        [name(p), hides or "nothing", leaves]
        for _, p, _ in rows[: len(scenario["defense"])]
        for hides, leaves in [registry.defenses.create("he_embedding", p).bought({"cut": cut})]
    ]
    return [
        *opening("What encryption hides, and what not", ANSWER, [
            f"""`python benchmarks/evidence_he.py`: scenarios `he_vs_attacks` and `he_gradient`,
            {len(seeds)} seeds, 95 % t intervals over seeds, emulated mode.""",
            f"""Inversion columns are relative errors of the embedding (width {cut}) on training
            rows: 0 is exact, guessing 0 has 1. *Column means* is the error of guessing those, which
            no attacker knows; *best linear guess* is fitted to the truth. The decoders know 100
            auxiliary rows; their baseline is the same regression without z. *Not observable*: the
            attacker does not receive what the attack reads.""",
        ]),
        "## Encrypted embeddings", "", *layers(rows),
        *table(["layer", "hides", "leaves"], claims),
        "Combining epochs (`joint`) helps where the layer's weights move more than the embedding, "
        "and hurts where they do not.", "",
    ]  # fmt: skip


ANSWER = """Does encryption stop the attacks? Encrypted embeddings with plain weights are hidden on
the wire alone: if the layer has at least as many outputs as the embedding has columns, the active
party solves for the embedding (relative error below 0.001). Shared weights stop that. A decoder
still inverts what it receives wherever the embedding can hold the columns, and attacks on gradients
find what they found before. Encrypting gradients takes `direction` and `norm` away. It leaves the
sums over batches, which give every label where a batch is no larger than the party's columns."""


def decoders(scenario: dict[str, Any], seeds: Sequence[int]) -> list[str]:
    """R² of decoders by the number of auxiliary rows."""
    known = (100, 300, 1000)
    rows = []
    data = scenario["data"][0]
    for params in ({"out": 32}, {"out": 32, "weights": "shared"}):
        line = [name(params)]
        for q in known:
            attack = {"name": "embedding_inversion", "on": "activation", "adversary": "active"}
            asked = {**scenario, "attack": [{**attack, "aux_rows": q}]}
            found = cells(asked, data, params, seeds)
            line.append(shown(values(found, COLUMNS[4][1], "r2", "train")))
        rows.append(line)
    return [
        "## Decoders by auxiliary rows", "",
        "R² of the columns on all other training rows, decoded from z, on `control_gaussian` with "
        "its 100 independent columns. An embedding of 16 numbers holds at most 16 % of their "
        "variance.", "",
        *table(["layer", *(f"{q} auxiliary rows" for q in known)], rows),
    ]  # fmt: skip


def summed(scenario: dict[str, Any], seeds: Sequence[int]) -> list[str]:
    """Batch label inference and completion under `he_gradient`, by batch size."""
    heads = ["data", "batch", "gradients", "batch inference, AUC", "direction, AUC", "norm, AUC",
             "model completion, train AUC", "baseline, AUC", "main task, test AUC"]  # fmt: skip
    rows = []
    for data in scenario["data"]:
        for algorithm in scenario["algorithm"]:
            for d in scenario["defense"]:
                params = {k: v for k, v in d.items() if k not in OWN}
                clear = params.get("mode") == "clear"
                seen = ("batch_inference", "model_completion")
                attacks = [a for a in scenario["attack"] if clear or a["name"] in seen]
                found = cells({**scenario, "attack": attacks}, data, params, seeds, algorithm)
                line = [
                    title(data),
                    str(algorithm["batch_size"]),
                    "in the clear" if clear else "encrypted",
                ]
                for attack in (
                    "batch_inference",
                    "direction(positives=5)",
                    "norm",
                    "model_completion",
                ):
                    line.append(shown(values(found, attack, "auc", "train")))
                line.append(shown(controls(found, "batch_inference", "auc")))
                line.append(shown(values(found, "", "auc", "test")))
                rows.append(line)
    return [
        "## Encrypted gradients", "",
        "A linear bottom and summed logits (vertical logistic regression). The baseline is the "
        "same party with its own columns and 20 labelled rows.", "",
        *table(heads, rows),
        "Many labellings fit the sum over a large batch. Batches that are drawn anew in every "
        "epoch leave fewer, so all epochs together find the labels of `control_gaussian` at "
        "batches of 256 too.", "",
    ]  # fmt: skip


def real(scenario: dict[str, Any]) -> list[str]:
    """One seed of every encrypted layer through ciphertexts, beside its emulated twin."""
    rows: list[Row] = []
    lines = []
    scenario = {**scenario, "algorithm": {**scenario["algorithm"], "epochs": 5}}
    for d in scenario["defense"]:
        params = {k: v for k, v in d.items() if k not in OWN}
        if params.get("mode") == "clear":
            continue
        start = time.perf_counter()
        data = {"name": "breast_cancer"}
        results = cells(scenario, data, {**params, "mode": "real"}, [0])
        seconds = time.perf_counter() - start
        size = sum(x.bytes for x in results[0].ledger if x.kind == "ciphertext")
        twin = cells(scenario, data, params, [0])
        gap = max(
            abs(float(a.value) - float(b.value))
            for a, b in zip(results[0].measures, twin[0].measures, strict=True)
            if a.value is not None and b.value is not None
        )
        spent = results[0].facts.encryption
        lines.append(
            [name(params), f"{seconds:.0f}", *(f"{v:.0f}" for v in spent.values()),
             f"{size / 1e9:.2f}", f"{gap:.1e}"]
        )  # fmt: skip
        heads = ["layer", "seconds in all", *spent, "GB of ciphertexts",
                 "largest difference from emulated mode"]  # fmt: skip
        rows.append(("breast_cancer", params, results))
    return [
        REAL, "",
        "Breast cancer, seed 0, five epochs, both roles in processes of their own.", "",
        *layers(rows), *table(heads, lines),
    ]  # fmt: skip


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description="Evidence on encryption of embeddings.")
    parser.add_argument("--real", action="store_true", help="also through ciphertexts, minutes")
    parser.add_argument("--quick", action="store_true", help="one seed, written nowhere")
    arguments = parser.parse_args()
    scenario = tomllib.loads((ROOT / "scenarios" / "he_vs_attacks.toml").read_text())
    gradients = tomllib.loads((ROOT / "scenarios" / "he_gradient.toml").read_text())
    if arguments.quick:
        for s in (scenario, gradients):
            s["data"] = s["data"][-1:]
    seeds = range(1 if arguments.quick else 5)
    kept: list[str] = []
    if OUT.exists() and not arguments.real:
        _, found, rest = OUT.read_text().partition(REAL)
        kept = [found + rest.rstrip(), ""] if found else []
    text = [*emulated(scenario, seeds), *decoders(scenario, seeds), *summed(gradients, seeds)]
    if arguments.quick:
        print("\n".join(text))
        return
    text = [*text, *(real(scenario) if arguments.real else kept)]
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text("\n".join(text).rstrip() + "\n")
    print("\n".join(text))


if __name__ == "__main__":
    main()
