"""Makes the controls that an answer is compared with, and keeps them for other answers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn

from vflsec.core.rng import generator
from vflsec.core.view import View
from vflsec.errors import ConfigError, ThreatModelError
from vflsec.measure.control_cache import SharedControls, hash_view
from vflsec.measure.controls import (
    Control,
    controls_for,
    guess_on_others,
    guess_shuffled,
    guess_untrained,
    share_rows,
)
from vflsec.measure.prepared import Prepared, explain_misfit
from vflsec.plugins import registry
from vflsec.plugins.loading import TIMEOUT, attempt_call
from vflsec.runtime.out_of_memory import out_of_memory

T = TypeVar("T")

Alone = Callable[[int, Sequence[str]], nn.Module | None]
"""(seed, adversary) -> the bottom that the adversary could have trained without the federation."""

Reassigned = Callable[[int, Sequence[str]], Mapping[str, nn.Module]]
"""(seed, adversary) -> the bottoms that the federation trained on another task, by party."""

Views = Sequence[View]
Rngs = Sequence[torch.Generator]
Seeds = Sequence[int]

Make = Callable[[Views, Rngs, Seeds], Sequence[list[Control]]]
"""(views, generators, seeds) -> the controls of each view."""

Key = tuple[Any, ...]


class ControlMaker:
    """Makes controls; keeps those that depend on the seed and the grants alone.

    Args:
        alone: how the bottom of a lone adversary is trained, if there is such a thing.
        shared: controls that others made, found by what they were made of.
        training: identity of the training but for its defenses, under which they are shared.
        reassigned: how bottoms are trained on another task, if they can be.
    """

    def __init__(
        self,
        alone: Alone | None = None,
        shared: SharedControls | None = None,
        training: str = "",
        reassigned: Reassigned | None = None,
    ) -> None:
        self._alone = alone or (lambda *_: None)
        self._shared, self._training, self._reassigned = shared, training, reassigned
        self._made: dict[tuple[int, Key, Key], list[Control]] = {}  # by seed, grants and kind
        self._late: dict[Key, str] = {}  # what took too long, and what says so

    def make(self, of: Prepared, views: Views, seeds: Seeds, r: int) -> list[Control]:
        """The controls of one attack in replica `r`; the others' are computed along.

        Raises:
            ConfigError: the attack takes too long as a control, or fails as one that it must have.
            ThreatModelError: it needs a control training, which there is not here.
        """
        grants = _list_grants(of)
        keep = partial(self._keep, grants, views, seeds, r)
        found = keep((), self._share(partial(self._from_grants, of)))
        kind = ("untrained", of.spec.stream)
        found = [*found, *keep(kind, partial(self._untrained, of, (*grants, *kind)))]
        if getattr(of.attack, "reassigned", False):
            found += keep(("reassigned", of.spec.stream), partial(self._on_another_task, of))
        if registry.attacks.entry(of.spec.name).package:
            key = (*grants, "shuffled", of.spec.stream)
            found += self._shuffled(of, key, views[r], seeds[r])
        return found

    def forget(self, later: Sequence[Prepared]) -> None:
        """Let go of what none of these attacks will ask for."""
        asked = {_list_grants(of) for of in later}
        self._made = {k: c for k, c in self._made.items() if k[1] in asked}

    def _from_grants(self, of: Prepared, views: Views, rngs: Rngs, seeds: Seeds
                     ) -> list[list[Control]]:  # fmt: skip
        bottoms = [self._alone(seed, of.spec.adversary) for seed in seeds]
        return controls_for(of.attack, views, rngs, [b for b in bottoms if b is not None])

    def _untrained(self, of: Prepared, key: Key, views: Views, rngs: Rngs, seeds: Seeds
                   ) -> list[list[Control]]:  # fmt: skip
        out: list[list[Control]] = [[] for _ in views]
        fit = [k for k, v in enumerate(views) if not of.attack.declines(v)]
        given = [views[k] for k in fit], [rngs[k] for k in fit]
        found, _ = self._attempt(of, key, partial(guess_untrained, of.attack, *given), len(fit))
        for k, made in zip(fit, found or (), strict=False):
            out[k] = [c for c in made if not explain_misfit(c.guess, of)]
        return out

    def _on_another_task(self, of: Prepared, views: Views, rngs: Rngs, seeds: Seeds
                         ) -> list[list[Control]]:  # fmt: skip
        if self._reassigned is None:
            text = f"{of.spec.name} needs a control training. Set reassigned = false."
            raise ThreatModelError(text)
        bottoms = [self._reassigned(seed, of.spec.adversary) for seed in seeds]
        return guess_on_others("reassigned", of.attack, views, rngs, bottoms)

    def _shuffled(self, of: Prepared, key: Key, view: View, seed: int) -> list[Control]:
        """Of each training, since its messages are its own."""
        rngs = [generator(seed, "controls", *key, use) for use in ("deal", "attack")]
        found, why = self._attempt(of, key, partial(guess_shuffled, of.attack, view, *rngs))
        why = why or next((w for c in found or () if (w := explain_misfit(c.guess, of))), "")
        if why:  # an attack that does not stand beside itself must not accuse
            name = _name(of, key)
            raise ConfigError(why if name in why else f"{name} failed: {why}")
        return found or []

    def _attempt(
        self, of: Prepared, key: Key, make: Callable[[], T], times: int = 1
    ) -> tuple[T | None, str]:  # fmt: skip
        """What `make` gives, the same attack made again as a control, or None and what failed.

        Raises:
            ConfigError: it took longer than the attack may; it is asked for once.
        """
        if key in self._late:
            raise ConfigError(self._late[key])
        # without room it is made elsewhere, or what it belongs to has no figure
        limit = of.spec.timeout * times
        found, why = attempt_call(make, _name(of, key), limit, out_of_memory)
        if TIMEOUT in why:  # so has what depends on how busy a machine is
            self._late[key] = why
            raise ConfigError(why)
        return found, why

    def _share(self, make: Make) -> Make:
        """`make`, but for what another maker made of the same."""
        kept = self._shared
        if kept is None:
            return make

        def share(views: Views, rngs: Rngs, seeds: Seeds) -> list[list[Control]]:
            keys = [
                (self._training, seed, rng.initial_seed(), hash_view(view))
                for seed, rng, view in zip(seeds, rngs, views, strict=True)
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
                        [views[i] for i in new], [rngs[i] for i in new], [seeds[i] for i in new]
                    ) if new else []  # fmt: skip
                    for i, controls in zip(new, made, strict=True):
                        found[keys[i]] = controls
                        kept.put(keys[i], controls)

        return share

    def _keep(
        self, grants: Key, views: Views, seeds: Seeds, r: int, kind: Key, make: Make
    ) -> list[Control]:  # fmt: skip
        """Those of one kind; all seeds' are made together when one is missing."""
        if (seeds[r], grants, kind) not in self._made:
            fresh: dict[int, View] = {}
            for seed, view in zip(seeds, views, strict=True):
                if (seed, grants, kind) not in self._made:
                    fresh.setdefault(seed, view)
            rngs = [generator(seed, "controls", *grants, *kind) for seed in fresh]
            made = make(list(fresh.values()), rngs, list(fresh))
            for seed, controls in zip(fresh, made, strict=True):
                share_rows(controls)
                self._made[(seed, grants, kind)] = controls
        return self._made[(seeds[r], grants, kind)]


def _list_grants(of: Prepared) -> Key:
    """What controls are made of beside the seed: who asks, what, and with which grants."""
    asked: Key = (of.spec.of_label,) if of.spec.of_label else ()
    if of.attack.target != "label":
        asked = (of.attack.target, of.spec.victim, of.spec.aux_rows, of.attack.params())
    return (of.spec.adversary, of.spec.known_rows, of.spec.prior, *map(str, asked))


def _name(of: Prepared, key: Key) -> str:
    """In words, of a control that is the attack itself."""
    return f"the {key[-2]} control of {of.spec.label!r}"
