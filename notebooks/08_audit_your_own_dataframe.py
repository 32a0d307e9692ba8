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
# # Audit your own DataFrame in one call
#
# Two tables of the same people, one label, one question: if these two parties trained together, would
# the one without labels learn them? `vflsec.audit` drafts a scenario as `vflsec init` does, trains with
# several seeds, attacks, compares every attack with what its author could have done alone, and judges.

# %%
import tempfile
import warnings

import torch
from sklearn.datasets import load_breast_cancer

import vflsec

warnings.simplefilter("ignore")
torch.set_num_threads(1)

# %% [markdown]
# ## Two tables
#
# Here they are the two halves of a public table, with row numbers as ids. A hospital holds the
# diagnosis and the first columns, a laboratory the rest. Take your own: rows are joined by the id, and
# either side may lack some.

# %%
patients = load_breast_cancer(as_frame=True).frame.rename_axis("patient").reset_index()
columns = list(patients.columns.drop(["patient", "target"]))
hospital = patients[["patient", *columns[:15], "target"]]
laboratory = patients[["patient", *columns[15:]]].sample(frac=0.9, random_state=0)

# %% [markdown]
# ## One call
#
# The DataFrames are written to a temporary folder while this runs; what stays in `out` are figures,
# reports and the scenario, but no row.

# %%
audit = vflsec.audit(
    {"hospital": hospital, "laboratory": laboratory},
    label="target",
    id="patient",
    defenses={"iso": [0, 25]},
    seeds=3,
    epochs=8,
    max=0.15,
    out=tempfile.mkdtemp(),
    device="cpu",
)
audit

# %% [markdown]
# ## What it holds

# %%
print(audit.verdict)
for sentence in audit.findings:
    print("-", sentence)

# %%
audit.plot()

# %%
attacks = audit.results[(audit.results.attack != "") & (audit.results.role == "audit")]
attacks = attacks[attacks.metric == attacks.primary]
attacks.groupby(["attack", "split", "strength"])[
    ["value", "control_value", "advantage"]
].mean().round(3)

# %% [markdown]
# `audit.folder` has `statement.html` to sign, `report.html`, `results.sarif` and `junit.xml` for a pipeline, and
# `scenario.resolved.toml`, which says everything that was assumed. To go on from there, save your tables
# and let `vflsec init` write the same scenario with comments.
#
# ## Exercise
#
# 1. The label is known to the hospital alone. What would the laboratory learn if it had no defense, and
#    how much of that could it have learnt from its own columns?
# 2. Ask whether the hospital learns the laboratory's columns.
#
# ## Solution

# %%
undefended = attacks[(attacks.strength == 0) & (attacks.split == "train")]
undefended.groupby("attack")[["value", "control", "control_value", "advantage"]].first()

# %%
columns_too = vflsec.audit(
    [hospital, laboratory],
    "target",
    "patient",
    defenses={},
    attacks={"name": "embedding_inversion", "adversary": "active", "aux_rows": 50},
    seeds=3,
    epochs=8,
    out=tempfile.mkdtemp(),
    device="cpu",
)
for sentence in columns_too.findings:
    print("-", sentence)
