"""Workers: what they do, where they die, and that the parent alone writes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import tomllib
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from engine_fakes import SCENARIO, Trainer, backend, source

import vflsec
from vflsec.audit.result import Audit
from vflsec.engine import executor, run, worker_pools
from vflsec.engine.dry_run import make_plan
from vflsec.engine.executor import batch_works, find_replicas
from vflsec.errors import ConfigError, VflsecError
from vflsec.plan.estimate import compute_weight
from vflsec.plan.values import Work
from vflsec.plugins.loading import attempt_call
from vflsec.storage.store import Store

pytestmark = [pytest.mark.usefixtures("no_reports"), pytest.mark.long]  # its slow tests


class Died(Exception):
    """A worker is gone."""


class Threads(worker_pools.Pool):
    """Workers of this process, of which some die; stands for machines elsewhere."""

    workers, lost = 2, (Died,)

    def __init__(self, deaths: int = 0, most: int = 10**6) -> None:
        self.deaths, self.rounds, self.stopped, self.closed = deaths, 0, False, False
        self.most = most

    def executor(self) -> Executor:
        self.rounds += 1
        pool, dying = self, self.deaths if self.rounds <= self.most else 0

        class Mortal(ThreadPoolExecutor):
            def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
                nonlocal dying
                if dying:
                    dying -= 1
                    out: Future[Any] = Future()
                    out.set_exception(Died())
                    return out
                return super().submit(fn, *args, **kwargs)

        assert pool is self
        return Mortal(2)

    def stop(self) -> None:
        self.stopped = True

    def close(self) -> None:
        self.closed = True


def audit(out: Path, trainer: Any = None, **how: Any) -> Audit:
    given = tomllib.loads(SCENARIO)
    return vflsec.run_audit(given, out, device="cpu", backend=backend(trainer or Trainer()), **how)


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(pool: worker_pools.Pool) -> worker_pools.Pool:
        monkeypatch.setattr(run, "open_cluster", lambda _: pool)
        return pool

    return use


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    return audit(tmp_path_factory.mktemp("serial"))


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Threads that wrote into a store."""
    found: set[int] = set()
    commit = Store.commit

    def seen(self: Store, *args: Any, **kwargs: Any) -> None:
        found.add(threading.get_ident())
        commit(self, *args, **kwargs)

    monkeypatch.setattr(Store, "commit", seen)
    return found


@pytest.mark.parametrize(("deaths", "rounds"), [(0, 1), (2, 2)])
def test_lost_workers_change_nothing(
    tmp_path: Path, on: Any, serial: Audit, writers: set[int], deaths: int, rounds: int
) -> None:
    pool, trainer = on(Threads(deaths, most=1)), Trainer()
    found = audit(tmp_path / "cluster", trainer, cluster="local:2")
    pd.testing.assert_frame_equal(found.results, serial.results, check_exact=True)
    assert sorted(trainer.trained) == sorted(set(serial.results["cell"]))  # and nothing twice
    assert (pool.rounds, pool.closed, pool.stopped) == (rounds, True, False)
    assert writers == {threading.get_ident()}  # workers may see no file of ours


def test_workers_that_always_die_are_given_up(tmp_path: Path, on: Any) -> None:
    pool = on(Threads(10**6))
    with pytest.raises(VflsecError, match=r"workers died 3 times in a row.* --replicas or --jobs"):
        audit(tmp_path, cluster="local:2")
    assert (pool.rounds, pool.closed) == (3, True)


def test_an_error_of_the_work_is_no_lost_worker(tmp_path: Path, on: Any) -> None:
    def fail(call: int) -> None:
        raise ConfigError("no such thing")

    pool = on(Threads())
    with pytest.raises(ConfigError, match="no such thing"):
        audit(tmp_path, Trainer(fail), cluster="local:2")
    assert (pool.rounds, pool.stopped, pool.closed) == (1, True, True)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("torch", "torch must be 0.0, got"),
        ("vflsec", "vflsec must be 0.0, got"),
    ],
)
def test_a_worker_of_another_version_refuses(
    tmp_path: Path, on: Any, monkeypatch: pytest.MonkeyPatch, name: str, why: str
) -> None:
    asked = {**executor.list_versions(), name: "0.0"}
    monkeypatch.setattr(run, "list_versions", lambda: asked)
    on(Threads())
    with pytest.raises(ConfigError, match=why):
        audit(tmp_path, cluster="local:2")


