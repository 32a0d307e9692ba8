"""What canaries measure of the epsilons that the defenses of a cohort claim.

Canaries are planted in a copy of the cohort's data and trained with it by the same algorithm under
the same policies; they are guessed from what the adversary of the claim has in its View. A claim of
all that is computed from labels is held to what the trained system answers for them, too; one of
messages takes the models as known, so what they tell is no contradiction. What the claim is about
decides which secret is planted: a label, a row of the party that owns the policy, or whether a row
is there at all (DP-SGD, see :mod:`vflsec.engine.inserted`; where its steps do not fit into memory
the policy's hook alone is measured, by :func:`vflsec.audit.canary.audit_rows`, and the notes say
so).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from vflsec import registry
from vflsec.audit import canary
from vflsec.cell import AttackSpec, CellResult, CellSpec, Measure, told_apart
from vflsec.engine.inserted import fits, pulls
from vflsec.policy import Guarantee, Policy
from vflsec.task import Task
from vflsec.train.claims import uses_in
from vflsec.train.cohort import Training, first_step
from vflsec.train.demand import Demand
from vflsec.train.loop import predict
from vflsec.train.planted import Planted, plant_labels, plant_rows
from vflsec.view import Need, Table

__all__ = ["claims", "measured", "planned", "told", "verified"]

LEAST_CANARIES = 20
FORMS = ("mean", "first")
CONFIDENCE = 0.99


def claims(training: Training) -> list[list[Measure]]:
    """Rows of metric ``epsilon_lower`` for the claims of every replica of a finished training."""
    out: list[list[Measure]] = [[] for _ in training.cells]
    wanted: dict[str, list[tuple[int, Policy]]] = defaultdict(list)
    for i, policy in enumerate(training.defenses):
        strengths = [cell.defenses[i].strength or 0.0 for cell in training.cells]
        made = [
            training.guarantee(policy, s, r) if s else Guarantee() for r, s in enumerate(strengths)
        ]
        if all(g.epsilon is None for g in made):
            continue
        if policy.counted == "gradients":
            for r, found, how in _of_weights(training, i, made):
                out[r].append(_measure(training, i, found, how))
            continue
        label = made[0].protects == "label" or any(g.protects == "label" for g in made)
        wanted["" if label else training.owners(i)[0]].append((i, policy))
    for party, policies in wanted.items():
        for r, i, seen, more in measured(training, party, policies):
            out[r].append(_measure(training, i, seen, **more))
    return out


def _of_weights(
    training: Training, i: int, made: Sequence[Guarantee]
) -> Iterator[tuple[int, canary.Measured, str]]:
    """(replica, what was found, how) of the claims `made` by the cells' defense number `i`."""
    policy = training.defenses[i]
    strengths = [cell.defenses[i].strength or 0.0 for cell in training.cells]
    if fits(training, policy):
        twin, scores = pulls(training, i)
        for r, (here, seen) in enumerate(scores):
            claim = twin.guarantee(twin.defenses[i], strengths[r], r)
            if claim.epsilon is not None and len(here.rows) >= LEAST_CANARIES:
                found = canary.judged(
                    seen, here.coins, claimed=claim.epsilon, delta=claim.delta,
                    confidence=CONFIDENCE,
                )  # fmt: skip
                yield r, found, "inserted rows"
        return
    for r, claim in enumerate(made):
        if claim.epsilon is not None:
            yield r, _at_the_hook(training, policy, strengths[r], claim, r), "at its hook alone"


def _audited(seen: Tensor, planted: Planted, claim: Guarantee) -> canary.Measured:
    return canary.audit(
        seen, planted.coins, claimed=claim.epsilon, delta=claim.delta, confidence=CONFIDENCE
    )


def _at_the_hook(
    training: Training, policy: Policy, strength: float, claim: Guarantee, r: int
) -> canary.Measured:
    """Canaries through the hook alone, as often and sampled as rows were in replica `r`."""
    uses = uses_in(training.fed, policy, r)
    rate, epochs = 1.0, claim.releases
    if uses.batches:
        rate, epochs = uses.batches[0].rate, uses.batches[0].steps * uses.batches[0].uses
    return canary.audit_rows(
        policy, strength, canaries=1000 if epochs <= 200 else 300, epochs=epochs, rate=rate,
        seed=training.seeds[r], confidence=CONFIDENCE, claimed=claim.epsilon,
    )  # fmt: skip


def planned(cells: Sequence[CellSpec], tasks: Mapping[int, Task]) -> dict[str, int]:
    """How many uses of a row each defense will compose over at most, by the phases' plans.

    Defenses for which nothing can be predicted are left out.
    """
    for cell in cells:
        policies = [registry.defenses.create(d.name, d.params) for d in cell.defenses]
        if any(p.counted for p in policies) and all(d.strength for d in cell.defenses):
            if any(p.step_cost(64, 2, cell.params).spent > 0 for p in policies):
                return {}
            promised = first_step(cell, tasks[cell.seed])[1]
            return {name: made.releases for name, made in promised}
    return {}


def verified(
    rows: Sequence[Mapping[str, Any]], expected: Mapping[str, int]
) -> list[Mapping[str, Any]]:
    """Guarantees with what was planned beside what was counted; withdrawn where it was exceeded."""
    out: list[Mapping[str, Any]] = []
    for name, row in zip(told_apart(row["defense"] for row in rows), rows, strict=True):
        most = expected.get(name, 0)
        if row["epsilon"] is None or not most:
            out.append(row)
            continue
        more = {**row, "planned": most}
        if row["releases"] > most:
            why = f"{row['releases']} uses of a row were counted, and {most} were planned"
            more |= Guarantee(reason=why).fields()
        out.append(more)
    return out


