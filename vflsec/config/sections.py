"""The sections of a scenario, as strict models: no unknown key, no silent conversion.

The sentence below a key is its reference: `vflsec show data`, the documentation and the JSON schema
that editors read are made from it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from vflsec.data.table_spec import Aggregate, IdMatch
from vflsec.label import TaskName

Fraction = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
Strength = Annotated[float, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, le=2**62)]
Names = Annotated[list[str], Field(min_length=1)]
_OPEN = ConfigDict(extra="allow", strict=True, frozen=True, use_attribute_docstrings=True)


class _Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True
    )


class Divide(_Section):
    """The columns of `file` divided between an active and a passive party, as `[data.divide]`.

    One of `importance`, `alpha` and `correlation`; see `vflsec.data.divide`.
    """

    importance: Fraction | None = None
    """Share of the columns' importance that the passive parties have together."""
    alpha: Annotated[float, Field(gt=0)] | None = None
    """Columns fall to parties with probabilities drawn from Dirichlet(alpha): VertiBench's
    division by importance."""
    correlation: Annotated[float, Field(ge=0, le=1)] | None = None
    """VertiBench's division by correlation: 0 is the least between parties, 1 the most."""
    parties: Annotated[int, Field(ge=2)] = 2
    """How many parties: `active` and `passive`, or `active`, `passive1`, `passive2`, ..."""
    draw: Seed = 0
    """Another number gives another division; the seeds of the audit all have the same."""


class Data(_Section):
    """One data set: a registered one by `name`, or the user's own tables.

    Own tables: `file` (one table; `columns` groups its columns by party) or `files` (one table for
    each party), with `label`, and `id` where rows must be aligned. Paths are relative to the
    scenario. Several `[[data]]` sections are audited one after another.
    """

    name: str = ""
    """A registered data set (`vflsec list datasets`); with own tables the name in reports, which is
    that of `file`, or the parties of `files` (`bank_shop`), if empty."""
    params: dict[str, Any] = {}
    """Parameters of a registered data set (`vflsec show NAME`)."""
    file: str = ""
    """One table for all parties: CSV, CSV in gzip, or Parquet."""
    files: dict[str, str] = {}
    """A table for each party, by the party's name."""
    columns: dict[str, list[str]] = {}
    """Feature columns of each party; needed with `file`, unless it is divided."""
    divide: Divide | None = None
    """Instead of `columns`: how those of `file` are divided between `parties` (2), by `importance`
    (the passive share of it), `alpha` (Dirichlet) or `correlation` (0 to 1); `draw` is another."""
    id: str | dict[str, str] = ""
    """The column that links rows; by party where it is called otherwise in each table."""
    id_match: list[IdMatch] = []
    """What ids may differ in and still match: `strip` (blanks and hidden marks), `punctuation`,
    `casefold`, `zeros` (at the front)."""
    duplicates: Literal["", "first"] = ""
    """`first` keeps the first of several rows that are equal in every column."""
    aggregate: dict[str, Aggregate] = {}
    """How several rows of one id become one, by `column` or `party.column`: `mean`, `sum`, `min`,
    `max`, `count`, `first` or `last`. Other columns of such a table are left out."""
    missing: dict[str, Names] = {}
    """Values that mean "none", such as `-999` or `unknown`, by `column` or `party.column`."""
    label: str | Names = ""
    """The column to predict; a list with `task = "multilabel"`. The party whose table has it is the
    active party."""
    active: str = ""
    """The party with the labels, where `columns` alone does not say."""
    categorical: list[str] = []
    """Columns whose numbers are codes, as `column` or `party.column`."""
    numeric: list[str] = []
    """Columns that must be numbers, as `column` or `party.column`."""
    drop: list[str] = []
    """Columns to leave out."""
    split: str = ""
    """A column that says `train`, `validation` or `test` of each row."""
    group: str = ""
    """A column whose equal values stay on one side of a split, for example a person."""
    merge_classes: dict[str, Names] = {}
    """Classes that become one: new name = list of old names."""
    drop_classes: list[str] = []
    """Classes whose rows count as rows without a label."""
    label_edges: list[float] = []
    """Cut points that make classes of a label that is a quantity, in rising order."""
    task: TaskName | None = None
    """What the label is: a class (the default), a quantity, a count, or several yes/no labels."""
    separator: str | dict[str, str] = ""
    """What separates fields of a text table, by party where it differs; found if not given."""
    decimal: str | dict[str, str] = ""
    """Decimal mark, `.` or `,`, by party where it differs; found if not given."""
    encoding: str | dict[str, str] = ""
    """Encoding of a text table, such as `utf-16`, by party where it differs; else UTF-8."""
    max_bytes: Count | None = None
    """Most bytes of one table, unpacked; 2 GiB if not given."""
    max_cells: Count | None = None
    """Most cells (rows x columns) of one table; 200 million if not given."""
    max_columns: Count | None = None
    """Most columns of one table; 50,000 if not given."""
    validation: Fraction | None = None
    """Share of the rows in common for choosing the epoch; 0.15 if not given."""
    test: Fraction | None = None
    """Share of the rows in common for testing; 0.25 if not given."""
    labelled: Count | None = None
    """How many training rows keep their label; all if not given."""
    aligned: Count | Annotated[float, Field(gt=0, le=1)] | None = None
    """Share (0 to 1) or number of the common training rows that count as aligned."""
    scale: Literal["zscore", "rank"] | None = None
    """Numbers become z-scores (the default) or normal ranks, fitted on training rows."""
    shuffle_labels: bool = False
    """Train on permuted labels: the null world, in which nothing can leak."""


