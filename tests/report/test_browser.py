"""The HTML reports in a browser: quiet; readable on a screen, a phone, in the dark, and on A4."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from printed import html, statement

pytestmark = pytest.mark.figures

PDFTOTEXT = shutil.which("pdftotext")


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
BROWSER_HOSTS = ("google.com", "gvt1.com", "googleapis.com", "gstatic.com")


def browse(page: Path, folder: Path) -> tuple[str, list[str], list[str]]:
    """(the page as the browser holds it, console messages, requests beyond the browser's own)."""
    log = folder / "net.json"
    done = subprocess.run(
        [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
         "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         f"--user-data-dir={folder / 'profile'}", f"--log-net-log={log}",
         "--enable-logging=stderr", "--virtual-time-budget=1000", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    urls = set(re.findall(r'"url":"(\w+://([^/"]+)[^"]*)"', log.read_text(encoding="utf-8")))
    outside = [u for u, host in urls if not host.endswith(BROWSER_HOSTS) and u != page.as_uri()]
    return done.stdout, console, [u for u in outside if not u.startswith("chrome")]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium")
def test_a_browser_is_content(folder: Path, tmp_path: Path) -> None:
    path = folder / "report.html"
    dom, console, requests = browse(path, tmp_path)
    assert console == []
    assert requests == []
    assert dom.count("<svg") == 4
    assert dom.count("</figure>") == 4
    bad = tmp_path / "bad.html"
    bad.write_text('<script>console.error("x")</script><img src="http://example.com/x.png">')
    _, console, requests = browse(bad, tmp_path)
    assert len(console) >= 1
    assert requests == ["http://example.com/x.png"]


MEASURE = """<!doctype html><title>x</title><body><script>
const found = {};
const blocks = "h1,h2,h3,p,li,dt,dd,th,td,caption,summary,figcaption,code,pre,a,strong";
function box(e) { const r = e.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; }
function meet(a, b) {
  const w = Math.min(a[2], b[2]) - Math.max(a[0], b[0]);
  const h = Math.min(a[3], b[3]) - Math.max(a[1], b[1]);
  return w > 2 && h > 3;
}
function texts(page) {
  const out = [];
  const walk = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode;
    const folded = node.parentElement.closest("svg, style, details:not([open])");
    if (folded || !node.textContent.trim()) continue;
    const range = page.createRange();
    range.selectNodeContents(node);
    for (const r of range.getClientRects())
      out.push([r.left, r.top, r.right, r.bottom, node.textContent.trim()]);
  }
  return out;
}
for (const name of ["report", "statement"]) for (const width of [320, 390, 1400]) {
  const frame = document.createElement("iframe");
  frame.width = width;
  frame.height = 900;
  frame.src = name + ".html";
  frame.onload = () => {
    const page = frame.contentDocument, view = frame.contentWindow;
    const style = view.getComputedStyle(page.body);
    const svgs = [...page.querySelectorAll("svg")].map(s => s.getBoundingClientRect().width);
    const clipped = [], crossed = [];
    for (const e of page.querySelectorAll(blocks)) {
      const s = view.getComputedStyle(e);
      const outside = !e.closest(".scroll, pre") && box(e)[2] > width + 1;
      if (outside) clipped.push(e.textContent.trim().slice(0, 60));
      if (s.overflowX !== "auto" && e.clientWidth && e.scrollWidth > e.clientWidth + 2)
        clipped.push(e.textContent.trim().slice(0, 60));
    }
    const all = texts(page).sort((a, b) => a[1] - b[1]);
    for (let i = 0; i < all.length; i++)
      for (let j = i + 1; j < all.length && all[j][1] < all[i][3]; j++)
        if (meet(all[i], all[j])) crossed.push([all[i][4].slice(0, 40), all[j][4].slice(0, 40)]);
    for (const svg of page.querySelectorAll("svg")) {
      const words = [...svg.querySelectorAll("text")].map(t => [...box(t), t.textContent]);
      const frame = box(svg);
      for (const w of words)
        if (Math.min(w[0] - frame[0], frame[2] - w[2], w[1] - frame[1], frame[3] - w[3]) < -2)
          clipped.push("figure: " + w[4]);
    }
    found[name + " " + width] = {
      scroll: page.documentElement.scrollWidth, figures: svgs, clipped: clipped, crossed: crossed,
      texts: all.length, paper: style.backgroundColor, ink: style.color, size: style.fontSize};
    document.title = JSON.stringify(found);
  };
  document.body.append(frame);
}
</script>"""


def chromium(folder: Path, *args: str) -> str:
    """What headless chromium prints."""
    return subprocess.run(
        [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
         "--no-first-run", "--disable-background-networking", "--disable-component-update",
         "--disable-sync", "--allow-file-access-from-files",
         f"--user-data-dir={folder / 'profile'}", *args],
        capture_output=True, text=True, timeout=120, check=True,
    ).stdout  # fmt: skip


def measured(folder: Path, *more: str) -> dict[str, Any]:
    """What the pages in `folder` look like at every width."""
    (folder / "measure.html").write_text(MEASURE)
    where = (folder / "measure.html").as_uri()
    dom = chromium(folder, "--virtual-time-budget=8000", "--dump-dom", *more, where)
    (text,) = re.findall(r"<title>(\{.*?\})</title>", dom)
    replaced = text.replace("&quot;", '"').replace("&gt;", ">").replace("&lt;", "<")
    return json.loads(replaced.replace("&amp;", "&"))  # type: ignore[no-any-return]


@pytest.fixture
def folder(summary: dict[str, Any], tmp_path: Path) -> Path:
    (tmp_path / "report.html").write_text(html(summary), encoding="utf-8")
    (tmp_path / "statement.html").write_text(statement(summary), encoding="utf-8")
    return tmp_path


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium")
def test_on_a_screen_a_phone_and_in_the_dark(folder: Path) -> None:
    """Nothing is wider than the page, no text is cut or lies on another, dark mode is dark."""
    seen = {"light": measured(folder), "dark": measured(folder, "--force-dark-mode")}
    for mode, found in seen.items():
        assert len(found) == 6
        for where, one in found.items():
            assert one["scroll"] <= int(where.split()[1]), where
            assert one["clipped"] == [], (mode, where)
            assert one["crossed"] == [], (mode, where)
            assert one["texts"] > 60
            assert one["size"] == "16px"
        for width in (320, 390, 1400):
            figures = found[f"report {width}"]["figures"]
            assert len(figures) == 4
            assert all(100 < f < width for f in figures)
    colors = {m: (seen[m]["report 390"]["paper"], seen[m]["report 390"]["ink"]) for m in seen}
    assert colors["light"] == ("rgb(255, 255, 255)", "rgb(26, 29, 35)")
    assert colors["dark"] == ("rgb(20, 23, 28)", "rgb(231, 233, 237)")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium")
def test_cut_and_crossed_text_would_be_found(folder: Path) -> None:
    bad = (
        "<!doctype html><body><h1 style='white-space:nowrap;width:90px;overflow:hidden'>a heading "
        "that is cut off</h1><p style='position:absolute;top:140px'>one line of text</p>"
        "<p style='position:absolute;top:142px'>and another on it</p></body>"
    )
    (folder / "report.html").write_text(bad)
    one = measured(folder)["report 390"]
    assert one["clipped"] == ["a heading that is cut off"]
    assert one["crossed"] == [["one line of text", "and another on it"]]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium")
@pytest.mark.skipif(PDFTOTEXT is None, reason="no pdftotext")
@pytest.mark.parametrize("name", ["report", "statement"])
def test_on_paper(name: str, folder: Path) -> None:
    """A4 with page numbers; every word is on a page, also of what is folded; none on another."""
    pdf = folder / "page.pdf"
    chromium(folder, "--no-pdf-header-footer", f"--print-to-pdf={pdf}",
             (folder / f"{name}.html").as_uri())  # fmt: skip
    boxes = subprocess.run([str(PDFTOTEXT), "-bbox", str(pdf), "-"], capture_output=True,
                           text=True, timeout=60, check=True).stdout  # fmt: skip
    pages = re.findall(r'<page width="([\d.]+)" height="([\d.]+)">(.*?)</page>', boxes, re.S)
    assert 2 <= len(pages) <= 14
    for i, (width, height, body) in enumerate(pages):
        assert (round(float(width)), round(float(height))) == (595, 842)
        found = re.findall(
            r'xMin="([-\d.]+)" yMin="([-\d.]+)" xMax="([-\d.]+)" yMax="([-\d.]+)">(.*?)<', body
        )
        words = [(*(float(x) for x in w[:4]), w[4]) for w in found]
        line = " ".join(str(w[4]) for w in words)
        assert f"page {i + 1} of {len(pages)}" in line
        assert all(w[0] > 20 and w[2] < 575 and w[1] > 20 and w[3] < 835 for w in words)
        for a in range(len(words)):
            for b in range(a + 1, len(words)):
                p, q = words[a], words[b]
                wide = min(p[2], q[2]) - max(p[0], q[0])
                high = min(p[3], q[3]) - max(p[1], q[1])
                small = min(p[3] - p[1], q[3] - q[1])
                assert not (wide > 1.5 and high > 0.5 * small), (p, q)
    everything = " ".join(re.findall(r">([^<]+)</word>", boxes))
    if name == "report":  # in folds
        assert "how well scores rank" in everything
        assert "positive_control = false" in everything
    else:
        assert "Data-protection officer: name, date, signature" in everything
