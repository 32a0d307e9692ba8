"""The pipeline as functions for notebooks: train a system, look through a party's eyes, measure.

`vflsec.train` and `vflsec.measure` are these functions. A whole audit with gates, reports and a
store is `vflsec.run_audit`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pandas as pd

from vflsec.audit import leakage
from vflsec.audit.point import points_frame
from vflsec.audit.result_row import ResultRow, results_table
from vflsec.audit.scoring import main_task
from vflsec.audit_tables import check_arguments, list_defenses, list_sections, open_tables
from vflsec.cli.draft import Wishes
from vflsec.config.components import flat_params
from vflsec.config.scenario import Scenario, load_scenario
from vflsec.config.sections import Attack as AttackSection
from vflsec.core import check
from vflsec.core.reprs import as_table
from vflsec.core.rng import generator
from vflsec.core.view import Need, View, as_needs
from vflsec.data.load import load_source, split_options
from vflsec.data.prepare import make_task
from vflsec.engine.cohort import attack_all
from vflsec.errors import ThreatModelError
from vflsec.measure.attack import Bench
from vflsec.measure.control_maker import ControlMaker
from vflsec.measure.observed_rows import drop_unobserved_rows
from vflsec.measure.prepared import prepare
from vflsec.plan.cells import Cells
from vflsec.plan.observe import System, choose_attacker
from vflsec.plan.values import DataInfo
from vflsec.plugins import registry
from vflsec.report.progress import show_steps
from vflsec.specs import AttackSpec, CellResult, CellSpec, DefenseSpec
from vflsec.train.cohort import Moment, Training
from vflsec.train.demand import Demand
from vflsec.train.device import asks_graphs, pick_device

if TYPE_CHECKING:
    from vflsec.core.attack import Attack
    from vflsec.core.guess import Guess
    from vflsec.core.task import Task


class Trained:
    """One system trained with several seeds, as it stands after a phase.

    Attributes:
        tasks: by seed: who holds which rows, and the labels (the audit's; no attack sees them).
        phases: names of the phases that were trained, in order.
    """

    def __init__(
        self, moment: Moment, tasks: Mapping[int, Task], phases: Sequence[str], scenario: Scenario
    ) -> None:
        self._moment, self.tasks, self.phases = moment, tasks, tuple(phases)
        self._scenario = scenario
        training = moment.training
        self._cells = list(dict.fromkeys(c.key for c in training.cells))
        self._at = [next(r for r, c in enumerate(training.cells) if c.key == k)
                    for k in self._cells]  # fmt: skip
        self._bench = Bench(ControlMaker(training.alone, reassigned=training.reassigned))

    def __repr__(self) -> str:
        first = self._moment.training.cells[0]
        return (
            f"<{first.algorithm} on {first.data['name']} after {self.phases[-1]!r}: "
            f"{len(self._cells)} trainings>"
        )

    def _repr_html_(self) -> str:
        return as_table(repr(self)[1:-1], [
            ("parties", ", ".join(self._moment.training.stack.first.parties)),
            ("phases", ", ".join(self.phases)),
            ("seeds", ", ".join(map(str, self.seeds))),
            ("next", "view(PARTY), main, messages; vflsec.measure(trained, ATTACKS)"),
        ])  # fmt: skip

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that were trained."""
        return tuple(self.tasks)

    def view(
        self,
        adversary: str | Sequence[str] = "passive",
        *,
        seed: int | None = None,
        strength: float | None = None,
        **grants: Any,
    ) -> View:
        """What a party, or a coalition of parties, legitimately has in one of the trainings.

        Args:
            adversary: the name of a party or of a server such as ``coordinator``, ``active``,
                ``passive`` (the first one), or several names.
            seed: of the training; None takes the first.
            strength: of its first swept defense; None takes the first.
            grants: ``known_rows`` (20), ``prior`` (True), ``aux_rows``, ``peer_model``,
                ``victim``, ``of_label``: see :class:`vflsec.specs.AttackSpec`.

        Raises:
            ConfigError: no such party or training.
        """
        for grant in grants:
            check.one_of("view: a grant", grant, _GRANTS)
        given = {"name": "view", "adversary": adversary, **grants}
        spec = self._grant(_list_specs(self._scenario, [given], components=False)[0], adversary)
        return self._moment.view(spec, self._replica(seed, strength))

    @property
    def main(self) -> pd.DataFrame:
        """Main-task figures: one row for each training, split and metric."""
        cells = self._moment.training.cells
        results = [CellResult(cells[r].key, cells[r]) for r in self._at]
        tasks = [self._moment.training.task(r) for r in self._at]
        predictions = {
            split: (rows[self._at], logits[self._at])
            for split, (rows, logits) in self._moment.predictions.items()
        }
        found = main_task(self._moment.phase.name, predictions, tasks)
        for result, measures in zip(results, found, strict=True):
            result.measures += measures
        frame = results_table(_complete_rows(results))
        return frame[["defense", "strength", "seed", "split", "metric", "value", "low", "high"]]

    @property
    def messages(self) -> pd.DataFrame:
        """The messages sent: one row for each training, phase, kind of message and direction."""
        training = self._moment.training
        return pd.DataFrame(
            [
                {"seed": training.cells[r].seed,
                 "strength": leakage.defense_point(training.cells[r].defenses)[1], **vars(row)}
                for r in self._at
                for row in training.ledger(r)
            ]
        )  # fmt: skip

    def _grant(self, spec: AttackSpec, adversary: str | Sequence[str]) -> AttackSpec:
        """A spec with an adversary, and a victim, that this system has."""
        if spec.victim:
            check.one_of("victim", spec.victim, self._moment.training.stack.first.parties)
        return replace(spec, adversary=self._party(adversary))

    def _party(self, adversary: str | Sequence[str]) -> tuple[str, ...]:
        task = self._moment.training.stack.first
        servers = {p: p for p in self._moment.training.algorithm.servers}
        roles = {**servers, "active": task.active, "passive": task.passive[0]}
        names = [adversary] if isinstance(adversary, str) else list(adversary)
        known = dict.fromkeys((*task.parties, *roles))
        parties = [roles.get(n) or check.one_of("adversary", n, known) for n in names]
        return tuple(dict.fromkeys(parties))

    def _replica(self, seed: int | None, strength: float | None) -> int:
        cells = self._moment.training.cells
        for r in self._at:
            at = leakage.defense_point(cells[r].defenses)[1]
            if seed in (None, cells[r].seed) and strength in (None, at):
                return r
        there = sorted({(c.seed, leakage.defense_point(c.defenses)[1]) for c in cells}, key=str)
        raise check.fail("view: seed and strength", "those of a training", (seed, strength),
                         f"There are {there}.")  # fmt: skip


def train(
    data: str | Mapping[str, Any],
    algorithm: str = "splitnn",
    *,
    defenses: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any] | DefenseSpec] = (),
    seeds: int | Iterable[int] = 5,
    until: str = "",
    attacks: Sequence[str | Mapping[str, Any]] | None = None,
    record: str | Iterable[str] = (),
    device: str = "auto",
    progress: bool | None = None,
    **params: Any,
) -> Trained:
    """Train one system with several seeds (and strengths) side by side.

    Args:
        data: a packaged data set's name, or a ``[data]`` section as a mapping (``files``, ``id``,
            ``label``, and the options of the split such as ``labelled`` and ``aligned``); relative
            paths start from its ``base``, by default the current folder. Of DataFrames
            ``files``, ``label`` and ``id`` are as for :func:`vflsec.audit`.
        algorithm: registered name.
        defenses: ``{name: strength}``, ``{name: [strengths]}`` or ``{name: {"strength": ...,
            "party": ..., hyper-parameters}}``, names, or specifications.
        seeds: their number, or the seeds.
        until: stop after this phase; by default the last one that can be audited.
        attacks: those whose messages are recorded, as :func:`measure` takes them; None records
            what any attack on messages needs by default (those on own parameter gradients have to
            be named).
        record: further messages to record for every party, such as ``sent.embedding:last``.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``, the last two perhaps with ``+graphs``.
        progress: whether a bar is shown; by default on a terminal alone.
        params: hyper-parameters of the algorithm.

    Raises:
        VflsecError: data, a name or a hyper-parameter cannot be used, or there is no such phase.
    """
    check_arguments("train", train, params, algorithm)
    _check_progress("train", progress)
    given = list_sections("train: attacks", attacks or ())
    recorded = as_needs(_list_texts("train: record", record), "train: record")
    swept: Any = seeds
    with _open_section(data) as (section, base):
        scenario = load_scenario({
            "data": section, "algorithm": {**params, "name": algorithm},
            "defense": list_defenses("train", defenses), "audit": {"seeds": swept},
        }, base=base)  # fmt: skip
        root = scenario.root
        split = split_options(section)
        named = {k: v for k, v in section.items() if k not in split}
        tasks = {s: make_task(load_source(named, s, base), s, **split) for s in root.audit.seeds}
    first = next(iter(tasks.values()))
    section.setdefault("name", first.name)
    name, params = registry.algorithms.entry(algorithm).name, flat_params(root.algorithm[0])
    cells = [
        CellSpec(section, name, params, stack, seed)
        for stack in Cells(root, []).grid()
        for seed in tasks
    ]
    servers = registry.algorithms.create(algorithm, params).servers
    asked = None if attacks is None else _list_specs(scenario, given)
    demands = _demands((*first.parties, *servers), asked, recorded)
    phases: list[str] = []
    last: Moment | None = None
    with show_steps(progress) as tell:
        where = pick_device(device)
        training = Training(cells, demands, tasks, where, tell, graphs=asks_graphs(device))
        for moment in training.run():
            phases.append(moment.phase.name)
            if moment.phase.audited or not until:
                last = moment
            if moment.phase.name == until:
                break
    if last is None or (until and phases[-1] != until):
        raise check.fail("train: until", f"one of the phases {', '.join(phases)}", until)
    return Trained(last, tasks, phases, scenario)


