"""The checks of an attack that infers labels.

PYTEST_DONT_REWRITE: messages say what is wrong; rewritten, pytest would add whole tensors.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch

from vflsec.audit.metrics import choose_primary, score
from vflsec.audit.truth import label_truth
from vflsec.core.attack import Attack
from vflsec.core.channel import Recorder
from vflsec.core.guess import Guess
from vflsec.core.rng import generator, numpy_generator
from vflsec.core.task import Stack, Task
from vflsec.core.view import Need, View, as_needs
from vflsec.data.prepare import make_task
from vflsec.data.source import Source
from vflsec.errors import ThreatModelError
from vflsec.measure.prepared import can_be_kept
from vflsec.plugins import registry
from vflsec.specs import AttackSpec
from vflsec.testing.filled import assert_filled
from vflsec.testing.worlds import SEEDS, Check, Trained, train
from vflsec.train.loop import predict
from vflsec.train.views import draw_known_rows, make_view


def _attack(name: str) -> Attack:
    cls: Any = registry.attacks.get(name)
    made: Attack = registry.attacks.create(name, dict(cls.quick))
    return made


@cache
def _train_in(
    dataset: str, null: bool, params: tuple[tuple[str, Any], ...], quantities: bool,
    needs: frozenset[Need], active: str,
) -> Trained:  # fmt: skip
    """Attacks that read the same of the same world share its training; one that acts has its own.

    Args:
        needs: what is recorded.
        active: the attack whose policy is in the training; empty = none.
    """
    made = registry.datasets.create(dataset)
    sources = {s: made.load(s) for s in SEEDS}
    if quantities:
        sources = {s: as_quantity(source, s) for s, source in sources.items()}
    tasks = {s: make_task(sources[s], s, shuffle_labels=null) for s in SEEDS}
    stack = Stack.build(tasks, SEEDS)
    party = stack.first.passive[0]
    wanted = {Recorder.wants(party, n) for n in needs} - {None}
    policy = _attack(active).policy() if active else None
    policies = {party: [(policy, torch.ones(len(SEEDS)))]} if policy is not None else {}
    settings = dict(params)
    which = settings.pop("algorithm", "splitnn")
    quick = {"epochs": 12} if which == "splitnn" else {}
    algorithm = registry.algorithms.create(which, {**quick, **settings})
    known = [draw_known_rows(tasks[s], s, AttackSpec("").known_rows) for s in SEEDS]
    trained = train(algorithm, stack, list(SEEDS), policies, sorted(w for w in wanted if w), known)
    predict(algorithm, trained.fed, stack.rows("test"))
    return trained


def _world(name: str, dataset: str = "leaky", null: bool = False) -> Trained:
    """A training to attack."""
    cls: Any = registry.attacks.get(name)
    attack = _attack(name)
    return _train_in(
        dataset, null, tuple(sorted(cls.world.items())), bool(attack.quantities),
        frozenset(as_needs(attack.looks_at)), name if attack.policy() is not None else "",
    )  # fmt: skip


def as_quantity(source: Source, seed: int) -> Source:
    """The same data with class index + N(0, 0.3²) for a label."""
    noise = numpy_generator(seed, "conformance", "quantity").standard_normal(len(source.y))
    values = np.where(source.y < 0, np.nan, source.y + 0.3 * noise)
    y = np.where(source.y < 0, -1, 0)
    return replace(source, y=y, values=values, class_names=("value",))


def views_of(name: str, dataset: str = "leaky", *, null: bool = False) -> list[View]:
    """Views of the registered attack `name` in a toy world trained by FedSplitNN, or by
    the ``algorithm`` of its `world`, one for each seed.

    Args:
        name: a registered attack with usable defaults.
        dataset: ``leaky`` or ``sealed``.
        null: the active party is given permuted labels, so that nothing about the truth crosses.
    """
    world = _world(name, dataset, null)
    spec = AttackSpec(name, adversary=(world.fed.passive[0].name,))
    return [
        make_view(world.algorithm, world.fed, world.initial, spec, r) for r in range(len(SEEDS))
    ]


def _rngs() -> list[torch.Generator]:
    return [generator(s, "conformance") for s in SEEDS]


def _guesses(name: str, dataset: str = "leaky", null: bool = False) -> tuple[Guess, ...]:
    """What the attack answers in a world; worked out once for each version of the attack."""
    cls: Any = registry.attacks.get(name)
    return _answered(name, dataset, null, (cls.infer, cls.infer_many))


@cache
def _answered(name: str, dataset: str, null: bool, _version: tuple[Any, ...]) -> tuple[Guess, ...]:
    found = tuple(_attack(name).infer_many(views_of(name, dataset, null=null), _rngs()))
    assert all(can_be_kept(g.notes) for g in found), f"{name}: notes that cannot be stored"
    return found


def _values(
    name: str, dataset: str, null: bool, guesses: Sequence[Guess] = (), *, permuted: bool = False
) -> list[float]:
    """The attack's figure on each seed; `permuted` scores it against labels of other rows."""
    views = views_of(name, dataset, null=null)
    guesses = guesses or _guesses(name, dataset, null)
    out: list[float] = []
    tasks = _world(name, dataset, null).fed.stack.tasks
    for view, guess, task in zip(views, guesses, tasks, strict=True):
        rows = view.targets[_attack(name).splits[0]].numpy()
        truth = label_truth(task)
        y = truth.values.copy()
        if permuted:
            order = torch.randperm(len(rows), generator=generator(len(out), "permuted truth"))
            y[rows] = y[rows[order.numpy()]]
        truth = replace(truth, values=y)
        metric = choose_primary(task.classes, target=truth.target)
        (found,) = score(
            replace(guess, target=truth.target), truth, rows, classes=task.classes,
            prior=task.prior.numpy(), metrics=[metric],
        )  # fmt: skip
        out.append(float(found.value))  # type: ignore[arg-type]
    return out


