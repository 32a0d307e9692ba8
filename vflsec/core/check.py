"""The one phrasing of argument errors: ``where: name must be rule, got value. remedy``."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Annotated, Any, Literal, TypeGuard

from vflsec.errors import ConfigError, VflsecError, format_list, join_some


def fail(name: str, rule: str, value: Any, remedy: str = "") -> ConfigError:
    """The error to raise when `name` breaks `rule`."""
    return ConfigError.must(name, f"be {rule}", shown(value), remedy)


FEW = 6
"""So many names a message lists; of more it names the command that does."""


def must(rule: str, got: object, remedy: str = "") -> str:
    """The rule that a value breaks: ``must RULE, got GOT. REMEDY``."""
    return f"must {rule}, got {shown(got)}. {remedy}".rstrip()


def must_be_of(options: Iterable[object], got: object, most: int = 40) -> str:
    """The rule that a value which is none of `options` breaks, with the nearest of them."""
    names = list(dict.fromkeys(map(str, options)))
    return must(f"be one of {join_some(names, most) or 'none'}", got, nearest(got, names))


def shown(value: Any) -> str:
    """A value as it is shown in a message; a long one is cut."""
    text = repr(value)
    return text if len(text) < 200 else f"{text[:200]}..."


def is_number(value: Any) -> TypeGuard[float]:
    """Whether `value` is an integer or a float, and no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def finite(name: str, value: Any) -> float:
    """`value` as a float, if it is a finite number.

    Raises:
        ConfigError: it is not.
    """
    return _hold(name, value, "a finite number", lambda _: True)


def positive(name: str, value: Any, remedy: str = "") -> float:
    """`value` as a float, if it is a finite number above 0."""
    return _hold(name, value, "a finite number > 0", lambda x: x > 0, remedy)


def non_negative(name: str, value: Any) -> float:
    """`value` as a float, if it is a finite number of at least 0."""
    return _hold(name, value, "a finite number >= 0", lambda x: x >= 0)


def _hold(
    name: str, value: Any, rule: str, fits: Callable[[float], bool], remedy: str = ""
) -> float:
    if not is_number(value) or not math.isfinite(value) or not fits(value):
        raise fail(name, rule, value, remedy)
    return float(value)


def in_unit(name: str, value: Any, *, low_open: bool = False, high_open: bool = False) -> float:
    """`value` as a float, if it lies in the unit interval (ends excluded on demand)."""
    rule = f"a number in {'(' if low_open else '['}0, 1{')' if high_open else ']'}"
    out = ({0} if low_open else set()) | ({1} if high_open else set())
    return _hold(name, value, rule, lambda x: 0 <= x <= 1 and x not in out)


def integer(name: str, value: Any, *, low: int = 1, high: int | None = None) -> int:
    """`value`, if it is an integer in [low, high]."""
    ok = isinstance(value, int) and not isinstance(value, bool) and value >= low
    if not ok or (high is not None and value > high):
        rule = f"an integer >= {low}" if high is None else f"an integer in [{low}, {high}]"
        raise fail(name, rule, value)
    return int(value)


def one_of(name: str, value: Any, allowed: Iterable[Any]) -> Any:
    """`value`, if it is one of `allowed`; else an error that names the nearest."""
    options = list(allowed)
    if value not in options:
        raise unknown(name, value, options)
    return value


def unknown(
    name: object, value: Any, known: Iterable[Any], kind: type[VflsecError] = ConfigError,
    remedy: str = "",
) -> VflsecError:  # fmt: skip
    """The error for a value that is none of the `known`; it names the nearest."""
    options = list(known)
    rule = f"be one of {format_list(options, 50) or 'none'}"
    return kind.must(name, rule, shown(value), nearest(value, options) or remedy)


def nearest(value: Any, options: Iterable[Any]) -> str:
    """``Did you mean 'x'?`` or the empty string.

    What is written alike but for case and marks comes first, then what is spelt nearly so, then the
    only name of which `value` is a part.
    """
    names = [o for o in options if isinstance(o, str)]
    alike = [n for n in names if _folded(n) == _folded(str(value)) != ""]
    match = alike or difflib.get_close_matches(str(value), names, n=1, cutoff=0.6)
    part = _folded(str(value))
    if not match and len(part) > 2:
        holding = [n for n in names if part in _folded(n)]
        match = holding if len(holding) == 1 else []
    return f"Did you mean {match[0]!r}?" if match else ""


