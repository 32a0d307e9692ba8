"""What one adversary legitimately has: the only thing an attack is given.

A View is a value: tables of messages, own columns, own models, public facts and the grants of the
threat model. It has no path to the trainer, to another party, or to the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from vflsec.core.batch_centring import FIRST, Centring
from vflsec.core.feature_schema import Schema, columns_of
from vflsec.core.needs import FORMS, GRANTS, Need, as_needs
from vflsec.core.reprs import as_table
from vflsec.errors import ThreatModelError
from vflsec.label import Label, make_label
from vflsec.nn.rows import in_pieces, sums, widen

__all__ = [
    "FORMS",
    "GRANTS",
    "Facts",
    "Known",
    "Need",
    "Schema",
    "Table",
    "Update",
    "View",
    "as_needs",
    "deal_out",
    "join_side_by_side",
    "scale_like",
]  # fmt: skip


@dataclass(frozen=True)
class Facts:
    """What every party knows about the run.

    Attributes:
        algorithm, phase: registered name, and the phase that just ended.
        active, parties: name of the active party; all names, active first.
        classes: number of classes; 1 if the label is a quantity, 0 if a row has several labels, and
            2 in a view that is of one of these.
        aggregation: how embeddings meet: ``concat``, ``sum``, ``mean``.
        top: True if a trainable top model stands between embeddings and loss.
        widths: cut-layer width by party.
        batch_size, epochs: of the phase that just ended.
        reduction: ``mean`` or ``sum`` of the batch loss.
        sends: (kind, sender, receiver) of every message kind of the run.
        extra: further public hyper-parameters of the algorithm; in a view of one of several labels
            ``of_label``, which one, from 0; in one of a question about a quantity ``question``, and
            ``unclear``, why it is not asked, or ''; ``top_input``, see :attr:`top_input`.
    """

    algorithm: str
    phase: str
    active: str
    parties: tuple[str, ...]
    classes: int
    aggregation: str = "concat"
    top: bool = True
    widths: Mapping[str, int] = field(default_factory=dict)
    batch_size: int = 0
    epochs: int = 0
    reduction: str = "mean"
    sends: frozenset[tuple[str, str, str]] = frozenset()
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def top_input(self) -> str:
        """What the top model gets: ``embeddings``, or what an algorithm says that it gets instead,
        so that nothing it would answer to embeddings can be replayed.
        """
        return str(self.extra.get("top_input", "embeddings"))

    @property
    def label(self) -> Label:
        """What kind of label it is; the names of several are not told."""
        return make_label(self.classes)


@dataclass(frozen=True)
class Table:
    """Recorded messages of one kind, row by row.

    Attributes:
        tensor: (m, ...) payload rows.
        rows: (m,) sample ids.
        epoch, step: (m,) when each row passed; step counts from the start of the phase.
            In the folded forms (``mean``, ``scaled``) every sample appears once and both are those
            of the last message.
    """

    tensor: Tensor
    rows: Tensor
    epoch: Tensor
    step: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"<Table: {' x '.join(str(n) for n in self.tensor.shape)}>"

    @cached_property
    def by_row(self) -> tuple[Tensor, Tensor]:
        """Sample ids (n,), ascending, and which of them each row is of, (m,)."""
        ids, place = self.rows.unique(return_inverse=True)
        return ids, place

    @cached_property
    def by_step(self) -> tuple[Tensor, Tensor]:
        """Which batch each row came in, (m,), and how many rows each one has."""
        return self.step.unique(return_inverse=True, return_counts=True)[1:]

    @cached_property
    def by_epoch(self) -> tuple[Tensor, Tensor]:
        """Epochs, ascending, and which of them each row came in, (m,)."""
        epochs, at = self.epoch.unique(return_inverse=True)
        return epochs, at

    def holding(self, tensor: Tensor) -> Table:
        """The same messages with other numbers (m, ...)."""
        out = replace(self, tensor=tensor)
        vars(out).update({k: v for k, v in vars(self).items() if k not in vars(out)})
        return out

    def take(self, mask: Tensor | slice) -> Table:
        """The rows that `mask` (bool, indices or a slice) names."""
        return Table(self.tensor[mask], self.rows[mask], self.epoch[mask], self.step[mask])

    def scaled(self) -> Table:
        """The rows divided by the root mean square row norm of the batch they came in.

        A batch is what passed in one step. A batch of zeros stays zero.
        """
        batch, size = self.batches()
        wide = widen(size[batch].to(self.tensor), self.tensor)
        return Table(self.tensor / wide, self.rows, self.epoch, self.step)

    def batches(self) -> tuple[Tensor, Tensor]:
        """Which batch each row came in, (m,), and each one's root mean square row norm, 1 for 0."""
        batch, count = self.by_step
        parts = self.tensor.flatten(1).split(1 << 16)  # in float64 for a moment
        square = torch.cat([p.double().square().sum(1) for p in parts])
        size = (sums(square, batch, len(count)) / count).sqrt()
        return batch, torch.where(size > 0, size, torch.ones_like(size))

    def folded(self, form: str) -> Table:
        """A table in the form ``all`` as one of the other forms: each sample id once, ascending."""
        if form == "scaled":
            return self.scaled().folded("mean")
        if form == "centred":
            return (self.freed() or self).folded("mean")
        order = torch.argsort(self.step, stable=True)
        rows, place = self.rows[order].unique(return_inverse=True)
        count = torch.bincount(place, minlength=len(rows))
        turn = torch.arange(len(order), device=order.device)
        last = torch.zeros_like(rows).scatter_reduce_(0, place, turn, "amax", include_self=False)
        first = torch.zeros_like(rows).scatter_reduce_(0, place, turn, "amin", include_self=False)
        if form == "mean":
            total = sums(self.tensor[order], place, len(rows))
            value = total / widen(count.to(total), total)
            return Table(value, rows, self.epoch[order][last], self.step[order][last])
        at = order[first if form == "first" else last]
        return Table(self.tensor[at], rows, self.epoch[at], self.step[at])

    def freed(self) -> Table | None:
        """By step, less what messages of a batch, or at a place, share; None if that is nothing."""
        kept = self.take(torch.argsort(self.step, stable=True))
        sizes = kept.step.unique_consecutive(return_counts=True)[1].tolist()
        parts = [(x.unsqueeze(0), None) for x in kept.tensor.split(sizes)]
        if not parts or not kept.tensor.is_floating_point():
            return None
        centring = Centring()
        centring.begin(parts[:FIRST])
        if not centring.any:
            return None
        freed = [centring.freed(x, learn=k >= FIRST)[0] for k, (x, _) in enumerate(parts)]
        return Table(torch.cat(freed), kept.rows, kept.epoch, kept.step)

    def of_samples(self) -> Table:
        """The messages that are of a row; itself where all are."""
        mine = self.rows >= 0
        return self if bool(mine.all()) else self.take(mine)

    def begin(self, steps: int) -> Table:
        """What passed in the first so many steps."""
        return self.take(self.step <= self.step.unique()[:steps][-1:])

    def of_rows(self, rows: Tensor) -> Tensor:
        """Payload rows of the given sample ids, in their order; ids must be there once.

        Raises:
            ThreatModelError: an id was never seen, or more than once (form ``all``).
        """
        order, held, once = self._by_id
        first = torch.searchsorted(held, rows)
        there = held[first.clamp_max(len(held) - 1)] == rows if len(held) else first < 0
        if not bool(there.all()):
            missing = int((~there).sum())
            raise ThreatModelError(f"{missing} sample ids are in no recorded message.")
        if not once and bool((torch.searchsorted(held, rows, right=True) - first > 1).any()):
            raise ThreatModelError(
                "sample ids passed more than once. Ask for the form 'mean', 'first' or 'last', or "
                "take one epoch."
            )
        return self.tensor.index_select(0, order[first])

    @cached_property
    def _by_id(self) -> tuple[Tensor, Tensor, bool]:
        """The rows by ascending sample id, these ids, and whether each is there once."""
        order = torch.argsort(self.rows)
        held = self.rows[order]
        return order, held, bool((held.diff() > 0).all())


