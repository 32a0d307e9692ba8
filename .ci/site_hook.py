"""What MkDocs asks for while it builds: the generated pages, and images beside pages."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).resolve().parent))

from site_pages import pages  # noqa: E402


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_config(config: Any) -> Any:
    """Leave pages out of the navigation that are not written yet."""
    docs = Path(config["docs_dir"])
    made = set(pages())

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
    return config
