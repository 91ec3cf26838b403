"""Tables made key by key: a run makes the keys that changes reach, and the table is what making all would give."""

import datetime as dt
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from nevermore.checks.published_equality import ProjectAuditor, check_published
from nevermore.pipelines.config.project import Config
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.publish import refresh_plan
from nevermore.pipelines.publish.refresh import publish
from tests.pipelines.publish.daily_orders import (
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

JOINED = """
select cast(o.at as date) as day, o.id, c.city, o.amount
from shop.orders o left join shop.customers c on c.id = o.customer_id
"""
SUMMED = """
select cast(o.at as date) as day, o.customer_id, max(c.city) as city, count(*) as orders, sum(o.amount) as amount
from shop.orders o left join shop.customers c on c.id = o.customer_id
where o.amount > 3
group by 1, 2
"""


@pytest.fixture(autouse=True)
def any_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tables are made by key, too."""
    monkeypatch.setattr(refresh_plan, "MAX_SHARE", 0.01)


def filled(folder: Path, sql: str, **entry: Any) -> Config:
    """Orders on the days 1 to 4, published once."""
    config = make_config(folder, sql, **{"incremental": "keys", "key": ["id"]} | entry)
    apply(config, "shop.customers", customers((1, "Oslo"), (2, "Bergen")))
    apply(config, "shop.orders", orders((1, 1, 1, 10), (2, 2, 2, 20), (3, 1, 3, 30), (4, None, 4, 40), (5, 1, 4, 50)))
    assert publish(config, NAME).partitions is None
    return config


@pytest.mark.slow
def test_only_the_keys_of_changed_rows_are_made(tmp_path: Path, spark: SparkSession) -> None:
    config = filled(tmp_path, JOINED)
    apply(
        config, "shop.orders", orders((4, None, 3, 41), (6, 2, 4, 60)), deleted=[4, 1]
    )  # one moves, one comes, one goes
    report = publish(config, NAME)
    assert (report.changed_keys, report.rows, report.delete_rows, report.made) == (4, 2, 3, "keys"), report
    assert report.why == {f"2026-01-0{day}": ("shop.orders",) for day in (1, 3, 4)}
    assert report.empty_partitions == ()
    assert published(config) == [
        (dt.date(2026, 1, 2), 2, "Bergen", 20), (dt.date(2026, 1, 3), 3, "Oslo", 30), (dt.date(2026, 1, 3), 4, None, 41),
        (dt.date(2026, 1, 4), 5, "Oslo", 50), (dt.date(2026, 1, 4), 6, "Bergen", 60),
    ]  # fmt: skip
    # rows of the days, and of these orders alone
    assert report.reads["shop.orders"].metrics.rows_out <= 2
    assert publish(config, NAME).is_unchanged
    assert_is_what_all_gives(config)


@pytest.mark.slow
def test_a_changed_row_of_a_joined_table_makes_the_keys_that_it_meets(tmp_path: Path, spark: SparkSession) -> None:
    config = filled(tmp_path, SUMMED, key=["customer_id"])
    apply(config, "shop.customers", customers((1, "Moss")), deleted=[1])
    report = publish(config, NAME)
    assert (report.changed_keys, report.rows) == (3, 3), report  # customer 1 on three days
    assert_is_what_all_gives(config)


@pytest.mark.parametrize(
    ("sql", "key", "partition"),
    [
        pytest.param(JOINED, ["id"], None, marks=pytest.mark.slow),
        pytest.param(JOINED, ["id"], "month(day)", marks=pytest.mark.slow),
        (SUMMED, ["customer_id"], "day"),
    ],
)
def test_rounds_of_random_changes_give_what_all_gives(
    sql: str, key: list[str], partition: str | None, tmp_path: Path, spark: SparkSession
) -> None:
    config = filled(tmp_path, sql, key=key, partition=partition)
    chance = random.Random(str(partition))
    for number in range(3):
        gone = chance.sample(range(1, 9), 2)
        rows = [(i, chance.choice([None, 1, 2, 3]), chance.randint(1, 4), chance.randint(1, 9)) for i in gone[:1]]
        apply(config, "shop.orders", orders(*rows), deleted=gone)
        if number == 1:
            apply(config, "shop.customers", customers((3, "Moss")), deleted=[2, 3])
        report = publish(config, NAME)
        assert report.changed_keys is not None, report.reason
        made = published(config)
        full = make_config(tmp_path, sql, partition=partition, incremental=None)
        publish(full, NAME, is_full=True)
        assert made == published(config)


def test_the_auditor_compares_whole_partitions(tmp_path: Path, spark: SparkSession) -> None:
    config = filled(tmp_path, JOINED)
    apply(config, "shop.orders", orders((2, 1, 2, 21)), deleted=[2])
    report = publish(config, NAME, auditor=ProjectAuditor())
    assert report.changed_keys == 1
    assert all(verdict.passed for verdict in report.checks)
    verdict = next(v for v in report.checks if v.name == "published_equals_duckdb")
    assert verdict.compared["rows published"] == 1, verdict
    assert all(result.passed for result in check_published(config, NAME))


@pytest.mark.each(2)
@pytest.mark.parametrize(
    ("sql", "key", "reason"),
    [
        (
            "select cast(at as date) as day, max(id) as id from shop.orders group by 1",
            ["id"],
            "not by key: shop.orders changed, and its rows cannot",
        ),
        ("select cast(at as date) as day, cast(id as double) as id from shop.orders", ["id"], "id is double"),
    ],
)
def test_where_keys_are_not_certain_partitions_are_made_and_the_reason_is_reported(
    sql: str, key: list[str], reason: str, tmp_path: Path, spark: SparkSession
) -> None:
    config = filled(tmp_path, sql, key=key)
    apply(config, "shop.orders", orders((7, 2, 2, 21)))
    report = publish(config, NAME)
    assert (report.partitions, report.changed_keys, report.made) == (("2026-01-02",), None, "partitions")
    assert reason in report.reason
    assert_is_what_all_gives(config)


@pytest.mark.slow
def test_many_keys_or_delete_files_make_whole_partitions(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = filled(tmp_path, JOINED)
    monkeypatch.setattr(refresh_plan, "MAX_DELETE_FILES", 1)
    apply(config, "shop.orders", orders((2, 1, 2, 21)), deleted=[2])
    assert publish(config, NAME).changed_keys == 1
    apply(config, "shop.orders", orders((2, 1, 2, 22), (7, 1, 2, 22)), deleted=[2])
    report = publish(config, NAME)
    assert (report.partitions, report.delete_rows) == (("2026-01-02",), 0)
    assert "not by key: earlier rows have 1 delete file already" in report.reason
    assert_is_what_all_gives(config)
    monkeypatch.setattr(refresh_plan, "MAX_SHARE", 4)
    apply(config, "shop.orders", orders((2, 1, 2, 23), (7, 1, 2, 23)), deleted=[2, 7])
    assert "2 keys changed, too many for 2 rows" in publish(config, NAME).reason
    assert_is_what_all_gives(config)


def test_keys_without_a_key_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"incremental: keys requires the columns .* key: \[\.\.\.\]"):
        make_config(tmp_path, JOINED, incremental="keys")


DAY = dt.date(2026, 1, 2)
SECOND = dt.timedelta(seconds=1)
