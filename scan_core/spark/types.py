"""Iceberg types as Spark types, and record batches exactly as Spark's Arrow reader expects them."""

import inspect
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as st
from pyspark.sql.pandas.types import to_arrow_schema

from nevermore.scan_core.expr.casts import uuid_text
from nevermore.scan_core.model.errors import UnsupportedError
from nevermore.scan_core.model.schema import ListType, MapType, PrimitiveType, Schema, StructType, Type

_SPARK_TYPES: dict[str, st.DataType] = {
    "boolean": st.BooleanType(),
    "int": st.IntegerType(),
    "long": st.LongType(),
    "float": st.FloatType(),
    "double": st.DoubleType(),
    "date": st.DateType(),
    "timestamp": st.TimestampNTZType(),
    "timestamptz": st.TimestampType(),
    "string": st.StringType(),
    "uuid": st.StringType(),
    "binary": st.BinaryType(),
    "fixed": st.BinaryType(),
    "unknown": st.NullType(),
}

_IN_UTC: dict[str, Any] = (
    {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {"timestamp_utc": True}
)
"""Spark 4.3 wants the zone by name, before it was UTC or none."""


def spark_schema(schema: Schema) -> st.StructType:
    """The Spark schema of rows of an Iceberg schema; uuid becomes text, fixed becomes binary.

    Raises:
        UnsupportedError: a type without counterpart in Spark (nanoseconds, variant, geometry).
    """
    return st.StructType([st.StructField(f.name, spark_type(f.type, f.name)) for f in schema.fields])


def arrow_schema_of(schema: st.StructType) -> pa.Schema:
    """The form in which Spark expects batches of a schema: timestamps in UTC, short offsets, all nullable."""
    return to_arrow_schema(schema, **_IN_UTC)


def spark_type(iceberg_type: Type, column: str) -> st.DataType:
    """The Spark type of values of an Iceberg type; `column` is for the message of a refusal."""
    match iceberg_type:
        case StructType(members):
            return st.StructType([st.StructField(f.name, spark_type(f.type, f"{column}.{f.name}")) for f in members])
        case ListType(element):
            return st.ArrayType(spark_type(element.type, f"{column}.element"))
        case MapType(key, value):
            return st.MapType(spark_type(key.type, f"{column}.key"), spark_type(value.type, f"{column}.value"))
        case PrimitiveType("decimal", (precision, scale)):
            return st.DecimalType(precision, scale)
        case PrimitiveType(name) if name in _SPARK_TYPES:
            return _SPARK_TYPES[name]
        case _:
            raise UnsupportedError(
                f"column {column!r}: Spark has no type for {iceberg_type}; select the columns without it"
            )


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """`batch` with the columns, types and nullability of `schema`, by position.

    Args:
        batch: of the table's types; its columns are in the order of `schema`.
        schema: the schema that Spark has.

    Raises:
        UnsupportedError: a column cannot become the declared type without loss.
    """
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    columns = [_conform_array(array, field) for array, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _conform_array(array: pa.Array, field: pa.Field) -> pa.Array:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if array.type == field.type:
        return array
    if array.type == pa.binary(16) and pa.types.is_string(field.type):
        return uuid_text(array)
    if pa.types.is_nested(field.type):
        return _conform_nested(array, field)
    try:
        return pc.cast(array, field.type, safe=True)
    except pa.ArrowException as error:
        raise UnsupportedError(f"column {field.name!r}: {array.type} does not fit Spark's {field.type}") from error


def _conform_nested(array: pa.Array, field: pa.Field) -> pa.Array:
    """Rebuild children under the declared type; offsets and null masks stay as they are."""
    target = field.type
    mask = pc.is_null(array) if array.null_count else None
    if pa.types.is_struct(target):
        # StructArray.field() honours the slice's offset but not the parent's nulls, which `mask` brings back.
        members = [_conform_array(array.field(i), target.field(i)) for i in range(target.num_fields)]
        return pa.StructArray.from_arrays(members, fields=list(target), mask=mask)
    if array.offset:
        array = pa.concat_arrays([array, array.slice(0, 0)])  # from_arrays takes no mask with sliced offsets
    offsets = array.offsets
    if pa.types.is_map(target):
        keys = _conform_array(array.keys, target.key_field)
        items = _conform_array(array.items, target.item_field)
        return pa.MapArray.from_arrays(offsets, keys, items, type=target, mask=mask)
    values = _conform_array(array.values, target.value_field)
    return pa.ListArray.from_arrays(offsets, values, type=target, mask=mask)
