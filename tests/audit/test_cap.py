"""CAP, DCS and relative figures against the papers' printed numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vflsec.audit import cap, dcs, relative_improvement, relative_risk
from vflsec.errors import ConfigError

# He et al. 2022, Table XI: (attack, main) at noise strengths 1, 5, 25, and Table XII.
TABLES = {
    ("nus", "20"): ((0.471, 0.449, 0.443), (0.538, 0.519, 0.503), 0.284),
    ("avazu", "local"): ((0.548, 0.546, 0.545), (0.582, 0.577, 0.576), 0.262),
    ("bhi", "local"): ((0.710, 0.699, 0.685), (0.756, 0.732, 0.710), 0.221),
    ("modelnet", "40"): ((0.466, 0.448, 0.419), (0.658, 0.631, 0.598), 0.349),
}


@pytest.mark.parametrize("key", TABLES, ids="-".join)
def test_cap_reproduces_table_xii(key: tuple[str, str]) -> None:
    attack, main, printed = TABLES[key]
    assert cap(main, attack) == pytest.approx(printed, abs=1e-3)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=9))
def test_cap_is_the_mean_of_utility_times_what_the_attack_misses(
    points: list[tuple[float, float]],
) -> None:
    main, attack = map(list, zip(*points, strict=True))
    products = [u * (1 - a) for u, a in points]
    assert cap(main, attack) == pytest.approx(sum(products) / len(points))


def test_cap_ends_and_a_single_number() -> None:
    assert cap([0.9, 0.8], [1, 1]) == 0
    assert cap([1, 1], [0, 0]) == 1
    assert cap(0.8, 0.5) == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("utility", "attack"), [([0.5], [0.5, 0.5]), ([], []), ([1.2], [0.5]), ([0.5], [float("nan")])]
)
def test_cap_refuses(utility: list[float], attack: list[float]) -> None:
    with pytest.raises(ConfigError, match="cap: "):
        cap(utility, attack)


@pytest.mark.parametrize(
    ("ap", "mp", "mp0", "expected"),
    [
        (1, 0.9, 0.9, 0.58579),
        (0, 0.9, 0.9, 1),
        (0.1, 0.85, 0.9, 0.92674),
        (0.1, 0.1, 0.9, 0.63691),
        (0.1, 0.9, 0.9, 0.93396),
        (0.1, 0.95, 0.9, 0.93396),
        (0.5, 0.9, 0.9, 0.73879),
    ],
)
def test_dcs_vectors(ap: float, mp: float, mp0: float, expected: float) -> None:
    assert dcs(ap, mp, mp0) == pytest.approx(expected, abs=1e-5)


def test_relative_figures() -> None:
    assert relative_risk(0.8, 0.6) == pytest.approx(0.5)
    assert relative_risk(0.5, 0.6) == pytest.approx(-0.25)
    assert relative_risk(1.0, 1.0) == 0
    assert relative_improvement(0.7, 0.6) == pytest.approx(1.0)
    with pytest.raises(ConfigError):
        relative_improvement(0.7, 0.5)


# Li, Yao, Liu (arXiv:2209.15635): AUC in percent of FPD and of JPL, and the lift as printed.
LIFTS = [(74.522, 75.064, 2.2), (75.812, 76.286, 1.8), (71.759, 71.860, 0.5), (69.723, 69.743, 0.1)]


@pytest.mark.parametrize(("fpd", "jpl", "printed"), LIFTS)
def test_relative_improvement_gives_the_printed_lifts(
    fpd: float, jpl: float, printed: float
) -> None:
    lift = 100 * relative_improvement(jpl / 100, fpd / 100)
    assert round(lift, 1) == printed
