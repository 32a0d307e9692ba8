"""What canaries measure of the epsilons that the defenses of a cohort claim.

Canaries are planted in a copy of the cohort's data and trained with it by the same algorithm under
the same policies; they are guessed from what the adversary of the claim has in its View. A claim of
all that is computed from labels is held to what the trained system answers for them, too; one of
messages takes the models as known, so what they tell is no contradiction. What the claim is about
decides which secret is planted: a label, a row of the party that owns the policy, or whether a row
is there at all (DP-SGD, see :mod:`vflsec.engine.epsilon_inserted_rows`; where its steps do not fit
into memory the policy's hook alone is measured, by
:func:`vflsec.epsilon.canary_bounds.audit_rows`, and the notes say so).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vflsec.core.policy import Guarantee, Policy
from vflsec.core.task import Task
from vflsec.core.view import Need, Table
from vflsec.engine.epsilon_inserted_rows import QUIET, fits, pulls
from vflsec.epsilon import canary_bounds
from vflsec.nn.replicas import LEAST
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, CellResult, CellSpec, DefenseSpec, Measure, told_apart
from vflsec.train.canaries import CoinDifference, Planted, plant_labels, plant_rows
from vflsec.train.cohort import Training, first_step
from vflsec.train.demand import Demand
from vflsec.train.loop import predict
from vflsec.train.mechanism_counts import collect_uses

LEAST_CANARIES = 20
FORMS = ("mean", "first")
CONFIDENCE = 0.99


def measure_claims(training: Training) -> list[list[Measure]]:
    """Rows of metric ``epsilon_lower`` for the claims of every replica of a finished training.

    Where nothing is found, ``undefended`` of the notes is the bound that the same canaries give
    without the defense: silence is worth something only if they would have been heard.
    """
    out: list[list[Measure]] = [[] for _ in training.cells]
    wanted: dict[str, list[tuple[int, Policy]]] = defaultdict(list)
    for i, policy in enumerate(training.defenses):
        made = [
            training.guarantee(policy, s, r) for r, s in enumerate(_list_strengths(training, i))
        ]
        if all(g.epsilon is None for g in made):
            continue
        if policy.counted == "gradients":
            for r, found, how in _measure_weights(training, i, made):
                out[r].append(_make_measure(training, i, found, how))
            continue
        label = made[0].protects == "label" or any(g.protects == "label" for g in made)
        wanted["" if label else training.owners(i)[0]].append((i, policy))
    for party, policies in wanted.items():
        for r, i, found, more in measure_policies(training, party, policies):
            out[r].append(_make_measure(training, i, found, {"canaries": "planted", **more}))
    return out


def _list_strengths(training: Training, i: int) -> list[float]:
    return [cell.defenses[i].strength or 0.0 for cell in training.cells]


def _silence(training: Training, seeds: Iterable[int], quiet: int = -1) -> list[CellSpec]:
    """Cells of these seeds without their defenses, as many as can be trained together.

    Defense number `quiet` works as ever, but all but without noise.
    """
    of = {cell.seed: cell for cell in training.cells}

    def off(i: int, d: DefenseSpec) -> DefenseSpec:
        return d if d.strength is None else replace(d, strength=QUIET if i == quiet else 0.0)

    made = [
        replace(of[s], defenses=tuple(off(i, d) for i, d in enumerate(of[s].defenses)))
        for s in dict.fromkeys(seeds)
    ]
    return made * LEAST if len(made) < LEAST else made


def _measure_weights(
    training: Training, i: int, made: Sequence[Guarantee]
) -> Iterator[tuple[int, canary_bounds.Measured, dict[str, Any]]]:
    """(replica, what was found, notes) of the claims `made` by the cells' defense number `i`."""
    policy, strengths = training.defenses[i], _list_strengths(training, i)
    if not fits(training, policy):
        for r, claim in enumerate(made):
            if claim.epsilon is not None:
                found = _audit_hook(training, policy, strengths[r], claim, r)
                how: dict[str, Any] = {"canaries": "at its hook alone"}
                if not found.epsilon:
                    bare = _audit_hook(training, policy, QUIET, claim, r)
                    how["undefended"] = bare.epsilon
                yield r, found, how
        return
    twin, scores = pulls(training, i)
    kept = {r: twin.guarantee(twin.defenses[i], s, r) for r, s in enumerate(strengths)}
    kept = {
        r: claim for r, claim in kept.items()
        if claim.epsilon is not None and len(scores[r][0].rows) >= LEAST_CANARIES
    }  # fmt: skip
    every = {r: _judge(scores[r], claim) for r, claim in kept.items()}
    silent = [training.seeds[r] for r, found in every.items() if not found.epsilon]
    bare_of: dict[int, tuple[Planted, Tensor]] = {}
    if silent:
        cells = _silence(training, silent, quiet=i)
        bare_of = {c.seed: of for c, of in zip(cells, pulls(training, i, cells)[1], strict=True)}
    for r, found in every.items():
        how = {"canaries": "inserted rows"}
        if not found.epsilon:
            how["undefended"] = _judge(bare_of[training.seeds[r]], kept[r]).epsilon
        yield r, found, how


