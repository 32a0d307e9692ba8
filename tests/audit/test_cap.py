"""CAP, DCS and relative figures against the papers' printed numbers."""

import pytest

from vflsec.audit import cap, dcs, relative_improvement, relative_risk
from vflsec.errors import ConfigError

# He et al. 2022, Table XI: (attack, main) at noise strengths 1, 5, 25, and Table XII.
TABLES = {
    ("nus", "local"): ((0.471, 0.465, 0.449), (0.494, 0.487, 0.458), 0.258),
    ("nus", "20"): ((0.471, 0.449, 0.443), (0.538, 0.519, 0.503), 0.284),
    ("nus", "40"): ((0.474, 0.471, 0.458), (0.533, 0.528, 0.503), 0.277),
    ("avazu", "local"): ((0.548, 0.546, 0.545), (0.582, 0.577, 0.576), 0.262),
    ("avazu", "20"): ((0.568, 0.565, 0.563), (0.614, 0.602, 0.594), 0.262),
    ("avazu", "40"): ((0.571, 0.566, 0.561), (0.616, 0.610, 0.603), 0.264),
    ("bhi", "local"): ((0.710, 0.699, 0.685), (0.756, 0.732, 0.710), 0.221),
    ("bhi", "20"): ((0.692, 0.672, 0.674), (0.783, 0.764, 0.758), 0.246),
    ("bhi", "40"): ((0.686, 0.687, 0.682), (0.788, 0.773, 0.764), 0.244),
    ("modelnet", "local"): ((0.438, 0.415, 0.408), (0.597, 0.573, 0.564), 0.334),
    ("modelnet", "20"): ((0.451, 0.447, 0.415), (0.652, 0.613, 0.594), 0.348),
    ("modelnet", "40"): ((0.466, 0.448, 0.419), (0.658, 0.631, 0.598), 0.349),
}


@pytest.mark.parametrize("key", TABLES, ids="-".join)
def test_cap_reproduces_table_xii(key: tuple[str, str]) -> None:
    attack, main, printed = TABLES[key]
    assert cap(main, attack) == pytest.approx(printed, abs=1e-3)


def test_cap_matches_ten_of_twelve_cells_to_three_decimals() -> None:
    off = {k for k, (a, m, printed) in TABLES.items() if round(cap(m, a), 3) != printed}
    assert off == {("avazu", "40"), ("modelnet", "local")}


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
LIFTS = [
    (74.522, 75.064, 2.2), (74.811, 75.130, 1.3), (75.173, 75.373, 0.8), (75.372, 75.588, 0.9),
    (75.597, 75.759, 0.6), (75.812, 76.286, 1.8), (76.099, 76.371, 1.0), (76.231, 76.459, 0.9),
    (76.297, 76.551, 1.0), (76.476, 76.631, 0.6), (71.759, 71.860, 0.5), (71.862, 71.933, 0.3),
    (71.878, 71.997, 0.5), (71.885, 72.037, 0.7), (71.983, 72.044, 0.3), (69.349, 69.478, 0.7),
    (69.640, 69.675, 0.2), (69.651, 69.741, 0.5), (69.709, 69.779, 0.4), (69.723, 69.743, 0.1),
]  # fmt: skip


@pytest.mark.parametrize(("fpd", "jpl", "printed"), LIFTS)
def test_relative_improvement_gives_the_printed_lifts(
    fpd: float, jpl: float, printed: float
) -> None:
    lift = 100 * relative_improvement(jpl / 100, fpd / 100)
    assert round(lift, 1) == printed