Tables = Mapping[tuple[str, str, str, str], Table]
"""Recorded messages by way (sent or received), kind, form and sender or receiver."""


def deal_out(tables: Tables, groups: Sequence[Tensor], rng: torch.Generator) -> Tables:
    """All that came of a row given to another one of its group, that nothing came among it.

    Every message keeps its batch and its place in it; messages that are of no row are left out.

    Args:
        tables: to deal out.
        groups: sample ids (n,) that trade with each other, each id in one group; rows in none
            trade with each other, too.
        rng: where the order comes from.
    """
    of_rows = {key: table.of_samples() for key, table in tables.items()}
    if not of_rows:
        return of_rows
    came, grouped = torch.cat([table.rows for table in of_rows.values()]).unique(), [*groups]
    grouped += [came[~torch.isin(came, torch.cat([came[:0], *groups]))]]
    ids = torch.cat(grouped)
    given = torch.cat([g[torch.randperm(len(g), generator=rng).to(g.device)] for g in grouped])
    order = torch.argsort(ids)
    ids, given = ids[order], given[order]
    out = {}
    for key, table in of_rows.items():
        place = torch.searchsorted(ids, table.rows)
        dealt = replace(table, rows=given[place])
        ascending = len(place) > 1 and bool((place.diff() > 0).all())
        out[key] = dealt.take(torch.argsort(dealt.rows)) if ascending else dealt
    return out


