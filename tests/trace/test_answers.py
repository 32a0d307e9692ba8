"""Which rows of a trace are guessed: those that an answer came of, and never a known one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sampled import sampled
from torch import Tensor, nn
from trace_audits import audit, first_of_each, record, signs

from vflsec.attacks.direction import Direction
from vflsec.core.guess import Guess
from vflsec.core.view import View
from vflsec.engine.trace_attacks import infer, score
from vflsec.errors import ConfigError, TraceError
from vflsec.measure.guess_files import thaw
from vflsec.trace.limits import TRUSTED
from vflsec.trace.reader import Trace
from vflsec.trace.record_api import Recording
from vflsec.trace.truth import write_truth
from vflsec.trace.validate import join

N, SEEN, D = 160, 100, 3
Y = np.arange(N) % 5 % 2
G = torch.Generator().manual_seed(3)
X = torch.randn(N, 2, generator=G)
KNOWN = first_of_each(Y, 10)


def noise(rec: Recording, *, more: int = SEEN, model: bool = True) -> nn.Linear:
    """Two epochs over the first 100 rows, whose gradients tell nothing; `more` get none."""
    bottom = nn.Linear(2, D)
    if model:
        rec.model(bottom, bottom.state_dict())
    for _ in range(2):
        for rows in torch.randperm(SEEN, generator=G).split(25):
            rec.cut(bottom(X[rows]), rows).backward(torch.randn(25, D, generator=G))
        if more > SEEN:
            rec.cut(bottom(X[SEEN:more]), torch.arange(SEEN, more))
    return bottom


def answer(rec: Recording, rows: Tensor, phase: str = "predict") -> None:
    told = torch.from_numpy(Y)[rows].float() * 0.6 + 0.2
    rec.tell("prediction", torch.stack([1 - told, told], 1), rows, sent=False, phase=phase)


def new_rows(rec: Recording) -> None:
    noise(rec)
    answer(rec, torch.arange(SEEN, N))


def some_of_the_evaluated(rec: Recording) -> None:
    bottom = noise(rec)
    with torch.no_grad():
        rec.cut(bottom(X[SEEN:]), torch.arange(SEEN, N))
    answer(rec, torch.arange(SEEN, SEEN + 30))


def in_evaluation(rec: Recording) -> None:
    """As a loop validates after every epoch; the last answers tell."""
    bottom = noise(rec)
    for _ in range(2):
        with torch.no_grad():
            rec.cut(bottom(X[SEEN:]), torch.arange(SEEN, N))
        answer(rec, torch.arange(SEEN, N), "eval")


def trained_rows(rec: Recording) -> None:
    noise(rec)
    answer(rec, torch.arange(SEEN), "train")


def nothing_else(rec: Recording) -> None:
    answer(rec, torch.arange(SEEN, N))


def recorded(folder: Path, loop: Callable[[Recording], Any], known: Any = KNOWN) -> Any:
    with record(folder / "t", Y, known, prior=(0.6, 0.4), columns=X) as rec:
        loop(rec)
    names = ("cluster", "direction", "joint_completion", "model_completion", "output", "spectral")
    return audit(folder, [folder / "t"], names, Y).results.query("metric == 'auc'")


@pytest.mark.parametrize(
    ("loop", "rows"),
    sampled([(new_rows, 60), (some_of_the_evaluated, 30), (in_evaluation, 60), (trained_rows, 80),
             (nothing_else, 60)]),
)  # fmt: skip
def test_every_row_of_which_an_answer_came_is_guessed(
    loop: Callable[[Recording], None], rows: int, tmp_path: Path
) -> None:
    """Answers that are the labels: nothing was scored, or there was no verdict at all."""
    (found,) = recorded(tmp_path, loop).query("attack == 'output'").to_dict("records")
    assert found["value"] == 1.0
    assert found["n"] == rows


@pytest.mark.slow
def test_known_rows_among_those_that_were_evaluated_are_not_scored(tmp_path: Path) -> None:
    """The guesses of such a trace could not be read, since they held a row twice."""

    def loop(rec: Recording) -> None:
        bottom = noise(rec)
        with torch.no_grad():
            rec.cut(bottom(X[SEEN:]), torch.arange(SEEN, N))
        answer(rec, torch.arange(SEEN, N))

    known = np.concatenate([KNOWN, np.arange(SEEN, SEEN + 25)])
    found = recorded(tmp_path, loop, known)
    assert set(found[found["split"] == "test"]["n"]) == {35}
    assert set(found[found["split"] == "train"]["n"]) == {80}
    assert {"output", "model_completion"} <= set(found[found["split"] == "test"]["attack"])


@pytest.mark.slow
def test_attacks_on_other_rows_have_controls_of_their_own(tmp_path: Path) -> None:
    """Rows that never got a gradient, beside columns and a model: there was no verdict."""
    found = recorded(tmp_path, lambda rec: noise(rec, more=N)).set_index("attack")
    assert found.loc["direction", "n"] == 80
    assert found.loc["model_completion", "n"] == 140


PARTIES = {"lab": "active", "bank": "passive", "shop": "passive"}


def side(
    folder: Path, party: str, known: Any, labels: Any, parties: dict[str, str] = PARTIES
) -> Path:
    how: dict[str, Any] = {"party": party, "peer": "lab", "parties": parties}
    how |= {"prior": (0.6, 0.4)} if party == "shop" else {}
    with record(folder / party, Y, **how, known=(known, labels)) as rec:
        noise(rec, model=False)
    return folder / party


def test_parties_together_know_what_each_was_granted(tmp_path: Path) -> None:
    """They had the rows of the first alone; those of the second were scored."""
    rows = {"bank": np.arange(4), "shop": np.arange(2, 40)}
    both = join([side(tmp_path, p, k, Y[k]) for p, k in rows.items()], tmp_path / "j")
    infer(
        [both], tmp_path / "g", attacks=("direction",), together=[("bank", "shop")], limits=TRUSTED
    )
    write_truth(tmp_path / "y", np.arange(N), Y)
    found = score(tmp_path / "g", [tmp_path / "y"], tmp_path / "o").results
    n = found.query("metric == 'auc'").set_index("adversary")["n"]
    assert n.to_dict() == {"bank": 96, "shop": 62, "bank+shop": 60}
    (of,) = thaw(tmp_path / "g").answers
    (together,) = [a.of.spec for a in of if len(a.of.spec.adversary) == 2]
    assert together.known_rows == 40
    assert together.prior


def test_an_attack_that_guesses_a_row_twice_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer was kept, and nobody could read the answers of all others."""

    def repeat(of: Direction, view: View, rng: torch.Generator) -> Guess:
        rows = view.targets["train"].repeat(2)
        return Guess(of.target, rows, torch.zeros(len(rows)))

    monkeypatch.setattr(Direction, "infer", repeat)
    folder = side(tmp_path, "bank", KNOWN, Y[KNOWN])
    infer([folder], tmp_path / "g", attacks=("direction", "similarity"), limits=TRUSTED)
    write_truth(tmp_path / "y", np.arange(N), Y)
    found = score(tmp_path / "g", [tmp_path / "y"], tmp_path / "o").results
    status = found.groupby("attack")["status"].agg(set)
    assert status["direction"] == {"error"}
    assert status["similarity"] == {"ok"}


