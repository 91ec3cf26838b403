"""Expressions as the user builds them, and the bound predicate that a scan carries.

`col("qty") > 5` and the SQL text `qty > 5` give the same objects: names, constants, operations and casts, without
types. `bind.py` gives them a meaning; nothing here evaluates anything.
"""

import datetime as dt
import decimal
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import NoReturn

from scan_core.errors import PredicateError
from scan_core.expr.bound import BoundExpr, Column, Member, children, walk
from scan_core.expr.literals import from_python, literal_text
from scan_core.schema import Type

MAX_DEPTH = 200
"""Below what Python's own stack takes, so that every expression can be bound, printed and pickled."""
MAX_IN_VALUES = 200_000
"""Each is an object that is bound one by one; longer lists of keys are columns."""
Constantish = bool | int | float | str | bytes | decimal.Decimal | dt.date | dt.time | uuid.UUID | None
"""Python values that stand for constants wherever an expression is expected."""


class Expr:
    """An unbound expression. Operators build larger ones; `&`, `|`, `~` are and, or, not.

    >>> (col("qty") > 5) & col("name").like("A%")
    Expr: qty > 5 and name like 'A%'
    """

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]
    depth: int = 0
    """Operations and casts below one another; no more than `MAX_DEPTH`."""

    def __eq__(self, other: object) -> "Expr":  # type: ignore[override]
        return Operation("=", (self, lift(other)))

    def __ne__(self, other: object) -> "Expr":  # type: ignore[override]
        return Operation("<>", (self, lift(other)))

    def __lt__(self, other: object) -> "Expr":
        return Operation("<", (self, lift(other)))

    def __le__(self, other: object) -> "Expr":
        return Operation("<=", (self, lift(other)))

    def __gt__(self, other: object) -> "Expr":
        return Operation(">", (self, lift(other)))

    def __ge__(self, other: object) -> "Expr":
        return Operation(">=", (self, lift(other)))

    def __and__(self, other: object) -> "Expr":
        return Operation("and", (self, lift(other)))

    def __or__(self, other: object) -> "Expr":
        return Operation("or", (self, lift(other)))

    def __invert__(self) -> "Expr":
        return Operation("not", (self,))

    def __add__(self, other: object) -> "Expr":
        return Operation("+", (self, lift(other)))

    def __radd__(self, other: object) -> "Expr":
        return Operation("+", (lift(other), self))

    def __sub__(self, other: object) -> "Expr":
        return Operation("-", (self, lift(other)))

    def __rsub__(self, other: object) -> "Expr":
        return Operation("-", (lift(other), self))

    def __mul__(self, other: object) -> "Expr":
        return Operation("*", (self, lift(other)))

    def __rmul__(self, other: object) -> "Expr":
        return Operation("*", (lift(other), self))

    def __truediv__(self, other: object) -> "Expr":
        return Operation("/", (self, lift(other)))

    def __rtruediv__(self, other: object) -> "Expr":
        return Operation("/", (lift(other), self))

    def __mod__(self, other: object) -> "Expr":
        return Operation("%", (self, lift(other)))

    def __neg__(self) -> "Expr":
        return Operation("negative", (self,))

    def __getitem__(self, key: object) -> "Expr":
        return Operation("[]", (self, lift(key)))

    def __iter__(self) -> NoReturn:
        raise TypeError("an expression cannot be iterated; element_at() and [] take one element")

    def __bool__(self) -> NoReturn:
        raise TypeError("an expression has no truth value before it meets rows; combine with &, | and ~")

    def __repr__(self) -> str:
        return f"Expr: {self}"

    def member(self, name: str) -> "Expr":
        """A member of a struct: `col("address").member("city")` is `address.city`."""
        return Operation(".", (self, Constant(name)))

    def null_safe_eq(self, other: object) -> "Expr":
        """`<=>`: true where both are NULL, never NULL."""
        return Operation("<=>", (self, lift(other)))

    def is_null(self) -> "Expr":
        """`is null`."""
        return Operation("is null", (self,))

    def is_not_null(self) -> "Expr":
        """`is not null`."""
        return Operation("not", (self.is_null(),))

    def is_in(self, values: Iterable[object]) -> "Expr":
        """`in (...)`.

        Raises:
            PredicateError: more than `MAX_IN_VALUES`.
        """
        found = tuple(islice(values, MAX_IN_VALUES + 1))
        if len(found) > MAX_IN_VALUES:
            raise PredicateError(
                f"in (...) takes at most {MAX_IN_VALUES} values; Scan.semi_join takes any number of keys"
            )
        return Operation("in", (self, *map(lift, found)))

    def between(self, lower: object, upper: object) -> "Expr":
        """`between lower and upper`, both included."""
        return Operation("between", (self, lift(lower), lift(upper)))

    def like(self, pattern: str, escape: str | None = "\\") -> "Expr":
        """SQL `like`."""
        return Operation("like", (self, Constant(pattern), Constant(escape)))

    def ilike(self, pattern: str, escape: str | None = "\\") -> "Expr":
        """`like` without regard to case."""
        return Operation("ilike", (self, Constant(pattern), Constant(escape)))

    def rlike(self, pattern: str) -> "Expr":
        """Does the regular expression match somewhere?"""
        return Operation("rlike", (self, Constant(pattern)))

    def starts_with(self, prefix: str) -> "Expr":
        """Does the string start with `prefix`?"""
        return call("startswith", self, prefix)

    def cast(self, to: Type | str) -> "Expr":
        """`cast(... as to)`; `to` is an Iceberg type or its SQL name."""
        return CastTo(self, to, safe=False)

    def try_cast(self, to: Type | str) -> "Expr":
        """`try_cast(... as to)`: NULL where the cast fails."""
        return CastTo(self, to, safe=True)


