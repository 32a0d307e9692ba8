"""Data sets of plug-ins that give what cannot be used: one clear error, and no stale results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Cli
from packages import packaged

from vflsec.data.load import load_source
from vflsec.errors import VflsecError

DATA_SET = '''"""A faulty data set."""
from __future__ import annotations

from dataclasses import dataclass
import subprocess
import sys
from pathlib import Path

import numpy as np

from vflsec.plugins import registry
from vflsec.data.source import PartyData, Source


@registry.dataset
@dataclass(frozen=True)
class Faulty:
    n: int = 200

    def load(self, seed):
        rng = np.random.default_rng(seed)
        y = np.arange(self.n) % 2
        rows = {{p: np.arange(self.n) for p in "ab"}}
        values = {{p: rng.normal(size=(self.n, 3)) + y[:, None] for p in "ab"}}
        names = {{p: tuple(f"{{p}}{{i}}" for i in range(3)) for p in "ab"}}
        active, classes, digest, more = "a", ("no", "yes"), "", {{}}
        {body}
        parties = {{p: PartyData(values[p], rows[p], names[p], (None,) * 3) for p in "ab"}}
        return Source("faulty", parties, active, y, classes, digest=digest, **more)
'''

# name: (statement in `load`, words of the error)
BODIES: dict[str, tuple[str, str]] = {
    "d_nothing": ("return None", "must return a Source, got NoneType"),
    "d_name": ("return Source(3, {}, active, y, classes)", "must give name as text, got int"),
    "d_digest": ("digest = 7", "must give digest as text, got int"),
    "d_classes": ("classes = (0, 1)", "must give class_names as a tuple of texts, got (0, 1)"),
    "d_float_labels": ("y = y * 1.0", "must give y as whole numbers (N,)"),
    "d_no_rows": ("y = y[:0]", "must give y as whole numbers (N,)"),
    "d_far_class": ("y = y + 7", "must give y as 0 to 1, or -1"),
    "d_quantity": (
        "y = y * 0; more['values'] = y[:5] * 1.0",
        "must give values (200,), got float64 (5,)",
    ),
    "d_labels": ("more['labels'] = ('p', 'q')", "must give values (200, 2), got NoneType"),
    "d_ids": ("more['ids'] = ['1', '2']", "must give ids for each of 200 rows, got 2"),
    "d_split": ("more['split'] = np.array(['train'])", "must give split for each of 200 rows"),
    "d_active": ("active = 'z'", "must give the active party, 'z', among parties"),
    "d_list": ("return Source('x', {'a': [1]}, 'a', y, classes)", "as a PartyData, got list"),
    "d_flat": ("values['b'] = values['b'][:, 0]", "must give values as floats (n, d)"),
    "d_text": ("values['b'] = values['b'].astype(str)", "values as floats (n, d) or (n, c, h, w)"),
    "d_infinite": ("values['b'][3] = np.inf", "got infinity, of party 'b'"),
    "d_few_values": ("values['b'] = values['b'][:20]", "must give rows as whole numbers (20,)"),
    "d_far_rows": ("rows['b'] = rows['b'] + 9", "must give rows from 0 to 199, got 9 to 208"),
    "d_same_rows": ("rows['b'] = rows['b'] * 0", "must give each row once, got one twice"),
    "d_names": ("names['b'] = ('x', 'x', 'x')", "must give 3 different names of columns"),
    "d_draws": ("y = np.random.permutation(y)", "global random numbers of numpy"),
    "d_seeds": ("np.random.seed(seed)", "global random numbers of numpy"),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_faulty_data_set_is_told(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two thirds of them ended in an internal error, and data of a global generator in a PASS."""
    body, words = BODIES[name]
    packaged(monkeypatch, tmp_path, "dataset", {name: DATA_SET.format(body=body)})
    with pytest.raises(VflsecError) as told:
        load_source({"name": name}, 0, tmp_path)
    assert words in str(told.value)
    assert f"data set {name}: " in str(told.value)


def test_a_faulty_data_set_ends_the_command_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    packaged(monkeypatch, tmp_path, "dataset", {"d_short": DATA_SET.format(body="y = y[:50]")})
    case = tmp_path / "case.toml"
    case.write_text('data = { name = "d_short" }\nalgorithm = { name = "splitnn" }\n')
    err = cli.refuses("check", case)
    assert "d_short: its load must give rows from 0 to 49, got 0 to 199, of party 'a'" in err


@pytest.mark.parametrize("own", [False, True], ids=["none", "its own"])
def test_what_a_data_set_reads_is_part_of_its_identity(
    own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that reads a file and gives no digest kept its results when the file had changed."""
    table = tmp_path / "table.txt"
    body = f"values['a'] = values['a'] + float(Path({str(table)!r}).read_text())"
    body += "; digest = 'mine'" if own else ""
    name = f"d_reads_{own}"
    packaged(monkeypatch, tmp_path, "dataset", {name: DATA_SET.format(body=body)})
    seen = []
    for text in ("0.0", "0.0", "1.0"):
        table.write_text(text)
        seen.append(load_source({"name": name}, 0, tmp_path).digest)
    assert seen[0] == seen[1]
    assert (seen[2] == seen[0]) == own
    assert seen[0] == "mine" if own else len(seen[0]) == 64


@pytest.mark.slow
def test_what_an_import_draws_is_no_fault_of_a_data_set(tmp_path: Path) -> None:
    """scikit-learn draws a name from Python's random numbers as it is imported, and so do threads
    of notebooks: digits, loaded first in a process, was refused.
    """
    said = subprocess.run(
        [sys.executable, "-c", "from pathlib import Path\nfrom vflsec.data.load import load_source"
         "\nprint(load_source({'name': 'digits'}, 0, Path()).y.shape)"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert said.stdout == "(1797,)\n", said.stderr
