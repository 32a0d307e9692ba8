"""How an audit is run, as one value that travels from the command line to the trainer."""

from __future__ import annotations

from dataclasses import dataclass

from vflsec.core import check
from vflsec.engine.shard import Shard
from vflsec.errors import ConfigError


@dataclass(frozen=True)
class Options:
    """How to run; none of it changes a result.

    Attributes:
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``, the last two perhaps with ``+graphs``.
        jobs: worker processes, one thread each.
        replicas: most cells that train as one batched model; bounds the memory.
        fresh: remove an earlier audit's files from the results directory first.
        keep_views: keep what attackers saw beside the results, see `vflsec.train.view_writer`.
        views_mb: most megabytes of all kept views.
        sequential: this is one of several looks while seeds are added, and gets its share of the
            error, see :class:`vflsec.audit.looks.Looks`.
        shard: ``I/N``: do one part of N and judge nothing, see `vflsec.engine.shard`; '' does all.
        cluster: where the work is done, see `vflsec.engine.worker_pools`; '' is this machine.

    Raises:
        ConfigError: a number is not positive, a switch neither True nor False, or options
            contradict each other.
    """

    device: str = "auto"
    jobs: int = 1
    replicas: int = 32
    fresh: bool = False
    sequential: bool = False
    keep_views: bool = False
    views_mb: int = 4096
    shard: str = ""
    cluster: str = ""

    def __post_init__(self) -> None:
        check.integer("--jobs", self.jobs)
        check.integer("--replicas", self.replicas)
        check.integer("--views-mb", self.views_mb)
        for key in ("fresh", "sequential", "keep_views"):
            check.one_of(key, getattr(self, key), (True, False))
        for both, one, other, instead in (
            (self.part is not None and self.sequential, "--shard", "--until-decided", "--seeds"),
            (self.cluster and self.keep_views, "--cluster", "--keep-views", "--jobs or --shard"),
        ):
            if both:
                raise ConfigError(f"{one}: cannot be used with {other}. Use {instead}.")

    @property
    def part(self) -> Shard | None:
        """The shard, if only one is done."""
        return Shard.parse(self.shard) if self.shard else None
