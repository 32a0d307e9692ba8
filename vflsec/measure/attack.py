"""Makes attacks on Views: guesses come out, each beside the answers of its controls.

Views come from any :class:`vflsec.core.source.Source`; nothing here knows a trainer or a truth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from vflsec.core import check
from vflsec.core.attack import Attack
from vflsec.core.guess import Guess
from vflsec.core.rng import Globals, generator
from vflsec.core.source import Given
from vflsec.core.view import View, as_needs
from vflsec.errors import ConfigError, ThreatModelError
from vflsec.measure.control_cache import SharedControls, hash_view
from vflsec.measure.controls import (
    Control,
    controls_for,
    guess_on_others,
    guess_shuffled,
    guess_untrained,
    name_alike,
    share_rows,
)
from vflsec.measure.observed_rows import drop_unobserved_rows
from vflsec.plugins import registry
from vflsec.plugins.loading import TIMEOUT, attempt_call
from vflsec.runtime.out_of_memory import Passing, nothing, out_of_memory
from vflsec.specs import AttackSpec, find_exhausted

T = TypeVar("T")

Alone = Callable[[int, Sequence[str]], nn.Module | None]
"""(seed, adversary) -> the bottom that the adversary could have trained without the federation."""


_NOTES, _NOTES_DEEP = 100_000, 10
"""Most characters and numbers in the notes of a guess, and how deep they may be nested."""

Reassigned = Callable[[int, Sequence[str]], Mapping[str, nn.Module]]
"""(seed, adversary) -> the bottoms that the federation trained on another task, by party."""

Make = Callable[[Sequence[View], Sequence[torch.Generator], Sequence[int]], Sequence[list[Control]]]
"""(views, generators, seeds) -> the controls of each view."""


@dataclass(frozen=True)
class Prepared:
    """One attack, ready to run: what was asked for, and the attack with its parameters."""

    spec: AttackSpec
    attack: Attack

    def resolved(self, guess: Guess) -> Prepared:
        """The same with the attack that its answer is compared as."""
        attack = self.attack.resolved(guess)
        return self if attack is self.attack else replace(self, attack=attack)


def prepare(specs: Sequence[AttackSpec]) -> list[Prepared]:
    """The attacks that `specs` name.

    Raises:
        ConfigError: an attack or a parameter of it does not exist.
    """
    return [Prepared(s, registry.attacks.create(s.name, s.params)) for s in specs]


@dataclass(frozen=True)
class Answer:
    """What one attack made of one View.

    Attributes:
        of: the attack.
        phase: after which it looked, ``PHASE@EPOCH`` if it looked back at the end of that epoch.
        view: what it was given, with the rows that it is asked about.
        guess: its answer, None if there is none.
        status: ``ok``, ``not-observable``, ``not-applicable`` or ``error``.
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
    """Where attacks are made; keeps controls, which depend on the seed and the grants alone.

    Args:
        alone: how the bottom of a lone adversary is trained, if there is such a thing.
        shared: controls of earlier benches, found by what they were made of.
        training: identity of the training but for its defenses, under which they are shared.
        reassigned: how bottoms are trained on another task, if they can be.
        passing: which errors of an attack are raised instead of being its answer.
    """

    def __init__(
        self,
        alone: Alone | None = None,
        shared: SharedControls | None = None,
        training: str = "",
        reassigned: Reassigned | None = None,
        passing: Passing = nothing,
    ) -> None:
        self._controls: dict[tuple[Any, ...], list[Control]] = {}
        self._shared, self._training = shared, training
        self._late: dict[tuple[Any, ...], str] = {}  # controls that took too long, and what says so
        self._alone = alone or (lambda *_: None)
        self._reassigned = reassigned
        self.passing = passing

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
        return [("not-observable", u) if u else ("not-applicable", d) for u, d in both], ""

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
        why = wrong or _unfit(guess, of) or _changed(whole[r], asked.made[r], what)
        chosen, failed = (None, "") if why else attempt_call(partial(of.resolved, guess), what)
        if why or chosen is None:
            return asked.answer(view, status="error", reason=why or failed)
        if asked.epoch is not None:
            guess = replace(guess, notes={**guess.notes, "epoch": asked.epoch})
        beside = _Ask(self, of, whole, asked.seeds, r)
        if chosen is not of:  # the others may have chosen otherwise
            beside = _Ask(self, chosen, whole[r : r + 1], asked.seeds[r : r + 1], 0, chosen=True)
        return Answer(chosen, asked.at, view, guess, controls=beside)

    def controls(
        self, of: Prepared, views: Sequence[View], seeds: Sequence[int], r: int
    ) -> list[Control]:
        """The controls of one attack in replica `r`; the others' are computed along."""
        asked: tuple[Any, ...] = (of.spec.of_label,) if of.spec.of_label else ()
        if of.attack.target != "label":
            asked = (of.attack.target, of.spec.victim, of.spec.aux_rows, of.attack.params())
        rest = (of.spec.adversary, of.spec.known_rows, of.spec.prior, *map(str, asked))

        def shared(fresh: Sequence[View], rngs: Sequence[torch.Generator], of_seeds: Sequence[int]
                   ) -> list[list[Control]]:  # fmt: skip
            bottoms = [self._alone(seed, of.spec.adversary) for seed in of_seeds]
            return controls_for(of.attack, fresh, rngs, [b for b in bottoms if b is not None])

        def own(fresh: Sequence[View], rngs: Sequence[torch.Generator], of_seeds: Sequence[int]
                ) -> list[list[Control]]:  # fmt: skip
            out: list[list[Control]] = [[] for _ in fresh]
            fit = [k for k, v in enumerate(fresh) if not of.attack.declines(v)]
            before = partial(
                guess_untrained, of.attack, [fresh[k] for k in fit], [rngs[k] for k in fit]
            )  # fmt: skip
            found = self._attempt("untrained", of, mine, before, len(fit))
            for k, made in zip(fit, found or (), strict=False):
                out[k] = [c for c in made if not _unfit(c.guess, of)]
            return out

        def elsewhere(fresh: Sequence[View], rngs: Sequence[torch.Generator],
                      of_seeds: Sequence[int]) -> list[list[Control]]:  # fmt: skip
            if self._reassigned is None:
                raise ThreatModelError(
                    f"{of.spec.name} needs a control training. Set reassigned = false."
                )
            bottoms = [self._reassigned(seed, of.spec.adversary) for seed in of_seeds]
            return guess_on_others("reassigned", of.attack, fresh, rngs, bottoms)

        mine, again = ((*rest, name, of.spec.stream) for name in ("untrained", "shuffled"))
        if late := next((self._late[key] for key in (mine, again) if key in self._late), ""):
            raise ConfigError(late)
        found = [
            *self._kept(rest, views, seeds, r, self._sharing(shared)),
            *self._kept(mine, views, seeds, r, own),
        ]  # fmt: skip
        if getattr(of.attack, "reassigned", False):
            found += self._kept((*rest, "reassigned", of.spec.stream), views, seeds, r, elsewhere)
        if registry.attacks.entry(of.spec.name).package:
            streams = (generator(seeds[r], "controls", *again, use) for use in ("deal", "attack"))
            remake = partial(guess_shuffled, of.attack, views[r], *streams)
            made = self._attempt("shuffled", of, again, remake)
            found = [*found, *(c for c in made or () if not _unfit(c.guess, of))]
        return found

    def _attempt(
        self, name: str, of: Prepared, key: tuple[Any, ...], make: Callable[[], T], times: int = 1
    ) -> T | None:
        """What `make` gives, the same attack made again as a control; None where that fails.

        Raises:
            ConfigError: it took longer than the attack may; it is asked for once.
        """
        what = f"the {name} control of {of.spec.label!r}"
        # without room it is made elsewhere, or what it belongs to has no figure
        found, why = attempt_call(make, what, of.spec.timeout * times, out_of_memory)
        if TIMEOUT in why:  # so has what depends on how busy a machine is
            self._late[key] = why
            raise ConfigError(why)
        return found

    def _sharing(self, make: Make) -> Make:
        """`make`, but for what an earlier bench made of the same."""
        kept = self._shared
        if kept is None:
            return make

        def sharing(fresh: Sequence[View], rngs: Sequence[torch.Generator], of_seeds: Sequence[int]
                    ) -> list[list[Control]]:  # fmt: skip
            keys = [
                (self._training, seed, rng.initial_seed(), hash_view(view))
                for seed, rng, view in zip(of_seeds, rngs, fresh, strict=True)
            ]
            found: dict[Hashable, list[Control]] = {}
            while True:
                found |= {k: c for k in keys if k not in found and (c := kept.get(k)) is not None}
                rest = [k for k in keys if k not in found]
                if not rest:
                    return [found[k] for k in keys]
                with kept.claim(rest) as mine:  # others may have made some since
                    new = [keys.index(k) for k in mine if kept.get(k) is None]
                    made = make(
                        [fresh[i] for i in new], [rngs[i] for i in new], [of_seeds[i] for i in new]
                    ) if new else []  # fmt: skip
                    for i, controls in zip(new, made, strict=True):
                        found[keys[i]] = controls
                        kept.put(keys[i], controls)

        return sharing

    def _kept(
        self, rest: tuple[Any, ...], views: Sequence[View], seeds: Sequence[int], r: int, make: Make
    ) -> list[Control]:
        """Controls by (seed, *rest); those of all seeds are made together when one is missing."""
        if (seeds[r], *rest) not in self._controls:
            fresh: dict[tuple[Any, ...], View] = {}
            for seed, view in zip(seeds, views, strict=True):
                if (seed, *rest) not in self._controls:
                    fresh.setdefault((seed, *rest), view)
            rngs = [generator(k[0], "controls", *k[1:]) for k in fresh]
            made = make(list(fresh.values()), rngs, [k[0] for k in fresh])
            for controls in made:
                share_rows(controls)
            self._controls.update(zip(fresh, made, strict=True))
        return self._controls[(seeds[r], *rest)]