def test_a_worker_with_other_plugins_refuses(
    tmp_path: Path, on: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "hash_code", lambda *_: "f00")
    on(Threads())
    with pytest.raises(ConfigError, match=r"the source of breast_cancer · .* differs"):
        audit(tmp_path, cluster="local:2")


def test_a_worker_with_another_table_refuses(tmp_path: Path, on: Any) -> None:
    for name in ("a", "b"):
        lines = "\n".join(f"{i},{(i * 7) % 5},{i % 2}" for i in range(60))
        head = "id,x,y" if name == "a" else "id,z,w"
        (tmp_path / f"{name}.csv").write_text(f"{head}\n{lines}\n", encoding="utf-8")
    given = tomllib.loads(SCENARIO) | {
        "data": {"files": {"active": "a.csv", "passive": "b.csv"}, "id": "id", "label": "y",
                 "active": "active"}
    }  # fmt: skip
    scenario = vflsec.load_scenario(given, base=tmp_path)
    plan = make_plan(scenario, try_out=False)
    group = plan.groups[0]
    work = Work(group.data, group.cells, group.attacks, main=True)
    (tmp_path / "b.csv").write_text("id,z,w\n" + "\n".join(f"{i},1,1" for i in range(60)) + "\n")
    order = executor.Order([work], tmp_path, "cpu", None, executor.list_versions())
    with pytest.raises(ConfigError, match=r"its tables on .* changed"):
        executor.do_order(order)


@pytest.fixture(scope="module")
def works() -> list[Work]:
    given = tomllib.loads(SCENARIO) | {
        "algorithm": [{"name": "splitnn"}, {"name": "splitnn", "epochs": 300}],
        "audit": {"seeds": 6, "references": ["local"], "positive_control": False},
    }
    plan = make_plan(vflsec.load_scenario(given), try_out=False, load=source)
    return [Work(g.data, (c,), g.attacks, g.main, g.role) for g in plan.groups for c in g.cells]


@pytest.mark.parametrize("workers", [1, 2, 4, 50])
def test_tasks_hold_every_piece_once_and_none_is_too_long(works: list[Work], workers: int) -> None:
    every = works
    tasks = batch_works(every, workers)
    assert sorted(id(w) for t in tasks for w in t) == sorted(map(id, every))
    share = sum(map(compute_weight, every)) / (8 * workers)
    assert all(len(t) == 1 or sum(map(compute_weight, t)) <= share + 1e-9 for t in tasks)
    assert compute_weight(tasks[0][0]) == max(map(compute_weight, every))
    assert len(tasks) < len(every) or workers == 50  # small ones travel together


def test_a_cohort_is_cut_until_every_worker_has_some(works: list[Work]) -> None:
    cells = tuple(w.cells[0] for w in works[:12])
    whole = Work(works[0].data, cells, works[0].attacks, main=True)
    assert find_replicas([whole], 32, 1) == 32
    assert find_replicas([whole], 32, 2) == 6
    assert find_replicas([whole], 32, 8) == 4  # fewer are not worth it
    assert find_replicas([whole], 3, 2) == 3
    assert find_replicas([whole] * 4, 32, 2) == 32
    small = [Work(works[0].data, cells[:1], works[0].attacks, main=True)] * 4
    assert find_replicas([whole, *small], 32, 2) == 6  # of 16 trainings nobody takes 12
    assert find_replicas([whole, *small * 3], 32, 2) == 32


def test_processes_that_are_stopped_leave_no_broken_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C under --jobs 2 printed a traceback of loky's thread after the message."""
    broken: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", broken.append)
    pool = worker_pools.Processes(2)
    executor = pool.executor()
    assert executor.submit(os.getpid).result(timeout=120) != os.getpid()  # workers are there
    futures = [executor.submit(time.sleep, 60) for _ in range(12)]
    manager = next(t for t in threading.enumerate() if t.name == "ExecutorManagerThread")
    time.sleep(0.5)
    pool.stop()
    manager.join(timeout=60)
    assert not manager.is_alive()
    assert broken == []
    assert all(f.done() for f in futures)


