"""The table of the papers' claims: its rule, its choice of settings, its page, and a tiny run."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from vflsec.plugins import registry


@pytest.fixture
def script(benchmark_script: Callable[[str], Any]) -> Any:
    return benchmark_script("evidence_seeds")


def part(script: Any, name: str) -> Any:
    return importlib.import_module(f"seeds.{name}")


BASE = [0.70, 0.71, 0.69, 0.70]


@pytest.mark.parametrize(
    ("gain", "paper", "room", "word", "reason"),
    [
        ([0.050, 0.052, 0.048, 0.051], (0.040, 0.10), None, "reproduced", ""),
        ([0.010, 0.012, 0.009, 0.011], (0.040, 0.10), None, "reproduced smaller", ""),
        ([-0.03, -0.02, -0.03, -0.02], (0.040, 0.10), None, "not reproduced", "the opposite holds"),
        ([0.01, -0.01, 0.01, -0.01], (0.040, 0.10), None, "not reproduced",
         "an effect of the paper's size is excluded"),
        ([0.01, -0.01, 0.01, -0.01], (0.040, 0.10), 0.02, "not reproduced",
         "no room: all that is missing adds +0.020"),
        ([0.2, -0.1, 0.1, -0.1], (0.040, 0.10), 0.3, "not reproduced",
         "undecided: 0 and the paper's effect are both within the interval"),
        ([0.010, 0.012, 0.009, 0.011], (0.0, 0.026), None, "reproduced", ""),
    ],
)  # fmt: skip
def test_the_rule(
    script: Any, gain: list[float], paper: tuple[float, float], room: float | None, word: str,
    reason: str,
) -> None:  # fmt: skip
    found = part(script, "verdict").judged(np.add(BASE, gain), BASE, paper, room=room)
    assert (found.word, found.reason) == (word, reason)
    assert found.mean == pytest.approx(np.mean(gain))


def test_several_data_sets_make_intervals_wider(script: Any) -> None:
    judged = part(script, "verdict").judged
    gain = [0.010, 0.002, 0.016, 0.006]
    one, three = (judged(np.add(BASE, gain), BASE, (0.0, 0.1), tries=m) for m in (1, 3))
    assert one.word == "not reproduced" or one.low > three.low
    assert three.high - three.low == pytest.approx(
        (one.high - one.low) * 4.857 / 3.182, rel=1e-3
    )  # t quantiles, 3 degrees of freedom: 1 - .05 / 6 and .975
    assert judged(BASE[:1], BASE[:1], (0.0, 0.1)).reason == "one seed tells nothing"


def test_a_drawn_world_is_a_try_of_its_own(script: Any) -> None:
    """However many real tables a claim is tried on; one of one seed counts as none."""
    words, claims = part(script, "words"), part(script, "claims")
    claim = next(c for c in claims.CLAIMS if (c.better, c.worse) == ("FPD", "Local"))
    made = []
    for world in ("credit, served alone", "criteo, served alone", "imitation"):
        made += rows(script, world, "Local", 0, [0.700, 0.701, 0.702, 0.699])
        made += rows(script, world, "FPD", 0, [0.706, 0.708, 0.707, 0.706])
    for system in ("Local", "FPD"):
        made += rows(script, "avazu, served alone", system, 0, [0.7])
    found = words.effects(pd.DataFrame(made), claim)
    real, drawn = found["credit, served alone"], found["imitation"]
    assert drawn.mean == pytest.approx(real.mean)
    assert (real.high - real.low) / (drawn.high - drawn.low) == pytest.approx(
        4.177 / 3.182, rel=1e-3
    )  # t quantiles, 3 degrees of freedom: 1 - .05 / 4 and .975
    assert words._judged(found) == [real, found["criteo, served alone"]]


def test_claims_name_systems_and_settings_that_exist(script: Any) -> None:
    claims, run = part(script, "claims"), part(script, "run")
    for claim in claims.CLAIMS:
        assert {claim.better, claim.worse} <= set(claims.SYSTEMS[claim.family])
        assert 0 <= claim.effect[0] <= claim.effect[1]
        assert claim.figure in ("main", "cap") or (claim.figure, claim.effect[0] > 1) == (
            "bytes",
            True,
        )
        assert any(w.real for w in claims.WORLDS.values() if w.family == claim.family)
    for claim in claims.CLAIMS:
        systems = claims.SYSTEMS[claim.family]
        assert claim.figure == "bytes" or set(systems) & set(claims.CEILINGS.values())
    for world in claims.WORLDS.values():
        for system in claims.SYSTEMS[world.family].values():
            for setting in system.grid:
                params = {**world.shared, **system.params, **setting}
                registry.algorithms.create(system.algorithm, params)
    assert set(claims.WORLDS) >= claims.HEAVY
    two = claims.WORLDS["two_views"]
    assert run.section(two)["labelled"] == 100
    assert "labelled" not in run.section(two, plenty=True)


def rows(
    script: Any, world: str, system: str, setting: int, values: list[float], *,
    validation: float = 0.5, **more: Any,
) -> list[dict[str, Any]]:  # fmt: skip
    base = dict.fromkeys(part(script, "run").FIELDS, "") | {
        "world": world, "system": system, "setting": setting, "stage": "settings",
        "phase": "train", "strength": 0.0, "metric": "auc", "split": "test", "bytes": 1e6,
        "defense": "none", "control_value": np.nan, "advantage": np.nan, **more,
    }  # fmt: skip
    test = [{**base, "seed": s, "value": v} for s, v in enumerate(values)]
    if base["attack"] or base["stage"] == "leakage":
        return test
    return [*test, *({**r, "split": "validation", "value": validation} for r in test)]


def invented(script: Any) -> pd.DataFrame:
    """Figures of the JPL papers' systems on credit, and a CAP on the digits' family."""
    at, made = "credit, served alone", []
    steady = np.asarray([0.700, 0.701, 0.702, 0.699])
    made += rows(script, at, "Local", 0, list(steady))
    made += rows(script, at, "Local", 1, list(steady + 0.1), validation=0.4)
    made += rows(script, at, "FPD", 0, [0.706, 0.708, 0.707, 0.706])
    made += rows(script, at, "JPL", 0, [0.7005, 0.7015, 0.7015, 0.7000])
    made += rows(script, at, "teacher", 0, list(steady + 0.08))
    for strength in (0.0, 1.0, 5.0, 25.0):
        here: dict[str, Any] = {"stage": "leakage", "defense": "iso", "strength": strength}
        for system, u, a in (("FedHSSL", 0.7, 0.5), ("FedLocalSSL", 0.6, 0.5)):
            world = "credit, 300 labels"
            shift = np.asarray([0.0, 0.01, -0.01, 0.0])
            made += rows(script, world, system, 0, list(u + shift), **here)
            attack = {**here, "attack": "model_completion(variants=['logistic'])",
                      "adversary": "passive", "target": "label"}  # fmt: skip
            made += rows(script, world, system, 0, [a] * 4, metric="accuracy", **attack)
            told = {**attack, "split": "train", "advantage": 0.123}
            made += rows(script, world, system, 0, [0.8] * 4, **told)
    return pd.DataFrame(made)


def test_settings_are_chosen_by_validation_rows_alone(script: Any) -> None:
    found = invented(script)
    run, words = part(script, "run"), part(script, "words")
    assert run.chosen(found, "credit, served alone", "Local") == 0
    assert words.utility(found, "credit, served alone", "Local").tolist() == [
        0.700, 0.701, 0.702, 0.699]  # fmt: skip
    better = found.assign(value=found.value.where(
        (found.setting != 1) | (found.split != "validation"), 0.9))  # fmt: skip
    assert run.chosen(better, "credit, served alone", "Local") == 1


def test_settings_are_chosen_over_the_seeds_that_all_of_them_share(script: Any) -> None:
    """The chosen one alone is run with more seeds, and these must not undo the choice."""
    run, at = part(script, "run"), "credit, served alone"
    made = rows(script, at, "Local", 0, [0.7] * 4, validation=0.61)
    more = rows(script, at, "Local", 0, [0.7] * 9, validation=0.1)
    made += [r for r in more if r["seed"] >= 4]
    made += rows(script, at, "Local", 1, [0.7] * 4, validation=0.60)
    assert run.chosen(pd.DataFrame(made), at, "Local") == 0


@pytest.mark.slow
def test_the_page(script: Any) -> None:
    found = invented(script)
    words = part(script, "words")
    assert words.caps(found, "credit, 300 labels", "FedHSSL").tolist() == pytest.approx(
        [0.35, 0.355, 0.345, 0.35]
    )
    text = words.page(found, 4)
    assert (
        "4 paired seeds. Of 12 headline claims 2 hold on every real data set tried, 0 on some, 10"
        in text
    )
    jpl = "| JPL (arXiv:2209.15635) |"
    lines = [line for line in text.splitlines() if line.startswith(jpl)]
    assert lines[0].startswith(f"{jpl} FPD > Local | credit, served alone: +0.006 [+0.00")
    assert lines[0].endswith("| +0.0019 to +0.0065 (table 2, Criteo A) | 1 of 1 |")
    assert lines[1].endswith("| 0 of 1 |")
    assert re.search(r"\| FPD > Local \| credit, served alone \| .* \| \+0\.080 \| reprod", text)
    assert "not reproduced: the opposite holds |" in text
    assert lines[2].endswith("| 0 of 1 |")
    assert "| CAP of FedHSSL > FedLocalSSL | credit, 300 labels | +0.050" in text
    assert "One-shot > vanilla VFL, at 330 times fewer bytes |  | +0.354 to +0.468 (table 1) | " \
        "not tried |" in text  # fmt: skip
    leaked = "0.800 ± 0.000 (model_completion) | 0.123 ± 0.000 | not observable |  | 1,000,000 |"
    assert f"| credit, 300 labels | FedHSSL | none | 0.700 ± 0.013 | {leaked}" in text
    assert "| credit, 300 labels | FedSplitNN | | not measured | | | | | |" in text
    assert "| FedSplitNN, all labels | |" not in text  # it is never attacked
    assert "| adult, 300 labels | FedSplitNN | |" not in text  # nothing was run there
    assert "## What pre-training alone holds\n\nNot measured in this run." in text


def counted(script: Any, bytes_of: dict[str, list[float]], fourth: float = 0.72) -> pd.DataFrame:
    """Trainings of three lengths: AUC by validation of 0.60, 0.70 and `fourth` in four seeds."""
    made: list[dict[str, Any]] = []
    for system, sizes in bytes_of.items():
        for i, (size, auc) in enumerate(zip(sizes, (0.60, 0.717, fourth), strict=True)):
            at = rows(script, "credit, counted", system, i, [auc] * 4, validation=auc, bytes=size)
            made += [{**r, "bytes": size * (1 + 0.01 * r["seed"])} for r in at]
    return pd.DataFrame(made)


@pytest.mark.slow
def test_bytes_to_a_target(script: Any) -> None:
    """Within 0.005 of the best of FedSplitNN, on validation rows; ratios by seed."""
    words, claims = part(script, "words"), part(script, "claims")
    (claim,) = [c for c in claims.CLAIMS if c.figure == "bytes"]
    found = counted(script, {"FedSplitNN": [1e6, 4e6, 8e6], "FedBCD, Q = 5": [2e5, 1e6, 2e6]})
    assert words.to_target(found, "credit, counted", "FedSplitNN").tolist() == pytest.approx(
        [-np.log(4e6 * k) for k in (1.0, 1.01, 1.02, 1.03)]
    )
    effect = words.effects(found, claim)["credit, counted"]
    assert np.exp(effect.mean) == pytest.approx(4.0)
    assert effect.word == "reproduced smaller"
    fewer = "credit, counted: 1/4.00 of the bytes [1/4.00, 1/4.00] | 1/4.94 to 1/5.00 (table 1) |"
    assert f"{fewer} 1 of 1 (1 smaller) |" in words.page(found, 4)
    told = (
        "| credit, counted | 1/4.00 of the bytes [1/4.00, 1/4.00] ({} of 4 seeds never come there)"
    )
    assert told.format(0) in words.page(found, 4)
    never = found[~((found.system == "FedBCD, Q = 5") & (found.setting > 0))]
    assert "(4 of 4 seeds never come there)" in words.page(never, 4)
    assert words.to_target(never, "credit, counted", "FedBCD, Q = 5").iloc[0] == pytest.approx(
        -np.log(2e5)
    )


@pytest.mark.slow
def test_what_cannot_be_encrypted_says_so_and_probes_are_after_pre_training(script: Any) -> None:
    words, found = part(script, "words"), invented(script)
    world = "credit, 300 labels"
    sealed: dict[str, Any] = {"stage": "leakage", "defense": "he_embedding", "strength": 0.0}
    more = rows(script, world, "FedLocalSSL", 0, [0.61] * 4, **sealed)
    before: dict[str, Any] = {
        "stage": "leakage", "defense": "iso", "strength": 0.0, "phase": "pretrain",
        "attack": "model_completion", "target": "label", "advantage": 0.05,
    }  # fmt: skip
    more = [*rows(script, world, "FedLocalSSL", 0, [0.66] * 4, **before), *more]
    text = words.page(pd.concat([pd.DataFrame(more), found]), 4)
    assert f"| {world} | FedHSSL | HE | cannot: it sends embeddings that no" in text
    assert f"| {world} | FedLocalSSL | HE | 0.610 ± 0.000 | not observable |" in text
    assert f"| {world} | FedLocalSSL | HE | not measured | " in words.page(found, 4)
    assert f"| {world} | FedLocalSSL | 0.660 ± 0.000 | 0.050 ± 0.000 |" in text


def test_where_more_seeds_were_run_these_alone_count(script: Any) -> None:
    """Eight seeds say +0.1, six further ones -0.01."""
    words, claims, at = part(script, "words"), part(script, "claims"), "credit, served alone"
    (claim,) = (c for c in claims.CLAIMS if (c.better, c.worse) == ("FPD", "Local"))
    worse = np.asarray([0.700, 0.702] * 7)
    gain = np.asarray([0.1] * 8 + [-0.011, -0.009] * 3)
    made = rows(script, at, "Local", 0, list(worse)) + rows(
        script, at, "FPD", 0, list(worse + gain)
    )
    every = pd.DataFrame(made)
    assert words.effects(every, claim)[at].mean == pytest.approx(-0.01)
    assert words.effects(every[every.seed < 8], claim)[at].mean == pytest.approx(0.1)
    said = "were open after 8 seeds; 6 further ones were run, and these alone count there."
    assert said in words.page(every, 8)
    assert "further ones" not in words.page(every[every.seed < 8], 8)


@pytest.mark.slow
def test_seeds_for_open_claims_count_for_cap_and_not_for_leakage(script: Any) -> None:
    """The first four of eight and four further seeds are attacked; CAP takes the latter."""
    words, found, at = part(script, "words"), invented(script), "credit, 300 labels"
    leaks = found[(found.world == at) & (found.stage == "leakage")]
    task = (leaks.system == "FedHSSL") & (leaks.attack == "")
    fresh = leaks.assign(seed=leaks.seed + 8, value=leaks.value.where(~task, 0.5))
    both = pd.concat([found, fresh], ignore_index=True)
    (claim,) = (c for c in part(script, "claims").CLAIMS
                if c.figure == "cap" and c.worse == "FedLocalSSL")  # fmt: skip
    assert words.effects(found, claim)[at].mean == pytest.approx(0.05)
    assert words.effects(both, claim)[at].mean == pytest.approx(-0.05)

    few = found[(found.world != at) | (found.stage != "leakage") | (found.seed < 3)]
    main = rows(script, at, "FedHSSL", 0, [0.7] * 4)
    page = words.page(pd.concat([few, pd.DataFrame(main)]), 4)
    assert f"| {at} | FedHSSL (3 seeds) | none | 0.700 ± " in page

    def table(page: str) -> list[str]:
        return [line for line in page.splitlines() if line.startswith(f"| {at} | FedHSSL | none")]

    assert table(words.page(both, 4)) == table(words.page(found, 4)) != []


@pytest.mark.slow
def test_a_page_of_kept_figures_is_that_of_fresh_ones(script: Any, tmp_path: Path) -> None:
    """Encryption has no strength: its empty place must not turn the others' into words."""
    words, found = part(script, "words"), invented(script)
    sealed: dict[str, Any] = {"stage": "leakage", "defense": "he_embedding", "strength": np.nan}
    more = rows(script, "credit, 300 labels", "FedLocalSSL", 0, [0.61] * 4, **sealed)
    fresh = pd.concat([found, pd.DataFrame(more)], ignore_index=True)
    fresh.to_csv(tmp_path / "seeds.csv", index=False, lineterminator="\n")
    kept = script.read(tmp_path / "seeds.csv")
    assert kept.strength.dtype == np.float64
    assert words.page(kept, 4) == words.page(fresh, 4)


