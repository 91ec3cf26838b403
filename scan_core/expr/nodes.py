"""Expressions as users build them, the bound predicate that a scan carries, and both as SQL text."""

import datetime as dt
import decimal
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NoReturn

from nevermore.scan_core.expr.bound import (
    And,
    Between,
    BoundExpr,
    Call,
    Case,
    Cast,
    Coalesce,
    Column,
    Comparison,
    Failure,
    InSet,
    IsNull,
    Like,
    Literal,
    Member,
    Not,
    Or,
    children,
    walk,
)
from nevermore.scan_core.expr.coercion import from_python, literal_text
from nevermore.scan_core.model.cached_property import cached_property
from nevermore.scan_core.model.errors import PredicateError
from nevermore.scan_core.model.schema import Type

MAX_DEPTH = 200
"""Below what Python's own stack takes, so that every expression can be bound, printed and pickled."""
MAX_IN_VALUES = 200_000
"""Each is an object that is bound one by one; longer lists of keys are columns."""
Constantish = bool | int | float | str | bytes | decimal.Decimal | dt.date | dt.time | uuid.UUID | None
"""Python values that stand for constants wherever an expression is expected."""


def _method(name: str, *, is_reflected: bool = False) -> Callable[["Expr", object], "Expr"]:
    """A method for Python's operator; reflected where the expression stands on the right."""

    def operation(self: "Expr", other: object) -> "Expr":
        return Operation(name, (lift(other), self) if is_reflected else (self, lift(other)))

    return operation


class Expr:
    """An unbound expression. Operators build larger ones; `&`, `|`, `~` are and, or, not.

    >>> (col("qty") > 5) & col("name").like("A%")
    Expr: qty > 5 and name like 'A%'
    """

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]
    depth: int = 0
    """Operations and casts below one another; no more than `MAX_DEPTH`."""

    __eq__ = _method("=")  # type: ignore[assignment]
    __ne__ = _method("<>")  # type: ignore[assignment]
    __lt__ = _method("<")
    __le__ = _method("<=")
    __gt__ = _method(">")
    __ge__ = _method(">=")
    __and__ = _method("and")
    __or__ = _method("or")
    __add__ = _method("+")
    __sub__ = _method("-")
    __mul__ = _method("*")
    __truediv__ = _method("/")
    __mod__ = _method("%")
    __radd__ = _method("+", is_reflected=True)
    __rsub__ = _method("-", is_reflected=True)
    __rmul__ = _method("*", is_reflected=True)
    __rtruediv__ = _method("/", is_reflected=True)
    __getitem__ = _method("[]")

    def __invert__(self) -> "Expr":
        return Operation("not", (self,))

    def __neg__(self) -> "Expr":
        return Operation("negative", (self,))

    def __iter__(self) -> NoReturn:
        raise TypeError("an expression cannot be iterated; element_at() and [] take one element")

    def __bool__(self) -> NoReturn:
        raise TypeError("an expression has no truth value of its own; combine conditions with &, | and ~")

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
        return _unbound(self)[0]


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


def col(name: str, *members: str) -> Expr:
    """A column by name, or a struct member by its dotted path; an exact column name wins.

    Args:
        name: of the column.
        members: names of members below it, which may have dots: `col("key", "i.d")`.

    Raises:
        TypeError: a name is not text.
    """
    return Name(tuple(_text(part, "col takes the name of a column") for part in (name, *members)))


def lit(value: Constantish) -> Expr:
    """A constant; needed only where Python does not convert the value by itself: `lit(5) < col("qty")` needs none."""
    if not isinstance(value, Constantish):
        raise TypeError(f"{value!r:.80} of type {type(value).__name__} cannot be used in a filter")
    return Constant(value)


def call(function: str, *arguments: object) -> Expr:
    """A function by its SQL name: `call("year", col("day")) == 2026`."""
    return Operation(_text(function, "call takes the name of a function").lower(), tuple(map(lift, arguments)))


