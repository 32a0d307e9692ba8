"""A mutation score of the audit of claims: mechanisms that are broken on purpose, and intact ones.

Run ``python benchmarks/broken_mechanisms.py`` (a minute on one core). Each is trained at
five seeds in a Gaussian world of 300 aligned rows and judged as an audit is; ``--intact N`` judges
N audits of every intact mechanism instead. A broken one that passes is a mutant that survives.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor

from vflsec.audit.gate import FAIL, INCONCLUSIVE, Verdict
from vflsec.audit.intervals import clopper_pearson
from vflsec.audit.point import Training
from vflsec.audit.result_row import ResultRow
from vflsec.core import poisson_sampling
from vflsec.core.rng import Streams
from vflsec.engine.cohort import run_cohort
from vflsec.epsilon.claimed_vs_measured import Claimed, judge_claims
from vflsec.plugins import registry
from vflsec.specs import CellSpec, DefenseSpec, Params
from vflsec.testing import small_task

SEEDS, ROWS, BATCH = 5, 300, 64
TRAINING: Params = {"epochs": 3, "batch_size": BATCH, "patience": 0, "hidden": [8], "cut": 4}
Change = Callable[[Tensor], Tensor]
Hook = Callable[..., Any]


class Spec(NamedTuple):
    """A defense, and how many classes the label has."""

    name: str
    params: dict[str, Any]
    strength: float
    classes: int = 2


NOISE = Spec("noise", {"clip": 0.05, "distribution": "gaussian"}, 2.0)
LAPLACE = Spec("noise", {"clip": 0.05}, 2.0)
EMBEDDING = Spec("embedding_noise", {}, 2.0)
LOSS = Spec("gradperturb", {}, 0.5)
STEPS = Spec("dpsgd", {}, 2.0)
POISSON = Spec("dpsgd", {"accountant": "prv"}, 2.0)
LABELS = Spec("label_dp", {}, 0.5)
LABELS_OF_THREE = Spec("label_dp", {}, 1.0, 3)
PRIOR = Spec("rr_prior", {}, 0.5)
LEARNED = Spec("learned_prior", {}, 0.5)
STAGES = Spec("lp_mst", {}, 0.5)
ALIBI = Spec("alibi", {}, 0.5)
SPARSE = Spec("ppdl", {}, 0.5)
INTACT = (
    NOISE, LAPLACE, EMBEDDING, LOSS, STEPS, POISSON, LABELS, LABELS_OF_THREE, PRIOR, LEARNED,
    STAGES, ALIBI, SPARSE,
)  # fmt: skip
HOOKS = {
    "noise": "outgoing", "embedding_noise": "outgoing", "gradperturb": "loss", "dpsgd": "gradients",
    "label_dp": "labels", "rr_prior": "labels", "learned_prior": "labels", "lp_mst": "labels",
    "alibi": "labels", "ppdl": "outgoing",
}  # fmt: skip


class _Draws:
    """Random numbers of a policy, changed on their way."""

    def __init__(self, of: Streams, change: Change, again: bool = False) -> None:
        self.of, self.change, self.dtype = of, change, of.dtype
        self.source = Streams(of.seeds, "again", dtype=of.dtype) if again else of

    def __getattr__(self, name: str) -> Any:
        draw = getattr(self.source, name)
        return lambda *args, **more: self.change(draw(*args, **more))


def draw(change: Change, again: bool = False) -> Callable[[Hook], Hook]:
    """A hook whose random numbers are changed; with `again` they are the same in every call."""
    return lambda plain: (
        lambda self, *given: plain(
            self, *given[:-1], replace(given[-1], rng=_Draws(given[-1].rng, change, again))
        )
    )


def weaken(times: float) -> Callable[[Hook], Hook]:
    """A hook with so many times less noise."""
    return lambda plain: (
        lambda self, *given: plain(
            self, *given[:-1], replace(given[-1], strength=given[-1].strength / times)
        )
    )


def _share_rows(x: Tensor) -> Tensor:
    return x[:, :1].expand_as(x) if x.dim() > 2 else x


def _share_columns(x: Tensor) -> Tensor:
    return x[..., :1].expand_as(x)


def _spare_last_batch(x: Tensor) -> Tensor:
    return x if x.shape[1] == BATCH or x.dim() < 3 else 0 * x


def _spare_some_rows(x: Tensor) -> Tensor:
    x = x.clone()
    x[:, ::10] = 0
    return x


def _spare_first_half(x: Tensor) -> Tensor:
    x = x.clone()
    x[:, : x.shape[1] // 2] = 0
    return x


def _make_uniform(x: Tensor) -> Tensor:
    return 12**0.5 * (torch.special.ndtr(x) - 0.5)


def _take_back(plain: Hook) -> Hook:
    """Every second call of an owner has the noise of the one before with the other sign."""
    last: dict[tuple[int, torch.Size], Tensor] = {}

    def hook(self: Any, *given: Any) -> Any:
        own = given[-1]

        def change(x: Tensor) -> Tensor:
            key = id(own.uses), x.shape
            return -last.pop(key) if key in last else last.setdefault(key, x)

        return plain(self, *given[:-1], replace(own, rng=_Draws(own.rng, change)))

    return hook


def _clip_first_half(plain: Hook) -> Hook:
    def outgoing(self: Any, message: Any, own: Any) -> Tensor:
        made = plain(self, message, own)
        half = made.shape[1] // 2
        bare = plain(self, message, replace(own, strength=own.strength * 1e-12))
        left = (message.tensor - bare)[:, half:]
        return torch.cat([made[:, :half], made[:, half:] + left], dim=1)

    return outgoing


def _clip_batch(plain: Hook) -> Hook:
    def outgoing(self: Any, message: Any, own: Any) -> Tensor:
        g = message.tensor
        unit = self.clip / message.scale
        norm = torch.linalg.vector_norm(g.flatten(1), dim=1).reshape(-1, 1, 1) / g.shape[1] ** 0.5
        noise = own.rng.normal(g.shape[1:], active=own.active)
        return g * (unit / norm.clamp_min(unit)) + own.column(g) * unit * noise

    return outgoing


def _clip_after(plain: Hook) -> Hook:
    def outgoing(self: Any, message: Any, own: Any) -> Tensor:
        g = message.tensor
        unit = self.clip / message.scale
        noisy = g + own.column(g) * unit * own.rng.normal(g.shape[1:], active=own.active)
        norm = torch.linalg.vector_norm(noisy, dim=2, keepdim=True)
        return noisy * (unit / norm.clamp_min(unit))

    return outgoing


def _clip_nothing(plain: Hook) -> Hook:
    def outgoing(self: Any, message: Any, own: Any) -> Tensor:
        g = message.tensor
        noise = own.rng.normal(g.shape[1:], active=own.active)
        return g + own.column(g) * self.clip / message.scale * noise

    return outgoing


def _clip_mean(plain: Hook) -> Hook:
    def gradients(self: Any, given: Any, rows: Any, own: Any) -> Any:
        b = own.sample[1] if own.sample is not None else rows()[0].shape[1]
        flat = torch.cat([g.flatten(1) for g in given], dim=1)
        norm = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
        noise = own.rng.normal(flat.shape[1:], active=own.active)
        made = flat * (self.clip_norm / norm.clamp_min(self.clip_norm))
        made = made + own.column(flat) * self.clip_norm / b * noise
        return self._split(made, rows(), given)

    return gradients


def _flip_none(plain: Hook) -> Hook:
    return lambda self, y, own: (plain(self, y, own), y.clone())[1]


def keep(which: Callable[[Tensor], Tensor], more: float = 1.0) -> Callable[[Hook], Hook]:
    """A hook that releases some labels as they are, and flips the others so many times as often."""

    def change(plain: Hook) -> Hook:
        def labels(self: Any, y: Tensor, own: Any) -> Tensor:
            out = plain(self, y, own)
            flips = 1 - own.memory["keep"] if more > 1 else own.column(y) * 0
            extra = own.rng.uniform(y.shape[1:], dtype=torch.float64) < (more - 1) * flips
            shift = own.rng.integers(own.classes - 1, y.shape[1:]) + 1
            out = torch.where(extra & (out == y) & (y >= 0), (y + shift) % own.classes, out)
            return torch.where(which(y), y, out)

        return labels

    return change


def _every(step: int) -> Callable[[Tensor], Tensor]:
    return lambda y: (torch.arange(y.shape[1]) % step == 0).expand_as(y)


def _hide_class(plain: Hook) -> Hook:
    """Class 1 is released as it is, and no other as class 1."""

    def labels(self: Any, y: Tensor, own: Any) -> Tensor:
        out = plain(self, y, own)
        return torch.where(y == 1, y, torch.where(out == 1, 2 - y, out))

    return labels


def _no_answers(plain: Hook) -> Hook:
    def outgoing(self: Any, message: Any, own: Any) -> Tensor:
        kept = plain(self, message, own) != 0
        return torch.where(kept, message.tensor, 0.0)

    return outgoing


@contextmanager
def shuffled_batches() -> Iterator[None]:
    """While it lasts, Poisson batches have a fixed size: as many rows as are expected."""

    class Fixed(Streams):
        def uniform(self, shape: Any, **more: Any) -> Tensor:
            x = super().uniform(shape, **more)
            rank = x.argsort(dim=1).argsort(dim=1).to(x)
            return rank / shape[0]

    plain = poisson_sampling.draw_batches

    def draw_batches(rows: Any, shuffled: Any, bound: Any, coins: Any, *rest: Any) -> Any:
        fixed = Fixed(coins.seeds, *coins.names, "fixed", *rest, dtype=coins.dtype)
        return plain(rows, shuffled, bound, fixed, *rest)

    with mock.patch("vflsec.core.federation.draw_batches", draw_batches):
        yield


BROKEN: tuple[tuple[str, Spec, Callable[[Hook], Hook] | None], ...] = (
    ("half the noise", NOISE, weaken(2)),
    ("half the noise", LAPLACE, weaken(2)),
    ("half the noise", EMBEDDING, weaken(2)),
    ("half the noise", LOSS, weaken(2)),
    ("half the noise", STEPS, weaken(2)),
    ("half the noise", POISSON, weaken(2)),
    ("nine tenths of the noise", NOISE, weaken(10 / 9)),
    ("one noise vector for a batch", NOISE, draw(_share_rows)),
    ("one noise vector for a batch", EMBEDDING, draw(_share_rows)),
    ("one noise vector for a batch", LOSS, draw(_share_rows)),
    ("one number of noise for a row", NOISE, draw(_share_columns)),
    ("one number of noise for a step", STEPS, draw(_share_columns)),
    ("a last batch without noise", NOISE, draw(_spare_last_batch)),
    ("a last batch without noise", EMBEDDING, draw(_spare_last_batch)),
    ("a last batch without noise", LOSS, draw(_spare_last_batch)),
    ("every tenth row without noise", NOISE, draw(_spare_some_rows)),
    ("half of the parameters without noise", STEPS, draw(_spare_first_half)),
    ("uniform noise of the same spread", NOISE, draw(_make_uniform)),
    ("uniform noise of the same spread", STEPS, draw(_make_uniform)),
    ("noise that every second call takes back", NOISE, _take_back),
    ("noise that every second call takes back", STEPS, _take_back),
    ("clipping of half of the rows", NOISE, _clip_first_half),
    ("clipping by batch", NOISE, _clip_batch),
    ("clipping by batch", STEPS, _clip_mean),
    ("noise before clipping", NOISE, _clip_after),
    ("no clipping", NOISE, _clip_nothing),
    ("noise divided by the batch size twice", STEPS, weaken(BATCH)),
    ("seeds reused in every call", NOISE, draw(lambda x: x, again=True)),
    ("seeds reused in every call", LOSS, draw(lambda x: x, again=True)),
    ("seeds reused in every call", STEPS, draw(lambda x: x, again=True)),
    ("sampling of a fixed size", POISSON, None),
    ("half the epsilon's flips", LABELS, weaken(2)),
    ("half the epsilon's flips", PRIOR, weaken(2)),
    ("half the noise", ALIBI, weaken(2)),
    ("labels as they are", LABELS, _flip_none),
    ("every tenth label as it is", LABELS, keep(_every(10))),
    ("every tenth label as it is", PRIOR, keep(_every(10))),
    ("every second label as it is, others flipped more", LABELS, keep(_every(2), 2.0)),
    ("class 1 as it is, class 0 flipped more", LABELS, keep(lambda y: y == 1, 2.0)),
    ("class 1 of three as it is", LABELS_OF_THREE, keep(lambda y: y == 1)),
    ("class 1 of three as it is and alone", LABELS_OF_THREE, _hide_class),
    ("seeds reused in every call", LABELS, draw(lambda x: x, again=True)),
    ("answers without noise", SPARSE, _no_answers),
)  # fmt: skip


def judge(spec: Spec, first: int = 0) -> Verdict | None:
    """The verdict on the claim of a defense, of `SEEDS` trainings from seed `first` on.

    None where it claims nothing, for something past it was counted.
    """
    name, params, strength, classes = spec
    tasks = {s: small_task(s, n=ROWS, classes=classes) for s in range(first, first + SEEDS)}
    party = "all" if name == "dpsgd" else ""
    made = (DefenseSpec(name, params, party, strength),)
    cells = [CellSpec({"name": "w"}, "splitnn", TRAINING, made, s) for s in tasks]
    results = run_cohort(cells, [], tasks, device="cpu")
    at = Training("w", "splitnn", name, strength).as_dict()
    found = [m for r in results for m in r.measures if m.metric == "epsilon_lower"]
    rows = [
        ResultRow(**at, seed=s, metric=m.metric, value=m.value,
                  notes={**m.notes, "defense": name})
        for s, m in enumerate(found)
    ]  # fmt: skip
    promised = [g for r in results for g in r.guarantees]
    epsilons = [g.epsilon for g in promised if g.epsilon is not None]
    if len(epsilons) < len(promised):
        return None
    claim = Claimed(**at, epsilon=max(epsilons), delta=max(g.delta for g in promised), by=name)
    (verdict,) = judge_claims(rows, [claim])
    return verdict


@dataclass(frozen=True)
class Broken:
    """One mutant while it lasts."""

    spec: Spec
    change: Callable[[Hook], Hook] | None

    @contextmanager
    def put(self) -> Iterator[None]:
        """Break it."""
        name = self.spec[0]
        policy = type(registry.defenses.create(name, self.spec[1]))
        if self.change is None:
            with shuffled_batches():
                yield
            return
        hook = HOOKS[name]
        with mock.patch.object(policy, hook, self.change(getattr(policy, hook))):
            yield


def _row(what: str, spec: Spec, v: Verdict | None) -> str:
    if v is None:
        return f"| {what} | {spec[0]} | no claim | something past it was counted | | | |"
    power = f"{v.noise_found:.2f}" if v.noise_found is not None else ""
    return (
        f"| {what} | {spec[0]}{' ' + str(spec[1]) if spec[1] else ''} | {v.verdict} | {v.rule} "
        f"{v.detail} | {v.value:.3g} | {v.threshold:.3g} | {power} |"
    )


def main() -> None:
    """Print the mutation score, or how often intact mechanisms are accused."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--intact", type=int, default=0)
    args = parser.parse_args()
    if args.intact:
        for spec in INTACT:
            found = [judge(spec, 1000 + SEEDS * k) for k in range(args.intact)]
            made = [v.verdict for v in found if v is not None]
            bad = sum(v == FAIL for v in made)
            high = clopper_pearson(bad, len(made), 0.95, "upper").high
            print(spec[0], spec[1], dict(Counter(made)), f"at most {high:.3f}", flush=True)
        return
    print("| broken | defense | verdict | rule | bound | claim | would find |")
    print("|---|---|---|---|---|---|---|")
    score: Counter[str] = Counter()
    for what, spec, change in BROKEN:
        with Broken(spec, change).put():
            v = judge(spec)
        score[v.verdict if v is not None else "none"] += 1
        print(_row(what, spec, v), flush=True)
    for spec in INTACT:
        print(_row("intact", spec, judge(spec)), flush=True)
    print(
        f"\nOf {len(BROKEN)} broken: {score[FAIL]} contradicted, {score[INCONCLUSIVE]} open, "
        f"{score['none']} without a claim."
    )


if __name__ == "__main__":
    main()
