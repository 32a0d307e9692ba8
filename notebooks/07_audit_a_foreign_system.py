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
from sklearn.datasets import load_breast_cancer
from torch import nn

import vflsec

warnings.simplefilter("ignore")
torch.set_num_threads(1)
folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## 1. The system, as its authors wrote it
#
# A clinic holds 15 columns and the diagnosis, a laboratory the other 15. The clinic's optimiser also
# drives the top model; the laboratory's half is updated with the gradients that come back. The only
# additions are `vflsec.record` and the two lines that call it.

# %%
raw = load_breast_cancer()
table = ((raw.data - raw.data.mean(0)) / raw.data.std(0)).astype("float32")
diagnosis = 1 - raw.target  # malignant is 1
patients = [f"patient-{i}" for i in range(len(table))]


class LabNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(15, 24), nn.ReLU(), nn.Linear(24, 8))

    def forward(self, x):
        return self.body(x)


def their_training(seed, noise=0.0):
    """Their loop; returns the trace of the laboratory and the test accuracy."""
    torch.manual_seed(seed)
    order = np.random.default_rng(seed).permutation(len(table))
    train, test = order[:400], order[400:]
    clinic, lab, top = nn.Linear(15, 8), LabNet(), nn.Linear(16, 1)
    theirs = torch.optim.Adam([*clinic.parameters(), *top.parameters()], lr=1e-2)
    ours = torch.optim.Adam(lab.parameters(), lr=1e-2)
    known = train[:20]
    trace = folder / f"lab-{noise:g}-{seed}"
    with vflsec.record(
        trace, party="lab", role="passive", peer="clinic", rows=patients, classes=2,
        loss_reduction="mean", columns=table[:, 15:],
        known=([patients[i] for i in known], diagnosis[known]),
        run={"dataset": "clinic", "algorithm": "their loop", "seed": seed,
             "defense": "noise" if noise else "none", "strength": noise},
    ) as rec:  # fmt: skip
        initial = {k: v.clone() for k, v in lab.state_dict().items()}
        for epoch in range(8):
            rec.epoch(epoch)
            for start in range(0, len(train), 50):
                ids = train[start : start + 50]
                sent = rec.cut(lab(torch.from_numpy(table[ids, 15:])), [patients[i] for i in ids])
                arrived = sent.detach().requires_grad_()
                mine = clinic(torch.from_numpy(table[ids, :15]))
                logit = top(torch.cat([mine, arrived], 1)).squeeze(1)
                y = torch.from_numpy(diagnosis[ids]).float()
                loss = nn.functional.binary_cross_entropy_with_logits(logit, y)
                theirs.zero_grad()
                ours.zero_grad()
                loss.backward()
                back = arrived.grad
                back = back + noise * back.norm(dim=1).max() * torch.randn_like(back) / 8**0.5
                sent.backward(back)
                theirs.step()
                ours.step()
        rec.model(lab.body, {k.removeprefix("body."): v for k, v in initial.items()})
    with torch.no_grad():
        mine = clinic(torch.from_numpy(table[test, :15]))
        logit = top(torch.cat([mine, lab(torch.from_numpy(table[test, 15:]))], 1)).squeeze(1)
        right = (logit > 0).numpy() == (diagnosis[test] == 1)
    return trace, float(right.mean())


found = [their_training(seed) for seed in range(3)]
traces = [trace for trace, _ in found]
print("test accuracy of their model:", [round(a, 3) for _, a in found])

# %% [markdown]
# ## 2. Guess: at the laboratory, without labels
#
# Every attack that the recording has evidence for, beside what the laboratory could do alone. Runs that
# differ in their seed only are repetitions. The result is frozen before any label is near.

# %%
attacks = ["norm", "direction", "model_completion"]
guesses = vflsec.guess_traces(traces, folder / "guesses", attacks=attacks)
print(len(list(guesses.iterdir())), "files of guesses, controls and rows; no label among them")

# %% [markdown]
# ## 3. Judge: at the clinic, with labels
#
# The truth is written once, by position of the rows. The gate is the clinic's policy: no attack may be
# more than 0.1 better than what the laboratory knows anyway.

# %%
truth = vflsec.write_truth(folder / "clinic", range(len(table)), diagnosis)
limit = {"metric": "advantage", "max": 0.1}
audit = vflsec.score_traces(guesses, [truth], folder / "verdict", gates=[limit])
audit

# %%
own = audit.results[(audit.results.split == "train") & (audit.results.metric == "auc")]
means = own.groupby("attack")[["value", "control_value", "advantage"]].mean()
print(means.round(3).to_string())
print("verdict:", audit.verdict)
assert means.value.max() > 0.9

# %% [markdown]
# ## Exercise
#
# 1. The clinic adds noise to the gradients it returns (`noise=5`). Does the gate pass now, and what has
#    it cost their model?
# 2. Leave `columns` out of the recording. Why does every advantage grow?
#
# ## Solution

# %%
noisy = [their_training(seed, noise=5.0) for seed in range(3)]
print("test accuracy of their model:", [round(a, 3) for _, a in noisy])
guesses = vflsec.guess_traces([t for t, _ in noisy], folder / "guesses-noisy", attacks=attacks)
audit = vflsec.score_traces(guesses, [truth], folder / "verdict-noisy", gates=[limit])
own = audit.results[(audit.results.split == "train") & (audit.results.metric == "auc")]
print(own.groupby("attack")[["value", "control_value", "advantage"]].mean().round(3).to_string())
print("verdict:", audit.verdict)

# %% [markdown]
# What the table tells does not go away: the laboratory's own columns are as good as they were, and
# noise can only take what the federation adds. Without `columns` there is no control but the class
# majority, so all that these columns tell by themselves would count as leaked. The audit says so.
