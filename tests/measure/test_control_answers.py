"""Which controls stand beside which attack, and the same attack on the untrained bottom."""

from __future__ import annotations

from vflsec.engine.cohort import run_cohort
from vflsec.specs import AttackSpec, CellSpec, DefenseSpec, Measure
from vflsec.testing import small_task


def auc(lr: float, attacks: list[AttackSpec]) -> dict[str, Measure]:
    """The AUC on training rows by attack, and the figures of its controls."""
    tasks = {s: small_task(s, n=300, widths=(3, 6)) for s in (0, 1)}
    params = {"epochs": 2, "cut": 4, "lr": lr}
    cells = [CellSpec({"name": "s"}, "splitnn", params, seed=s) for s in tasks]
    (result, _) = run_cohort(cells, attacks, tasks, device="cpu")
    return {m.attack: m for m in result.measures if m.metric == "auc" and m.split == "train"}


SPECTRAL = AttackSpec("spectral", {"on": "embedding", "orient": "known"}, ("passive1",))


def test_the_same_attack_on_the_untrained_bottom_is_a_control_of_attacks_on_the_bottom() -> None:
    found = auc(1e-2, [SPECTRAL, AttackSpec("norm", adversary=("passive1",))])
    own = {"majority", "scratch", "logistic", "logistic(C=0.001)", "principal", "trees"}
    spectral, norm = (m.controls for m in found.values() if m.attack)
    assert own | {"untrained"} <= set(spectral)
    assert own <= set(norm)
    assert "untrained" not in norm  # gradients take a federation


def test_where_training_changes_nothing_the_untrained_bottom_is_the_bottom() -> None:
    still = next(m for a, m in auc(1e-30, [SPECTRAL]).items() if a)
    assert still.controls["untrained"]["value"] == still.value
    moved = next(m for a, m in auc(1e-2, [SPECTRAL]).items() if a)
    assert moved.controls["untrained"]["value"] == still.value
    assert moved.value != still.value


def test_randomised_labels_bring_a_control_of_their_own() -> None:
    tasks = {s: small_task(s, n=300, widths=(3, 6)) for s in (0, 1)}
    norm = AttackSpec("norm", adversary=("passive1",))
    for strength, there in ((1.0, True), (0.0, False)):
        defense = (DefenseSpec("label_dp", strength=strength),)
        cells = [
            CellSpec({"name": "s"}, "splitnn", {"epochs": 2, "cut": 4}, defense, s) for s in tasks
        ]
        (result, _) = run_cohort(cells, [norm], tasks, device="cpu")
        (found,) = [m for m in result.measures if m.attack and m.metric == "auc"]
        assert ("randomised" in found.controls) is there