def lift(value: object) -> Expr:
    """An expression as it is; a Python value as a constant.

    Raises:
        TypeError: no constant of the filter language.
    """
    if isinstance(value, Expr):
        return value
    return lit(value)  # type: ignore[arg-type]  # it refuses what is no constant


def _text(name: object, expected: str) -> str:
    if isinstance(name, str):
        return name
    raise TypeError(f"{expected}, not {name!r:.80} of type {type(name).__name__}")


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


MAX_LISTED_VALUES = 12
"""Longer IN lists are shortened in text: a reader of explain() wants the shape, not 1,000 values."""

_INFIX = {
    "or": 1,
    "and": 2,
    **dict.fromkeys(("=", "<>", "<", "<=", ">", ">=", "<=>"), 4),
    **dict.fromkeys(("+", "-", "||"), 9),
    **dict.fromkeys(("*", "/", "%", "div"), 10),
}
_CALL_NAMES = {
    "octet_length": "length",
    "list_get": "[]",
    "map_get": "[]",
    "list_element_at": "element_at",
    "try list_get": "get",
    "try list_element_at": "try_element_at",
    "try +": "try_add",
    "try -": "try_subtract",
    "try *": "try_multiply",
    "try /": "try_divide",
    "try %": "try_mod",
}
_NOT, _PREDICATE, _NEGATIVE, _ATOM = 3, 5, 11, 12


def bound_text(node: BoundExpr) -> str:
    """A bound expression as SQL that a person can read; long IN lists are shortened."""
    return _bound(node)[0]


def _wrap(part: tuple[str, int], above: int) -> str:
    text, level = part
    return text if level > above else f"({text})"


def _infix(operator: str, parts: list[tuple[str, int]]) -> tuple[str, int]:
    level = _INFIX[operator]
    # the first operand may share the operator's level (left-associative), comparisons never chain
    first = _wrap(parts[0], level if level == _INFIX["="] else level - 1)
    rest = [_wrap(p, level - 1 if operator in {"and", "or"} else level) for p in parts[1:]]
    return f" {operator} ".join([first, *rest]), level


def _unbound(node: Expr) -> tuple[str, int]:
    if not isinstance(node, Operation):
        assert isinstance(node, Name | Constant | CastTo)  # noqa: S101  # the only other classes of expressions
        return str(node), _ATOM
    return _operator(node.name, [_unbound(a) for a in node.arguments])


def _operator(name: str, parts: list[tuple[str, int]]) -> tuple[str, int]:  # noqa: C901  # one flat case per operator
    texts = [p[0] for p in parts]
    match name:
        case _ if name in _INFIX:
            return _infix(name, parts)
        case "not":
            return f"not {_wrap(parts[0], _NOT - 1)}", _NOT
        case "negative":
            return f"-{_wrap(parts[0], _NEGATIVE)}", _NEGATIVE
        case "is null":
            return f"{_wrap(parts[0], _PREDICATE)} is null", _PREDICATE
        case "between":
            low, high = (_wrap(p, _PREDICATE) for p in parts[1:])
            return f"{_wrap(parts[0], _PREDICATE)} between {low} and {high}", _PREDICATE
        case "in":
            return f"{_wrap(parts[0], _PREDICATE)} in ({', '.join(texts[1:])})", _PREDICATE
        case "like" | "ilike" | "rlike":
            escape = "" if len(texts) < 3 or texts[2] == r"'\\'" else f" escape {texts[2]}"
            return f"{_wrap(parts[0], _PREDICATE)} {name} {texts[1]}{escape}", _PREDICATE
        case "[]":
            return f"{_wrap(parts[0], _NEGATIVE)}[{texts[1]}]", _ATOM
        case ".":
            return f"{_wrap(parts[0], _NEGATIVE)}.{texts[1][1:-1]}", _ATOM
        case "case":
            return _case(list(zip(texts[:-1:2], texts[1::2], strict=False)), texts[-1]), _ATOM
        case _:
            return f"{name}({', '.join(texts)})", _ATOM


