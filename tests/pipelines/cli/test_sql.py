"""`nevermore sql`: a query over the tables of a config; mistakes are one message."""

import csv
import json
import os
import shlex
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pexpect
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nevermore import open_project
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.ingest.project import add_views

Run = Callable[..., tuple[int, str, str]]

CONFIG = """
tables:
  shop.customers: {source: {type: python}, key: [id]}
  shop.orders: {source: {type: python}, key: [id]}
published:
  shop.daily: {sql: "select id from shop.orders"}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "nevermore.yaml"
    path.write_text(CONFIG)
    project = open_project(path)
    project.upsert("shop.customers", pa.table({"id": pa.array(range(10), pa.int64()), "city": ["Oslo", "Moss"] * 5}))
    project.delete("shop.customers", [{"id": 4}])
    return path


def test_a_query_prints_the_live_rows(run: Run, config: Path) -> None:
    text = "select id, city from shop.customers where city = 'Oslo' and id > 1 order by id"
    code, output, errors = run("sql", text, "--config", config, "--json")
    assert (code, errors) == (0, "")
    assert [json.loads(line)["id"] for line in output.splitlines()] == [2, 6, 8]
    assert run("sql", text, "--config", config, "--format", "csv", "--limit", "2")[1].split() == [
        "id,city",
        "2,Oslo",
        "6,Oslo",
    ]
    plan = run("sql", text, "--config", config, "--explain")[1]
    assert '"id" > 1' in plan
    assert plan in json.loads(run("sql", text, "--config", config, "--explain", "--json")[1])["explain"] + "\n"


@pytest.mark.each(12)
@pytest.mark.parametrize("engine", ["duckdb", pytest.param("spark", marks=pytest.mark.spark)])
@pytest.mark.parametrize("output_format", ["csv", "jsonl", "table", "parquet", "arrow"])
def test_columns_with_equal_names_are_numbered(
    run: Run, config: Path, tmp_path: Path, engine: str, output_format: str, request: pytest.FixtureRequest
) -> None:
    if engine == "spark":
        request.getfixturevalue("spark")
    columns = "a.id, b.id, a.city, b.city, 7 as id_1, b.id"
    query = f"select {columns} from shop.customers a join shop.customers b on a.id = b.id + 1 where a.id = 2"
    output = tmp_path / "rows"
    given = ("--config", config, "--engine", engine, "--format", output_format, "--output", output)
    assert run("sql", query, *given)[0] == 0
    match output_format:
        case "parquet":
            rows = pq.read_table(output).to_pylist()
        case "arrow":
            rows = pa.ipc.open_stream(output.read_bytes()).read_all().to_pylist()
        case "jsonl":
            rows = [json.loads(output.read_text())]
        case "csv":
            rows = list(csv.DictReader(output.read_text().splitlines()))
        case _:
            head, _, values, *_ = output.read_text().splitlines()
            rows = [dict(zip(head.replace("┃", " ").split(), values.replace("│", " ").split(), strict=True))]
    expected = {"id": 2, "id_2": 1, "city": "Oslo", "city_1": "Moss", "id_1": 7, "id_3": 1}
    assert [{k: str(v) for k, v in row.items()} for row in rows] == [{k: str(v) for k, v in expected.items()}]
    assert list(rows[0]) == ["id", "id_2", "city", "city_1", "id_1", "id_3"]


@pytest.mark.each(2)
@pytest.mark.parametrize(
    ("query", "added"),
    [
        ("select id from customers where city like 'Os%'", ["shop.customers also: startswith(city, 'Os')"]),
        ("select id from customers where city like 'Os%' and length(city) > 3", []),
        ("select id from customers where city not like 'Os%'", []),
        ("select id from customers where city like 'Os%' or id = 1", []),
        ("select c.id from customers c join customers d using (id) where c.city like 'Os%'", []),
        ("select city from customers where city like 'Os%' limit 2", ["shop.customers also: startswith(city, 'Os')"]),
    ],
)
def test_what_the_plan_says_narrows_the_only_scan_of_a_table(
    query: str, added: list[str], run: Run, config: Path
) -> None:
    explained = run("sql", query, "--config", config, "--explain")[1]
    assert [line for line in explained.splitlines() if " also: " in line] == added
    assert run("sql", query, "--config", config)[0] == 0


@pytest.mark.each(6)
@pytest.mark.parametrize(
    ("query", "limit", "is_few"),
    [
        ("select id from customers as orders LIMIT 1", None, True),
        ("select id from customers where city like 'O%' limit 1 offset 1", None, True),
        ("select id from customers", 1, True),
        ("select 'limit' from customers where id = 0", None, False),
        ("select id from customers order by id limit 1", None, False),
        ("select id from customers order by id", 1, False),
        ("select min(id) from (from customers limit 4)", None, True),
        ("select min(id) from customers limit 1", None, False),
        ("select c.id from customers c join customers d using (id) limit 1", None, False),
        ("create table t as select 1; select id from customers limit 1", None, True),
    ],
)
def test_a_limit_begins_with_few_rows(
    run: Run, config: Path, monkeypatch: pytest.MonkeyPatch, query: str, limit: int | None, *, is_few: bool
) -> None:
    asked: list[bool] = []

    def noted(connection: Any, views: Any, scans: Any) -> None:
        asked.extend(scan.options.wants_few for scan in scans.values())
        add_views(connection, views, scans)

    monkeypatch.setattr("nevermore.pipelines.cli.sql_commands.add_views", noted)
    limited = () if limit is None else ("--limit", str(limit))
    code, output, errors = run("sql", query, "--config", config, "--format", "csv", *limited)
    assert (code, len(output.split()), asked[-1]) == (0, 2, is_few), errors


@pytest.mark.each(3)
@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("select count(*) from Customers", ["9"]),
        ('select count(*) from SHOP."Customers" as c', ["9"]),
        ("with c as (from customers) select count(*) from c join shop.customers using (id)", ["9"]),
        ("select op, count(*) from change_log.shop_customers group by all order by all", ["d,1", "u,10"]),
        ("pivot (select city, 1 as n from customers) on city using sum(n)", ["5,4"]),
        ("select 1; select count(*) from customers", ["9"]),
        ("select count(*) from (show all tables)", ["0"]),
        ("select * from customers limit 0", []),
        ("create table t as from customers; select count(*) from t", ["9"]),
    ],
)
def test_tables_are_found_by_every_name(run: Run, config: Path, query: str, rows: list[str]) -> None:
    code, output, errors = run("sql", query, "--config", config, "--format", "csv")
    assert (code, errors) == (0, "")
    assert output.split("\r\n")[1:-1] == rows


def test_tables_whose_names_differ_by_case_only_are_not_taken_for_one_another(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "nevermore.yaml"
    names = ("shop.T", "shop.t", "shop.u")
    path.write_text("tables:\n" + "".join(f"  {name}: {{source: {{type: python}}, key: [id]}}\n" for name in names))
    for number, name in enumerate(names):
        open_project(path).upsert(name, [{"id": number}])
    assert run("sql", "from shop.u", "--config", path, "--format", "csv")[1].split() == ["id", "2"]
    for name in ("shop.T", "shop.t", "T", "shop_T"):
        code, _, errors = run("sql", f"from {name}", "--config", path)
        assert (code, "does not exist" in errors) == (2, True)


def test_the_project_as_of_a_time(run: Run, config: Path) -> None:
    commits = open_project(config).table("shop.customers").history()[:2]
    first, second = (datetime.fromtimestamp(commit.timestamp_ms / 1000, UTC) for commit in commits)
    for when, count in ((first, "10"), (second, "9")):
        found = run(
            "sql", "select count(*) from customers", "--as-of", when.isoformat(), "--config", config, "--format", "csv"
        )
        assert found[1].split()[1:] == [count]
    early = run("sql", "from customers", "--as-of", "2020-01-01", "--config", config)
    assert early[0] == 1
    assert "had no snapshot at 2020-01-01" in early[2]


def test_the_project_as_of_a_snapshot_or_branch(run: Run, config: Path) -> None:
    project = open_project(config)
    first, second, *_ = project.table("shop.customers").history()
    table = open_catalog(project.config).load_table("shop.customers")
    table.manage_snapshots().create_branch(first.snapshot_id, "before").commit()

    def count(*options: str) -> tuple[int, str]:
        code, output, errors = run(
            "sql", "select count(*) from customers", *options, "--config", config, "--format", "csv"
        )
        return code, output.split()[-1] if code == 0 else errors

    assert count("--snapshot", str(first.snapshot_id)) == count("--ref", "before") == (0, "10")
    assert count("--snapshot", str(second.snapshot_id)) == count("--ref", "main") == (0, "9")
    for options, code, message in (
        (("--snapshot", "5"), 1, "5"),
        (("--ref", "no"), 1, "no"),
        (("--ref", "before", "--as-of", "2026-01-01"), 2, "--as-of and --ref are mutually exclusive"),
        (("--ref", "before", "--engine", "spark"), 2, "cannot be combined with --snapshot, --as-of and --ref"),
    ):
        found = count(*options)
        assert (found[0], message in found[1]) == (code, True), found
    of_project = project.duckdb(["shop.customers"], ref="before"), project.duckdb(as_of=second.timestamp_ms)
    of_table = project.duckdb(["shop.customers"], as_of=first.snapshot_id)
    counts = [c.sql("select count(*) from customers").fetchall()[0][0] for c in (*of_project, of_table)]
    assert counts == [10, 9, 10]


def test_a_connection_of_the_project(config: Path) -> None:
    project = open_project(config)
    connection = project.duckdb()
    assert connection.sql("select sum(id) from shop.customers").fetchall() == [(41,)]
    assert connection.sql("select count(*) from change_log.shop_customers").fetchall() == [(11,)]
    assert connection.sql("select current_setting('timezone')").fetchall() == [("UTC",)]
    only = project.duckdb(["shop.customers"])
    assert [row[1:3] for row in only.sql("show all tables").fetchall() if row[0] == "memory"] == [
        ("main", "customers"),
        ("shop", "customers"),
    ]


def test_values_of_all_types_are_those_of_the_scan(tmp_path: Path, every_type: pa.Table) -> None:
    path = tmp_path / "nevermore.yaml"
    path.write_text("tables: {a.b: {source: {type: python}, key: [id]}}")
    project = open_project(path)
    project.upsert("a.b", every_type)
    expected = project.scan("a.b").to_table()
    found = project.duckdb().sql("from a.b").to_arrow_table()
    assert found.select(expected.column_names).to_pylist() == expected.to_pylist()


def test_structs_within_structs_are_read_in_every_batch(tmp_path: Path) -> None:
    numbers, offsets = pa.array(range(1_000)), pa.array(range(1_001), pa.int32())
    inner = pa.StructArray.from_arrays([numbers], ["n"])
    columns = {
        "id": numbers,
        "s": pa.StructArray.from_arrays([inner, numbers], ["inner", "m"]),
        "l": pa.ListArray.from_arrays(offsets, inner),
    }
    path = tmp_path / "nevermore.yaml"
    path.write_text("scan: {batch_rows: 100}\ntables: {a.b: {source: {type: python}, key: [id]}}")
    project = open_project(path)
    project.upsert("a.b", pa.table(columns))
    stream = duckdb.from_arrow(project.scan("a.b").to_reader())
    for found in (project.duckdb().sql("from a.b order by id"), stream.order("id")):
        assert found.to_arrow_table().to_pylist() == pa.table(columns).to_pylist()


@pytest.fixture
def every_type() -> pa.Table:
    when = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC).replace(tzinfo=None)
    columns: dict[str, Any] = {
        "id": pa.array([1, 2], pa.int64()),
        "i": pa.array([-(2**31), None], pa.int32()),
        "f": pa.array([0.1, None], pa.float32()),
        "d": pa.array([float("inf"), None]),
        "b": [True, None],
        "s": ["ü", None],
        "x": pa.array([b"\x00\xff", None], pa.binary()),
        "n": pa.array([when.date(), None]),
        "t": pa.array([when.time(), None], pa.time64("us")),
        "ts": pa.array([when, None], pa.timestamp("us")),
        "tz": pa.array([when, None], pa.timestamp("us", "UTC")),
        "l": [[1, None], None],
        "o": [{"a": 1, "b": ["x"]}, None],
    }
    return pa.table(columns)


@pytest.mark.slow
def test_queries_are_read_from_standard_input_and_typed_at_a_prompt(config: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "nevermore.pipelines.cli.main", "sql", "--config", str(config)]
    pipe = f"echo 'select sum(id) as n from customers' | {shlex.join(words)} --json"
    assert json.loads(pexpect.spawn("/bin/sh", ["-c", pipe], timeout=120).read()) == {"n": "41"}
    environment = os.environ | {"TERM": "dumb", "TMPDIR": str(tmp_path)}
    shell = pexpect.spawn(words[0], words[1:], env=environment, timeout=120, encoding="utf-8", dimensions=(50, 120))
    shell.expect("nevermore> ")
    shell.sendline(".tables")
    shell.expect("shop.customers")
    shell.sendline(".schema shop.customers")
    shell.expect("VARCHAR")
    shell.sendline("select nothing")
    shell.sendline("from customers;")
    shell.expect("error: the query failed")
    shell.sendline("select count(*) as live from customers;")
    shell.expect("9")
    shell.expect(r"\d s")
    shell.sendline(".nonsense")
    shell.expect("ends\\s+nevermore> ")
    shell.sendline(".exit")
    shell.expect(pexpect.EOF)
    shell.close()
    assert shell.exitstatus == 0


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_query_over_mirrors_prints_rows_and_how_they_are_read(run: Run, config: Path) -> None:
    text = "select id, city from shop.customers where city = 'Oslo' and id > 1 order by id"
    code, output, errors = run("sql", "--engine", "spark", text, "--config", config, "--json")
    assert (code, errors) == (0, "")
    assert [json.loads(line)["id"] for line in output.splitlines()] == [2, 6, 8]
    assert len(run("sql", "--engine", "spark", text, "--config", config, "--json", "--limit", "2")[1].splitlines()) == 2
    short = "select count(*) as n from Customers"
    assert run("sql", "--engine", "spark", short, "--config", config, "--format", "csv")[1].split() == ["n", "9"]
    assert (
        run(
            "sql",
            "--engine",
            "spark",
            short.replace("Customers", "SHOP.`Customers`"),
            "--config",
            config,
            "--format",
            "csv",
        )[0]
        == 0
    )
    explained = run("sql", "--engine", "spark", text, "--config", config, "--explain")[1]
    assert "where: `city` = 'Oslo' and `id` > 1" in explained
    reads = json.loads(run("sql", "--engine", "spark", text, "--config", config, "--explain", "--json")[1])["reads"]
    assert reads["shop.customers"]["where"] == "`city` = 'Oslo' and `id` > 1"


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_sub_query_as_a_column_below_a_union_is_planned(run: Run, config: Path) -> None:
    computed = "select id, (select max(b.id) from shop.customers b where b.id = a.id) as v from shop.customers a"
    text = f"""
        with u as (select * from ({computed} union all select id, id from shop.customers) w)
        select w.* from u w left join shop.customers o on o.id = w.id where o.id > 7 order by w.id
    """
    code, output, errors = run("sql", "--engine", "spark", text, "--config", config, "--format", "csv")
    assert (code, errors) == (0, "")
    assert output.split() == ["id,v", "8,8", "8,8", "9,9", "9,9"]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("drop table shop.customers", "sql must be one query"),
        ("select 1; select 2", "sql must be one query"),
        ("select id from shop.customers where id =", "something is missing here. Line 1, Col: "),
    ],
)
def test_mistakes_are_told_before_spark_starts(run: Run, config: Path, query: str, message: str) -> None:
    code, _, errors = run("sql", "--engine", "spark", query, "--config", config)
    assert (code, "Traceback" in errors) == (2, False)
    assert message in errors


@pytest.mark.each(6)
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select nothing from shop.customers", "the query failed: [UNRESOLVED_COLUMN"),
        ("select * from shop.custmers", "the query failed: [TABLE_OR_VIEW_NOT_FOUND]"),
        ("select id from shop.orders", "table shop.orders does not exist yet: nevermore ingest creates it"),
        ("select id from shop.daily", "table shop.daily does not exist yet: nevermore publish creates it"),
        ("select cast(city as int) as n from shop.customers", "the query failed: "),
    ],
)
def test_what_spark_refuses_is_one_message(run: Run, config: Path, query: str, message: str) -> None:
    code, _, errors = run("sql", "--engine", "spark", query, "--config", config)
    assert (code, "Traceback" in errors) == (2, False)
    assert message in errors


@pytest.mark.each(2)
@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select * from custmers", "custmers does not exist! The project has customers, shop.customers"),
        ("select nothing from customers", 'column "nothing" not found'),
        ("selec 1", "syntax error"),
        ("select date_format(id, 'y') from customers", "for Spark's, add --engine spark"),
        ("select cast(city as int) from customers", "Could not convert string 'Oslo'"),
        ("from shop.orders", "schema"),
    ],
)
def test_what_duckdb_refuses_is_one_message(run: Run, config: Path, query: str, message: str) -> None:
    for explained in ((), ("--explain",)):
        code, _, errors = run("sql", query, "--config", config, *explained)
        if explained and "cast" in query:
            continue
        assert (code, "Traceback" in errors) == (2, False)
        assert message in errors
