"""Can an attack run at all? Its needs against what the algorithm sends and the scenario grants."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from vflsec.core.message_kinds import KINDS
from vflsec.core.needs import Need, as_needs
from vflsec.errors import VflsecError
from vflsec.plugins import registry
from vflsec.specs import (
    LEFT_OUT,
    OF_THE_LABELS,
    Params,
    find_exhausted,
    find_own_secret,
    list_victims,
)

if TYPE_CHECKING:
    from vflsec.core.algorithm import Algorithm
    from vflsec.core.attack import Attack
    from vflsec.core.view import Facts
    from vflsec.data.source import Source
    from vflsec.data.split import RowSets
    from vflsec.plan.values import DataInfo
    from vflsec.specs import AttackSpec, CellSpec

Sends = frozenset[tuple[str, str, str]]
"""(kind, sender role, receiver role) of messages."""


class Obstacle(StrEnum):
    """Why an attack cannot run, as a code."""

    NO_ROW_TO_GUESS = "no_row_to_guess"
    VICTIM_WITHOUT_COLUMNS = "victim_without_columns"
    GRANT_MISSING = "grant_missing"
    MESSAGE_NOT_HELD = "message_not_held"
    LABELS_NOT_HELD = "labels_not_held"
    MODEL_NOT_HELD = "model_not_held"
    ATTACKS_ITSELF = "attacks_itself"
    POINTLESS = "pointless"


class Refusal(NamedTuple):
    """That an attack cannot run: the rule that says so, and the reason in words."""

    code: Obstacle
    reason: str

    @property
    def status(self) -> str:
        """``not-observable`` or ``not-applicable``.

        The first: the adversary never holds what the attack needs. The second: a grant is missing,
        or the attack has no meaning under the public facts.
        """
        unseen = self.code in (Obstacle.MESSAGE_NOT_HELD, Obstacle.MODEL_NOT_HELD)
        return "not-observable" if unseen else "not-applicable"


@dataclass(frozen=True)
class System:
    """A cell on its data, and what is known of it without training; asked about many attacks."""

    info: DataInfo
    cell: CellSpec

    @cached_property
    def algorithm(self) -> Algorithm:
        made: Algorithm = registry.algorithms.create(self.cell.algorithm, self.cell.params)
        return made

    @cached_property
    def sends(self) -> Sends | None:
        """(kind, sender role, receiver role) of all messages; None if they are not known."""
        sends = getattr(self.algorithm, "sends", None)
        return None if sends is None else reroute(sends, self.info, self.cell)

    def find_roles(self, parties: Iterable[str]) -> set[str]:
        """Roles of parties; a server is a role of its own."""
        of = {self.info.active: "active"} | {p: p for p in self.algorithm.servers}
        return {of.get(p, "passive") for p in parties}

    def records(self, need: Need, adversary: Iterable[str]) -> bool:
        """Whether messages about rows are kept for a need: the adversary may get such."""
        kind = KINDS.get(need.kind)
        if kind is None or not kind.has_rows:
            return False
        roles = self.find_roles(adversary)
        return self.sends is None or _is_read(need, roles, self.algorithm, self.sends)

    @cached_property
    def facts(self) -> Facts | None:
        """What every party will know of the run; None where only the run does."""
        info = self.info
        try:
            return self.algorithm.planned_facts(info.active, info.parties, info.label.outputs)
        except (NotImplementedError, VflsecError):
            return None


@dataclass(frozen=True)
class _Question:
    """What the rules look at: an attack on a system."""

    attack: Attack
    spec: AttackSpec
    system: System

    @property
    def adversary(self) -> str:
        return "+".join(self.spec.adversary)

    @cached_property
    def roles(self) -> set[str]:
        """Of the adversary's parties."""
        return self.system.find_roles(self.spec.adversary)


def find_refusal(attack: Attack, spec: AttackSpec, system: System) -> Refusal | None:
    """Why the attack cannot run on this system, or None; the first rule that speaks decides.

    What cannot be decided without training is left to the engine.
    """
    asked = _Question(attack, spec, system)
    for code, rule in _RULES:
        if reason := rule(asked):
            return Refusal(code, reason)
    for need in as_needs(attack.needs):
        if reason := _find_grant_missing(asked, need):
            return Refusal(Obstacle.GRANT_MISSING, reason)
        if missed := _find_unheld(need, asked.roles, system.algorithm, system.sends):
            return Refusal(missed, _explain_not_held(asked, need, missed))
    if reason := find_own_secret(attack.target, spec, system.info.parties):
        return Refusal(Obstacle.ATTACKS_ITSELF, reason)
    reason = _find_pointless(asked)
    return Refusal(Obstacle.POINTLESS, reason) if reason else None


