"""Audits of traces: which attacks are made, on which rows, and what is said of the others."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import Cli
from simulated import simulate
from trace_audits import audit, first_of_each, record, signs

from vflsec.audit.scoring import score_answer
from vflsec.core.source import Given
from vflsec.engine.trace_attacks import infer, score, specs_for
from vflsec.errors import ConfigError, Remediable, VflsecError, drop_remedy
from vflsec.measure.attack import Bench
from vflsec.measure.guess_files import thaw
from vflsec.measure.prepared import prepare
from vflsec.plugins import registry
from vflsec.report.exports import load_summary
from vflsec.report.notebook import Audit
from vflsec.specs import AttackSpec
from vflsec.testing.worlds import small_task
from vflsec.trace.limits import TRUSTED
from vflsec.trace.manifest import Run
from vflsec.trace.reader import Trace
from vflsec.trace.truth import read_truth, write_truth
from vflsec.trace.views import Evidence

P = ("passive1",)
SPECS = [AttackSpec(n, adversary=P, known_rows=20) for n in ("norm", "direction")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("audited")
    for seed in (0, 1):
        run = Run(dataset="small", algorithm="splitnn", seed=seed)
        simulate(where / f"trace-{seed}", SPECS, seed=seed, run=run)
    return where


def test_the_attack_side_opens_no_truth(folder: Path, tmp_path: Path) -> None:
    """With the truth gone, or a lie in its place, the guesses are the same."""
    import shutil

    blind = tmp_path / "trace"
    shutil.copytree(folder / "trace-0", blind)
    shutil.rmtree(blind / "truth")
    a = infer([folder / "trace-0"], tmp_path / "a", attacks=("direction",), limits=TRUSTED)
    b = infer([blind], tmp_path / "b", attacks=("direction",), limits=TRUSTED)
    assert (a / "answers.json").read_bytes() == (b / "answers.json").read_bytes()
    write_truth(blind, np.arange(240), np.zeros(240, int))
    c = infer([blind], tmp_path / "c", attacks=("direction",), limits=TRUSTED)
    assert (a / "answers.json").read_bytes() == (c / "answers.json").read_bytes()


def test_frozen_guesses_come_back_as_they_were(folder: Path, tmp_path: Path) -> None:
    where = infer([folder / "trace-0"], tmp_path / "g", attacks=("norm", "output"), limits=TRUSTED)
    frozen = thaw(where)
    norm, output = frozen.answers[0]
    assert norm.guess is not None
    assert norm.guess.scores.ndim == 1
    assert {"majority", "logistic", "scratch"} <= {c.name for c in norm.controls()}
    assert output.guess is None
    assert output.status == "not-observable"
    assert "'prediction' messages" in output.reason


def test_each_attack_on_each_trace_is_told_with_the_share_done(
    folder: Path, tmp_path: Path
) -> None:
    told: list[tuple[str, float]] = []
    traces = [folder / "trace-0", folder / "trace-1"]
    infer(
        traces, tmp_path / "g", attacks=("norm", "direction"), limits=TRUSTED,
        progress=lambda text, share: told.append((text, share)),
    )  # fmt: skip
    for i, trace in enumerate(traces):
        made = [share for text, share in told if str(trace) in text]
        assert made == pytest.approx([(i + k / len(made)) / 2 for k in range(len(made))])
        assert len(made) >= 2


@pytest.mark.parametrize(("positives", "status"), [(1, "not-applicable"), (5, "ok")])
def test_what_a_recording_cannot_grant_any_more_is_not_applicable(
    tmp_path: Path, positives: int, status: str
) -> None:
    """It was an error, which kept every gate open with advice that nobody can follow."""
    y = np.arange(80) % 2
    known = np.r_[np.nonzero(y == 1)[0][:positives], np.nonzero(y == 0)[0][:5]]
    with record(tmp_path / "t", y, known) as rec:
        for rows in torch.randperm(80, generator=torch.Generator().manual_seed(0)).split(20):
            rec.cut(torch.randn(20, 3).requires_grad_() * 1, rows).backward(signs(y, rows, 3))
    found = audit(tmp_path, [tmp_path / "t"], ("hints", "direction"), y).results
    by_attack = found.drop_duplicates("attack").set_index("attack")["status"]
    assert (by_attack["hints"], by_attack["direction"]) == (status, "ok")


def test_what_was_not_recorded_is_not_called_safe(tmp_path: Path) -> None:
    """Embeddings only, no grants: gradient attacks are not observable, and a gate is open."""
    with record(tmp_path / "t", rows=40, classes=2) as rec:
        for rows in torch.arange(40).split(8):
            rec.cut(torch.randn(8, 3), rows)
    result = audit(tmp_path, [tmp_path / "t"], (), np.arange(40) % 2, gates=[{"max": 0.05}])
    assert result.exit_code == 3
    by_attack = result.results.set_index("attack")["status"]
    assert by_attack["norm"] == "not-observable"
    assert by_attack["model_completion"] == "not-applicable"
    assert not (result.results.status == "ok").any()


def test_why_an_attack_cannot_be_made_on_a_trace_names_no_setting(
    folder: Path, tmp_path: Path
) -> None:
    """The same attacks on a training of one's own are told what to set."""
    names = ("direct", "residual", "value_completion")
    made = {n: registry.attacks.create(n) for n in names}
    facts = Evidence(Trace.open(folder / "trace-0"), [(SPECS[0], made["direct"])]).facts
    where = infer([folder / "trace-0"], tmp_path / "g", attacks=names, limits=TRUSTED)
    answers = thaw(where).answers[0]
    assert [a.status for a in answers] == ["not-applicable"] * 3
    for a in answers:
        why = made[a.of.spec.name].pointless(facts)
        assert isinstance(why, Remediable)
        assert a.reason == drop_remedy(why)
        assert len(a.reason) < len(why)


