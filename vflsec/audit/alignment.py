"""What aligning the tables tells, before anything is trained: who is whose customer.

To train together, parties match their rows by id. A private set intersection keeps the ids of rows
without a partner, and **only** those: each party learns of every row of its own whether the other
has it too, and usually the size of the other's table. Being a customer of a clinic, a debt
collector or a betting shop may be the secret. A party that puts invented ids into its table learns
the same of those.

Three figures for each party and each other one: how many of its rows it learns something about; how
well its own columns tell on held-out rows who is there (what a profile of the other's customers
gives away about people who were never matched), beside the same learner on permuted membership; and
for the active party, how well membership alone ranks the label.

Source: membership revealed by vertical alignment: Liu, Zhang, Wang, "Asymmetrical vertical
federated learning", arXiv:2004.07427 (2020); Sun, Yang, Yao, Zhang, Gao, Xie, Wang, "Vertical
federated learning without revealing intersection membership", arXiv:2106.05508 (2021).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from vflsec.audit.intervals import auc_interval, mean_auc
from vflsec.core.rng import numpy_generator
from vflsec.data.source import Source
from vflsec.data.table_facts import Matched, Ranked

LEAST = 50
"""Rows that must be there, and as many that must not, for a learner to be fitted and scored."""

MOST = 8000  # rows, half of them to learn from
TREES = 30

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def find_alignment(source: Source, confidence: float = 0.95) -> list[Matched]:
    """What each party learns of each other one; nothing where all parties hold the same rows.

    Args:
        source: with the rows of each party.
        confidence: with which all intervals hold together (Bonferroni over the figures): of parties
            whose rows are missing at random one pair in many would look telling.
    """
    rows = {p: np.asarray(d.rows) for p, d in source.parties.items()}
    first, *rest = (np.sort(of) for of in rows.values())
    if all(np.array_equal(first, of) for of in rest):
        return []
    return list(_pairs(source, rows, confidence))


def _pairs(source: Source, rows: Mapping[str, Ints], confidence: float) -> Iterator[Matched]:
    design = {p: _design(source, p) for p in rows}
    held = {(p, q): np.isin(rows[p], rows[q]) for p, q in itertools.permutations(rows, 2)}
    asked = [p for (p, _), at in held.items() if min(at.sum(), (~at).sum()) >= LEAST]
    looks = sum(design[p] is not None for p in asked) + asked.count(source.active)
    confidence = 1 - (1 - confidence) / max(looks, 1)
    for (party, about), there in held.items():
        columns = control = label = None
        if min(there.sum(), (~there).sum()) >= LEAST:
            names = (source.name, party, about)
            own = design[party]
            if own is not None:
                columns = _predicted(own, there, names, confidence)
                mixed = numpy_generator(0, "alignment", *names, "permuted").permutation(there)
                control = _predicted(own, mixed, names, confidence)
            if party == source.active and len(source.class_names) == 2:
                label = _labels(source.y[rows[party]], there, confidence)
        sizes = len(there), len(rows[about]), int(there.sum())
        found = Matched(party, about, *sizes, columns, control, label)
        yield replace(found, says=_says(found, source))


def _design(source: Source, party: str) -> Floats | None:
    """A party's columns as plain numbers (n, p); None for images."""
    from vflsec.data.prepare import build_schema
    from vflsec.data.preprocess import prepared_columns

    data = source.parties[party]
    if data.values.ndim > 2 or not data.values.shape[1]:
        return None
    x = prepared_columns(data, np.ones(len(data.rows), dtype=bool), "zscore")
    out: Floats = build_schema(data).design(torch.from_numpy(x)).double().numpy()
    return out


def _predicted(
    own: Floats, there: NDArray[np.bool_], names: tuple[str, ...], confidence: float
) -> Ranked:
    """AUC on one half of the rows of a learner fitted on the other: ranks of two, added.

    Logistic regression finds a slope, trees find an island; neither is chosen by its score.
    """
    from scipy.stats import rankdata
    from sklearn.ensemble import ExtraTreesClassifier
    from sklearn.linear_model import LogisticRegression

    g = numpy_generator(0, "alignment", *names)
    kept = np.concatenate([_halved(np.flatnonzero(there), g), _halved(np.flatnonzero(~there), g)])
    learn, ask = kept[::2], kept[1::2]
    straight = LogisticRegression(C=0.1, max_iter=300).fit(own[learn], there[learn])
    trees = ExtraTreesClassifier(
        TREES, min_samples_leaf=5, random_state=int(g.integers(2**31 - 1))
    ).fit(own[learn], there[learn])
    scores = rankdata(straight.decision_function(own[ask])) + rankdata(
        trees.predict_proba(own[ask])[:, 1]
    )
    return _figure(scores, there[ask], confidence)


def _halved(rows: Ints, g: np.random.Generator) -> Ints:
    """An even number of `rows` in random order, at most half of what is looked at."""
    n = min(len(rows), MOST // 2) // 2 * 2
    return g.permutation(rows)[:n]


def _labels(y: Ints, there: NDArray[np.bool_], confidence: float) -> Ranked | None:
    """AUC of membership alone for the label, over labelled rows."""
    known = y >= 0
    y, there = y[known], there[known]
    if min((y == 0).sum(), (y == 1).sum()) < LEAST:
        return None
    return _figure(there.astype(float), y == 1, confidence)


def _figure(scores: Floats, positive: NDArray[np.bool_], confidence: float) -> Ranked:
    found, pairs = mean_auc([(np.arange(len(scores)), scores, positive)])
    low, high = auc_interval(found, pairs, confidence)
    assert low is not None, "both classes are there"
    assert high is not None, "both classes are there"
    return Ranked(found.value, low, high, len(scores))


def _says(found: Matched, source: Source) -> str:
    party, about, n, common = found.party, found.about, found.rows, found.common
    text = f"{party} learns which of its {n} rows {about} has: {common} of {n}."
    if found.columns is not None and found.control is not None:
        tells = found.columns.low > 0.5 and found.columns.low > found.control.auc
        what = "significant" if tells else "not significant"
        text += f" From own columns: AUC {found.columns}, permuted {found.control}, {what}."
    elif min(common, n - common) < LEAST:
        few = f"{common} rows are shared" if common < LEAST else f"{n - common} rows are unmatched"
        text += f" Whether own columns reveal it is not tested: only {few} ({LEAST} needed)."
    if found.label is not None and not found.label.low <= 0.5 <= found.label.high:
        more = source.class_names[1 if found.label.auc > 0.5 else 0]
        text += f" Shared rows are more often {more!r}: AUC {found.label}."
    return text
