"""What an audit is asked and what it answers: gates, verdicts, and the codes of both.

:mod:`vflsec.audit.gate_rules` holds the policy, :mod:`vflsec.audit.judge` applies it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Self

from vflsec.audit.metrics import METRICS, find_reach, metric_name
from vflsec.audit.point import Identity, Place, Training
from vflsec.audit.rounding import show_exact
from vflsec.core import check
from vflsec.core.attack import TARGETS
from vflsec.errors import capitalise

PASS, FAIL, INCONCLUSIVE = "PASS", "FAIL", "INCONCLUSIVE"
TASK = ("utility", "utility_drop")
"""Gate metrics that speak of the main task, not of an attack."""
EPSILON = "epsilon_lower"
"""Metric of results that are lower bounds of epsilon, one for each seed."""
REPORTED = ("cap", "dcs")
MIN_SEEDS, MIN_ROWS = 3, 20
"""The least evidence that a PASS on an attack's figure rests on."""
LEAST_CONFIDENCE = 0.8
USUAL = 0.95
WHERE = "gate: "
"""What stands before the key in an error of a gate."""


class Rule(StrEnum):
    """The rule that decided a verdict."""

    EXCEEDED = "exceeded"
    SINGLE_SEED = "single_seed"
    FAILED_RUNS = "failed_runs"
    REVERSED_RANKING = "reversed_ranking"
    NOT_VALIDATED = "not_validated"
    UNDECIDED = "undecided"
    EITHER_DIRECTION = "either_direction"
    UNDERPOWERED = "underpowered"
    INSENSITIVE = "insensitive"
    NO_ROOM = "no_room"
    WITHIN = "within"
    NOTHING_SELECTED = "nothing_selected"
    NOTHING_MEASURED = "nothing_measured"
    REGRESSION = "regression"
    NO_LONGER_MEASURED = "no_longer_measured"
    CLAIM_CONTRADICTED = "claim_contradicted"
    TOO_LITTLE_NOISE = "too_little_noise"
    DEFENSE_IDLE = "defense_idle"

    @property
    def verdict(self) -> str:
        """What a gate comes to by it."""
        return PASS if self is Rule.WITHIN else FAIL if self in _FAILS else INCONCLUSIVE


_FAILS = (
    Rule.EXCEEDED, Rule.REGRESSION, Rule.CLAIM_CONTRADICTED, Rule.TOO_LITTLE_NOISE,
    Rule.DEFENSE_IDLE,
)  # fmt: skip


class Origin(StrEnum):
    """Who asked for a verdict: a gate, a defense's claimed epsilon, or a baseline."""

    GATE = "gate"
    CLAIM = "claim"
    BASELINE = "baseline"


class WordedCode(StrEnum):
    """Codes with the words that people read: ``NAME = "code", "words"``."""

    words: str

    def __new__(cls, code: str, words: str = "") -> Self:
        made = str.__new__(cls, code)
        made._value_, made.words = code, words
        return made


class Warn(WordedCode):
    """Why a PASS says little, the gravest first; of any verdict, that one seed stands apart."""

    MODEL_AT_CHANCE = "model_at_chance", "the model is not significantly better than guessing"
    NOTHING_TO_LOSE = (
        "nothing_to_lose", "the undefended model is not significantly better than guessing",
    )  # fmt: skip
    LIMIT_AT_CHANCE = "limit_at_chance", "guessing alone meets the limit of utility"
    LIMITS_NO_LEAK = "limits_no_leak", "a maximum of an error limits no leak"
    LOWER_BOUND_ONLY = "lower_bound_only", "a lower bound of epsilon limits nothing"
    OTHER_DATA = "other_data", "the earlier audit was of other data"
    INSENSITIVE = "insensitive", "a leak above the limit could be missed"
    OTHER_METRIC = "other_metric", "some attacks lack the metric and were not judged"
    QUESTION_NOT_VALIDATED = (
        "question_not_validated", "no attack is validated for some questions",
    )  # fmt: skip
    QUESTION_UNDERPOWERED = (
        "question_underpowered", "some questions have too few seeds or rows",
    )  # fmt: skip
    SEED_APART = "seed_apart", "one seed is an outlier and the bounds are less sure"