def test_parties_that_know_of_the_label_owner_only_are_joined(tmp_path: Path) -> None:
    """Each node of a simulation names itself and the label owner: the three were refused."""
    sides = [
        side(tmp_path, p, KNOWN, Y[KNOWN], {"lab": "active", p: "passive"})
        for p in ("bank0", "bank1", "bank2")
    ]
    with pytest.raises(ConfigError, match=r"vflsec trace join .*bank0 .*bank2 --out"):
        infer(sides, tmp_path / "g", limits=TRUSTED)
    both = Trace.open(join(sides, tmp_path / "j"))
    assert both.manifest.names == ("lab", "bank0", "bank1", "bank2")
    infer([both.folder], tmp_path / "g", attacks=("direction",), limits=TRUSTED)
    (of,) = thaw(tmp_path / "g").answers
    assert {a.of.spec.adversary for a in of} == {("bank0",), ("bank1",), ("bank2",)}
    other = side(tmp_path / "o", "bank0", KNOWN, Y[KNOWN], {"lab": "active", "bank0": "passive",
                                                            "bank1": "server"})  # fmt: skip
    with pytest.raises(ConfigError, match="bank1 must be passive, got server"):
        join([other, sides[1]], tmp_path / "k")


def test_labels_that_two_parties_were_granted_must_agree(tmp_path: Path) -> None:
    """Rows in another order, or of another run, in one of the traces that were joined."""
    rows = np.arange(20)
    sides = [side(tmp_path, "bank", rows, Y[rows]), side(tmp_path, "shop", rows, Y[rows + 1])]
    both = join(sides, tmp_path / "j")
    with pytest.raises(TraceError, match=r"bank and shop must agree .* got 16 rows"):
        infer([both], tmp_path / "g", together=[("bank", "shop")], limits=TRUSTED)


def test_a_party_whose_view_is_not_there_is_named(tmp_path: Path) -> None:
    trace = side(tmp_path, "bank", KNOWN, Y[KNOWN])
    notes = thaw(infer([trace], tmp_path / "g", attacks=("direction",), limits=TRUSTED)).notes
    assert [n for n in notes if n.startswith("not assessed: shop,")]


@pytest.mark.parametrize("plant", ["twins", "few values"])
def test_known_samples_under_other_ids_are_neither_guessed_nor_scored(
    plant: str, tmp_path: Path
) -> None:
    """Controls remembered them: a leak of AUC 0.96 had an advantage of 0.03 over them."""
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(N, 2, generator=g), np.random.default_rng(0).integers(0, 2, N)
    known, twins = np.arange(60), np.arange(60, 120)
    x, y[twins] = (x > 0).float() if plant == "few values" else x, y[known]
    if plant == "twins":
        x[twins] = x[known]
    with record(tmp_path / "t", y, known, prior=(0.5, 0.5), columns=x) as rec:
        z = rec.cut(x.clone().requires_grad_() * 1, range(N))
        z.backward(1.2 * torch.randn(N, 2, generator=g) - signs(y, np.arange(N)))
    result = audit(tmp_path, [tmp_path / "t"], ("direction",), y).results
    said = [n for n in thaw(tmp_path / "g").notes if "60 rows equal a known row" in n]
    (found,) = result.query("metric == 'auc'").to_dict("records")
    assert len(said) == (plant == "twins")
    assert found["n"] == (40 if plant == "twins" else 100)
    assert found["value"] > 0.9
    assert found["advantage"] > 0.25
