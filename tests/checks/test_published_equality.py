"""A published table against DuckDB: right ones pass, one fault each fails, and what cannot be compared says why."""

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
import sqlglot

from nevermore.checks import published_equality
from nevermore.checks.comparison import Comparison, surplus_rows
from nevermore.checks.published_equality import check_published, published_equals_duckdb
from nevermore.checks.reference.expected_rows import live_rows
from nevermore.checks.reference.sql_columns import open_connection
from nevermore.pipelines.config.project import Config, parse
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.iceberg.catalog import create_table, find_table, open_catalog
from nevermore.pipelines.iceberg.commit import RowDelta, everything
from nevermore.pipelines.iceberg.positions import ERASED
from nevermore.pipelines.iceberg.schema_evolution import iceberg_fields
from nevermore.pipelines.iceberg.table_writer import write_deletes, write_rows
from nevermore.pipelines.publish.mirror_reads import snapshots_read
from nevermore.pipelines.publish.publish_commit import PARTITIONS
from nevermore.pipelines.publish.refresh import publish as publish_by_spark
from nevermore.pipelines.publish.state import (
    QUERY,
    SOURCE,
    STATE,
    current_state,
    partitions_json,
    query_hash,
)
from nevermore.scan_core import open_table
from tests.support.spark_session import SPARK_TEST

NAME = "shop.daily"
SQL = """
select cast(o.at as date) as day, c.city, count(*) as n, avg(o.amount) as mean
from shop.orders o left join shop.customers c on c.id = o.customer_id group by 1, 2
"""
PUBLISHED = [(1, "Oslo", 2, 0.15), (2, None, 1, 5.0)]
Days = list[tuple[int, str | None, int, float]]


def make_config(folder: Path, sql: str = SQL, **entry: Any) -> Config:
    fields = {"partition": "day"} | entry
    lines = [
        "tables:",
        "  shop.orders: {source: {type: files, path: none}, key: [id]}",
        "  shop.customers: {source: {type: files, path: none}, key: [id]}",
        f"published:\n  {NAME}:",
        *(f"    {name}: {value!r}" for name, value in fields.items() if value is not None),
        "    sql: |",
        *("      " + line for line in sql.strip().splitlines()),
    ]
    return parse("\n".join(lines), folder / "nevermore.yaml")


def fill_mirrors(config: Config) -> None:
    """Two customers, three orders; a fourth is deleted."""
    orders = pa.table({
        "id": pa.array([1, 2, 3, 4]), "customer_id": pa.array([1, 1, None, 1]), "amount": pa.array([0.1, 0.2, 5.0, 9.0]),
        "at": pa.array([dt.datetime(2026, 1, d, 23, tzinfo=dt.UTC) for d in (1, 1, 2, 2)], pa.timestamp("us", "UTC")),
    })  # fmt: skip
    write(config, "shop.orders", orders)
    write(config, "shop.customers", pa.table({"id": pa.array([1, 2]), "city": ["Oslo", "Moss"]}))
    delta = RowDelta(find_table(open_catalog(config), "shop.orders"))
    delta.commit(write_deletes(pa.table({"id": pa.array([4])}), delta.target, delta.default_spec, [1]), {})


def write(config: Config, name: str, rows: pa.Table, told: dict[str, str] | None = None, **table: Any) -> None:
    """Rows in the place of all that were there."""
    catalog = open_catalog(config)
    found = find_table(catalog, name) or create_table(catalog, name, iceberg_fields(rows.schema), **table)
    delta = RowDelta(found)
    delta.commit(
        write_rows(rows, delta.target, delta.default_spec), told or {}, remove=everything, operation="overwrite"
    )


