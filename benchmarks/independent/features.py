"""What the label party learns about another party's columns, on numpy, scikit-learn and torch."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.neural_network import MLPRegressor
from torch import Tensor, nn

from independent.seen import Answer, Floats, Seen, standardised


def decoder(seen: Seen) -> Answer:
    """Ridge regression of the granted columns on received embeddings and own columns.

    He, Zhang, Lee, ACSAC 2019 (inverse networks), with a linear decoder.
    """
    table = _table(seen)
    fit = RidgeCV(np.logspace(-2, 3, 6)).fit(table[seen.aux], seen.columns)
    return seen.target, fit.predict(table[seen.target])


def decoder_network(seen: Seen) -> Answer:
    """A network decoder on received embeddings and own columns.

    He, Zhang, Lee, ACSAC 2019; Li et al., CVPR 2022, arXiv:2205.04007 (Adam 1e-3, squared error).
    """
    table = _table(seen)
    fit = MLPRegressor(
        hidden_layer_sizes=(64,), learning_rate_init=1e-3, max_iter=500, tol=0.0,
        n_iter_no_change=500, random_state=seen.seed,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # it stops after so many epochs
        fit.fit(table[seen.aux], seen.columns)
    return seen.target, fit.predict(table[seen.target]).reshape(len(seen.target), -1)


def generator(seen: Seen) -> Answer:
    """A generator of columns from own columns and noise, so that the peer's model gives what came.

    600-200-100 with layer normalisation, Adam 1e-4, 60 epochs of batches of 64, a quarter of the
    variance as penalty. Luo, Wu, Xiao, Ooi, ICDE 2021, arXiv:2010.10152, section V, on embeddings.
    """
    torch.manual_seed(seen.seed)
    width = seen.columns.shape[1]
    own = torch.from_numpy(seen.x[seen.target]).float()
    wanted = torch.from_numpy(seen.received[seen.target]).float()
    given = torch.cat([own, torch.randn(len(own), width)], dim=1)
    layers: list[nn.Module] = []
    for a, b in ((given.shape[1], 600), (600, 200), (200, 100)):
        layers += [nn.Linear(a, b), nn.LayerNorm(b), nn.ReLU()]
    made = nn.Sequential(*layers, nn.Linear(100, width))
    adam = torch.optim.Adam(made.parameters(), lr=1e-4)
    for _ in range(60):
        for at in torch.randperm(len(own)).split(64):
            x = made(given[at])
            far = (seen.models["peer"](x) - wanted[at]).square().sum(1).mean()
            adam.zero_grad()
            (far + 0.25 * x.var(0, unbiased=False).sum()).backward()
            adam.step()
    with torch.no_grad():
        return seen.target, made(given).double().numpy()


def equations(seen: Seen) -> Answer:
    """Differences of log class shares are linear in the peer's columns: the least-norm solution.

    Luo, Wu, Xiao, Ooi, ICDE 2021, arXiv:2010.10152, section IV-A.
    """
    layer = next(m for m in seen.models["peer"].modules() if isinstance(m, nn.Linear))
    w, b = (v.detach().double().numpy() for v in (layer.weight, layer.bias))
    own, z = seen.z[seen.target], seen.received[seen.target]
    logits = own + z
    v = np.exp(logits - logits.max(1, keepdims=True))
    v /= v.sum(1, keepdims=True)
    a = -np.diff(np.log(v), axis=1) + np.diff(own, axis=1) + np.diff(b)
    return seen.target, np.linalg.lstsq(-np.diff(w, axis=0), a.T, rcond=None)[0].T


def attribute(seen: Seen) -> Answer:
    """Logistic regression of whether the peer's first column is above its mean on embeddings.

    Song and Shmatikov, ICLR 2020, arXiv:1905.11742, section 3.
    """
    fit, z = _attribute(seen)
    return seen.target, fit.decision_function(z[seen.target])


def property_share(seen: Seen) -> Answer:
    """The mean of the same regression's shares: the same number for every row.

    Ganju, Wang, Yang, Gunter, Borisov, CCS 2018, in its simplest form.
    """
    fit, z = _attribute(seen)
    share = fit.predict_proba(z[seen.target])[:, 1].mean()
    return seen.target, np.full(len(seen.target), share)


def inputs(seen: Seen) -> Answer:
    """Columns and a clone of the peer's bottom, in turn, that give the received embeddings.

    Adam with amsgrad, 1e-3; 5 rounds of 100 and 100 steps (published: 1000), from column means.
    Erdogan, Kupcu, Cicek, WPES 2022, arXiv:2108.09033, section 3.2.
    """
    torch.manual_seed(seen.seed)
    clone = copy.deepcopy(seen.models["peer"])
    for module in clone.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    return seen.target, _invert(seen, clone, rounds=5, free=True)


def inputs_of_model(seen: Seen) -> Answer:
    """The same with the peer's model itself: only the columns are sought.

    Erdogan, Kupcu, Cicek, WPES 2022, arXiv:2108.09033, section 3.2.
    """
    return seen.target, _invert(seen, copy.deepcopy(seen.models["peer"]), rounds=20, free=False)


def simulator(seen: Seen) -> Answer:
    """SDAR: a simulator of the peer's bottom behind the own top, a decoder of it, and two critics.

    Adam 1e-3 and 5e-4, critics at those times their weights 0.02 and 1e-5, batches of 128; 2,000
    steps (published: 20,000). Zhu, Luo, Wu, Jiang, Xiao, Ooi, NDSS 2025, arXiv:2310.10483,
    section IV.
    """
    torch.manual_seed(seen.seed)
    x = torch.from_numpy(seen.columns).float()
    z = torch.from_numpy(seen.received[seen.target]).float()
    own = torch.from_numpy(seen.z[seen.aux]).float()
    hot = torch.eye(seen.classes)
    y, y_aux = (hot[torch.from_numpy(seen.own_labels[of])] for of in (seen.target, seen.aux))
    p, d, c = x.shape[1], z.shape[1], seen.classes
    nets = [_small(a, b) for a, b in ((p, d), (d + c, 1), (d + c, p), (p + c, 1))]
    simulate, judge_z, decode, judge_x = nets
    rates = (1e-3, 1e-3 * 0.02, 5e-4, 5e-4 * 1e-5)
    adams = [torch.optim.Adam(n.parameters(), lr=r) for n, r in zip(nets, rates, strict=True)]
    top, bce = seen.models["top"], nn.functional.binary_cross_entropy_with_logits

    def judged(net: nn.Module, what: Tensor, label: Tensor, real: float) -> Tensor:
        out = net(torch.cat([what, label], 1))
        return bce(out, torch.full_like(out, real))

    for _ in range(2000):
        at, here = torch.randint(len(x), (128,)), torch.randint(len(z), (128,))
        x1, y1, z2, y2 = x[at], y_aux[at], z[here], y[here]
        made = simulate(x1)
        logits = top(torch.cat([own[at], made], 1))
        cost = nn.functional.cross_entropy(logits, y1) + 0.02 * judged(judge_z, made, y1, 1.0)
        _step(adams[0], nets[0], cost)
        made = made.detach()
        told = decode(torch.cat([z2, y2], 1))
        error = (decode(torch.cat([made, y1], 1)) - x1).square().mean()
        _step(adams[1], nets[1], judged(judge_z, z2, y2, 1.0) + judged(judge_z, made, y1, 0.0))
        _step(adams[2], nets[2], error + 1e-5 * judged(judge_x, told, y2, 1.0))
        told = told.detach()
        _step(adams[3], nets[3], judged(judge_x, x1, y1, 1.0) + judged(judge_x, told, y2, 0.0))
    with torch.no_grad():
        return seen.target, decode(torch.cat([z, y], 1)).double().numpy()


def _small(given: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(given, 64), nn.ReLU(), nn.Linear(64, out))


def _step(adam: torch.optim.Optimizer, net: nn.Module, loss: Tensor) -> None:
    own = list(net.parameters())
    for w, g in zip(own, torch.autograd.grad(loss, own), strict=True):
        w.grad = g
    adam.step()


def _invert(seen: Seen, f: nn.Module, *, rounds: int, free: bool) -> Floats:
    z = torch.from_numpy(seen.received[seen.target]).float()
    x = torch.zeros(len(z), seen.columns.shape[1], requires_grad=True)
    of_x = torch.optim.Adam([x], lr=1e-3, amsgrad=True)
    of_f = torch.optim.Adam(f.parameters(), lr=1e-3, amsgrad=True)
    for _ in range(rounds):
        for adam in (of_x, of_f) if free else (of_x,):
            for _ in range(100):
                of_x.zero_grad()
                of_f.zero_grad()
                (f(x) - z).square().sum(1).mean().backward()
                adam.step()
    return x.detach().double().numpy()


def _table(seen: Seen) -> Floats:
    return np.concatenate([standardised(seen.received), standardised(seen.x)], axis=1)


def _attribute(seen: Seen) -> tuple[LogisticRegression, Floats]:
    z = standardised(seen.received)
    has = (seen.columns[:, 0] > 0).astype(int)
    return LogisticRegression(max_iter=1000).fit(z[seen.aux], has), z