@pytest.mark.parametrize(
    "where",
    ["dask", "dask://", "local:0", "local:", "local:x", "ssh://a:1", "a:1", "ray://",
     "dask://a b:1", "dask://host", "local:-1"],
)  # fmt: skip
def test_a_wrong_cluster_is_one_clear_error(where: str) -> None:
    with pytest.raises(ConfigError, match=r"--cluster must be dask://HOST:PORT"):
        worker_pools.open_cluster(where)


@pytest.mark.parametrize(("where", "module"), [("local:2", "distributed"), ("ray://a:1", "ray")])
def test_what_is_not_installed_is_named(
    where: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=r"--cluster.* needs .*pip install"):
        worker_pools.open_cluster(where)


def test_views_are_not_kept_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--cluster: .* --keep-views"):
        audit(tmp_path, cluster="local:2", keep_views=True)


def test_ray_is_spoken_to_as_it_is_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stand-in: tasks are retried by Ray, and their references become futures."""
    said: list[Any] = []

    class Task:
        def __init__(self, fn: Any) -> None:
            self.fn = fn

        def remote(self, *args: Any) -> Any:
            out: Future[Any] = Future()
            out.set_result(self.fn(*args))
            return SimpleNamespace(future=lambda: out)

    def remote(**options: Any) -> Any:
        said.append(options)
        return Task

    ray = SimpleNamespace(
        init=lambda **where: said.append(where), remote=remote, shutdown=lambda: said.append("end"),
        cluster_resources=lambda: {"CPU": 6.0},
        exceptions=SimpleNamespace(WorkerCrashedError=Died, NodeDiedError=Died),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "ray", ray)
    with worker_pools.open_cluster("ray://head:10001") as pool:
        assert pool.workers == 6
        assert pool.executor().submit(max, 3, 4).result() == 4
    assert said[0]["address"] == "ray://head:10001"
    assert said[1] == {"max_retries": 3, "num_cpus": 1}
    assert said[2] == "end"


@pytest.mark.parametrize("hang", ["loop", "stubborn"])
def test_a_hang_ends_where_no_signal_arrives(hang: str) -> None:
    """As in a worker of Dask, whose tasks run in a thread."""

    def forever() -> None:
        while True:
            try:
                time.sleep(0.001)
            except Exception:
                continue

    def loop() -> None:
        while True:
            pass

    found: list[Any] = []
    what = {"loop": loop, "stubborn": forever}[hang]

    def work() -> None:
        found.append(attempt_call(what, "attack 'x'", 1.0))
        found.append(attempt_call(lambda: 7, "attack 'y'", 1.0))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    assert found[0][0] is None
    assert "took longer than its timeout" in found[0][1]
    assert found[1] == (7, "")


REAL = """
data = { name = "breast_cancer" }
algorithm = { name = "splitnn", epochs = 2 }
defense = [{ name = "iso", strength = [0, 1] }, { name = "noise", strength = [1] }]
attack = [{ name = "norm" }, { name = "model_completion", known_rows = 20 }]
audit = { seeds = 4, references = ["local"], positive_control = false }
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["shards", "jobs"])
def test_a_real_audit_divided_is_the_serial_one(tmp_path: Path, how: str) -> None:
    given = tomllib.loads(REAL)
    serial = vflsec.run_audit(given, tmp_path / "serial", device="cpu")
    if how == "shards":
        folders = [tmp_path / f"p{i}" for i in (1, 2)]
        for i, folder in enumerate(folders, 1):
            vflsec.run_audit(given, folder, device="cpu", shard=f"{i}/2")
        found = vflsec.merge(folders, tmp_path / "found")
    else:
        left = tmp_path / "found" / ".controls.ab_12xyz"  # by an audit that was killed
        left.mkdir(parents=True)
        (left / "of.safetensors").write_bytes(b"anything")
        found = vflsec.run_audit(given, tmp_path / "found", device="cpu", jobs=2)
        assert list((tmp_path / "found").glob(".controls*")) == []
    pd.testing.assert_frame_equal(found.results, serial.results, check_exact=True)


