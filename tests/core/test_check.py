"""Argument errors have one phrasing, and say what was found."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vflsec.core import check
from vflsec.errors import ConfigError

NOT_NUMBERS = ["1", None, True, math.nan, math.inf, -math.inf, [1], 1j]


@pytest.mark.parametrize("value", NOT_NUMBERS)
@pytest.mark.parametrize("rule", ["finite", "positive", "non_negative", "in_unit"])
def test_what_is_no_finite_number_is_refused(rule: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        getattr(check, rule)("sigma", value)
    assert str(caught.value).startswith("sigma must be a ")
    assert f"got {value!r}." in str(caught.value)


def test_the_sentence() -> None:
    with pytest.raises(ConfigError) as caught:
        check.positive("noise: sigma", -1, "Use 0 to switch it off.")
    assert str(caught.value) == (
        "noise: sigma must be a finite number > 0, got -1. Use 0 to switch it off."
    )
    with pytest.raises(ConfigError) as caught:
        check.non_negative("rate", -1)
    assert str(caught.value) == "rate must be a finite number >= 0, got -1."


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_bounds(value: float) -> None:
    assert check.finite("v", value) == value
    for function, ok in (
        (check.positive, value > 0),
        (check.non_negative, value >= 0),
        (check.in_unit, 0 <= value <= 1),
    ):
        if ok:
            assert function("v", value) == value
        else:
            with pytest.raises(ConfigError):
                function("v", value)


def test_numbers_come_back_as_floats() -> None:
    for value in (check.finite("v", 3), check.positive("v", 3), check.in_unit("v", 1)):
        assert type(value) is float


@pytest.mark.parametrize(
    ("value", "low_open", "high_open", "ok"),
    [
        (0, False, False, True), (0, True, False, False), (1, False, False, True),
        (1, False, True, False), (0.5, True, True, True), (1, True, False, True),
        (0, False, True, True), (1.0000001, False, False, False), (-1e-9, False, False, False),
    ],
)  # fmt: skip
def test_ends_of_the_unit_interval(value: float, low_open: bool, high_open: bool, ok: bool) -> None:
    if ok:
        assert check.in_unit("p", value, low_open=low_open, high_open=high_open) == value
        return
    interval = f"{'(' if low_open else '['}0, 1{')' if high_open else ']'}"
    with pytest.raises(ConfigError) as caught:
        check.in_unit("p", value, low_open=low_open, high_open=high_open)
    assert f"p must be a number in {interval}, got {value!r}." in str(caught.value)


@pytest.mark.parametrize("value", [0, 1.0, True, "3", None, -4])
def test_integers_from_one(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"n must be an integer >= 1, got"):
        check.integer("n", value)


def test_integers_in_a_range() -> None:
    assert [check.integer("n", v, low=0, high=3) for v in (0, 3)] == [0, 3]
    with pytest.raises(ConfigError, match=r"n must be an integer in \[0, 3\], got 4\."):
        check.integer("n", 4, low=0, high=3)


def test_one_of_names_the_nearest() -> None:
    assert check.one_of("way", "sum", ["sum", "mean"]) == "sum"
    with pytest.raises(ConfigError) as caught:
        check.one_of("way", "maen", ["sum", "mean"])
    assert str(caught.value) == (
        "way must be one of 'sum', 'mean', got 'maen'. Did you mean 'mean'?"
    )
    with pytest.raises(ConfigError) as caught:
        check.one_of("way", "zzz", ["sum", "mean"])
    assert str(caught.value) == "way must be one of 'sum', 'mean', got 'zzz'."


def test_nearest_does_not_guess_wildly() -> None:
    assert check.nearest("sigm", ["sigma", "rate"]) == "Did you mean 'sigma'?"
    assert check.nearest("q", ["sigma", "rate"]) == ""
    assert check.nearest(3, [1, 2]) == ""
