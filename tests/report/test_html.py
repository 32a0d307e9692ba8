"""The HTML report: complete in itself, byte-stable, accessible, safe, and quiet in a browser."""

from __future__ import annotations

import copy
import itertools
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from audited import LEAKY, SEALED, Planted, audited, gate
from matplotlib.collections import PolyCollection
from printed import assumed, beyond, families, headline, html, html_of, threats

from vflsec.plugins import registry
from vflsec.report import figures
from vflsec.report.taxonomies import FAMILIES
from vflsec.report.threat_model import WORDS

VOID = {"meta", "link", "br", "img", "input", "hr"}


@pytest.fixture(scope="module")
def page(summary: dict[str, Any]) -> str:
    return html(summary)


class Reader(HTMLParser):
    """Elements with their attributes; unclosed and crossed tags are errors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [a for t, a in self.found if t == tag]


@pytest.mark.figures
def test_nothing_is_loaded_from_elsewhere(page: str) -> None:
    read = Reader(page)
    for tag, attrs in read.found:
        assert tag not in ("img", "iframe", "object", "embed", "image", "base")
        for name in ("src", "href", "xlink:href", "srcset", "data", "action"):
            value = attrs.get(name)
            assert value is None or value.startswith("#") or value == "data:,"
        assert not [a for a in attrs if a.startswith("on")]
    assert "@import" not in page
    assert not re.findall(r"url\((?!#)", page)
    (policy,) = [a for a in read.of("meta") if a.get("http-equiv")]
    assert str(policy["content"]).startswith("default-src 'none'")
    assert read.of("script") == [{}]  # our own, which the policy allows by its hash


@pytest.mark.figures
def test_the_same_summary_gives_the_same_bytes(summary: dict[str, Any], page: str) -> None:
    assert html(copy.deepcopy(summary)) == page
    assert len(page) < 400_000


@pytest.mark.figures
def test_the_verdict_comes_first_and_every_part_is_there(page: str) -> None:
    words = " ".join(" ".join(Reader(page).words).split())
    assert words.index("FAIL") < words.index("Gates")
    wanted = (
        "Recommended next step", "Threat model", "Privacy against utility",
        "Every attack against every defense", "Strongest advantage",
        "Messages of one training",
        "Not observable", "Placing the findings",
        "all the means reasonably likely",
        "Opinion 28/2024", "not legal advice", "The resolved scenario", "Cost and messages",
        "shop wants the labels, keeps to the protocol, uses the gradients it receives and was "
        "granted 20 labelled rows and the class shares",
    )  # fmt: skip
    for text in wanted:
        assert text in words
    assert page.count("<svg ") == 4


@pytest.mark.parametrize("show", [html, html_of])
def test_the_verdict_opens_the_report_once(summary: dict[str, Any], show: Any) -> None:
    """The word stood above the sentence that begins with it."""
    found, _ = headline(summary)
    words = Reader(show(summary)).words
    at = words.index("Does it leak?")
    title = words.index(next(w for w in words if "(vflsec)" in w)) if show is html else -1
    assert "".join(words[title + 1 : at]).count(found) == 1


@pytest.mark.figures
def test_the_first_screen_has_a_picture_with_the_limits(summary: dict[str, Any], page: str) -> None:
    hero = page.split('<section class="hero')[1].split("</section>")[0]
    assert hero.count("<svg ") == 1
    ax = figures.leakage_and_limits(summary)
    (limit,) = [line for line in ax.get_lines() if line.get_label() == "limit 0.1"]
    assert set(limit.get_ydata()) == {0.1}
    kept = [p["utility"] for p in summary["points"] if p["attack"] and p["strength"] == 0]
    (passing,) = [c for c in ax.collections if isinstance(c, PolyCollection)]
    corners = passing.get_paths()[0].vertices
    assert corners[:, 1].max() == 0.1
    assert corners[:, 0].min() == pytest.approx(max(kept[0] - 0.1, ax.get_xlim()[0]))


def test_a_pass_does_not_hide_what_no_gate_judges(tmp_path: Path) -> None:
    """The verdict names what was judged, and what leaks beside it."""
    one = audited(tmp_path, Planted(LEAKY, SEALED), gate(max=0.1, defense="defended"))
    found = one.summary
    assert headline(found)[0] == "PASS"
    (line,) = beyond(found)
    low = max(p["advantage"] for p in found["points"]
              if p["attack"] == "norm" and p["metric"] == p["primary"])  # fmt: skip
    assert line == (
        f"breast_cancer: the labels of bank to shop, {low:+.2f} without a defense (norm)"
    )
    hero = html(found).split('<section class="hero warning"')[1].split("</section>")[0]
    assert f"{low:+.2f}" in hero
    assert line in html(found)
    everything = copy.deepcopy(found)
    everything["gates"].append(everything["gates"][0] | {"strength": 0.0})
    assert beyond(everything) == []
    for judges in ({"target": "feature"}, {"attack": "direction"}, {"metric": "utility_drop"}):
        other = copy.deepcopy(everything)
        for v in other["gates"]:
            v["gate"] |= judges
        (more,) = beyond(other)
        assert more.endswith("judged)"), judges


@pytest.mark.figures
def test_what_an_attack_tries_is_not_said_to_be_audited_by_none(page: str) -> None:
    """Every page to sign said that no attack hijacks an encoder, as `fsha` does."""
    for name in ("feature-space hijacking", "steer a client"):
        assert name not in page
    assert "fsha" in registry.attacks.names()
    assert "other departures from the protocol" in page


@pytest.mark.figures
def test_the_attackers_means_stand_beside_what_was_not_tried(
    summary: dict[str, Any], page: str
) -> None:
    means = {m: tried for m, tried, _ in assumed(summary)}
    assert means["known labels"] == "20 labelled rows and the class shares"
    assert "the gradients it receives" in means["what is seen"]
    assert means["departures from the protocol"] == "none"
    assert means["joining forces"] == "nobody"
    words = " ".join(" ".join(Reader(page).words).split())
    assert "larger coalitions" in words
    assert "Isotropic Gaussian noise on outgoing tensors" in words  # what the defense is
    for word in WORDS:
        assert word in words
    two = copy.deepcopy(summary)
    for spec in two["attacks"].values():
        spec |= {"active": True, "adversary": ["a", "b"]}
    means = {m: tried for m, tried, _ in assumed(two)}
    assert means["departures from the protocol"].startswith("model_completion")
    assert means["joining forces"] == "up to 2 parties"
    assert assumed(summary | {"attacks": {}}) == []


@pytest.mark.figures
def test_accessible(page: str) -> None:
    read = Reader(page)
    assert read.of("html")[0]["lang"] == "en"
    for a in read.of("th"):
        assert a.get("scope") in ("col", "row")
    assert len(read.of("caption")) == len(read.of("table"))
    for a in read.of("figure"):
        assert a["role"] == "img"
        assert len(str(a["aria-label"])) > 60
    ids = [a["id"] for _, a in read.found if a.get("id")]
    assert len(ids) == len(set(ids))
    targets = {str(a["href"])[1:] for a in read.of("a")}
    assert targets <= set(ids)
    levels = [int(t[1]) for t, _ in read.found if re.fullmatch(r"h[1-6]", t)]
    assert levels[0] == 1
    assert all(b - a <= 2 for a, b in itertools.pairwise(levels))


def luminance(color: str) -> float:
    """Relative luminance of ``#rrggbb`` (WCAG 2.2)."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    lin = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * lin[0] + 0.7152 * lin[1] + 0.0722 * lin[2]


