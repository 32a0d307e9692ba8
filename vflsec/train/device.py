"""Where training runs."""

from __future__ import annotations

import re

import torch

from vflsec import check

__all__ = ["in_turn", "pick_device"]


def pick_device(name: str) -> torch.device:
    """The device behind ``auto``, ``cpu``, ``cuda`` or ``cuda:N``; the one place that chooses.

    On a GPU, products and convolutions are then computed in full float32 (torch lets convolutions
    take TF32, with 10 bits of mantissa, unless it is told not to).

    Raises:
        ConfigError: unknown name, or ``cuda`` without a usable GPU.
    """
    single = re.fullmatch(r"cuda:([0-9]{1,4})", name)
    if single is None:
        check.one_of("--device", name, ("auto", "cpu", "cuda", "cuda:N"))
    many = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "cpu" or (name == "auto" and not many):
        torch.set_num_threads(1)
        return torch.device("cpu")
    if not many or (single and int(single[1]) >= many):
        raise check.fail("--device", "a device of this machine", name, "Use auto or cpu.")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    return torch.device(name if single else "cuda")


def in_turn(name: str, turn: int) -> str:
    """The device of the `turn`-th piece of work: GPUs one after another where there are several."""
    if name not in ("auto", "cuda") or not torch.cuda.is_available():
        return name
    many = torch.cuda.device_count()
    return f"cuda:{turn % many}" if many > 1 else name
