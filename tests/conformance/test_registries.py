"""Every registered attack, defense and algorithm passes its conformance suite."""

from __future__ import annotations

import pytest

from vflsec import testing
from vflsec.plugins import registry
from vflsec.testing import Check

LONG = {
    "attack_batched_equals_alone": ("batch_inference", "dictionary"),  # one after the other anyway
    "attack_ignores_row_order": ("batch_inference", "dictionary", "exploit", "unsplit"),
    "algorithm_ignores_company": ("fedgssl", "fedlocal_ssl", "fewshot"),  # as fedhssl and oneshot
}
"""What takes longest, of checks that the others of a kind pass in ``make test``."""


def _cases(names: list[str], checks: list[Check]) -> list[object]:
    return [
        pytest.param(
            n, c, id=f"{n}-{c.__name__}",
            marks=pytest.mark.slow if n in LONG.get(c.__name__, ()) else (),
        )
        for n in names for c in checks
    ]  # fmt: skip


LABEL_ATTACKS = [n for n in registry.attacks.names() if registry.attacks.get(n).target == "label"]


@pytest.mark.parametrize(("name", "check"), _cases(LABEL_ATTACKS, testing.attack_checks()))
def test_attack(name: str, check: Check) -> None:
    check(name)


@pytest.mark.parametrize(
    ("name", "check"), _cases(registry.defenses.names(), testing.defense_checks())
)
def test_defense(name: str, check: Check) -> None:
    check(name)


TRAINED = [n for n in registry.algorithms.names() if not n.startswith("pooled")]


@pytest.mark.parametrize(("name", "check"), _cases(TRAINED, testing.algorithm_checks()))
def test_algorithm(name: str, check: Check) -> None:
    if (name, check.__name__) == ("psi", "algorithm_learns"):
        pytest.skip("it matches lists and trains nothing")
    check(name)