def _format_need(attack: str, what: str, who: str, under: str = "") -> str:
    """``norm needs 'gradient'; shop receives none under trees.``"""
    return f"{attack} needs {what}; {who} none" + (f" under {under}." if under else ".")


def _find_victim_without_columns(asked: _Question) -> str:
    target, info, spec = asked.attack.target, asked.system.info, asked.spec
    if not info.label_holder or target in (*OF_THE_LABELS, "presence"):
        return ""
    if list_victims(target, spec.adversary, info.parties, spec.victim) != (info.active,):
        return ""
    return _format_need(spec.name, "columns", f"{info.active} has")


def _find_grant_missing(asked: _Question, need: Need) -> str:
    spec = asked.spec
    if not need.is_grant or int(getattr(spec, need.what)) >= 1:
        return ""
    return f"{spec.name} needs {_GRANTS[need.what]}"


_GRANTS = {
    "known_rows": "known_rows.", "prior": "the class prior.", "aux_rows": "aux_rows.",
    "peer_model": "the victim's model (peer_model = true).",
}  # fmt: skip


def _explain_not_held(asked: _Question, need: Need, missed: Obstacle) -> str:
    attack, who, cell = asked.spec.name, asked.adversary, asked.system.cell
    if missed is Obstacle.LABELS_NOT_HELD:
        return _format_need(attack, "own labels", f"{who} has")
    if missed is Obstacle.MODEL_NOT_HELD:
        return _format_need(attack, "an own model", f"{who} trains", cell.algorithm)
    verb = "sends" if need.sent else "receives"
    under = " with ".join([cell.algorithm, *(d.name for d in cell.defenses)])
    return _format_need(attack, repr(need.kind), f"{who} {verb}", under)


def _find_unheld(
    need: Need, roles: Collection[str], algorithm: Algorithm, sends: Sends | None
) -> Obstacle | None:
    """What parties of these roles do not hold that is needed: a message, labels, or a model.

    None for grants, and for messages where it is not known which are sent.
    """
    if need.is_grant:
        return None
    if need.kind:
        held = sends is None or _is_read(need, roles, algorithm, sends)
        return None if held else Obstacle.MESSAGE_NOT_HELD
    if need.what == "labels":
        return None if "active" in roles else Obstacle.LABELS_NOT_HELD
    return Obstacle.MODEL_NOT_HELD if algorithm.modules.isdisjoint(roles) else None


def _is_read(need: Need, roles: Collection[str], algorithm: Algorithm, sends: Sends) -> bool:
    end = 1 if need.sent else 2
    kind = KINDS.get(need.kind)
    opened = not need.sent or kind is None or kind.opened_by == "both"
    if kind is not None and kind.opened_by == "key":
        opened = any(p in roles for p in algorithm.servers)
    return opened and any(s[0] == need.kind and s[end] in roles for s in sends)


def choose_attacker(attack: Attack, system: System) -> str:
    """The role of who attacks where nobody is named: the first that holds all that is read.

    Passive parties come first, and are the answer where no role holds it all. What messages show
    without defenses decides before what they show with them. Nobody attacks own labels.
    """
    plain, algorithm = getattr(system.algorithm, "sends", None), system.algorithm
    roles = ("passive", *(() if attack.target in OF_THE_LABELS else ("active", *algorithm.servers)))
    needs = as_needs(attack.needs)
    for sends, role in itertools.product((plain, system.sends), roles):
        if not any(_find_unheld(need, {role}, algorithm, sends) for need in needs):
            return role
    return roles[0]


def _find_pointless(asked: _Question) -> str:
    info, facts, sends = asked.system.info, asked.system.facts, asked.system.sends or ()
    if facts is None:
        return ""
    classes = 2 if asked.spec.of_label else info.classes
    try:
        return asked.attack.pointless(
            replace(facts, classes=classes, sends=_name_parties(info, sends))
        )
    except (NotImplementedError, VflsecError):
        return ""  # depends on facts that only the run knows


_RULES: tuple[tuple[Obstacle, Callable[[_Question], str]], ...] = (
    (Obstacle.NO_ROW_TO_GUESS, lambda q: find_exhausted(q.spec, q.system.info.labelled)),
    (Obstacle.VICTIM_WITHOUT_COLUMNS, _find_victim_without_columns),
)


def drop_column_names(spec: AttackSpec) -> AttackSpec:
    """The attack on other data, where no column is called as its settings say."""
    named = registry.attacks.get(spec.name).of_data  # type: ignore[attr-defined]
    return replace(spec, params={k: v for k, v in spec.params.items() if k not in named})


def count_labelled_rows(source: Source, split: Params) -> tuple[int, int]:
    """How many labelled training rows every seed has, and of the rarest class (of any label).

    0 each if the split fails, for training says why; for a quantity the second is 0.
    """
    from vflsec.data.split import count_rarest

    sets = _divide(source, split)
    return (0, 0) if sets is None else (len(sets.labelled), count_rarest(source, sets.labelled))


