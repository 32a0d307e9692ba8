"""What attacks ask of a training: what is recorded for them, and what an active one puts in."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from vflsec.core.attack import Attack
from vflsec.core.channel import Key, Recorder, store_of
from vflsec.core.message_kinds import KINDS
from vflsec.core.policy import Policy
from vflsec.core.view import Need, as_needs
from vflsec.specs import AttackSpec


@dataclass(frozen=True)
class Demand:
    """All that training knows of one attack.

    Attributes:
        adversary: party names.
        needs: what its View must hold, or holds if it passes.
        known_rows: how many labelled rows it was granted.
        over_time: whether every epoch's messages are wanted.
        policy: what an active attacker puts on its own parties, None for a passive one.
        aux_rows, victim: how many auxiliary rows it was granted, and of whom, as in the spec.
        sees: the spec of an attack that is given messages of some rows alone; None for all rows.
    """

    adversary: tuple[str, ...]
    needs: tuple[Need, ...] = ()
    known_rows: int = 0
    over_time: bool = False
    policy: Policy | None = None
    aux_rows: int = 0
    victim: str = ""
    sees: AttackSpec | None = None

    @classmethod
    def of(cls, spec: AttackSpec, attack: Attack) -> Demand:
        """What `attack` asks for when it is made as `spec` says."""
        return cls(
            spec.adversary, as_needs(attack.looks_at), spec.known_rows, spec.over_time,
            attack.policy(), spec.aux_rows, spec.victim,
            spec if attack.sees_sample(spec) else None,
        )  # fmt: skip

    def drop_locked(self, servers: Collection[str]) -> Demand:
        """The same without messages that take a key which none of the adversary's `servers` has."""
        if not {*servers}.isdisjoint(self.adversary):
            return self
        needs = (n for n in self.needs if not n.kind or KINDS[n.kind].opened_by != "key")
        return replace(self, needs=tuple(needs))

    @property
    def returned(self) -> bool:
        """Whether it looks at predictions that are returned after training."""
        return any(n.what == "prediction" for n in self.needs)

    def _kept(self) -> Iterator[Key]:
        for party in self.adversary:
            for need in self.needs:
                key = Recorder.wants(party, need)
                if key is None:
                    continue
                yield key
                if self.over_time and need.kind:
                    yield (*key[:3], "all+" if key[3].endswith("+") else "all")


def list_sampled(demands: Iterable[Demand]) -> dict[Key, list[AttackSpec]]:
    """What is asked for by attacks that see a sample alone, and which; ``centred`` is kept with
    ``mean``.
    """
    asked: dict[Key, list[AttackSpec | None]] = {}
    for d in demands:
        for party, way, kind, form in d._kept():
            asked.setdefault((party, way, kind, store_of(form)), []).append(d.sees)
    return {
        key: [spec for spec in of if spec is not None]
        for key, of in asked.items() if None not in of
    }  # fmt: skip


def list_recordings(demands: Iterable[Demand]) -> list[Key]:
    """The union of what is to be kept of messages: (party, way, kind, form), sorted."""
    return sorted({key for d in demands for key in d._kept()})
