"""Where work is done beside this process: one seam, `concurrent.futures`, and three that fill it.

A pool gives an executor and names the errors by which it tells that a worker died. What runs there
returns its results; only the parent writes them (:mod:`vflsec.engine.executor`).
"""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty
from typing import Any

from vflsec.errors import AGAIN, ConfigError, VflsecError
from vflsec.runtime.lazy_imports import importing, patient

_ADDRESS = re.compile(r"(?:tcp|tls)://\S+|[^\s:/]+:[0-9]+|\[[0-9a-fA-F:]+\]:[0-9]+")


class Pool:
    """Workers; closed when the audit ends.

    Attributes:
        workers: how many there are, as far as is known.
        lost: errors that tell that a worker died, not that the work is wrong.
        remote: whether workers may be other machines, which do not see this one's files.
    """

    workers: int = 1
    lost: tuple[type[BaseException], ...] = ()
    remote: bool = True

    def executor(self) -> Executor:
        """One that works; called again after workers died."""
        raise NotImplementedError("abstract")

    def waits(self) -> str:
        """What all work waits for, in a sentence for the user; '' where somebody works."""
        return ""

    def stop(self) -> None:
        """End at once what runs."""

    def close(self) -> None:
        """Let go what was started; called once, at the end."""

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Processes(Pool):
    """Worker processes of this machine.

    Args:
        jobs: how many.
    """

    remote = False

    def __init__(self, jobs: int) -> None:
        from concurrent.futures.process import BrokenProcessPool

        self.workers, self.lost = jobs, (BrokenProcessPool,)
        self._executor: Any = None

    def executor(self) -> Executor:
        from joblib.externals.loky import get_reusable_executor

        self._executor = get_reusable_executor(
            max_workers=self.workers, timeout=30, kill_workers=True,
            initializer=_end_with, initargs=(os.getpid(),),
        )  # fmt: skip
        return self._executor  # type: ignore[no-any-return]

    def warm(self) -> None:
        """Start the workers; they import what they need while this process does something else."""
        executor = self.executor()
        for _ in range(self.workers):
            executor.submit(_imports)

    def stop(self) -> None:
        if self._executor is None:
            return
        # loky drops what waits and keeps the numbers of it; its thread looks one up and dies
        with suppress(Empty, AttributeError):
            while True:
                self._executor._work_ids.get_nowait()
        self._executor.shutdown(wait=False, kill_workers=True)


