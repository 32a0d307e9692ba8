"""Conformance suites for attacks, defenses and algorithms, ours and outside ones.

Each suite is a list of named checks; a check takes a registered name and raises AssertionError.
An outside package tests what it registers with::

    import pytest
    from vflsec import testing

    @pytest.mark.parametrize("check", testing.attack_checks(), ids=lambda c: c.__name__)
    def test_my_attack(check):
        check("my_attack")
"""

from vflsec.testing.algorithms import algorithm_checks
from vflsec.testing.attacks import attack_checks, views_of
from vflsec.testing.defenses import defense_checks
from vflsec.testing.worlds import Check, Trained, small_stack, small_task, train

__all__ = [
    "Check",
    "Trained",
    "algorithm_checks",
    "attack_checks",
    "defense_checks",
    "small_stack",
    "small_task",
    "train",
    "views_of",
]
