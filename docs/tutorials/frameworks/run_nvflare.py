"""The application on NVFlare: the server is the bank, its one client the shop.

Six trainings follow one another in one job, each with a recorder of its own.

    python run_nvflare.py        # traces into traces/nvflare/
"""

import functools
import os
from pathlib import Path

from application import STEPS, TRAININGS, Bank, Shop, rows_of, trace_of
from nvflare.collab import CollabRecipe, collab
from nvflare.recipe import SimEnv

from vflsec.trace.adapters import nvflare

FOLDER = os.environ.setdefault("TRACES", str(Path("traces/nvflare").absolute()))


@functools.cache
def load_shop(training):
    """The two functions of the shop in one training, recorded."""
    seed, noise = TRAININGS[training]
    shop = Shop(seed)
    rec = nvflare.recorder(role="passive", **trace_of(FOLDER, seed, noise))

    @rec(gives="embedding", ids=lambda at: rows_of(at["step"]), step="step")
    def forward(step):
        return shop.embed(step).detach()

    @rec(takes={"gradient": "gradient"}, ids=lambda at: rows_of(at["step"]), step="step")
    def backward(step, gradient):
        shop.learn(step, gradient)

    return forward, backward


@collab.publish
def forward(training, step):
    return load_shop(training)[0](step)


@collab.publish
def backward(training, step, gradient):
    load_shop(training)[1](step, gradient)


@collab.main
def main():
    client = collab.clients[0](timeout=120)
    for training, about in enumerate(TRAININGS):
        bank = Bank(*about)
        for step in range(STEPS):
            gradient = bank.answer(step, client.forward(training, step))
            client.backward(training, step, gradient)
        bank.report()


if __name__ == "__main__":
    recipe = CollabRecipe(job_name="split", min_clients=1, sync_task_timeout=600)
    recipe.execute(SimEnv(num_clients=1, workspace_root="workspace", log_config="ERROR"))
