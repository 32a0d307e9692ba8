"""The sections of a scenario, as strict models: no unknown key, no silent conversion."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Algorithm", "Attack", "Audit", "Data", "Defense", "Gate", "Party", "Root"]

Fraction = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
Strength = Annotated[float, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, le=2**62)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Data(_Section):
    """One data set: a registered one by `name`, or the user's own tables.

    Own tables: `file` (one table; `columns` groups its columns by party) or `files` (one table for
    each party), with `label`, and `id` where rows must be aligned. `split` names a column that says
    train or test, `group` one whose rows stay together. Paths are relative to the scenario.
    The rest says how rows are split by seed; see `vflsec.data.prepare.make_task`.
    """

    name: str = ""
    params: dict[str, Any] = {}
    file: str = ""
    files: dict[str, str] = {}
    columns: dict[str, list[str]] = {}
    id: str = ""
    label: str = ""
    active: str = ""
    categorical: list[str] = []
    numeric: list[str] = []
    drop: list[str] = []
    split: str = ""
    group: str = ""
    validation: Fraction | None = None
    test: Fraction | None = None
    labelled: Count | None = None
    aligned: Count | Annotated[float, Field(gt=0, le=1)] | None = None
    scale: Literal["zscore", "rank"] | None = None
    shuffle_labels: bool = False

    @property
    def is_tables(self) -> bool:
        """True for the user's own tables."""
        return bool(self.file or self.files)


class Party(_Section):
    """How one party's bottom model is built; what is not said is the algorithm's default.

    `module` is ``"package.module:Name"``, `hidden` the widths of its hidden layers, `cut` the width
    of its embedding.
    """

    module: str = ""
    hidden: list[Count] | None = None
    cut: Count | None = None


class Algorithm(_Section):
    """A training algorithm; further keys are its hyper-parameters.

    ``[algorithm.phases.NAME] KEY = value`` is another way to write the parameter ``NAME_KEY``.
    """

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    name: str = Field(min_length=1)
    phases: dict[str, dict[str, Any]] = {}


class Defense(_Section):
    """A policy on one party; `strength` is the swept grid, further keys are hyper-parameters.

    Sections with the same `choice` are alternatives: each training has exactly one of them. All
    others apply together.
    """

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    name: str = Field(min_length=1)
    party: str = ""
    choice: str = ""
    strength: Annotated[list[Strength], Field(min_length=1)] | None = None


class Attack(_Section):
    """An attack with its adversary and grants; further keys are hyper-parameters.

    `adversary` is ``"passive"`` (each passive party in turn, the default), ``"active"``, one party,
    or a list of parties that collude.
    """

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    name: str = Field(min_length=1)
    adversary: str | Annotated[list[str], Field(min_length=1)] = "passive"
    known_rows: Annotated[int, Field(ge=0)] = 20
    prior: bool = True
    aux_rows: Annotated[int, Field(ge=0)] = 0
    peer_model: bool = False
    victim: str = ""
    over_time: bool = False


class Audit(_Section):
    """How often, how sure, and against which references.

    `timeout`: seconds after which an attack on one cell is given up and counts as failed.
    """

    seeds: Annotated[list[Seed], Field(min_length=1)] = [0, 1, 2, 3, 4]
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.95
    references: list[Literal["local", "logistic", "boosting"]] = ["local", "logistic", "boosting"]
    dtype: Literal["float32", "float64"] = "float32"
    positive_control: bool = True
    timeout: Annotated[float, Field(gt=0)] = 3600.0


class Gate(_Section):
    """A limit on one figure; see `vflsec.audit.gate`."""

    metric: str = "advantage"
    max: float | None = None
    min: float | None = None
    attack: str = "*"
    adversary: str = "*"
    dataset: str = "*"
    algorithm: str = "*"
    phase: str = "*"
    split: str = "*"
    defense: str = "*"
    strength: Strength | None = None
    of: str = ""
    confidence: Annotated[float, Field(gt=0.5, lt=1)] | None = None
    name: str = ""


class Root(_Section):
    """A whole scenario."""

    name: str = ""
    data: Annotated[list[Data], Field(min_length=1)]
    parties: dict[str, Party] = {}
    algorithm: Annotated[list[Algorithm], Field(min_length=1)]
    defense: list[Defense] = []
    attack: list[Attack] = []
    audit: Audit = Audit()
    gate: list[Gate] = []
