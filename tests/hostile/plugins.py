"""Faulty plug-ins as data: what each does, and what must be said about it."""

from __future__ import annotations

ATTACK = '''"""A faulty attack."""
from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass

import numpy as np
import torch

from vflsec.plugin import Attack, Guess, registry


@registry.attack
@dataclass(frozen=True)
class Faulty(Attack):
    needs = frozenset({{"gradient:mean"}})
{extra}
    def infer(self, view, rng):
        rows = view.targets["train"]
        scores = view.received("gradient").of_rows(rows).norm(dim=1)
        {body}
        return Guess("label", rows, scores)
'''

# name: (statement in `infer`, words in the reason)
BODIES: dict[str, tuple[str, str]] = {
    "key_error": ('{}["lost"]', "KeyError: 'lost'"),
    "type_error": ('1 + "x"', "TypeError"),
    "index_error": ("[][1]", "IndexError"),
    "attribute_error": ("None.x", "AttributeError"),
    "zero_division": ("1 / 0", "ZeroDivisionError"),
    "value_error": ('int("x")', "ValueError"),
    "runtime_error": ("torch.zeros(2) @ torch.zeros(3)", "RuntimeError"),
    "memory_error": ("raise MemoryError", "MemoryError"),
    "recursion_error": ("self.infer(view, rng)", "RecursionError"),
    "os_error": ('open("/nowhere/at/all")', "FileNotFoundError"),
    "import_error": ("import nothing_of_that_name", "ModuleNotFoundError"),
    "assertion_error": ('assert False, "no"', "AssertionError: no"),
    "stop_iteration": ("next(iter(()))", "StopIteration"),
    "unicode_error": ('b"\\xff".decode()', "UnicodeDecodeError"),
    "not_implemented": ("raise NotImplementedError", "NotImplementedError"),
    "name_error": ("undefined_name", "NameError"),
    "long_message": ('raise ValueError("x" * 10**6)', "..."),
    "markup_message": ('raise ValueError("[red]<script>alert(1)</script>")', "<script>"),
    "base_exception": ('raise type("Odd", (BaseException,), {})("odd")', "odd"),
    "generator_exit": ("raise GeneratorExit", "GeneratorExit"),
    "sys_exit": ("sys.exit(0)", "sys.exit(0)"),
    "quit": ("raise SystemExit", "sys.exit()"),
    "os_exit": ("os._exit(0)", "os._exit(0)"),
    "hangs": ("while True: pass", "took longer than its timeout of 2 s"),
    "sleeps": ("time.sleep(10**6)", "took longer than its timeout of 2 s"),
    "returns_none": ("return None", "returned NoneType, no Guess"),
    "returns_number": ("return 3", "returned int"),
    "returns_text": ('return "label"', "returned str"),
    "returns_tuple": ("return rows, scores", "returned tuple"),
    "returns_class": ("return Guess", "returned type"),
    "wrong_target": ('return Guess("feature", rows, scores)', "got 'feature'"),
    "unknown_target": ('return Guess("secret", rows, scores)', "got 'secret'"),
    "half_the_rows": ("return Guess('label', rows[:5], scores[:5])", "every scored row"),
    "foreign_rows": ("rows = rows + 10**6", "row"),
    "negative_rows": ("rows = -1 - rows", "row"),
    "repeated_rows": ("rows = torch.zeros_like(rows)", "row"),
    "too_few_scores": ("scores = scores[:3]", "a Guess must have rows" ),
    "three_classes": ("scores = scores.unsqueeze(1).repeat(1, 3)", "scores"),
    "cube_of_scores": ("scores = scores.reshape(-1, 1, 1)", "a Guess must have rows"),
    "square_rows": ("rows = rows.unsqueeze(1)", "a Guess must have rows"),
    "nan_scores": ("scores = scores * float('nan')", "not finite"),
    "infinite_scores": ("scores = scores / 0.0", "not finite"),
    "text_scores": ('scores = ["a"] * len(rows)', "ValueError"),
    "wrong_groups": ("return Guess('label', rows, scores, group=rows[:2])", "Guess.group"),
    "says_nothing": (
        "raise type('Mute', (Exception,), {'__str__': lambda self: 1 / 0})()", "Mute"
    ),
    "escapes": ('raise ValueError("\\x1b[31m\\udcff")', "ValueError: ?[31m?"),
    "many_errors": ('raise ExceptionGroup("many", [KeyError(1)])', "ExceptionGroup: many"),
    "too_much_memory": ("torch.zeros(10**14)", "RuntimeError"),
    "text_rows": ("rows = ['x'] * len(rows)", "ValueError"),
    "no_rows": ("rows, scores = rows[:0], scores[:0]", "row"),
    "object_scores": ("scores = [object()] * len(rows)", "TypeError"),
    "meta_scores": ("scores = scores.to('meta')", "meta"),
    "yields": ("yield Guess('label', rows, scores)", "returned generator"),
    "awaits": ("return __import__('asyncio').sleep", "returned function"),
    "looks_like_a_guess": (
        "return type('G', (), {'target': 'label', 'rows': rows, 'scores': scores})()",
        "returned G, no Guess",
    ),
    "notes_objects": (
        "return Guess('label', rows, scores, notes={'a': object()})", "plain values"
    ),
    "notes_bytes": ("return Guess('label', rows, scores, notes={'a': b'x'})", "plain values"),
    "notes_in_a_circle": (
        "d = {}; d['a'] = d; return Guess('label', rows, scores, notes=d)", "plain values"
    ),
    "notes_by_number": ("return Guess('label', rows, scores, notes={1: 2})", "plain values"),
    "notes_too_long": (
        "return Guess('label', rows, scores, notes={'a': 'x' * 10**7})", "plain values"
    ),
    "notes_without_end": (
        "return Guess('label', rows, scores, notes={'a': iter(int, 1)})", "plain values"
    ),
    "notes_of_half_letters": (
        "return Guess('label', rows, scores, notes={'a': '\\udcff'})", "plain values"
    ),
    "changes_columns": ("[c.neg_() for c in view.columns.values()]", "changes its View in place"),
    "changes_by_numpy": (
        "x = view.columns['passive'].numpy(); x -= x.mean(0)", "changes its View in place"
    ),
    "changes_known": ("view.known.labels.copy_(1 - view.known.labels)", "Work on copies"),
    "changes_prior": ("view.prior.fill_(0.5)", "changes its View in place"),
    "changes_targets": ("rows[:5] = view.known.rows[:5]", "changes its View in place"),
    "changes_party": ("object.__setattr__(view, 'adversary', ())", "changes its View in place"),
    "draws_from_torch": ("scores = torch.rand(len(rows))", "global random numbers of torch"),
    "draws_from_numpy": ("scores = scores * np.random.rand()", "global random numbers of numpy"),
    "seeds_for_all": (
        "torch.manual_seed(0); np.random.seed(0)", "global random numbers of torch and numpy"
    ),
    "a_layer_of_its_own": ("torch.nn.Linear(2, 2)", "within vflsec.core.rng.as_global(rng)"),
    "notes_of_text": ("return Guess('label', rows, scores, notes='x')", "must return notes"),
}  # fmt: skip

