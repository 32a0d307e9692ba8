"""What was counted in a finished training, put together for the accountants of its defenses."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

from vflsec.core.federation import Federation
from vflsec.core.party import Party
from vflsec.core.policy import OFF, Guarantee, Policy, find_no_claim
from vflsec.core.policy_binding import Binding
from vflsec.core.privacy_usage import RunFacts, Uses

_COUPLES = ("columns", "model", "optimizer", "incoming", "link", "relabel")
_UNLESS_BY_ROW = ("loss", "penalty")


def check_guarantee(policy: Policy, strength: float, facts: RunFacts) -> Guarantee:
    """What `policy` promises of a run with these facts, as far as it was counted.

    An epsilon is dropped, with the reason, whoever wrote the policy: if it is switched off, if it
    names no hook to be counted or nothing or something past it was, if it composes over fewer uses
    than there were, or if its numbers are none of differential privacy: with a delta of 1 / n or
    more, whoever publishes one of n rows in full keeps it (Dwork and Roth 2014, section 2.3).
    """
    made = policy.guarantee(strength, facts)
    if made.epsilon is None:
        return made
    if policy.strengths and strength <= 0:
        return OFF
    if not policy.counted:
        return Guarantee(reason=f"{policy.name} names no hook whose uses could be counted")
    uses = facts.uses
    none = find_no_claim(uses, policy.counted)
    if none is not None:
        return none
    if made.protects not in ("label", "row"):
        return Guarantee(reason=f"{policy.name} does not say whether it protects a label or a row")
    if not (0 <= made.epsilon < math.inf and 0 <= made.delta < 1):
        return Guarantee(reason=f"epsilon {made.epsilon}, delta {made.delta} are no guarantee")
    if made.releases < uses.most:
        return Guarantee(
            reason=f"it composes over {made.releases} uses of a row, and {uses.most} were counted"
        )
    rows, pairs = facts.labelled, ((made.epsilon, made.delta), *made.profile)
    if made.delta * rows >= 1:
        return Guarantee(
            reason=(
                f"a delta of {made.delta:g} allows that one row of {rows} is published in full. "
                f"Set delta well below {1 / rows:.1g}"
            )
        )
    if facts.weights and policy.counted != "outgoing":  # which takes the models as known
        files = ", ".join(facts.weights)
        learned = f"the weights that were started from ({files}) know none of these rows"
        also = f"{made.provided} and {learned}" if made.provided else learned
        made = replace(made, provided=also)
    return replace(made, group=facts.group, profile=pairs)


def collect_uses(fed: Federation, policy: Policy, r: int) -> Uses:
    """Counts of `policy` in replica `r`: at the party where it worked most, with its peers.

    A policy that composes over steps on own parameters is told who else trained, and with what.
    """
    at = [(p, b) for p in fed.parties.values() for b in p.bindings if b.policy is policy]
    found = [(p, b.own.uses.uses(r)) for p, b in at if b.own.uses is not None]
    if not found:
        return Uses()
    party, uses = max(found, key=lambda one: one[1].most)
    others = [
        b for p in fed.parties.values() for b in p.bindings
        if b.policy is not policy and float(b.own.strength[r]) > 0
    ]  # fmt: skip
    past = [how for _, of in found for how in of.past]
    past = [*dict.fromkeys(past), *_find_past(fed, policy, party, others)]
    if policy.counted == "gradients":
        uses = replace(uses, peers={
            p.name: _peer(p, policy, r) for p in fed.parties.values()
            if p is not party and (p.unprotected or any(b.own.uses for b in p.bindings))
        })  # fmt: skip
    return replace(uses, past=tuple(past))


def _find_past(
    fed: Federation, policy: Policy, party: Party, others: list[Binding]
) -> Iterator[str]:
    """What ends a claim that composes over uses of the hook that is counted, in words.

    Args:
        fed, policy: as in :func:`collect_uses`.
        party: where the policy worked most.
        others: the other policies at work.
    """
    mixing = [b for b in others if b.policy.overrides("labels") and not b.policy.by_row]
    if policy.counted == "gradients":
        yield from _find_past_of_gradients(fed, party, others)
    if policy.counted in ("gradients", "loss"):
        for b in mixing:
            yield f"{b.policy.name} beside it computes labels of other rows from a row's"
    elif policy.counted == "outgoing":
        for b in others:
            own = b.own.party == party.name
            if own and not b.policy.by_row and _reaches(party, b, policy):
                yield f"{b.policy.name} before it may carry a row into other rows' messages"
    elif policy.counted == "labels":
        for b in others:
            if b.policy.overrides("relabel"):
                yield f"{b.policy.name} beside it answers from the true labels"
        for b in mixing:
            if _is_before(party, b, policy):
                yield f"{b.policy.name} before it computes labels of other rows from a row's"


def _find_past_of_gradients(fed: Federation, party: Party, others: list[Binding]) -> Iterator[str]:
    """What ends a claim of noise on gradients only, as in :func:`_find_past`."""
    for what in party.unprotected:
        yield f"{party.name} also trains without it: {what}"
    for b in others:
        if _couples(b.policy):
            yield f"{b.policy.name} beside it may couple the rows of a batch"
    for p in fed.parties.values():
        if sum(b.policy.overrides("gradients") for b in p.bindings) > 1:
            yield f"{p.name} has more than one policy of gradients, and the last decides"


def _couples(policy: Policy) -> bool:
    """True if what a policy does to a row may depend on the other rows of its batch, or to the
    gradient of one that is zeroed out, which noise would make another than nothing.
    """
    hooks = _COUPLES if policy.by_row else (*_COUPLES, *_UNLESS_BY_ROW)
    sends = policy.overrides("outgoing") and not (policy.by_row and "gradient" not in policy.covers)
    return sends or any(policy.overrides(hook) for hook in hooks)


def _is_before(party: Party, other: Binding, policy: Policy) -> bool:
    """Whether `other` is one of a party's policies that act before this one."""
    before = itertools.takewhile(lambda b: b.policy is not policy, party.bindings)
    return any(b is other for b in before)


def _reaches(party: Party, other: Binding, policy: Policy) -> bool:
    """True if `other` treats messages of `policy` before it does, or shapes the loss of which they
    are gradients.
    """
    if party.active and other.policy.overrides("penalty"):
        return True
    same = bool(other.policy.covers & policy.covers)
    return same and other.policy.overrides("outgoing") and _is_before(party, other, policy)


def _peer(party: Party, policy: Policy, r: int) -> tuple[float, Uses] | None:
    """Strength and counts of the same kind of policy at another party; None if it has none."""
    if party.unprotected:
        return None
    for b in party.bindings:
        if type(b.policy) is type(policy) and b.own.uses is not None:
            strength = float(b.own.strength[r])
            return (strength, b.own.uses.uses(r)) if strength > 0 else None
    return None
