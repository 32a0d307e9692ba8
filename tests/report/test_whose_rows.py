"""Whether it leaks is asked of every row that an attack guesses, training rows among them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from audited import SCENARIO, Planted
from printed import above_appendix, answers, claims, html, markdown_summary

from vflsec.engine.run import run_audit


def test_a_leak_of_training_rows_alone_is_the_answer_and_on_the_page_to_sign(
    tmp_path: Path,
) -> None:
    """Both said that no leak is shown, of a system whose every training label is told."""
    planted = Planted({"norm": 0.4, "model_completion": 0.02})

    def both(cells: Any, attacks: Any, tasks: Any, **how: Any) -> Any:
        made = planted(cells, attacks, tasks, **how)
        for of in made:
            found = [m for m in of.measures if m.attack == "norm"]
            of.measures += [replace(m, split="test", value=0.55 + 0.01 * of.spec.seed)
                            for m in found]  # fmt: skip
        return made

    backend = replace(planted.backend(), run_cohort=both)
    (tmp_path / "case.toml").write_text(SCENARIO, encoding="utf-8")
    found = run_audit(tmp_path / "case.toml", tmp_path / "out", backend=backend).summary
    assert claims(found)["leakage", "labels of bank to shop", 0.0] == "significant"
    assert "+0.39 of AUC [" in answers(found)["How much, to whom?"]
    assert "shop labels of bank Can infer it" in above_appendix(found)
    assert "norm on train rows" in markdown_summary(found)
    assert "norm on train rows" in html(found)
