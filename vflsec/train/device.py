"""Where training runs."""

from __future__ import annotations

import torch

from vflsec import check

__all__ = ["pick_device"]


def pick_device(name: str) -> torch.device:
    """The device behind ``auto``, ``cpu`` or ``cuda``; the only place where one is chosen.

    Raises:
        ConfigError: unknown name, or ``cuda`` without a usable GPU.
    """
    check.one_of("--device", name, ("auto", "cpu", "cuda"))
    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        raise check.fail("--device", "a device of this machine", name, "Use auto or cpu.")
    if name == "cpu" or not there:
        torch.set_num_threads(1)
        return torch.device("cpu")
    return torch.device("cuda")