def _case(branches: list[tuple[str, str]], default: str) -> str:
    arms = " ".join(f"when {condition} then {value}" for condition, value in branches)
    return f"case {arms} else {default} end"


def _bound(node: BoundExpr) -> tuple[str, int]:  # noqa: C901, PLR0912  # one flat case per node
    match node:
        case Column(_, name):
            return str(Name((name,))), _ATOM
        case Member(operand, _, name):
            return f"{_wrap(_bound(operand), _NEGATIVE)}.{Name((name,))}", _ATOM
        case Literal(value, type_):
            return literal_text(value, type_), _ATOM
        case Failure(_, _, expression):
            return _bound(expression)
        case Comparison(operator, left, right):
            return _infix(operator, [_bound(left), _bound(right)])
        case InSet():
            return _in_set(node), _PREDICATE
        case Between(operand, lower, upper, lower_inclusive, upper_inclusive):
            return _between(operand, lower, upper, lower_inclusive, upper_inclusive)
        case IsNull(operand):
            return _operator("is null", [_bound(operand)])
        case Like(operand, pattern, escape, ignore_case):
            parts = [_bound(operand), (str(Constant(pattern)), _ATOM), (str(Constant(escape)), _ATOM)]
            return _operator("ilike" if ignore_case else "like", parts)
        case And(operands):
            return _infix("and", [_bound(o) for o in operands])
        case Or(operands):
            return _infix("or", [_bound(o) for o in operands])
        case Not(IsNull(operand)):
            return f"{_wrap(_bound(operand), _PREDICATE)} is not null", _PREDICATE
        case Not(operand):
            return _operator("not", [_bound(operand)])
        case Cast(operand, type_, safe):
            return f"{'try_cast' if safe else 'cast'}({_bound(operand)[0]} as {type_})", _ATOM
        case Case(branches, default):
            return _case([(_bound(c)[0], _bound(v)[0]) for c, v in branches], _bound(default)[0]), _ATOM
        case Coalesce(operands):
            return f"coalesce({', '.join(_bound(o)[0] for o in operands)})", _ATOM
        case Call(function, arguments):
            if function == "date_trunc":
                arguments = arguments[::-1]
            if function == "list_member" and isinstance(member := arguments[1], Literal):
                return f"{_wrap(_bound(arguments[0]), _NEGATIVE)}.{Name((member.value,))}", _ATOM
            return _operator(_CALL_NAMES.get(function, function), [_bound(a) for a in arguments])


def _between(operand: BoundExpr, lower: Any, upper: Any, lower_in: bool, upper_in: bool) -> tuple[str, int]:  # noqa: FBT001
    name, type_ = _wrap(_bound(operand), _PREDICATE), operand.type
    if lower is not None and upper is not None and lower_in and upper_in:
        return f"{name} between {literal_text(lower, type_)} and {literal_text(upper, type_)}", _PREDICATE
    parts = []
    if lower is not None:
        parts.append((f"{name} >{'=' * lower_in} {literal_text(lower, type_)}", _INFIX["="]))
    if upper is not None:
        parts.append((f"{name} <{'=' * upper_in} {literal_text(upper, type_)}", _INFIX["="]))
    return _infix("and", parts) if len(parts) > 1 else parts[0]


def _in_set(node: InSet) -> str:
    values = sorted(node.values)
    shown = [literal_text(v, node.operand.type) for v in values[:MAX_LISTED_VALUES]]
    if len(values) > MAX_LISTED_VALUES:
        shown.append(f"... {len(values) - MAX_LISTED_VALUES} more")
    shown += ["null"] * node.has_null + ["double 'NaN'"] * node.has_nan
    return f"{_wrap(_bound(node.operand), _PREDICATE)} in ({', '.join(shown)})"
