"""Inserted rows through the actual training, guessed from all parties' actual weights.

For guarantees of a row in the weights of a federation. A copy of the cohort is trained with loud
rows of which each is there or zeroed out by a coin; the adversary of the claim has all parties'
weights after every step, and with them every step that was taken, and knows all rows but the coins.
It takes off a step what the known rows of its batch add, and asks which of its canaries would pull
in the direction of the rest, with the noise's size by maximum likelihood. Which rows a Poisson
batch has it does not know: there it looks at the sum of an epoch's steps and expects of every row
as many as come on average, with their variance.

Source: Steinke, Nasr, Jagielski, "Privacy auditing with one (1) training run", NeurIPS 2023,
arXiv:2305.08846 (white-box audit of DP-SGD). The linear posterior is ours.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from vflsec.core.algorithm import Algorithm
from vflsec.core.federation import Federation
from vflsec.core.policy import Own, Policy
from vflsec.core.rng import Streams
from vflsec.core.task import Stack, Task
from vflsec.core.view import Need, Update, View
from vflsec.epsilon.canaries import Planted, plant_inserted
from vflsec.epsilon.named_noise import QUIET, NoiseWitness
from vflsec.nn.rows import widen
from vflsec.specs import AttackSpec

if TYPE_CHECKING:
    from vflsec.train.cohort import Training


MOST_BYTES = 2 * 10**9
COPIES = 4  # of the gradients of rows that are held at once
MOST_BESIDE = 600
STEPS = Need("parameter_gradient", "all")


def fits_in_memory(training: Training, policy: Policy) -> bool:
    """Whether all steps of a finished training, and the rows of a look, fit into 2 GB."""
    task = training.stack.first
    rows = len(task.sets["labelled"])
    if not policy.poisson:
        rows = min(rows, training.facts.batch_size or rows)
    size = 0
    for party in training.fed.parties.values():
        numbers = sum(p.numel() * p.element_size() for p in party.parameters())
        for b in party.bindings:
            if b.policy is policy and b.own.uses is not None:
                size += 2 * numbers * sum(b.own.uses.calls.values()) + COPIES * numbers * rows
    return size <= MOST_BYTES


@dataclass(frozen=True)
class _Look:
    """Steps that are looked at together: by replica and party, the first of them with its weights.

    Attributes:
        rows: sample ids (R, b) of which all, or by chance some, are in them.
        weights: (R, ...) by party and parameter, before the first.
        made: what the steps add up to, times their batch size, (R, ...) by party and parameter.
        live: (R,) which replicas still trained.
        expected, spread: how often a row is in them on average, and the variance of that.
    """

    rows: Tensor
    weights: Mapping[str, Mapping[str, Tensor]]
    made: Mapping[str, Mapping[str, Tensor]]
    live: Tensor
    expected: float = 1.0
    spread: float = 0.0


def score_canaries(training: Training, i: int) -> tuple[Training, list[tuple[Planted, Tensor]]]:
    """The copy that was trained, and for each replica its canaries and their scores (m,).

    A score above 0 says that the canary is there; it is a log likelihood ratio up to a factor. All
    are 0 where the steps do not fit into memory: then the noise alone is looked at.

    Args:
        training: whose cells and data are used.
        i: the number of the cells' defense whose claim is measured, a policy of gradients.

    Raises:
        PolicyError: the steps' gradients cannot be split into rows.
    """
    policy = training.defenses[i]
    tasks: dict[int, Task] = {}
    whole: dict[int, Task] = {}
    planted: dict[int, Planted] = {}
    for seed, task in training.tasks().items():
        tasks[seed], whole[seed], planted[seed] = plant_inserted(task, seed)
    parties = tuple(training.stack.first.parties)
    seen = fits_in_memory(training, policy)
    twin = training.twin(tasks, {parties: (STEPS,)} if seen else {})
    twin.witness = NoiseWitness(twin.seeds)
    stack = Stack.build(whole, twin.seeds, twin.device, twin.stack.dtype, twin.stack.products)
    known = _Known(Directions(twin.algorithm, stack, twin.seeds), policy, twin.seeds)
    canaries = torch.stack([planted[s].rows for s in twin.seeds]).to(twin.device)
    scores = torch.zeros(canaries.shape, dtype=torch.float64, device=twin.device)
    spec = AttackSpec("canary", adversary=parties, known_rows=0, prior=False)
    for moment in twin.run(predictions=False):
        if not seen:
            continue
        views = moment.views(spec)
        every = stack.rows("labelled") if policy.poisson else None
        rate = twin.uses(twin.defenses[i], 0).batches[-1].rate if policy.poisson else 1.0
        for look in _looks(views, every, rate):
            scores += known.score(moment.phase.name, look, canaries)
    found = zip((planted[s] for s in twin.seeds), torch.nan_to_num(scores).cpu(), strict=True)
    return twin, list(found)


def _looks(views: Sequence[View], every: Tensor | None, rate: float) -> Iterator[_Look]:
    """Single steps; or, with `every` row that may be in them (R, n), an epoch's steps together.

    Gradients are of a batch's mean, of Poisson batches over their expected size, `rate` x n.
    """
    size = 0.0 if every is None else rate * every.shape[1]
    groups: dict[tuple[int, ...], list[dict[str, list[Update]]]] = {}
    for r, view in enumerate(views):
        for party, steps in view.updates.items():
            times: dict[int, int] = defaultdict(int)
            for u in steps:
                once = (u.epoch, u.step, times[u.step])
                key: tuple[int, ...] = once if every is None else (u.epoch,)
                times[u.step] += 1
                of = groups.setdefault(key, [defaultdict(list) for _ in views])
                of[r][party].append(u)
    for key in sorted(groups):
        of = groups[key]
        first = next(o for o in of if o)
        full = [o or first for o in of]  # one that has stopped is looked at in vain
        rows = torch.stack([next(iter(o.values()))[0].rows for o in full])
        count = len(next(iter(first.values()))) if every is not None else 1
        yield _Look(
            rows if every is None else every,
            {p: _stacked([o[p][0].weights for o in full]) for p in first},
            {p: _stacked([_sum(o[p], size) for o in full]) for p in first},
            torch.tensor([bool(o) for o in of], device=rows.device),
            count * rate, count * rate * (1 - rate),
        )  # fmt: skip


def _stacked(named: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {k: torch.stack([n[k] for n in named]) for k in named[0]}


def _sum(steps: Sequence[Update], size: float) -> dict[str, Tensor]:
    out = {k: torch.zeros_like(w) for k, w in steps[0].weights.items()}
    for u in steps:
        for k, g in u.gradients.items():
            out[k] += (size or len(u.rows)) * g
    return out


class _Known:
    """What known rows add to steps under a policy without its noise."""

    def __init__(self, directions: Directions, policy: Policy, seeds: Sequence[int]) -> None:
        self.directions, self.policy = directions, policy
        quiet = torch.full((len(seeds),), QUIET, dtype=torch.float64)
        stack = directions.fed.stack
        rng = Streams(seeds, "canary", "known", device=stack.device, dtype=stack.dtype)
        self.own = Own("", quiet, rng)

    def score(self, phase: str, look: _Look, canaries: Tensor) -> Tensor:
        """What one look adds to the canaries' scores, (R, m) for sample ids (R, m)."""
        out = torch.zeros(canaries.shape, dtype=torch.float64, device=canaries.device)
        found = self.directions.at(phase, look.weights, look.rows)
        mine = (look.rows.unsqueeze(2) == canaries.unsqueeze(1)).any(2)  # (R, b)
        rest = []
        for party, made in look.made.items():
            parts = found[party]
            if parts:
                known = self._treated(list(parts.values()), ~mine)
                left = [
                    (made[k] - look.expected * g).flatten(1)
                    for k, g in zip(parts, known, strict=True)
                ]
                rest.append(torch.cat(left, dim=1).double())
        if not rest:
            return out
        step = torch.cat(rest, dim=1)  # (R, P)
        for r in look.live.nonzero().flatten().tolist():
            which = mine[r].nonzero().flatten()
            at = {int(row): i for i, row in enumerate(canaries[r].tolist())}
            place = torch.tensor([at[int(i)] for i in look.rows[r][which].tolist()])
            some = (~mine[r]).nonzero().flatten()[: MOST_BESIDE if look.spread else 0]
            rows = torch.cat([which, some])
            ways = [self._shortened(found[p], r, rows) for p in look.made if found[p]]
            way = torch.cat(ways, dim=1)
            out[r, place] += _evidence(step[r], way[: len(which)], way[len(which) :], look)
        return out

    def _treated(self, parts: Sequence[Tensor], which: Tensor) -> list[Tensor]:
        """What the policy makes of the sum of `which` rows (R, b) of (R, b, ...), without noise."""
        b = which.shape[1]
        mean = [p * (widen(which, p) / b) for p in parts]
        made = self.policy.gradients([p.sum(1) for p in mean], lambda: mean, self.own)
        return [m * b for m in made if m is not None]

    def _shortened(self, parts: Mapping[str, Tensor], r: int, rows: Tensor) -> Tensor:
        """Directions of some rows in replica `r`, (k, P), as long as the policy leaves them."""
        flat = torch.cat([g[r, rows].flatten(1) for g in parts.values()], dim=1).double()
        length = float(getattr(self.policy, "clip_norm", 1.0))
        norm = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
        return flat * (length / norm.clamp_min(length))


