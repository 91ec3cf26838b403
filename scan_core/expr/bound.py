"""Bound expressions: what a predicate means for one schema, with field ids and types in place of names.

Frozen, hashable and picklable: equal expressions compare equal, which is what common sub-expressions need. How they
come about is in `bind.py` and `normalize.py`, what they yield in `kernels.py`.

`narrowed` tells which parts of nested columns an expression needs: members of elements, only the keys or only the values, or
how many there are. A type with fewer members means that only these members of a column are read. In such a type, a struct
without members means that only the presence of values matters, whatever their type: `l is null`, `size(l)`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

from nevermore.scan_core.model.schema import ListType, MapType, NestedField, PrimitiveType, StructType, Type

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


PRESENCE = StructType(())
"""Nothing but whether a value is there."""
_GETS = frozenset({"list_get", "list_element_at"})


@lru_cache(maxsize=1024)
def narrowed(expr: BoundExpr) -> BoundExpr:
    """The expression on columns and struct members of the types that it needs."""
    needs: dict[int, Type] = {}
    _collect(expr, expr.type, needs)
    return _rewrite(expr, needs)


def is_access(node: BoundExpr) -> bool:
    """Whether an expression takes a part of a single column, by members, constant positions and keys."""
    match node:
        case Column():
            return True
        case Member(operand):
            return is_access(operand)
        case Call(function, (operand, Literal())) if function.removeprefix("try ") in {
            *_GETS,
            "map_get",
            "list_member",
        }:
            return is_access(operand)
        case _:
            return False


def is_leaf(node: BoundExpr) -> bool:
    """A column, or a member below structs alone: what is read as a column of its own."""
    while isinstance(node, Member):
        node = node.operand
    return isinstance(node, Column)


def _collect(node: BoundExpr, need: Type, needs: dict[int, Type]) -> None:
    """Add what the columns below `node` are needed for, if `need` is needed of its values."""
    if isinstance(node, Column | Member) and is_leaf(node):
        needs[node.field_id] = _united(needs[node.field_id], need, node.type) if node.field_id in needs else need
        return
    match node:
        case Member(operand, field_id):
            assert isinstance(operand.type, StructType)  # noqa: S101  # by binding
            kept = tuple(replace(f, type=need) for f in operand.type.fields if f.field_id == field_id)
            _collect(operand, StructType(kept), needs)
        case IsNull(operand):
            _collect(operand, _presence(operand.type), needs)
        case Call(function, (operand, *rest)):
            _collect(operand, _needed_of(function.removeprefix("try "), node, need), needs)
            for argument in rest:
                _collect(argument, argument.type, needs)
        case _:
            for child in children(node):
                _collect(child, child.type, needs)


def _needed_of(function: str, node: Call, need: Type) -> Type:
    """What a function needs of its first argument, if `need` is needed of its result."""
    kind = node.arguments[0].type
    match kind:
        case ListType(element) if function in _GETS:
            return ListType(replace(element, type=need))
        case ListType(element) if function == "list_member":
            assert isinstance(element.type, StructType)  # noqa: S101  # by binding
            assert isinstance(need, ListType)  # noqa: S101  # its result is a list
            name = member_name(node)
            members = tuple(replace(f, type=need.element.type) for f in element.type.fields if f.name == name)
            return ListType(replace(element, type=StructType(members)))
        case MapType(_, value) if function == "map_get":
            return replace(kind, value=replace(value, type=need))
        case MapType(_, value) if function == "map_contains_key":
            return replace(kind, value=replace(value, type=PRESENCE))
        case ListType() | MapType() if function == "size":
            return _presence(kind)
        case _:
            return kind


def member_name(node: Call) -> str:
    """The member that `list_member` takes of each element."""
    name = node.arguments[1]
    assert isinstance(name, Literal)  # noqa: S101  # by binding
    return str(name.value)


def _presence(kind: Type) -> Type:
    """The need for presence alone: which values are NULL, and how many elements they have."""
    match kind:
        case StructType():
            return PRESENCE
        case ListType(element):
            return ListType(replace(element, type=PRESENCE))
        case MapType(_, value):
            return ListType(replace(value, type=PRESENCE))
        case _:
            return kind


def _united(one: Type, other: Type, whole: Type) -> Type:
    """The union of two needs."""
    match whole:
        case StructType(fields):
            assert isinstance(one, StructType)  # noqa: S101  # parts of a struct
            assert isinstance(other, StructType)  # noqa: S101
            return StructType(tuple(_united_fields(one, other, f) for f in fields if _has(one, f) or _has(other, f)))
        case ListType(element):
            assert isinstance(one, ListType)  # noqa: S101  # parts of a list
            assert isinstance(other, ListType)  # noqa: S101
            return ListType(replace(element, type=_united_values(one.element.type, other.element.type, element.type)))
        case MapType(_, value):
            if not isinstance(one, MapType) or not isinstance(other, MapType):
                return other if isinstance(other, MapType) else one
            return replace(
                whole, value=replace(value, type=_united_values(one.value.type, other.value.type, value.type))
            )
        case _:
            return whole


def _united_values(one: Type, other: Type, whole: Type) -> Type:
    if PRESENCE in {one, other}:
        return other if one == PRESENCE else one
    return _united(one, other, whole)


def _has(part: StructType, field: NestedField) -> bool:
    return any(f.field_id == field.field_id for f in part.fields)


def _united_fields(one: StructType, other: StructType, field: NestedField) -> NestedField:
    types = [f.type for part in (one, other) for f in part.fields if f.field_id == field.field_id]
    return replace(field, type=types[0] if len(types) == 1 else _united_values(types[0], types[1], field.type))


def _rewrite(node: BoundExpr, needs: dict[int, Type]) -> BoundExpr:
    if isinstance(node, Column | Member) and is_leaf(node):
        node = replace(node, type=needs.get(node.field_id, node.type))
        return replace(node, operand=_rewrite(node.operand, needs)) if isinstance(node, Member) else node
    parts = tuple(_rewrite(child, needs) for child in children(node))
    node = with_children(node, parts)
    match node:
        case Member(operand, field_id):
            assert isinstance(operand.type, StructType)  # noqa: S101  # by binding
            (index,) = (i for i, f in enumerate(operand.type.fields) if f.field_id == field_id)
            return replace(node, index=index, type=operand.type.fields[index].type)
        case Call(function, (operand, *_)):
            kind, name = operand.type, function.removeprefix("try ")
            if isinstance(kind, ListType) and name in _GETS:
                return replace(node, type=kind.element.type)
            if isinstance(kind, MapType) and name == "map_get":
                return replace(node, type=kind.value.type)
            if isinstance(kind, ListType) and isinstance(node.type, ListType) and name == "list_member":
                return replace(node, type=ListType(replace(node.type.element, type=_only_member(kind, node).type)))
    return node


def _only_member(kind: ListType, node: Call) -> NestedField:
    assert isinstance(kind.element.type, StructType)  # noqa: S101  # by binding
    return next(f for f in kind.element.type.fields if f.name == member_name(node))
