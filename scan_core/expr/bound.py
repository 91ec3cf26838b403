"""Bound expressions: what a predicate means for one schema, with field ids and types in place of names.

Frozen, hashable and picklable: equal expressions compare equal, which is what common sub-expressions need. How they
come about is in `bind.py` and `normalize.py`, what they yield in `kernels.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from nevermore.scan_core.model.schema import PrimitiveType, Type

BOOLEAN = PrimitiveType("boolean")


@dataclass(frozen=True, slots=True)
class Column:
    """A top-level column."""

    field_id: int
    name: str
    type: Type


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a struct; NULL where the struct is."""

    operand: "BoundExpr"
    field_id: int
    name: str
    index: int
    type: Type


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant. Values are those of `ColumnStatistics`: dates, times and timestamps as integers; None is NULL."""

    value: Any
    type: Type


@dataclass(frozen=True, slots=True)
class Failure:
    """A constant expression that fails whenever it is needed, such as `1 / 0`; `expression` is what stood there."""

    reason: str
    type: Type
    expression: "BoundExpr"


@dataclass(frozen=True, slots=True)
class Comparison:
    """`operator` is one of = <> < <= > >= <=>; both sides have one type (decimals may differ in precision)."""

    operator: str
    left: "BoundExpr"
    right: "BoundExpr"
    type: ClassVar[Type] = BOOLEAN


@dataclass(frozen=True, slots=True)
class InSet:
    """Membership in a set of non-NULL constants of the operand's type. `has_null`: the list also holds NULL.

    NaN, when listed, is `has_nan`, not a member of `values`.
    """

    operand: "BoundExpr"
    values: frozenset[Any]
    has_null: bool = False
    has_nan: bool = False
    type: ClassVar[Type] = BOOLEAN


@dataclass(frozen=True, slots=True)
class Between:
    """One or two bounds on one operand: merged ranges. A bound of None is open on that side."""

    operand: "BoundExpr"
    lower: Any
    upper: Any
    lower_inclusive: bool = True
    upper_inclusive: bool = True
    type: ClassVar[Type] = BOOLEAN


@dataclass(frozen=True, slots=True)
class IsNull:
    """`operand is null`: never NULL itself."""

    operand: "BoundExpr"
    type: ClassVar[Type] = BOOLEAN


@dataclass(frozen=True, slots=True)
class Like:
    """SQL LIKE with a constant pattern; `escape` is one character or None."""

    operand: "BoundExpr"
    pattern: str
    escape: str | None = "\\"
    ignore_case: bool = False
    type: ClassVar[Type] = BOOLEAN


@dataclass(frozen=True, slots=True)
class And:
    """All operands; at least two, none of them an And after normalisation."""

    operands: tuple["BoundExpr", ...]
    type: ClassVar[Type] = BOOLEAN


@dataclass(frozen=True, slots=True)
class Or:
    """Any operand; at least two, none of them an Or after normalisation."""

    operands: tuple["BoundExpr", ...]
    type: ClassVar[Type] = BOOLEAN


@dataclass(frozen=True, slots=True)
class Not:
    """Negation; NULL stays NULL."""

    operand: "BoundExpr"
    type: ClassVar[Type] = BOOLEAN


@dataclass(frozen=True, slots=True)
class Cast:
    """A conversion; `safe` gives NULL where the plain one fails."""

    operand: "BoundExpr"
    type: Type
    safe: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """The value of the first branch whose condition is true, else `default`. Other branches never fail the row."""

    branches: tuple[tuple["BoundExpr", "BoundExpr"], ...]
    default: "BoundExpr"
    type: Type


@dataclass(frozen=True, slots=True)
class Coalesce:
    """The first operand that is not NULL; later ones never fail the row."""

    operands: tuple["BoundExpr", ...]
    type: Type


@dataclass(frozen=True, slots=True)
class Call:
    """A function or arithmetic operator of `rules.py` on arguments of the types it takes."""

    function: str
    arguments: tuple["BoundExpr", ...]
    type: Type


BoundExpr = (
    Column
    | Member
    | Literal
    | Failure
    | Comparison
    | InSet
    | Between
    | IsNull
    | Like
    | And
    | Or
    | Not
    | Cast
    | Case
    | Coalesce
    | Call
)


def children(node: BoundExpr) -> tuple[BoundExpr, ...]:
    """The direct operands of a node, in order."""
    match node:
        case Column() | Literal() | Failure():
            return ()
        case Comparison(_, left, right):
            return (left, right)
        case And(operands) | Or(operands) | Coalesce(operands):
            return operands
        case Case(branches, default):
            return (*(part for branch in branches for part in branch), default)
        case Call(_, arguments):
            return arguments
        case _:
            return (node.operand,)


def with_children(node: BoundExpr, parts: tuple[BoundExpr, ...]) -> BoundExpr:
    """The node with other operands, in the order of `children`."""
    match node:
        case Column() | Literal() | Failure():
            return node
        case Comparison():
            return replace(node, left=parts[0], right=parts[1])
        case And() | Or() | Coalesce():
            return replace(node, operands=parts)
        case Case():
            return replace(node, branches=tuple(zip(parts[:-1:2], parts[1::2], strict=True)), default=parts[-1])
        case Call():
            return replace(node, arguments=parts)
        case _:
            return replace(node, operand=parts[0])


def walk(node: BoundExpr) -> Iterator[BoundExpr]:
    """The node and everything below it, parents first."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        stack.extend(reversed(children(current)))
