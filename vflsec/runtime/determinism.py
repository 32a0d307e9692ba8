"""Settings of the process on which figures depend, or the way out of it."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

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


class _Setting(NamedTuple):
    """Something of the process: how it is read, and how it is set."""

    read: Callable[[], Any]
    write: Callable[[Any], object]


_UNKNOWN = object()


def kept() -> Callable[[], None]:
    """Puts back what was set when this was called, where it is set otherwise by then."""
    main = threading.current_thread() is threading.main_thread()
    settings = _list_settings(main, sys.modules.get("numpy"), sys.modules.get("torch"))
    before = [(setting, _ask(setting)) for setting in settings]

    def put_back() -> None:
        for setting, value in before:
            if value is not _UNKNOWN and _ask(setting) != value:
                setting.write(value)

    return put_back


@cache
def _list_settings(main: bool, numpy: Any, torch: Any) -> tuple[_Setting, ...]:
    """What is put back, in this order: what torch takes float32 by depends on what is set after.

    Every making of a component asks: listed once for the thread and what is loaded.
    """
    return tuple(_find_settings(main, numpy, torch))


def _find_settings(main: bool, numpy: Any, torch: Any) -> Iterator[_Setting]:
    yield _attribute(sys, "stdout")
    yield _attribute(sys, "stderr")
    yield _Setting(sys.getrecursionlimit, sys.setrecursionlimit)
    if main:
        for number in (signal.SIGINT, signal.SIGTERM):
            yield _Setting(partial(signal.getsignal, number), partial(signal.signal, number))
    if numpy:
        yield _Setting(numpy.geterr, lambda errors: numpy.seterr(**errors))
    if torch:
        yield _Setting(torch.get_default_dtype, torch.set_default_dtype)
        yield _Setting(torch.is_grad_enabled, torch.set_grad_enabled)
        yield _Setting(torch.get_num_threads, torch.set_num_threads)
        yield _Setting(
            lambda: (
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
            ),
            lambda both: torch.use_deterministic_algorithms(both[0], warn_only=both[1]),
        )
        yield _Setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision)
        for name in _FLAGS:
            yield _attribute(torch.backends.cudnn, name)
        for place in _places(above=True):
            yield _attribute(place, "fp32_precision")


def _attribute(of: Any, name: str) -> _Setting:
    return _Setting(partial(getattr, of, name), partial(setattr, of, name))


def _ask(setting: _Setting) -> Any:
    """What is set; unknown where torch was told in old words and in new ones."""
    try:
        return setting.read()
    except RuntimeError:
        return _UNKNOWN
