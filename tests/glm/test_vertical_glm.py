"""A regression with a coordinator is the pooled one, and what crosses is what the protocol says."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from sampled import sampled
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge

from vflsec.algorithms.vertical_glm import COORDINATOR, Regression, VerticalGlm, add_ones
from vflsec.core.rng import numpy_generator
from vflsec.label import Classes, Counts, Label, MultiLabel, Quantity
from vflsec.plugins import registry
from vflsec.testing import small_stack, train

CUTS = [(5,), (1,), (9,), (3, 6), (2, 4, 8), (0, 5), (1, 2, 3, 4, 5, 6, 7, 8, 9)]
KINDS = ("two", "three", "quantity", "counts", "several")


@dataclass
class Kept:
    """Keeps every message of training; masks as it is told."""

    rows: np.ndarray
    masks: Any = None
    least: int = 1
    sent: list[tuple[str, str, str, str, np.ndarray, int]] = field(default_factory=list)
    derived: list[tuple[str, np.ndarray]] = field(default_factory=list)

    def rng(self, *names: object) -> np.random.Generator:
        return numpy_generator(0, *names)

    def mask(self, party: str, values: np.ndarray, *names: object) -> Any:
        return None if self.masks is None else self.masks(values, self.rng(party, *names))

    def find_least_rows(self, columns: int) -> int:
        return self.least * columns

    def send(self, kind: str, sender: str, receiver: str, payload: Any, rows: Any = None, *,
             name: str = "", step: int = 0, phase: str = "") -> None:  # fmt: skip
        self.sent.append((kind, sender, receiver, name, np.array(payload), step))

    def derive(self, kind: str, sender: str, receiver: str, payload: Any, rows: Any = None, *,
               step: int = 0) -> None:  # fmt: skip
        if kind != "derivative":  # which only the coordinator's key opens
            self.derived.append((receiver, np.array(payload)))


def make_labels(kind: str, x: np.ndarray) -> tuple[Label, np.ndarray]:
    """A kind of label, and labels that columns of the first and the last party say."""
    rng = np.random.default_rng(1)
    value = x[:, 0] + x[:, 9] + 0.5 * rng.normal(size=len(x))
    if kind == "two":
        return Classes(2), (value > 0).astype(np.int64)
    if kind == "three":
        return Classes(3), np.digitize(value, [-0.7, 0.7])
    if kind == "quantity":
        return Quantity(), value[:, None]
    if kind == "counts":
        return Counts(), rng.poisson(np.exp(0.4 * value[:, None])).astype(float)
    return MultiLabel(("a", "b")), (x[:, [0, 9]] > 0).astype(float)


def fit(
    kind: str = "two", cuts: tuple[int, ...] = (), *, wire: Any = None, n: int = 300, **params: Any
) -> Regression:
    """Train on a table of 10 columns that is cut into parties before these places."""
    x = np.random.default_rng(0).normal(size=(n, 10))
    label, y = make_labels(kind, x)
    parts = {f"p{k}": part for k, part in enumerate(np.split(x, list(cuts), axis=1))}
    made = VerticalGlm(**{"batch_size": 64, **params})
    of = Regression(made, wire or Kept(np.arange(n)), add_ones(parts), label, y)
    for _ in range(made.epochs):
        of.take_round()
    return of


def stack(of: Regression) -> np.ndarray:
    """All coefficients in the order of the columns, the intercept last."""
    first, *others = of.weights.values()
    return np.concatenate([first[:-1], *others, first[-1:]])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("derivative", sampled(["exact", "taylor"]))
def test_any_cut_is_pooled_training(kind: str, derivative: str) -> None:
    pooled = fit(kind, derivative=derivative)
    for cuts in CUTS:
        cut = fit(kind, cuts, derivative=derivative)
        assert np.abs(stack(pooled) - stack(cut)).max() <= 1e-12, cuts
        rows = np.arange(300)
        assert np.abs(pooled.predict(rows) - cut.predict(rows)).max() <= 1e-12
    assert np.abs(stack(pooled)).max() > 0.1


@pytest.mark.parametrize(("kind", "oracle"), [
    ("two", LogisticRegression(C=1 / (300 * 0.05), tol=1e-10, max_iter=5000)),
    ("three", LogisticRegression(C=1 / (300 * 0.05), tol=1e-10, max_iter=5000)),
    ("quantity", Ridge(alpha=300 * 0.05)),
    ("counts", PoissonRegressor(alpha=0.05, tol=1e-10, max_iter=5000)),
])  # fmt: skip
def test_it_is_the_regression_of_scikit_learn(kind: str, oracle: Any) -> None:
    """Trained to the end on whole batches, to 1e-6."""
    of = fit(kind, (4,), derivative="exact", batch_size=0, epochs=1500, rate=0.4, l2=0.05)
    x = np.random.default_rng(0).normal(size=(300, 10))
    y = make_labels(kind, x)[1]
    oracle.fit(x, y.ravel())
    weights = np.reshape(oracle.coef_, (-1, 10)).T
    assert np.abs(stack(of)[:-1] - weights).max() < 1e-6


def test_taylor_is_the_expansion_of_the_derivative() -> None:
    """f / 4 + 1 / 2 - y of two classes, which Hardy et al. write as f / 4 - t / 2 with t = 2y - 1;
    its error is of third order."""
    y = np.array([0, 1, 0, 1])
    f = np.array([[-1.0], [0.3], [0.01], [2.0]])
    found = Classes(2).compute_derivative(f, y, taylor=True)
    assert np.allclose(found, f / 4 - (2 * y[:, None] - 1) / 2, atol=1e-15)
    exact = 1 / (1 + np.exp(-f)) - y[:, None]
    assert np.all(np.abs(found - exact) <= np.abs(f) ** 3 / 48 + 1e-12)


def test_what_crosses_is_counted_as_the_protocol_says() -> None:
    wire = Kept(np.arange(300))
    of = fit("three", (4, 7), wire=wire, epochs=3)
    batches = [64] * 4 + [44]
    assert [len(b) for b in of.batches] == batches
    assert sorted(np.concatenate(of.batches)) == list(range(300))

    def count(kind: str, sender: str, receiver: str, name: str = "") -> tuple[int, int]:
        found = [m[4] for m in wire.sent if m[:4] == (kind, sender, receiver, name)]
        return len(found), sum(m.size for m in found)

    for host, columns in (("p1", 3), ("p2", 3)):
        assert count("ids", "p0", host) == (5, 300)  # in the first round alone
        assert count("ciphertext", host, "p0", "score") == (15, 3 * 300 * 3)
        assert count("ciphertext", "p0", host, "derivative") == (15, 3 * 300 * 3)
        assert count("model_gradient", host, COORDINATOR) == (15, 15 * 3 * columns)
        assert count("model_gradient", COORDINATOR, host) == (15, 15 * 3 * columns)
        assert count("ciphertext", host, "p0", "squares") == (15, 15 * 3)
        assert count("ciphertext", host, "p0", "penalty") == (15, 15 * 3)
    assert count("model_gradient", "p0", COORDINATOR) == (15, 15 * 3 * 5)
    assert {m[4].tobytes() for m in wire.sent if m[0] == "ciphertext"} == {
        np.zeros((b, 3)).tobytes() for b in (1, 44, 64)
    }
    told = [m for m in wire.sent if m[:2] == ("signal", "p0")]
    assert [m[2] for m in told] == ["p1", "p2", COORDINATOR]
    assert all(m[4].tolist() == [3] for m in told)
    assert all(count("signal", COORDINATOR, p, "converge") == (3, 3) for p in of.x)
    assert [m[5] for m in wire.sent if m[1:4] == (COORDINATOR, "p1", "converge")] == [4, 9, 14]
    assert not any(m[0] == "loss" for m in wire.sent)  # of several passive parties
    assert count("score", "p1", "p0") == (1, 3 * 300)  # of the training rows, after the last batch
    before = len(wire.sent)
    of.predict(np.arange(7))
    (a, b) = wire.sent[before:]
    assert [m[:3] for m in (a, b)] == [("score", "p1", "p0"), ("score", "p2", "p0")]
    assert a[4].shape == (7, 3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("l2", [0.0, 0.1])
def test_the_coordinator_is_told_the_loss_of_each_batch(kind: str, l2: float) -> None:
    """With a penalty the passive party's part of it is one more cipher a batch."""
    wire = Kept(np.arange(300))
    of = fit(kind, (4,), wire=wire, epochs=2, l2=l2)
    k = of.label.trees
    told = [m for m in wire.sent if m[0] == "loss"]
    assert [m[1:3] for m in told] == [("p0", COORDINATOR)] * 10
    assert [(m[4].size, m[5]) for m in told] == [(k, step) for step in range(10)]
    hidden = {(m[3], m[4].size) for m in wire.sent if m[0] == "ciphertext" and m[4].ndim == 1}
    assert hidden == {("squares", k), *([("penalty", k)] if l2 else [])}
    y = of.y[of.batches[0]]
    first = {"quantity": (y**2).mean() / 2, "counts": 1.0}.get(kind, 0.0)
    assert np.allclose(told[0][4], first, atol=1e-15)
    assert told[5][4].sum() < told[0][4].sum()  # of the same rows, an epoch later


