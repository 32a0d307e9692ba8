"""What canaries measure of the epsilons that the defenses of a cohort claim.

Canaries are planted in a copy of the cohort's data and trained with it by the same algorithm under
the same policies; they are guessed from what the adversary of the claim has in its View. What the
claim is about decides which secret is planted: a label, a row of the party that owns the policy, or
whether a row is there at all (:mod:`vflsec.epsilon.inserted_rows`). A claim of all that is computed
from labels is held to what the trained system answers for them, too; one of messages takes the
models as known, so what they tell is no contradiction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from vflsec.core.policy import Guarantee, Policy
from vflsec.core.task import Task
from vflsec.core.view import Need, Table
from vflsec.epsilon import canary_bounds
from vflsec.epsilon.canaries import CoinDifference, Planted, plant_labels, plant_rows
from vflsec.epsilon.canary_bounds import Measured
from vflsec.epsilon.inserted_rows import QUIET, fits, pulls
from vflsec.nn.replicas import LEAST
from vflsec.specs import AttackSpec, CellResult, CellSpec, DefenseSpec, Measure, told_apart

if TYPE_CHECKING:
    from vflsec.train.cohort import Training

LEAST_CANARIES = 20
FORMS = ("mean", "first")
CONFIDENCE = 0.99


def measure_claims(training: Training) -> list[list[Measure]]:
    """Rows of metric ``epsilon_lower`` for the claims of every replica of a finished training.

    Where nothing is found, ``undefended`` of the notes is the bound that the same canaries give
    without the defense: silence is worth something only if they would have been heard.
    ``answers`` is the bound on what predictions tell of labels, where the claim covers messages
    alone and that is more.
    """
    ways: list[Iterator[_Found]] = []
    by_party: dict[str, list[int]] = defaultdict(list)
    for i, policy in enumerate(training.defenses):
        made = [training.guarantee(policy, s, r) for r, s in enumerate(training.strengths(i))]
        if all(g.epsilon is None for g in made):
            continue
        if policy.counted != "gradients":
            label = any(g.protects == "label" for g in made)
            by_party["" if label else training.owners(i)[0]].append(i)
        elif fits(training, policy):
            ways.append(_measure(training, [i], partial(_see_inserted, training, i), quiet=i))
        else:
            ways.append(_measure_hook(training, i, made))
    for party, places in by_party.items():
        ways.append(_measure(training, places, partial(_see_planted, training, party, places)))
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
    notes: dict[str, float]


@dataclass(frozen=True)
class _Seen:
    """What there is to guess the canaries of one replica from.

    Attributes:
        planted: which rows, and their coins.
        claims: of each defense.
    """

    planted: Planted
    claims: Sequence[Guarantee]
    how: ClassVar[str] = "planted"

    def audit(self, i: int, claim: Guarantee) -> Measured | None:
        """The bound on `claim` of defense number `i`; None where nothing can be guessed."""
        raise NotImplementedError("abstract")

    def list_beside(self, i: int) -> dict[str, float]:
        """Bounds on what the claim does not cover."""
        return {}

    def measure(self, i: int) -> Measured | None:
        """The bound on what defense number `i` claims; None without a claim or enough canaries."""
        enough = len(self.planted.rows) >= LEAST_CANARIES
        tested = enough and self.claims[i].epsilon is not None
        return self.audit(i, self.claims[i]) if tested else None


def _measure(
    training: Training, places: Sequence[int], see: Callable[[Sequence[CellSpec]], Sequence[_Seen]],
    quiet: int = -1,
) -> Iterator[_Found]:  # fmt: skip
    """Train once more with canaries and guess them; and without defenses where nothing is found.

    Args:
        training: whose cells are used.
        places: of the defenses whose claims are measured.
        see: trains cells with canaries.
        quiet: as in :func:`_silence`.
    """
    seen = see(training.cells)
    found = [
        (_Found(r, i, of, s.how, s.list_beside(i)), s.claims[i])
        for r, s in enumerate(seen)
        for i in places
        if (of := s.measure(i)) is not None
    ]
    bare = {
        c.seed: s
        for c, s in zip(training.cells, seen)
        if quiet < 0 and not any(d.strength for d in c.defenses)
    }
    del seen
    silent = [f for f, _ in found if not f.of.epsilon and training.defenses[f.place].strengths]
    if missing := [s for f in silent if (s := training.seeds[f.replica]) not in bare]:
        off = _silence(training, missing, quiet)
        bare |= {c.seed: s for c, s in zip(off, see(off))}
    for f, claim in found:
        if f in silent:
            of = bare[training.seeds[f.replica]].audit(f.place, claim)
            f.notes["undefended"] = of.epsilon if of else 0.0
        yield f


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


def _claims(twin: Training, r: int) -> list[Guarantee]:
    return [twin.guarantee(p, twin.strengths(i)[r], r) for i, p in enumerate(twin.defenses)]


@dataclass(frozen=True)
class _Inserted(_Seen):
    """`scores` (m,): above 0 where a canary seems to be there."""

    scores: Tensor
    how: ClassVar[str] = "inserted rows"

    def audit(self, i: int, claim: Guarantee) -> Measured:
        return canary_bounds.judged(
            self.scores, self.planted.coins, claimed=claim.epsilon, delta=claim.delta,
            confidence=CONFIDENCE,
        )  # fmt: skip


def _see_inserted(training: Training, i: int, cells: Sequence[CellSpec]) -> list[_Inserted]:
    twin, scored = pulls(training, i, cells)
    return [_Inserted(at, _claims(twin, r), scores) for r, (at, scores) in enumerate(scored)]


def _measure_hook(training: Training, i: int, made: Sequence[Guarantee]) -> Iterator[_Found]:
    """Through the hook of defense number `i` alone, where its steps do not fit into memory."""
    policy, strengths = training.defenses[i], training.strengths(i)
    for r, claim in enumerate(made):
        if claim.epsilon is not None:
            found = _audit_hook(training, policy, strengths[r], claim, r)
            notes = {}
            if not found.epsilon:
                notes["undefended"] = _audit_hook(training, policy, QUIET, claim, r).epsilon
            yield _Found(r, i, found, "at its hook alone", notes)


def _audit_hook(
    training: Training, policy: Policy, strength: float, claim: Guarantee, r: int
) -> Measured:
    """Canaries through the hook alone, as often and sampled as rows were in replica `r`."""
    uses = training.uses(policy, r)
    rate, epochs = 1.0, claim.releases
    if uses.batches:
        rate, epochs = uses.batches[0].rate, uses.batches[0].steps * uses.batches[0].uses
    return canary_bounds.audit_rows(
        policy, strength, canaries=1000 if epochs <= 200 else 300, epochs=epochs, rate=rate,
        seed=training.seeds[r], confidence=CONFIDENCE, claimed=claim.epsilon,
    )  # fmt: skip


@dataclass(frozen=True)
class _Planted(_Seen):
    """Messages and answers about canaries that carry one of two labels or rows.

    Attributes:
        defenses: in their order.
        tables: payloads (m, d) of their messages, each with its kind, and what (m, 1 or d) they
            are along the difference of the coins.
        answers: the trained system's log shares (m, C).
        party: whose rows carry the secret, ``""`` for labels.
    """

    defenses: Sequence[Policy]
    tables: Sequence[tuple[str, Tensor, Tensor]]
    answers: Tensor
    party: str

    def audit(self, i: int, claim: Guarantee) -> Measured | None:
        looks = self._list_looks(self.defenses[i])
        return self._audit(looks, claim) if looks else None

    def list_beside(self, i: int) -> dict[str, float]:
        if self.defenses[i].counted != "outgoing" or self.party:
            return {}
        found = self._audit([self.answers], self.claims[i])
        return {"answers": found.epsilon} if found.contradicts else {}

    def _list_looks(self, policy: Policy) -> list[Tensor]:
        """Those that a claim of `policy` is about; of messages it takes the models as known."""
        kinds = _find_kinds(policy, self.party)
        if policy.counted == "outgoing":
            return [along for kind, _, along in self.tables if kind in kinds]
        looks = [table for kind, table, _ in self.tables if kind in kinds]
        return looks if self.party else [*looks, self.answers]

    def _audit(self, looks: Sequence[Tensor], claim: Guarantee) -> Measured:
        coins = self.planted.coins
        return canary_bounds.audit(
            canary_bounds.summarised(looks, coins), coins, claimed=claim.epsilon,
            delta=claim.delta, confidence=CONFIDENCE,
        )  # fmt: skip


def _see_planted(
    training: Training, party: str, places: Sequence[int], cells: Sequence[CellSpec]
) -> list[_Planted]:
    """Train `cells` on data with canaries, and see what there is of these, by replica.

    Args:
        training: whose data are used.
        party: whose rows carry the secret, ``""`` for labels.
        places: of the defenses whose claims are measured.
        cells: what is trained.
    """
    policies = [training.defenses[i] for i in places]
    kinds = sorted(frozenset().union(*(_find_kinds(p, party) for p in policies)))
    known = frozenset().union(*(p.covers for p in policies if p.counted == "outgoing"))
    planted: dict[int, Planted] = {}
    tasks: dict[int, Task] = {}
    for seed, task in training.tasks(cells).items():
        made = plant_rows(task, party, seed) if party else plant_labels(task, seed)
        tasks[seed], planted[seed] = made
    first = training.stack.first
    spies = [first.active] if party else list(first.passive)
    needs = tuple(Need(kind, form) for kind in kinds for form in FORMS)
    twin = training.twin(cells, tasks, {(spy,): needs for spy in spies})
    here = [planted[s] for s in twin.seeds]
    apart = CoinDifference(here, len(twin.stack.first.y), twin.device, known, party)
    if known:
        twin.before.append(apart)
    tables = _collect_tables(twin, here, spies, kinds, apart)
    answers = twin.answers(torch.stack([of.rows for of in here]))
    return [
        _Planted(of, _claims(twin, r), twin.defenses, tables[r], answers[r], party)
        for r, of in enumerate(here)
    ]


def _collect_tables(
    twin: Training, here: Sequence[Planted], spies: Sequence[str], kinds: Sequence[str],
    apart: CoinDifference,
) -> list[list[tuple[str, Tensor, Tensor]]]:  # fmt: skip
    """Train, and give what each spy received of the canaries, by replica; see `_Planted`."""
    tables: list[list[tuple[str, Tensor, Tensor]]] = [[] for _ in twin.cells]
    for moment in twin.run(predictions=False):
        for spy in spies:
            keys = [("received", kind, form, spy) for kind in kinds for form in FORMS]
            spec = AttackSpec("canary", adversary=(spy,), known_rows=0)
            for r, view in enumerate(moment.views(spec)):
                for key in (k for k in keys if k in view.tables):
                    table = _find_payloads(view.tables[key], here[r].rows)
                    along = apart.along(table, r, moment.phase.name, key[1], spy)
                    tables[r].append((key[1], table, along))
    return tables


def _find_kinds(policy: Policy, party: str) -> frozenset[str]:
    """The messages that a claim is about: of one that counts messages those that it treats."""
    if policy.counted == "outgoing":
        return policy.covers
    return frozenset({"embedding" if party else "gradient"})


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
                " What the trained system answers, which this does not cover, reveals labels of "
                f"its rows at an epsilon of {beside:.3g} or more (canaries)."
            )
        out.append(more)
    return out
