"""One thread, no terminal colours, no network of its own: a test run is the same everywhere."""

from __future__ import annotations

import gc
import importlib
import os
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from command_line import Cli

# Before torch or numpy is loaded: threads beyond one contend with the other worker processes.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"
os.environ["MPLBACKEND"] = "Agg"
os.environ["NO_COLOR"] = "1"
os.environ["COLUMNS"] = "120"
for _name in ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
    os.environ.pop(_name, None)

import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
PLUGIN = Path(__file__).resolve().parent / "plugin_example"

settings.register_profile(
    "house",
    deadline=None,
    derandomize="CI" in os.environ,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("house")


gc.set_threshold(200_000, 10, 10)  # modules and cases come by the million and are no garbage


def pytest_configure(config: pytest.Config) -> None:
    """Tests run on the CPU on every machine; ``-m gpu`` asks for the others."""
    if not (config.option.markexpr or "").startswith("gpu"):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none, or none is asked for."""
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if gpu:
        import torch

        if not torch.cuda.is_available():
            for item in gpu:
                item.add_marker(
                    pytest.mark.skip(reason="no CUDA device, or not asked for: pytest -m gpu")
                )


def pytest_collection_finish() -> None:
    """What was collected stays: no later search for garbage goes through it."""
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Figures are half of the time of a report: draw them where a module looks at them."""
    from vflsec.report import html

    draw = _drawing()  # as it was before any test
    shown = item.get_closest_marker("figures") is not None
    html.draw = draw if shown else lambda figure: ""


@cache
def _drawing() -> Callable[[Any], Any]:
    from vflsec.report import html

    return html.draw


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _grown_once() -> None:
    """Trees of equal rows and seeds are grown once: they are a quarter of a small audit."""
    from vflsec.measure import own_classifiers

    kept: dict[Any, Any] = {}

    def grown(grow: Callable[..., Any], *given: Any) -> Any:
        key = [(g.shape, g.dtype.str, g.tobytes()) if hasattr(g, "dtype") else g for g in given]
        fit = kept.get((grow, *key)) or kept.setdefault((grow, *key), grow(*given))
        return replace(fit, made=fit.scores.copy())

    for name in ("_trees", "_boosting"):
        setattr(own_classifiers, name, partial(grown, getattr(own_classifiers, name)))


@pytest.fixture(scope="session", autouse=True)
def _controls_made_once() -> None:
    """So are controls of equal views, a quarter of a small audit; `test_shared` makes them anew."""
    from vflsec.measure import control_maker
    from vflsec.measure.control_cache import hash_view

    kept: dict[Any, Any] = {}
    make = control_maker.controls_for

    def made(of: Any, views: Any, rngs: Any, alone: Any = ()) -> Any:
        if alone:
            return make(of, views, rngs, alone)
        seeds = [(hash_view(v), r.initial_seed()) for v, r in zip(views, rngs, strict=True)]
        where = [str(v.target_rows.device) for v in views]
        key = (of.target, type(of), repr(of.params()), repr(seeds), repr(where))
        if key not in kept:
            kept[key] = make(of, views, rngs)
        return [list(controls) for controls in kept[key]]

    control_maker.controls_for = made


@pytest.fixture(scope="session", autouse=True)
def _no_power_cut() -> None:
    """A store of this process waits for no disk: its files go with the test, and no power fails."""
    from vflsec.storage.sqlite_file import SealedFile

    opened = SealedFile._open

    def open_fast(self: SealedFile) -> Any:
        db = opened(self)
        db.execute("pragma synchronous=off")
        return db

    SealedFile._open = open_fast  # type: ignore[method-assign]


@pytest.fixture(autouse=True)
def _own_path() -> Iterator[None]:
    """Commands put the folder they run in on the path of imports; no later test looks there."""
    before = list(sys.path)
    yield
    sys.path[:] = before


@pytest.fixture
def read_in_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traces of this test are read apart in forks of this process."""
    from forked import read_apart_in_forks

    read_apart_in_forks(monkeypatch)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """The command line in this process."""
    from command_line import Cli

    return Cli(capsys)


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real tables; a test that asks for it is skipped where there is none."""
    folder = Path(os.environ.get("VFLSEC_TEST_DATA") or ROOT.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip("no real tables: set VFLSEC_TEST_DATA to their folder")
    return folder


@pytest.fixture
def benchmark_script(root: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """``benchmark_script(name)``: that module of ``benchmarks/``; skips where there is none."""

    def script(name: str) -> Any:
        if not (root / "benchmarks").is_dir():
            pytest.skip("benchmarks do not come with the package")
        monkeypatch.syspath_prepend(str(root / "benchmarks"))
        return importlib.import_module(name)

    return script


Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """``install(points, **files)``: make a package known without pip, for this test only.

    `points` is {group: {name: value}}; `files` are modules by stem, written beside the metadata.
    Returns the folder, which is then on ``sys.path``. All that has to be there for an entry point
    to be found is a ``*.dist-info`` folder with ``METADATA`` and ``entry_points.txt``.
    """
    before = set(sys.modules)

    def make(points: dict[str, dict[str, str]], name: str = "outside", **files: str) -> Path:
        folder = tmp_path / name
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = []
        for group, named in points.items():
            lines += [f"[{group}]", *(f"{k} = {v}" for k, v in named.items()), ""]
        (info / "entry_points.txt").write_text("\n".join(lines))
        for stem, text in files.items():
            (folder / f"{stem}.py").write_text(text, encoding="utf-8")
        monkeypatch.syspath_prepend(str(folder))
        return folder

    yield make
    for module in set(sys.modules) - before:
        file = str(getattr(sys.modules[module], "__file__", ""))
        if file.startswith((str(tmp_path), str(PLUGIN))):
            del sys.modules[module]


@pytest.fixture
def plugin(install: Install, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package in ``plugin_example``, known through its own entry points, not installed."""
    project = tomllib.loads((PLUGIN / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    monkeypatch.syspath_prepend(str(PLUGIN))
    install(project["entry-points"], name="vflsec_example_metadata")
    return PLUGIN
