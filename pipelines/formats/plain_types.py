"""The types in which mirrors hold values that other writers (Parquet, Avro, CSV readers) type more finely."""

import pyarrow as pa


def plain_type(arrow: pa.DataType) -> pa.DataType:
    """The type, of those that Iceberg has, that holds every value of an Arrow type."""
    if pa.types.is_dictionary(arrow):
        return plain_type(arrow.value_type)
    if pa.types.is_nested(arrow):
        return _plain_nested(arrow)
    if pa.types.is_temporal(arrow):
        return _plain_temporal(arrow)
    if pa.types.is_integer(arrow):
        return _plain_integer(arrow)
    if pa.types.is_decimal(arrow):
        return pa.decimal128(min(arrow.precision, 38), max(min(arrow.scale, 38), 0))
    if pa.types.is_large_string(arrow) or pa.types.is_string_view(arrow):
        return pa.string()
    if pa.types.is_large_binary(arrow) or pa.types.is_binary_view(arrow):
        return pa.binary()
    return pa.float32() if arrow == pa.float16() else arrow


def _plain_integer(arrow: pa.DataType) -> pa.DataType:
    if arrow == pa.uint64():
        return pa.decimal128(20, 0)
    return pa.int64() if arrow in (pa.int64(), pa.uint32()) else pa.int32()


def _plain_temporal(arrow: pa.DataType) -> pa.DataType:
    if pa.types.is_date(arrow):
        return pa.date32()
    if pa.types.is_time(arrow):
        return pa.time64("us")
    if pa.types.is_timestamp(arrow):
        # Nanoseconds are for tables of format 3, whose columns say so; others hold microseconds.
        return pa.timestamp("us", "UTC" if arrow.tz else None)
    return pa.int64()


def _plain_nested(arrow: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(arrow):
        fields = [arrow.field(i) for i in range(arrow.num_fields)]
        return pa.struct([pa.field(f.name, plain_type(f.type)) for f in fields])
    if pa.types.is_map(arrow):
        key = pa.field("key", plain_type(arrow.key_type), nullable=False)
        return pa.map_(key, pa.field("value", plain_type(arrow.item_type)))
    return pa.list_(pa.field("element", plain_type(arrow.value_type)))
