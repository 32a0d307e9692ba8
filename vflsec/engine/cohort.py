"""One cohort from cells to results: train, attack after every phase, score, claim."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from vflsec.audit.dosing import MARK
from vflsec.audit.planted_leak import plant_leak
from vflsec.audit.scoring import DIVERGED, main_task, make_unscored, score_answer
from vflsec.audit.truth import label_truth
from vflsec.core.rng import generator
from vflsec.core.source import Ended, Given, Simulated
from vflsec.core.task import Task
from vflsec.core.view import View
from vflsec.engine.audit_record import list_versions
from vflsec.engine.integrity_scores import measure_success
from vflsec.engine.membership_queries import Asking
from vflsec.epsilon.measured_claims import add_untested, check_planned, measure_claims
from vflsec.errors import ConfigError, VflsecError
from vflsec.measure.attack import Answer, Bench
from vflsec.measure.control_cache import SharedControls
from vflsec.measure.control_maker import ControlMaker
from vflsec.measure.controls import Control, guess_randomised
from vflsec.measure.prepared import Prepared, prepare
from vflsec.plugins.loading import attempt_call, describe_error, find_place
from vflsec.runtime.malloc_trim import give_back
from vflsec.runtime.out_of_memory import Passing, nothing, out_of_memory
from vflsec.specs import AttackSpec, CellResult, CellSpec, Measure
from vflsec.train.cohort import Moment, Progress, Training, count_planned
from vflsec.train.demand import Demand, list_recordings
from vflsec.train.device import asks_graphs, pick_device
from vflsec.train.view_reader import open_kept
from vflsec.train.view_writer import Keep, Keeper


def run_cohort(
    cells: Sequence[CellSpec],
    attacks: Sequence[AttackSpec],
    tasks: Mapping[int, Task],
    *,
    device: str = "auto",
    progress: Progress | None = None,
    main: bool = True,
    shared: SharedControls | None = None,
    keep: Keep | None = None,
) -> list[CellResult]:
    """Train cells that differ in seed and strengths only, and audit each.

    Args:
        cells: of one cohort.
        attacks: to make on each cell after each audited phase.
        tasks: the task of each seed.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``, the last two perhaps with ``+graphs``.
        progress: called with (what is being done, share done in [0, 1]).
        main: False leaves main-task figures out.
        shared: controls of any earlier cohorts, taken where they were made of the same.
        keep: where the views are kept, if they are; no attack may act during training then.

    Returns:
        One result for each cell, in order; a cell's result does not depend on the other cells.

    Raises:
        MemoryError, RuntimeError: there is no room for a training, or with several cells for an
            attack or its controls (`vflsec.runtime.out_of_memory.out_of_memory`).
        ConfigError: a training in which an attack acts cannot go on; the message names it.
    """
    started = _now()
    asked = prepare(attacks)
    tell = _Progress(progress)
    demands = [Demand.of(p.spec, p.attack) for p in asked]
    training = Training(cells, demands, tasks, pick_device(device), tell, asks_graphs(device))
    controls = ControlMaker(training.alone, shared, cells[0].undefended, training.reassigned)
    bench = Bench(controls, _choose_passing(cells))
    asking = {p.spec.key: Asking(training, p) for p in asked if p.attack.target == "membership"}
    keeper = keep and Keeper(keep, training, len(cells), [p.attack for p in asked])
    results = [CellResult(c.key, c, device=str(training.device)) for c in training.cells]
    of = [training.task(r) for r in range(len(results))]
    acting = [p.spec.label for p, of_it in zip(asked, demands, strict=True) if of_it.policy]
    moments = training.run(predictions=main)
    for moment in _run_acted(moments, acting, tell) if acting else moments:
        lost, phase = moment.diverged(), moment.phase.name
        _add(results, main_task(phase, moment.predictions, of, lost))
        if moment.phase.audited:
            if keeper:
                keeper.moment(moment)
            made = attack_all(bench, moment, asked, results, tell.attacks, asking)
            for done, p in enumerate(made, start=1):
                _note_lost(p, phase, results, of, lost)
                training.fed.channel.recorder.forget(phase, list_recordings(demands[done:]))
                if moment.phase.name == training.fed.audited[-1]:
                    controls.forget(asked[done:])
    if keeper:
        keeper.close()
    _add_guarantees(training, cells, tasks, results, main=main)
    results = results[: len(cells)]
    _add_time(results, started)
    return results


def _add(results: Sequence[CellResult], found: Iterable[Sequence[Measure]]) -> None:
    """Add measures to the results, by replica."""
    for result, measures in zip(results, found, strict=True):
        result.measures += measures


def attack_all(
    bench: Bench, moment: Simulated, asked: Sequence[Prepared], results: Sequence[CellResult],
    tell: Progress = lambda *_: None, asking: Mapping[str, Asking] = MappingProxyType({}),
) -> Iterator[Prepared]:  # fmt: skip
    """Make one attack after the other and add its measures; each when it has been made.

    Args:
        bench: where they are made.
        moment: after which phase of which trainings.
        asked: the attacks.
        results: one for each training, to which measures are added.
        tell: called with (what is being done, share done in [0, 1]).
        asking: by attack's key, what asks the trained systems, of attacks that do.
    """
    beside = _Population(moment)
    for i, p in enumerate(asked):
        give_back()  # what training or the attack before left
        tell(f"{moment.phase.name}: {p.spec.label}", i / len(asked))
        _attack(bench, moment, p, results, beside, asking.get(p.spec.key))
        yield p


def _add_guarantees(
    training: Training, cells: Sequence[CellSpec], tasks: Mapping[int, Task],
    results: Sequence[CellResult], *, main: bool,
) -> None:  # fmt: skip
    """Add what was sent, what defenses guarantee, and what canaries measured of that."""
    expected = count_planned(cells, tasks) if main else {}
    for r, result in enumerate(results):
        result.ledger = training.ledger(r)
        result.guarantees = check_planned(training.guarantees(r), expected)
        result.facts = training.outcome(r)
    if main:
        measured = [[] for _ in results] if cells[0].untested else measure_claims(training)
        _add(results, measured)
        for result, found in zip(results, measured, strict=True):
            result.guarantees = add_untested(result, found, tasks[result.spec.seed])


class _Progress:
    """Tells progress; keeps what comes out of that, for it is no error of a training."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self.raised: BaseException | None = None

    def __call__(self, what: str, share: float) -> None:
        if self._progress is None:
            return
        try:
            self._progress(what, share)
        except BaseException as error:
            self.raised = error
            raise

    def attacks(self, what: str, share: float) -> None:
        """Tell the progress of attacks, which come after the training."""
        self(what, 0.8 + 0.2 * share)


