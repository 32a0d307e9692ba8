"""What a first scenario says of each system: its settings, what defends it and what attacks it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vflsec.runtime.plain_values import Table


@dataclass(frozen=True)
class Sweep:
    """A defense in a draft.

    Attributes:
        defense: its name.
        about: what stands above it.
        grid, strength: strengths to sweep, and the one that gates are about.
    """

    defense: str
    about: str
    grid: tuple[float, ...]
    strength: float


@dataclass(frozen=True)
class System:
    """How parties train together in a draft.

    Attributes:
        settings: lines of its section below its name, comments among them.
        sweep: what defends it.
        otherwise: what does where the label is not one of classes; None for the same.
        attacks: on labels, with their settings; None for those on gradients of networks.
        by_size: of these, attacks that tell classes by their sizes.
        columns: attacks on those of others by what is sent, with the keys of their sections.
        whole: attacks that take much memory of a large table: comments where others see a sample.
    """

    settings: tuple[str, ...]
    sweep: Sweep
    otherwise: Sweep | None = None
    attacks: tuple[tuple[str, Table], ...] | None = None
    by_size: frozenset[str] = frozenset()
    columns: tuple[tuple[str, Table], ...] = ()
    whole: frozenset[str] = frozenset()


_RANDOMISED = Sweep(
    "label_dp", "Randomised labels, by 1 / epsilon; 0 is undefended.", (0, 0.5, 1), 1
)
_BY_SCORES: tuple[tuple[str, Table], ...] = (("equation_solving", {"equations": "score"}),)

SYSTEMS: Mapping[str, System] = {
    "splitnn": System(
        ("# epochs = 100", "# batch_size = 128"),
        Sweep("iso", "Noise on the gradients; 0 is undefended.", (0, 1, 5, 25), 5),
    ),
    "secureboost": System(
        (
            '# "paper", "fate-2", "secretflow" or "xgboost-open".',
            'profile = "fate-2"', "# trees = 20", "# depth = 3",
        ),
        Sweep(
            "local_trees", "First trees that the active party grows alone; 0 is undefended.",
            (0, 1, 5), 5,
        ),
        attacks=(
            ("leaf_vote", {}), ("leaf_vote", {"by": "model", "beside": True}),
            ("leaf_counts", {"known_rows": 0}),
            ("gradient_pair", {"known_rows": 0}),
        ),
        by_size=frozenset({"leaf_counts"}),
        columns=(
            ("leaf_columns", {"adversary": "active"}), ("leaf_columns", {"adversary": "passive"}),
            ("bin_sums", {}),
        ),
        whole=frozenset({"leaf_counts", "bin_sums"}),
    ),
    "vertical_glm": System(
        ("# epochs = 20", "# batch_size = 320"),
        _RANDOMISED,
        Sweep(
            "min_batch",
            "Rows of a batch for each column of the widest passive party; 0 is undefended.",
            (0, 2), 2,
        ),
        attacks=(("glm_gradient", {}),),
        columns=_BY_SCORES,
    ),
    "scorecard": System(
        ("# bins = 10", "# min_iv = 0.02", "# epochs = 20", "# batch_size = 320"),
        _RANDOMISED,
        attacks=(("woe_inversion", {}), ("glm_gradient", {})),
        columns=_BY_SCORES,
    ),
}  # fmt: skip
"""What `init` drafts, by algorithm."""
