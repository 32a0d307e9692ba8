"""What released labels say of a claim about them.

A canary carries one of two classes, by a coin, and the guess is the one of them that was released.
Of an epsilon claim no guess is right more often than e^eps / (1 + e^eps), whatever was released of
other rows. So this holds of all guesses together, and of those of any one class, or any one pair of
classes: a mechanism that spares one class is not hidden by what it does to the others.

Source: Steinke, Nasr, Jagielski, "Privacy auditing with one (1) training run", NeurIPS 2023,
arXiv:2305.08846, theorem 5.2; by class it is this package's own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vflsec.epsilon.one_run_bound import compute_chance

if TYPE_CHECKING:  # verdicts are made without loading torch
    from torch import Tensor

    from vflsec.epsilon.canaries import Planted

Pair = tuple[int, int]
GROUPS: tuple[Callable[[Pair], Any], ...] = (
    lambda pair: (),  # all guesses
    lambda pair: pair[0],  # of one class
    lambda pair: pair,
)


@dataclass(frozen=True)
class Released:
    """What the labels of the canaries of one training were released as.

    Attributes:
        canaries: how many.
        guesses: by (the candidate that was released, the other one).
        right: those of them that carry what was released.
    """

    canaries: int
    guesses: Mapping[Pair, int]
    right: Mapping[Pair, int]

    def fields(self) -> dict[str, Any]:
        """As it is stored."""
        table = [[*pair, n, self.right[pair]] for pair, n in sorted(self.guesses.items())]
        return {"canaries": self.canaries, "guesses": table}

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Released:
        """What :meth:`fields` made."""
        table = [((a, b), n, right) for a, b, n, right in stored["guesses"]]
        return cls(stored["canaries"], {p: n for p, n, _ in table}, {p: r for p, _, r in table})


def count_released(true: Tensor, labels: Tensor, planted: Planted) -> Released | None:
    """What was released of canaries; None where labels are no classes.

    Args:
        true: labels (N,) that the rows carry.
        labels: what was released of them: classes (N,), or shares (N, C), of which the likelier
            candidate counts.
        planted: the canaries.
    """
    if true.dim() != 1 or true.is_floating_point():
        return None
    seen = labels[planted.rows.to(labels.device)].cpu()
    if seen.dim() == 1:
        lead = (seen.unsqueeze(1) == planted.pairs).long()
    else:
        lead = seen.gather(1, planted.pairs)
    told = (lead[:, 0] != lead[:, 1]).nonzero().squeeze(1)
    at = lead[told].argmax(1)
    pairs = planted.pairs[told]
    named = zip(
        pairs.gather(1, at.unsqueeze(1)).squeeze(1).tolist(),
        pairs.gather(1, 1 - at.unsqueeze(1)).squeeze(1).tolist(),
        (at == planted.coins[told]).tolist(), strict=True,
    )  # fmt: skip
    guesses: Counter[Pair] = Counter()
    right: Counter[Pair] = Counter()
    for of, other, is_right in named:
        guesses[of, other] += 1
        right[of, other] += is_right
    return Released(len(planted.rows), guesses, right)


@dataclass(frozen=True)
class Weighed:
    """What released labels of several trainings say of a claim.

    Attributes:
        p: of the claim.
        guesses: how many there were.
        tries: tests of all of them that `p` is corrected for.
    """

    p: float
    guesses: int
    tries: int


def weigh_released(found: Sequence[Released], epsilon: float, delta: float = 0.0) -> Weighed:
    """Test a claim by what was released in several trainings.

    All guesses have the same share of the error as those by class, and as those by pair.
    """
    m = sum(of.canaries for of in found)
    guesses: Counter[Pair] = Counter()
    right: Counter[Pair] = Counter()
    for of in found:
        guesses.update(of.guesses)
        right.update(of.right)
    ways: dict[int, float] = {}
    for group in GROUPS:
        n: Counter[Any] = Counter()
        v: Counter[Any] = Counter()
        for pair, many in guesses.items():
            n[group(pair)] += many
            v[group(pair)] += right[pair]
        least = min((compute_chance(n[k], v[k], epsilon, delta, m) for k in n), default=1.0)
        ways.setdefault(len(n), len(n) * least)  # of two classes, those of one are a pair's
    return Weighed(
        min(1.0, len(ways) * min(ways.values(), default=1.0)), guesses.total(), len(ways)
    )
