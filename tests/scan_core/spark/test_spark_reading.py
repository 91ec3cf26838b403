"""What tasks of the python reader read: pages that matter alone, and one delete index for all workers of a host."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from nevermore import scan_core
from nevermore.scan_core import ScanOptions
from nevermore.scan_core.io.private_files import user_folder
from nevermore.scan_core.spark import source
from nevermore.scan_core.spark.frames import dataframe, reports_of
from nevermore.scan_core.spark.source import NevermoreReader, SourceOptions
from nevermore.scan_core.spark.types import spark_schema
from tests.support.iceberg_json import Column
from tests.support.spark_session import SPARK_TEST
from tests.support.table_builder import TableBuilder
from tests.support.task_reports import of_last_stage

pytestmark = SPARK_TEST

NUM_ROWS = 30_000
_PAGES: dict[str, Any] = {
    "write_page_index": True,
    "data_page_size": 4_000,
    "use_dictionary": False,
    "compression": "none",
}


def _destroy_pages(path: Path, column: int, keep_rows: range) -> int:
    """Overwrite a column chunk but for the pages that hold some rows; bytes destroyed."""
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(column)
    begin, size = chunk.data_page_offset, chunk.total_compressed_size
    width = size / NUM_ROWS  # plain values of one width
    margin = 12_000  # three pages to either side
    spared = range(int(begin + keep_rows.start * width) - margin, int(begin + keep_rows.stop * width) + margin)
    raw = bytearray(path.read_bytes())
    for start, stop in ((begin, max(begin, spared.start)), (min(begin + size, spared.stop), begin + size)):
        raw[start:stop] = b"\xff" * (stop - start)
    path.write_bytes(raw)
    return int(size) - len(spared)


def test_tasks_do_not_read_payload_pages_without_a_row_of_the_result(spark: SparkSession, tmp_path: Path) -> None:
    builder = TableBuilder(tmp_path / "t", [Column(1, "id", "long"), Column(2, "payload", "double")])
    payload = np.random.default_rng(5).random(NUM_ROWS)
    file = builder.data({"id": list(range(NUM_ROWS)), "payload": payload.tolist()}, **_PAGES)
    builder.commit(file)
    builder.commit(builder.equality_delete({"id": [15_001, 15_003, 20_000]}, ids=[1]))
    destroyed = _destroy_pages(file.local, 1, range(15_000, 15_010))
    assert destroyed > 0.8 * NUM_ROWS * 8

    scan = scan_core.open_table(builder.metadata_path).scan().where("id between 15000 and 15009")
    frame = dataframe(spark, scan, reader="python")
    wanted = [i for i in range(15_000, 15_010) if i not in (15_001, 15_003)]
    assert [tuple(row) for row in frame.orderBy("id").collect()] == [(i, payload[i]) for i in wanted]
    read = of_last_stage(reports_of(frame))
    assert (read.rows_out, read.rows_removed_by_equality_deletes) == (8, 2)
    assert read.bytes_read < 40_000 < read.bytes_skipped
    assert read.pages_skipped > 50

    eager = dataframe(spark, scan.with_options(ScanOptions.of(prune_pages=False)), reader="python")
    with pytest.raises(PySparkException, match=file.local.name):
        eager.collect()


@pytest.mark.each(2)
@pytest.mark.parametrize("is_shared", [True, False])
def test_workers_of_a_host_share_one_delete_index(spark: SparkSession, tmp_path: Path, *, is_shared: bool) -> None:
    builder = TableBuilder(tmp_path / "t", [Column(1, "id", "long")])
    builder.commit(*(builder.data({"id": list(range(i * 20, i * 20 + 20))}) for i in range(40)))
    builder.commit(builder.equality_delete({"id": list(range(0, 800, 3))}, ids=[1]))
    scan = scan_core.open_table(builder.metadata_path).scan().with_options(ScanOptions.of(share_indexes=is_shared))
    frame = dataframe(spark, scan, reader="python")
    assert frame.count() == 533
    read = of_last_stage(reports_of(frame))
    assert (read.rows_out, read.rows_removed_by_equality_deletes) == (533, 267)
    assert read.splits_read >= 4  # in two workers at a time
    if is_shared:
        assert (read.delete_indexes_built, read.delete_files_opened) == (1, 1)
        assert list(user_folder("indexes").path.glob("*.index"))
    else:
        assert read.delete_indexes_built >= 1


@pytest.mark.parametrize(("num_files", "num_splits"), [(8, 1), (32, 4), (33, 4), (100, 4)])
def test_many_small_files_are_read_by_few_tasks(tmp_path: Path, num_files: int, num_splits: int) -> None:
    builder = TableBuilder(tmp_path / "t", [Column(1, "id", "long")])
    builder.commit(*(builder.data({"id": [n]}) for n in range(num_files)))
    options = SourceOptions.of(scan_core.open_table(builder.metadata_path).scan(), parallelism=2)
    reader = NevermoreReader.plan(options, spark_schema(options.scan().schema))
    assert len(reader.partitions()) == num_splits


def test_files_of_about_one_size_leave_no_small_split_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = TableBuilder(tmp_path / "t", [Column(1, "id", "long"), Column(2, "name", "string")])
    rows = [3000 + 20 * (i % 3) for i in range(8)]
    builder.commit(*(builder.data({"id": list(range(n)), "name": [f"{i:09}" for i in range(n)]}) for n in rows))
    monkeypatch.setattr(source, "MIN_SPLIT_BYTES", 1)
    options = SourceOptions.of(
        scan_core.open_table(builder.metadata_path).scan(),
        parallelism=2,
    )
    reader = NevermoreReader.plan(options, spark_schema(options.scan().schema))
    assert len(reader.partitions()) == 4
