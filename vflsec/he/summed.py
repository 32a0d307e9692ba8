"""Summed gradients under encryption: X^T g, where g is encrypted and X is in the clear elsewhere.

The classical step of vertical linear and logistic regression, with the label holder as key owner:

    active -> passive   Enc(g) in blocks, g = dL/dz (b, o)
    passive -> active   Enc([X 1]^T g + M), M a fresh mask
    active -> passive   [X 1]^T g + M + F    (masked; the passive party takes M off)

The passive party draws M, which keeps the sums from the active party that decrypts them; the active
party draws F (`vflsec.he.flood`), which keeps its key from the passive party that drew M.

Source: Hardy et al., "Private federated learning on vertically partitioned data via entity
resolution and additively homomorphic encryption", arXiv:1711.10677 (2017); Yang et al., "Parallel
distributed logistic regression for vertical federated learning without third-party coordinator",
arXiv:1911.09824 (2019).
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from vflsec.he.blocks import block_sum, encrypt_blocks, layout, transposed_product
from vflsec.he.ckks import KeyPair, PublicKey
from vflsec.he.flood import Flood, check_answers
from vflsec.he.interactive import ActiveDraws
from vflsec.he.layer import Settings

Array = NDArray[np.float64]


class SummedGradient:
    """Both roles of one pair of parties; what passes between them is bytes.

    Args:
        seed, party: name the stream of masks.
        settings: CKKS parameters, sizes of masks and flooding, threads.
    """

    def __init__(self, seed: int, party: str, settings: Settings) -> None:
        check_answers(settings.parameters, settings.mask_bits, settings.flood_bits)
        self.flood = Flood(None, f"{party}/sum", settings.flood_bits)  # active party
        self.keys = KeyPair(settings.parameters, settings.threads)  # active party
        self.public = PublicKey(self.keys.public_bytes, settings.threads)  # passive party
        self.draws = ActiveDraws(seed, f"{party}/sum", settings.mask_bits)

    def run(
        self, g: Array, x: Array, spent: dict[str, float] | None = None
    ) -> tuple[Array, tuple[int, int]]:
        """Sum of the parameter gradients of a linear bottom, and bytes both ways.

        Args:
            g: dL/dz (b, o) at the active party.
            x: columns (b, d) at the passive party.
            spent: seconds by operation, to which those of this step are added.

        Returns:
            (d + 1, o), the bias last; bytes of Enc(g) and of the masked sum.
        """
        moments = [time.perf_counter()]
        sealed = encrypt_blocks(self.keys, g)
        moments.append(time.perf_counter())
        design = np.hstack([x, np.ones((len(x), 1))])
        b, o = g.shape
        k, _ = layout(b, o, self.public.parameters.slots)
        mask = self.draws.mask(design.shape[1], k * o)
        product = transposed_product(self.public, sealed, design, mask)
        moments.append(time.perf_counter())
        masked = self.flood.answer(block_sum(self.keys, product))  # (o, d + 1)
        moments.append(time.perf_counter())
        if spent is not None:
            for what, seconds in zip(("encrypt", "multiply", "decrypt"), np.diff(moments)):
                spent[what] = spent.get(what, 0.0) + float(seconds)
        own = mask.reshape(len(mask), k, -1).sum(1)
        return masked.T - own, (len(sealed), len(product))
