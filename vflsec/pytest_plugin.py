"""Gates as pytest tests. ``pip install vflsec`` brings this plug-in; it does nothing unless used.

Three ways, all without importing torch before an audit runs:

- ``pytest --vflsec scenario.toml`` collects one test for every verdict of the scenario's gates;
- ``@pytest.mark.vflsec(scenario="scenario.toml")`` on a test runs the audit once and fails the test
  unless every gate passes; of several marks, also of its class, all are judged; the fixture
  ``vflsec`` gives the finished audit, of the mark nearest to the test;
- the fixture ``vflsec`` in a test without the mark is a function ``vflsec(scenario, **options)``
  that runs an audit and returns it.

``--vflsec-seeds``, ``--vflsec-until-decided`` and ``--vflsec-baseline`` are for every audit that
does not say otherwise, as ``seeds``, ``until_decided`` and ``baseline`` of a mark or a call do.
What fails names its report.

An inconclusive gate fails, for it did not show what was asked, or with
``--vflsec-inconclusive=skip`` is skipped; an audit in which nothing is judged fails. Under
pytest-xdist one worker audits and the others read what it found
(:func:`vflsec.engine.evaluate_store.audit_once`).
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from vflsec.audit.baseline import Baseline
    from vflsec.audit.gate import Verdict
    from vflsec.report.notebook import Audit

_AUDITS = pytest.StashKey[dict[str, Any]]()


def _count(text: str) -> int:
    """A number from 1, as for `vflsec audit`.

    Raises:
        ArgumentTypeError: it is none; argparse names the option.
    """
    if not (text.isdecimal() and int(text) > 0):
        raise ArgumentTypeError(f"must be a number from 1, got {text!r}")
    return int(text)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the plug-in."""
    group = parser.getgroup("vflsec", "privacy audits")
    group.addoption(
        "--vflsec", action="append", default=[], metavar="SCENARIO",
        help="Audit a scenario, one test for each gate (may be repeated).",
    )  # fmt: skip
    group.addoption(
        "--vflsec-inconclusive", choices=("fail", "skip"), default="fail",
        help="What an inconclusive gate does to its test (default: fail).",
    )  # fmt: skip
    group.addoption(
        "--vflsec-seeds", type=_count, metavar="N", default=None,
        help="Seeds, instead of the scenario's.",
    )  # fmt: skip
    group.addoption(
        "--vflsec-until-decided", type=_count, metavar="N", default=None,
        help="Add seeds, up to N, while they may decide.",
    )  # fmt: skip
    group.addoption(
        "--vflsec-baseline", metavar="FILE", default=None,
        help="Also fail where the advantage rose above this file.",
    )  # fmt: skip
    group.addoption(
        "--vflsec-out", metavar="DIR", default=None,
        help="Folder for results (default: a temporary one).",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known."""
    config.addinivalue_line(
        "markers",
        "vflsec(scenario, *, baseline, until_decided, **options): run this audit and fail the test "
        "unless every gate passes; further options are those of vflsec.run_audit",
    )
    config.stash[_AUDITS] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add one test for every verdict; the audits run here, for only they know the verdicts."""
    scenarios = list(dict.fromkeys(config.getoption("--vflsec")))
    names = [Path(scenario).name for scenario in scenarios]
    for scenario, name in zip(scenarios, names, strict=True):
        shown = name if names.count(name) == 1 else scenario
        try:
            found = _Scenario.from_parent(session, name=shown, nodeid=shown, scenario=scenario)
            items.extend(found.collect())
        except pytest.UsageError as error:
            if not hasattr(config, "workerinput"):
                raise
            items.append(_Refused.from_parent(session, name=shown, nodeid=shown, why=str(error)))


class _Refused(pytest.Item):
    """A scenario that cannot be audited, in a worker of pytest-xdist: an error there is called one
    of pytest's own.
    """

    def __init__(self, *, why: str, **usual: Any) -> None:
        super().__init__(**usual)
        self.why = why

    def runtest(self) -> None:
        pytest.fail(self.why, pytrace=False)


class _Scenario(pytest.Collector):
    """A scenario whose gates are tests."""

    def __init__(self, *, scenario: str, **usual: Any) -> None:
        super().__init__(**usual)
        self.scenario = scenario

    def collect(self) -> Iterator[pytest.Item]:
        audit = _run(self.config, self.scenario, {})
        from vflsec.report.verdicts import format_titles

        verdicts = audit.verdicts
        for verdict, name in zip(verdicts, format_titles(verdicts), strict=True):
            yield _Gate.from_parent(self, name=name, verdict=verdict, audit=audit)
        for verdict in _unjudged(audit):
            name = "the audit is complete and sets a gate"
            yield _Gate.from_parent(self, name=name, verdict=verdict, audit=audit)


def _unjudged(audit: Audit) -> list[Verdict]:
    """A verdict where no gate, or not all, was asked; none at all is a fault that no skip hides."""
    from vflsec.audit.gate import Gate, Rule, Ruling, Verdict
    from vflsec.audit.point import Training
    from vflsec.report.verdicts import format_headline

    asked, complete = bool(audit.verdicts), audit.found.complete
    if asked and complete:
        return []
    found = "FAIL" if complete else "INCONCLUSIVE"
    reason = format_headline(audit.found)[1]
    ruling = Ruling(Rule.NOTHING_SELECTED, reason)
    return [Verdict.about(Training(), Gate(max=0.0), ruling, verdict=found)]


class _Gate(pytest.Item):
    """One verdict."""

    def __init__(self, *, verdict: Verdict, audit: Audit, **usual: Any) -> None:
        super().__init__(**usual)
        self.verdict, self.audit = verdict, audit

    def runtest(self) -> None:
        _settle(self.config, [(self.verdict, self.audit)])

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, f"{self.parent.name if self.parent else ''}: {self.name}"


def _settle(config: pytest.Config, judged: Sequence[tuple[Verdict, Audit]]) -> None:
    """Fail or skip by the verdicts of audits; a failed gate outweighs an inconclusive one."""
    from vflsec.report.sanitize import clean
    from vflsec.report.verdicts import format_point

    open_ = {kind: [x for x in judged if x[0].verdict == kind] for kind in ("FAIL", "INCONCLUSIVE")}
    every = [*open_["FAIL"], *open_["INCONCLUSIVE"]]
    if not every:
        return
    where = [f" [{format_point(v)}]" if v.defense else "" for v, _ in every]
    lines = [f"{v.verdict}: {v.reason}{at}" for (v, _), at in zip(every, where, strict=True)]
    lines += dict.fromkeys(f"Report: {audit.folder / 'report.html'}" for _, audit in every)
    text = "\n".join(map(clean, lines))
    if not open_["FAIL"] and config.getoption("--vflsec-inconclusive") == "skip":
        pytest.skip(text)
    pytest.fail(text, pytrace=False)


_BUDGET = "until_decided"
"""An option that names no folder of its own: a larger budget goes on from the looks in it."""
_USUAL = ("seeds", _BUDGET, "baseline")
"""Options of an audit that the command line sets where a mark or a call does not."""


def _run(config: pytest.Config, scenario: str, options: dict[str, Any]) -> Audit:
    """The audit of a scenario, once in a session for all that ask for the same options of it while
    the files that it reads stay as they are.
    """
    audits = config.stash[_AUDITS]
    usual = {k: config.getoption(f"--vflsec-{k.replace('_', '-')}") for k in _USUAL}
    given = {**{k: x for k, x in usual.items() if x is not None}, **options}
    from vflsec.config.scenario import list_files
    from vflsec.errors import VflsecError
    from vflsec.runtime.atomic_files import stamp_files

    try:
        out, baseline = (_as_path(name, given.get(name)) for name in ("out", "baseline"))
        texts = given.get("set")
        files = list_files(scenario, [*map(str, texts)] if isinstance(texts, list | tuple) else ())
        path = files[0].resolve()
        key = repr((path, sorted(given.items()), stamp_files([*files, *filter(None, [baseline])])))
        if key not in audits:
            from vflsec.engine.evaluate_store import audit_once
            from vflsec.engine.read_results import read_any

            root = config.rootpath
            named = path.relative_to(root).as_posix() if path.is_relative_to(root) else path
            asked = repr((str(named), sorted((k, x) for k, x in given.items() if k != _BUDGET)))
            folder = out or _out(config, asked)
            before = None if baseline is None else read_any(baseline)
            further = {k: x for k, x in given.items() if k not in ("out", "baseline")}
            if config.getoption("verbose") < 0:
                further.setdefault("progress", False)
            with _uncaptured(config):  # bars are for the terminal
                audits[key] = audit_once(
                    folder, _session(config, key),
                    lambda: _audit(scenario, folder, before, **further), before=before,
                )  # fmt: skip
    except VflsecError as error:
        raise pytest.UsageError(f"vflsec: {error}") from None
    return audits[key]  # type: ignore[no-any-return]


def _uncaptured(config: pytest.Config) -> AbstractContextManager[None]:
    capture = config.pluginmanager.getplugin("capturemanager")
    return capture.global_and_fixture_disabled() if capture else nullcontext()


def _as_path(name: str, given: Any) -> Path | None:
    from vflsec.core import check

    if given is not None and not (isinstance(given, str | Path) and str(given).strip()):
        raise check.fail(name, "a path", given)
    return None if given is None else Path(given)


def _audit(
    scenario: str, out: Path, before: Baseline | None, until_decided: int | None = None,
    **options: Any,
) -> Audit:  # fmt: skip
    """An audit, whose reports also say what rose since an earlier audit."""
    from vflsec.engine.read_results import read_audit
    from vflsec.engine.run import run_audit
    from vflsec.engine.until_decided import run_until_decided
    from vflsec.report.exports import write_reports
    from vflsec.storage.results_folder import for_reports

    if until_decided is None:
        audit = run_audit(scenario, out, **options)
    else:
        audit = run_until_decided(scenario, out, most=until_decided, **options)
    if before is None:
        return audit
    audit = read_audit(out, before=before)
    for_reports(out, out)
    write_reports(out, audit.found)
    return audit


def _session(config: pytest.Config, key: str = "") -> str:
    """What all workers of one call of pytest-xdist share, of one audit; empty without workers."""
    run = str(getattr(config, "workerinput", {}).get("testrunuid", ""))
    return f"{run} {_short(key)}" if run and key else run


def _short(key: str) -> str:
    import hashlib

    return hashlib.blake2b(key.encode(), digest_size=6).hexdigest()


def _out(config: pytest.Config, key: str) -> Path:
    import tempfile

    folder, run = config.getoption("--vflsec-out"), _session(config)
    if folder is not None:
        return Path(folder) / _short(key)
    if run:  # a folder that the other workers know as well
        return Path(tempfile.gettempdir()) / f"vflsec-{run}" / _short(key)
    return Path(tempfile.mkdtemp(prefix="vflsec-")) / _short(key)


@pytest.fixture
def vflsec(request: pytest.FixtureRequest) -> Any:
    """The audit of the test's mark, or a function ``(scenario, **options)`` that runs one."""
    mark = request.node.get_closest_marker("vflsec")
    if mark is not None:
        return _of_mark(request.config, mark)

    def run(scenario: str | Path, **options: Any) -> Audit:
        return _run_in_test(request.config, str(scenario), options)

    return run


def _of_mark(config: pytest.Config, mark: pytest.Mark) -> Audit:
    options = dict(mark.kwargs)
    named = [*mark.args, *([options.pop("scenario")] if "scenario" in options else [])]
    if len(named) != 1:  # a second one would be passed over, and its leaks with it
        what = f"vflsec: the mark takes one scenario, got {len(named)}. Use a mark for each."
        pytest.fail(what, pytrace=False)
    return _run_in_test(config, str(named[0]), options)


def _run_in_test(config: pytest.Config, scenario: str, options: dict[str, Any]) -> Audit:
    """The audit; where there can be none, a test that failed and says why."""
    try:
        return _run(config, scenario, options)
    except pytest.UsageError as error:
        why = str(error)
    pytest.fail(why, pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Judge the gates of a marked test after its own assertions."""
    result = yield
    audits = [_of_mark(item.config, mark) for mark in item.iter_markers("vflsec")]
    if audits:
        _settle(item.config, [(v, a) for a in audits for v in [*a.verdicts, *_unjudged(a)]])
    return result