@dataclass(frozen=True)
class Update:
    """One own optimisation step: what a party knows of it even where messages are encrypted.

    Attributes:
        epoch, step: when; step counts from the start of the phase.
        rows: (b,) sample ids of the batch.
        gradients: gradient of the loss by own parameter, ``"bottom.1.weight"``.
        weights: the same parameters before the step.
    """

    epoch: int
    step: int
    rows: Tensor
    gradients: Mapping[str, Tensor]
    weights: Mapping[str, Tensor]


@dataclass(frozen=True)
class Known:
    """Rows whose labels the adversary was granted; they never enter a score.

    `rows` (q,) sample ids, `labels` (q,) int64; ordered so that a prefix is a smaller grant,
    classes alternating. Labels that are a quantity are float64, in standard deviations from the
    training mean; of a yes/no question about one, `values` (q,) are those behind the answers.
    """

    rows: Tensor
    labels: Tensor
    values: Tensor | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def among(self, rows: Tensor) -> Known:
        """Those that are among sample ids (n,)."""
        return self.take(torch.isin(self.rows, rows))

    def take(self, at: Tensor) -> Known:
        """Those where `at` (q,) is true."""
        values = None if self.values is None else self.values[at]
        return Known(self.rows[at], self.labels[at], values)

    def of_class(self, c: int) -> Tensor:
        """Sample ids of the known rows of class `c`, in grant order."""
        return self.rows[self.labels == c]


@dataclass(frozen=True)
class References:
    """Systems of the same kind that answered the same questions.

    Each was trained by the adversary on a half of some records.

    Attributes:
        rows: (n,) sample ids of the records.
        answers: (k, T, n, C) log class shares that each system gave, at T moments.
        trained: (k, n) bool, whether the record was among those that the system was trained on.
    """

    rows: Tensor
    answers: Tensor
    trained: Tensor


def _lacks(what: str) -> ThreatModelError:
    return ThreatModelError(f"this attack needs {what}, not granted here.")


