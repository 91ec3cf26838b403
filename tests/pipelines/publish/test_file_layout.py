"""What footers and manifests say of published files, whether Spark computed the rows or the readers copied them."""

import datetime as dt
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from nevermore.pipelines.config.project import parse
from nevermore.pipelines.iceberg.catalog import create_table, find_table, open_catalog
from nevermore.pipelines.iceberg.commit import RowDelta
from nevermore.pipelines.iceberg.schema_evolution import iceberg_fields
from nevermore.pipelines.iceberg.table_writer import write_rows
from nevermore.pipelines.publish import refresh
from nevermore.pipelines.publish.refresh import publish
from nevermore.scan_core import open_table
from tests.support.spark_session import SPARK_TEST

pytestmark = [*SPARK_TEST, pytest.mark.slow]

NUM_ROWS = 300_000
DAY = dt.date(2026, 1, 1)
ROW_GROUP_ROWS = 25_000
OPTIONS: dict[str, Any] = {
    "target_file_bytes": "1MiB",
    "bloom_filters": ["id"],
}


@pytest.mark.parametrize(
    ("entry", "copied"),
    [
        ({"sql": "select * from shop.orders"}, "by readers"),
        ({"sql": "select * from shop.orders", "partition": "day"}, "by readers"),
        ({"sql": "select id, amount * 1 as amount, note, day from shop.orders", "sort_by": ["id"]}, "by Spark"),
        ({"sql": "select id, amount * 1 as amount, note, day from shop.orders", "sort_by": ["id"], "partition": "day"}, "by Spark"),
        ({"sql": "select * from shop.orders", "sort_by": ["note", "id"], "mode": "append"}, "by Spark"),
        ({"sql": "select * from shop.orders", "key": ["id"], "mode": "upsert"}, "by Spark"),
        ({"sql": "select * from shop.orders", "key": ["id"], "mode": "upsert", "sort_by": ["note"]}, "by Spark"),
    ],
)  # fmt: skip
def test_files_have_the_size_pages_filters_and_statistics_that_were_asked_for(
    entry: dict[str, Any], copied: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = refresh.file_layout
    small = {"row_group_rows": ROW_GROUP_ROWS, "page_rows": 5_000}
    monkeypatch.setattr(refresh, "file_layout", lambda options: replace(asked(options), **small))
    published = {"options": OPTIONS} | entry
    text = f"tables: {{shop.orders: {{source: {{path: none}}, key: [id]}}}}\npublished: {{shop.out: {published}}}"
    config = parse(text, tmp_path / "nevermore.yaml")
    rows = pa.table({
        "id": pa.array([i * 7919 % NUM_ROWS for i in range(NUM_ROWS)], pa.int64()),
        "amount": pa.array([None if i % 10 == 0 else float("nan") if i % 10 == 1 else i / 3 for i in range(NUM_ROWS)]),
        "note": [f"note {i * 104729 % 1_000_003} of {i}" for i in range(NUM_ROWS)],
        "day": pa.array([DAY] * NUM_ROWS, pa.date32()),
    })  # fmt: skip
    delta = RowDelta(create_table(open_catalog(config), "shop.orders", iceberg_fields(rows.schema)))
    delta.commit(write_rows(rows, delta.target, delta.default_spec), {})

    report = publish(config, "shop.out", partitions=[DAY.isoformat()] if "partition" in entry else ())
    assert (report.rows, report.copied_rows) == (NUM_ROWS, NUM_ROWS if copied == "by readers" else 0)

    table = find_table(open_catalog(config), "shop.out")
    files = [task.data_file for task in open_table(table).scan().plan().tasks]
    assert len(files) > 1
    ids = {field.name: field.field_id for field in open_table(table).schema.fields}
    totals: dict[str, int] = {"nulls": 0, "nans": 0}
    for file in files:
        path = Path(file.path.removeprefix("file://"))
        footer = pq.read_metadata(path)
        assert file.record_count == footer.num_rows
        assert file.file_size_bytes == path.stat().st_size < 3_000_000
        assert set(file.value_counts) == set(file.null_value_counts) == set(ids.values())
        assert file.lower_bounds.keys() == file.upper_bounds.keys() == set(ids.values())
        totals["nulls"] += file.null_value_counts[ids["amount"]]
        totals["nans"] += file.nan_value_counts[ids["amount"]]
        for group in (footer.row_group(i) for i in range(footer.num_row_groups)):
            assert group.num_rows <= ROW_GROUP_ROWS
            for column in (group.column(i) for i in range(group.num_columns)):
                assert column.has_offset_index
                assert column.has_column_index
                assert column.statistics is not None
                assert (column.bloom_filter_offset is not None) == (column.path_in_schema == "id")
        by = entry.get("sort_by") or entry.get("key")
        if by:
            keys = list(zip(*(pq.read_table(path)[name].to_pylist() for name in by), strict=True))
            assert all(one <= other for one, other in pairwise(keys))
    assert totals == {"nulls": NUM_ROWS // 10, "nans": NUM_ROWS // 10}
    assert open_table(table).scan().to_table().sort_by("id")["id"].to_pylist() == list(range(NUM_ROWS))
