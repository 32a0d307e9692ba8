"""Discovery without imports, refusals at registration, and messages that help."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vflsec.config.scenario import load_scenario
from vflsec.core.message import Message
from vflsec.core.policy import Own
from vflsec.core.rng import Streams
from vflsec.core.view import Facts, Known, Schema, View
from vflsec.errors import ConfigError, MissingDependencyError
from vflsec.plugins import loading, registry
from vflsec.plugins.registry import Registry

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = ROOT / "scenarios" / "quickstart.toml"
Install = Callable[..., Path]

ATTACK = '''"""One sentence. Another one.

Source: Somebody (2020), eq. 3,
second line.
"""
from dataclasses import dataclass
from vflsec.plugins import registry
from vflsec.core.attack import Attack
{extra}
@registry.attack
@dataclass(frozen=True)
class Thing(Attack):
    {fields}
    def infer(self, view, rng):
        return None
'''


def attack_text(fields: str = "pass", extra: str = "") -> str:
    return ATTACK.format(fields=fields, extra=extra)


def foreign(kind: str = "attack") -> Registry:
    """A registry that has no folder of its own: what tests install is all there is."""
    return Registry(kind, "vflsec_no_such_package", f"vflsec.{kind}s")


# Discovery


def test_lists_are_made_without_importing_anything_heavy(plugin: Path) -> None:
    code = (
        "import sys\n"
        "from vflsec.plugins import registry as r\n"
        "for known in (r.attacks, r.defenses, r.algorithms, r.datasets):\n"
        "    for e in known.entries().values(): e.summary, e.source, e.aliases\n"
        "heavy = {'torch', 'pandas', 'sklearn', 'scipy', 'matplotlib', 'opacus', 'pydantic'}\n"
        "print(sorted(heavy & set(sys.modules)), 'mean_embedding' in r.attacks.names())\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment,
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[] True\n"


def test_every_file_of_the_folder_is_listed() -> None:
    for known, folder in (
        (registry.attacks, ROOT / "attacks"),
        (registry.defenses, ROOT / "defenses"),
        (registry.algorithms, ROOT / "vflsec" / "algorithms"),
        (registry.datasets, ROOT / "vflsec" / "data" / "sets"),
    ):
        files = {p.stem for p in folder.glob("*.py") if not p.stem.startswith("_")}
        own = {n for n, e in known.entries().items() if e.module.startswith("vflsec.")}
        assert own == files
        assert known.names() == sorted(known.names())


def test_a_file_that_comes_goes_or_changes_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "grown_package"
    folder.mkdir()
    (folder / "__init__.py").touch()
    one, two = folder / "one.py", folder / "two.py"
    one.write_text('"""The first."""', encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    known = Registry("attack", "grown_package", "vflsec.no_such_group")
    assert known.names() == ["one"]
    known.entries().clear()  # what is handed out is a copy
    two.write_text('"""The second."""', encoding="utf-8")
    assert known.names() == ["one", "two"]
    one.write_text('"""Another."""', encoding="utf-8")
    os.utime(one, (0, 0))
    assert known.entry("one").summary == "Another."
    two.unlink()
    assert known.names() == ["one"]


def test_the_outside_package_is_found(plugin: Path) -> None:
    entry = registry.attacks.entry("mean_embedding")
    assert entry.path == plugin / "vflsec_example" / "mean_embedding.py"
    assert entry.summary == "Nearest class mean in the adversary's own embedding space."
    assert entry.source.startswith("an example; the nearest class mean rule")
    assert "\n" not in entry.source
    assert "sign_only" in registry.defenses.names()
    assert "two_blobs" in registry.datasets.names()
    assert not [m for m in sys.modules if m.startswith("vflsec_example.")]


def test_without_it_there_is_no_trace() -> None:
    assert "mean_embedding" not in registry.attacks.names()


def test_what_is_installed_meanwhile_is_found(install: Install, tmp_path: Path) -> None:
    install({"vflsec.attacks": {"one": "one"}}, one='"""The first."""')
    assert "one" in registry.attacks.names()
    folder = tmp_path / "outside"
    (folder / "two.py").write_text('"""The second."""')
    info = folder / "later-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: later\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[vflsec.attacks]\ntwo = two\n")
    os.utime(folder, ns=(0, os.stat(folder).st_mtime_ns + 1))
    assert registry.attacks.entry("two").package == "later 1.0"
    assert "one" in registry.attacks.names()


def test_alias(plugin: Path) -> None:
    assert registry.attacks.entry("nearest_mean").name == "mean_embedding"
    assert registry.attacks.get("nearest_mean").__name__ == "MeanEmbedding"


def test_annotated_aliases_are_read(install: Install) -> None:
    text = attack_text(extra='ALIASES: tuple[str, ...] = ("thg", "t2")')
    install({"vflsec.attacks": {"thing": "thing"}}, thing=text)
    assert foreign().entry("t2").aliases == ("thg", "t2")


@pytest.mark.parametrize("value", ["'abc'", "('a', 3)", "make()"])
def test_aliases_that_are_none(install: Install, value: str) -> None:
    folder = install({"vflsec.attacks": {"thing": "thing"}}, thing=f"ALIASES = {value}\n")
    with pytest.raises(ConfigError) as caught:
        foreign().entries()
    assert str(caught.value) == (
        f"{folder}/thing.py:1: ALIASES must be a tuple of string literals, got {value}."
    )


def test_summary_is_the_first_sentence(install: Install) -> None:
    install({"vflsec.attacks": {"thing": "thing"}}, thing=attack_text())
    entry = foreign().entry("thing")
    assert entry.summary == "One sentence."
    assert entry.source == "Somebody (2020), eq. 3, second line."


def test_duplicate_names_are_refused_with_both_paths(install: Install) -> None:
    a = install({"vflsec.attacks": {"thing": "thing"}}, name="one", thing=attack_text())
    b = install({"vflsec.attacks": {"thing": "deep.thing"}}, name="two")
    (b / "deep").mkdir()
    (b / "deep" / "__init__.py").write_text("")
    (b / "deep" / "thing.py").write_text(attack_text())
    with pytest.raises(ConfigError) as caught:
        foreign().entries()
    message = str(caught.value)
    assert message.startswith("two attacks are called 'thing': ")
    assert str(a / "thing.py") in message
    assert str(b / "deep" / "thing.py") in message


def test_a_file_beside_a_scenario_is_known_and_takes_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_base", [tmp_path])
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "beside_it.py").write_text(attack_text())
    (tmp_path / "no_attack.py").write_text("# @registry.attack\n")
    text = QUICKSTART.read_text().replace('name = "norm"', 'name = "beside_it"')
    (tmp_path / "mine.toml").write_text(text)
    load_scenario(tmp_path / "mine.toml")
    entry = registry.attacks.entry("beside_it")
    assert (entry.path, entry.package) == (tmp_path / "beside_it.py", "beside_it")
    assert "no_attack" not in registry.attacks.names()
    assert entry.code
    (tmp_path / "norm.py").write_text(attack_text())
    with pytest.raises(ConfigError, match="two attacks are called 'norm'"):
        registry.attacks.names()


def test_an_alias_may_not_take_a_name(install: Install) -> None:
    install(
        {"vflsec.attacks": {"one": "one", "two": "two"}},
        one=attack_text(),
        two=attack_text(extra="ALIASES = ('one',)"),
    )
    with pytest.raises(ConfigError, match="two attacks are called 'one'"):
        foreign().entries()


@pytest.mark.parametrize("alias", ["none", "defended", "a(strength=0)", "a + b", "", "*", "[x"])
def test_no_defense_is_called_like_what_gates_name_otherwise(install: Install, alias: str) -> None:
    install({"vflsec.defenses": {"t": "t"}}, t=attack_text(extra=f"ALIASES = ({alias!r},)"))
    with pytest.raises(ConfigError) as caught:
        Registry("defense", "vflsec.nothing", "vflsec.defenses").entries()
    assert "t.py: the name of the defense must be made of letters" in str(caught.value)
    assert f"and not 'defended', got {alias!r}. Rename its file" in str(caught.value)


def test_entry_point_is_called_like_its_module(install: Install) -> None:
    install({"vflsec.attacks": {"other": "thing"}}, thing=attack_text())
    with pytest.raises(ConfigError) as caught:
        foreign().entries()
    assert str(caught.value) == (
        "entry point 'other' of group 'vflsec.attacks' must name a module that is called 'other', "
        "one for each plug-in, got 'thing'. Correct that package's pyproject.toml, or reinstall it."
    )


@pytest.mark.parametrize("module", ["gone", "gone.deep.gone"])
def test_entry_point_of_a_module_that_is_not_there(install: Install, module: str) -> None:
    install({"vflsec.attacks": {"gone": module}})
    with pytest.raises(ConfigError, match=rf"a module that can be found, got '{module}'"):
        foreign().entries()


def test_one_broken_file_does_not_hide_the_others(install: Install) -> None:
    folder = install(
        {"vflsec.attacks": {"broken": "broken", "thing": "thing"}},
        broken='"""Doc."""\ndef infer(:\n',
        thing=attack_text(),
    )
    known = foreign()
    assert known.names() == ["broken", "thing"]
    assert known.entry("broken").summary.startswith("Broken: ")
    with pytest.raises(ConfigError) as caught:
        known.get("broken")
    assert str(caught.value).startswith(f"{folder}/broken.py:2: is not Python: ")
    assert known.get("thing").__name__ == "Thing"


def test_what_is_not_installed_is_named(install: Install) -> None:
    folder = install(
        {"vflsec.attacks": {"needy": "needy"}}, needy=attack_text(extra="import no_such_module_x")
    )
    with pytest.raises(MissingDependencyError) as caught:
        foreign().get("needy")
    assert str(caught.value) == (
        f"{folder}/needy.py: attack 'needy' cannot be imported: No module named "
        "'no_such_module_x'. Install what it needs."
    )


# Registration


def refused(install: Install, text: str, kind: str = "attack") -> str:
    folder = install({f"vflsec.{kind}s": {"thing": "thing"}}, thing=text)
    with pytest.raises(ConfigError) as caught:
        foreign(kind).get("thing")
    assert str(folder / "thing.py") in str(caught.value)
    return str(caught.value).removeprefix(f"{folder}/thing.py: ")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "infer(self, view, rng)",
            "infer(self, view, seed)",
            "class Thing: infer(self, view, seed) must be infer(self, view, rng).",
        ),
        (
            "infer(self, view, rng)",
            "infer(self, view)",
            "class Thing: infer(self, view) must be infer(self, view, rng).",
        ),
        (
            "infer(self, view, rng)",
            "infer_many(self, views, generators)",
            "class Thing: infer_many(self, views, generators) must be "
            "infer_many(self, views, rngs).",
        ),
        ("infer(", "guess(", "class Thing: must define infer(self, view, rng)."),
        (
            "@dataclass(frozen=True)",
            "@dataclass",
            "class Thing: put @dataclass(frozen=True) below @registry.attack.",
        ),
        (
            "@registry.attack\n@dataclass(frozen=True)",
            "@dataclass(frozen=True)\n@registry.attack",
            "class Thing: put @dataclass(frozen=True) below @registry.attack.",
        ),
        ("Thing(Attack)", "Thing", "class Thing: must derive from vflsec.core.attack.Attack."),
        (
            "pass",
            "needs: frozenset = frozenset({'model'})",
            "class Thing: 'needs' must be a class attribute, got a hyper-parameter. "
            "Annotate it as ClassVar.",
        ),
        ("@registry.attack\n", "", "must register exactly one attack with @registry.attack, "
         "found nothing."),
    ],
)  # fmt: skip
def test_refused_at_registration(install: Install, old: str, new: str, message: str) -> None:
    text = attack_text()
    assert old in text
    assert refused(install, text.replace(old, new)) == message


def test_an_overridden_hook_keeps_its_arguments(install: Install) -> None:
    text = attack_text() + "    def infer_many(self, views, generators):\n        return []\n"
    assert refused(install, text) == (
        "class Thing: infer_many(self, views, generators) must be infer_many(self, views, rngs)."
    )


def test_two_classes_in_one_file(install: Install) -> None:
    text = attack_text()
    second = text[text.index("@registry") :].replace("Thing", "Other")
    assert refused(install, text + second) == (
        "must register exactly one attack with @registry.attack, found Thing, Other."
    )


def test_an_attack_among_the_defenses(install: Install) -> None:
    assert refused(install, attack_text(), "defense") == (
        "must register exactly one defense with @registry.defense, found Thing."
    )


DEFENSE = '''"""Doc."""
from dataclasses import dataclass
from vflsec.plugins import registry
from vflsec.core.policy import Policy
@registry.defense
@dataclass(frozen=True)
class Thing(Policy):
    def {hook}:
        return None
'''


@pytest.mark.parametrize(
    ("hook", "wanted"),
    [
        ("outgoing(self, message)", "outgoing(self, message, own)"),
        ("labels(self, y, own, extra=1)", "labels(self, y, own)"),
        ("penalty(self, x, h, own)", "penalty(self, x, h, y, own)"),
        ("guarantee(self, sigma, facts)", "guarantee(self, strength, facts)"),
    ],
)
def test_hooks_of_a_defense_keep_their_arguments(install: Install, hook: str, wanted: str) -> None:
    message = refused(install, DEFENSE.format(hook=hook), "defense")
    assert message == f"class Thing: {hook.replace('=1', '')} must be {wanted}."


def test_an_algorithm_in_rounds_says_how_many() -> None:
    """It was found where a training asked, as an error of vflsec itself."""
    from dataclasses import dataclass

    from vflsec.plugin import Learner, Rounds, Wire

    @dataclass(frozen=True)
    class Endless(Rounds):
        def start(self, wire: Wire) -> Learner:
            raise NotImplementedError

    with pytest.raises(ConfigError, match=r"Endless: must define rounds\.$"):
        registry.algorithm(Endless)


def test_an_algorithm_needs_both_methods() -> None:
    from dataclasses import dataclass

    with pytest.raises(ConfigError, match=r"class Half: must define phases\(self, fed\)\.$"):

        @registry.algorithm
        @dataclass(frozen=True)
        class Half:
            def build(self, fed: Any) -> None: ...


# Creation

PARAMETERS = """rate: float = 0.5
    steps: int = 3
    way: Literal["sum", "mean"] = "sum"
    sizes: tuple[int, ...] = ()
    pair: tuple[int, float] = (1, 1.0)
    limit: float | None = None
    exact: bool = False
    cap: ClassVar[int] = 3
