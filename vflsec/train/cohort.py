"""Trains the cells of one cohort as one stacked model; ends where a View begins."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from vflsec.core import check
from vflsec.core.algorithm import Algorithm
from vflsec.core.channel import Key, Recorder, Tap
from vflsec.core.federation import Federation, Phase
from vflsec.core.message_kinds import KINDS
from vflsec.core.policy import Guarantee, Policy
from vflsec.core.privacy_usage import RunFacts, Uses
from vflsec.core.rng import Globals, generator
from vflsec.core.source import Simulated
from vflsec.core.task import Stack, Task
from vflsec.core.view import Need, Table, View
from vflsec.errors import PolicyError, ThreatModelError
from vflsec.nn.reduced_precision import find_products, find_stored
from vflsec.nn.replicas import LEAST, Replicas
from vflsec.nn.weights import list_files
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, CellFacts, CellSpec, Claim, LedgerRow, number_repeats
from vflsec.train.cuda_graphs import CudaGraphs
from vflsec.train.demand import Demand, list_recordings, list_sampled
from vflsec.train.loop import predict, run_phases
from vflsec.train.mechanism_counts import check_guarantee, collect_uses
from vflsec.train.mechanism_forecast import take_first_steps
from vflsec.train.views import Asked, build_grants, draw_asked, make_view, read_initial_states

if TYPE_CHECKING:
    from vflsec.epsilon.named_noise import NoiseWitness

Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Moment(Simulated):
    """A cohort after one phase: what can be looked at before the next one begins.

    Attributes:
        training: the cohort.
        phase: that has ended.
        predictions: by split, if asked for: sample ids (R, n) and log shares (R, n, C), or answers
            (R, n, 1) for a quantity and (R, n, L) for several labels.
    """

    training: Training
    phase: Phase
    predictions: Mapping[str, tuple[Tensor, Tensor]]

    def view(self, spec: AttackSpec, r: int) -> View:
        t = self.training
        return make_view(t.algorithm, t.fed, t.initial, spec, r)

    @property
    def seeds(self) -> Sequence[int]:
        return self.training.seeds

    def task(self, r: int) -> Task:
        return self.training.task(r)

    def diverged(self) -> list[bool]:
        """By replica, whether what was trained is no system: weights or predictions that are not
        finite, or no epoch whose loss on validation rows was.
        """
        fed, lost = self.training.fed, torch.zeros(len(self.training.cells), dtype=torch.bool)
        found = [p for party in fed.parties.values() for p in party.parameters()]
        found += [logits for _, logits in self.predictions.values()]
        for x in found:
            lost |= ~x.detach().flatten(1).isfinite().all(1).cpu()
        if (kept := fed.kept.get(self.phase.name)) is not None:
            lost |= torch.tensor(kept) == 0
        return [bool(x) for x in lost]

    def randomised(self, r: int) -> Tensor | None:
        """As of every source; -1 where unknown, None too where they are shares of classes."""
        labels, y = self.training.fed.labels, self.training.task(r).y
        if labels.dim() != 2:
            return None
        mine = labels[r].cpu()
        known = mine >= 0
        return None if bool((mine[known] == y[known]).all()) else mine

    def embeddings(self, spec: AttackSpec, r: int) -> Table:
        fed = self.training.fed
        links = [fed.link(p.name) for p in fed.passive if p.name not in spec.adversary]
        if len(links) != 1 or getattr(links[0], "truth", None) is None:
            raise ThreatModelError(
                "embeddings of one passive party are scored behind he_embedding."
            )
        table: Table = links[0].embeddings(r, fed.phase)  # type: ignore[attr-defined]
        return table


class Training:
    """Cells that differ in seed and strengths only, trained side by side.

    Args:
        cells: of one cohort; fewer than `vflsec.nn.replicas.LEAST` train beside their twins.
        demands: what the attacks ask for.
        tasks: the task of each seed.
        device: where.
        progress: called with (what is being done, share done in [0, 1]).
        graphs: True takes steps as CUDA graphs where that can be done.

    Attributes:
        taps: told every message of the training, see `vflsec.core.channel.Recorder`; set before
            `run`.
        watchers: called with the phase's name after every epoch.
        witness: shown every call of a policy's hook.
    """

    def __init__(
        self,
        cells: Sequence[CellSpec],
        demands: Sequence[Demand],
        tasks: Mapping[int, Task],
        device: torch.device,
        progress: Progress = lambda *_: None,
        graphs: bool = False,
    ) -> None:
        self.cells = list(cells) * (LEAST if len(cells) < LEAST else 1)
        self.progress, self.device = progress, device
        self.graphs = partial(CudaGraphs, device) if graphs and device.type == "cuda" else None
        first = self.cells[0]
        self.algorithm: Algorithm = registry.algorithms.create(first.algorithm, first.params)
        self.demands = [d.drop_locked(self.algorithm.servers) for d in demands]
        self.seeds = [c.seed for c in self.cells]
        self.stack = Stack.build(
            tasks, self.seeds, device, find_stored(first.dtype), find_products(first.dtype)
        )
        self.algorithm.check_label(self.stack.first.classes)
        self.algorithm.check_columns(self.stack.first)
        self.initial: dict[str, dict[str, Tensor]] = {}
        self._alone: dict[str, Replicas | None] = {}
        self._reassigned: dict[str, Replicas] | None = None
        self.taps: list[Tap] = []
        self.watchers: list[Callable[[str], None]] = []
        self.witness: NoiseWitness | None = None

    def build(self) -> Federation:
        """The parties with their policies and models."""
        wanted = list_recordings(self.demands)
        recorder = Recorder(
            wanted, self.stack.replicas, len(self.stack.first.y), asked=self._list_asked()
        )
        recorder.taps += self.taps
        self.fed = fed = Federation.create(
            self.stack, self.seeds, self._policies(), recorder, self.facts
        )
        fed.graphs = self.graphs
        for b in (b for p in fed.parties.values() for b in p.bindings):
            b.witness = self.witness
        self._grant()
        self.algorithm.build(fed)
        return fed

    def _list_asked(self) -> dict[Key, Tensor]:
        """Of what attacks see a sample of: the places of all rows that any of them sees, and of
        which such messages can come.
        """
        n, sampled = len(self.stack.first.y), list_sampled(self.demands)
        tasks, drawn = self.tasks(), dict[tuple[str, int], Asked]()
        for spec, seed in itertools.product(itertools.chain(*sampled.values()), tasks):
            if (spec.key, seed) not in drawn:
                task = tasks[seed].of_label(spec.of_label)
                drawn[spec.key, seed] = draw_asked(task, seed, spec)

        def find(key: Key, seed: int) -> Tensor:
            every = [drawn[spec.key, seed] for spec in sampled[key]]
            trained = KINDS[key[2]].has_every_row
            return torch.cat([of.trained if trained else of.rows for of in every]).unique()

        seeds = list(enumerate(self.seeds))
        return {key: torch.cat([find(key, seed) + r * n for r, seed in seeds]) for key in sampled}

    def run(self, predictions: bool = True) -> Iterator[Moment]:
        """Train; yields after every phase, before the next one begins.

        Args:
            predictions: whether the moments hold predictions for the main task.
        """
        stand = Globals()
        fed = self.build()
        self.initial = read_initial_states(fed)
        for phase in run_phases(self.algorithm, fed, self._epoch):
            moment = Moment(self, phase, self._predict(phase, predictions))
            self._drew(stand)
            yield moment
            stand = Globals()

    def _drew(self, stand: Globals) -> None:
        """Refuse a training that a replica's streams alone do not give again."""
        first = self.cells[0]
        under = " with ".join([first.algorithm, *(d.name for d in first.defenses)])
        remedy = "Draw from own.rng, or within vflsec.core.rng.as_global."
        stand.hold(under, PolicyError, remedy)

    def task(self, r: int) -> Task:
        """The task of replica `r`."""
        return self.stack.tasks[int(self.stack.of[r])]

    def tasks(self) -> dict[int, Task]:
        """The task of each seed."""
        return {seed: self.task(r) for r, seed in enumerate(self.seeds)}

    def twin(
        self, tasks: Mapping[int, Task], spies: Mapping[tuple[str, ...], tuple[Need, ...]]
    ) -> Training:
        """The cohort on other tasks: with its active attackers, and recorded for spies."""
        acting = [d for d in self.demands if d.policy is not None]
        seen = [Demand(who, needs) for who, needs in spies.items()]
        return Training(self.cells, [*acting, *seen], tasks, self.device)

    def strengths(self, i: int) -> list[float]:
        """Of the cells' defense number `i`, by replica."""
        return [cell.defenses[i].strength or 0.0 for cell in self.cells]

    def uses(self, policy: Policy, r: int) -> Uses:
        """What was counted of a defense in replica `r`."""
        return collect_uses(self.fed, policy, r)

    @torch.no_grad()
    def answers(self, rows: Tensor) -> Tensor:
        """The trained systems' log shares (R, m, C) for sample ids (R, m); else their answers."""
        logits = predict(self.algorithm, self.fed, rows.to(self.device))
        return self.stack.first.label.form_scores(logits.double()).cpu()

    @property
    def facts(self) -> RunFacts:
        """Public facts for policies and accountants."""
        task, first, of = self.stack.first, self.cells[0], self.algorithm
        return RunFacts(
            task.classes, len(task.sets["labelled"]), getattr(of, "epochs", 0),
            getattr(of, "batch_size", 0), first.dtype, tuple(list_files(first.params)),
            getattr(of, "profile", ""), task.largest_group,
        )  # fmt: skip

    def ledger(self, r: int) -> list[LedgerRow]:
        """The messages sent in replica `r`."""
        return [LedgerRow(**row) for row in self.fed.channel.ledger.of(r)]

    def guarantees(self, r: int) -> list[Claim]:
        """What the defenses of replica `r` promise, in their order.

        For those made to claim an epsilon, ``called`` says whether their hook was called at all;
        ``idle`` marks any that did nothing under this algorithm.
        """
        out = []
        every = [b for p in self.fed.parties.values() for b in p.bindings]
        for spec, policy in zip(self.cells[r].defenses, self.defenses, strict=True):
            counts = policy.counted and spec.strength
            idle = bool(spec.strength) and not any(b.acted for b in every if b.policy is policy)
            claim = self.guarantee(policy, spec.strength or 0.0, r).state(
                spec.name, spec.strength, idle=idle,
                called=self.uses(policy, r).most > 0 if counts else None,
            )  # fmt: skip
            if self.facts.profile:
                claim = replace(claim, says=f"{claim.says} Profile: {self.facts.profile}.")
            if idle:
                why = f"None of its hooks did anything under {self.algorithm.name}."
                claim = replace(claim, says=f"{claim.says} {why}")
            out.append(claim)
        return out

    def guarantee(self, policy: Policy, strength: float, r: int) -> Guarantee:
        """What one of the defenses promises in replica `r`, by what was counted there."""
        facts = replace(self.facts, uses=self.uses(policy, r))
        return check_guarantee(policy, strength, facts)

    def rehearse(
        self, timed: list[tuple[float, float]] | None = None
    ) -> tuple[tuple[str, ...], list[tuple[str, Guarantee]]]:
        """Set up, take the first step of every phase, and say what would be claimed; no training.

        Returns what :func:`first_step` does.

        Raises:
            VflsecError: it cannot be trained.
        """
        stand = Globals()
        phases, predicted = take_first_steps(self.algorithm, self.build(), timed)
        self._drew(stand)
        out = []
        for spec, policy, name in zip(
            self.cells[0].defenses, self.defenses, self.names, strict=True
        ):
            uses = predicted(policy) if policy.counted and spec.strength else None
            if uses is not None:
                seen = self.uses(policy, 0)
                peers = {p: found and (found[0], uses) for p, found in seen.peers.items()}
                uses = replace(uses, past=seen.past, peers=peers)
                facts = replace(self.facts, uses=uses)
                made = check_guarantee(policy, spec.strength or 0.0, facts)
                out.append((name, made))
        return phases, out

    @property
    def names(self) -> list[str]:
        """Of the cells' defenses, each another one."""
        return number_repeats(d.name for d in self.cells[0].defenses)

    def owners(self, i: int) -> tuple[str, ...]:
        """The parties whose policy the cells' defense number `i` is."""
        spec, policy = self.cells[0].defenses[i], self.defenses[i]
        return find_owners(spec.party or policy.owner, self.stack.first)

    def outcome(self, r: int) -> CellFacts:
        """Facts of the finished training of replica `r`, for the results."""
        task, recorder = self.stack.first, self.fed.channel.recorder
        return CellFacts(
            parties=tuple(task.parties), classes=task.classes, class_names=tuple(task.class_names),
            labels=tuple(task.labels), rows={k: len(v) for k, v in task.sets.items()},
            columns={p: len(s.names) for p, s in task.schema.items()},
            unread=tuple(sorted(recorder.left_out | recorder.passed)),
            undeclared=self._undeclared(), gaps=self._find_gaps(r),
            epochs={phase: n[r] for phase, n in self.fed.epochs.items()},
            kept={phase: n[r] for phase, n in self.fed.kept.items()},
            encryption=self.fed.encryption[r],
        )  # fmt: skip

    def _find_gaps(self, r: int) -> dict[str, tuple[str, ...]]:
        """By party, why what reaches it in replica `r` carries no pass: of predicted rows it comes
        as it is although a defense changes it in training, on whose messages attacks are made; or
        `sends`, by which attacks are set aside, does not name it.
        """
        out: dict[str, dict[str, None]] = {}
        for b in (b for p in self.fed.parties.values() for b in p.bindings):
            defends = any(b.policy is d for d in self.defenses) and b.own.active[r]
            for kind, receiver in b.find_bare_predictions() if defends else ():
                why = f"{b.policy.name} changes {kind} messages of training, not of predicted rows"
                out.setdefault(receiver, {})[why] = None
        for kind, _, role in self._undeclared():
            why = f"`sends` of {self.algorithm.name} does not name the {kind} messages it gets"
            for party in self.stack.first.parties if KINDS[kind].is_readable else ():
                if role == self._role(party):
                    out.setdefault(party, {})[why] = None
        return {party: tuple(said) for party, said in out.items()}

    def _role(self, party: str) -> str:
        return "active" if party == self.stack.first.active else "passive"

    def _undeclared(self) -> tuple[tuple[str, ...], ...]:
        """(kind, sender's role, receiver's role) of messages sent that no `sends` names, sorted."""
        task, sends = self.stack.first, self.algorithm.sends
        for policy in self.defenses:
            sends = sends | policy.sends(sends)
        role = {p: self._role(p) for p in task.parties}
        crossed = {
            (kind, role[s], role[r])
            for (_, kind, _, s, r) in self.fed.channel.ledger.entries if {s, r} <= role.keys()
        }  # fmt: skip
        return tuple(sorted(crossed - sends))

    def alone(self, seed: int, adversary: Sequence[str]) -> nn.Module | None:
        """The bottom that a lone adversary could train without the federation, once a seed."""
        if len(adversary) != 1:
            return None
        (party,) = adversary
        if party not in self._alone:
            algorithm = self.algorithm.local_training(party)
            made = {} if algorithm is None else self._bottoms(algorithm, self.stack.tasks)
            self._alone[party] = made.get(party)
        return self._of_seed(self._alone[party], seed)

    def reassigned(self, seed: int, adversary: Sequence[str]) -> dict[str, nn.Module]:
        """Bottoms that the same federation trains on another task, once a seed, by party.

        The task has the same columns and rows and the labels dealt out anew; no defense, and no
        early stopping, which such a task would end at once.
        """
        if self._reassigned is None:
            first = self.cells[0]
            patient = {"patience": 0} if hasattr(self.algorithm, "patience") else {}
            algorithm = registry.algorithms.create(first.algorithm, {**first.params, **patient})
            tasks = [reassigned_task(t, s) for s, t in zip(self._order, self.stack.tasks)]
            self._reassigned = self._bottoms(algorithm, tasks)
        found = {p: self._of_seed(self._reassigned.get(p), seed) for p in adversary}
        return {p: m for p, m in found.items() if m is not None}

    @property
    def _order(self) -> list[int]:
        """The seeds, each once, as the stack has their tasks."""
        return list(dict.fromkeys(self.seeds))

    def _bottoms(self, algorithm: Algorithm, tasks: Sequence[Task]) -> dict[str, Replicas]:
        """The bottoms of a training without attackers and defenses on a task for each seed."""
        of = torch.arange(len(tasks), device=self.device)
        twins = of if len(tasks) >= LEAST else of.repeat(LEAST)
        stack = Stack(list(tasks), twins, self.device, self.stack.dtype, self.stack.products)
        fed = Federation.create(stack, [self._order[i] for i in twins.tolist()])
        algorithm.build(fed)
        for _ in run_phases(algorithm, fed):
            pass
        return {p.name: p.modules["bottom"] for p in fed.parties.values() if "bottom" in p.modules}

    def _of_seed(self, bottoms: Replicas | None, seed: int) -> nn.Module | None:
        return None if bottoms is None else bottoms.one(self._order.index(seed))

    def _epoch(self, phase: str, done: int, total: int) -> None:
        for watch in self.watchers:
            watch(phase)
        self.progress(f"{phase}: epoch {done}/{total}", 0.8 * done / total)

    def _predict(self, phase: Phase, wanted: bool) -> dict[str, tuple[Tensor, Tensor]]:
        """Predictions for the main task; attackers may see what is returned to them."""
        if not (phase.predicts and (wanted or any(d.returned for d in self.demands))):
            return {}
        out, task = {}, self.stack.first
        for split in ("test", "validation"):
            rows = self.stack.rows(split)
            logits = self.fed.decode(predict(self.algorithm, self.fed, rows))
            out[split] = rows, task.label.form_scores(logits)
        return out if wanted else {}

    def _policies(self) -> dict[str, list[tuple[Policy, Tensor]]]:
        task = self.stack.first
        out: dict[str, list[tuple[Policy, Tensor]]] = {p: [] for p in task.parties}
        self.defenses: list[Policy] = []
        for i, spec in enumerate(self.cells[0].defenses):
            policy: Policy = registry.defenses.create(spec.name, spec.params)
            strengths = [c.defenses[i].strength or 0.0 for c in self.cells]
            if not policy.strengths:  # it is there, so it is on
                strengths = [1.0] * len(self.cells)
            else:
                for s in strengths:
                    policy.check_strength(s)
            strength = torch.tensor(strengths, dtype=torch.float64)
            for party in find_owners(spec.party or policy.owner, task):
                out[party].append((policy, strength))
            self.defenses.append(policy)
        for d in self.demands:
            if d.policy is not None:
                on = torch.ones(len(self.cells), dtype=torch.float64)
                for party in d.adversary:
                    out[party].append((d.policy, on))
        return out

    def _grant(self) -> None:
        """Give active attackers the rows that they know, which they may use in training."""
        for d in self.demands:
            if d.policy is None:
                continue
            granted = [build_grants(self.task(r), s, d) for r, s in enumerate(self.seeds)]
            for party in d.adversary:
                for b in self.fed.parties[party].bindings:
                    if b.policy == d.policy:
                        b.own.memory |= {k: [of[k] for of in granted] for k in granted[0]}


