"""What stays visible under encryption: who holds which message in the clear, masked or opaque.

The tables belong to the defenses `he_embedding` and `he_gradient`; tests compare them with what the
views of a trained run really hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vflsec import registry
from vflsec.visible import Line

__all__ = ["embedding_lines", "gradient_lines", "plain_lines", "visibility"]

_BOTH, _A, _P = ("active", "passive"), ("active",), ("passive",)
_IDS = Line("sample ids of the batch", "ids", _BOTH, when="every step")


def visibility(defenses: Sequence[Any]) -> list[Line]:
    """The table of a split training with these defenses.

    Args:
        defenses: `DefenseSpec`s (or anything with ``name`` and ``params``) of one cell.
    """
    for d in defenses:
        lines = registry.defenses.create(d.name, d.params).visibility()
        if lines:
            return list(lines)
    return plain_lines()


def plain_lines() -> list[Line]:
    """The table without encryption."""
    return [
        _IDS,
        Line("embedding h", "embedding", _BOTH, when="forward, every batch and prediction"),
        Line("gradient dL/dh of each row", "gradient", _BOTH, when="backward"),
        Line("own trained bottom model", "model", _P, when="after training"),
    ]


def embedding_lines(*, shared: bool, sealed: bool) -> list[Line]:
    """The table of `he_embedding`: with shared or plain weights, encrypted or in the clear."""
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
        when = "backward, after its mask is off" if sealed else "backward"
        weights = [
            Line("layer weights W, bias b", "weights", _A, when="always"),
            Line("weight gradient h^T g", "weight_gradient", _A, masked=masked, when=when),
        ]  # fmt: skip
    product = f"product {'h W_a + b' if shared else 'z = h W + b'}, under the active party's mask"
    once = Line(product, "masked", (), masked=_BOTH, when="forward, after decryption")
    masked_product = [once] if sealed else []
    return [
        _IDS,
        h,
        *masked_product,
        Line("layer output z", "activation", _A, masked=_P if sealed else (),
             when="forward, after its mask is off" if sealed else "forward"),
        *weights,
        Line("gradient dL/dz", "output_gradient", _A, when="backward"),
        Line("gradient dL/dh of each row", "gradient", _P if shared else _BOTH,
             when="backward, in the clear as deployed systems do"),
        Line("own trained bottom model", "model", _P, when="after training"),
    ]  # fmt: skip


def gradient_lines() -> list[Line]:
    """The table of `he_gradient`."""
    return [
        _IDS,
        Line("embedding h", "embedding", _BOTH, when="forward"),
        Line("gradient dL/dh of each row", "gradient", _A, opaque=_P, when="backward, encrypted"),
        Line("batch sum of the bottom's gradients", "parameter_gradient", _P, masked=_A,
             when="backward, after decryption and without its mask"),
        Line("own trained bottom model", "model", _P, when="after training"),
    ]  # fmt: skip
