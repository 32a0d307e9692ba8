"""Training steps as CUDA graphs: kernels that come one after another are launched all at once.

Between two messages a step of split training is arithmetic on memory that stays where it is; each
such stretch is captured as a graph of its own. Messages pass the channel as in any step and are
copies, so noise is drawn, and messages are counted and recorded, as ever, and nothing that is kept
of them is written to by the next step.

The first step on batches of a shape is taken as ever. It makes what stays (the optimizer's state,
tables on the device), and shows how every message arrives. At the second one the step is captured,
which runs no kernel and sends nothing, so that a failure leaves no trace; then it is replayed, and
so are all that follow. What its code reads from the host is read once. Hence steps are captured
only if all their work is that of :mod:`vflsec.nn.manual_backprop`, and are captured anew if a
parameter moves or a setting of an optimizer changes.

Source: NVIDIA, "CUDA C++ programming guide", CUDA graphs; PyTorch, "CUDA semantics".
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vflsec.core.algorithm import Algorithm
from vflsec.core.channel import Channel
from vflsec.core.federation import Federation
from vflsec.core.message import Message
from vflsec.errors import PolicyError
from vflsec.nn import manual_backprop, optim

Step = Callable[[Tensor], None]

MOST = 8
"""Captures of one phase; where more would be needed, something changes too often to be captured."""

_OWN = ("columns", "gradients", "optimizer")
"""Hooks of policies that act within a stretch, and may read numbers from the host."""


class CaptureWarning(UserWarning):
    """Graphs were asked for, and steps are taken one kernel at a time."""


class CudaGraphs:
    """Graphs of a GPU, which share their memory: captures the stretches of one step, which are
    replayed in their order.

    Args:
        device: the GPU, which need not be the current one; None is the current one.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device
        self.stream, self.pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()

    @contextmanager
    def warm(self) -> Iterator[None]:
        """Where the step runs before its capture: on their stream, which gets its workspaces so."""
        current = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            yield
        current.wait_stream(self.stream)

    @contextmanager
    def restore_stream(self) -> Iterator[None]:
        """Around all captures of a step: one that fails leaves its stream in use."""
        with torch.cuda.stream(torch.cuda.current_stream(self.device)):
            yield

    def stretch(self) -> tuple[AbstractContextManager[None], Callable[[], None]]:
        """What captures all that runs in it, without running it, and what launches that."""
        graph = torch.cuda.CUDAGraph()
        # Another thread of the process may work on a device meanwhile.
        mode = "thread_local"
        during = torch.cuda.graph(graph, self.pool, self.stream, capture_error_mode=mode)
        return during, graph.replay


@dataclass
class _Stretch:
    """Arithmetic, and the message that it ends with; the last stretch of a step has none.

    Attributes:
        run: does the arithmetic.
        message: with a payload that every run writes to.
        labels, context: what the sender's policies get beside it, written to as well.
        given: where the next stretches expect what the receiver gets.
    """

    run: Callable[[], None]
    message: Message | None = None
    labels: Tensor | None = None
    context: dict[str, Any] = field(default_factory=dict)
    given: Tensor | None = None


class _Door(Channel):
    """Stands in for the channel: each message is handed to a function, nothing else is possible."""

    def __init__(self, pass_on: Callable[..., Tensor]) -> None:
        self.pass_on = pass_on

    def send(self, message: Message, labels: Tensor | None = None, **context: Any) -> Tensor:
        return self.pass_on(message, labels, context)


class _Tape:
    """One step on batches of one shape.

    Args:
        fed: the cohort.
        step: the step on sample ids (R, b).
        graphs: captures its stretches.
    """

    def __init__(self, fed: Federation, step: Step, graphs: CudaGraphs) -> None:
        self.fed, self.step, self.graphs = fed, step, graphs
        self.stretches: list[_Stretch] = []
        self.arrivals: list[Tensor] = []

    @contextmanager
    def _through(self, pass_on: Callable[..., Tensor]) -> Iterator[None]:
        channel = self.fed.channel
        self.fed.channel = _Door(pass_on)
        try:
            yield
        finally:
            self.fed.channel = channel

    def warm(self, rows: Tensor) -> None:
        """Take the step as ever, and note how messages arrive: shape, strides and type."""
        channel = self.fed.channel

        def pass_on(message: Message, labels: Tensor | None, context: dict[str, Any]) -> Tensor:
            got = channel.send(message, labels, **context)
            self.arrivals.append(_empty_like(got))
            return got

        with self.graphs.warm(), self._through(pass_on):
            self.step(rows)

    def capture(self, rows: Tensor) -> None:
        """Capture the step for batches like `rows` (R, b); neither runs nor sends anything.

        Raises:
            RuntimeError: it cannot be captured.
        """
        self.rows, expected = torch.zeros_like(rows), iter(self.arrivals)
        made: list[_Stretch] = []
        with warnings.catch_warnings(), self.graphs.restore_stream(), ExitStack() as now:
            # Nothing lies between two messages that are sent one after the other.
            warnings.filterwarnings("ignore", "The CUDA Graph is empty")

            def begin() -> None:
                during, run = self.graphs.stretch()
                now.enter_context(during)
                made.append(_Stretch(run))

            def pass_on(message: Message, labels: Tensor | None, context: dict[str, Any]) -> Tensor:
                now.close()
                given = next(expected, None)
                if given is None:
                    raise RuntimeError("a step sends more messages than the one before.")
                # Itself it may be asked for gradients, which forbids to write to it.
                made[-1] = _Stretch(made[-1].run, message, labels, context, given.detach())
                begin()
                return given

            with self._through(pass_on):
                begin()
                self.step(self.rows)
        if next(expected, None) is not None:
            raise RuntimeError("a step sends fewer messages than the one before.")
        self.stretches = made

    def replay(self, rows: Tensor) -> None:
        """The step on sample ids (R, b).

        Raises:
            PolicyError: a message arrives in another shape than before.
        """
        self.rows.copy_(rows)
        for stretch in self.stretches:
            stretch.run()
            if stretch.message is not None and stretch.given is not None:
                got = self._send(stretch, stretch.message, rows)
                if got.shape != stretch.given.shape:
                    what, rule = (
                        f"a message ({stretch.message.kind})",
                        f"be {tuple(stretch.given.shape)}",
                    )
                    raise PolicyError.must(what, rule, tuple(got.shape), "Use --device cuda.")
                stretch.given.copy_(got)

    def _send(self, stretch: _Stretch, message: Message, rows: Tensor) -> Tensor:
        def fresh(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            mine = x.data_ptr() == self.rows.data_ptr() and x.shape == rows.shape
            return rows.detach() if mine else _copy(x)

        fed = self.fed
        message = replace(
            message, tensor=fresh(message.tensor), rows=fresh(message.rows), epoch=fed.epoch,
            step=fed.steps,
        )  # fmt: skip
        context = {name: fresh(x) for name, x in stretch.context.items()}
        return fed.channel.send(message, fresh(stretch.labels), **context)


def _empty_like(x: Tensor) -> Tensor:
    """Of the same strides, too: products may round by them."""
    return torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=x.device)


