"""Base of every attack: from a View to a Guess, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from vflsec.core import check
from vflsec.core.needs import as_needs
from vflsec.errors import Remediable, ThreatModelError
from vflsec.label import make_label
from vflsec.specs import OF_THE_LABELS, AttackSpec, Params

if TYPE_CHECKING:
    import torch

    from vflsec.core.guess import Guess
    from vflsec.core.policy import Policy
    from vflsec.core.view import Facts, View

Accumulate = bool | Literal["scaled"]

_RAISE = "Raise known_rows."

OTHER_FORMS: tuple[Params, ...] = (
    {"accumulate": "scaled"}, {"accumulate": False}, {"accumulate": False, "epoch": "last"},
)  # fmt: skip
"""Forms of gradients other than the mean over epochs, as settings to try."""

TARGETS = (
    "label", "feature", "attribute", "integrity", "embedding", "membership", "property", "presence",
)  # fmt: skip


def gradient_form(attack: str, accumulate: Accumulate, epoch: str) -> str:
    """The recorded form of gradients that an attack's parameters ask for.

    Args:
        attack: its name, for errors.
        accumulate: True for the mean over epochs, ``"scaled"`` for the mean of rows divided by the
            root mean square row norm of their batch (the better weights where noise goes with the
            batch), False for one epoch.
        epoch: that epoch, ``first`` or ``last``.

    Raises:
        ConfigError: another value.
    """
    check.one_of(f"{attack}.epoch", epoch, ("first", "last"))
    check.one_of(f"{attack}.accumulate", accumulate, (True, False, "scaled"))
    return "scaled" if accumulate == "scaled" else "mean" if accumulate else epoch


class Attack:
    """An adversary's procedure. Subclasses are frozen dataclasses under ``@registry.attack``.

    Class attributes:
        needs: what the view must hold, for example ``frozenset({"gradient:mean", "known_rows"})``;
            see :class:`vflsec.core.view.Need`. May be a property that depends on the parameters.
        optional: messages in the same words that are kept for it if they pass, and that it can do
            without.
        target: what is guessed: ``"label"``, ``"feature"``, ``"attribute"``, ``"integrity"``,
            ``"membership"`` (of records in the training; it asks the trained system),
            ``"property"`` (the share of rows with an attribute), or ``"presence"`` (of own rows at
            all other parties).
        numeric_only: True if it cannot read victims with categories.
        binary_only: True if it has no meaning beyond two classes.
        splits: which rows it can answer for: ``train`` (rows whose messages passed), ``test``.
        absent: True if it answers for training rows of which no message came, too, since that says
            something. Other attacks neither see nor guess them
            (:mod:`vflsec.measure.observed_rows`).
        world: hyper-parameters of FedSplitNN, or of the ``algorithm`` that it names, under which
            the conformance suite tries the attack.
        quick: own hyper-parameters there, where the defaults take long.
        tries: other settings that a strong attacker tries on worlds of the same shape, each a table
            of hyper-parameters beside the defaults; few and cheap, lists for tuples.
        any_scale: hyper-parameters under which a positive factor for each batch is no matter, of an
            attack that compares sizes over batches. Traces that do not tell their factors are read
            both ways.
        other_kinds: settings under which it reads messages of another kind, each a table of
            hyper-parameters. Traces in which such messages came are read by each.
        reads_others: False if its answers about rows stay the same without messages of rows that it
            neither guesses nor was granted. Else it is given those of all rows, also where attacks
            see a sample. By default True if it reads every message, with its place in a batch.
        quantities: True if it can guess a label that is a quantity. Then ``facts.classes`` is 1,
            known labels are float64 in standard deviations from the training mean, and the guess
            has one score a row, larger for larger values.
        questions: yes/no questions about a quantity (:data:`vflsec.specs.QUESTIONS`) that it is
            asked too: it is then made once for each, on a view of two classes whose
            ``facts.extra["question"]`` names it; the messages are of the quantity.
        labelwise: True if it can guess one of several yes/no labels of a row by itself. It is then
            made once for each, on a view of two classes that knows this label of the granted rows;
            the messages carry all labels together.
        silent: True if equal scores are its answer where it finds nothing. Where it is shown to
            work, such an answer lets a gate pass; one of another attack may be a fault.
        of_data: hyper-parameters that name a column of the data set, or a value in it. The
            positive control, where nothing is called so, takes their defaults.
        seconds: about how many processor seconds one answer takes, for two classes and a few
            thousand rows on one thread; `vflsec check` estimates by it.
    """

    name: ClassVar[str] = ""
    needs: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    target: ClassVar[str] = "label"
    binary_only: ClassVar[bool] = False
    numeric_only: ClassVar[bool] = False
    splits: ClassVar[tuple[str, ...]] = ("train",)
    absent: ClassVar[bool] = False
    world: ClassVar[Params] = {}
    quick: ClassVar[Params] = {}
    tries: ClassVar[tuple[Params, ...]] = ()
    any_scale: ClassVar[Params] = {}
    other_kinds: ClassVar[tuple[Params, ...]] = ()
    quantities: ClassVar[bool] = False
    labelwise: ClassVar[bool] = False
    questions: ClassVar[tuple[str, ...]] = ()
    silent: ClassVar[bool] = False
    of_data: ClassVar[tuple[str, ...]] = ()
    seconds: ClassVar[float] = 0.01

    def __post_init__(self) -> None:
        check.fields(self)

    @property
    def recorded_form(self) -> str:
        """In which form gradients are recorded, for an attack with `accumulate` and `epoch`."""
        return gradient_form(self.name, self.accumulate, self.epoch)  # type: ignore[attr-defined]

    @classmethod
    def each_label(cls, labels: Sequence[str], classes: int = 0) -> Sequence[str]:
        """Which of several labels it is made on, one after another; '' where they are not told.

        Of a quantity, with 1 of `classes`: '' for its values, and the questions about it.
        """
        if cls.target != "label":
            return ("",)
        label = make_label(classes, tuple(labels))
        return label.list_parts(cls.quantities, cls.labelwise, cls.questions)

    def suits(self, classes: int) -> bool:
        """Whether it can be made on such a label: C classes, 1 for a quantity, 0 for several."""
        return make_label(classes).suits(
            self.target, quantities=self.quantities, labelwise=self.labelwise
        )

    def pointless(self, facts: Facts) -> str:
        """'' if the attack has a meaning under these facts and this kind of label, else why not."""
        if not self.suits(facts.classes):
            return facts.label.explain_unsuited(self.name)
        if facts.label.by_part and self.target in OF_THE_LABELS:
            return self.explain_need("one label (of_label)")
        return str(facts.extra.get("unclear", "")) or self.applicable(facts)

    def check_declared(self) -> None:
        """Refuse class attributes and a policy that are not of the kinds above.

        Raises:
            ConfigError: naming the first.
            ThreatModelError: a need in a form that there is not.
        """
        from vflsec.core.policy import Policy

        many, policy = (tuple, list, set, frozenset), self.policy()

        def are_settings(of: Any) -> bool:
            return isinstance(of, tuple) and all(
                isinstance(t, dict) and set(t) <= set(self.params()) for t in of
            )

        rules = {
            "needs": ("a set of needs", isinstance(self.needs, many)),
            "optional": ("a set of needs", isinstance(self.optional, many)),
            "target": (f"one of {', '.join(TARGETS)}", self.target in TARGETS),
            "splits": (
                "a tuple of names of rows",
                isinstance(self.splits, tuple | list) and len(self.splits) > 0
                and all(isinstance(s, str) for s in self.splits),
            ),
            "tries": ("a tuple of tables", are_settings(self.tries)),
            "other_kinds": ("a tuple of tables", are_settings(self.other_kinds)),
            "any_scale": ("a table", are_settings((self.any_scale,))),
            "absent": ("true or false", isinstance(self.absent, bool)),
            "seconds": (
                "a finite number >= 0",
                check.is_number(self.seconds) and 0 <= self.seconds < float("inf"),
            ),
            "policy()": ("a Policy or None", policy is None or isinstance(policy, Policy)),
        }  # fmt: skip
        for key, (rule, holds) in rules.items():
            if not holds:
                got = policy if key == "policy()" else getattr(self, key)
                raise check.fail(f"attack {self.name}: {key}", rule, got)
        as_needs(self.looks_at, f"attack {self.name}: needs")

    def applicable(self, facts: Facts) -> str:
        """'' if the attack has a meaning under these public facts, else the reason it has none."""
        if self.binary_only and facts.classes != 2:
            return self.explain_need(f"two classes, got {facts.classes}")
        return ""

    def explain_top(self, facts: Facts) -> str:
        """'' if logits are the sum of what parties send, else what to set."""
        if facts.top or facts.aggregation == "concat":
            remedy = 'Set top = [], linear_top = false and aggregation = "sum".'
            return self.explain_need("summed logits", remedy)
        return ""

    def explain_need(self, what: str, instead: str = "") -> str:
        """Why the attack has no meaning without this, and what to do instead."""
        return Remediable(f"{self.name} needs {what}.", instead)

    def explain_codes(self, coded: Sequence[str]) -> str:
        """'' if it can read these victims with categories, or there is none."""
        if not (self.numeric_only and coded):
            return ""
        return self.explain_need(f"numeric columns, unlike {coded[0]}'s")

    def explain_positives(self, view: View, least: int) -> str:
        """'' if so many rows of class 1 are known, else that known rows are to be raised."""
        got = 0 if view.known is None else len(view.known.of_class(1))
        need = f"{least} known positives, got {got}"
        return "" if got >= least else self.explain_need(need, _RAISE)

    def lacks(self, what: str, got: object, remedy: str = _RAISE) -> ThreatModelError:
        """The error to raise where the grant or the messages are not enough."""
        return ThreatModelError(self.explain_need(f"{what}, got {got}", remedy))

    def lacks_class(self, got: object) -> ThreatModelError:
        """The error to raise where a class has no known row."""
        return self.lacks("a known row of every class", got)

    def declines(self, view: View) -> str:
        """'' if this view is enough to answer, else why any answer would be arbitrary.

        Beyond what `needs` and :meth:`applicable` can say, for it may depend on what was granted.
        """
        return self.explain_codes([p for p in view.victims if view.schema[p].categorical])

    def explain_grant(self, view: View) -> str:
        """'' if enough was granted for an answer, else what is to be raised.

        Where systems are trained that is an error, which another scenario mends. A recording has no
        more to grant: the attack is not applicable there.
        """
        return ""

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        """The attack on one replica. Larger score = more certain, always.

        The view stays as it is: an answer that changes columns, grants or the rows to guess in
        place is an error, for controls are made of them.

        Raises:
            ThreatModelError: it attacks predictions, and guesses nothing.
        """
        if self.target == "integrity":
            raise ThreatModelError(f"{self.name} guesses nothing, it changes predictions.")
        return self.infer_many([view], [rng])[0]

    def infer_many(self, views: Sequence[View], rngs: Sequence[torch.Generator]) -> list[Guess]:
        """The attack on several replicas; override it instead of :meth:`infer` to batch them.

        A view's guess must not depend on the other views.
        """
        return [self.infer(v, g) for v, g in zip(views, rngs, strict=True)]

    def resolved(self, guess: Guess) -> Attack:
        """What its answer is compared with, of an attack that chose by itself what it answers.

        It may go by what the attack was given alone, and have its name and target.
        """
        return self

    def policy(self) -> Policy | None:
        """The policy an active attacker puts on its own party, or None for a passive one."""
        return None

    @property
    def looks_at(self) -> frozenset[str]:
        """Its needs, and what it reads beside them if it passes."""
        return frozenset((*self.needs, *self.optional))

    @property
    def reads_others(self) -> bool:
        """See above."""
        return any(need.is_every for need in as_needs(self.looks_at))

    def sees_sample(self, spec: AttackSpec) -> bool:
        """Whether it is given messages of the rows that it guesses or was granted alone. Who looks
        back is given all, of which other forms are folded.
        """
        return spec.sees_sample and not (spec.over_time or self.reads_others)

    @property
    def needs_own_training(self) -> bool:
        """Whether it changes what it attacks, so that it gets a training of its own."""
        return self.policy() is not None or self.target == "membership"

    @property
    def trains(self) -> int:
        """How many systems it trains itself for each one that it attacks."""
        return 0

    def params(self) -> dict[str, Any]:
        """Hyper-parameters by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]


@dataclass(frozen=True)
class ReadsGradients(Attack):
    """Hyper-parameters of an attack on each row's gradient of one epoch, or of all.

    Attributes:
        accumulate: average each row's gradients over epochs first; ``"scaled"``: after dividing by
            its batch's root mean square row norm.
        epoch: which epoch is used if not: ``first`` or ``last``.
    """

    accumulate: Accumulate = True
    epoch: Literal["first", "last"] = "first"


def describe_scoring(attack: Attack) -> tuple[str, str, int]:
    """The column that an attack on one column looks at, and what it asks of it.

    See :meth:`vflsec.core.feature_schema.Schema.attribute`.
    """
    column, ask = (str(getattr(attack, key, "")) for key in ("column", "ask"))
    return column, ask, int(getattr(attack, "category", 0))
