"""The suites are open to outside packages: the example plug-in passes them by its entry points."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from vflsec import testing
from vflsec.cli.templates import component_text
from vflsec.errors import PolicyError
from vflsec.plugins import registry
from vflsec.testing import Check
from vflsec.testing.filled import PLACEHOLDERS, assert_filled


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


def test_a_defense_that_does_nothing_does_not_pass(
    plugin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hook that hands on what it got is the identity at every strength, and so at 0."""
    monkeypatch.setattr(
        registry.defenses.get("sign_only"), "outgoing", lambda self, message, own: message.tensor
    )
    trains = next(c for c in testing.defense_checks() if c.__name__ == "defense_trains")
    with pytest.raises(AssertionError, match="sign_only: strength 1 is the undefended run"):
        trains("sign_only")


def test_a_defense_of_another_shape_is_told_the_shapes(
    plugin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole tensors were printed: pytest rewrites the assertions of a package with a plug-in."""
    monkeypatch.setattr(
        registry.defenses.get("sign_only"), "outgoing",
        lambda self, message, own: message.tensor[..., :4],
    )  # fmt: skip
    for name in ("defense_keeps_the_form", "defense_is_the_identity_at_zero"):
        check = next(c for c in testing.defense_checks() if c.__name__ == name)
        with pytest.raises(PolicyError) as found:
            check("sign_only")
        assert re.findall(r"\(3, 16, [84]\)", str(found.value)) == ["(3, 16, 8)", "(3, 16, 4)"]
        assert len(str(found.value)) < 200
    for module in ("attacks", "defenses", "algorithms"):
        assert "PYTEST_DONT_REWRITE" in import_module(f"vflsec.testing.{module}").__doc__


@pytest.mark.parametrize(
    ("name", "where", "kinds"),
    [
        ("id_lmid", "acts_on", {"prediction"}),
        ("k_anonymous", "acts_on", {"gradient"}),
        ("local_trees", "acts_on", {"ids"}),
        ("min_batch", "acts_on", {"sample_list"}),
        ("id_lmid", "acts_in", {"partition"}),
        ("purity_limit", "acts_in", set()),
    ],
)
def test_a_defense_of_trees_that_says_what_it_does_not_do_does_not_pass(
    name: str, where: str, kinds: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are they pass, see test_registries."""
    cls = registry.defenses.get(name)
    told = frozenset(kinds)
    said = property(lambda self: told) if where == "acts_on" else lambda self, profile: told
    checks = testing.defense_checks()
    check = next(c for c in checks if c.__name__ == "defense_acts_on_what_it_says")
    monkeypatch.setattr(cls, where, said)
    with pytest.raises(AssertionError, match=name):
        check(name)


@pytest.mark.parametrize("kind", ["attack", "defense"])
def test_a_template_left_as_it_is_does_not_pass(kind: str, tmp_path: Path) -> None:
    text = component_text(kind, "tail_score")
    marks = [mark for mark in PLACEHOLDERS if mark in text]
    assert len(marks) >= 8, "the template and the list of its marks have drifted apart"
    path = tmp_path / "tail_score.py"
    for mark in marks:  # any one that is left is found, with its line and what to write
        left = text
        for other in marks:
            left = left if other == mark else left.replace(other, "filled in")
        path.write_text(left, encoding="utf-8")
        line = next(i for i, row in enumerate(left.splitlines(), 1) if mark in row)
        with pytest.raises(AssertionError, match=re.escape(f":{line}: replace {mark!r} by ")):
            assert_filled(path)
    for mark in marks:
        text = text.replace(mark, "filled in")
    path.write_text(text, encoding="utf-8")
    assert_filled(path)
