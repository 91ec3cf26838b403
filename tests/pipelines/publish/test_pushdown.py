"""What the SQL of a published table asks of its mirrors reaches their scans."""

import datetime as dt
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from nevermore.pipelines.config.project import Config, parse
from nevermore.pipelines.errors import PublishError
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.publish import refresh, writer
from nevermore.pipelines.publish.mirror_reads import mirror_scans
from nevermore.pipelines.publish.query import arguments, published_entry, published_query
from nevermore.pipelines.publish.refresh import publish
from nevermore.scan_core import open_table
from nevermore.scan_core.spark import PushedScans, push_down, reader_choice
from tests.pipelines.publish.daily_orders import apply

NAME = "shop.result"
DAY = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def config_of(folder: Path, sql: str, **entry: Any) -> Config:
    lines = [
        "tables:",
        *(
            f"  shop.{name}: {{source: {{type: files, path: none}}, key: [id]}}"
            for name in ("customers", "orders", "lines")
        ),
        "published:",
        f"  {NAME}:",
        *(f"    {name}: {value!r}" for name, value in entry.items()),
        "    sql: |",
        *("      " + line for line in sql.strip().splitlines()),
    ]
    return parse("\n".join(lines).replace("True", "true").replace("False", "false"), folder / "nevermore.yaml")


