"""What canaries measure of the epsilons that the defenses of a cohort claim.

Canaries are planted in a copy of the cohort's data and trained with it by the same algorithm under
the same policies; they are guessed from what the adversary of the claim has in its View. What the
claim is about decides which secret is planted: a label, a row of the passive party that owns the
policy, or whether a row is there at all (:mod:`vflsec.epsilon.inserted_rows`). The active party's
row has its label, so a claim of such rows is held to labels. A claim of all that is computed
from labels is held to what the trained system answers for them, too; one of messages takes the
models as known, so what they tell is no contradiction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from vflsec.core.message_kinds import KINDS, find_kinds
from vflsec.core.policy import Guarantee, Policy
from vflsec.core.task import Task
from vflsec.core.view import Need, Table, View
from vflsec.epsilon import canary_bounds
from vflsec.epsilon.canaries import Planted, count_canaries, plant_labels, plant_rows
from vflsec.epsilon.canary_bounds import Measured
from vflsec.epsilon.inserted_rows import score_canaries
from vflsec.epsilon.labels_again import ask_again, tally_released
from vflsec.epsilon.named_noise import NoiseWitness
from vflsec.epsilon.one_run_bound import Heard
from vflsec.epsilon.released_labels import Ints, Released
from vflsec.inference.leaf_groups import find_leaves
from vflsec.label.classes import Classes
from vflsec.specs import AttackSpec, CellResult, Claim, Measure, number_repeats

if TYPE_CHECKING:
    from vflsec.train.cohort import Training

LEAST_CANARIES = 20
FORMS = ("mean", "first")
CONFIDENCE = 0.99


def measure_claims(training: Training) -> list[list[Measure]]:
    """Rows of metric ``epsilon_lower`` for the claims of every replica of a finished training.

    ``answers`` of the notes is the bound on what predictions tell of labels, where the claim covers
    messages alone and that is more; ``noise`` what was found of the noise that a defense names, and
    ``released`` of the labels that one released.
    """
    ways: list[Iterator[_Found]] = []
    by_party: dict[str, list[int]] = defaultdict(list)
    for i, policy in enumerate(training.defenses):
        made = [training.guarantee(policy, s, r) for r, s in enumerate(training.strengths(i))]
        if all(g.epsilon is None for g in made):
            continue
        if policy.counted != "gradients":
            label = any(g.protects == "label" for g in made)
            hosts = [p for p in training.owners(i) if p != training.stack.first.active]
            by_party["" if label or not hosts else hosts[0]].append(i)
        else:
            twin, scored = score_canaries(training, i)
            seen = [_Inserted(at, *_claims(twin, r), s) for r, (at, s) in enumerate(scored)]
            ways.append(_measure([i], seen))
    for party, places in by_party.items():
        ways.append(_measure(places, _see_planted(training, party, places)))
    out: list[list[Measure]] = [[] for _ in training.cells]
    for found in (f for way in ways for f in way):
        out[found.replica].append(_make_measure(training, found))
    return out


class _Found(NamedTuple):
    """What canaries measured of one claim.

    Attributes:
        replica, place: of which training, and where the defense stands among its defenses.
        of: what was measured.
        canaries: how they were planted.
        notes: bounds beside it.
    """

    replica: int
    place: int
    of: Measured
    canaries: str
    notes: dict[str, Any]


@dataclass(frozen=True)
class _Seen:
    """What there is to guess the canaries of one replica from.

    Attributes:
        planted: which rows, and their coins.
        claims: of each defense.
        heard: what was found of its noise, where it names some.
    """

    planted: Planted
    claims: Sequence[Guarantee]
    heard: Sequence[Heard | None]
    how: ClassVar[str] = "planted"

    def audit(self, i: int, claim: Guarantee) -> Measured | None:
        """The bound on `claim` of defense number `i`; None where nothing can be guessed."""
        raise NotImplementedError("abstract")

    def list_beside(self, i: int) -> dict[str, Any]:
        """What was found besides the bound."""
        heard = self.heard[i]
        return {"noise": heard.fields()} if heard is not None else {}

    def measure(self, i: int) -> Measured | None:
        """The bound on what defense number `i` claims; None without a claim or enough canaries."""
        enough = len(self.planted.rows) >= LEAST_CANARIES
        tested = enough and self.claims[i].epsilon is not None
        return self.audit(i, self.claims[i]) if tested else None


def _measure(places: Sequence[int], seen: Sequence[_Seen]) -> Iterator[_Found]:
    """What is guessed of the claims of the defenses at `places`, replica by replica."""
    for r, s in enumerate(seen):
        for i in places:
            if (of := s.measure(i)) is not None:
                yield _Found(r, i, of, s.how, s.list_beside(i))


def _claims(twin: Training, r: int) -> tuple[list[Guarantee], list[Heard | None]]:
    """Of each defense in replica `r`, what it claims and what was found of its noise."""
    made = [twin.guarantee(p, twin.strengths(i)[r], r) for i, p in enumerate(twin.defenses)]
    witness = twin.witness
    return made, [witness.find(p, r) if witness else None for p in twin.defenses]


@dataclass(frozen=True)
class _Inserted(_Seen):
    """`scores` (m,): above 0 where a canary seems to be there; none where steps take too much."""

    scores: Tensor
    how: ClassVar[str] = "inserted rows"

    def audit(self, i: int, claim: Guarantee) -> Measured:
        return canary_bounds.bound_epsilon(
            self.scores, self.planted.coins, claimed=claim.epsilon, delta=claim.delta,
            confidence=CONFIDENCE,
        )  # fmt: skip


@dataclass(frozen=True)
class _Planted(_Seen):
    """Messages and answers about canaries that carry one of two labels or rows.

    Attributes:
        defenses: in their order.
        tables: payloads (m, d) of their messages, each with its kind.
        answers: the trained system's log shares (m, C).
        party: whose rows carry the secret, ``""`` for labels.
        once: what policies released the canaries' labels as, counted; None where they are no
            classes.
        again: what each of those policies releases them as when it is called again, by place.
    """

    defenses: Sequence[Policy]
    tables: Sequence[tuple[str, Tensor]]
    answers: Tensor
    party: str
    once: Ints | None
    again: Mapping[int, Ints]

    def audit(self, i: int, claim: Guarantee) -> Measured | None:
        looks = self._list_looks(self.defenses[i], claim)
        return self._audit(looks, claim) if looks else None

    def list_beside(self, i: int) -> dict[str, Any]:
        beside = super().list_beside(i)
        counted = self.defenses[i].counted
        if counted == "labels" and self.once is not None:
            beside["released"] = Released.count(
                self.planted.pairs.numpy(), self.once, self.again.get(i),
                None if self.claims[i].delta else self.claims[i].epsilon,
            ).fields()  # fmt: skip
        if not self.party and not self._covers_answers(self.defenses[i], self.claims[i]):
            found = self._audit([self.answers], self.claims[i])
            beside |= {"answers": found.epsilon} if found.contradicts else {}
        return beside

    def _list_looks(self, policy: Policy, claim: Guarantee) -> list[Tensor]:
        """Those that a claim of `policy` is about; of messages it takes the models as known."""
        kinds = _find_kinds(policy, self.party)
        looks = [table for kind, table in self.tables if kind in kinds]
        return [*looks, self.answers] if self._covers_answers(policy, claim) else looks

    def _covers_answers(self, policy: Policy, claim: Guarantee) -> bool:
        return claim.answers and not self.party and policy.counted != "outgoing"

    def _audit(self, looks: Sequence[Tensor], claim: Guarantee) -> Measured:
        coins = self.planted.coins
        return canary_bounds.audit(
            canary_bounds.summarise_looks(looks, coins, self.planted.pairs), coins,
            claimed=claim.epsilon, delta=claim.delta, confidence=CONFIDENCE,
        )  # fmt: skip


def _see_planted(training: Training, party: str, places: Sequence[int]) -> list[_Planted]:
    """Train again on data with canaries, and see what there is of these, by replica.

    Args:
        training: whose cells and data are used.
        party: whose rows carry the secret, ``""`` for labels.
        places: of the defenses whose claims are measured.
    """
    policies = [training.defenses[i] for i in places]
    kinds = sorted(frozenset().union(*(_find_kinds(p, party) for p in policies)))
    planted: dict[int, Planted] = {}
    tasks: dict[int, Task] = {}
    for seed, task in training.tasks().items():
        made = plant_rows(task, party, seed) if party else plant_labels(task, seed)
        tasks[seed], planted[seed] = made
    first = training.stack.first
    spies = [first.active] if party else list(first.passive)
    needs = tuple(Need(kind, form) for kind in kinds for form in _list_forms(kind))
    twin = training.twin(tasks, {(spy,): needs for spy in spies})
    twin.witness = NoiseWitness(twin.seeds)
    here = [planted[s] for s in twin.seeds]
    tables = _collect_tables(twin, here, spies, kinds)
    answers = twin.answers(torch.stack([of.rows for of in here]))
    named = not party and isinstance(first.label, Classes)
    once = tally_released(twin.fed.labels, here) if named else [None] * len(here)
    again = {
        i: ask_again(twin, i, here) for i in places
        if named and _releases_at_once(twin.defenses[i])
    }  # fmt: skip
    return [
        _Planted(
            of, *_claims(twin, r), twin.defenses, tables[r], answers[r], party, once[r],
            {i: tally[r] for i, tally in again.items()},
        )
        for r, of in enumerate(here)
    ]  # fmt: skip


def _releases_at_once(policy: Policy) -> bool:
    """Whether all labels come of the one hook that can be called again: intact guesses by it would
    hide what a later stage releases.
    """
    at_once = policy.overrides("labels") and not policy.overrides("relabel")
    return policy.counted == "labels" and at_once


def _collect_tables(
    twin: Training, here: Sequence[Planted], spies: Sequence[str], kinds: Sequence[str]
) -> list[list[tuple[str, Tensor]]]:
    """Train, and give what each spy received of the canaries, by replica; see `_Planted`."""
    tables: list[list[tuple[str, Tensor]]] = [[] for _ in twin.cells]
    for moment in twin.run(predictions=False):
        for spy in spies:
            keys = [("received", kind, form, spy) for kind in kinds for form in _list_forms(kind)]
            spec = AttackSpec("canary", adversary=(spy,), known_rows=0)
            for r, view in enumerate(moment.views(spec)):
                y = twin.task(r).training_labels
                for key in (k for k in keys if k in view.tables and len(view.tables[k].rows)):
                    seen = (
                        _ask_company(view, here[r], y) if KINDS[key[1]].refines
                        else _find_payloads(view.tables[key], here[r].rows)
                    )  # fmt: skip
                    tables[r].append((key[1], seen))
    return tables


def _list_forms(kind: str) -> Sequence[str]:
    """How messages of a kind are kept: as they came where they are names, of which there is no
    mean, or where a party makes them itself, as many numbers a row as its training has.
    """
    return ("all",) if KINDS[kind].refines or KINDS[kind].made_of else FORMS


def _ask_company(view: View, planted: Planted, labels: Tensor) -> Tensor:
    """Of each canary the mean label (m, C) of other rows at its leaves: class shares, or values.

    The adversary of a claim knows all rows but the second half of the canaries.
    """
    leaves, half = find_leaves(view), len(planted.rows) // 2
    is_class = labels.dim() == 1 and not labels.is_floating_point()
    told = one_hot(labels.clamp_min(0)) if is_class else labels.reshape(len(labels), -1)
    known = pad(told.double(), (0, 1), value=1.0)  # and how many rows
    known[planted.rows[half:]] = 0.0
    there = torch.isin(planted.rows, leaves.rows)
    at = planted.rows[there]
    out = torch.zeros(len(planted.rows), known.shape[1], dtype=torch.float64)
    out[there] = leaves.count_company(known[leaves.rows])[leaves.find(at)] - known[at]
    return out[:, :-1] / out[:, -1:].clamp_min(1e-9)


def _find_kinds(policy: Policy, party: str) -> frozenset[str]:
    """The messages that a claim is about: of one that counts messages those that it treats."""
    if policy.counted == "outgoing":
        return policy.covers
    if party:
        return frozenset({"embedding"})
    return frozenset(find_kinds(lambda kind: kind.of_labels and kind.has_one_width))


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


def _make_measure(training: Training, found: _Found) -> Measure:
    name, of = training.names[found.place], found.of
    notes = {
        "defense": name, "guesses": of.guesses, "right": of.right, "claimed": of.claimed,
        "says": of.sentence(), "looks": of.looks, "confidence": of.confidence,
        "canaries": found.canaries, **found.notes,
    }  # fmt: skip
    return Measure(
        training.fed.phase, "", "epsilon_lower", of.epsilon, n=of.canaries,
        target=f"claim of {name}", notes=notes,
    )  # fmt: skip


def check_planned(claims: Sequence[Claim], expected: Mapping[str, int]) -> list[Claim]:
    """Claims with what was planned beside what was counted; withdrawn where it was exceeded."""
    out = []
    for name, claim in zip(number_repeats(c.defense for c in claims), claims, strict=True):
        most = expected.get(name, 0) if claim.epsilon is not None else 0
        held = replace(claim, planned=most)
        if 0 < most < claim.releases:
            none = Guarantee(reason=f"{claim.releases} uses of a row, {most} planned")
            held = none.state(
                claim.defense, claim.strength, called=claim.called, idle=claim.idle, planned=most
            )
        out.append(held)
    return out


def add_untested(result: CellResult, found: Sequence[Measure], task: Task) -> list[Claim]:
    """The claims of a result, each with why it was not tested, ``""`` where it was or is none.

    Args:
        result: with its claims.
        found: what canaries measured of them.
        task: that was trained.
    """
    done = {m.notes["defense"]: m.notes for m in found}
    why = "none of its messages came to another party"
    if result.spec.untested:
        why = "[audit] canaries = false"
    elif count_canaries(task) < LEAST_CANARIES:
        why = "too few rows to plant canaries"
    out = []
    names = number_repeats(claim.defense for claim in result.guarantees)
    for name, claim in zip(names, result.guarantees, strict=True):
        if claim.epsilon is not None and name not in done:
            told = f"{claim.says} Not tested: {why}."
            out.append(replace(claim, untested=why, says=told))
        elif (beside := done.get(name, {}).get("answers")) is not None:
            told = f"Not covered: answers reveal labels at epsilon >= {beside:.3g} (canaries)."
            out.append(replace(claim, says=f"{claim.says} {told}"))
        else:
            out.append(claim)
    return out
