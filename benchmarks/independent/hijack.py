"""Hijacking a whole training, on plain torch: the victim is trained here too."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from independent.seen import Answer, Seen

EPOCHS, BATCH, CUT = 100, 128, 16
PENALTY = 500.0


def hijacked(seen: Seen) -> Answer:
    """FSHA: a pilot encoder with its decoder, and a critic whose gradient the victim gets.

    As many messages as the training of the package has. The penalty is the published one, Adam's
    rates are not: 1e-3 instead of 1e-5 and 1e-4, which are made for 10,000 batches of images.
    Pasquini, Ateniese, Bernaschi, CCS 2021, arXiv:2012.02670, section 4 and table 1.
    """
    torch.manual_seed(seen.seed)
    rows = torch.from_numpy(seen.theirs[seen.training]).float()
    public = torch.from_numpy(seen.columns).float()
    p = rows.shape[1]
    victim, pilot, decoder, critic = _net(p, CUT), _net(p, CUT), _net(CUT, p), _net(CUT, 1)
    adams = [
        torch.optim.Adam(params, lr=1e-3)
        for params in (
            victim.parameters(), [*pilot.parameters(), *decoder.parameters()], critic.parameters()
        )
    ]  # fmt: skip
    for _ in range(EPOCHS):
        for at in torch.randperm(len(rows)).split(BATCH):
            x = public[torch.randint(len(public), (len(at),))]
            z = victim(rows[at])
            adams[0].zero_grad()
            critic(z).mean().backward()
            adams[0].step()
            adams[1].zero_grad()
            (decoder(pilot(x)) - x).square().mean().backward()
            adams[1].step()
            true, fake = pilot(x).detach(), z.detach()
            cost = (critic(true) - critic(fake)).mean() + PENALTY * _steep(critic, true, fake)
            adams[2].zero_grad()
            cost.backward()
            adams[2].step()
    with torch.no_grad():
        told = decoder(victim(torch.from_numpy(seen.theirs[seen.target]).float()))
    return seen.target, told.double().numpy()


def _net(given: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(given, 64), nn.ReLU(), nn.Linear(64, out))


def _steep(critic: nn.Module, true: Tensor, fake: Tensor) -> Tensor:
    share = torch.rand(len(true), 1)
    at = (share * true + (1 - share) * fake).requires_grad_()
    (slope,) = torch.autograd.grad(critic(at).sum(), at, create_graph=True)
    return (slope.norm(dim=1) - 1).square().mean()
