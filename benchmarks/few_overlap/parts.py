"""What is compared: the rows of every part of the page, its attacks, and the published orderings.

To add an algorithm, add a :class:`Row`; to compare it with another, a :class:`Claim`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from few_overlap.worlds import AVAZU, CREDIT, CRITEO, IMAGES, PIXELS, World

KNOWN = 20
AUXILIARY = 100


@dataclass(frozen=True)
class Row:
    """One line of the tables.

    Attributes:
        title: of the line.
        algorithm, params: what to train, beside the settings of the part.
        sweep: values of further parameters; the best mean validation figure over seeds is kept.
        alone: True for what exchanges nothing, so there is nothing to attack.
    """

    title: str
    algorithm: str
    params: Mapping[str, Any] = field(default_factory=dict)
    sweep: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    alone: bool = False


@dataclass(frozen=True)
class Claim:
    """An ordering: `better` above `worse` in test utility, or about equal.

    Attributes:
        text: what is claimed.
        source: who published it; "" for our own.
        better, worse: titles of rows.
        equal: the two are claimed to be about equal.
    """

    text: str
    source: str
    better: str
    worse: str
    equal: bool = False


@dataclass(frozen=True)
class Probe:
    """An attack of a part.

    Attributes:
        attack, params: the attack.
        by: ``passive``, or ``active``.
        metrics: of it; empty takes the world's.
        first: its figure is taken after the first phase that has one, not after the last.
        aux_rows: rows of the passive party's columns that the attacker is granted.
    """

    attack: str
    params: Mapping[str, Any] = field(default_factory=dict)
    by: str = "passive"
    metrics: tuple[str, ...] = ()
    first: bool = False
    aux_rows: int = 0

    @property
    def title(self) -> str:
        return self.attack.replace("_", " ")


@dataclass(frozen=True)
class Part:
    """One part of the page: worlds x rows, with its attacks and claims.

    Attributes:
        key, title: of the part.
        words: before its tables.
        worlds: where.
        rows, claims, probes: what.
        shared: settings of all rows.
        reference: row that RelImp is taken over; "" for none.
        drawn: key of the world whose cost, utility and leakage are drawn.
        epochs: whether the epoch that was kept is shown.
    """

    key: str
    title: str
    words: str
    worlds: tuple[World, ...]
    rows: tuple[Row, ...]
    claims: tuple[Claim, ...]
    probes: tuple[Probe, ...]
    shared: Mapping[str, Any]
    reference: str = ""
    drawn: str = ""
    epochs: bool = False


COMPLETION = Probe("model_completion", {"variants": ["logistic", "finetune"], "steps": 100})
DIRECTION = Probe("direction", metrics=("auc", "leak_auc"))
CLUSTER = Probe("cluster", {"names": "known", "metric": "cosine"}, first=True)
INVERSION = Probe(
    "embedding_inversion", {"variants": ["linear"]}, "active", ("r2",), aux_rows=AUXILIARY
)

SHARED: Mapping[str, Any] = {
    "hidden": [64], "cut": 32, "top": [], "lr": 0.003, "epochs": 60, "patience": 10,
    "embedding": 0,
}  # fmt: skip
BETAS = (0.1, 1.0, 10.0)
SCARF = {"scarf_epochs": 10}
HOME = {"local_epochs": 60, "finetune_patience": 10, "top": []}
BY_AUC = {"select_by": "auc"}
STUDENT = {"student_epochs": 60}
PRINTED = {"ranking": 1.0, "a_labels": 0.0, "a_own": 0.0, "fed_labels": 0.0, "fed_teacher": 0.0}
LOCAL = Row("Local, all own labels", "local", {"own_labels": True}, alone=True)

ALIGNED = Part(
    key="aligned",
    title="Few aligned rows",
    words="Batches of 64. Swept parameters (\"chosen\") are picked by mean validation AUC.",
    worlds=(
        World(CREDIT, 200), World(CREDIT, 1000), World(CREDIT, 2000), World(CRITEO, 500),
        World(AVAZU, 500),
    ),
    rows=(
        Row("Local, aligned rows only", "local", alone=True),
        LOCAL,
        Row("FedSplitNN", "splitnn"),
        Row("FedBCD, Q = 5, parallel", "fedbcd"),
        Row("FedBCD, Q = 5, sequential", "fedbcd", {"order": "sequential"}),
        Row("VFLHLP", "vflhlp", SCARF, {"beta": BETAS}),
        Row("VFLHLP-A", "vflhlp", {"scarf": False}, {"beta": BETAS}),
        Row("VFLHLP-P", "vflhlp", {**SCARF, "constrain": False}),
        Row("FedCVT", "fedcvt", {"cut": 16, "nl_batch_size": 64, "block": 256},
            {"sharpening": (0.5, 0.1)}),
    ),
    claims=(
        Claim("With few aligned rows the active party alone, with all its labels, beats FedSplitNN",
              "VFLHLP, tables 2 and 3", LOCAL.title, "FedSplitNN"),
        Claim("VFLHLP beats FedSplitNN", "VFLHLP, tables 2 and 3", "VFLHLP", "FedSplitNN"),
        Claim("VFLHLP beats the active party alone", "VFLHLP, table 3 on Criteo; not in table 2 on "
              "Avazu", "VFLHLP", LOCAL.title),
        Claim("Pre-training adds to the constraint: VFLHLP beats VFLHLP-A", "VFLHLP, figure 5",
              "VFLHLP", "VFLHLP-A"),
        Claim("The constraint adds to pre-training: VFLHLP beats VFLHLP-P", "VFLHLP, figure 5",
              "VFLHLP", "VFLHLP-P"),
        Claim("FedBCD reaches what FedSplitNN reaches", "one-shot VFL, table 1",
              "FedBCD, Q = 5, parallel", "FedSplitNN", equal=True),
        Claim("FedCVT beats FedSplitNN", "FedHSSL, table IV", "FedCVT", "FedSplitNN"),
    ),
    probes=(COMPLETION, DIRECTION),
    shared={**SHARED, "batch_size": 64},
)  # fmt: skip

_EXCHANGE_ROWS = (
    Row("Local, aligned rows only", "local", alone=True),
    Row("FedSplitNN", "splitnn"),
    Row("FedBCD, Q = 5", "fedbcd"),
    Row("One-shot, no unaligned rows", "oneshot", {**HOME, "unlabelled_weight": 0.0}),
    Row("One-shot", "oneshot", HOME),
    Row("Few-shot", "fewshot", HOME),
    Row("Few-shot + finetune", "fewshot", {**HOME, "finetune": True}),
)
_EXCHANGE_CLAIMS = (
    Claim("One-shot beats split training at few aligned rows", "one-shot VFL, table 1",
          "One-shot", "FedSplitNN"),
    Claim("One-shot beats FedBCD", "one-shot VFL, table 1", "One-shot", "FedBCD, Q = 5"),
    Claim("Unaligned rows help one-shot (FixMatch)", "one-shot VFL, section 3",
          "One-shot", "One-shot, no unaligned rows"),
    Claim("Few-shot beats one-shot", "one-shot VFL, table 1", "Few-shot", "One-shot"),
    Claim("Finetuning helps few-shot", "one-shot VFL, table 1", "Few-shot + finetune", "Few-shot"),
)  # fmt: skip
EXCHANGES = Part(
    key="exchanges",
    title="One exchange, and few",
    words=(
        "Batches of 32; only the aligned rows count as labelled; 60 epochs at home. `cluster` is "
        "taken where gradients pass first: for one-shot and few-shot VFL that is the single "
        "download."
    ),
    worlds=(
        World(PIXELS, 64, "accuracy"), World(PIXELS, 256, "accuracy"), World(CREDIT, 1000),
    ),
    rows=_EXCHANGE_ROWS,
    claims=_EXCHANGE_CLAIMS,
    probes=(CLUSTER, COMPLETION),
    shared={**SHARED, "batch_size": 32},
    drawn="digits as a table, 256",
)  # fmt: skip
CONVOLVED = Part(
    key="convolved",
    title="One exchange with convolutional clients",
    words=(
        "As above, with bottoms of two 3 x 3 convolutions (16 and 32 channels, max-pooling) on "
        "image halves and FixMatch with shifts, contrast, brightness and a hole. A small stand-in "
        "for the paper's residual networks on CIFAR-10."
    ),
    worlds=(World(IMAGES, 64, "accuracy"), World(IMAGES, 128, "accuracy")),
    rows=_EXCHANGE_ROWS,
    claims=_EXCHANGE_CLAIMS,
    probes=(CLUSTER, COMPLETION),
    shared={**SHARED, "batch_size": 32, "encoder_kind": "conv", "hidden": [16, 32]},
)
STUDENTS = Part(
    key="students",
    title="Models that need no partner: FPD and JPL",
    words=(
        "Batches of 128. The active party has the labels of all its rows. FPD, JPL and Local "
        "predict from the active party's columns alone; FedSplitNN needs the partner at "
        "inference. RelImp is (AUC - 0.5) / (AUC of Local - 0.5) - 1. The epoch kept is that of "
        "the last stage. `embedding inversion` is by the active party, which keeps the partner's "
        f"embeddings, with {AUXILIARY} auxiliary rows. When these figures were made it read the "
        "last embeddings alone; it finds as much or more now."
    ),
    worlds=(World(CREDIT, 500), World(CREDIT, 2000), World(CRITEO, 1500), World(AVAZU, 1500)),
    rows=(
        LOCAL,
        Row("Local, epoch by AUC", "local", {"own_labels": True, **BY_AUC}, alone=True),
        Row("FedSplitNN (needs the partner)", "splitnn"),
        Row("FPD", "fpd", STUDENT),
        Row("FPD, epoch by AUC", "fpd", {**STUDENT, **BY_AUC}),
        Row("JPL, ranking 0", "jpl", {**STUDENT, "ranking": 0.0}),
        Row("JPL, ranking 0.1", "jpl", {**STUDENT, "ranking": 0.1}),
        Row("JPL", "jpl", {**STUDENT, "ranking": 1.0}),
        Row("JPL, ranking 0, epoch by AUC", "jpl", {**STUDENT, **BY_AUC, "ranking": 0.0}),
        Row("JPL, epoch by AUC", "jpl", {**STUDENT, **BY_AUC, "ranking": 1.0}),
        Row("JPL, printed terms only, epoch by AUC", "jpl", {**STUDENT, **BY_AUC, **PRINTED}),
    ),
    claims=(
        Claim("FPD beats Local", "JPL, main results", "FPD", LOCAL.title),
        Claim("JPL beats Local", "JPL, main results", "JPL", LOCAL.title),
        Claim("JPL beats FPD", "JPL, main results", "JPL", "FPD"),
        Claim("JPL beats Local, both by AUC", "JPL, main results", "JPL, epoch by AUC",
              "Local, epoch by AUC"),
        Claim("JPL beats FPD, both by AUC", "JPL, main results", "JPL, epoch by AUC",
              "FPD, epoch by AUC"),
        Claim("The ranking term helps JPL, epoch by loss", "", "JPL", "JPL, ranking 0"),
        Claim("The ranking term helps JPL, epoch by AUC", "", "JPL, epoch by AUC",
              "JPL, ranking 0, epoch by AUC"),
        Claim("With ranking, choosing the epoch by AUC beats choosing it by loss", "",
              "JPL, epoch by AUC", "JPL"),
        Claim("The added terms help JPL, epoch by AUC", "", "JPL, epoch by AUC",
              "JPL, printed terms only, epoch by AUC"),
    ),
    probes=(CLUSTER, COMPLETION, INVERSION),
    shared={**SHARED, "batch_size": 128},
    reference=LOCAL.title,
    epochs=True,
)  # fmt: skip

PARTS = (ALIGNED, EXCHANGES, CONVOLVED, STUDENTS)
