"""The frameworks' own examples, unmodified but for data and the lines of the page on frameworks.

FOREIGN_EXAMPLES names a folder with checkouts called `flower` and `nvflare`; skipped without it.
Data are drawn, or digits that scikit-learn ships, in the files that the examples read.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from vflsec.cli.main import main
from vflsec.trace.reader import Trace
from vflsec.trace.truth import write_truth

pytestmark = pytest.mark.slow
HERE = Path(__file__).resolve().parent
GIVEN = os.environ.get("FOREIGN_EXAMPLES", "")
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_DISABLE_DOCKER_CPU_WARNING": "1",
}

FLOWER = """
import numpy as np
from vflsec.trace import flower

labels = np.load("labels.npy")
known = np.concatenate([np.flatnonzero(labels == c)[:10] for c in (0, 1)])
tap = flower.recorder(
    "trace/", party="party", rows=len(labels), ids="all", loss_reduction="mean", classes=2,
    known=(known, labels[known]), prior=[0.6, 0.4],
)
app = ClientApp(mods=[tap])
"""

NVFLARE = """
import os
import numpy as np
from vflsec.trace import nvflare
from vflsec.trace.adapter_base import in_order

labels = np.load(os.environ["LABELS"])
known = np.concatenate([np.flatnonzero(labels == c)[:10] for c in range(10)])
rec = nvflare.recorder(
    os.environ["TRACE"], party="site-1", role="passive", rows=len(labels), classes=10,
    loss_reduction="mean", known=(known, labels[known]), prior=[0.1] * 10,
)
places = in_order(len(labels), 64)
"""
FORWARD = '@rec(gives="embedding", ids=lambda at: places(at["step"]))'
BACKWARD = '@rec(takes={"gradients": "gradient"})'


def example(name: str, module: str, to: Path) -> Path:
    """A copy of an example's folder; skips where the framework or the checkout is not there."""
    pytest.importorskip(module, reason=f"{module} is not installed")
    folder = Path(GIVEN, name)
    if not GIVEN or not folder.is_dir():
        pytest.skip(f"FOREIGN_EXAMPLES names no folder with {name}")
    return Path(shutil.copytree(folder, to / folder.name))


def add(file: Path, *lines: tuple[str, str]) -> None:
    """Put lines into a file of an example; the place must be there once."""
    text = file.read_text()
    for place, new in lines:
        assert text.count(place) == 1, place
        text = text.replace(place, new)
    file.write_text(text)


def audit(trace: Path, labels: np.ndarray, *attacks: str) -> dict[tuple[str, str], float]:
    """AUC by adversary and attack."""
    write_truth(trace.parent / "truth", range(len(labels)), labels)
    chosen = [word for name in attacks for word in ("--attack", name)]
    out = trace.parent / "out"
    told = ["--truth", str(trace.parent / "truth"), "--out", str(out)]
    assert main(["trace", "audit", str(trace), *told, *chosen]) == 0
    frame = pd.read_csv(out / "results.csv").query("metric == 'auc' and status == 'ok'")
    return dict(zip(zip(frame["adversary"], frame["attack"]), frame["value"]))


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


def test_flower_vertical(tmp_path: Path) -> None:
    """Three nodes are three parties; each finds the labels that the server holds."""
    pytest.importorskip("flwr_datasets", reason="flwr-datasets is not installed")
    app = example("flower/examples/vertical-fl", "flwr", tmp_path)
    y = draw_titanic(app)
    add(app / "vertical_fl" / "client_app.py", ("app = ClientApp()\n", FLOWER))
    run = [sys.executable, str(HERE / "flower_run.py"), "3", "num-server-rounds=20"]
    subprocess.run(run, check=True, timeout=900, cwd=app, env=os.environ | QUIET)
    traces = [app / "trace" / f"party{i}" for i in range(3)]
    for trace in traces:
        assert main(["trace", "seal", str(trace), "--ended"]) == 0
        (seen,) = Trace.open(trace).observers
        kinds = [m.kind for m in Trace.open(trace).observer(seen).messages()]
        assert kinds.count("embedding") == 20
        assert 18 <= kinds.count("gradient") <= 20
    both = tmp_path / "joined"
    assert main(["trace", "join", *map(str, traces), "--out", str(both)]) == 0
    found = audit(both, y, "direction", "norm")
    assert all(found[f"party{i}", "direction"] > 0.95 for i in range(3)), found


def test_nvflare_simple_split_learning(tmp_path: Path) -> None:
    """Ids do not cross; the step says them, for batches are taken in the order of the file."""
    pytest.importorskip("torchvision", reason="torchvision is not installed")
    from sklearn.datasets import load_digits

    base = example("nvflare/examples/advanced/collab", "nvflare", tmp_path)
    x, y = (part[:1280] for part in load_digits(return_X_y=True))
    images = np.kron(x.reshape(-1, 8, 8), np.ones((3, 3))).clip(0, 15.9) * 16
    images = np.pad(images, ((0, 0), (2, 2), (2, 2))).astype(np.uint8)
    raw, labels = tmp_path / "raw", tmp_path / "labels.npy"
    raw.mkdir()
    for part in ("train", "t10k"):
        head = struct.pack(">IIII", 2051, *images.shape)
        (raw / f"{part}-images-idx3-ubyte").write_bytes(head + images.tobytes())
        head = struct.pack(">II", 2049, len(y))
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(head + y.astype(np.uint8).tobytes())
    np.save(labels, y)
    add(
        base / "simple_split_learning" / "simple_split_learning.py",
        ("from nvflare.recipe import SimEnv\n", f"from nvflare.recipe import SimEnv\n{NVFLARE}"),
        ("@collab.publish\ndef forward", f"@collab.publish\n{FORWARD}\ndef forward"),
        ("@collab.publish\ndef backward", f"@collab.publish\n{BACKWARD}\ndef backward"),
    )
    paths = os.pathsep.join([str(HERE / "site"), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {
        "PYTHONPATH": paths, "MNIST": str(raw), "LABELS": str(labels),
        "TRACE": str(tmp_path / "trace"),
    }  # fmt: skip
    run = [sys.executable, "-m", "collab.simple_split_learning.simple_split_learning"]
    subprocess.run(run, check=True, timeout=900, cwd=tmp_path, env=env)
    assert main(["trace", "seal", str(tmp_path / "trace"), "--ended"]) == 0
    (seen,) = Trace.open(tmp_path / "trace").observers
    got = list(Trace.open(tmp_path / "trace").observer(seen).messages())
    assert [m.kind for m in got] == ["embedding", "gradient"] * 200
    found = audit(tmp_path / "trace", y, "similarity")
    assert found["site-1", "similarity"] > 0.95, found
