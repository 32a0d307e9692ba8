"""The hyper-parameters of split training, and which of them do not go together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from vflsec.core import check
from vflsec.core.algorithm import Algorithm
from vflsec.errors import ConfigError
from vflsec.nn.images import BOTTOMS, NORMALISED


@dataclass(frozen=True)
class SplitSettings(Algorithm):
    """Hyper-parameters.

    Attributes:
        hidden: widths of the hidden layers of every bottom.
        cut: width of every embedding; ignored without a top (then it is the number of classes).
        top: widths of the hidden layers of the top model; ``[]`` is the published head, one
            linear layer.
        linear_top: False, with ``top = []`` and aggregation ``sum`` or ``mean``, leaves the top
            model out: the fused embedding is the logits.
        aggregation: how embeddings meet: ``concat``, ``sum`` or ``mean``.
        dropout: of the hidden layers of bottoms and top.
        encoder_kind: of the bottoms: ``mlp``, or, for parties that hold images, ``conv`` with
            `hidden` as channels, ``resnet`` (ResNet-18, cut / 8 channels in its first stage) or
            ``wideresnet`` (cut / 64 times as wide as the thin one); see
            :func:`vflsec.nn.images.image_bottom`. The last two normalise over the batch, so dpsgd
            refuses them.
        encoder_depth: of ``wideresnet``: 6 n + 2 or 6 n + 4.
        embedding: width of the vector of a categorical column; 0 goes by the number of its codes.
        embedding_rows: most vectors of a categorical column, shared by a hash of its codes if it
            has more; 0 gives every code its own.
        embedding_l2: weight decay of those vectors on top of `weight_decay`.
        optimizer, lr, weight_decay: of every party.
        batch_size: rows of a batch.
        epochs: passes over the training rows, at most.
        patience: epochs without a better validation loss after which training ends; 0 trains all.
        select: whether the model of the best epoch on validation rows is kept.
        select_by: what is best on validation rows: the lowest ``loss``, or the highest ``auc`` (two
            classes), which does not mind logits that grow too large.
        returns_predictions: True sends the class shares back to the passive parties at inference.
        parties: per-party overrides {party: {"hidden": [...], "cut": n, "module": "pkg.mod:Name",
            "args": {...}, "weights": "file.safetensors"}}.
        top_module: a top model of your own, ``"pkg.mod:Name"``, instead of `top`; it maps
            (b, `inputs`) to (b, `out`).
        top_args: arguments of its constructor, beside ``inputs`` and ``out``.
        top_weights: a safetensors file whose numbers the top model starts from.
    """

    hidden: tuple[check.Count, ...] = (64,)
    cut: check.Count = 32
    top: tuple[check.Count, ...] = ()
    linear_top: bool = True
    aggregation: Annotated[str, check.among("concat", "sum", "mean")] = "concat"
    dropout: check.BelowOne = 0.0
    encoder_kind: str = "mlp"
    encoder_depth: check.Count = 20
    embedding: check.Whole = 4
    embedding_rows: check.Whole = 0
    embedding_l2: check.NonNegative = 0.0
    optimizer: Annotated[str, check.among("adam", "sgd", "adagrad")] = "adam"
    lr: check.Positive = 1e-3
    weight_decay: check.NonNegative = 0.0
    batch_size: check.Count = 128
    epochs: check.Whole = 100
    patience: check.Whole = 5
    select: bool = True
    select_by: Annotated[str, check.among("loss", "auc")] = "loss"
    returns_predictions: bool = False
    parties: dict[str, dict[str, Any]] = field(default_factory=dict)
    top_module: str = ""
    top_args: dict[str, Any] = field(default_factory=dict)
    top_weights: str = ""

    encoder_kinds: ClassVar[tuple[str, ...]] = ("mlp", *BOTTOMS)
    own_top: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.returns_predictions:
            told = {("prediction", "active", "passive")}
            object.__setattr__(self, "sends", type(self).sends | told)
        check.one_of(f"{self.name}.encoder_kind", self.encoder_kind, self.encoder_kinds)
        if self.embedding_rows == 1:
            raise check.fail(f"{self.name}.embedding_rows", "0 or at least 2", 1)
        self._check_top()
        self._check_parties()

    def need_head(self) -> None:
        """Refuse settings without a head of the active party's own.

        Raises:
            ConfigError: there is none.
        """
        if not self.has_top:
            raise ConfigError(f"{self.name}: needs linear_top = true, or a top.")

    def _check_top(self) -> None:
        if not self.has_top and self.aggregation == "concat":
            raise ConfigError(
                f"{self.name}: without a top model embeddings are the logits: set "
                'aggregation = "sum" or "mean".'
            )
        if self.top and not self.linear_top:
            raise ConfigError(f"{self.name}: top hidden layers need linear_top = true.")
        if self.top_module and not self.own_top:
            raise ConfigError(f"{self.name}: has several tops and takes no top_module.")
        if self.top_module and (self.top or not self.has_top):
            raise ConfigError(
                f"{self.name}: top_module stands instead of top and linear_top; set top = []."
            )
        if self.top_args and not self.top_module:
            raise ConfigError(f"{self.name}: top_args need a top_module.")
        if self.top_weights and not (self.own_top and self.has_top):
            raise ConfigError(f"{self.name}: top_weights need one top model.")

    def _check_parties(self) -> None:
        for party, settings in self.parties.items():
            where = f"{self.name}.parties.{party}: the key"
            for key in settings:
                check.one_of(where, key, ("hidden", "cut", "module", "args", "weights"))
            if settings.get("args") and not settings.get("module"):
                raise ConfigError(f"{self.name}.parties.{party}: args need a module.")

    @property
    def smallest(self) -> int:
        """Fewest rows of a batch that is trained on: one cannot be normalised over a batch."""
        return 2 if self.encoder_kind in NORMALISED else 1

    @property
    def has_top(self) -> bool:
        """True if something trainable stands between the fused embedding and the logits."""
        return bool(self.top) or self.linear_top

    def width(self, party: str, classes: int) -> int:
        """Cut-layer width of a party."""
        if not self.has_top:
            return classes
        return int(self.parties.get(party, {}).get("cut", self.cut))
