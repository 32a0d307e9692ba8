"""Products with fewer digits: the rounding, what it reaches, and that it is the only difference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sampled import sampled
from torch import Tensor

import vflsec
from vflsec.core.rng import generator
from vflsec.errors import ConfigError
from vflsec.nn import batch_invariance
from vflsec.nn.dense import Layer, dense
from vflsec.nn.reduced_precision import FULL, bmm, find_products, find_stored, round_factors

REDUCED = {"tf32": 11, "bf16": 8}
"""Significant bits."""


def to_bits(x: np.ndarray, bits: int) -> np.ndarray:
    """Numbers to the nearest with so many significant bits, ties to even."""
    mantissa, exponent = np.frexp(x.astype(np.float64))
    return np.ldexp(np.round(mantissa * 2.0**bits), exponent - bits)


def drawn(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(size, generator=generator(seed, "precision", *size))


def test_numbers_are_rounded_to_the_nearest_with_eleven_bits() -> None:
    x = drawn(5000) * torch.logspace(-20, 20, 5000)
    ties = torch.tensor([1 + 2.0**-11, 1 + 3 * 2.0**-11, -1 - 2.0**-11, 0.0, -0.0])
    x = torch.cat([x, ties])
    assert np.array_equal(round_factors(x).numpy(), to_bits(x.numpy(), 11).astype(np.float32))
    assert round_factors(ties).tolist() == [1.0, 1 + 2.0**-9, -1.0, 0.0, -0.0]
    assert round_factors(ties)[4].signbit()
    odd = torch.tensor([torch.inf, -torch.inf, torch.nan])
    odd = torch.cat([odd, torch.tensor([0x7FFFFFFF], dtype=torch.int32).view(torch.float32)])
    assert round_factors(odd)[:2].tolist() == [torch.inf, -torch.inf]
    assert round_factors(odd)[2:].isnan().all()
    leaf = drawn(7).requires_grad_()
    assert torch.equal(torch.autograd.grad(round_factors(leaf).sum(), leaf)[0], torch.ones(7))
    assert torch.equal(round_factors(leaf), round_factors(leaf.detach()))


@pytest.mark.parametrize("kind", REDUCED)
def test_factors_are_rounded_forward_and_back_and_nothing_else_is(kind: str) -> None:
    def near(x: np.ndarray) -> np.ndarray:
        return to_bits(x, REDUCED[kind])

    x, w, b, up = drawn(3, 9, 5), drawn(3, 4, 5), drawn(3, 4), drawn(3, 9, 4)
    given = [t.clone().requires_grad_() for t in (x, w, b)]
    out = dense([Layer(given[1], given[2], False, kind)], given[0])
    got = [out, *torch.autograd.grad(out, given, up)]
    nx, nw, nup = (near(t.numpy()) for t in (x, w, up))
    want = [
        nx @ nw.transpose(0, 2, 1) + b.double().numpy()[:, None],
        nup @ nw, nup.transpose(0, 2, 1) @ nx, up.double().numpy().sum(1),
    ]  # fmt: skip
    full = dense([Layer(w, b, False)], x)
    worst = {"tf32": 3e-6, "bf16": 2**-8}[kind]  # bf16 rounds the products, too
    for mine, theirs in zip(got, want, strict=True):
        bound = worst * max(1.0, np.abs(theirs).max())
        assert np.abs(mine.detach().double().numpy() - theirs).max() < bound
    assert 1e-4 < float((out - full).detach().abs().max()) < 0.1
    assert all(t.dtype == torch.float32 for t in got)


@pytest.mark.parametrize("kind", REDUCED)
def test_a_replica_does_not_depend_on_its_company(kind: str) -> None:
    def step(x: Tensor, w: Tensor, b: Tensor, up: Tensor) -> list[Tensor]:
        given = [t.float().requires_grad_() for t in (x, w, b)]
        out = dense([Layer(given[1], given[2], True, kind)], given[0])
        return [out.detach(), *torch.autograd.grad((out * up.float()).sum(), given)]

    assert batch_invariance.find_variant_layers(step=step) == []


def test_products_are_written_where_they_are_asked_for() -> None:
    a, b = drawn(2, 3, 4), drawn(2, 4, 5)
    for kind in (FULL, *REDUCED):
        into = torch.empty(2, 3, 5)
        bmm(a, b, kind, into)
        assert torch.equal(into, bmm(a, b, kind))
    assert torch.equal(bmm(a, b, "tf32"), torch.bmm(round_factors(a), round_factors(b)))
    assert [(find_stored(d), find_products(d)) for d in ("float64", "float32", "tf32", "bf16")] == [
        (torch.float64, FULL), (torch.float32, FULL),
        (torch.float32, "tf32"), (torch.float32, "bf16"),
    ]  # fmt: skip


def audit(out: Path, dtype: str, seeds: list[int], hidden: int = 37) -> Any:
    scenario: dict[str, Any] = {
        "data": [{"name": "control_gaussian", "params": {"rows": 400, "test_rows": 200}}],
        "algorithm": [{"name": "splitnn", "hidden": [hidden], "cut": 5, "epochs": 3}],
        "defense": [{"name": "iso", "strength": [0.0, 1.0]}],
        "attack": [{"name": "direction", "known_rows": 20}],
        "audit": {"seeds": seeds, "references": [], "positive_control": False, "canaries": False,
                  "dtype": dtype},
    }  # fmt: skip
    return vflsec.run_audit(scenario, out, device="cpu").results


@pytest.mark.slow
@pytest.mark.parametrize("dtype", sampled(REDUCED))
def test_a_scenario_asks_for_it_and_only_rounding_differs(tmp_path: Path, dtype: str) -> None:
    found = audit(tmp_path / dtype, dtype, [0, 1])
    full = audit(tmp_path / "full", "float32", [0, 1])
    keys = ["seed", "strength", "attack", "split", "metric", "phase", "role"]
    both = found.merge(full, on=keys, suffixes=("", "_full"), validate="one_to_one")
    assert len(both) == len(found) == len(full)
    assert (both.cell != both.cell_full).all()
    assert (both.bytes == both.bytes_full).all()  # messages are float32
    aucs = both[both.metric == "auc"]
    assert (aucs.value != aucs.value_full).any()
    assert (aucs.value - aucs.value_full).abs().max() < 0.1
    alone = audit(tmp_path / "alone", dtype, [1])
    same = alone.merge(found, on=["cell", *keys[2:]], suffixes=("", "_of_two"))
    assert len(same) == len(alone) > 4
    assert (same.value.fillna(-9) == same.value_of_two.fillna(-9)).all()


def test_other_precisions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"audit\.dtype.*float32.*float64.*tf32.*bf16"):
        audit(tmp_path, "float16", [0])


@pytest.mark.gpu
def test_a_gpu_takes_tf32_within_the_rounding_done_by_hand() -> None:
    a, b = drawn(4, 64, 128), drawn(4, 128, 32)
    on = bmm(a.cuda(), b.cuda(), "tf32").cpu()
    assert float((on - bmm(a, b, "tf32")).abs().max()) < 2**-9 * 128**0.5
    assert float((on - torch.bmm(a, b)).abs().max()) > 1e-5
    assert not torch.backends.cuda.matmul.allow_tf32
    torch.testing.assert_close(
        bmm(a.cuda(), b.cuda(), "bf16").cpu(), bmm(a, b, "bf16"), rtol=2**-6, atol=2**-6
    )
