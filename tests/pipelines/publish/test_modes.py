"""What a run does with the rows of its day: appended once per state of the mirrors, upserted by key, copied as they are."""

import datetime as dt
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from nevermore.pipelines.config.project import Config, parse
from nevermore.pipelines.errors import ConfigError, PublishError
from nevermore.pipelines.iceberg.catalog import create_table, find_table, open_catalog
from nevermore.pipelines.iceberg.commit import RowDelta
from nevermore.pipelines.iceberg.schema_evolution import iceberg_fields
from nevermore.pipelines.iceberg.table_writer import write_deletes, write_rows
from nevermore.pipelines.publish import refresh
from nevermore.pipelines.publish.refresh import publish
from nevermore.pipelines.publish.state import fingerprint
from nevermore.scan_core import open_table
from tests.support.spark_session import SPARK_TEST

pytestmark = SPARK_TEST

NAME = "shop.published"
FIRST, SECOND = "2026-01-01", "2026-01-02"
ROWS = "select day, id, amount from shop.orders"


def config_of(folder: Path, sql: str = ROWS, **entry: Any) -> Config:
    published = {"partition": "day", "sql": sql} | entry
    return parse(
        f"tables: {{shop.orders: {{source: {{path: none}}, key: [id]}}}}\npublished: {{{NAME}: {published}}}",
        folder / "nevermore.yaml",
    )


def land(config: Config, rows: Mapping[int, tuple[int, float]], deleted: tuple[int, ...] = ()) -> None:
    """A batch of the mirror: (day of January, amount) by id, and ids deleted before."""
    catalog = open_catalog(config)
    table = pa.table(
        {
            "id": pa.array(list(rows), pa.int64()),
            "day": pa.array([dt.date(2026, 1, day) for day, _ in rows.values()], pa.date32()),
            "amount": pa.array([amount for _, amount in rows.values()], pa.float64()),
        }
    )
    mirror = find_table(catalog, "shop.orders") or create_table(catalog, "shop.orders", iceberg_fields(table.schema))
    delta = RowDelta(mirror)
    files = write_rows(table, delta.target, delta.default_spec)
    if deleted:
        files += write_deletes(pa.table({"id": pa.array(deleted, pa.int64())}), delta.target, delta.default_spec, [1])
    delta.commit(files, {})


def rows_of(config: Config) -> list[tuple[str, int, float]]:
    table = open_table(find_table(open_catalog(config), NAME))
    rows = table.scan().to_table().select(["day", "id", "amount"]).to_pylist()
    return sorted((row["day"].isoformat(), row["id"], row["amount"]) for row in rows)


def snapshots(config: Config) -> list[Any]:
    table = find_table(open_catalog(config), NAME)
    assert table is not None
    return list(table.metadata.snapshots)


# -- append ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_rows_are_appended_once_per_state_of_the_mirrors(tmp_path: Path, spark: SparkSession) -> None:
    config = config_of(tmp_path, mode="append")
    land(config, {1: (1, 10.0), 2: (1, 20.0), 3: (2, 30.0)})
    first = publish(config, NAME, partitions=[FIRST])
    again = publish(config, NAME, partitions=[FIRST])
    assert (first.rows, first.is_unchanged) == (2, False)
    assert (again.rows, again.is_unchanged, again.snapshot_id) == (0, True, first.snapshot_id)
    assert publish(config, NAME, partitions=[SECOND]).rows == 1
    assert publish(config, NAME, partitions=[FIRST]).is_unchanged
    assert rows_of(config) == [(FIRST, 1, 10.0), (FIRST, 2, 20.0), (SECOND, 3, 30.0)]

    land(config, {4: (1, 40.0)}, deleted=(1,))
    assert not publish(config, NAME, partitions=[FIRST]).is_unchanged
    assert [row[1] for row in rows_of(config)] == [1, 2, 2, 4, 3]