def fill(config: Config) -> None:
    """100 customers in four cities, 1,000 orders, 5,000 lines, some of each deleted."""
    ids = range(100)
    cities = ["Oslo", "Moss", "Bergen", None]
    at = {"type": pa.timestamp("us", "UTC")}
    apply(config, "shop.customers", pa.table({
        "id": pa.array(ids, pa.int64()), "city": [cities[i % 4] for i in ids],
    }))  # fmt: skip
    apply(config, "shop.orders", pa.table({
        "id": pa.array(range(1000), pa.int64()), "customer_id": pa.array([i % 100 for i in range(1000)], pa.int64()),
        "at": pa.array([DAY + dt.timedelta(hours=i) for i in range(1000)], **at), "status": [f"s{i % 7}" for i in range(1000)],
    }))  # fmt: skip
    apply(config, "shop.lines", pa.table({
        "id": pa.array(range(5000), pa.int64()), "order_id": pa.array([i // 5 for i in range(5000)], pa.int64()),
        "quantity": pa.array([i % 10 for i in range(5000)], pa.int32()),
    }))  # fmt: skip
    for table, gone in (("shop.customers", [4, 5]), ("shop.orders", [4, 8, 9]), ("shop.lines", [20, 21])):
        apply(config, table, open_table_of(config, table).schema.empty_table(), deleted=gone)


def open_table_of(config: Config, name: str) -> pa.Table:
    return open_table(open_catalog(config).load_table(name)).scan().to_table()


JOINED = """
select o.id, c.city, l.quantity from shop.orders o
join shop.customers c on c.id = o.customer_id
join shop.lines l on l.order_id = o.id
where c.city = 'Oslo' and c.id < 50
"""


def pushed(config: Config, key: str | None = None) -> PushedScans:
    query = published_query(config, NAME)
    return push_down(
        query,
        mirror_scans(open_catalog(config), config, query),
        arguments(query, published_entry(config, NAME), key),
    )


def conditions(found: PushedScans) -> Mapping[str, tuple[str, ...]]:
    return {table: each.conditions for table, each in found.pushed.items()}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shop")
    fill(config_of(folder, "select id from shop.orders"))
    return folder


def test_conditions_and_keys_of_three_joined_mirrors_reach_the_scans(filled: Path) -> None:
    found = pushed(config_of(filled, JOINED))
    assert conditions(found) == {
        "shop.customers": ("`city` = 'Oslo'", "`id` < 50"),
        "shop.orders": ("`customer_id` < 50",),
        "shop.lines": (),
    }
    rows = {table: scan.to_table().num_rows for table, scan in found.scans.items()}
    assert rows["shop.customers"] == 12
    assert rows["shop.orders"] <= 150
    assert rows["shop.lines"] <= 700


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("with a as (select * from shop.orders where status = 's1') select a.id from a where a.id > 10", {"shop.orders": ("`status` = 's1'", "`id` > 10")}),
        ("select id from (select id, status as s from shop.orders) x where x.s like 's%' and id in (1, 2)", {"shop.orders": ("`status` LIKE 's%'", "`id` IN (1, 2)")}),
        ("select id from shop.orders where id = 1 union all select id from shop.orders where id = 2", {"shop.orders": ("((`id` = 1)) or ((`id` = 2))",)}),
        ("select id from shop.orders where id = 1 union all select id from shop.orders", {"shop.orders": ()}),
        ("select city, n from (select city, count(*) as n from shop.customers group by city) g where city = 'Moss' and n > 1", {"shop.customers": ("`city` = 'Moss'",)}),
        ("select id from (select id, row_number() over (order by id) as n from shop.orders) x where id > 10", {"shop.orders": ()}),
        ("select id from (select id from shop.orders limit 3) x where id > 10", {"shop.orders": ()}),
        ("select o.id from shop.orders o left join shop.customers c on c.id = o.customer_id and c.city = 'Oslo' where o.id < 9", {"shop.orders": ("`id` < 9",), "shop.customers": ("`city` = 'Oslo'",)}),
        ("select o.id from shop.orders o where exists (select 1 from shop.customers c where c.id = o.customer_id and c.id > 90)", {"shop.orders": ("`customer_id` > 90",), "shop.customers": ("`id` > 90",)}),
        ("select id from shop.orders where at >= timestamp '2026-01-02' and cast(status as int) = 1", {"shop.orders": ("`at` >= CAST('2026-01-02' AS TIMESTAMP)",)}),
        ("select id from (select id, id = 1 or status = 's2' as f from shop.orders) x where not f", {"shop.orders": ("NOT (`id` = 1 OR `status` = 's2')",)}),
        ("select id from (select id, customer_id as n from shop.orders) o where id in (select c.id as n from shop.customers c where n = 1)", {"shop.orders": (), "shop.customers": ()}),
        ("select id from shop.orders where id = 4 and cast(status as binary) > X'' and status < X''", {"shop.orders": ("`id` = 4",)}),
        ("select id from shop.orders where rand() < 0.5 and id = 4", {"shop.orders": ("`id` = 4",)}),
    ],
)  # fmt: skip
def test_what_is_certain_of_rows_reaches_their_scan(
    filled: Path, sql: str, expected: dict[str, tuple[str, ...]]
) -> None:
    assert conditions(pushed(config_of(filled, sql))) == expected


def test_values_of_parameters_reach_the_scan(filled: Path) -> None:
    sql = "select cast(:partition as date) as day, id, status from shop.orders where cast(at as date) = :partition and id > :least"
    config = config_of(filled, sql, partition="day", parameters={"least": 3})
    assert conditions(pushed(config, "2026-01-02")) == {
        "shop.orders": ("CAST(`at` AS DATE) = CAST('2026-01-02' AS DATE)", "`id` > 3")
    }


def test_values_that_spark_compares_in_another_way_are_left_to_spark(tmp_path: Path) -> None:
    config = config_of(tmp_path, """
        select o.id from shop.orders o join shop.customers c on c.code = o.code and c.id < 5
        where o.code <> '5F3A0000-0000-0000-0000-000000000001' and o.raw > x'00'
    """)  # fmt: skip
    codes = pa.array([UUID(int=i).bytes for i in range(9)], pa.uuid())
    apply(config, "shop.orders", pa.table({"id": range(9), "code": codes, "raw": pa.array([b"a"] * 9)}))
    apply(config, "shop.customers", pa.table({"id": range(9), "code": [str(UUID(int=i)) for i in range(9)]}))
    found = pushed(config)
    text = "`code` <> '5F3A0000-0000-0000-0000-000000000001'"
    assert conditions(found) == {"shop.orders": (), "shop.customers": ("`id` < 5", text)}
    assert {table: scan.to_table().num_rows for table, scan in found.scans.items()} == {
        "shop.orders": 9,
        "shop.customers": 5,
    }
    assert found.pushed["shop.orders"].joins == []


