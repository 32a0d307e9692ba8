"""The interactive layer: gradients against autograd, masks, shares, processes, secrets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sampled import sampled

from vflsec.errors import CiphertextError
from vflsec.he.blocks import block_sum
from vflsec.he.ckks import KeyPair
from vflsec.he.envelope import unpack_masked
from vflsec.he.interactive import ActiveRole, PassiveRole

pytest.importorskip("tenseal")
RNG = np.random.default_rng(1)
B, M, O = 24, 5, 4  # noqa: E741
FLOODED = 5 * 2.0**-12  # standard deviations of an answer's noise
H, W, BIAS = RNG.normal(size=(B, M)), RNG.normal(size=(M, O)), RNG.normal(size=O)
Y = torch.from_numpy(RNG.integers(0, O, size=B))


def reference() -> dict[str, np.ndarray]:
    """z, g, h^T g and g W^T by autograd."""
    h = torch.from_numpy(H).requires_grad_()
    w = torch.from_numpy(W).requires_grad_()
    z = h @ w + torch.from_numpy(BIAS)
    loss = torch.nn.functional.cross_entropy(torch.tanh(z), Y)
    dz, dw, dh = torch.autograd.grad(loss, [z, w, h])
    return {"z": z.detach().numpy(), "g": dz.numpy(), "w": dw.numpy(), "h": dh.numpy()}


def roles(seed: int = 0, *, shared: bool = False, **how: Any) -> tuple[PassiveRole, ActiveRole]:
    passive = PassiveRole(None, seed, "p", shared=shared)
    return passive, ActiveRole(passive.public(), seed, "p", **how)


def relative(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def test_plain_weights_agree_with_autograd() -> None:
    expected = reference()
    passive, active = roles()
    active.load(W, BIAS)
    z = active.unmask(passive.open(active.forward(passive.embed(H))))
    assert np.abs(z - expected["z"]).max() < FLOODED
    product = active.gradient(passive.embed_blocks(), expected["g"])
    weight = active.unmask(passive.open_gradient(product))
    assert np.abs(weight - expected["w"]).max() < FLOODED
    assert relative(expected["g"] @ active.weight.T, expected["h"]) < 1e-12


def test_shared_weights_agree_with_autograd_and_hide_w() -> None:
    expected = reference()
    passive, active = roles(shared=True)
    u = RNG.normal(size=(M, O))
    active.load(u, np.zeros(O))
    mine = active.unmask(passive.open_rotated(active.forward(passive.rotate(M))))
    assert passive.share is not None
    first = mine + passive.share
    assert np.abs(first.T @ first - u.T @ u).max() < 1e-2  # a rotation of U: same geometry
    assert np.abs(first - u).max() > 0.1  # but not U
    assert passive.share.std() > 4  # large from the start, not zero
    passive.load(W - mine, 0.5)
    active.load(mine, BIAS)
    z = active.unmask(passive.open(active.forward(passive.embed(H))))
    assert np.abs(z - expected["z"]).max() < FLOODED
    sealed = active.embedding_gradient(passive.encrypt_share(B), expected["g"])
    assert relative(passive.open_embedding_gradient(sealed), expected["h"]) < 1e-4
    before = passive.share
    noisy = active.unmask(
        passive.open_gradient(active.gradient(passive.embed_blocks(), expected["g"]))
    )
    assert relative(noisy, expected["w"]) > 1  # what the active party sees is not the gradient
    updated = (mine - 0.5 * noisy) + passive.share
    assert relative(before - passive.share, -0.5 * (noisy - expected["w"])) < 1e-4
    assert relative(updated, W - 0.5 * expected["w"]) < 1e-4  # the shares add up to plain SGD


def test_masks_hide_what_they_cover() -> None:
    """Over many masks, what the passive party receives does not depend on z at the mask's scale."""
    passive, active = roles(3)
    sealed = passive.embed(np.tile([[1.0], [-1.0]], (1000, 1)))
    active.load(np.full((1, 2), 5.0), np.zeros(2))  # z = +5 in every other row, else -5
    seen = np.stack(
        [unpack_masked(passive.open(active.forward(sealed))) for _ in range(4)]
    )  # (4, 2000, 2)
    up, down = seen[:, ::2].ravel(), seen[:, 1::2].ravel()
    sigma, n = 2.0**16, up.size
    assert abs(up.mean() - down.mean()) < 4 * sigma * np.sqrt(2 / n)
    for part in (up, down):
        assert abs(part.std() / sigma - 1) < 4 / np.sqrt(2 * n)
        assert abs(np.mean(part > 0) - 0.5) < 4 * 0.5 / np.sqrt(n)
    assert abs(np.corrcoef(up, down)[0, 1]) < 4 / np.sqrt(n)
    assert len(np.unique(seen)) == seen.size  # fresh every time