@pytest.mark.slow
def test_of_two_runs_at_once_one_appends(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(tmp_path, mode="append")
    land(config, {1: (1, 10.0)})
    before = RowDelta.commit
    others: list[int] = []

    def commit(delta: RowDelta, *arguments: Any, **options: Any) -> Any:
        if not others:  # another run comes first
            others.append(1)
            others.append(publish(config, NAME, partitions=[FIRST]).rows)
        return before(delta, *arguments, **options)

    monkeypatch.setattr(RowDelta, "commit", commit)
    report = publish(config, NAME, partitions=[FIRST])
    assert others == [1, 1]
    assert report.is_unchanged
    assert rows_of(config) == [(FIRST, 1, 10.0)]
    table = find_table(open_catalog(config), NAME)
    assert table is not None
    files = [str(p) for p in Path(table.location().removeprefix("file://")).rglob("*.parquet")]
    assert files == [p.removeprefix("file://") for p in table.inspect.data_files()["file_path"].to_pylist()]


# -- upsert ------------------------------------------------------------------------------------------------------------


def test_rows_take_the_place_of_those_with_their_key_and_leave_others(tmp_path: Path, spark: SparkSession) -> None:
    config = config_of(tmp_path, mode="upsert", key=["id"])
    land(config, {1: (1, 10.0), 2: (1, 20.0), 3: (1, 30.0)})
    assert publish(config, NAME, partitions=[FIRST]).delete_rows == 0
    land(config, {1: (1, 11.0), 4: (1, 40.0)}, deleted=(1, 3))
    report = publish(config, NAME, partitions=[FIRST])
    assert (report.rows, report.delete_rows) == (3, 2)
    expected = [(FIRST, 1, 11.0), (FIRST, 2, 20.0), (FIRST, 3, 30.0), (FIRST, 4, 40.0)]  # 3 is in no result any more
    assert rows_of(config) == expected
    publish(config, NAME, partitions=[FIRST])
    assert rows_of(config) == expected
    assert snapshots(config)[-1].summary.operation.value == "overwrite"


def test_equal_keys_in_a_result_are_refused_and_nothing_is_left(tmp_path: Path, spark: SparkSession) -> None:
    config = config_of(tmp_path, f"{ROWS} union all {ROWS}", mode="upsert", key=["id"])
    land(config, {1: (1, 10.0)})
    with pytest.raises(PublishError, match=r"several rows of the result have the same key \(id\): \(1,\); group by it"):
        publish(config, NAME, partitions=[FIRST])
    assert list((tmp_path / "warehouse" / "shop" / "published").rglob("*.parquet")) == []


@pytest.mark.slow
def test_a_key_that_cannot_be_one_is_refused(tmp_path: Path, spark: SparkSession) -> None:
    config = config_of(tmp_path, mode="upsert", key=["amount"])
    land(config, {1: (1, 10.0)})
    with pytest.raises(ConfigError, match="key column 'amount' has type double"):
        publish(config, NAME, partitions=[FIRST])
    with pytest.raises(ConfigError, match="the result has no column 'ident'; did you mean 'id'"):
        publish(config_of(tmp_path, mode="upsert", key=["ident"]), NAME, partitions=[FIRST])


# -- layout and copying ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "partition"),
    [
        (ROWS, "day"),
        pytest.param(
            "select ID as number, o.day as d, o.amount as again, o.id from shop.orders o", "d", marks=pytest.mark.slow
        ),
        pytest.param("select *, cast(day as date) as made_on from shop.orders", "made_on", marks=pytest.mark.slow),
    ],
)
def test_a_copy_by_the_readers_is_what_the_query_gives(
    sql: str, partition: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(config_of(tmp_path), {i: (1 + i % 3, i / 3) for i in range(300)})
    land(config_of(tmp_path), {}, deleted=tuple(range(0, 300, 7)))
    read = []
    for direct_copy in (True, False):
        config = config_of(tmp_path, sql, partition=partition)
        if not direct_copy:
            monkeypatch.setattr(refresh, "copied_columns", lambda *_: None)
        report = publish(config, NAME, partitions=[SECOND])
        assert report.copied_rows == (86 if direct_copy else 0)
        assert report.rows_removed_by_deletes == 14
        assert report.reads["shop.orders"].metrics.rows_out == report.rows == 86
        table = open_table(find_table(open_catalog(config), NAME)).scan().to_table()
        read.append(table.sort_by("id"))
    assert read[0].equals(read[1])


@pytest.mark.slow
def test_files_are_ranged_sorted_and_filtered_as_the_options_ask(tmp_path: Path, spark: SparkSession) -> None:
    options = {"distribution": "range", "bloom_filters": ["id"], "compression": "gzip"}
    config = config_of(tmp_path, f"{ROWS} distribute by amount", sort_by=["id"], options=options)
    land(config, {i: (1, float(i % 7)) for i in range(1_000)})
    before = spark.conf.get("spark.sql.adaptive.enabled")
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    report = publish(config, NAME, partitions=[FIRST])
    spark.conf.set("spark.sql.adaptive.enabled", str(before))
    assert report.data_files > 1
    table = find_table(open_catalog(config), NAME)
    assert table is not None
    ranges = []
    for path in table.inspect.data_files()["file_path"].to_pylist():
        ids = pq.read_table(path.removeprefix("file://"))["id"].to_pylist()
        assert ids == sorted(ids)
        ranges.append((ids[0], ids[-1]))
        column = pq.read_metadata(path.removeprefix("file://")).row_group(0).column(1)
        assert (column.compression, column.has_offset_index) == ("GZIP", True)
    ranges.sort()
    assert all(low[1] < high[0] for low, high in pairwise(ranges))


def test_options_name_columns_of_the_result(tmp_path: Path, spark: SparkSession) -> None:
    config = config_of(tmp_path, options={"bloom_filters": ["idd"]})
    land(config, {1: (1, 10.0)})
    with pytest.raises(ConfigError, match="the result has no column 'idd'; did you mean 'id'"):
        publish(config, NAME, partitions=[FIRST])


def test_states_of_mirrors_are_told_apart() -> None:
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})


