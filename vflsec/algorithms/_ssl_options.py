"""Hyper-parameters by ingredient; an algorithm of the family derives from those it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

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

    views: Annotated[str, check.among("one", "both")] = "one"
    image_views: Annotated[str, check.among("simsiam", "code")] = "simsiam"
    corruption: Annotated[str, check.among("uniform", "marginal")] = "uniform"
    corruption_rate: check.Unit = 0.3
    byol_ema: check.Unit = 0.995
    moco_ema: check.Unit = 0.99
    queue: check.Count = 4096
    clip_norm: check.NonNegative = 0.0

    has_local: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        batch = self.pretrain_batch_size
        if self.ssl == "moco" and self.queue % batch:
            rule = f"a multiple of pretrain_batch_size = {batch}"
            raise check.fail(f"{self.name}.queue", rule, self.queue)

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

    local_updates: check.Count = 1

    has_cross: ClassVar[bool] = True


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

    pooling: Annotated[str, check.among(*POOLINGS)] = "mean"
    gamma: check.NonNegative = 0.5
    rescale_lr: bool = True
    guide_mode: Annotated[str, check.among("eval", "train")] = "eval"
    guidance_queue: Annotated[str, check.among("none", "shared")] = "none"


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

    average: tuple[Annotated[str, check.among(*SHARED)], ...] = SHARED
    average_buffers: bool = True
    average_ema: bool = False
    reset_momentum: bool = False
    server: Annotated[str, check.among("active", "third")] = "active"
