"""What stays visible: for every message of a run, who holds it in the clear and who masked or
opaque.

The table is made from the defenses of a cell, not from a claim: tests compare it with what the
views of a trained run really hold. An attack whose inputs are visible to nobody in its coalition is
``not-observable``, which is a statement about this attack and never means "safe".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vflsec import registry
from vflsec.view import Need

__all__ = ["Line", "markdown", "sees", "sentence", "visibility"]


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
    """

    what: str
    kind: str
    clear: tuple[str, ...] = ()
    masked: tuple[str, ...] = ()
    opaque: tuple[str, ...] = ()
    when: str = ""


_BOTH, _A, _P = ("active", "passive"), ("active",), ("passive",)
_IDS = Line("sample ids of the batch", "ids", _BOTH, when="every step")


def visibility(defenses: Sequence[Any]) -> list[Line]:
    """The table of a split training with these defenses.

    Args:
        defenses: `DefenseSpec`s (or anything with ``name`` and ``params``) of one cell.
    """
    for d in defenses:
        name = registry.defenses.entry(d.name).name
        if name == "he_embedding":
            return _embedding(dict(d.params))
        if name == "he_gradient":
            return _gradient(dict(d.params))
    return [
        _IDS,
        Line("embedding h", "embedding", _BOTH, when="forward, every batch and prediction"),
        Line("gradient dL/dh of each row", "gradient", _BOTH, when="backward"),
        Line("own trained bottom model", "model", _P, when="after training"),
    ]


def _embedding(params: Mapping[str, Any]) -> list[Line]:
    shared = params.get("weights", "plain") == "shared"
    sealed = params.get("mode", "emulated") != "clear"
    h = (
        Line("embedding h", "embedding", _P, opaque=_A, when="forward, encrypted by its owner")
        if sealed
        else Line("embedding h", "embedding", _BOTH, when="forward")
    )
    if shared:
        weights = [
            Line("layer weights W", "", (), when="never: each party holds a share"),
            Line("active party's share of W, bias b", "weights", _A, when="always"),
            Line("passive party's share of W", "", _P, opaque=_A, when="backward"),
            Line(
                "weight gradient h^T g", "", (), masked=_BOTH,
                when="backward; each lacks the other's mask",
            ),
            Line("weight gradient + the passive party's noise", "weight_gradient", _A, masked=_P,
                 when="backward, after its mask is off"),
        ]  # fmt: skip
    else:
        masked = _P if sealed else ()
        weights = [
            Line("layer weights W, bias b", "weights", _A, when="always"),
            Line("weight gradient h^T g", "weight_gradient", _A, masked=masked,
                 when="backward, after its mask is off"),
        ]  # fmt: skip
    product = "h W_a + b" if shared else "z = h W + b"
    return [
        _IDS,
        h,
        Line(f"product {product}, under the active party's mask", "masked", (),
             masked=_BOTH if sealed else (), when="forward, after decryption"),
        Line("layer output z", "activation", _A, masked=_P if sealed else (),
             when="forward, after its mask is off"),
        *weights,
        Line("gradient dL/dz", "output_gradient", _A, when="backward"),
        Line("gradient dL/dh of each row", "gradient", _P if shared else _BOTH,
             when="backward, in the clear as deployed systems do"),
        Line("own trained bottom model", "model", _P, when="after training"),
    ]  # fmt: skip


def _gradient(params: Mapping[str, Any]) -> list[Line]:
    return [
        _IDS,
        Line("embedding h", "embedding", _BOTH, when="forward"),
        Line("gradient dL/dh of each row", "gradient", _A, opaque=_P, when="backward, encrypted"),
        Line("batch sum of the bottom's gradients", "parameter_gradient", _P, masked=_A,
             when="backward, after decryption and without its mask"),
        Line("own trained bottom model", "model", _P, when="after training"),
    ]  # fmt: skip


def sees(need: Need, role: str, lines: Sequence[Line]) -> bool:
    """True if a party in `role` holds what the need names in the clear (grants are no messages)."""
    if need.is_grant:
        return True
    kind = need.kind or need.what
    found = [line for line in lines if line.kind == kind]
    return any(role in line.clear for line in found) if found else False


def markdown(lines: Sequence[Line]) -> str:
    """The table as Markdown."""
    out = ["| what | in the clear to | masked for | opaque for | when |", "|---|---|---|---|---|"]
    for x in lines:
        cells = [", ".join(c) or "nobody" for c in (x.clear, x.masked, x.opaque)]
        out.append(f"| {x.what} | {' | '.join(cells)} | {x.when} |")
    return "\n".join(out)


def sentence(params: Mapping[str, Any], cut: int) -> str:
    """In one sentence: what encrypting embeddings of width `cut` bought, and what it did not.

    Args:
        params: of `he_embedding`.
        cut: width of the embedding.
    """
    same = "the passive party's own model and gradients give the labels away as before"
    if params.get("mode") == "clear":
        return f"Embeddings crossed in the clear, and {same}."
    out = int(params.get("out", 32))
    if params.get("weights", "plain") == "shared":
        return (
            "Encryption with shared weights hid the embeddings from the active party's linear "
            f"algebra, not from a decoder with auxiliary rows, and {same}."
        )
    if out >= cut:
        return (
            "Encryption hid the embeddings on the wire and from nobody else: the active party "
            f"solves {out} equations for {cut} unknowns, and {same}."
        )
    return (
        f"Encryption hid the part of the embeddings that {out} of {cut} output columns do not "
        f"carry, and {same}."
    )
