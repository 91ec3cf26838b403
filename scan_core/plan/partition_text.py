"""Partition values as people write them: days as dates, months as 2026-03, not numbers since 1970."""

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from scan_core.expr.literals import literal_text
from scan_core.partition import partition_types, partition_value
from scan_core.schema import NestedField, PrimitiveType, Type
from scan_core.snapshot import PartitionSpec

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def partition_text(
    spec: PartitionSpec, partition: Sequence[Any], field_paths: Mapping[int, Sequence[NestedField]]
) -> str:
    """The values of a partition by the names of its fields."""
    types = partition_types(spec, field_paths)
    parts = zip(spec.fields, partition, types, strict=False)
    return ", ".join(f"{field.name} = {_value(value, field.transform, type_)}" for field, value, type_ in parts)


def _value(canonical: Any, transform: str, type_: Type) -> str:
    value = partition_value(canonical, type_)
    if value is None:
        return "null"
    if isinstance(value, int):
        match transform:
            case "year":
                return str(1970 + value)
            case "month":
                return f"{1970 + value // 12:04}-{value % 12 + 1:02}"
            case "hour" if abs(value) < 10**7:  # within what Python's calendar has
                return f"{_EPOCH + dt.timedelta(hours=value):%Y-%m-%d %H}:00"
    if isinstance(type_, PrimitiveType) and type_.name in {
        "date",
        "timestamp",
        "timestamptz",
        "string",
        "time",
        "uuid",
    }:
        text = literal_text(value, type_)
        return text if type_.name == "string" else text[text.index("'") + 1 : -1] if "'" in text else text
    return f"X'{value.hex()}'" if isinstance(value, bytes) else str(value)