def test_every_passive_attack_is_asked(folder: Path) -> None:
    specs = specs_for([Trace.open(folder / "trace-0")])
    names = {s.name for s in specs}
    assert {"norm", "direction", "cluster", "output", "grn", "attribute"} <= names
    active = {
        "active_completion", "fsha", "gradient_replacement", "replay", "swap_probe", "villain",
    }  # fmt: skip
    assert not names & active
    assert {s.known_rows for s in specs} == {20}


def test_truth_of_another_trace(folder: Path, tmp_path: Path) -> None:
    guesses = infer([folder / "trace-0"], tmp_path / "g", attacks=("norm",), limits=TRUSTED)
    write_truth(tmp_path / "far", [1000], [1])
    with pytest.raises(VflsecError, match="the truth: row ids must be 0 to"):
        score(guesses, [tmp_path / "far"], tmp_path / "o")
    write_truth(tmp_path / "many", [0], [7])
    with pytest.raises(VflsecError, match=r"labels of the truth must be 0 to .*, got 7"):
        score(guesses, [tmp_path / "many"], tmp_path / "o2")
    with pytest.raises(ConfigError, match="--truth must be one or"):
        score(guesses, [tmp_path / "far"] * 3, tmp_path / "o3")


@pytest.mark.slow
def test_nothing_is_passed_unjudged_or_overwritten(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    """A gate without a truth, a misspelt one and an empty file of gates ended with 0 or 3."""
    trace, out = folder / "trace-0", tmp_path / "o"
    guesses = infer([trace], tmp_path / "g", attacks=("norm",), limits=TRUSTED)
    told: list[str] = []
    with pytest.raises(ConfigError, match="is not empty"):  # before any attack is made
        infer([trace], guesses, limits=TRUSTED, progress=lambda text, _: told.append(text))
    assert told == []
    with pytest.raises(ConfigError, match="Did you mean 'norm'"):
        score(guesses, [trace], out, gates=[{"max": 0.05, "attack": "nrom"}])
    with pytest.raises(ConfigError, match="the most that auc can reach, got 0"):
        score(guesses, [trace], out, gates=[{"max": 0.6}])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "results.csv").write_text("mine")
    with pytest.raises(ConfigError, match="was not written by vflsec"):
        score(guesses, [trace], tmp_path / "mine")
    assert (tmp_path / "mine" / "results.csv").read_text() == "mine"
    (tmp_path / "gates.toml").write_text("[[gates]]\nmax = 0.05\n")
    (tmp_path / "wrong.toml").write_text("[[gate]]\nmax = 0.6\n[[gate]]\nmax = 0.1\nof = 'au'\n")
    (tmp_path / "mine.py").write_text("import os\nos._exit(0)\n")
    monkeypatch.chdir(tmp_path)
    for options, words in (
        (["--blind", "--max", "0.05"], "need the truth of every trace"),
        (["--gates", "gates.toml"], "gates.toml: gate is missing."),
        (["--gates", "wrong.toml"], "wrong.toml:5: gate.1.of must be one of"),
        (["--max", "1"], "can reach"),
        (["--metric", "auc"], "--metric: each needs --max"),
        (["--model", "passive1=mine:Net"], "os._exit(0)"),
        (["--model", "passive1=os:_exit:x"], "cannot be imported"),
        (["--model", "x"], "--model must be"),
        (["--attack", "nrom"], "norm"),
        ([str(trace)], "seed 0"),
    ):
        assert words in cli.refuses("trace", "audit", trace, "--out", out, *options)
    assert not out.exists()
    guess = next(guesses.glob("guess-*.parquet"))
    guess.write_bytes(guess.read_bytes()[:-1] + b"!")
    for command, words in (
        (["validate", str(tmp_path)], "manifest.json"),
        (["info", str(tmp_path / "none")], "is no folder"),
        (["score", str(tmp_path), "--truth", str(tmp_path)], "answers.json: is missing"),
        (["score", str(guesses), "--truth", str(trace), "--out", str(out)], "was changed"),
        (["seal", str(trace)], "is sealed already"),
    ):
        assert words in cli.refuses("trace", *command)


