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

from vflsec.core.federation import Federation
from vflsec.core.task import Stack, Task
from vflsec.data.prepare import make_task
from vflsec.data.source import PartyData, Source
from vflsec.plugins import registry
from vflsec.train.loop import predict, run_phases

ROOT = Path(__file__).resolve().parents[2]


def halves() -> Source:
    """8,000 photographs of ten classes, cut into a left and a right half."""
    folder = Path(os.environ.get("VFLSEC_TEST_DATA", ROOT.parent / "shared" / "data"))
    file = folder / "cifar10_jpeg" / "cifar10_jpeg_60k.npz"
    if not file.exists():
        pytest.skip(f"needs {file.name} in VFLSEC_TEST_DATA")
    raw = np.load(file)
    data, offset = raw["jpeg"].tobytes(), raw["offset"]
    pick = np.random.default_rng(0).permutation(len(raw["label"]))[:8000]
    images = [Image.open(io.BytesIO(data[offset[i] : offset[i + 1]])) for i in pick]
    x = np.stack([np.asarray(im, dtype=np.float32) for im in images]).transpose(0, 3, 1, 2) / 255
    rows = np.arange(len(x))
    parties = {
        "active": PartyData(np.ascontiguousarray(x[..., :16]), rows),
        "passive": PartyData(np.ascontiguousarray(x[..., 16:]), rows),
    }
    y = raw["label"][pick].astype(np.int64)
    return Source("cifar", parties, "active", y, tuple(str(c) for c in range(10)))


def ridge(task: Task) -> float:
    """Test accuracy of a linear model on all pixels, its penalty chosen on validation rows."""
    x = torch.cat([task.x[p].flatten(1) for p in task.parties], dim=1).numpy()
    y = task.y.numpy()
    known, validation, test = (task.sets[k].numpy() for k in ("labelled", "validation", "test"))
    fits = [RidgeClassifier(alpha=a).fit(x[known], y[known]) for a in (1e2, 1e3, 1e4)]
    best = max(fits, key=lambda m: float((m.predict(x[validation]) == y[validation]).mean()))
    return float((best.predict(x[test]) == y[test]).mean())


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.real
def test_resnet18_pretrains_and_fine_tunes_above_the_linear_baseline() -> None:
    """About three minutes of one core; an eighth of the paper's width, one global iteration."""
    torch.set_num_threads(1)
    task = make_task(halves(), 0, labelled=4300, aligned=0.9)
    stack = Stack.build({0: task}, [0])
    algorithm = registry.algorithms.create(
        "fedhssl",
        {"cut": 64, "stem": "small", "projector_hidden": 64, "projector_out": 64,
         "predictor_hidden": 16, "pretrain_iterations": 1, "pretrain_batch_size": 128,
         "pretrain_lr": 0.2, "batch_size": 64, "epochs": 6, "optimizer": "adam", "lr": 2e-3,
         "weight_decay": 1e-4, "schedule": "cosine", "patience": 0},
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
    baseline = ridge(task)
    assert baseline > 0.3
    assert float(right.double().mean()) > baseline + 0.03