def _end_with(parent: int) -> None:
    """End this worker soon after the process that asked it, however that ended.

    By kill -9 it cannot tell its workers, who would finish what they do beside the audit that
    resumes. On Windows the number of a process that ended stays, and so do they.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at a terminal reaches every process
    threading.Thread(target=watch, name="parent", daemon=True).start()


def _imports() -> None:
    """What a worker needs for any work; it stays out of the search for garbage, of which loky does
    one each second.
    """
    patient()
    with importing():
        import vflsec.engine.cohort  # noqa: F401


@contextmanager
def warm_workers(folder: Path, jobs: int, cluster: str = "", fresh: bool = False) -> Iterator[None]:
    """Workers start before they are needed, and end at once where what is done meanwhile fails.

    Within another one they are the same workers. None start where an audit ended in `folder`, which
    may leave nothing to do.

    Args:
        folder: where the audit will write.
        jobs, cluster, fresh: of :class:`vflsec.engine.options.Options`.
    """
    if jobs < 2 or cluster or ((folder / "summary.json").exists() and not fresh):
        yield
        return
    workers = Processes(jobs)
    workers.warm()
    try:
        yield
    except BaseException:
        workers.stop()
        raise


def _start_worker(address: str) -> str:
    return f"Start `dask worker {address} --nthreads 1`."


class Dask(Pool):
    """Workers of a Dask cluster, by its scheduler, or some that are started here.

    Those that are started here speak TLS with a certificate of their own, made for the run, so that
    nobody else on the machine can hand them work.

    Args:
        address: of a scheduler, ``host:port``, ``tcp://...`` or ``tls://...``; '' starts workers.
        local: how many to start.

    Raises:
        ConfigError: Dask is not there, or the scheduler cannot be reached.
    """

    def __init__(self, address: str = "", local: int = 0) -> None:
        try:
            from dask import config
            from distributed import Client, LocalCluster
            from distributed.security import Security
        except ImportError:
            raise ConfigError.lacks("--cluster", "dask.distributed", "cluster") from None
        from concurrent.futures import CancelledError

        from distributed import KilledWorker
        from distributed.comm.core import CommClosedError

        self.lost = (KilledWorker, CommClosedError, CancelledError)
        self._cluster: Any = None
        self._address, self.remote = address, not local
        # of a scheduler that goes it prints tracebacks; `executor` says so in a sentence
        self._log = logging.getLogger("distributed.client")
        self._level = self._log.level
        self._log.setLevel(logging.CRITICAL + 1)
        try:
            if local:
                with config.set({"distributed.worker.profile.enabled": False}):  # every 10 ms
                    self._cluster = LocalCluster(
                        n_workers=local, threads_per_worker=1, processes=True, host="127.0.0.1",
                        dashboard_address=None, security=Security.temporary(), silence_logs=50,
                    )  # fmt: skip
            self._client = Client(
                self._cluster if local else address, timeout="30s", set_as_default=False
            )
        except ImportError:
            raise ConfigError.lacks("--cluster local", "cryptography", "cluster") from None
        except (OSError, ValueError, TypeError) as error:
            remedy = f"Start `dask scheduler`. {_start_worker(address)}"
            raise ConfigError.unreadable(f"--cluster dask://{address}", error, remedy) from None

    @property
    def workers(self) -> int:  # type: ignore[override]
        return max(1, len(self._client.scheduler_info(n_workers=-1)["workers"]))

    def executor(self) -> Executor:
        if self._client.status != "running":
            raise VflsecError(f"--cluster: the scheduler is gone. Start it. {AGAIN}")
        found: Executor = self._client.get_executor(pure=False)
        return found

    def waits(self) -> str:
        if self._client.status != "running":
            return ""
        with suppress(OSError):  # the scheduler goes just now: the work tells that
            if not self._client.scheduler_info(n_workers=-1)["workers"]:
                start = _start_worker(self._address) if self._address else ""
                return f"--cluster: the audit waits for a worker. {start}".rstrip()
        return ""

    def close(self) -> None:
        self._client.close()
        if self._cluster is not None:
            self._cluster.close()
        self._log.setLevel(self._level)


class _RayExecutor(Executor):
    """Ray's tasks as futures; Ray itself tries again where a worker died."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        task = self._ray.remote(max_retries=3, num_cpus=1)(fn)
        found: Future[Any] = task.remote(*args, **kwargs).future()
        return found


class Ray(Pool):
    """Workers of a Ray cluster, where Ray is installed already.

    Args:
        address: ``host:port`` of its client server, ``auto`` for the cluster that this machine is
            part of, or a number of workers to start here.
    """

    def __init__(self, address: str) -> None:
        try:
            import ray
        except ImportError:
            raise ConfigError.lacks("--cluster ray", "ray") from None
        self.lost = (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError)
        self._ray = ray
        where: dict[str, str | int] = {"address": f"ray://{address}"}
        if address == "auto":
            where = {"address": "auto"}
        elif address.isdigit():
            where = {"num_cpus": int(address), "include_dashboard": False}
        try:
            ray.init(**where, log_to_driver=False, logging_level="error")
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ConfigError.unreadable(f"--cluster ray://{address}", error) from None
        self.workers = max(1, int(ray.cluster_resources().get("CPU", 1)))

    def executor(self) -> Executor:
        return _RayExecutor(self._ray)

    def close(self) -> None:
        self._ray.shutdown()


def open_cluster(where: str) -> Pool:
    """The workers that ``--cluster`` names.

    Args:
        where: ``dask://HOST:PORT`` (also ``dask://tls://HOST:PORT``), ``local:N``, or
            ``ray://HOST:PORT``, ``ray://auto``, ``ray:N``.

    Raises:
        ConfigError: it is none of them, or no cluster is there.
    """
    kind, _, rest = where.partition(":")
    rest = rest.removeprefix("//")
    if kind == "local" and re.fullmatch(r"[1-9][0-9]{0,3}", rest):
        return Dask(local=int(rest))
    if kind == "dask" and _ADDRESS.fullmatch(rest):
        return Dask(rest)
    if kind == "ray" and (rest == "auto" or _ADDRESS.fullmatch(rest) or rest.isdigit()):
        return Ray(rest)
    rule = "be dask://HOST:PORT, dask://tls://HOST:PORT, local:N or ray://HOST:PORT"
    raise ConfigError.must("--cluster", rule, repr(where), "Without a network use --shard.")