class Shortfall(StrEnum):
    """What is missing from the least evidence for a PASS."""

    INCOMPLETE_RECORD = "incomplete_record"
    MISSING_SEEDS = "missing_seeds"
    BASELINE_MISSING_SEEDS = "baseline_missing_seeds"
    FEW_SEEDS = "few_seeds"
    BASELINE_FEW_SEEDS = "baseline_few_seeds"
    FEW_ROWS = "few_rows"
    EQUAL_FIGURES = "equal_figures"
    ALL_TIED = "all_tied"
    FAILED_SEEDS = "failed_seeds"
    ANY_RISE_TOLERATED = "any_rise_tolerated"


@dataclass(frozen=True)
class Reason:
    """Why something is so: a code, by which code decides, and words for people."""

    code: StrEnum
    text: str

    @classmethod
    def warning(cls, code: Warn, detail: str = "") -> Reason:
        """What a warning says, and of what."""
        return cls(code, f"{code.words}: {detail}" if detail else code.words)


@dataclass(frozen=True)
class Ruling:
    """What the first rule that holds says; the verdict is the rule's.

    Attributes:
        rule, reason, more_seeds, detail, not_validated, stuck: as of :class:`Verdict`.
        warnings: of a PASS.
    """

    rule: Rule
    reason: str
    more_seeds: int | None = None
    detail: str = ""
    not_validated: tuple[Place, ...] = ()
    stuck: bool = False
    warnings: tuple[Reason, ...] = ()


