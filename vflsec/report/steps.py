"""Which steps are open, in codes: what a verdict asks for, and which defenses act on what is read.

The report of an audit lists these steps, and `vflsec tune` those of a search.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from vflsec.audit.gate import FAIL, Rule, Verdict, Warn
from vflsec.audit.gate_selection import strip_label
from vflsec.audit.record import Acting
from vflsec.audit.validated import Validation
from vflsec.errors import join_some
from vflsec.report.sanitize import clean
from vflsec.report.tree import Step, StepKind

SHOW_GATE = "vflsec show gate"
GRANT_MORE = "Check settings, grant more (known_rows, aux_rows)"
MOST_SEEDS = 20
"""More seeds are not advised to validate an attack: a setting is more likely at fault."""
_MOST_NAMED = 6
_UNFOUND = {Warn.INSENSITIVE, Warn.QUESTION_UNDERPOWERED}
"""Warnings of a PASS that more seeds or rows would mend."""
_OF_RULES = {
    Rule.NOT_VALIDATED: StepKind.NOT_VALIDATED, Rule.FAILED_RUNS: StepKind.FAILED_RUNS,
    Rule.NOTHING_MEASURED: StepKind.FAILED_RUNS, Rule.NO_ROOM: StepKind.NO_ROOM,
    Rule.REVERSED_RANKING: StepKind.REVERSED_RANKING, Rule.REGRESSION: StepKind.ROSE,
}  # fmt: skip


def find_step(v: Verdict) -> StepKind | None:
    """What a verdict asks for; None where it passes, and a leak would have been found."""
    if v.passes:
        return StepKind.UNDETECTED if _UNFOUND & {*v.warnings} else None
    if v.verdict == FAIL:
        return _OF_RULES.get(v.rule, StepKind.GATE_FAILS)
    if v.more_seeds:
        return StepKind.MORE_SEEDS
    return _OF_RULES.get(v.rule, StepKind.STUCK if v.stuck else StepKind.OPEN)


def name_gates(of: Sequence[Verdict]) -> str:
    """The gates of some verdicts, each once, as in ``'a', 'b'``; why stands beside each gate."""
    return join_some([f"'{clean(label)}'" for label in dict.fromkeys(v.label for v in of)])


def advise_open(of: Sequence[Verdict]) -> Step:
    """What to do about gates where nothing else is known to help."""
    text = f"Still open: {name_gates(of)}. Mend what the reason beside a gate names, or change it:"
    return Step(StepKind.OPEN, text, SHOW_GATE)


def advise_validation(
    silent: Mapping[str, Validation], seeds: int, do: str = GRANT_MORE, add: str = "Add them"
) -> list[Step]:
    """How to have attacks shown to work: by a few more seeds where these would do, or otherwise.

    Args:
        silent: by what people read of them.
        seeds: that there are; the option ``--seeds`` of a step has as many as would do.
        do: what helps where seeds do not.
        add: how seeds are added.
    """
    by_seeds = {k: a.more_seeds for k, a in silent.items() if _can_seeds_validate(a)}
    rest = {k: a for k, a in silent.items() if k not in by_seeds}
    start, out = "Not validated, so no gate on it passes:", []
    if rest:
        text = f"{start} {clean(', '.join(rest))}. {do}, or leave it out."
        show = show_attack(next(iter(rest.values())).place.attack)
        out.append(Step(StepKind.NOT_VALIDATED, text, show))
    if by_seeds:
        more = max(n or 0 for n in by_seeds.values())
        text = (
            f"{start} {clean(', '.join(by_seeds))}. About {more} more seeds would show that it "
            f"works. {add}. Fewer attacks, chosen beforehand, take fewer seeds."
        )
        options = ("--seeds", str(seeds + more))
        out.append(Step(StepKind.VALIDATE_BY_SEEDS, text, options=options))
    return out


def _can_seeds_validate(of: Validation) -> bool:
    return not of.validated and of.more_seeds is not None and of.more_seeds <= MOST_SEEDS


def show_attack(label: str) -> str:
    """The command that shows an attack by its label, such as ``norm(steps=3)``."""
    return shlex.join(["vflsec", "show", clean(strip_label(label))])


def find_missed(
    tried: Iterable[str], kinds: Collection[str], acting: Mapping[str, Acting],
    targets: Collection[str] = (),
) -> list[str]:  # fmt: skip
    """Which of these defenses are known to hide nothing of targets in these messages; none of
    unknown kinds.
    """
    known = {n for of in acting.values() for n in (*of.tuned, *of.fixed)}
    here = {n for k in kinds for of in acting.get(k, Acting()).list_hiding(targets) for n in of}
    return [n for n in tried if kinds and n in known and n not in here]


def advise_defenses(
    attacks: Sequence[str], kinds: Collection[str], acting: Mapping[str, Acting],
    tried: Collection[str], accepts: Callable[[str], bool] = lambda _: True,
    targets: Collection[str] = (),
) -> list[Step]:  # fmt: skip
    """What acts on the messages that attacks read: to search, to add, or that nothing does.

    Args:
        attacks: their labels.
        kinds: of the messages, in order; empty if they are not known.
        acting: the defenses that act on a kind of message.
        tried: defenses that were tried or are in the system, and are not named again.
        accepts: whether a defense can be put into the system.
        targets: what they are after, if that is known: other labels hide no columns.
    """
    missed = find_missed(tried, kinds, acting, targets)
    here = [acting.get(k, Acting()).list_hiding(targets) for k in kinds]
    verb = "reads" if len(attacks) == 1 else "read"
    reads = f"{clean(join_some(attacks))} {verb} {' and '.join(kinds)} messages"
    reads += f", not protected by {' and '.join(missed)}. " if missed else ". "
    tuned, fixed = (
        list(itertools.islice((n for n in of if n not in tried and accepts(n)), _MOST_NAMED))
        for of in (dict.fromkeys(n for a in here for n in a[way]) for way in (0, 1))
    )  # fmt: skip
    out = []
    if tuned:
        text = f"{reads}Try defenses that act on them: {', '.join(tuned)}."
        options = tuple(word for n in tuned for word in ("--defense", n))
        out.append(Step(StepKind.OTHER_DEFENSES, text, options=options))
    if fixed:
        text = f"{reads}Add a defense without a strength to tune, and audit: {', '.join(fixed)}."
        out.append(Step(StepKind.FIXED_DEFENSES, text, f"vflsec show {fixed[0]}"))
    none = f"{reads}No other defense acts on them here. " if kinds and acting else ""
    text = f"{none}Share less, or look through all defenses:"
    return out or [Step(StepKind.NO_OTHER_DEFENSE, text, "vflsec list defenses")]