def test_a_condition_that_can_fail_is_left_with_the_reason(filled: Path) -> None:
    found = pushed(config_of(filled, "select id from shop.orders where cast(status as int) = 1"))
    (reason,) = found.pushed["shop.orders"].left.values()
    assert "can fail" in reason


@pytest.mark.spark
@pytest.mark.usefixtures("ansi_spark")
def test_rows_are_the_same_and_fewer_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_choice, "NATIVE_FILE_COST", 0)  # else files as small as these are never read natively
    found = {}
    ways = ((True, "auto", 0), (False, "auto", 0), (False, "python", 2**24), (True, "auto", 2**24))
    for push_down_, reader, driver_bytes in ways:
        folder = tmp_path / f"{push_down_}-{reader}-{driver_bytes}"
        folder.mkdir()
        config = config_of(folder, JOINED, options={"reader": reader})
        fill(config)
        with monkeypatch.context() as patched:
            patched.setattr(refresh, "DRIVER_BYTES", driver_bytes)
            if not push_down_:
                patched.setattr(refresh, "push_down", lambda _, scans, __: PushedScans(scans, {}))
            report = publish(config, NAME, is_full=True)
        reads = {table: read.metrics.rows_out for table, read in report.reads.items()}
        rows = sorted(map(str, open_table_of(config, NAME).to_pylist()))
        found[push_down_, reader, driver_bytes] = rows, reads, report.as_dict()["reads"]
    narrowed, whole, by_python, by_driver = (found[way] for way in ways)
    assert narrowed[0] == whole[0] == by_python[0] == by_driver[0]
    assert by_driver[1] == narrowed[1]
    assert {read["reader"].partition(":")[0] for read in by_driver[2].values()} == {"driver"}
    assert len(narrowed[0]) > 500
    assert whole[1] == by_python[1] == {"shop.customers": 98, "shop.orders": 997, "shop.lines": 4998}
    assert {read["reader"].partition(",")[0] for read in whole[2].values()} == {"native reader"}
    assert {read["reader"] for read in by_python[2].values()} == {"python reader: it was not asked for"}
    assert narrowed[1]["shop.customers"] == 12
    assert narrowed[1]["shop.orders"] <= 150
    assert narrowed[1]["shop.lines"] <= 700
    assert narrowed[2]["shop.customers"]["where"] == "`city` = 'Oslo' and `id` < 50"
    assert "customer_id among id of shop.customers" in narrowed[2]["shop.orders"]["joins"][0]
    assert narrowed[2]["shop.lines"]["reader"].startswith("python reader: of ")


