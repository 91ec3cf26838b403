"""Which parts of nested columns an expression needs: members of elements, one of key and value, or only how many there are.

A type with fewer members stands for a column of which only these are read. In it a struct without members stands for
values of any type of which only the presence matters: `l is null`, `size(l)`.
"""

from dataclasses import replace
from functools import lru_cache

from nevermore.scan_core.expr.bound import (
    BoundExpr,
    Call,
    Column,
    IsNull,
    Literal,
    Member,
    children,
    with_children,
)
from nevermore.scan_core.model.schema import ListType, MapType, NestedField, StructType, Type

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
