"""Conditions of Polars in the filter language, read from the JSON in which Polars serialises expressions.

Polars has brought both sides of each comparison to one type by then, so a cast in it marks values that may be rounded;
such conditions stay with Polars. Floats compare as here: NaN equals NaN and is larger than every number.
"""

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa

from scan_core.expr.coercion import FLOATING, name_of, round_to_float
from scan_core.expr.nodes import Constant, Expr, Operation
from scan_core.foreign.pushdown import NotTranslatableError, column, constant
from scan_core.model.schema import Schema, Type

_COMPARISONS = {
    "Eq": ("=", "="),
    "NotEq": ("<>", "<>"),
    "Lt": ("<", ">"),
    "LtEq": ("<=", ">="),
    "Gt": (">", "<"),
    "GtEq": (">=", "<="),
    "EqValidity": ("<=>", "<=>"),
}
"""Operators, and the same with the sides exchanged."""
_BOUNDS = {"Both": (">=", "<="), "Left": (">=", "<"), "Right": (">", "<="), "None": (">", "<")}
_UNITS = {"Milliseconds": "ms", "Microseconds": "us", "Nanoseconds": "ns"}


def conjuncts(serialised: str) -> list[Any]:
    """The conditions that an expression, given as Polars' JSON, joins with AND."""
    pending, found = [json.loads(serialised)], []
    while pending:
        match pending.pop():
            case {"BinaryExpr": {"left": left, "op": "And", "right": right}}:
                pending += [right, left]
            case other:
                found.append(other)
    return found


def translate(tree: Any, schema: Schema) -> Expr:
    """A condition of Polars in the filter language, NULL where it is null there.

    Raises:
        NotTranslatableError: there is no exact equivalent.
    """
    match tree:
        case {"Column": _}:
            expression, kind = _column(tree, schema)
            if name_of(kind) != "boolean":
                raise NotTranslatableError
            return expression
        case {"Literal": {"Scalar": {"Boolean": bool(value)}}}:
            return Constant(value)
        case {"BinaryExpr": {"left": left, "op": "And" | "Or" as name, "right": right}}:
            return Operation(name.lower(), (translate(left, schema), translate(right, schema)))
        case {"BinaryExpr": {"left": left, "op": "NotEqValidity", "right": right}}:
            return ~_compare("EqValidity", left, right, schema)
        case {"BinaryExpr": {"left": left, "op": str(name), "right": right}}:
            return _compare(name, left, right, schema)
        case {"Function": {"input": [*inputs], "function": {"Boolean": function}}}:
            return _boolean(function, inputs, schema)
        case {"Function": {"input": [subject, {"Literal": {"Scalar": {"String": str(prefix)}}}], "function": function}}:
            expression, kind = _column(subject, schema)
            if function != {"StringExpr": "StartsWith"} or name_of(kind) != "string":
                raise NotTranslatableError
            return expression.starts_with(prefix)
        case _:
            raise NotTranslatableError


def _column(tree: Any, schema: Schema) -> tuple[Expr, Type]:
    """A column or a member of a struct, and its type."""
    path: list[str] = []
    while True:
        match tree:
            case {"Column": str(name)}:
                return column(schema, [name, *path])
            case {"Function": {"input": [inner], "function": {"StructExpr": {"FieldByName": str(name)}}}}:
                path.insert(0, name)
                tree = inner
            case _:
                raise NotTranslatableError


def _compare(name: str, left: Any, right: Any, schema: Schema) -> Expr:
    if name not in _COMPARISONS:
        raise NotTranslatableError
    is_reversed = "Literal" in left
    expression, kind = _column(right if is_reversed else left, schema)
    value = constant(kind, _scalar(left if is_reversed else right))
    return Operation(_COMPARISONS[name][is_reversed], (expression, value))


def _boolean(function: Any, inputs: list[Any], schema: Schema) -> Expr:  # one flat case per function
    if function == "Not":
        return ~translate(inputs[0], schema)
    expression, kind = _column(inputs[0], schema)
    match function:
        case "IsNull":
            return expression.is_null()
        case "IsNotNull":
            return expression.is_not_null()
        case "IsNan" | "IsNotNan" if name_of(kind) in FLOATING:
            is_nan = Operation("=", (expression, Constant(float("nan"), kind)))
            return is_nan if function == "IsNan" else ~is_nan
        case {"IsBetween": {"closed": closed}} if closed in _BOUNDS:
            low, high = (constant(kind, _scalar(each)) for each in inputs[1:])
            above, below = _BOUNDS[closed]
            return Operation(above, (expression, low)) & Operation(below, (expression, high))
        case {"IsIn": {"nulls_equal": False}} if name_of(kind) not in FLOATING:
            return expression.is_in([constant(kind, value) for value in _values(inputs[1])])
        case _:
            raise NotTranslatableError


def _values(tree: Any) -> pa.ChunkedArray:
    """The values of a list, none of them null."""
    match tree:
        case {"Literal": {"Scalar": {"List": [*stream]}}}:
            with pa.ipc.open_stream(bytes(stream)) as reader:
                found = reader.read_all().column(0)
            if len(found) and not found.null_count:
                return found
    raise NotTranslatableError


def _scalar(tree: Any) -> pa.Scalar:  # noqa: C901, PLR0912  one flat case per type
    match tree:
        case {"Literal": {"Scalar": dict(scalar)}} if len(scalar) == 1:
            ((kind, value),) = scalar.items()
        case _:
            raise NotTranslatableError
    match kind, value:
        case "Boolean", bool():
            return pa.scalar(value)
        case (("Int8" | "Int16" | "Int32" | "Int64" | "UInt8" | "UInt16" | "UInt32" | "UInt64"), int()):
            return pa.scalar(value, pa.uint64() if value >= 0 else pa.int64())
        case "Float64", int() | float():
            return pa.scalar(float(value))
        case "Float32", int() | float():  # written with as few digits as identify a single-precision number
            return pa.scalar(round_to_float(value))
        case "String", str():
            return pa.scalar(value)
        case "Binary", list():
            return pa.scalar(bytes(value))
        case "Date", int():
            return pa.scalar(value, pa.date32())
        case "Time", int():
            return pa.scalar(value, pa.time64("ns"))
        case "Datetime", [int(count), str(unit), zone] if unit in _UNITS:
            return pa.scalar(count, pa.timestamp(_UNITS[unit], None if zone is None else "UTC"))
        case "Decimal", [int(unscaled), int(), int(scale)]:
            return pa.scalar(Decimal(unscaled).scaleb(-scale), pa.decimal128(38, scale))
        case _:
            raise NotTranslatableError
