"""A scan as a dataset of PyArrow: the same rows as PyArrow and DuckDB find in memory, less read."""

import datetime as dt
import operator
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from nevermore.scan_core import EvaluationError, Scan, UnsupportedError
from nevermore.scan_core.foreign.dataset import ScanDataset
from tests.scan_core.foreign.typed_table import INF, NAN, VALUES, typed_scan
from tests.scan_core.small_scans import many_row_groups, scan_of, with_deletes

field = pc.field
OPERATORS: dict[str, Callable[[Any, Any], pc.Expression]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
TYPES = {
    "i": pa.int32(),
    "l": pa.int64(),
    "f": pa.float32(),
    "d": pa.float64(),
    "dec": pa.decimal128(9, 2),
    "ts": pa.timestamp("us"),
    "tz": pa.timestamp("us", "UTC"),
    "tm": pa.time64("us"),
    "a.b": pa.int32(),
}


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> Scan:
    return typed_scan(tmp_path_factory.mktemp("typed") / "t")


@pytest.fixture(scope="module")
def table(scan: Scan) -> pa.Table:
    return scan.to_table()


def comparisons(name: str) -> list[pc.Expression]:
    return [
        expression
        for value in VALUES[name]
        for compare in OPERATORS.values()
        for expression in (
            compare(field(name), pa.scalar(value, TYPES.get(name))),
            ~compare(field(name), pa.scalar(value, TYPES.get(name))),
        )
    ]


def agree(scan: Scan, table: pa.Table, expression: pc.Expression) -> ScanDataset[Scan]:
    dataset = scan.to_dataset()
    found = dataset.to_table(filter=expression, columns=["n"])
    assert found["n"].to_pylist() == table.filter(expression)["n"].to_pylist(), str(expression)
    return dataset


def is_pushed(dataset: ScanDataset[Scan]) -> bool:
    assert dataset.last_read is not None
    return dataset.last_read.left is None


@pytest.mark.each(13)
@pytest.mark.parametrize("name", sorted(set(VALUES) - {"st"}))
def test_comparisons_find_the_rows_that_pyarrow_finds(scan: Scan, table: pa.Table, name: str) -> None:
    pushed = [is_pushed(agree(scan, table, expression)) for expression in comparisons(name)]
    nans = 12 if name in {"f", "d"} else 0
    assert pushed.count(False) == nans  # comparisons with NaN are never true in PyArrow


@pytest.mark.each(8)
@pytest.mark.parametrize("name", sorted(VALUES))
def test_null_tests_and_sets_find_the_rows_that_pyarrow_finds(scan: Scan, table: pa.Table, name: str) -> None:
    column = field(name)
    for expression in (column.is_null(), column.is_valid(), column.is_null(nan_is_null=name in {"f", "d"})):
        assert is_pushed(agree(scan, table, expression))
        assert is_pushed(agree(scan, table, ~expression))
    if name == "st":
        return
    values = VALUES[name][:2]
    for members in (values, [*values, None], [None], []):
        for skip_nulls in (False, True):
            sought = pa.array(members, TYPES.get(name) or table.schema.field(name).type)
            options = pc.SetLookupOptions(sought, skip_nulls=skip_nulls)
            expression = pc.Expression._call("is_in", [column], options)
            for one in (expression, ~expression, pc.if_else(column.is_valid(), expression, None)):
                assert is_pushed(agree(scan, table, one)) is (name not in {"f", "d"})


@pytest.mark.parametrize(
    ("expression", "where"),
    [
        ((field("i") > 1) & (field("s") == "a"), ["i > 1", "s = 'a'"]),
        ((field("i") > 1) | ~(field("s") == "a"), ["i > 1 or not s = 'a'"]),
        (pc.scalar(5) < field("l"), ["l > 5"]),
        (field("d") >= 2.5, ["d >= 2.5D and not isnan(d)"]),
        (field("d") < INF, ["d < double('inf')"]),
        (field("b"), ["b"]),
        (~field("b"), ["not b"]),
        (field("st", "a") > 1, ["st.a > 1"]),
        (field("a.b") == 2, ["`a.b` = 2"]),
        (pc.starts_with(field("s"), "a'"), ["startswith(s, 'a\\'')"]),
        (pc.if_else(field("s").is_valid(), field("s").isin(["a", "b"]), None), ["s in ('a', 'b')"]),
        (field("s").isin([str(n) for n in range(30)]), None),
        (field("dec") > Decimal("1.5"), ["dec > 1.50"]),
        (field("ts") > pa.scalar(5, pa.timestamp("ms")), ["ts > timestamp_ntz '1970-01-01 00:00:00.005'"]),
        (field("day") == dt.date(1970, 1, 1), ["day = date '1970-01-01'"]),
    ],
)
def test_conditions_are_pushed_down(
    scan: Scan, table: pa.Table, expression: pc.Expression, where: list[str] | None
) -> None:
    dataset = agree(scan, table, expression)
    assert is_pushed(dataset)
    assert dataset.last_read is not None
    assert where is None or [str(predicate) for predicate in dataset.last_read.scan.predicates] == where


@pytest.mark.parametrize(
    "expression",
    [
        field("d") > NAN,
        field("f") == 0.1,  # no single-precision number; PyArrow compares in double precision
        field("st", "a") > 1.5,
        field("ts") > pa.scalar(5, pa.timestamp("ns")),
        field("s").cast(pa.binary()) == b"a",
        field("st", "a") + 1 > 2,
        field("i") > field("l").cast(pa.int32(), safe=False),
        field("dec") > Decimal("0.005"),
        pc.starts_with(field("s"), "A", ignore_case=True),
        pc.match_substring(field("s"), "b"),
        field(1) == 1,
        pc.if_else(field("b"), field("i") > 1, field("i") < 1),
    ],
    ids=str,
)
def test_what_has_no_exact_equivalent_is_left_to_pyarrow(
    scan: Scan, table: pa.Table, expression: pc.Expression
) -> None:
    assert not is_pushed(agree(scan, table, expression))
    mixed = agree(scan, table, expression & (field("n") > 60))
    assert mixed.last_read is not None
    assert expression.equals(field(1) == 1) or [str(p) for p in mixed.last_read.scan.predicates] == ["n > 60"]


def test_a_limit_takes_rows_before_the_filter(scan: Scan) -> None:
    dataset = scan.limit(10).to_dataset()
    expected = dataset.to_table().filter(field("i") > 0)["n"].to_pylist()
    assert dataset.to_table(filter=field("i") > 0, columns=["n"])["n"].to_pylist() == expected
    assert not is_pushed(dataset)


@pytest.mark.parametrize("marker", ["_deleted", "_delete_file"])
def test_columns_that_bring_deleted_rows_bring_them_under_any_projection(tmp_path: Path, marker: str) -> None:
    small, _ = with_deletes(tmp_path)
    dataset = scan_of(small).select("id", marker).to_dataset()
    assert dataset.to_table(columns=["id"]).num_rows == dataset.to_table().num_rows == 11
    assert dataset.to_table(columns=["id"]).column_names == ["id"]


def test_every_public_part_of_a_dataset_gives_the_rows_of_the_scan_or_refuses(tmp_path: Path) -> None:
    small, _ = with_deletes(tmp_path)
    dataset = scan_of(small).to_dataset()
    rows = dataset.to_table()
    answers: dict[str, Callable[[], Any]] = {
        "count_rows": lambda: dataset.count_rows() == 8 and dataset.count_rows(filter=field("id") > 7) == 2,
        "head": lambda: dataset.head(3).equals(rows.slice(0, 3)),
        "take": lambda: dataset.take([1, 3]).equals(rows.take([1, 3])),
        "to_batches": lambda: sum(batch.num_rows for batch in dataset.to_batches(batch_size=3)) == 8,
        "to_table": lambda: (
            dataset.to_table(columns={"twice": field("id") * 2})["twice"].to_pylist()
            == [2 * i for i in rows["id"].to_pylist()]
        ),
        "scanner": lambda: dataset.scanner(columns=[]).count_rows() == 8,
        "schema": lambda: dataset.schema.equals(rows.schema),
        "partition_expression": lambda: dataset.partition_expression.equals(pc.scalar(True)),
    }
    refused: dict[str, Callable[[], Any]] = {
        "filter": lambda: dataset.filter(field("id") > 1),
        "replace_schema": lambda: dataset.replace_schema(rows.schema),
        "get_fragments": dataset.get_fragments,
        "sort_by": lambda: dataset.sort_by("id"),
        "join": lambda: dataset.join(rows, "id"),
        "join_asof": lambda: dataset.join_asof(rows, "id", [], 0),
    }
    assert {name for name in dir(ds.Dataset) if not name.startswith("_")} == {*answers, *refused}
    for name, holds in answers.items():
        assert holds(), name
    for name, call in refused.items():
        with pytest.raises(UnsupportedError):
            pytest.fail(f"{name} gave {call()}")
    assert pickle.loads(pickle.dumps(dataset)).count_rows() == 8  # noqa: S301


QUERIES = [
    "select count(*) from t",
    "select n from t where i > 1 and s = 'ab'",
    "select n from t where i > 0 limit 1000",
    "select n from t where s in ('a', 'zz') or i is null",
    "select n from t where s not in ('a', 'zz')",
    "select n from t where d > 0.1",
    "select n from t where d = 'nan'::double or f < 0",
    "select n from t where f between -2 and 0.1",
    "select n from t where not b",
    "select n from t where st.a >= 1",
    "select n from t where st.x is null",
    "select n from t where dec > 0.005",
    "select n from t where dec = 0.01",
    "select n from t where day between date '1970-01-01' and date '2000-01-01'",
    "select n from t where tz > timestamptz '1970-01-01 12:00:00+00'",
    "select n from t where ts > timestamp '1970-01-01 12:00:00'",
    "select n from t where tm > time '12:00:00'",
    "select n from t where bin = 'a'::blob",
    "select n from t where s like 'a%' and n < 100",
    "select n from t where s is distinct from 'a' and n % 7 = 0",
    "select s, count(*) n, sum(dec) from t group by s order by s",
    "select n from t order by d desc nulls last, n limit 7",
    "select t.n from t join small using (i)",
    "select t.n from t join small using (s)",
    "select t.n from t left join small on t.s = small.s where small.s is null",
    "select n from t where i in (select i from small)",
    "select n from t semi join small using (i, s)",
    "select a.n from t a join t b on a.n = b.l",
    'select "a.b" from t where "a.b" > 1',
    "select max(n), min(s) from t where l > 9007199254740992",
]


@pytest.fixture
def connection(scan: Scan, table: pa.Table) -> duckdb.DuckDBPyConnection:
    connected = duckdb.connect()
    connected.execute("set timezone = 'UTC'")
    connected.register("small", table.filter(field("n") < 40).select(["i", "s"]))
    return connected


@pytest.mark.each(6)
@pytest.mark.parametrize("query", QUERIES)
def test_duckdb_answers_as_over_the_rows_in_memory(
    connection: duckdb.DuckDBPyConnection, scan: Scan, table: pa.Table, query: str
) -> None:
    scan.to_duckdb("t", connection)
    answer = connection.sql(query).fetchall()
    connection.register("t", table)
    assert sorted(map(repr, answer)) == sorted(map(repr, connection.sql(query).fetchall()))


@pytest.mark.each(4)
@pytest.mark.parametrize("keys", [1, 50, 3000, 60_000])
@pytest.mark.parametrize("column", ["id", "name"])
def test_joins_of_duckdb_find_every_partner(
    connection: duckdb.DuckDBPyConnection, tmp_path: Path, keys: int, column: str
) -> None:
    scan = scan_of(many_row_groups(tmp_path))
    other = pa.table({"id": pa.array(range(keys), pa.int64()), "name": [f"n{k}" for k in range(keys)]})
    connection.register("other", other)
    query = f"select count(*) from {{}} t join other using ({column})"
    scan.to_duckdb("scanned", connection)
    connection.register("copied", scan.to_table())
    assert connection.sql(query.format("scanned")).fetchall() == connection.sql(query.format("copied")).fetchall()


def test_duckdb_reads_only_columns_and_row_groups_that_a_query_needs(tmp_path: Path) -> None:
    scan = scan_of(many_row_groups(tmp_path))
    dataset = scan.to_dataset()
    connected = duckdb.connect()
    connected.register("t", dataset)
    assert connected.sql("select name from t where id between 3010 and 3020").fetchall()
    assert dataset.last_read is not None
    assert dataset.last_read.scan.columns == ("name",)
    assert dataset.last_read.scan.metrics.row_groups_pruned > 0
    assert dataset.last_read.left is None


def test_names_of_views_are_taken_as_they_are(scan: Scan) -> None:
    assert scan.to_duckdb('we "ird"; name', duckdb.connect()).count("*").fetchall() == [(96,)]


def test_a_failing_scan_fails_the_query_with_its_message(scan: Scan) -> None:
    with pytest.raises(duckdb.Error, match="division by zero"):
        scan.where("1 / (n - 7) > 5").to_duckdb("t", duckdb.connect()).fetchall()
    with pytest.raises(EvaluationError, match="division by zero"):
        scan.where("1 / (n - 7) > 5").to_dataset().to_table()


def test_a_query_that_ends_early_leaves_no_thread(tmp_path: Path) -> None:
    scan = scan_of(many_row_groups(tmp_path), parallelism=2, batch_rows=10, split_bytes=1)
    before = set(threading.enumerate())
    relation = scan.to_duckdb("t", duckdb.connect()).limit(3)
    assert len(relation.fetchall()) == 3
    del relation
    left = [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("scan-")]
    for thread in left:
        thread.join(300)
    assert not any(thread.is_alive() for thread in left)


def test_a_process_may_end_while_a_stream_is_open(tmp_path: Path) -> None:
    table = many_row_groups(tmp_path)
    code = (
        "from nevermore import scan_core\n"
        f"scan = scan_core.open_table({str(table.metadata_path)!r}).scan()\n"
        "scan = scan.with_options(scan_core.ScanOptions.of(batch_rows=10, parallelism=2))\n"
        "import duckdb\n"
        "connection = duckdb.connect()\n"
        "scan.to_duckdb('t', connection)\n"
        "relation = connection.execute('select * from t').fetchone()\n"
        "streams = [scan.to_dataset().scanner().to_reader(), scan.to_reader()]\n"
        "print([stream.read_next_batch().num_rows for stream in streams])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, "[10, 10]\n"), done.stderr