@dataclass(frozen=True)
class View:
    """One adversary's legitimate knowledge after a phase, for one replica.

    Attributes:
        adversary: the party or the coalition of parties.
        columns: own prepared input rows by party, (N, ...), indexed by sample id; rows a party
            does not hold are zero and not in `present`.
        present: (N,) bool by party: which rows the party holds.
        schema: layout of the columns, by party.
        tables: recorded messages; use :meth:`received` and :meth:`sent`.
        models: own modules: ``models[party]["bottom"]`` as trained, unstacked, in eval mode.
        facts: public facts.
        targets: sample ids to be guessed by split (``train``, ``test``); no known row is in them.
        known: granted labelled rows, or None.
        prior: granted class shares (C,), or None.
        aux: granted auxiliary rows of victims, {party: (rows (q,), their prepared columns)}, or
            None; `schema` then covers the victims.
        encoders: own rows -> own embedding by party, where that is more than ``bottom``.
        updates: own recorded optimisation steps by party, in order (need ``parameter_gradient``).
        references: systems that the adversary trained to compare with, or None.
        labels: own labels by sample id, of the label party where it guesses something else: (N,)
            int64 classes, -1 where there is none, or numbers (N,) or (N, k), NaN where there is
            none; else None.
    """

    adversary: tuple[str, ...]
    columns: Mapping[str, Tensor]
    present: Mapping[str, Tensor]
    schema: Mapping[str, Schema]
    tables: Tables
    models: Mapping[str, Mapping[str, nn.Module]]
    facts: Facts
    targets: Mapping[str, Tensor]
    known: Known | None = None
    prior: Tensor | None = None
    aux: Mapping[str, tuple[Tensor, Tensor]] | None = None
    encoders: Mapping[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)
    updates: Mapping[str, Sequence[Update]] = field(default_factory=dict)
    references: References | None = None
    labels: Tensor | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, dict):  # whoever has a View cannot change what is in it
                object.__setattr__(self, name, MappingProxyType(value))

    def __repr__(self) -> str:
        return f"<View of {'; '.join(' '.join(row).strip() for row in self._describe())}>"

    def _repr_html_(self) -> str:
        (_, title), *rows = self._describe()
        return as_table(f"View of {title}", rows)

    def _describe(self) -> list[tuple[str, str]]:
        """What the adversary has, one line each; no values."""
        who, f = " + ".join(self.adversary), self.facts
        out = [("", f"{who} after {f.phase} of {f.algorithm}")]
        out += [("own columns", f"of {p}, {int(self.present[p].sum())} rows") for p in self.holders]
        forms: dict[tuple[str, str], list[str]] = {}
        for (way, kind, form, party), table in self.tables.items():
            forms.setdefault((way, f"{kind} by {party}"), []).append(f"{form} {len(table)}")
        out += [(way, f"{kind} ({', '.join(rows)} rows)") for (way, kind), rows in forms.items()]
        if self.known is not None:
            out.append(("known labels", str(len(self.known))))
        out += [("to guess", f"{len(rows)} {split} rows") for split, rows in self.targets.items()]
        return out

    @property
    def party(self) -> str:
        """The adversary's first (usually only) party."""
        return self.adversary[0]

    @property
    def target_rows(self) -> Tensor:
        """All rows to be guessed, every split, (n,)."""
        return torch.cat([self.targets[s] for s in sorted(self.targets)])

    def received(self, kind: str, form: str = "mean", party: str | None = None) -> Table:
        """What `party` received of `kind`; by default what all of the adversary's parties did.

        The payloads of a coalition are put side by side, flattened, for the rows that all of its
        parties received which received any.

        Raises:
            ThreatModelError: nothing of that kind was received, or not in that form.
        """
        return self._gathered("received", kind, form, party)

    def sent(self, kind: str, form: str = "last", party: str | None = None) -> Table:
        """What `party` (or the coalition, side by side) sent of `kind`, after its own policies."""
        return self._gathered("sent", kind, form, party)

    def _gathered(self, way: str, kind: str, form: str, party: str | None) -> Table:
        asked = self.adversary if party is None else (party,)
        found = [t for p in asked if (t := self._table(way, kind, form, p)) is not None]
        if not found:
            party = "+".join(asked)
            there = ", ".join(f"{k} ({f}) {w} by {p}" for w, k, f, p in sorted(self.tables))
            raise ThreatModelError(
                f"{kind!r} in form {form!r} {way} by {party!r} is not in this view, which has "
                f"{there or 'no messages'}. Declare the need in the attack."
            )
        return found[0] if len(found) == 1 else join_side_by_side(found)

    def _table(self, way: str, kind: str, form: str, party: str) -> Table | None:
        """What is there in this form, or else in the one that it is an addition to."""
        whole = (way, kind, form, party) in self.tables
        return self.tables.get((way, kind, form if whole else form.removesuffix("+"), party))

    def exchanges(self, kind: str) -> list[Table]:
        """What was received of `kind` in each exchange of a step by itself, the first one first.

        There is one where the attack did not ask for what comes again (``last+``).
        """
        tables, form = [self.received(kind, "last")], "last#2"
        while any(("received", kind, form, p) in self.tables for p in self.adversary):
            tables.append(self.received(kind, form))
            form = f"last#{len(tables) + 1}"
        return tables

    def require_known(self) -> Known:
        """The granted labelled rows.

        Raises:
            ThreatModelError: none were granted.
        """
        if self.known is None or len(self.known) == 0:
            raise _lacks("known_rows")
        return self.known

    @property
    def victims(self) -> tuple[str, ...]:
        """The parties whose columns were granted in part, or whose models were."""
        return tuple(p for p in self.schema if p not in self.adversary)

    def require_aux(self) -> tuple[Tensor, Tensor]:
        """The granted rows of the victims and their columns as numbers: (q,), (q, d).

        Raises:
            ThreatModelError: none were granted.
        """
        if not self.aux:
            raise _lacks("aux_rows")
        rows = next(iter(self.aux.values()))[0]
        parts = [self.schema[p].design(x) for p, (_, x) in self.aux.items()]
        return rows, torch.cat(parts, dim=1)

    @property
    def aux_columns(self) -> Tensor:
        """Of which column each number of :meth:`require_aux` is, (d,) int64: codes are of one."""
        columns = columns_of(self.schema[p] for p in self.aux or {})
        return torch.tensor(columns, dtype=torch.int64, device=self.target_rows.device)

    def require_labels(self) -> Tensor:
        """Own labels, (N,) int64 classes.

        Raises:
            ThreatModelError: it has none.
        """
        if self.labels is None or self.labels.is_floating_point():
            raise _lacks("labels of its own")
        return self.labels

    def require_prior(self) -> Tensor:
        """The granted class shares, (C,).

        Raises:
            ThreatModelError: they were not granted.
        """
        if self.prior is None:
            raise _lacks("the class prior")
        return self.prior

    def model(self, part: str = "bottom", party: str | None = None) -> nn.Module:
        """One own module as trained, in eval mode; ``"bottom.cross"`` is a module within one.

        Raises:
            ThreatModelError: the adversary has no such module.
        """
        name = party or self.party
        outer, _, inner = part.partition(".")
        try:
            return self.models[name][outer].get_submodule(inner)
        except (KeyError, AttributeError):
            raise ThreatModelError(f"{name!r} has no own {part!r} model here.") from None

    def embed(self, rows: Tensor, party: str | None = None, *, part: str = "bottom") -> Tensor:
        """Own embedding of own rows (n, d), by the trained own model in eval mode, no gradient.

        A coalition's embeddings are put side by side unless `party` names one of them; a member
        without columns has none. `part` names the own module that embeds, as in :meth:`model`.
        """
        if party is None and len(self.adversary) > 1:
            parts = [self.embed(rows, p, part=part).flatten(1) for p in self.holders]
            return torch.cat(parts, dim=1)
        name = party or self.party
        own = part == "bottom" and name in self.encoders
        model = self.encoders[name] if own else self.model(part, name)
        return in_pieces(model, self.columns[name][rows])

    @property
    def holders(self) -> tuple[str, ...]:
        """The parties of the adversary that have columns."""
        return tuple(p for p in self.adversary if not self.schema[p].empty)

    def design(self, rows: Tensor) -> Tensor:
        """Own columns of `rows` as a numeric matrix (n, p), all parties of the adversary."""
        parts = [self.schema[p].design(self.columns[p][rows]) for p in self.adversary]
        return torch.cat(parts, dim=1)

    def own(self, rows: Tensor) -> Tensor:
        """All that the adversary has of `rows` by itself as numbers (n, p): columns, own labels."""
        columns = self.design(rows)
        if self.labels is None:
            return columns
        told = _as_numbers(self.labels[rows.to(self.labels.device)], self.facts.classes)
        return torch.cat([columns, told.to(columns)], dim=1)

    def until(self, epoch: int) -> View:
        """The same view as it was after `epoch`, as far as messages were recorded in form ``all``.

        Other forms of the same messages are folded from those.
        """
        tables = {}
        for (way, kind, form, party), table in self.tables.items():
            bare = form.removesuffix("+").partition("#")[0]
            whole = self.tables.get((way, kind, form.replace(bare, "all"), party))
            if whole is not None:
                past = whole.take(whole.epoch <= epoch)
                table = past if bare == "all" else past.folded(bare)
            tables[way, kind, form, party] = table
        return replace(self, tables=tables)

    def for_attribute(self, column: str, ask: str = "", category: int = 0) -> View:
        """The same view as if a victim's column were the label, known on the granted rows.

        `ask` and `category` are as for :meth:`vflsec.core.feature_schema.Schema.attribute`, with
        the granted rows for its `cut`.
        """
        rows, _ = self.require_aux()
        assert self.aux is not None
        victim, (_, x) = next(iter(self.aux.items()))
        codes, classes = self.schema[victim].attribute(x, column, ask, category)
        shares = torch.bincount(codes, minlength=classes).double() / len(codes)
        facts, values = replace(self.facts, classes=classes), None
        if ask:
            values = self.schema[victim].column(x, column).double()
            facts = replace(facts, extra={**facts.extra, "question": ask})
        told = self.labels
        return replace(
            self, known=Known(rows, codes, values), prior=shares, facts=facts,
            labels=None if told is None else _as_numbers(told, self.facts.classes),
        )  # fmt: skip


