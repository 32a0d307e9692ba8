"""Trains the cells of one cohort as one stacked model, then attacks and scores each of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vflsec import registry
from vflsec.algorithm import Algorithm
from vflsec.attack import Attack
from vflsec.audit.embeddings import score_embedding
from vflsec.audit.metrics import score
from vflsec.cell import AttackSpec, CellResult, CellSpec, LedgerRow, Measure, victims
from vflsec.channel import Recorder
from vflsec.engine.integrity import success
from vflsec.errors import ThreatModelError
from vflsec.federation import Federation, Phase
from vflsec.guess import Guess, Truth
from vflsec.measure.controls import Control
from vflsec.measure.goals import SCORED, controls_for, goal_of
from vflsec.nn.replicas import LEAST, Replicas
from vflsec.plan.observe import exhausted
from vflsec.policy import Policy
from vflsec.rng import generator
from vflsec.task import Stack, Task
from vflsec.train.loop import predict, run_phases
from vflsec.train.stages import staged
from vflsec.train.views import known_rows, make_view
from vflsec.view import View, as_needs

__all__ = ["Progress", "pick_device", "run_cohort"]

Progress = Callable[[str, float], None]


def pick_device(name: str) -> torch.device:
    """The device behind ``auto``, ``cpu`` or ``cuda``; the only place where one is chosen.

    Raises:
        ConfigError: unknown name, or ``cuda`` without a usable GPU.
    """
    from vflsec import check

    check.one_of("--device", name, ("auto", "cpu", "cuda"))
    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        raise check.fail("--device", "a device of this machine", name, "Use auto or cpu.")
    if name == "cpu" or not there:
        torch.set_num_threads(1)
        return torch.device("cpu")
    return torch.device("cuda")


@dataclass
class _Prepared:
    """One attack of the cohort, ready to run."""

    spec: AttackSpec
    attack: Attack


def run_cohort(
    cells: Sequence[CellSpec],
    attacks: Sequence[AttackSpec],
    tasks: Mapping[int, Task],
    *,
    device: str = "auto",
    progress: Progress | None = None,
    main: bool = True,
    known_controls: dict[tuple[Any, ...], list[Control]] | None = None,
) -> list[CellResult]:
    """Train cells that differ in seed and strengths only, and audit each.

    Args:
        cells: of one cohort.
        attacks: to make on each cell after each audited phase.
        tasks: the task of each seed.
        device: ``auto``, ``cpu`` or ``cuda``.
        progress: called with (what is being done, share done in [0, 1]).
        main: False leaves main-task figures out.
        known_controls: controls of earlier cohorts with the same tasks and architecture, which do
            not depend on the defense; those that are computed here are added.

    Returns:
        One result for each cell, in order; a cell's result does not depend on the other cells.
    """
    started = time.perf_counter()
    stacked = list(cells) * LEAST if len(cells) < LEAST else cells
    run = _Cohort(stacked, attacks, tasks, pick_device(device), progress or (lambda *_: None), main)
    if known_controls is not None:
        run._controls = known_controls
    results = run.go()[: len(cells)]
    seconds = (time.perf_counter() - started) / len(cells)
    for result in results:
        result.seconds = seconds
    return results


def first_step(cell: CellSpec, task: Task) -> tuple[str, ...]:
    """Build one cell on the CPU as for training, take the first step of every phase, drop it.

    A policy that releases labels in stages holds them back at first: then it is only built.

    Returns:
        names of the phases after which attacks are made; empty where only training can tell.

    Raises:
        VflsecError: it cannot be trained.
    """
    cells, tasks = [cell] * LEAST, {cell.seed: task}
    cohort = _Cohort(cells, (), tasks, torch.device("cpu"), lambda *_: None, True)
    fed = cohort.build()
    if staged(fed) is not None:
        return ()
    phases = cohort.algorithm.phases(fed)
    for phase in phases:
        fed.phase = phase.name
        if phase.before is not None:
            phase.before()
        for walk in phase.walks() if phase.epochs else ():
            fed.batch = next(iter(fed.batches(walk)), None)
            if fed.batch is not None:
                walk.step(fed.batch)
    return tuple(p.name for p in phases if p.audited)


class _Cohort:
    def __init__(
        self,
        cells: Sequence[CellSpec],
        attacks: Sequence[AttackSpec],
        tasks: Mapping[int, Task],
        device: torch.device,
        progress: Progress,
        main: bool,
    ) -> None:
        self.cells, self.progress, self.main, self.device = cells, progress, main, device
        first = cells[0]
        self.prepared = [_Prepared(a, registry.attacks.create(a.name, a.params)) for a in attacks]
        self.algorithm: Algorithm = registry.algorithms.create(first.algorithm, first.params)
        self.seeds = [c.seed for c in cells]
        self.stack = Stack.build(tasks, self.seeds, device, getattr(torch, first.dtype))
        self.results = [CellResult(c.key, c, device=str(device)) for c in cells]
        self._controls: dict[tuple[Any, ...], list[Control]] = {}
        self._alone: dict[str, Replicas | None] = {}

    def build(self) -> Federation:
        """The parties with their policies and models."""
        self.fed = fed = Federation.create(
            self.stack, self.seeds, self._policies(), self._recorder(), self._facts()
        )
        self._grant()
        self.algorithm.build(fed)
        return fed

    def go(self) -> list[CellResult]:
        fed = self.build()
        self.initial = {
            name: party.modules["bottom"].state()
            for name, party in fed.parties.items()
            if "bottom" in party.modules
        }
        phases = run_phases(self.algorithm, fed, self._epoch)
        for phase in phases:
            self._main_task(phase)
            if phase.audited:
                self._attack(phase)
        self._finish()
        return self.results

    def _epoch(self, phase: str, done: int, total: int) -> None:
        self.progress(f"{phase}: epoch {done}/{total}", 0.8 * done / total)

    def _facts(self) -> dict[str, Any]:
        task = self.stack.first
        facts = {k: v for k, v in self.cells[0].params.items() if isinstance(v, int | float | str)}
        facts |= {"labelled": len(task.sets["labelled"]), "classes": task.classes}
        for name in ("epochs", "batch_size", "local_updates"):
            if hasattr(self.algorithm, name):
                facts.setdefault(name, getattr(self.algorithm, name))
        return facts

    def _policies(self) -> dict[str, list[tuple[Policy, Tensor]]]:
        task = self.stack.first
        out: dict[str, list[tuple[Policy, Tensor]]] = {p: [] for p in task.parties}
        self.defenses: list[Policy] = []
        for i, spec in enumerate(self.cells[0].defenses):
            policy: Policy = registry.defenses.create(spec.name, spec.params)
            strengths = [c.defenses[i].strength or 0.0 for c in self.cells]
            if policy.strengths:
                for s in strengths:
                    policy.check_strength(s)
            strength = torch.tensor(strengths, dtype=torch.float64)
            for party in owners(spec.party or policy.owner, task):
                out[party].append((policy, strength))
            self.defenses.append(policy)
        for p in self.prepared:
            active = p.attack.policy()
            if active is not None:
                on = torch.ones(len(self.cells), dtype=torch.float64)
                for party in p.spec.adversary:
                    out[party].append((active, on))
        return out

    def _grant(self) -> None:
        """Give active attackers the rows whose labels they know, which they may use in training."""
        for p in self.prepared:
            if p.attack.policy() is None:
                continue
            known = [
                known_rows(self.stack.tasks[int(self.stack.of[r])], seed, p.spec.known_rows)
                for r, seed in enumerate(self.seeds)
            ]
            for party in p.spec.adversary:
                for b in self.fed.parties[party].bindings:
                    if b.policy == p.attack.policy():
                        b.own.memory["known"] = known

    def _recorder(self) -> Recorder:
        wanted = {
            key
            for p in self.prepared
            for party in p.spec.adversary
            for need in as_needs(p.attack.needs)
            if (key := Recorder.wants(party, need)) is not None
        }
        wanted |= {
            (*key[:3], "all")
            for p in self.prepared
            for party in p.spec.adversary
            for need in as_needs(p.attack.needs)
            if p.spec.over_time and need.kind and (key := Recorder.wants(party, need)) is not None
        }
        return Recorder(sorted(wanted), self.stack.replicas, len(self.stack.first.y))

    def _truth(self, r: int) -> tuple[Task, Truth]:
        task = self.stack.tasks[int(self.stack.of[r])]
        rows = np.arange(len(task.y))
        return task, Truth("label", rows, task.y)

    def _main_task(self, phase: Phase) -> None:
        returned = any("prediction:last" in p.attack.needs for p in self.prepared)
        if not (phase.predicts and (self.main or returned)):
            return
        for split in ("test", "validation"):
            rows = self.stack.rows(split)
            logits = torch.log_softmax(
                self.fed.decode(predict(self.algorithm, self.fed, rows)), dim=-1
            )
            for r, result in enumerate(self.results if self.main else []):
                task, truth = self._truth(r)
                guess = Guess("label", rows[r], logits[r])
                prior = task.prior.numpy()
                for s in score(guess, truth, guess.rows, classes=task.classes, prior=prior):
                    result.measures.append(
                        Measure(phase.name, split, s.metric, s.value, s.low, s.high, s.n, s.chance)
                    )

    def _attack(self, phase: Phase) -> None:
        for i, p in enumerate(self.prepared):
            self.progress(f"{phase.name}: {p.spec.label}", 0.8 + 0.2 * i / len(self.prepared))
            if p.attack.target == "integrity":
                found = success(self.algorithm, self.fed, p.attack, p.spec, phase)
                for result, measures in zip(self.results, found, strict=True):
                    result.measures += measures
                continue
            views = [
                make_view(self.algorithm, self.fed, self.initial, p.spec, r)
                for r in range(len(self.cells))
            ]
            status, why = "not-observable", _unseen(p, views[0])
            if why:
                why = f"{p.spec.name} needs {why} in phase {phase.name!r}."
            else:  # the plan has asked too, unless these facts were not known yet
                labelled = len(self.stack.first.sets["labelled"])
                status = "not-applicable"
                why = exhausted(p.spec, labelled) or p.attack.applicable(views[0].facts)
            if why:
                for r in range(len(self.cells)):
                    self._refuse(phase.name, p, r, status, why)
                continue
            self._infer(phase.name, p, views)
            if p.spec.over_time and any(key[2] == "all" for key in views[0].tables):
                for epoch in range(phase.epochs):
                    past = [v.until(epoch) for v in views]
                    self._infer(phase.name, p, past, epoch)

    def _infer(self, phase: str, p: _Prepared, views: list[View], epoch: int | None = None) -> None:
        """Make one attack on every cell and score it; `epoch` if it looks back at that moment."""
        names = ("attack", p.spec.key, phase)
        rngs = [generator(s, *names) for s in self.seeds]
        try:
            guesses: Sequence[Guess | str] = p.attack.infer_many(views, rngs)
        except ThreatModelError as why:
            guesses = [str(why)] * len(views)
        except (ValueError, RuntimeError, FloatingPointError):
            guesses = [_one(p.attack, v, g, n) for v, g, n in self._again(p, views, names)]
        for r, (view, guess) in enumerate(zip(views, guesses, strict=True)):
            if epoch is not None and not isinstance(guess, str):
                guess = replace(guess, notes={**guess.notes, "epoch": epoch})
            self._score(phase if epoch is None else f"{phase}@{epoch}", p, r, view, guess)

    def _again(self, p: _Prepared, views: list[View], names: tuple[str, ...]) -> Any:
        """One by one after a batch failed, so that one bad cell does not take its company along."""
        for view, seed in zip(views, self.seeds, strict=True):
            yield view, generator(seed, *names), seed

    def _baselines(
        self, attack: Attack, views: Sequence[View], specs: Sequence[tuple[Any, ...]]
    ) -> None:
        """Compute the controls of views that have none yet; they depend on the seed alone."""
        fresh = {k: v for k, v in zip(specs, views, strict=True) if k not in self._controls}
        rngs = [generator(k[0], "controls", *k[1:]) for k in fresh]
        bottoms = [self._own_bottom(k[0], k[1]) for k in fresh]
        alone = [b for b in bottoms if b is not None]
        made = controls_for(attack, list(fresh.values()), rngs, alone)
        for key, found in zip(fresh, made, strict=True):
            self._controls[key] = found

    def _own_bottom(self, seed: int, adversary: tuple[str, ...]) -> nn.Module | None:
        """What a lone adversary could train without the federation; trained once a seed."""
        if len(adversary) != 1:
            return None
        party = adversary[0]
        seeds = list(dict.fromkeys(self.seeds))
        if party not in self._alone:
            algorithm = self.algorithm.alone(party)
            self._alone[party] = None
            if algorithm is not None:
                of = torch.arange(len(seeds), device=self.device)
                twins = of if len(seeds) >= LEAST else of.repeat(LEAST)
                stack = Stack(self.stack.tasks, twins, self.device, self.stack.dtype)
                fed = Federation.create(stack, [seeds[i] for i in twins.tolist()])
                algorithm.build(fed)
                for _ in run_phases(algorithm, fed):
                    pass
                self._alone[party] = fed.parties[party].modules["bottom"]
        stack_of = self._alone[party]
        return None if stack_of is None else stack_of.one(seeds.index(seed))

    def _base(self, phase: str, p: _Prepared) -> dict[str, Any]:
        """What every measure of an attack after a phase has in common."""
        parties = self.stack.first.parties
        whose = victims(p.attack.target, p.spec.adversary, parties, p.spec.victim)
        return {
            "phase": phase, "adversary": "+".join(p.spec.adversary), "attack": p.spec.label,
            "attack_key": p.spec.key, "target": p.attack.target, "victim": "+".join(whose),
        }  # fmt: skip

    def _refuse(self, phase: str, p: _Prepared, r: int, status: str, why: str) -> None:
        """Record that there is no figure, and why."""
        self.results[r].measures.append(
            Measure(
                split="", metric="", value=None, status=status, reason=why, **self._base(phase, p)
            )
        )

    def _score(self, phase: str, p: _Prepared, r: int, view: View, guess: Guess | str) -> None:
        base = self._base(phase, p)
        result = self.results[r]
        if isinstance(guess, str) or not np.isfinite(guess.scores).all():
            why = guess if isinstance(guess, str) else "the attack diverged: scores are not finite."
            self._refuse(phase, p, r, "error", why)
            return
        if p.attack.target == "embedding":
            for one, beside_, notes in score_embedding(self.fed, p.spec, view, guess, r):
                figures: dict[str, Any] = {"value": one.value, "low": one.low, "high": one.high}
                figures |= {"n": one.n, "chance": one.chance, "controls": beside_, "notes": notes}
                measure = Measure(split="train", metric=one.metric, **figures, **base)
                result.measures.append(measure)
            return
        if p.attack.target not in SCORED:
            why = f"no truth about {p.attack.target!r} is kept to compare an answer with."
            self._refuse(phase, p, r, "not-applicable", why)
            return
        goal = goal_of(p.attack, p.spec, self.stack.tasks[int(self.stack.of[r])])
        truth, prior = goal.truth, goal.prior
        guess = replace(guess, target=truth.target)
        for split in p.attack.splits:
            rows = view.targets[split].cpu().numpy()
            found = score(guess, truth, rows, classes=goal.classes, prior=prior)
            beside: dict[str, dict[str, dict[str, float | None]]] = {}
            for control in self._controls_of(p, r, view):
                for s in score(
                    control.guess, truth, rows, classes=goal.classes, prior=prior,
                    metrics=[s.metric if s.metric != "leak_auc" else "auc" for s in found],
                ):  # fmt: skip
                    beside.setdefault(s.metric, {})[control.name] = {
                        "value": s.value, "cv": control.cv,
                    }  # fmt: skip
            for s in found:
                name = s.metric if s.metric != "leak_auc" else "auc"
                result.measures.append(
                    Measure(
                        split=split,
                        metric=s.metric,
                        value=s.value,
                        low=s.low,
                        high=s.high,
                        n=s.n,
                        chance=s.chance,
                        controls=beside.get(name, {}),
                        notes=guess.notes,
                        **base,
                    )
                )

    def _controls_of(self, p: _Prepared, r: int, view: View) -> list[Control]:
        asked: tuple[Any, ...] = ()
        if p.attack.target != "label":
            asked = (p.attack.target, p.spec.victim, p.spec.aux_rows, p.attack.params())
        key = (self.seeds[r], p.spec.adversary, p.spec.known_rows, p.spec.prior, *map(str, asked))
        if key not in self._controls:
            specs, views, seen = [], [], set()
            for q in range(len(self.cells)):
                k = (self.seeds[q], *key[1:])
                if k not in self._controls and k not in seen:
                    seen.add(k)
                    specs.append(k)
                    views.append(make_view(self.algorithm, self.fed, self.initial, p.spec, q))
            self._baselines(p.attack, views, specs)
        return self._controls[key]

    def _claims(self, r: int, policy: Policy, strength: float, phase: str) -> None:
        """A row for what canaries measure of the epsilon that a defense claims."""
        from vflsec.audit import canary

        task, _ = self._truth(r)
        found = canary.audit_policy(
            policy, strength, classes=task.classes, prior=task.prior.tolist(),
            facts=self._facts(), seed=self.seeds[r],
        )  # fmt: skip
        if found is None or found.claimed is None:
            return
        notes = {"defense": policy.name, "guesses": found.guesses, "right": found.right,
                 "says": found.sentence()}  # fmt: skip
        self.results[r].measures.append(
            Measure(
                phase, "", "epsilon_lower", found.epsilon, n=found.canaries, target="claim",
                notes=notes,
            )
        )  # fmt: skip

    def _finish(self) -> None:
        for r, result in enumerate(self.results):
            result.ledger = [LedgerRow(**row) for row in self.fed.channel.ledger.of(r)]
            facts = self._facts()
            for spec, policy in zip(result.spec.defenses, self.defenses, strict=True):
                if self.main and spec.strength:
                    self._claims(r, policy, spec.strength, self.fed.phase)
            result.guarantees = [
                {"defense": spec.name, "strength": spec.strength,
                 **asdict(policy.guarantee(spec.strength or 0.0, facts))}
                for spec, policy in zip(result.spec.defenses, self.defenses, strict=True)
            ]  # fmt: skip
            shown = ("epochs.", "kept.", "he.")
            epochs = {k: v for k, v in self.fed.extra.items() if k.startswith(shown)}
            result.facts = {
                "parties": list(self.stack.first.parties),
                "classes": self.stack.first.classes,
                "rows": {k: len(v) for k, v in self.stack.first.sets.items()},
                **{k: (v[r] if isinstance(v, list) else v) for k, v in epochs.items()},
            }


def owners(party: str, task: Task) -> tuple[str, ...]:
    """The parties that a role or a name means.

    Raises:
        ConfigError: no such party.
    """
    from vflsec import check

    if party == "active":
        return (task.active,)
    if party == "passive":
        return tuple(task.passive)
    if party == "all":
        return tuple(task.parties)
    return (check.one_of("the party of a defense", party, task.parties),)


def _unseen(p: _Prepared, view: View) -> str:
    """Which message kind that the attack needs did not pass in the phase, in words, or ''."""
    seen = {(way, kind) for way, kind, _, _ in view.tables}
    for need in as_needs(p.attack.needs):
        way = "sent" if need.sent else "received"
        if need.kind and (way, need.kind) not in seen:
            return f"{need.kind!r} messages; {'+'.join(p.spec.adversary)} {way} none"
    return ""


def _one(attack: Attack, view: View, rng: torch.Generator, seed: int) -> Guess | str:
    try:
        return attack.infer(view, rng)
    except (ValueError, RuntimeError, FloatingPointError, ThreatModelError) as why:
        return f"{type(why).__name__}: {why}"
