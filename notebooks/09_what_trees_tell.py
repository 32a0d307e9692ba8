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
# # What trees tell
#
# Most vertical federated learning in production is boosted trees. A bank holds the labels, a shop holds
# more columns of the same customers. Gradients cross encrypted, so the shop sees no label. It does see
# *which customers stand at which node*: without that it could not split them.
#
# We sit down in the shop's chair with the labels of 20 customers, and read those of all others. Then we
# look at three systems, and at what helps. The protocol is SecureBoost (Cheng et al. 2021).

# %%
import warnings

import matplotlib.pyplot as plt
import numpy as np
import torch

import vflsec
from vflsec import DefenseSpec

warnings.simplefilter("ignore")
torch.set_num_threads(1)
SEEDS = 5

# %% [markdown]
# ## 1. What crosses
#
# The world is drawn: two views of the same people, ten columns each. `fate-2` is what FATE 2 shows at
# its defaults. A View is all that one party legitimately has.

# %%
WORLD = {"name": "two_views", "params": {"classes": 2, "columns": 10}}


def train(profile="fate-2", *defenses, attacks=("leaf_vote",)):
    """Boosted trees over two parties, five seeds."""
    return vflsec.train(
        WORLD, "secureboost", defenses=list(defenses), seeds=SEEDS, attacks=list(attacks),
        device="cpu", profile=profile,
    )  # fmt: skip


trained = train()
view = trained.view("passive")
view

# %% [markdown]
# `partition` is the message in question: for each tree and level, the node of every row. Here are three
# customers on their way down the first tree.

# %%
nodes = view.received("partition", "all")
depth = int(view.facts.extra["depth"])
for row in nodes.rows.unique()[:3]:
    here = (nodes.rows == row) & (nodes.step < depth)
    print(f"customer {int(row):4}: nodes {nodes.tensor[here].flatten().tolist()}")

# %% [markdown]
# ## 2. Twenty known customers
#
# Rows that share a leaf have about the same score, so they tend to have the same label. The whole attack
# is one line of reasoning: *ask the known customers in my leaf*. We write it by hand for one training.

# %%
truth = trained.tasks[0].y.numpy()
known = view.known.rows.numpy()
rows = view.targets["train"].numpy()
votes = np.zeros(len(rows))
for tree in range(int(nodes.step.max()) // depth + 1):
    leaf = np.full(len(truth), -1)
    for level in range(depth):  # the deepest node that was shown
        at = nodes.step == tree * depth + level
        leaf[nodes.rows[at].numpy()] = nodes.tensor[at].flatten().numpy()
    for k in known:
        votes += (leaf[rows] == leaf[k]) * (2.0 * truth[k] - 1.0)

positive, negative = votes[truth[rows] == 1], votes[truth[rows] == 0]
auc = (positive[:, None] > negative).mean() + 0.5 * (positive[:, None] == negative).mean()
print(f"AUC of the votes of {len(known)} known customers: {auc:.3f}")

# %% [markdown]
# The packaged attack does the same and more, and stands beside its baseline: what the shop's own columns
# tell with the same 20 labels, without any federation.


# %%
def read(trained, attack="leaf_vote"):
    """AUC of an attack, of its baseline, and the gain with its interval over seeds."""
    found = vflsec.measure(trained, [attack])
    return found[(found.metric == "auc") & (found.split == "train")].iloc[0]


undefended = read(trained)
print(f"leaf_vote {undefended.value:.3f}, baseline {undefended.control_value:.3f}, "
      f"gain {undefended.advantage:+.3f} "
      f"[{undefended.advantage_low:+.3f}, {undefended.advantage_high:+.3f}]")  # fmt: skip

# %% [markdown]
# ## 3. Three systems
#
# The paper shows a party only the rows of the nodes that it splits itself. FATE 2 shows every node of
# every row. XGBoost's vertical mode, which was removed in 2026 and is still in use, sends the gradients
# of all rows in plain, and a gradient is the label.

# %%
for profile in ("paper", "fate-2"):
    row = read(train(profile))
    print(f"{profile:13} leaf_vote     AUC {row.value:.3f}, gain {row.advantage:+.3f}")
row = read(train("xgboost-open", attacks=["gradient_pair"]), "gradient_pair")
print(f"{'xgboost-open':13} gradient_pair AUC {row.value:.3f}, gain {row.advantage:+.3f}")

# %% [markdown]
# ## 4. What helps
#
# FATE's own protection is to grow the first trees alone. The labels can be randomised before training
# (label differential privacy), or nodes that say too much can be kept from the shop (`id_lmid`, whose
# strength is 1 / xi; that of `label_dp` is 1 / epsilon).

# %%
DEFENSES = {
    "none": [],
    "first tree alone": [DefenseSpec("local_trees", strength=1)],
    "first 5 trees alone": [DefenseSpec("local_trees", strength=5)],
    "label_dp, epsilon 1": [DefenseSpec("label_dp", strength=1.0)],
    "id_lmid, xi 0.02": [DefenseSpec("id_lmid", strength=50.0)],
}
gains = {}
for name, defense in DEFENSES.items():
    made = train("paper", *defense)
    row = read(made)
    gains[name] = (row.advantage, row.advantage_low, row.advantage_high)
    print(f"{name:20} gain {row.advantage:+.3f} [{row.advantage_low:+.3f}, "
          f"{row.advantage_high:+.3f}] in {row.seeds} of {SEEDS} trainings")  # fmt: skip

# %% [markdown]
# Where a defense shows no node at all, there is nothing to vote with, and that training gives no figure.

# %%
middle = np.array([g[0] for g in gains.values()])
low, high = (np.array([g[i] for g in gains.values()]) for i in (1, 2))
figure, axis = plt.subplots(figsize=(6, 2.6))
axis.errorbar(middle, range(len(gains)), xerr=[middle - low, high - middle], fmt="o")
axis.set_xlim(-0.4, 0.3)
axis.axvline(0.0, linewidth=1, color="grey")
axis.set_yticks(range(len(gains)), list(gains))
axis.invert_yaxis()
axis.set_xlabel("AUC above the baseline (95 % interval)")
figure.tight_layout()

# %% [markdown]
# To audit such a system of your own, a table with the columns tree, row and leaf is enough:
# `vflsec trace import-leaves` ([the page on trees](../docs/howto/trees.md)).
#
# ## Exercise
#
# How many known customers does the vote need? Try 4, and 100.
#
# ## Solution

# %%
for count in (4, 20, 100):
    found = vflsec.measure(trained, [{"name": "leaf_vote", "known_rows": count}])
    row = found[(found.metric == "auc") & (found.split == "train")].iloc[0]
    print(f"{count:4} known customers: AUC {row.value:.3f}, baseline {row.control_value:.3f}")