def choices(value: Any, options: Iterable[Any], listing: str) -> str:
    """The nearest of `options`, and all of them, or the command `listing` where they are many."""
    names = [str(o) for o in options]
    every = f"All: `{listing}`."
    if len(names) <= FEW:
        every = f"There are: {', '.join(names) or 'none'}."
    return f"{nearest(value, names)} {every}".lstrip()


def _folded(name: str) -> str:
    """A name without case, spaces and marks: ``Customer ID`` is ``customer_id``."""
    return "".join(c for c in name.casefold() if c.isalnum())


# What an annotation may say of a hyper-parameter, besides its type

Rule = Callable[[str, Any], Any]
"""(name, value) -> anything; raises ConfigError where the value breaks it."""

Count = Annotated[int, integer]
Whole = Annotated[int, partial(integer, low=0)]
Finite = Annotated[float, finite]
Positive = Annotated[float, positive]
NonNegative = Annotated[float, non_negative]
Unit = Annotated[float, in_unit]
OpenUnit = Annotated[float, partial(in_unit, low_open=True, high_open=True)]
BelowOne = Annotated[float, partial(in_unit, high_open=True)]
AboveZero = Annotated[float, partial(in_unit, low_open=True)]


def describe_rule(rule: Rule) -> str:
    """What a rule asks for, as its error says: ``a finite number >= 0``; '' if it takes all."""
    try:
        rule("it", None)
    except ConfigError as error:
        return error.rule.removeprefix("be ")
    return ""


def at_least(low: int) -> Rule:
    """The rule of integers from `low`."""
    return partial(integer, low=low)


def among(*options: Any) -> Rule:
    """The rule of a value that is one of `options`."""
    return partial(one_of, allowed=options)


def some(name: str, value: Any) -> Any:
    """`value`, if it is not empty."""
    if not value:
        raise fail(name, "a list of at least one", value)
    return value


def some_of(options: Iterable[Any]) -> Rule:
    """The rule of a list of at least one, each of them one of `options`."""
    allowed = tuple(options)

    def rule(name: str, value: Any) -> None:
        for entry in some(name, value):
            one_of(name, entry, allowed)

    return rule


def fields(spec: Any) -> None:
    """Hold the fields of a dataclass to what their annotations say, in all classes it derives from.

    ``Annotated`` names rules, from which None and a ``Literal`` of a union are exempt, and
    ``Literal`` names values; what stands within a tuple holds for its entries.

    Raises:
        ConfigError: for the first value that breaks one; it is called ``NAME.FIELD``.
    """
    for field, rule in _list_rules(type(spec)):  # type: ignore[arg-type]
        rule(f"{spec.name}.{field}", getattr(spec, field))


@cache
def _list_rules(cls: type) -> list[tuple[str, Rule]]:
    own = {f.name for f in dataclasses.fields(cls)}
    return [
        (field, rule)
        for base in reversed(cls.__mro__)
        if dataclasses.is_dataclass(base)
        for field, hint in inspect.get_annotations(base, eval_str=True).items()
        if field in own
        for rule in _find_rules(hint)
    ]


def _find_rules(hint: Any) -> Iterator[Rule]:
    origin, of = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        yield from (partial(_hold_but, _list_named(of[0]), rule) for rule in of[1:])
        yield from _find_rules(of[0])
    elif origin is Literal:
        yield among(*of)
    elif origin is tuple:
        yield from (partial(_hold_each, rule) for rule in _find_rules(of[0]))
    elif bool in of and (named := _list_named(hint)):
        yield among(True, False, *named)


def _hold_but(exempt: Sequence[Any], rule: Rule, name: str, value: Any) -> None:
    if value not in exempt:
        rule(name, value)


def _hold_each(rule: Rule, name: str, value: Any) -> None:
    for entry in value:
        rule(name, entry)


def _list_named(hint: Any) -> list[Any]:
    """Values that stand in a union by themselves: None, and those of a ``Literal``."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return []
    parts = typing.get_args(hint)
    named = [value for part in parts if part is not bool for value in typing.get_args(part)]
    return [*named, None] if types.NoneType in parts else named
