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
# chair, which holds no key, and recover the embeddings to the sixth digit.
#
# Then we share the layer's weights, and the attack dies. Then we fit a decoder, and part of it is back.

# %%
import warnings

import matplotlib.pyplot as plt
import numpy as np
import torch

from vflsec import registry
from vflsec.cell import AttackSpec, DefenseSpec
from vflsec.channel import Recorder
from vflsec.data.prepare import make_task
from vflsec.federation import Federation
from vflsec.he.ckks import KeyPair, Parameters, PublicKey
from vflsec.he.interactive import ActiveRole, PassiveRole
from vflsec.he.visibility import visibility
from vflsec.rng import generator, numpy_generator
from vflsec.task import Stack
from vflsec.train.loop import run_phases
from vflsec.train.views import make_view
from vflsec.view import as_needs
from vflsec.visible import claim, markdown

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
rng = numpy_generator(0, "notebook")
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
# party decrypts, sees nothing but the mask, adds noise of 2^-12 that keeps its key, and returns that. The active party takes the mask
# off.

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
seed = 0
world = registry.datasets.create("control_gaussian")
stack = Stack.build({seed: make_task(world.load(seed), seed)}, [seed, seed])
LAYERS = {
    "plain, 8 wide": {"out": 8},
    "plain, 32 wide": {"out": 32},
    "shared, 32 wide": {"out": 32, "weights": "shared"},
}


def train(params):
    """Train with an encrypted layer; the active party's view and the truth."""
    policy = registry.defenses.create("he_embedding", params)
    attack = registry.attacks.create("linear_inversion", {"use": "joint"})
    wanted = [Recorder.wants("active", n) for n in as_needs(attack.needs | {"activation:last"})]
    recorder = Recorder(sorted(wanted), 2, len(stack.first.y))
    off = torch.zeros(2, dtype=torch.float64)
    fed = Federation.create(stack, [seed, seed], {"passive": [(policy, off)]}, recorder)
    algorithm = registry.algorithms.create(
        "splitnn", {"epochs": 10, "hidden": [32], "cut": 16, "batch_size": 64}
    )
    algorithm.build(fed)
    for _ in run_phases(algorithm, fed):
        pass
    view = make_view(algorithm, fed, {}, AttackSpec("linear_inversion", adversary=("active",)), 0)
    return view, fed.link("passive").embeddings(0, "train")


runs = {name: train({**params}) for name, params in LAYERS.items()}

# %%
errors = {}
for name, (view, truth) in runs.items():
    guess = registry.attacks.create("linear_inversion").infer(view, generator(0, "attack"))
    true = truth.of_rows(torch.from_numpy(guess.rows)).double().numpy()
    errors[name] = np.linalg.norm(guess.scores - true) / np.linalg.norm(true)
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
for name, (view, _) in runs.items():
    z = view.received("activation", "last")
    x = stack.first.x["passive"][z.rows].numpy()
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
print(markdown(visibility([DefenseSpec("he_embedding", {"weights": "shared"})])))

# %% [markdown]
# And the labels? The passive party's attacks use its own model and the gradients it receives in the
# clear. Encryption of embeddings changes nothing there: run `vflsec audit he_vs_attacks` and compare
# the rows of `model_completion`, `norm` and `direction` across the four layers.