@contextmanager
def _open_section(data: str | Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], Path]]:
    """A ``[data]`` section and where its paths start, while tables in memory are files."""
    if not isinstance(data, str | Mapping):
        raise check.fail("train: data", "a name, or a `[data]` section as a mapping", data)
    section = {"name": data} if isinstance(data, str) else dict(data)
    files = section.get("files")
    named = files.values() if isinstance(files, Mapping) else [files]
    if not any(isinstance(t, pd.DataFrame) for t in named):
        base = section.pop("base", ".")
        if not isinstance(base, str | Path):
            raise check.fail("train: data: base", "a path", base)
        base = Path(base)
        yield section, base
        return
    if "label" not in section:
        raise check.fail("train: data", "a mapping with a 'label'", [*section])
    tables, label, id = (section.pop(k, "") for k in ("files", "label", "id"))
    with open_tables(tables, label, id, Wishes("", caller="train")) as (scenario, _, base):
        yield {**scenario["data"], **section}, base


def measure(
    trained: Trained,
    attacks: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]],
    *,
    adversary: str | Sequence[str] = "",
    confidence: float = 0.95,
    by_seed: bool = False,
    progress: bool | None = None,
    **grants: Any,
) -> pd.DataFrame:
    """Make attacks on every training and compare them with their baselines.

    Args:
        trained: of :func:`train`.
        attacks: names, or mappings with ``name`` and hyper-parameters, perhaps an ``adversary`` and
            grants of their own.
        adversary: as in :meth:`Trained.view`; if empty, who receives what an attack reads.
        confidence: of the two-sided t intervals over seeds.
        by_seed: one row for each training instead of means over seeds.
        progress: whether a bar is shown; by default on a terminal alone.
        grants: as in :meth:`Trained.view`.

    Returns:
        one row for each strength, attack, split and metric: ``value``, ``control`` (the control
        that it is compared with) and ``control_value``, ``advantage`` with its interval
        ``advantage_low``, ``advantage_high``, and the level of ``chance``; what could not be
        measured has a ``status`` and a ``reason``.

    Raises:
        VflsecError: an attack or a hyper-parameter does not exist.
    """
    check_arguments("measure", measure, [g for g in grants if g not in _GRANTS])
    _check_progress("measure", progress)
    usual = {"adversary": adversary, **grants} if adversary else grants
    given = [{**usual, **s} for s in list_sections("measure: attacks", attacks)]
    for name, rule, value, holds in (
        ("trained", "what vflsec.train returned", trained, isinstance(trained, Trained)),
        ("attacks", "at least one", attacks, bool(given)),
        ("by_seed", "True or False", by_seed, isinstance(by_seed, bool)),
    ):
        if not holds:
            raise check.fail(f"measure: {name}", rule, value)
    check.in_unit("measure: confidence", confidence, low_open=True, high_open=True)
    moment, training = trained._moment, trained._moment.training
    specs, first = [], training.stack.first
    system = System(DataInfo("", {}, first.parties, 0, 0, ""), training.cells[0])
    for spec in _list_specs(trained._scenario, given):
        attack = registry.attacks.create(spec.name, spec.params)
        _check_passive("measure", spec, attack)
        specs.append(trained._grant(spec, spec.adversary or choose_attacker(attack, system)))
    made = prepare(_each_label(specs, first))
    results = [CellResult(c.key, c) for c in training.cells]
    with show_steps(progress) as tell:
        for _ in attack_all(trained._bench, moment, made, results, tell):
            pass
    kept = [results[r] for r in trained._at]
    rows = _complete_rows(kept, {p.spec.key: p.spec.of_label for p in made})
    if by_seed:
        return results_table(rows)
    found = points_frame(leakage.summarise(rows, confidence))
    return found[[c for c in _SHOWN if c in found.columns]]