def _evidence(step: Tensor, canaries: Tensor, beside: Tensor, look: _Look) -> Tensor:
    """How much speaks for each of the canaries' ways (k, P) in a step (P,) without known rows.

    Of `beside` (q, P), ways of known rows, the step has what sampling adds by chance. The linear
    posterior under Gaussian noise of one size: a factor of the log likelihood ratio.
    """
    own = (look.expected / 2) ** 2 + look.spread / 2  # variance of what a canary adds
    left = step - look.expected / 2 * canaries.sum(0)
    wide = own**0.5 * canaries
    if look.spread:
        wide = torch.cat([wide, look.spread**0.5 * beside])
    if not bool(left.isfinite().all() and wide.isfinite().all()):  # the training has diverged
        return torch.zeros(len(canaries), dtype=wide.dtype, device=wide.device)
    values, vectors = torch.linalg.eigh(wide @ wide.T)
    values = values.clamp_min(1e-9 * float(values.max()) + 1e-30)
    inside = vectors.T @ (wide @ left) / values.sqrt()
    outside = (left.square().sum() - inside.square().sum()).clamp_min(0.0)
    free = max(len(left) - len(values), 1)
    mean = float(left.square().mean()) + 1e-30
    noise = mean * torch.logspace(-8, 1, 46, dtype=torch.float64, device=left.device).unsqueeze(1)
    fit = (values + noise).log().sum(1) + (inside.square() / (values + noise)).sum(1)
    fit = fit + free * noise[:, 0].log() + outside / noise[:, 0]
    best = noise[int(fit.argmin()), 0]
    evidence = vectors @ (values.sqrt() / (values + best) * inside)
    return evidence[: len(canaries)] / own**0.5