# name: (lines of the class beside `infer`, words in the reason)
CLASSES: dict[str, tuple[str, str]] = {
    "many_none": ("def infer_many(self, views, rngs): return None", "guesses, got NoneType"),
    "many_too_few": ("def infer_many(self, views, rngs): return []", "guesses, got 0"),
    "many_numbers": ("def infer_many(self, views, rngs): return [1] * len(views)", "returned int"),
    "declines_raises": ("def declines(self, view): return [][1]", "IndexError"),
    "declines_number": ("def declines(self, view): return 3", "must decline by a text, got 3"),
    "declines_truth": ("def declines(self, view): return True", "must decline by a text"),
    "unknown_split": ('splits = ("nowhere",)', "KeyError"),
}

# what a plug-in may do that is no fault of its figure: it must not touch anybody else's
SPOILERS: dict[str, str] = {
    "a_spoiler": (
        "view.targets['train'].zero_(); view.targets['test'].zero_(); view.prior.zero_(); "
        "[c.zero_() for c in view.columns.values()]; "
        "[t.tensor.zero_() for t in view.tables.values()]; "
        "[p.data.zero_() for m in view.models['passive'].values() for p in m.parameters()]; "
        "rows = view.known.rows.zero_(); scores = rows.double()"
    ),
    "a_wanderer": "os.chdir('/')",
    "a_double": "torch.set_default_dtype(torch.float64)",
    "a_gradient_thief": "torch.set_grad_enabled(False)",
    "a_thread_hog": "torch.set_num_threads(3)",
    "a_pedant": "np.seterr(all='raise'); __import__('warnings').simplefilter('error')",
    "a_muter": "sys.stdout = sys.stderr = None",
    "a_shallow_one": "sys.setrecursionlimit(80)",
    "a_deaf_one": (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    ),
    "a_forker": (
        "pid = os.fork(); os.waitpid(pid, 0) if pid else None; "
        "os.write(os.open(os.environ['FORK_LOG'], os.O_CREAT | os.O_APPEND | os.O_WRONLY), b'x')"
    ),
}  # fmt: skip


