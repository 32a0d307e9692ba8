"""What identifies an attack, and what names the numbers it draws."""

from __future__ import annotations

from dataclasses import replace

from vflsec.specs import AttackSpec


def test_an_edit_of_the_source_is_another_attack_that_draws_the_same() -> None:
    one = AttackSpec("norm", {"a": 1}, ("passive",), code="1234")
    edited = replace(one, code="5678")
    assert one.key != edited.key
    assert one.stream == edited.stream == replace(one, code="").key
    assert one.stream != replace(one, params={"a": 2}).stream