def _judge(scored: tuple[Planted, Tensor], claim: Guarantee) -> canary_bounds.Measured:
    here, seen = scored
    return canary_bounds.judged(
        seen, here.coins, claimed=claim.epsilon, delta=claim.delta, confidence=CONFIDENCE
    )


def _audit(looks: Sequence[Tensor], planted: Planted, claim: Guarantee) -> canary_bounds.Measured:
    return canary_bounds.audit(
        canary_bounds.summarised(looks, planted.coins), planted.coins, claimed=claim.epsilon,
        delta=claim.delta, confidence=CONFIDENCE,
    )  # fmt: skip


def _audit_hook(
    training: Training, policy: Policy, strength: float, claim: Guarantee, r: int
) -> canary_bounds.Measured:
    """Canaries through the hook alone, as often and sampled as rows were in replica `r`."""
    uses = collect_uses(training.fed, policy, r)
    rate, epochs = 1.0, claim.releases
    if uses.batches:
        rate, epochs = uses.batches[0].rate, uses.batches[0].steps * uses.batches[0].uses
    return canary_bounds.audit_rows(
        policy, strength, canaries=1000 if epochs <= 200 else 300, epochs=epochs, rate=rate,
        seed=training.seeds[r], confidence=CONFIDENCE, claimed=claim.epsilon,
    )  # fmt: skip


def count_planned(cells: Sequence[CellSpec], tasks: Mapping[int, Task]) -> dict[str, int]:
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