Span = tuple[int, int]
"""First and last character of an expression in the SQL text, both included."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Name(Expr):
    """A column, or a dotted path to a struct member."""

    parts: tuple[str, ...]
    span: Span | None = None

    def __str__(self) -> str:
        return ".".join(p if p.isidentifier() else "`" + p.replace("`", "``") + "`" for p in self.parts)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Constant(Expr):
    """A constant; its type follows from the Python value unless `type` says otherwise."""

    value: Constantish
    type: Type | None = None
    span: Span | None = None

    def __str__(self) -> str:
        return literal_text(self.value, self.type) if self.type else literal_text(*from_python(self.value))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Operation(Expr):
    """An operator or function, by its lower-case name, on arguments. `case` alternates conditions and values."""

    name: str
    arguments: tuple[Expr, ...]
    span: Span | None = None
    depth: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "depth", _depth_above(self.arguments))

    def __str__(self) -> str:
        from scan_core.expr.text import operation_text  # text.py needs this module's classes

        return operation_text(self)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CastTo(Expr):
    """A cast; `safe` is try_cast."""

    operand: Expr
    type: Type | str
    safe: bool
    span: Span | None = None
    depth: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "depth", _depth_above((self.operand,)))

    def __str__(self) -> str:
        return f"{'try_cast' if self.safe else 'cast'}({self.operand} as {self.type})"


def _depth_above(arguments: Iterable[Expr]) -> int:
    depth = 1 + max((argument.depth for argument in arguments), default=0)
    if depth > MAX_DEPTH:
        raise PredicateError(f"the filter nests too deeply: more than {MAX_DEPTH} levels")
    return depth


def col(name: str) -> Expr:
    """A column by name, or a struct member by its dotted path; an exact column name wins."""
    return Name((name,))


def lit(value: Constantish) -> Expr:
    """A constant, for places where Python would not lift it: `lit(5) < col("qty")` needs none."""
    return Constant(value)


def call(function: str, *arguments: object) -> Expr:
    """A function by its SQL name: `call("year", col("day")) == 2026`."""
    return Operation(function.lower(), tuple(map(lift, arguments)))


def lift(value: object) -> Expr:
    """An expression as it is; a Python value as a constant.

    Raises:
        TypeError: no constant of the filter language.
    """
    if isinstance(value, Expr):
        return value
    if isinstance(value, Constantish):
        return Constant(value)
    raise TypeError(f"{value!r:.80} of type {type(value).__name__} cannot stand in a filter")


@dataclass(frozen=True)
class BoundPredicate:
    """Conjuncts that every row of the result must fulfil, bound to field ids.

    Attributes:
        sql: the text the user wrote, or the printed form of expression objects.
        conjuncts: bound boolean expressions, all of which must be true (NULL is not true).
    """

    sql: str
    conjuncts: tuple[BoundExpr, ...] = field(default=())

    @cached_property
    def column_ids(self) -> tuple[int, ...]:
        """Ids of the top-level columns it reads, ascending."""
        return tuple(sorted({n.field_id for c in self.conjuncts for n in walk(c) if isinstance(n, Column)}))

    @cached_property
    def leaf_ids(self) -> tuple[int, ...]:
        """Ids of the columns and struct members it reads, ascending: of `s.a.b` only that of `b`."""
        return tuple(sorted(set().union(*map(leaf_ids, self.conjuncts)) if self.conjuncts else ()))

    def __str__(self) -> str:
        return self.sql


def leaf_ids(node: BoundExpr) -> frozenset[int]:
    """Ids of the columns and struct members that must be read to evaluate `node`."""
    found: set[int] = set()
    stack: list[BoundExpr] = [node]
    while stack:
        current = stack.pop()
        root = current
        while isinstance(root, Member):
            root = root.operand
        if isinstance(root, Column) and isinstance(current, Column | Member):
            found.add(current.field_id)
        else:
            stack.extend(children(root))
    return frozenset(found)
