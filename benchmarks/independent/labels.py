"""Label inference from gradients, embeddings and answers, on numpy and scikit-learn."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import KMeans
from sklearn.linear_model import LinearRegression, LogisticRegression, RidgeCV
from sklearn.neural_network import MLPClassifier

from independent.seen import Answer, Floats, Seen, named, standardised


def norm(seen: Seen) -> Answer:
    """Length of the row's gradient, mean over epochs; the rare class has the longer ones.

    Li et al., ICLR 2022, arXiv:2102.08504, section 3.
    """
    length = np.linalg.norm(seen.gradients, axis=2).mean(0)
    return seen.rows, length if seen.prior[1] <= 0.5 else -length


def direction(seen: Seen) -> Answer:
    """Cosine of the row's gradient to those of five known positives, mean over them and epochs.

    Li et al., ICLR 2022, arXiv:2102.08504, section 3.
    """
    g = seen.gradients / np.maximum(np.linalg.norm(seen.gradients, axis=2, keepdims=True), 1e-30)
    return seen.rows, np.einsum("tnd,tqd->tnq", g, g[:, seen.of_class(1, 5)]).mean((0, 2))


def hints(seen: Seen) -> Answer:
    """Projection of the mean gradient on the longest of five known positives'.

    Li et al., ICLR 2022, arXiv:2102.08504, appendix.
    """
    g = seen.gradients.mean(0)
    known = g[seen.of_class(1, 5)]
    longest = known[np.linalg.norm(known, axis=1).argmax()]
    return seen.rows, g @ longest / np.linalg.norm(longest)


def spectral(seen: Seen) -> Answer:
    """First principal component of the own embeddings, signed by the known rows.

    Sun, Yang, Yao, Wang, arXiv:2203.01451, section 3.
    """
    z = seen.z[seen.rows] - seen.z[seen.rows].mean(0)
    a = z @ np.linalg.svd(z, full_matrices=False)[2][0]
    gap = a[seen.of_class(1, 99)].mean() - a[seen.of_class(0, 99)].mean()
    return seen.rows, a * np.sign(gap)


def cluster(seen: Seen) -> Answer:
    """k-means of mean gradients; the known rows name the clusters.

    Liu, Lyu, Cui, Tao, arXiv:2203.05222.
    """
    return seen.rows, named(seen, -_k_means(seen, seen.gradients.mean(0)))


def cluster_by_size(seen: Seen) -> Answer:
    """k-means of mean gradients; the largest cluster is the largest class.

    Liu, Lyu, Cui, Tao, arXiv:2203.05222.
    """
    far = _k_means(seen, seen.gradients.mean(0))
    sizes = np.bincount(far.argmin(1), minlength=seen.classes)
    of = np.empty(seen.classes, int)
    of[np.argsort(seen.prior)] = np.argsort(sizes)
    return seen.rows, -far[:, of]


def similarity(seen: Seen) -> Answer:
    """Minus the distance of the mean gradient to the nearest known row of each class.

    Liu, Lyu, Cui, Tao, arXiv:2203.05222.
    """
    g = seen.gradients.mean(0)
    far = np.linalg.norm(g[:, None] - g[seen.at][None], axis=2)
    return seen.rows, -np.stack([far[:, seen.labels == c].min(1) for c in range(seen.classes)], 1)


def lea(seen: Seen) -> Answer:
    """k-means of the first epoch's gradient directions; the map that fits the class shares best.

    Known rows, where there are any, decide. Jiang, Fu, Luo, Liu, arXiv:2603.03777.
    """
    g = seen.gradients[0]
    far = _k_means(seen, g / np.maximum(np.linalg.norm(g, axis=1, keepdims=True), 1e-30))
    if len(seen.known):
        return seen.rows, named(seen, -far)
    share = np.bincount(far.argmin(1), minlength=seen.classes) / len(far)
    of = linear_sum_assignment(np.abs(seen.prior[:, None] - share[None]))[1]
    return seen.rows, -far[:, of]


def direct(seen: Seen) -> Answer:
    """Behind summed logits the label's entry of the gradient is the smallest.

    Fu et al., USENIX Security 2022, section 5.3.
    """
    return seen.rows, -seen.gradients.mean(0)


def zero_pattern(seen: Seen) -> Answer:
    """How often each entry came as an exact zero: behind summed logits the label's does.

    After Politis, arXiv:2609.04382, who counts rows whose returned gradient is exactly zero.
    """
    return seen.rows, (seen.gradients == 0).mean(0)


def completion(seen: Seen) -> Answer:
    """Logistic regression of the known labels on the own embedding.

    Fu et al., USENIX Security 2022, section 5.1, with the simplest head.
    """
    return seen.target, _logistic(seen, standardised(seen.z), seen.target)


def completion_network(seen: Seen) -> Answer:
    """A head with one hidden layer on the own embedding.

    Fu et al., USENIX Security 2022, section 5.1.
    """
    z = standardised(seen.z)
    head = MLPClassifier(
        hidden_layer_sizes=(32,), solver="lbfgs", random_state=seen.seed, max_iter=2000
    )
    shares = head.fit(z[seen.known], seen.labels).predict_proba(z[seen.target])[:, 1]
    return seen.target, np.log(shares + 1e-300) - np.log(1 - shares + 1e-300)


def gradient_completion(seen: Seen) -> Answer:
    """Logistic regression of the known labels on mean gradient, own embedding and own columns.

    The plain join of Li et al., arXiv:2102.08504, and Fu et al., USENIX Security 2022.
    """
    g = standardised(seen.gradients.mean(0))
    both = np.concatenate([standardised(v[seen.rows]) for v in (seen.z, seen.x)], axis=1)
    table = np.zeros((len(seen.x), g.shape[1] + both.shape[1]))
    table[seen.rows] = np.concatenate([g, both], axis=1)
    return seen.rows, _logistic(seen, table, seen.rows)


def swap_probe(seen: Seen) -> Answer:
    """Length of the gradient that came back for a swapped embedding: short if the class is right.

    Bai, Chen, Zhang, Zhang, Weng, USENIX Security 2023 (VILLAIN), label inference.
    """
    length = np.linalg.norm(seen.gradients, axis=2)
    score = np.zeros((len(seen.rows), seen.classes))
    for c in range(seen.classes):
        there = seen.probes == c
        times = there.sum(0)
        mean = np.where(there, length, 0.0).sum(0) / np.maximum(times, 1)
        score[:, c] = -np.where(times > 0, mean, length[there].mean() if there.any() else 0.0)
    return seen.rows, score


def output(seen: Seen) -> Answer:
    """What came back is the label. Luo, Wu, Xiao, Ooi, ICDE 2021, arXiv:2010.10152."""
    return seen.told, seen.answers


def membership(seen: Seen) -> Answer:
    """Minus the loss of the answer on the record's own label.

    Yeom, Giacomelli, Fredrikson, Jha, CSF 2018, arXiv:1709.01604.
    """
    own = dict(zip(seen.known.tolist(), seen.labels.tolist(), strict=True))
    y = np.array([own[i] for i in seen.told.tolist()])
    return seen.told, seen.answers[np.arange(len(y)), y]


def likelihood_ratio(seen: Seen) -> Answer:
    """Normal log densities of the logit, of systems that saw the record over those that did not.

    One variance for all records of a side, as for few references. Carlini et al., IEEE S&P 2022,
    arXiv:2112.03570, algorithm 1.
    """
    own = dict(zip(seen.known.tolist(), seen.labels.tolist(), strict=True))
    y = np.array([own[i] for i in seen.told.tolist()])

    def logit(answers: Floats) -> Floats:
        p = np.clip(np.exp(answers[..., np.arange(len(y)), y]), 1e-12, 1 - 1e-12)
        return np.log(p) - np.log1p(-p)

    value, seen_by, score = logit(seen.answers), logit(seen.others), 0.0
    for sign, inside in ((1.0, seen.inside), (-1.0, ~seen.inside)):
        kept = np.where(inside, seen_by, np.nan)
        alone = ~inside.any(0)
        kept[:, alone] = seen_by[:, alone]
        mean = np.nanmean(kept, axis=0)
        sd = np.nanstd(kept - mean)
        score = score + sign * (-0.5 * ((value - mean) / sd) ** 2 - np.log(sd))
    return seen.told, np.asarray(score)


def residual(seen: Seen) -> Answer:
    """Least squares of known values on the first epoch's gradients along their first direction.

    After Xie et al., arXiv:2301.07284: behind a squared error the gradient is the residual.
    """
    g = seen.gradients[0]
    along = (g @ np.linalg.svd(g, full_matrices=False)[2][0])[:, None]
    fit = LinearRegression().fit(along[seen.at], seen.labels)
    return seen.rows, fit.predict(along)


def value_completion(seen: Seen) -> Answer:
    """Ridge regression of known values on the own embedding.

    Fu et al., USENIX Security 2022, section 5.1, for a quantity.
    """
    z = standardised(seen.z)
    fit = RidgeCV(np.logspace(-2, 3, 6)).fit(z[seen.known], seen.labels)
    return seen.target, fit.predict(z[seen.target])


def _k_means(seen: Seen, points: Floats) -> Floats:
    """Distances (n, C) to the centres of as many clusters as there are classes."""
    made = KMeans(seen.classes, n_init=10, random_state=seen.seed).fit(points)
    return np.asarray(made.transform(points))


def _logistic(seen: Seen, table: Floats, rows: np.ndarray) -> Floats:
    fit = LogisticRegression(max_iter=1000).fit(table[seen.known], seen.labels)
    return np.asarray(fit.decision_function(table[rows]))
