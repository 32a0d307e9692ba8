"""The application on Flower: the server app is the bank, the client app the shop.

Each node of the simulation is the shop of one training, so that one run gives all repetitions.

    python run_flower.py        # traces into traces/flower/
"""

import time
from pathlib import Path

import torch
from application import STEPS, TRAININGS, Bank, Shop, rows_of, trace_of
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from vflsec.trace.adapters import flower

FOLDER = Path("traces/flower").absolute()


def training_of(context):
    return TRAININGS[int(context.node_config["partition-id"])]


tap = flower.recorder(
    FOLDER,
    party=lambda context: trace_of(FOLDER, *training_of(context)),
    ids=lambda content, context: rows_of(content["at"]["step"]),
)
app = ClientApp(mods=[tap])


def load_shop(context):
    """Any worker process may serve a node, so its network travels in the context."""
    shop = Shop(training_of(context)[0])
    if "network" in context.state:
        shop.network.load_state_dict(context.state["network"].to_torch_state_dict())
    return shop


@app.query("forward")
def forward(msg, context):
    z = load_shop(context).embed(msg.content["at"]["step"]).detach().numpy()
    which = ConfigRecord({"training": int(context.node_config["partition-id"])})
    content = {"arrays": ArrayRecord({"embedding": Array(z)}), "at": msg.content["at"]}
    return Message(RecordDict({**content, "which": which}), reply_to=msg)


@app.train("backward")
def backward(msg, context):
    shop = load_shop(context)
    gradient = msg.content["gradients"]["local-gradients"].numpy()
    shop.learn(msg.content["at"]["step"], torch.from_numpy(gradient.copy()))
    context.state["network"] = ArrayRecord(shop.network.state_dict())
    return Message(RecordDict(), reply_to=msg)


server = ServerApp()


@server.main()
def main(grid, context):
    while len(nodes := list(grid.get_node_ids())) < len(TRAININGS):
        time.sleep(0.1)
    banks = [Bank(*training) for training in TRAININGS]
    for step in range(STEPS):
        at = ConfigRecord({"step": step})
        asked = [Message(RecordDict({"at": at}), node, "query.forward") for node in nodes]
        answers = []
        for reply in grid.send_and_receive(asked):
            z = torch.from_numpy(reply.content["arrays"]["embedding"].numpy().copy())
            gradient = banks[reply.content["which"]["training"]].answer(step, z)
            arrays = ArrayRecord({"local-gradients": Array(gradient.numpy())})
            content = RecordDict({"gradients": arrays, "at": at})
            answers.append(Message(content, reply.metadata.src_node_id, "train.backward"))
        list(grid.send_and_receive(answers))
    for bank in banks:
        bank.report()


if __name__ == "__main__":
    from flwr.simulation import run_simulation

    run_simulation(server_app=server, client_app=app, num_supernodes=len(TRAININGS))
