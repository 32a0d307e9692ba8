"""What is kept, recorded, halved or rounded on another device than the CPU.

Collected by `test_other_device` alone, in a process of its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from captured_runs import CASES, trained
from graph_emulation import Emulated
from on_other_device import (
    NORM,
    assert_near,
    attack,
    audited,
    cells,
    defended,
    tasks,  # noqa: F401
)
from other_device import emulated, place
from sampled import sampled
from torch import nn

import vflsec
from vflsec.core.channel import Recorder
from vflsec.core.message import Message
from vflsec.core.view import Table
from vflsec.engine import cohort, recordings
from vflsec.nn import reduced_precision
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, DefenseSpec
from vflsec.trace.reader import Trace
from vflsec.trace.views import Evidence
from vflsec.train.cuda_graphs import CaptureWarning
from vflsec.train.view_writer import Keep

HERE = torch.device("cpu")
place()  # torch counts devices at the first backward pass


def figures(found: Sequence[Any]) -> list[tuple[Any, ...]]:
    return [
        (m.phase, m.split, m.metric, m.attack, m.status, m.reason, m.value)
        for result in found for m in result.measures if m.attack
    ]  # fmt: skip


@pytest.mark.slow
def test_kept_views_are_attacked_there(
    tasks: dict[int, Any],  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the training would have been, whichever device kept them and whichever attacks them."""
    given = cells("splitnn", DefenseSpec("max_norm", strength=1.0))
    specs = [attack(n) for n in ("norm", "spectral", "attribute", "lea")]
    specs[0] = replace(specs[0], dosing=(0.5,))
    found = {}
    for name, device in (("here", HERE), ("there", place())):
        monkeypatch.setattr(cohort, "pick_device", lambda _, d=device: d)
        keep = Keep(tmp_path / name, 10**9)
        with emulated():
            found[name] = figures(cohort.run_cohort(given, specs, tasks, keep=keep, main=False))
    assert_near(found["there"], found["here"])
    for kept, on in (("here", place()), ("there", HERE)):
        monkeypatch.setattr(cohort, "pick_device", lambda _, d=on: d)
        paths = [tmp_path / kept / f"{c.key}.zip" for c in given]
        with emulated():
            again = figures(cohort.attack_kept(given, specs, tasks, paths))
        assert_near(again, found["here"])


@pytest.mark.parametrize("use", sampled(["joint", "output", "gradient"]))
def test_linear_inversion_mixes_no_devices(use: str, tasks: dict[int, Any]) -> None:  # noqa: F811
    given = cells("splitnn", DefenseSpec("he_embedding", {"weights": "plain"}))
    spec = [AttackSpec("linear_inversion", {"use": use}, ("active",))]
    here = audited(given, spec, tasks, HERE)
    with emulated():
        there = audited(given, spec, tasks, place())
    assert_near(there, here)
    assert any(m[3] and m[4] == "ok" for m in here)


def test_a_simulation_is_recorded_as_on_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = {
        "data": [{"name": "breast_cancer"}],
        "algorithm": [{"name": "splitnn", "epochs": 1, "batch_size": 64}],
        "attack": [
            {"name": "norm", "known_rows": 10}, {"name": "batch_inference"},
            {"name": "embedding_inversion", "adversary": "active", "aux_rows": 40},
        ],
        "audit": {"seeds": 1, "references": [], "positive_control": False},
    }  # fmt: skip
    made = {}
    for name, device in (("here", HERE), ("there", place())):
        monkeypatch.setattr(recordings, "pick_device", lambda _, d=device: d)
        with emulated():
            (made[name],) = recordings.record_scenario(scenario, tmp_path / name)
    names = {
        k: sorted(p.relative_to(f) for p in f.rglob("*") if p.is_file()) for k, f in made.items()
    }
    assert names["here"] == names["there"]
    pairs = [("active", "embedding_inversion"), ("passive", "norm")]
    for party, name in pairs:
        spec = AttackSpec(name, adversary=(party,), known_rows=10)
        made_of = registry.attacks.create(name)
        views = [Evidence(Trace.open(f), [(spec, made_of)]).view(spec) for f in made.values()]
        assert views[0].tables.keys() == views[1].tables.keys()
        for key, table in views[0].tables.items():
            torch.testing.assert_close(views[1].tables[key].tensor, table.tensor)