def first_step(
    cell: CellSpec, task: Task, timed: list[tuple[float, float]] | None = None
) -> tuple[tuple[str, ...], list[tuple[str, Guarantee]]]:
    """Build one cell on the CPU as for training, take the first step of every phase, drop it.

    A policy that releases labels in stages holds them back at first: then it is only built. `timed`
    gets the number of steps of each pass and the seconds of one, for `LEAST` replicas.

    Returns:
        Names of the phases after which attacks are made, empty where only training can tell; and
        what each defense that is made to claim something would claim of the uses that are
        predicted, by name (`vflsec.specs.number_repeats`).

    Raises:
        VflsecError: it cannot be trained.
    """
    training = Training([cell], (), {cell.seed: task}, torch.device("cpu"))
    return training.rehearse(timed)


def count_planned(cells: Sequence[CellSpec], tasks: Mapping[int, Task]) -> dict[str, int]:
    """How many uses of a row each defense will compose over at most, by the phases' plans.

    Defenses for which nothing can be predicted are left out.
    """
    for cell in cells:
        policies = [registry.defenses.create(d.name, d.params) for d in cell.defenses]
        if any(p.counted for p in policies) and all(d.strength for d in cell.defenses):
            if any(p.step_cost(64, 2, cell.params).spent > 0 for p in policies):
                return {}
            promised = first_step(cell, tasks[cell.seed])[1]
            return {name: made.releases for name, made in promised}
    return {}


def reassigned_task(task: Task, seed: int) -> Task:
    """`task` with the labels of rows dealt out anew among rows of the same set, class by class.

    Every set keeps its class counts; rows without a label stay without.
    """
    g = generator(seed, "reassigned")
    given = task.training_labels.clone()
    rest = torch.ones(len(given), dtype=torch.bool)
    sets = [task.sets[k] for k in ("labelled", "validation", "test") if k in task.sets]
    for rows in [*sets, None]:
        of = rest.nonzero().squeeze(1) if rows is None else rows
        rest[of] = False
        of = of[task.y[of] >= 0]
        given[of] = given[of[torch.randperm(len(of), generator=g)]]
    return replace(task, given=given)


def find_owners(party: str, task: Task) -> tuple[str, ...]:
    """The parties that a role or a name means.

    Raises:
        ConfigError: no such party.
    """
    if party == "active":
        return (task.active,)
    if party == "passive":
        return tuple(task.passive)
    if party == "all":
        return tuple(task.parties)
    return (check.one_of("the party of a defense", party, task.parties),)