def _as_numbers(labels: Tensor, classes: int) -> Tensor:
    """Own labels (N,) or (N, k) as numbers (N, k): classes one-hot, zeros where there is none."""
    if labels.is_floating_point():
        return labels.reshape(len(labels), -1).nan_to_num(0.0)
    hot = torch.nn.functional.one_hot(labels.clamp_min(0), classes)
    return torch.where(labels.unsqueeze(1) < 0, 0, hot).double()


def scale_like(table: Table, like: Table) -> Table:
    """`table` with its finite numbers as large, in root mean square, as those of `like`.

    Side by side neither then drowns the other: noise under one name would hide a label under
    another from whatever reads lengths or directions.
    """
    sizes = [
        t.tensor.double().where(t.tensor.isfinite(), 0.0).square().mean().sqrt()
        for t in (table, like)
    ]
    if not all(bool(s > 0) for s in sizes):
        return table
    return replace(table, tensor=(table.tensor * (sizes[1] / sizes[0])).to(table.tensor))


def join_in_turn(tables: Sequence[Table]) -> Table:
    """One table with the rows of the first, then of the second, and so on."""
    fields = zip(*((t.tensor, t.rows, t.epoch, t.step) for t in tables), strict=True)
    return Table(*(torch.cat(each) for each in fields))


def join_side_by_side(tables: Sequence[Table]) -> Table:
    """One table from several parties' tables: rows that all have, payloads flattened and joined.

    Raises:
        ThreatModelError: rows that passed more than once passed at different times.
    """
    first = tables[0]
    if all(torch.equal(t.rows, first.rows) and torch.equal(t.step, first.step) for t in tables[1:]):
        wide = torch.cat([t.tensor.flatten(1) for t in tables], dim=1)
        return Table(wide, first.rows, first.epoch, first.step)
    common = first.rows.unique()
    for t in tables[1:]:
        common = common[torch.isin(common, t.rows)]
    wide = torch.cat([t.of_rows(common).flatten(1) for t in tables], dim=1)
    index = torch.argsort(first.rows)
    at = index[torch.searchsorted(first.rows[index], common)]
    return Table(wide, common, first.epoch[at], first.step[at])
