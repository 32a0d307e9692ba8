"""Audits whose figures are planted instead of trained: the command line without the minutes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import engine_fakes
import numpy as np
import pytest

from vflsec.audit.result import Audit
from vflsec.cli import main
from vflsec.data.source import PartyData, Source
from vflsec.engine import run as engine
from vflsec.engine.run import run_audit
from vflsec.engine.work import Backend
from vflsec.plugins import registry
from vflsec.specs import (
    AttackSpec,
    CellFacts,
    CellResult,
    CellSpec,
    Claim,
    LedgerRow,
    Measure,
    list_victims,
)

LEAKY = {"norm": 0.3, "model_completion": 0.2}
"""Advantages of attacks where nothing is defended, ..."""
SEALED = {"norm": 0.0, "model_completion": 0.02}
"""... and where it is."""

SCENARIO = engine_fakes.SCENARIO.lstrip().replace("seeds = 3", "seeds = 5")


def gate(**keys: Any) -> str:
    """A ``[[gate]]`` section."""
    lines = [f"{k} = {v!r}".replace("'", '"') for k, v in keys.items()]
    return "\n".join(["[[gate]]", *lines, ""])


class Planted:
    """A trainer that finds what it is told to.

    Args:
        advantage: of attacks by name, on the undefended run.
        defended: the same at every other strength.
        utility: of the main task; 0.02 less under a defense.
        sd: spread over seeds.
        fails: attacks that end in an error.
        parties: names, the active party first.
    """

    def __init__(
        self, advantage: Mapping[str, float], defended: Mapping[str, float] | None = None, *,
        utility: float = 0.9, sd: float = 0.01, fails: Sequence[str] = (),
        parties: Sequence[str] = ("bank", "shop"), shift: int = 0, epsilon: float | None = None,
        measured: float | None = None,
    ) -> None:  # fmt: skip
        self.advantage, self.defended = advantage, advantage if defended is None else defended
        self.utility, self.sd, self.fails, self.parties = utility, sd, fails, parties
        self.shift, self.epsilon, self.measured = shift, epsilon, measured
        self.trained: list[str] = []

    def __call__(
        self, cells: list[CellSpec], attacks: list[AttackSpec], tasks: Any, **_: Any
    ) -> list[CellResult]:
        self.trained += [c.key for c in cells]
        return [self._cell(c, attacks) for c in cells]

    def _cell(self, cell: CellSpec, attacks: Sequence[AttackSpec]) -> CellResult:
        noise = np.random.default_rng([cell.seed, self.shift]).normal(0, self.sd, 12)
        on = any(d.strength for d in cell.defenses)
        out = CellResult(cell.key, cell, seconds=0.25)
        u = self.utility - 0.02 * on + noise[0]
        out.measures.append(Measure("train", "test", "auc", u, u - 0.02, u + 0.02, 250, 0.5))
        for i, a in enumerate(attacks):
            target = registry.attacks.get(a.name).target
            whose = list_victims(target, a.adversary, self.parties)
            who = {"adversary": "+".join(a.adversary), "attack": a.label, "attack_key": a.key,
                   "target": target, "victim": "+".join(whose)}  # fmt: skip
            if a.name in self.fails:
                out.measures.append(
                    Measure("train", "train", "", None, status="error", reason="it broke", **who)
                )
                continue
            gain = (self.defended if on else self.advantage)[a.name]
            value = 0.55 + gain + noise[1 + i]
            controls = {
                "majority": {"value": 0.5, "cv": None},
                "scratch": {"value": 0.55, "cv": 0.6},
            }
            out.measures.append(
                Measure("train", "train", "auc", value, value - 0.03, value + 0.03, 400, 0.5,
                        controls=controls, **who)
            )  # fmt: skip
            if self.measured is not None and i == 0:
                out.measures.append(
                    Measure("train", "train", "epsilon_lower", self.measured, n=400, **who)
                )
        if self.epsilon is not None and on:
            out.guarantees.append(
                Claim("label", self.epsilon, accountant="test", releases=1, covers="labels",
                      defense="iso", strength=5.0)
            )  # fmt: skip
        a, b = self.parties[:2]
        out.ledger.append(LedgerRow("train", "gradient", "", a, b, 10, 3200, 12800, 10))
        out.facts = CellFacts(parties=tuple(self.parties), classes=2, rows={"test": 250})
        return out

    def backend(self) -> Backend:
        """The data layer and this trainer."""
        return Backend(self._source, lambda source, seed, **_: (source.name, seed), self)

    def _source(self, section: Mapping[str, Any], seed: int, base: Path) -> Source:
        rows = np.arange(100)
        parties = {
            p: PartyData(np.zeros((100, 2)), rows, ("a", "b"), (None, None)) for p in self.parties
        }
        name = str(section["name"])
        return Source(name, parties, self.parties[0], rows % 2, ("no", "yes"), digest=f"d-{name}")


class Killed(Planted):
    """Stops at its first training."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt


def scenario(folder: Path, name: str, text: str) -> Path:
    """A file of this name with :data:`SCENARIO` and further sections."""
    path = folder / f"{name}.toml"
    path.write_text(SCENARIO + text, encoding="utf-8")
    return path


def go(planted: Planted, *args: object) -> int:
    """The exit code of a command in which nothing is trained."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "default_backend", planted.backend)
        return main.main([str(a) for a in args])


def audited(folder: Path, planted: Planted, text: str = "", **options: Any) -> Audit:
    """An audit of :data:`SCENARIO` with further sections; its reports have no figures."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "case.toml"
    path.write_text(SCENARIO + text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vflsec.report.html.draw", lambda _: "")
        return run_audit(path, folder / "out", backend=planted.backend(), **options)


def quick(*defenses: dict[str, Any], audit: Mapping[str, Any] | None = None, **sections: Any
          ) -> dict[str, Any]:  # fmt: skip
    """A scenario of one short training under these defenses, with nothing beside the audit."""
    return {
        "data": {"name": "leaky"}, "algorithm": {"name": "splitnn", "epochs": 3},
        "defense": list(defenses), "attack": [{"name": "norm", "known_rows": 0}],
        "audit": {"seeds": 3, "references": [], "positive_control": False, **(audit or {})},
        **sections,
    }  # fmt: skip
