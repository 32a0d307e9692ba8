"""The steps as functions give the figures of a whole audit, and say what they cannot do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import vflsec
from vflsec.errors import VflsecError

ATTACKS: list[dict[str, Any]] = [{"name": "norm"}, {"name": "direction", "positives": 3}]


@pytest.fixture(scope="module")
def trained() -> vflsec.Trained:
    return vflsec.train(
        "breast_cancer", "splitnn", defenses={"iso": [0, 5]}, seeds=2, epochs=3, device="cpu"
    )


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    scenario: dict[str, Any] = {
        "data": {"name": "breast_cancer"},
        "algorithm": {"name": "splitnn", "epochs": 3},
        "defense": [{"name": "iso", "strength": [0, 5]}],
        "attack": ATTACKS,
        "audit": {"seeds": 2, "references": []},
    }
    return vflsec.run_audit(scenario, tmp_path_factory.mktemp("api"), device="cpu").results


def test_measure_gives_what_an_audit_gives(trained: vflsec.Trained, audited: pd.DataFrame) -> None:
    mine = vflsec.measure(trained, ATTACKS, by_seed=True)
    keys = ["strength", "seed", "attack", "split", "metric"]
    theirs = audited[(audited.attack != "") & (audited.status == "ok")].set_index(keys).sort_index()
    mine = mine[mine.status == "ok"].set_index(keys).sort_index()
    assert len(mine) >= 8
    for column in ("value", "control", "control_value", "advantage", "controls"):
        pd.testing.assert_series_equal(mine[column], theirs[column])


def test_main_gives_what_an_audit_gives(trained: vflsec.Trained, audited: pd.DataFrame) -> None:
    keys = ["strength", "seed", "split", "metric"]
    theirs = audited[audited.attack == ""].set_index(keys).value.sort_index()
    pd.testing.assert_series_equal(trained.main.set_index(keys).value.sort_index(), theirs)


def test_means_over_seeds_have_intervals(trained: vflsec.Trained) -> None:
    found = vflsec.measure(trained, "norm")
    point = found[(found.metric == "auc") & (found.strength == 0)].iloc[0]
    assert point.advantage_low < point.advantage < point.advantage_high
    assert point.seeds == 2


def test_infer_sees_a_view_and_no_label(trained: vflsec.Trained) -> None:
    view = trained.view("passive", known_rows=0, strength=5, seed=1)
    guess = vflsec.infer(view, "norm")
    assert set(guess.rows) == set(view.targets["train"].tolist())
    assert view.known is None
    crossed = trained.messages
    assert set(crossed[crossed.phase == "train"].kind) >= {"embedding", "gradient"}


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda t: t.view("pasive"), "adversary must be one of"),
        (lambda t: t.view(seed=7), "view: seed and strength must be those of a training"),
        (lambda t: t.view(strength=3), "view: seed and strength must be those of a training"),
        (lambda _: vflsec.train("breast_canser"), "Did you mean 'breast_cancer'?"),
        (lambda _: vflsec.train("breast_cancer", epocs=3), "epocs"),
        (lambda t: vflsec.measure(t, "nrom"), "Did you mean 'norm'?"),
        (
            lambda _: vflsec.train("breast_cancer", attacks=["gradient_replacement"]),
            "use vflsec.run_audit",
        ),
        (
            lambda _: vflsec.train("breast_cancer", epochs=1, seeds=1, until="tune", device="cpu"),
            "train: until must be one of the phases train",
        ),
    ],
)
def test_what_cannot_be_done_is_a_sentence(trained: vflsec.Trained, ask: Any, said: str) -> None:
    with pytest.raises(VflsecError) as found:
        ask(trained)
    assert said in str(found.value)


def test_both_packages_keep_their_modules() -> None:
    from vflsec.measure import attack
    from vflsec.train import cohort

    train: Any = vflsec.train
    measure: Any = vflsec.measure
    assert train.cohort is cohort
    assert measure.attack is attack
    assert Path(train.__file__).name == "__init__.py"


def test_an_attack_that_needs_more_than_by_default_is_named_with_its_settings() -> None:
    last = {"name": "direction", "positives": 3, "accumulate": False, "epoch": "last"}
    trained = vflsec.train(
        "breast_cancer", seeds=2, epochs=2, attacks=[last], record=[], device="cpu"
    )
    found = vflsec.measure(trained, last)
    assert set(found.status) == {"ok"}
    assert found.attack.str.startswith("direction(accumulate=False").all()
