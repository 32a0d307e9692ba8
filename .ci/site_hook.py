"""What MkDocs asks for while it builds: the generated pages, and a site that needs no network."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).resolve().parent))

from site_gallery import ROOT, make_gallery
from site_pages import pages

from vflsec._version import __version__

_LOADS = re.compile(
    r"""<(?:script|img|iframe)[^>]*\ssrc=["']?(?:https?:)?//|"""
    r"""<link[^>]*rel=["']?(?:stylesheet|preconnect|preload|icon)[^>]*href=["']?(?:https?:)?//|"""
    r"""@import\s+["'(url]*(?:https?:)?//|url\(["']?(?:https?:)?//""",
    re.I,
)


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages, and the sources of notebooks."""
    script = (ROOT / "vflsec" / "report" / "tables.js.j2").read_text(encoding="utf-8")
    for path, text in (pages() | make_gallery() | {"assets/tables.js": script}).items():
        files.append(File.generated(config, path, content=text))
    for source in sorted((ROOT / "notebooks").glob("*.py")):
        text = source.read_text(encoding="utf-8")
        files.append(File.generated(config, f"notebooks/{source.name}", content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Let a page of a notebook link to its source within the site."""
    return markdown.replace("](../../notebooks/", "](")


def on_config(config: Any) -> Any:
    """Name the version; leave pages out of the navigation that are not written yet."""
    docs = Path(config["docs_dir"])
    made = {*pages(), "gallery.md"}

    def kept(items: list[Any]) -> list[Any]:
        out = []
        for item in items:
            ((title, value),) = item.items()
            if isinstance(value, list):
                out.append({title: kept(value)})
            elif value in made or (docs / value).is_file():
                out.append(item)
        return out

    config["nav"] = kept(config["nav"])
    config["site_name"] = f"vflsec {__version__}"  # which version the pages are of
    return config


def on_post_build(config: Any) -> None:
    """Refuse a site that loads anything from elsewhere; links to elsewhere are fine."""
    site = Path(config["site_dir"])
    for path in sorted([*site.rglob("*.html"), *site.rglob("*.css")]):
        found = _LOADS.search(path.read_text(encoding="utf-8"))
        if found:
            raise PluginError(f"{path.relative_to(site)} loads from the network: {found.group()}")
