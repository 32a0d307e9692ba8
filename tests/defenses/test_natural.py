"""Numbers a scenario may write instead of a strength."""

from __future__ import annotations

from typing import Any

import pytest

from vflsec.config.scenario import load_scenario
from vflsec.engine.dry_run import make_plan
from vflsec.errors import ConfigError
from vflsec.plugins import registry


def scenario(**defense: Any) -> dict[str, Any]:
    return {
        "data": {"name": "control_gaussian"},
        "algorithm": {"name": "splitnn"},
        "defense": [defense],
        "attack": [{"name": "norm"}],
        "audit": {"seeds": [0]},
    }


def test_epsilon_is_one_over_the_strength() -> None:
    cls = registry.defenses.get("label_dp")
    assert [cls.from_natural("epsilon", e) for e in (8, 2.0, 0.5)] == [0.125, 0.5, 2.0]


@pytest.mark.parametrize(
    ("name", "natural", "values"),
    [
        ("label_dp", "epsilon", (0, -1.0, float("nan"), float("inf"), "2", True)),
        *((n, "epsilon", (0, -1.0, float("nan"))) for n in ("rr_prior", "lp_mst", "alibi")),
        ("gradperturb", "epsilon", (0, -1.0, float("nan"))),
        ("compression", "keep", (0, 1.5, -0.2)), ("discrete", "bins", (2.5, 0, -4)),
    ],
)  # fmt: skip
def test_a_number_without_meaning_gives_one_clear_error(
    name: str, natural: str, values: tuple[Any, ...]
) -> None:
    for value in values:
        with pytest.raises(ConfigError, match=f"^{name}: {natural} must be"):
            registry.defenses.get(name).from_natural(natural, value)


def test_an_unknown_one_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'epsilon'"):
        registry.defenses.get("label_dp").from_natural("epsilo", 1.0)


def test_a_scenario_sweeps_it() -> None:
    plan = make_plan(load_scenario(scenario(name="label_dp", epsilon=[8, 2, 1], correct=True)))
    specs = [c.defenses[0] for g in plan.groups for c in g.cells if c.defenses]
    found = {(d.strength, tuple(d.params.items())) for d in specs if d.strength}
    assert found == {(s, (("correct", True),)) for s in (0.125, 0.5, 1.0)}


@pytest.mark.parametrize(
    ("defense", "said"),
    [
        ({"epsilon": 0}, r"epsilon.*must be a finite number > 0, got 0"),
        ({"epsilon": [2, -1]}, r"epsilon.*must be a finite number > 0, got -1"),
        ({"epsilon": 1, "strength": 1}, "must be left out where strength is given"),
        ({"epsilon": []}, "must have a value"),
    ],
)
def test_a_scenario_with_a_bad_one_is_refused(defense: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_scenario(scenario(name="label_dp", **defense))