def test_truth_is_checked_too(folder: Path, tmp_path: Path) -> None:
    base = write_truth(tmp_path, np.arange(4), np.arange(4) % 2)
    assert read_truth(tmp_path).labels.values.tolist() == [0, 1, 0, 1]
    data = bytearray((base / "labels.parquet").read_bytes())
    data[40] ^= 1
    (base / "labels.parquet").write_bytes(bytes(data))
    with pytest.raises(VflsecError, match="another hash"):
        read_truth(tmp_path)


def test_a_truth_that_names_a_row_twice_is_not_written(tmp_path: Path) -> None:
    """The label owner heard of it from `score` only."""
    with pytest.raises(ConfigError, match="each row once"):
        write_truth(tmp_path, [0, 1, 1], [0, 1, 0])
    assert not list(tmp_path.iterdir())


def test_traces_of_two_systems(folder: Path, tmp_path: Path) -> None:
    with record(tmp_path / "t", rows=4):
        pass
    with pytest.raises(ConfigError, match="parties and classes must be"):
        infer([folder / "trace-0", tmp_path / "t"], tmp_path / "g", limits=TRUSTED)


@pytest.mark.usefixtures("read_in_forks")
def test_info_and_validate_say_it_in_json(folder: Path, cli: Cli) -> None:
    told = json.loads(cli.says("trace", "info", folder / "trace-0", "--json"))
    assert told["status"] == "sealed"
    assert told["observers"]["passive1"]["known_rows"] == 20
    assert cli("trace", "validate", folder / "trace-0", "--json") == 0
    assert json.loads(cli.out)["messages"]["passive1"] == 22
    assert "gradient from active to passive1: 6 messages, all" in cli.says(
        "trace", "info", folder / "trace-0"
    )