def check_planned(
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


def add_untested(result: CellResult, found: Sequence[Measure]) -> list[Mapping[str, Any]]:
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


def _make_measure(
    training: Training, i: int, found: canary_bounds.Measured, how: Mapping[str, Any]
) -> Measure:
    name = training.names[i]
    notes = {
        "defense": name, "guesses": found.guesses, "right": found.right,
        "claimed": found.claimed, "says": found.sentence(), "looks": found.looks,
        "confidence": found.confidence, **how,
    }  # fmt: skip
    return Measure(
        training.fed.phase, "", "epsilon_lower", found.epsilon, n=found.canaries,
        target=f"claim of {name}", notes=notes,
    )  # fmt: skip


def measure_policies(
    training: Training, party: str, policies: Sequence[tuple[int, Policy]]
) -> Iterator[tuple[int, int, canary_bounds.Measured, dict[str, float]]]:
    """Train once more with canaries and guess them.

    Yields (replica, place of the defense, what was found, notes). ``answers`` of the notes is the
    bound on what predictions tell of labels, where the claim covers messages alone and that is
    more; ``undefended`` is as in :func:`measure_claims`.

    Args:
        training: whose cells and data are used.
        party: whose rows carry the secret, ``""`` for labels.
        policies: (place among the cells' defenses, policy) of the claims to measure.
    """
    kinds = {i: _find_kinds(policy, party) for i, policy in policies}
    every = sorted(frozenset().union(*kinds.values()))
    known = [kinds[i] for i, policy in policies if policy.counted == "outgoing"]
    see = partial(
        _train_canaries, training, party=party, kinds=every, known=frozenset().union(*known)
    )
    seen = see(training.cells)
    found = [
        _audit_claim(canaries, r, i, policy, kinds[i])
        for r, canaries in enumerate(seen)
        for i, policy in policies
        if _is_measurable(canaries, i, policy, kinds[i])
    ]
    bare = {
        c.seed: s for c, s in zip(training.cells, seen) if not any(d.strength for d in c.defenses)
    }
    del seen
    silent = [f for f in found if not f.of.epsilon and training.defenses[f.place].strengths]
    if missing := [s for f in silent if (s := training.seeds[f.replica]) not in bare]:
        off = _silence(training, missing)
        bare |= {c.seed: s for c, s in zip(off, see(off))}
    for f in found:
        more = dict(f.notes)
        if f in silent:
            canaries = bare[training.seeds[f.replica]]
            looks = canaries.looks(training.defenses[f.place], kinds[f.place])
            more["undefended"] = _audit(looks, canaries.planted, f.claim).epsilon if looks else 0.0
        yield f.replica, f.place, f.of, more


@dataclass(frozen=True, eq=False)
class _Found:
    """What canaries measured of one claim.

    Attributes:
        replica, place: of which training, and where the defense stands among its defenses.
        claim: what is claimed.
        of: what was measured.
        notes: what predictions tell beyond it.
    """

    replica: int
    place: int
    claim: Guarantee
    of: canary_bounds.Measured
    notes: Mapping[str, float]


def _is_measurable(canaries: _Canaries, i: int, policy: Policy, kinds: frozenset[str]) -> bool:
    """Whether there are canaries enough, a claim, and something to guess them from."""
    enough = len(canaries.planted.rows) >= LEAST_CANARIES
    return enough and canaries.claims[i].epsilon is not None and bool(canaries.looks(policy, kinds))


def _audit_claim(
    canaries: _Canaries, replica: int, i: int, policy: Policy, kinds: frozenset[str]
) -> _Found:
    claim, notes = canaries.claims[i], dict[str, float]()
    if policy.counted == "outgoing" and not canaries.party:
        answers = _audit([canaries.answers], canaries.planted, claim)
        notes = {"answers": answers.epsilon} if answers.contradicts else {}
    of = _audit(canaries.looks(policy, kinds), canaries.planted, claim)
    return _Found(replica, i, claim, of, notes)


@dataclass(frozen=True)
class _Canaries:
    """What there is to guess the canaries of one replica from.

    Attributes:
        planted: which rows, and their coins.
        tables: payloads (m, d) of their messages, each with its kind, and what (m, 1 or d) they
            are along the difference of the coins.
        answers: the trained system's log shares (m, C).
        party: whose rows carry the secret, ``""`` for labels.
        claims: of each defense.
    """

    planted: Planted
    tables: Sequence[tuple[str, Tensor, Tensor]]
    answers: Tensor
    party: str
    claims: Sequence[Guarantee]

    def looks(self, policy: Policy, kinds: frozenset[str]) -> list[Tensor]:
        """Those that a claim of `policy` is about; of messages it takes the models as known."""
        if policy.counted == "outgoing":
            return [along for kind, _, along in self.tables if kind in kinds]
        looks = [table for kind, table, _ in self.tables if kind in kinds]
        return looks if self.party else [*looks, self.answers]


def _train_canaries(
    training: Training,
    cells: Sequence[CellSpec],
    party: str,
    kinds: Sequence[str],
    known: frozenset[str],
) -> list[_Canaries]:
    """Train `cells` on data with canaries, and see what there is of these, by replica.

    Args:
        training: whose data are used.
        cells: what is trained.
        party: whose rows carry the secret, ``""`` for labels.
        kinds: of messages that are looked at.
        known: those of them that a claim is about which takes the models as known.
    """
    twin, planted = _plant(training, cells, party, kinds)
    spies = [twin.stack.first.active] if party else list(twin.stack.first.passive)
    tables: list[list[tuple[str, Tensor, Tensor]]] = [[] for _ in twin.cells]
    here = [planted[s] for s in twin.seeds]
    apart = CoinDifference(here, len(twin.stack.first.y), twin.device, known, party)
    if known:
        twin.before.append(apart)
    for moment in twin.run(predictions=False):
        for spy in spies:
            spec = AttackSpec("canary", adversary=(spy,), known_rows=0)
            for r, view in enumerate(moment.views(spec)):
                rows, phase = here[r].rows, moment.phase.name
                tables[r] += [
                    (kind, table, apart.along(table, r, phase, kind, spy))
                    for kind in kinds
                    for form in FORMS
                    if (key := ("received", kind, form, spy)) in view.tables
                    for table in [_find_payloads(view.tables[key], rows)]
                ]
    return [
        _Canaries(
            planted[cell.seed], tables[r], answers, party,
            [
                twin.guarantee(policy, d.strength or 0.0, r)
                for policy, d in zip(twin.defenses, cell.defenses, strict=True)
            ],
        )
        for r, (cell, answers) in enumerate(zip(cells, _predict(twin, planted), strict=True))
    ]  # fmt: skip


def _find_kinds(policy: Policy, party: str) -> frozenset[str]:
    """The messages that a claim is about: of one that counts messages those that it treats."""
    if policy.counted == "outgoing":
        return policy.covers
    return frozenset({"embedding" if party else "gradient"})


def _plant(
    training: Training, cells: Sequence[CellSpec], party: str, kinds: Sequence[str]
) -> tuple[Training, dict[int, Planted]]:
    """Cells of the cohort on data with canaries, their messages of some kinds recorded."""
    tasks: dict[int, Task] = {}
    planted: dict[int, Planted] = {}
    for seed, task in training.tasks(cells).items():
        made = plant_rows(task, party, seed) if party else plant_labels(task, seed)
        tasks[seed], planted[seed] = made
    first = training.stack.first
    needs = tuple(Need(kind, form) for kind in kinds for form in FORMS)
    spies = (first.active,) if party else first.passive
    own = [d for d in training.demands if d.policy is not None]  # active attackers stay
    demands = [*own, *(Demand((spy,), needs) for spy in spies)]
    return Training(cells, demands, tasks, training.device), planted


def _find_payloads(table: Table, rows: Tensor) -> Tensor:
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
def _predict(training: Training, planted: dict[int, Planted]) -> list[Tensor]:
    """The trained system's log shares (m, C) for the canaries of each replica; of what is no class
    its answers.
    """
    rows = torch.stack([planted[s].rows for s in training.seeds]).to(training.device)
    logits = predict(training.algorithm, training.fed, rows)
    return list(training.stack.first.label.form_scores(logits.double()).cpu())
