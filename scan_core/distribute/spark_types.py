"""Iceberg types as Spark has them: uuid as text, fixed as binary, the rest one to one or refused.

Everything may be NULL, as Spark itself declares what it reads from files: a query does not depend on a promise of the
table's writers.
"""

import inspect
from typing import Any

import pyarrow as pa
from pyspark.sql import types as st
from pyspark.sql.pandas.types import to_arrow_schema

from scan_core.errors import UnsupportedError
from scan_core.schema import ListType, MapType, PrimitiveType, Schema, StructType, Type

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
    """What Spark wants of batches of a schema: timestamps in UTC, short offsets, all nullable."""
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
