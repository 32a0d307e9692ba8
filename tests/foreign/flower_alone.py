"""The training of Flower's vertical example in one process, without Flower's messages.

    python flower_alone.py NODES ROUNDS OUT.npz

In the folder with the app's pyproject.toml. Models and columns are those of the app's own modules,
seeds those of `flower_run.py`. OUT holds gradients and embeddings that pass between the parts,
(nodes, rounds, rows, width).
"""

import sys
import tomllib
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, ".")
from vertical_fl.task import ClientModel, ServerModel, load_data

CONFIG = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
NODES, ROUNDS, WIDTH = int(sys.argv[1]), int(sys.argv[2]), CONFIG["out-feature-dim-clientapp"]

splits = [int(dim) for dim in CONFIG["feature-splits"].split(",")]
x = [torch.from_numpy(load_data(i, splits)).float() for i in range(NODES)]
y = torch.from_numpy(np.load("labels.npy")).float().unsqueeze(1)
bottoms = []
for i in range(NODES):
    torch.manual_seed(1 + i)
    bottoms.append(ClientModel(input_size=x[i].shape[1], out_feat_dim=WIDTH))
torch.manual_seed(0)
head = ServerModel(input_size=WIDTH * NODES)
optimizers = [torch.optim.Adam(b.parameters(), lr=CONFIG["learning-rate"]) for b in bottoms]
optimizers.append(torch.optim.Adam(head.parameters(), lr=0.01))
passed = {"embeddings": [], "gradients": []}
for _ in range(ROUNDS):
    sent = [bottom(of) for bottom, of in zip(bottoms, x)]
    got = [z.detach().requires_grad_() for z in sent]
    for optimizer in optimizers:
        optimizer.zero_grad()
    torch.nn.BCELoss()(head(torch.cat(got, 1)), y).backward()
    for z, received in zip(sent, got):
        z.backward(received.grad)
    for optimizer in optimizers:
        optimizer.step()
    passed["embeddings"].append([z.detach().numpy() for z in got])
    passed["gradients"].append([z.grad.numpy() for z in got])
np.savez(sys.argv[3], **{k: np.array(v).swapaxes(0, 1) for k, v in passed.items()})
