"""Hyper-parameters by ingredient; an algorithm of the family derives from those it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vflsec.algorithms._ssl import SelfSupervised
from vflsec.core import check
from vflsec.core.federation import Federation
from vflsec.core.rng import Streams
from vflsec.nn.augment import CODE_VIEWS, Corruption, ImageViews
from vflsec.nn.encoders import POOLINGS

SHARED = ("top", "projector", "predictor")


@dataclass(frozen=True)
class LocalViews(SelfSupervised):
    """Hyper-parameters of local self-supervised learning.

    Attributes:
        views: of a table's rows: ``one`` (a clean and a corrupted view, code) or ``both``
            (two corrupted ones, paper); images always get two random views.
        image_views: ``simsiam`` (paper) or ``code``: milder crop and jitter, no greyscale.
        corruption: ``uniform`` (column range, reserved code for categoricals) or ``marginal``.
        corruption_rate: share of the fields that are corrupted.
        byol_ema, moco_ema: momentum of the target tower; paper .995 and .99, code .999.
        queue: MoCo's keys for each direction, a multiple of `pretrain_batch_size`.
        clip_norm: largest gradient norm of the local step, 0 = no limit; code 5.
    """

    views: str = "one"
    image_views: str = "simsiam"
    corruption: str = "uniform"
    corruption_rate: float = 0.3
    byol_ema: float = 0.995
    moco_ema: float = 0.99
    queue: int = 4096
    clip_norm: float = 0.0

    has_local: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        where = self.name
        check.one_of(f"{where}.views", self.views, ("one", "both"))
        check.one_of(f"{where}.image_views", self.image_views, ("simsiam", "code"))
        check.one_of(f"{where}.corruption", self.corruption, ("uniform", "marginal"))
        for name in ("corruption_rate", "byol_ema", "moco_ema"):
            check.in_unit(f"{where}.{name}", getattr(self, name))
        check.integer(f"{where}.queue", self.queue)
        check.non_negative(f"{where}.clip_norm", self.clip_norm)
        batch = self.pretrain_batch_size
        if self.ssl == "moco" and self.queue % batch:
            raise check.fail(
                f"{where}.queue", f"a multiple of pretrain_batch_size = {batch}", self.queue
            )

    def views_of(self, fed: Federation, party: str) -> Corruption | ImageViews:
        schema = fed.stack.first.schema[party]
        rng = Streams(fed.seeds, "views", party, device=fed.stack.device, dtype=fed.stack.dtype)
        if len(schema.shape) == 3:
            return ImageViews(rng, **(CODE_VIEWS if self.image_views == "code" else {}))
        pool = fed.stack.columns(party, fed.stack.rows(f"local:{party}"))
        return Corruption(schema, pool, self.corruption_rate, self.corruption, rng)


@dataclass(frozen=True)
class CrossParty(SelfSupervised):
    """Hyper-parameters of the cross-party step.

    Attributes:
        local_updates: updates for each exchange (e of section V-D).
    """

    local_updates: int = 1

    has_cross: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        where = self.name
        check.integer(f"{where}.local_updates", self.local_updates)


@dataclass(frozen=True)
class Guided(SelfSupervised):
    """Hyper-parameters of the guidance of local towers by cross towers.

    Attributes:
        pooling: of the two towers in fine-tuning: ``mean`` (code), ``concat``, ``cross`` or
            ``local`` (the starred variants of the paper).
        gamma: strength of the guidance; paper 0.5, the code's documented commands run with 0.
        rescale_lr: multiply the pre-training rate by 0.5 / (0.5 + gamma), as the code does.
        guide_mode: ``eval``, or ``train`` (code): then the cross tower's running statistics move.
        guidance_queue: with MoCo ``none`` (in-batch negatives), or ``shared`` (code): guidance
            keys are scored and kept in the same queues.
    """

    pooling: str = "mean"
    gamma: float = 0.5
    rescale_lr: bool = True
    guide_mode: str = "eval"
    guidance_queue: str = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        where = self.name
        check.one_of(f"{where}.pooling", self.pooling, POOLINGS)
        check.non_negative(f"{where}.gamma", self.gamma)
        check.one_of(f"{where}.guide_mode", self.guide_mode, ("eval", "train"))
        check.one_of(f"{where}.guidance_queue", self.guidance_queue, ("none", "shared"))


@dataclass(frozen=True)
class Averaging(SelfSupervised):
    """Hyper-parameters of partial model aggregation.

    Attributes:
        average: which parts of the local towers: of ``top``, ``projector``, ``predictor``.
        average_buffers: also running statistics and batch counters of normalisation layers.
        average_ema: also overwrite the target towers; by default they drift to the average.
        reset_momentum: forget the optimizer's state of what was averaged.
        server: ``active``, or ``third``: a server that is no party.
    """

    average: tuple[str, ...] = SHARED
    average_buffers: bool = True
    average_ema: bool = False
    reset_momentum: bool = False
    server: str = "active"

    def __post_init__(self) -> None:
        super().__post_init__()
        where = self.name
        for part in self.average:
            check.one_of(f"{where}.average: the part", part, SHARED)
        check.one_of(f"{where}.server", self.server, ("active", "third"))
