"""A sound scenario and its table, for tests that break one thing in it."""

from __future__ import annotations

DATA = """\
[data]
file = "t.csv"
label = "y"
id = "id"
active = "a"
[data.columns]
a = ["x1"]
b = ["x2"]
"""
AUDIT = """\
[algorithm]
name = "splitnn"
epochs = 1
[[attack]]
name = "norm"
[audit]
seeds = 2
references = []
positive_control = false
[[gate]]
max = 0.1
"""
GOOD = DATA + AUDIT
TABLE = "id,x1,x2,y\n" + "".join(f"{i},{i % 7},{i % 5},{i % 2}\n" for i in range(60))


def changed(old: str, new: str) -> str:
    """The sound scenario with one change."""
    assert GOOD.count(old) == 1, old
    return GOOD.replace(old, new)
