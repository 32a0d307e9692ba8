"""Makes attacks on Views: guesses come out, each beside the answers of its controls.

Views may come from a live cohort, from a store or from a recorded trace; nothing here knows a
trainer or a truth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from vflsec import registry
from vflsec.attack import Attack
from vflsec.cell import AttackSpec, exhausted
from vflsec.errors import ThreatModelError
from vflsec.guess import Guess
from vflsec.measure.controls import Control, controls_for
from vflsec.rng import generator
from vflsec.view import View, as_needs

__all__ = ["Answer", "Bench", "Prepared", "prepared"]

Alone = Callable[[int, Sequence[str]], nn.Module | None]
"""(seed, adversary) -> the bottom that the adversary could have trained without the federation."""


@dataclass(frozen=True)
class Prepared:
    """One attack, ready to run: what was asked for, and the attack with its parameters."""

    spec: AttackSpec
    attack: Attack


def prepared(specs: Sequence[AttackSpec]) -> list[Prepared]:
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
        view: what it was given.
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


class Bench:
    """Where attacks are made; keeps controls, which depend on the seed and the grants alone.

    Args:
        known: controls of earlier benches with the same tasks and architecture; those that are
            computed here are added.
        alone: how the bottom of a lone adversary is trained, if there is such a thing.
    """

    def __init__(
        self, known: dict[tuple[Any, ...], list[Control]] | None = None, alone: Alone | None = None
    ) -> None:
        self._controls = {} if known is None else known
        self._alone = alone or (lambda *_: None)

    def attack(
        self, of: Prepared, views: Sequence[View], seeds: Sequence[int], phase: str, epochs: int = 0
    ) -> Iterator[list[Answer]]:
        """One list of answers, in the order of `views`; more where an attack looks back.

        Args:
            of: the attack.
            views: one for each replica.
            seeds: their base seeds.
            phase: that has ended.
            epochs: of the phase, to look back at.
        """
        status, why = "not-observable", _unseen(of, views[0])
        if why:
            why = f"{of.spec.name} needs {why} in phase {phase!r}."
        else:  # the plan has asked too, unless these facts were not known yet
            status = "not-applicable"
            why = exhausted(of.spec, _labelled(views[0]))
            why = why or of.attack.applicable(views[0].facts)
        if why:
            yield [Answer(of, phase, v, status=status, reason=why) for v in views]
            return
        yield self._infer(of, views, seeds, phase)
        if of.spec.over_time and any(key[2] == "all" for key in views[0].tables):
            for epoch in range(epochs):
                past = [v.until(epoch) for v in views]
                yield self._infer(of, past, seeds, phase, epoch)

    def _infer(
        self, of: Prepared, views: Sequence[View], seeds: Sequence[int], phase: str,
        epoch: int | None = None,
    ) -> list[Answer]:  # fmt: skip
        """One attack on every view; `epoch` if it looks back at that moment."""
        at = phase if epoch is None else f"{phase}@{epoch}"
        declined = [of.attack.declines(v) for v in views]
        if any(declined):
            fit = [k for k, why in enumerate(declined) if not why]
            rest = iter(
                self._infer(of, [views[k] for k in fit], [seeds[k] for k in fit], phase, epoch)
                if fit else ()
            )  # fmt: skip
            return [
                Answer(of, at, v, status="not-applicable", reason=why) if why else next(rest)
                for v, why in zip(views, declined, strict=True)
            ]
        names = ("attack", of.spec.key, phase)
        try:
            rngs = [generator(s, *names) for s in seeds]
            guesses: Sequence[Guess | str] = of.attack.infer_many(views, rngs)
        except ThreatModelError as refused:
            guesses = [str(refused)] * len(views)
        except (ValueError, RuntimeError, FloatingPointError):
            # one by one, so that one bad cell does not take its company along
            guesses = [
                _one(of.attack, v, generator(s, *names)) for v, s in zip(views, seeds, strict=True)
            ]
        out = []
        for r, (view, guess) in enumerate(zip(views, guesses, strict=True)):
            if isinstance(guess, str) or not np.isfinite(guess.scores).all():
                diverged = "the attack diverged: scores are not finite."
                why = guess if isinstance(guess, str) else diverged
                out.append(Answer(of, at, view, status="error", reason=why))
                continue
            if epoch is not None:
                guess = replace(guess, notes={**guess.notes, "epoch": epoch})
            ask = _Ask(self, of, views, seeds, r)
            out.append(Answer(of, at, view, guess, controls=ask))
        return out

    def controls(
        self, of: Prepared, views: Sequence[View], seeds: Sequence[int], r: int
    ) -> list[Control]:
        """The controls of one attack in replica `r`; the others' are computed along."""
        asked: tuple[Any, ...] = ()
        if of.attack.target != "label":
            asked = (of.attack.target, of.spec.victim, of.spec.aux_rows, of.attack.params())
        rest = (of.spec.adversary, of.spec.known_rows, of.spec.prior, *map(str, asked))
        if (seeds[r], *rest) not in self._controls:
            fresh: dict[tuple[Any, ...], View] = {}
            for seed, view in zip(seeds, views, strict=True):
                if (seed, *rest) not in self._controls:
                    fresh.setdefault((seed, *rest), view)
            rngs = [generator(k[0], "controls", *k[1:]) for k in fresh]
            bottoms = [self._alone(k[0], of.spec.adversary) for k in fresh]
            alone = [b for b in bottoms if b is not None]
            made = controls_for(of.attack, list(fresh.values()), rngs, alone)
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

    def __call__(self) -> list[Control]:
        return self.bench.controls(self.of, self.views, self.seeds, self.r)


def _labelled(view: View) -> int:
    """How many labelled training rows there are: those to guess and those that were granted."""
    granted = 0 if view.known is None else len(view.known)
    granted += 0 if not view.aux else len(next(iter(view.aux.values()))[0])
    return len(view.targets["train"]) + granted


def _unseen(of: Prepared, view: View) -> str:
    """Which message kind that the attack needs did not pass in the phase, in words, or ''."""
    seen = {(way, kind) for way, kind, _, _ in view.tables}
    for need in as_needs(of.attack.needs):
        way = "sent" if need.sent else "received"
        if need.kind and (way, need.kind) not in seen:
            return f"{need.kind!r} messages; {'+'.join(of.spec.adversary)} {way} none"
    return ""


def _one(attack: Attack, view: View, rng: torch.Generator) -> Guess | str:
    try:
        return attack.infer(view, rng)
    except (ValueError, RuntimeError, FloatingPointError, ThreatModelError) as why:
        return f"{type(why).__name__}: {why}"