@pytest.mark.parametrize("kind", ["two", "quantity"])
def test_what_a_loss_tells_beside_gradients(kind: str) -> None:
    """The coordinator knows all w, and w . g is the mean of d f: so it learns the mean of f^2."""
    wire = Kept(np.arange(300))
    of = fit(kind, (4,), wire=wire, epochs=2, l2=0.0)
    got = {(m[1], m[5]): m[4] for m in wire.sent if m[0] == "model_gradient" and m[2] != m[1]}
    loss = {m[5]: m[4] for m in wire.sent if m[0] == "loss"}
    w = {p: np.zeros((x.shape[1], 1)) for p, x in of.x.items()}
    for step in range(10):
        rows = of.batches[step % 5]
        f = sum(of.x[p][rows] @ w[p] for p in w)
        inner = sum((w[p] * got[p, step]).sum() for p in w)
        y = of.y[rows].reshape(f.shape)
        known = -(f**2) / 8 if kind == "two" else (y**2 - f**2) / 2
        assert loss[step] - inner == pytest.approx(known.mean(), abs=1e-12)
        w = {p: v - of.settings.rate * got[p, step] for p, v in w.items()}
    assert np.abs(f).max() > 0.1


def test_a_loss_is_the_same_for_all_labels_and_scores_reversed() -> None:
    """Of two classes, so that alone it says of no row which it is."""
    f = np.random.default_rng(0).normal(size=(9, 1))
    y = np.arange(9) % 2
    found = Classes(2).compute_losses(f, y)
    assert np.allclose(found, Classes(2).compute_losses(-f, 1 - y), atol=1e-15)
    t = 2 * y[:, None] - 1  # Hardy et al., less log 2
    assert np.allclose(found, -t * f / 2 + f**2 / 8, atol=1e-15)


