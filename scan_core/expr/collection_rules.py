"""How subscripts and functions of lists and maps bind."""

from scan_core.expr.argument_rules import ArgumentError, Arguments
from scan_core.expr.bound import BoundExpr, Call
from scan_core.expr.coercion import BOOLEAN, INT, LONG, common_type, name_of
from scan_core.expr.constants import coerce
from scan_core.schema import ListType, MapType


def size(_: str, arguments: Arguments) -> BoundExpr:
    """Elements of a list, or entries of a map."""
    if not isinstance(arguments[0].type, ListType | MapType):
        raise ArgumentError(f"size takes a list or a map, not {arguments[0].type}", 0)
    return Call("size", arguments, INT)


def list_size(_: str, arguments: Arguments) -> BoundExpr:
    """Elements of a list."""
    if not isinstance(arguments[0].type, ListType):
        raise ArgumentError(f"array_size takes a list, not {arguments[0].type}", 0)
    return Call("size", arguments, INT)


def subscript(function: str, arguments: Arguments) -> BoundExpr:
    """`[]` (lists from 0), element_at (lists from 1, or from the end) and its try_ form; maps give NULL for no key."""
    operand, key = arguments
    match operand.type:
        case ListType(element):
            if name_of(key.type) not in {"int", "long"}:
                raise ArgumentError(f"a position in a list is an int, not {key.type}", 1)
            name = {"[]": "list_get", "get": "try list_get", "element_at": "list_element_at"}.get(
                function, "try list_element_at"
            )
            return Call(name, (operand, coerce(key, LONG)), element.type)
        case MapType(key_field, value_field):
            if common_type(key_field.type, key.type) != key_field.type:
                raise ArgumentError(f"the keys of this map are {key_field.type}, not {key.type}", 1)
            return Call("map_get", (operand, coerce(key, key_field.type)), value_field.type)
        case _:
            raise ArgumentError(f"{function} takes a list or a map, not {operand.type}", 0)


def contains_element(name: str, arguments: Arguments) -> BoundExpr:
    """Is a value among the elements of a list, or the keys of a map."""
    operand, value = arguments
    element = operand.type.element if isinstance(operand.type, ListType) else None
    if name == "map_contains_key":
        element = operand.type.key if isinstance(operand.type, MapType) else None
    if element is None or common_type(element.type, value.type) is None:
        raise ArgumentError(f"{name} cannot look for {value.type} in {operand.type}")
    return Call(name, (operand, coerce(value, element.type)), BOOLEAN)
