"""Encrypted ways between a passive party and the active one, inside training.

`InteractiveLink` puts the interactive layer between bottom and top model; `SummedGradientLink` lets
the passive party learn the batch sum of its parameter gradients only. What each party then has in
the clear is recorded for its View and nothing else: ciphertexts cross as opaque bytes, masked
values as the masked numbers they are.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vflsec.core.channel import Recorder
from vflsec.core.federation import Federation, PlainLink
from vflsec.core.link import Link, WayBack
from vflsec.core.message import Message
from vflsec.core.message_kinds import Kind
from vflsec.core.rng import Streams
from vflsec.core.view import Table
from vflsec.errors import ConfigError, PolicyError
from vflsec.he import cost
from vflsec.he.flood import Flood
from vflsec.he.layer import Emulated, Layer, Real, Settings, backend


def opaque(replicas: int, size: int) -> Tensor:
    """A ciphertext as far as anybody without the key is concerned: `size` bytes, (R, size)."""
    return torch.zeros((1, 1), dtype=torch.uint8).expand(replicas, size)


class Answers:
    """Names of streams and numbers of answers of one link, by replica; nothing is drawn twice.

    A replica that has stopped training does not count on, and one that took no part in an earlier
    training starts as if there had been none, so that nothing depends on those beside it.

    Args:
        fed: the cohort when the link is built.
        before: of the training before this one, whose replicas that took part draw anew.
    """

    def __init__(self, fed: Federation, before: Answers | None = None) -> None:
        self.counts = [0] * fed.replicas
        self.training = [1] * fed.replicas
        if before is not None:
            self.training = [
                n + int(on) for n, on in zip(before.training, self._going(fed), strict=True)
            ]

    @staticmethod
    def _going(fed: Federation) -> list[bool]:
        alive = fed.channel.alive_mask
        return [True] * fed.replicas if alive is None else alive.tolist()

    def names(self, party: str) -> list[str]:
        """Of the streams of a link of `party`."""
        return [party if n == 1 else f"{party}/training {n}" for n in self.training]

    def next(self, fed: Federation | None = None) -> list[int]:
        """The numbers of one more answer; without `fed` of one that all get, whoever trains."""
        out = list(self.counts)
        going = [True] * len(out) if fed is None else self._going(fed)
        self.counts = [n + int(on) for n, on in zip(out, going, strict=True)]
        return out


def refuse_treatment(fed: Federation, name: str, why: str) -> None:
    """Refuse policies of the active party for gradients, which it never holds in the clear.

    Raises:
        PolicyError: there is one.
    """
    for b in fed.active.bindings:
        if "gradient" in b.policy.covers:
            what = f"{name}: {b.policy.name} cannot treat the gradient, {why}"
            raise PolicyError(f"{what}. Leave one of them out.")


class InteractiveLink(Link[Federation]):
    """z = h W + b between the passive party's embedding h and the active party's top model.

    Args:
        party: the passive party.
        mode: ``real``, ``emulated``, or ``clear`` (the same layer, h sent in the clear).
        settings: of the layer.
    """

    def __init__(self, party: str, mode: str, settings: Settings) -> None:
        super().__init__(party)
        self.mode, self.settings = mode, settings
        self.part = f"interactive.{party}"
        self.sealed = mode != "clear"
        gone = {"embedding"} if self.sealed else set()
        self.replaces = frozenset(gone | {"gradient"} if settings.shared else gone)
        self._h: Tensor | None = None
        self.truth: Recorder | None = None
        self.answers: Answers = None  # type: ignore[assignment]  # of `build`
        self.backend: Emulated | Real = None  # type: ignore[assignment]

    def width(self, cut: int) -> int:
        return self.settings.out

    def build(self, fed: Federation, cut: int) -> None:
        out = self.settings.out
        module = fed.add(fed.active.name, self.part, lambda: _frozen(nn.Linear(cut, out)))
        self.answers = Answers(fed, self.answers)
        spent = fed.encryption if self.mode == "real" else None
        if isinstance(self.backend, Real):
            self.backend.close()
        self.backend = backend(
            self.mode, self.settings, fed.seeds, self.answers.names(self.party), spent
        )
        if not self.settings.shared:
            return
        why = "which only its receiver decrypts"
        refuse_treatment(fed, "he_embedding with shared weights", why)
        share = fed.add(self.party, "share", lambda: _frozen(nn.Linear(cut, out, bias=False)))
        first = Layer(module.params["weight"], module.params["bias"])
        made = self.backend.share(first, self.answers.next())
        assert made.share is not None
        module.params["weight"].copy_(made.weight)
        share.params["weight"].copy_(made.share)
        self._setup(fed, cut)

    def _setup(self, fed: Federation, cut: int) -> None:
        """The messages that made the shares: one forward pass on a secret rotation."""
        c = cost.batch(
            min(cut, self.settings.parameters.rows), cut, self.settings.out, train=False,
            parameters=self.settings.parameters,
        )  # fmt: skip
        me, you, r = self.party, fed.active.name, fed.replicas
        fed.send("ciphertext", me, you, opaque(r, c.embedding), name="rotation", phase="setup")
        fed.send("ciphertext", you, me, opaque(r, c.product), name="rotated", phase="setup")
        zeros = torch.zeros((1, 1), dtype=torch.uint8).expand(r, c.masked)
        fed.send("masked_sum", me, you, zeros, name="share", phase="setup")

    def layer(self, fed: Federation) -> Layer:
        """The weights as they stand."""
        mine = fed.active.modules[self.part].params
        share = None
        if self.settings.shared:
            share = fed.parties[self.party].modules["share"].params["weight"]
        return Layer(mine["weight"], mine["bias"], share)

    @torch.no_grad()
    def up(self, fed: Federation, z: Tensor, rows: Tensor, *, phase: str = "") -> Tensor:
        if not self.sealed:
            h = self._h = fed.send("embedding", self.party, fed.active.name, z, rows, phase=phase)
            out = self.backend.forward(h, self.layer(fed), self.answers.next(fed)).out
            self._witness(fed, h, rows, phase)
            self._derive(fed, "activation", fed.active.name, out, rows, phase)
            return out
        h = self._h = fed.treat("embedding", self.party, fed.active.name, z, rows, phase)
        most = self.settings.parameters.rows
        pairs = zip(h.split(most, dim=1), rows.split(most, dim=1), strict=True)
        return torch.cat([self._up(fed, part, ids, phase) for part, ids in pairs], dim=1)

    def _up(self, fed: Federation, h: Tensor, rows: Tensor, phase: str) -> Tensor:
        me, you, r = self.party, fed.active.name, fed.replicas
        found = self.backend.forward(h, self.layer(fed), self.answers.next(fed))
        sent, back = (opaque(r, s) for s in found.sizes)
        fed.send("ciphertext", me, you, sent, name="embedding", phase=phase)
        fed.send("ciphertext", you, me, back, name="product", phase=phase)
        self._witness(fed, h, rows, phase)
        fed.derive("embedding", me, you, h, rows, phase=phase, own=True)
        self._derive(fed, "masked", me, found.masked, rows, phase)
        fed.send("masked", me, you, found.masked, rows, name="product", phase=phase)
        self._derive(fed, "activation", you, found.out, rows, phase)
        return found.out

    def down(self, fed: Federation, way: WayBack) -> Tensor | None:
        z, gradient, penalty, rows, y, logits, x = way
        assert self._h is not None
        g, h = gradient.detach(), self._h
        layer = self.layer(fed)
        me, you, r = self.party, fed.active.name, fed.replicas
        with torch.no_grad():
            found = self.backend.back(h, g, layer, self.answers.next(fed))
        own = torch.cat([layer.weight.transpose(1, 2), layer.bias.unsqueeze(1)], dim=1)
        self._derive(fed, "weights", you, own.clone(), None)
        self._derive(fed, "output_gradient", you, g, rows)
        self._derive(fed, "weight_gradient", you, found.weight.transpose(1, 2), None)
        if self.sealed:
            names = (("blocks", me, you), ("weight_gradient", you, me), ("share", me, you),
                     ("embedding_gradient", you, me))  # fmt: skip
            for (name, sender, receiver), size in zip(names, found.sizes, strict=False):
                fed.send("ciphertext", sender, receiver, opaque(r, size), name=name)
            self._derive(fed, "masked_sum", me, found.masked, None)
            fed.send("masked_sum", me, you, found.masked, name="weight_gradient")
        if self.settings.shared:
            delivered = found.embedding
            fed.derive("gradient", you, me, delivered, rows, scale=float(rows.shape[1]))
        else:
            delivered = fed.send(
                "gradient", you, me, found.embedding, rows, scale=float(rows.shape[1]), labels=y,
                logits=logits,
            )  # fmt: skip
        with torch.no_grad():
            layer.weight.sub_(self.settings.lr * found.weight)
            layer.bias.sub_(self.settings.lr * g.sum(1))
            if layer.share is not None and found.noise is not None:
                layer.share.add_(self.settings.lr * found.noise)
        fed.parties[me].continue_backward(z, delivered, penalty, x=x)
        return delivered

    def _witness(self, fed: Federation, h: Tensor, rows: Tensor, phase: str) -> None:
        """Keep each row's last embedding in training for the audit, if an attack is after it."""
        recorder = fed.channel.recorder
        if phase or not any(key[2] in ("activation", "weight_gradient") for key in recorder.wanted):
            return
        if self.truth is None:
            self.truth = Recorder(
                [(self.party, "sent", "embedding", "last")], fed.replicas, recorder.n
            )
        message = Message("embedding", self.party, fed.active.name, h, rows, fed.phase)
        self.truth.add(message, fed.channel.alive_mask, timed=False)

    def embeddings(self, r: int, phase: str) -> Table:
        """What replica `r`'s embeddings were when each row was last seen; for the audit alone."""
        assert self.truth is not None, "no attack asked for it before training"
        return self.truth.tables(r, (self.party,), phase)["sent", "embedding", "last", self.party]

    def _derive(
        self, fed: Federation, kind: Kind, who: str, x: Tensor, rows: Tensor | None, phase: str = ""
    ) -> None:
        other = self.party if who != self.party else fed.active.name
        fed.derive(kind, other, who, x, rows, phase=phase)


