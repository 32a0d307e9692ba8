"""The frameworks' own examples, unmodified but for data and the lines of the page on frameworks.

FOREIGN_EXAMPLES names a folder with checkouts called `nvflare` and `aijack` (README.md here says
which); skipped without it. Data are drawn.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import vflsec
from vflsec.cli.main import main
from vflsec.trace.reader import Trace
from vflsec.trace.truth import write_truth

pytestmark = pytest.mark.slow
HERE = Path(__file__).resolve().parent
GIVEN = os.environ.get("FOREIGN_EXAMPLES", "")
SHOWN = ["value", "n"]

NVFLARE = """
import os
import numpy as np
from vflsec.trace import nvflare

labels = np.load(os.environ["LABELS"])
known = np.concatenate([np.flatnonzero(labels == c)[:10] for c in range(10)])
rec = nvflare.recorder(
    os.environ["TRACE"], party="site-1", role="passive", rows=2 * len(labels), classes=10,
    loss_reduction="mean", known=(known, labels[known]), prior=[0.1] * 10,
)

"""
BACKWARD = '@rec(takes={"gradients": "gradient"})'


def example(folder: str, to: Path, *modules: str) -> Path:
    """A copy of an example's folder; skips where a module or the checkout is not there."""
    for module in modules:
        pytest.importorskip(module, reason=f"{module} is not installed")
    if not GIVEN or not Path(GIVEN, folder).is_dir():
        pytest.skip(f"FOREIGN_EXAMPLES names no folder with {folder}")
    return Path(shutil.copytree(Path(GIVEN, folder), to / Path(folder).name))


def add(file: Path, *lines: tuple[str, str]) -> None:
    """Put lines into a file of an example; the place must be there once."""
    text = file.read_text()
    for place, new in lines:
        assert text.count(place) == 1, place
        text = text.replace(place, new)
    file.write_text(text)


def run(*command: object, cwd: Path, **env: object) -> None:
    told = os.environ | {k: str(v) for k, v in env.items()}
    words = [sys.executable, *map(str, command)]
    subprocess.run(words, check=True, timeout=1200, cwd=cwd, env=told)


def with_site() -> str:
    """PYTHONPATH with what stands in for data sets."""
    return os.pathsep.join([str(HERE / "site"), os.environ.get("PYTHONPATH", "")])


def read(out: Path) -> pd.DataFrame:
    """AUC by adversary and attack."""
    points = pd.DataFrame(json.loads((out / "summary.json").read_text())["points"])
    points = points.query("metric == 'auc' and status == 'ok' and split == 'train'")
    return points.set_index(["adversary", "attack"]).sort_index()


def audit(traces: list[Path], labels: np.ndarray, *attacks: str) -> pd.DataFrame:
    """What an audit of these traces finds, which makes guesses for every party in them."""
    out = traces[0].parent / "out"
    write_truth(out.with_name("truth"), range(len(labels)), labels)
    told = ["--truth", str(out.with_name("truth")), "--out", str(out)]
    chosen = [word for name in attacks for word in ("--attack", name)]
    assert main(["trace", "audit", *map(str, traces), *told, *chosen]) == 0
    return read(out)


def seal(trace: Path) -> list[str]:
    """Kinds of messages, in their order, of the only party that observed this trace."""
    assert main(["trace", "seal", str(trace), "--ended"]) == 0
    (seen,) = Trace.open(trace).observers
    return [m.kind for m in Trace.open(trace).observer(seen).messages()]


