"""Accounting by execution: what the engine counts, what it finds past a policy, what is claimed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from sampled import sampled

from vflsec.algorithms._pooled import Pooled
from vflsec.core import accountants
from vflsec.core.policy import Guarantee
from vflsec.core.privacy_usage import Counter, Guarded, RunFacts, Uses, unguard
from vflsec.errors import PolicyError
from vflsec.plugins import registry
from vflsec.specs import CellSpec, DefenseSpec
from vflsec.testing import small_stack, small_task, train
from vflsec.testing.worlds import Trained
from vflsec.train.cohort import Training
from vflsec.train.loop import predict
from vflsec.train.mechanism_counts import collect_uses

QUICK = {"epochs": 3, "batch_size": 32, "patience": 0}
FEW = {"student_epochs": 10, "local_epochs": 4, "infer_epochs": 3}


def counted(
    algorithm: str, defense: str, party: str = "active", strength: float = 1.0,
    defense_params: dict[str, Any] | None = None, beside: dict[str, float] | None = None,
    **params: Any,
) -> tuple[Uses, Trained, Any]:  # fmt: skip
    """Counts of one defense (with others `beside` it at the same party) after a small training."""
    cls: Any = registry.algorithms.get(algorithm)
    world = dict(cls.world)
    task = world.pop("task", {})
    known = registry.list_parameters(cls)
    settings = {k: v for k, v in {**world, **QUICK, **params}.items() if k in known}
    on = torch.full((2,), strength, dtype=torch.float64)
    policy = registry.defenses.create(defense, defense_params or {})
    bound = {party: [(policy, on)]}
    for name, s in (beside or {}).items():
        bound[party].append((registry.defenses.create(name), torch.full_like(on, s)))
    trained = train(cls(**settings), small_stack([0, 0], **task), [0, 0], bound)
    return collect_uses(trained.fed, policy, 0), trained, policy


@pytest.mark.parametrize(
    ("algorithm", "least", "past"),
    sampled([("splitnn", 3, 0), ("jpl", 83, 1), ("fedcvt", 27, 1), ("fpd", 23, 0),
             ("fewshot", 29, 0), ("fedbcd", 15, 0), ("oneshot", 12, 0), ("vflhlp", 6, 0),
             ("fedhssl", 3, 0), ("ushaped", 3, 0), ("apcvfl", 3, 0)], every=3),
)  # fmt: skip
def test_uses_of_a_label_by_row(algorithm: str, least: int, past: int) -> None:
    """Three epochs are three uses in splitnn alone; labels that bypass the loss end the claim."""
    uses, _, policy = counted(algorithm, "gradperturb")
    if algorithm in ("jpl", "fedcvt", "fpd"):  # rows drawn with replacement
        assert uses.most >= least
    else:
        assert uses.most == least
    assert len(uses.past) == past
    made = policy.guarantee(1.0, RunFacts(uses=uses))
    if past:
        assert made.epsilon is None
        assert "outside the loss" in made.reason
    else:
        assert made.epsilon == pytest.approx(uses.most)
        assert made.releases == uses.most


@pytest.mark.parametrize(
    ("algorithm", "messages"),
    sampled([("splitnn", 3), ("fedcvt", 26), ("fedhssl", 5), ("fedcssl", 5), ("fpd", 4), ("jpl", 4),
             ("apcvfl", 1)], every=3),
)  # fmt: skip
def test_messages_of_a_training_row(algorithm: str, messages: int) -> None:
    uses, _, policy = counted(algorithm, "embedding_noise", "passive1")
    assert uses.most >= messages if algorithm == "fedcvt" else uses.most == messages
    made = policy.guarantee(1.0, RunFacts(uses=uses))
    assert made.epsilon == pytest.approx(accountants.gaussian(0.5, uses.most, 1e-5).epsilon)


def test_gradients_that_a_middle_party_returns_end_its_claim_of_embeddings() -> None:
    """In ushaped they are made with its columns, so they carry a row past the noise."""
    uses, _, policy = counted("ushaped", "embedding_noise", "passive1")
    assert uses.past == ("gradient messages carry the row past it",)
    assert policy.guarantee(1.0, RunFacts(uses=uses)).epsilon is None


def test_26_messages_are_not_three() -> None:
    """The published epochs as releases against what is counted, at strength 1."""
    policy = registry.defenses.create("embedding_noise")
    found = [policy.guarantee(1.0, RunFacts(uses=Uses(n))).epsilon for n in (3, 26)]
    assert found == [pytest.approx(20.1, abs=0.05), pytest.approx(94.7, abs=0.05)]


def test_validation_rows_have_a_message_an_epoch_and_one_at_inference() -> None:
    _, trained, policy = counted("splitnn", "embedding_noise", "passive1")
    fed = trained.fed
    predict(trained.algorithm, fed, fed.stack.rows("validation"))
    assert collect_uses(fed, policy, 0).most == QUICK["epochs"] + 1
    (binding,) = fed.parties["passive1"].bindings
    assert binding.own.uses is not None
    total = binding.own.uses.total()
    assert total.gather(1, fed.stack.rows("validation")).unique().tolist() == [4]
    assert total.gather(1, fed.stack.rows("labelled")).unique().tolist() == [3]
    assert total.gather(1, fed.stack.rows("test")).unique().tolist() == [0]


def test_validation_labels_in_vertical_students() -> None:
    uses, _, _ = counted("fpd", "gradperturb")
    assert uses.phases["validation"] == 13  # 3 of the teacher, 10 of the student


def test_lp_mst_trains_twice_and_every_training_is_seen() -> None:
    on = torch.ones(2, dtype=torch.float64)
    first, second = registry.defenses.create("lp_mst"), registry.defenses.create("embedding_noise")
    algorithm = registry.algorithms.create("splitnn", QUICK)
    bound = {"active": [(first, on)], "passive1": [(second, on)]}
    trained = train(algorithm, small_stack([0, 0]), [0, 0], bound)
    fed = trained.fed
    predict(trained.algorithm, fed, fed.stack.rows("validation"))
    assert collect_uses(fed, second, 0).most == 7  # 3 of each training, 1 at inference
    assert collect_uses(trained.fed, first, 0).most == 1
    made = first.guarantee(1.0, RunFacts(uses=collect_uses(trained.fed, first, 0)))
    assert (made.epsilon, made.releases) == (1.0, 1)


def test_mixup_makes_every_message_a_use_of_two_rows() -> None:
    for share, messages in ((0.0, 3), (0.3, 6)):
        uses, _, _ = counted(
            "splitnn", "noise", beside={"mixup": share}, defense_params={"clip": 1.0}
        )
        assert uses.phases["train"] == messages


def test_what_early_stopping_left_out_counts() -> None:
    """It stops when it has seen the data, so the claim composes over the planned epochs."""
    uses, trained, _ = counted("splitnn", "gradperturb", epochs=30, patience=1, lr=0.3)
    ran = trained.fed.epochs["train"][0]
    assert ran < 30
    assert uses.counted == ran
    assert uses.most == 30


@pytest.mark.parametrize("by", ["loss", "auc"])
def test_selection_by_auc_uses_validation_labels_past_gradperturb(by: str) -> None:
    uses, _, policy = counted("splitnn", "gradperturb", select_by=by)
    assert (policy.guarantee(1.0, RunFacts(uses=uses)).epsilon is None) == (by == "auc")


def test_another_loss_before_gradperturb_ends_its_claim() -> None:
    on = torch.full((2,), 0.3, dtype=torch.float64)
    mixup, policy = registry.defenses.create("mixup"), registry.defenses.create("gradperturb")
    bound = {"active": [(mixup, on), (policy, on)]}
    trained = train(
        registry.algorithms.create("splitnn", QUICK), small_stack([0, 0]), [0, 0], bound
    )
    made = policy.guarantee(1.0, RunFacts(uses=collect_uses(trained.fed, policy, 0)))
    assert made.epsilon is None
    assert "another loss" in made.reason


def test_a_policy_that_reads_labels_ends_the_claim_of_the_loss_beside_it() -> None:
    uses, _, _ = counted("splitnn", "gradperturb", beside={"marvell": 1.0})
    assert uses.past == ("labels are computed with outside the loss",)


def test_guarded_labels_tell_on_use_but_not_on_shape() -> None:
    counter = Counter(1, 4)
    y = Guarded.over(torch.tensor([[0, 1, 1]]), torch.tensor([[0, 2, 3]]), (counter,))
    assert (y.dim(), y.shape, y.dtype, y.device.type) == (2, (1, 3), torch.int64, "cpu")
    assert type(unguard(y)) is torch.Tensor
    assert counter.past == []
    found = torch.cat([y, y])
    assert type(found) is torch.Tensor
    assert found.tolist() == [[0, 1, 1], [0, 1, 1]]
    assert counter.past == ["labels are computed with outside the loss"]


def test_nothing_counted_nothing_claimed() -> None:
    for name in registry.defenses.entries():
        policy = registry.defenses.create(name)
        found = policy.guarantee(1.0, RunFacts(epochs=5, labelled=100, batch_size=10))
        assert found.epsilon is None, name
        assert found.sentence()


def test_pooled_references_key_models_by_replica_and_refuse_hooks_that_nobody_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every strength has its own labels; a policy of messages or losses would protect nothing."""
    task = small_task(0)
    cells = [
        CellSpec({"name": "small"}, "pooled_logistic", {}, (DefenseSpec("label_dp", strength=s),))
        for s in (0.0, 1e3)
    ]

    def right() -> list[float]:
        training = Training(cells, (), {0: task}, torch.device("cpu"))
        (moment,) = list(training.run())
        rows, logits = moment.predictions["test"]
        truth = torch.stack([task.y, task.y]).gather(1, rows)
        return (logits.argmax(2) == truth).double().mean(1).tolist()  # type: ignore[no-any-return]

    own = right()
    assert own[0] > 0.85
    assert own[1] < 0.75  # labels at epsilon 0.001 are coins
    with monkeypatch.context() as m:  # one model for all strengths of a seed
        m.setattr(Pooled, "_same", staticmethod(lambda fed, y, rows, q, r: True))
        assert right() == [own[0], own[0]]
    for name in ("gradperturb", "noise", "dpsgd", "lp_mst"):
        one = CellSpec({"name": "small"}, "pooled_logistic", {}, (DefenseSpec(name, strength=1.0),))
        with pytest.raises(PolicyError, match=f"^{name}: does nothing under pooled_logistic"):
            list(Training([one, one], (), {0: task}, torch.device("cpu")).run())