def publish(config: Config, rows: Days, told: dict[str, str] | None = None) -> None:
    """As a run of `publish` would have written these rows."""
    days, cities, counts, means = zip(*rows, strict=True)
    table = pa.table({
        "day": pa.array([dt.date(2026, 1, d) for d in days]), "city": pa.array(cities, pa.string()),
        "n": pa.array(counts, pa.int64()), "mean": pa.array(means, pa.float64()),
    })  # fmt: skip
    write(config, NAME, table, told or state_of(config), partition_by=[("identity", "day")])


def state_of(config: Config) -> dict[str, str]:
    return {STATE: current_state(config, config.published[NAME], scans(config)).as_json()}


def scans(config: Config) -> dict[str, Any]:
    catalog = open_catalog(config)
    return {n: open_table(find_table(catalog, n)).scan() for n in ("shop.orders", "shop.customers")}


@pytest.fixture
def config(tmp_path: Path) -> Config:
    config = make_config(tmp_path)
    fill_mirrors(config)
    return config


def test_a_right_table_passes_though_sums_of_floats_differ_in_the_last_digit(config: Config) -> None:
    publish(config, [(1, "Oslo", 2, 0.15000000000000002), (2, None, 1, 5.0)])
    found = published_equals_duckdb(config, NAME)
    assert (found.passed, found.details) == (True, [])
    assert found.compared == {"rows published": 2, "rows by DuckDB": 2}


@pytest.mark.each(8)
@pytest.mark.parametrize(
    "rows",
    [
        PUBLISHED[:1],
        [*PUBLISHED, PUBLISHED[0]],
        [*PUBLISHED, (3, "Moss", 1, 1.0)],
        [(1, "Oslo", 2, 0.15), (2, None, 2, 5.0)],
        [(1, "Oslo", 2, 0.15), (2, "Oslo", 1, 5.0)],
        [(1, "Oslo", 2, 0.15), (2, None, 1, 5.0001)],
        [(1, "Oslo", 2, 0.15), (2, None, 1, 5.0), (2, "Oslo", 1, 9.0)],
    ],
    ids=["row lost", "row twice", "row too many", "other count", "other group", "other sum", "deleted row back"],
)
def test_a_wrong_table_fails_and_names_the_rows(config: Config, rows: Days) -> None:
    publish(config, rows)
    found = published_equals_duckdb(config, NAME)
    assert not found.passed
    assert found.offending_keys


def test_mirrors_that_went_on_are_read_at_the_snapshots_that_were_published(config: Config) -> None:
    publish(config, PUBLISHED)
    write(config, "shop.customers", pa.table({"id": pa.array([1]), "city": ["Bergen"]}))
    assert published_equals_duckdb(config, NAME).passed
    publish(config, PUBLISHED)  # claims to be of Bergen
    assert not published_equals_duckdb(config, NAME).passed


def test_days_made_alone_are_compared_with_what_each_was_made_from(config: Config) -> None:
    sources = {SOURCE + n: str(i) for n, i in snapshots_read(scans(config)).items()}
    told = {PARTITIONS: partitions_json(["2026-01-01"]), QUERY: query_hash(config, config.published[NAME]), **sources}
    publish(config, PUBLISHED[:1], told)
    assert published_equals_duckdb(config, NAME).compared == {"rows published": 1, "rows by DuckDB": 1}
    publish(config, [*PUBLISHED[:1], (7, "Oslo", 1, 1.0)], told)
    found = published_equals_duckdb(config, NAME)
    assert (found.passed, found.compared["rows not compared"]) == (True, 1)
    publish(config, [(1, "Oslo", 3, 0.15)], told)
    assert not published_equals_duckdb(config, NAME).passed


