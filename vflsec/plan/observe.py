"""Can an attack run at all? Its needs against what the algorithm sends and the scenario grants."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vflsec.errors import VflsecError
from vflsec.plugins import registry
from vflsec.specs import OF_THE_LABELS, exhausted, victims

if TYPE_CHECKING:
    from vflsec.core.attack import Attack
    from vflsec.data.source import Source
    from vflsec.plan.values import DataInfo
    from vflsec.specs import AttackSpec, CellSpec

__all__ = ["divisible", "elsewhere", "few_left", "few_tested", "labelled_rows", "refusal",
           "unlike"]  # fmt: skip


def refusal(attack: Attack, spec: AttackSpec, info: DataInfo, cell: CellSpec) -> tuple[str, str]:
    """(status, reason) if the attack cannot run on this cell, else two empty strings.

    ``not-observable``: the adversary never holds a message the attack needs.
    ``not-applicable``: a grant is missing, or the attack has no meaning under the public facts.
    What cannot be decided without training is left to the engine.
    """
    from vflsec.core.view import as_needs

    why = exhausted(spec, info.labelled)
    if why:
        return "not-applicable", why
    algorithm = registry.algorithms.create(cell.algorithm, cell.params)
    sends = getattr(algorithm, "sends", None)
    if sends is not None:
        sends = rerouted(sends, info, cell)
    who = "+".join(spec.adversary)
    whose = victims(attack.target, spec.adversary, info.parties, spec.victim)
    if info.label_holder and attack.target not in OF_THE_LABELS and whose == (info.active,):
        return "not-applicable", f"{spec.name} is after columns, and {info.active} has none."
    roles = {"active" if p == info.active else "passive" for p in spec.adversary}
    for need in as_needs(attack.needs):
        if need.is_grant:
            if need.what == "known_rows" and spec.known_rows < 1:
                return "not-applicable", f"{spec.name} needs known_rows; the scenario grants none."
            if need.what == "prior" and not spec.prior:
                return "not-applicable", f"{spec.name} needs the class prior; it is not granted."
            if need.what == "aux_rows" and spec.aux_rows < 1:
                return "not-applicable", f"{spec.name} needs aux_rows; the scenario grants none."
            if need.what == "peer_model" and not spec.peer_model:
                reason = "the victim's model (peer_model = true); the scenario does not grant it."
                return "not-applicable", f"{spec.name} needs {reason}"
        elif need.kind and sends is not None:
            end = 1 if need.sent else 2
            if not any(s[0] == need.kind and s[end] in roles for s in sends):
                verb = "sends" if need.sent else "receives"
                under = " with ".join([cell.algorithm, *(d.name for d in cell.defenses)])
                other = f"{who} never {verb} one under {under}"
                return "not-observable", f"{spec.name} needs {need.kind!r} messages; {other}."
        elif need.what == "labels":
            if "active" not in roles:
                return "not-applicable", f"{spec.name} needs labels of its own; {who} has none."
        elif not need.kind and "active" not in roles and not algorithm.federated:
            other = f"{who} trains none under {cell.algorithm}"
            return "not-observable", f"{spec.name} needs an own model; {other}."
    try:
        facts = algorithm.planned_facts(info.active, info.parties, len(info.labels) or info.classes)
        facts = replace(facts, classes=2 if spec.of_label else info.classes)
        reason = attack.pointless(replace(facts, sends=_named(info, sends or ())))
    except (NotImplementedError, VflsecError):
        reason = ""  # depends on facts that only the run knows
    return ("not-applicable", reason) if reason else ("", "")


def elsewhere(spec: AttackSpec) -> AttackSpec:
    """The attack on other data, where no column is called as its settings say."""
    named = registry.attacks.get(spec.name).of_data  # type: ignore[attr-defined]
    return replace(spec, params={k: v for k, v in spec.params.items() if k not in named})


def labelled_rows(source: Source, split: Mapping[str, Any]) -> tuple[int, int]:
    """How many labelled training rows every seed has, and of the rarest class (of any label).

    0 each if the split fails, for training says why; for a quantity the second is 0.
    """
    from vflsec.data.split import rarest, row_sets

    try:
        rows = row_sets(source, 0, **_sizes(split)).labelled
    except VflsecError:
        return 0, 0
    return len(rows), rarest(source, rows)


FEW_LEFT = 10
"""With fewer rows of a class left to guess, a note says on how few figures rest."""


def few_left(attack: Attack, spec: AttackSpec, info: DataInfo) -> str:
    """That known rows take (nearly) all training rows of the rarest class, in words, or ''.

    They are drawn from each class in turn.
    """
    classes = info.classes or 2
    left = max(info.rarest - math.ceil(spec.known_rows / classes), 0)
    on_train = attack.target == "label" and "train" in attack.splits
    if not info.rarest or not spec.known_rows or not on_train or left >= FEW_LEFT:
        return ""
    so = "on these rest the figures on training rows"
    if not left:
        so = "on training rows " + ("there is no figure" if classes == 2 else "it is not guessed")
    fewer = max(1, info.rarest // 2) * classes
    cure = f"Grant fewer (known_rows = {fewer}) or have" if fewer < spec.known_rows else "Have"
    return (
        f"{info.name}: known_rows = {spec.known_rows} are drawn from each class in turn, so that "
        f"of the {info.rarest} training rows of the rarest class {left or 'none'} "
        f"{'is' if left < 2 else 'are'} left to guess: {so}. {cure} more rows of it."
    )


def unlike(attack: Attack, source: Source, info: DataInfo, cells: Sequence[CellSpec]) -> list[str]:
    """Why an attack on membership may say too much or too little, in words.

    Too much, without references, where the data set tells training and test rows apart: either may
    be harder whatever was trained on, which of own tables a control measures. Too little where
    labels were changed before training.
    """
    if attack.target != "membership":
        return []
    found = []
    if source.split is not None and not attack.trains and not info.section.get("split"):
        found.append(
            f"{info.name}: which rows are for training is fixed. Where the others differ from "
            f"them (later, harder), {attack.name} tells them apart whether or not training leaks: "
            "give references, which compare each row with itself."
        )
    elif source.split is not None and not attack.trains:
        found.append(
            f"{info.name}: a column says which rows are for training. Where the others differ from "
            f"them (later, harder), {attack.name} tells them apart whether or not training leaks, "
            "so each training has a few more, which leave out the rows asked about: what is told "
            "there is no membership (control left out)."
        )
    changed = dict.fromkeys(
        d.name for c in cells for d in c.defenses
        if d.strength != 0 and registry.defenses.create(d.name, d.params).overrides("labels")
    )  # fmt: skip
    if changed:
        found.append(
            f"{info.name}: {' and '.join(changed)} changes labels before training, and rows are "
            "asked about with their true ones: a signal that reads the label may miss what one "
            f"that does not would find (`vflsec show {attack.name}`)."
        )
    return found


def few_tested(source: Source, name: str, split: Mapping[str, Any]) -> str:
    """That few test rows are of the rarer class (of one of several labels), in words, or ''.

    Of two classes only: of more, no figure rests on the rarest alone.
    """
    from vflsec.data.split import rarest, row_sets

    if source.classes > 2:
        return ""
    try:
        rows = row_sets(source, 0, **_sizes(split)).test
    except VflsecError:
        return ""  # training says why
    rare = rarest(source, rows)
    if not 0 < rare < FEW_LEFT:
        return ""
    of = "the rarest class of any label" if source.labels else "the rarest class"
    return (
        f"{name}: of the {len(rows)} test rows {rare} {'is' if rare == 1 else 'are'} of {of}: on "
        "these rest the AUC of the model and the figures of attacks on test rows. Have more rows "
        "of it, or test on a larger share of rows ([data] test)."
    )


def divisible(source: Source, split: Mapping[str, Any], seeds: Iterable[int]) -> None:
    """Look whether the rows of every seed can be chosen where that is left to chance.

    It is with groups, which go to one side as they are, and with several labels at once, of which
    one may have hardly a row that has no rarer one. Else what holds for a seed holds for all.

    Raises:
        DataError: some class or label would be missing from a row set of a seed.
    """
    from vflsec.data.split import row_sets

    for seed in seeds if source.labels or source.group is not None else ():
        row_sets(source, seed, **_sizes(split))


def _sizes(split: Mapping[str, Any]) -> dict[str, Any]:
    return {k: split[k] for k in ("validation", "test", "labelled", "aligned") if k in split}


def rerouted(
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


def _named(
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