class Party(_Section):
    """How one party's bottom model is built, as `[parties.NAME]`.

    What is not said is the algorithm's default.
    """

    module: str = ""
    """A model of your own, `package.module:Name`, found beside the scenario."""
    args: dict[str, Any] = {}
    """Arguments of its constructor, beside `schema` and `out`."""
    weights: str = ""
    """A safetensors file, beside the scenario, whose numbers the model starts from."""
    hidden: list[Count] | None = None
    """Widths of the hidden layers."""
    cut: Count | None = None
    """Width of the embedding."""


class Algorithm(_Section):
    """A training algorithm; further keys are its hyper-parameters (`vflsec show NAME`).

    `[algorithm.phases.NAME] KEY = value` is another way to write the parameter `NAME_KEY`.
    """

    model_config = _OPEN
    name: str = Field(min_length=1)
    """A registered algorithm (`vflsec list algorithms`)."""
    phases: dict[str, dict[str, Any]] = {}
    """Hyper-parameters by phase."""


class Defense(_Section):
    """A policy on one party; further keys are its hyper-parameters (`vflsec show NAME`).

    Sections with the same `choice` are alternatives: each training has exactly one of them. All
    others apply together.
    """

    model_config = _OPEN
    name: str = Field(min_length=1)
    """A registered defense (`vflsec list defenses`)."""
    party: str = ""
    """Who applies it: a party, `active`, `passive` or `all`; the defense's own owner if empty."""
    choice: str = ""
    """Sections that share this word are alternatives."""
    strength: Annotated[list[Strength], Field(min_length=1)] | None = None
    """The swept grid: a number or a list; 0 is the undefended system."""


class Attack(_Section):
    """An attack with its adversary and grants; further keys are its hyper-parameters."""

    model_config = _OPEN
    name: str = Field(min_length=1)
    """A registered attack (`vflsec list attacks`)."""
    adversary: str | Names = ""
    """`passive` (each passive party in turn), `active`, one party, `coordinator` (who holds the key
    of a regression), or several that collude; if empty, who receives what the attack reads."""
    known_rows: Annotated[int, Field(ge=0)] = 20
    """Labelled rows the attacker was given; its controls get the same, and they are not scored."""
    prior: bool = True
    """Whether the attacker knows the shares of the classes."""
    aux_rows: Annotated[int, Field(ge=0)] = 0
    """Rows of the victim's columns that the attacker was given."""
    peer_model: bool = False
    """Whether the attacker has the victim's model."""
    victim: str = ""
    """The party that is attacked; the one of the attack's own target if empty."""
    over_time: bool = False
    """Also attack after every epoch."""
    dosing: list[Annotated[float, Field(gt=0, lt=1)]] = []
    """Shares of rows over which a planted leak is laid, to learn what the attack would find."""
    pictures: Annotated[int, Field(ge=0, le=12)] = 0
    """Images to draw beside what an attack on columns made of them; the results then hold them."""