def test_record_a_scenario(tmp_path: Path, cli: Cli) -> None:
    scenario = tmp_path / "s.toml"
    scenario.write_text(
        '[data]\nname = "breast_cancer"\n[algorithm]\nname = "splitnn"\nepochs = 1\n'
        '[[defense]]\nname = "iso"\nstrength = [0.0, 1.0]\n[[attack]]\nname = "norm"\n'
        "[audit]\nseeds = 1\n"
    )
    out = tmp_path / "traces"
    assert cli("trace", "record", scenario, "--party", "passive", "--out", out) == 0
    found = sorted(out.iterdir())
    assert len(found) == 2
    runs = [Trace.open(f).manifest.run for f in found]
    assert {r.strength for r in runs} == {0.0, 1.0}
    assert {r.defense for r in runs} == {"iso"}
    assert all(Trace.open(f).observers == ("passive",) for f in found)
    assert "Wrote" in cli.out


def test_traces_of_quantities_are_refused(tmp_path: Path, cli: Cli) -> None:
    scenario = tmp_path / "s.toml"
    scenario.write_text(
        '[data]\nname = "quantity_gaussian"\n[algorithm]\nname = "splitnn"\nepochs = 1\n'
        '[[attack]]\nname = "residual"\n[audit]\nseeds = 1\n'
    )
    assert "the label is a quantity" in cli.refuses(
        "trace", "record", scenario, "--out", tmp_path / "t"
    )


def test_without_own_columns_the_majority_is_the_only_control(tmp_path: Path) -> None:
    y = np.arange(80) % 2
    with record(tmp_path / "t", y, np.arange(10), prior=(0.5, 0.5), grad_scale=None) as rec:
        for rows in torch.arange(80).split(16):
            rec.cut(torch.randn(16, 3).requires_grad_(), rows).backward(signs(y, rows, 3))
    names = ("direction", "norm", "model_completion", "gradient_completion", "joint_completion")
    result = audit(tmp_path, [tmp_path / "t"], names, y)
    frozen = thaw(tmp_path / "g")
    assert any("only baseline is the class majority" in n for n in frozen.notes)
    found = {a.of.spec.name: a for a in frozen.answers[0]}
    assert [c.name for c in found["direction"].controls()] == ["majority"]
    assert not [a.reason for a in frozen.answers[0] if a.status == "error" and "Key" in a.reason]
    row = result.results.query("attack == 'direction' and metric == 'auc'").iloc[0]
    assert (row["value"], row["control"], row["n"]) == (1.0, "majority", 70)


@pytest.mark.slow
def test_columns_need_not_have_the_models_number_type(tmp_path: Path) -> None:
    """Tables are float64 and models float32: such traces were an internal error."""
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 2, generator=g), np.arange(60) % 2
    bottom = torch.nn.Linear(2, 3)
    write_truth(tmp_path / "y", np.arange(60), y)
    found = []
    for kind in (torch.float32, torch.float64):
        at = tmp_path / str(kind)
        of = {"prior": (0.5, 0.5), "columns": x.to(kind)}
        with record(at / "t", y, np.arange(10), **of) as rec:
            rec.model(bottom, bottom.state_dict())
            rec.cut(bottom(x), torch.arange(60)).backward(signs(y, np.arange(60), 3))
        guesses = infer([at / "t"], at / "g", attacks=("direction", "model_completion"))
        result = score(guesses, [tmp_path / "y"], at / "o").results.query("metric == 'auc'")
        found.append(result.set_index("attack")[["value", "control_value"]])
    assert found[0].loc["direction", "value"] == 1.0
    np.testing.assert_allclose(found[0], found[1], atol=0.01)


