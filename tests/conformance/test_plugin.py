"""The suites are open to outside packages: the example plug-in passes them by its entry points."""

from __future__ import annotations

from pathlib import Path

import pytest

from vflsec import registry, testing
from vflsec.testing import Check


@pytest.mark.parametrize("check", testing.attack_checks(), ids=lambda c: c.__name__)
def test_attack(check: Check, plugin: Path) -> None:
    check("mean_embedding")


@pytest.mark.parametrize("check", testing.defense_checks(), ids=lambda c: c.__name__)
def test_defense(check: Check, plugin: Path) -> None:
    check("sign_only")


def test_a_broken_attack_does_not_pass(plugin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite can fail: an attack that turns its scores round finds no leak."""
    cls = registry.attacks.get("mean_embedding")
    infer = cls.infer

    def backwards(self: object, view: object, rng: object) -> object:
        guess = infer(self, view, rng)
        object.__setattr__(guess, "scores", -guess.scores)
        return guess

    monkeypatch.setattr(cls, "infer", backwards)
    finds = next(c for c in testing.attack_checks() if c.__name__ == "attack_finds_the_leak")
    with pytest.raises(AssertionError, match="mean_embedding: AUC"):
        finds("mean_embedding")
