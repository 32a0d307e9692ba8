"""FedHSSL on images: ResNet-18 pre-trains, fine-tunes and beats a linear model."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.linear_model import RidgeClassifier

from vflsec import registry
from vflsec.data.prepare import make_task
from vflsec.data.source import PartyData, Source
from vflsec.engine.train import predict, run_phases
from vflsec.federation import Federation
from vflsec.task import Stack

ROOT = Path(__file__).resolve().parents[2]


def halves() -> Source:
    """2,500 photographs of vehicles (1) and animals (0), cut into a left and a right half."""
    folder = Path(os.environ.get("VFLSEC_TEST_DATA", ROOT.parent / "shared" / "data"))
    file = folder / "cifar10_jpeg" / "cifar10_jpeg_60k.npz"
    if not file.exists():
        pytest.skip(f"needs {file.name} in VFLSEC_TEST_DATA")
    raw = np.load(file)
    data, offset = raw["jpeg"].tobytes(), raw["offset"]
    pick = np.random.default_rng(0).permutation(len(raw["label"]))[:2500]
    images = [Image.open(io.BytesIO(data[offset[i] : offset[i + 1]])) for i in pick]
    x = np.stack([np.asarray(im, dtype=np.float32) for im in images]).transpose(0, 3, 1, 2) / 255
    rows = np.arange(len(x))
    parties = {
        "active": PartyData(np.ascontiguousarray(x[..., :16]), rows),
        "passive": PartyData(np.ascontiguousarray(x[..., 16:]), rows),
    }
    y = np.isin(raw["label"][pick], [0, 1, 8, 9]).astype(np.int64)
    return Source("cifar", parties, "active", y, ("animal", "vehicle"))


@pytest.mark.slow
@pytest.mark.real
def test_resnet18_pretrains_and_fine_tunes_above_the_linear_baseline() -> None:
    torch.set_num_threads(1)
    task = make_task(halves(), 0, labelled=1000, aligned=0.8)
    stack = Stack.build({0: task}, [0])
    algorithm = registry.algorithms.create(
        "fedhssl",
        {"cut": 64, "stem": "small", "projector_hidden": 64, "projector_out": 64,
         "predictor_hidden": 16, "pretrain_iterations": 1, "pretrain_batch_size": 128,
         "pretrain_lr": 0.2, "batch_size": 64, "epochs": 4, "optimizer": "adam", "lr": 1e-3,
         "patience": 0},
    )  # fmt: skip
    fed = Federation.create(stack, [0])
    algorithm.build(fed)
    before = fed.parties["passive"].modules["bottom"].state()
    phases = run_phases(algorithm, fed)
    assert next(phases).name == "pretrain"
    after = fed.parties["passive"].modules["bottom"].state()
    for tower in ("cross", "local"):
        key = f"{tower}.top.stage4.1.body.0.weight"
        assert float((after[key] - before[key]).abs().max()) > 1e-3
    list(phases)
    rows = stack.rows("test")
    right = predict(algorithm, fed, rows).argmax(2)[0] == task.y[rows[0]]
    flat = torch.cat([task.x[p].flatten(1) for p in task.parties], dim=1).numpy()
    known, test = (task.sets[k].numpy() for k in ("labelled", "test"))
    y = task.y.numpy()
    linear = RidgeClassifier(alpha=1000.0).fit(flat[known], y[known])
    baseline = float((linear.predict(flat[test]) == y[test]).mean())
    assert baseline > 0.7
    assert float(right.double().mean()) > baseline