def attack_finds_the_leak(name: str) -> None:
    """Mean AUC in the leaky world is at least 0.65, and at chance (0.5) when truth is permuted."""
    values = _values(name, "leaky", False)
    assert np.mean(values) >= 0.65, f"{name}: AUC {values} in the leaky world"
    values = _values(name, "leaky", False, permuted=True)
    error = _error(_world(name).fed.stack.first, len(values))
    assert abs(np.mean(values) - 0.5) <= 4 * error, f"{name}: AUC {values} against permuted truth"


def _error(task: Task, worlds: int) -> float:
    """Standard error of the mean AUC of scores that know nothing, on training rows.

    Of a quantity that of the concordance, by Kendall's variance.
    """
    n = len(task.sets["labelled"])
    if task.label.numeric:
        return float(np.sqrt((2 * n + 5) / (18 * n * (n - 1)) / worlds))
    positives = float(task.prior[1]) * n
    return float(np.sqrt((n + 1) / (12 * positives * (n - positives)) / worlds))


def attack_is_calm(name: str) -> None:
    """Where nothing about the truth crosses, mean AUC stays within 4 standard errors of 0.5."""
    values = _values(name, "sealed", True)
    error = _error(_world(name, "sealed", True).fed.stack.first, len(values))
    assert abs(np.mean(values) - 0.5) <= 4 * error, f"{name}: AUC {values} where nothing leaks"


def attack_repeats(name: str) -> None:
    """The same generator seed gives the same guess, whatever the labels of the target rows have
    become in the meantime, and the view is left as it was.
    """
    attack = _attack(name)
    view = views_of(name)[0]
    before = copy.deepcopy(view.columns[view.party])
    states = {k: copy.deepcopy(m.state_dict()) for k, m in view.models[view.party].items()}
    first = attack.infer(view, generator(7, "conformance"))
    with _spoiled(name, view):
        second = attack.infer(view, generator(7, "conformance"))
    assert np.array_equal(first.rows, second.rows), f"{name}: rows differ"
    assert np.array_equal(first.scores, second.scores), f"{name}: scores differ"
    assert torch.equal(before, view.columns[view.party]), f"{name}: changed the columns"
    for k, module in view.models[view.party].items():
        for key, value in module.state_dict().items():
            assert torch.equal(value, states[k][key]), f"{name}: changed the own model {k}.{key}"


@contextmanager
def _spoiled(name: str, view: View) -> Iterator[None]:
    """Meanwhile every label tensor of the world holds -1 at the rows to be guessed."""
    fed = _world(name).fed
    labels = fed.labels if fed.labels.dim() == 2 else fed.labels.squeeze(2)
    told = [of for t in fed.stack.tasks for of in (t.y, t.given, t.values) if of is not None]
    held = [labels, *told]
    kept = [y.clone() for y in held]
    for y in held:
        y[..., view.target_rows] = -1
    try:
        yield
    finally:
        for y, was in zip(held, kept, strict=True):
            y.copy_(was)


