"""Forty-odd plug-ins that break: each is told by name and place, and everything else goes on."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import plugins
import pytest
from command_line import Cli
from packages import packaged
from sampled import sampled
from sound import PACKAGED, QUICK

from vflsec import run_audit
from vflsec.cli import main

EVERY = {**plugins.BODIES, **plugins.CLASSES}
SLOW_DEFENSES = [n for n in plugins.DEFENSES if n not in ("d_noisy_at_zero", "d_exits")]
FEW = (
    "key_error", "sys_exit", "os_exit", "base_exception", "markup_message", "sleeps",
    "returns_none", "half_the_rows", "nan_scores", "changes_columns", "draws_from_torch",
    "notes_objects", "many_none", "declines_raises",
)  # fmt: skip


def scenario(folder: Path, more: str) -> Path:
    """A quick scenario with more sections."""
    path = folder / "case.toml"
    path.write_text(f"{PACKAGED}{more}\n{QUICK}timeout = 1\n")
    return path


@pytest.fixture(scope="module", params=[FEW, pytest.param(tuple(EVERY), marks=pytest.mark.slow)])
def audited(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Any]]:
    """One audit with faulty attacks, those that spoil, and one that is sound."""
    folder = tmp_path_factory.mktemp("faulty")
    modules = {}
    for name in request.param:
        body, extra = plugins.BODIES.get(name), plugins.CLASSES.get(name)
        modules[name] = (
            plugins.ATTACK.format(extra="", body=body[0]) if body else plugins.with_lines(extra[0])
        )
    for name, body in plugins.SPOILERS.items():
        modules[name] = plugins.ATTACK.format(extra="", body=body)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORK_LOG", str(folder / "forks"))
        patch.chdir(folder)
        packaged(patch, folder, "attack", modules)
        before = set(sys.modules)
        sound = '[[attack]]\nname = "norm"\n'
        wanted = run_audit(scenario(folder, sound), "alone")
        many = "".join(f'[[attack]]\nname = "{name}"\n' for name in sorted(modules))
        path = scenario(folder, many + sound + "[[gate]]\nmax = 0.4\n")
        here, pid = os.getcwd(), os.getpid()
        found = run_audit(path, "out")
        assert (os.getcwd(), os.getpid()) == (here, pid)
        yield {"found": found, "alone": wanted, "folder": folder, "faulty": request.param}
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
                del sys.modules[name]


def test_a_faulty_attack_is_an_error_with_its_name(audited: dict[str, Any]) -> None:
    frame = audited["found"].results
    for name in audited["faulty"]:
        rows = frame[frame.attack == name]
        assert len(rows) == 2, name  # one for each seed
        assert set(rows.status) == {"error"}, name
        assert rows.value.isna().all(), name
        reason = str(rows.reason.iloc[0])
        assert EVERY[name][1] in reason, name
        assert len(reason) < 1500, name
        assert "Traceback" not in reason, name


def test_there_are_forty() -> None:
    count = len(EVERY) + len(plugins.SPOILERS) + len(plugins.MODULES) + len(plugins.DEFENSES)
    assert count >= 60


def test_raised_errors_say_where(audited: dict[str, Any]) -> None:
    frame = audited["found"].results
    for name in ("key_error", "sys_exit", "os_exit", "base_exception"):
        reason = str(frame[frame.attack == name].reason.iloc[0])
        assert f"{name}.py:" in reason


def test_a_sound_attack_is_none_the_worse(audited: dict[str, Any]) -> None:
    """What a plug-in does to its view, in place, reaches no other attack and no figure."""
    columns = ["seed", "attack", "phase", "split", "metric", "value", "control_value",
               "controls"]  # fmt: skip
    tables = []
    for key in ("alone", "found"):
        frame = audited[key].results
        frame = frame[frame.attack.isin(["", "norm"])][columns]
        tables.append(frame.sort_values(columns[:5]).reset_index(drop=True))
    assert len(tables[0]) > 10
    assert tables[0].equals(tables[1])


def test_a_failed_attack_cannot_pass(audited: dict[str, Any]) -> None:
    found = audited["found"]
    assert found.exit_code == 3
    assert {v.verdict for v in found.verdicts} == {"INCONCLUSIVE"}
    assert found.summary["complete"]


def test_a_fork_does_not_run_the_audit_twice(audited: dict[str, Any]) -> None:
    """A child ends with its attack: each time at most six copies were ever there.

    The attack is made of two cells and, as others find no room beside both, of each by itself; and
    once more of each as its own control.
    """
    assert 2 <= len((audited["folder"] / "forks").read_bytes()) <= 5 * 6
    assert audited["found"].summary["cells"] == {"planned": 2, "finished": 2}


def test_a_timeout_is_stated(audited: dict[str, Any]) -> None:
    text = (audited["folder"] / "out" / "report.html").read_text()
    assert "took longer than its timeout of" in text
    assert "<script>alert(1)</script>" not in text


@pytest.mark.parametrize("name", sampled(plugins.MODULES, every=6))
def test_a_module_that_cannot_be_used_ends_check(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    text, words = plugins.MODULES[name]
    packaged(monkeypatch, tmp_path, "attack", {name: text})
    err = cli.refuses("check", scenario(tmp_path, f'[[attack]]\nname = "{name}"\n'))
    assert words in err
    assert f"{name}.py" in err or f"attack {name}: " in err


@pytest.mark.parametrize("name", sampled(["d_noisy_at_zero", "d_exits", *SLOW_DEFENSES], 2))
def test_a_faulty_defense_ends_the_audit_with_its_place(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    body, words = plugins.DEFENSES[name]
    packaged(monkeypatch, tmp_path, "defense", {name: plugins.DEFENSE.format(extra="", body=body)})
    more = f'[[attack]]\nname = "norm"\n[[defense]]\nname = "{name}"\nstrength = [0, 0.5]\n'
    err = cli.refuses("audit", scenario(tmp_path, more), "--out", tmp_path / "out", "-q")
    assert words in err
    assert name in err


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        *(("attack", n, "must name a module by letters, digits and underscores") for n in
          ("a b", "a-b", "norm(x=1)", "norm, direct", "a+b", "*", "<b>", "x\u202ey", "=1")),
        ("defense", "none", "and not 'none'"),
        ("defense", "defended", "and not 'defended'"),
        ("attack", "norm", "two attacks are called 'norm'"),
    ],
)  # fmt: skip
def test_a_name_that_cannot_be_used_is_told(
    kind: str, name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    """One such package, used or not, ended every command in an internal error; and a defense that
    is called none was judged as the undefended run.
    """
    text = plugins.ATTACK.format(extra="", body="pass")
    text = text if kind == "attack" else plugins.DEFENSE.format(extra="", body="return None")
    packaged(monkeypatch, tmp_path, kind, {name: text})
    err = cli.refuses("list", f"{kind}s")
    assert words in err
    assert repr(name).strip("'") in err


def test_a_new_source_is_a_new_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An edited plug-in was taken for the old one: nothing was measured again."""
    from vflsec.config.scenario import load_scenario
    from vflsec.plan.planner import make_plan
    from vflsec.plugins import loading as guarded
    from vflsec.plugins.registry import attacks

    monkeypatch.setattr(guarded, "CHECKOUT", False)
    text = plugins.ATTACK.format(extra="", body="pass")
    packaged(monkeypatch, tmp_path, "attack", {"edited": text})
    path = scenario(tmp_path, '[[attack]]\nname = "edited"\n')
    first = attacks.entry("edited").code
    assert len(first) == 24
    (tmp_path / "edited.py").write_text(plugins.ATTACK.format(extra="", body="1"))
    second = attacks.entry("edited").code
    assert second != first
    (tmp_path / "faulty-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: faulty\nVersion: 1.1\n"
    )
    assert attacks.entry("edited").code not in (first, second)
    plan = make_plan(load_scenario(path))
    assert {a.code for g in plan.groups for a in g.attacks} == {attacks.entry("edited").code}
    assert {c.code for g in plan.groups for c in g.cells} == {""}
    (tmp_path / "edited.py").write_text(plugins.ATTACK.format(extra="", body="2"))
    assert main.main(["check", str(path)]) == 2  # this process has imported the old one


