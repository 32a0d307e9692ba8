"""Base of every training algorithm: modules, phases, steps, prediction; no loops."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from vflsec.core import check
from vflsec.core.message_kinds import KINDS
from vflsec.label import make_label
from vflsec.specs import Params

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    from vflsec.core.federation import Federation, Phase
    from vflsec.core.policy import Policy
    from vflsec.core.task import Task
    from vflsec.core.view import Facts

ACTS = (
    "columns", "labels", "model", "loss", "penalty", "gradients", "optimizer", "incoming", "link",
)  # fmt: skip
"""Hooks of policies by which networks change, whatever is sent."""

_OF_LABELS = ("labels", "loss", "relabel", "regrow")
"""Hooks that are called where the labels are."""


def list_called(policy: Policy, owner: str, hooks: Sequence[str]) -> list[str]:
    """Those of some hooks that a policy has and that are called at a party of this role."""
    unheld = _OF_LABELS if owner == "passive" else ()
    return [hook for hook in hooks if policy.overrides(hook) and hook not in unheld]


class Algorithm:
    """A published way to train on vertically split data.

    Subclasses are frozen dataclasses of hyper-parameters under ``@registry.algorithm``.

    Class attributes:
        sends: (kind, sender role, receiver role) of all message kinds of training, with roles
            ``active`` and ``passive``; the plan crosses them with what attacks need.
        modules: roles whose parties train networks of their own.
        unaligned: True if it cannot train without rows that have no partner; then the positive
            control has some.
        quantities: True if it can learn a label that is no class: a quantity, or several at once.
        servers: names of those that it sends to or hears from and that are no party with labels or
            columns; in `sends` they are roles of their own.
        label_holder: True if the active party may hold labels only, without a column.
        world: hyper-parameters under which the conformance suite tries the algorithm; the key
            ``task`` holds arguments of :func:`vflsec.testing.small_task`.
    """

    name: ClassVar[str] = ""
    sends: ClassVar[frozenset[tuple[str, str, str]]] = frozenset()
    modules: ClassVar[frozenset[str]] = frozenset({"active", "passive"})
    unaligned: ClassVar[bool] = False
    quantities: ClassVar[bool] = False
    servers: ClassVar[tuple[str, ...]] = ()
    label_holder: ClassVar[bool] = False
    world: ClassVar[Params] = {}

    def __post_init__(self) -> None:
        check.fields(self)

    def check_declared(self) -> None:
        """Refuse class attributes that are not of the kinds above.

        Raises:
            ConfigError: `sends` is no set of triples of texts, or has a kind that there is not.
        """
        many = isinstance(self.sends, set | frozenset)
        if not many or {tuple(map(type, way)) for way in self.sends} - {(str,) * 3}:
            rule = "a set of (kind, sender, receiver)"
            raise check.fail(f"algorithm {self.name}: sends", rule, self.sends)
        for kind in sorted({kind for kind, *_ in self.sends} - set(KINDS)):
            raise check.unknown(f"algorithm {self.name}: sends", kind, KINDS)

    def check_label(self, classes: int) -> None:
        """Refuse a quantity (1 class) and several labels (0) where it can only learn classes.

        Raises:
            ConfigError: it cannot.
        """
        label = make_label(classes)
        if not label.fits(self.quantities):
            remedy = f"Take another algorithm, or {label.format_remedy('train on')}."
            raise check.fail(f"{self.name}: the label", "a class", label.noun, remedy)

    def explain_unfit(self, policy: Policy, owner: str = "") -> str:
        """'' if a policy changes anything here, else why not and a remedy, in words.

        Args:
            policy: a defense.
            owner: the role of its party, ``active``, ``passive`` or ``all``; '' for its own.
        """
        owner = owner or policy.owner
        sent = {kind for kind, sender, _ in self.sends if owner in (sender, "all")}
        if list_called(policy, owner, ACTS) or policy.covers & sent:
            return ""
        who = "nobody" if owner == "all" else f"{owner} never"
        why = f"where {who} sends what it treats ({', '.join(sorted(policy.treats))})"
        if not policy.treats:
            why = f"where {owner} parties have no labels"
        return (
            f"{policy.name}: does nothing under {self.name}, {why}. Give it another party, or "
            "leave it out."
        )

    def check_columns(self, task: Task) -> None:
        """Refuse an active party without columns where it takes part with its own.

        Raises:
            ConfigError: it has none.
        """
        if task.schema[task.active].empty and not self.label_holder:
            got, remedy = f"{task.active} with labels only", "Take splitnn, fedbcd or secureboost."
            raise check.fail(f"{self.name}: the active party", "one with columns", got, remedy)

    @abstractmethod
    def build(self, fed: Federation) -> None:
        """Give every party its modules with :meth:`Federation.add`."""
        raise NotImplementedError("abstract")

    @abstractmethod
    def phases(self, fed: Federation) -> list[Phase]:
        """What to train, in order."""
        raise NotImplementedError("abstract")

    @abstractmethod
    def predict(self, fed: Federation, rows: Tensor) -> Tensor:
        """Logits (R, b, C) for sample ids (R, b), without gradients, through the channel."""
        raise NotImplementedError("abstract")

    @abstractmethod
    def facts(self, fed: Federation) -> Facts:
        """What every party knows about the run."""
        raise NotImplementedError("abstract")

    @abstractmethod
    def planned_facts(self, active: str, parties: tuple[str, ...], classes: int) -> Facts:
        """The same facts before any training, for the plan; of several labels `classes` is their
        number.
        """
        raise NotImplementedError("abstract")

    def encoder(
        self, fed: Federation, party: str, modules: dict[str, nn.Module]
    ) -> Callable[[Tensor], Tensor] | None:
        """A party's own rows -> own embedding, from its unstacked modules.

        None means ``modules["bottom"]``; override where a party has several towers.
        """
        return None

    def local_training(self, party: str) -> Algorithm | None:
        """What trains the bottom of `party` on its own columns without labels or messages.

        None means that there is no such thing. The engine runs it once for each seed and adds
        the same attacker on that bottom to the controls.
        """
        return None

    def settled(self) -> str:
        """What the settings left open, in one sentence; "" where there is nothing."""
        return ""
