"""What the coordinator of a regression decrypts: the gradient of each party's coefficients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

from torch import Tensor

from vflsec.core.view import View


def find_server(view: View) -> str:
    """The one of the adversary that is no party with columns or labels, or ''."""
    return next((p for p in view.adversary if p not in view.facts.parties), "")


def find_block(view: View, party: str) -> Callable[[int], Tensor] | None:
    """From a step, the gradient (p, k) that a party sent to the coordinator in it.

    The active party's has the intercept in its last row. None without the coordinator, where the
    party's came under a mask, and where the length of what came does not say whose it is.
    """
    server, widths = find_server(view), view.facts.extra.get("columns", ())
    table = view.tables.get(("received", "model_gradient", "all", server))
    outputs = int(view.facts.extra.get("outputs", 1))
    if table is None or not len(table):
        return None
    flat, at = table.tensor.flatten(1).double(), view.facts.parties.index(party)
    senders = _find_senders(widths, flat.shape[1] // outputs)
    if at not in senders:
        return None
    begin = outputs * sum(widths[i] for i in senders if i < at)
    end = begin + outputs * widths[at]

    def read(step: int) -> Tensor:
        return flat[table.step == step][0, begin:end].reshape(-1, outputs)

    return read


def _find_senders(widths: Sequence[int], total: int) -> tuple[int, ...]:
    """Places of the parties whose gradients have so many rows together; () if several could be."""
    places = range(len(widths))
    every = (of for n in range(len(widths)) for of in combinations(places, n + 1))
    found = [of for of in every if sum(widths[i] for i in of) == total]
    return found[0] if len(found) == 1 else ()
