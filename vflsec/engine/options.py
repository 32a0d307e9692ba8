"""How an audit is run, as one value that travels from the command line to the trainer."""

from __future__ import annotations

from dataclasses import dataclass

from vflsec import check

__all__ = ["Options"]


@dataclass(frozen=True)
class Options:
    """How to run; none of it changes a result.

    Attributes:
        device: ``auto``, ``cpu`` or ``cuda``.
        jobs: worker processes, one thread each.
        replicas: most cells that train as one batched model; bounds the memory.
        fresh: remove an earlier audit's files from the results directory first.
        keep_views: keep what attackers saw beside the results, see `vflsec.train.keep`.
        views_mb: most megabytes of all kept views.
        looks: how often the gates are judged before they must be decided, see
            `vflsec.engine.decide`; each look gets its share of the error.

    Raises:
        ConfigError: a number is not positive.
    """

    device: str = "auto"
    jobs: int = 1
    replicas: int = 32
    fresh: bool = False
    looks: int = 1
    keep_views: bool = False
    views_mb: int = 4096

    def __post_init__(self) -> None:
        check.integer("--jobs", self.jobs)
        check.integer("--replicas", self.replicas)
        check.integer("--views-mb", self.views_mb)
        check.integer("looks", self.looks)