@dataclass(frozen=True)
class _Ask:
    """The controls of one answer, computed when they are asked for."""

    bench: Bench
    of: Prepared
    views: Sequence[View]
    seeds: Sequence[int]
    r: int
    chosen: bool = False

    def __call__(self) -> list[Control]:
        found = self.bench.controls(self.of, self.views, self.seeds, self.r)
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
    # the plan has asked too, unless these facts were not known yet
    why = find_exhausted(of.spec, _labelled(of, view)) or of.attack.pointless(view.facts)
    return ("not-applicable", why) if why else ("", "")


def _unlisted(found: Any, count: int, what: str) -> str:
    """Why what several views gave is no list of answers, or ''."""
    is_list = isinstance(found, list | tuple)
    if is_list and len(found) == count:
        return ""
    got = len(found) if is_list else type(found).__name__
    return f"{what} must return a list of {count} guesses, got {got}."


def _unfit(guess: Any, of: Prepared) -> str:
    """Why what an attack returned is no answer, or ''."""
    if not isinstance(guess, Guess):
        return f"attack {of.spec.label!r} returned {type(guess).__name__}, no Guess."
    targets = (
        (of.attack.target, "label") if of.attack.target == "attribute" else (of.attack.target,)
    )
    if guess.target not in targets:
        return f"attack {of.spec.label!r} must guess {of.attack.target!r}, got {guess.target!r}."
    if not isinstance(guess.notes, dict) or not can_be_kept(guess.notes):
        rule = f"notes of at most {_NOTES:,} plain values by name"
        return f"attack {of.spec.label!r} must return {rule}."
    if not np.isfinite(guess.scores).all():
        return "the attack diverged: scores are not finite."
    return ""


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


def can_be_kept(notes: Mapping[Any, Any]) -> bool:
    """Whether notes are plain values of bounded size, so that they can be stored."""
    left = _NOTES
    level: list[Any] = [notes]
    for _ in range(_NOTES_DEEP):
        below: list[Any] = []
        for value in level:
            if isinstance(value, np.ndarray | np.generic | torch.Tensor):
                left -= math.prod(value.shape)
            elif isinstance(value, Mapping):
                left -= sum(len(str(k)) for k in value)
                below += value.values() if all(isinstance(k, str) for k in value) else [object()]
            elif isinstance(value, list | tuple):
                below += value
            elif isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value):
                left -= len(value)
            elif value is not None and not isinstance(value, int | float):
                return False
        left -= len(below)
        if left < 0:
            return False
        if not below:
            return True
        level = below
    return False