def _copy(x: Tensor) -> Tensor:
    """What the next replay does not write to."""
    return _empty_like(x).copy_(x.detach())


class Captured:
    """A step on sample ids (R, b), replayed where it can be.

    Args:
        fed: the cohort, at the beginning of a phase.
        step: the step.
        make: makes what captures one.

    Attributes:
        failed: why a capture failed; then all steps are taken as ever.
        replays: how many steps were replayed.
    """

    def __init__(self, fed: Federation, step: Step, make: Callable[[], CudaGraphs]) -> None:
        self.fed, self.step, self.make = fed, step, make
        self.tapes: dict[Hashable, _Tape] = {}
        self.failed, self.replays = "", 0

    def __call__(self, rows: Tensor) -> None:
        key = self._key(rows)
        tape = self.tapes.get(key)
        if tape is None and len(self.tapes) >= MOST:
            self._fail(f"it would have to be captured more than {MOST} times")
        if self.failed:
            self.step(rows)
        elif tape is None:
            tape = self.tapes[key] = _Tape(self.fed, self.step, self.make())
            tape.warm(rows)
        else:
            if not tape.stretches:
                try:
                    tape.capture(rows)
                except Exception as why:  # whatever it is: nothing has been done yet
                    self._fail(_first_line(why))
                    return self.step(rows)
            tape.replay(rows)
            self.replays += 1

    def _key(self, rows: Tensor) -> Hashable:
        """What a step reads from the host: shapes, addresses, settings."""
        parties = self.fed.parties.values()
        made = [p.optimizer for p in parties if p.optimizer is not None]
        places = [self.fed.labels, *(x for p in parties for x in p.parameters())]
        groups = [g for o in made for g in o.param_groups]
        settings = [(k, v) for g in groups for k, v in g.items() if k != "params"]
        return rows.shape, *made, *(x.data_ptr() for x in places), *settings

    def _fail(self, why: str) -> None:
        if not self.failed:
            _say(self.fed, why)
        self.failed = why
        self.tapes.clear()


def _first_line(why: BaseException) -> str:
    """Of what went wrong first: to end a capture that failed is an error of its own."""
    while why.__context__ is not None:
        why = why.__context__
    return str(why).partition("\n")[0].rstrip(".") or type(why).__name__


def _say(fed: Federation, why: str) -> None:
    warnings.warn(
        f"{fed.phase}: steps are taken one kernel at a time, not as CUDA graphs: {why}.",
        CaptureWarning,
        stacklevel=2,
    )


def taken(algorithm: Algorithm, fed: Federation, step: Step) -> Step:
    """How a step of the current phase is taken: as it is, or captured where `fed.graphs` asks for
    that and it can be; the one place that decides.
    """
    if fed.graphs is None:
        return step
    why = find_refusal(algorithm, fed, step)
    if why:
        _say(fed, why)
        return step
    return Captured(fed, step, fed.graphs)


def find_refusal(algorithm: Algorithm, fed: Federation, step: Step) -> str:
    """Why a step may not be captured, in words; empty if it may."""
    kind: Any = type(algorithm)
    own = isinstance(step, partial) and step.func == getattr(algorithm, "step", None)
    if not own or step.args[0] is not fed or not manual_backprop.is_walked(kind):  # type: ignore[attr-defined]
        return "the phase does not consist of plain split steps"
    if any(t.silent is not None for t in fed.stack.tasks):
        return "some rows add nothing to any loss"
    for party in fed.parties.values():
        if not party.by_hand:
            return f"a model or a defense of {party.name} needs an autograd graph"
        for b in party.bindings:
            if any(b.policy.overrides(hook) for hook in _OWN):
                return f"{b.policy.name} acts between the messages of {party.name}"
        if party.observer is not None:
            return f"own steps of {party.name} are recorded"
        made = party.optimizer
        if made is not None and not (type(made) in (optim.Adam, optim.SGD) and made.flat):
            return f"the optimizer of {party.name} takes several steps"
    return ""
