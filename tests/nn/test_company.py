"""A cell alone equals the same cell among twenty, odd widths included, or the plan says so."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_fakes import SCENARIO, source

import vflsec
from vflsec.data.prepare import make_task
from vflsec.engine.cohort import run_cohort
from vflsec.engine.dry_run import make_plan
from vflsec.nn import batch_invariance
from vflsec.plugins import registry
from vflsec.runtime.mkl import in_one_order
from vflsec.specs import CellSpec, DefenseSpec


@pytest.mark.skipif(
    bool(batch_invariance.find_variant_layers()), reason=batch_invariance.find_warning()
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("hidden", "cut", "batch"), [((37,), 5, 64), ((30, 9), 3, 17), ((7, 11), 1, 33)]
)
def test_whole_trainings_of_odd_widths(
    hidden: tuple[int, ...], cut: int, batch: int, dtype: str
) -> None:
    params = {"epochs": 1, "hidden": hidden, "cut": cut, "batch_size": batch}
    small = {"rows": 200, "test_rows": 60, "validation_rows": 50, "d_passive": 11, "d_active": 7}
    data = registry.datasets.create("control_gaussian", small)
    tasks = {s: make_task(data.load(s), s) for s in range(20)}

    def cell(seed: int) -> CellSpec:
        of = (DefenseSpec("iso", strength=1.0),)
        return CellSpec({"name": "world"}, "splitnn", params, of, seed, dtype=dtype)

    together = run_cohort([cell(s) for s in range(20)], [], tasks, device="cpu")
    for s in (0, 13, 19):
        (alone,) = run_cohort([cell(s)], [], tasks, device="cpu")
        assert alone.measures == together[s].measures
        assert len(alone.measures) > 1
        assert alone.ledger == together[s].ledger


def test_a_machine_on_which_company_matters_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one bit of one replica depends on how many there are."""

    def step(x: torch.Tensor, *rest: torch.Tensor) -> list[torch.Tensor]:
        out = batch_invariance._step(x, *rest)
        if len(x) > 2 and x.shape[1] == 17 and x.dtype == torch.float32:
            out[2][19, 0, 0] = torch.nextafter(out[2][19, 0, 0], torch.tensor(torch.inf))
        return list(out)

    assert batch_invariance.find_variant_layers(step=step) == ["17 rows, 9 to 3, float32"]
    assert batch_invariance.find_variant_layers(step=step, places=(7,)) == []
    said = batch_invariance._said(["17 rows, 9 to 3, float32"])
    assert "MKL_CBWR=AUTO,STRICT" in said
    assert "(layers of 17 rows, 9 to 3, float32)" in said


def test_the_plan_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def notes() -> Any:
        scenario = vflsec.load_scenario(tomllib.loads(SCENARIO))
        return make_plan(scenario, load=source).notes

    monkeypatch.setattr("vflsec.engine.dry_run.find_warning", lambda: "")
    quiet = notes()
    monkeypatch.setattr("vflsec.engine.dry_run.find_warning", lambda: "company matters.")
    assert notes() == (*quiet, "company matters.")


@pytest.mark.parametrize(
    ("described", "given", "want"),
    [
        ("processor : 0\nvendor_id\t: GenuineIntel\n", {}, {}),
        ("processor : 0\nvendor_id\t: AuthenticAMD\n", {}, {"MKL_CBWR": "AUTO,STRICT"}),
        ("processor : 0\n", {"MKL_CBWR": "COMPATIBLE"}, {"MKL_CBWR": "COMPATIBLE"}),
        (None, {}, {"MKL_CBWR": "AUTO,STRICT"}),
        (None, {"PROCESSOR_IDENTIFIER": "Intel64 Family 6, GenuineIntel"}, {}),
    ],
)
def test_mkl_is_asked_for_one_order_where_it_needs_to_be(
    tmp_path: Path, described: str | None, given: dict[str, str], want: dict[str, str]
) -> None:
    told = tmp_path / "cpuinfo"
    if described is not None:
        told.write_text(described, encoding="utf-8")
    found = dict(given)
    in_one_order(found, told)
    found.pop("PROCESSOR_IDENTIFIER", None)
    assert found == want


@pytest.mark.slow
def test_importing_the_package_first_is_enough_and_training_imports_no_compiler() -> None:
    env = {k: v for k, v in os.environ.items() if k != "MKL_CBWR"}
    code = (
        "import sys, vflsec; from vflsec.testing import small_stack, train;"
        "from vflsec.plugins import registry;"
        "train(registry.algorithms.create('splitnn', {'epochs': 1}), small_stack([0, 1]), [0, 1]);"
        "heavy = ('torch._dynamo', 'torch.distributed.tensor', 'sklearn', 'opacus');"
        "print([m for m in heavy if m in sys.modules]);"
        "from vflsec.nn.batch_invariance import find_variant_layers as f; print(f())"
    )
    ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    found = ran.stdout.split("\n")
    assert (ran.returncode, found[0]) == (0, "[]"), ran.stderr
    if torch.backends.mkl.is_available():
        assert found[1] == "[]"
