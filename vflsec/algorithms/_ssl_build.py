"""Encoders, heads and towers of the self-supervised family, and what does not go together."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

from vflsec import check
from vflsec.algorithms._pretraining import Member, Tower
from vflsec.errors import ConfigError
from vflsec.federation import Federation
from vflsec.nn.encoders import Towers, mlp_encoder, resnet_encoder
from vflsec.nn.models import from_path
from vflsec.nn.replicas import Replicas
from vflsec.nn.ssl import Queue, predictor, projector
from vflsec.nn.weights import starting_at
from vflsec.party import Party
from vflsec.rng import Streams, as_global, generator

if TYPE_CHECKING:
    from vflsec.algorithms._ssl import SelfSupervised

__all__ = ["HEADS", "add_heads", "encoder", "member", "refuse"]


def refuse(algorithm: SelfSupervised, fed: Federation) -> None:
    """Settings and data that do not go together.

    Raises:
        ConfigError: one clear sentence each.
    """
    members = algorithm.members(fed)
    if algorithm.has_cross:
        if len(members) < 2:
            raise check.fail(
                f"{algorithm.name}: the number of parties", "at least 2", len(members),
                "Cross-party pre-training needs a partner; use fedlocal_ssl for one party.",
            )  # fmt: skip
        aligned = fed.stack.rows("aligned").shape[1]
        if aligned < 2:
            raise check.fail(
                f"{algorithm.name}: the number of aligned rows", "at least 2", aligned,
                "Raise `aligned` in [data], or use fedlocal_ssl, which needs none.",
            )  # fmt: skip
    if algorithm.has_local and algorithm.ssl == "moco":
        for name in members:
            rows = fed.stack.rows(f"local:{name}").shape[1]
            if rows < algorithm.pretrain_batch_size:
                raise check.fail(
                    f"{algorithm.name}.pretrain_batch_size",
                    f"at most {rows}, the rows of {name!r}, with ssl = 'moco'",
                    algorithm.pretrain_batch_size,
                )
    shared = algorithm.recipe().average
    if "top" in shared:
        with as_global(generator(0, "shapes")):
            tops = {n: encoder(algorithm, fed, n)().get_submodule("top") for n in members}
        shapes = {n: [tuple(p.shape) for p in m.parameters()] for n, m in tops.items()}
        if any(s != shapes[members[0]] for s in shapes.values()):
            raise check.fail(
                f"{algorithm.name}.average: the layers of 'top'",
                "of one shape for all parties",
                {n: s[0] for n, s in shapes.items()},
                "Give all parties the same cut and the same last hidden width, or leave 'top' "
                "out of average.",
            )


HEADS = ("_tower", "_projector", "_predictor")
"""Ends of the names of what serves in pre-training alone."""


def add_heads(
    algorithm: SelfSupervised, fed: Federation, name: str, spares: list[nn.Module], out: int
) -> None:
    """Give a party what it needs beside its bottom in pre-training.

    Args:
        algorithm: whose widths are used.
        fed: where the modules are added.
        name: of the party.
        spares: encoders that the bottom does not hold, one for each replica.
        out: width of the projectors.
    """
    cut = algorithm.width_of(name)
    if spares:
        other = "cross" if algorithm.fused_towers == "local" else "local"
        fed.add(name, f"{other}_tower", partial(_next_alone, other, iter(spares)))
    for tower, there in (("cross", algorithm.has_cross), ("local", algorithm.has_local)):
        if there:
            hidden = algorithm.projector_hidden
            fed.add(name, f"{tower}_projector", partial(projector, cut, hidden, out))
            if algorithm.ssl != "moco":
                fed.add(
                    name, f"{tower}_predictor", partial(predictor, out, algorithm.predictor_hidden)
                )


def encoder(algorithm: SelfSupervised, fed: Federation, party: str) -> Callable[[], nn.Module]:
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
        raise ConfigError(
            f"{algorithm.name}.parties.{party}: weights are for a module, which is not given."
        )
    kind = algorithm.encoder_kind
    if kind == "auto":
        kind = "resnet18" if len(schema.shape) == 3 else "mlp"
    if kind == "resnet18":
        return lambda: resnet_encoder(schema, cut, stem=algorithm.stem)
    return lambda: mlp_encoder(schema, hidden, cut, embedding=algorithm.embedding)


def member(algorithm: SelfSupervised, fed: Federation, name: str, out: int) -> Member:
    """A party with its towers, views, targets and queues; `out` is the width of projections."""
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
            size = algorithm.queue_size
            made.queues = (Queue(size, out, rng), Queue(size, out, rng))
    return made


def _tower(party: Party, kind: str) -> Tower:
    spare = party.modules.get(f"{kind}_tower")
    stack: Replicas = party.modules["bottom"] if spare is None else spare
    found = next(n for n, m in stack.template.named_modules() if isinstance(m, Towers))
    encoder = stack.sub(f"{found}.{kind}" if found else kind)
    modules = party.modules
    return Tower(encoder, modules[f"{kind}_projector"], modules.get(f"{kind}_predictor"))


def _alone(kind: str, encoder: nn.Module) -> Towers:
    return Towers(kind, **{"cross": None, "local": None, kind: encoder})


def _next_alone(kind: str, encoders: Iterator[nn.Module]) -> Towers:
    return _alone(kind, next(encoders))


def _with_top(bottom: nn.Module, middle: int, cut: int) -> nn.Sequential:
    top = nn.Sequential(nn.Linear(middle, cut), nn.BatchNorm1d(cut), nn.ReLU())
    return nn.Sequential(OrderedDict(bottom=bottom, top=top))
