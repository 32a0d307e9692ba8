"""Scenarios that inherit, share, sweep and have forms: what comes out, what is refused where."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from sampled import sampled

from vflsec import load_scenario, make_plan
from vflsec.config.problems import Problem, ScenarioError
from vflsec.config.scenario import packaged_scenarios
from vflsec.plugins import registry

BASE = """\
name = "the base"

[data]
name = "leaky"

[shared.algorithm]
epochs = 3
hidden = [8]

[[algorithm]]
name = "splitnn"

[audit]
seeds = 2
references = []
"""
CHILD = """\
extends = "base.toml"

[shared.algorithm]
hidden = [4]

[[algorithm]]
name = "vflhlp"
epochs = 5

[grid.algorithm.vflhlp]
beta = [0.1, 1.0]
cut = [4, 8]

[forms.paper.shared.algorithm]
hidden = [64]

[forms.paper.audit]
seeds = 5
"""


def folder(tmp_path: Path, **texts: str) -> Path:
    for name, text in {"base": BASE, "child": CHILD, **texts}.items():
        (tmp_path / f"{name}.toml").write_text(text, encoding="utf-8")
    return tmp_path


def sections(path: Path | str, *overrides: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = load_scenario(path, overrides).resolved()["algorithm"]
    return found


def problems(path: Path, *overrides: str) -> tuple[Problem, ...]:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path, overrides)
    return caught.value.problems


def test_a_child_replaces_lists_and_merges_tables(tmp_path: Path) -> None:
    where = folder(tmp_path)
    loaded = load_scenario(where / "child.toml")
    assert loaded.name == "child"
    assert loaded.root.data[0].name == "leaky"
    assert loaded.root.audit.seeds == [0, 1]
    shared = {"name": "vflhlp", "epochs": 5, "hidden": [4]}
    assert sections(where / "child.toml") == [
        {**shared, "beta": b, "cut": c} for b in (0.1, 1.0) for c in (4, 8)
    ]
    assert sections(where / "base.toml") == [{"name": "splitnn", "epochs": 3, "hidden": [8]}]


def test_the_resolved_file_is_flat_and_has_the_hash_of_the_flat_one(tmp_path: Path) -> None:
    where = folder(tmp_path)
    loaded = load_scenario(where / "child.toml")
    text = loaded.to_toml()
    for word in ("extends", "shared", "grid", "forms", "form ="):
        assert word not in text
    (where / "child.toml").write_text(text, encoding="utf-8")
    again = load_scenario(where / "child.toml")
    assert again.hash == loaded.hash
    assert again.resolved() == loaded.resolved()


def test_a_form_is_laid_over_and_reduced_is_the_file_itself(tmp_path: Path) -> None:
    path = folder(tmp_path) / "child.toml"
    paper = load_scenario(path, ["form=paper"])
    assert {tuple(s["hidden"]) for s in sections(path, "form=paper")} == {(64,)}
    assert len(paper.root.audit.seeds) == 5
    assert load_scenario(path, ["form=reduced"]).hash == load_scenario(path).hash
    assert load_scenario(path, ['form="paper"']).hash == paper.hash
    written = CHILD.replace("extends", 'form = "paper"\nextends')
    assert load_scenario(folder(tmp_path, child=written) / "child.toml").hash == paper.hash
    (found,) = problems(path, "form=papr")
    assert (found.file, found.path) == ("--set", "form")
    assert "must be one of reduced, paper, got 'papr'. Did you mean 'paper'?" in found.rule


def test_a_form_may_be_laid_over_another(tmp_path: Path) -> None:
    more = '[forms.large]\nform = "paper"\n[forms.large.shared.algorithm]\ncut = 32\n'
    path = folder(tmp_path, child=CHILD.replace("cut = [4, 8]\n", "") + more) / "child.toml"
    found = {(*s["hidden"], s["cut"]) for s in sections(path, "form=large")}
    assert found == {(64, 32)}
    assert len(load_scenario(path, ["form=large"]).root.audit.seeds) == 5
    (wrong,) = problems(
        folder(tmp_path, child=CHILD + more.replace('"paper"', '"large"')) / "child.toml",
        "form=large",
    )
    assert (Path(wrong.file).name, wrong.path, wrong.value) == (
        "child.toml",
        "forms.large.form",
        "large",
    )


def test_overrides_count_sections_as_written(tmp_path: Path) -> None:
    path = folder(tmp_path) / "child.toml"
    assert {s["epochs"] for s in sections(path, "algorithm.0.epochs=7")} == {7}
    assert {tuple(s["hidden"]) for s in sections(path, "shared.algorithm.hidden=[2]")} == {(2,)}
    assert len(sections(path, "grid.algorithm.vflhlp.beta=[1]")) == 2
    (found,) = problems(path, "algorithm.0.epochs=-1")
    assert (found.file, found.path, found.value) == ("--set", "algorithm.0.epochs", -1)


def test_selectors_are_names_indices_and_all(tmp_path: Path) -> None:
    text = BASE.replace('name = "splitnn"', 'name = "splitnn"\n[[algorithm]]\nname = "fedbcd"')
    text += '[grid.algorithm."*"]\nlr = [0.1, 0.2]\n[grid.algorithm.1]\ncut = [3]\n'
    text += "[grid.data.leaky.params]\nrows = [400, 500]\n"
    path = folder(tmp_path, base=text) / "base.toml"
    found = [(s["name"], s["lr"], s.get("cut")) for s in sections(path)]
    assert found == [
        ("splitnn", 0.1, None), ("splitnn", 0.2, None), ("fedbcd", 0.1, 3), ("fedbcd", 0.2, 3),
    ]  # fmt: skip
    assert [d.params for d in load_scenario(path).root.data] == [{"rows": 400}, {"rows": 500}]


REFUSED = {  # (base, child) -> (file, line, path, in the rule)
    "no such file": ("", 'extends = "bsae.toml"', "child.toml", 1, "extends", "must be a path"),
    "no text": ("", "extends = 3", "child.toml", 1, "extends", "got 3"),
    "circle": ('extends = "child.toml"\n' + BASE, CHILD, "base.toml", 1, "extends",
               "child.toml -> base.toml -> child.toml"),
    "broken base": (BASE + "seeds =", CHILD, "base.toml", 16, "", "not valid TOML"),
    "value in the base": (BASE.replace("seeds = 2", "seeds = true"), CHILD, "base.toml", 14,
                          "audit.seeds", "got True"),
    "unknown key in the base": (BASE.replace("references", "refrences"), CHILD, "base.toml", 15,
                                "audit.refrences", "Did you mean 'references'?"),
    "shared value of the child": (BASE, CHILD.replace("hidden = [4]", "hidden = [-4]"),
                                  "child.toml", 4, "shared.algorithm.hidden", "integer >= 1"),
    "shared value of the base": (BASE.replace("epochs = 3", 'dropout = "a"'), CHILD, "base.toml",
                                 7, "shared.algorithm.dropout", "must be of type float"),
    "shared section": (BASE, CHILD.replace("[shared.algorithm]", "[shared.algorithms]"),
                       "child.toml", 3, "shared.algorithms", "Did you mean 'algorithm'?"),
    "swept value": (BASE, CHILD.replace("1.0]", "-1.0]"), "child.toml", 11,
                    "grid.algorithm.vflhlp.beta.1", "a finite number >= 0, got -1.0"),
    "swept unknown": (BASE, CHILD.replace("beta =", "bta ="), "child.toml", 11,
                      "grid.algorithm.vflhlp.bta.0", "Did you mean 'beta'?"),
    "swept one value": (BASE, CHILD.replace("[0.1, 1.0]", "0.1"), "child.toml", 11,
                        "grid.algorithm.vflhlp.beta", "must be a list of values"),
    "swept nothing": (BASE, CHILD.replace("[0.1, 1.0]", "[]"), "child.toml", 11,
                      "grid.algorithm.vflhlp.beta", "must be a list of values"),
    "swept twice": (BASE, CHILD.replace("[0.1, 1.0]", "[1.0, 1.0]"), "child.toml", 11,
                    "grid.algorithm.vflhlp.beta", "must not repeat a value"),
    "swept and set": (BASE, CHILD.replace("epochs = 5", "beta = 5.0"), "child.toml", 11,
                      "grid.algorithm.vflhlp.beta", "is also set in [[algorithm]] 0"),
    "swept by two": (BASE, CHILD.replace("[grid", "[grid.algorithm.0]\ncut = [3]\n[grid"),
                     "child.toml", 14, "grid.algorithm.vflhlp.cut", "is swept twice"),
    "no such section": (BASE, CHILD.replace("algorithm.vflhlp", "algorithm.vflhp"), "child.toml",
                        10, "grid.algorithm.vflhp", "Did you mean 'vflhlp'?"),
    "swept defenses": (BASE, CHILD.replace("grid.algorithm.vflhlp", "grid.defense.iso"),
                       "child.toml", 10, "grid.defense", "must be one of data, algorithm, attack"),
    "no tables": (BASE, CHILD[: CHILD.index("[forms")] + "[forms]\npaper = 1\n", "child.toml", 14,
                  "forms", "[forms.NAME]"),
    "a form's value": (BASE, CHILD.replace("[64]", "[0]") + '[data]\n', "child.toml", 15,
                       "forms.paper.shared.algorithm.hidden", "integer >= 1"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_mistakes_have_file_line_and_key(case: str, tmp_path: Path) -> None:
    base, child, file, line, path, rule = REFUSED[case]
    where = folder(tmp_path, base=base or BASE, child=child)
    overrides = ["form=paper"] if case == "a form's value" else []
    found = problems(where / "child.toml", *overrides)
    first = next(p for p in found if p.path == path)
    assert (Path(first.file).name, first.line) == (file, line), str(first)
    assert rule in first.rule


@pytest.mark.parametrize("name", sorted(packaged_scenarios()))
def test_every_packaged_scenario_has_forms_that_load(name: str) -> None:
    load_scenario(name, ["form=reduced"], components=False)


PAPERS = {
    "FedHSSL": {
        "IV and X, FedCVT": "fedhssl_fedcvt",
        "IV": "fedhssl_table4", "V": "fedhssl_table5", "VI": "fedhssl_table6",
        "VII": "fedhssl_table7", "IX": "fedhssl_table9", "X": "fedhssl_table10",
        "XI": "fedhssl_table11", "XII": "fedhssl_table12", "figure 6": "fedhssl_figure6",
        "figure 7": "fedhssl_figure7", "figure 8": "fedhssl_figure8",
    },
    "VFLHLP": {
        "2": "vflhlp_table2", "3": "vflhlp_table3", "4": "vflhlp_table4",
        "figure 5": "vflhlp_figure5",
    },
    "one-shot VFL": {
        "1": "oneshot_table1", "bytes": "oneshot_bytes", "credit": "oneshot_credit",
    },
    "JPL": {"2 and figure 3": "jpl_figure3"},
}  # fmt: skip
"""By paper the scenario of each table and figure of measured results that is known here."""


@pytest.mark.parametrize("name", [n for tables in PAPERS.values() for n in tables.values()])
def test_every_table_of_the_papers_has_a_form_with_its_data(name: str) -> None:
    paper = load_scenario(name, ["form=paper"])
    assert paper.hash != load_scenario(name, components=False).hash
    for data in paper.root.data:  # published sets, or a file of theirs
        assert data.name in {"avazu", "criteo", "cifar10"} or data.file in {
            "avazu_120k.csv", "default_of_credit_card_clients.csv",
        }  # fmt: skip
    for form in ("nuswide", "bhi", "modelnet") if name.startswith("fedhssl") else ():
        if (name, form) != ("fedhssl_fedcvt", "modelnet"):  # of four parties
            other = load_scenario(name, [f"form={form}"]).root.data
            assert [d.name for d in other] == [form] * len(paper.root.data)
            assert [d.aligned for d in other] == [d.aligned for d in paper.root.data]
    packaged = {n for n in packaged_scenarios() if re.search("_(table|figure)[0-9]+$", n)}
    assert packaged <= {n for tables in PAPERS.values() for n in tables.values()}


SYSTEMS = {
    "fedhssl_table4": {"fedcssl", "fedlocal_ssl", "fedhssl"},
    "fedhssl_table10": {"fedcssl", "fedlocal_ssl", "fedhssl"},
    "fedhssl_fedcvt": {"fedcvt"},
    "vflhlp_table2": {"splitnn", "local", "vflhlp"},
    "vflhlp_table3": {"splitnn", "local", "vflhlp"},
    "vflhlp_table4": {"splitnn", "local", "fedlocal_ssl", "fedhssl", "vflhlp"},
    "vflhlp_figure5": {"splitnn", "local", "vflhlp"},
    "oneshot_table1": {"splitnn", "fedbcd", "fedcvt", "oneshot", "fewshot"},
    "oneshot_credit": {"splitnn", "fedbcd", "fedcvt", "oneshot", "fewshot"},
    "jpl_figure3": {"splitnn", "local", "fpd", "jpl"},
}
"""What the papers compare in each of their main tables."""
CHOICES = {
    "vflhlp_table2": {"own_labels": {True}, "scarf": {True, False}, "constrain": {True, False}},
    "vflhlp_figure5": {"own_labels": {True}, "scarf": {True, False}, "constrain": {True, False}},
    "oneshot_table1": {"finetune": {True, False}},
    "oneshot_credit": {"finetune": {True, False}},
    "jpl_figure3": {"own_labels": {True}},
    "fedhssl_table4": {"ssl": {"simsiam", "byol", "moco"}, "lr": {0.005, 0.01, 0.03}},
    "fedhssl_table10": {"ssl": {"simsiam", "byol", "moco"}, "lr": {0.005, 0.01, 0.03}},
}
"""What differs between systems of one name there."""


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_table_has_every_system_that_its_paper_compares(name: str) -> None:
    """FedCVT may stand in a form of its own, for it has two parties and other settings."""
    asked = ["form=paper"]
    if "[[forms.fedcvt" in packaged_scenarios()[name].read_text(encoding="utf-8"):
        asked.append("form=fedcvt")
    found = [s for form in asked for s in sections(name, form)]
    assert {s["name"] for s in found} >= SYSTEMS[name]
    for key, wanted in CHOICES.get(name, {}).items():
        own = {s.get(key, getattr(registry.algorithms.get(s["name"]), key, None)) for s in found}
        assert own >= wanted, key
    if name in ("fedhssl_table4", "fedhssl_table10"):
        references = load_scenario(name, ["form=paper"]).root.audit.references
        assert {"logistic", "boosting"} <= set(references)


def test_momentum_contrast_has_its_width_in_the_papers_sizes() -> None:
    wide = {
        (s["ssl"], registry.algorithms.create(s.pop("name"), s).projector_out)
        for s in sections("fedhssl_table4", "form=paper")
    }
    assert wide == {("simsiam", 512), ("byol", 512), ("moco", 128)}


def test_the_lift_of_jpl_is_over_fpd_in_both_forms() -> None:
    for form in ("reduced", "paper"):
        assert load_scenario("jpl_figure3", [f"form={form}"]).root.audit.baseline == "fpd"


NETWORK: dict[str, dict[str, Any]] = {
    "fedhssl_table7": {
        "ssl": "simsiam", "hidden": [64], "cut": 64, "projector_hidden": 64, "projector_out": 64,
        "predictor_hidden": 16, "pretrain_iterations": 5, "pretrain_batch_size": 128,
        "pretrain_lr": 0.2, "batch_size": 64, "epochs": 40, "patience": 10,
    },
    "vflhlp_table3": {"hidden": [64], "cut": 16, "lr": 0.003, "epochs": 40},
}  # fmt: skip
LONGHAND: dict[str, dict[str, Any]] = {
    "fedhssl_table7": {
        "data": [{"name": "digits", "labelled": 200, "aligned": 0.2}],
        "algorithm": [{"name": "fedlocal_ssl"}, {"name": "fedhssl"}],
        "defense": [{"name": "iso", "phase": "finetune", "strength": [0, 1, 5, 25]}],
        "attack": [{"name": "model_completion", "known_rows": 80,
                    "variants": ["logistic", "finetune"]}],
        "audit": {"seeds": 5, "references": []},
    },
    "vflhlp_table3": {
        "data": [{"name": "control_gaussian", "aligned": 100, "validation": 0.04},
                 {"name": "control_gaussian", "aligned": 400, "validation": 0.1}],
        "algorithm": [
            {"name": "splitnn"}, {"name": "local", "own_labels": True},
            {"name": "vflhlp", "beta": 0.1}, {"name": "vflhlp", "beta": 0.1, "scarf": False},
            {"name": "vflhlp", "constrain": False},
        ],
        "attack": [{"name": "model_completion", "known_rows": 20}, {"name": "direction"}],
        "audit": {"references": ["local"]},
    },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(LONGHAND))
def test_short_scenarios_plan_the_cells_of_their_longhand(name: str) -> None:
    """Every section with every setting, as these files were written before they could share."""
    long = dict(LONGHAND[name])
    long["algorithm"] = [{**NETWORK[name], **s} for s in long["algorithm"]]
    short, full = load_scenario(name), load_scenario({**long, "name": name})
    assert short.hash == full.hash
    keys = [[c.key for g in make_plan(s).groups for c in g.cells] for s in (short, full)]
    assert keys[0] == keys[1]
    assert len(keys[0]) > 10
