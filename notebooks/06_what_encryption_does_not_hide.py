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
# # What encryption does not hide
#
# "Our embeddings are homomorphically encrypted, so the other company cannot see them." Let us run the
# real thing: CKKS ciphertexts, two roles, bytes between them. Then we sit down in the active party's
# chair, which holds no key, and recover the embeddings to the fourth digit.
#
# Then we share the layer's weights, and the attack dies. Then we fit a decoder, and part of it is back.

# %%
import warnings

import matplotlib.pyplot as plt
import numpy as np
import torch

import vflsec
from vflsec import DefenseSpec
from vflsec.he import (
    ActiveRole,
    KeyPair,
    Parameters,
    PassiveRole,
    PublicKey,
    claim,
    visibility_table,
)
from vflsec.plugin import registry

warnings.simplefilter("ignore")
torch.set_num_threads(1)

# %% [markdown]
# ## 1. Ciphertexts
#
# The passive party makes a key pair and sends the public part. With it anybody can encrypt and
# compute; only the key's owner can decrypt.

# %%
keys = KeyPair()
public = PublicKey(keys.public_bytes)
rng = np.random.default_rng(0)
h = rng.normal(size=(64, 16))
sealed = public.encrypt(h)
print(f"{Parameters().label}: {h.nbytes:,} bytes of embeddings became {len(sealed):,}")

w = rng.normal(size=(16, 32))
error = np.abs(keys.decrypt(public.matmul(sealed, w)) - h @ w).max()
print(f"product under encryption is right to {error:.1e}")

# %% [markdown]
# Two accidents that CKKS does not notice by itself, and that are errors here:

# %%
for accident in (lambda: KeyPair().decrypt(sealed), lambda: keys.decrypt(sealed[:-1000])):
    try:
        accident()
    except ValueError as why:
        print(f"{type(why).__name__}: {why}\n")

# %% [markdown]
# ## 2. The interactive layer
#
# The active party multiplies by its weights under encryption and adds a large random mask. The passive
# party decrypts, sees nothing but the mask, adds noise of 2^-12 that keeps its key, and returns that.
# The active party takes the mask off.

# %%
passive = PassiveRole(None, seed=0, party="passive")
active = ActiveRole(passive.public(), seed=0, party="passive")
bias = np.zeros(32)
active.load(w, bias)

encrypted = passive.embed(h)  # to the active party
product = active.forward(encrypted)  # to the passive party
masked = passive.open(product)  # back, decrypted but masked
z = active.unmask(masked)
print(f"z is right to {np.abs(z - h @ w).max():.1e}; the active party never saw h")

# %% [markdown]
# So far, so good: no message holds h. But look at what the active party has on its desk: z, w and b,
# with z = h w + b. That is 32 equations for 16 unknowns.

# %%
recovered = (z - bias) @ np.linalg.pinv(w)
print(f"relative error of the recovered embeddings: "
      f"{np.linalg.norm(recovered - h) / np.linalg.norm(h):.1e}")  # fmt: skip

# %% [markdown]
# ## 3. In training
#
# The same during a whole training on a world with a planted leak. `emulated` mode computes the same
# numbers without ciphertexts and shows every party the same; a test holds both modes together. We
# compare a layer narrower than the embedding (16), a wider one, and shared weights.

# %%
LAYERS = {
    "plain, 8 wide": {"out": 8},
    "plain, 32 wide": {"out": 32},
    "shared, 32 wide": {"out": 32, "weights": "shared"},
}


def train(params):
    """One training with an encrypted layer."""
    return vflsec.train(
        "control_gaussian", "splitnn", defenses=[DefenseSpec("he_embedding", params)], seeds=1,
        attacks=["linear_inversion"], record=["activation:last"], device="cpu",
        epochs=10, hidden=[32], cut=16, batch_size=64,
    )  # fmt: skip


runs = {name: train(params) for name, params in LAYERS.items()}