@dataclass(frozen=True)
class Gate:
    """One threshold: the keys of a ``[[gate]]``, :class:`vflsec.config.sections.Gate`.

    Attributes:
        attack: a label, or the bare name.
        defense: a label or bare name, of a stack all names in order (``iso + noise``) or that of
            the swept one; ``defended`` is all but the undefended run, which is ``none``.
        confidence: of each one-sided bound, at least :data:`LEAST_CONFIDENCE`.
        detect: the least leak that could have been detected, by the sensitivity test where there
            is one, must not exceed it. None: a PASS stands, with a warning where it exceeds `max`.
        line: in the scenario's file, 0 where it has none.

    Raises:
        ConfigError: a gate that makes no sense, or that cannot fail because its limit is beyond
            what the metric can reach.
    """

    metric: str = "advantage"
    max: float | None = None
    min: float | None = None
    attack: str = "*"
    adversary: str = "*"
    dataset: str = "*"
    algorithm: str = "*"
    phase: str = "*"
    split: str = "*"
    target: str = "*"
    defense: str = "*"
    strength: float | None = None
    of: str = ""
    confidence: float = USUAL
    detect: float | None = None
    name: str = ""
    line: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        if self.metric in REPORTED:
            raise check.fail(f"{WHERE}metric", "advantage or utility", self.metric)
        check.one_of(f"{WHERE}metric", self.metric, ("advantage", *TASK, *METRICS, EPSILON))
        if (self.max is None) == (self.min is None):
            raise check.fail(f"{WHERE}max, min", "exactly one", (self.max, self.min))
        limit = f"{WHERE}{'min' if self.max is None else 'max'}"
        check.finite(limit, self.threshold)
        check.in_unit(f"{WHERE}confidence", self.confidence, high_open=True)
        if self.confidence < LEAST_CONFIDENCE:
            least = f"at least {LEAST_CONFIDENCE:g}"
            raise check.fail(f"{WHERE}confidence", least, self.confidence)
        if self.of:
            check.one_of(f"{WHERE}of", self.of, METRICS)
        check.one_of(f"{WHERE}target", self.target, ("*", *TARGETS))
        low, high = find_reach(self.metric, self.of)
        if (self.max is not None and self.max >= high) or (
            self.min is not None and self.min <= low
        ):
            what = self.metric + (f" of {self.of}" if self.of else "")
            rule = f"below {high:g}" if self.max is not None else f"above {low:g}"
            raise check.fail(limit, f"{rule}, the most that {what} can reach", self.threshold)
        if self.detect is not None:
            if not self.limits_leaks:
                raise check.fail(f"{WHERE}detect", "given with a max of advantage", self.detect)
            check.positive(f"{WHERE}detect", self.detect)

    @classmethod
    def from_section(cls, section: Mapping[str, Any], confidence: float, line: int = 0) -> Gate:
        """The gate of a section; one without a confidence has that of the audit."""
        made = cls(**section, line=line)
        return made if "confidence" in section else made.with_confidence(confidence)

    def with_confidence(self, confidence: float) -> Gate:
        """The gate at the confidence of an audit, or at the least that a gate may have."""
        return replace(self, confidence=max(confidence, LEAST_CONFIDENCE))

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Gate:
        """A gate of a summary, as it was checked when it was asked; its names may be anything."""
        made = object.__new__(cls)
        for f in fields(cls):
            object.__setattr__(made, f.name, row.get(f.name, f.default))
        return made

    @property
    def threshold(self) -> float:
        """The number given as `max` or `min`."""
        return self.max if self.max is not None else self.min  # type: ignore[return-value]

    @property
    def label(self) -> str:
        """The name, or all that is asked but where: ``advantage of direction <= 0.05``."""
        if self.name:
            return self.name
        sign = "<=" if self.max is not None else ">="
        kind = "attack" if self.target == "*" else f"{self.target} attack"
        who = f" in {metric_name(self.of)}" if self.of else ""
        if self.metric not in (*TASK, EPSILON):
            who += f" of {f'any {kind}' if self.attack == '*' else self.attack}"
        who += "".join(
            said.format(asked)
            for said, asked in ((" by {}", self.adversary), (" on {} rows", self.split),
                                (" after {}", self.phase))
            if asked != "*"
        )  # fmt: skip
        sure = "" if self.confidence == USUAL else f" at {100 * self.confidence:g}%"
        found = "" if self.detect is None else f", able to find {show_exact(self.detect)}"
        return f"{self.metric}{who} {sign} {show_exact(self.threshold)}{sure}{found}"

    @property
    def must_find(self) -> float:
        """The leak that an audit should be able to find before it passes."""
        return self.threshold if self.detect is None else self.detect

    @property
    def limits_leaks(self) -> bool:
        """Whether it bounds the advantage from above, in the units of what would be found."""
        return self.metric == "advantage" and self.max is not None

    @property
    def needs_validated(self) -> bool:
        """Whether passing takes an attack that is known to work.

        It does where the gate limits what an attack reaches: by a maximum, or by a minimum of a
        figure of which less is better for the attack, as of an error. A maximum of an error limits
        nothing.
        """
        if self.metric in (*TASK, EPSILON):
            return False
        better = self.metric == "advantage" or METRICS[self.metric].larger_is_better
        return (self.max is not None) == better


