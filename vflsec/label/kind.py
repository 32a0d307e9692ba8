"""What a kind of label has to know; every other module asks it and never what kind it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vflsec.core import check

if TYPE_CHECKING:  # reports and verdicts ask kinds without loading torch
    import torch
    from torch import Tensor

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Label(ABC):
    """One kind of label, a frozen value.

    Truth is a tensor whose first axis is rows: class numbers (N,) int64, or float64 (N,) or (N, L).

    Attributes:
        name: what ``task`` under ``[data]`` calls it.
        codes: what it is stored as; of a kind with several classes one for each number of them.
        target: of a :class:`vflsec.core.guess.Truth` and of a guess that is compared with it.
        missing: what stands where a row has no label.
        floating: whether truth is float64.
        numeric: whether a row has one number, which attacks guess by its size.
        names: of several labels, else empty.
        by_part: whether attacks on labels are made on one part at a time.
        questions: yes/no questions about it that attacks are asked, each with its share of yes.
        control: registered data set of the positive control.
        rare: whether a class can be rare, so that a second positive control is made of such.
        noun: ``a class``, after "must be".
        sentence: ``the label is a quantity``.
        remark: what a drafted scenario says beside ``task``, which it leaves out for classes.
        remedy: how to have classes in its place; ``{}`` is a verb, see :meth:`format_remedy`.
        neighbour: what another label of one row is called in a privacy claim.
        scaled: whether values are prepared by a mean and a spread over rows.
        measures: metrics of guesses where nothing is asked for, the primary one first.
    """

    name: ClassVar[str]
    codes: ClassVar[range]
    target: ClassVar[str]
    missing: ClassVar[float] = float("nan")
    floating: ClassVar[bool] = True
    numeric: ClassVar[bool] = False
    names: tuple[str, ...] = ()
    by_part: ClassVar[bool] = False
    questions: ClassVar[dict[str, float]] = {}
    control: ClassVar[str]
    rare: ClassVar[bool] = False
    noun: ClassVar[str]
    sentence: ClassVar[str]
    remark: ClassVar[str] = ""
    remedy: ClassVar[str]
    neighbour: ClassVar[str]
    scaled: ClassVar[bool] = False
    measures: ClassVar[tuple[str, ...]] = ()

    @classmethod
    @abstractmethod
    def build(cls, classes: int, names: tuple[str, ...]) -> Self:
        """This kind, of so many classes and with these names of several labels."""

    @property
    def code(self) -> int:
        """How it is stored and handed to plug-ins, as ``classes``: C, 1 or 0."""
        return self.codes[0]

    @property
    @abstractmethod
    def column(self) -> str:
        """What its column in a table is, for reports."""

    @property
    def held(self) -> str:
        """What the party with the labels holds, for reports; '' where that is not told."""
        return self.noun

    @property
    @abstractmethod
    def outputs(self) -> int:
        """How many numbers a prediction has."""

    @property
    @abstractmethod
    def sides(self) -> int:
        """How many classes one attack tells apart: C, 2 for one of several labels, 1 for none."""

    # training

    @cached_property
    @abstractmethod
    def losses(self) -> Callable[[Tensor, Tensor], Tensor]:
        """Loss of each row (R, b), from answers (R, b, outputs) and what is trained on."""

    def stack(self, each: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """What is trained on, (T, N) or (T, N, L), from the truth of each of T tasks."""
        import torch

        return torch.stack([y.reshape(len(y), -1) for y in each]).to(dtype)

    # boosting, regression: scores (n, trees) and what is trained on, (n,) classes or (n, k) shares
    # or numbers

    @property
    def trees(self) -> int:
        """How many trees a round of boosting grows."""
        return self.outputs

    @abstractmethod
    def compute_start(self, y: Floats | Ints) -> Floats:
        """Scores (trees,) of a constant answer that fits `y` best."""

    @abstractmethod
    def compute_newton(self, scores: Floats, y: Floats | Ints) -> tuple[Floats, Floats]:
        """First and second derivative of each row's loss by its scores, (n, trees) each."""

    def compute_derivative(self, scores: Floats, y: Floats | Ints, *, taylor: bool) -> Floats:
        """First derivative of each row's loss by its scores, (n, trees).

        Args:
            scores, y: as in :meth:`compute_newton`.
            taylor: of classes its first-order expansion at 0.
        """
        if not taylor or self.numeric:
            return self.compute_newton(scores, y)[0]
        first, second = self.compute_newton(np.zeros_like(scores), y)
        return first + second * scores

    def compute_losses(self, scores: Floats, y: Floats | Ints) -> Floats:
        """Loss of each row by score, (n, trees), as ciphers add it up.

        Of classes the second-order expansion at 0, less its value there, which no score changes.
        """
        first, second = self.compute_newton(np.zeros_like(scores), y)
        return scores * (first + second * scores / 2)

    def form_answers(self, scores: Floats) -> Floats:
        """Answers (n, outputs)."""
        return scores

    @abstractmethod
    def form_predictions(self, answers: Tensor) -> Tensor:
        """What a party is sent of answers (..., outputs): class shares, or the values."""

    def form_scores(self, answers: Tensor) -> Tensor:
        """What of answers (..., outputs) is compared with the truth."""
        return answers

    def compute_prior(self, y: Tensor, values: Tensor | None, rows: Tensor) -> Tensor:
        """What is known of labels beforehand, from those of `rows`: class shares (C,) float64.

        A number is one class of share 1.
        """
        counts = y[rows].bincount(minlength=self.sides)
        return counts.double() / counts.sum()

    @abstractmethod
    def plant(self, given: Tensor, rows: Tensor, carried: Tensor) -> None:
        """Give canaries `rows` in place the candidates (m,) that they carry, of `draw_pairs`."""

    def draw_pairs(self, m: int, prior: Tensor, rng: torch.Generator) -> Tensor:
        """The two candidates of each canary, (m, 2): two labels 0 and 1 that lie far apart."""
        import torch

        return torch.tensor([0, 1]).expand(m, 2)

    # attacks

    def format_remedy(self, verb: str) -> str:
        """How to have classes in its place, in words: ``{verb} one label``."""
        return self.remedy.format(verb)

    @abstractmethod
    def suits(self, target: str, *, quantities: bool, labelwise: bool) -> bool:
        """Whether an attack on `target` with these flags can be made on it."""

    @abstractmethod
    def explain_unsuited(self, attack: str) -> str:
        """Why an attack that does not suit cannot be made, and which can."""

    def list_parts(
        self, quantities: bool, labelwise: bool, questions: Sequence[str]
    ) -> Sequence[str]:
        """What an attack on labels with these flags is made on in turn; '' is the whole label."""
        return ("",)

    def fits(self, quantities: bool) -> bool:
        """Whether an algorithm or a defense with this flag has a meaning for it."""
        return quantities

    @property
    def part_names(self) -> tuple[str, ...]:
        """What one yes/no task can be made of it: names of labels or questions."""
        return tuple(self.names or self.questions)

    def take_part(self, name: str, truth: Tensor, cut: Tensor) -> Tensor:
        """One of :attr:`part_names` as two classes (N,) int64, -1 for none, from the truth.

        Args:
            name: of a label or question.
            truth: (N,) or (N, L).
            cut: the truth of the rows by which questions are cut.

        Raises:
            ConfigError: this kind has no parts.
        """
        raise check.fail("the label", "of a kind that has yes/no parts", self.noun)

    def guess_mean(self, known: Tensor | None) -> float:
        """Of one number a row: what somebody guesses who has known labels (q,) alone."""
        return 0.0

    # scoring

    def choose_primary(self, prior: ArrayLike | None = None) -> str:
        """The metric that a verdict rests on, in :data:`vflsec.audit.metrics.METRICS`.

        Args:
            prior: class shares (C,), None if taken as even.
        """
        return self.measures[0]

    def list_metrics(self, *, groups: bool = True) -> Sequence[str]:
        """What guesses are measured by where nothing is asked for.

        Args:
            groups: whether scores compare within groups of rows alone, as those of one batch do.
        """
        return list(self.measures)

    def plan_metrics(self) -> tuple[str, Sequence[str]]:
        """(primary metric or '', metrics) of an attack on it, as far as a plan can tell."""
        return self.choose_primary(), self.list_metrics()

    @abstractmethod
    def encode(self, truth: Tensor, prior: Sequence[float]) -> Tensor:
        """What a planted leak carries of rows with this truth (n,), (n, C) float64.

        Args:
            truth: 0 where there is none.
            prior: class shares (C,).

        Raises:
            ConfigError: a leak is planted of a part of this kind only.
        """

    @abstractmethod
    def draw(self, rows: int, shares: Tensor, rng: torch.Generator) -> Tensor:
        """Labels (N,) to plant in a trace.

        Args:
            rows: N.
            shares: of the classes.
            rng: on the CPU.

        Raises:
            ConfigError: a trace has a part of this kind only.
        """

    # data

    def prepare(self, values: Floats, labelled: Ints) -> Floats:
        """The truth of values (N,) or (N, L), by those of the labelled training rows."""
        return values

    def split_classes(self, y: Ints, values: Floats | None) -> Iterator[tuple[str, Ints]]:
        """(name or '', classes (N,), -1 for none) of each label that has classes."""
        return iter(())

    def find_strata(
        self, y: Ints, values: Floats | None, eligible: NDArray[np.bool_], least: int
    ) -> Ints:
        """What row sets hold in proportion, (N,), -1 for rows without a label.

        Args:
            y, values: of all rows.
            eligible: (N,) rows that are divided.
            least: rows that a stratum needs to be divided.
        """
        return y

    def find_scarce(
        self, y: Ints, values: Floats | None, class_names: Sequence[str], least: int
    ) -> Iterator[tuple[str, str, str]]:
        """(what must be there, how much there is, remedy) where rows are too few, in words.

        Args:
            y, values: of the rows of one set.
            class_names: C names.
            least: rows that each class needs.
        """
        counts = np.bincount(y, minlength=len(class_names))
        rare = np.flatnonzero(counts < least)
        for c in rare:
            others = f", and {len(rare) - 1} more" if len(rare) > 1 else ""
            yield (
                f"class {class_names[int(c)]!r} must have at least {least} rows in",
                f"{counts[c]} of {counts.sum()}{others}",
                "Set merge_classes or drop_classes",
            )

    @abstractmethod
    def describe(self, y: Ints) -> str:
        """What it is and what utility is, for a comment in a scenario, of classes (N,)."""

    def find_unasked(self, questions: bool, limit: float | None) -> str:
        """What no attack on it was asked, in words, or ''.

        Args:
            questions: whether attacks were asked questions about it.
            limit: the largest limit of a gate on advantages.
        """
        return ""
