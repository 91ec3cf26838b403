"""The types that callers see: as the engine's own, but UUIDs as Arrow's uuid instead of 16 plain bytes."""

import pyarrow as pa

from scan_core.schema import ListType, MapType, PrimitiveType, Schema, StructType, Type, arrow_type


def public_schema(schema: Schema) -> pa.Schema:
    """The Arrow schema of rows of `schema` as callers see them."""
    return pa.schema([pa.field(f.name, public_type(f.type), nullable=not f.required) for f in schema.fields])


def public_type(iceberg_type: Type) -> pa.DataType:
    """The Arrow type of values as callers see them.

    Raises:
        UnsupportedError: variant, geometry, geography.
    """
    match iceberg_type:
        case PrimitiveType("uuid"):
            return pa.uuid()
        case StructType(fields):
            return pa.struct([pa.field(f.name, public_type(f.type), nullable=not f.required) for f in fields])
        case ListType(element):
            return pa.list_(pa.field("element", public_type(element.type), nullable=not element.required))
        case MapType(key, value):
            return pa.map_(
                pa.field("key", public_type(key.type), nullable=False),
                pa.field("value", public_type(value.type), nullable=not value.required),
            )
        case _:
            return arrow_type(iceberg_type)


def public_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch in the public schema, its buffers shared."""
    if batch.schema == schema:
        return batch
    arrays = [
        array if array.type == field.type else array.cast(field.type)
        for array, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