def infer(view: View, attack: str, *, seed: int = 0, **params: Any) -> Guess:
    """What one attack answers to one View.

    Args:
        view: of :meth:`Trained.view`.
        attack: registered name.
        seed: of the attack's own random draws.
        params: its hyper-parameters.

    Raises:
        ThreatModelError: the view lacks what the attack needs.
    """
    made: Attack = registry.attacks.create(attack, params)
    if not isinstance(view, View):
        raise check.fail("infer: view", "what Trained.view returned", view)
    check.integer("infer: seed", seed, low=0)
    if not view.facts.classes and (why := made.pointless(view.facts)):
        raise ThreatModelError(why)
    return made.infer(drop_unobserved_rows(made, view), generator(seed, "attack", attack))


_GRANTS = ({*AttackSection.model_fields} - {"name", "adversary"}) | {"of_label"}
_SHOWN = (
    "defense", "strength", "phase", "adversary", "attack", "split", "metric", "value", "value_low",
    "value_high", "control", "control_value", "advantage", "advantage_low", "advantage_high",
    "seeds", "chance", "n", "status", "reason",
)  # fmt: skip


def _complete_rows(
    results: Iterable[CellResult], of_label: Mapping[str, str] = MappingProxyType({})
) -> list[ResultRow]:
    """What was measured; `of_label` are those of several labels, by the attack's key."""
    return leakage.complete_rows(
        row for result in results for row in leakage.list_rows(result, of_label=of_label)
    )