# -- several partitions, and tables without any ------------------------------------------------------------------------


@pytest.mark.slow
def test_partitions_and_all_the_rest_are_appended_once_each(tmp_path: Path, spark: SparkSession) -> None:
    config = config_of(tmp_path, mode="append")
    land(config, {1: (1, 10.0), 2: (2, 20.0), 3: (3, 30.0), 4: (4, 40.0)})
    two = publish(config, NAME, partitions=[f"{FIRST}..{SECOND}"])
    assert (two.rows_by_partition, len(snapshots(config))) == ({FIRST: 1, SECOND: 1}, 1)
    again = publish(config, NAME, partitions=[SECOND, "2026-01-03"])
    assert again.rows_by_partition == {"2026-01-03": 1}
    rest = publish(config, NAME)
    assert (rest.rows, rest.partitions) == (1, None)
    for partitions in ([], [FIRST], ["2026-01-09"]):
        assert publish(config, NAME, partitions=partitions).is_unchanged
    assert [row[1] for row in rows_of(config)] == [1, 2, 3, 4]


@pytest.mark.slow
def test_of_partitions_that_are_upserted_together_the_last_row_of_a_key_stays(
    tmp_path: Path, spark: SparkSession
) -> None:
    sql = "select day, id % 2 as id, max(amount) as amount from shop.orders group by day, id % 2"
    config = config_of(tmp_path, sql, mode="upsert", key=["id"])
    land(config, {1: (1, 10.0), 2: (1, 20.0), 3: (2, 30.0)})
    report = publish(config, NAME, partitions=[f"{FIRST}..{SECOND}"])
    assert (report.rows, report.delete_rows, report.partitions) == (3, 1, (FIRST, SECOND))
    assert rows_of(config) == [(FIRST, 0, 20.0), (SECOND, 1, 30.0)]
    with pytest.raises(PublishError, match="several rows of the result have the same key"):
        publish(config, NAME)
    assert rows_of(config) == [(FIRST, 0, 20.0), (SECOND, 1, 30.0)]


@pytest.mark.slow
def test_a_mode_that_is_changed_makes_all_anew(tmp_path: Path, spark: SparkSession) -> None:
    land(config_of(tmp_path), {1: (1, 10.0), 2: (2, 20.0)})
    publish(config_of(tmp_path, mode="upsert", key=["id"]), NAME)
    land(config_of(tmp_path), {}, deleted=(1,))
    upserted = publish(config_of(tmp_path, mode="upsert", key=["id"]), NAME)
    assert upserted.reason == "changed: shop.orders"
    assert len(rows_of(config_of(tmp_path))) == 2  # an upsert removes nothing
    replaced = publish(config_of(tmp_path, incremental=True), NAME)
    assert replaced.reason.endswith("was made with mode: upsert")
    assert rows_of(config_of(tmp_path)) == [(SECOND, 2, 20.0)]
