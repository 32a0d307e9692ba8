"""What stays visible under encryption: who holds which message in the clear, masked or opaque.

The tables belong to the defenses `he_embedding` and `he_gradient`; tests compare them with what the
views of a trained run really hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vflsec.core.visibility import Line, format_markdown
from vflsec.plugins import registry

_BOTH, _A, _P = ("active", "passive"), ("active",), ("passive",)
_FLOOD = "F of the passive party"
_IDS = Line("sample ids of the batch", "ids", _BOTH, when="every step")
_OWN_MODEL = Line("own trained bottom model", "model", _P, when="after training")
_PER_ROW, _EMBEDDING = "gradient dL/dh of each row", "embedding h"


def _opened(name: str, kind: str, reader: tuple[str], keeper: tuple[str]) -> list[Line]:
    """An answer that who keeps the key decrypts, and who drew its mask reads: both lines."""
    (you,), (they,) = reader, keeper
    return [
        Line(f"{name}, decrypted", "", (), masked=keeper, when="backward, after decryption",
             drawn=f"M of the {you} party"),
        Line(name, kind, reader, masked=keeper, when="backward, after its mask is off",
             drawn=f"F of the {they} party"),
    ]  # fmt: skip


def _exact(reader: tuple[str], keeper: tuple[str]) -> Line:
    """What no answer may hold."""
    when = f"never leaves: it would give the {reader[0]} party the secret key"
    return Line("exact decryption, and with it the noise of the ciphertext", "", keeper, when=when)


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


def visibility_table(defenses: Sequence[Any]) -> str:
    """The table of :func:`visibility` as Markdown."""
    return format_markdown(visibility(defenses))


def plain_lines() -> list[Line]:
    """The table without encryption."""
    return [
        _IDS,
        Line(_EMBEDDING, "embedding", _BOTH, when="forward, every batch and prediction"),
        Line(_PER_ROW, "gradient", _BOTH, when="backward"),
        _OWN_MODEL,
    ]


def embedding_lines(*, shared: bool, sealed: bool) -> list[Line]:
    """The table of `he_embedding`: with shared or plain weights, encrypted or in the clear.

    The lines of decrypted answers say who drew what is in them: the active party's masks keep the
    product from the passive party, the passive party's flooding keeps its key from the active one.
    """
    h = (
        Line(_EMBEDDING, "embedding", _P, opaque=_A, when="forward, encrypted by its owner")
        if sealed
        else Line(_EMBEDDING, "embedding", _BOTH, when="forward")
    )
    mask = "R of the active party"
    if shared:
        weights = [
            Line("layer weights W", "", (), when="never: each party holds a share"),
            Line("active party's share of W, bias b", "weights", _A, when="always",
                 drawn="S, F and every N of the passive party"),
            Line("passive party's share of W", "", _P, opaque=_A, when="backward",
                 drawn="S and every N of the passive party"),
            Line("weight gradient h^T g", "", (), masked=_BOTH,
                 when="backward, after decryption",
                 drawn="M of the active party, N of the passive party"),
            Line("weight gradient + the passive party's noise", "weight_gradient", _A, masked=_P,
                 when="backward, after its mask is off", drawn="N of the passive party"),
        ]  # fmt: skip
    else:
        weights = [Line("layer weights W, bias b", "weights", _A, when="always")]
        name, kind = "weight gradient h^T g", "weight_gradient"
        weights += (
            _opened(name, kind, _A, _P) if sealed else [Line(name, kind, _A, when="backward")]
        )
    product = f"product {'h W_a + b' if shared else 'z = h W + b'}"
    opened = [
        Line(f"{product}, decrypted", "masked", (), masked=_P, when="forward, after decryption",
             drawn=mask),
        Line("answer to it, as it leaves", "masked", (), masked=_P,
             when="forward, before its mask is off", drawn=f"{mask}, {_FLOOD}"),
        _exact(_A, _P),
    ] if sealed else []  # fmt: skip
    return [
        _IDS,
        h,
        *opened,
        Line("layer output z", "activation", _A, masked=_P if sealed else (),
             when="forward, after its mask is off" if sealed else "forward",
             drawn=_FLOOD if sealed else ""),
        *weights,
        Line("gradient dL/dz", "output_gradient", _A, when="backward"),
        Line(_PER_ROW, "gradient", _P if shared else _BOTH,
             when="backward, in the clear as deployed systems do"),
        _OWN_MODEL,
    ]  # fmt: skip


def gradient_lines() -> list[Line]:
    """The table of `he_gradient`."""
    name = "batch sum of the bottom's gradients"
    decrypted, unmasked = _opened(name, "parameter_gradient", _P, _A)
    return [
        _IDS,
        Line(_EMBEDDING, "embedding", _BOTH, when="forward"),
        Line(_PER_ROW, "gradient", _A, opaque=_P, when="backward, encrypted"),
        decrypted,
        _exact(_P, _A),
        unmasked,
        _OWN_MODEL,
    ]