class SummedGradientLink(PlainLink):
    """The passive party gets the batch sum of its parameter gradients, never a row of them.

    The active party holds the key and sends Enc(dL/dz). For a linear bottom the passive party
    computes X^T Enc(dL/dz) plus a mask and has it decrypted (`real`); for any other bottom no
    deployed protocol does the whole backward pass under encryption, so it is emulated.

    Args:
        party: the passive party.
        mode: ``real`` or ``emulated``.
        settings: CKKS parameters, threads and mask size.
    """

    replaces = frozenset({"gradient"})

    def __init__(self, party: str, mode: str, settings: Settings) -> None:
        super().__init__(party)
        self.mode, self.settings = mode, settings
        self.answers: Answers = None  # type: ignore[assignment]  # of `build`

    def build(self, fed: Federation, cut: int) -> None:
        refuse_treatment(fed, "he_gradient", "which leaves encrypted only")
        self.answers = Answers(fed, self.answers)
        self.summed: dict[int, object] = {}
        self.names = self.answers.names(self.party)
        bits = self.settings.flood_bits
        self.floods = [
            Flood(seed, f"{name}/sum", bits) for seed, name in zip(fed.seeds, self.names)
        ]
        self.masks = [
            Streams([seed], "he", name, "sum", dtype=torch.float64)
            for seed, name in zip(fed.seeds, self.names)
        ]
        self.linear = _linear(fed.parties[self.party].modules["bottom"].template)
        if self.mode == "real" and self.linear is None:
            raise ConfigError(
                "he_gradient: mode 'real' needs a linear bottom of numeric columns at "
                f"{self.party!r} (hidden = []). Use mode 'emulated'."
            )

    def down(self, fed: Federation, way: WayBack) -> Tensor | None:
        gradient, penalty, rows = way.gradient, way.penalty, way.rows
        party, you = fed.parties[self.party], fed.active.name
        params = party.parameters()
        total = (way.z * gradient).sum()
        total = total if penalty is None else total + penalty.sum()
        sums = list(torch.autograd.grad(total, params))
        b, o = gradient.shape[1:]
        answers = self.answers.next(fed)
        if self.mode == "real":
            if penalty is not None:
                raise PolicyError("he_gradient: mode 'real' takes no penalty at the passive party.")
            sums, sizes = self._real(fed, gradient.detach(), rows)
        else:
            sums = self._flooded(sums, answers)
            sizes = self._sizes(b, o, sum(p[0].numel() for p in params))
        fed.send("ciphertext", you, self.party, opaque(fed.replicas, sizes[0]), name="gradient")
        fed.send("ciphertext", self.party, you, opaque(fed.replicas, sizes[1]), name="sum")
        scale = float(rows.shape[1])
        fed.derive("gradient", you, self.party, gradient, rows, scale=scale, own=True)
        wide = torch.cat([g.flatten(1) for g in sums], dim=1).double()
        mask = torch.cat([of.normal(wide.shape[1:]) for of in self.masks])
        masked = wide + 2.0**self.settings.mask_bits * mask.to(wide)
        fed.derive("masked_sum", self.party, you, masked)
        fed.send("masked_sum", you, self.party, masked, name="sum")
        party.update(sums)
        return None

    def _flooded(self, sums: list[Tensor], answers: list[int]) -> list[Tensor]:
        """The sums as the key holder lets go of them; of a linear bottom weights (o, d), then bias
        (o,), in one answer (o, d + 1).
        """
        if self.linear is None:
            wide = torch.cat([g.flatten(1) for g in sums], dim=1)
        else:
            wide = torch.cat([sums[0], sums[1].unsqueeze(2)], dim=2)
        every = zip(self.floods, wide.double().cpu().numpy(), answers, strict=True)
        out = torch.stack([torch.from_numpy(f.answer(x, n)) for f, x, n in every]).to(wide)
        if self.linear is not None:
            return [out[:, :, :-1], out[:, :, -1]]
        parts = out.split([g[0].numel() for g in sums], dim=1)
        return [part.reshape(g.shape) for part, g in zip(parts, sums, strict=True)]

    def _sizes(self, b: int, o: int, parameters: int) -> tuple[int, int]:
        p = self.settings.parameters
        c = cost.summed(min(b, p.rows), o, max(0, -(-parameters // o) - 1), parameters=p)
        return c.blocks, c.gradient

    def _real(
        self, fed: Federation, g: Tensor, rows: Tensor
    ) -> tuple[list[Tensor], tuple[int, int]]:
        """Parameter gradients in the order of the party's parameters, and bytes both ways."""
        from vflsec.he.summed import SummedGradient

        x = fed.columns(self.party, rows)
        columns = self.linear
        assert columns is not None
        out, sizes = [], (0, 0)
        for r, seed in enumerate(fed.seeds):
            if r not in self.summed:
                self.summed[r] = SummedGradient(seed, self.names[r], self.settings)
            pair = self.summed[r]
            assert isinstance(pair, SummedGradient)
            design = x[r][:, columns].double().cpu().numpy()
            mine = g[r].double().cpu().numpy()
            total, sizes = pair.run(mine, design, fed.encryption[r])
            out.append(torch.from_numpy(total).to(g))
        stacked = torch.stack(out)  # (R, d + 1, o)
        return [stacked[:, :-1].transpose(1, 2), stacked[:, -1]], sizes


def _frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False)


def _linear(template: nn.Module) -> list[int] | None:
    """The columns a linear bottom reads, or None if the bottom is anything more than linear."""
    parts = list(template.children())
    if len(parts) != 2 or not isinstance(parts[1], nn.Linear):
        return None
    numeric = getattr(parts[0], "numeric", None)
    if isinstance(parts[0], nn.Flatten):
        return list(range(parts[1].in_features))
    if numeric is None or getattr(parts[0], "categorical", None):
        return None
    return list(numeric)