class _Kill:
    """Kills a worker of the cluster as soon as it works, once."""

    def __init__(self, folder: Path) -> None:
        self.mark = folder / "killed"

    def __call__(self, call: int) -> None:
        try:
            self.mark.touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_killed_worker_of_dask_changes_nothing(tmp_path: Path, serial: Audit) -> None:
    """Two workers, one killed in its first task, with the fake trainer and with the real one."""
    distributed = pytest.importorskip("distributed")
    trainer = Trainer(_Kill(tmp_path), wait=0.2)
    found = audit(tmp_path / "found", trainer, cluster="local:2", replicas=2)
    assert (tmp_path / "killed").exists()
    pd.testing.assert_frame_equal(found.results, serial.results, check_exact=True)
    given = tomllib.loads(REAL)
    whole = vflsec.run_audit(given, tmp_path / "whole", device="cpu")
    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1"
    )
    with cluster, distributed.Client(cluster) as client:
        pids = list(client.run(os.getpid).values())

        def kill() -> None:
            time.sleep(2.0)
            os.kill(pids[0], signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        address = cluster.scheduler_address.removeprefix("tcp://")
        real = vflsec.run_audit(
            given, tmp_path / "real", device="cpu", cluster=f"dask://{address}", replicas=2
        )
        killer.join()
    pd.testing.assert_frame_equal(real.results, whole.results, check_exact=True)


def test_workers_start_while_the_plan_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    class Early(worker_pools.Processes):
        def warm(self) -> None:
            said.append(f"{self.workers} start")

        def stop(self) -> None:
            said.append("stopped")

    def no_plan(*_: Any, **__: Any) -> None:
        said.append("plan")
        raise ConfigError("none")

    monkeypatch.setattr(worker_pools, "Processes", Early)
    monkeypatch.setattr(run, "make_plan", no_plan)

    def begin(**how: Any) -> list[str]:
        said.clear()
        with pytest.raises(ConfigError, match="none"):
            vflsec.run_audit(tomllib.loads(SCENARIO), tmp_path, device="cpu", **how)
        return list(said)

    assert begin(jobs=3) == ["3 start", "plan", "stopped"]
    assert begin() == ["plan"]
    ended = tmp_path / "summary.json"  # of an audit, which may have nothing left to do
    ended.write_text('{"scenario_hash": ""}')
    assert begin(jobs=3) == ["plan"]


_EARLY = """
import sys
from vflsec.cli import main as cli
from vflsec.engine import worker_pools

class Early(worker_pools.Processes):
    def warm(self):
        print(f"{self.workers} start", "torch" in sys.modules)

    def stop(self):
        print("stopped")

worker_pools.Processes = Early
print(cli.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_workers_start_before_this_process_imports_torch_and_end_with_a_bad_scenario(
    tmp_path: Path,
) -> None:
    (tmp_path / "bad.toml").write_text("[data]\nnme = 1\n")

    def said(*options: str) -> list[str]:
        command = [sys.executable, "-c", _EARLY, "audit", "bad.toml", *options]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert "data.nme" in done.stderr, done.stderr
        return done.stdout.split("\n")[:-1]

    assert said("--jobs", "3") == ["3 start False", "stopped", "2"]
    assert said() == ["2"]
    (tmp_path / "out" / "bad").mkdir(parents=True)
    (tmp_path / "out" / "bad" / "summary.json").write_text("{}")
    assert said("--jobs", "3") == ["2"]
    assert said("--jobs", "3", "--fresh") == ["3 start False", "stopped", "2"]


@pytest.mark.slow
def test_workers_that_started_early_do_the_work() -> None:
    workers = worker_pools.Processes(2)
    try:
        workers.warm()
        early = workers.executor()
        names = {early.submit(os.getpid).result() for _ in range(20)}
        assert os.getpid() not in names
        assert workers.executor() is early
        workers.warm()
        modules = {early.submit(_has_trainer).result() for _ in range(4)}
        assert modules == {True}
    finally:
        workers.stop()


def _has_trainer() -> bool:
    return "vflsec.engine.cohort" in sys.modules