def test_a_difference_in_cap_is_the_sum_of_its_parts(script: Any) -> None:
    """U and A of .7 and .6 against .6 and .5, each seed with a shift of its own."""
    why, at = part(script, "why"), "credit, 300 labels"
    shift = np.asarray([0.0, 0.01, -0.01, 0.0])
    made = []
    for strength in (1.0, 5.0, 25.0):
        here: dict[str, Any] = {"stage": "leakage", "defense": "iso", "strength": strength}
        for system, u, a in (("FedHSSL", 0.7, 0.6), ("FedSplitNN", 0.6, 0.5)):
            made += rows(script, at, system, 0, list(u + shift), **here)
            attack = {**here, "attack": "model_completion", "metric": "accuracy"}
            made += rows(script, at, system, 0, list(a - shift), **attack)
    found = pd.DataFrame(made)
    cut = why.parts_of_cap(found, at, "FedHSSL", "FedSplitNN")
    whole = (0.7 + shift) * (0.4 + shift) - (0.6 + shift) * (0.5 + shift)
    assert cut.whole.tolist() == pytest.approx(whole)
    assert (cut.utility + cut.attack).tolist() == pytest.approx(whole)
    assert cut.utility.iloc[0] == pytest.approx(0.1 * 0.45)
    assert cut.attack.iloc[0] == pytest.approx(-0.1 * 0.65)
    text = part(script, "words").page(found, 4)
    assert f"| {at} | FedSplitNN | -0.020 [-0.020, -0.020] | +0.045 [" in text