@dataclass(frozen=True, kw_only=True)
class Verdict(Identity):
    """The judgement of one gate at one deployed point (defense and strength).

    Its identity is that of the figure that decides, its metric the one that is limited there; of
    what could not be judged the training alone, or nothing.

    Attributes:
        gate: what was asked.
        verdict: ``PASS``, ``FAIL`` or ``INCONCLUSIVE``.
        value: mean over seeds of the attack that decides (the largest, for a maximum).
        low, high: one-sided bounds at the gate's confidence, of the extreme over all attacks.
        threshold: of the gate.
        n: seeds behind `value`.
        reason: for people, in a sentence or two.
        rule: the rule that decided.
        origin: who asked.
        detail: what a rule found missing: a :class:`Shortfall` of ``underpowered``, a
            :class:`vflsec.audit.validated.Evidence` of ``not_validated``, the metric that would
            decide of ``no_room``, a :class:`vflsec.epsilon.named_noise.Fault` of
            ``too_little_noise``; else ''.
        judged_by: the metric that the attack which decides is judged by, where that of the gate has
            no room for the limit; else ''.
        more_seeds: how many more seeds would decide an open verdict, or let a PASS find a leak of
            the limit and answer every question; None if seeds are not what is missing, or too many
            are.
        attacks: labels of the attacks that were judged, those that say by equal scores that they
            found nothing among them.
        detectable: by attack, the least leakage that would have been shown to be above 0 with a
            chance of 0.8, from the spread over seeds; empty where the gate asks about no attack.
        dosed: the same by the sensitivity test with planted leaks; None where none was found,
            without the attacks that were not dosed.
        units: by attack, the metric that these are in.
        not_validated: places of attacks that keep it open because nothing shows that they work;
            ``dead`` in ``summary.json``.
        stuck: whether it is open and no number of seeds would decide it.
        warning: of a PASS, why it says little, and of any verdict that one seed stands apart, for
            people.
        warnings: the same as codes.
        noise_found: of a claim, the largest share of the noise it takes that would have been found
            too little with a chance of 0.8, 0.5 for half of it.
        label: of the gate.
    """

    gate: Gate
    verdict: str = ""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    threshold: float = 0.0
    n: int = 0
    reason: str = ""
    rule: Rule = Rule.NOTHING_SELECTED
    detail: str = ""
    judged_by: str = ""
    origin: Origin = Origin.GATE
    more_seeds: int | None = None
    attacks: tuple[str, ...] = ()
    detectable: Mapping[str, float] = field(default_factory=dict)
    dosed: Mapping[str, float | None] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    warning: str = ""
    warnings: tuple[Warn, ...] = ()
    not_validated: tuple[Place, ...] = field(default=(), metadata={"key": "dead"})
    stuck: bool = False
    noise_found: float | None = None
    label: str = ""

    def __post_init__(self) -> None:
        if not self.label:
            object.__setattr__(self, "label", self.gate.label)

    @property
    def passes(self) -> bool:
        """Whether the gate passes."""
        return self.verdict == PASS

    @property
    def limited(self) -> str:
        """The metric that is limited: of an advantage the one that is meant, '' for the attack's
        own.
        """
        return self.judged_by or (
            self.gate.of if self.gate.metric == "advantage" else self.gate.metric
        )

    @property
    def excess(self) -> float:
        """How far the upper bound is beyond the limit of a maximum; 0 where it is not."""
        return max((self.high or 0.0) - self.threshold, 0.0)

    @classmethod
    def about(cls, at: Training, gate: Gate, ruling: Ruling, **more: Any) -> Verdict:
        """The verdict on a training, or on an attack there; without `more` it has no figure."""
        where = at.identity if isinstance(at, Identity) else at.training
        told = where.as_dict() | vars(ruling)
        told |= {"verdict": ruling.rule.verdict, "threshold": gate.threshold,
                 "warning": "; and ".join(w.text for w in ruling.warnings),
                 "warnings": tuple(w.code for w in ruling.warnings)}  # fmt: skip
        return cls(gate=gate, **told | more)


def format_warnings(warnings: Iterable[Reason]) -> str:
    """Warnings of a PASS as sentences to add to its `reason`."""
    return "".join(f" {capitalise(w.text)}." for w in warnings)


def exit_code(verdicts: Iterable[Verdict]) -> int:
    """0 if all gates passed, 1 if one failed, 3 if one is inconclusive and none failed."""
    found = {v.verdict for v in verdicts}
    return 1 if FAIL in found else 3 if INCONCLUSIVE in found else 0
