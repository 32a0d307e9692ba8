"""Attacks on a label that is a quantity: closed forms, nulls, budgets, and a whole audit."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
import torch
from attack_views import rng
from cohorts import cohort

from vflsec.audit.metrics import score
from vflsec.core.guess import Guess, Truth
from vflsec.core.task import Task
from vflsec.core.view import Facts, Known, Schema, Table, View
from vflsec.data.prepare import make_task
from vflsec.errors import ThreatModelError
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, DefenseSpec

PASSIVE = ("passive",)
NAMES = ("residual", "value_completion", "message_completion")


def tasks(seeds: int, rows: int = 600, **options: object) -> dict[int, Task]:
    made = registry.datasets.create("quantity_gaussian", {"rows": rows, "test_rows": 300})
    return {s: make_task(made.load(s), s, **options) for s in range(seeds)}


def audited(tasks: dict[int, Task], *names: str, strength: float = 0.0) -> dict[str, list[float]]:
    """Concordance of each attack on training rows by seed, and of its best control."""
    defense = (DefenseSpec("iso", strength=strength),)
    specs = [AttackSpec(n, {}, PASSIVE) for n in names]
    found: dict[str, list[float]] = {n: [] for n in names} | {"control": [], "r2": []}
    for result in cohort(specs, tasks, defense, main=True, epochs=8):
        for m in result.measures:
            if m.split == "train" and m.metric == "concordance":
                found[m.attack].append(m.value)
                found["control"].append(max(c["value"] for c in m.controls.values()))
            if m.split == "test" and m.metric == "r2" and not m.attack:
                found["r2"].append(m.value)
    return found


def linear_view(n: int = 80, q: int = 6) -> tuple[View, torch.Tensor]:
    """What A sees behind a linear top if it holds all columns: g = 2/b (a z.w + c - y) w."""
    g = rng(1)
    z = torch.randn(n, 5, generator=g, dtype=torch.float64)
    w = torch.randn(5, generator=g, dtype=torch.float64)
    y = z @ torch.randn(5, generator=g, dtype=torch.float64)
    y = y + torch.randn(n, generator=g, dtype=torch.float64)
    step = torch.arange(n) // 16
    size = torch.bincount(step)[step]
    gradient = (2 / size * (z @ w + 0.3 - y)).unsqueeze(1) * w
    rows, zero = torch.arange(n), torch.zeros(n, dtype=torch.int64)
    at = Table(gradient, rows, zero, step)
    sent = Table(z @ torch.outer(w, w) / (w @ w), rows, zero, step)
    party = "p"
    view = View(
        adversary=(party,), columns=MappingProxyType({}), present=MappingProxyType({}),
        schema=MappingProxyType({party: Schema((), (), (5,))}),
        tables=MappingProxyType({
            ("received", "gradient", "first", party): at,
            ("received", "gradient", "mean", party): at,
            ("sent", "embedding", "first", party): sent,
        }),
        models=MappingProxyType({}),
        facts=Facts("splitnn", "train", "a", ("a", party), classes=1),
        targets=MappingProxyType({"train": rows[q:]}),
        known=Known(rows[:q], y[:q]),
    )  # fmt: skip
    return view, y


def concordance(guess: Guess, y: torch.Tensor) -> float:
    truth = Truth("value", np.arange(len(y)), y)
    told = Guess("value", guess.rows, guess.scores)
    (found,) = score(told, truth, guess.rows, classes=1, prior=[1.0], metrics=["concordance"])
    assert found.value is not None
    return found.value


def test_residuals_behind_a_linear_top_give_the_value() -> None:
    """y = a(z) - rho / 2|w|, whatever the size of the batch; six known rows for three unknowns."""
    view, y = linear_view()
    guess = registry.attacks.create(
        "residual", {"directions": 1, "variants": ("first", "both")}
    ).infer(view, rng())  # fmt: skip
    assert not set(guess.rows.tolist()) & set(range(6))
    assert guess.notes["variant"] == "both"
    assert concordance(guess, y) > 0.97
    assert float(((guess.scores - y[guess.rows].numpy()) ** 2).mean() / y.var()) < 0.02


def test_gradients_that_say_nothing_give_nothing() -> None:
    view, y = linear_view(n=800, q=20)
    found = []
    for seed in range(8):
        noise = torch.randn(800, 5, generator=rng(seed), dtype=torch.float64)
        tables = {k: Table(noise, t.rows, t.epoch, t.step) for k, t in view.tables.items()}
        blind = View(**{**vars(view), "tables": MappingProxyType(tables)})
        found.append(concordance(registry.attacks.create("residual").infer(blind, rng()), y))
    error = np.std(found, ddof=1) / np.sqrt(len(found))
    assert abs(np.mean(found) - 0.5) < 3 * max(error, 0.0083)


def told_late(leak: str, y: torch.Tensor, known: int) -> View:
    """Messages of twelve epochs that tell the value in one entry of sixteen, under noise."""
    n, epochs, g = len(y), 12, rng(3)
    once = torch.randn(n, 16, generator=g)
    parts = []
    for e in range(epochs):
        x = (once if leak == "remembered" else torch.randn(n, 16, generator=g)).clone()
        if leak == "remembered" and e == epochs - 1:
            x[:, 5] += 0.02 * y
        elif leak == "faint":
            x[:, 5] += 0.5 * y
        elif leak == "alternating":
            x[:, 5] += y * (-1) ** e
        parts.append(x)
    rows, when = torch.arange(n).repeat(epochs), torch.arange(epochs).repeat_interleave(n)
    table = Table(torch.cat(parts), rows, when, torch.arange(len(rows)) // 64)
    forms = {f: table.folded(f) for f in ("first", "mean")} | {"all": table}
    found = {("received", "gradient", f, "p"): t for f, t in forms.items()}
    found["sent", "embedding", "first", "p"] = forms["first"]
    base, _ = linear_view()
    return View(**{
        **vars(base), "tables": MappingProxyType(found),
        "targets": MappingProxyType({"train": torch.arange(known, n)}),
        "known": Known(torch.arange(known), y[:known].double()),
    })  # fmt: skip


@pytest.mark.parametrize(
    ("leak", "figure", "correlation"),
    [("faint", "mean, one entry", (3 / 4) ** 0.5), ("remembered", "change", 1.0),
     ("alternating", "change, one entry", (2 / 3) ** 0.5)],
)  # fmt: skip
def test_values_that_residuals_hardly_show_are_read_off_all_messages(
    leak: str, figure: str, correlation: float
) -> None:
    """As well as the figure itself goes with them: concordance 1/2 + asin(r) / pi of normals."""
    y = torch.randn(600, generator=rng(7))
    view = told_late(leak, y, 20)
    guess = registry.attacks.create("message_completion").infer(view, rng())
    assert guess.notes["figure"] == figure
    assert set(guess.rows.tolist()) == set(range(20, 600))
    expected = 0.5 + np.arcsin(correlation) / np.pi
    assert concordance(guess, y) == pytest.approx(expected, abs=0.02)
    blind = registry.attacks.create("residual").infer(view, rng())
    assert concordance(blind, y) < (0.56 if leak == "remembered" else expected - 0.03)
    other = y[torch.randperm(600, generator=rng(8))]
    assert abs(concordance(guess, other) - 0.5) < 4 * 0.0145


def test_in_messages_without_a_value_nothing_is_found() -> None:
    found = []
    for seed in range(8):
        y = torch.randn(400, generator=rng(20 + seed))
        guess = registry.attacks.create("message_completion").infer(told_late("", y, 20), rng())
        found.append(concordance(guess, y))
    assert abs(np.mean(found) - 0.5) < 4 * 0.0179 / np.sqrt(8)


@pytest.mark.slow
def test_an_embedding_that_is_the_value_is_read() -> None:
    found = audited(tasks(3), "residual", "value_completion")
    assert np.mean(found["r2"]) > 0.5
    assert min(found["residual"]) > 0.85
    assert np.mean(found["value_completion"]) > 0.75
    assert np.mean(found["control"]) < 0.65


@pytest.mark.slow
def test_in_the_null_world_and_under_heavy_noise_nothing_is_added_to_own_columns() -> None:
    """Known values beside any embedding tell something of the population, and so does a control."""
    null = audited(tasks(4, shuffle_labels=True), *NAMES)
    noisy = audited(tasks(4), "residual", "message_completion", strength=50.0)
    for found in (null, noisy):
        own = np.array(found["control"]).reshape(4, -1).max(1)
        for name in NAMES:
            gain = np.array(found.get(name, own)) - own
            assert gain.mean() < 2.4 * gain.std(ddof=1) / 2 + 1e-9


def test_known_values_are_needed_and_classes_are_declined() -> None:
    view, _ = linear_view()
    for name in ("residual", "value_completion"):
        attack = registry.attacks.create(name)
        with pytest.raises(ThreatModelError):
            attack.infer(View(**{**vars(view), "known": None}), rng())
        assert "quantity" in attack.pointless(Facts("s", "t", "a", ("a", "p"), classes=2))
    for name in ("norm", "model_completion", "cluster"):
        reason = registry.attacks.create(name).pointless(view.facts)
        assert "the label is a quantity" in reason


@pytest.mark.parametrize("first", [True, False])
def test_residuals_are_found_in_either_of_two_gradients(first: bool) -> None:
    """Two gradients for one embedding are twice as wide, which ended in an error."""
    view, y = linear_view(n=200, q=40)
    tables = {}
    for key, table in view.tables.items():
        if key[1] == "gradient":
            size = table.tensor.square().mean().sqrt()
            noise = size * torch.randn(table.tensor.shape, generator=rng(2), dtype=torch.float64)
            both = (table.tensor, noise) if first else (noise, table.tensor)
            table = replace(table, tensor=torch.cat(both, dim=1))
        tables[key] = table
    guess = registry.attacks.create("residual").infer(
        replace(view, tables=MappingProxyType(tables)), rng()
    )
    assert abs(np.corrcoef(guess.scores, y[guess.rows].numpy())[0, 1]) > 0.9
