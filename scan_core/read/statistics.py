"""Bounds of a file's column in the types of the table: the statistics side of type promotion.

What bounds prove is the business of `prune/`.
"""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from scan_core.read.file_reader import ColumnStatistics
from scan_core.schema import PrimitiveType, Type, arrow_type

_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_SECONDS_PER_DAY = 86_400


def table_statistics(found: ColumnStatistics, file_type: pa.DataType, table_type: Type) -> ColumnStatistics:
    """`found` with its bounds as values of the table's type, without bounds where they do not carry over."""
    if found.lower is None and found.upper is None:
        return found
    if not isinstance(table_type, PrimitiveType) or pt.is_nested(file_type):
        return replace(found, lower=None, upper=None)
    if pt.is_dictionary(file_type):
        file_type = file_type.value_type
    target = arrow_type(table_type)
    if file_type == target:
        return found
    return replace(
        found, lower=_promoted(found.lower, file_type, target), upper=_promoted(found.upper, file_type, target)
    )


def _promoted(value: Any, source: pa.DataType, target: pa.DataType) -> Any:
    if value is None:
        return None
    if pt.is_timestamp(target):
        if pt.is_date32(source):
            return value * _SECONDS_PER_DAY * _PER_SECOND[target.unit]
        return _rescaled(value, source.unit, target.unit) if pt.is_timestamp(source) else None
    if pt.is_time(target):
        return _rescaled(value, source.unit, target.unit) if pt.is_time(source) else None
    if pt.is_string(target) and isinstance(value, bytes):
        return None  # cut bytes need not be text
    if pt.is_binary(target) and isinstance(value, str):
        return value.encode()
    return value if _same_family(source, target) else None


def _rescaled(value: int, source: str, target: str) -> int | None:
    have, want = _PER_SECOND[source], _PER_SECOND[target]
    return value * (want // have) if want >= have else None


def _same_family(source: pa.DataType, target: pa.DataType) -> bool:
    families = (pt.is_signed_integer, pt.is_floating, pt.is_decimal, pt.is_fixed_size_binary)
    return any(family(source) and family(target) for family in families) or (
        (pt.is_string(target) and (pt.is_large_string(source) or pt.is_string(source)))
        or (pt.is_binary(target) and (pt.is_large_binary(source) or pt.is_binary(source)))
    )
