"""The JSON files of a trace: what it is (no secret values there), and what one observer has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)

from vflsec._version import __version__
from vflsec.core.view import Facts, Schema
from vflsec.errors import TraceError
from vflsec.label import Label, make_label
from vflsec.nn.module_spec import LayerSpec
from vflsec.runtime.atomic_files import name_when_whole
from vflsec.trace.limits import NAME, Limits, read_bytes

FORMAT: Literal["vflsec-trace"] = "vflsec-trace"
VERSION = "1.1"

Name = Annotated[str, StringConstraints(pattern=rf"^{NAME.pattern}$")]
Text = Annotated[str, StringConstraints(max_length=200)]
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Status = Literal["recording", "sealed", "partial"]
LaterName = Literal["known", "prior", "classes"]
Reduction = Literal["mean", "sum", "none", "unknown"]


class Strict(BaseModel):
    """Strict, frozen values of a file; fields that are not known are left out."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class Route(NamedTuple):
    """Messages of one kind that go one way in one phase."""

    kind: str
    sender: str
    receiver: str
    phase: str


class Software(Strict):
    """A program by name and version."""

    name: Text = ""
    version: Text = ""


class PartyInfo(Strict):
    """One party; the active one holds the labels, a server neither labels nor columns."""

    name: Name
    role: Literal["active", "passive", "server"]


class Run(Strict):
    """Which point of an experiment this is; traces that differ in `seed` only are repetitions."""

    dataset: Text = ""
    algorithm: Text = ""
    defense: Text = "none"
    strength: Annotated[float, Field(allow_inf_nan=False)] | None = None
    seed: int = 0


class ClaimedPrivacy(Strict):
    """What is said to protect every label against the other parties: (epsilon, delta)-privacy."""

    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    delta: Annotated[float, Field(ge=0, lt=1)] = 0.0


class LaterGrant(Strict):
    """What a party was granted after the recording, and the hash of the seal before that."""

    when: Text
    party: Name
    added: list[LaterName]
    seal: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]

    @property
    def words(self) -> str:
        """The grant in a sentence without an end."""
        return f"{' and '.join(self.added)} granted to {self.party} on {self.when}, after recording"


class Manifest(Strict):
    """``manifest.json``; every field is described in ``docs/trace_format.md``."""

    format: Literal["vflsec-trace"]
    version: Annotated[str, StringConstraints(pattern=r"^[0-9]{1,4}\.[0-9]{1,4}$")]
    status: Status
    created: Text = ""
    framework: Software = Software()
    adapter: Software = Software()
    node: Text = ""
    tap: Literal["boundary", "before_defense", "after_defense", "unknown"] = "unknown"
    parties: Annotated[list[PartyInfo], Field(min_length=1, max_length=256)]
    rows: Annotated[int, Field(ge=1)]
    classes: Annotated[int, Field(ge=1, le=100_000)] | None = None
    loss_reduction: Reduction = "unknown"
    amp: bool | None = None
    shuffle: Text = "unknown"
    run: Run = Run()
    claim: ClaimedPrivacy | None = None
    later: list[LaterGrant] = []

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parties with labels or columns, the active one first."""
        ordered = sorted(self.parties, key=lambda p: p.role != "active")
        return tuple(p.name for p in ordered if p.role != "server")

    @property
    def ends(self) -> tuple[str, ...]:
        """Names of all that send or receive."""
        return (*self.names, *(p.name for p in self.parties if p.role == "server"))

    @property
    def active(self) -> str:
        """The active party's name; ``""`` if the trace does not name one."""
        return next((p.name for p in self.parties if p.role == "active"), "")

    @property
    def label(self) -> Label:
        """What kind of label it is; two classes if the trace does not say."""
        return make_label(self.classes or 2)


def begin_manifest(adapter: str, framework: Software, **about: Any) -> Manifest:
    """The manifest of a trace whose recording begins now; `about` are further fields of it.

    Raises:
        ValueError: one is not what it must be.
    """
    return Manifest(
        format=FORMAT, version=VERSION, status="recording", created=say_now(), framework=framework,
        adapter=Software(name=adapter, version=__version__), **about,
    )  # fmt: skip


def say_now() -> str:
    """The time in UTC, as it is written in a trace."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Have(Strict):
    """What is there of one kind of message in one phase.

    `epochs` lists the epochs that were recorded whole or in part; ``all`` says that none is
    missing, ``none`` that such messages passed and were not recorded.
    """

    kind: Text
    sender: Name
    receiver: Name
    phase: Name
    epochs: Literal["all", "none"] | list[Count]
    messages: Count = 0
    values: bool = True

    @property
    def route(self) -> Route:
        """Which messages these are."""
        return Route(self.kind, self.sender, self.receiver, self.phase)


class Layout(Strict):
    """Columns of a party, as `vflsec.core.view.Schema`."""

    names: list[Text]
    cardinalities: list[Count]
    shape: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1, max_length=6)]

    @classmethod
    def of(cls, schema: Schema) -> Layout:
        """The layout of a party's prepared rows."""
        return cls(
            names=list(schema.names), cardinalities=list(schema.cardinalities),
            shape=list(schema.shape),
        )  # fmt: skip

    def as_schema(self) -> Schema:
        """The same as attacks see it."""
        return Schema(tuple(self.names), tuple(self.cardinalities), tuple(self.shape))


