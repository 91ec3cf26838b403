"""Incremental tables: what changes reach is made anew, in one snapshot, and the table is what making all would give."""

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from nevermore.pipelines.config.project import Config
from nevermore.pipelines.errors import CommitConflictError, ConfigError, PublishError
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.iceberg.commit import RowDelta
from nevermore.pipelines.iceberg.schema_evolution import evolve, iceberg_fields
from nevermore.pipelines.maintain.compact import CompactSettings, compact
from nevermore.pipelines.publish.refresh import publish
from nevermore.pipelines.publish.refresh_report import PublishReport
from tests.pipelines.publish.daily_orders import (
    BY_CITY,
    NAME,
    apply,
    assert_is_what_all_gives,
    customers,
    make_config,
    orders,
    published,
)
from tests.support.spark_session import SPARK_TEST

pytestmark = SPARK_TEST


@pytest.fixture
def config(tmp_path: Path, spark: SparkSession) -> Config:
    """Orders on the days 1 to 4, published once."""
    config = make_config(tmp_path)
    apply(config, "shop.customers", customers((1, "Oslo"), (2, "Bergen")))
    apply(config, "shop.orders", orders((1, 1, 1, 10), (2, 2, 2, 20), (3, 1, 3, 30), (4, None, 4, 40)))
    assert publish(config, NAME).partitions is None
    return config


def days(report: PublishReport) -> list[int]:
    assert report.partitions is not None, report.reason
    return sorted(int(key[-2:]) for key in report.partitions)


@pytest.mark.slow
def test_nothing_new_makes_nothing_and_adds_no_snapshot(config: Config) -> None:
    before = find_table(open_catalog(config), NAME)
    report = publish(config, NAME)
    after = find_table(open_catalog(config), NAME)
    assert (report.is_unchanged, report.reason, report.partitions) == (True, "no mirror changed", ())
    assert before is not None
    assert after is not None
    assert before.metadata.current_snapshot_id == after.metadata.current_snapshot_id == report.snapshot_id


@pytest.mark.slow
def test_only_partitions_that_changed_rows_reach_are_made_in_one_snapshot(config: Config) -> None:
    apply(config, "shop.orders", orders((5, 2, 2, 5), (3, 1, 4, 30)), deleted=[3])  # a new row; one moves from 3 to 4
    report = publish(config, NAME)
    assert days(report) == [2, 3, 4]
    assert report.why["2026-01-03"] == ("shop.orders",)
    assert report.changed_rows == {"shop.orders": 3}
    table = find_table(open_catalog(config), NAME)
    assert table is not None
    assert len(table.metadata.snapshots) == 2
    assert published(config) == [
        (dt.date(2026, 1, 1), "Oslo", 1, 10), (dt.date(2026, 1, 2), "Bergen", 2, 25),
        (dt.date(2026, 1, 4), "Oslo", 1, 30), (dt.date(2026, 1, 4), None, 1, 40),
    ]  # fmt: skip
    assert report.reads["shop.orders"].where is not None
    assert_is_what_all_gives(config)


@pytest.mark.slow
def test_a_changed_row_of_a_joined_table_makes_the_partitions_that_it_meets(config: Config) -> None:
    apply(config, "shop.customers", customers((1, "Moss")), deleted=[1])
    report = publish(config, NAME)
    assert days(report) == [1, 3]
    assert_is_what_all_gives(config)


@pytest.mark.slow
def test_a_change_of_columns_that_the_sql_does_not_read_makes_no_partition_but_moves_on(config: Config) -> None:
    rows = orders((2, 2, 2, 20))
    apply(config, "shop.orders", rows.set_column(4, "note", pa.array(["changed"])), deleted=[2])
    report = publish(config, NAME)
    assert (days(report), report.is_unchanged, report.changed_rows) == ([], False, {"shop.orders": 0})
    assert publish(config, NAME).is_unchanged


@pytest.mark.slow
def test_a_partition_made_alone_is_made_again_and_the_others_by_what_changed_since_they_were(config: Config) -> None:
    apply(config, "shop.orders", orders((6, 1, 2, 1)))
    assert days(publish(config, NAME, partitions=["2026-01-02"])) == [2]
    apply(config, "shop.orders", orders(), deleted=[6])
    apply(config, "shop.orders", orders((7, 1, 4, 1)))
    publish(config, NAME, partitions=["2026-01-01"])
    report = publish(config, NAME)
    assert days(report) == [1, 2, 4]
    assert report.why["2026-01-01"] == ("made alone since the last run",)
    assert_is_what_all_gives(config)


@pytest.mark.slow
def test_a_run_that_only_makes_again_what_was_made_alone_says_so(config: Config) -> None:
    publish(config, NAME, partitions=["2026-01-02"])
    report = publish(config, NAME)
    assert (days(report), report.reason) == ([2], "partitions were made alone since")


@pytest.mark.slow
def test_all_is_made_again_when_the_sql_changes(config: Config, tmp_path: Path) -> None:
    report = publish(make_config(tmp_path, BY_CITY.replace("sum(", "max(")), NAME)
    assert (report.partitions, report.reason) == (None, "the SQL, its parameters or its settings changed")


