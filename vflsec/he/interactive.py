"""The interactive layer: z = h W + b, where h stays encrypted and the key stays with its owner.

The passive party computes embeddings h (b, m) and holds the key pair; the active party holds the
public context only. One training step, with fresh masks R, M drawn by the active party and fresh
flooding F, F' drawn by the passive party:

    passive -> active   Enc(h)                     active -> passive   Enc(h W + b + R)
    passive -> active   h W + b + R + F            active: z = . - R
    passive -> active   Enc(h) in blocks           active -> passive   Enc(h^T g + M)
    passive -> active   h^T g + M + F'             active: W <- W - lr (. - M)
    active  -> passive  g W^T in the clear, as deployed systems do

with g = dL/dz (b, o). R and M keep the product from the passive party, which decrypts it. They keep
nothing from the active party, which drew them: what decrypts approximately tells it the noise of
its ciphertext and so, without F, the secret key. F is `vflsec.he.flood`; no answer carries more
than half the slots of a ciphertext.

In weight mode ``plain`` W is the active party's own. In mode ``shared`` W = W_a + W_p: the passive
party adds h W_p to the decrypted forward result, adds a fresh N to every decrypted weight gradient
and takes lr N into its own share,

    W_a <- W_a - lr (h^T g + N),   W_p <- W_p + lr N,   so W <- W - lr h^T g,

which holds for plain SGD only; N is far larger than F' and stands in its place. The embedding
gradient g W^T needs W_p, which travels encrypted. The first W must be unknown to both: the active
party draws U, the passive party a rotation Q and a large share S, and one run of the forward
protocol on Q gives W_a = Q U + F - S, W_p = S. So the active party knows W_0 up to a rotation of
the embedding space, and the passive party nothing of U.

Masks are Gaussian of standard deviation 2 ** mask_bits. They hide a value v up to a total variation
distance of |v| / (sigma sqrt(2 pi)) per release; see docs/he.md for what that does not promise.

Source: Zhang, Zhu, Li et al. and the FATE project, "hetero neural network" with interactive layer
(github.com/FederatedAI/FATE), and its secret-sharing variant (SSHE).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vflsec.core.rng import numpy_generator
from vflsec.errors import CiphertextError, ShapeError
from vflsec.he.blocks import (
    block_sum,
    encrypt_blocks,
    encrypt_columns,
    layout,
    open_rows,
    row_product,
    transposed_product,
)
from vflsec.he.ckks import KeyPair, Parameters, PublicKey, refuse_rows
from vflsec.he.envelope import pack_masked, unpack, unpack_masked
from vflsec.he.flood import FLOOD_BITS, MASK_BITS, Flood, check_answers

Array = NDArray[np.float64]


class Spread(NamedTuple):
    """Standard deviations of the passive party's first share and of its gradient noise N."""

    share: float = 8.0
    noise: float = 1.0


SPREAD = Spread()


class ActiveDraws:
    """The active party's masks, in the order the protocol draws them.

    They are on no grid but that of float64: on a grid, low bits of what they hide would show.
    """

    def __init__(self, seed: int, party: str, mask_bits: int = MASK_BITS) -> None:
        self.rng = numpy_generator(seed, "he", party, "active")
        self.sigma = 2.0**mask_bits

    def mask(self, *shape: int) -> Array:
        """A fresh mask."""
        return self.rng.standard_normal(shape) * self.sigma


class PassiveDraws:
    """The passive party's rotation, share and gradient noise, in the order it draws them."""

    def __init__(self, seed: int, party: str, spread: Spread = SPREAD) -> None:
        self.rng = numpy_generator(seed, "he", party, "passive")
        self.scale, self.sigma = spread

    def rotation(self, m: int) -> Array:
        """An orthogonal matrix (m, m), uniform (QR of a Gaussian matrix with signs fixed)."""
        q, r = np.linalg.qr(self.rng.standard_normal((m, m)))
        return np.asarray(q * np.sign(np.diag(r)))

    def share(self, m: int, o: int) -> Array:
        """The first share S (m, o)."""
        return self.rng.standard_normal((m, o)) * self.scale

    def noise(self, m: int, o: int) -> Array:
        """N (m, o), added to one weight gradient."""
        return self.rng.standard_normal((m, o)) * self.sigma


