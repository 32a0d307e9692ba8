"""What the four self-supervised algorithms share: towers, phases, and their hyper-parameters.

The phase ``pretrain`` is made of global iterations (see :mod:`vflsec.algorithms._pretraining`); the
phase ``finetune`` is FedSplitNN on the labelled rows, starting from the pre-trained encoders.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from vflsec.algorithms._pretraining import Member, Pretraining, Recipe, Tower
from vflsec.algorithms.splitnn import SplitNN
from vflsec.core import check
from vflsec.core.federation import Federation, Pass, Phase
from vflsec.core.party import Party
from vflsec.core.rng import Streams, as_global, generator
from vflsec.errors import ConfigError
from vflsec.nn.augment import Corruption, ImageViews
from vflsec.nn.encoders import Towers, build_towers, mlp_encoder, resnet_encoder
from vflsec.nn.models import from_path
from vflsec.nn.replicas import Replicas
from vflsec.nn.ssl import Queue, predictor, projector
from vflsec.nn.weights import starting_at

_HEADS = ("_tower", "_projector", "_predictor")
"""Ends of the names of what serves in pre-training alone."""

_SIZES: dict[str, dict[str, Any]] = {
    "table": {
        "hidden": (64,), "cut": 64, "projector_hidden": 64, "predictor_hidden": 16,
        "pretrain_batch_size": 128, "pretrain_lr": 0.2, "batch_size": 64, "embedding": 4,
    },
    "paper": {
        "hidden": (512,), "cut": 512, "projector_hidden": 512, "predictor_hidden": 128,
        "pretrain_batch_size": 512, "pretrain_lr": 0.05, "batch_size": 512, "embedding": 32,
    },
}  # fmt: skip
_OUT = {("paper", "simsiam"): 512, ("paper", "byol"): 512, ("paper", "moco"): 128}
"""Width of projections; that of the encoder for tables."""


@dataclass(frozen=True)
class SelfSupervised(SplitNN):
    """Hyper-parameters that all four have, beside those of FedSplitNN, which fine-tuning uses.

    Attributes:
        sizes: where a width, a batch size or `pretrain_lr` below is left at 0: ``table``, small
            widths and batches for tables of some thousand rows, or ``paper``, its public code's
            for 100,000. Numbers that are given stand.
        hidden, cut: widths of the encoder; the last step to `cut` is its top.
        top: hidden layers of the classifier on the pooled representations; paper: none.
        optimizer, lr, weight_decay, batch_size, epochs, patience: of fine-tuning.
        schedule: of the fine-tuning rate: ``constant``, or ``cosine`` to 0 as in the code.
        finetune_clip_norm: largest norm of a party's gradient in fine-tuning, 0 = no limit;
            code 5.
        ssl: ``simsiam``, ``byol`` or ``moco``.
        byol_form: ``cosine`` (code) or ``distance`` (as printed, gradients twice as large).
        temperature: of MoCo's losses.
        encoder_kind: ``mlp``, ``resnet18``, or ``auto``: by the kind of rows.
        stem: of ResNet-18: ``imagenet`` (code) or ``small``.
        embedding: width of a categorical column; `embedding_l2` is of fine-tuning, and every code
            has a vector of its own (`embedding_rows` is refused).
        init_std: standard deviation of the initial embeddings and linear weights of the bottoms
            and of the cross towers' tops; 0 = PyTorch's. The code has 1e-4 on click data.
        projector_hidden, projector_out, predictor_hidden: heads; out in the paper 512, MoCo 128.
        pretrain_iterations: global iterations; paper 10 (NUS-WIDE) or 40. 0 leaves it out.
        pretrain_batch_size: a last batch of less than a quarter of it is left out, with MoCo any
            that is not full.
        pretrain_optimizer: ``sgd``, ``adam``, or ``adagrad`` (encoders only, heads keep SGD).
        pretrain_momentum, pretrain_weight_decay: of that optimizer.
        pretrain_lr: rate at batch 256; the rate used is in proportion to the batch.
        pretrain_schedule: ``cosine`` over the iterations (predictors stay constant) or
            ``constant``.
        own_control: also train what each adversary could have trained alone, as a control.
    """

    sizes: Literal["table", "paper"] = "table"
    hidden: tuple[check.Count, ...] = (0,)
    cut: check.Count = 0
    top: tuple[int, ...] = ()
    optimizer: str = "sgd"
    lr: float = 0.01
    weight_decay: float = 3e-5
    batch_size: check.Count = 0
    patience: int = 20
    schedule: Annotated[str, check.among("constant", "cosine")] = "constant"
    finetune_clip_norm: check.NonNegative = 0.0
    ssl: Annotated[str, check.among("simsiam", "byol", "moco")] = "simsiam"
    byol_form: Annotated[str, check.among("cosine", "distance")] = "cosine"
    temperature: check.Positive = 0.5
    encoder_kind: str = "auto"
    stem: Annotated[str, check.among("imagenet", "small")] = "imagenet"
    embedding: check.Count = 0
    init_std: check.NonNegative = 0.0
    projector_hidden: check.Count = 0
    projector_out: check.Count = 0
    predictor_hidden: check.Count = 0
    pretrain_iterations: check.Whole = 40
    pretrain_batch_size: Annotated[int, check.at_least(2)] = 0
    pretrain_optimizer: Annotated[str, check.among("sgd", "adam", "adagrad")] = "sgd"
    pretrain_lr: check.Positive = 0.0
    pretrain_momentum: check.BelowOne = 0.9
    pretrain_weight_decay: check.NonNegative = 3e-5
    pretrain_schedule: Annotated[str, check.among("constant", "cosine")] = "cosine"
    own_control: bool = True

    quantities: ClassVar[bool] = False
    label_holder: ClassVar[bool] = False
    encoder_kinds: ClassVar[tuple[str, ...]] = ("auto", "mlp", "resnet18")
    has_cross: ClassVar[bool] = False
    has_local: ClassVar[bool] = False
    world = {
        "hidden": (16,), "cut": 16, "projector_hidden": 16, "projector_out": 16,
        "predictor_hidden": 8, "pretrain_iterations": 2, "pretrain_batch_size": 32,
        "optimizer": "adam", "task": {"unaligned": 30},
    }  # fmt: skip

    def __post_init__(self) -> None:
        for name, size in _SIZES[self.sizes].items():
            if getattr(self, name) in (0, (0,)):
                object.__setattr__(self, name, size)
        if not self.projector_out:
            object.__setattr__(self, "projector_out", _OUT.get((self.sizes, self.ssl), self.cut))
        super().__post_init__()
        self.need_head()
        if self.embedding_rows:
            rule = "0: corrupted fields need a code of their own"
            raise check.fail(f"{self.name}.embedding_rows", rule, self.embedding_rows)

    def settled(self) -> str:
        other = "paper" if self.sizes == "table" else "table"
        said = ", ".join(f"{name} = {getattr(self, name)}" for name in _SIZES[self.sizes])
        return f'{self.name} has sizes = "{self.sizes}": {said}. Beside it there is "{other}".'

    @property
    def fused_towers(self) -> str:
        """How the towers are pooled in fine-tuning."""
        own = getattr(self, "pooling", "")
        return own or ("cross" if self.has_cross else "local")

    def width(self, party: str, classes: int) -> int:
        cut = self.width_of(party)
        return 2 * cut if self.fused_towers == "concat" else cut

    def members(self, fed: Federation) -> list[str]:
        """Who pre-trains, the active party first."""
        return [fed.active.name, *(p.name for p in self.passive(fed))]

    def build(self, fed: Federation) -> None:
        if self.pretrain_iterations:
            _check_data(self, fed)
        spares: dict[str, list[nn.Module]] = {}
        fed.extra["spare_towers"] = spares
        super().build(fed)
        members = self.members(fed) if self.pretrain_iterations else []
        for name in members:
            _add_heads(self, fed, name, spares[name])
        if members:
            fed.extra["pretraining"] = Pretraining(
                fed, self.recipe(), [_build_member(self, fed, name) for name in members]
            )

    def views_of(self, fed: Federation, party: str) -> Corruption | ImageViews:
        """How a party makes views of its rows."""
        raise NotImplementedError("abstract")

    def width_of(self, party: str) -> int:
        """Width of one encoder of a party."""
        return int(self.parties.get(party, {}).get("cut", self.cut))

    def _bottom(self, fed: Federation, party: str, width: int) -> Callable[[], nn.Module]:
        spare: list[nn.Module] = []
        fed.extra["spare_towers"][party] = spare
        both = self.has_cross and self.has_local and self.pretrain_iterations > 0
        build = _build_encoder(self, fed, party)
        return lambda: build_towers(
            self.fused_towers, build, spare if both else None, self.init_std
        )

    def recipe(self) -> Recipe:
        """The pre-training settings, by the fields this algorithm has."""
        given = {f.name: getattr(self, f.name) for f in fields(Recipe) if hasattr(self, f.name)}
        scale = self.pretrain_batch_size / 256
        gamma = given.get("gamma", 0.0)
        if getattr(self, "rescale_lr", False):
            scale *= 0.5 / (0.5 + gamma)
        given |= {
            "lr": self.pretrain_lr * scale,
            "optimizer": self.pretrain_optimizer,
            "momentum": self.pretrain_momentum,
            "weight_decay": self.pretrain_weight_decay,
            "schedule": self.pretrain_schedule,
            "iterations": self.pretrain_iterations,
        }
        if self.ssl != "simsiam":
            given["ema"] = getattr(self, f"{self.ssl}_ema", 0.0)
        return Recipe(**given)

    def phases(self, fed: Federation) -> list[Phase]:
        out = [self.pretraining(fed)] if self.pretrain_iterations else []
        crosses = bool(out) and self.has_cross
        self.intersect(fed, "pretrain" if crosses else "finetune")
        rows = fed.stack.rows("labelled")
        finetune = Phase(
            "finetune", rows, self.batch_size, self.epochs, lambda batch: self.step(fed, batch),
            after_epoch=lambda epoch: self._anneal(fed, epoch),
            select=self.select, select_by=self.select_by, patience=self.patience,
            listeners=tuple(p.name for p in self.passive(fed)),
            passes=(
                Pass("train", rows, self.batch_size, lambda batch: self.step(fed, batch), 2),
            ),
            before=lambda: self._drop_heads(fed),
        )  # fmt: skip
        return [*out, finetune]

    def pretraining(self, fed: Federation) -> Phase:
        """The phase ``pretrain``: an epoch is one global iteration."""
        work: Pretraining = fed.extra["pretraining"]
        size = self.pretrain_batch_size
        passes = []
        if self.has_cross:
            rows = fed.stack.rows("aligned")
            passes.append(Pass("cross", rows, size, work.cross_step, _least(rows, size)))
        if self.has_local:
            for m in work.members:
                rows = fed.stack.rows(f"local:{m.party.name}")
                least = size if self.ssl == "moco" else _least(rows, size)
                passes.append(
                    Pass(
                        f"local:{m.party.name}", rows, size,
                        partial(work.local_step, m), least,
                    )
                )  # fmt: skip
        return Phase(
            "pretrain", passes[0].rows, size, self.pretrain_iterations, passes[0].step,
            after_epoch=work.after_iteration, predicts=False, passes=tuple(passes),
        )  # fmt: skip

    def _drop_heads(self, fed: Federation) -> None:
        """Projectors, predictors and towers that are not pooled have served."""
        fed.extra.pop("pretraining", None)
        for party in fed.parties.values():
            for part in [k for k in party.modules if k.endswith(_HEADS)]:
                del party.modules[part]
            party.start(self.optimizer, self.lr, self.weight_decay, embedding_l2=self.embedding_l2)
            party.clip_norm = self.finetune_clip_norm

    def _anneal(self, fed: Federation, epoch: int) -> None:
        if self.schedule == "cosine":
            factor = 0.5 * (1 + math.cos(math.pi * (epoch + 1) / self.epochs))
            for party in fed.parties.values():
                for group in getattr(party.optimizer, "param_groups", ()):
                    group["lr"] = self.lr * factor


def _least(rows: Tensor, size: int) -> int:
    """The fewest rows of a batch that is used: a quarter of a full one.

    Batch statistics of two or three rows make the gradients of a cosine explode.
    """
    return max(2, min(size, rows.shape[1]) // 4)


def _check_data(algorithm: SelfSupervised, fed: Federation) -> None:
    """Settings and data that do not go together.

    Raises:
        ConfigError: one clear sentence each.
    """
    members = algorithm.members(fed)
    if algorithm.has_cross:
        if len(members) < 2:
            raise check.fail(
                f"{algorithm.name}: the number of parties", "at least 2", len(members),
                "Use fedlocal_ssl for one party.",
            )  # fmt: skip
        aligned = fed.stack.rows("aligned").shape[1]
        if aligned < 2:
            raise check.fail(
                f"{algorithm.name}: the number of aligned rows", "at least 2", aligned,
                "Raise `aligned` in [data], or use fedlocal_ssl.",
            )  # fmt: skip
    if algorithm.has_local and algorithm.ssl == "moco":
        for name in members:
            rows = fed.stack.rows(f"local:{name}").shape[1]
            if rows < algorithm.pretrain_batch_size:
                rule = f"at most {rows}, the rows of {name!r}, with ssl = 'moco'"
                where = f"{algorithm.name}.pretrain_batch_size"
                raise check.fail(where, rule, algorithm.pretrain_batch_size)
    shared = algorithm.recipe().average
    if "top" in shared:
        with as_global(generator(0, "shapes")):
            tops = {n: _build_encoder(algorithm, fed, n)().get_submodule("top") for n in members}
        shapes = {n: [tuple(p.shape) for p in m.parameters()] for n, m in tops.items()}
        if any(s != shapes[members[0]] for s in shapes.values()):
            where, got = (
                f"{algorithm.name}.average: the layers of 'top'",
                {n: s[0] for n, s in shapes.items()},
            )
            remedy = "Give all parties the same cut and last hidden width, or leave 'top' out."
            raise check.fail(where, "of one shape for all parties", got, remedy)


def _add_heads(
    algorithm: SelfSupervised, fed: Federation, name: str, spares: list[nn.Module]
) -> None:
    """Give a party what it needs beside its bottom in pre-training.

    Args:
        algorithm: whose widths are used.
        fed: where the modules are added.
        name: of the party.
        spares: encoders that the bottom does not hold, one for each replica.
    """
    cut, out = algorithm.width_of(name), algorithm.projector_out
    if spares:
        other = "cross" if algorithm.fused_towers == "local" else "local"
        encoders, none = iter(spares), {"cross": None, "local": None}
        fed.add(name, f"{other}_tower", lambda: Towers(other, **none | {other: next(encoders)}))
    for tower, there in (("cross", algorithm.has_cross), ("local", algorithm.has_local)):
        if there:
            hidden = algorithm.projector_hidden
            fed.add(name, f"{tower}_projector", partial(projector, cut, hidden, out))
            if algorithm.ssl != "moco":
                fed.add(
                    name, f"{tower}_predictor", partial(predictor, out, algorithm.predictor_hidden)
                )


def _build_encoder(
    algorithm: SelfSupervised, fed: Federation, party: str
) -> Callable[[], nn.Module]:
    """What makes a party's encoder: its own module with our top, a ResNet-18 or an MLP."""
    cut = algorithm.width_of(party)
    schema = fed.stack.first.schema[party]
    own = algorithm.parties.get(party, {})
    hidden = tuple(own.get("hidden", algorithm.hidden))
    if "module" in own:  # the user's module is the bottom; the top stays the package's
        middle = hidden[-1] if hidden else cut
        make: Callable[[], nn.Module] = partial(
            from_path, own["module"], schema, middle, own.get("args")
        )
        if own.get("weights"):
            make = starting_at(own["weights"], f"weights of {party}", make)
        return lambda: _with_top(make(), middle, cut)
    if own.get("weights"):
        raise ConfigError(f"{algorithm.name}.parties.{party}: weights need a module.")
    kind = algorithm.encoder_kind
    if kind == "auto":
        kind = "resnet18" if len(schema.shape) == 3 else "mlp"
    if kind == "resnet18":
        return lambda: resnet_encoder(schema, cut, stem=algorithm.stem)
    return lambda: mlp_encoder(schema, hidden, cut, embedding=algorithm.embedding)


