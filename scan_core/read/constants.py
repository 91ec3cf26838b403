"""Values that stand in for a column which a file lacks: partition values and defaults as scalars of the table's types.

When which of them is used is decided by `projection.py`.
"""

import struct
from collections.abc import Callable
from datetime import date, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa

from scan_core.errors import MalformedTableError
from scan_core.partition import partition_value
from scan_core.schema import ListType, MapType, NestedField, PrimitiveType, StructType, Type, arrow_type


def partition_scalar(value: Any, value_type: PrimitiveType, path: str) -> pa.Scalar:
    """A partition value of the data file at `path` (floats as canonical bits) as a value of the table.

    A value of a type that is not known, being that of an unknown transform, reads as NULL.

    Raises:
        MalformedTableError: not a value of the type.
    """
    target = arrow_type(value_type)
    if value is None or pa.types.is_null(target):
        return pa.scalar(None, type=target)
    try:
        return _partition_scalar(partition_value(value, value_type), value_type, target)
    except (pa.ArrowException, ValueError, TypeError, ArithmeticError, struct.error) as error:
        raise MalformedTableError(f"{path}: partition (102): {value!r:.80} is no {value_type}: {error}") from error


def _partition_scalar(value: Any, value_type: PrimitiveType, target: pa.DataType) -> pa.Scalar:
    match value_type.name:
        case "date" if isinstance(value, int):
            return pa.scalar(value, pa.int32()).cast(target)
        case "time" | "timestamp" | "timestamptz" | "timestamp_ns" | "timestamptz_ns" if isinstance(value, int):
            return pa.scalar(value, pa.int64()).cast(target)
        case _:
            return pa.scalar(value, type=target)


def default_scalar(value: Any, field: NestedField, missing: Callable[[NestedField], pa.Scalar]) -> pa.Scalar:
    """An `initial-default`, in the JSON form of single values, as a value of the table.

    Raises:
        MalformedTableError: not a value of the field's type.
    """
    try:
        return pa.scalar(_json_value(value, field.type, missing), type=arrow_type(field.type))
    except (pa.ArrowException, ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
        raise MalformedTableError(
            f"column {field.name!r}: initial-default {value!r:.80} is no {field.type}: {error}"
        ) from error


def _json_value(  # noqa: C901  one case per type
    value: Any, value_type: Type, missing: Callable[[NestedField], pa.Scalar]
) -> Any:
    if value is None:
        return None
    match value_type:
        case StructType(fields):
            return {
                f.name: _json_value(value[str(f.field_id)], f.type, missing) if str(f.field_id) in value else missing(f)
                for f in fields
            }
        case ListType(element):
            return [_json_value(v, element.type, missing) for v in value]
        case MapType(key, mapped):
            keys = [_json_value(k, key.type, missing) for k in value["keys"]]
            return list(zip(keys, [_json_value(v, mapped.type, missing) for v in value["values"]], strict=True))
        case PrimitiveType("decimal"):
            return Decimal(str(value))
        case PrimitiveType("date"):
            return date.fromisoformat(value)
        case PrimitiveType("time"):
            return time.fromisoformat(value)
        case PrimitiveType("timestamp" | "timestamptz" | "timestamp_ns" | "timestamptz_ns"):
            return pa.scalar(value).cast(arrow_type(value_type))
        case PrimitiveType("uuid"):
            return UUID(value).bytes
        case PrimitiveType("binary" | "fixed"):
            return bytes.fromhex(value)
        case PrimitiveType("float" | "double"):
            return float(value)
        case PrimitiveType():
            return value