class PublicFacts(Strict):
    """What every party knows about the run, as `vflsec.core.view.Facts`."""

    aggregation: Literal["concat", "sum", "mean", "trees", "pooled"] = "concat"
    top: bool = True
    widths: dict[Name, Annotated[int, Field(ge=1)]] = {}
    batch_size: Count = 0
    epochs: Count = 0
    reduction: Reduction = "mean"
    sends: list[tuple[str, str, str]] = []
    extra: dict[str, Any] = {}

    @classmethod
    def of(cls, facts: Facts) -> PublicFacts:
        """What of `facts` JSON can hold; the rest is not kept."""
        kept = {k: v for k, v in facts.extra.items() if _is_plain(v)}
        return cls(
            aggregation=facts.aggregation,  # type: ignore[arg-type]
            top=facts.top, widths=dict(facts.widths), batch_size=facts.batch_size,
            epochs=facts.epochs, reduction=facts.reduction,  # type: ignore[arg-type]
            sends=sorted(facts.sends),
            extra={k: list(v) if isinstance(v, tuple) else v for k, v in kept.items()},
        )  # fmt: skip

    def facts(self, manifest: Manifest, phase: str) -> Facts:
        """As `vflsec.core.view.Facts`; two classes if the trace does not say how many."""
        return Facts(
            algorithm=manifest.run.algorithm, phase=phase, active=manifest.active,
            parties=manifest.names, classes=manifest.classes or 2, aggregation=self.aggregation,
            top=self.top, widths=dict(self.widths), batch_size=self.batch_size, epochs=self.epochs,
            reduction=self.reduction, sends=frozenset((a, b, c) for a, b, c in self.sends),
            extra={k: tuple(v) if isinstance(v, list) else v for k, v in self.extra.items()},
        )  # fmt: skip


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(isinstance(v, int | float | str | bool) for v in value)
    return value is None or isinstance(value, int | float | str | bool)


class ModelFile(Strict):
    """Weights of one own module; `layers` describes it, None if only its owner can build it."""

    party: Name
    part: Name
    file: Name
    layers: LayerSpec | None = None


class Moment(Strict):
    """The state after a phase: attacks look at what had passed until then.

    `messages` counts the observer's messages up to that moment, `updates` its own recorded
    optimisation steps.
    """

    phase: Name
    messages: Count
    facts: PublicFacts = PublicFacts()
    models: list[ModelFile] = []
    updates: Count = 0


class ObserverInfo(Strict):
    """``observer.json``: what an observer has; fields are described in ``docs/trace_format.md``."""

    party: Name
    own: Literal["all", "some", "none"] = "none"
    have: list[Have] = []
    layouts: dict[Name, Layout] = {}
    moments: list[Moment] = []
    prior: list[Share] | None = None
    known: Count = 0
    aux: list[Name] = []
    targets: list[Literal["train", "test"]] = []
    complete: bool = False
    nonfinite: Count = 0


class SealedFile(Strict):
    """Size, rows (0 where there are none) and hash of one file."""

    path: Text
    bytes: Count
    rows: Count
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class TruthInfo(Strict):
    """``truth.json``: what a truth holds beside labels."""

    layouts: dict[Name, Layout] = {}
    classes: Annotated[int, Field(ge=2, le=100_000)] | None = None


class Seal(Strict):
    """``seal.json``: written last. It shows damage; it does not show who wrote the trace."""

    format: Literal["vflsec-trace"]
    version: str
    files: Annotated[list[SealedFile], Field(max_length=10_000)]


M = TypeVar("M", bound=BaseModel)


def load(data: bytes, model: type[M], where: str) -> M:
    """Parse strict JSON.

    Raises:
        TraceError: no JSON, a number that is none, a repeated key, an unknown version, or a field
            that is missing or not what it must be.
    """
    try:
        value = json.loads(data, parse_constant=_no_constant, object_pairs_hook=_once)
    except (ValueError, RecursionError) as why:
        raise TraceError.damaged(where, why) from None
    if not isinstance(value, dict):
        raise TraceError.must(where, "be a JSON object", type(value).__name__)
    _version(value, where)
    try:
        return model.model_validate_json(json.dumps(value))
    except ValidationError as why:
        raise TraceError(f"{where}: {describe_invalid(why)}") from None
    except (ValueError, RecursionError) as why:
        raise TraceError.damaged(where, why) from None


def describe_invalid(why: ValidationError) -> str:
    """The first field that is not what it must be, in a sentence."""
    first, others = why.errors()[0], why.error_count() - 1
    place, got = ".".join(str(p) for p in first["loc"]) or "the whole", repr(first.get("input"))
    got = got if len(got) <= 60 else f"{got[:57]}..."
    return f"{place}: {first['msg']}, got {got}." + (f" ({others} more)" if others else "")


def _no_constant(text: str) -> float:
    raise ValueError(f"number {text}")


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [k for k, _ in pairs]
        twice = next(k for k in keys if keys.count(k) > 1)
        raise ValueError(f"key {twice[:40]!r} twice")
    return found


def _version(value: Mapping[str, object], where: str) -> None:
    if "version" not in value or "format" not in value:
        return
    if value["format"] != FORMAT:
        raise TraceError.must(f"{where}: format", f"be {FORMAT!r}", repr(value["format"]))
    major = str(value["version"]).partition(".")[0]
    if major != VERSION.partition(".")[0]:
        rule, got = f"be {VERSION.partition('.')[0]}.x", str(value["version"])[:20]
        raise TraceError.must(f"{where}: version", rule, got, "Use a vflsec that knows it.")


def read_json(folder: Path, name: str, model: type[M], limits: Limits, times: int = 1) -> M:
    """:func:`load` a file of a trace, of at most so many times the bytes of a manifest."""
    return load(read_bytes(folder, name, times * limits.manifest_bytes), model, name)


def write_json(path: Path, model: BaseModel) -> None:
    """Write as indented JSON; other processes see the old file or the whole new one."""
    with name_when_whole(path) as new:
        new.write_bytes((model.model_dump_json(indent=1) + "\n").encode())
