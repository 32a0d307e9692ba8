"""The frameworks' own examples, unmodified but for data and the lines of the page on frameworks.

FOREIGN_EXAMPLES names a folder with checkouts called `flower`, `nvflare` and `aijack` (README.md
here says which); skipped without it. Data are drawn, or digits that scikit-learn ships.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
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

pytestmark = [pytest.mark.slow, pytest.mark.long]
HERE = Path(__file__).resolve().parent
GIVEN = os.environ.get("FOREIGN_EXAMPLES", "")
SHOWN = ["value", "low", "high", "n"]
ROUNDS, NODES = 12, 3
QUIET = {
    "HF_HUB_OFFLINE": "1", "FLWR_TELEMETRY_ENABLED": "0", "RAY_DISABLE_DOCKER_CPU_WARNING": "1",
}  # fmt: skip

FLOWER = """
import os
import numpy as np
from vflsec.trace.adapters import flower

labels = np.load("labels.npy")
known = np.concatenate([np.flatnonzero(labels == c)[:10] for c in (0, 1)])
tap = flower.recorder(
    os.environ["TRACE"], party="party", rows=len(labels), ids="all", loss_reduction="mean",
    classes=2, known=(known, labels[known]), prior=np.bincount(labels) / len(labels),
)
app = ClientApp(mods=[tap])
"""

NVFLARE = """
import os
import numpy as np
from vflsec.trace.adapters import nvflare
from vflsec.trace.adapters.base import in_order

labels = np.load(os.environ["LABELS"])
known = np.concatenate([np.flatnonzero(labels == c)[:10] for c in range(10)])
rec = nvflare.recorder(
    os.environ["TRACE"], party="site-1", role="passive", rows=2 * len(labels), classes=10,
    loss_reduction="mean", known=(known, labels[known]), prior=[0.1] * 10,
)
places = in_order(len(labels), 64)

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
    told = os.environ | QUIET | {k: str(v) for k, v in env.items()}
    words = [sys.executable, *map(str, command)]
    subprocess.run(words, check=True, timeout=1200, cwd=cwd, env=told)


def with_site() -> str:
    """PYTHONPATH with what stands in for data sets."""
    return os.pathsep.join([str(HERE / "site"), os.environ.get("PYTHONPATH", "")])


def read(out: Path) -> pd.DataFrame:
    """AUC with its interval over rows, by adversary and attack."""
    frame = pd.read_parquet(out / "results.parquet")  # read_csv is the notebook's, in one test
    frame = frame.query("metric == 'auc' and status == 'ok' and split == 'train'")
    return frame.set_index(["adversary", "attack"]).sort_index()


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


def draw_titanic(folder: Path, n: int = 600) -> np.ndarray:
    """A table with the columns of the set that the example loads, where it looks for it."""
    g = np.random.default_rng(0)
    female, pclass = g.random(n) < 0.35, g.integers(1, 4, n)
    y = (g.random(n) < 1 / (1 + np.exp(1.2 - 2.4 * female + 0.8 * (pclass - 2)))).astype(int)
    path = folder / "julien-c" / "titanic-survival"
    path.mkdir(parents=True)
    pd.DataFrame({
        "Survived": y, "Pclass": pclass, "Name": np.where(female, "Mrs. A", "Mr. Bell"),
        "Sex": np.where(female, "female", "male"), "Age": g.uniform(1, 75, n).round(1),
        "Siblings/Spouses Aboard": g.poisson(0.5, n),
        "Parents/Children Aboard": g.poisson(0.4, n),
        "Fare": (g.lognormal(3, 1, n) / pclass).round(4),
    }).to_csv(path / "titanic.csv", index=False)  # fmt: skip
    np.save(folder / "labels.npy", y)
    return y