def test_a_joined_trace_tells_what_parties_know_together(tmp_path: Path, cli: Cli) -> None:
    """Each of two parties holds half of a secret; only both together find it.

    The gradient of one is label plus noise, that of the other the same noise.
    """
    g = np.random.default_rng(0)
    y = (g.random(200) < 0.5).astype(int)
    mask = g.normal(scale=30, size=(200, 1)).astype(np.float32)
    half = {"east": mask, "west": (y[:, None] * 2 - 1) - mask}
    roles = {"shop": "active", "east": "passive", "west": "passive"}
    for party, gradient in half.items():
        how = {"party": party, "parties": roles, "prior": (0.5, 0.5)}
        columns = g.normal(size=(200, 2))
        with record(tmp_path / party, y, first_of_each(y, 15), columns=columns, **how) as rec:
            for rows in torch.arange(200).split(50):
                z = rec.cut(torch.zeros(50, 1).requires_grad_(), rows)
                z.backward(torch.from_numpy(gradient.astype(np.float32))[rows])
    write_truth(tmp_path / "y", np.arange(200), y)
    both, out = str(tmp_path / "both"), str(tmp_path / "o")
    sides = [str(tmp_path / p) for p in half]
    assert cli("trace", "join", *sides, "--out", both) == 0
    args = ["--attack", "gradient_completion", "--attack", "similarity", "--truth",
            str(tmp_path / "y"), "--out", out]  # fmt: skip
    assert cli("trace", "audit", both, "--together", "east+west", *args) == 0
    points = load_summary(tmp_path / "o")["points"]
    auc = {(p["adversary"], p["attack"]): p["value"] for p in points if p["metric"] == "auc"}
    assert auc["east", "similarity"] < 0.7
    assert auc["west", "similarity"] < 0.7
    assert max(v for (who, _), v in auc.items() if who == "east+west") > 0.9
    for bad, words in (
        (["join", sides[0], sides[0], "--out", str(tmp_path / "n")], "are both of east"),
        (["join", sides[0], "--out", str(tmp_path / "n")], "two or more"),
        (["join", *sides, "--out", both], "is not empty"),
        (["audit", both, "--together", "east+shop", "--out", str(tmp_path / "m")], "together must"),
    ):
        assert words in cli.refuses("trace", *bad)


A = ("active",)
HIDDEN = [
    AttackSpec("attribute", adversary=A, known_rows=20, aux_rows=40),
    AttackSpec("embedding_inversion", adversary=A, known_rows=20, aux_rows=40),
]


@pytest.mark.slow
def test_guesses_of_columns_are_scored_as_live(tmp_path: Path) -> None:
    """Features and an attribute, with controls on own columns: bit for bit the live figures."""
    run = Run(dataset="small", algorithm="splitnn")
    live = simulate(tmp_path / "t", HIDDEN, run=run)
    task, bench, found = small_task(0), Bench(), []
    for i, p in enumerate(prepare(HIDDEN)):
        for answers in bench.attack(p, Given([live.views[i, "train"]], [0])):
            found += [m for a in answers for m in score_answer(a, task)]
    names = ("attribute", "embedding_inversion")
    guesses = infer([tmp_path / "t"], tmp_path / "g", attacks=names, limits=TRUSTED)
    result = score(guesses, [tmp_path / "t"], tmp_path / "o", gates=[{"max": 0.05}])
    frame = result.results.query("attack != '' and status == 'ok'")
    mine = {
        (r.attack, r.split, r.metric): (r.value, r.n, {k: v["value"] for k, v in
                                                      json.loads(r.controls).items()})
        for r in frame.itertuples()
    }  # fmt: skip
    theirs = {
        (m.attack, m.split, m.metric): (m.value, m.n, {k: v["value"] for k, v in
                                                      m.controls.items()})
        for m in found
    }  # fmt: skip
    assert mine == theirs
    assert {a for a, *_ in mine} == set(names)
    assert all("linear" in c for (a, *_), (*_, c) in mine.items() if a == "embedding_inversion")
    assert all("logistic" in c for (a, *_), (*_, c) in mine.items() if a == "attribute")