@pytest.mark.slow
def test_why_not_is_told_of_what_was_tried(script: Any) -> None:
    words, claims = part(script, "words"), part(script, "claims")
    made = []
    for world, gain in (("credit, 200 aligned", -0.02), ("credit, 4,000 aligned", 0.03)):
        made += rows(script, world, "Local-A", 0, [0.70, 0.72, 0.71])
        made += rows(script, world, "VFLHLP", 0, [0.70 + gain, 0.72 + gain, 0.71 + gain])
    made += rows(script, "credit, served alone", "Local", 0, [0.70, 0.72, 0.71])
    made += rows(script, "credit, own labels", "Local", 0, [0.73, 0.71, 0.72])
    text = words.page(pd.DataFrame(made), 3)
    assert "| credit, 4,000 aligned | +0.030 [+0.030, +0.030] |" in text
    assert "| credit, 200 aligned | -0.020 [-0.020, -0.020] |" in text
    more = claims.WORLDS["credit, own labels"].words
    # Welch: standard error .01 sqrt(2/3), 4 degrees of freedom, quantile 2.776
    assert f"| {more} | 0.710 | 0.720 | +0.010 [-0.013, +0.033] |" in text
    assert "**Bytes of FedBCD.**" not in text
    sizes = {"FedSplitNN": [1e6, 4e6, 8e6], "FedBCD, Q = 5": [2e5, 1e6, 2e6]}
    text = words.page(counted(script, sizes), 4)
    assert "| credit, counted | 0.001 | 1/4.00 [1/4.00, 1/4.00] | 0 of 4 seeds |" in text
    assert "| credit, counted | 0.003 |" not in text