@pytest.mark.slow
def test_all_is_made_again_when_a_snapshot_has_expired_and_the_reason_is_told(config: Config) -> None:
    apply(config, "shop.orders", orders((8, 1, 1, 1)))
    mirror = find_table(open_catalog(config), "shop.orders")
    assert mirror is not None
    first = mirror.metadata.snapshots[0].snapshot_id
    mirror.maintenance.expire_snapshots().by_id(first).commit()
    report = publish(config, NAME)
    assert report.partitions is None
    assert "shop.orders can no longer be found" in report.reason
    assert_is_what_all_gives(config)


@pytest.mark.slow
def test_all_is_made_again_when_a_mirror_was_made_anew(config: Config) -> None:
    open_catalog(config).drop_table("shop.customers")
    apply(config, "shop.customers", customers((1, "Oslo")))
    assert publish(config, NAME).reason == "shop.customers is another table than before"
    assert_is_what_all_gives(config)


@pytest.mark.slow
def test_all_is_made_again_when_columns_that_the_sql_reads_change(config: Config) -> None:
    table = find_table(open_catalog(config), "shop.customers")
    assert table is not None
    delta = RowDelta(table)
    renamed = iceberg_fields(pa.schema([("id", pa.int64()), ("town", pa.string()), ("city", pa.string())]))
    delta.evolve(evolve(delta.schema, renamed, table.metadata.last_column_id).schema)
    delta.commit([], {})
    assert publish(config, NAME).is_unchanged is False  # the same columns: a new snapshot without changed rows
    with find_table(open_catalog(config), "shop.customers").update_schema() as update:
        update.rename_column("city", "old_city")
        update.rename_column("town", "city")
    assert publish(config, NAME).reason == "columns of shop.customers that the SQL reads have changed"
    assert_is_what_all_gives(config)


@pytest.mark.slow
def test_all_is_made_again_after_somebody_else_wrote_to_the_published_table(config: Config) -> None:
    table = find_table(open_catalog(config), NAME)
    assert table is not None
    delta = RowDelta(table)
    foreign = delta.commit([], {}).snapshot_id
    report = publish(config, NAME)
    assert report.reason == f"snapshot {foreign} was made by something else"


@pytest.mark.slow
def test_a_dry_run_names_the_partitions_and_makes_nothing(config: Config) -> None:
    apply(config, "shop.orders", orders((5, 2, 2, 5)))
    before = published(config)
    report = publish(config, NAME, is_dry=True)
    assert (days(report), report.is_dry, report.snapshot_id) == ([2], True, None)
    assert published(config) == before
    assert days(publish(config, NAME)) == [2]


