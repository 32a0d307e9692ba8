"""Label inference that imitates the label owner, on plain torch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from independent.seen import Answer, Seen, named

STEPS = 300


def exploit(seen: Seen) -> Answer:
    """A surrogate top and a label for each row that together replay the last epoch's gradients.

    All terms of the objective weigh 1, the entropy 0.1; the known rows name the classes.
    Kariyappa and Qureshi, SaTML 2023, arXiv:2112.01299, section 4.
    """
    torch.manual_seed(seen.seed)
    z, g = _last(seen)
    z = z.requires_grad_()
    prior = torch.from_numpy(seen.prior).float().clamp_min(1e-6)
    h = -(prior * prior.log()).sum()
    top = nn.Sequential(nn.Linear(z.shape[1], 32), nn.ReLU(), nn.Linear(32, seen.classes))
    t = (0.1 * torch.randn(len(z), seen.classes)).requires_grad_()
    adam = torch.optim.Adam([*top.parameters(), t], lr=0.01)
    size = g.norm(dim=1).mean()
    for _ in range(STEPS):
        log_p, log_y = top(z).log_softmax(1), t.log_softmax(1)
        y = log_y.exp()
        cost = -(y * log_p).sum(1)
        (replay,) = torch.autograd.grad(cost.sum(), z, create_graph=True)
        far = (g - replay + 1e-12).norm(dim=1).mean() / size
        average = log_p.exp().mean(0)
        shares = (prior * (prior.log() - average.log())).sum()
        unsure = -(y * log_y).sum(1).mean()
        adam.zero_grad()
        (far + cost.mean() / h + shares + 0.1 * unsure / h).backward()
        adam.step()
    return seen.rows, named(seen, t.detach().log_softmax(1).double().numpy())


def unsplit(seen: Seen) -> Answer:
    """A clone of the last layer; every row takes the label whose gradient is nearest, in turn.

    Erdogan, Kupcu, Cicek, WPES 2022, arXiv:2108.09033, section 3.4; the known rows name classes.
    """
    torch.manual_seed(seen.seed)
    z, g = _last(seen)
    layer = nn.Linear(z.shape[1], seen.classes)
    adam = torch.optim.Adam(layer.parameters(), lr=0.01)

    def distances() -> Tensor:
        p = layer(z).softmax(1)
        each = (p[:, None] - torch.eye(seen.classes)) @ layer.weight  # (n, C, d)
        return (each - g[:, None]).square().sum(2)

    for _ in range(STEPS):
        adam.zero_grad()
        (distances().min(1).values.mean() / g.square().sum(1).mean()).backward()
        adam.step()
    return seen.rows, named(seen, -distances().detach().double().numpy())


def batch_inference(seen: Seen) -> Answer:
    """Peers' logits and labels whose gradient of the own parameters matches, batch by batch.

    200 steps of Adam at 0.05 from normal starts. Zou et al., IEEE Transactions on Big Data 2022,
    arXiv:2112.05409, section 4.
    """
    torch.manual_seed(seen.seed)
    bottom, rows, scores = seen.models["bottom"], [], []
    for ids, weights, wanted in seen.updates:
        theta = {k: v.detach().clone().requires_grad_() for k, v in weights.items()}
        own = functional_call(bottom, theta, (torch.from_numpy(seen.x[ids]).float(),))
        peer = torch.randn(own.shape).requires_grad_()
        label = torch.randn(own.shape).requires_grad_()
        adam = torch.optim.Adam([peer, label], lr=0.05)
        size = sum(float(v.square().sum()) for v in wanted.values())
        for _ in range(200):
            loss = -(label.softmax(1) * (own + peer).log_softmax(1)).sum(1).mean()
            made = torch.autograd.grad(loss, list(theta.values()), create_graph=True)
            far = sum((m - wanted[k]).square().sum() for k, m in zip(theta, made, strict=True))
            peer.grad, label.grad = torch.autograd.grad(
                far / size, [peer, label], retain_graph=True
            )
            adam.step()
        rows.append(ids)
        scores.append(label.detach().softmax(1).double().numpy())
    return np.concatenate(rows), np.concatenate(scores)


def _last(seen: Seen) -> tuple[Tensor, Tensor]:
    """The last epoch's embeddings, standardised, and gradients by the standardised embeddings."""
    z = torch.from_numpy(seen.sent[-1]).float()
    g = torch.from_numpy(seen.gradients[-1]).float()
    sd = z.std(0).clamp_min(1e-6)
    return (z - z.mean(0)) / sd, g * sd
