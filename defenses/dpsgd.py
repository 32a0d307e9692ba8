"""Noise on the clipped per-row gradients of all parties' models: DP-SGD.

What each row of a batch adds to the gradients of all of a party's parameters is shortened to length
C (2-norm over all of them together, in units of the row's own loss); the sum of the batch gets
Gaussian noise of standard deviation strength x C and is divided by the batch size. The strength is
the noise multiplier, of every party that has this policy.

A row reaches the weights of every party that trains: one that trains without noise hands it on, for
its next embeddings and gradients change those of all other rows. So a guarantee is stated only if
**every party that trains has it** (``party = "all"``), and composed over them: K parties with noise
multiplier z are one with z / sqrt(K). Otherwise none is stated.

``accountant = "shuffled"``: fixed batches in a fresh order each epoch; every use of a row is a
Gaussian release of its own, without amplification. ``"prv"``, and ``"rdp"`` whose bound is 8 to
18 % looser (both of Opacus): batches are real Poisson samples, into which every row comes with rate
batch size / rows by a coin of its own;
the sums are divided by the expected size, and a batch above a width that all but never is exceeded
is cut, whose chance goes into delta. Then strength 0 is the undefended training up to rounding.
Neighbours are data sets in which one training row is zeroed out (it adds nothing), which keeps all
batches' sizes.

Hook: gradients. Owner: the active party; ``party = "all"`` for the guarantee.
Guarantee: (epsilon, delta) of a training row, columns and label, in **all parties' weights**, if
every party that trains has it and nothing else couples the rows of a batch. Does not stop: attacks
on messages. Embeddings and gradients of single rows that are sent during training are no function
of the released weights alone and are not covered, and with Poisson batches neither are the ids of a
batch: who sees those has no amplification to rely on.

Source: Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang, "Deep learning with differential
privacy", CCS 2016, arXiv:1607.00133, algorithm 1; on shuffling and on cut batches: Chua, Ghazi,
Kamath, Kumar, Manurangsi, Sinha, Zhang, "How private are DP-SGD implementations?", ICML 2024,
arXiv:2403.17673, and "Scalable DP-SGD: shuffling vs. Poisson subsampling", NeurIPS 2024,
arXiv:2411.04205; zeroed-out rows: Kairouz, McMahan, Song, Thakkar, Thakurta, Xu, "Practical and
private (deep) learning without sampling or shuffling", ICML 2021, arXiv:2103.00039.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from vflsec.core import accountants
from vflsec.core.accountants import Account
from vflsec.core.policy import AGAIN_ROWS, OFF, find_no_claim
from vflsec.core.privacy_usage import Uses
from vflsec.label import make_label
from vflsec.plugin import Guarantee, NamedNoise, Own, Policy, RunFacts, check, registry

ALIASES = ("dp_sgd",)


@registry.defense
@dataclass(frozen=True)
class DPSGD(Policy):
    """Hyper-parameters.

    Attributes:
        clip_norm: length C to which a row's gradient is shortened.
        delta: at which epsilon is stated.
        accountant: ``shuffled`` (no amplification by sampling), or ``prv`` or ``rdp``, for which
            every batch is drawn as a Poisson sample.
    """

    clip_norm: check.Positive = 1.0
    delta: check.OpenUnit = 1e-5
    accountant: Literal["shuffled", "prv", "rdp"] = "shuffled"
    quantities: ClassVar[bool] = True
    strengths: ClassVar[str] = "noise deviation / clipping length"

    counted = "gradients"

    @property
    def poisson(self) -> bool:  # type: ignore[override]
        return self.accountant != "shuffled"

    def gradients(
        self, plain: list[Tensor | None], rows: Callable[[], list[Tensor]], own: Own
    ) -> list[Tensor | None]:
        if not any(own.active):
            return plain
        parts = rows()  # (R, b, ...) each
        b = size = parts[0].shape[1]
        flat = torch.cat([p.flatten(2) for p in parts], dim=2) * b  # (R, b, P)
        norm = torch.linalg.vector_norm(flat, dim=2)
        if own.uses is not None and own.uses.due:
            some = [p[:, 0] * 0 if g is None else g for g, p in zip(plain, parts, strict=True)]
            gap = flat.sum(1) - b * torch.cat([g.flatten(1) for g in some], dim=1)
            near = 1e-2 if own.facts.dtype == "bf16" else 1e-3  # of rounding alone
            bad = torch.linalg.vector_norm(gap, dim=1) > near * norm.sum(1)
            own.uses.passed(
                "rows of a batch are coupled",
                [a and c for a, c in zip(own.active, bad.tolist(), strict=True)],
            )
        factor = self.clip_norm / norm.clamp_min(self.clip_norm)  # (R, b)
        if own.sample is not None:
            drawn, size = own.sample[0].to(flat), own.sample[1]
            factor = factor * drawn
            mean = torch.stack([d @ g for d, g in zip(drawn, flat, strict=True)])
            plain = self._split(mean / drawn.sum(1, keepdim=True).clamp_min(1), parts, plain)
        total = torch.stack([f @ g for f, g in zip(factor, flat, strict=True)])  # (R, P)
        wide = total.double()  # noise of 53 bits, of which the sum keeps what its precision has
        noise = own.rng.normal(total.shape[1:], active=own.active, dtype=torch.float64)
        noisy = (wide + own.column(wide) * self.clip_norm * noise).to(total)
        made = self._split(noisy / size, parts, plain)
        return [
            own.choose(m, g) if m is not None and g is not None else None
            for m, g in zip(made, plain, strict=True)
        ]

    @staticmethod
    def _split(
        flat: Tensor, parts: Sequence[Tensor], like: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """(R, P) as the tensors whose rows are `parts`, (R, b, ...) each."""
        sizes = [math.prod(p.shape[2:]) for p in parts]
        return [
            None if g is None else m.reshape(g.shape)
            for m, g in zip(flat.split(sizes, dim=1), like, strict=True)
        ]

    def noise(self, scale: float) -> NamedNoise:
        return NamedNoise("gaussian", self.clip_norm / scale, self.clip_norm / scale)

    def guarantee(self, strength: float, facts: RunFacts) -> Guarantee:
        if strength <= 0:
            return OFF
        uses = facts.uses
        none = find_no_claim(uses, "gradients")
        if none is not None:
            return none
        bare = sorted(name for name, peer in uses.peers.items() if peer is None)
        if bare:
            return Guarantee(
                reason=f"{', '.join(bare)} trains without it; with the other models given, own "
                f"steps have noise multiplier {strength:g}"
            )
        everyone = [(strength, uses), *(p for p in uses.peers.values() if p is not None)]
        releases = max(uses.most, sum(b.steps * b.uses for b in uses.batches))
        lost = sum(accountants.beyond_normal(s, max(releases, of.most)) for s, of in everyone)
        if lost >= self.delta:
            return Guarantee(reason="noise of 53 bits is too short for this delta")
        if uses.batches:
            made, over = self._sampled(everyone)
        else:
            spent = sum(of.most / s**2 for s, of in everyone)
            made = accountants.gaussian(1 / math.sqrt(spent), 1, self.delta)
            over = f"{uses.sentence('steps')} at each party"
        if made is None:
            return Guarantee(reason="Poisson batches may be cut too often")
        return Guarantee.claim(
            made.widen(lost), releases, protects="row", what="a training row (all columns, label)",
            neighbours="zeroing it out", against="whoever gets all weights",
            over=f"{over}, {len(everyone)} {'party' if len(everyone) == 1 else 'parties'}",
            given="means and codes of columns and values" if make_label(facts.classes).scaled
            else "means and codes of columns",
            provided="nobody sees single rows' messages or batches" if uses.batches
            else "nobody sees single rows' messages",
            leaves=f"messages in training, predictions for the row, validation rows, {AGAIN_ROWS}",
        )  # fmt: skip

    def _sampled(self, everyone: Sequence[tuple[float, Uses]]) -> tuple[Account | None, str]:
        """Epsilon over Poisson batches of all parties, and what it composes over."""
        first = everyone[0][1]
        history: list[tuple[float, float, int]] = []
        cut = 0.0
        for batches in first.batches:
            spent = 0.0
            same = (batches.phase, batches.rate)
            for s, of in everyone:
                spent += next(b.uses for b in of.batches if (b.phase, b.rate) == same) / s**2
            if spent:  # else nobody took a step on them
                history.append((1 / math.sqrt(spent), batches.rate, batches.steps))
                cut += batches.steps * batches.cut
        # batches that hold all rows, every one a plain release
        history += [(s, 1.0, of.whole) for s, of in everyone if of.whole]
        made = accountants.subsampled_gaussians(history, self.delta, self.accountant)
        lost = cut * (1 + math.exp(min(made.epsilon, 700.0)))
        if lost > self.delta / 2:
            return None, ""
        made = accountants.subsampled_gaussians(history, self.delta - lost, self.accountant)
        said = "; ".join(f"{steps} at rate {rate:.4g}" for _, rate, steps in history)
        others = tuple((e, min(1.0, d + cut * (1 + math.exp(min(e, 700.0)))))
                       for e, d in made.profile)  # fmt: skip
        return replace(made, delta=self.delta, profile=others), f"Poisson samples ({said})"
