"""A noisy choice of gradient entries with noisy values: selective sharing by the sparse vector.

With c = share x numbers in the batch, entries are visited in random order; one is accepted when
|clip(g)| + Laplace(4 c S / e1) >= threshold + Laplace(2 c S / e1), where clip limits to [-limit,
limit], S is the sensitivity and the threshold's noise is drawn again after each acceptance; it is
sent as clip(clip(g) + Laplace(2 c S / e2)): without the inner clip, which the published formula
leaves out, an entry far beyond the limit comes through whatever the noise. After c acceptances the
visit ends. **Everything that was not accepted is zero**: the public code that the field copies
leaves the loop early and sends those entries raw, which makes the defense look weaker than it is.
With e1 = 8/9 epsilon and e2 = 2/9 epsilon the choice costs e1 and the c answers e2 / 2, together
epsilon for one message. The swept strength is 1 / epsilon.

Hook: outgoing, on gradients. Owner: the active party.
Guarantee: pure epsilon-DP of each message if S is at least 2 limit (the default), for whatever
changes in it, and T times that over T messages of a row, as counted. Does not stop: what the top
model's weights tell, which was trained on true labels; at usual settings it stops training of the
passive bottom.

Source: Shokri and Shmatikov, "Privacy-preserving deep learning", CCS 2015, section 5; Dwork and
Roth, "The algorithmic foundations of differential privacy", 2014, section 3.6 (sparse vector);
settings: Fu et al., USENIX Security 2022, section 6.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from vflsec.core import accountants
from vflsec.core.policy import OFF, find_no_claim, read_batch
from vflsec.defenses.noise import claim_gradients
from vflsec.plugin import Guarantee, Message, Own, Policy, RunFacts, check, registry


@registry.defense
@dataclass(frozen=True)
class PPDL(Policy):
    """Hyper-parameters.

    Attributes:
        share: of the entries that are sent at most, in (0, 1].
        limit: largest magnitude of a sent entry, in units of a row's own loss.
        threshold: magnitude an entry should have to be sent, same units.
        sensitivity: how far one entry may move, same units; 0 = 2 limit. The published code has 1.
    """

    share: check.AboveZero = 0.1
    limit: check.Positive = 1e-3
    threshold: check.NonNegative = 1e-4
    sensitivity: check.NonNegative = 0.0
    quantities: ClassVar[bool] = True
    strengths: ClassVar[str] = "1 / epsilon of one message"
    natural: ClassVar[Mapping[str, Callable[[float], float]]] = {"epsilon": lambda e: 1.0 / e}
    covers = frozenset({"gradient"})
    counted = "outgoing"

    def scales(self, numbers: int, epsilon: float) -> tuple[float, float, float]:
        """Laplace scales of threshold, query and answer for a batch of so many numbers."""
        c = max(1, int(self.share * numbers))
        s = self.sensitivity or 2 * self.limit
        return (
            2 * c * s / (8 * epsilon / 9),
            4 * c * s / (8 * epsilon / 9),
            2 * c * s / (2 * epsilon / 9),
        )

    def outgoing(self, message: Message, own: Own) -> Tensor:
        g = read_batch(self, message)  # (R, b, m)
        n = g[0].numel()
        active = own.active
        thresholds, queries, answers = (
            own.rng.laplace((n,), active=active, dtype=torch.float64) for _ in range(3)
        )
        order = own.rng.uniform((n,), active=active).argsort(dim=1, stable=True)
        out = torch.zeros_like(g).reshape(len(g), -1)
        for r, on in enumerate(active):
            if not on:
                continue
            visited = order[r]
            scaled = (g[r].reshape(-1)[visited] * message.scale).double()
            of_threshold, of_query, of_answer = self.scales(n, 1.0 / float(own.strength[r]))
            clipped = scaled.clamp(-self.limit, self.limit)
            query = clipped.abs() + of_query * queries[r]
            bar = self.threshold + of_threshold * thresholds[r]
            taken = accepted(query.cpu().numpy(), bar.cpu().numpy(), max(1, int(self.share * n)))
            chosen = torch.as_tensor(taken, dtype=torch.int64, device=g.device)
            noisy = accountants.round_to_grid(
                clipped / self.limit, answers[r], of_answer / self.limit
            )
            sent = noisy.clamp(-1.0, 1.0) * self.limit
            out[r, visited[chosen]] = (sent[chosen] / message.scale).to(g.dtype)
        return own.choose(out.reshape(message.tensor.shape), message.tensor)

    def guarantee(self, strength: float, facts: RunFacts) -> Guarantee:
        if strength <= 0:
            return OFF
        if self.sensitivity and self.sensitivity < 2 * self.limit:
            return Guarantee(reason="sensitivity < 2 * limit")
        uses = facts.uses
        none = find_no_claim(uses, "outgoing", 1 / strength)
        if none is not None:
            return none
        made = accountants.Account(uses.most / strength, 0.0, "sparse vector, pure composition")
        return claim_gradients(made, facts, "any change of its gradients")


def accepted(query: np.ndarray, bars: np.ndarray, most: int) -> list[int]:
    """Positions in `query` (n,) that pass, at most `most`; each one moves to the next bar."""
    out: list[int] = []
    values, levels = query.tolist(), bars.tolist()
    bar = levels[0]
    for i, value in enumerate(values):
        if value >= bar:
            out.append(i)
            if len(out) >= most:
                break
            bar = levels[len(out)]
    return out