class ActiveRole:
    """The side with labels, weights and the public context; holds no secret key.

    Args:
        public: bytes of the other side's public context.
        seed, party: name the stream of masks.
        mask_bits: masks have standard deviation 2 ** mask_bits.
        threads: of TenSEAL.

    Attributes:
        weight: W, or this side's share of it, (m, o).
        bias: (o,).
    """

    def __init__(
        self, public: bytes, seed: int, party: str, mask_bits: int = MASK_BITS, threads: int = 1
    ) -> None:
        self.key = PublicKey(public, threads)
        self.draws = ActiveDraws(seed, party, mask_bits)
        self.weight: Array = np.zeros((0, 0))
        self.bias: Array = np.zeros(0)
        self._mask: Array = np.zeros((0, 0))

    def load(self, weight: Array, bias: Array) -> None:
        """Set the layer."""
        self.weight, self.bias = weight, bias

    def forward(self, embedding: bytes) -> bytes:
        """Enc(h) -> Enc(h W + b + R)."""
        shape = unpack(embedding, "rows", self.key.key).shape
        self._mask = self.draws.mask(shape[0], self.weight.shape[1])
        return self.key.matmul(embedding, self.weight, self._mask + self.bias)

    def gradient(self, embedding: bytes, g: Array) -> bytes:
        """Enc(h) in blocks and own g (b, o) -> Enc(h^T g + M)."""
        b, m = unpack(embedding, "blocks", self.key.key).shape
        k, _ = layout(b, m, self.key.parameters.slots)
        mask = self.draws.mask(g.shape[1], k * m)
        self._mask = mask.reshape(len(mask), k, m).sum(1).T
        return transposed_product(self.key, embedding, g, mask)

    def unmask(self, masked: bytes) -> Array:
        """What the other side decrypted, without the own last mask."""
        out = unpack_masked(masked, self.key.key)
        if out.shape != self._mask.shape:
            raise ShapeError.must("a masked answer", f"be {self._mask.shape}", out.shape)
        return out - self._mask

    def embedding_gradient(self, share: bytes, g: Array) -> bytes:
        """Enc(W_p) and own g -> Enc(g W_p^T + g W_a^T): shared weights only."""
        return row_product(self.key, share, g, g @ self.weight.T)


class PassiveRole:
    """The side with the embeddings and the key pair.

    Args:
        parameters: of CKKS; None for the default.
        seed, party: name the stream of rotation, share and noise.
        shared: True for shared weights.
        spread: of the first share and of N.
        mask_bits: of the other side's masks, for the check of what fits.
        flood_bits: flooding has standard deviation 2 ** -flood_bits.
        threads: of TenSEAL.

    Raises:
        ConfigError: masks or flooding do not fit the parameters (`flood.check_answers`).

    Attributes:
        share: W_p (m, o), or None for plain weights.
    """

    def __init__(
        self,
        parameters: Parameters | None,
        seed: int,
        party: str,
        shared: bool = False,
        spread: Spread = SPREAD,
        mask_bits: int = MASK_BITS,
        flood_bits: int = FLOOD_BITS,
        threads: int = 1,
    ) -> None:
        self.parameters = parameters or Parameters()
        check_answers(self.parameters, mask_bits, flood_bits)
        self.keys = KeyPair(self.parameters, threads)
        self.flood = Flood(None, party, flood_bits)
        self.draws = PassiveDraws(seed, party, spread)
        self.shared = shared
        self.share: Array | None = None
        self.lr = 0.0
        self._h: Array = np.zeros((0, 0))

    def public(self) -> bytes:
        """What the other side gets."""
        return self.keys.public_bytes

    def load(self, share: Array | None, lr: float) -> None:
        """Set the own share and the learning rate."""
        self.share, self.lr = share, lr

    def embed(self, h: Array) -> bytes:
        """h (b, m) -> Enc(h).

        Raises:
            ShapeError: more rows than one answer may carry, half the slots.
        """
        self._h = np.asarray(h, dtype=np.float64)
        if len(self._h) > self.parameters.rows:
            raise refuse_rows(self.parameters, len(self._h), self.parameters.rows)
        return self.keys.encrypt(self._h)

    def embed_blocks(self) -> bytes:
        """The last h -> Enc(h) in blocks, for the weight gradient."""
        return encrypt_blocks(self.keys, self._h)

    def open(self, product: bytes) -> bytes:
        """Enc(h W_a + b + R) -> h W + b + R + F, masked."""
        out = self._decrypt(product)
        if self.share is not None:
            out = out + self._h @ self.share
        return pack_masked(self.keys.key, self.flood.answer(out))

    def _decrypt(self, product: bytes) -> Array:
        out = self.keys.decrypt(product)
        if len(out) != len(self._h):
            rule = f"have the {len(self._h)} rows of the batch"
            raise CiphertextError.must("a product", rule, len(out))
        return out

    def open_gradient(self, product: bytes) -> bytes:
        """Enc(h^T g + M) -> h^T g + M + F, masked; with a share + N for F, and it takes lr N."""
        out = block_sum(self.keys, product)
        if len(out) != self._h.shape[1]:
            rule = f"have {self._h.shape[1]} rows"
            raise CiphertextError.must("a weight gradient", rule, len(out))
        if self.share is None:
            return pack_masked(self.keys.key, self.flood.answer(out))
        noise = self.draws.noise(*out.shape)
        self.share = self.share + self.lr * noise
        return pack_masked(self.keys.key, self.flood.snap(out + noise))

    def encrypt_share(self, rows: int) -> bytes:
        """Enc(W_p), for a batch of `rows`."""
        assert self.share is not None, "plain weights have no share"
        return encrypt_columns(self.keys, self.share, rows)

    def open_embedding_gradient(self, product: bytes) -> Array:
        """dL/dh (b, m), in the clear."""
        return open_rows(self.keys, product)

    def rotate(self, m: int) -> bytes:
        """Draw Q and send Enc(Q): the first step of :func:`share_weights`."""
        return self.embed(self.draws.rotation(m))

    def open_rotated(self, product: bytes) -> bytes:
        """Enc(Q U + R) -> Q U + R + F - S, and keep S as the share."""
        out = self._decrypt(product)
        self.share = self.draws.share(*out.shape)
        return pack_masked(self.keys.key, self.flood.answer(out - self.share))

    def own_share(self) -> Array | None:
        """The share as it stands, for the own records."""
        return self.share
