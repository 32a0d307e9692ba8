"""Every defense that claims an epsilon against every algorithm: writes docs/evidence/claims.md.

Run ``python benchmarks/evidence_claims.py`` from the root (about half an hour on one core;
``--algorithms`` names some, none makes the broken ones alone).
For each pair, over 20 seeds: the uses of a row that were counted and planned, the epsilon that is
claimed or why none is, the largest lower bound that canaries in the real cohort measure at 99 %,
and how many seeds contradict the claim. Then claims that are false: what the same canaries, one
loud row, and the key recovery from decrypted answers find of them. A pair is written to
docs/evidence/claims.csv when it is done and not measured again (``--fresh`` starts anew);
``--only-page`` writes the page from what is there.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from evidence_pages import opening
from scipy import stats

from vflsec.core.policy import Policy
from vflsec.engine.cohort import run_cohort
from vflsec.epsilon.canary_bounds import Measured
from vflsec.epsilon.measured_claims import CONFIDENCE
from vflsec.errors import VflsecError, format_count
from vflsec.plugins import registry
from vflsec.specs import CellResult, CellSpec, DefenseSpec, Params
from vflsec.testing import small_task

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from broken_claims import (
    FlipsAgain,
    ForgetsNoise,
    HalfFlips,
    NoiseBeforeClipping,
    one_row,
    registered,
)

SEEDS, ROWS = 20, 600
CLIPPED = {"clip": 0.05}
Setting = tuple[str, Params, str, float]
"""Name, settings, party and strength of a defense."""
DEFENSES: dict[str, Setting] = {
    "label_dp": ("label_dp", {}, "", 0.5),
    "rr_prior": ("rr_prior", {}, "", 0.5),
    "lp_mst": ("lp_mst", {}, "", 0.5),
    "alibi": ("alibi", {}, "", 0.5),
    "learned_prior": ("learned_prior", {}, "", 0.5),
    "gradperturb": ("gradperturb", {}, "", 0.5),
    "noise, clipped, gaussian": ("noise", {**CLIPPED, "distribution": "gaussian"}, "", 2.0),
    "noise, clipped, laplace": ("noise", CLIPPED, "", 2.0),
    "ppdl": ("ppdl", {}, "", 0.1),
    "embedding_noise": ("embedding_noise", {}, "", 2.0),
    "embedding_noise, laplace": ("embedding_noise", {"distribution": "laplace"}, "", 4.0),
    "dpsgd, all parties": ("dpsgd", {}, "all", 2.0),
    "dpsgd, all parties, Poisson": ("dpsgd", {"accountant": "prv"}, "all", 2.0),
    "dpsgd, active party": ("dpsgd", {}, "active", 2.0),
}
ALGORITHMS = (
    "splitnn", "ushaped", "fedbcd", "vflhlp", "oneshot", "fewshot", "fpd", "jpl", "fedcvt",
    "fedcssl", "fedgssl", "fedhssl", "fedlocal_ssl", "local", "secureboost", "vertical_glm",
    "scorecard", "pooled_logistic", "pooled_boosting",
)  # fmt: skip
QUICK: Params = {"epochs": 3, "batch_size": 64, "patience": 0}
FIELDS = (
    "algorithm", "defense", "strength", "seeds", "releases", "planned", "epsilon", "delta",
    "tested", "measured", "median", "contradicted", "canaries", "reason", "run",
)  # fmt: skip
BROKEN = "broken on purpose"


def every() -> dict[str, Setting]:
    """The table's defenses, with other ones of networks that claim something."""
    listed = {name for name, *_ in DEFENSES.values()}
    more: dict[str, Setting] = {
        name: (name, {}, "", cls.trial[1])
        for name in sorted(registry.defenses.entries())
        if name not in listed
        and issubclass(cls := registry.defenses.get(name), Policy)
        and cls.counted
        and cls.regrow is Policy.regrow
    }
    return {**DEFENSES, **more}