def test_masks_hide_the_low_bits_too() -> None:
    """A mask on the grid of the answers would show its key holder the product modulo the grid."""
    passive, active = roles(3)
    h = RNG.normal(size=(2000, 1))
    active.load(np.ones((1, 2)), np.zeros(2))
    exact = passive.keys.decrypt(active.forward(passive.embed(h)))
    grid = 2.0**-22
    turns = [np.exp(2j * np.pi * x / grid) for x in (exact, np.hstack([h, h]))]
    assert abs(np.mean(turns[0] * turns[1].conj())) < 4 / np.sqrt(exact.size)
    on_grid = np.rint(active.draws.mask(2000, 2) / grid) * grid + h  # it would be seen
    assert abs(np.mean(np.exp(2j * np.pi * on_grid / grid) * turns[1].conj())) > 0.9


@pytest.mark.slow
def test_gradient_masks_hide_what_they_cover() -> None:
    """The same for the weight gradient, for each block that the key holder decrypts."""
    passive, active = roles(4)
    h = np.ones((6, 2))
    passive.embed(h)
    g = np.zeros((6, 8))
    g[:, ::2], g[:, 1::2] = 3.0, -3.0
    slots = []
    for _ in range(12):
        product = active.gradient(passive.embed_blocks(), g)
        slots.append(passive.keys.decrypt_vectors(product)[1])  # (8, 12) before blocks are added
    found = np.stack(slots)
    up, down = found[:, ::2].ravel(), found[:, 1::2].ravel()
    sigma, n = 2.0**16, up.size
    assert abs(up.mean() - down.mean()) < 4 * sigma * np.sqrt(2 / n)
    assert abs(np.concatenate([up, down]).std() / sigma - 1) < 4 / np.sqrt(4 * n)


def test_without_the_mask_the_passive_party_would_see_z() -> None:
    """The test above can fail: with a mask of standard deviation 2 the rows are told apart."""
    passive, active = roles(3, mask_bits=1)  # no role checks the other's draws
    active.load(np.full((1, 40), 5.0), np.zeros(40))
    sealed = passive.embed(np.array([[1.0], [-1.0]]))
    seen = unpack_masked(passive.open(active.forward(sealed)))
    assert seen[0].mean() - seen[1].mean() > 4 * 2 * np.sqrt(2 / 40)


@pytest.mark.slow
@pytest.mark.parametrize("shared", sampled([True, False]))
def test_every_answer_is_flooded_before_it_leaves(shared: bool) -> None:
    """What is sent is not what was decrypted: 2^-12 away, N = 1 for a gradient beside shares."""
    passive, active = roles(shared=shared)
    wide = RNG.normal(size=(M, 40))
    active.load(wide, np.zeros(40))
    away = []
    if shared:
        product = active.forward(passive.rotate(M))
        sent = unpack_masked(passive.open_rotated(product))
        away.append(sent - (passive.keys.decrypt(product) - passive.share))
    passive.load(0 * wide if shared else None, 0.1)
    product = active.forward(passive.embed(H))
    away.append(unpack_masked(passive.open(product)) - passive.keys.decrypt(product))
    product = active.gradient(passive.embed_blocks(), RNG.normal(size=(B, 40)))
    sent = unpack_masked(passive.open_gradient(product))
    last = sent - block_sum(passive.keys, product)
    away.append(last * (2.0**-12 if shared else 1))
    for d in away:
        assert abs(d.std() * 2.0**12 - 1) < 4 / np.sqrt(2 * d.size)
    assert len(np.unique(np.concatenate([d.ravel() for d in away]))) > 0.9 * sum(map(np.size, away))


