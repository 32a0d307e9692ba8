"""Trainings before the one that counts, for policies that release labels in stages.

A policy with ``trainings`` = T > 1 holds labels back (-1) at first. T - 1 times the algorithm is
trained from scratch on the rows whose labels are out, and the policy releases more of them with the
help of that model's predictions; then everything starts again for the training that counts. What
the parties see in the earlier trainings belongs to their views as well. Replicas whose policy is
off take no part: nothing of theirs is counted or recorded, and they begin the last training as if
there had been none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from vflsec.core.federation import Federation, Phase
from vflsec.core.policy_binding import Binding
from vflsec.errors import PolicyError


def find_staged_policy(fed: Federation) -> Binding | None:
    """The active party's policy that asks for more than one training, if there is one.

    Raises:
        PolicyError: another one made class shares of its labels, which it releases anew as classes.
    """
    bindings = fed.active.bindings
    found = [b for b in bindings if b.policy.trainings > 1 and any(b.own.active)]
    if found and fed.labels.dim() != 2:
        after = bindings[bindings.index(found[0]) + 1 :]
        others = ", ".join(b.policy.name for b in after if b.policy.overrides("labels"))
        what = f"{found[0].policy.name}: releases classes, and {others} makes shares of them after"
        raise PolicyError(f"{what}. Leave one of them out.")
    return found[0] if found else None


def release_labels(fed: Federation, phase: Phase, on: Tensor) -> Phase:
    """`phase` on the rows whose labels are out; replicas that are off get as many of their first.

    Args:
        fed: with labels of which some are held back.
        phase: as the algorithm plans it, rows (R, n).
        on: (R,) bool, replicas that take part.
    """
    passes = tuple(replace(p, rows=fed.released(p.rows, on)) for p in phase.passes)
    return replace(phase, rows=fed.released(phase.rows, on), passes=passes, audited=False)


def rehearse(
    fed: Federation,
    binding: Binding,
    build: Callable[[], None],
    train: Callable[[Callable[[Phase], Phase], Tensor], None],
    predict: Callable[[Tensor], Tensor],
) -> None:
    """Hold the earlier trainings of `binding` and put everything else back as it was.

    Args:
        fed: built and not yet trained.
        binding: from :func:`find_staged_policy`.
        build: gives every party fresh modules and optimizers.
        train: trains all phases, each changed by the given function, for the replicas of a mask.
        predict: logits (R, n, C) for sample ids (R, n).
    """
    others = [b for p in fed.parties.values() for b in p.bindings if b is not binding]
    kept = [(b.own, b.own.rng, dict(b.own.memory)) for b in others]
    on = torch.tensor(binding.own.active, device=fed.stack.device)
    out = _Released(binding, fed.labels)
    for stage in range(1, binding.policy.trainings):
        for own, rng, memory in kept:
            own.rng, own.memory = rng.spawn("stage", stage), dict(memory)
        train(lambda phase: release_labels(fed, phase, on), on)
        fed.channel.set_alive(on)
        fed.labels = binding.policy.relabel(fed.labels, stage, predict, binding.own)
        out.relabelled(fed.labels)
        for own, rng, memory in kept:
            own.rng, own.memory = rng, memory
        fed.extra.clear()
        for party in fed.parties.values():  # what later phases added is no part of a fresh start
            party.modules.clear()
        build()


class _Released:
    """Counts releases: the first answer for a row, and every later one that is another."""

    def __init__(self, binding: Binding, labels: Tensor) -> None:
        self.counter, self.last = binding.own.uses, labels.clone()

    def relabelled(self, labels: Tensor) -> None:
        if self.counter is None or labels.dim() != 2:
            return
        known = labels >= 0
        self.counter.mark(known & (labels != self.last), "release")
        self.last = torch.where(known, labels, self.last)
