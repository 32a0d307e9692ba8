"""What a party may do to what it owns: base of every defense, and of every active attacker.

A policy is a frozen dataclass of hyper-parameters; what it works on, its per-replica strengths and
its random streams come in an :class:`Own`. It sees only what its owner owns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vflsec.core import check
from vflsec.core.accountants import FINEST, Account, Profile, bound_group, bound_hits
from vflsec.core.message_kinds import KINDS, find_kinds
from vflsec.core.privacy_usage import Counter, RunFacts, Uses
from vflsec.core.rng import Streams
from vflsec.errors import PolicyError
from vflsec.label import make_label
from vflsec.specs import RATES, Claim, Promise

if TYPE_CHECKING:
    from vflsec.core.link import Link
    from vflsec.core.message import Message
    from vflsec.core.view import Facts
    from vflsec.core.visibility import Line

SPLIT = "the split (stratified by label),"
"""Given in every claim about labels: whoever knows all other labels reads the last off it."""
AGAIN = "further trainings on these labels, and scores"
"""Not covered by any claim about labels."""
AGAIN_ROWS = "further trainings on these rows"
"""Not covered by any claim about rows: more seeds, and those by which a strength is chosen."""

SCALED = "the scale of the values,"
"""Given besides in claims about a quantity: whoever knows all other values reads the last off them.
"""


def describe_label_claim(facts: RunFacts) -> tuple[str, str]:
    """(the neighbouring relation, what is given) of a claim about a label of any kind, in words.

    Args:
        facts: of the training.
    """
    label = make_label(facts.classes)
    given = f"{SPLIT} {SCALED}" if label.scaled else SPLIT
    return f"its replacement by {label.neighbour}", given


class NamedNoise(NamedTuple):
    """The noise that a policy says it adds to each number, of its own for each.

    Attributes:
        law: its distribution.
        unit: its scale (of a normal one the standard deviation) at strength 1.
        longest: what one row adds to what is noised, at most, by the norm of `order`.
        order: 1 or 2.
    """

    law: Literal["gaussian", "laplace"]
    unit: float
    longest: float = math.inf
    order: int = 2


@dataclass(frozen=True)
class RowSets:
    """Row sets of a tree, of any number at once, by how many rows of each class are in them: what a
    party without labels would learn.

    Attributes:
        tree: number of the tree, from 0; several classes have one tree each a round.
        counts: (..., C) rows of each class in each set; (..., 1) rows where labels are no classes.
        total: (C,) the same of all rows of the training.
    """

    tree: int
    counts: NDArray[np.float64]
    total: NDArray[np.float64]

    @property
    def sizes(self) -> NDArray[np.float64]:
        """Rows in each set, (...)."""
        found: NDArray[np.float64] = self.counts.sum(axis=-1)
        return found


@dataclass(frozen=True)
class Guarantee(Promise):
    """What a defense promises of one execution, as values; :meth:`sentence` puts them in words.

    Attributes:
        profile: other pairs of epsilon and delta that hold as well; of what was counted all.
        answers: whether a claim of labels is also about what the trained system answers; False
            where it is about messages alone.
    """

    profile: Profile = ()
    answers: bool = True

    @classmethod
    def claim(cls, made: Account, releases: int, **words: Any) -> Guarantee:
        """What an account allows to claim over so many uses of one row, in these words."""
        return cls(epsilon=made.epsilon, delta=made.delta, accountant=made.accountant,
                   profile=made.profile, releases=releases, reason="", **words)  # fmt: skip

    def sentence(self) -> str:
        """The claim, or why there is none, as reports print it."""
        leaves = f" Not covered: {self.leaves}." if self.leaves else ""
        if self.epsilon is None and self.covers:
            return self.covers
        if self.epsilon is None:
            return f"No epsilon is claimed: {self.reason}.{leaves}"
        delta = f", delta {self.delta:g}" if self.delta else ""
        given = f", given {self.given}" if self.given else ""
        provided = f", provided that {self.provided}" if self.provided else ""
        return (
            f"Epsilon {self.epsilon:.4g}{delta} of {self.what} under {self.neighbours}, against "
            f"{self.against}, composed over {self.over}{given}{provided} ({self.accountant})."
            f"{self._format_group()}{leaves}"
        )

    def _format_group(self) -> str:
        """What is left of it for all rows of one group together; '' where each row is one."""
        if self.group == 1:
            return ""
        epsilon, delta = bound_group(self.profile, self.group, self.delta)
        told = f"epsilon {epsilon:.4g}" + (f", delta {delta:.2g}" if delta else "")
        told = told if delta < 1 else "none"
        return f" Of up to {self.group} rows of one group together: {told}."

    def state(self, defense: str = "", strength: float | None = None, **more: Any) -> Claim:
        """The promise of this defense as results keep it, with what is known beside it.

        Of an epsilon also ``hits``: what :func:`vflsec.core.accountants.bound_hits` leaves at each
        of `RATES`, and ``group_hits`` of all rows of the largest group.
        """
        own = {f.name: getattr(self, f.name) for f in fields(Promise)}
        for name, rows in (("hits", 1), ("group_hits", self.group)) if self.profile else ():
            own[name] = tuple(bound_hits(self.profile, rate, rows) for rate in RATES)
        return Claim(**own, defense=defense, strength=strength, says=self.sentence(), **more)


OFF = Guarantee(reason="it is switched off")


def find_no_claim(
    uses: Uses, hook: str, each: float = 0.0, together: float = 0.0
) -> Guarantee | None:
    """No guarantee, with the reason, if counts forbid one for a policy that works by `hook`.

    Or if one use costs an epsilon of `each` that is finer than numbers are drawn, or all of them
    `together` an infinite one.
    """
    if uses.past:
        return Guarantee(reason=" and ".join(uses.past))
    if not uses.most:
        return Guarantee(reason=f"nothing was counted, its hook ({hook}) was not called")
    if each > FINEST or math.isinf(together):
        return Guarantee(
            reason=f"an epsilon above {FINEST:g} for one use, or beside so small a delta, is finer "
            "than coins and noise of 53 bits"
        )
    return None


@dataclass(frozen=True)
class StepCost:
    """What one training step costs on top, by estimate.

    Attributes:
        seconds: by operation.
        bytes: of ciphertexts.
        computed: False if the run only counts them (emulation), so that no time is spent.
    """

    seconds: Mapping[str, float] = field(default_factory=dict)
    bytes: int = 0
    computed: bool = True

    @property
    def spent(self) -> float:
        """Seconds that a step of the run takes longer."""
        return sum(self.seconds.values()) if self.computed else 0.0


@dataclass
class Own:
    """What the owner of a policy has at hand when a hook is called.

    Attributes:
        party: the owner's name.
        strength: the policy's strength for each replica, (R,), in float64 on the CPU.
        rng: streams of this policy alone, one generator for each replica.
        classes: number of classes if the owner has the labels, else 0.
        labels: labels of the rows in the current message, (R, b) int64; None if not the owner's.
        prior: class shares in the labelled training rows, (R, C), by their true labels, so that
            whoever claims to protect these may not use it; None if not the owner's.
        memory: state of this policy over one run (memoised labels, residuals); starts empty.
        facts: of the training.
        context: what else the owner computed in this step (its logits, its top model, ...).
        uses: counts of this policy's work, for one that names a hook in `counted`; else None.
        sample: in Poisson batches, which rows (R, b) of the current one were drawn, and how many
            are drawn on average; None where every row of a batch counts.
    """

    party: str
    strength: Tensor
    rng: Streams
    classes: int = 0
    labels: Tensor | None = None
    prior: Tensor | None = None
    memory: dict[str, Any] = field(default_factory=dict)
    facts: RunFacts = field(default_factory=RunFacts)
    context: dict[str, Any] = field(default_factory=dict)
    uses: Counter | None = None
    sample: tuple[Tensor, int] | None = None
    _kept: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def _cache(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` works out of `strength`, until that is another."""
        of, version = self.strength, self.strength._version
        if self._kept.get("of") is not of or self._kept["version"] != version:
            self._kept = {"of": of, "version": version}
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def column(self, like: Tensor) -> Tensor:
        """`strength` shaped (R, 1, ...) to broadcast over `like`, in its dtype and device; not to
        be changed.
        """
        dtype, device, dim = like.dtype, like.device, like.dim()
        return self._cache(
            (dtype, device, dim),
            lambda: self.strength.to(dtype=dtype, device=device).reshape(-1, *[1] * (dim - 1)),
        )  # type: ignore[no-any-return]

    @property
    def active(self) -> tuple[bool, ...]:
        """Which replicas have this policy switched on (strength above 0), length R."""
        return self._cache("active", lambda: tuple(map(bool, (self.strength > 0).tolist())))  # type: ignore[no-any-return]

    def choose(self, changed: Tensor, original: Tensor) -> Tensor:
        """`changed` where the policy is on and `original`, bit for bit, where off."""
        if all(self.active):
            return changed
        device, dim = original.device, original.dim()
        on = self._cache(
            ("on", device, dim),
            lambda: (self.strength > 0).to(device).reshape(-1, *[1] * (dim - 1)),
        )
        return torch.where(on, changed, original)


