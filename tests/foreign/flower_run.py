"""Runs a Flower app's folder as ``flwr run`` does, in this process and without installing anything.

    python flower_run.py NODES KEY=VALUE ...        in the folder with the app's pyproject.toml

The app's own modules are imported as they are; its configuration is that of its pyproject.toml.
"""

import importlib
import json
import sys
import tomllib
from pathlib import Path

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
        given, context.run_config = context.run_config, CONFIG
        reply = load("clientapp")(message, context)
        context.run_config = given
        return reply


server = ServerApp()


@server.main()
def main(grid, context):
    context.run_config = CONFIG
    load("serverapp")(grid, context)


if __name__ == "__main__":
    run_simulation(
        server_app=server, client_app=Client(), num_supernodes=int(sys.argv[1]),
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )  # fmt: skip