def test_three_flower_nodes_are_audited_like_the_training_itself(tmp_path: Path) -> None:
    """Three nodes are three parties; the audit of each is that of the same training alone."""
    app = example("flower/examples/vertical-fl", tmp_path, "flwr", "ray", "flwr_datasets")
    y = draw_titanic(app)
    add(app / "vertical_fl" / "client_app.py", ("app = ClientApp()\n", FLOWER))
    run(HERE / "flower_run.py", NODES, f"num-server-rounds={ROUNDS}", cwd=app, TRACE=app / "trace")
    run(HERE / "flower_alone.py", NODES, ROUNDS, "alone.npz", cwd=app)
    traces = [app / "trace" / f"party{i}" for i in range(NODES)]
    alone = dict(np.load(app / "alone.npz", allow_pickle=False))
    for i, trace in enumerate(traces):
        kinds = seal(trace)
        assert kinds.count("embedding") == ROUNDS
        assert ROUNDS - 1 <= kinds.count("gradient") <= ROUNDS
        messages = list(Trace.open(trace).observer(f"party{i}").messages())
        for kind in ("embedding", "gradient"):
            got = np.array([m.values for m in messages if m.kind == kind])
            assert np.allclose(got, alone[f"{kind}s"][i][: len(got)], rtol=1e-3, atol=1e-7)
    joined = tmp_path / "joined"
    assert main(["trace", "join", *map(str, traces), "--out", str(joined)]) == 0
    attacks = ("direction", "norm", "cluster")
    found = audit([joined], y, *attacks)
    assert set(found.index.unique(0)) == {f"party{i}" for i in range(NODES)}
    known = np.concatenate([np.flatnonzero(y == c)[:10] for c in (0, 1)])
    for i in range(NODES):
        seen = vflsec.Messages(
            gradients=alone["gradients"][i], embeddings=alone["embeddings"][i],
            loss_reduction="mean",
        )  # fmt: skip
        live = tmp_path / f"live{i}"
        vflsec.audit_messages(seen, y, known=known.tolist(), attacks=attacks, out=live)
        expected, recorded = read(live).loc["passive"], found.loc[f"party{i}"]
        sys.stdout.write(f"{recorded[SHOWN]}\n{expected[SHOWN]}\n")
        assert set(recorded.index) == set(expected.index) >= set(attacks)
        assert (recorded["n"] == len(y) - 20).all()
        assert recorded["value"].between(expected["low"], expected["high"]).all()
        assert expected["value"].between(recorded["low"], recorded["high"]).all()
        assert recorded["value"]["direction"] > 0.95


def test_nvflare_simple_split_learning(tmp_path: Path) -> None:
    """Ids do not cross; the step says them, for batches are taken in the order of the file."""
    from sklearn.datasets import load_digits

    base = example("nvflare/examples/advanced/collab", tmp_path, "nvflare", "torchvision")
    x, y = (part[:1280] for part in load_digits(return_X_y=True))
    images = np.kron(x.reshape(-1, 8, 8), np.ones((3, 3))).clip(0, 15.9) * 16
    images = np.pad(images, ((0, 0), (2, 2), (2, 2))).astype(np.uint8)
    raw, labels, trace = tmp_path / "raw", tmp_path / "labels.npy", tmp_path / "trace"
    raw.mkdir()
    for part in ("train", "t10k"):
        head = struct.pack(">IIII", 2051, *images.shape)
        (raw / f"{part}-images-idx3-ubyte").write_bytes(head + images.tobytes())
        head = struct.pack(">II", 2049, len(y))
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(head + y.astype(np.uint8).tobytes())
    np.save(labels, y)
    forward = '@rec(gives="embedding", ids=lambda at: places(at["step"]))'
    add(
        base / "simple_split_learning" / "simple_split_learning.py",
        ("from nvflare.recipe import SimEnv\n", f"from nvflare.recipe import SimEnv\n{NVFLARE}"),
        ("@collab.publish\ndef forward", f"@collab.publish\n{forward}\ndef forward"),
        ("@collab.publish\ndef backward", f"@collab.publish\n{BACKWARD}\ndef backward"),
    )
    env = {"PYTHONPATH": with_site(), "MNIST": raw, "LABELS": labels, "TRACE": trace}
    run("-m", "collab.simple_split_learning.simple_split_learning", cwd=tmp_path, **env)
    assert seal(trace) == ["embedding", "gradient"] * 200
    found = audit([trace], np.append(y, np.full(len(y), -1)), "similarity", "lea").loc["site-1"]
    sys.stdout.write(f"{found[SHOWN]}\n")
    assert (found["n"] == len(y) - 100).all()
    assert (found["value"][["similarity", "lea"]] > 0.95).all()


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