@pytest.mark.each(4)
@pytest.mark.parametrize("made_alone", [False, True])
@pytest.mark.parametrize("day", [1, 7])
def test_rows_that_another_program_adds_are_found_with_its_snapshot(
    config: Config, day: int, *, made_alone: bool
) -> None:
    sources = {SOURCE + n: str(i) for n, i in snapshots_read(scans(config)).items()}
    days = partitions_json(["2026-01-01", "2026-01-02"])
    alone = {PARTITIONS: days, QUERY: query_hash(config, config.published[NAME]), **sources}
    publish(config, PUBLISHED, alone if made_alone else None)
    rows = pa.table({"day": [dt.date(2026, 1, day)], "city": ["Moss"], "n": [1], "mean": [1.0]})
    delta = RowDelta(find_table(open_catalog(config), NAME))
    other = delta.commit(write_rows(rows, delta.target, delta.default_spec), {}).snapshot_id
    found = published_equals_duckdb(config, NAME)
    assert not found.passed
    note = f"another program wrote to the table (snapshot {other}): nevermore publish {NAME} makes it again"
    assert found.details[-1] == note
    publish(config, PUBLISHED)
    assert (published_equals_duckdb(config, NAME).passed, published_equals_duckdb(config, NAME).details) == (True, [])


def test_rows_that_were_erased_from_a_published_table_alone_are_not_missed(config: Config) -> None:
    publish(config, PUBLISHED)
    publish(config, PUBLISHED[:1], {ERASED: "true"})
    found = published_equals_duckdb(config, NAME)
    assert (found.passed, found.details) == (True, ["not compared: no snapshot records the sources of the rows"])


def test_what_cannot_be_compared_passes_and_says_why(tmp_path: Path, config: Config) -> None:
    def reason(**changed: Any) -> str:
        found = published_equals_duckdb(make_config(tmp_path, **changed), NAME)
        assert found.passed
        return " ".join(found.details)

    assert "does not exist yet" in reason()
    publish(config, PUBLISHED[:1])
    assert "other SQL" in reason(sql=SQL + " having count(*) > 7")
    assert "mode: append" in reason(mode="append")
    unknown = make_config(tmp_path, sql=SQL.replace("c.city", "soundex(c.city) as city").replace("1, 2", "1, c.city"))
    publish(unknown, PUBLISHED[:1])
    assert "soundex() may have another meaning" in " ".join(published_equals_duckdb(unknown, NAME).details)
    open_catalog(config).drop_table(NAME)
    publish(config, PUBLISHED[:1], {"by": "something else"})
    assert "no snapshot records" in reason()


def test_ties_are_no_fault(tmp_path: Path) -> None:
    sql = "select day, city, n, mean from (select cast(at as date) as day, 'x' as city, id as n, amount as mean, row_number() over (order by 1) as r from shop.orders) s where r = 1"
    config = make_config(tmp_path, sql=sql)
    fill_mirrors(config)
    for n, day, mean in ((1, 1, 0.1), (2, 1, 0.2), (3, 2, 5.0)):
        publish(config, [(day, "x", n, mean)])
        assert published_equals_duckdb(config, NAME).passed


UNITS = {
    "day": ("p", "cast(at as date)", "2026-01-01"),
    "month": ("month(p)", "cast(at as date)", "2026-01"),
    "year": ("year(p)", "at", "2026"),
    "hour": ("hour(p)", "at", "2026-01-01T23"),
    "null": ("value(p)", "customer_id", "null"),
    "decimal": ("value(p)", "cast(id as decimal(9, 2))", "3.00"),
    "text": ("value(p)", "cast(id as string)", "3"),
    "moment": ("value(p)", "at", "2026-01-01T23:00:00"),
}
"""By kind of partition: its declaration, its SQL, and the key of one that has rows."""
QUICK = ("day", "null", "decimal")