TREATED = {
    "shows": "partition", "sums": "histogram", "mask": "masked_sum",
    "least_rows": "model_gradient",
}  # fmt: skip
"""Messages of trees and regressions by the hook that hides what is in them from their receiver."""

_CHANGED: Mapping[str, frozenset[str]] = {
    "columns": frozenset({"embedding"}),
    "labels": frozenset(find_kinds(lambda kind: kind.of_labels)),
    "loss": frozenset({"gradient"}),
    "penalty": frozenset({"embedding", "gradient"}),
    "model": frozenset({"embedding", "gradient"}),
}
"""Messages by the hook that changes what they are worked out from. `gradients` is none of them:
noise on steps leaves the messages of single rows as they are.
"""

_WAYS = (("passive", "active"), ("active", "passive"))


class Policy:
    """One no-op hook for each thing a party owns. Strength 0 is the bit-exact identity.

    Subclasses are frozen dataclasses under a registry decorator. They override the hooks they
    need and name in `hooks` what they override; the engine calls only those.

    Class attributes:
        strengths: what the swept number means, with its unit; ``""`` if there is nothing to sweep.
        largest: the largest strength that has a meaning in any system; see :meth:`find_largest`.
        whole: True if strengths are whole numbers.
        natural: other numbers a scenario may sweep instead of the strength, by name, each with the
            function that turns it into a strength. ``{"epsilon": lambda e: 1 / e}`` lets a scenario
            write ``epsilon = [8, 2, 1]``; see :meth:`from_natural`.
        trial: three strengths under which the conformance suite tries the policy, the first 0.
        covers: message kinds that `outgoing` treats; others pass untouched.
        owner: whose policy this is unless the scenario says: ``active``, ``passive`` (each of them)
            or ``all``.

        trainings: how many times the algorithm is trained from scratch; before each time but the
            first, `relabel` is called.
        counted: the hook whose uses an epsilon composes over (``labels``, ``loss``, ``outgoing``
            or ``gradients``), for a policy that claims one; the engine counts them by row.
        poisson: True if batches must be Poisson samples.
        by_row: True if `labels`, `loss`, `outgoing` and `penalty` compute what they give for a row
            from that row alone, and `loss` draws nothing; otherwise claims of single rows beside
            it, by losses, gradients or later messages, end.
        quantities: True if it has a meaning where the label is no class: a quantity, which comes as
            values (R, b, 1) with logits that are the answers, or several labels (R, b, L).
        world: how the conformance suite trains the policy: ``algorithm``, splitnn if not named,
            with its hyper-parameters.
        reveals: kinds of the owner's row-wise messages that carry what it protects too, and that
            it does not treat; one of them ends its claim.

    `covers`, `owner`, `trainings`, `poisson` and `by_row` may be properties that depend on the
    parameters.
    """

    name: ClassVar[str] = ""
    strengths: ClassVar[str] = ""
    largest: ClassVar[float] = math.inf
    whole: ClassVar[bool] = False
    trial: ClassVar[tuple[float, float, float]] = (0.0, 0.5, 2.0)
    natural: ClassVar[Mapping[str, Callable[[float], float]]] = {}
    covers: frozenset[str] = frozenset()
    owner: str = "active"
    trainings: int = 1
    counted: ClassVar[str] = ""
    poisson: bool = False
    by_row: bool = False
    quantities: ClassVar[bool] = False
    reveals: frozenset[str] = frozenset()
    world: ClassVar[Mapping[str, Any]] = {}

    def __post_init__(self) -> None:
        check.fields(self)

    def check_declared(self) -> None:
        """Refuse class attributes that are not of the kinds above.

        Raises:
            ConfigError: a kind of message in `covers` that there is not, or another `owner`.
        """
        for kind in sorted(self.covers - set(KINDS)):
            raise check.unknown(f"defense {self.name}: covers", kind, KINDS)
        check.one_of(f"defense {self.name}: owner", self.owner, ("active", "passive", "all"))

    @property
    def treats(self) -> frozenset[str]:
        """Kinds of messages that it covers, decides on by a hook of trees or regressions, or puts
        another protocol in the place of.
        """
        decided = {kind for hook, kind in TREATED.items() if self.overrides(hook)}
        return self.covers | decided | self._hidden

    @property
    def _hidden(self) -> frozenset[str]:
        """Kinds of messages that no other party gets any more."""
        if not self.overrides("sends"):
            return frozenset()
        ways = {kind: [(kind, *way) for way in _WAYS] for kind in KINDS}
        return frozenset(k for k, of in ways.items() if not self.sends(frozenset(of)) & {*of})

    @property
    def acts_on(self) -> frozenset[str]:
        """Kinds of messages that say something else with it than without: those that it treats,
        and those of what it changes before they are worked out.
        """
        return self.treats.union(*(k for hook, k in _CHANGED.items() if self.overrides(hook)))

    @property
    def acts_by_labels(self) -> frozenset[str]:
        """Those of `acts_on` that only other labels change: they reveal columns as before."""
        hooks = (hook for hook in _CHANGED if hook != "labels" and self.overrides(hook))
        return self.acts_on - self.treats.union(*(_CHANGED[hook] for hook in hooks))

    def acts_in(self, profile: str) -> frozenset[str]:
        """Those of `acts_on` that a profile of trees does not show all the same; '' where none is
        followed.
        """
        return self.acts_on

    def columns(self, x: Tensor, own: Own) -> Tensor:
        """Own input rows (R, b, ...) before the bottom model."""
        return x

    def labels(self, y: Tensor, own: Own) -> Tensor:
        """Own labels (R, n), -1 where unknown, before training; called once in a run.

        Audits of a claim call it again, each time with other draws in `own.rng` and an empty
        `own.memory`; what it draws or keeps elsewhere leaves the claim open.

        May return class probabilities (R, n, C) instead.
        """
        return y

    def relabel(
        self, y: Tensor, stage: int, predict: Callable[[Tensor], Tensor], own: Own
    ) -> Tensor:
        """Own labels (R, n) after training number `stage`, from 1, for a policy of several.

        `y` are the labels of that training, ``predict(rows)`` its logits (R, k, C) for sample ids
        (R, k).
        """
        return y

    def regrow(self, own: Own) -> Tensor | None:
        """Own labels (R, n) by which branches of a tree that are all the owner's are grown anew.

        For policies of the active party that grow trees on other labels. None leaves trees alone.
        """
        return None

    def model(self, module: nn.Module, part: str, own: Own) -> nn.Module:
        """One own module (``part`` is ``"bottom"``, ``"top"``, ...) before it is stacked."""
        return module

    def loss(self, logits: Tensor, y: Tensor, own: Own) -> Tensor | None:
        """Per-row loss (R, b) from logits (R, b, C), or None for plain cross entropy.

        ``own.context["train"]`` is False when the loss of validation rows is taken.
        """
        return None

    def decode(self, logits: Tensor, own: Own) -> Tensor:
        """Logits (R, b, C) as used for prediction, after training on changed labels."""
        return logits

    def gradients(
        self, plain: list[Tensor | None], rows: Callable[[], list[Tensor]], own: Own
    ) -> list[Tensor | None]:
        """The gradients of own parameters that reach the own optimizer instead of `plain`.

        `plain` are the batch's gradients, (R, ...) each; ``rows()`` computes what each row adds to
        them, (R, b, ...) each, summing over b to `plain`.
        """
        return plain

    def penalty(self, x: Tensor, h: dict[str, Tensor], y: Tensor | None, own: Own) -> Tensor | None:
        """A term (R,) to add to the owner's loss, or None.

        `x` own input rows (R, b, ...); `h` embeddings by party as the owner sees them (R, b, d).
        """
        return None

    def optimizer(self, optimizer: Any, own: Own) -> Any:
        """The owner's optimizer, wrapped or replaced."""
        return optimizer

    def outgoing(self, message: Message, own: Own) -> Tensor:
        """The payload that leaves instead of ``message.tensor``; same shape, dtype and device.

        A tensor of its own: neither the given one changed in place, which its sender still uses,
        nor a buffer that the next message fills again, which would change what is on record.

        Raises:
            PolicyError: the message is of a covered kind but cannot be treated.
        """
        return message.tensor

    def incoming(self, message: Message, own: Own) -> Tensor:
        """What the owner uses instead of a delivered payload (an active attacker's hook)."""
        return message.tensor

    def shows(self, sets: RowSets, own: Own) -> NDArray[np.bool_]:
        """Which row sets of a tree the parties without labels may learn, (...) bool.

        For policies of the active party. It is asked of all rows and of those that a tree is grown
        on, without which the tree is grown without the others; of both sides of every split that
        another party could own; and of both children of a node, which are shown together or not at
        all, as each follows from the other. ``own.context["replica"]`` says in which replica.
        """
        return np.ones(sets.counts.shape[:-1], dtype=bool)

    def mask(
        self, values: NDArray[np.float64], rng: np.random.Generator, own: Own
    ) -> NDArray[np.int64] | None:
        """What a coordinator decrypts in place of the owner's own sum; the owner takes it off.

        For policies of parties whose sums somebody else decrypts; `rng` is another one each time.
        """
        return None

    def pairs(self, values: NDArray[np.float64], own: Own) -> NDArray[np.float64]:
        """Gradient pairs of a tree, g, h and 1 of each row (n, 3), zeros for rows left out.

        The active party's as it encrypts them, a passive party's as far as it takes them for valid.
        ``own.context["replica"]`` says in which replica.
        """
        return values

    def sums(
        self, values: NDArray[np.float64], rng: np.random.Generator, own: Own
    ) -> NDArray[np.float64]:
        """Own sums of g, h and rows by node, column and bin (S, d, B + 1, 3), before they are sent.

        For policies of passive parties; missing values are in the last bin. `rng` is another one
        each time, and ``own.context["replica"]`` says in which replica.
        """
        return values

    def least_rows(self, columns: int, own: Own) -> int:
        """How many rows a sum must be over that is read by a party with so many columns.

        For policies of the active party, whose labels are in such sums.
        ``own.context["replica"]`` says in which replica.
        """
        return 1

    def link(self, own: Own) -> Link[Any] | None:
        """Another way for the owner's embeddings and their gradients than two plain messages.

        For policies of passive parties; called once in a run. None keeps the plain way.
        """
        return None

    def sends(self, sends: frozenset[tuple[str, str, str]]) -> frozenset[tuple[str, str, str]]:
        """What a run sends under this policy, (kind, sender role, receiver role), given `sends`."""
        return sends

    def step_cost(self, batch: int, classes: int, params: Mapping[str, Any]) -> StepCost:
        """What a training step costs on top, by estimate.

        Args:
            batch: rows of a step.
            classes: number of classes.
            params: hyper-parameters of the algorithm.
        """
        return StepCost()

    def visibility(self) -> Sequence[Line]:
        """Who holds which message in the clear, masked or opaque under a protocol of its own.

        Empty where messages cross as they are.
        """
        return ()

    def bought(self, params: Mapping[str, Any]) -> tuple[str, str]:
        """What its protocol hides from whom, and what it leaves, in words that end no sentence.

        Nothing hidden (``""``) marks the twin without protection that others are compared with.

        Args:
            params: hyper-parameters of the algorithm.
        """
        return "", ""

    @classmethod
    def from_natural(cls, parameter: str, value: float) -> float:
        """The strength that `value` of a natural parameter stands for.

        Raises:
            ConfigError: no such parameter, or a value that is no finite number above 0 or has no
                meaning for this defense.
        """
        check.one_of(f"{cls.name}: the natural parameter", parameter, cls.natural)
        where = f"{cls.name}: {parameter}"
        check.positive(where, value, "Strength 0 switches it off.")
        strength = float(cls.natural[parameter](value))
        if not math.isfinite(strength) or strength < 0:
            raise check.fail(where, f"a value of strength >= 0 ({cls.strengths})", value)
        return strength

    def check_classes(self, y: Tensor) -> None:
        """Refuse labels that are no classes (R, n).

        Raises:
            PolicyError: another defense made shares of them.
        """
        if y.dim() != 2:
            raise PolicyError(f"{self.name}: needs classes (R, n), got {tuple(y.shape)}. Put it "
                              "before defenses that make class shares.")  # fmt: skip

    def check_strength(self, strength: float) -> None:
        """Refuse a strength that has no meaning.

        Raises:
            ConfigError: it is no finite number from 0 to `largest`, or not whole where it must be.
        """
        check.non_negative(f"{self.name}: strength", strength)
        if self.whole and strength != int(strength):
            rule = f"a whole number ({self.strengths})"
            raise check.fail(f"{self.name}: strength", rule, strength)
        if strength > self.largest:
            rule = f"a number in [0, {self.largest:g}]"
            raise check.fail(f"{self.name}: strength", rule, strength)

    @classmethod
    def find_largest(cls, facts: Facts) -> float:
        """The largest strength that has a meaning in a system, up to which searches go.

        Args:
            facts: what is known of the system before it is trained.
        """
        return cls.largest

    def check_label(self, classes: int) -> None:
        """Refuse labels that it cannot work on: a quantity (1 class), several labels (0), or others
        of its own.

        Raises:
            ConfigError: it cannot protect such labels.
        """
        label = make_label(classes)
        if not label.fits(self.quantities):
            remedy = f"Leave the defense out, or {label.format_remedy('audit')}."
            raise check.fail(f"{self.name}: the label", "a class", label.noun, remedy)
        self.check_task(classes)

    def check_task(self, classes: int) -> None:
        """Refuse, before anything is trained, data on which it cannot work.

        Args:
            classes: number of classes of the labels.

        Raises:
            ConfigError: it cannot protect labels of so many classes.
        """

    def carries(self, rows: Tensor) -> Tensor | None:
        """Whose secrets each row of a batch carries on top of its own, (R, b, k) sample ids.

        For policies that mix rows: a message of row i is then a use of the rows mixed into it.
        None means its own alone.
        """
        return None

    def noise(self, scale: float) -> NamedNoise | None:
        """The noise that the hook in `counted` adds, which audits of its claim hold it to.

        Args:
            scale: of a message (:class:`vflsec.core.message.Message`), or by how much the sum of
                rows' gradients is divided; 1 for a loss.
        """
        return None

    def guarantee(self, strength: float, facts: RunFacts) -> Guarantee:
        """What is promised at this strength for a run with these public facts.

        ``facts.uses`` is what was counted (:class:`vflsec.core.privacy_usage.Uses`); where it
        is missing, nothing was counted and nothing may be claimed.
        """
        return Guarantee()

    def overrides(self, hook: str) -> bool:
        """True if this policy does something in `hook`."""
        return getattr(type(self), hook) is not getattr(Policy, hook)

    def refuse(self, message: Message, why: str) -> PolicyError:
        """The error for a message that this policy covers but cannot treat."""
        return PolicyError(
            f"{self.name}: cannot treat {message.kind} {tuple(message.tensor.shape)} from "
            f"{message.sender} to {message.receiver}: {why}"
        )


def read_batch(policy: Policy, message: Message) -> Tensor:
    """The payload of a message as a floating-point batch (R, b, m), for policies that need one.

    Raises:
        PolicyError: it is not floating point, or has no rows of numbers.
    """
    x = message.tensor
    if not x.is_floating_point():
        raise policy.refuse(message, "it is not floating point.")
    if x.dim() < 3:
        raise policy.refuse(message, "it has no rows of numbers (R, b, m).")
    return x.flatten(2)
