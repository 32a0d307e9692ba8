"""Published families of attacks: what each reads, where it stands, what other taxonomies call it.

A family's members are the attacks whose file says ``FAMILY = "..."``; here stands only what is said
of all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vflsec.core.message_kinds import KINDS
from vflsec.plugins import registry

OTHERS = "Others"

_LABELS = (
    "wp29-inference", "edpb-tests", "nist-attribute", "atlas-invert", "owasp-ml03",
    "avid-inversion", "ieee-evaluation",
)  # fmt: skip
_COLUMNS = tuple("nist-reconstruction" if t == "nist-attribute" else t for t in _LABELS)


@dataclass(frozen=True)
class Family:
    """One published family.

    Attributes:
        name: what ``FAMILY`` of its attacks says.
        published: where.
        reads: kinds of messages that its attacks use, directly or through the own trained model.
        tags: ids of :data:`vflsec.report.taxonomies.TAGS`.
    """

    name: str
    published: str
    reads: tuple[str, ...]
    tags: tuple[str, ...]


FAMILIES = (
    Family("Labels read off single gradients",
           "Li et al. 2022 (arXiv:2102.08504); Fu et al. 2022", ("gradient",), _LABELS),
    Family("Labels from zeros, signs, sizes and visits",
           "Politis 2026 (arXiv:2609.04382)", ("gradient",), _LABELS),
    Family("Labels by grouping gradients or embeddings",
           "Sun et al. 2022 (arXiv:2203.01451)", ("gradient",), _LABELS),
    Family("Labels by completing the own model",
           "Fu et al. 2022 (USENIX Security)", ("gradient",), _LABELS),
    Family("Labels from gradients and own columns together",
           "Nigam et al. 2000, on gradients of Li et al. 2022", ("gradient",), _LABELS),
    Family("Labels from any messages and own columns together",
           "Nigam et al. 2000; Blum and Mitchell 1998 (COLT)",
           ("gradient", "prediction", "embedding", "state"), _LABELS),
    Family("Labels by imitating the label owner",
           "Kariyappa and Qureshi 2023 (arXiv:2112.01299); Erdogan et al. 2022", ("gradient",),
           (*_LABELS, "nist-extraction")),
    Family("Labels by swapped embeddings",
           "Bai et al. 2023 (USENIX Security)", ("gradient",), _LABELS),
    Family("Labels from batch averages, also under encryption",
           "Zou et al. 2022 (arXiv:2212.00322)", ("gradient", "masked_sum"), _LABELS),
    Family("Labels from the predictions that come back",
           "the deployment's own oracle", ("prediction",), _LABELS),
    Family("Labels from the leaves of training rows",
           "Takahashi et al. 2023 (arXiv:2307.10318)", ("partition",), _LABELS),
    Family("Labels from the open gradients and weights of trees",
           "Cheng et al. 2019 (arXiv:1901.08755), of unencrypted runs",
           ("gradient_pair", "partition", "tree"), _LABELS),
    Family("Labels from the gradients of linear models",
           "Hardy et al. 2017 (arXiv:1711.10677), of the protocol without masks",
           ("model_gradient", "woe"), _LABELS),
    Family("Labels from weights of evidence",
           "Siddiqi 2006, the definition solved for a bin's labels", ("woe",), _LABELS),
    Family("Features of another party",
           "Luo et al. 2021 (arXiv:2010.10152); He et al. 2019; Zhu et al. 2025 (arXiv:2310.10483)",
           ("embedding", "masked", "partition", "histogram"), _COLUMNS),
    Family("Attributes that were not shared",
           "Song and Shmatikov 2020", ("embedding",), (*_LABELS, "wp29-singling")),
    Family("Shares of an attribute at another party",
           "Ganju et al. 2018 (CCS)", ("embedding",),
           ("edpb-tests", "nist-property", "ieee-evaluation")),
    Family("Membership in the training",
           "Yeom et al. 2018 (arXiv:1709.01604); Carlini et al. 2022 (arXiv:2112.03570)",
           ("prediction",),
           ("edpb-tests", "nist-membership", "atlas-membership", "owasp-ml04",
            "ieee-evaluation")),
    Family("Wrong predictions on demand",
           "Liu et al. 2020; Bai et al. 2023 (USENIX Security)", ("gradient",),
           ("nist-backdoor", "atlas-manipulate", "owasp-ml10", "avid-poisoning",
            "ieee-evaluation")),
)  # fmt: skip
"""All that are known here, published first."""

_THROUGH = {
    "model": ("gradient",), "parameter_gradient": ("gradient", "masked_sum"),
    **{name: kind.made_of for name, kind in KINDS.items() if kind.made_of},
}  # fmt: skip
_GRANTED = ("known_rows", "prior", "aux_rows", "peer_model", "labels", "output_gradient")


def reads(needs: Iterable[str]) -> set[str]:
    """Kinds of the messages from which an attack of these needs takes what it knows.

    What a party trained or worked out counts as the messages that it came from; messages that it
    sent itself are its own. Lists of ids say which rows a message is about, and nothing more.
    """
    words = {n.partition(":")[0] for n in needs}
    words = {w for w in words if w not in (*_GRANTED, "ids") and not w.startswith("sent.")}
    return {kind for w in words for kind in _THROUGH.get(w, (w,))}


def members(listed: Mapping[str, Iterable[str]] | None = None) -> dict[str, list[str]]:
    """Registered attacks by family; those of no known family are :data:`OTHERS`.

    Args:
        listed: the families of an audit, as its summary has them; None, as in one of an earlier
            version, for what is registered here.
    """
    pairs: list[tuple[str, str]]
    if listed is None:
        pairs = [(e.family, e.name) for e in registry.attacks.entries().values()]
    else:
        pairs = [(family, name) for family, names in listed.items() for name in names]
    known = {f.name for f in FAMILIES}
    found: dict[str, list[str]] = {f.name: [] for f in FAMILIES}
    for family, name in pairs:
        found.setdefault(family if family in known else OTHERS, []).append(name)
    return {family: sorted(names) for family, names in found.items()}
