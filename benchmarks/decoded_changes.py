"""Rows as a batch of changes, as a decoder hands them on: what benchmarks give to change log and mirror.

Decoding is not measured with them.
"""

from datetime import UTC, datetime

import pyarrow as pa

from nevermore.pipelines.decode.batches import TIMESTAMP, ChangeBatch, change_schema


def changes_of(rows: pa.Table) -> ChangeBatch:
    """Every row as an update that says nothing of the row before; the key is `id`."""
    row_type = pa.struct(list(rows.schema))
    count = rows.num_rows
    values = {
        "op": pa.array(["u"] * count),
        "key": pa.StructArray.from_arrays([rows.column("id").combine_chunks()], names=["id"]),
        "before": pa.nulls(count, row_type),
        "after": rows.to_struct_array().combine_chunks(),
        "unchanged": pa.nulls(count, pa.list_(pa.string())),
        "source_file": pa.array(["changes"] * count),
        "source_offset": pa.array(range(count), pa.int64()),
        "source_ts": pa.nulls(count, TIMESTAMP),
        "ingested_at": pa.array([datetime.now(UTC)] * count, TIMESTAMP),
        "schema_version": pa.array([0] * count, pa.int32()),
    }
    return ChangeBatch(pa.table(values, schema=change_schema(row_type, ("id",))), row_type, ("id",))
