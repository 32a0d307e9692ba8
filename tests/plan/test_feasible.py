"""What an algorithm, its data or a defense refuses is an error of the plan, with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vflsec.cli import main
from vflsec.config.problems import ScenarioError
from vflsec.config.scenario import load_scenario
from vflsec.data.table_warnings import list_warnings
from vflsec.engine.dry_run import make_plan
from vflsec.plan.feasible import unfit_defenses
from vflsec.plan.values import DataInfo
from vflsec.plugins import registry

PART: dict[str, Any] = {"name": "breast_cancer", "aligned": 60}
SMALL: dict[str, Any] = {"epochs": 1, "hidden": [6], "cut": 4}
CVT: dict[str, Any] = {**SMALL, "name": "fedcvt", "block": 16, "nl_batch_size": 16}
ONE: dict[str, Any] = {**SMALL, "name": "oneshot", "local_epochs": 1}
NOISE = {"name": "dpsgd", "strength": [1.0]}
LAYER, SUMS = {"name": "he_embedding"}, {"name": "he_gradient"}


def said(algorithm: dict[str, Any], *defenses: dict[str, Any], **data: Any) -> list[str]:
    scenario = {
        "data": [PART | data], "algorithm": [algorithm], "defense": list(defenses),
        "audit": {"seeds": [0], "references": []},
    }  # fmt: skip
    try:
        make_plan(load_scenario(scenario))
    except ScenarioError as error:
        return [p.rule for p in error.problems]
    return []


@pytest.mark.parametrize(("trees", "strength", "wrong"), [(3, 5, 1), (5, 5, 0), (3, 3, 0)])
def test_no_more_trees_are_local_than_there_are(trees: int, strength: int, wrong: int) -> None:
    """All were trained, nothing was sent, and gates found nothing to judge."""
    local = {"name": "local_trees", "strength": [0, strength]}
    assert len(said({"name": "secureboost", "trees": trees}, local)) == wrong


def bcd(**more: Any) -> dict[str, Any]:
    return {**SMALL, "name": "fedbcd", **more}


def of(name: str) -> dict[str, Any]:
    return {**SMALL, "name": name}


@pytest.mark.parametrize(
    ("algorithm", "defense"),
    [
        (bcd(), NOISE), (bcd(), NOISE | {"party": "passive"}), (bcd(), LAYER),
        (bcd(proximal=1.0), LAYER), (of("fpd"), NOISE | {"party": "passive"}), (of("fpd"), LAYER),
        (of("fpd"), SUMS), (of("apcvfl"), LAYER), (of("apcvfl"), SUMS),
        (of("jpl"), NOISE | {"party": "passive"}), (of("jpl"), LAYER),
        (of("jpl"), SUMS), (of("vflhlp"), LAYER), (of("vflhlp"), SUMS),
        (of("vflhlp") | {"constrain": False}, NOISE),
        (of("vflhlp") | {"scarf": False}, NOISE | {"party": "passive"}),
        (of("vflhlp") | {"constrain": False}, {"name": "mid", "strength": [1.0]}),
        (CVT | {"side_heads": False}, {"name": "mid", "strength": [1.0]}),
        (of("fpd"), {"name": "lp_mst", "epsilon": [2.0]}),
    ],
)  # fmt: skip
def test_natural_pairs_start(algorithm: dict[str, Any], defense: dict[str, Any]) -> None:
    assert said(algorithm, defense) == []


@pytest.mark.parametrize(
    ("algorithm", "defense", "why"),
    [
        (bcd(proximal=1.0), NOISE, "cannot be split into rows"),
        (bcd(), SUMS, "needs gradients by row"),
        (of("vflhlp"), NOISE, "the constraint is no sum over rows"),
        (of("vflhlp"), NOISE | {"party": "passive"}, "SCARF couples the rows"),
        (of("vflhlp"), {"name": "mid", "strength": [1.0]}, "the head's first layer"),
        (CVT, NOISE, "cannot be split into rows"),
        (CVT, NOISE | {"party": "passive"}, "cannot be split into rows"),
        (CVT, LAYER, "embedding messages must pass encrypted"),
        (CVT, SUMS, "gradient messages must pass encrypted"),
        (CVT, {"name": "marvell", "strength": [1.0]}, "rows have no label"),
        (CVT, {"name": "mid", "strength": [1.0]}, "would press on the last use"),
        (ONE, NOISE, "cannot be split into rows"),
        (ONE, NOISE | {"party": "passive"}, "cannot be split into rows"),
        (ONE, LAYER, "embedding messages must pass encrypted"),
        (ONE, SUMS, "gradient messages must pass encrypted"),
        (ONE, {"name": "mid", "strength": [1.0]}, "needs a top model"),
        (ONE | {"name": "fewshot"}, LAYER, "embedding messages must pass encrypted"),
        (of("fpd"), NOISE, "cannot be split into rows"),
        (of("jpl"), NOISE, "cannot be split into rows"),
        (of("apcvfl"), NOISE, "cannot be split into rows"),
        (of("apcvfl"), NOISE | {"party": "passive"}, "cannot be split into rows"),
    ],
)
def test_other_pairs_are_refused_with_the_reason(
    algorithm: dict[str, Any], defense: dict[str, Any], why: str
) -> None:
    (found,) = said(algorithm, defense)
    assert why in found
    assert found.startswith(f"cannot be trained ({algorithm['name']} with {defense['name']} on ")


@pytest.mark.parametrize(
    ("algorithm", "data", "why"),
    [
        (CVT, {"params": {"parties": 3}}, "fedcvt: the number of parties must be 2, got 3"),
        (CVT, {"aligned": 1.0}, "fedcvt: needs unaligned rows of 'passive'"),
        (of("fewshot"), {"aligned": 1.0}, "fewshot: needs unaligned rows"),
        (of("fpd"), {"aligned": 1.0}, "fpd: needs labelled rows of the active party"),
        (of("jpl"), {"aligned": 1.0}, "jpl: needs labelled rows of the active party"),
        (of("jpl"), {"name": "digits"}, "jpl: the number of classes must be 2, got 10"),
        (ONE | {"encoder_kind": "conv"}, {}, "'conv' must have rows of images"),
    ],
)
def test_wrong_data_is_refused(algorithm: dict[str, Any], data: dict[str, Any], why: str) -> None:
    (found,) = said(algorithm, **data)
    assert why in found


FEDCVT = """\
[data]
name = "breast_cancer"
params = { parties = 3 }
aligned = 60
[[algorithm]]
name = "splitnn"
[[algorithm]]
name = "fedcvt"
"""


@pytest.mark.parametrize("more", [[], ["--format", "json"]])
def test_check_exits_2_with_one_line(
    more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "three.toml"
    path.write_text(FEDCVT)
    assert main.main(["check", str(path), *more]) == 2
    err = capsys.readouterr().err
    assert err.count("error:") == 1
    assert "three.toml:7: algorithm.1 cannot be trained (fedcvt on breast_cancer): " in err
    assert "fedcvt: the number of parties must be 2, got 3." in err
    path.write_text(FEDCVT.replace("params = { parties = 3 }\n", ""))
    assert main.main(["check", str(path), *more]) == 0


@pytest.mark.parametrize(
    ("algorithm", "why"),
    [
        ('name = "fewshot"\nconfidence = 1.0', "fewshot.confidence must be a number in (0, 1)"),
        ('name = "fewshot"\nconfidence = 0.0', "fewshot.confidence must be a number in (0, 1)"),
        ('name = "fedcvt"\nt_fed = 1.5', "fedcvt.t_fed must be a number in (0, 1)"),
        ('name = "fedbcd"\nlocal_updates = 0', "fedbcd.local_updates must be an integer >= 1"),
    ],
)
@pytest.mark.parametrize("verb", ["check", "audit"])
def test_a_wrong_number_is_one_error_with_its_line(
    verb: str, algorithm: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(f'[data]\nname = "breast_cancer"\naligned = 60\n[algorithm]\n{algorithm}\n')
    assert main.main([verb, str(path)]) == 2
    err = capsys.readouterr().err
    assert err.count("error:") == 1
    assert why in err
    assert "wrong.toml:6: algorithm." in err


@pytest.mark.parametrize("name", ["control", "count", "quantity", "several"])
def test_nothing_has_to_be_said_of_the_data_of_a_positive_control(name: str) -> None:
    """So a plan does not look for it."""
    assert list_warnings(registry.datasets.create(f"{name}_gaussian").load(0)) == []


@pytest.mark.parametrize(
    ("algorithm", "defense", "alone"),
    [
        (of("splitnn"), {"name": "iso"}, True),
        (of("splitnn"), {"name": "iso", "party": "passive"}, False),
        (of("local"), {"name": "iso"}, False),
        (of("splitnn"), {"name": "iso", "on": "embedding", "party": "passive"}, True),
        (of("splitnn"), {"name": "iso", "on": "embedding", "party": "active"}, False),
        (of("splitnn"), {"name": "iso", "on": "embedding", "party": "all"}, True),
        (of("fedcssl"), {"name": "iso", "on": "embedding", "party": "active"}, True),
        (of("splitnn"), {"name": "histogram_noise"}, False),
        ({"name": "secureboost"}, {"name": "histogram_noise"}, True),
        ({"name": "secureboost", "profile": "xgboost-open"}, {"name": "histogram_noise"}, False),
        ({"name": "secureboost"}, {"name": "iso"}, False),
        ({"name": "vertical_glm"}, {"name": "masked_gradient"}, True),
        ({"name": "vertical_glm"}, {"name": "histogram_noise"}, False),
        (of("splitnn"), {"name": "label_dp", "party": "passive"}, False),
        (of("splitnn"), {"name": "label_dp", "party": "all"}, True),
        (of("splitnn"), {"name": "mixup", "party": "passive"}, True),
        ({"name": "secureboost"}, {"name": "grafting", "party": "passive"}, False),
        ({"name": "secureboost"}, {"name": "grafting"}, True),
    ],
)
def test_a_defense_acts_where_its_party_sends_what_it_treats(
    algorithm: dict[str, Any], defense: dict[str, Any], alone: bool
) -> None:
    params = {k: v for k, v in defense.items() if k not in ("name", "party")}
    policy = registry.defenses.create(defense["name"], params)
    made = registry.algorithms.create(
        algorithm["name"], {k: v for k, v in algorithm.items() if k != "name"}
    )
    assert (made.explain_unfit(policy, defense.get("party", "")) == "") == alone


def test_an_idle_defense_is_refused_and_beside_an_acting_one_noted() -> None:
    data = {"name": "control_gaussian", "params": {"rows": 200}}
    audit = {"seeds": [0], "references": []}
    noise = [{"name": "iso", "strength": [0, 1]}]
    split, trees = of("splitnn"), {"name": "secureboost", "trees": 2}
    both = {"data": [data], "algorithm": [split, trees], "defense": noise, "audit": audit}
    notes = make_plan(load_scenario(both)).notes
    made = registry.algorithms.create("secureboost", {})
    assert made.explain_unfit(registry.defenses.create("iso", {})) in notes
    assert len(said(split, {"name": "iso", "strength": [1], "party": "passive"})) == 1


def test_a_party_that_is_active_on_one_table_may_act_there() -> None:
    first = DataInfo("first", {}, ("bank", "shop"), 2, 100, "")
    second = DataInfo("second", {}, ("shop", "bank"), 2, 100, "")
    data = {"name": "control_gaussian", "params": {"rows": 200}}
    noise = {"name": "iso", "strength": [1], "party": "shop"}
    scenario = load_scenario({"data": [data], "algorithm": [of("splitnn")], "defense": [noise]})
    assert len(list(unfit_defenses(scenario, [first], []))) == 1
    assert list(unfit_defenses(scenario, [first, second], [])) == []