"""
TYPES = "from typing import ClassVar, Literal"


@pytest.fixture
def known(install: Install) -> Registry:
    install({"vflsec.attacks": {"thing": "thing"}}, thing=attack_text(PARAMETERS, TYPES))
    return foreign()


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, {"rate": 0.5, "limit": None}),
        ({"rate": 1, "steps": 4}, {"rate": 1, "steps": 4}),
        ({"sizes": [1, 2, 3], "pair": [2, 0.5]}, {"sizes": (1, 2, 3), "pair": (2, 0.5)}),
        ({"limit": 2.5, "way": "mean", "exact": True}, {"limit": 2.5, "way": "mean"}),
    ],
)
def test_created_with(known: Registry, params: dict[str, Any], expected: dict[str, Any]) -> None:
    thing = known.create("thing", params)
    assert thing.name == "thing"
    assert {k: getattr(thing, k) for k in expected} == expected


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (
            {"rat": 1.0},
            "attack 'thing' has no parameter 'rat'. Did you mean 'rate'? "
            "Parameters: rate, steps, way, sizes, pair, limit, exact.",
        ),
        ({"rate": "1"}, "attack 'thing': rate must be of type float, got '1'."),
        ({"rate": True}, "attack 'thing': rate must be of type float, got True."),
        ({"steps": 1.5}, "attack 'thing': steps must be of type int, got 1.5."),
        ({"steps": True}, "attack 'thing': steps must be of type int, got True."),
        ({"exact": 1}, "attack 'thing': exact must be of type bool, got 1."),
        ({"limit": "x"}, "attack 'thing': limit must be of type float | None, got 'x'."),
        (
            {"sizes": [1, 2.5]},
            "attack 'thing': sizes must be of type tuple[int, ...], got (1, 2.5).",
        ),
        (
            {"pair": [1, 2.0, 3.0]},
            "attack 'thing': pair must be of type tuple[int, float], got (1, 2.0, 3.0).",
        ),
        ({"pair": [1.5, 2]}, "attack 'thing': pair must be of type tuple[int, float], "
         "got (1.5, 2)."),
        (
            {"way": "men"},
            "attack 'thing': way must be one of 'sum', 'mean', got 'men'. Did you mean 'mean'?",
        ),
        ({"cap": 4}, "attack 'thing' has no parameter 'cap'. Parameters: rate, steps, way, sizes, "
         "pair, limit, exact."),
    ],
)  # fmt: skip
def test_not_created_with(known: Registry, params: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        known.create("thing", params)
    assert str(caught.value) == message


def test_a_parameter_without_default(install: Install) -> None:
    install({"vflsec.attacks": {"thing": "thing"}}, thing=attack_text("rate: float"))
    with pytest.raises(ConfigError, match="attack 'thing' needs the parameter 'rate'"):
        foreign().create("thing")


def test_unknown_name_suggests_the_nearest(known: Registry) -> None:
    with pytest.raises(ConfigError) as caught:
        known.create("thin")
    assert str(caught.value) == ("unknown attack 'thin'. Did you mean 'thing'? There are: thing.")
    with pytest.raises(ConfigError) as caught:
        known.create("zzz")
    assert str(caught.value) == "unknown attack 'zzz'. There are: thing."


def test_unknown_name_may_be_near_an_alias(plugin: Path) -> None:
    with pytest.raises(ConfigError, match=r"Did you mean 'nearest_mean'\?"):
        registry.attacks.entry("nearest_means")


# What the outside package does


def test_the_outside_attack_attacks(plugin: Path) -> None:
    x = torch.tensor([[-2.0], [2.0], [-1.5], [1.0], [3.0], [-0.5]])
    view = View(
        adversary=("bank",),
        columns={"bank": x},
        present={"bank": torch.ones(6, dtype=torch.bool)},
        schema={"bank": Schema(("x",), (0,), (1,))},
        tables={},
        models={"bank": {"bottom": torch.nn.Identity()}},
        facts=Facts("splitnn", "train", "shop", ("shop", "bank"), 2),
        targets={"train": torch.tensor([2, 3]), "test": torch.tensor([4, 5])},
        known=Known(torch.tensor([0, 1]), torch.tensor([0, 1])),
    )
    attack = registry.attacks.create("mean_embedding", {"temperature": 2.0})
    guess = attack.infer(view, torch.Generator())
    # -(x-2)^2 + (x+2)^2 = 8x, over the temperature
    expected = {2: -6.0, 3: 4.0, 4: 12.0, 5: -2.0}
    assert dict(zip(guess.rows.tolist(), guess.scores.tolist(), strict=True)) == expected
    with pytest.raises(ConfigError, match=r"temperature must be a finite number > 0, got 0\.0"):
        registry.attacks.create("mean_embedding", {"temperature": 0.0})


def test_the_outside_defense_defends(plugin: Path) -> None:
    defense = registry.defenses.create("sign_only")
    g = torch.tensor([[[1.0, -3.0]], [[1.0, -3.0]], [[1.0, -3.0]]])
    message = Message("gradient", "shop", "bank", g, torch.zeros(3, 1, dtype=torch.int64))
    strength = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    own = Own("shop", strength, Streams([0, 1, 2], "sign_only"))
    sent = defense.outgoing(message, own)
    assert sent.tolist() == [[[1.0, -3.0]], [[1.5, -2.5]], [[2.0, -2.0]]]
    assert sent.dtype == g.dtype
    other = Message("signal", "shop", "bank", g)
    assert defense.outgoing(other, own) is g


def test_the_outside_data_set_loads(plugin: Path) -> None:
    blobs = registry.datasets.create("two_blobs", {"n": 400, "gap": 2.0})
    source = blobs.load(3)
    assert np.bincount(source.y).tolist() == [200, 200]
    means = [source.parties["passive"].values[source.y == c].mean(0) for c in (0, 1)]
    assert np.abs(means[1] - means[0] - 2.0).max() < 5 * np.sqrt(2 / 200)
    again = blobs.load(3)
    assert np.array_equal(source.parties["active"].values, again.parties["active"].values)


def test_kinds_of_messages_are_held_to_those_that_there_are() -> None:
    from vflsec.core.algorithm import Algorithm
    from vflsec.core.attack import Attack
    from vflsec.core.policy import Policy

    class Misspelt(Policy):
        covers = frozenset({"gradients"})

    class Elsewhere(Policy):
        owner = "bank"

    class Asks(Attack):
        needs = frozenset({"sent.embeddings:last"})

        def params(self) -> dict[str, object]:
            return {}

    class Listed(Algorithm):
        sends: Any = (("gradient", "active", "passive"),)

    class Paired(Algorithm):
        sends: Any = frozenset({("gradient", "active")})

    class Unknown(Algorithm):
        sends = frozenset({("gradients", "active", "passive")})

    class Right(Algorithm):
        sends: Any = {("gradient", "active", "passive")}

    made: Any
    Right.check_declared(Right())
    for made, what in (
        (Misspelt(), "gradients"), (Elsewhere(), "bank"), (Asks(), "embeddings"),
        *((of(), "sends must") for of in (Listed, Paired)),
        (Unknown(), "gradients"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=what):
            made.check_declared()