@pytest.mark.parametrize(
    ("on", "joins"),
    [
        ("c.Id = o.customerId", ["customerId among Id of shop.customers: 3 rows of keys"]),
        (
            "c.Id = o.customerId and c.Twin = o.customerId",
            ["customerId among Id of shop.customers: 3 rows of keys", "customerId among Twin of shop.customers: 3 rows of keys"],
        ),
        (
            "c.Id = o.customerId and c.Id = o.Twin",
            ["customerId among Id of shop.customers: 3 rows of keys", "Twin among Id of shop.customers: 3 rows of keys"],
        ),
    ],
)  # fmt: skip
def test_keys_of_columns_with_capitals_and_of_columns_compared_twice_reach_the_scan(
    tmp_path: Path, on: str, joins: list[str]
) -> None:
    sql = f"select o.Id from shop.orders o join shop.customers c on {on} where c.Twin < 5 and c.City = 'x'"
    config = config_of(tmp_path, sql)
    ids, more = pa.array(range(50), pa.int64()), pa.array(range(500), pa.int64())
    apply(config, "shop.orders", pa.table({"Id": more, "customerId": more, "Twin": more}))
    apply(config, "shop.customers", pa.table({"Id": ids, "Twin": ids, "City": ["x", "y"] * 25}))
    found = pushed(config)
    assert found.scans["shop.customers"].to_table()["Id"].to_pylist() == [0, 2, 4]
    assert found.pushed["shop.orders"].joins == joins
    assert {0, 2, 4} <= set(found.scans["shop.orders"].to_table()["Id"].to_pylist())


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("ansi_spark")
@pytest.mark.parametrize("entry", [{}, {"mode": "upsert", "key": ["id"]}, {"sort_by": ["amount", "id"]}])
def test_few_rows_are_read_and_written_by_this_process_and_are_the_same(
    tmp_path: Path, entry: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every type, NULLs and a delete; a limit of memory that the rows exceed leaves all of it to tasks."""
    rows = pa.table({
        "id": pa.array(range(50), pa.int64()), "amount": pa.array([None, *(float(i % 7) for i in range(48)), float("nan")]),
        "customer_id": pa.array([UUID(int=i).bytes for i in range(50)], pa.binary(16)),
        "price": pa.array([None if i % 5 == 0 else i for i in range(50)], pa.decimal128(20, 2)),
        "at": pa.array(range(50), pa.timestamp("us", "UTC")), "local": pa.array(range(50), pa.timestamp("us")),
        "day": pa.array(range(50), pa.date32()), "raw": pa.array([bytes([i]) for i in range(50)]),
        "parts": pa.array([[{"x": i, "y": str(i)}, None] for i in range(50)]),
        "odd`na.me": pa.array([i % 2 == 0 for i in range(50)]),
    })  # fmt: skip
    found = {}
    for driver_bytes in (0, 1024, 2**24):
        folder = tmp_path / str(driver_bytes)
        folder.mkdir()
        config = config_of(folder, "select * from shop.orders where id <> 7", **entry)
        monkeypatch.setattr(refresh, "DRIVER_BYTES", driver_bytes)
        monkeypatch.setattr(refresh, "copied_columns", lambda *_: None)
        apply(config, "shop.orders", rows)
        apply(config, "shop.orders", rows.slice(0, 0), deleted=[3, 4])
        reader = publish(config, NAME, is_full=True).reads["shop.orders"].reader
        found[driver_bytes] = reader.partition(":")[0], open_table_of(config, NAME)
    assert [found[most][0] for most in (0, 1024, 2**24)] == ["python reader", "python reader", "driver"]
    tables = [str(table.sort_by("id").to_pylist()) for _, table in found.values()]
    assert tables[0] == tables[1] == tables[2]
    assert found[0][1].schema == found[2**24][1].schema
    assert found[0][1].num_rows == 47
    if "sort_by" in entry:
        assert found[2**24][1]["id"].to_pylist() == found[0][1]["id"].to_pylist()


@pytest.mark.spark
@pytest.mark.usefixtures("ansi_spark")
def test_a_key_that_repeats_is_refused_in_this_process_too(tmp_path: Path) -> None:
    config = config_of(tmp_path, "select customer_id as id, status from shop.orders", mode="upsert", key=["id"])
    fill(config)
    with pytest.raises(PublishError, match=r"several rows of the result have the same key \(id\)"):
        publish(config, NAME)


@pytest.mark.spark
@pytest.mark.usefixtures("ansi_spark")
def test_more_rows_than_were_expected_are_left_to_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "MAX_ROWS_HERE", 100)
    config = config_of(tmp_path, "select o.id, l.id as line from shop.orders o join shop.lines l on l.order_id = o.id")
    fill(config)
    report = publish(config, NAME)
    assert report.rows == open_table_of(config, NAME).num_rows == 4985
    assert {read.reader.partition(":")[0] for read in report.reads.values()} == {"driver"}
