"""The partitions of a published table that rows lie in, by their keys."""

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.published.partition import PublishedPartition
from scan_core.schema import Type, arrow_type
from scan_core.transforms import parse_transform


def keys_of_rows(rows: pa.Table, partition: PublishedPartition, kind: Type) -> pa.Array:
    """The key of each row's partition.

    Args:
        rows: with the column that partitions are made by.
        partition: of the table.
        kind: Iceberg type of that column.
    """
    column = rows.column(partition.column).cast(arrow_type(kind)).combine_chunks()
    physical = parse_transform(partition.transform).apply(column, kind)
    distinct = pc.unique(physical)
    identity = PublishedPartition(partition.column, "value", "identity")
    found = [_key(partition, identity, value, kind) for value in distinct]
    return pa.array(found, pa.string()).take(pc.index_in(physical, distinct))


def _key(partition: PublishedPartition, identity: PublishedPartition, value: pa.Scalar, kind: Type) -> str:
    """Of a value of the partition field, in the form of manifests."""
    if partition.transform == "identity":
        physical = identity.physical_values(pa.array([value.as_py()], arrow_type(kind)), kind).pop()
    elif pa.types.is_date32(value.type):
        physical = value.cast(pa.int32()).as_py()
    else:
        physical = value.as_py()
    return partition.key_of(physical, kind)
