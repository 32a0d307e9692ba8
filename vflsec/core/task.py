"""Who holds which rows: one learning problem for one seed, and its stacking on the replica axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from vflsec.core import check
from vflsec.core.view import Schema
from vflsec.errors import DataError
from vflsec.label import Classes, Label


def _uneven(name: str, rows: str, sizes: tuple[int, int]) -> DataError:
    """The error for row sets whose sizes differ between seeds."""
    return DataError.must(f"{name}: row set {rows!r}", "have one size for all seeds", sizes)


@dataclass(frozen=True)
class Task:
    """One vertical learning problem, split for one seed.

    Sample ids are positions 0..N-1 in the union of all parties' rows (the data set keeps the
    users' own ids). Standardisation and category codes were fitted on training rows only.

    Attributes:
        name: of the data set.
        parties: names, the active party first.
        x: prepared input rows by party, (N, ...) float32; zero where a party lacks the row.
        present: (N,) bool by party.
        schema: layout of the rows by party.
        y: (N,) int64 labels, -1 where there is none; 0 or -1 where they are no classes.
        label: what kind of label it is.
        sets: row sets, (n,) int64 each, sorted. Always there: ``labelled`` (aligned training rows
            whose labels the active party uses), ``aligned`` (all aligned training rows, labelled
            or not), ``validation``, ``test``, and ``local:PARTY`` (all training rows a party holds,
            aligned or not).
        active_labelled: (n,) all training rows of the active party with a label, aligned or not.
        given: (N,) labels the active party was given where they are not the truth (a null world in
            which training labels are permuted), in the form of `y` or `values`, else None; these
            stay the truth.
        values: (N,) float64 a quantity in standard deviations from its mean, both over
            ``labelled``, or (N, L) several labels that are 0 or 1; NaN where there is none. None
            for classes.
        silent: (N,) bool, rows that stand in every batch and add nothing to any loss (zeroed-out
            neighbours of canaries), or None.
        ids: (N,) the users' own sample ids as strings, for reports; may be empty.
        class_names: C names.
        asks: the yes/no question about a quantity (:mod:`vflsec.core.quantity_questions`) that `y`
            answers, or ''.
        behind: (N,) float64 the quantity that it is about, as `values`, else None.
        people: (N,) int64 the group of each row, as a person with several rows; None where each row
            is of another person.
        fixed: row sets (``test``, ``validation``) that the data set fills itself, so that their
            rows may be of another kind than those of training; seeds draw the others.
        missing: (N, d) bool by party, which numbers are missing, for whom 0 in `x` is not enough;
            without the parties who have all of theirs.
    """

    name: str
    parties: tuple[str, ...]
    x: Mapping[str, Tensor]
    present: Mapping[str, Tensor]
    schema: Mapping[str, Schema]
    y: Tensor
    label: Label
    sets: Mapping[str, Tensor]
    active_labelled: Tensor
    given: Tensor | None = None
    silent: Tensor | None = None
    ids: Sequence[str] = ()
    class_names: tuple[str, ...] = ()
    values: Tensor | None = None
    asks: str = ""
    behind: Tensor | None = None
    people: Tensor | None = None
    fixed: frozenset[str] = frozenset()
    missing: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def classes(self) -> int:
        """The code of the kind of label: C classes, 1 for a quantity, 0 for several labels."""
        return self.label.code

    @property
    def labels(self) -> tuple[str, ...]:
        """L names where a row has several labels at once, else empty."""
        return self.label.names

    @property
    def outputs(self) -> int:
        """How many numbers a prediction has: C logits, one value, or a logit for each label."""
        return self.label.outputs

    @property
    def truth(self) -> Tensor:
        """The labels of all rows: `y` for classes, else `values`."""
        return self.y if self.values is None else self.values

    @property
    def training_labels(self) -> Tensor:
        """The labels that the active party was given, in the form of `truth`."""
        return self.truth if self.given is None else self.given

    def of_label(self, name: str) -> Task:
        """The same problem with one of several labels alone, as two classes; '' is this problem.

        Of a quantity it is one of the questions about it (:mod:`vflsec.core.quantity_questions`).

        Raises:
            ConfigError: there is no such label.
        """
        if not name:
            return self
        check.one_of(f"{self.name}: the label", name, self.label.part_names or ("",))
        cut = self.truth[self.sets["labelled"]]
        y = self.label.take_part(name, self.truth, cut)
        given = None if self.given is None else self.label.take_part(name, self.given, cut)
        same = replace(self, y=y, given=given, label=Classes(2), values=None)
        if name in self.label.questions:
            return replace(same, class_names=("no", "yes"), asks=name, behind=self.values)
        return replace(same, class_names=("0", "1"))

    @property
    def largest_group(self) -> int:
        """The most rows of one of the people; 1 where each row is of another."""
        return 1 if self.people is None else int(self.people.bincount().max())

    @property
    def active(self) -> str:
        """Name of the party that holds the labels."""
        return self.parties[0]

    @property
    def passive(self) -> tuple[str, ...]:
        """Names of the other parties."""
        return self.parties[1:]

    @property
    def prior(self) -> Tensor:
        """Class shares in the labelled training rows, (C,) float64; of several labels the shares
        of ones, (L,).
        """
        return self.label.compute_prior(self.y, self.values, self.sets["labelled"])


@dataclass
class Stack:
    """Tasks of one cohort side by side: the same data set, possibly different seeds.

    Replicas with the same seed share one copy of the data.

    Attributes:
        tasks: one task for each distinct seed.
        of: (R,) int64, which task each replica uses.
        device: where the tensors live.
        dtype: what they are kept as.
        products: with how many digits products of linear layers are taken
            (`vflsec.nn.reduced_precision`).
    """

    tasks: Sequence[Task]
    of: Tensor
    device: torch.device
    dtype: torch.dtype = torch.float32
    products: str = ""
    _x: dict[str, Tensor] = field(default_factory=dict)
    _rows: dict[str, Tensor] = field(default_factory=dict)
    _starts: Tensor | None = None
    _last: tuple[Tensor, int, Tensor] | None = None

    @classmethod
    def build(
        cls,
        tasks: Mapping[int, Task],
        seeds: Sequence[int],
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        products: str = "",
    ) -> Stack:
        """Stack the tasks of `seeds` (length R, repeats allowed).

        Raises:
            DataError: row sets differ in size between seeds, so they cannot be stacked.
        """
        distinct = list(dict.fromkeys(seeds))
        place = {s: i for i, s in enumerate(distinct)}
        chosen = [tasks[s] for s in distinct]
        first = chosen[0]
        for task in chosen[1:]:
            for name, rows in first.sets.items():
                if len(task.sets.get(name, ())) != len(rows):
                    sizes = (len(rows), len(task.sets.get(name, ())))
                    raise _uneven(first.name, name, sizes)
        of = torch.tensor([place[s] for s in seeds], dtype=torch.int64)
        return cls(chosen, of.to(device), torch.device(device), dtype, products)

    @property
    def replicas(self) -> int:
        """R."""
        return len(self.of)

    @property
    def first(self) -> Task:
        """The task that stands for all in what they share (parties, schema, classes, sizes)."""
        return self.tasks[0]

    def _flat(self, party: str) -> Tensor:
        if party not in self._x:
            same = all(t.x[party] is self.tasks[0].x[party] for t in self.tasks)
            parts = [self.tasks[0].x[party]] if same else [t.x[party] for t in self.tasks]
            whole = [p.to(self.device, self.dtype) for p in parts]
            self._x[party] = whole[0] if len(whole) == 1 else torch.cat(whole)
        return self._x[party]

    def columns(self, party: str, rows: Tensor) -> Tensor:
        """Input rows of `party`, (R, b, ...), for sample ids (R, b)."""
        flat = self._flat(party)
        index = rows.reshape(-1) if flat.shape[0] == self.first.y.shape[0] else self._index(rows)
        return flat.index_select(0, index).view(*rows.shape, *flat.shape[1:])

    def _index(self, rows: Tensor) -> Tensor:
        """Where sample ids (R, b) stand in the tables of all tasks, (R b,); kept for one batch."""
        if self._last is None or self._last[0] is not rows or self._last[1] != rows._version:
            if self._starts is None:
                self._starts = (self.of * len(self.first.y)).unsqueeze(1)
            self._last = rows, rows._version, (rows + self._starts).reshape(-1)
        return self._last[2]

    def design(self, r: int) -> Tensor:
        """The active party's columns in replica `r` as plain numbers, (N, p)."""
        task = self.tasks[int(self.of[r])]
        return task.schema[task.active].design(task.x[task.active])

    def rows(self, name: str) -> Tensor:
        """Sample ids of a row set, (R, n)."""
        if name not in self._rows:
            if name not in self.first.sets:
                where = f"{self.first.name}: a row set"
                raise check.unknown(where, name, sorted(self.first.sets), DataError)
            stacked = torch.stack([t.sets[name] for t in self.tasks]).to(self.device)
            self._rows[name] = stacked[self.of]
        return self._rows[name]

    def unaligned(self, party: str) -> Tensor:
        """Sample ids of the training rows `party` holds without a known partner, (R, n), n >= 0.

        Raises:
            DataError: their number differs between seeds.
        """
        return self._not_aligned(
            f"unaligned:{party}", [t.sets[f"local:{party}"] for t in self.tasks]
        )

    def unaligned_labelled(self) -> Tensor:
        """Sample ids of the active party's labelled training rows that are not aligned, (R, n).

        Raises:
            DataError: their number differs between seeds.
        """
        return self._not_aligned("unaligned:labelled", [t.active_labelled for t in self.tasks])

    def _not_aligned(self, name: str, rows: Sequence[Tensor]) -> Tensor:
        if name not in self._rows:
            left = [r[~torch.isin(r, t.sets["aligned"])] for r, t in zip(rows, self.tasks)]
            sizes = sorted({len(r) for r in left})
            if len(sizes) > 1:
                raise _uneven(self.first.name, name, (sizes[0], sizes[-1]))
            self._rows[name] = torch.stack(left).to(self.device)[self.of]
        return self._rows[name]

    def labels(self) -> Tensor:
        """Labels the active party was given, (R, N) int64, -1 where there is none.

        Of a quantity (R, N, 1), of several labels (R, N, L), NaN where there is none.
        """
        given = self.first.label.stack([t.training_labels for t in self.tasks], self.dtype)
        return given.to(self.device)[self.of]

    def silent(self, rows: Tensor) -> Tensor | None:
        """Which of the sample ids (R, b) add nothing to any loss; None where all do."""
        if all(t.silent is None for t in self.tasks):
            return None
        none = torch.zeros(len(self.first.y), dtype=torch.bool)
        marks = [none if t.silent is None else t.silent for t in self.tasks]
        return torch.stack(marks).to(self.device)[self.of].gather(1, rows)

    def priors(self) -> Tensor:
        """Class shares in the labelled training rows, (R, C) float64."""
        return torch.stack([t.prior for t in self.tasks]).to(self.device)[self.of]
