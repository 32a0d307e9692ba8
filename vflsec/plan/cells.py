"""From the sections of a scenario to the cells of a plan: which trainings there are, by name."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from vflsec.config.components import flat_params, natural_strengths
from vflsec.config.sections import Root
from vflsec.errors import ConfigError
from vflsec.nn.weights import list_files
from vflsec.plan.values import DataInfo
from vflsec.plugins import registry
from vflsec.plugins.loading import hash_files, hash_source
from vflsec.runtime.plain_values import Table
from vflsec.specs import CellSpec, DefenseSpec, Params, hash_value

REFERENCES = {"local": "local", "logistic": "pooled_logistic", "boosting": "pooled_boosting"}
MOST_CELLS = 100_000
"""Trainings of one audit; planning so many takes about a minute."""

_ABSENT = object()


def list_claimants(defenses: Sequence[DefenseSpec]) -> list[str]:
    """Names of the defenses that claim an epsilon of what is counted."""
    return [d.name for d in defenses if registry.defenses.create(d.name, d.params).counted]


def _own_modules(params: Mapping[str, Any]) -> list[str]:
    """The user's modules that a training's settings name."""
    own = [p for p in params.get("parties", {}).values() if isinstance(p, Mapping)]
    named = [*(p.get("module") for p in own), params.get("top_module")]
    return [str(m).partition(":")[0] for m in named if m]


def hash_code(
    section: Table,
    algorithm: str,
    params: Params,
    defenses: Sequence[DefenseSpec],
) -> str:
    """Identity of the source and the weights that a cell runs and that are the user's own.

    Args:
        section: of the data.
        algorithm, params, defenses: of the cell.
    """
    table = section.get("file") or section.get("files")
    entries = [registry.algorithms.entry(algorithm)]
    entries += [] if table else [registry.datasets.entry(str(section["name"]))]
    entries += [registry.defenses.entry(d.name) for d in defenses]
    own = (hash_source(_own_modules(params)), hash_files(list_files(params)))
    found = [c for c in (*(e.code for e in entries), *own) if c]
    return hash_value(found) if found else ""


class Cells:
    """Makes cells of a scenario.

    Args:
        root: its sections.
        notes: gets a sentence for what is left out.
    """

    def __init__(self, root: Root, notes: list[str]) -> None:
        self.root, self.notes = root, notes
        self.codes: dict[tuple[str, ...], str] = {}
        self.claiming: dict[tuple[str, str], bool] = {}

    def grid(self) -> list[tuple[DefenseSpec, ...]]:
        """Every combination of defenses and strengths, as one stack each.

        Raises:
            ConfigError: there are more trainings than can be planned.
        """
        axes: dict[str, list[DefenseSpec]] = {}
        for section in self.root.defense:
            name = registry.defenses.entry(section.name).name
            swept = getattr(registry.defenses.get(name), "strengths", "")
            strengths: list[float | None] = [None]
            grid, params = natural_strengths(section)
            if swept:
                strengths = list(dict.fromkeys(grid or [0.0]))
                if grid is None:
                    self.notes.append(f"defense {name} has no strength: off.")
            spec = DefenseSpec(name, params, section.party)
            axis = axes.setdefault(section.choice or f"#{len(axes)}", [])
            axis += [replace(spec, strength=s) for s in strengths]
        root = self.root
        many = len(root.data), len(root.algorithm), len(root.audit.seeds)
        count = math.prod((*many, *(len(axis) for axis in axes.values())))
        if count > MOST_CELLS:
            raise ConfigError(
                f"the scenario must make at most {MOST_CELLS:,} trainings, got {count:,}. Sweep "
                "less."
            )
        return [tuple(combination) for combination in itertools.product(*axes.values())]

    def make(
        self, role: str, info: DataInfo, algorithm: str, params: Params, seeds: Sequence[int],
        grid: Sequence[tuple[DefenseSpec, ...]] = ((),),
    ) -> list[CellSpec]:  # fmt: skip
        """The trainings of the audit, of a reference or of a positive control, seed by seed."""
        params = dict(params)
        own = {p: s for p, s in self.root.parties.items() if p in info.parties}
        if own and role != "control":
            if "parties" not in registry.list_parameters(registry.algorithms.get(algorithm)):
                self.notes.append(f"{algorithm} has no settings by party; [parties] is ignored.")
            else:
                set_ = {p: s.model_dump(exclude_defaults=True) for p, s in own.items()}
                given = params.get("parties")
                params["parties"] = set_ | dict(given if isinstance(given, Mapping) else {})
        data = {**info.section, "digest": info.digest}
        name = registry.algorithms.entry(algorithm).name
        return [
            CellSpec(
                data, name, params, defenses, seed, self.root.audit.dtype,
                code=self._code(info, algorithm, params, defenses),
                untested=not self.root.audit.canaries and bool(self.claimants(defenses)),
            )
            for defenses in grid for seed in seeds
        ]  # fmt: skip

    def claimants(self, defenses: Sequence[DefenseSpec]) -> list[str]:
        """:func:`list_claimants`, each defense looked up once for a grid of strengths."""
        for d in defenses:
            if (d.name, repr(d.params)) not in self.claiming:
                self.claiming[d.name, repr(d.params)] = bool(list_claimants([d]))
        return [d.name for d in defenses if self.claiming[d.name, repr(d.params)]]

    def _code(
        self,
        info: DataInfo,
        algorithm: str,
        params: Params,
        defenses: Sequence[DefenseSpec],
    ) -> str:
        """Identity of the source that a cell runs, looked up once for a grid."""
        modules = [*_own_modules(params), "", *list_files(params)]
        asked = (info.name, algorithm, *(d.name for d in defenses), "", *modules)
        if asked not in self.codes:
            self.codes[asked] = hash_code(info.section, algorithm, params, defenses)
        return self.codes[asked]

    def reference_params(self, name: str) -> Params:
        """Those of the first algorithm that a reference has too."""
        cls = registry.algorithms.get(name)
        fields = registry.list_parameters(cls)
        given = {k: v for k, v in flat_params(self.root.algorithm[0]).items() if k in fields}
        params = {k: v for k, v in given.items() if not registry.find_problems(cls, {k: v})}
        return {} if registry.find_problems(cls, params) else params

    def titles(self) -> list[str]:
        """Names of the algorithm sections, with the settings that differ where several share one.

        A section named like a reference that the audit makes counts as sharing its name.
        """
        sections = [
            (registry.algorithms.entry(a.name).name, flat_params(a)) for a in self.root.algorithm
        ]
        made: dict[str, Params]
        names = {REFERENCES[r] for r in self.root.audit.references}
        made = {n: self.reference_params(n) for n in names & {name for name, _ in sections}}
        titles = []
        for i, (name, params) in enumerate(sections):
            same: list[Params] = [
                p for j, (other, p) in enumerate(sections) if other == name and j != i
            ]
            same += [made[name]] if name in made else []
            own = {k: v for k, v in params.items() if any(p.get(k, _ABSENT) != v for p in same)}
            inner = ", ".join(f"{k}={v}" for k, v in own.items())
            titles.append(f"{name}({inner})" if inner else name)
        return titles