def _run_acted(
    moments: Iterator[Moment], acting: Sequence[str], tell: _Progress
) -> Iterator[Moment]:
    """The moments of a training in which these attacks act, whose fault it is if it ends.

    For the training without them went well. What a hook returns may break anything after it, so
    nothing is asked of where an error was raised; one of a plug-in is told with its place above.

    Raises:
        ConfigError: the training cannot go on.
    """
    try:
        yield from moments
    except ConfigError:
        raise
    except Exception as error:
        ours = isinstance(error, VflsecError)
        above = error is tell.raised or out_of_memory(error) or isinstance(error, OSError)
        if not ours and (above or find_place(error)):
            raise
        why = str(error).lstrip(": ") if ours else f"{describe_error(error).rstrip('.')}."
        names = " and ".join(repr(name) for name in acting)
        raise ConfigError(f"attack {names} broke the training in which it acts: {why}") from error


def attack_kept(
    cells: Sequence[CellSpec],
    attacks: Sequence[AttackSpec],
    tasks: Mapping[int, Task],
    paths: Sequence[Path],
    *,
    device: str = "auto",
    progress: Progress | None = None,
) -> list[CellResult]:
    """Attack finished trainings by their kept views: the measures that training would have given.

    Args:
        cells: of one cohort.
        attacks: that kept views suffice for, see `vflsec.train.view_reader.find_insufficient`.
        tasks: the task of each seed.
        paths: the kept views of each cell.
        device, progress: as in :func:`run_cohort`.

    Raises:
        TraceError: a file is damaged.
    """
    started = _now()
    asked = prepare(attacks)
    tell = progress or (lambda *_: None)
    where = pick_device(device)
    demands = [Demand.of(p.spec, p.attack) for p in asked]
    with open_kept(cells, paths, demands, tasks, where) as training:
        results = [CellResult(c.key, c, device=str(where)) for c in training.cells]
        bench = Bench(ControlMaker(training.alone), _choose_passing(cells))
        for moment in training.run():
            for _ in attack_all(bench, moment, asked, results, tell):
                pass
    results = results[: len(cells)]
    _add_time(results, started)
    return results


def _choose_passing(cells: Sequence[CellSpec]) -> Passing:
    """An attack for which there is no room beside a cohort may fit beside half of it."""
    return out_of_memory if len(cells) > 1 else nothing


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _add_time(results: Sequence[CellResult], started: tuple[float, float]) -> None:
    """Give each cell its share of the time that passed, and processors worked; and versions."""
    wall, worked = (b - a for a, b in zip(started, _now(), strict=True))
    for result in results:
        result.seconds = wall / len(results)
        result.facts = replace(
            result.facts, cpu_seconds=worked / len(results), versions=list_versions()
        )