class Audit(_Section):
    """How often, how sure, and against which references."""

    seeds: Annotated[list[Seed], Field(min_length=1)] = [0, 1, 2, 3, 4]
    """A number of seeds, or a list of them."""
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.95
    """Level of intervals and gates."""
    references: list[Literal["local", "logistic", "boosting"]] = ["local", "logistic", "boosting"]
    """Models to compare utility with: the active party alone, and pooled tables."""
    baseline: str | None = None
    """What trains the AUC that relative improvement is over, as reports name it: `fpd`."""
    dtype: Literal["float32", "float64", "tf32", "bf16"] = "float32"
    """Precision of training; `tf32` and `bf16` keep float32 and round factors of products."""
    positive_control: bool | Literal["always"] = True
    """Whether gates also train on a planted leak, to show that attacks work; `always`: without a
    gate, too."""
    attacker: Literal["default", "strong"] = "default"
    """`strong` also searches each attack's settings on drawn worlds of the same shape."""
    canaries: bool = True
    """Whether what claims an epsilon is trained again with canaries, to test the claim."""
    sample: Annotated[int, Field(ge=20)] | None = None
    """Of more training or test rows than this, attacks guess so many, drawn anew for each seed."""
    messages: Literal["all", "sample"] = "all"
    """Whose messages attacks are given: those of all rows, or of the rows that they guess or know
    alone (`sample`), which are then all that is kept in memory."""
    timeout: Annotated[float, Field(gt=0)] = 3600.0
    """Seconds after which an attack on one cell is given up and counts as failed."""


class Gate(_Section):
    """A limit on one figure, `max` or `min`; `*` stands for all."""

    metric: str = "advantage"
    """`advantage`, `utility`, `utility_drop`, or an attack's own figure such as `auc`."""
    max: float | None = None
    """Largest value that passes."""
    min: float | None = None
    """Smallest value that passes."""
    attack: str = "*"
    """Only this attack."""
    adversary: str = "*"
    """Only this adversary."""
    dataset: str = "*"
    """Only this data set."""
    algorithm: str = "*"
    """Only this algorithm."""
    phase: str = "*"
    """Only this phase of training."""
    split: str = "*"
    """Only these rows: `train`, `validation` or `test`."""
    target: str = "*"
    """Only attacks on this: `label`, `feature`, `attribute` and so on."""
    defense: str = "*"
    """Only this defense, such as `iso` or `iso + noise`; `defended`: any; `none`: no defense."""
    strength: Strength | None = None
    """Only this strength of the grid."""
    of: str = ""
    """Metric of the advantage, such as `exposed` or `r2_column`; the attack's own if empty."""
    confidence: Annotated[float, Field(gt=0.5, lt=1)] | None = None
    """Level of this gate; that of `[audit]` if not given."""
    detect: Annotated[float, Field(gt=0)] | None = None
    """Pass only if a leak of this size could have been detected; beside `max`."""
    name: str = ""
    """What reports call the gate."""


class Gates(_Section):
    """Gates that stand by themselves."""

    gate: Annotated[list[Gate], Field(min_length=1)]
    """Limits that a pipeline acts on."""


class Root(_Section):
    """A whole scenario."""

    name: str = ""
    """What reports call the audit; the file's name if empty."""
    data: Annotated[list[Data], Field(min_length=1)]
    """What is trained on."""
    parties: dict[str, Party] = {}
    """Bottom models by party."""
    algorithm: Annotated[list[Algorithm], Field(min_length=1)]
    """How the parties train together."""
    defense: list[Defense] = []
    """Policies, each with its grid of strengths."""
    attack: list[Attack] = []
    """Who tries to learn what, and how."""
    audit: Audit = Audit()
    """Seeds, confidence, references."""
    gate: list[Gate] = []
    """Limits that a pipeline acts on."""