@pytest.mark.slow
def test_columns_without_a_truth_are_not_scored(tmp_path: Path) -> None:
    """No columns, those of some rows, and columns that have nothing to do with the trace."""
    simulate(tmp_path / "t", HIDDEN, run=Run(dataset="small", algorithm="splitnn"))
    guesses = infer(
        [tmp_path / "t"], tmp_path / "g", attacks=("embedding_inversion",), limits=TRUSTED
    )
    task = small_task(0)
    n, x, schema = len(task.y), task.x["passive1"], task.schema["passive1"]
    write_truth(tmp_path / "bare", np.arange(n), task.y)
    result = score(guesses, [tmp_path / "bare"], tmp_path / "a")
    assert set(result.results.status) == {"not-applicable"}
    half = np.arange(0, n, 2)
    write_truth(tmp_path / "half", half, task.y[half], hidden={"passive1": (x[half], schema)})
    result = score(guesses, [tmp_path / "half"], tmp_path / "b")
    some = result.results.query("metric == 'r2' and split == 'train'").iloc[0]
    assert 0 < some["n"] < 0.6 * len(task.sets["labelled"])
    assert some["value"] > 0.5
    other = torch.randn(x.shape, generator=torch.Generator().manual_seed(5))
    write_truth(tmp_path / "null", np.arange(n), task.y, hidden={"passive1": (other, schema)})
    result = score(guesses, [tmp_path / "null"], tmp_path / "c")
    assert result.results.query("metric == 'r2' and split == 'train'").iloc[0]["value"] < 0.05
    write_truth(tmp_path / "far", [0], [0], hidden={"passive1": (x[:1], schema)})
    with pytest.raises(VflsecError, match="truth: columns"):
        write_truth(tmp_path / "bad", [0, 1], [0, 0], hidden={"passive1": x[:1]})


@pytest.mark.slow
def test_the_number_of_classes_can_be_said_at_the_audit(tmp_path: Path, cli: Cli) -> None:
    """A trace that did not say it could have no attack on labels, whatever else was granted."""
    g, n = torch.Generator().manual_seed(0), 90
    y = np.arange(n) % 3
    hot = torch.eye(3)[torch.from_numpy(y)]
    with record(tmp_path / "t", y, np.arange(12), classes=None, prior=(1 / 3,) * 3) as rec:
        for rows in torch.randperm(n, generator=g).split(30):
            z = rec.cut(torch.randn(30, 3, generator=g).requires_grad_(), rows)
            z.backward(0.4 - hot[rows] + 0.05 * torch.randn(30, 3, generator=g))
    write_truth(tmp_path / "y", np.arange(n), y)
    words = ["trace", "audit", str(tmp_path / "t"), "--attack", "similarity", "--blind", "--out"]
    assert "--classes N" in cli.says(*words, tmp_path / "a", code=3)
    assert "1 attack made guesses: similarity." in cli.says(
        *words, tmp_path / "b", "--classes", "3"
    )
    result = score(tmp_path / "b" / "guesses", [tmp_path / "y"], tmp_path / "o")
    found = result.results.query("metric == 'accuracy'").iloc[0]
    assert (found["value"], found["n"]) == (1.0, n - 12)
    some = np.arange(n)[y < 2]  # a truth that does not show all classes
    write_truth(tmp_path / "part", some, y[some])
    part = score(tmp_path / "b" / "guesses", [tmp_path / "part"], tmp_path / "p")
    assert [of["classes"] for of in part.summary["parties"].values()] == [3]
    assert part.results.query("metric == 'accuracy'").iloc[0]["n"] == len(some) - 8
    assert "be 2 shares" in cli.refuses(*words, tmp_path / "c", "--classes", "2")
    with record(tmp_path / "told", y, classes=3) as rec:
        rec.cut(torch.zeros(n, 2), torch.arange(n))
    words[2] = str(tmp_path / "told")
    assert "--classes must be 3" in cli.refuses(*words, tmp_path / "d", "--classes", "4")


