"""Sound scenarios and a table, for tests that break one thing in them."""

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
ALGORITHM = """\
[algorithm]
name = "splitnn"
epochs = 1
"""
PACKAGED = (
    """\
[data]
name = "breast_cancer"
[data.params]
parties = 2
"""
    + ALGORITHM
)
NORM = """\
[[attack]]
name = "norm"
"""
QUICK = """\
[audit]
seeds = 2
references = []
positive_control = false
"""
AUDIT = ALGORITHM + NORM + QUICK + "[[gate]]\nmax = 0.1\n"
GOOD = DATA + AUDIT
TABLE = "id,x1,x2,y\n" + "".join(f"{i},{i % 7},{i % 5},{i % 2}\n" for i in range(60))


def changed(old: str, new: str) -> str:
    """The sound scenario with one change."""
    assert GOOD.count(old) == 1, old
    return GOOD.replace(old, new)
