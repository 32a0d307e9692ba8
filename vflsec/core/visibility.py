"""Who holds what: one line for each message of a protocol, and what follows for attacks.

A defense that puts a protocol of its own in the place of plain messages states in these lines who
holds what in the clear, under a mask, or as a ciphertext (`Policy.visibility`). Reports print them
without knowing the defense. An attack whose inputs are visible to nobody in its coalition is
``not-observable``, which is a statement about this attack and never means "safe".
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from vflsec.core.message_kinds import find_kinds

HEADS = ("what", "in the clear to", "masked for", "opaque for", "when", "masks and noise in it")
"""Column titles of the table."""


OPAQUE = find_kinds(lambda kind: not kind.is_readable)
"""Kinds of messages that no attack reads by themselves: names and marks, and what is hidden."""


def looked_at(kind: str, phase: str, attacked: Container[str]) -> bool:
    """Whether attacks that are made after the phases `attacked` speak of messages of `phase`.

    They get the messages sent in that phase, and the answers when rows are predicted or evaluated.
    Embeddings of such rows are those of training, of other rows.
    """
    if phase in ("predict", "eval"):
        return kind in ("embedding", "prediction")
    return phase in attacked


@dataclass(frozen=True)
class Line:
    """One message, or one thing worked out from messages.

    Attributes:
        what: in words.
        kind: message kind, as attacks name it in their needs; ``""`` if no attack can ask for it.
        clear: roles that hold it in the clear.
        masked: roles that hold it under somebody else's mask.
        opaque: roles that hold a ciphertext of it without the key.
        when: after which step of the protocol.
        drawn: masks and noise that are in it, and who drew each.
    """

    what: str
    kind: str
    clear: tuple[str, ...] = ()
    masked: tuple[str, ...] = ()
    opaque: tuple[str, ...] = ()
    when: str = ""
    drawn: str = ""


def format_cells(line: Line) -> tuple[str, ...]:
    """A line as the cells of a table under :data:`HEADS`."""
    held = [", ".join(who) or "nobody" for who in (line.clear, line.masked, line.opaque)]
    return (line.what, *held, line.when, line.drawn or "none")


def format_markdown(lines: Sequence[Line]) -> str:
    """The table as Markdown."""
    out = [f"| {' | '.join(HEADS)} |", "|" + "---|" * len(HEADS)]
    return "\n".join([*out, *(f"| {' | '.join(format_cells(x))} |" for x in lines)])


def claim(what: str, hides: str, leaves: str) -> str:
    """What a defense claims (`Policy.bought`) as one sentence."""
    return f"{what} hides {hides or 'nothing'}; it leaves {leaves}."
