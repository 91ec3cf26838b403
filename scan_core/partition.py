"""Partition tuples in the one form in which `==` is partition equality (SEMANTICS rule 5), and back to values.

NULL equals NULL; floats are held as the bits of a double, NaN as one pattern, so that -0.0 differs from 0.0 and a
promoted float equals what it was. Every other value is what `ColumnStatistics` documents.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from scan_core.schema import NestedField, PrimitiveType, Type
from scan_core.snapshot import PartitionSpec
from scan_core.transforms import parse_transform

_FLOATS = frozenset({"float", "double"})
_NAN = float("nan")
UNKNOWN = PrimitiveType("unknown")


def partition_types(spec: PartitionSpec, field_paths: Mapping[int, Sequence[NestedField]]) -> tuple[Type, ...]:
    """Type of each partition value of a spec; unknown where transform or source column is not known."""
    return tuple(
        parse_transform(f.transform).result_type(field_paths[f.source_id][-1].type)
        if f.source_id in field_paths
        else UNKNOWN
        for f in spec.fields
    )


def normalise_value(value: Any, iceberg_type: Type) -> Any:
    """One value in canonical form. A float of an unknown type is canonical too: an unknown transform may make one."""
    if isinstance(value, float) or (
        value is not None and isinstance(iceberg_type, PrimitiveType) and iceberg_type.name in _FLOATS
    ):
        number = float(value)
        canonical = _NAN if number != number else number  # noqa: PLR0124 - NaN is the value that differs from itself
        return struct.unpack("<q", struct.pack("<d", canonical))[0]
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    return value


def partition_value(canonical: Any, iceberg_type: Type) -> Any:
    """The value that `normalise_value` was given, NaN in its canonical form."""
    if canonical is not None and isinstance(iceberg_type, PrimitiveType) and iceberg_type.name in _FLOATS:
        return struct.unpack("<d", struct.pack("<q", canonical))[0]
    return canonical
