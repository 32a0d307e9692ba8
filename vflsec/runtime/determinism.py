"""Settings of the process on which figures depend, or the way out of it."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

__all__ = ["full_float32", "kept"]

_PRECISION = (
    ("cuda", "matmul"), ("cudnn", "conv"), ("cudnn", "rnn"),
    ("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn"),
)  # fmt: skip
"""Of `torch.backends`, what may take float32 with fewer digits."""
_ABOVE = ("", "cudnn", "mkldnn")
"""Of `torch.backends`, from where these have it unless they were told themselves."""
_FLAGS = ("allow_tf32", "benchmark", "deterministic")
"""Of `torch.backends.cudnn`, what convolutions are taken by."""


def full_float32() -> None:
    """Take products, convolutions and recurrent layers in full float32 from now on.

    On a GPU torch lets convolutions take TF32, with 10 bits of mantissa; whoever works in the
    process may have asked for it elsewhere too, in the old words of torch or, from 2.9 on, in new
    ones, which the old ones do not take back.
    """
    import torch

    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    for place in _places():
        place.fp32_precision = "ieee"


def _places(above: bool = False) -> list[Any]:
    """Where torch from 2.9 on has a precision."""
    import torch

    backends = torch.backends
    found = [getattr(backends, name) if name else backends for name in _ABOVE if above]
    found += [getattr(getattr(backends, of), work, None) for of, work in _PRECISION]
    return [place for place in found if hasattr(place, "fp32_precision")]


def kept() -> Callable[[], None]:
    """Puts back what was set when this was called."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    streams, limit = (sys.stdout, sys.stderr), sys.getrecursionlimit()
    main = threading.current_thread() is threading.main_thread()
    handlers = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)} if main else {}
    errors = numpy.geterr() if numpy else {}
    of_torch = _of_torch(torch) if torch else None

    def put_back() -> None:
        sys.stdout, sys.stderr = streams
        sys.setrecursionlimit(limit)
        for number, handler in handlers.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)
        if numpy:
            numpy.seterr(**errors)
        if of_torch is not None:
            of_torch()

    return put_back


def _of_torch(torch: Any) -> Callable[[], None]:
    dtype, grad, threads = (
        torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads()
    )  # fmt: skip
    same = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    digits = _digits(torch)

    def put_back() -> None:
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(grad)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        if torch.are_deterministic_algorithms_enabled() != same:
            torch.use_deterministic_algorithms(same, warn_only=warns)
        digits()

    return put_back


def _digits(torch: Any) -> Callable[[], None]:
    """Puts back with how many digits float32 is taken, and how convolutions are."""
    cudnn, places = torch.backends.cudnn, _places(above=True)

    def found() -> tuple[Any, ...]:
        return (
            _asked(torch.get_float32_matmul_precision),
            [_asked(partial(getattr, cudnn, name)) for name in _FLAGS],
            [place.fp32_precision for place in places],
        )

    before = products, flags, words = found()

    def put_back() -> None:
        if found() == before:
            return
        if products is not None:
            torch.set_float32_matmul_precision(products)
        for name, value in zip(_FLAGS, flags, strict=True):
            if value is not None:
                setattr(cudnn, name, value)
        for place, word in zip(places, words, strict=True):
            place.fp32_precision = word

    return put_back


def _asked(ask: Callable[[], Any]) -> Any:
    """What torch answers; None where it was told in old words and in new ones."""
    try:
        return ask()
    except RuntimeError:
        return None