@pytest.mark.slow
def test_an_edited_module_of_a_party_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module that was edited, and then leaked, was given the PASS of the one before."""
    from audited import SCENARIO as PLANTED
    from audited import Planted, gate

    from vflsec.engine import run
    from vflsec.plugins import loading

    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "case.toml"
    path.write_text(PLANTED + gate(max=0.25) + '[parties.shop]\nmodule = "mine:Net"\n')
    for norm, edit, code in ((0.2, "", 0), (0.4, "  # edited", 1)):
        sys.modules.pop("mine", None)
        monkeypatch.setattr(loading, "_known", {})  # as in a new process
        net = "import torch\ndef Net(schema, out): return torch.nn.Linear(schema.shape[0], out)"
        (tmp_path / "mine.py").write_text(f"{net}{edit}\n")
        planted = Planted({"norm": norm, "model_completion": 0.2})
        monkeypatch.setattr(run, "default_backend", planted.backend)
        args = ["audit", str(path), "--out", str(tmp_path / "out"), "-q"]
        assert main.main(args) == code
    sys.modules.pop("mine", None)


def test_a_folder_without_init_below_a_package_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module ``pkg.sub.mine`` whose folder ``sub`` has no __init__.py ended with exit 4."""
    from vflsec.plugins.loading import hash_source

    (tmp_path / "outer_pkg" / "sub").mkdir(parents=True)
    (tmp_path / "outer_pkg" / "__init__.py").write_text("")
    mine = tmp_path / "outer_pkg" / "sub" / "mine.py"
    mine.write_text("x = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    first = hash_source(["outer_pkg.sub.mine"])
    assert len(first) == 24
    mine.write_text("x = 2\n")
    assert hash_source(["outer_pkg.sub.mine"]) not in ("", first)


def test_an_edited_component_of_a_checkout_is_a_new_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``vflsec new attack`` writes into attacks/ there: edited, it kept its earlier figures."""
    from vflsec.config.scenario import load_scenario
    from vflsec.plan.planner import make_plan
    from vflsec.plugins import loading as guarded
    from vflsec.plugins.registry import attacks

    assert guarded.CHECKOUT
    plan = make_plan(load_scenario(scenario(tmp_path, '[[attack]]\nname = "norm"\n')))
    assert {a.code for g in plan.groups for a in g.attacks} == {attacks.entry("norm").code}
    assert len(attacks.entry("norm").code) == 24
    assert all(len(c.code) == 24 for g in plan.groups for c in g.cells)

    folder = tmp_path / "ours_here"
    (folder / "attacks").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "nn.py").write_text("x = 1\n")
    (folder / "attacks" / "_part.py").write_text("y = 1\n")
    mine = folder / "attacks" / "mine.py"
    mine.write_text("from ours_here import nn\nfrom ours_here.attacks import _part\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(guarded, "_OURS", "ours_here")
    seen = [guarded.hash_source(["ours_here.attacks.mine"])]
    (folder / "nn.py").write_text("x = 2\n")  # the core, which the version stands for
    assert guarded.hash_source(["ours_here.attacks.mine"]) == seen[0]
    for edited in (mine, folder / "attacks" / "_part.py"):
        edited.write_text(edited.read_text() + "z = 1\n")
        seen.append(guarded.hash_source(["ours_here.attacks.mine"]))
    assert len({*seen, ""}) == 4
    monkeypatch.setattr(guarded, "CHECKOUT", False)
    assert guarded.hash_source(["ours_here.attacks.mine"]) == ""


def test_packaged_components_have_no_code_in_their_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the package is installed, its version stands for them."""
    from vflsec.plugins import loading as guarded
    from vflsec.plugins.registry import attacks, defenses
    from vflsec.specs import AttackSpec, CellSpec, hash_value

    monkeypatch.setattr(guarded, "CHECKOUT", False)
    assert attacks.entry("norm").code == defenses.entry("iso").code == ""
    spec = AttackSpec("norm", {}, ("b",), timeout=7.0)
    assert spec.key == AttackSpec("norm", {}, ("b",)).key == "e63775a581e4602b1ffc51db"
    assert CellSpec({"name": "x", "digest": "d"}, "splitnn").cohort == "4445325868423c111898959a"
    assert CellSpec({}, "a", code="x").key != CellSpec({}, "a").key
    assert hash_value({"a": 1}) == hash_value({"a": 1})
