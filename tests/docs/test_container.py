"""The container file, as far as reading tells: sources that exist, no root, no secret."""

from __future__ import annotations

import re
from pathlib import Path

KNOWN = {"FROM", "WORKDIR", "COPY", "RUN", "USER", "ENTRYPOINT", "CMD"}


def test_the_container_file(root: Path) -> None:
    text = (root / "Containerfile").read_text(encoding="utf-8")
    lines = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.M)).strip().splitlines()
    words = [line.split() for line in lines if line.strip()]
    assert {w[0] for w in words} <= KNOWN
    stages = {w[3] for w in words if w[0] == "FROM" and len(w) == 4}
    for w in words:
        if w[0] == "COPY":
            source = [x for x in w[1:-1] if not x.startswith("--")]
            stage = [x.removeprefix("--from=") for x in w if x.startswith("--from=")]
            assert set(stage) <= stages
            assert stage or all((root / x).exists() for x in source)
    assert all(not w[1].endswith(":latest") and ":" in w[1] for w in words if w[0] == "FROM")
    places = [w[-1] for w in words if w[0] == "COPY"] + [w[1] for w in words if w[0] == "WORKDIR"]
    assert not [p for p in places if p.startswith("/tmp")]
    (install,) = [line for line in lines if "pip install" in line]
    copied = [w[-2] for w in words if w[0] == "COPY" and w[-1].rstrip("/") == "/wheel"]
    assert set(re.findall(r"/wheel/([\w.*]+)", install)) == {"constraints.txt", "*.whl"}
    assert copied == ["/wheel", "constraints.txt"]
    last = max(i for i, w in enumerate(words) if w[0] == "FROM")
    assert ["USER", "auditor"] in words[last:]
    assert words[-2] == ["ENTRYPOINT", '["vflsec"]']
    ignored = (root / ".dockerignore").read_text(encoding="utf-8").split()
    assert {".git", ".venv*", "out"} <= set(ignored)
