"""The corpus: hostile input as data; `cases` makes cases of it.

A case is what lies in a folder, a command, the exit code that must come, and a fragment of what
must be said. Most are one change to a sound scenario.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sound import GOOD, TABLE, changed

ISO = '[[defense]]\nname = "iso"\n'
BIG = "9" * 400
HUGE = "9" * 5000


@dataclass(frozen=True)
class Case:
    """One hostile input.

    Attributes:
        name: unique.
        args: the command; ``{}`` is the folder.
        code: that it must exit with.
        words: that its error must hold.
        files: what lies in the folder, by name.
        env: environment variables.
    """

    name: str
    args: tuple[str, ...]
    code: int = 2
    words: str = ""
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)


# what the key `K` may not be -------------------------------------------------------------------

VALUES = {
    "text": '"x"', "empty text": '""', "list": "[[1]]", "table": "{a = 1}", "true": "true",
    "number": "0.5", "negative": "-1", "zero": "0", "nan": "nan", "inf": "inf",
    "date": "2026-01-01", "huge": HUGE, "long": BIG, "null text": '"a\\u0000b"',
    "deep": "[" * 200 + "]" * 200,
}  # fmt: skip

# place in the scenario: (text before, wrong values, word that the error must hold)
KEYS: dict[str, tuple[str, str]] = {
    "audit.seeds": ("text list table true number negative zero nan inf date huge long", "seeds"),
    "audit.confidence": ("text list table true negative zero nan inf date huge long", "confid"),
    "audit.references": ("text table true number negative date huge", "references"),
    "audit.dtype": ("text list table true number date huge", "dtype"),
    "audit.positive_control": ("text list table number date huge", "positive_control"),
    "audit.timeout": ("text list table true negative zero nan inf date huge", "timeout"),
    "attack.known_rows": ("text list table true number negative nan date huge long", "known_rows"),
    "attack.prior": ("text list table number date huge", "prior"),
    "attack.aux_rows": ("text list table true number negative date huge", "aux_rows"),
    "attack.peer_model": ("text list table number date", "peer_model"),
    "attack.over_time": ("text list table number date", "over_time"),
    "attack.adversary": ("text table true number negative date huge", "adversary"),
    "attack.victim": ("text list table true number date", "victim"),
    "attack.power": ("text list table true negative nan inf date huge deep", "power"),
    "algorithm.epochs": ("text list table true number negative zero nan inf date huge", "epochs"),
    "algorithm.batch_size": ("text list table true number negative zero date huge", "batch_size"),
    "algorithm.lr": ("text list table true negative zero nan inf date huge", "lr"),
    "algorithm.cut": ("text list table true number negative zero date huge", "cut"),
    "algorithm.hidden": ("text table true number negative date huge deep", "hidden"),
    "algorithm.parties": ("text list true number date huge", "parties"),
    "algorithm.nothing": ("text list table true number date huge deep", "nothing"),
    "gate.min": ("text list table true nan inf date huge", "min"),
    "gate.metric": ("text empty list table true number date", "metric"),
    "gate.of": ("text list table true number date", "of"),
    "gate.attack": ("text list table true number date huge", "attack"),
    "gate.adversary": ("text list table true number date", "adversary"),
    "gate.dataset": ("text list table true number date", "dataset"),
    "gate.algorithm": ("text list table true number date", "algorithm"),
    "gate.phase": ("text list table true number date", "phase"),
    "gate.split": ("text list table true number date", "split"),
    "gate.defense": ("text list table true number date", "defense"),
    "gate.strength": ("text list table true negative nan inf date huge number", "strength"),
    "gate.confidence": ("text list table true negative zero nan inf date huge", "confidence"),
    "data.name": ("list table true number date huge", "name"),
    "data.validation": ("text list table true negative zero nan inf date huge", "validation"),
    "data.test": ("text list table true negative zero nan inf date huge", "test"),
    "data.labelled": ("text list table true number negative zero date huge long", "labelled"),
    "data.aligned": ("text list table true negative zero nan inf date huge", "aligned"),
    "data.scale": ("text list table true number date", "scale"),
    "data.shuffle_labels": ("text list table number date", "shuffle_labels"),
    "data.categorical": ("text table true number date", "categorical"),
    "data.drop": ("text table true number date", "drop"),
    "data.split": ("text list table true number date", "split"),
    "data.group": ("text list table true number date", "group"),
    "data.files": ("text list true number date", "files"),
    "data.params": ("text list true number date table", "params"),
    "defense.strength": ("text list table true negative nan inf date huge", "strength"),
    "defense.party": ("text list table true number date", "party"),
    "defense.choice": ("list table true number date", "choice"),
    "defense.nothing": ("text list table true number date huge", "nothing"),
    "parties.a": ("text list true number date", "a"),
    "parties.a.hidden": ("text table true number negative date huge", "hidden"),
    "parties.a.cut": ("text list table true number negative zero date huge", "cut"),
    "parties.a.module": ("text list table true number date", "module"),
    "name": ("list table true number date huge", "name"),
}  # fmt: skip

_HEADS = {
    "audit": "[audit]\n", "attack": '[[attack]]\nname = "norm"\n', "gate": "[[gate]]\n",
    "algorithm": '[algorithm]\nname = "splitnn"\n', "data": "[data]\n",
}  # fmt: skip


def with_value(key: str, value: str) -> str:
    """The sound scenario with one more key, or another value of one."""
    section, _, name = key.partition(".")
    if not name:
        return f"{key} = {value}\n{GOOD}"
    if section == "defense":
        return f"{GOOD}{ISO}{name} = {value}\n"
    if section == "parties":
        return f"{GOOD}[parties]\n{name} = {value}\n"
    text = GOOD
    for line in (f"{name} = 2\n", f"{name} = []\n", f"{name} = false\n", f"{name} = 1\n"):
        text = text.replace(line, "")
    if key == "gate.min":
        text = text.replace("max = 0.1\n", "")
    assert _HEADS[section] in text, section
    return text.replace(_HEADS[section], f"{_HEADS[section]}{name} = {value}\n")


# whole scenarios: (text, words) -----------------------------------------------------------------

SCENARIOS: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "data is missing"),
    "spaces": ("   \n\n", "data is missing"),
    "a comment": ("# nothing\n", "data is missing"),
    "unclosed table": ("[data\nname = 1", "not valid TOML"),
    "not utf-8": (GOOD.encode() + b"# \xff\xfe", "UTF-8"),
    "utf-16": (GOOD.encode("utf-16"), "UTF-8"),
    "null byte": (GOOD + "\x00", "not valid TOML"),
    "binary": (bytes(range(256)), ""),
    "an executable": (b"\x7fELF" + bytes(500), ""),
    "json": ('{"data": {"name": "adult"}}', "not valid TOML"),
    "yaml": ("data:\n  name: adult\n", "not valid TOML"),
    "xml": ("<data/>", "not valid TOML"),
    "python": ("import os; os._exit(0)", "not valid TOML"),
    "a long key": (GOOD + f'"{"k" * 10_000}" = 1\n', ""),
    "many keys": (GOOD + "[zz]\n" + "".join(f"k{i} = {i}\n" for i in range(3000)), "zz"),
    "html as key": (changed("max = 0.1", '"<script>" = 0.1'), "not a known key"),
    "escape sequence as key": (changed("max = 0.1", '"\\u001b[31m" = 0.1'), "not a known key"),
    "giant integer seed": (changed("seeds = 2", f"seeds = [{BIG}]"), ""),
    "giant number of seeds": (changed("seeds = 2", "seeds = 99999999999"), "10000"),
    "no seeds": (changed("seeds = 2", "seeds = []"), "at least 1"),
    "no algorithm": (changed('[algorithm]\nname = "splitnn"\nepochs = 1', ""), "missing"),
    "no name of an attack": (GOOD + '[[attack]]\nname = ""\n', "name"),
    "traversal as attack": (changed('"norm"', '"../../etc/passwd"'), "passwd"),
    "a module as attack": (changed('"norm"', '"os.path"'), "os.path"),
    "code as attack": (changed('"norm"', "\"__import__('os')._exit(0)\""), "registered attack"),
    "nothing trained": (changed("epochs = 1", "epochs = 0"), "must be >= 1, got 0"),
    "a layer beyond memory": (changed("epochs = 1", "hidden = [1000000000]"), "memory"),
    "layers beyond memory": (changed("epochs = 1", "hidden = [200000, 200000]"), "memory"),
    "a cut beyond memory": (changed("epochs = 1", "cut = 10000000000"), "memory"),
    "a party beyond memory": (GOOD + "[parties.b]\nhidden = [4000000000]\n", "memory"),
    "unknown party": (changed('name = "norm"', 'name = "norm"\nadversary = "eve"'), "eve"),
    "a folder as table": (changed("t.csv", "folder"), "folder"),
    "a device as table": (changed("t.csv", "/dev/null"), ""),
    "traversal as table": (changed("t.csv", "../../../../../etc/shadow-no"), "shadow-no"),
    "extends itself": ('extends = "case.toml"\n' + GOOD, "in a circle"),
    "extends a device": ('extends = "/dev/zero"\n' + GOOD, "must be a path from"),
    "extends a table": ('extends = "t.csv"\n' + GOOD, "not valid TOML"),
    "extends a list": ('extends = ["a"]\n' + GOOD, "must be a path"),
    "extends a null": ('extends = "a\\u0000b"\n' + GOOD, "must be a path from"),
    "a form that is a list": ("form = [1]\n" + GOOD, "must be one of"),
    "a form that is a table": ("form = {a = 1}\n" + GOOD, "must be one of"),
    "forms of a number": ("forms = 3\n" + GOOD, "must be a table"),
    "a sweep without end": (
        GOOD + '[grid.algorithm."*"]\n' + "".join(f"k{i} = {list(range(100))}\n" for i in range(4)),
        "must make at most 10000 sections, got 100000000",
    ),
    "trainings without end": (
        changed("seeds = 2", "seeds = 10000")
        + f"{ISO}strength = {list(range(300))}\n",
        "make at most 100,000 trainings, got 3,000,000",
    ),
    "a swept gate": (GOOD + '[grid.gate."*"]\nmax = [0.1, 0.2]\n', "must be one of data"),
    "a swept nan": (GOOD + '[grid.algorithm."*"]\nlr = [nan]\n', "must be a finite number"),
    "a shared number": ("shared = 3\n" + GOOD, "must be a table"),
    "shared limits": (GOOD + "[shared.gate]\nmin = 0.5\n", "needs one of"),
    "a party called *": (changed('b = ["x2"]', '"*" = ["x2"]'), "party name"),
    "a party of two lines": (changed('b = ["x2"]', '"b\\n" = ["x2"]'), "party name"),
    "a party of hidden marks": (changed('b = ["x2"]', '"\\u202eb" = ["x2"]'), "party name"),
    "a table on the web": (changed("t.csv", "http://127.0.0.1:9/t.csv"), "an existing file"),
    "a table in a bucket": (changed("t.csv", "s3://bucket/t.csv"), "an existing file"),
    "a process as table": (changed("t.csv", "/proc/self/mem"), "a file of type"),
    "endless numbers as table": (changed("t.csv", "/dev/urandom"), "must be an existing file"),
}  # fmt: skip

GATES: dict[str, tuple[str, str]] = {
    "on cap": ('metric = "cap"\nmax = 0.1', "advantage or utility"),
    "on dcs": ('metric = "dcs"\nmax = 0.1', "advantage or utility"),
    "advantage far beyond": ("max = 1000000", "can reach"),
    "advantage of a floor": ("min = -1", "can reach"),
    "accuracy that cannot fail": ('metric = "accuracy"\nmin = 0', "can reach"),
    "epsilon that cannot fail": ('metric = "epsilon_lower"\nmin = 0', "can reach"),
    "of an attack with parameters": ('max = 0.1\nattack = "norm(power=2)"', "must be one of norm,"),
    "of a coalition": ('max = 0.1\nadversary = "a+b"', "gate.0.adversary must be one of b,"),
    "of what is defended": ('max = 0.1\ndefense = "defended"', "must be one of none,"),
    "of validation rows": ('max = 0.1\nsplit = "validation"', "must be one of train,"),
    "of a star inside": ('max = 0.1\nattack = "n*"', "must be one of norm,"),
}

NAMES = {
    "traversal": "../../../x", "absolute": "/tmp/x", "dots": "..", "a dot": ".", "spaces": "  ",
    "a slash": "a/b", "a backslash": "a\\\\b", "a drive": "c:x", "a line break": "a\\nb",
    "a null": "a\\u0000b", "an escape": "\\u001b[31mx", "long": "n" * 300,
}  # fmt: skip

MODULES: dict[str, tuple[str, str, str]] = {
    "raises": ("mine:Net", "raise KeyError('at import')\n", "KeyError: 'at import'"),
    "is not Python": ("mine:Net", "def f(:\n", "SyntaxError"),
    "exits": ("mine:Net", "import sys\nsys.exit(0)\n", "sys.exit(0)"),
    "really exits": ("mine:Net", "import os\nos._exit(0)\n", "os._exit(0)"),
    "lacks the name": ("mine:Net", "x = 1\n", "cannot be imported"),
    "is a number": ("mine:Net", "Net = 3\n", "make a torch.nn.Module"),
    "is None": ("mine:Net", "Net = None\n", "make a torch.nn.Module"),
    "makes nothing": ("mine:Net", "def Net(out): pass\n", "must make a torch.nn.Module"),
    "makes a number": ("mine:Net", "def Net(out): return 1\n", "must make a torch.nn.Module"),
    "fails when made": ("mine:Net", "def Net(out): return [][out]\n", "IndexError"),
    "exits when made": ("mine:Net", "def Net(out):\n    raise SystemExit(0)\n", "sys.exit(0)"),
    "wants more": ("mine:Net", "def Net(a, b, c): pass\n", "TypeError"),
    "fails on rows": (
        "mine:Net", "import torch\ndef Net(out): return torch.nn.Linear(77, out)\n", "fails on a"
    ),
    "of another width": (
        "mine:Net", "import torch\ndef Net(): return torch.nn.Linear(1, 77)\n", "must map a batch"
    ),
    "returns text": (
        "mine:Net",
        "import torch\nclass Net(torch.nn.Module):\n    def forward(self, x): return 'x'\n",
        "must return a tensor",
    ),
    "relative": (".mine:Net", "x = 1\n", "package.module:Name"),
    "relative, above": ("..mine:Net", "x = 1\n", "package.module:Name"),
    "without a name": ("mine", "x = 1\n", "package.module:Name"),
    "without a module": (":Net", "x = 1\n", "package.module:Name"),
    "not there": ("nowhere.at.all:Net", "x = 1\n", "cannot be imported"),
    "of the system": ("os:system", "x = 1\n", "cannot be made"),
    "an exit": ("sys:exit", "x = 1\n", "sys.exit"),
    "a real exit": ("os:_exit", "x = 1\n", "os:_exit"),
    "an evaluation": ("builtins:eval", "x = 1\n", "cannot be made"),
    "with spaces": ("my mine:Net", "x = 1\n", "cannot be imported"),
    "long": ("m" * 5000 + ":Net", "x = 1\n", "cannot be imported"),
    "with a slash": ("../mine:Net", "x = 1\n", ""),
}  # fmt: skip

# tables: (content, words) -----------------------------------------------------------------------


def table_with(cell: str, x2: str = "3") -> str:
    """The good table with this cell in row 8 of column x1."""
    assert "\n8,1,3,0\n" in TABLE
    return TABLE.replace("\n8,1,3,0\n", f"\n8,{cell},{x2},0\n")


TABLES: dict[str, tuple[str | bytes, str]] = {
    "empty table": ("", "t.csv"),
    "one row": ("id,x1,x2,y\n1,2,3,0\n", ""),
    "infinite cell": (
        table_with("inf"),
        "column 'x1' must hold finite numbers, got inf in row 10",
    ),
    "a number beyond float64": (table_with("1e999"), "must hold finite numbers, got inf"),
    "an infinite cell beside nan": (table_with("nan", x2="inf"), "column 'x2' must hold finite"),
    "a label of nan only": (TABLE.replace(",0\n", ",nan\n").replace(",1\n", ",nan\n"), "'y'"),
    "one class": ("id,x1,x2,y\n" + "".join(f"{i},{i},{i},0\n" for i in range(60)), ""),
    "a class of one row": (TABLE + "99,1,1,2\n", ""),
    "a png as table": (b"\x89PNG\r\n\x1a\n" + bytes(200), ""),
    "html names without the columns": (TABLE.replace("x1", "<script>alert(1)</script>"), "x1"),
}

# commands: (arguments, words); the folder holds case.toml and t.csv ------------------------------

COMMANDS: dict[str, tuple[str, str]] = {
    "no such scenario": ("audit {}/nowhere.toml", "nowhere.toml"),
    "a folder as scenario": ("audit {}", "is a folder"),
    "a table as scenario": ("audit {}/t.csv", "is a table, not a scenario"),
    "a scenario of 5000 characters": (f"audit {'x' * 5000}", "is not a file"),
    "check of 5000 characters": (f"check {'x' * 5000}", "is not a file"),
    "out is a file": ("audit {}/case.toml --out {}/t.csv", "is a file"),
    "out below a file": ("audit {}/case.toml --out {}/t.csv/out", "is a file"),
    "out has a null": ("audit {}/case.toml --out {}/a\0b", "null"),
    "out is too long": (f"audit {{}}/case.toml --out {{}}/{'x' * 300}", "cannot be written"),
    "out is a device": ("audit {}/case.toml --out /dev/null", "/dev/null"),
    "seeds of 0": ("audit {}/case.toml --seeds 0", "seeds"),
    "seeds of text": ("audit {}/case.toml --seeds many", "seeds"),
    "jobs of 0": ("audit {}/case.toml --jobs 0", "jobs"),
    "replicas of -1": ("audit {}/case.toml --replicas -1", "replicas"),
    "set without a value": ("audit {}/case.toml --set audit", "KEY.PATH=VALUE"),
    "set of nothing": ("audit {}/case.toml --set =", "KEY.PATH=VALUE"),
    "set nowhere": ("audit {}/case.toml --set attack.7.name=norm", "index below 1"),
    "set into a value": ("audit {}/case.toml --set audit.seeds.x=1", "audit.seeds"),
    "set 5000 digits": (f"audit {{}}/case.toml --set audit.seeds={HUGE}", "64 bits"),
    "set a deep list": ("audit {}/case.toml --set audit.seeds=" + "[" * 5000 + "]" * 5000, "deep"),
    "set a deep key": ("audit {}/case.toml --set " + ".".join(["a"] * 3000) + "=1", ""),
    "set an index of 5000 digits": (
        f"audit {{}}/case.toml --set gate.{'9' * 5000}.max=0.1", "needs an index"
    ),
    "set an index in other digits": ('audit {}/case.toml --set gate."\u0660".max=0.1', "an index"),
    "set a form of nothing": ("audit {}/case.toml --set form=", "must be one of"),
    "set no attack": ("audit {}/case.toml --set attack=[]", "needs an attack"),
    "set gates off": ("audit {}/case.toml --set gate=off", "must be a list"),
    "attack on nothing": ("attack {}/out norm", "has no results.sqlite"),
    "trace of nothing": ("trace audit {}/nowhere --out {}/o", "nowhere"),
    "trace out of nothing": ("trace audit {}/nowhere --blind --max 0.1", "need the truth"),
    "trace gates of nothing": ("trace score {} --truth {} --gates {}/t.csv", "t.csv:1: not valid"),
    "trace gates of a scenario without": (
        "trace score {} --truth {} --gates {}/case.toml --max 5", "can reach"
    ),
    "trace model that exits": ("trace audit {} --model b=os:_exit --truth {}", ""),
    "trace record of nothing": ("trace record {}/nowhere.toml --out {}/o", "nowhere.toml"),
    "trace validate a file": ("trace validate {}/t.csv", "t.csv"),
    "trace seal nothing": ("trace seal {}/nowhere", "nowhere"),
    "trace info of a device": ("trace info /dev/null", "/dev/null"),
    "set two lines": ("audit {}/case.toml --set audit.seeds=1\naudit.dtype=2", "KEY.PATH"),
    "set a bad name": ("audit {}/case.toml --set name=../x", "plain name"),
    "unknown device": ("audit {}/case.toml --device abacus", "abacus"),
    "a small budget": ("audit {}/case.toml --until-decided 1", "until-decided"),
    "an unknown option": ("audit {}/case.toml --gates", "--gates"),
    "an unknown command": ("adit {}/case.toml", "adit"),
    "gate of nothing": ("gate {}", "has no results.sqlite"),
    "gate of a file": ("gate {}/case.toml", "has no results.sqlite"),
    "gate of nowhere": ("gate {}/nowhere", "has no results.sqlite"),
    "gate of a long name": (f"gate {{}}/{'x' * 5000}", ""),
    "gate of both limits": ("gate {} --max 0.1 --min 0.1", "one of max"),
    "gate that cannot fail": ("gate {} --max 2", "can reach"),
    "gate of nan": ("gate {} --max nan", "finite"),
    "gate of an unknown metric": ("gate {} --max 0.1 --metric advantag", "advantage"),
    "gate without its baseline": ("gate {} --update-baseline", "--baseline"),
    "compare nothing": ("compare {} {}", "has no results.sqlite"),
    "report nothing": ("report {}", "summary.json"),
    "report of a long name": (f"report {{}}/{'x' * 5000}", ""),
    "init over a file": ("init {}/t.csv --label y --out {}/case.toml", "case.toml"),
    "init of nothing": ("init {}/nowhere.csv --label y --out {}/new.toml", "nowhere.csv"),
    "new traversal": ("new attack ../../evil", "evil"),
    "new keyword": ("new attack class", "class"),
    "show nothing": ("show nothing_of_that_name", "nothing"),
    "list nothing": ("list everything", "everything"),
    "tune an unknown defense": ("tune {}/case.toml --defense isso", "iso"),
    "tune backwards": ("tune {}/case.toml --defense iso --low 5 --high 1", "low"),
}  # fmt: skip

BASELINES = {
    "text": "hello",
    "list": "[1, 2]",
    "another version": '{"baseline_version": 7, "points": []}',
    "no points": '{"baseline_version": 3}',
    "points of text": '{"baseline_version": 3, "points": ["x"]}',
    "a point without a key": '{"baseline_version": 3, "points": [{"advantage": {"0": 1}}]}',
    "an infinite advantage": '{"baseline_version": 3, "points": [{"advantage": {"0": Infinity}}]}',
    "giant": '{"baseline_version": ' + "9" * 5000 + "}",
    "deep": "[" * 100_000,
}

SUMMARIES: dict[str, str | bytes] = {
    "cut off": '{"schema_version": 2',
    "old": '{"schema_version": 99}',
    "a list": "[1]",
    "a number": "1",
    "null": "null",
    "empty": "",
    "deep": "[" * 100_000,
    "5000 digits": HUGE,
    "binary": bytes(range(256)),
    "nothing but a version": '{"schema_version": 2}',
}