def with_lines(lines: str) -> str:
    """An attack that works, with these lines in its class."""
    return ATTACK.format(extra=f"    {lines}\n", body="pass")


# name: (module of an attack, words of the error), found by `check` or before anything is trained
MODULES: dict[str, tuple[str, str]] = {
    "no_python": ("def f(:\n", "is not Python"),
    "nothing_registered": ("x = 1\n", "must register exactly one attack"),
    "import_raises": ("raise KeyError('at import')\n", "KeyError"),
    "import_exits": ("import sys\nsys.exit(0)\n", "sys.exit(0)"),
    "import_really_exits": ("import os\nos._exit(0)\n", "os._exit(0)"),
    "import_needs": ("import nothing_of_that_name\n", "nothing_of_that_name"),
    "not_an_attack": (
        "from dataclasses import dataclass\nfrom vflsec.plugin import registry\n"
        "@registry.attack\n@dataclass(frozen=True)\nclass A:\n    pass\n",
        "must derive from",
    ),
    "refuses_itself": (with_lines("def __post_init__(self): raise KeyError('init')"), "KeyError"),
    "needs_nothing_at_all": (with_lines("needs = None"), "needs must be a set"),
    "no_target": (with_lines("target = None"), "target must be one of"),
    "secret_target": (with_lines("target = 'secret'"), "target must be one"),
    "no_splits": (with_lines("splits = ()"), "splits must be a tuple"),
    "seconds_in_words": (with_lines("seconds = 'fast'"), "seconds must be a finite number"),
    "seconds_without_end": (with_lines("seconds = float('inf')"), "seconds must be a finite"),
    "policy_of_a_number": (with_lines("def policy(self): return 3"), "policy() must be a Policy"),
    "policy_raises": (with_lines("def policy(self): return [][1]"), "IndexError"),
    "applicable_raises": (
        with_lines("def applicable(self, facts): return facts.nothing"),
        "AttributeError",
    ),
    "exits_when_made": (with_lines("def __post_init__(self): sys.exit(0)"), "sys.exit(0)"),
}

DEFENSE = '''"""A faulty defense."""
from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from vflsec.plugin import Policy, registry


@registry.defense
@dataclass(frozen=True)
class Faulty(Policy):
    strengths = "share"
    trial = (0.0, 0.5, 1.0)
    covers = frozenset({{"gradient"}})
    owner = "active"
{extra}
    def outgoing(self, message, own):
        {body}
'''

# name: (statement in `outgoing`, words of the error); the audit ends with 2 and says where
DEFENSES: dict[str, tuple[str, str]] = {
    "d_none": ("return None", "must return a tensor, got NoneType"),
    "d_shape": ("return message.tensor[..., :1]", "must keep shape"),
    "d_dtype": ("return message.tensor.half()", "must keep shape, dtype"),
    "d_raises": ('return {}["lost"]', "KeyError: 'lost'"),
    "d_exits": ("sys.exit(0)", "sys.exit(0)"),
    "d_really_exits": ("os._exit(0)", "os._exit(0)"),
    "d_noisy_at_zero": (
        "return message.tensor + 1e-6",
        "at strength 0",
    ),
    "d_draws_from_torch": (
        "import torch\n        return own.choose(message.tensor + torch.randn(()), message.tensor)",
        "draws from the global random numbers of torch",
    ),
    "d_in_place": (
        "message.tensor.add_(1e-6)\n        return message.tensor",
        "changes a message (gradient) in place",
    ),
    "d_in_place_unseen": (
        "message.tensor.data.add_(1e-6)\n        return message.tensor",
        "at strength 0",
    ),
}
