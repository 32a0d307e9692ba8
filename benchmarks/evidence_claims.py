"""Every defense that claims an epsilon against every algorithm: writes docs/evidence/claims.md.

Run ``python benchmarks/evidence_claims.py`` from the root (hours on one core with the default of 20
seeds; ``--seeds 2 --rows 600 --algorithms splitnn jpl`` is a tiny form). For each pair: the uses of
a row that were counted and planned, the epsilon that is claimed or why none is, the largest lower
bound that canaries in the real cohort measure at 99 %, and in how many seeds they contradict the
claim. Where a claim is true, a seed contradicts it by chance with probability 0.01 at most. Figures
are kept in docs/evidence/claims.csv as they come; what is there is not trained again (``--fresh``
starts anew).
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scipy import stats

from vflsec import registry
from vflsec.cell import CellResult, CellSpec, DefenseSpec
from vflsec.engine.cohort import run_cohort
from vflsec.errors import VflsecError
from vflsec.testing import small_task

DEFENSES: dict[str, tuple[str, dict[str, Any], str, float]] = {
    "label_dp": ("label_dp", {}, "", 0.5),
    "rr_prior": ("rr_prior", {}, "", 0.5),
    "lp_mst": ("lp_mst", {}, "", 0.5),
    "alibi": ("alibi", {}, "", 0.5),
    "learned_prior": ("learned_prior", {}, "", 0.5),
    "gradperturb": ("gradperturb", {}, "", 2.0),
    "clipped gaussian": ("noise", {"clip": 1.0, "distribution": "gaussian"}, "", 2.0),
    "clipped laplace": ("noise", {"clip": 1.0}, "", 2.0),
    "ppdl": ("ppdl", {}, "", 1.0),
    "embedding_noise": ("embedding_noise", {}, "", 2.0),
    "laplace embeddings": ("embedding_noise", {"distribution": "laplace"}, "", 4.0),
    "dpsgd, one party": ("dpsgd", {}, "active", 4.0),
    "dpsgd, all": ("dpsgd", {}, "all", 4.0),
    "dpsgd, all, Poisson": ("dpsgd", {"accountant": "prv"}, "all", 4.0),
}
ALGORITHMS = (
    "splitnn", "ushaped", "fedbcd", "vflhlp", "oneshot", "fewshot", "fpd", "jpl", "fedcvt",
    "fedcssl", "fedhssl", "local", "pooled_logistic",
)  # fmt: skip
QUICK = {"epochs": 3, "batch_size": 64, "patience": 0}
FIELDS = (
    "algorithm", "defense", "strength", "seed", "rows", "releases", "planned", "epsilon", "delta",
    "measured", "guesses", "right", "reason",
)  # fmt: skip


def main() -> None:
    """Measure what is missing and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--rows", type=int, default=2400, help="aligned rows of the world")
    parser.add_argument("--algorithms", nargs="*", default=ALGORITHMS)
    parser.add_argument("--defenses", nargs="*", default=tuple(DEFENSES))
    parser.add_argument("--out", type=Path, default=Path("docs/evidence"))
    parser.add_argument("--fresh", action="store_true")
    args = parser.parse_args()
    kept = args.out / "claims.csv"
    rows = [] if args.fresh or not kept.exists() else list(csv.DictReader(kept.open()))
    done = {(r["algorithm"], r["defense"], r["rows"]) for r in rows}
    for algorithm in args.algorithms:
        for title in args.defenses:
            if (algorithm, title, str(args.rows)) in done:
                continue
            started = time.monotonic()
            rows += list(measured(algorithm, title, args.seeds, args.rows))
            with kept.open("w", newline="") as file:
                writer = csv.DictWriter(file, FIELDS)
                writer.writeheader()
                writer.writerows(rows)
            print(f"{algorithm}, {title}: {time.monotonic() - started:.0f} s", flush=True)
    (args.out / "claims.md").write_text(page(rows), encoding="utf-8")


def measured(algorithm: str, title: str, seeds: int, rows: int) -> Iterator[dict[str, Any]]:
    """One row for every seed of a pair; one with the reason where it cannot be trained."""
    name, params, party, strength = DEFENSES[title]
    cls: Any = registry.algorithms.get(algorithm)
    world = dict(cls.world)
    task = {**world.pop("task", {}), "n": rows}
    known = registry.parameters(cls)
    settings = {k: v for k, v in {**world, **QUICK}.items() if k in known}
    base = {"algorithm": algorithm, "defense": title, "strength": strength, "rows": rows}
    cells = [
        CellSpec(
            {"name": "small"}, algorithm, settings,
            (DefenseSpec(name, params, party, strength),), s,
        )
        for s in range(seeds)
    ]  # fmt: skip
    tasks = {s: small_task(s, **task) for s in range(seeds)}
    try:
        results = run_cohort(cells, [], tasks, device="cpu")
    except VflsecError as error:
        yield {**dict.fromkeys(FIELDS, ""), **base, "seed": "", "reason": str(error)}
        return
    for seed, result in enumerate(results):
        yield {**dict.fromkeys(FIELDS, ""), **base, "seed": seed, **figures(result)}


def figures(result: CellResult) -> dict[str, Any]:
    """What one training claims, and what its canaries measured."""
    (claim,) = result.guarantees
    out = {
        "releases": claim["releases"], "planned": claim.get("planned", ""),
        "epsilon": "" if claim["epsilon"] is None else claim["epsilon"], "delta": claim["delta"],
        "reason": claim["reason"],
    }  # fmt: skip
    for m in result.measures:
        if m.metric == "epsilon_lower":
            out |= {
                "measured": m.value, "guesses": m.notes["guesses"], "right": m.notes["right"],
            }  # fmt: skip
    return out


def page(rows: Sequence[dict[str, Any]]) -> str:
    """The table as Markdown."""
    lines = [
        "# Claims of privacy, counted and measured",
        "",
        "Written by `benchmarks/evidence_claims.py`. *Uses* is what was counted of the most used "
        "row (and what the plan predicted); *measured* the largest lower bound over seeds, by "
        "canaries that went through the training (99 % each); *contradicted* in how many seeds "
        "that exceeds the claim, with the chance of at least so many under a true claim.",
        "",
        "| algorithm | defense | uses (planned) | claimed epsilon | measured | contradicted |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    pairs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        pairs.setdefault((row["algorithm"], row["defense"]), []).append(row)
    for (algorithm, defense), of in pairs.items():
        said = [r for r in of if r["epsilon"] not in ("", None)]
        if not said:
            lines.append(f"| {algorithm} | {defense} | | none: {of[0]['reason']} | | |")
            continue
        low = [float(r["measured"]) for r in said if r["measured"] not in ("", None)]
        beyond = sum(
            float(r["measured"]) > float(r["epsilon"])
            for r in said
            if r["measured"] not in ("", None)
        )
        chance = float(stats.binom.sf(beyond - 1, len(low), 0.01)) if low else 1.0
        uses = max(int(r["releases"]) for r in said)
        planned = max((int(r["planned"]) for r in said if r["planned"] != ""), default=0)
        claimed = sorted({f"{float(r['epsilon']):.3g}" for r in said})
        top = f"{max(low):.3g}" if low else "not measured"
        lines.append(
            f"| {algorithm} | {defense} | {uses} ({planned or 'not predicted'}) | "
            f"{claimed[0] if len(claimed) == 1 else f'{claimed[0]} to {claimed[-1]}'} | {top} | "
            f"{beyond} of {len(low)} (p = {chance:.2g}) |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
