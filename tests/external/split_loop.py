"""A split training of nobody's framework: two processes, one socket, PyTorch and NumPy.

    python split_loop.py shop PORT DATA EPOCHS SEED            holds the labels, listens
    python split_loop.py bank PORT DATA EPOCHS SEED [TRACE]    holds the other columns, connects

DATA is an .npz with x_shop, x_bank, y, train, test. Both shuffle with the shared seed. The three
lines that record are marked.
"""

import contextlib
import socket
import sys
import time

import numpy as np
import torch
from torch import nn


def send(sock, array):
    head = np.array([array.ndim, *array.shape], dtype=np.int64)
    sock.sendall(len(head).to_bytes(4, "big") + head.tobytes() + array.tobytes())


def exactly(sock, n):
    data = b""
    while len(data) < n:
        part = sock.recv(n - len(data))
        if not part:
            raise ConnectionError("the other side left")
        data += part
    return data


def receive(sock):
    n = int.from_bytes(exactly(sock, 4), "big")
    head = np.frombuffer(exactly(sock, 8 * n), dtype=np.int64)
    size = 4 * int(np.prod(head[1:]))
    return np.frombuffer(exactly(sock, size), dtype=np.float32).reshape(head[1:]).copy()


def bottom(columns):
    return nn.Sequential(nn.Flatten(), nn.Linear(columns, 64), nn.ReLU(), nn.Linear(64, 32))


def batches(rows, epochs, seed, size=128):
    g = np.random.default_rng(seed)
    for epoch in range(epochs):
        order = g.permutation(rows)
        for at in range(0, len(order), size):
            yield epoch, order[at : at + size]


def shop(sock, data, epochs, seed):
    x, y = torch.from_numpy(data["x_shop"]), torch.from_numpy(data["y"])
    torch.manual_seed(seed)
    own, top = bottom(x.shape[1]), nn.Linear(64, int(y.max()) + 1)
    optimizer = torch.optim.Adam([*own.parameters(), *top.parameters()])
    for _, rows in batches(data["train"], epochs, seed):
        z = torch.from_numpy(receive(sock)).requires_grad_()
        loss = nn.functional.cross_entropy(top(torch.cat([own(x[rows]), z], 1)), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        send(sock, z.grad.numpy())
    receive(sock)  # embeddings of the test rows


def bank(sock, data, epochs, seed, trace):
    x = torch.from_numpy(data["x_bank"])
    torch.manual_seed(1000 + seed)
    model = bottom(x.shape[1])
    initial = {k: v.clone() for k, v in model.state_dict().items()}
    optimizer = torch.optim.Adam(model.parameters())
    with contextlib.ExitStack() as stack:
        rec = None
        if trace:
            import vflsec

            known = data["known"]
            rec = stack.enter_context(  # recording, line 1
                vflsec.record(
                    trace, party="bank", role="passive", peer="shop", rows=len(x), classes=2,
                    loss_reduction="mean", columns=x, known=(known[0], known[1]),
                    prior=data["prior"], run={"dataset": "external", "algorithm": "split loop",
                                              "seed": seed},
                )
            )  # fmt: skip
            rec.model(model, initial)
        for epoch, rows in batches(data["train"], epochs, seed):
            z = model(x[rows])
            if rec is not None:
                rec.epoch(epoch)  # recording, line 2
                z = rec.cut(z, rows)  # recording, line 3
            send(sock, z.detach().numpy())
            optimizer.zero_grad()
            z.backward(torch.from_numpy(receive(sock)))
            optimizer.step()
        with torch.no_grad():
            z = model(x[data["test"]])
            if rec is not None:
                z = rec.cut(z, data["test"])
            send(sock, z.numpy())


def main(role, port, path, epochs, seed, trace=""):
    torch.set_num_threads(1)
    with np.load(path, allow_pickle=False) as file:
        data = dict(file)
    if role == "shop":
        with socket.create_server(("127.0.0.1", int(port))) as server:
            sock, _ = server.accept()
            with sock:
                shop(sock, data, int(epochs), int(seed))
        return
    for _ in range(600):
        try:
            sock = socket.create_connection(("127.0.0.1", int(port)))
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
    with sock:
        bank(sock, data, int(epochs), int(seed), trace)


if __name__ == "__main__":
    main(*sys.argv[1:])
