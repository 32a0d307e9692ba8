"""Images beside what an attack made of them: which, in which shades, and where they are shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from printed import html

from vflsec import load_scenario, run_audit
from vflsec.audit.image_samples import collect_pictures, pair_images
from vflsec.audit.record import AuditRecord, read_record
from vflsec.audit.result import Audit
from vflsec.config.problems import ScenarioError
from vflsec.core.guess import Guess, Truth
from vflsec.engine.dry_run import make_plan
from vflsec.errors import ConfigError
from vflsec.report.figures import reconstructions
from vflsec.specs import AttackSpec, CellResult, CellSpec, DefenseSpec, Measure

pytestmark = pytest.mark.figures

SCENARIO: dict[str, Any] = {
    "name": "case",
    "data": {"name": "digits", "params": {"as_images": True}},
    "algorithm": {"name": "splitnn", "encoder_kind": "conv", "hidden": [4], "cut": 16, "epochs": 2},
    "defense": [{"name": "embedding_noise", "strength": [0, 2]}],
    "attack": [{"name": "embedding_inversion", "adversary": "active", "aux_rows": 100,
                "pictures": 3}],
    "audit": {"seeds": [4, 5], "references": [], "positive_control": False},
}  # fmt: skip


def test_shades_are_those_of_the_true_rows_and_answers_beyond_them_are_cut() -> None:
    """A column of a table, then two images of 1 x 1 x 2; ids are out of order."""
    truth = Truth("feature", np.arange(4), np.array(
        [[9.0, 1.0, 3.0], [9.0, 2.0, 1.0], [9.0, 5.0, 5.0], [9.0, 0.0, 0.0]]))  # fmt: skip
    guess = Guess("feature", np.array([1, 0]), np.array([[7.0, 3.0, 0.5], [7.0, 1.5, 99.0]]))
    parties = [("bank", 1, (1,)), ("clinic", 2, (1, 1, 2))]
    (found,) = pair_images(guess, truth, np.array([1, 0]), parties, 4)
    assert found == {
        "party": "clinic", "shape": [1, 1, 2], "rows": [0, 1],
        "truth": [[0, 255], [128, 0]], "guess": [[64, 255], [255, 0]],
    }  # fmt: skip
    assert pair_images(guess, truth, np.array([1, 0]), parties, 1)[0]["rows"] == [0]
    assert pair_images(guess, truth, np.array([], dtype=np.int64), parties, 1) == []
    flat = Truth("feature", np.arange(2), np.ones((2, 3)))
    assert pair_images(guess, flat, np.array([0, 1]), parties, 2)[0]["truth"] == [[0, 0], [0, 0]]


def result(seed: int, phase: str, made: int) -> CellResult:
    spec = CellSpec({"name": "digits"}, "splitnn", {}, (DefenseSpec("iso", strength=1.0),), seed)
    drawn = {"party": "p", "shape": [1, 1, 1], "rows": [0], "truth": [[0]], "guess": [[made]]}
    out = CellResult(spec.key, spec)
    out.measures += [
        Measure(phase, "train", "r2", 0.5, attack="a", adversary="active", target="feature",
                notes={"pictures": [drawn]}),
        Measure(phase, "train", "mse", 0.5, attack="a", adversary="active", target="feature"),
    ]  # fmt: skip
    return out


def record_with(datasets: dict[str, str]) -> AuditRecord:
    return read_record(
        {
            "name": "a", "scenario_hash": "", "scenario_toml": "", "confidence": 0.95, "gates": [],
            "datasets": datasets, "wanted": {}, "known_rows": {}, "data": {}, "refused": [],
            "notes": [], "device": "cpu", "versions": {},
        }
    )  # fmt: skip


def test_the_first_seed_after_the_last_phase_is_shown() -> None:
    results = [result(1, "pretrain", 10), result(1, "train", 20), result(2, "train", 30)]
    results[0].measures += results[1].measures
    record = record_with({f"audit:{r.key}": "digits" for r in results})
    (shown,) = collect_pictures(record, [results[0], results[2]])
    assert (shown.seed, shown.phase, shown.guess) == (1, "train", [[20]])
    assert (shown.defense, shown.strength, shown.attack) == ("iso", 1.0, "a")
    assert collect_pictures(record_with({}), results) == []


def test_without_pictures_an_attack_keeps_its_identity() -> None:
    plain = AttackSpec("embedding_inversion", adversary=("active",))
    assert plain.key == replace(plain, pictures=0).key != replace(plain, pictures=2).key


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    return run_audit(SCENARIO, tmp_path_factory.mktemp("drawn"), device="cpu")


@pytest.mark.slow
def test_an_audit_of_images_keeps_and_shows_them(audit: Audit) -> None:
    drawn = audit.summary["pictures"]
    assert [(p["strength"], p["seed"], p["party"]) for p in drawn] == [
        (0.0, 4, "passive"), (2.0, 4, "passive")]  # fmt: skip
    for p in drawn:
        assert len(p["rows"]) == len(p["truth"]) == len(p["guess"]) == 3
        assert p["shape"] == [1, 8, 4]
        assert {len(shades) for shades in p["truth"] + p["guess"]} == {32}
        assert (np.min(p["truth"]), np.max(p["truth"])) == (0, 255)
    assert drawn[0]["truth"] == drawn[1]["truth"] != drawn[0]["guess"]
    text = html(audit.summary)
    assert "Images and reconstructions" in text
    assert "3 images of passive by embedding_inversion of active" in text
    assert "data:image/png;base64," in text


def test_the_figure_holds_every_image(audit: Audit) -> None:
    from matplotlib.image import AxesImage

    (image,) = [
        a for a in reconstructions(audit.summary).get_children() if isinstance(a, AxesImage)
    ]
    sheet = np.asarray(image.get_array())
    assert sheet.shape == (4 * 9, 3 * 5, 3)
    first = np.reshape(audit.summary["pictures"][0]["truth"][0], (8, 4)) / 255
    assert np.allclose(sheet[:8, :4, 0], first)
    second = np.reshape(audit.summary["pictures"][1]["guess"][2], (8, 4)) / 255
    assert np.allclose(sheet[27:35, 10:14, 1], second)
    with pytest.raises(ConfigError, match="pictures = 4"):
        reconstructions({"pictures": []})


def test_pictures_of_an_attack_on_labels_are_refused() -> None:
    given = {**SCENARIO, "attack": [{"name": "norm", "pictures": 2}]}
    with pytest.raises(ScenarioError, match=r"pictures must be 0: norm guesses"):
        make_plan(load_scenario(given), try_out=False)
    with pytest.raises(ConfigError, match="pictures"):
        load_scenario({**SCENARIO, "attack": [{"name": "norm", "pictures": 13}]})


@pytest.mark.slow
def test_a_table_has_no_pictures(tmp_path: Path) -> None:
    found = {**SCENARIO, "data": {"name": "breast_cancer"}, "defense": [],
             "algorithm": {"name": "splitnn", "epochs": 1}}  # fmt: skip
    audit = run_audit(found, tmp_path, seeds=1, device="cpu")
    assert audit.summary["pictures"] == []
    assert "Images and" not in html(audit.summary)
