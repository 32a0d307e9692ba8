# ---
# jupyter:
#   jupytext:
#     formats: py:percent,ipynb
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Audit a system that is not ours
#
# Somebody wrote a split training long ago, in plain PyTorch, and it runs. Nothing of it is to be
# rewritten for an audit. Three lines at the cut record what the party without labels saw; the attacks
# are made on the recording, later and elsewhere; whoever holds the labels turns guesses into a verdict.

# %%
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import vflsec

warnings.simplefilter("ignore")
torch.set_num_threads(1)
folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## 1. The system, as its authors wrote it
#
# An office scans the left halves of digits and knows which of them are eights; a contractor has the
# right halves. The office's optimiser also drives the top model; the contractor's half is updated with
# the gradients that come back. The only additions are `vflsec.record` and the lines that call `rec`.

# %%
raw = load_digits()
halves = (raw.images.astype("float32") - 5) / 6
left, right = halves[:, :, :4].reshape(-1, 32), halves[:, :, 4:].reshape(-1, 32)
eight = (raw.target == 8).astype("int64")
letters = [f"letter-{i}" for i in range(len(eight))]


class RightNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 8))

    def forward(self, x):
        return self.body(x)


def their_training(seed, noise=0.0):
    """Their loop; returns the trace of the contractor and the test accuracy."""
    torch.manual_seed(seed)
    order = np.random.default_rng(seed).permutation(len(eight))
    train, test = order[:1200], order[1200:]
    office, contractor, top = nn.Linear(32, 8), RightNet(), nn.Linear(16, 1)
    theirs = torch.optim.Adam([*office.parameters(), *top.parameters()], lr=1e-2)
    ours = torch.optim.Adam(contractor.parameters(), lr=1e-2)
    eights, others = train[eight[train] == 1][:10], train[eight[train] == 0][:10]
    known = [*eights, *others]
    trace = folder / f"contractor-{noise:g}-{seed}"
    with vflsec.record(
        trace, party="contractor", role="passive", peer="office", rows=letters, classes=2,
        loss_reduction="mean", columns=right, model=contractor,
        known=([letters[i] for i in known], eight[known]),
        run={"dataset": "letters", "algorithm": "their loop", "seed": seed,
             "defense": "noise" if noise else "none", "strength": noise},
    ) as rec:  # fmt: skip
        for epoch in range(8):
            rec.epoch(epoch)
            for start in range(0, len(train), 60):
                ids = train[start : start + 60]
                sent = rec.cut(contractor(torch.from_numpy(right[ids])), [letters[i] for i in ids])
                arrived = sent.detach().requires_grad_()
                mine = office(torch.from_numpy(left[ids]))
                logit = top(torch.cat([mine, arrived], 1)).squeeze(1)
                y = torch.from_numpy(eight[ids]).float()
                loss = nn.functional.binary_cross_entropy_with_logits(logit, y)
                theirs.zero_grad()
                ours.zero_grad()
                loss.backward()
                back = arrived.grad
                back = back + noise * back.norm(dim=1).max() * torch.randn_like(back) / 8**0.5
                sent.backward(back)
                theirs.step()
                ours.step()
    with torch.no_grad():
        mine = office(torch.from_numpy(left[test]))
        logit = top(torch.cat([mine, contractor(torch.from_numpy(right[test]))], 1)).squeeze(1)
        hits = (logit > 0).numpy() == (eight[test] == 1)
    return trace, float(hits.mean())


found = [their_training(seed) for seed in range(5)]
traces = [trace for trace, _ in found]
print("test accuracy of their model:", [round(a, 3) for _, a in found])

# %% [markdown]
# ## 2. Guess: at the contractor, without labels
#
# Every attack that the recording has evidence for, beside what the contractor could do alone. Runs that
# differ in their seed only are repetitions. The result is frozen before any label is near.

# %%
attacks = ["norm", "direction", "model_completion"]
guesses = vflsec.guess_traces(traces, folder / "guesses", attacks=attacks)
print(len(list(guesses.iterdir())), "files of guesses, controls and rows; no label among them")

# %% [markdown]
# ## 3. Judge: at the office, with labels
#
# The truth is written once, by position of the rows. The gate is the office's policy: no attack may be
# more than 0.05 better than what the contractor knows anyway.

# %%
truth = vflsec.write_truth(folder / "office", range(len(eight)), eight)
limit = {"metric": "advantage", "max": 0.05}
audit = vflsec.score_traces(guesses, [truth], folder / "verdict", gates=[limit])
audit

# %%
own = audit.results.query("split == 'train' and metric == 'auc' and role == 'audit'")
means = own.groupby("attack")[["value", "control_value", "advantage"]].mean()
print(means.round(3).to_string())
print("verdict:", audit.verdict, *(v["reason"] for v in audit.summary["gates"]))
assert means.value.max() > 0.95
assert audit.verdict == "FAIL"

# %% [markdown]
# ## Exercise
#
# 1. The office adds noise to the gradients it returns (`noise=5`). Does the gate pass now, and what has
#    it cost their model?
# 2. Leave `columns` out of the recording. Why does every advantage grow?
#
# ## Solution

# %%
noisy = [their_training(seed, noise=5.0) for seed in range(5)]
print("test accuracy of their model:", [round(a, 3) for _, a in noisy])
both = traces + [trace for trace, _ in noisy]
guesses = vflsec.guess_traces(both, folder / "guesses-both", attacks=attacks)
limit["defense"] = "noise"
audit = vflsec.score_traces(guesses, [truth], folder / "verdict-both", gates=[limit])
own = audit.results.query("split == 'train' and metric == 'auc' and role == 'audit'")
means = own.groupby(["attack", "strength"])[["value", "control_value", "advantage"]].mean()
print(means.round(3).to_string())
print("verdict:", audit.verdict, *(v["reason"] for v in audit.summary["gates"]))

# %% [markdown]
# The contractor's own columns are as good as they were: noise can only take what the federation adds.
# The undefended runs are given along with the noisy ones: an attack that fails passes a gate only where
# it is shown to work without the defense, and only with bounds that lie within the limit. Five seeds do
# not settle that here, which is neither a pass nor a leak. Without `columns` there is no control but the class
# majority, so all that these columns tell by themselves would count as leaked. The audit says so.
