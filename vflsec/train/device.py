"""Where training runs."""

from __future__ import annotations

import re

import torch

from vflsec.core import check
from vflsec.runtime.determinism import full_float32

GRAPHS = "+graphs"
"""Behind the name of a GPU: steps are taken as CUDA graphs, see `vflsec.train.cuda_graphs`."""


def pick_device(name: str) -> torch.device:
    """The device behind ``auto``, ``cpu``, ``cuda`` or ``cuda:N``; the one place that chooses.

    The last two may be followed by ``+graphs``.

    Products and convolutions are then computed in full float32, whatever was asked for before.

    Raises:
        ConfigError: unknown name, or ``cuda`` without a usable GPU.
    """
    given, name = name, str(name).removesuffix(GRAPHS)
    single = re.fullmatch(r"cuda:([0-9]{1,4})", name)
    if single is None and (name != "cuda" or given == name):
        names = ("auto", "cpu", "cuda", "cuda:N", f"cuda{GRAPHS}")
        if name.casefold() == "gpu":  # which is nearest to cpu by its letters
            allowed = ", ".join(map(repr, names))
            raise check.fail("--device", f"one of {allowed}", given, "Did you mean 'cuda'?")
        check.one_of("--device", given, names)
    many = torch.cuda.device_count() if torch.cuda.is_available() else 0
    full_float32()
    if name == "cpu" or (name == "auto" and not many):
        torch.set_num_threads(1)
        return torch.device("cpu")
    if not many or (single and int(single[1]) >= many):
        raise check.fail("--device", "a device of this machine", given, "Use auto or cpu.")
    return torch.device(name if single else "cuda")


def asks_graphs(name: str) -> bool:
    """True if a name asks for CUDA graphs."""
    return name.endswith(GRAPHS)


def full_name(name: str) -> str:
    """The name of the device that :func:`pick_device` picks, with what else `name` asks for."""
    return f"{pick_device(name)}{GRAPHS if asks_graphs(name) else ''}"


def in_turn(name: str, turn: int) -> str:
    """The device of the `turn`-th piece of work: GPUs one after another where there are several."""
    bare = name.removesuffix(GRAPHS)
    if bare not in ("auto", "cuda") or not torch.cuda.is_available():
        return name
    many = torch.cuda.device_count()
    return f"cuda:{turn % many}{name.removeprefix(bare)}" if many > 1 else name
