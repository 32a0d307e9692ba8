"""A shop and a bank train one network: what both sides share, on any framework.

The shop holds columns, the bank labels and columns of its own. Batch by batch the shop sends an
embedding, and the bank answers with the gradient of its loss. The one change that stops the leak is
`noise`: Gaussian noise on every answer, as many times the length of the batch's longest row.

    python application.py        # at the bank: writes its labels for the scorer, into labels/
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

TRAININGS = [(seed, noise) for noise in (0, 16) for seed in (0, 1, 2)]
ROWS, BATCH, EPOCHS, WIDTH = 2000, 400, 4, 4
STEPS = EPOCHS * (ROWS // BATCH)
torch.set_num_threads(1)


def draw_table():
    """(shop's columns, bank's columns, labels): one column of each says a little of the label."""
    g = np.random.default_rng(0)
    labels = (g.random(ROWS) < 0.3).astype(np.int64)
    shop, bank = (g.normal(size=(ROWS, 5)).astype(np.float32) for _ in range(2))
    for columns in (shop, bank):
        columns[:, 0] += 0.7 * labels
    return torch.from_numpy(shop), torch.from_numpy(bank), torch.from_numpy(labels)


def rows_of(step):
    """The rows of a batch: both sides draw them from a shared seed, so they never travel."""
    epoch, place = divmod(int(step), ROWS // BATCH)
    order = np.random.default_rng([7, epoch]).permutation(ROWS)
    return order[place * BATCH : (place + 1) * BATCH]


def trace_of(folder, seed, noise):
    """What the recorder is told of a training: the shop was given 20 labels and class shares."""
    shop, _, labels = draw_table()
    known = np.concatenate([np.flatnonzero(labels == c)[:10] for c in (0, 1)])
    run = {"dataset": "customers", "algorithm": "split", "seed": seed}
    run |= {"defense": "noise" if noise else "none", "strength": noise}
    return {
        "folder": str(Path(folder, f"{run['defense']}-{seed}").absolute()),
        "party": "shop", "peer": "bank", "parties": {"bank": "active", "shop": "passive"},
        "rows": ROWS, "columns": shop, "classes": 2, "known": (known, labels[known]),
        "prior": [0.7, 0.3], "loss_reduction": "mean", "grad_scale": 1, "run": run,
    }  # fmt: skip


class Shop:
    """The bottom network: columns to embeddings, and a step by what came back."""

    def __init__(self, seed):
        torch.manual_seed(seed)
        self.columns = draw_table()[0]
        self.network = nn.Linear(self.columns.shape[1], WIDTH)

    def embed(self, step):
        return self.network(self.columns[rows_of(step)])

    def learn(self, step, gradient):
        self.network.zero_grad()
        self.embed(step).backward(gradient)
        with torch.no_grad():
            for p in self.network.parameters():
                p -= 0.3 * p.grad


class Bank:
    """The top network and the labels: embeddings to gradients."""

    def __init__(self, seed, noise):
        self.seed, self.noise = seed, noise
        torch.manual_seed(1000 + seed)
        self.random = torch.Generator().manual_seed(2000 + seed)
        _, self.columns, self.labels = draw_table()
        self.network = nn.Linear(WIDTH + self.columns.shape[1], 2)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=1.0)
        self.scores = torch.zeros(ROWS)

    def answer(self, step, embedding):
        """The gradient for a batch of embeddings, with noise if there shall be some."""
        rows, z = rows_of(step), embedding.clone().requires_grad_()
        logits = self.network(torch.cat([z, self.columns[rows]], 1))
        self.scores[rows] = (logits[:, 1] - logits[:, 0]).detach()
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(logits, self.labels[rows]).backward()
        self.optimizer.step()
        drawn = torch.randn(z.shape, generator=self.random)
        return z.grad + self.noise * z.grad.norm(dim=1).max() * drawn

    def report(self):
        """Print how well the network ranks all rows, each as it stood before its last batch."""
        from sklearn.metrics import roc_auc_score

        auc = roc_auc_score(self.labels, self.scores)
        sys.stdout.write(f"seed {self.seed}, noise {self.noise}: the network's AUC {auc:.3f}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    import vflsec

    vflsec.write_truth("labels", range(ROWS), draw_table()[2].numpy())