@pytest.mark.parametrize(
    "unit", [pytest.param(unit, marks=() if unit in QUICK else pytest.mark.slow) for unit in UNITS]
)
def test_the_rows_of_single_partitions_are_compared_alone(unit: str, tmp_path: Path) -> None:
    partition, expression, key = UNITS[unit]
    sql = f"select {expression} as p, count(*) as n from shop.orders group by 1"
    config = make_config(tmp_path, sql, partition=partition)
    fill_mirrors(config)
    rows = expected_rows_of(config, sql)
    transform = unit if unit in {"month", "year", "hour"} else "identity"
    write(config, NAME, rows, state_of(config), partition_by=[(transform, "p")])
    whole = published_equals_duckdb(config, NAME)
    assert (whole.passed, whole.details, whole.compared["rows published"]) == (True, [], rows.num_rows)
    alone = published_equals_duckdb(config, NAME, [key])
    text = f"compared only partition {key}"
    assert (alone.passed, alone.details) == (True, [text])
    assert 0 < alone.compared["rows published"] <= rows.num_rows
    # a wrong row in another partition is no concern of this one, and one in it is
    wrong = rows.set_column(1, "n", pa.array([n + 1 for n in rows["n"].to_pylist()]))
    write(config, NAME, wrong, state_of(config))
    found = published_equals_duckdb(config, NAME, [key])
    assert (found.passed, found.partitions) == (False, [key])
    assert found.compared == alone.compared
    assert published_equals_duckdb(config, NAME).compared["rows published"] == rows.num_rows


@pytest.mark.parametrize("made_alone", [False, True])
def test_partitions_with_wrong_rows_are_named_alone(config: Config, *, made_alone: bool) -> None:
    days = ["2026-01-01", "2026-01-02"]
    sources = {SOURCE + n: str(i) for n, i in snapshots_read(scans(config)).items()}
    told = {PARTITIONS: partitions_json(days), QUERY: query_hash(config, config.published[NAME]), **sources}
    first, *others = PUBLISHED
    publish(config, [(first[0], first[1], first[2] + 1, first[3]), *others], told if made_alone else None)
    found = published_equals_duckdb(config, NAME)
    assert (found.passed, found.partitions) == (False, days[:1])
    assert found.details == [
        "1 row of partition 2026-01-01 published that DuckDB does not compute",
        "1 row that DuckDB computes for partition 2026-01-01 not published",
    ]


def expected_rows_of(config: Config, sql: str) -> pa.Table:
    """The rows of SQL over the mirror, in types that a published table has."""
    table = find_table(open_catalog(config), "shop.orders")
    with open_connection() as connection:
        rows = live_rows(table.metadata_location)
        connection.register("orders", rows.set_column(3, "at", rows["at"].cast(pa.timestamp("us"))))
        made = connection.sql(
            sqlglot.transpile(sql.replace("shop.orders", "orders"), "spark", "duckdb", identify=True)[0]
        ).to_arrow_table()
    return made.set_column(1, "n", made["n"].cast(pa.int64()))


@pytest.mark.each(3)
@pytest.mark.parametrize(("severity", "blocks"), [("block", True), ("warn", False), ("off", False)])
def test_the_config_says_what_rows_that_differ_mean(severity: str, tmp_path: Path, *, blocks: bool) -> None:
    config = make_config(tmp_path, checks={"published_equals_duckdb": severity})
    fill_mirrors(config)
    publish(config, PUBLISHED[:1])
    found = {result.name: result for result in check_published(config, NAME)}
    assert ("published_equals_duckdb" in found) is (severity != "off")
    assert any(result.blocks for result in found.values()) is blocks
    (alone,) = check_published(config, NAME, partitions=["2026-01-01..2026-01-02"])
    assert alone.details[-1] == "compared only partitions 2026-01-01, 2026-01-02"
    assert (alone.passed, alone.blocks) == (False, severity != "warn")
    (right,) = check_published(config, NAME, partitions=["2026-01-01"])
    assert (right.passed, right.compared["rows published"]) == (True, 1)


def test_partitions_that_a_table_cannot_have_are_refused(tmp_path: Path, config: Config) -> None:
    publish(config, PUBLISHED)
    with pytest.raises(ConfigError, match="not a valid day"):
        list(check_published(config, NAME, partitions=["tuesday"]))
    with pytest.raises(ConfigError, match=r"shop\.daily has no partitions"):
        list(check_published(make_config(tmp_path, partition=None), NAME, partitions=["2026-01-01"]))