def main() -> None:
    """Measure what is missing and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--rows", type=int, default=ROWS, help="aligned rows of the world")
    parser.add_argument("--algorithms", nargs="*", default=ALGORITHMS)
    parser.add_argument("--defenses", nargs="*", default=tuple(every()))
    parser.add_argument("--out", type=Path, default=Path("docs/evidence"))
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--only-page", action="store_true")
    args = parser.parse_args()
    kept = args.out / "claims.csv"
    rows = [] if args.fresh or not kept.exists() else list(csv.DictReader(kept.open()))
    if not args.only_page:
        for row in _missing(rows, args):
            rows.append({k: str(v) for k, v in row.items()})
            with kept.open("w", newline="") as file:
                writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
    (args.out / "claims.md").write_text(page(rows), encoding="utf-8")


def _missing(rows: Sequence[Mapping[str, Any]], args: Any) -> Iterator[dict[str, Any]]:
    done = {(r["algorithm"], r["defense"]) for r in rows}
    run = 1 + max((int(r.get("run") or 1) for r in rows), default=0)
    todo: list[tuple[str, str, Callable[[], dict[str, Any]]]] = [
        (a, d, partial(pair, a, d, args.seeds, args.rows))
        for a in args.algorithms
        for d in args.defenses
    ]
    if set(args.algorithms) in (set(), set(ALGORITHMS)):
        todo += [(BROKEN, name, partial(f, args.seeds)) for name, f in broken().items()]
    for algorithm, title, made in todo:
        if (algorithm, title) in done:
            continue
        started = time.monotonic()
        named = {"algorithm": algorithm, "defense": title, "run": run}
        row = dict.fromkeys(FIELDS, "") | named | made()
        print(f"{algorithm}, {title}: {time.monotonic() - started:.0f} s", flush=True)
        yield row


def pair(algorithm: str, title: str, seeds: int, rows: int) -> dict[str, Any]:
    """What a defense claims under an algorithm, and what canaries measure of it."""
    name, params, party, strength = every()[title]
    cls: Any = registry.algorithms.get(algorithm)
    world = dict(cls.world)
    task = {**world.pop("task", {}), "n": rows}
    known = registry.list_parameters(cls)
    given: Params = {**world, **QUICK}
    settings: Params = {k: v for k, v in given.items() if k in known}
    tasks = {s: small_task(s, **task) for s in range(seeds)}
    made = (DefenseSpec(name, params, party, strength),)
    cells = [CellSpec({"name": "small"}, algorithm, settings, made, s) for s in range(seeds)]
    try:
        results = run_cohort(cells, [], tasks, device="cpu")
    except VflsecError as error:
        return {"strength": strength, "seeds": seeds, "reason": f"refused: {error}"}
    return {"strength": strength, **summary(results)}


def summary(results: Sequence[CellResult]) -> dict[str, Any]:
    """The counts, claims and bounds of one defense over seeds."""
    claims = [r.guarantees[0] for r in results]
    said = [c for c in claims if c.epsilon is not None]
    out: dict[str, Any] = {"seeds": len(results)}
    if not said:
        return out | {"reason": claims[0].reason}
    largest = max(said, key=lambda c: c.epsilon or 0.0)
    found = [m for r in results for m in r.measures if m.metric == "epsilon_lower"]
    values = [float(m.value or 0) for m in found]
    return out | {
        "releases": largest.releases, "planned": largest.planned or "",
        "epsilon": largest.epsilon, "delta": largest.delta, "tested": len(found),
        "measured": max(values, default=""), "median": np.median(values) if values else "",
        "contradicted": sum(v > m.notes["claimed"] for v, m in zip(values, found, strict=True)),
        "canaries": found[0].n if found else "",
    }  # fmt: skip


def broken() -> dict[str, Callable[[int], dict[str, Any]]]:
    """Claims that are false, by name, each with what is found of it over so many seeds."""

    def cohort(policy: Policy, party: str, strength: float) -> Callable[[int], dict[str, Any]]:
        def run(seeds: int) -> dict[str, Any]:
            params: Params = {"epochs": 6, "patience": 0, "lr": 0.01, "hidden": [8], "cut": 4}
            made = (DefenseSpec("broken", {}, party, strength),)
            tasks = {s: small_task(s, n=2400 if not party else 300) for s in range(seeds)}
            cells = [CellSpec({"name": "w"}, "splitnn", params, made, s) for s in range(seeds)]
            with registered(policy):
                return {"strength": strength, **summary(run_cohort(cells, [], tasks))}

        return run

    return {
        "label_dp that flips half as often": cohort(HalfFlips(), "", 1.0),
        "label_dp that flips again in every epoch": cohort(FlipsAgain(), "", 1.0),
        "noise before clipping": cohort(NoiseBeforeClipping(), "", 1.0),
        "dpsgd that forgets its noise": cohort(ForgetsNoise(), "all", 8.0),
        "dpsgd, one party unprotected": lambda seeds: alone(seeds, ("active",), 8),
        "the same with both protected (a true claim)": lambda s: alone(
            s, ("active", "passive1"), 4
        ),
        "one key for exact answers (he_embedding without flooding)": lambda s: keys(s, False),
        "the same answers flooded (a true claim)": lambda s: keys(s, True),
    }


def alone(seeds: int, parties: tuple[str, ...], epochs: int) -> dict[str, Any]:
    """dpsgd at some parties, and one row of 10,000 in every column at the first passive one."""
    found: list[Measured] = [
        one_row(small_task(s), parties, seed=s, epochs=epochs) for s in range(seeds)
    ]
    values = [f.epsilon for f in found]
    return {
        "strength": 20.0, "seeds": seeds, "releases": epochs, "epsilon": found[0].claimed,
        "delta": 1e-5, "tested": seeds, "measured": max(values), "median": np.median(values),
        "contradicted": sum(f.contradicts for f in found), "canaries": found[0].canaries,
    }  # fmt: skip


def keys(seeds: int, flooded: bool) -> dict[str, Any]:
    """In how many key pairs two decrypted columns give the secret key."""
    from key_recovery import attack, is_ternary, rescaled

    from vflsec.he.ckks import KeyPair, Parameters, PublicKey
    from vflsec.he.flood import Flood

    hits = 0
    for s in range(seeds):
        rng = np.random.default_rng(s)
        made = KeyPair(Parameters(8192, (60, 40, 60), 40))
        h, w = rng.normal(size=(4096, 3)), rng.normal(size=(3, 2))
        mask = rng.normal(size=(4096, 2)) * 2.0**8
        product = rescaled(PublicKey(made.public_bytes), made.encrypt(h), w, mask)
        answer = made.decrypt(product)
        if flooded:
            answer = Flood(s, "p", 9).answer(answer, 0)
        hits += is_ternary(attack(made.public_bytes, product, answer)[1])
    return {"seeds": seeds, "tested": seeds, "contradicted": hits}


def _number(text: Any) -> float | None:
    return None if text in ("", None) else float(text)


def _short(text: Any) -> str:
    value = _number(text)
    return "" if value is None else f"{value:.3g}"


def _made(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """In how many runs the rows were measured, and which pairs are not."""
    out: list[str] = []
    runs = sorted({int(r.get("run") or 1) for r in rows})
    if len(runs) > 1:
        of = {n: [r for r in rows if int(r.get("run") or 1) == n] for n in runs}
        where = {n: ", ".join(dict.fromkeys(r["algorithm"] for r in of[n])) for n in runs}
        said = [f"run {n}: {format_count(len(of[n]), 'pair')} ({where[n]})" for n in runs]
        out += [
            f"The script resumes from its file, and these rows are of {len(runs)} runs of it: "
            f"{'; '.join(said)}. Column `run` of `claims.csv` says which is of which. `--fresh` "
            "measures all in one run."
        ]
    there = {(r["algorithm"], r["defense"]) for r in rows}
    left = [f"{a} with {d}" for a, d in product(ALGORITHMS, every()) if (a, d) not in there]
    return [*out, f"Not measured: {'; '.join(left)}."] if rows and left else out


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    """The page as Markdown."""
    order = {(a, d): i for i, (a, d) in enumerate(product(ALGORITHMS, every()))}
    pairs = [r for r in rows if r["algorithm"] != BROKEN]
    pairs.sort(key=lambda r: order.get((r["algorithm"], r["defense"]), len(order)))
    false = [r for r in rows if r["algorithm"] == BROKEN]
    tested = [r for r in pairs if _number(r["tested"])]
    looks = sum(int(r["tested"]) for r in tested)
    beyond = sum(int(r["contradicted"]) for r in tested)
    allowed = int(stats.binom.ppf(0.99, looks, 1 - CONFIDENCE)) if looks else 0
    each = int(stats.binom.ppf(1 - 0.01 / max(len(tested), 1), SEEDS, 1 - CONFIDENCE))
    worst = max((int(r["contradicted"]) for r in tested), default=0)
    reasons = sorted({r["reason"] for r in pairs if r["reason"]})
    number = {text: i for i, text in enumerate(reasons, 1)}
    answer = (
        "Does each defense that claims an epsilon keep it, whatever is trained? "
        f"**{beyond} of {looks} measured bounds lie above their claim**; were every claim true, up "
        f"to {allowed} would by chance. The last table tries mechanisms that are broken on purpose."
    )
    method = [
        f"`python benchmarks/evidence_claims.py`; figures in `claims.csv`. {SEEDS} seeds of a "
        f"Gaussian world of {ROWS} aligned rows and two parties, 3 epochs, batches of 64.",
        "*Uses* are those of the most used row, as counted (and as planned before training). "
        "*Claimed* is the epsilon of that many uses, the largest over seeds. *Measured* are the "
        f"largest and the median lower bound over seeds, each at {CONFIDENCE:.0%}, of canaries "
        "that went through the training. They are guessed from what the claim's adversary has: "
        "labels decided by coins, rows decided by coins, or, for dpsgd, loud rows that are there "
        "or zeroed out. A bound above the claim disproves it; a bound below it proves nothing.",
        f"A true claim is exceeded with a chance of at most {1 - CONFIDENCE:.2g}: up to {allowed} "
        f"times in all (99 % binomial), and up to {each} of {SEEDS} times in one of "
        f"{len(tested)} pairs. The worst pair has {worst}.",
        "Coins and answers depend on the seed alone: where labels answer once, a seed beyond its "
        "claim under one algorithm is so under most, and these rows are no independent looks. With "
        "so few rows at epsilon 2 `learned_prior` buys no prior and is randomised response with "
        "coins of its own.",
        *_made(rows),
    ]
    lines = [
        *opening("Claims of privacy, counted and measured", answer, method),
        "| algorithm | defense, strength | uses (planned) | claimed | measured, median | beyond |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for r in pairs:
        title = f"{r['defense']}, {_short(r['strength'])}"
        if _number(r["epsilon"]) is None:
            lines.append(f"| {r['algorithm']} | {title} | | none ({number[r['reason']]}) | | |")
            continue
        claimed = _short(r["epsilon"]) + (f" at {_short(r['delta'])}" if float(r["delta"]) else "")
        measured = (
            f"{_short(r['measured'])}, {_short(r['median'])} | {r['contradicted']} of {r['tested']}"
            if _number(r["tested"])
            else "untested | "
        )
        lines.append(
            f"| {r['algorithm']} | {title} | {r['releases']} ({r['planned'] or 'not predicted'}) | "
            f"{claimed} | {measured} |"
        )
    lines += ["", "Why nothing is claimed:", ""]
    lines += [f"{i}. {text}" for text, i in number.items()]
    lines += [
        "",
        "## Claims that are false",
        "",
        "The same audits of mechanisms that are broken on purpose, and two true ones beside them. "
        "One party unprotected: 300 trainings side by side in which one row of the other party is "
        "10,000 in every column or 0, and the claim that the protected party made for itself. Key "
        "recovery: a secret key found from two decrypted columns counts as a contradiction.",
        "",
        "| mechanism | claimed | measured, median | contradicted |",
        "| --- | --- | --- | --- |",
    ]
    for r in false:
        measured = f"{_short(r['measured'])}, {_short(r['median'])}" if r["measured"] else ""
        claimed = _short(r["epsilon"]) or "no key"
        lines.append(
            f"| {r['defense']} | {claimed} | {measured} | {r['contradicted']} of {r['tested']} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
