"""With how many digits float32 is taken: in full, and not as others left it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from vflsec.plugins.loading import attempt_call, contain
from vflsec.runtime.determinism import full_float32
from vflsec.train.device import pick_device

BACKENDS = torch.backends
NEW = hasattr(BACKENDS, "fp32_precision")


def places() -> dict[str, Any]:
    """Where torch from 2.9 on has a precision."""
    if not NEW:
        return {}
    found: dict[str, Any] = {"all": BACKENDS, "cudnn": BACKENDS.cudnn, "mkldnn": BACKENDS.mkldnn}
    found |= {"cuda.matmul": BACKENDS.cuda.matmul, "mkldnn.matmul": BACKENDS.mkldnn.matmul}
    for of in ("cudnn", "mkldnn"):
        found |= {f"{of}.{work}": getattr(getattr(BACKENDS, of), work) for work in ("conv", "rnn")}
    return found


def words() -> dict[str, Any]:
    return {name: place.fp32_precision for name, place in places().items()}


def flags() -> dict[str, Any]:
    names = ("allow_tf32", "benchmark", "deterministic")
    found = {name: getattr(BACKENDS.cudnn, name) for name in names}
    return found | {"matmul": BACKENDS.cuda.matmul.allow_tf32,
                    "products": torch.get_float32_matmul_precision()}  # fmt: skip


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    full_float32()
    was = BACKENDS.cudnn.benchmark, BACKENDS.cudnn.deterministic
    yield
    for place in places().values():
        place.fp32_precision = "none"
    full_float32()
    BACKENDS.cudnn.benchmark, BACKENDS.cudnn.deterministic = was


def say(word: str) -> Callable[[], None]:
    def told() -> None:
        BACKENDS.fp32_precision = word
        for name, place in places().items():
            place.fp32_precision = "tf32" if name.startswith("cud") and word != "ieee" else word

    return told


def medium() -> None:
    torch.set_float32_matmul_precision("medium")


def old() -> None:
    BACKENDS.cuda.matmul.allow_tf32 = BACKENDS.cudnn.allow_tf32 = True


ASKED: dict[str, Callable[[], None]] = {"old": old, "medium": medium}
ASKED |= {"new": say("tf32"), "new, bf16": say("bf16")} if NEW else {}


@pytest.mark.parametrize("how", ASKED)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_device_computes_in_full_float32_whatever_was_asked_for(
    device: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: device == "cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    ASKED[how]()
    assert pick_device(device) == torch.device(device)
    every = words()
    assert {name: w for name, w in every.items() if "." in name and w != "ieee"} == {}
    assert flags() == flags() | {"allow_tf32": False, "matmul": False, "products": "highest"}


@pytest.mark.parametrize("how", ASKED)
def test_what_code_of_others_asks_for_ends_with_it(how: str) -> None:
    before = words(), flags()

    def ask() -> None:
        ASKED[how]()
        BACKENDS.cudnn.benchmark = not BACKENDS.cudnn.benchmark
        BACKENDS.cudnn.deterministic = not BACKENDS.cudnn.deterministic
        torch.use_deterministic_algorithms(mode=True, warn_only=True)

    with contain("somebody"):
        ask()
        assert words() != before[0] if NEW else flags() != before[1]
    assert (words(), flags()) == before
    assert not torch.are_deterministic_algorithms_enabled()
    assert attempt_call(ask, "somebody") == (None, "")
    assert (words(), flags()) == before


def test_what_was_asked_for_before_stays() -> None:
    medium()
    before = words(), flags()
    with contain("somebody"):
        full_float32()
    assert (words(), flags()) == before
