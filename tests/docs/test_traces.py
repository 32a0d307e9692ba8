"""The loop that docs/traces.md shows records what attacks on labels need."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import vflsec
from vflsec.audit.gate import MIN_SEEDS
from vflsec.audit.validated import find_least_gain
from vflsec.cli import main

ROOT = Path(__file__).resolve().parents[2]


def block_with(words: str) -> str:
    """The first Python of the page that has these words."""
    text = (ROOT / "docs" / "traces.md").read_text(encoding="utf-8")
    return next(b for b in re.findall(r"```python\n(.*?)```", text, re.S) if words in b)


def test_how_many_traces_it_takes_is_what_the_function_says() -> None:
    text = (ROOT / "docs" / "traces.md").read_text(encoding="utf-8")
    head, _, *rows = re.search(r"^\| attacks \|.*?\n\n", text, re.M | re.S)[0].splitlines()[:6]
    traces = [int(n) for n in re.findall(r"(\d+) traces", head)]
    for row in rows:
        attacks, *gains = [float(x) for x in row.strip("| ").split("|")]
        assert gains == [round(find_least_gain(int(attacks), n), 1) for n in traces]
    assert (len(rows), traces[0]) == (4, MIN_SEEDS)


@pytest.mark.slow
def test_the_arrays_of_the_page_get_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    g = np.random.default_rng(0)
    labels, ids = np.arange(200) % 2, np.stack([g.permutation(200) for _ in range(3)])
    gradients = g.standard_normal((3, 200, 4))
    gradients[..., 0] += 4.0 * labels[ids]
    monkeypatch.chdir(tmp_path)
    columns = g.standard_normal((200, 3))
    np.savez("messages.npz", gradients=gradients, ids=ids, labels=labels, columns=columns)
    exec(compile(block_with("audit_messages"), "docs/traces.md", "exec"), {})
    assert capsys.readouterr().out.endswith("INCONCLUSIVE\n")  # one training


@pytest.mark.slow
def test_the_loop_of_the_page_makes_a_trace_that_can_be_attacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = block_with("vflsec.record(")
    g = torch.Generator().manual_seed(0)
    ids, labels = np.arange(300), np.arange(300) % 3 == 0
    x_all = torch.randn(300, 4, generator=g)
    way = torch.randn(8, generator=g)
    seen: list[np.ndarray] = []

    def loader() -> list[tuple[np.ndarray, torch.Tensor]]:
        seen.extend(np.split(ids, 6))
        return [(rows, x_all[rows]) for rows in np.split(ids, 6)]

    def receive() -> torch.Tensor:  # of a loss that grows with the label's direction
        sign = torch.as_tensor(np.where(labels[seen.pop(0)], -1.0, 0.5), dtype=torch.float32)
        return sign[:, None] * way

    class Batches:
        def __iter__(self) -> object:
            return iter(loader())

    monkeypatch.chdir(tmp_path)
    names = {
        "vflsec": vflsec, "ids": ids, "x_all": x_all, "epochs": 2, "loader": Batches(),
        "known_ids": ids[:20], "known_labels": labels[:20].astype(int), "receive": receive,
        "bottom": torch.nn.Linear(4, 8), "send": lambda z: None,
    }  # fmt: skip
    exec(compile(loop, "docs/traces.md", "exec"), names)
    assert main.main(["trace", "audit", "trace", "--out", "R"]) == 0
    said = capsys.readouterr().out
    assert re.match(r"\d+ attacks made guesses: .*direction.*similarity", said)


@pytest.mark.usefixtures("read_in_forks")
def test_a_trace_that_no_attack_can_use_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with vflsec.record("trace", party="bank", role="passive", rows=range(40)) as rec:
        z = rec.cut(torch.nn.Linear(3, 2)(torch.randn(40, 3)), np.arange(40))
        z.sum().backward()
    assert main.main(["trace", "audit", "trace", "--out", "R"]) == 3
    said = capsys.readouterr().out
    assert said.startswith("No attack made a guess.")
    assert "classes" in said.splitlines()[0]