def count_spare_rows(source: Source, split: Params) -> int | None:
    """How many rows that seeds draw can be trained on instead of others; None where seeds draw the
    test rows, too.
    """
    if not source.fixed:
        return None
    sets = None if "validation" in source.fixed else _divide(source, split)
    return 0 if sets is None else len(sets.validation)


FEW_LEFT = 10
"""With fewer rows of a class left to guess, a note says on how few figures rest."""


def warn_of_few_left(attack: Attack, spec: AttackSpec, info: DataInfo) -> str:
    """That known rows leave few training rows of the rarest class to guess, in words, or ''.

    They are drawn from each class in turn, of each at most half.
    """
    taken = math.ceil(spec.known_rows / info.label.sides)
    left = max(info.rarest - taken, info.rarest // 2)
    on_train = attack.target == "label" and "train" in attack.splits
    if not info.rarest or not spec.known_rows or not on_train or left >= FEW_LEFT:
        return ""
    return (
        f"{info.name}: known_rows = {spec.known_rows} leave {left or 'none'} of {info.rarest} "
        "training rows of the rarest class to guess. Needs more rows."
    )


def warn_of_membership(
    attack: Attack, source: Source, info: DataInfo, cells: Sequence[CellSpec]
) -> list[str]:
    """Why an attack on membership may say too much or too little, in words.

    Too much where the data set tells training and test rows apart: either may be harder whatever
    was trained on, which a control measures. Too little where labels were changed before training.
    """
    if attack.target != "membership":
        return []
    found = []
    if source.fixed:
        found.append(
            f"{info.name}: the fixed split may be separable without a leak; {attack.name} is "
            f"compared with itself on systems without the rows ({LEFT_OUT})."
        )
    changed = dict.fromkeys(
        d.name for c in cells for d in c.defenses
        if d.strength != 0 and registry.defenses.create(d.name, d.params).overrides("labels")
    )  # fmt: skip
    if changed:
        found.append(
            f"{info.name}: {' and '.join(changed)} changes labels, so a signal that reads them may "
            f"miss a leak (`vflsec show {attack.name}`)."
        )
    return found


def warn_of_few_tested(source: Source, name: str, split: Params) -> str:
    """That few test rows are of the rarer class (of one of several labels), in words, or ''.

    Of two classes only: of more, no figure rests on the rarest alone.
    """
    from vflsec.data.split import count_rarest

    sets = _divide(source, split) if source.label.sides <= 2 else None
    if sets is None:
        return ""
    rows, rare = sets.test, count_rarest(source, sets.test)
    if not 0 < rare < FEW_LEFT:
        return ""
    of = " of any label" if source.labels else ""
    return (
        f"{name}: only {rare} of {len(rows)} test rows are of the rarest class{of}. Raise [data] "
        "test."
    )


def check_divisible(source: Source, split: Params, seeds: Iterable[int]) -> None:
    """Look whether the rows of every seed can be chosen where that is left to chance.

    It is with groups, which go to one side as they are, and with several labels at once, of which
    one may have hardly a row that has no rarer one. Else what holds for a seed holds for all.

    Raises:
        DataError: some class or label would be missing from a row set of a seed.
    """
    from vflsec.data.split import row_sets

    for seed in seeds if source.labels or source.group is not None else ():
        row_sets(source, seed, **_sizes(split))


def _divide(source: Source, split: Params) -> RowSets | None:
    """The row sets of seed 0; None if the split fails, for training says why."""
    from vflsec.data.split import row_sets

    try:
        return row_sets(source, 0, **_sizes(split))
    except VflsecError:
        return None


def _sizes(split: Params) -> dict[str, Any]:
    return {k: split[k] for k in ("validation", "test", "labelled", "aligned") if k in split}


def reroute(
    sends: frozenset[tuple[str, str, str]], info: DataInfo, cell: CellSpec
) -> frozenset[tuple[str, str, str]]:
    """What the cell sends when its defenses put another protocol in the place of some messages.

    A defense of one of several passive parties adds to what the others still send.
    """
    for d in cell.defenses:
        policy = registry.defenses.create(d.name, d.params)
        changed = policy.sends(sends)
        everyone = d.party in ("", "passive", "all") or len(info.passive) < 2
        sends = changed if everyone else sends | changed
    return sends


def _name_parties(
    info: DataInfo, sends: Iterable[tuple[str, str, str]]
) -> frozenset[tuple[str, str, str]]:
    """Message kinds by role as message kinds by party."""
    by_role = {"active": (info.active,), "passive": info.passive}
    return frozenset(
        (kind, s, r)
        for kind, sender, receiver in sends
        for s in by_role.get(sender, ())
        for r in by_role.get(receiver, ())
        if s != r
    )
