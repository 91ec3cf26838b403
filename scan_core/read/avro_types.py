"""The types of an Avro file: as stored, as meant, and how arrays of the one become the other."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from scan_core.read.file_reader import FIELD_ID_KEY

Finish = Callable[[pa.Array], pa.Array]

TIMES: Mapping[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "time-nanos"): pa.time64("ns"),
}
"""By type as stored and logical type."""
_TIMESTAMP_UNITS = {"millis": "ms", "micros": "us", "nanos": "ns"}


@dataclass(frozen=True, slots=True)
class AvroType:
    """One type of a schema.

    Attributes:
        plain: the rewritten Avro schema.
        stored: the Arrow type of the plain values.
        meant: the Arrow type they stand for, with field ids.
        finish: from `stored` to `meant`; None if they are the same.
        least_bytes: the fewest bytes a value can take.
        nullable: whether it is a union with null.
    """

    plain: Any
    stored: pa.DataType
    meant: pa.DataType
    finish: Finish | None
    least_bytes: int
    nullable: bool = False


@dataclass(frozen=True, slots=True)
class AvroField:
    """A field of a record under its name in the file; `key` is its name in the rewritten schema."""

    name: str
    key: str
    field_id: int | None
    type: AvroType

    def arrow(self) -> pa.Field:
        """As a field of the file's Arrow schema."""
        return arrow_field(self.name, self.type, self.field_id)


def arrow_field(name: str, kind: AvroType, field_id: int | None) -> pa.Field:
    """A field of the type meant, with its id as metadata."""
    metadata = None if field_id is None else {FIELD_ID_KEY: str(field_id)}
    return pa.field(name, kind.meant, kind.nullable, metadata)


def finish_struct(array: pa.StructArray, fields: tuple[AvroField, ...], meant: pa.DataType) -> pa.Array:
    """A struct of finished members."""
    if not fields:
        return array
    children = [_finished(array.field(i), f.type) for i, f in enumerate(fields)]
    return pa.StructArray.from_arrays(children, fields=list(meant), mask=_mask(array))


def finish_list(array: pa.ListArray, items: AvroType, meant: pa.DataType) -> pa.Array:
    """A list of finished elements."""
    values = _finished(array.values, items)
    return pa.ListArray.from_arrays(array.offsets, values, type=meant, mask=_mask(array))


def finish_map(array: pa.ListArray, key: AvroField, value: AvroField, meant: pa.DataType) -> pa.Array:
    """A map of finished keys and values, which are stored as a list of pairs."""
    entries = array.values
    keys, values = _finished(entries.field(0), key.type), _finished(entries.field(1), value.type)
    return pa.MapArray.from_arrays(array.offsets, keys, values, type=meant, mask=_mask(array))


def refuse_union(array: pa.Array) -> pa.Array:
    """What has no column type is refused where its column is asked for."""
    raise pa.ArrowNotImplementedError(f"a union of several types is not supported ({len(array)} values)")


def _finished(array: pa.Array, kind: AvroType) -> pa.Array:
    return array if kind.finish is None else kind.finish(array)


def _mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def timestamp_type(logical: str, schema: Mapping[str, Any]) -> pa.DataType:
    """Of a logical type; a plain number in a unit that nobody knows."""
    unit = _TIMESTAMP_UNITS.get(logical.rpartition("-")[2])
    if unit is None:
        return pa.int64()
    adjusted = schema.get("adjust-to-utc") in {True, "true"} and not logical.startswith("local-")
    return pa.timestamp(unit, "UTC" if adjusted else None)