N, D, STEPS = 300, 3, 60
Y = (np.random.default_rng(2).random(N) < 0.15).astype(int)
KNOWN = first_of_each(Y)


def recorded(folder: Path, seed: int, *, encrypted: bool, balanced: bool) -> Path:
    """Batches drawn with replacement, as often of one class as of the other if `balanced`."""
    rng = np.random.default_rng(seed)
    share = np.where(Y == 1, 0.5 / (Y == 1).sum(), 0.5 / (Y == 0).sum()) if balanced else None
    defense = {"defense": "he" if encrypted else "none", "strength": 1.0 * encrypted}
    how = {"prior": (0.85, 0.15), "run": {"seed": seed} | defense}
    with record(folder / f"{encrypted}-{seed}", Y, KNOWN, **how) as rec:
        for step in range(STEPS):
            rows = rng.choice(N, 30, p=share) if balanced else rng.permutation(N)[:30]
            z = torch.from_numpy(rng.normal(size=(30, D)).astype("float32"))
            rec.tell("embedding", z, rows, sent=True, step=step)
            g = rng.normal(size=(30, D)) + 2 * (2 * Y[rows] - 1)[:, None]
            if encrypted:
                rec.tell("ciphertext", np.zeros((30, 7 + step), np.uint8), rows, sent=False)
            else:
                rec.tell("gradient", g.astype("float32"), rows, sent=False, step=step)
    return folder / f"{encrypted}-{seed}"


def judged(base: Path, *, balanced: bool) -> Audit:
    traces = [
        recorded(base, seed, encrypted=encrypted, balanced=balanced)
        for encrypted in (False, True) for seed in range(3)
    ]  # fmt: skip
    gate = {"max": 0.1, "defense": "defended"}
    return audit(base, traces, ("direction", "zero_pattern"), Y, gates=[gate])


@pytest.mark.slow
def test_encrypted_gradients_do_not_hide_which_rows_are_drawn(tmp_path: Path) -> None:
    """Rows of the rare class are asked for five times as often, and no attack looked."""
    result = judged(tmp_path, balanced=True)
    (verdict,) = result.verdicts
    assert verdict.verdict == "FAIL", verdict.reason
    assert verdict.attack == "zero_pattern(kind=embedding)"
    assert verdict.value > 0.4


@pytest.mark.slow
def test_rows_drawn_alike_tell_nothing(tmp_path: Path) -> None:
    result = judged(tmp_path, balanced=False)
    here = result.results.query("metric == 'auc' and role == 'audit' and defense == 'he'")
    assert (abs(here.value - 0.5) < 0.1).all()


def test_where_gradients_come_they_tell_the_same(tmp_path: Path) -> None:
    """One look at which rows were drawn is enough; two would pay for each other."""
    trace = recorded(tmp_path, 0, encrypted=False, balanced=True)
    infer([trace], tmp_path / "g", attacks=("zero_pattern",), limits=TRUSTED)
    assert "kind=embedding" not in (tmp_path / "g" / "answers.json").read_text()
    assert '"kind": "embedding"' not in (tmp_path / "g" / "answers.json").read_text()


@pytest.mark.parametrize("rows", [None, np.arange(30)])
def test_a_ciphertext_may_name_its_rows(rows: np.ndarray | None, tmp_path: Path) -> None:
    """An audit of such a trace ended in a traceback."""
    with record(tmp_path / "t", Y, KNOWN) as rec:
        for step in range(4):
            rec.tell("embedding", np.zeros((30, 2)), np.arange(30), sent=True, step=step)
            rec.tell("ciphertext", np.zeros((30, 5 + step), np.uint8), rows, sent=False, step=step)
    infer([tmp_path / "t"], tmp_path / "g", limits=TRUSTED)