def test_the_first_gradient_is_that_of_the_labels() -> None:
    """At coefficients 0 it is X^T (1/2 - y) / b, so half the difference of the class sums."""
    wire = Kept(np.arange(300))
    of = fit("two", (4,), wire=wire, epochs=1, batch_size=0)
    got = next(m[4] for m in wire.sent if m[:3] == ("model_gradient", COORDINATOR, "p1"))
    x, y = of.x["p1"], of.y
    apart = (x[y == 0].sum(0) - x[y == 1].sum(0)) / 2 / 300
    assert np.allclose(got[:, 0], apart, atol=1e-15)


def test_a_label_holder_without_columns_has_an_intercept() -> None:
    of = fit("two", (0, 5))
    assert of.weights["p0"].shape == (1, 1)
    assert ((of.predict(np.arange(300)).argmax(1) == of.y).mean()) > 0.8


@pytest.mark.parametrize("kind", ["two", "counts"])
def test_on_shares_training_is_the_same_and_nothing_is_read(kind: str) -> None:
    """Names of rows and ciphers cross; no count, no gradient, no score of a predicted row."""
    wire = Kept(np.arange(300))
    shared, read = (
        fit(kind, (4,), wire=w, protocol=p, epochs=3)
        for w, p in ((wire, "shares"), (None, "coordinator"))
    )
    assert np.array_equal(stack(shared), stack(read))
    shared.predict(np.arange(7))
    assert {m[0] for m in wire.sent} == {"ids", "ciphertext"}
    assert {m[0] for m in wire.sent} == {s[0] for s in shared.settings.sends}
    assert not any(m[4].any() for m in wire.sent if m[0] == "ciphertext")
    assert shared.settings.servers == ()


def test_learners_of_one_seed_share_their_columns() -> None:
    """Two strengths of a defense of labels on each of two seeds."""
    strength = torch.tensor([0.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    policies = {"active": [(registry.defenses.create("label_dp"), strength)]}
    stack = small_stack([0, 0, 1, 1])
    fed = train(VerticalGlm(epochs=1), stack, [0, 0, 1, 1], policies).fed
    of = [learner.x for learner in fed.extra["learners"].values()]
    assert [a is b for a, b in pairwise(of)] == [True, False, True]
