"""The identity of a point is compared whole, and points survive being written and read."""

from dataclasses import fields, replace
from typing import Any

import pandas as pd
import pytest
from gate_rows import points_of, rows, task
from hypothesis import given, settings
from hypothesis import strategies as st

from vflsec.audit.controls import Against, Leakage
from vflsec.audit.leakage_claims import correct, find_claims
from vflsec.audit.point import (
    IDENTITY,
    Estimate,
    Identity,
    Point,
    points_frame,
    write_points,
)
from vflsec.audit.result_row import COLUMNS
from vflsec.runtime.typed_values import write_plain

TEXT = st.text(max_size=8)
NUMBER = st.floats(-10, 10) | st.none()
IDENTITIES = st.builds(
    Identity, *(NUMBER if name in ("strength", "known_rows") else TEXT for name in IDENTITY)
)
ESTIMATES = st.builds(
    Estimate, NUMBER, NUMBER, NUMBER, NUMBER, NUMBER, NUMBER, st.integers(0, 9)
)  # fmt: skip
AGAINST = st.builds(Against, TEXT, NUMBER, st.floats(-1, 1), NUMBER, st.integers(1, 9))


@st.composite
def points(draw: st.DrawFn) -> Point:
    at = draw(IDENTITIES)
    kinds: dict[str, Any] = {
        "str": TEXT, "int": st.integers(0, 99), "float | None": NUMBER, "Estimate": ESTIMATES,
    }  # fmt: skip
    made: dict[str, Any] = {n: getattr(at, n) for n in IDENTITY}
    made |= {str(f.name): draw(kinds[f.type]) for f in fields(Point) if f.type in kinds} | made
    every = draw(st.lists(AGAINST, max_size=3, unique_by=lambda a: a.name))
    if not every:
        return Point(**made | {"advantage": Estimate()})
    found = tuple(sorted(every, key=lambda a: (a.mean, a.name == "chance", a.name)))
    return Point(**made, leakage=Leakage(found, draw(st.sampled_from(found)).name))


@given(st.lists(points(), max_size=3))
@settings(max_examples=10, deadline=None)
def test_points_are_read_back_as_they_were_written(made: list[Point]) -> None:
    assert list(map(Point.read, write_points(made))) == made
    kept = write_plain(write_points(made))  # as summary.json holds them
    assert list(map(Point.read, kept)) == made
    kept = points_frame(made).to_dict("records")  # as a table does, with NaN
    assert list(map(Point.read, kept)) == made


@given(IDENTITIES, IDENTITIES)
def test_an_identity_is_compared_whole(one: Identity, other: Identity) -> None:
    same = all(getattr(one, f) == getattr(other, f) for f in IDENTITY)
    assert (one == other) == same
    assert Point(**{f: getattr(one, f) for f in IDENTITY}).identity == one


@given(IDENTITIES, st.sampled_from(IDENTITY))
def test_points_that_differ_in_one_field_agree_without_it_and_nowhere_else(
    at: Identity, name: str
) -> None:
    changed = 1e3 if name in ("strength", "known_rows") else f"{getattr(at, name)}x"
    other = replace(at, **{name: changed})
    assert other != at
    assert other.without(name) == at.without(name)
    assert all(other.without(n) != at.without(n) for n in IDENTITY if n != name)


def test_a_table_of_points_has_the_columns_of_results() -> None:
    frame = points_frame(points_of([*rows(0.2), *task(0.9)]))
    assert set(IDENTITY) < set(COLUMNS) & set(frame.columns)
    assert frame["advantage"].tolist() == pytest.approx([0.2, float("nan")], nan_ok=True)
    assert frame.dtypes["known_rows"] == "float64"
    assert "gap" not in frame
    pd.testing.assert_frame_equal(
        points_frame(list(map(Point.read, frame.to_dict("records")))), frame
    )


def test_each_target_of_each_party_has_its_own_claim() -> None:
    """With several parties the first screen printed the figures of one victim for all of them."""
    gains = {("b", "label"): 0.4, ("c", "label"): 0.3, ("c", "attribute"): 0.2}
    records = [r for (victim, target), gain in gains.items()
               for r in rows(gain, primary="auc", victim=victim, target=target)]  # fmt: skip
    found = find_claims(correct(points_of(records)))
    shown = {(c.victim, c.target): c.advantage for c in found if c.quantity == "leakage"}
    assert shown == {key: pytest.approx(gain) for key, gain in gains.items()}