def _build_member(algorithm: SelfSupervised, fed: Federation, name: str) -> Member:
    """A party with its towers, views, targets and queues."""
    party = fed.parties[name]
    made = Member(party)
    if algorithm.has_cross:
        made.cross = _tower(party, "cross")
    if algorithm.has_local:
        made.local = _tower(party, "local")
        made.augment = algorithm.views_of(fed, name)
        if algorithm.ssl != "simsiam":
            every = torch.arange(fed.replicas, device=fed.stack.device)
            local = made.local
            made.target = Tower(local.encoder.take(every), local.projector.take(every), None)
        if algorithm.ssl == "moco":
            rng = Streams(fed.seeds, "queue", name, device=fed.stack.device, dtype=fed.stack.dtype)
            size, out = int(getattr(algorithm, "queue", 0)), algorithm.projector_out
            made.queues = (Queue(size, out, rng), Queue(size, out, rng))
    return made


def _tower(party: Party, kind: str) -> Tower:
    spare = party.modules.get(f"{kind}_tower")
    stack: Replicas = party.modules["bottom"] if spare is None else spare
    found = next(n for n, m in stack.template.named_modules() if isinstance(m, Towers))
    encoder = stack.sub(f"{found}.{kind}" if found else kind)
    modules = party.modules
    return Tower(encoder, modules[f"{kind}_projector"], modules.get(f"{kind}_predictor"))


def _with_top(bottom: nn.Module, middle: int, cut: int) -> nn.Sequential:
    top = nn.Sequential(nn.Linear(middle, cut), nn.BatchNorm1d(cut), nn.ReLU())
    return nn.Sequential(OrderedDict(bottom=bottom, top=top))
