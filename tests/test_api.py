"""The steps as functions give the figures of a whole audit, and say what they cannot do."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import vflsec
from vflsec.core.guess import Guess
from vflsec.core.view import View
from vflsec.errors import VflsecError
from vflsec.plugins import registry

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


def test_an_answer_that_cannot_be_scored_is_an_error_of_that_attack_alone(
    trained: vflsec.Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    for answer, status in (
        (lambda rows, s: Guess("label", rows[5:], s[5:]), "error"),
        (lambda rows, s: Guess("label", rows, s.unsqueeze(1).repeat(1, 3)), "error"),
        (
            lambda rows, s: Guess(
                "label", rows, s.where(s > s.median(), np.nan), None, s <= s.median()
            ),
            "ok",
        ),
    ):

        def infer(self: Any, view: View, rng: Any, answer: Any = answer) -> Guess:
            rows = view.targets["train"]
            return answer(rows, view.received("gradient").of_rows(rows).norm(dim=1))

        monkeypatch.setattr(registry.attacks.get("norm"), "infer", infer)
        found = vflsec.measure(trained, ATTACKS)
        assert {*found[found.attack == "norm"].status} == {status}
        assert {*found[found.attack != "norm"].status} == {"ok"}


def test_measure_knows_what_randomised_labels_tell_by_themselves() -> None:
    kept = vflsec.train(
        "breast_cancer", defenses={"label_dp": 1.0}, seeds=2, epochs=1, attacks=["norm"],
        device="cpu",
    )  # fmt: skip
    found = vflsec.measure(kept, "norm", by_seed=True)
    assert all("randomised" in str(c) for c in found[found.metric == "auc"].controls)


@pytest.mark.slow
def test_who_receives_what_is_read_attacks_where_nobody_is_named(trained: vflsec.Trained) -> None:
    found = vflsec.measure(trained, [{"name": "embedding_inversion", "aux_rows": 40}, "norm"])
    whom = dict(zip(found.attack, found.adversary, strict=True))
    assert whom == {"embedding_inversion": "active", "norm": "passive"}
    assert {*found[found.attack != "norm"].status} == {"ok"}


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
        (lambda _: vflsec.train("breast_cancer", epocs=3), "Did you mean 'epochs'?"),
        (lambda _: vflsec.train("breast_cancer", sedes=3), "Did you mean 'seeds'?"),
        (lambda _: vflsec.train({"files": pd.DataFrame({"a": [1]})}), "train: data must"),
        (lambda _: vflsec.audit(pd.DataFrame({"a": [1]}), "a", sedes=3), "Did you mean 'seeds'?"),
        (lambda _: vflsec.train("breast_cancer", seeds=0), "audit.seeds must be"),
        (lambda _: vflsec.train("breast_cancer", seeds="3"), "audit.seeds must be"),
        (lambda _: vflsec.train("breast_cancer", epochs=0), "algorithm.epochs must be"),
        (lambda _: vflsec.train("breast_cancer", defenses={"iso": "5"}), "defense.0.strength must"),
        (lambda _: vflsec.train("breast_cancer", defenses={"iso": []}), "defense.0.strength must"),
        (lambda _: vflsec.train("breast_cancer", defenses=None), "train: defenses must be"),
        (lambda _: vflsec.train(None), "train: data must be"),
        (lambda _: vflsec.train({"name": "breast_cancer", "base": 3}), "train: data: base must be"),
        (lambda _: vflsec.train("breast_cancer", record="zzz"), "train: record must be one of"),
        (lambda _: vflsec.train("breast_cancer", record=["sent.zzz:last"]), "got 'zzz'"),
        (lambda _: vflsec.train("breast_cancer", record="gradient:zzz"), "form must be one of"),
        (lambda _: vflsec.train("breast_cancer", record=[3]), "train: record must be a text"),
        (lambda _: vflsec.train("breast_cancer", record=None), "train: record must be a text"),
        (lambda _: vflsec.train("breast_cancer", device=3), "--device must be one of"),
        (lambda _: vflsec.measure(None, "norm"), "measure: trained must be"),
        (lambda t: vflsec.measure(t, []), "measure: attacks must be at least one"),
        (lambda t: vflsec.measure(t, "norm", by_seed="x"), "measure: by_seed must be"),
        (lambda t: vflsec.measure(t, "norm", confidence=95), "measure: confidence must be"),
        (lambda _: vflsec.infer(None, "norm"), "infer: view must be"),
        (lambda t: vflsec.infer(t.view(), "norm", seed="x"), "infer: seed must be"),
        (lambda _: vflsec.train("breast_cancer", attacks=[{"known_rows": 2}]), "train: attacks"),
        (lambda t: vflsec.measure(t, None), "measure: attacks must be"),
        (lambda t: vflsec.measure(t, "direction", known_rows=-5), "attack.0.known_rows must be"),
        (lambda t: vflsec.measure(t, "direction", known_rows="5"), "attack.0.known_rows must be"),
        (lambda t: vflsec.measure(t, "norm", victim="nobody"), "victim must be one of"),
        (lambda t: t.view(known_rows=-5), "attack.0.known_rows must be"),
        (lambda t: t.view(sample=30), "view: a grant must be one of"),
        (lambda t: vflsec.measure(t, "norm", known_row=3), "known_row"),
        (lambda t: vflsec.measure(t, "nrom"), "Did you mean 'norm'?"),
        (
            lambda _: vflsec.train("breast_cancer", attacks=["gradient_replacement"]),
            "use vflsec.run_audit",
        ),
        (lambda t: vflsec.measure(t, "membership"), "use vflsec.run_audit"),
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


def test_one_text_is_recorded_as_a_list_of_one() -> None:
    for record in ("sent.embedding:last", ["sent.embedding:last"]):
        trained = vflsec.train(
            "breast_cancer", seeds=2, epochs=1, attacks=[], record=record, device="cpu"
        )
        assert len(trained.view("passive").sent("embedding", "last"))


def test_defenses_and_seeds_are_what_they_are_in_every_form(trained: vflsec.Trained) -> None:
    forms: list[dict[str, Any]] = [
        {"defenses": [{"name": "iso", "strength": 5}], "seeds": np.arange(2)},
        {"defenses": [vflsec.DefenseSpec("iso", strength=5)], "seeds": range(2)},
        {"defenses": {"iso": np.array([5])}, "seeds": np.int64(2)},
    ]
    theirs = trained.main[trained.main.strength == 5].reset_index(drop=True)
    for form in forms:
        mine = vflsec.train("breast_cancer", epochs=np.int64(3), device="cpu", **form)
        pd.testing.assert_frame_equal(mine.main, theirs)


def test_both_packages_keep_their_modules() -> None:
    from vflsec.measure import attack
    from vflsec.train import cohort

    train: Any = vflsec.train
    measure: Any = vflsec.measure
    assert train.cohort is cohort
    assert measure.attack is attack
    assert Path(train.__file__).name == "__init__.py"


def test_a_list_of_the_package_has_what_it_offers_and_no_import() -> None:
    assert dir(vflsec) == sorted(vflsec.__all__)


def test_packages_explain_themselves_as_the_functions_of_their_names() -> None:
    from vflsec import api, audit_tables

    for package, function in (
        (vflsec.audit, audit_tables.audit), (vflsec.train, api.train), (vflsec.measure, api.measure)
    ):  # fmt: skip
        assert inspect.signature(package) == inspect.signature(function)
        assert package.__doc__ == function.__doc__


def test_tables_in_memory_are_trained_on_as_their_files_are(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    y = rng.integers(0, 2, 120)
    ids = [f"r{i}" for i in range(120)]
    tables = {
        "bank": pd.DataFrame({"id": ids, "age": rng.normal(size=120), "y": y}),
        "shop": pd.DataFrame({"id": ids, "c": rng.normal(size=120) + y}),
    }
    for name, table in tables.items():
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    files = {n: str(tmp_path / f"{n}.csv") for n in tables}
    how: dict[str, Any] = {"seeds": 2, "epochs": 2, "device": "cpu"}
    mine = vflsec.train({"files": tables, "label": "y"}, **how)
    theirs = vflsec.train({"files": files, "label": "y", "id": "id", "active": "bank"}, **how)
    pd.testing.assert_frame_equal(mine.main, theirs.main)


def test_values_show_what_they_are_in_one_line_and_no_number_of_theirs(
    trained: vflsec.Trained,
) -> None:
    view = trained.view("passive")
    guess = vflsec.infer(view, "norm")
    for value in (trained, view, guess, view.received("gradient")):
        assert "\n" not in repr(value)
        assert "tensor" not in repr(value)
        assert len(repr(value)) < 600
    for value in (trained, view, guess):
        assert value._repr_html_().startswith("<table>")


def test_an_attack_that_needs_more_than_by_default_is_named_with_its_settings() -> None:
    last = {"name": "direction", "positives": 3, "accumulate": False, "epoch": "last"}
    trained = vflsec.train(
        "breast_cancer", seeds=2, epochs=2, attacks=[last], record=[], device="cpu"
    )
    found = vflsec.measure(trained, last)
    assert set(found.status) == {"ok"}
    assert found.attack.str.startswith("direction(accumulate=False").all()


def test_progress_is_shown_or_not() -> None:
    with pytest.raises(VflsecError, match="train: progress"):
        vflsec.train("leaky", progress="bar")  # type: ignore[arg-type]