def draw_cifar(folder: Path, n: int = 300) -> np.ndarray:
    """Labels (n,) of images with a pattern by class, in the files that CIFAR-10 comes in."""
    g = np.random.default_rng(0)
    base, every = folder / "cifar-10-batches-py", []
    base.mkdir(parents=True)
    patterns = g.uniform(60, 200, (10, 3, 8, 8))
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        y = g.integers(0, 10, n // 5)
        x = np.kron(patterns[y], np.ones((4, 4))) + g.normal(0, 40, (len(y), 3, 32, 32))
        data = x.clip(0, 255).astype(np.uint8).reshape(len(y), -1)
        (base / name).write_bytes(pickle.dumps({"data": data, "labels": y.tolist()}))
        every.append(y)
    names = [str(i) for i in range(10)]
    (base / "batches.meta").write_bytes(pickle.dumps({"label_names": names}))
    return np.concatenate(every[:5])


def test_nvflare_cifar10_splitnn(tmp_path: Path) -> None:
    """Two sites after a private set intersection; row ids cross as an argument."""
    needed = ("nvflare", "torchvision", "tensorboard", "private_set_intersection")
    name = "nvflare/examples/advanced/vertical_federated_learning/cifar10-splitnn"
    app, steps = example(name, tmp_path, *needed), 40
    y = draw_cifar(app / "cifar")
    trace, labels = tmp_path / "trace", tmp_path / "labels.npy"
    env = {"PYTHONPATH": with_site(), "LABELS": labels, "TRACE": trace}
    told = ["--dataset-root", app / "cifar", "--split-dir", app / "split"]
    more = ["--psi-workspace", app / "psi", "--overlap", 200]
    run("prepare_data.py", *told, *more, cwd=app, **env)
    met = np.sort(np.loadtxt(app / "split" / "intersections" / "site-1.txt", dtype=int))
    assert len(met) == 200
    np.save(labels, y[met])
    evaluated = '@rec(gives="embedding", ids=lambda at: at["batch_indices"] + len(labels), phase='
    last = "from nvflare.fuel.utils.log_utils import get_obj_logger\n"
    add(
        app / "client.py",
        (last, last + NVFLARE),
        ("NUM_STEPS = 15_625", f"NUM_STEPS = {steps}"),
        ("    def _forward", '    @rec(gives="embedding", ids="batch_indices")\n    def _forward'),
        ("    def _backward", f"    {BACKWARD}\n    def _backward"),
        ("    def _validation_f", f'    {evaluated}"eval")\n    def _validation_f'),
    )
    run("job.py", *told, "--workspace-root", tmp_path / "w", cwd=app, **env)
    kinds = seal(trace)
    assert kinds.count("gradient") == steps - 1, "the example does not use the last"
    assert kinds.count("embedding") == steps + 1, "one batch is validated"
    attacks = ("similarity", "lea", "message_completion")
    found = audit([trace], np.append(y[met], np.full(200, -1)), *attacks).loc["site-1"]
    sys.stdout.write(f"{found[SHOWN]}\n")
    assert set(found.index) >= set(attacks)
    assert (found["n"] == 100).all()
    assert (found["value"] > 0.8).all()


def test_aijack_splitnn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its notebook on label leakage, cell by cell; its own norm attack finds what ours does."""
    docs = example("aijack/docs/source/notebooks", tmp_path, "torchvision")
    source = Path(GIVEN, "aijack", "src", "aijack")
    # Without the parts of the package that need MPI or its compiled modules.
    for name in ("", ".attack", ".collaborative"):
        module = types.ModuleType(f"aijack{name}")
        module.__path__ = [str(source / name[1:])]
        monkeypatch.setitem(sys.modules, module.__name__, module)
    g = np.random.default_rng(0)
    fraud = (g.random(750) < 0.15).astype(int)
    drawn = {f"V{i}": g.normal(size=750) + 0.6 * fraud * (i < 4) for i in range(1, 29)}
    frame = pd.DataFrame({"Time": 0, **drawn, "Amount": g.lognormal(3, 1, 750), "Class": fraud})
    monkeypatch.setattr(pd, "read_csv", lambda *_: frame)
    np.random.seed(0)  # noqa: NPY002 - the notebook splits rows by the global generator
    cells = json.loads((docs / "aijack_split_learning.ipynb").read_text())["cells"]
    code = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
    assert code[1].count("        return x\n") == 1
    code[1] = code[1].replace("        return x\n", "        return cut(x)\n")
    space: dict[str, object] = {}
    for cell in code[:4]:
        exec(cell, space)
    x, y = space["train_features"], space["train_labels"]
    row_of = {tuple(row): i for i, row in enumerate(x)}
    known = np.concatenate([np.flatnonzero(y == c)[:10] for c in (0, 1)])
    first, at = space["FirstNet"].forward, []

    def forward(self: torch.nn.Module, rows: torch.Tensor) -> torch.Tensor:
        at[:] = [row_of[tuple(row.tolist())] for row in rows]
        return first(self, rows)

    space["FirstNet"].forward = forward
    told = {"classes": 2, "known": (known, y[known]), "prior": np.bincount(y) / len(y)}
    with vflsec.record(
        tmp_path / "trace", party="client", role="passive", rows=len(y), columns=x, grad_scale=1,
        loss_reduction="mean", **told,
    ) as rec:  # fmt: skip
        space["cut"] = lambda z: rec.cut(z, list(at))
        exec(code[4], space)
    space["cut"] = lambda z: z
    exec(code[5], space)
    found = audit([tmp_path / "trace"], y, "norm", "direction", "similarity").loc["client"]
    sys.stdout.write(f"{found[SHOWN]}\nits own norm attack: {space['train_leak_auc']}\n")
    assert (found["n"] == len(y) - 20).all()
    assert (found["value"][["norm", "direction", "similarity"]] > 0.95).all()
    assert found["value"]["norm"] == pytest.approx(space["train_leak_auc"], abs=0.05)
