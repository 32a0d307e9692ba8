"""What an attack asks for: messages in one of several forms, own models and labels, or grants."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vflsec.core import check
from vflsec.core.message_kinds import KINDS
from vflsec.errors import ThreatModelError

FORMS = ("mean", "scaled", "centred", "first", "last", "all")
STEPS = ("first", "spread", "all")
OWN = ("model", "parameter_gradient", "labels")
GRANTS = ("known_rows", "prior", "aux_rows", "peer_model")


@dataclass(frozen=True)
class Need:
    """One thing an attack needs, written ``"what"`` or ``"what:form"``.

    ``what`` is a message kind received by the adversary (``gradient``), ``sent.KIND`` for what it
    sent, ``model`` (its own trained modules), ``parameter_gradient`` (of its own modules),
    ``labels`` (of the label party, where it guesses something else), or a grant (:data:`GRANTS`).
    ``form`` says how much of a message kind is kept: ``mean`` (per-row mean over epochs, folded as
    it passes), ``scaled`` (the same of rows divided by the root mean square row norm of their
    batch), ``centred`` (the same of what a row's messages do not share with those of its batch, or
    with those at its place in batches), ``first``, ``last`` or ``all`` epochs. A plus (``last+``)
    asks for what comes again for rows of a step too, under whatever name: beside the first, for an
    attack that takes payloads of any width, and each by itself
    (:meth:`vflsec.core.view.View.exchanges`); gradients stand beside each other in every form.
    Of ``parameter_gradient`` the ``first`` epoch is kept, ``all``, or a ``spread`` of bounded size
    (:class:`vflsec.core.step_sampling.Spread`).
    """

    what: str
    form: str = ""

    @classmethod
    def parse(cls, text: str, name: str = "need") -> Need:
        """The need that a text such as ``gradient:mean`` says; `name` is what errors call it.

        Raises:
            ConfigError: there is no such kind of message, and no such grant.
            ThreatModelError: there is no such form.
        """
        what, _, form = text.partition(":")
        need, known = cls(what, form), (*KINDS, *OWN, *GRANTS)
        if (need.kind or what) not in known:
            raise check.unknown(name, need.kind or what, known)
        forms = STEPS if what == "parameter_gradient" else FORMS
        if form and form.removesuffix("+" if forms is FORMS else "") not in forms:
            raise check.unknown(f"{name} {text!r}: form", form, forms, ThreatModelError)
        return need

    @property
    def is_grant(self) -> bool:
        """Whether it is a grant of the threat model."""
        return self.what in GRANTS

    @property
    def kind(self) -> str:
        """The message kind, or '' if this is not about messages."""
        if self.is_grant or self.what in OWN:
            return ""
        return self.what.removeprefix("sent.")

    @property
    def is_every(self) -> bool:
        """Whether it is about every message of every epoch."""
        return bool(self.kind) and self.form in ("", "all", "all+")

    @property
    def sent(self) -> bool:
        """Whether it is about messages that the adversary sent."""
        return self.what.startswith("sent.")

    def __str__(self) -> str:
        return f"{self.what}:{self.form}" if self.form else self.what


def as_needs(texts: Iterable[str], name: str = "need") -> tuple[Need, ...]:
    """The needs an attack declares, parsed, in a fixed order; `name` is what errors call each."""
    return tuple(Need.parse(t, name) for t in sorted(texts))
