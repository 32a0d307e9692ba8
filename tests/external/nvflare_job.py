"""Split learning with NVFlare's collaboration API, as its own examples write it.

    DATA=FILE TRACE=FOLDER WORKSPACE=FOLDER python nvflare_job.py

The client holds columns and a bottom model, the server labels and a top model. Batches are drawn
with replacement, and float16 crosses. DATA is an .npz with x, y. Lines that record are marked.
"""

import os

import numpy as np
import torch
from nvflare.collab import CollabRecipe, collab
from nvflare.recipe import SimEnv
from torch import nn

from vflsec.trace import nvflare  # recording, line 1

BATCH, STEPS = 64, 60
with np.load(os.environ["DATA"], allow_pickle=False) as file:
    DATA = {k: torch.tensor(v) for k, v in dict(file).items()}
held = {}

rec = nvflare.recorder(
    os.environ["TRACE"], party="site-1", role="passive", peer="server", rows=len(DATA["y"]),
    classes=2, loss_reduction="mean", columns=DATA["x"],
    known=(DATA["known"], DATA["y"][DATA["known"]]), prior=[0.7, 0.3],
    run={"algorithm": "nvflare"},
)  # fmt: skip


@collab.publish
@rec(gives="embedding", ids="batch_indices")  # recording, line 2
def forward(batch_indices):
    """The bottom model on a batch."""
    if not held:
        torch.manual_seed(1)
        held["model"] = nn.Sequential(nn.Linear(DATA["x"].shape[1], 16), nn.ReLU())
        held["optimizer"] = torch.optim.SGD(held["model"].parameters(), lr=0.1)
    held["z"] = held["model"](DATA["x"][batch_indices])
    return held["z"].detach().to(torch.float16)


@collab.publish
@rec(takes={"gradients": "gradient"})  # recording, line 3
def backward(gradients):
    """One step of the bottom model."""
    held["optimizer"].zero_grad()
    held["z"].backward(gradients.float())
    held["optimizer"].step()


@collab.main
def split_learning():
    """The server's loop."""
    torch.manual_seed(0)
    top = nn.Linear(16, 2)
    optimizer = torch.optim.SGD(top.parameters(), lr=0.1)
    client, g = collab.clients[0], np.random.RandomState(0)
    for _ in range(STEPS):
        rows = g.randint(0, len(DATA["y"]), size=BATCH)
        z = client(timeout=120).forward(rows).float().requires_grad_()
        loss = nn.functional.cross_entropy(top(z), DATA["y"][rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        client.backward(z.grad.to(torch.float16))
    return {"loss": loss.item()}


if __name__ == "__main__":
    recipe = CollabRecipe(job_name="split", min_clients=1, sync_task_timeout=60)
    env = SimEnv(num_clients=1, workspace_root=os.environ["WORKSPACE"], log_config="ERROR")
    recipe.execute(env)
