"""One bit of a page is flipped: no reader of Spark returns a row of the table, and each says which file is damaged."""

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Literal

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from nevermore.pipelines.config.project import Config, parse
from nevermore.pipelines.errors import PublishError
from nevermore.pipelines.iceberg.catalog import create_table, find_table, open_catalog
from nevermore.pipelines.iceberg.commit import RowDelta
from nevermore.pipelines.iceberg.parquet_output import WriterOptions
from nevermore.pipelines.iceberg.schema_evolution import iceberg_fields
from nevermore.pipelines.iceberg.table_writer import write_deletes, write_rows
from nevermore.pipelines.publish.refresh import publish
from nevermore.scan_core import ScanError, ScanOptions, open_table
from nevermore.scan_core.deletes.indexes import DELETE_CACHE
from nevermore.scan_core.files.parquet.file_layout import FOOTERS, read_layout
from nevermore.scan_core.io import cache
from nevermore.scan_core.io.remote import ByteRanges
from nevermore.scan_core.spark import SPARK_FAILURES, choice_of, dataframe, native, spark_message
from tests.support.parquet_pages import page_places, parse_offset_index
from tests.support.spark_session import SPARK_TEST

pytestmark = SPARK_TEST

ROWS = 2_000
OPTIONS = WriterOptions(page_rows=100, row_group_rows=1_000)
CONFIG = """
tables:
  shop.flips: {source: {type: files, path: none}, key: [id]}
published:
  shop.copy: {sql: select * from shop.flips}
  shop.query: {sql: "select id + 0 as id, word, amount, tags from shop.flips"}
"""
Kind = Literal["data", "delete"]
Read = Callable[[SparkSession, Config], Any]


@pytest.fixture
def project(tmp_path: Path) -> Config:
    """A mirror of two data files and one file of equality deletes, which no process has read yet."""
    config = parse(CONFIG, tmp_path / "nevermore.yaml")
    catalog = open_catalog(config)
    rows = pa.table({
        "id": pa.array(range(ROWS), pa.int64()),
        "word": pa.array([("north", "south", "east", None)[i % 4] for i in range(ROWS)]),
        "amount": pa.array([i * 0.5 if i % 7 else None for i in range(ROWS)]),
        "tags": pa.array([[i, i + 1][: i % 3] for i in range(ROWS)], pa.list_(pa.int32())),
    })  # fmt: skip
    delta = RowDelta(create_table(catalog, "shop.flips", iceberg_fields(rows.schema)), options=OPTIONS)
    delta.commit(write_rows(rows, delta.target, delta.default_spec), {})
    delta = RowDelta(catalog.load_table("shop.flips"), options=OPTIONS)
    keys = pa.table({"id": pa.array(range(0, ROWS, 9), pa.int64())})
    files = write_deletes(keys, delta.target, delta.default_spec, [1])
    delta.commit([*files, *write_rows(rows.slice(0, 500), delta.target, delta.default_spec)], {})
    return config


def _frame(spark: SparkSession, config: Config, reader: Literal["python", "native"]) -> list[Any]:
    options = ScanOptions.of(share_indexes=False)  # a shared index would hide that a delete file is damaged
    scan = open_table(find_table(open_catalog(config), "shop.flips")).scan().with_options(options)
    frame = dataframe(spark, scan, reader=reader)
    assert choice_of(frame).strategy == reader
    return sorted(map(tuple, frame.collect()))


def _published(config: Config, name: str) -> list[Any]:
    report = publish(config, name)
    assert report.copied_rows == (report.rows if name == "shop.copy" else 0)
    return _rows(config, name)


def _rows(config: Config, name: str) -> list[Any]:
    rows = open_table(find_table(open_catalog(config), name)).scan().to_table()
    return sorted(tuple(row.values()) for row in rows.to_pylist())


READS: dict[str, Read] = {
    "python": lambda spark, config: _frame(spark, config, "python"),
    "native": lambda spark, config: _frame(spark, config, "native"),
    "direct copy": lambda _, config: _published(config, "shop.copy"),
    "published query": lambda _, config: _published(config, "shop.query"),
}


def _forget() -> None:
    """Drop what this process has read; workers read nothing but what is damaged, until the last read of a test."""
    for known in (cache, DELETE_CACHE, FOOTERS):
        known.clear()  # type: ignore[attr-defined]
    native.forget()


def _pages(data: bytes) -> Iterator[tuple[int, int]]:
    """Place and size of every page, its header included."""
    footer = read_layout(ByteRanges(pa.BufferReader(data)), "file").footer
    for group in footer.row_groups:
        for chunk in group.chunks:
            assert chunk.offset_index is not None
            place, size = chunk.offset_index
            locations = parse_offset_index(data[place : place + size], chunk, group.num_rows)
            assert locations is not None
            yield from page_places(chunk, locations)


def _check(spark: SparkSession, config: Config, reader: str, kind: Kind, flips: int) -> None:
    chance = Random(f"{reader} {kind}")
    folder = Path(find_table(open_catalog(config), "shop.flips").location().removeprefix("file://")) / "data"  # type: ignore[union-attr]
    files = [path for path in sorted(folder.rglob("*.parquet")) if ("delete" in path.name) == (kind == "delete")]
    assert files
    for _ in range(flips):
        path = chance.choice(files)
        whole = path.read_bytes()
        place, size = chance.choice(list(_pages(whole)))
        damaged = bytearray(whole)
        damaged[place + size - chance.randint(1, size // 4)] ^= 1 << chance.randrange(8)  # behind the header
        path.write_bytes(damaged)
        _forget()
        try:
            with pytest.raises((ScanError, PublishError, *SPARK_FAILURES)) as refused:
                READS[reader](spark, config)
        finally:
            path.write_bytes(whole)
        message = spark_message(refused.value) if isinstance(refused.value, SPARK_FAILURES) else str(refused.value)
        assert path.name in message, message
        assert "\n" not in message
        # Java's own words where its reader meets the page; ours where the dead rows are found by its keys
        words = ("FAILED_READ_FILE",) if reader == "native" and kind == "data" else ()
        assert any(word in message for word in ("checksum", "damaged", *words)), message
    _forget()
    assert READS[reader](spark, config) == _rows(config, "shop.flips")


@pytest.mark.slow
@pytest.mark.parametrize(("reader", "kind"), [("python", "data"), ("native", "data"), ("direct copy", "delete")])
def test_a_damaged_page_gives_no_rows_and_one_error_that_names_the_file(
    reader: str, kind: Kind, project: Config, spark: SparkSession
) -> None:
    _check(spark, project, reader, kind, 1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["data", "delete"])
@pytest.mark.parametrize("reader", READS)
def test_none_of_many_damaged_pages_gives_rows(reader: str, kind: Kind, project: Config, spark: SparkSession) -> None:
    _check(spark, project, reader, kind, 8)
