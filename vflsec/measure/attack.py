"""Makes attacks on Views: guesses come out, each beside the answers of its controls.

Views come from any :class:`vflsec.core.source.Source`; nothing here knows a trainer or a truth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from vflsec.core import check
from vflsec.core.guess import Guess
from vflsec.core.rng import Globals, generator
from vflsec.core.source import Given
from vflsec.core.view import View, as_needs
from vflsec.measure.control_cache import hash_view
from vflsec.measure.control_maker import ControlMaker
from vflsec.measure.controls import Control, name_alike
from vflsec.measure.observed_rows import drop_unobserved_rows
from vflsec.measure.prepared import Prepared, explain_misfit
from vflsec.plugins.loading import TIMEOUT, attempt_call
from vflsec.runtime.out_of_memory import Passing, nothing
from vflsec.specs import DECLINED, find_exhausted, find_own_secret


@dataclass(frozen=True)
class Answer:
    """What one attack made of one View.

    Attributes:
        of: the attack.
        phase: after which it looked, ``PHASE@EPOCH`` if it looked back at the end of that epoch.
        view: what it was given, with the rows that it is asked about.
        guess: its answer, None if there is none.
        status: ``ok``, one of :data:`vflsec.specs.UNMADE`, or ``error``.
        reason: why there is no guess.
        controls: asked for when they are needed: what the same adversary reaches without messages.
    """

    of: Prepared
    phase: str
    view: View
    guess: Guess | None = None
    status: str = "ok"
    reason: str = ""
    controls: Callable[[], Sequence[Control]] = field(default=tuple, repr=False)


@dataclass(frozen=True)
class _Asked:
    """One attack on the views of a cohort.

    Attributes:
        of: the attack.
        views: one for each replica.
        made: what each was before the attack touched it: its rows are scored and its controls are
            made by that, and the controls stand beside other attacks too.
        seeds: their base seeds.
        phase: that has ended.
        epoch: that it looks back at; None for the end of the phase.
    """

    of: Prepared
    views: Sequence[View]
    made: Sequence[str]
    seeds: Sequence[int]
    phase: str
    epoch: int | None = None

    @property
    def at(self) -> str:
        return self.phase if self.epoch is None else f"{self.phase}@{self.epoch}"

    @property
    def what(self) -> str:
        return f"attack {self.of.spec.label!r}"

    @property
    def limit(self) -> float:
        """Seconds for one view."""
        return self.of.spec.timeout

    def generator(self, seed: int) -> torch.Generator:
        return generator(seed, "attack", self.of.spec.stream, self.phase)

    def among(self, places: Sequence[int]) -> _Asked:
        """The same of some of the replicas."""
        return replace(
            self,
            views=[self.views[k] for k in places],
            made=[self.made[k] for k in places],
            seeds=[self.seeds[k] for k in places],
        )

    def answer(self, view: View, *, status: str, reason: str) -> Answer:
        """That there is no guess."""
        return Answer(self.of, self.at, view, status=status, reason=reason)


class Bench:
    """Where attacks are made.

    Args:
        controls: makes what answers are compared with.
        passing: which errors of an attack are raised instead of being its answer.
    """

    def __init__(self, controls: ControlMaker | None = None, passing: Passing = nothing) -> None:
        self.controls, self.passing = controls or ControlMaker(), passing

    def attack(self, of: Prepared, given: Given) -> Iterator[list[Answer]]:
        """One list of answers, one for each training; more where an attack looks back.

        Args:
            of: the attack.
            given: what it is made on.
        """
        views, phase = given.views, given.phase.name
        seen = next((v for v in views if not _unseen(of, v)), views[0])
        refused, failed = attempt_call(
            lambda: given.lack if given.lack[1] else _refusal(of, seen, phase), of.spec.label
        )
        status, why = ("error", failed) if refused is None else refused
        if why:
            yield [Answer(of, phase, v, status=status, reason=why) for v in views]
            return
        made = [hash_view(v) for v in views]
        asked = _Asked(of, views, made, given.seeds, phase)
        yield self._infer(asked)
        if of.spec.over_time and any(key[2] == "all" for key in views[0].tables):
            for epoch in range(given.phase.epochs):
                past = [v.until(epoch) for v in views]
                yield self._infer(replace(asked, views=past, epoch=epoch))

    def _infer(self, asked: _Asked) -> list[Answer]:
        """One attack on every view; where it declines, on the rest."""
        views = [drop_unobserved_rows(asked.of.attack, v) for v in asked.views]
        declined, broke = self._ask_to_decline(asked, views)
        if broke:
            return [asked.answer(v, status="error", reason=broke) for v in views]
        if any(why for _, why in declined):
            fit = [k for k, (_, why) in enumerate(declined) if not why]
            rest = iter(self._infer(asked.among(fit)) if fit else ())
            return [
                asked.answer(v, status=status, reason=why) if why else next(rest)
                for v, (status, why) in zip(views, declined, strict=True)
            ]
        stand = Globals()
        pairs = self._guess(asked, views)
        drew = _drew(stand, asked.what)
        return [
            self._judge(asked, r, view, guess, wrong or drew)
            for r, (view, (guess, wrong)) in enumerate(zip(views, pairs, strict=True))
        ]

    def _ask_to_decline(
        self, asked: _Asked, views: Sequence[View]
    ) -> tuple[Sequence[tuple[str, str]], str]:
        """(status and why the attack declines each view, why that is not known), '' if not."""
        ask = asked.of.attack.declines
        unseen = [_refuse_unseen(asked.of, v, asked.phase) for v in views]
        declined, broke = attempt_call(
            lambda: ["" if why else ask(v) for v, why in zip(views, unseen, strict=True)],
            asked.what, asked.limit, self.passing,
        )  # fmt: skip
        odd = next((d for d in declined or () if not isinstance(d, str)), None)
        if declined is None or odd is not None:
            broke = broke or f"{asked.what} must decline by a text, got {check.shown(odd)}."
            return (), broke
        both = zip(unseen, declined, strict=True)
        return [("not-observable", u) if u else (DECLINED, d) for u, d in both], ""

    def _guess(self, asked: _Asked, views: Sequence[View]) -> Sequence[tuple[Any, str]]:
        """(guess, why there is none) of each view: all at once, or one by one where that breaks."""
        attack, what, limit = asked.of.attack, asked.what, asked.limit
        many = partial(attack.infer_many, views, [asked.generator(s) for s in asked.seeds])
        found, broke = attempt_call(many, what, limit * len(views))
        if broke and TIMEOUT not in broke:
            # one by one, so that one bad cell does not take its company along
            return [
                attempt_call(
                    partial(attack.infer, v, asked.generator(s)), what, limit, self.passing
                )
                for v, s in zip(views, asked.seeds, strict=True)
            ]
        wrong = broke or _unlisted(found, len(views), what)
        return [(None, wrong)] * len(views) if wrong else [(g, "") for g in found or ()]

    def _judge(self, asked: _Asked, r: int, view: View, guess: Any, wrong: str) -> Answer:
        """The answer of one replica, if its guess is one, with the controls it is compared with."""
        of, whole, what = asked.of, asked.views, asked.what
        why = wrong or explain_misfit(guess, of) or _changed(whole[r], asked.made[r], what)
        chosen, failed = (None, "") if why else attempt_call(partial(of.resolved, guess), what)
        if why or chosen is None:
            return asked.answer(view, status="error", reason=why or failed)
        if asked.epoch is not None:
            guess = replace(guess, notes={**guess.notes, "epoch": asked.epoch})
        beside = _Ask(self.controls, of, whole, asked.seeds, r)
        if chosen is not of:  # the others may have chosen otherwise
            beside = _Ask(
                self.controls, chosen, whole[r : r + 1], asked.seeds[r : r + 1], 0, chosen=True
            )
        return Answer(chosen, asked.at, view, guess, controls=beside)


@dataclass(frozen=True)
class _Ask:
    """The controls of one answer, computed when they are asked for."""

    maker: ControlMaker
    of: Prepared
    views: Sequence[View]
    seeds: Sequence[int]
    r: int
    chosen: bool = False

    def __call__(self) -> list[Control]:
        found = self.maker.make(self.of, self.views, self.seeds, self.r)
        return name_alike(found) if self.chosen else found


def _labelled(of: Prepared, view: View) -> int:
    """How many labelled rows there are: those to guess and those that were granted.

    Of training, where the attack answers for it; of a trace all may be rows that were predicted.
    """
    splits = ("train",) if "train" in of.attack.splits else view.targets
    granted = 0 if view.known is None else len(view.known)
    granted += 0 if not view.aux else len(next(iter(view.aux.values()))[0])
    return sum(len(view.targets[s]) for s in splits) + granted


def _unseen(of: Prepared, view: View) -> str:
    """Which message kind that the attack needs did not pass in the phase, in words, or ''.

    It may have passed in other replicas, where a defense lets none pass here.
    """
    seen = {(way, kind) for (way, kind, _, _), table in view.tables.items() if len(table)}
    for need in as_needs(of.attack.needs):
        way = "sent" if need.sent else "received"
        if need.kind and (way, need.kind) not in seen:
            return f"{need.kind!r} messages; {'+'.join(of.spec.adversary)} {way} none"
    return ""


def _refuse_unseen(of: Prepared, view: View, phase: str) -> str:
    """Why the attack cannot be made for want of a message, or ''."""
    why = _unseen(of, view)
    return f"{of.spec.name} needs {why} in phase {phase!r}." if why else ""


def _refusal(of: Prepared, view: View, phase: str) -> tuple[str, str]:
    """(status, reason) if the attack cannot be made on this view, else ("", "")."""
    if why := _refuse_unseen(of, view, phase):
        return "not-observable", why
    # the plan has asked too, unless these facts were not known yet, or there is none
    why = (
        find_own_secret(of.attack.target, of.spec, view.facts.parties)
        or find_exhausted(of.spec, _labelled(of, view))
        or of.attack.pointless(view.facts)
    )
    return ("not-applicable", why) if why else ("", "")


def _unlisted(found: Any, count: int, what: str) -> str:
    """Why what several views gave is no list of answers, or ''."""
    is_list = isinstance(found, list | tuple)
    if is_list and len(found) == count:
        return ""
    got = len(found) if is_list else type(found).__name__
    return f"{what} must return a list of {count} guesses, got {got}."


def _drew(stand: Globals, what: str) -> str:
    """Why an answer that nobody can repeat does not count, or ''."""
    if not (whose := stand.drawn()):
        return ""
    return (
        f"{what} draws from, or seeds, the global random numbers of {whose}. Draw from rng alone, "
        "or within vflsec.core.rng.as_global(rng)."
    )


def _changed(view: View, made: str, what: str) -> str:
    """Why an answer on a view that is no longer what it was does not count, or ''."""
    if hash_view(view) == made:
        return ""
    return (
        f"{what} changes its View in place (own columns, grants or the rows to guess). Work on "
        "copies (x = x.clone())."
    )
