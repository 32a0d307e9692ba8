"""A vertical training in Flower as its own example writes one: the server holds the labels.

    DATA=FILE ROUNDS=6 PAIRS=5 NOISE=0 TRACE=FOLDER python flower_app.py

Each round the server asks every client for embeddings of all rows, and pushes its gradients to each
without awaiting a reply. A client keeps its model in the context: any worker process may serve it.
DATA is an .npz with x0, x1, y, known, prior. Nodes 2s and 2s+1 train model s with the server, so
that one simulation gives a training for each of several seeds. With NOISE > 0 the server adds
Gaussian noise of so many times the largest row norm to the gradients. Lines that record are marked.
"""

import os
import sys
import time

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import nn

from vflsec.trace.adapters import flower  # recording, line 1

with np.load(os.environ["DATA"], allow_pickle=False) as file:
    DATA = dict(file)
ROUNDS, PAIRS = int(os.environ["ROUNDS"]), int(os.environ["PAIRS"])
NOISE = float(os.environ["NOISE"])


def who(context):
    """(seed, bank) of a node."""
    return divmod(int(context.node_config["partition-id"]), 2)


def bank_of(context):
    """What one bank would write into its own app; here an app serves all of them."""
    seed, i = who(context)
    run = {"dataset": "external", "algorithm": "flower", "seed": seed,
           "defense": "noise" if NOISE else "none", "strength": NOISE}  # fmt: skip
    folder = f"{os.environ['TRACE']}/bank{i}-{seed}"
    return {"party": f"bank{i}", "folder": folder, "columns": DATA[f"x{i}"], "run": run}


tap = flower.recorder(  # recording, line 2
    "trace", party=bank_of, ids="all", rows=len(DATA["y"]), classes=2, peer="server",
    parties={"server": "active", "bank0": "passive", "bank1": "passive"}, loss_reduction="mean",
    known=(DATA["known"], DATA["y"][DATA["known"]]), prior=DATA["prior"],
)  # fmt: skip
app = ClientApp(mods=[tap])  # recording, line 3


def load(context):
    seed, i = who(context)
    x = torch.tensor(DATA[f"x{i}"])
    torch.manual_seed(1000 * seed + i)
    model = nn.Linear(x.shape[1], 4)
    if "model" in context.state:
        model.load_state_dict(context.state["model"].to_torch_state_dict())
    return model, x


@app.query("generate_embeddings")
def generate_embeddings(msg: Message, context: Context) -> Message:
    model, x = load(context)
    with torch.no_grad():
        z = model(x).numpy()
    pos = ConfigRecord({"pos": context.node_config["partition-id"]})
    arrays = ArrayRecord({"embedding": Array(z)})
    return Message(RecordDict({"arrays": arrays, "config": pos}), reply_to=msg)


@app.train("apply_gradients")
def apply_gradients(msg: Message, context: Context) -> Message:
    model, x = load(context)
    gradient = msg.content["gradients"]["local-gradients"].numpy()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model(x).backward(torch.from_numpy(gradient.copy()))
    optimizer.step()
    context.state["model"] = ArrayRecord(model.state_dict())
    return Message(RecordDict(), reply_to=msg)


server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    y = torch.from_numpy(DATA["y"])
    torch.manual_seed(0)
    heads = [nn.Linear(8, 2) for _ in range(PAIRS)]
    optimizer = torch.optim.SGD([p for h in heads for p in h.parameters()], lr=0.5)
    while len(nodes := list(grid.get_node_ids())) < 2 * PAIRS:
        time.sleep(0.1)
    for number in range(ROUNDS):
        say = {"round": ConfigRecord({"step": number})}
        replies = grid.send_and_receive(
            [Message(RecordDict(say), dst_node_id=n, message_type="query.generate_embeddings")
             for n in nodes]
        )  # fmt: skip
        order = sorted(replies, key=lambda r: r.content["config"]["pos"])
        got = [torch.from_numpy(r.content["arrays"]["embedding"].numpy().copy()) for r in order]
        got = [z.requires_grad_() for z in got]
        losses = [
            nn.functional.cross_entropy(head(torch.cat(got[2 * i : 2 * i + 2], 1)), y)
            for i, head in enumerate(heads)
        ]
        optimizer.zero_grad()
        sum(losses).backward()
        optimizer.step()
        out = []
        for reply, z in zip(order, got):
            g = z.grad + NOISE * z.grad.norm(dim=1).max() * torch.randn_like(z.grad)
            content = {"gradients": ArrayRecord({"local-gradients": Array(g.numpy())}), **say}
            node = reply.metadata.src_node_id
            out.append(Message(RecordDict(content), node, "train.apply_gradients"))
        grid.push_messages(out)
    sys.stdout.write(f"mean loss {sum(losses).item() / PAIRS:.4f}\n")


if __name__ == "__main__":
    from flwr.simulation import run_simulation

    run_simulation(
        server_app=server, client_app=app, num_supernodes=2 * PAIRS,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )  # fmt: skip
