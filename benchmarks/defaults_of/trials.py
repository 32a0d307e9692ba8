"""Which tables, which algorithms, and for each knob one alternative to its default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from seeds.claims import World

__all__ = ["ALGORITHMS", "CLAIMS", "DEFAULT", "TABLES", "Trial", "cut", "trials"]

DEFAULT = "default"


@dataclass(frozen=True)
class Trial:
    """One training: a table, an algorithm, and what is not at its default."""

    table: str
    algorithm: str
    setting: str = DEFAULT
    params: Mapping[str, Any] = field(default_factory=dict)


def cut(test: float, validation: float) -> dict[str, Any]:
    """About 4,000 to 6,000 rows for training, of which 1,000 are aligned."""
    return {"aligned": 1000, "test": test, "validation": validation, "scale": "rank"}


TABLES: dict[str, World] = {
    "credit_default": World("", "", cut(0.8, 0.05), ("credit_default", "fate")),
    "adult": World("", "", cut(0.87, 0.03), ("adult", "employer_vs_registry")),
    "diabetes130": World("", "", cut(0.93, 0.02), ("diabetes130", "clinical_vs_admission")),
    "covtype_20k": World("", "", cut(0.6, 0.1), ("covtype_20k", "soil_vs_topography")),
    "two_views (drawn)": World("", "", {"name": "two_views", "aligned": 0.3}),
    "imitation (drawn)": World("", "", {"name": "imitation", "aligned": 1000}),
}
"""Real tables first."""
_MANY = ("covtype_20k", "two_views (drawn)")
_TWO = (("jpl", ""), ("scorecard", ""), ("splitnn", "select_by"))
"""Tables of more than two classes, and algorithms and knobs that take two."""

_LOCAL: dict[str, Any] = {
    "local_held_out": 0.0, "local_steps": 300, "local_patience": 50, "unlabelled_weight": 0.0,
    "threshold": 0.8, "replaced": 0.4, "sigma": 0.3, "unlabelled_ratio": 3, "finetune": True,
    "active_labels": "clusters",
}  # fmt: skip
_SSL: dict[str, Any] = {
    "sizes": "paper", "embedding": 32, "lr": 0.03, "schedule": "cosine", "pretrain_iterations": 10,
    "ssl": "byol",
}  # fmt: skip
_PAIRED: dict[str, Any] = {"pooling": "concat", "gamma": 1.0}

ALGORITHMS: dict[str, dict[str, Any]] = {
    "splitnn": {
        "lr": 3e-3, "epochs": 30, "hidden": [128], "cut": 64, "top": [32], "dropout": 0.2,
        "weight_decay": 1e-4, "batch_size": 64, "patience": 15, "select_by": "auc",
        "optimizer": "sgd", "embedding": 16,
    },
    "local": {"own_labels": True, "lr": 3e-3},
    "laser": {"own_labels": False, "lr": 3e-3, "epochs": 30},
    "oneshot": {"top": [], **_LOCAL},
    "fewshot": {
        "top": [], "confidence": 0.95, "infer_epochs": 60, "local_held_out": 0.0, "finetune": True,
    },
    "fpd": {
        "alpha": 0.9, "beta": 1.0, "student_epochs": 100, "lr": 1e-3, "patience": 5,
    },
    "jpl": {
        "ranking": 1.0, "alpha": 0.1, "beta": 1.0, "tau": 1.0, "cme": "bcme", "imitate": 0.0,
        "equivalence": 0.0, "similarity": 0.0, "own_labels": 0.0, "a_labels": 0.0,
        "a_teacher": 1.0, "a_own": 0.0, "fed_labels": 0.0, "fed_teacher": 0.0,
        "teacher_first": True, "warm_start": True, "answer": "a", "lr": 1e-3, "patience": 5,
    },
    "apcvfl": {
        "distill": 10.0, "finetune": True, "joint": 8, "cut": 8, "top": [], "held_out": 0.0,
        "autoencoder_epochs": 100, "lr": 3e-3,
    },
    "vflhlp": {
        "beta": 10.0, "constrain": False, "scarf": False, "warm_start": True, "corruption": 0.3,
        "temperature": 0.5, "scarf_patience": 0,
    },
    "falsevfl": {
        "noise": 0.3, "samples": 1, "pretrain_epochs": 30, "tune_encoders": True, "top": [],
        "own_labels": False, "latent": 32,
    },
    "fedbcd": {"local_updates": 10, "lr": 3e-3},
    "fedcvt": {
        "sharpening": 1.0, "lambda1": 0.0, "lambda2": 0.0, "lambda3": 0.1, "lambda4": 0.0,
        "side_heads": False, "nl_labels": False, "block": 128,
    },
    "fedlocal_ssl": _SSL,
    "fedcssl": {k: v for k, v in _SSL.items() if k != "ssl"},  # a party's own, of which it has none
    "fedgssl": _SSL | _PAIRED,
    "fedhssl": _SSL | _PAIRED,
    "ushaped": {"top": [64, 32], "lr": 3e-3},
    "secureboost": {
        "trees": 40, "depth": 5, "rate": 0.1, "l2": 1.0, "bins": 64, "min_rows": 20,
        "base": "prior",
    },
    "vertical_glm": {
        "epochs": 60, "batch_size": 0, "rate": 0.05, "l2": 0.001, "derivative": "exact",
    },
    "scorecard": {"bins": 20, "min_iv": 0.0},
    "pooled_logistic": {},  # references, which see the same labels and all columns
    "pooled_boosting": {"iterations": 100, "leaves": 31, "lr": 0.05},
}  # fmt: skip
"""By algorithm its knobs, each with the alternative that is tried. LASER's `sets` is none: of two
parties both ways are one."""

CLAIMS: tuple[tuple[tuple[str, str], tuple[str, str], str], ...] = (
    (("oneshot", DEFAULT), ("splitnn", DEFAULT), "One-shot and vanilla VFL"),
    (("fewshot", DEFAULT), ("oneshot", DEFAULT), "Few-shot and one-shot"),
    (("fpd", DEFAULT), ("local", "own_labels = true"), "FPD and Local on all own labels"),
    (("jpl", DEFAULT), ("fpd", DEFAULT), "JPL and FPD"),
    (("apcvfl", DEFAULT), ("local", "own_labels = true"), "APC-VFL and Local on all own labels"),
    (("vflhlp", DEFAULT), ("splitnn", DEFAULT), "VFLHLP and vanilla VFL"),
    (("vflhlp", DEFAULT), ("local", "own_labels = true"), "VFLHLP and Local on all own labels"),
    (("fedhssl", DEFAULT), ("fedlocal_ssl", DEFAULT), "FedHSSL and FedLocalSSL"),
    (("laser", DEFAULT), ("splitnn", DEFAULT), "LASER-VFL and vanilla VFL"),
)
"""Pairs at equal aligned rows that the papers order."""


def _settings(knobs: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield DEFAULT, {}
    for knob, value in knobs.items():
        shown = str(value).lower() if isinstance(value, bool) else value
        yield f"{knob} = {shown}", {knob: value}


def trials(data: str = "", algorithms: Sequence[str] | None = None, knob: str = "") -> list[Trial]:
    """All trials: defaults first, then alternatives, each algorithm by algorithm."""
    every = [
        Trial(table, name, setting, params)
        for name in algorithms or ALGORITHMS
        for setting, params in _settings(ALGORITHMS[name])
        for table in TABLES
        if data in table and (setting == DEFAULT or setting.startswith(knob))
        if table not in _MANY or not any(name == a and setting.startswith(s) for a, s in _TWO)
    ]
    return sorted(every, key=lambda t: t.setting != DEFAULT)