def _attack(
    bench: Bench, moment: Simulated, p: Prepared, results: Sequence[CellResult],
    beside: _Population, asking: Asking | None = None,
) -> None:  # fmt: skip
    """Make one attack after a phase and add its measures to the results."""
    phase = moment.phase
    if p.attack.target == "integrity":  # it needs the trained system itself
        assert isinstance(moment, Moment)
        found, why = attempt_call(
            lambda: measure_success(
                moment.training.algorithm, moment.training.fed, p.attack, p.spec, moment.phase
            ),
            f"attack {p.spec.label!r}", passing=bench.passing,
        )  # fmt: skip
        for r, result in enumerate(results):
            result.measures += (
                found[r] if found else [_make_failed(p, phase.name, moment.task(r), why)]
            )
        return
    if asking is None:
        given = moment.give(p.spec, p.attack)
    else:  # it asks the trained system, and knows nothing of the training
        assert isinstance(moment, Moment)
        bench, given = Bench(passing=bench.passing), asking.give(moment)
    fit = list(range(len(given.views)))
    for answers in bench.attack(p, given):
        for r, (result, answer) in enumerate(zip(results, answers, strict=True)):
            answer = answer if asking is None else asking.beside(answer, r)
            sent = partial(moment.embeddings, p.spec, r)
            measures = score_answer(beside(answer, r), moment.task(r), sent, bench.passing)
            result.measures += measures
            if measures[0].status == "error" and r in fit:  # nor is one planted there
                fit.remove(r)
    if p.attack.target == "label":
        _dose(bench, moment, p, {r: given.views[r] for r in fit}, results, beside)


def _note_lost(
    p: Prepared, phase: str, results: Sequence[CellResult], tasks: Sequence[Task],
    lost: Sequence[bool],
) -> None:  # fmt: skip
    """An attack's figure on a training that diverged stands, but it is no evidence of safety; an
    attack that failed there has that reason, and one that was not to be made keeps its own.
    """
    for result, task, bad in zip(results, tasks, lost, strict=True):
        if bad:
            mine = [m for m in result.measures if (m.phase, m.attack_key) == (phase, p.spec.key)]
            result.measures = [m for m in result.measures if m not in mine or m.status != "error"]
            if all(m.metric or m.status == "error" for m in mine):
                result.measures.append(_make_failed(p, phase, task, DIVERGED))


def _make_failed(p: Prepared, phase: str, task: Task, why: str) -> Measure:
    """The row of an attack that broke a system, or on one that is none."""
    return make_unscored(p, phase, task.parties, "error", why)


class _Population:
    """Adds to an answer what the randomised labels of all other rows would tell by themselves."""

    def __init__(self, moment: Simulated) -> None:
        self.moment = moment
        self.made: dict[tuple[Any, ...], Control] = {}

    def __call__(self, answer: Answer, r: int) -> Answer:
        spec, on = answer.of.spec, answer.of.attack.target == "label"
        labels = self.moment.randomised(r) if on and answer.guess is not None else None
        if labels is None:
            return answer
        asked = answer.view.target_rows.cpu().numpy().tobytes()
        key = (r, spec.adversary, spec.known_rows, spec.of_label, asked)
        if key not in self.made:
            self.made[key] = guess_randomised(answer.view, labels)
        return replace(answer, controls=lambda: [*answer.controls(), self.made[key]])


def _dose(
    bench: Bench, moment: Simulated, p: Prepared, views: Mapping[int, View],
    results: Sequence[CellResult], beside: _Population,
) -> None:  # fmt: skip
    """The same attack with planted leaks of known size laid over its views, by replica."""
    tasks = [moment.task(r) for r in views]
    attacked = [task.of_label(p.spec.of_label) for task in tasks]
    seeds = [moment.seeds[r] for r in views]
    for share in p.spec.dosing if views else ():
        laid = [
            plant_leak(
                view, label_truth(task), task.prior.tolist(), share, generator(seed, "dosing"),
            )
            for view, task, seed in zip(views.values(), attacked, seeds, strict=True)
        ]  # fmt: skip
        phase = Ended(f"{moment.phase.name}{MARK}{share:g}")
        for answers in bench.attack(p, Given(laid, seeds, phase)):
            for r, task, answer in zip(views, tasks, answers, strict=True):
                results[r].measures += score_answer(beside(answer, r), task, passing=bench.passing)
