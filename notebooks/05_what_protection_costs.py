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
# # What protection costs
#
# A defense is worth what it takes from the attacker, less what it takes from the model. Here we
# sweep four defenses over a real table (Wisconsin breast cancer, 569 patients, cut into two
# parties), look at the Pareto front of utility and leakage, and then ask of those defenses that
# *claim* an epsilon whether the claim survives a measurement. Finally we break one on purpose.

# %%
import tempfile
import warnings
from dataclasses import dataclass

import matplotlib.pyplot as plt
import pandas as pd
import torch

import vflsec
from vflsec.audit import Gate, audit_labels, pareto, trials
from vflsec.defenses.label_dp import LabelDP, keep_probability
from vflsec.plugin import registry

warnings.simplefilter("ignore")
torch.set_num_threads(1)

# %% [markdown]
# ## 1. Four defenses, four strengths each
#
# `label_dp` and `gradperturb` are swept by their natural parameter epsilon, the others by their
# strength. The passive party attacks with what it receives (`direction`, five known positives) and
# with what it trained (`model_completion`, twenty known labels).

# %%
sweeps = {
    "iso": {"strength": [0, 1, 5, 25, 100]},
    "marvell": {"strength": [0, 1, 4, 16, 64]},
    "label_dp": {"epsilon": [8, 4, 2, 1]},
    "gradperturb": {"epsilon": [8, 4, 2, 1]},
}
found = []
for name, grid in sweeps.items():
    audit = vflsec.run_audit(
        {
            "data": {"name": "breast_cancer"},
            "algorithm": {"name": "splitnn", "epochs": 10, "batch_size": 64},
            "defense": [{"name": name, **grid}],
            "attack": [{"name": "direction", "positives": 5}, {"name": "model_completion"}],
            "audit": {"seeds": 3},
        },
        tempfile.mkdtemp(),
        device="cpu",
    )
    found += trials(audit.points, Gate(max=0.0))  # a limit of 0 takes each attack's own metric

table = pd.DataFrame([vars(t) for t in found])[
    ["defense", "strength", "utility", "leak", "leak_high", "attack"]
]
table.round(3)

# %% [markdown]
# `leak` is the largest advantage over the controls (the same attacker without the federation), mean
# over seeds; `leak_high` its one-sided upper bound. Strength is 1 / epsilon for the two
# label defenses.
#
# ## 2. The Pareto front

# %%
fig, axis = plt.subplots(figsize=(7, 4.5))
for name, of in table.groupby("defense"):
    axis.plot(of["utility"], of["leak"], "o-", label=name, alpha=0.8)
front = pareto(found)["auc"]
axis.plot([t.utility for t in front], [t.leak for t in front], "k--", label="Pareto front")
axis.axhline(0, color="grey", lw=0.8)
axis.set_xlabel("utility (AUC on test rows)")
axis.set_ylabel("advantage of the worst attack")
axis.legend()
for t in front:
    print(f"{t.defense:12} {t.strength:6g}  utility {t.utility:.3f}  advantage {t.leak:+.3f}")

# %% [markdown]
# Where the curves end tells as much as where they bend: a point at advantage zero whose utility has
# fallen to what the active party reaches alone has bought privacy by not federating at all.
#
# ## 3. Claimed and measured epsilon
#
# Canaries are rows whose label is chosen by a coin. An attacker that sees what the mechanism
# releases guesses the coins, and the number of right guesses bounds epsilon from below. The bound
# must not exceed the claim; **that it is lower proves nothing**.

# %%
rows = []
for name, strengths in {
    "label_dp": (0.25, 1.0),
    "rr_prior": (1.0,),
    "alibi": (1.0,),
    "gradperturb": (5.0,),
}.items():
    for strength in strengths:
        m = audit_labels(registry.defenses.create(name), strength, epochs=10)
        rows.append((name, strength, m.claimed, m.epsilon, m.contradicts))
pd.DataFrame(
    rows, columns=["defense", "strength", "claimed", "measured at least", "contradicted"]
).round(3)

# %% [markdown]
# ## 4. A broken randomised response
#
# The commonest mistake: to flip labels in the data loader, afresh in every epoch, and to claim the
# epsilon of a single flip. Over epochs the flips average out.


# %%
@dataclass(frozen=True)
class FreshFlips(LabelDP):
    """Randomised response that forgets its answers."""

    def labels(self, y, own):
        return y

    def loss(self, logits, y, own):
        keep = keep_probability(1.0 / own.strength, own.classes).unsqueeze(1)
        used = torch.where(own.rng.uniform(y.shape[1:]) < keep, y, 1 - y)
        return -torch.log_softmax(logits, -1).gather(2, used.unsqueeze(2)).squeeze(2)


for epochs in (1, 3, 10, 30):
    print(f"{epochs:3} epochs:", audit_labels(FreshFlips(), 1.0, epochs=epochs).sentence())

# %% [markdown]
# The claim was epsilon 1. After a few epochs the canaries prove that it is false; in an audit the
# same contradiction fails the run by itself, with no gate to be written.
#
# To find the cheapest strength of one defense for a target: `vflsec tune SCENARIO --defense iso
# --leak 0.05 --drop 0.03`.
#
# ## Exercise
#
# 1. How many canaries does it take to contradict the broken response after three epochs?
# 2. Mend `FreshFlips` so that it flips once and remembers, and measure it again.
#
# ## Solution

# %%
for canaries in (200, 500, 2000):
    print(canaries, audit_labels(FreshFlips(), 1.0, epochs=3, canaries=canaries).sentence())

# %%
mended = audit_labels(registry.defenses.create("label_dp"), 1.0, epochs=30)
print(mended.sentence())
assert not mended.contradicts

# %% [markdown]
# The mended one is `label_dp` itself: its `labels` hook draws once, before training, and its loss
# takes what it is given.