def test_an_answer_under_another_key_is_refused() -> None:
    one, two = PassiveRole(None, 0, "p"), PassiveRole(None, 0, "p")
    active = ActiveRole(one.public(), 0, "p")
    active.load(W, BIAS)
    with pytest.raises(CiphertextError, match="must be under key"):
        active.forward(two.embed(H))


def secret_windows(keys: KeyPair) -> list[bytes]:
    """Pieces of the serialised secret key that are not in the public bytes."""
    both = keys._context.serialize(
        save_public_key=False, save_secret_key=True, save_galois_keys=False, save_relin_keys=False
    )
    step = len(both) // 40
    pieces = [both[i : i + 24] for i in range(step, len(both) - 24, step)]
    return [p for p in pieces if p not in keys.public_bytes]


def test_the_secret_key_stays_where_it_was_made(tmp_path: Path, caplog: Any) -> None:
    """Nothing that is sent, stored, logged or set in the environment holds bytes of the key."""
    caplog.set_level(0)
    passive, active = roles(shared=True)
    pieces = secret_windows(passive.keys)
    assert len(pieces) > 20
    active.load(W, BIAS)
    passive.load(W, 0.1)
    sent = [passive.public(), passive.embed(H)]
    sent += [active.forward(sent[-1])]
    sent += [passive.open(sent[-1]), passive.embed_blocks()]
    sent += [active.gradient(sent[-1], H @ W)]
    sent += [passive.open_gradient(sent[-1]), passive.encrypt_share(B)]
    sent += [active.embedding_gradient(sent[-1], H @ W)]
    environment = repr(dict(os.environ)).encode()
    stored = [p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()]
    for where in (*sent, environment, caplog.text.encode(), *stored):
        assert not any(p in where for p in pieces)
    leak = passive.keys._context.serialize(save_secret_key=True)
    assert any(p in leak for p in pieces)  # the search does find a key that is there


@pytest.mark.slow
def test_two_processes() -> None:
    """Spawned roles give the same numbers; the active one holds no secret key."""
    from vflsec.he.process import Remote

    passive = Remote("passive", parameters=None, seed=0, party="p")
    active = Remote("active", public=passive.public(), seed=0, party="p")
    try:
        assert len({os.getpid(), passive.process.pid, active.process.pid}) == 3
        assert passive.holds_secret()
        assert not active.holds_secret()
        active.load(W, BIAS)
        sent = [passive.embed(H)]
        sent.append(active.forward(sent[0]))
        sent.append(passive.open(sent[1]))
        assert all(type(s) is bytes for s in sent)
        assert np.abs(active.unmask(sent[2]) - (H @ W + BIAS)).max() < FLOODED
        with pytest.raises(CiphertextError, match="is damaged"):
            active.forward(sent[0][:-10])
        assert np.abs(active.unmask(sent[2]) - (H @ W + BIAS)).max() < FLOODED  # still alive
        with pytest.raises(AttributeError, match="no 'keys'"):
            _ = passive.keys
        environment = Path(f"/proc/{active.process.pid}/environ")
        if environment.exists():
            entries = dict(e.split(b"=", 1) for e in environment.read_bytes().split(b"\0") if e)
            added = {k for k, v in entries.items() if os.environb.get(k) != v}
            assert added <= {b"LINES", b"COLUMNS"}  # by readline, if it is there
    finally:
        active.close()
        passive.close()
    assert passive.process.exitcode is not None