def attack_batched_equals_alone(name: str) -> None:
    """Several replicas at once give each replica what it gets alone."""
    attack = _attack(name)
    for view, rng, guess in zip(views_of(name), _rngs(), _guesses(name), strict=True):
        alone = attack.infer_many([view], [rng])[0]
        assert np.array_equal(alone.rows, guess.rows), f"{name}: other rows when alone"
        np.testing.assert_allclose(alone.scores, guess.scores, rtol=1e-4, atol=1e-5)


def attack_ignores_row_order(name: str) -> None:
    """Shuffled tables and targets change the score by less than 0.02."""
    attack = _attack(name)
    shuffled = []
    for view in views_of(name):
        g = generator(3, "order")
        tables = {}
        for key, t in view.tables.items():
            tables[key] = t.take(torch.randperm(len(t), generator=g))
        targets = {s: r[torch.randperm(len(r), generator=g)] for s, r in view.targets.items()}
        shuffled.append(replace(view, tables=tables, targets=targets))
    before = _values(name, "leaky", False)
    after = _values(name, "leaky", False, attack.infer_many(shuffled, _rngs()))
    assert np.abs(np.mean(before) - np.mean(after)) < 0.02, f"{name}: {before} became {after}"


def attack_never_targets_known_rows(name: str) -> None:
    """No row whose label was granted is among the rows to be guessed."""
    for view in views_of(name):
        known = view.require_known().rows
        for split, rows in view.targets.items():
            assert not torch.isin(known, rows).any(), f"{name}: known rows in {split}"


def attack_misses_its_needs(name: str) -> None:
    """Without any one of its needs the attack raises ThreatModelError and guesses nothing."""
    attack = _attack(name)
    view = views_of(name)[0]
    assert attack.needs, f"{name} declares no needs"
    for need in as_needs(attack.needs):
        if need.what == "known_rows":
            lacking = replace(view, known=None)
        elif need.what == "prior":
            lacking = replace(view, prior=None)
        elif need.what == "model":
            lacking = replace(view, models={view.party: {}})
        elif need.what == "aux_rows":
            lacking = replace(view, aux=None)
        elif need.what == "parameter_gradient":
            lacking = replace(view, updates={})
        else:
            way = "sent" if need.sent else "received"
            kind = need.kind or need.what
            kept = {k: t for k, t in view.tables.items() if k[:2] != (way, kind)}
            lacking = replace(view, tables=kept)
        try:
            attack.infer(lacking, generator(0, "conformance"))
        except ThreatModelError:
            continue
        raise AssertionError(f"{name} answers without {need}")


def attack_file_rules(name: str) -> None:
    """One documented file with a source, at most 300 lines, no way to truth, trainer or disk."""
    entry = registry.attacks.entry(name)
    text = entry.path.read_text(encoding="utf-8")
    assert_filled(entry.path)
    assert entry.source, f"{entry.path}: the docstring needs a 'Source:' paragraph"
    assert len(text.splitlines()) <= 300, f"{entry.path}: more than 300 lines"
    banned = (
        "vflsec.audit", "vflsec.engine", "vflsec.core.federation", "vflsec.core.task",
        "vflsec.data", "vflsec.train", "vflsec.plan", "vflsec.measure",
    )  # fmt: skip
    for node in ast.walk(ast.parse(text)):
        names = []
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{a.name}" for a in node.names]
            assert node.level == 0, f"{entry.path}: use absolute imports"
        for found in names:
            assert not found.startswith(banned), f"{entry.path}: imports {found}"
            assert not found.endswith(".Truth"), f"{entry.path}: imports Truth"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("open", "print"), f"{entry.path}: calls {node.func.id}"


def attack_checks() -> list[Check]:
    """The checks of an attack that infers labels."""
    return [
        attack_finds_the_leak, attack_is_calm, attack_repeats, attack_batched_equals_alone,
        attack_ignores_row_order, attack_never_targets_known_rows, attack_misses_its_needs,
        attack_file_rules,
    ]  # fmt: skip
