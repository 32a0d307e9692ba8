"""What real Paillier ciphers decrypt to is what the emulation sends (extra ``oracles``)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from planted_trees import Kept, boost, make_table

from vflsec.algorithms.vertical_glm import COORDINATOR
from vflsec.label import Classes

pytestmark = pytest.mark.slow
ROWS = 60


@pytest.fixture(scope="module")
def keys() -> Any:
    phe = pytest.importorskip("phe")
    return phe.generate_paillier_keypair(n_length=512)


def test_sums_of_bins_add_up_under_ciphers(keys: Any) -> None:
    """The first tree's root: a host adds ciphers of g and h by bin, and the owner decrypts them."""
    public, private = keys
    x, y = make_table(n=ROWS, d=4)
    kept = Kept()
    of = boost(x, y, (2,), rounds=1, depth=1, bins=8, sender=kept)
    g, h = Classes(2).compute_newton(np.zeros((ROWS, 1)), y)
    hidden = [[public.encrypt(float(v)) for v in values[:, 0]] for values in (g, h)]
    (sent,) = (m[3] for m in kept.sent if m[0] == "histogram")
    for j, codes in enumerate(of.codes["p1"]):
        for b in range(9):
            at = np.flatnonzero(codes == b)
            for k in range(2):
                found = sum((hidden[k][i] for i in at), public.encrypt(0.0))
                assert private.decrypt(found) == pytest.approx(sent[0, j, b, k], abs=1e-12)


def test_a_gradient_is_worked_out_under_ciphers(keys: Any) -> None:
    """A passive party multiplies ciphers of d with its columns; the coordinator decrypts g."""
    from test_vertical_glm import Kept as Wire
    from test_vertical_glm import fit

    public, private = keys
    wire = Wire(np.arange(ROWS))
    of = fit("two", (8,), wire=wire, n=ROWS, epochs=1, batch_size=0)
    (got,) = (m[4] for m in wire.sent if m[:3] == ("model_gradient", "p1", COORDINATOR))
    hidden = [public.encrypt(float(0.5 - v)) for v in of.y]
    for j in range(2):
        column = of.x["p1"][:, j] / ROWS
        found = sum(
            (d * float(v) for d, v in zip(hidden, column, strict=True)), public.encrypt(0.0)
        )
        assert private.decrypt(found) == pytest.approx(got[j, 0], abs=1e-12)