def test_a_loop_of_somebody_is_recorded_there(tmp_path: Path) -> None:
    """Tensors of its device, which the recorder brings to the host itself."""

    def recorded(device: torch.device) -> Any:
        g = torch.Generator().manual_seed(0)
        x, y = torch.randn(50, 4, generator=g), torch.arange(50) % 2
        folder = tmp_path / device.type
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            bottom, top = nn.Linear(4, 3), nn.Linear(3, 2)
        x, y, bottom, top = x.to(device), y.to(device), bottom.to(device), top.to(device)
        with vflsec.record(
            folder, party="bank", role="passive", rows=50, loss_reduction="mean", columns=x,
            model=bottom,
        ) as rec:  # fmt: skip
            for epoch in range(2):
                rec.epoch(epoch)
                for rows in torch.arange(50).split(16):
                    z = rec.cut(bottom(x[rows]), rows.to(device))
                    h = z.detach().requires_grad_()
                    nn.functional.cross_entropy(top(h), y[rows]).backward()
                    z.backward(h.grad)
        spec = AttackSpec("norm", adversary=("bank",), known_rows=0)
        view = Evidence(Trace.open(folder), [(spec, registry.attacks.create("norm"))]).view(spec)
        return view.received("gradient", "mean").tensor

    here = recorded(HERE)
    with emulated():
        there = recorded(place())
    torch.testing.assert_close(there, here)


@pytest.mark.parametrize("dtype", sampled(["bf16", "tf32"]))
def test_fewer_digits_are_those_of_a_cpu(dtype: str, tasks: dict[int, Any]) -> None:  # noqa: F811
    given = [replace(c, dtype=dtype) for c in cells("splitnn", defended("max_norm"))]
    here = audited(given, [NORM], tasks, HERE)
    with emulated():
        assert_near(audited(given, [NORM], tasks, place()), here)
    full = audited(cells("splitnn", defended("max_norm")), [NORM], tasks, HERE)
    assert [m[-1] for m in full] != [m[-1] for m in here]
    assert not torch.backends.cuda.matmul.allow_tf32


def test_the_emulation_takes_tf32_where_it_is_allowed() -> None:
    g = torch.Generator().manual_seed(0)
    a, b = (torch.randn(2, 8, 8, generator=g) for _ in range(2))
    with emulated():
        x, y = a.to(place()), b.to(place())
        assert torch.equal((x @ y).cpu(), a @ b)
        assert torch.equal(
            reduced_precision.bmm(x, y, "tf32").cpu(), reduced_precision.bmm(a, b, "tf32")
        )
        assert torch.equal((x @ y).cpu(), a @ b)  # taken back


def test_an_order_that_nobody_asked_for_is_noticed() -> None:
    """What no two runs of a GPU do alike is refused, and equal numbers come the other way round."""
    from other_device import Refused

    with emulated():
        x = torch.tensor([1.5, 2.5, 2.5], device=place())
        z, at = torch.zeros(2, device=place()), torch.tensor([0, 0, 1], device=place())
        for mistake in (
            lambda: z.index_add(0, at, x), lambda: z.scatter_add(0, at, x),
            lambda: z.index_copy(0, at, x), lambda: z.index_put((at,), x),
            lambda: z.scatter(0, at, x), lambda: x.cumsum(0),
            lambda: torch.bincount(at, weights=x),
        ):  # fmt: skip
            with pytest.raises(Refused, match="alike"):
                mistake()
        fine = [
            z.index_add(0, at, x.round()), z.index_put((at,), x, accumulate=True),
            z.index_put((at,), torch.ones_like(x)), z.index_add(0, at[1:], x[1:]),
        ]  # fmt: skip
        assert [t.tolist() for t in fine] == [[4.0, 2.0], [4.0, 2.5], [1.0, 1.0], [2.5, 2.5]]
        assert x.sort().indices.tolist() == [0, 2, 1]
        assert x.sort(stable=True).indices.tolist() == [0, 1, 2]
        assert x.topk(2).indices.tolist() == [2, 1]
        assert np.array_equal(x.sort().values.cpu(), np.sort(x.cpu()))