@SPARK_TEST[0]
@pytest.mark.usefixtures("spark")
def test_a_run_that_makes_one_decimal_partition_passes_its_checks(tmp_path: Path) -> None:
    config = make_config(
        tmp_path, "select cast(id as decimal(9, 2)) as p, amount from shop.orders", partition="value(p)"
    )
    fill_mirrors(config)
    publish_by_spark(config, NAME)
    report = publish_by_spark(config, NAME, partitions=["3.00"], auditor=published_equality.ProjectAuditor())
    found = {verdict.name: verdict for verdict in report.checks if verdict.table == NAME}
    assert [verdict.summary() for verdict in found.values() if not verdict.passed] == []
    assert found["published_equals_duckdb"].compared == {"rows published": 1, "rows by DuckDB": 1}


def test_a_comparison_that_needs_more_memory_says_so(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(config, PUBLISHED)

    def too_much(*_: Any) -> None:
        raise duckdb.OutOfMemoryException("failed to allocate")

    monkeypatch.setattr(published_equality, "surplus_rows", too_much)
    found = published_equals_duckdb(config, NAME)
    assert found.passed
    assert "raise it" in found.details[0]


def surplus(left: pa.Table, right: pa.Table, close: set[str]) -> Comparison:
    with open_connection() as connection:
        for name, rows in (("left_rows", left), ("right_rows", right)):
            connection.register(name, rows.rename_columns([f"c{i}" for i in range(rows.num_columns)]))
        return surplus_rows(connection, "left_rows", "right_rows", left.schema, close)


def counts(found: Comparison) -> tuple[int, int]:
    return found.num_left_only, found.num_right_only


def test_rows_pair_up_by_what_is_exact_and_then_by_what_is_close() -> None:
    left = pa.table({"k": [1, 1, None, 2], "v": [1.0, 2.0, float("nan"), None]})
    right = pa.table({"k": [2, 1, 1, None], "v": [None, 2.0 + 1e-12, 1.0, float("nan")]})
    assert surplus(left, right, {"v"}).equal
    assert counts(surplus(left, right, set())) == (1, 1)
    other = pa.table({"k": [2, 1, 1, None], "v": [None, 2.1, 1.0, 0.0]})
    found = surplus(left, other, {"v"})
    assert counts(found) == (2, 2)
    assert found.right_only.to_pylist() == [{"k": 1, "v": 2.1}, {"k": None, "v": 0.0}]
    assert found.left_only["k"].to_pylist() == [1, None]


@pytest.mark.parametrize("close", [set(), {"v"}])
@pytest.mark.parametrize("kind", ["double", "float", "struct", "list", "map"])
def test_nan_is_one_value_whatever_its_sign(kind: str, close: set[str]) -> None:
    def rows(sign: float) -> pa.Table:
        plain = pa.array(np.copysign([np.nan, np.nan], sign)).cast(pa.float32() if kind == "float" else pa.float64())
        nested = {
            "struct": pa.StructArray.from_arrays([plain], ["x"]),
            "list": pa.ListArray.from_arrays([0, 1, 2], plain),
            "map": pa.MapArray.from_arrays([0, 1, 2], pa.array(["k", "k"]), plain),
        }
        return pa.table({"k": [1, 2], "v": nested.get(kind, plain)})

    assert surplus(rows(1), rows(-1), close if kind in {"double", "float"} else set()).equal


def test_means_of_decimals_may_differ_by_their_last_digit() -> None:
    def decimals(text: str) -> pa.Table:
        return pa.table({"v": pa.array([Decimal(text)], pa.decimal128(14, 6))})

    assert surplus(decimals("0.062813"), decimals("0.062812"), {"v"}).equal
    assert counts(surplus(decimals("0.062813"), decimals("0.062811"), {"v"})) == (1, 1)
    assert counts(surplus(decimals("0.062813"), decimals("0.062812"), set())) == (1, 1)
