"""Runs a Flower app's folder as ``flwr run`` does, in this process and without installing anything.

    python flower_run.py NODES KEY=VALUE ...

In the folder with the app's pyproject.toml, whose configuration it takes. The app's own modules are
imported as they are. One worker process serves all nodes, and each node's first model is drawn
by its partition: so the same training can be made without Flower (`flower_alone.py`).
"""

import importlib
import json
import sys
import tomllib
from pathlib import Path

import torch
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation

sys.path.insert(0, ".")
SECTION = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["flwr"]["app"]
CONFIG = SECTION["config"] | {
    key: json.loads(value) for key, value in (a.split("=", 1) for a in sys.argv[2:])
}


def load(role):
    """The object that ``module:name`` of the app's components names."""
    module, _, name = SECTION["components"][role].partition(":")
    return getattr(importlib.import_module(module), name)


class Client:
    """The client app with the app's configuration, in whichever process it is called."""

    def __call__(self, message, context):
        torch.manual_seed(1 + int(context.node_config["partition-id"]))
        given, context.run_config = context.run_config, CONFIG
        reply = load("clientapp")(message, context)
        context.run_config = given
        return reply


server = ServerApp()


@server.main()
def main(grid, context):
    torch.manual_seed(0)
    context.run_config = CONFIG
    load("serverapp")(grid, context)


if __name__ == "__main__":
    run_simulation(
        server_app=server, client_app=Client(), num_supernodes=int(sys.argv[1]),
        backend_config={
            "init_args": {"num_cpus": 1, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )  # fmt: skip
