"""Public taxonomies: what each calls what is audited here, by version, and how closely it fits.

``exact``: the taxonomy means what the family does. ``related``: it names something wider, narrower
or of another setting, and the difference is said. SARIF and the page of documentation are made from
this one list.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Taxonomy:
    """A published list of names.

    Attributes:
        key: short name.
        name, version, by: as its publisher writes them.
        url: where it is.
    """

    key: str
    name: str
    version: str
    by: str
    url: str


@dataclass(frozen=True)
class Tag:
    """One entry of a taxonomy.

    Attributes:
        id: ours.
        taxonomy: key of its :class:`Taxonomy`.
        ref: its id or place there.
        name: what it is called there.
        fit: ``exact`` or ``related``.
        why: where the fit ends, one sentence.
    """

    id: str
    taxonomy: str
    ref: str
    name: str
    fit: Literal["exact", "related"]
    why: str


TAXONOMIES = (
    Taxonomy("wp29", "Opinion 05/2014 on Anonymisation Techniques (WP 216)", "2014-04-10",
             "Article 29 Data Protection Working Party",
             "https://ec.europa.eu/justice/article-29/documentation/opinion-recommendation/files/2014/wp216_en.pdf"),
    Taxonomy("edpb", "Opinion 28/2024 on data protection aspects of AI models", "2024-12-17",
             "European Data Protection Board",
             "https://www.edpb.europa.eu/our-work-tools/our-documents/opinion-board-art-64/opinion-282024-certain-data-protection-aspects_en"),
    Taxonomy("nist", "Adversarial Machine Learning: A Taxonomy and Terminology (NIST AI 100-2)",
             "E2025", "NIST", "https://doi.org/10.6028/NIST.AI.100-2e2025"),
    Taxonomy("atlas", "MITRE ATLAS", "4.9.1", "MITRE", "https://atlas.mitre.org"),
    Taxonomy("owasp", "OWASP Machine Learning Security Top 10", "2023", "OWASP",
             "https://owasp.org/www-project-machine-learning-security-top-10/"),
    Taxonomy("avid", "AVID taxonomy, SEP view", "0.2", "AI Vulnerability Database",
             "https://docs.avidml.org/taxonomy/effect-sep-view"),
    Taxonomy("ieee", "IEEE 2986: Recommended Practice for Privacy and Security for Federated "
             "Machine Learning", "2986-2023", "IEEE Standards Association",
             "https://standards.ieee.org/ieee/2986/10558/"),
)  # fmt: skip

TAGS = (
    Tag("wp29-inference", "wp29", "section 3, inference", "Inference", "exact",
        "Deducing the value of an attribute with significant probability from other values is what "
        "an advantage measures; the opinion sets no limit on that probability."),
    Tag("wp29-singling", "wp29", "section 3, singling out", "Singling out", "related",
        "A recovered attribute can isolate a person; whether it does is not measured."),
    Tag("edpb-tests", "edpb", "section 3.2", "Tests of resistance to attacks", "related",
        "The opinion asks for documented tests of the finished model against attribute inference, "
        "exfiltration, reconstruction and membership inference; here the parties of the training "
        "are the attackers, and for membership whoever receives predictions."),
    Tag("nist-reconstruction", "nist", "NISTAML.032", "Data Reconstruction", "exact",
        "Columns of another party are worked out from what training sends."),
    Tag("nist-attribute", "nist", "NISTAML.032", "Data Reconstruction (attribute inference)",
        "related",
        "NIST treats the inference of one attribute of a row beside reconstruction; here that "
        "attribute is the label or a column."),
    Tag("nist-membership", "nist", "NISTAML.033", "Membership Inference", "related",
        "Parties know which rows they share, so it is asked by whoever receives predictions; the "
        "canaries that measure a claimed epsilon ask a question of this kind."),
    Tag("nist-property", "nist", "NISTAML.034", "Property Inference", "exact",
        "A share of an attribute among another party's rows is worked out from what training "
        "sends."),
    Tag("nist-extraction", "nist", "NISTAML.031", "Model Extraction", "related",
        "The label owner's part of the model is imitated on the way; the labels are the aim."),
    Tag("nist-backdoor", "nist", "NISTAML.023", "Backdoor Poisoning", "exact",
        "A trigger, planted by a party of the training."),
    Tag("atlas-invert", "atlas", "AML.T0024.001", "Invert AI Model", "related",
        "ATLAS means inference through an inference API; messages of the training have no "
        "technique there."),
    Tag("atlas-membership", "atlas", "AML.T0024.000", "Infer Training Data Membership", "related",
        "ATLAS means queries to an inference API; here whoever receives predictions asks."),
    Tag("atlas-manipulate", "atlas", "AML.T0018", "Manipulate AI Model", "related",
        "The planted behaviour stays in the trained model; ATLAS means access to the model, here "
        "messages of a partner do it."),
    Tag("owasp-ml03", "owasp", "ML03:2023", "Model Inversion Attack", "related",
        "OWASP means reverse-engineering a model; here a partner works from messages and columns."),
    Tag("owasp-ml04", "owasp", "ML04:2023", "Membership Inference Attack", "related",
        "OWASP means a model that is queried; here the predictions that a party receives."),
    Tag("owasp-ml10", "owasp", "ML10:2023", "Model Poisoning", "related",
        "OWASP means changed parameters; here they change through the messages of a partner."),
    Tag("avid-inversion", "avid", "S0501", "Model inversion", "related",
        "AVID means exfiltration through a model; here through the training of one."),
    Tag("avid-poisoning", "avid", "S0600", "Data poisoning", "related",
        "What is poisoned is a party's own columns or messages."),
    Tag("ieee-evaluation", "ieee", "privacy and security risks evaluation",
        "Assessment of the effectiveness of a defense", "exact",
        "The practice asks for the risk under a defense in various settings, and what it costs, "
        "which curves over strengths show; it prescribes no attack and no limit."),
)  # fmt: skip


def _guid(*names: str) -> str:
    """A stable identity."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, "/".join(["vflsec", *names])))


def extensions(ids: Iterable[str]) -> list[dict[str, object]]:
    """The taxonomies of these tags as SARIF tool components, each with the taxa that are named."""
    wanted = set(ids)
    out = []
    for t in TAXONOMIES:
        of = [tag for tag in TAGS if tag.taxonomy == t.key and tag.id in wanted]
        if of:
            out.append(
                {
                    "name": t.name,
                    "version": t.version,
                    "organization": t.by,
                    "informationUri": t.url,
                    "guid": _guid(t.key),
                    "isComprehensive": False,
                    "taxa": [
                        {
                            "id": tag.ref, "guid": _guid(t.key, tag.id), "name": tag.name,
                            "shortDescription": {"text": tag.name},
                            "properties": {"fit": tag.fit, "why": tag.why},
                        }
                        for tag in of
                    ],
                }
            )  # fmt: skip
    return out


def references(ids: Iterable[str]) -> list[dict[str, object]]:
    """What a SARIF rule says of these tags: a reference to each taxon."""
    wanted, by_key = set(ids), {t.key: t for t in TAXONOMIES}
    return [
        {
            "target": {
                "id": tag.ref,
                "guid": _guid(tag.taxonomy, tag.id),
                "toolComponent": {
                    "name": by_key[tag.taxonomy].name, "guid": _guid(tag.taxonomy)
                },
            },
            "kinds": ["equal" if tag.fit == "exact" else "relevant"],
        }
        for tag in TAGS
        if tag.id in wanted
    ]  # fmt: skip
