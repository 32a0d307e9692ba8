"""The roles of the interactive layer as processes of their own, exchanging serialised bytes.

Each role lives in a spawned process (a forked one hangs with an inherited TenSEAL context). The
parent carries envelopes between them, as a network would, and never holds a key. What the active
process is started with is the public context; the secret key is made inside the passive process
and has no way out.
"""

from __future__ import annotations

import multiprocessing
import time
import weakref
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from vflsec.core import check
from vflsec.errors import CiphertextError, ConfigError, MissingDependencyError, ShapeError

ALLOWED = {
    "active": ("load", "forward", "gradient", "unmask", "embedding_gradient", "holds_secret"),
    "passive": (
        "public", "load", "embed", "embed_blocks", "open", "open_gradient",
        "encrypt_share", "open_embedding_gradient", "rotate", "open_rotated", "own_share",
        "holds_secret",
    ),
}  # fmt: skip
_ERRORS = {
    e.__name__: e for e in (CiphertextError, ConfigError, MissingDependencyError, ShapeError)
}


class Remote:
    """A role in a process of its own; its methods are those of the role.

    Attributes:
        computed: seconds that the process worked for the last answer; the rest was transfer.

    Args:
        role: ``active`` or ``passive``.
        wait: seconds to wait for an answer.
        arguments: of :class:`~vflsec.he.interactive.ActiveRole` or ``PassiveRole``.
    """

    def __init__(self, role: str, *, wait: float = 600.0, **arguments: Any) -> None:
        self.role = check.one_of("role", role, tuple(ALLOWED))
        self.computed = 0.0
        self.wait = wait
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=_serve, args=(theirs, role, arguments), daemon=True, name=f"vflsec-he-{role}"
        )
        self.process.start()
        theirs.close()
        self._end = weakref.finalize(self, _stop, self._pipe, self.process)
        self._answer()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in ALLOWED[self.role]:
            raise AttributeError(f"a {self.role} role has no {name!r}")

        def call(*arguments: Any) -> Any:
            self._pipe.send((name, arguments))
            return self._answer()

        return call

    def _answer(self) -> Any:
        try:
            if not self._pipe.poll(self.wait):
                what = f"the {self.role} process"
                raise ConfigError.must(what, f"answer within {self.wait:g} s", "nothing")
            error, value, self.computed = self._pipe.recv()
        except (EOFError, ConnectionError) as why:
            self.process.join(5)
            raise ConfigError(
                f"the {self.role} process ended with exit code {self.process.exitcode}. A script "
                'that starts it needs the guard if __name__ == "__main__".'
            ) from why
        if error:
            raise _ERRORS.get(error, RuntimeError)(value)
        return value

    def close(self) -> None:
        """End the process."""
        self._end()


def _stop(pipe: Connection, process: BaseProcess) -> None:
    pipe.close()
    process.join(5)
    if process.is_alive():
        process.terminate()
        process.join(5)


def _serve(pipe: Connection, role: str, arguments: dict[str, Any]) -> None:
    from vflsec.he.interactive import ActiveRole, PassiveRole

    made: Any = None
    try:
        made = (ActiveRole if role == "active" else PassiveRole)(**arguments)
        pipe.send(("", None, 0.0))
    except Exception as why:
        pipe.send((type(why).__name__, str(why), 0.0))
        return
    while True:
        try:
            name, given = pipe.recv()
        except (EOFError, ConnectionError):
            return
        start = time.perf_counter()
        try:
            if name == "holds_secret":
                key = made.key if role == "active" else made.keys
                answer: Any = bool(key._context.has_secret_key())
            else:
                answer = getattr(made, name)(*given)
            pipe.send(("", answer, time.perf_counter() - start))
        except Exception as why:
            pipe.send((type(why).__name__, str(why), 0.0))