# %%
errors = {}
for name, trained in runs.items():
    found = vflsec.measure(trained, "linear_inversion", adversary="active")
    errors[name] = found[found.metric == "relative_error"].value.item()
    print(f"{name:16} relative error {errors[name]:.2g}")
    layer = registry.defenses.create("he_embedding", LAYERS[name])
    print(f"{'':16} {claim('It', *layer.bought({'cut': 16}))}\n")

# %% [markdown]
# An error of 1 is what guessing zero gives. Shared weights stop the linear algebra: neither party
# knows the matrix.

# %% [markdown]
# ## 4. What is left with shared weights
#
# The active party still sees z of every row. Suppose it knows the *columns* of 200 of the 2,000
# customers (an earlier data breach, a joint pilot). It fits a linear decoder from z to the columns and
# applies it to everybody else. No matrix is needed for that.

# %%
scores = {}
for name, trained in runs.items():
    z = trained.view("active").received("activation", "last")
    x = trained.tasks[0].x["passive"][z.rows].numpy()
    design = np.hstack([z.tensor.numpy(), np.ones((len(z), 1))])
    known = np.arange(len(z)) < 200
    gram = design[known].T @ design[known] + 1.0 * np.eye(design.shape[1])
    decoder = np.linalg.solve(gram, design[known].T @ x[known])
    rest = x[~known] - design[~known] @ decoder
    scores[name] = 1 - rest.var() / x[~known].var()
    print(f"{name:16} share of the variance of 100 columns explained: {scores[name]:.3f}")

# %% [markdown]
# With 100 independent columns squeezed into 16 numbers at most 16 % of their variance can come back, by
# anybody; this simple decoder gets a third of that, and shared weights make no difference to it.

# %%
figure, axes = plt.subplots(1, 2, figsize=(8, 3))
axes[0].bar(errors.keys(), errors.values())
axes[0].set_title("solving z = hW + b\n(relative error; guessing 0 has 1)")
axes[1].bar(scores.keys(), scores.values())
axes[1].set_title("decoder with 200 known rows\n(variance explained)")
for axis in axes:
    axis.tick_params(axis="x", rotation=20)
figure.tight_layout()

# %% [markdown]
# ## 5. Who sees what
#
# The audit makes this table for every encrypted cell. Attacks that need what nobody sees are reported
# as `not-observable`, which is not the same as safe.

# %%
print(visibility_table([DefenseSpec("he_embedding", {"weights": "shared"})]))

# %% [markdown]
# And the labels? The passive party's attacks use its own model and the gradients it receives in the
# clear. Encryption of embeddings changes nothing there: run `vflsec audit he_vs_attacks` and compare
# the rows of `model_completion`, `norm` and `direction` across the four layers.
#
# ## Exercise
#
# 1. How many known customers does the decoder of section 4 need? Try 20 and 1,000.
# 2. How wide must a plain layer be before the embeddings come back?
#
# ## Solution

# %%
z = runs["shared, 32 wide"].view("active").received("activation", "last")
x = runs["shared, 32 wide"].tasks[0].x["passive"][z.rows].numpy()
design = np.hstack([z.tensor.numpy(), np.ones((len(z), 1))])
for count in (20, 200, 1000):
    known = np.arange(len(z)) < count
    gram = design[known].T @ design[known] + 1.0 * np.eye(design.shape[1])
    rest = x[~known] - design[~known] @ np.linalg.solve(gram, design[known].T @ x[known])
    print(f"{count:5} known customers: {1 - rest.var() / x[~known].var():+.3f}")

# %%
for width in (12, 15, 16):
    found = vflsec.measure(train({"out": width}), "linear_inversion", adversary="active")
    error = found[found.metric == "relative_error"].value.item()
    print(f"plain, {width} wide: relative error {error:.2g}")

# %% [markdown]
# Below the width of the embedding (16) the system has fewer equations than unknowns and part of every
# embedding is gone for good; from there on all of it comes back.
