"""The one generator that makes cases of the corpus, and what lays one down."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from corpus import (
    BASELINES,
    COMMANDS,
    GATES,
    GOOD,
    KEYS,
    MODULES,
    NAMES,
    SCENARIOS,
    SUMMARIES,
    TABLE,
    TABLES,
    VALUES,
    Case,
    changed,
    with_value,
)  # fmt: skip


def _values() -> Iterator[Case]:
    for key, (kinds, words) in KEYS.items():
        for kind in kinds.split():
            value = VALUES["empty text" if kind == "empty" else kind]
            told = words if kind not in ("huge", "deep") else ""
            yield _scenario(f"{key} is {kind}", with_value(key, value), told)


def _scenario(name: str, text: str | bytes, words: str, command: str = "check") -> Case:
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    args = (command, "{}/case.toml")
    return Case(name, args, 2, words, {"case.toml": data, "t.csv": TABLE, "folder/x": ""})


def cases() -> Iterator[Case]:
    """Every case."""
    yield from _values()
    for name, (scenario, words) in SCENARIOS.items():
        yield _scenario(name, scenario, words)
    for name, (gate, words) in GATES.items():
        yield _scenario(f"gate {name}", changed("max = 0.1", gate), words)
    for name, given in NAMES.items():
        yield _scenario(f"name is {name}", f'name = "{given}"\n{GOOD}', "must be a plain name")
    for name, (path, module, words) in MODULES.items():
        case = _scenario(f"module {name}", f'{GOOD}[parties.b]\nmodule = "{path}"\n', words)
        yield Case(case.name, case.args, 2, words, {**case.files, "mine.py": module})
    exits, files = MODULES["exits"], {"mine.py": MODULES["exits"][1], "t.csv": TABLE}
    files["case.toml"] = f'{GOOD}[parties.b]\nmodule = "{exits[0]}"\n'
    args = ("audit", "{}/case.toml", "--out", "{}/out")
    yield Case("an audit with a module that exits", args, 2, exits[2], files)
    for name, (table, words) in TABLES.items():
        files = {"case.toml": GOOD, "t.csv": table}
        args = ("audit", "{}/case.toml", "--out", "{}/out", "-q")
        yield Case(f"table: {name}", args, 2, words, files)
    for name, (command, words) in COMMANDS.items():
        files = {"case.toml": GOOD, "t.csv": TABLE}
        yield Case(f"command: {name}", tuple(command.split(" ")), 2, words, files)
    yield Case(
        "command: out is empty", ("audit", "{}/case.toml", "--out", ""), 2, "must have a name",
        {"case.toml": GOOD, "t.csv": TABLE},
    )  # fmt: skip
    for name, baseline in BASELINES.items():
        command_ = ("gate", "{}", "--baseline", "{}/b.json")
        yield Case(f"baseline: {name}", command_, 2, "b.json", {"b.json": baseline})
    for name, summary in SUMMARIES.items():
        yield Case(
            f"summary: {name}", ("report", "{}"), 2, "summary.json", {"summary.json": summary}
        )


CASES = {case.name: case for case in cases()}


def lay(case: Case, folder: Path) -> list[str]:
    """Put the files of a case into a folder; the arguments of its command."""
    for name, content in case.files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return [a.replace("{}", str(folder)) for a in case.args]
