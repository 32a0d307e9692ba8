"""What a hyper-parameter may be, in words, from its annotation as it stands in a source."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, get_args

from vflsec.core import check

_PLAIN = {"str": "text", "int": "an integer", "float": "a number", "bool": "true or false",
          "dict": "a table", "Any": "anything",
          "Accumulate": "true, false or 'scaled'"}  # fmt: skip


def describe_type(annotation: str) -> str:
    """``check.Count | None`` as ``an integer >= 1``; nothing is imported or run to find out.

    A name of the file that it stands in, other than those of :mod:`vflsec.core.check`, stays.
    """
    return _describe(ast.parse(annotation, mode="eval").body)


def _describe(node: ast.expr) -> str:
    if isinstance(node, ast.BinOp):
        return " or ".join(filter(None, map(_describe, (node.left, node.right))))
    if isinstance(node, ast.Constant):
        return "" if node.value in (None, ...) else repr(node.value)
    if isinstance(node, ast.Subscript):
        of = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return _describe_subscript(ast.unparse(node.value), of)
    rules = list(_read_rules(node))
    text = ast.unparse(node)
    return check.describe_rule(rules[0]) if rules else _PLAIN.get(text, text)


def _describe_subscript(name: str, of: Sequence[ast.expr]) -> str:
    """Of ``name[of]``."""
    words = list(filter(None, map(_describe, of)))
    if name == "Annotated":
        rule = next((rule for node in of[1:] for rule in _read_rules(node)), None)
        if rule is None or ast.unparse(of[0]).startswith("tuple"):  # of a list, how long it is
            return words[0]
        named = [n for n in ast.walk(of[0]) if isinstance(n, ast.Constant) and n.value is not None]
        return " or ".join([check.describe_rule(rule), *map(_describe, named)])
    if name == "tuple":
        return f"a list{', each' if isinstance(of[-1], ast.Constant) else ':'} {', '.join(words)}"
    if name == "Literal":
        return f"one of {', '.join(words)}" if len(words) > 1 else words[0]
    return _PLAIN.get(name, name)


def _read_rules(node: ast.expr) -> Iterator[check.Rule]:
    """The rule that an expression of :mod:`vflsec.core.check` and literal values stands for."""
    made: Any = None
    if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "check":
        made = getattr(check, node.attr, None)
        made = next(iter(get_args(made)[1:]), made)  # of Annotated
    elif isinstance(node, ast.Call):
        words = ast.unparse(node.func)
        of = node.args[1:] if words == "partial" else node.args
        try:
            values = [ast.literal_eval(x) for x in of]
            keys = {k.arg or "": ast.literal_eval(k.value) for k in node.keywords}
        except ValueError:
            return  # names of the file
        if words == "partial":
            made = next(
                (partial(rule, *values, **keys) for rule in _read_rules(node.args[0])), None
            )
        else:
            made = next((rule(*values, **keys) for rule in _read_rules(node.func)), None)  # type: ignore[call-arg]
    if callable(made):
        yield made