def test_a_claim_is_one_sentence_of_its_values() -> None:
    made = Guarantee(
        "label", 2.0, 1e-5, "an accountant", 4, "a label", "its replacement", "everybody",
        "4 messages", "the models", "all parties run it", "features", "",
    )  # fmt: skip
    assert made.sentence() == (
        "Epsilon 2, delta 1e-05 of a label under its replacement, against everybody, composed over "
        "4 messages, given the models, provided that all parties run it (an accountant). Not "
        "covered: features."
    )
    assert Guarantee(reason="it is off").sentence() == "No epsilon is claimed: it is off."
    assert made.state().says == made.sentence()


@pytest.mark.parametrize("defense", sampled(["gradperturb", "embedding_noise"]))
@pytest.mark.parametrize(
    "algorithm",
    sampled(["splitnn", "jpl", "fedcvt", "fpd", "fewshot", "fedbcd", "oneshot", "vflhlp",
             "fedhssl", "ushaped", "apcvfl"], every=8),
)  # fmt: skip
def test_the_plan_predicts_what_the_run_counts(algorithm: str, defense: str) -> None:
    """Exactly where every step is planned; as a bound where rows are drawn with replacement."""
    cls: Any = registry.algorithms.get(algorithm)
    world = dict(cls.world)
    task = small_task(0, **world.pop("task", {}))
    known = registry.list_parameters(cls)
    params = {k: v for k, v in {**world, **QUICK}.items() if k in known}
    cells = [CellSpec({"name": "small"}, algorithm, params, (DefenseSpec(defense, strength=1.0),))]
    made = Training(cells * 2, (), {0: task}, torch.device("cpu"))
    expected = dict(made.rehearse()[1])
    made = Training(cells * 2, (), {0: task}, torch.device("cpu"))
    for _ in made.run():
        pass
    uses = collect_uses(made.fed, made.defenses[0], 0)
    found = made.guarantee(made.defenses[0], 1.0, 0)
    said = expected[defense]
    assert (said.epsilon is None) == (found.epsilon is None) == bool(uses.past)
    if found.epsilon is None:
        return
    if algorithm in ("fedcvt", "fpd", "jpl") and uses.most > 4:
        assert uses.most <= said.releases <= 2.5 * uses.most
    else:
        assert said.releases == uses.most


def test_a_count_beyond_the_plan_withdraws_the_claim() -> None:
    from vflsec.epsilon.measured_claims import check_planned

    profile = ((2.0, 0.0),)
    made = Guarantee("label", 2.0, releases=7, reason="", profile=profile).state("noise", 1.0)
    (kept,) = check_planned([made], {"noise": 7})
    assert kept == replace(made, planned=7)
    assert kept.hits
    (gone,) = check_planned([made], {"noise": 6})
    assert gone == Guarantee(reason="7 uses of a row, 6 planned").state("noise", 1.0, planned=6)
    assert (gone.epsilon, gone.hits) == (None, ())