def told(result: CellResult, found: Sequence[Measure]) -> list[Mapping[str, Any]]:
    """The guarantees of a result, each with why it was not tested, ``""`` where it was or is none.

    Args:
        result: with its guarantees.
        found: what canaries measured of them.
    """
    done = {m.notes["defense"]: m.notes for m in found}
    why = "[audit] canaries = false" if result.spec.untested else "too few rows to plant canaries"
    out: list[Mapping[str, Any]] = []
    names = told_apart(row["defense"] for row in result.guarantees)
    for name, row in zip(names, result.guarantees, strict=True):
        more = {**row, "untested": ""}
        if row["epsilon"] is not None and name not in done:
            more |= {"untested": why, "says": f"{row['says']} Not tested: {why}."}
        elif (beside := done.get(name, {}).get("answers")) is not None:
            more["says"] += (
                f" What the trained system answers, which this does not cover, tells labels of its "
                f"rows at an epsilon of {beside:.3g} or more (canaries)."
            )
        out.append(more)
    return out


def _measure(
    training: Training, i: int, found: canary.Measured, how: str = "planted", **more: float
) -> Measure:
    name = training.names[i]
    notes = {
        "defense": name, "guesses": found.guesses, "right": found.right,
        "claimed": found.claimed, "says": found.sentence(), "canaries": how, **more,
    }  # fmt: skip
    return Measure(
        training.fed.phase, "", "epsilon_lower", found.epsilon, n=found.canaries,
        target=f"claim of {name}", notes=notes,
    )  # fmt: skip


def measured(
    training: Training, party: str, policies: Sequence[tuple[int, Policy]]
) -> Iterator[tuple[int, int, canary.Measured, dict[str, float]]]:
    """Train once more with canaries and guess them.

    Yields (replica, place of the defense, what was found, further notes). ``answers`` of the notes
    is the bound on what predictions tell of labels, where the claim covers messages alone and that
    is more.

    Args:
        training: whose cells and data are used.
        party: whose rows carry the secret, ``""`` for labels.
        policies: (place among the cells' defenses, policy) of the claims to measure.
    """
    kinds = {i: _kinds(policy, party) for i, policy in policies}
    every = sorted(frozenset().union(*kinds.values()))
    twin, planted = _planted(training, party, every)
    spies = [twin.stack.first.active] if party else list(twin.stack.first.passive)
    seen: list[list[tuple[str, Tensor]]] = [[] for _ in twin.cells]
    for moment in twin.run(predictions=False):
        for spy in spies:
            spec = AttackSpec("canary", adversary=(spy,), known_rows=0)
            for r, view in enumerate(moment.views(spec)):
                rows = planted[twin.seeds[r]].rows
                seen[r] += [
                    (kind, _of(view.tables[key], rows))
                    for kind in every
                    for form in FORMS
                    if (key := ("received", kind, form, spy)) in view.tables
                ]
    answers = _answers(twin, planted)
    for r, cell in enumerate(twin.cells):
        here = planted[twin.seeds[r]]
        if len(here.rows) < LEAST_CANARIES:
            continue
        for i, policy in policies:
            claim = twin.guarantee(twin.defenses[i], cell.defenses[i].strength or 0.0, r)
            looks = [table for kind, table in seen[r] if kind in kinds[i]]
            beside = [] if party else [answers[r]]
            if policy.counted != "outgoing":
                looks, beside = [*looks, *beside], []
            if claim.epsilon is None or not looks:
                continue
            found = _audited(canary.summarised(looks, here.coins), here, claim)
            more: dict[str, float] = {}
            if beside:
                told = _audited(canary.summarised(beside, here.coins), here, claim)
                more = {"answers": told.epsilon} if told.contradicts else {}
            yield r, i, found, more


def _kinds(policy: Policy, party: str) -> frozenset[str]:
    """The messages that a claim is about: of one that counts messages those that it treats."""
    if policy.counted == "outgoing":
        return policy.covers
    return frozenset({"embedding" if party else "gradient"})


def _planted(
    training: Training, party: str, kinds: Sequence[str]
) -> tuple[Training, dict[int, Planted]]:
    """The same cohort on data with canaries, its messages of some kinds recorded."""
    tasks: dict[int, Task] = {}
    planted: dict[int, Planted] = {}
    for r, seed in enumerate(training.seeds):
        if seed not in tasks:
            task = training.task(r)
            made = plant_rows(task, party, seed) if party else plant_labels(task, seed)
            tasks[seed], planted[seed] = made
    first = training.stack.first
    needs = tuple(Need(kind, form) for kind in kinds for form in FORMS)
    spies = (first.active,) if party else first.passive
    own = [d for d in training.demands if d.policy is not None]  # active attackers stay
    demands = [*own, *(Demand((spy,), needs) for spy in spies)]
    return Training(training.cells, demands, tasks, training.device), planted


def _of(table: Table, rows: Tensor) -> Tensor:
    """Payloads (m, d) of the canaries; zeros for rows that sent nothing."""
    flat = table.tensor.flatten(1).double().cpu()
    out = torch.zeros(len(rows), flat.shape[1], dtype=torch.float64)
    place = {int(row): i for i, row in enumerate(table.rows.tolist())}
    found = [(k, place[int(row)]) for k, row in enumerate(rows.tolist()) if int(row) in place]
    if found:
        at, of = (torch.tensor(x) for x in zip(*found, strict=True))
        out[at] = flat[of]
    return out


@torch.no_grad()
def _answers(training: Training, planted: dict[int, Planted]) -> list[Tensor]:
    """The trained system's log shares (m, C) for the canaries of each replica."""
    rows = torch.stack([planted[s].rows for s in training.seeds]).to(training.device)
    logits = predict(training.algorithm, training.fed, rows)
    return list(torch.log_softmax(logits.double(), dim=-1).cpu())