@pytest.mark.slow
def test_a_run_that_another_overtakes_plans_again(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    apply(config, "shop.orders", orders((5, 2, 2, 5)))
    original = RowDelta.commit

    def overtaken(delta: RowDelta, *arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(RowDelta, "commit", original)
        apply(config, "shop.orders", orders((9, 2, 3, 5)))
        publish(config, NAME)
        return original(delta, *arguments, **options)

    monkeypatch.setattr(RowDelta, "commit", overtaken)
    assert publish(config, NAME).is_unchanged
    assert_is_what_all_gives(config)


@pytest.mark.slow
def test_a_failing_job_publishes_nothing_and_the_next_run_makes_it(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(config, "shop.orders", orders((5, 2, 2, 5)))
    before = published(config)

    def fails(*_: Any, **__: Any) -> Any:
        raise CommitConflictError("shop.daily was changed", may_retry=False)

    with monkeypatch.context() as patch:
        patch.setattr(RowDelta, "commit", fails)
        with pytest.raises(CommitConflictError):
            publish(config, NAME)
    assert published(config) == before
    assert days(publish(config, NAME)) == [2]


@pytest.mark.slow
def test_a_table_without_partitions_is_made_whole_when_a_mirror_changed(config: Config, tmp_path: Path) -> None:
    whole = make_config(
        tmp_path, "select count(*) as n, max(amount) as most from shop.orders", partition=None, incremental=None
    )
    open_catalog(whole).drop_table(NAME)
    assert publish(whole, NAME).partitions is None
    assert published(whole) == [(4, 40)]
    assert publish(whole, NAME).is_unchanged
    apply(whole, "shop.orders", orders((5, 2, 2, 5)))
    assert publish(whole, NAME).reason == "changed: shop.orders"
    assert published(whole) == [(5, 40)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("partition", "sql", "made"),
    [
        ("hour(at)", "select at, id, amount from shop.orders", ["2026-01-02T12"]),
        ("day(at)", "select at, id, amount from shop.orders", ["2026-01-02"]),
        ("month(day)", "select cast(at as date) as day, sum(amount) as amount from shop.orders group by 1", ["2026-01"]),
        ("year(at)", "select date_trunc('month', at) as at, count(*) as n from shop.orders group by 1", ["2026"]),
        ("value(city)", "select c.city, o.id from shop.orders o join shop.customers c on c.id = o.customer_id", ["Bergen"]),
        ("value(customer_id)", "select customer_id, count(*) as n from shop.orders group by 1", ["2"]),
    ],
)  # fmt: skip
def test_partitions_of_every_kind(config: Config, tmp_path: Path, partition: str, sql: str, made: list[str]) -> None:
    open_catalog(config).drop_table(NAME)
    kind = make_config(tmp_path, sql, partition=partition)
    publish(kind, NAME)
    apply(kind, "shop.orders", orders((5, 2, 2, 5)))
    assert publish(kind, NAME).partitions == tuple(made)
    assert_is_what_all_gives(kind)
    assert publish(kind, NAME, partitions=made).partitions == tuple(made)
    assert_is_what_all_gives(kind)


@pytest.mark.slow
def test_sql_that_asks_for_its_partition_is_run_for_each_and_for_those_that_changed(
    config: Config, tmp_path: Path
) -> None:
    sql = "select cast(:partition as date) as day, count(*) as n, sum(amount) * :factor as amount from shop.orders where at >= :partition_start and at < :partition_end and amount > :least having count(*) > 0"
    parameters = {"least": 5, "factor": 2}
    first = (dt.datetime.now(dt.UTC) - dt.timedelta(days=2)).date().isoformat()
    asking = make_config(tmp_path, sql, start=first, parameters=parameters)
    open_catalog(asking).drop_table(NAME)
    early = make_config(tmp_path, sql, start="2026-01-01", parameters=parameters)
    publish(early, NAME, partitions=["2026-01-01..2026-01-03"])
    assert published(asking) == [
        (dt.date(2026, 1, 1), 1, 20),
        (dt.date(2026, 1, 2), 1, 40),
        (dt.date(2026, 1, 3), 1, 60),
    ]
    publish(asking, NAME)
    apply(asking, "shop.orders", orders((5, 2, 2, 7)))
    assert days(publish(asking, NAME)) == [2]
    assert published(asking)[1] == (dt.date(2026, 1, 2), 2, 54)
    assert_is_what_all_gives(asking)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sql", "entry", "message"),
    [
        ("select cast(at as date) as day, rand() as r from shop.orders", {}, r"incremental: true, but .*rand\(\).*auto"),
        ("select max(cast(at as date)) as day from shop.orders", {}, "incremental: true, but .*several rows"),
        ("select at as day from shop.orders", {}, r"'day' is timestamp, not date: write cast\(... as date\) as day"),
        ("select id as day from shop.orders", {"partition": "hour(day)"}, "'day' is bigint, not timestamp"),
        ("select cast(at as date) as day, 'x' as orders from shop.orders", {}, "column 'orders' is long in the table and string"),
        ("select cast(at as date) as day, id from shop.orders", {"partition": "dy"}, "no column 'dy'; did you mean 'day'"),
        ("select at, id from shop.orders", {"partition": "month(at)"}, r"partitioned by day, not by month\(at\)"),
        ("select cast(at as date) as day, id from shop.orders where nothing = 1", {"incremental": "auto"}, "nothing"),
        ("select cast(at as date) as day, amuont from shop.orders", {}, "`amuont`.*`amount`"),
    ],
)  # fmt: skip
def test_what_cannot_be_published_is_refused_in_words(
    config: Config, tmp_path: Path, sql: str, entry: dict[str, Any], message: str
) -> None:
    before = published(config)
    with pytest.raises(ConfigError, match=message):
        publish(make_config(tmp_path, sql, **entry), NAME)
    assert published(config) == before


@pytest.mark.slow
def test_a_failing_task_says_why_in_one_line(config: Config, tmp_path: Path) -> None:
    failing = "select cast(at as date) as day, cast(concat('x', note) as int) as n from shop.orders"
    with pytest.raises(PublishError, match=r"the Spark job failed: .*CAST_INVALID_INPUT") as error:
        publish(make_config(tmp_path, failing), NAME)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("asked", [(), ("2026-01-02",)], ids=["by its changes", "when it is asked for"])
def test_a_day_whose_rows_are_all_deleted_is_published_empty_and_said_to_be(
    config: Config, asked: tuple[str, ...]
) -> None:
    apply(config, "shop.orders", orders(), deleted=[2])
    report = publish(config, NAME, partitions=asked)
    assert report.partitions == report.empty_partitions == ("2026-01-02",)
    assert [day for day, *_ in published(config)] == [dt.date(2026, 1, day) for day in (1, 3, 4)]


@pytest.mark.slow
def test_a_compaction_of_a_mirror_rebuilds_nothing(config: Config) -> None:
    apply(config, "shop.orders", orders((4, 2, 4, 41)), deleted=[4, 90])
    publish(config, NAME)
    before = published(config)
    table = find_table(open_catalog(config), "shop.orders")
    assert table is not None
    assert compact(table, CompactSettings(rewrite_all=True)).files_before == 2
    report = publish(config, NAME)
    assert report.is_unchanged or report.partitions == ()
    assert published(config) == before
    apply(config, "shop.orders", orders((7, 1, 2, 5)), deleted=[7])
    compact(table, CompactSettings(rewrite_all=True))
    assert publish(config, NAME).partitions == ("2026-01-02",)
    assert_is_what_all_gives(config)
