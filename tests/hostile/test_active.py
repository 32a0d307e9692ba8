"""An active attacker that breaks the training it acts in: the error is its own alone."""

from __future__ import annotations

import sys
from pathlib import Path

import plugins
import pytest
from packages import packaged
from sound import NORM, PACKAGED, QUICK

from vflsec import run_audit
from vflsec.attacks import gradient_replacement
from vflsec.config.scenario import load_scenario
from vflsec.data.load import load_source
from vflsec.data.prepare import make_task
from vflsec.engine.cohort import run_cohort
from vflsec.engine.dry_run import make_plan

SCENARIO = PACKAGED + NORM + QUICK + "[[gate]]\nmax = 0.4\n"
POLICY = """
from vflsec.core.policy import Policy


class Acting(Policy):
    covers = frozenset({"gradient"})
    owner = "passive"

    def incoming(self, message, own%s):
        %s


"""
# name: (another argument of `incoming`, its body, words in the reason)
BODIES = {
    "p_raises": ("", 'return {}["lost"]', "p_raises.py:"),
    "p_none": ("", "return None", "'NoneType'"),
    "p_shape": ("", "return message.tensor[..., :1]", "it acts: "),
    "p_arguments": (", more", "return message.tensor", "TypeError"),
    "p_in_place": ("", "return message.tensor.add_(1)", "in place"),
    "p_draws": ("", "return message.tensor + torch.randn(())", "global random numbers"),
    "p_memory": ("", "raise MemoryError", "does not fit the memory"),
}


def test_a_plug_in_s_policy_that_breaks_a_training_is_an_error_of_that_attack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = plugins.with_lines("def policy(self): return Acting()")
    modules = {}
    for name, (more, body, _) in BODIES.items():
        before, mark, after = source.partition("@registry.attack")
        modules[name] = before + POLICY % (more, body) + mark + after
    packaged(monkeypatch, tmp_path, "attack", modules)
    path = tmp_path / "case.toml"
    path.write_text(SCENARIO + "".join(f"[[attack]]\nname = '{n}'\n" for n in modules))
    try:
        found = run_audit(path, tmp_path / "out")
    finally:
        for name in modules:
            sys.modules.pop(name, None)
    frame = found.results
    for name, (_, _, words) in BODIES.items():
        rows = frame[frame.attack == name]
        assert list(rows.status) == ["error"] * 2, name  # one for each seed
        assert words in rows.reason.iloc[0]
        if name not in ("p_raises", "p_memory"):
            assert rows.reason.iloc[0].startswith(f"attack '{name}' broke the training in which")
    assert set(frame[frame.attack == "norm"].status) == {"ok"}
    assert found.exit_code == 3
    assert found.summary["complete"]


def _fails(*_: object) -> None:
    raise ValueError("lost")


def test_so_is_one_of_a_packaged_attack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradient_replacement.Trigger, "incoming", _fails)
    path = tmp_path / "case.toml"
    path.write_text(SCENARIO + '[[attack]]\nname = "gradient_replacement"\n')
    frame = run_audit(path, tmp_path / "out").results
    assert set(frame[frame.attack == "gradient_replacement"].reason) == {
        "attack 'gradient_replacement' broke the training in which it acts: ValueError: lost."
    }
    assert set(frame[frame.attack == "norm"].status) == {"ok"}


def test_what_comes_out_of_telling_progress_is_no_error_of_an_attack(tmp_path: Path) -> None:
    path = tmp_path / "case.toml"
    path.write_text(SCENARIO + '[[attack]]\nname = "gradient_replacement"\n')
    plan = make_plan(load_scenario(path), try_out=False, load=load_source)
    group = next(g for g in plan.groups if g.attacks and g.attacks[0].name != "norm")
    tasks = {
        c.seed: make_task(load_source(group.data.source, c.seed, tmp_path), c.seed,
                          **group.data.split)
        for c in group.cells
    }  # fmt: skip

    def stop(what: str, share: float) -> None:
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        run_cohort(group.cells, group.attacks, tasks, device="cpu", progress=stop, main=False)
