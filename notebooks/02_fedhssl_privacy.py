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
import numpy as np
import torch

from vflsec import registry
from vflsec.audit.intervals import t_interval
from vflsec.cell import AttackSpec, CellSpec, DefenseSpec
from vflsec.data.prepare import make_task
from vflsec.engine.cohort import run_cohort

torch.set_num_threads(1)
SEEDS = range(5)

# %% [markdown]
# ## The data
#
# Handwritten digits cut into halves: the active party has the left half and the labels, the passive
# party the right half. 40 % of the training rows are aligned, 200 of them labelled.

# %%
source = registry.datasets.create("digits").load(0)
tasks = {s: make_task(source, s, labelled=200, aligned=0.4) for s in SEEDS}
{name: len(rows) for name, rows in tasks[0].sets.items()}

# %%
small = {
    "hidden": [64], "cut": 64, "projector_hidden": 64, "projector_out": 64, "predictor_hidden": 16,
    "pretrain_iterations": 5, "pretrain_batch_size": 128, "pretrain_lr": 0.2,
    "batch_size": 64, "epochs": 40, "patience": 10,
}  # fmt: skip
attack = AttackSpec(
    "model_completion", {"variants": ["logistic", "finetune"], "steps": 50}, ("passive",),
    known_rows=80,
)  # fmt: skip


def run(algorithm, strengths=(0.0,), attacks=(), **change):
    """Results by strength of the gradient noise: a list of seeds each."""
    cells = [
        CellSpec({"name": "digits"}, algorithm, small | change,
                 (DefenseSpec("iso", {"phase": "finetune"}, strength=f),), seed=s)
        for f in strengths for s in SEEDS
    ]  # fmt: skip
    found = run_cohort(cells, list(attacks), tasks, device="cpu")
    return [found[i : i + len(SEEDS)] for i in range(0, len(found), len(SEEDS))]


def accuracy(results, phase="finetune", attack=""):
    return np.array([
        m.value for r in results for m in r.measures
        if m.split == "test" and m.metric == "accuracy" and m.phase == phase
        and bool(m.attack) == bool(attack)
    ])  # fmt: skip


def show(values):
    low, high = t_interval(values)
    return f"{values.mean():.3f} [{low:.3f}, {high:.3f}]"


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
    print(f"{name:18}", show(accuracy(run(algorithm, **change)[0])))

# %% [markdown]
# ## What it leaks
#
# The attacker completes its bottom after pre-training and after fine-tuning. Beside it stand its
# controls on the same 80 rows: its own encoder pre-trained **alone** (the paper's prior attacker),
# its own network from scratch, and logistic regression on its columns. Only what exceeds the
# strongest of them was leaked by the federation.

# %%
strengths = (0.0, 1.0, 5.0, 25.0)
curve = run("fedhssl", strengths, [attack])
plain = curve[0]
for phase in ("pretrain", "finetune"):
    print(f"attack after {phase:9}", show(accuracy(plain, phase, "completion")))
for name in ("alone", "scratch", "logistic", "majority"):
    values = [
        m.controls[name]["value"] for r in plain for m in r.measures
        if m.attack and m.split == "test" and m.metric == "accuracy" and m.phase == "finetune"
    ]  # fmt: skip
    print(f"control {name:14}", show(np.array(values)))

# %% [markdown]
# ## What noise on the gradients costs, and what it stops
#
# Isotropic noise of growing strength on the gradients of fine-tuning. It cannot undo what the
# passive party's bottom already is after pre-training: compare the last column with the attack after
# pre-training above.

# %%
print("strength   main                    attack")
for f, results in zip(strengths, curve, strict=True):
    print(f"{f:8}  ", show(accuracy(results)), " ", show(accuracy(results, attack="completion")))

# %% [markdown]
# ## What crossed the boundary
#
# Exact counts of one seed: projections both ways for every aligned batch, states of the local tops
# once a global iteration, and in fine-tuning embeddings up and gradients down.

# %%
for row in plain[0].ledger:
    if row.phase != "predict" and row.kind in ("embedding", "gradient", "state"):
        print(f"{row.phase:9} {row.kind:9} {row.name:10} {row.sender:8}-> {row.receiver:8}"
              f"{row.messages:5} messages {row.bytes / 1e6:7.3f} MB")  # fmt: skip