CHUNK = 64


@dataclass(frozen=True)
class _Looks(Policy):
    """Keeps the gradients of single rows of the first update of a step."""

    name: ClassVar[str] = "looks"
    quantities: ClassVar[bool] = True

    def gradients(self, plain, rows, own: Own):  # type: ignore[no-untyped-def]
        if "parts" not in own.memory:
            own.memory["parts"] = [p.detach() for p in rows()]
        return [None if g is None else torch.zeros_like(g) for g in plain]


class Directions:
    """Takes steps of one algorithm on rows at given weights.

    Parties look at the gradients of single rows and let nothing through, so nothing is trained.

    Args:
        algorithm: whose steps.
        stack: data of the cohort.
        seeds: of the replicas, (R).
    """

    def __init__(self, algorithm: Algorithm, stack: Stack, seeds: Sequence[int]) -> None:
        on = torch.ones(stack.replicas, dtype=torch.float64)
        bound = {p: [(_Looks(), on)] for p in stack.first.parties}
        self.algorithm, self.fed = algorithm, Federation.create(stack, seeds, bound)
        algorithm.build(self.fed)
        self.phases = {p.name: p for p in algorithm.phases(self.fed)}

    def at(
        self, phase: str, weights: Mapping[str, Mapping[str, Tensor]], rows: Tensor
    ) -> dict[str, dict[str, Tensor]]:
        """Gradients of single rows' own losses, by party and parameter, (R, m, ...) each.

        Args:
            phase: whose step is taken.
            weights: (R, ...) by party and parameter (``"bottom.1.weight"``); others stay as built.
            rows: sample ids (R, m).

        Raises:
            PolicyError: the step's gradients cannot be split into rows.
        """
        fed, planned = self.fed, self.phases[phase]
        (walk, *_) = planned.walks()
        if fed.phase != phase and planned.before is not None:
            planned.before()
        fed.phase = phase
        state = fed.state()
        for owner, named in weights.items():
            for name, value in named.items():
                part, _, inner = name.partition(".")
                state[owner][part][inner] = value
        found: dict[str, list[list[Tensor]]] = {p: [] for p in fed.parties}
        for chunk in rows.split(CHUNK, dim=1):
            fed.load(state, torch.arange(fed.replicas, device=rows.device))
            for party in fed.parties.values():
                party.bindings[0].own.memory.clear()
            fed.batch = chunk
            walk.step(chunk)
            fed.batch = None
            for name, party in fed.parties.items():
                parts = party.bindings[0].own.memory.get("parts", [])
                found[name].append([p * chunk.shape[1] for p in parts])
        return {
            name: {
                key: torch.cat(parts, dim=1)
                for key, *parts in zip(_names(fed, name), *found[name], strict=False)
            }
            for name in fed.parties
        }


def _names(fed: Federation, party: str) -> list[str]:
    """Names of a party's trainable parameters, in the order of its updates."""
    return [
        f"{part}.{name}"
        for part, module in fed.parties[party].modules.items()
        for name, p in module.params.items()
        if p.requires_grad
    ]
