"""Executed notebooks as pages: `make notebooks-pages` writes docs/notebooks/.

A page holds the text and code of its notebook, what each cell printed, tables and figures. Its
first line is the hash of the source it was made from, which a test compares with the source.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "notebooks"
PAGES = ROOT / "docs" / "notebooks"
Output = dict[str, Any]
"""As nbformat keeps it."""
_COLOURS = 64
"""Of a figure's palette: enough for lines and bars, a third of the bytes."""


def read_cells(text: str) -> list[tuple[bool, str]]:
    """Cells of a notebook in percent format: whether it is code, and what stands in it."""
    body = text.split("# ---\n", 2)[2]
    cells = []
    for part in re.split(r"^# %%", body, flags=re.M)[1:]:
        kind, _, content = part.partition("\n")
        code = "[markdown]" not in kind
        cells.append((code, content if code else re.sub(r"^# ?", "", content, flags=re.M)))
    return [(code, content.strip()) for code, content in cells]


def hash_cells(text: str) -> str:
    """The first line of a page: what it was made from."""
    digest = hashlib.sha256(json.dumps(read_cells(text)).encode()).hexdigest()
    return f"<!-- cells {digest[:16]} -->"


def make_page(name: str, text: str, executed: dict[str, Any]) -> tuple[str, dict[str, bytes]]:
    """The page of a notebook, and its figures by file name.

    Raises:
        SystemExit: it was executed from another source, or an output names a path of this machine.
    """
    cells, figures = read_cells(text), dict[str, bytes]()
    outputs = [c for c in executed["cells"] if c["cell_type"] == "code"]
    code = [content for is_code, content in cells if is_code]
    if ["".join(c["source"]).strip() for c in outputs] != code:
        sys.exit(f"{name}: executed from another source. Run: make notebooks-pages")
    parts, heading = [hash_cells(text)], name
    for is_code, content in cells:
        if not is_code:
            heading = (re.findall(r"^#+ (.+)$", content, flags=re.M) or [heading])[-1]
            parts.append(content.replace("](../docs/", "](../"))
            continue
        parts.append(f"```python\n{content.replace('  # fmt: skip', '')}\n```")
        for output in _join_printed(outputs.pop(0)["outputs"]):
            parts.append(_show(output, f"{name}_{len(figures) + 1}.png", heading, figures))
    about = f"*Executed from [`notebooks/{name}.py`](../../notebooks/{name}.py).*"
    parts[1] = re.sub(r"\A(# .+)$", rf"\1\n\n{about}", parts[1], flags=re.M)
    page = "\n\n".join(parts) + "\n"
    for place in (ROOT, Path(tempfile.gettempdir()), Path.home()):
        if f"{place}/" in page:
            sys.exit(f"{name}: an output names {place}, a path of this machine.")
    return page, figures


def _join_printed(outputs: Sequence[Output]) -> list[Output]:
    """Outputs without progress and warnings, and what was printed in a row as one."""
    out: list[Output] = []
    for output in outputs:
        if output["output_type"] != "stream":
            out.append(output)
        elif output["name"] == "stdout":
            text = "".join(output["text"])
            if out and "text" in out[-1]:
                text = out.pop()["text"] + text
            out.append({"output_type": "stream", "text": text})
    return out


def _show(output: Output, file: str, heading: str, figures: dict[str, bytes]) -> str:
    """One output as Markdown; a figure joins `figures`."""
    if output["output_type"] == "stream":
        return _fence(output["text"])
    data = output["data"]
    if "image/png" in data:
        figures[file] = _shrink(base64.b64decode(data["image/png"]))
        return f"![{heading}]({file})"
    if "text/html" in data:
        return _tidy_html("".join(data["text/html"]))
    return _fence("".join(data["text/plain"]))


def _tidy_html(html: str) -> str:
    """A table of pandas with a row a line, a report as it is; neither has an empty line."""
    if 'class="dataframe"' in html:
        html = re.sub(r"<style.*?</style>", "", html, flags=re.S)
        html = re.sub(r' (?:border|style)="[^"]*"', "", html)
        html = re.sub(r">\s+<", "><", html).replace("<tr", "\n<tr")
    return re.sub(r"\s*\n\s*", "\n", html).strip()


def _fence(text: str) -> str:
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).rstrip().split("\n")
    return "```text\n" + "\n".join(line.rstrip() for line in lines) + "\n```"


def _shrink(png: bytes) -> bytes:
    picture = Image.open(io.BytesIO(png)).convert("RGB").quantize(_COLOURS)
    out = io.BytesIO()
    picture.save(out, "PNG", optimize=True)
    return out.getvalue()


def main(files: Sequence[str]) -> None:
    """Write the pages of executed notebooks."""
    PAGES.mkdir(exist_ok=True)
    for executed in map(Path, files):
        name = executed.stem
        text = (SOURCES / f"{name}.py").read_text(encoding="utf-8")
        found = json.loads(executed.read_text(encoding="utf-8"))
        page, figures = make_page(name, text, found)
        for old in PAGES.glob(f"{name}_*.png"):
            old.unlink()
        (PAGES / f"{name}.md").write_text(page, encoding="utf-8")
        for file, png in figures.items():
            (PAGES / file).write_bytes(png)
        print(f"wrote docs/notebooks/{name}.md and {len(figures)} figures")


if __name__ == "__main__":
    main(sys.argv[1:])