def contrast(a: str, b: str) -> float:
    """Contrast ratio of two colours (WCAG 2.2)."""
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.figures
def test_contrast_in_light_and_dark(page: str) -> None:
    blocks = re.findall(r":root \{([^}]+)\}", page)
    assert len(blocks) == 3
    for block in blocks[:2]:
        c = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", block))
        for ink in ("ink", "soft", "pass", "fail", "open", "link"):
            for paper in ("paper", "card"):
                assert contrast(c[ink], c[paper]) >= 4.5, (ink, paper)
        for level in ("l1", "l2", "l3", "l4"):
            assert contrast(c["ink"], c[level]) >= 4.5, level
        for color in figures.COLORS:
            assert contrast(color, c["paper"]) >= 3, color


HOSTILE = "</title><script>alert(1)</script>\x1b[1m\u202e$\\frac{x}$\"'>&"


@pytest.mark.figures
def test_hostile_names_stay_text(summary: dict[str, Any]) -> None:
    def bad(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            named = key in ("data", "alive", "parties", "versions")
            return {
                (k + HOSTILE if named and k not in ("vflsec",) else k): bad(v, k)
                for k, v in value.items()
            }
        if isinstance(value, list):
            return [bad(v, key) for v in value]
        free = ("name", "dataset", "attack", "adversary", "reason", "label", "text", "notes",
                "parties", "scenario", "control", "sender", "algorithm", "target")  # fmt: skip
        return value + HOSTILE if isinstance(value, str) and value and key in free else value

    text = html(bad(summary))
    read = Reader(text)
    assert len(read.of("script")) == 1  # our own
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert text.count("&lt;script&gt;alert(1)&lt;/script&gt;") > 50
    assert len(read.of("svg")) == 4


def test_families_say_what_was_not_tried(summary: dict[str, Any]) -> None:
    found = {f.family: f.state for f in families(summary)}
    assert len(found) == len(FAMILIES)
    assert found["Labels read off single gradients"] == "tested"
    assert found["Features of another party"] == "not_sent"
    assert found["Labels by swapped embeddings"] == "not_tested"
    gone = copy.deepcopy(summary)
    for p in gone["points"]:
        if p["attack"] == "norm":
            p["status"] = "not-observable"
    found = {f.family: f.state for f in families(gone)}
    assert found["Labels read off single gradients"] == "not_made", "gradients were sent"
    for spec in gone["attacks"].values():
        spec["adversary"] = ["bank"]  # who gets none
    found = {f.family: f.state for f in families(gone)}
    assert found["Labels read off single gradients"] == "not_sent"


def test_an_attack_of_ones_own_is_listed_too(summary: dict[str, Any]) -> None:
    own = copy.deepcopy(summary)
    for spec in own["attacks"].values():
        if spec["name"] == "norm":
            spec["name"] = "mine"
    last = families(own)[-1]
    assert (last.family, last.state, last.tried) == ("Others", "tested", ("mine",))
    assert len(families(own)) == len(FAMILIES) + 1


def test_threats_say_what_was_granted(summary: dict[str, Any]) -> None:
    """Rows of another party's columns are a grant; who holds the labels was told none."""
    key, first = next(iter(summary["attacks"].items()))
    spec = first | {"aux_rows": 60, "peer_model": True}
    parties = {"d": {"parties": ["bank", "shop"]}}
    words = {
        who: threats(summary | {"attacks": {key: spec | {"adversary": [who]}}, "parties": parties})
        for who in ("bank", "shop")
    }
    also = "60 rows of the others' columns and the others' models."
    assert words["bank"][0][1].endswith(f"was granted {also}")
    assert words["shop"][0][1].endswith(f"labelled rows, the class shares, {also}")
    (further,) = (
        r for r in assumed(summary | {"attacks": {key: spec}}) if r[0].startswith("further")
    )
    assert "60 rows of the others' columns" in further[1]


def test_threats_of_a_coalition_and_of_an_active_attacker(summary: dict[str, Any]) -> None:
    key, spec = next(iter(summary["attacks"].items()))
    two = spec | {"adversary": ["a", "b"], "active": True, "known_rows": 0, "prior": False}
    (found,) = threats(summary | {"attacks": {key: two}})
    assert found[1].startswith("a and b, together, want the labels, may change its own")
    assert "was granted nothing" in found[1] or "was granted the others' models" in found[1]


def test_figures_take_results_means_and_summaries(summary: dict[str, Any], tmp_path: Path) -> None:
    from vflsec.audit.leakage import summarise
    from vflsec.audit.result_row import read_rows

    results = audited(tmp_path, Planted(LEAKY, SEALED)).results
    means = summarise(read_rows(results))
    wanted = [0.3, 0.0]
    for data in (results, means, summary):
        ax = figures.advantage_by_strength(data)
        lines = {c.get_label(): c[0].get_ydata() for c in ax.containers}
        assert list(lines) == ["norm", "model_completion"]
        assert list(lines["norm"]) == pytest.approx(wanted, abs=0.02)
        assert [t.get_text() for t in ax.get_xticklabels()] == ["none", "5"]
        ax = figures.privacy_utility(data, dataset="breast_cancer")
        assert ax.get_xlabel() == "utility: AUC"
        assert list(ax.containers[0][0].get_xdata()) == pytest.approx([0.9, 0.88], abs=0.02)
        assert len(figures.attack_by_defense(data).patches) == 4


def test_strengths_at_one_place_are_written_beside_each_other(summary: dict[str, Any]) -> None:
    """Four strengths that change nothing: four numbers, none on another."""
    found = copy.deepcopy(summary)
    one = next(p for p in found["points"] if p["attack"] == "norm" and p["strength"] == 5)
    found["points"] = [{**one, "strength": s} for s in (0.5, 1.0, 5.0, 25.0)]
    ax = figures.privacy_utility(found)
    ax.figure.draw_without_rendering()
    boxes = [t.get_window_extent() for t in ax.texts]
    assert [t.get_text() for t in ax.texts] == ["0.5", "1", "5", "25"]
    assert not [1 for a, b in itertools.combinations(boxes, 2) if a.overlaps(b)]
    at = [t.get_window_extent().x0 for t in ax.texts]
    assert max(at) - min(at) < 60  # pixels: still beside their point


def test_figures_refuse_what_they_cannot_draw(summary: dict[str, Any]) -> None:
    from vflsec.errors import ConfigError

    with pytest.raises(ConfigError, match="dataset must be one of 'breast_cancer', got 'adult'"):
        figures.privacy_utility(summary, dataset="adult")
    with pytest.raises(ConfigError, match="at least one attack that ran"):
        figures.privacy_utility({"points": []})


def test_an_audit_without_attacks_has_a_report(tmp_path: Path) -> None:
    (tmp_path / "case.toml").write_text(
        '[data]\nname = "breast_cancer"\n[algorithm]\nname = "splitnn"\n[audit]\nseeds = 2\n'
        "references = []\n"
    )
    from vflsec.engine.run import run_audit

    planted = Planted({})
    out = run_audit(tmp_path / "case.toml", tmp_path / "out", backend=planted.backend())
    text = (out.folder / "report.html").read_text(encoding="utf-8")
    assert "NO GATE" in text
    assert "No attack was made." in text


def test_what_matching_rows_tells_stands_with_its_data_set(summary: dict[str, Any]) -> None:
    """In the page and in the Markdown, escaped, and not where nothing was told."""
    from printed import markdown_summary

    assert "What matching the rows reveals" not in html(summary)
    assert "What matching the rows reveals" not in markdown_summary(summary)
    told = copy.deepcopy(summary)
    (name,) = told["data"]
    says = "<b>bank</b> learns of each of its 9 rows whether shop has it."
    told["tables"] = {name: {"tables": [], "overlap": {}, "alignment": [{"says": says}]}}
    page, text = html(told), markdown_summary(told)
    assert Reader(page).words
    assert "&lt;b&gt;bank&lt;/b&gt; learns of each of its 9 rows" in page
    assert "<b>bank" not in page + text
    assert page.index("A private set intersection") < page.index("Every attack and its baseline")
    assert "learns of each of its 9 rows" in text