def _list_specs(
    scenario: Scenario, sections: Sequence[Mapping[str, Any]], *, components: bool = True
) -> list[AttackSpec]:
    """Attacks on the system of a scenario, by the rules of its ``[[attack]]`` sections.

    Raises:
        ScenarioError: a name, a grant or a hyper-parameter cannot be used.
    """
    written = [{k: v for k, v in s.items() if k != "of_label"} for s in sections]
    whole = load_scenario({**scenario.resolved(), "attack": written}, base=scenario.base,
                          components=components)  # fmt: skip
    out = []
    for section, given in zip(whole.root.attack, sections, strict=True):
        own = {k: getattr(section, k) for k in _GRANTS - {"of_label", "dosing"}}
        name = registry.attacks.entry(section.name).name if components else section.name
        whom = section.adversary
        out.append(AttackSpec(
            name, flat_params(section), (whom,) if isinstance(whom, str) and whom else tuple(whom),
            dosing=tuple(section.dosing), of_label=given.get("of_label", ""), **own,
        ))  # fmt: skip
    return out


def _each_label(specs: Iterable[AttackSpec], task: Task) -> list[AttackSpec]:
    """Each spec that names none of several labels once for every one, where it can be made so."""
    out = []
    for spec in specs:
        kind: Any = registry.attacks.get(spec.name)
        named = [spec.of_label] if spec.of_label else kind.each_label(task.labels, task.classes)
        out += [replace(spec, of_label=label) for label in named]
    return out


def _check_progress(caller: str, given: Any) -> None:
    if not isinstance(given, bool | None):
        raise check.fail(f"{caller}: progress", "True, False or None", given)


def _list_texts(name: str, given: Any) -> list[str]:
    """A text, or several, as a list."""
    listed = [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    if not all(isinstance(text, str) for text in listed):
        raise check.fail(name, "a text, or a list of texts", given)
    return listed


def _check_passive(caller: str, spec: AttackSpec, attack: Attack) -> None:
    """Refuse an attack that changes what it attacks, or asks it."""
    if attack.needs_own_training:
        raise check.fail(
            f"{caller}: attacks", "passive ones", spec.name,
            "Attacks that change the training or ask it: use vflsec.run_audit.",
        )  # fmt: skip


def _demands(
    parties: Sequence[str],
    attacks: Sequence[AttackSpec] | None,
    record: Sequence[Need],
) -> list[Demand]:
    """What is recorded for every party: what these attacks need if they are passive, and more."""
    out = [Demand((p,), tuple(record)) for p in parties]
    for one in map(AttackSpec, registry.attacks.names()) if attacks is None else attacks:
        attack = registry.attacks.create(one.name, one.params)
        if attacks is not None:
            _check_passive("train", one, attack)
        own = any(n.what == "parameter_gradient" for n in as_needs(attack.needs))
        if not attack.needs_own_training and (attacks is not None or not own):
            specs = [replace(one, adversary=(p,), over_time=True) for p in parties]
            out += [Demand.of(spec, attack) for spec in specs]
    return out
