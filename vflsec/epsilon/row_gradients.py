"""What single rows would add to the gradients of all parties' models, at given weights.

The algorithm's own step is taken on the rows by parties whose policy looks at the gradients of
single rows and lets nothing through, so nothing is trained and nothing of the algorithm is written
twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vflsec.core.algorithm import Algorithm
from vflsec.core.federation import Federation
from vflsec.core.policy import Own, Policy
from vflsec.core.task import Stack

CHUNK = 64


@dataclass(frozen=True)
class _Looks(Policy):
    """Keeps the gradients of single rows of the first update of a step."""

    name: ClassVar[str] = "looks"
    quantities: ClassVar[bool] = True

    def gradients(self, plain, rows, own: Own):  # type: ignore[no-untyped-def]
        if "parts" not in own.memory:
            own.memory["parts"] = [p.detach() for p in rows()]
        return [None if g is None else torch.zeros_like(g) for g in plain]


class Directions:
    """Takes steps of one algorithm on rows at given weights.

    Args:
        algorithm: whose steps.
        stack: data of the cohort.
        seeds: of the replicas, (R).
    """

    def __init__(self, algorithm: Algorithm, stack: Stack, seeds: Sequence[int]) -> None:
        on = torch.ones(stack.replicas, dtype=torch.float64)
        bound = {p: [(_Looks(), on)] for p in stack.first.parties}
        self.algorithm, self.fed = algorithm, Federation.create(stack, seeds, bound)
        algorithm.build(self.fed)
        self.phases = {p.name: p for p in algorithm.phases(self.fed)}

    def at(
        self, phase: str, weights: Mapping[str, Mapping[str, Tensor]], rows: Tensor
    ) -> dict[str, dict[str, Tensor]]:
        """Gradients of single rows' own losses, by party and parameter, (R, m, ...) each.

        Args:
            phase: whose step is taken.
            weights: (R, ...) by party and parameter (``"bottom.1.weight"``); others stay as built.
            rows: sample ids (R, m).

        Raises:
            PolicyError: the step's gradients cannot be split into rows.
        """
        fed, planned = self.fed, self.phases[phase]
        (walk, *_) = planned.walks()
        if fed.phase != phase and planned.before is not None:
            planned.before()
        fed.phase = phase
        state = fed.state()
        for owner, named in weights.items():
            for name, value in named.items():
                part, _, inner = name.partition(".")
                state[owner][part][inner] = value
        found: dict[str, list[list[Tensor]]] = {p: [] for p in fed.parties}
        for chunk in rows.split(CHUNK, dim=1):
            fed.load(state, torch.arange(fed.replicas, device=rows.device))
            for party in fed.parties.values():
                party.bindings[0].own.memory.clear()
            fed.batch = chunk
            walk.step(chunk)
            fed.batch = None
            for name, party in fed.parties.items():
                parts = party.bindings[0].own.memory.get("parts", [])
                found[name].append([p * chunk.shape[1] for p in parts])
        return {
            name: {
                key: torch.cat(parts, dim=1)
                for key, *parts in zip(_names(fed, name), *found[name], strict=False)
            }
            for name in fed.parties
        }


def _names(fed: Federation, party: str) -> list[str]:
    """Names of a party's trainable parameters, in the order of its updates."""
    return [
        f"{part}.{name}"
        for part, module in fed.parties[party].modules.items()
        for name, p in module.params.items()
        if p.requires_grad
    ]
