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
# # Gradients tell
#
# In split learning the passive party receives, for every row of every batch, the gradient of the
# loss with respect to what it sent. For cross entropy that gradient is
# gᵢ = (pᵢ − yᵢ) · ∂sᵢ/∂zᵢ: the label sits in it with a sign.
#
# We look at one training through the eyes of the passive party, and ask four questions: what does
# the *length* of a gradient say, what does its *direction* say, what does *patience* buy, and what
# do two defenses change? The attacks are those of Li et al. (ICLR 2022, arXiv:2102.08504).

# %%
import json
import warnings

import matplotlib.pyplot as plt
import numpy as np
import torch

import vflsec

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
SEEDS = 3

# %% [markdown]
# ## A world with rare positives
#
# 15 % of the rows are positive. The passive party holds 100 columns that carry most of the signal,
# the active party 20 columns and the labels.

# %%
world = {"name": "control_gaussian", "params": {"positive_rate": 0.15}}

# %% [markdown]
# One cohort trains everything at once: four noise strengths for each seed. `over_time` asks for what
# the attacker knew after every epoch, from the same recorded run.

# %%
STRENGTHS = (0.0, 1.0, 5.0, 25.0)
settings = {"epochs": 15, "patience": 0, "cut": 16}
attacks = [
    {"name": "norm"},
    {"name": "direction", "positives": 5},
    {"name": "direction", "positives": 5, "accumulate": False, "epoch": "last"},
]


def train(defenses):
    return vflsec.train(
        world, "splitnn", defenses=defenses, seeds=SEEDS, attacks=attacks, device="cpu",
        **settings,
    )  # fmt: skip


def auc(trained, attacks):
    """One row for each AUC on training rows: at the end, and after every epoch."""
    found = vflsec.measure(trained, attacks, over_time=True, by_seed=True)
    found = found[(found.metric == "auc") & (found.split == "train") & (found.attack != "")]
    epoch = found.phase.str.extract(r"@(\d+)")[0].astype(float)
    own = [json.loads(c).get("logistic", {}).get("value") for c in found.controls]
    kept = found[["strength", "seed", "attack"]]
    return kept.assign(epoch=epoch, auc=found.value, logistic=own)


noisy = train({"iso": STRENGTHS})
print(noisy.tasks[0].parties, {k: len(v) for k, v in noisy.tasks[0].sets.items()})
table = auc(noisy, attacks)
final = table[table.epoch.isna()]
final.pivot_table(index="attack", columns="strength", values="auc").round(3)

# %% [markdown]
# Read the first column. Without a defense the *length* of a gradient nearly separates rare positives
# from the rest, with no label known; the *direction*, compared with five known positives, does so
# too. The control, logistic regression on the party's own columns with the same twenty known rows, is
# far below:

# %%
print(round(final.logistic.mean(), 3))
undefended = final[final.strength == 0].groupby("attack").auc.mean()
assert undefended.min() > final.logistic.mean() + 0.1

# %% [markdown]
# ## Patience
#
# Noise is drawn afresh for every message. Each row passes once an epoch, so an attacker that adds up
# what it got for a row divides the noise by the square root of the number of epochs.

# %%
curves = table.dropna(subset=["epoch"])
fig, axes = plt.subplots(1, len(STRENGTHS), figsize=(14, 3.2), sharey=True)
names = dict(
    zip(sorted(curves.attack.unique()), ("direction, last epoch only", "direction", "norm"))
)
for ax, x in zip(axes, STRENGTHS):
    for attack, name in names.items():
        mine = curves[(curves.strength == x) & (curves.attack == attack)]
        ax.plot(mine.groupby("epoch").auc.mean(), label=name)
    ax.axhline(0.5, color="grey", lw=0.8)
    ax.set_title(f"iso, strength {x:g}")
    ax.set_xlabel("epoch")
axes[0].set_ylabel("AUC on training rows")
axes[0].legend(fontsize=8)
fig.tight_layout()

# %% [markdown]
# At strength 1 the noise has as much energy as the longest gradient of the batch, yet spread over 16
# directions, so a direction attack hardly notices. At strength 5 one epoch is poor, and fifteen
# epochs are not.

# %%
at5 = final[final.strength == 5].groupby("attack").auc.mean()
gain = at5["direction(positives=5)"] - at5.drop(["direction(positives=5)", "norm"]).iloc[0]
print(f"accumulating gains {gain:+.3f} AUC at strength 5")
assert gain > 0.02

# %% [markdown]
# ## What it costs
#
# The main task pays for noise on gradients, because the passive bottom learns from them.

# %%
main = noisy.main
main = main[(main.metric == "auc") & (main.split == "test")]
main.groupby("strength").value.mean().round(3)

# %% [markdown]
# ## Randomised labels
#
# Label differential privacy changes what there is to find: the gradient tells the *noisy* label
# perfectly, and the true one only as far as the noisy one does. It does not help to be patient, for
# the flip is drawn once. With ε = 1 a binary label is kept with probability 0.73.

# %%
private = train({"label_dp": [0.0, 0.5, 1.0, 2.0]})
dp = auc(private, attacks[1])
shown = dp[dp.epoch.isna()].groupby("strength").auc.mean()
shown.index = ["no noise", "ε = 2", "ε = 1", "ε = 0.5"]
print(shown.round(3))
late = dp[(dp.strength == 1.0)].dropna(subset=["epoch"]).groupby("epoch").auc.mean()
assert abs(late.iloc[-1] - late.iloc[2]) < 0.1
assert np.all(np.diff(shown.to_numpy()) < 0)

# %% [markdown]
# ## Take away
#
# * Test the attacker that accumulates, never the one that looks once.
# * A noise strength that sounds like a lot (1 = as long as the longest gradient) is little per
#   direction.
# * Noise on gradients is paid for by the main task; noise on labels bounds every attack, on
#   gradients or not, and the bound can be stated.
#
# ## Exercise
#
# 1. Give the direction attack one known positive instead of five. How much does it lose?
# 2. Make the classes balanced (`positive_rate` 0.5). Which of the two attacks dies, and why?
#
# ## Solution

# %%
few = auc(noisy, [{"name": "direction", "positives": k} for k in (1, 5)])
few = few[few.epoch.isna()]
few.pivot_table(index="attack", columns="strength", values="auc").round(3)

# %%
world["params"]["positive_rate"] = 0.5
even = auc(train({"iso": [0.0, 1.0]}), attacks[:2])
even = even[even.epoch.isna() & (even.strength == 0)].groupby("attack").auc.mean()
print(even.round(3).to_string())
assert even["norm"] < even["direction(positives=5)"] - 0.2

# %% [markdown]
# The length of a gradient tells how surprised the model was. Rare positives surprise it more; with
# balanced classes both sides surprise it alike, and the sign, which the direction has, is all there is.
