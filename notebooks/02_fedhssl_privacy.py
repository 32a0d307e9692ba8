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
# # Self-supervised VFL: what it buys with few labels, and what it leaks
#
# Real parties have many rows but few *aligned* and fewer *labelled* ones. FedHSSL (He, Kang et al.,
# arXiv:2208.08934) pre-trains without labels: on aligned rows the parties pull their projections
# together (cross-party step), on its own rows each party learns alone, guided by the first (local
# step), and the tops of the local models are averaged. Then split training on the labelled rows.
#
# No label is used in pre-training. Does it leak labels all the same? And what does fine-tuning add?
# The attacker is the passive party: it knows 80 labels and completes its own bottom with a head.

# %%
import json

import numpy as np
import torch

import vflsec
from vflsec.audit import t_interval

torch.set_num_threads(1)

# %% [markdown]
# ## The data
#
# Handwritten digits cut into halves: the active party has the left half and the labels, the passive
# party the right half. 40 % of the training rows are aligned, 200 of them labelled.

# %%
digits = {"name": "digits", "labelled": 200, "aligned": 0.4}
small = {
    "hidden": [64], "cut": 64, "projector_hidden": 64, "projector_out": 64, "predictor_hidden": 16,
    "pretrain_iterations": 5, "pretrain_batch_size": 128, "pretrain_lr": 0.2,
    "batch_size": 64, "epochs": 40, "patience": 10,
}  # fmt: skip
completion = {"name": "model_completion", "variants": ["logistic", "finetune"], "steps": 50}


def run(algorithm, **change):
    """Five seeds of one algorithm, side by side."""
    return vflsec.train(
        digits, algorithm, attacks=["model_completion"], device="cpu", **(small | change)
    )


def accuracy(frame, strength=None):
    """Test accuracies, one for each seed."""
    rows = frame[(frame.split == "test") & (frame.metric == "accuracy")]
    rows = rows if strength is None else rows[rows.strength == strength]
    return rows.value.to_numpy()


def show(values):
    low, high = t_interval(values)
    return f"{np.mean(values):.3f} [{low:.3f}, {high:.3f}]"


# %% [markdown]
# ## What it buys
#
# The same encoder from scratch (FedSplitNN: no pre-training), with each party's own pre-training,
# with the cross-party step alone, and with all of FedHSSL. Mean test accuracy of five seeds with
# its 95 % interval: look at the intervals before ranking anything.

# %%
arms = {
    "FedSplitNN": ("fedcssl", {"pretrain_iterations": 0}),
    "FedLocalSimSiam": ("fedlocal_ssl", {"own_control": False}),
    "FedCSSL-SimSiam": ("fedcssl", {"own_control": False}),
    "FedHSSL-SimSiam": ("fedhssl", {"own_control": False}),
}
for name, (algorithm, change) in arms.items():
    print(f"{name:18}", show(accuracy(run(algorithm, **change).main)))

# %% [markdown]
# ## What it leaks
#
# The attacker completes its bottom after pre-training and after fine-tuning. Beside it stand its
# controls on the same 80 rows: its own encoder pre-trained **alone** (the paper's prior attacker),
# its own network from scratch, and logistic regression on its columns. Only what exceeds the
# strongest of them was leaked by the federation.

# %%
strengths = (0.0, 1.0, 5.0, 25.0)
pretrained = run("fedhssl", until="pretrain")
finetuned = run("fedhssl", defenses={"iso": {"strength": strengths, "phase": "finetune"}})
found = {
    "pretrain": vflsec.measure(pretrained, completion, known_rows=80, by_seed=True),
    "finetune": vflsec.measure(finetuned, completion, known_rows=80, by_seed=True),
}
for phase, frame in found.items():
    attacked = frame[frame.attack != ""]
    print(f"attack after {phase:9}", show(accuracy(attacked, 0.0 if phase == "finetune" else None)))

# %%
tuned = found["finetune"]
plain = tuned[(tuned.strength == 0) & (tuned.split == "test") & (tuned.metric == "accuracy")]
controls = [json.loads(text) for text in plain.controls]
for name in controls[0]:
    print(f"control {name:14}", show([c[name]["value"] for c in controls]))

# %% [markdown]
# ## What noise on the gradients costs, and what it stops
#
# Isotropic noise of growing strength on the gradients of fine-tuning. It cannot undo what the
# passive party's bottom already is after pre-training: compare the last column with the attack after
# pre-training above.

# %%
print("strength   main                    attack")
for f in strengths:
    print(f"{f:8}  ", show(accuracy(finetuned.main, f)), " ", show(accuracy(tuned, f)))

# %% [markdown]
# ## What crossed the boundary
#
# Exact counts of one seed: projections both ways for every aligned batch, states of the local tops
# once a global iteration, and in fine-tuning embeddings up and gradients down.

# %%
crossed = finetuned.messages
here = (crossed.seed == 0) & (crossed.strength == 0) & (crossed.phase != "predict")
here &= crossed.kind.isin(["embedding", "gradient", "state"])
crossed[here].drop(columns=["seed", "strength", "elements"])

# %% [markdown]
# ## Exercise
#
# 1. Grant the attacker 20 labels instead of 80. Which of its controls suffers most?
# 2. Is what leaks after pre-training owed to the cross-party step or to each party's own? Attack
#    `fedlocal_ssl`, in which nothing crosses before fine-tuning.
#
# ## Solution

# %%
for known_rows in (20, 80):
    frame = vflsec.measure(pretrained, completion, known_rows=known_rows, by_seed=True)
    frame = frame[(frame.split == "test") & (frame.metric == "accuracy")]
    controls = [json.loads(text) for text in frame.controls]
    means = {n: np.mean([c[n]["value"] for c in controls]).round(3) for n in controls[0]}
    print(known_rows, "labels: attack", show(frame.value), {n: float(v) for n, v in means.items()})

# %%
local = run("fedlocal_ssl", own_control=False, until="pretrain")
frame = vflsec.measure(local, completion, known_rows=80)
frame[(frame.split == "test") & (frame.metric == "accuracy")][["value", "control", "advantage"]]

# %% [markdown]
# Nothing crossed, so nothing can have leaked: an advantage here is what the control set cannot do, and
# the yardstick for the advantage above.
