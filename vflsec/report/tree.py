"""A report as plain values: what is said, in which order, and who is shown it; without a medium.

:func:`vflsec.report.build.build_report` makes one from an audit. Console, HTML, Markdown and
notebooks lay out what stands here: they decide nothing, and look nothing up elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Flag, StrEnum, auto
from typing import Any, TypeAlias


class View(Flag):
    """Who is shown a report, and how much of it."""

    PAGE = auto()
    STATEMENT = auto()
    SUMMARY = auto()
    TERMINAL = auto()
    WHOLE = auto()
    NOTEBOOK = auto()


class Kind(StrEnum):
    """What a column of a table holds."""

    TEXT = "text"
    NAME = "name"
    NUMBER = "number"
    PROSE = "prose"
    STATE = "state"
    GROUP = "group"


class Tone(StrEnum):
    """What a text or figure means to its reader, to be shown by colour or weight."""

    PLAIN = ""
    SOFT = "soft"
    LEAD = "lead"
    WARNING = "warning"
    GOOD = "good"
    LEAK = "leak"


TONES: Mapping[str, Tone] = {
    "PASS": Tone.GOOD, "FAIL": Tone.LEAK, "INCONCLUSIVE": Tone.WARNING,
}  # fmt: skip
"""Of each verdict of a gate."""


EVERYWHERE = ~View(0)
_CONTENTS = ("text", "items", "steps", "rows", "figures", "facts", "answers", "blocks", "lines")
"""Fields with what a block holds; each kind of block has one of them."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """One piece of a section.

    Attributes:
        views: who is shown it.
    """

    views: View = EVERYWHERE

    @property
    def kind(self) -> str:
        """What it is, by which a page lays it out."""
        return type(self).__name__.lower()

    @property
    def is_empty(self) -> bool:
        """Whether it holds nothing: such a block is shown to nobody, its title neither."""
        return not all(getattr(self, name, True) for name in _CONTENTS)

    def seen_by(self, view: View) -> Any:
        """The block as `view` is shown it."""
        return self


@dataclass(frozen=True)
class Paragraph(Block):
    """Some sentences; `strong` are words before them, and a `command` to copy may end them."""

    text: str
    tone: Tone = Tone.PLAIN
    strong: str = ""
    command: str = ""


@dataclass(frozen=True)
class Bullets(Block):
    """A list of sentences, of which a page folds those after the first `most`."""

    items: tuple[str, ...]
    most: int = 1000
    tone: Tone = Tone.PLAIN


class StepKind(StrEnum):
    """What to do next, as a code: of verdicts the most urgent first, then of a search."""

    ADD_ATTACK = "add_attack"
    SET_LIMIT = "set_limit"
    RESUME = "resume"
    MERGE = "merge"
    GATE_FAILS = "gate_fails"
    ROSE = "rose"
    NOT_VALIDATED = "not_validated"
    VALIDATE_BY_SEEDS = "validate_by_seeds"
    FAILED_RUNS = "failed_runs"
    REVERSED_RANKING = "reversed_ranking"
    NO_ROOM = "no_room"
    STUCK = "stuck"
    MORE_SEEDS = "more_seeds"
    OPEN = "open"
    UNDETECTED = "undetected"
    UNGATED = "ungated"
    KEEP_BASELINE = "keep_baseline"
    UNTESTED = "untested"
    USE_POINT = "use_point"
    STRONGER = "stronger"
    WEAKER = "weaker"
    BETWEEN = "between"
    LOOSER = "looser"
    OTHER_DEFENSES = "other_defenses"
    FIXED_DEFENSES = "fixed_defenses"
    NO_OTHER_DEFENSE = "no_other_defense"


@dataclass(frozen=True)
class Step:
    """One thing to do now.

    Attributes:
        kind: which.
        text: the reason and what to do, in short sentences.
        command: that does it; '' if none does.
        options: of `vflsec tune`, with their new values, in turn, where it is another search.
    """

    kind: StepKind
    text: str
    command: str = ""
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Steps(Block):
    """What to do next, most urgent first."""

    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Column:
    """A column of a table: its head, what it holds, and who is shown it."""

    head: str
    kind: Kind = Kind.TEXT
    views: View = EVERYWHERE


def make_columns(
    *heads: str, name: str = "", numbers: Collection[str] = (), prose: Collection[str] = (),
    states: Collection[str] = (),
) -> tuple[Column, ...]:  # fmt: skip
    """Columns by their heads: one names each row, some hold numbers, prose or states, the others
    texts.
    """
    kinds = dict.fromkeys(numbers, Kind.NUMBER) | dict.fromkeys(prose, Kind.PROSE)
    kinds |= dict.fromkeys(states, Kind.STATE) | {name: Kind.NAME}
    return tuple(Column(head, kinds.get(head, Kind.TEXT)) for head in heads)


@dataclass(frozen=True)
class Cell:
    """A cell: its text, what it means, a remark that a page shows on demand, and what a page links
    it to.
    """

    text: str
    tone: Tone = Tone.PLAIN
    hint: str = ""
    link: str = ""


@dataclass(frozen=True)
class Table(Block):
    """A table.

    Attributes:
        caption: what it shows.
        columns: see :class:`Column`.
        rows: a cell for each column; a plain text is a cell without more.
        label: a short name of it; the caption if empty.
        source: file that holds all rows, where a medium shows the first ones only.
    """

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell | str, ...], ...]
    label: str = ""
    source: str = "report.html"

    def seen_by(self, view: View) -> Table:
        """The table without the columns that `view` is not shown."""
        kept = [i for i, c in enumerate(self.columns) if view in c.views]
        if len(kept) == len(self.columns):
            return self
        rows = tuple(tuple(row[i] for i in kept) for row in self.rows)
        return replace(self, columns=tuple(self.columns[i] for i in kept), rows=rows)


@dataclass(frozen=True)
class Figure:
    """A figure: its title, what it shows in words, and what is drawn."""

    title: str
    alt: str
    chart: Any
    prefix: str


@dataclass(frozen=True)
class Figures(Block):
    """Figures side by side."""

    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class Fact:
    """A term with its value, and a hash or the like that ends it."""

    term: str
    text: str
    code: str = ""


@dataclass(frozen=True)
class Facts(Block):
    """Terms with what they stand for."""

    facts: tuple[Fact, ...]


@dataclass(frozen=True)
class Answer:
    """A question of the first screen, and its answer in short lines, one for each thing said."""

    question: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Answers(Block):
    """Questions with their answers."""

    answers: tuple[Answer, ...]


@dataclass(frozen=True)
class Folded(Block):
    """Blocks below a title that a page can fold."""

    title: str
    blocks: tuple[Block, ...]
    open: bool = False

    def seen_by(self, view: View) -> Folded:
        """The same with the blocks that `view` is shown."""
        return replace(self, blocks=_seen_by(view, self.blocks))


@dataclass(frozen=True)
class Verbatim(Block):
    """Lines as they are."""

    lines: tuple[str, ...]


@dataclass(frozen=True)
class GateLine:
    """One gate at one point.

    Attributes:
        verdict: its code, ``PASS``, ``FAIL`` or ``INCONCLUSIVE``.
        label: the gate in words.
        where: the point; `short` without the training, where there is one only.
        reason: why, in a sentence.
        value, low, high: with digits that put them on their side of the limit.
        seeds: how many.
        attack: which attack decided, '' for none; `by` whom, on which `rows`.
        views: who is shown it.
    """

    verdict: str
    label: str
    where: str
    short: str
    reason: str
    value: str
    low: str
    high: str
    seeds: int
    attack: str = ""
    by: str = ""
    rows: str = ""
    views: View = EVERYWHERE


@dataclass(frozen=True)
class Gates(Block):
    """Every gate at every point, with its verdict."""

    lines: tuple[GateLine, ...]
    caption: str = ""

    def seen_by(self, view: View) -> Gates:
        """The gates that `view` is shown."""
        return replace(self, lines=tuple(line for line in self.lines if view in line.views))


@dataclass(frozen=True)
class Signatures(Block):
    """Lines to sign on."""

    lines: tuple[str, ...]


Content: TypeAlias = "Block | Section"


@dataclass(frozen=True)
class Section(Block):
    """A title with what stands below it.

    Attributes:
        title: '' where what stands above is its title.
        blocks: see :class:`Block`; sections may nest.
        key: what links name it by.
        nav: its name in the list of links, '' for none.
        tone: of the title.
    """

    title: str
    blocks: tuple[Content, ...]
    key: str = ""
    nav: str = ""
    tone: Tone = Tone.PLAIN

    def seen_by(self, view: View) -> Section:
        """The section with the blocks that `view` is shown."""
        return replace(self, blocks=_seen_by(view, self.blocks))


def _seen_by(view: View, blocks: tuple[Content, ...]) -> tuple[Any, ...]:
    seen = (block.seen_by(view) for block in blocks if view in block.views)
    return tuple(block for block in seen if not block.is_empty)


@dataclass(frozen=True)
class Report:
    """What an audit found, as it is told.

    Attributes:
        name: of the audit.
        verdict: over all that was judged: ``PASS``, ``FAIL``, ``INCONCLUSIVE``, ``UNFINISHED``;
            ``NO GATE``, or against a baseline ``NO RISE``, where nothing limits a leak.
        scope: the verdict with what it holds for.
        made_by: which vflsec.
        tone: of the verdict; a PASS above a leak that no gate limits, or one that warns, is no
            good news alone.
        sections: of each view, in order.
    """

    name: str
    verdict: str
    scope: str
    made_by: str
    tone: Tone = Tone.PLAIN
    sections: Mapping[View, tuple[Section, ...]] = field(default_factory=dict)

    def seen_by(self, view: View) -> tuple[Section, ...]:
        """The sections of a view, with what it is shown of each."""
        return _seen_by(view, self.sections[view])
