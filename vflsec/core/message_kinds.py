"""What kinds of messages there are, and what follows from a kind for all that handle messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Kind = Literal[
    "embedding", "gradient", "state", "prediction", "ids", "signal", "ciphertext",
    "masked", "masked_sum", "activation", "weight_gradient", "output_gradient", "weights",
    "gradient_pair", "histogram", "partition", "tree", "sample_list", "own_pair",
    "model_gradient", "derivative", "loss", "score", "woe", "woe_value", "match",
    "match_count",
]  # fmt: skip


@dataclass(frozen=True)
class MessageKind:
    """What one kind of message is, for all that handle messages without knowing its kind.

    Attributes:
        words: its plural, as in "the gradients it receives"; ``""`` for its name.
        has_rows: its rows are samples.
        has_every_row: in training every row passes in it, and none that is not trained on. A row
            that never did is none of an attack that needs the kind.
        has_one_width: all of its rows have one shape, so that they make a table.
        comes_again: a step may send it twice about one row; the second is then told from the first.
        refines: one says all that earlier ones of its epoch and name said of its rows.
        of_labels: it is worked out with the labels, so that who changes these changes it.
        is_readable: attacks read it by itself; not names, marks and what is hidden.
        has_gaps: NaN stands where its receiver is shown no number.
        is_encrypted: all there is for whoever holds it, is its size.
        made_of: kinds of messages that a party works it out of. Such a kind never crosses.
        opened_by: who can read it: ``both`` ends, or the ``receiver`` alone, whose key it is
            encrypted with although the sender worked it out; or with ``key`` the receiver of its
            ``ciphertext`` and whoever holds the key of it, together. What nobody but the sender can
            read crosses as a ``ciphertext``.
    """

    words: str = ""
    has_rows: bool = False
    has_every_row: bool = False
    has_one_width: bool = False
    comes_again: bool = False
    refines: bool = False
    of_labels: bool = False
    is_readable: bool = True
    has_gaps: bool = False
    is_encrypted: bool = False
    made_of: tuple[str, ...] = ()
    opened_by: Literal["both", "receiver", "key"] = "both"


KINDS: Mapping[str, MessageKind] = MappingProxyType({
    "embedding": MessageKind(
        "embeddings", has_rows=True, has_every_row=True, has_one_width=True, comes_again=True
    ),
    "gradient": MessageKind(
        "gradients", has_rows=True, has_every_row=True, has_one_width=True, comes_again=True,
        of_labels=True,
    ),
    "state": MessageKind("model states", has_rows=True, comes_again=True),
    "prediction": MessageKind("predictions", has_rows=True, has_one_width=True),
    "ids": MessageKind(is_readable=False),
    "signal": MessageKind(is_readable=False),
    "ciphertext": MessageKind(is_readable=False, is_encrypted=True),
    # numbers under a mask: rows, and a sum over a batch
    "masked": MessageKind(is_readable=False),
    "masked_sum": MessageKind(is_readable=False),
    # what a party works out of a masked answer and its own mask, and what it has beside
    "activation": MessageKind(made_of=("masked",)),
    "weight_gradient": MessageKind(made_of=("masked_sum",)),
    "output_gradient": MessageKind(),
    "weights": MessageKind(made_of=("masked",)),
    # trees: first and second derivative of each row's loss; their sums by node, column and bin;
    # the node of each row after a level; nodes as far as they are shown; which rows were sampled
    "gradient_pair": MessageKind(
        "gradient pairs", has_rows=True, has_one_width=True, of_labels=True
    ),
    "histogram": MessageKind("sums of gradient pairs", opened_by="receiver", of_labels=True),
    "partition": MessageKind(
        "nodes of rows", has_rows=True, has_every_row=True, has_one_width=True, refines=True,
        of_labels=True,
    ),
    "tree": MessageKind("nodes of trees", of_labels=True, has_gaps=True),
    "sample_list": MessageKind("lists of sampled rows", of_labels=True),
    # the pairs that an active party knows to be in the sums that it decrypts
    "own_pair": MessageKind(
        "gradient pairs of its own", has_rows=True, has_one_width=True, made_of=("histogram",),
        of_labels=True,
    ),
    # linear models: the gradient of a party's own coefficients, encrypted to the coordinator and
    # decrypted back; the loss of a batch, which it decrypts; what columns add to a row's answer
    "model_gradient": MessageKind(
        "gradients of its coefficients", opened_by="receiver", of_labels=True
    ),
    "derivative": MessageKind(
        "derivatives of rows, with the coordinator's key", has_rows=True, has_one_width=True,
        opened_by="key", of_labels=True,
    ),
    "loss": MessageKind("losses of batches", opened_by="receiver", of_labels=True),
    "score": MessageKind("scores of rows", has_rows=True, has_one_width=True),
    # scorecards: weights of evidence by column and bin, and what a party makes of them of its rows
    "woe": MessageKind("weights of evidence", of_labels=True),
    "woe_value": MessageKind(
        "weights of evidence of rows", has_rows=True, has_one_width=True, made_of=("woe",),
        of_labels=True,
    ),
    # matching of lists: the ids that matched; how many did, in a run whose newest id it is about
    "match": MessageKind("ids that matched", has_rows=True, has_one_width=True),
    "match_count": MessageKind("counts of ids that matched", has_rows=True, has_one_width=True),
})  # fmt: skip
"""Every kind of message. To add one: a line here and its name in :data:`Kind`."""


def find_kinds(is_so: Callable[[MessageKind], bool]) -> tuple[str, ...]:
    """The names of all kinds of which something is so."""
    return tuple(name for name, kind in KINDS.items() if is_so(kind))
