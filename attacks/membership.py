"""Membership: was this record trained on? Read from what the trained system answers about it.

Of a record with label y and returned class shares p the signal is one of
    loss:        log p_y, higher for what was trained on
    gradient:    -||p - e_y||, the row's gradient at the cut of a plain sum top
    trajectory:  the mean of log p_y over the answers after each epoch
    confidence:  max_c log p_c, which looks at no label: where labels were changed before training,
                 what was trained on is answered surely and wrongly
With ``references = 0`` the signal is the score (threshold form). With k references, systems that
the attacker trains itself, each on a random half of the records, the score is a likelihood ratio:
    phi = log(p_y / (1 - p_y)) (the gradient: log of the norm; the trajectory: mean of phi)
    score = log N(phi; mean_in, s_in) - log N(phi; mean_out, s_out)
with the record's means over references that were and were not trained on it, and one s for each
side over all records, for k is small. Beside AUC, the hits at 1 % and 0.1 % false alarms count.

Attacker: whoever is told the system's predictions (``returns_predictions = true``) and asks about
records whose columns and label it has: the threat of an outsider. Parties of the training know its
rows by their ids and need no attack. The references also take both parties' columns of all records
and the training's recipe, defenses included: a worst case. As many rows trained on as test rows are
asked about, at most `queries` each. Cost: a training of its own, and k more for every cell; two to
ten more where the data say which rows are tested on (baseline ``left out``).
Known failure cases: a system that does not overfit answers alike for both (which is what the null
shows); a label that was changed before training (label-DP) is not the one asked about, so that only
``confidence`` tells; rows of people who appear on both sides; test rows that are of another kind
than training rows (a split by time), which it tells apart by how hard they are, with references
too, for these train on half of the test rows. So where the data say which rows are tested on, it is
compared with itself, references included, on systems that leave out the rows asked about, and with
nothing else (``left out``): easier test rows hide no memory, and harder ones are none. It sees
single records and no distribution over many systems.

Source: loss threshold: Yeom, Giacomelli, Fredrikson, Jha, "Privacy risk in machine learning", CSF
2018, arXiv:1709.01604; likelihood ratio: Carlini, Chien, Nasr, Song, Terzis, Tramer, "Membership
inference attacks from first principles", IEEE S&P 2022, arXiv:2112.03570, algorithm 1; gradient
norms: Nasr, Shokri, Houmansadr, IEEE S&P 2019, arXiv:1812.00910; trajectories: Liu, Zhao, Backes,
Zhang, "Membership inference attacks by exploiting loss trajectory", CCS 2022, arXiv:2208.14933;
confidence: Salem, Zhang, Humbert, Berrang, Fritz, Backes, "ML-Leaks", NDSS 2019, arXiv:1806.01246.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from vflsec.plugin import Attack, Guess, ThreatModelError, View, check, registry

ALIASES = ("mia", "lira")
FAMILY = "membership"


@registry.attack
@dataclass(frozen=True)
class Membership(Attack):
    """Hyper-parameters.

    Attributes:
        signal: ``loss``, ``gradient``, ``trajectory`` or ``confidence``.
        references: k systems to compare with, 0 (threshold form) or at least 4.
        queries: of either side, at most.
    """

    signal: Literal["loss", "gradient", "trajectory", "confidence"] = "loss"
    references: check.Whole = 0
    queries: Annotated[int, check.at_least(10)] = 1000
    needs = frozenset({"prediction:last"})
    target: ClassVar[str] = "membership"
    world = {"returns_predictions": True}

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0 < self.references < 4:
            raise check.fail("membership.references", "0 or at least 4", self.references)

    @property
    def trains(self) -> int:
        return self.references

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        known = view.require_known()
        target = view.targets["train"]
        if not torch.equal(known.rows, target):
            raise self.lacks("labels of the records asked about", len(known), "")
        table = view.received(
            "prediction", "all" if self.signal == "trajectory" else "last", view.party
        )
        moments = [table.take(table.epoch == e) for e in table.epoch.unique()]
        shares = torch.stack([m.of_rows(target) for m in moments]).double()
        value = self._signal(shares, known.labels, ratio=self.references > 0)
        notes = {"form": "ratio" if self.references else "threshold", "signal": self.signal}
        if not self.references:
            return Guess(self.target, target, value, notes=notes)
        made = view.references
        if made is None or not torch.equal(made.rows, target):
            raise ThreatModelError("membership has no references for these records.")
        seen = torch.stack(
            [self._signal(a.double(), known.labels, ratio=True) for a in made.answers]
        )
        return Guess(self.target, target, likelihood_ratio(value, seen, made.trained), notes=notes)

    def _signal(self, shares: Tensor, y: Tensor, *, ratio: bool) -> Tensor:
        """The signal (n,) of log shares (T, n, C) at T moments; nearer to normal for a ratio."""
        own = torch.nn.functional.one_hot(y, shares.shape[-1]).bool()
        if self.signal == "confidence":
            own = torch.nn.functional.one_hot(shares[-1].argmax(1), shares.shape[-1]).bool()
        right = shares[:, own]
        if self.signal == "gradient":
            norm = (shares[-1].exp() - own.double()).norm(dim=1)
            return -norm.clamp_min(1e-12).log() if ratio else -norm
        if ratio:
            rest = shares.masked_fill(own, -torch.inf).logsumexp(-1)
            right = right - rest.clamp_min(-700.0)
        return right.mean(0) if self.signal == "trajectory" else right[-1]


def likelihood_ratio(value: Tensor, seen: Tensor, trained: Tensor) -> Tensor:
    """log of the density in over out (n,) of values (n,), from values (k, n) of references.

    Args:
        value: of the audited system.
        seen: of the references.
        trained: (k, n) bool, whether the record was in.
    """

    def side(use: Tensor) -> tuple[Tensor, Tensor]:
        count = use.sum(0).clamp_min(1.0)
        mean = (seen * use).sum(0) / count
        mean = torch.where(use.sum(0) > 0, mean, seen.mean(0))
        free = (use.sum() - (use.sum(0) > 0).sum()).clamp_min(1.0)
        return mean, (((seen - mean) * use).square().sum() / free).sqrt().clamp_min(1e-6)

    (mean_in, in_), (mean_out, out) = (side(u.to(seen)) for u in (trained, ~trained))
    inside = -0.5 * ((value - mean_in) / in_).square() - in_.log()
    outside = -0.5 * ((value - mean_out) / out).square() - out.log()
    return inside - outside