@pytest.mark.parametrize("form", sampled(["scaled", "first", "last", "mean"]))
def test_rows_that_come_again_are_recorded_alike_and_no_message_waits(form: str) -> None:
    """Also of replicas of which one has stopped, once it is known which."""
    g = torch.Generator().manual_seed(0)
    alive = torch.tensor([True, False])
    given = [
        (torch.randn(2, 6, 3, generator=g), torch.randint(8, (2, 6), generator=g))
        for _ in range(5)
    ]  # fmt: skip
    assert all(len(r.unique()) < 6 for _, rows in given for r in rows)

    def recorded(device: torch.device, waits: list[int]) -> Table:
        recorder = Recorder([("p", "received", "gradient", form)], 2, 8)
        on = alive.to(device)
        for step, (x, rows) in enumerate(given):
            message = Message(
                "gradient", "a", "p", x.to(device), rows.to(device), step=step, repeated=True
            )
            before = len(waits)
            recorder.add(message, None if step < 2 else on)
            if step in (1, 3, 4):  # the first makes memory, the third asks who trains
                assert len(waits) == before
        return recorder.tables(0, ["p"], "train")["received", "gradient", form, "p"]

    here = recorded(HERE, [])
    waits: list[int] = []
    with emulated(lambda: waits.append(1)):
        there = recorded(place(), waits)
    assert waits
    for column in ("tensor", "rows", "epoch", "step"):
        torch.testing.assert_close(getattr(there, column).cpu(), getattr(here, column))


@pytest.mark.parametrize(
    "name",
    sampled(sorted(CASES, key=lambda n: n != "two parties")),
)  # fmt: skip
def test_a_captured_step_brings_no_numbers(name: str) -> None:
    """A capture in which one is brought fails on a GPU, and no step would be replayed ever."""
    plain, books = trained(CASES[name])
    with emulated(), warnings.catch_warnings():
        warnings.simplefilter("error", CaptureWarning)
        replayed, others = trained(CASES[name], Emulated, place())
    assert books[0] == others[0]
    for key, value in plain.items():
        torch.testing.assert_close(replayed[key].cpu(), value, rtol=0, atol=1e-5, msg=key)


def test_what_a_capture_may_not_do_there_is_noticed() -> None:
    with emulated():
        x, factor = torch.ones(3, device=place()), torch.tensor(2.0)
        generator = torch.Generator(device=place())
        mistakes = {
            "brought": lambda: x + torch.ones(3).to(place()), "read": lambda: x.cpu(),
            "made": lambda: torch.tensor([1.0], device=place()), "item": lambda: x.sum().item(),
            "masked": lambda: x[x > 0], "drawn": lambda: x.normal_(generator=generator),
            "shuffled": lambda: torch.randperm(3).to(place()),
            "dropped": lambda: nn.functional.dropout(x, 0.5, training=True),
        }  # fmt: skip
        for mistake in mistakes.values():
            during, _ = Emulated().stretch()
            with during:
                x * 1.0
                with pytest.raises(RuntimeError, match="captur"):
                    mistake()
        during, run = Emulated().stretch()
        with during:
            y = x * factor
        factor.fill_(5.0)
        run()
        assert y.tolist() == [2.0, 2.0, 2.0]  # a number of the host is a constant of the graph