@pytest.mark.slow
def test_a_tiny_run_resumes(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three trials of a small world, then again from what is stored."""
    claims, run = part(script, "claims"), part(script, "run")
    tiny = {"hidden": [8], "cut": 4, "epochs": 2, "batch_size": 32, "lr": 0.01}
    data = {"name": "two_views", "params": {"rows": 200, "validation_rows": 50, "test_rows": 100,
                                            "classes": 2}, "labelled": 100}  # fmt: skip
    world = replace(claims.WORLDS["imitation"], data=data, shared=tiny)
    systems = {"Local": claims.System("local", {}, ({}, {"lr": 0.03}), audited=False),
               "JPL": claims.System("splitnn")}  # fmt: skip
    for module in (claims, run, part(script, "words"), script):
        monkeypatch.setitem(module.WORLDS, "imitation", world)
        monkeypatch.setitem(module.SYSTEMS, "jpl", systems)
        monkeypatch.delitem(module.WORLDS, "imitation, own labels", raising=False)
    monkeypatch.setattr(run, "BUILD", tmp_path / "build")
    monkeypatch.setattr(run, "ATTACKS", [{"name": "direction", "known_rows": 20}])
    monkeypatch.setattr(run, "DEFENSES", [{"name": "iso", "strength": [0.0, 5.0],
                                        "choice": "protection"}])  # fmt: skip
    given = ["--data", "imitation", "--seeds", "2", "--out", str(tmp_path), "--device", "cpu"]
    script.main(given)
    first = script.read(tmp_path / "seeds.csv")
    assert set(first.stage) == {"settings", "leakage"}
    assert len(first.groupby(["system", "setting", "stage"])) == 4
    assert (first[first.attack != ""].adversary == "passive").all()
    text = (tmp_path / "seeds.md").read_text(encoding="utf-8")
    assert "| JPL > Local | imitation (drawn) |" in text
    assert "| imitation | JPL | iso 5 |" in text
    assert re.search(r"\| imitation \| JPL \| HE \| 0\.\d+ ± ", text)
    stores = {p: p.stat().st_mtime_ns for p in (tmp_path / "build").rglob("results.parquet")}
    assert len(stores) == 4
    from vflsec.engine import cohort

    monkeypatch.setattr(cohort, "run_cohort", None)  # nothing is trained again
    script.main(given)
    pd.testing.assert_frame_equal(first, script.read(tmp_path / "seeds.csv"))
    script.main([*given, "--only-page"])
    assert (tmp_path / "seeds.md").read_text(encoding="utf-8") == text
