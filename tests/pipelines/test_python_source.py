"""Rows that programs hand over: every kind of DataFrame, every type, exactly once, from several processes, and refusals that write nothing."""

import datetime as dt
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import duckdb
import hypothesis.strategies as st
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import yaml
from hypothesis import given, seed, settings
from pyiceberg.catalog.sql import SqlCatalog

from nevermore import col, open_project, upsert
from nevermore.checks.reference.expected_rows import live_rows
from nevermore.pipelines.changes.change_log import Appended, ChangeLog
from nevermore.pipelines.config.project import load
from nevermore.pipelines.errors import ConfigError, PositionLostError, SchemaConflictError, SourceError
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.iceberg.conversion import convert
from nevermore.pipelines.iceberg.storage import EXIT_CODE, VARIABLE
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.ingest.project import Project
from nevermore.pipelines.ingest.python_source import MAX_KNOWN, BatchPosition
from nevermore.pipelines.maintain.compact import CompactSettings, compact
from nevermore.pipelines.maintain.replay import resync
from nevermore.pipelines.mirrors.mirror import Mirror
from nevermore.pipelines.spark.ingest import check_found
from nevermore.scan_core import EvaluationError, MissingPackageError, PredicateError
from tests.support.given_rows import KINDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "shop.orders"
EVERYTHING = CompactSettings(rewrite_all=True)
ROWS = [{"id": 1, "amount": 1.5, "name": "a"}, {"id": 2, "amount": None, "name": "b"}]


def project_in(folder: Path, **options: Any) -> Project:
    """A project with one table that programs fill."""
    table = {"source": {"type": "python"}, "key": ["id"], **options}
    files = {"source": {"path": "landing/*.jsonl", "format": "debezium-json"}, "key": ["id"]}
    log = {"source": {"type": "python"}, "identity": "full"}
    folder.mkdir(parents=True, exist_ok=True)
    tables = {NAME: table, "shop.products": files, "shop.log": log}
    (folder / "nevermore.yaml").write_text(yaml.safe_dump({"tables": tables}))
    return open_project(folder)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return project_in(tmp_path)


def rows_of(project: Project, *order: str) -> list[dict[str, Any]]:
    """The rows as the reference reads them, which must be those of a scan."""
    table = find_table(open_catalog(project.config), NAME)
    assert table is not None
    by = [(column, "ascending") for column in order or ("id",)]
    found = live_rows(table.metadata_location.removeprefix("file://")).sort_by(by).to_pylist()
    assert project.scan(NAME).to_table().select(list(found[0])).sort_by(by).to_pylist() == found if found else True
    return list(found)


def snapshots(project: Project) -> list[Any]:
    """Current snapshot of each table."""
    catalog = open_catalog(project.config)
    tables = [find_table(catalog, name) for name in (NAME, "change_log.shop_orders")]
    return [None if table is None else table.metadata.current_snapshot_id for table in tables]


@pytest.mark.each(4)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_rows_is_upserted_and_deleted(project: Project, kind: str) -> None:
    def given_as(rows: list[dict[str, Any]]) -> Any:
        return KINDS[kind](pa.Table.from_pylist(rows))

    first = project.upsert(NAME, given_as(ROWS))
    assert (first.status, dict(first.events), first.log_commits, first.mirror_commits) == ("applied", {"u": 2}, 1, 1)
    project.upsert(NAME, given_as([{"id": 2, "amount": 2.5, "name": "B"}, {"id": 3, "amount": 3.5, "name": "c"}]))
    assert rows_of(project) == [ROWS[0], {"id": 2, "amount": 2.5, "name": "B"}, {"id": 3, "amount": 3.5, "name": "c"}]
    project.delete(NAME, given_as([{"id": 1}, {"id": 99}]))
    assert [row["id"] for row in rows_of(project)] == [2, 3]
    assert run_once(project.config, tables=[NAME]).found_nothing_new


MOMENT = dt.datetime(2026, 11, 28, 10, 30, 0, 123456)  # noqa: DTZ001  a type without a zone
TYPES: dict[str, tuple[pa.DataType, Any]] = {
    "int8": (pa.int8(), -5),
    "int16": (pa.int16(), 300),
    "uint8": (pa.uint8(), 255),
    "uint32": (pa.uint32(), 2**32 - 1),
    "float32": (pa.float32(), 0.5),
    "boolean": (pa.bool_(), True),
    "decimal": (pa.decimal128(10, 2), Decimal("12.34")),
    "date": (pa.date32(), dt.date(2026, 11, 28)),
    "date64": (pa.date64(), dt.date(2026, 11, 28)),
    "time": (pa.time64("us"), dt.time(1, 2, 3)),
    "time32": (pa.time32("s"), dt.time(1, 2, 3)),
    "seconds": (pa.timestamp("s"), MOMENT.replace(microsecond=0)),
    "micros": (pa.timestamp("us"), MOMENT),
    "nanos": (pa.timestamp("ns"), MOMENT),
    "zoned": (pa.timestamp("us", "Asia/Kolkata"), MOMENT.replace(tzinfo=dt.UTC)),
    "text": (pa.large_string(), "x" * 100),
    "text view": (pa.string_view(), "y" * 100),
    "words": (pa.dictionary(pa.int8(), pa.string()), "word"),
    "json": (pa.json_(), "{}"),
    "names like types": (
        pa.struct([("duration", pa.int32()), ("interval", pa.int32())]),
        {"duration": 1, "interval": 2},
    ),
    "binary": (pa.binary(), b"\0\xff"),
    "uuid": (pa.uuid(), UUID(int=5)),
    "list": (pa.list_(pa.int64()), [1, None, 3]),
    "large list": (pa.large_list(pa.string()), ["a"]),
    "struct": (pa.struct([("a", pa.int32()), ("b", pa.string())]), {"a": 1, "b": None}),
    "map": (pa.map_(pa.string(), pa.int64()), [("k", 1)]),
    "nothing": (pa.null(), None),
}


@pytest.mark.each(9)
@pytest.mark.parametrize("kind", TYPES)
def test_values_of_every_type_come_back(project: Project, kind: str) -> None:
    arrow_type, value = TYPES[kind]
    table = pa.table({"id": [1, 2], "v": pa.array([value, None], arrow_type)})
    project.upsert(NAME, table)
    found = [row.get("v") for row in project.scan(NAME).to_table().sort_by("id").to_pylist()]
    assert found == [value, None]
    project.upsert(NAME, table.slice(0, 1))
    assert project.scan(NAME).count() == 2
    for data, events in ((table, {}), (table.slice(1), {"d": 1}), (table, {"u": 1})):
        assert dict(project.replace(NAME, data, where="id > 0").events) == events
    assert [row.get("v") for row in project.scan(NAME).to_table().sort_by("id").to_pylist()] == [value, None]


REFUSED: dict[str, tuple[Any, str]] = {
    "another type": (
        [{"id": 3, "amount": "x", "name": "c"}],
        r"row 1 of the data does not fit: column amount: 'x' is no double",
    ),
    "a missing column": ([{"id": 3, "name": "c"}], "the data lacks amount; it has id, name"),
    "a key that is NULL": ([{"id": None, "amount": 1.0, "name": "c"}], "id is NULL in rows of the data"),
    "no key": ([{"amount": 1.0, "name": "c"}], "the data lacks id"),
    "a key twice": (
        [{"id": 3, "amount": 1.0, "name": "c"}] * 2,
        r"1 key more than once in the data, such as id = 3: keep one",
    ),
    "a duration": (
        pa.table({"id": [3], "amount": [1.0], "name": ["c"], "d": pa.array([1], pa.duration("s"))}),
        r"d \(duration",
    ),
    "an interval": (pa.table({"id": [3], "l": pa.nulls(1, pa.list_(pa.month_day_nano_interval()))}), r"no type for l"),
    **{
        f"no rows: {data!r}": (
            data,
            rf"^rows cannot be read from {type(data).__name__}\. Rows are a DataFrame of pandas, .*, a list of dicts",
        )
        for data in (
            5,
            None,
            "a.parquet",
            b"",
            {"id": 3},
            {"id": [3]},
            ({"id": 3},),
            {3},
            [3],
            [None],
            [{"id": 3}, 4],
            [[3]],
            [{3: 4}],
        )
    },
    "dates beyond Arrow's range": (
        pa.table({"id": [3], "amount": [1.0], "name": ["c"], "d": pa.array([2**31 - 1], pa.int32()).cast(pa.date32())}),
        "column d: 5881580-07-11 is no date within the years 1 to 9999",
    ),
    "times beyond Arrow's range": (
        pa.table({"id": [3], "amount": [1.0], "name": ["c"], "t": pa.array([2**62], pa.timestamp("us", "UTC"))}),
        "column t: 148108-07-06T14:00:27.387904 is no",
    ),
}


TEXT = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")])
DIGITS = pa.Array.from_buffers(pa.decimal128(38, 0), 1, [None, pa.py_buffer((2**127 - 1).to_bytes(16, "little"))])
REFUSED |= {
    f"{kind}: {name}": (data, message)
    for kind, name, data, message in (
        ("pandas", "mixed objects", pd.DataFrame({"id": [3, 4], "v": ["a", 1]}), "column v with type object"),
        ("pandas", "complex", pd.DataFrame({"id": [3], "v": [1j]}), "column v with type complex128"),
        (
            "pandas",
            "period",
            pd.DataFrame({"id": [3], "v": pd.period_range("2026", periods=1, freq="M")}),
            r"type for v \(",
        ),
        ("pandas", "interval", pd.DataFrame({"id": [3], "v": pd.interval_range(0, 1)}), r"no type for v \("),
        ("pandas", "column twice", pd.DataFrame([[3, 1, 2]], columns=["id", "v", "v"]), "Duplicate column names"),
        ("pandas", "index without a name", pd.DataFrame({"id": [3]}, index=pd.Index(["a"])), "name its index"),
        (
            "pandas",
            "index of a date",
            pd.DataFrame({"id": [3]}, index=pd.to_datetime(["2026-01-01"])),
            "name its index",
        ),
        ("pandas", "index like a column", pd.DataFrame({"id": [3]}, index=pd.Index([5], name="id")), "name its index"),
        (
            "pandas",
            "index of two columns",
            pd.DataFrame({"id": [3]}, index=pd.MultiIndex.from_tuples([(1, 2)], names=["v", None])),
            r"reset_index\(drop=True\)",
        ),
        ("pandas", "a series", pd.Series([3], index=["a"], name="id"), "rows cannot be read from Series"),
        ("Polars", "object", pl.DataFrame({"id": [3], "v": pl.Series([object()], dtype=pl.Object)}), r"v \(Object\)"),
        (
            "Polars",
            "128 bits",
            pl.DataFrame({"id": [3], "v": pl.Series([1], dtype=pl.Int128)}),
            "rows cannot be read from DataF",
        ),
        ("Polars", "a series", pl.Series("id", [3]), "rows cannot be read from Series"),
        (
            "Polars",
            "lazy",
            pl.LazyFrame({"id": [3]}),
            r"rows cannot be read from LazyFrame\. Rows are a DataFrame of pandas",
        ),
        (
            "DuckDB",
            "digits",
            partial(duckdb.sql, "select 3 as id, 170141183460469231731687303715884105727::hugeint as v"),
            "not valid: .*precision",
        ),
        (
            "DuckDB",
            "zone of a time",
            partial(duckdb.sql, "select 3 as id, '10:00:00+02'::timetz as v"),
            r"v \(TIME WITH TIME ZONE\)",
        ),
        ("DuckDB", "bits", partial(duckdb.sql, "select 3 as id, ['101'::bit] as v"), r"v \(BIT\[\]\)"),
        ("DuckDB", "large number", partial(duckdb.sql, "select 3 as id, 1::bignum as v"), r"v \("),
        (
            "DuckDB",
            "midnight",
            partial(duckdb.sql, "select 3 as id, '24:00:00'::time as v"),
            "not valid: .*acceptable range",
        ),
        ("Arrow", "text", pa.table({"id": [3], "v": TEXT}), "not valid: .*UTF8"),
        ("Arrow", "text in the key", pa.table({"id": TEXT}), "not valid: .*UTF8"),
        ("Arrow", "digits", pa.table({"id": [3], "v": DIGITS}), "not valid: .*precision"),
        ("Arrow", "runs", pa.table({"id": [3], "v": pa.RunEndEncodedArray.from_arrays([1], ["a"])}), r"v \(run_end"),
        ("Arrow", "empty structs", pa.table({"id": [3], "v": pa.array([{}], pa.struct([]))}), r"v \(struct<>\)"),
        (
            "Arrow",
            "no bytes",
            pa.table({"id": [3], "v": pa.array([b""], pa.binary(0))}),
            r"v \(fixed_size_binary\[0\]\)",
        ),
        (
            "Arrow",
            "column twice",
            pa.Table.from_arrays([pa.array([3])] * 2, names=["id", "id"]),
            "has id more than once",
        ),
        (
            "Arrow",
            "member twice",
            pa.table({"id": [3], "v": pa.array([[]], pa.list_(pa.struct([("a", "i4"), ("a", "i8")])))}),
            "has a more",
        ),
        ("dicts", "numbers", [1, 2], "rows cannot be read from list"),
        ("dicts", "a large number", [{"id": 2**70}], "rows cannot be read from list"),
        ("dicts", "mixed", [{"id": 3}, {"id": "a"}], "rows cannot be read from list"),
        ("dicts", "half a character", [{"id": 3, "v": "\ud800"}], "rows cannot be read from list"),
    )
}


@pytest.mark.each(12)
@pytest.mark.parametrize("why", REFUSED)
def test_rows_that_do_not_fit_are_refused_and_nothing_is_written(project: Project, why: str) -> None:
    project.upsert(NAME, ROWS)
    before = snapshots(project)
    made, message = REFUSED[why]
    data = made() if isinstance(made, partial) else made  # queries of DuckDB that live until the end count as leaks
    with pytest.raises(SourceError, match=message):
        project.upsert(NAME, data)
    assert snapshots(project) == before
    assert rows_of(project) == ROWS


def test_the_numbers_of_rows_in_pandas_are_no_column(project: Project) -> None:
    frame = pd.DataFrame({"id": [1, 2, 3], "v": [1, 2, 3]})
    empty = pd.DataFrame(columns=["id", "v"], index=pd.Index([], dtype=object))
    for part in (
        frame[frame.id > 1],
        frame.sort_values("id", ascending=False),
        frame.set_index("id"),
        frame.rename_axis("id"),
        empty,
    ):
        project.upsert(NAME, part)
    assert rows_of(project) == frame.to_dict("records")


@pytest.mark.parametrize("kind", [pl.Categorical(), pl.Enum(["a", "b"])])
def test_words_of_polars_are_text_at_every_depth(project: Project, kind: Any) -> None:
    words = pl.Series(["a", None, "b"], dtype=kind)
    frame = pl.DataFrame(
        {"id": [1, 2, 3], "v": words, "many": [[w] for w in "aba"], "one": pl.DataFrame({"w": words}).to_struct()}
    )
    for part in (frame, frame.cast({"many": pl.List(kind)})):
        project.upsert(NAME, part)
        found = project.scan(NAME).to_table().sort_by("id")
        assert found.schema.field("v").type == pa.string()
        assert found.to_pylist() == frame.to_dicts()
    project.delete(NAME, frame.head(1))
    by_word = frame.head(2).with_columns(id=pl.Series(["a", "b"], dtype=kind))
    open_project(project.config.path.parent).create("shop.words", pa.schema({"id": pa.string()}), key="id")
    words_of = open_project(project.config.path.parent)
    words_of.upsert("shop.words", by_word)
    words_of.delete("shop.words", by_word.tail(1))
    assert words_of.scan("shop.words").to_table()["id"].to_pylist() == ["a"]


def test_columns_that_only_later_dicts_have_are_not_lost(project: Project) -> None:
    project.upsert(NAME, [{"id": 1, "v": 1}, {"id": 2, "w": 2}])
    assert rows_of(project) == [{"id": 1, "v": 1, "w": None}, {"id": 2, "v": None, "w": 2}]


def test_the_last_row_of_a_key_may_win(project: Project) -> None:
    project.upsert(NAME, [{"id": 1, "v": n} for n in range(5)], keep="last")
    assert rows_of(project) == [{"id": 1, "v": 4}]


@pytest.mark.parametrize("name", ["shop.products", "shop.other"])
def test_only_tables_of_programs_take_rows(project: Project, name: str) -> None:
    with pytest.raises(ConfigError, match=r"is filled from .*landing.*source: \{type: python\}|no table|shop.other"):
        project.upsert(name, ROWS)


def test_a_table_without_a_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"add key: \[column, \.\.\.\]"):
        project_in(tmp_path, key=[]).upsert(NAME, ROWS)


def test_a_log_of_another_source_is_refused(project: Project) -> None:
    project.upsert(NAME, ROWS)
    with pytest.raises(PositionLostError, match="not a position of batches of programs"):
        BatchPosition.of(json.dumps({"source": "kafka", "version": 1}))


@pytest.mark.parametrize("op", ["upsert", "delete"])
def test_a_batch_is_applied_once(project: Project, op: str) -> None:
    project.upsert(NAME, ROWS, batch_id="0")
    write = getattr(project, op)
    assert write(NAME, ROWS[:1], batch_id="1").status == "applied"
    project.upsert(NAME, [{"id": 1, "amount": 7.0, "name": "seven"}], batch_id="2")
    before = snapshots(project)
    for batch_id in ("0", "1", "2"):
        assert open_project(project.config.path).upsert(NAME, ROWS, batch_id=batch_id).status == "nothing new"
    assert snapshots(project) == before
    assert rows_of(project)[0]["name"] == "seven"


def test_a_report_says_in_one_line_what_was_applied(project: Project) -> None:
    first, again = (str(project.upsert(NAME, ROWS, batch_id="1")) for _ in range(2))
    assert re.fullmatch(r"shop.orders: 2 updates; 2 rows and 0 deletes in 1 commit, snapshot \d+", first)
    assert again == "shop.orders: nothing new"


@pytest.mark.parametrize("name", [3, dt.date(2026, 1, 1), ["1"], b"1", UUID(int=0)], ids=repr)
@pytest.mark.parametrize("op", ["upsert", "delete"])
def test_the_name_of_a_batch_is_a_text(project: Project, op: str, name: Any) -> None:
    with pytest.raises(SourceError, match=rf"batch_id is {re.escape(repr(name))}: it must be a text, the name of the"):
        getattr(project, op)(NAME, ROWS, batch_id=name)
    assert snapshots(project) == [None, None]


def test_another_choice_of_rows_than_the_last_is_none(project: Project) -> None:
    with pytest.raises(SourceError, match="1 key more than once in the data, such as id = 1: keep one row of each"):
        project.upsert(NAME, [ROWS[0], ROWS[0]], keep="first")  # type: ignore[arg-type]


def test_an_empty_batch_is_remembered(project: Project) -> None:
    project.upsert(NAME, ROWS)
    assert project.upsert(NAME, pa.Table.from_pylist(ROWS).slice(0, 0), batch_id="empty").log_commits == 1
    assert project.upsert(NAME, ROWS, batch_id="empty").log_commits == 0
    assert rows_of(project) == ROWS


def test_the_names_of_the_last_batches_are_kept() -> None:
    position = BatchPosition()
    for number in range(MAX_KNOWN + 5):
        position = BatchPosition.of(position.after(str(number)))
    assert (position.number, len(position.known), position.known[0]) == (MAX_KNOWN + 5, MAX_KNOWN, "5")
    assert BatchPosition.of(position.after(None)).known == position.known


def test_columns_come_and_widen_unless_they_are_frozen(tmp_path: Path) -> None:
    project = project_in(tmp_path)
    project.upsert(NAME, pa.table({"id": [1], "n": pa.array([1], pa.int32())}))
    project.upsert(NAME, pa.table({"id": [2], "n": pa.array([2**40], pa.int64()), "more": ["x"]}))
    assert rows_of(project) == [{"id": 1, "n": 1, "more": None}, {"id": 2, "n": 2**40, "more": "x"}]
    frozen = project_in(tmp_path, schema_changes="freeze")
    with pytest.raises(SchemaConflictError, match="columns: other"):
        frozen.upsert(NAME, pa.table({"id": [3], "n": [3], "more": ["x"], "other": [1]}))


def test_options_of_the_table_hold(tmp_path: Path) -> None:
    options = {"key": ["id", "day"], "rename": {"key": "id"}, "exclude": ["secret"], "types": {"v": "decimal(10,2)"}}
    project = project_in(tmp_path, **options, partition_by=["day"], deletes="vectors", format_version=3)
    day = dt.date(2026, 11, 28)
    project.upsert(NAME, [{"key": n, "day": day, "secret": "s", "v": "1.50"} for n in range(3)])
    project.delete(NAME, pd.DataFrame({"key": [1], "day": [day], "more": ["is not read"]}))
    expected = [{"id": n, "day": day, "v": Decimal("1.50")} for n in (0, 2)]
    assert rows_of(project) == expected


def test_more_rows_than_memory_holds_are_one_commit(tmp_path: Path) -> None:
    project = project_in(tmp_path, memory_limit_bytes="1 MiB", commit_rows=1_000)
    ids = np.random.default_rng(1).permutation(60_000)
    table = pa.table({"id": ids, "text": [f"{n:0100d}" for n in ids.tolist()]})
    report = project.upsert(NAME, table.to_reader(max_chunksize=5_000), batch_id="large")
    assert (report.log_commits, report.mirror_commits, report.events["u"]) == (1, 1, 60_000)
    assert project.scan(NAME).count() == 60_000
    with pytest.raises(SourceError, match="2 keys more than once"):
        project.upsert(NAME, pa.concat_tables([table, table.slice(0, 2)]))


VALUES = st.one_of(st.none(), st.integers(0, 99))
STEP = st.one_of(
    st.tuples(
        st.sampled_from(["upsert", "interrupted"]), st.dictionaries(st.integers(0, 12), VALUES, min_size=1, max_size=6)
    ),
    st.tuples(st.just("replace"), st.dictionaries(st.integers(4, 9), VALUES, max_size=4)),
    st.tuples(st.just("replace values"), st.dictionaries(st.integers(0, 12), st.integers(50, 99), max_size=4)),
    st.tuples(st.just("delete"), st.sets(st.integers(0, 12), max_size=6)),
    st.tuples(st.just("append"), st.lists(st.integers(0, 3), max_size=4)),
    st.tuples(st.just("ingest"), st.dictionaries(st.integers(0, 5), VALUES, min_size=1, max_size=3)),
    st.tuples(st.sampled_from(["compact", "convert", "again"]), st.none()),
)
STEPS = st.lists(STEP, min_size=1, max_size=8)
OPTIONS = st.sampled_from(
    [
        {},
        {"deletes": "converted"},
        {"deletes": "vectors", "format_version": 3},
        {"soft_delete": True},
        {"partition_by": ["bucket(3, id)"], "memory_limit_bytes": "1 MiB"},
    ]
)
LONG = range(1, 11)


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in LONG)])
def test_any_sequence_leaves_the_rows_of_a_dict(part: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A thousand sequences in the long parts; NEVERMORE_SEQUENCES is their number in each part."""
    count = int(os.environ.get("NEVERMORE_SEQUENCES", "100" if part else "15"))

    @seed(part)
    @settings(max_examples=count, deadline=None, database=None)
    @given(steps=STEPS, options=OPTIONS)
    def check(steps: list[tuple[str, Any]], options: dict[str, Any]) -> None:
        check_sequence(steps, options, tmp_path_factory.mktemp("random"))

    check()


def rows_in(values: dict[int, Any]) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64()), "v": pa.array(values.values(), pa.int64())})


def check_sequence(  # noqa: C901  one case per step
    steps: list[tuple[str, Any]], options: dict[str, Any], folder: Path
) -> None:
    project = project_in(folder, **options)
    expected: dict[int, Any] = {-1: 0}
    others: dict[str, Any] = {"shop.log": Counter(), "shop.products": {}}
    project.upsert(NAME, [{"id": -1, "v": 0}], batch_id="first")
    for number, (what, rows) in enumerate(steps):
        if what == "upsert":
            expected |= rows
            project.upsert(NAME, rows_in(rows))
        elif what == "interrupted":  # between the change log and the mirror: the next writer, or an ingest, goes on
            expected |= rows
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Mirror, "catch_up", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    project.upsert(NAME, rows_in(rows))
            run_once(project.config, tables=[NAME]) if number % 2 else project.delete(NAME, rows_in({}))
        elif what in {"replace", "replace values"}:
            where = "id between 4 and 9" if what == "replace" else "v >= 50"
            kept = {k: v for k, v in expected.items() if (not 4 <= k <= 9 if what == "replace" else (v or 0) < 50)}
            before, expected = expected, kept | rows
            events = project.replace(NAME, rows_in(rows), where=where).events
            same = object()
            changed = [k for k in before.keys() | rows.keys() if before.get(k, same) != expected.get(k, same)]
            assert events.total() == len(changed), (before, rows)
        elif what == "delete":
            expected = {key: value for key, value in expected.items() if key not in rows}
            project.delete(NAME, pa.table({"id": pa.array(rows, pa.int64())}))
        elif what == "again":
            assert project.upsert(NAME, [{"id": -1, "v": 1}], batch_id="first").status == "nothing new"
        elif what == "append":
            others["shop.log"].update(rows)
            project.append("shop.log", pa.table({"id": pa.array(rows, pa.int64())}))
        elif what == "ingest":  # files and programs fill tables of one project
            others["shop.products"] |= rows
            (folder / "landing").mkdir(exist_ok=True)
            # with times, as in a real feed: a file with the bytes of an earlier one counts as delivered again
            events = [
                {"op": "u", "before": None, "after": {"id": key, "v": value}, "ts_ms": number}
                for key, value in rows.items()
            ]
            (folder / "landing" / f"{number}.jsonl").write_text("\n".join(map(json.dumps, events)) + "\n")
            assert run_once(project.config).exit_code == 0
        else:
            for name in {NAME, *others} & {*project.tables}:
                table = find_table(open_catalog(project.config), name)
                assert table is not None
                convert(table) if what == "convert" else compact(table, EVERYTHING)
        assert {r["id"]: r["v"] for r in rows_of(project) if not r.get("_deleted")} == expected
        for name in {*others} & {*project.tables}:
            found = project.scan(name).to_table().to_pylist()
            is_log = name == "shop.log"
            assert (Counter(r["id"] for r in found) if is_log else {r["id"]: r.get("v") for r in found}) == others[name]


def interrupted(mirror: Mirror, log: ChangeLog, appended: Appended | None, **options: Any) -> Iterator[Any]:
    """Instead of `catch_up`, where it would apply what was just logged."""
    if appended is not None:
        raise KeyboardInterrupt
    return CATCH_UP(mirror, log, appended, **options)


CATCH_UP = Mirror.catch_up


def test_rows_that_a_replacement_takes_from_outside_of_its_condition_are_updated(project: Project) -> None:
    day, other = dt.date(2026, 11, 28), dt.date(2026, 11, 27)
    rows = [{"id": n, "day": day if n < 3 else other, "place": {"city": "Oslo"}} for n in range(4)]
    project.upsert(NAME, rows)
    moved = [{**rows[3], "day": day}, rows[0]]
    report = project.replace(NAME, moved, where="day = date '2026-11-28' and place.city = 'Oslo'", batch_id="1")
    assert dict(report.events) == {"u": 1, "d": 2}
    assert rows_of(project) == [rows[0], moved[0]]
    again = project.replace(NAME, rows[:1], where=col("day") == day, batch_id="1")
    assert (again.status, rows_of(project)) == ("nothing new", [rows[0], moved[0]])
    log = project.table("change_log.shop_orders").scan().where("op = 'd'").to_table()
    assert sorted(row["id"] for row in log["before"].to_pylist()) == [1, 2]


@pytest.mark.parametrize("flag", [True, "gone", False])
def test_a_column_of_the_user_is_no_mark_of_deleted_rows(project: Project, flag: Any) -> None:
    rows = [{"id": n, "_deleted": flag} for n in range(3)]
    project.upsert(NAME, rows)
    assert project.replace(NAME, rows[:2], where="true").events == {"d": 1}
    project.delete(NAME, rows[:1])
    assert rows_of(project) == rows[1:2]


def test_the_mark_of_a_table_that_had_soft_delete_does_not_enter_its_log(tmp_path: Path) -> None:
    project_in(tmp_path, soft_delete=True).upsert(NAME, ROWS)
    project = project_in(tmp_path)
    resync(open_catalog(project.config), project.config, NAME)
    assert project.replace(NAME, ROWS[:1], where="true").events == {"d": 1}
    assert project.upsert(NAME, ROWS).error is None
    assert [row["id"] for row in rows_of(project)] == [1, 2]


NOT_REPLACED = {
    "outside": (
        [{"id": 9, "amount": 0.5, "name": "x"}],
        "amount > 1",
        SourceError,
        r"1 rows .* not match amount > 1, such as id = 9",
    ),
    "unknown": ([{"id": 9, "amount": None, "name": "x"}], "amount > 1", SourceError, "such as id = 9: leave"),
    "twice": ([{"id": 9, "amount": 2.0, "name": "x"}] * 2, "amount > 1", SourceError, "more than once"),
    "a column": (ROWS, "cost > 1", PredicateError, "no column .cost"),
    "no filter": (ROWS, "amount >", PredicateError, "amount"),
    "a failure": (ROWS, "1 / (id - 1) > 0", EvaluationError, "zero"),
}


@pytest.mark.each(2)
@pytest.mark.parametrize("why", NOT_REPLACED)
def test_a_replacement_that_is_refused_writes_nothing(project: Project, why: str) -> None:
    project.upsert(NAME, ROWS)
    before = snapshots(project)
    data, where, error, message = NOT_REPLACED[why]
    with pytest.raises(error, match=message):
        project.replace(NAME, data, where=where)
    assert snapshots(project) == before


@pytest.mark.slow
def test_a_replacement_larger_than_memory(tmp_path: Path) -> None:
    project = project_in(tmp_path, memory_limit_bytes="1 MiB")
    ids = np.random.default_rng(1).permutation(60_000)
    table = pa.table({"id": ids, "text": [f"{n:0100d}" for n in ids.tolist()]})
    assert project.replace(NAME, table, where="true").events == {"u": 60_000}
    changed = table.set_column(1, "text", pc.if_else(pc.equal(table["id"], 7), "seven", table["text"]))
    report = project.replace(NAME, changed.filter(pc.not_equal(table["id"], 8)), where="id >= 0")
    assert (dict(report.events), report.log_commits, report.mirror_commits) == ({"u": 1, "d": 1}, 1, 1)
    assert project.scan(NAME).count() == 59_999


def test_deletes_have_a_place_in_the_order(tmp_path: Path) -> None:
    project = project_in(tmp_path, order_by=["at"], rename={"at": "updated", "number": "id"})
    project.upsert(NAME, [{"number": id_, "at": 5, "v": id_} for id_ in range(4)])
    project.delete(NAME, [{"v": None, "at": 4, "number": 0}, {"v": None, "at": 5, "number": 1}, {"at": 6, "number": 2}])
    assert [row["id"] for row in rows_of(project)] == [0, 3]
    project.upsert(NAME, [{"number": 2, "at": 5, "v": 7}, {"number": 1, "at": 7, "v": 8}])
    assert rows_of(project) == [{"id": id_, "updated": at, "v": v} for id_, at, v in ((0, 5, 0), (1, 7, 8), (3, 5, 3))]
    for write in (project.upsert, project.delete):
        with pytest.raises(SourceError, match=r"the data lacks (updated, )?at; it has number, v"):
            write(NAME, [{"number": 3, "v": 1}])


def test_rows_are_appended_to_a_table_without_a_key(project: Project, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has a key, so rows are upserted: call upsert"):
        project.append(NAME, ROWS)
    keyless = project_in(tmp_path / "keyless", key=[], identity="full")
    for _ in range(2):
        keyless.append(NAME, [{"a": 1, "b": None}, {"a": 1, "b": None}], batch_id="1")
    keyless.append(NAME, [{"a": 2, "b": "x"}])
    assert rows_of(keyless, "a") == [{"a": 1, "b": None}] * 2 + [{"a": 2, "b": "x"}]


PROGRAM = """
import sys
from nevermore import open_project
project = open_project(sys.argv[1])
number, count = int(sys.argv[2]), int(sys.argv[3])
for n in range(count):
    rows = [{"id": number * 1000 + n, "v": n}, {"id": -1, "v": number}]
    assert project.upsert("shop.orders", rows, batch_id=f"{number}:{n}").status == "applied"
project.delete("shop.orders", [{"id": number * 1000}])
"""


def start(program: str, project: Project, number: int, count: int, **environment: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", program, str(project.config.path), str(number), str(count)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment})


@pytest.mark.slow
def test_processes_that_write_at_the_same_time_lose_nothing(project: Project) -> None:
    started = [start(PROGRAM, project, number, 4) for number in range(1, 6)]
    for process in started:
        assert process.communicate()[1] == ""
        assert process.returncode == 0
    assert [r["id"] for r in rows_of(project)] == [-1, *(n * 1000 + i for n in range(1, 6) for i in range(1, 4))]
    log = project.table("change_log.shop_orders").scan().to_table()
    assert sorted(log["ordinal"].to_pylist()) == list(range(1, 5 * (4 * 2 + 1) + 1))
    assert Counter(log["op"].to_pylist()) == {"u": 40, "d": 5}


@pytest.mark.slow
@pytest.mark.parametrize("point", ["after-files", "after-manifests", "after-commit", "before-acknowledgement"])
@pytest.mark.parametrize("time", [1, 2])
def test_a_batch_whose_writer_is_killed_is_applied_once_when_it_is_sent_again(
    project: Project, point: str, time: int
) -> None:
    project.upsert(NAME, [{"id": 5000, "v": 0}])
    program = PROGRAM.replace("    assert ", "    ").replace(' == "applied"', "")
    process = start(program, project, 5, 1, **{VARIABLE: f"{point}:{time}"})
    process.communicate()
    assert process.returncode in {EXIT_CODE, 0}
    again = start(program, project, 5, 1)
    assert again.communicate()[1] == ""
    assert rows_of(project) == [{"id": -1, "v": 5}]
    log = project.table("change_log.shop_orders").scan().to_table()
    assert log.filter(pc.equal(log["source_file"], "5:0")).num_rows == 2


def test_the_config_refuses_what_such_a_source_does_not_have(tmp_path: Path) -> None:
    (tmp_path / "nevermore.yaml").write_text("tables: {a.b: {source: {type: python, path: x}, key: [id]}}")
    with pytest.raises(ConfigError, match="path"):
        load(tmp_path / "nevermore.yaml")


@pytest.mark.each(2)
@pytest.mark.spark
@pytest.mark.parametrize("num_rows", [0, 60_000])
@pytest.mark.parametrize("options", [{}, {"format_version": 3, "deletes": "vectors"}, {"order_by": ["version"]}])
def test_tasks_of_spark_write_a_dataframe_in_its_order(
    spark: "SparkSession", tmp_path: Path, num_rows: int, options: dict[str, Any]
) -> None:
    project = project_in(tmp_path, memory_limit_bytes="64 MiB", **options)
    columns = [
        "id % 50000 as id",
        "id as version",
        "repeat(id, 20) as text",
        "array(id) as list",
        "timestamp_seconds(id) as at",
        "struct(id)",
        "rand() as chance",
    ]
    frame = spark.range(num_rows).repartition(7).sort("id").selectExpr(*columns)
    for status in ("applied" if num_rows else "nothing new", "nothing new"):
        assert project.upsert(NAME, frame, keep="last", batch_id="1").status == status
    assert len(project.table("change_log.shop_orders").metadata.snapshots) == 1
    if num_rows:
        rows = project.scan(NAME).to_table().sort_by("id").to_pylist()
        assert [row["id"] for row in rows] == [*range(50_000)]
        assert [row["list"][0] for row in rows] == [*range(50_000, 60_000), *range(10_000, 50_000)]
        assert rows[-1]["at"].timestamp() == 49_999
        log = project.table("change_log.shop_orders").scan().where("ordinal > 10000").to_table().column("after")
        assert Counter(row["chance"] for row in log.to_pylist()) == Counter(row["chance"] for row in rows)
        assert project.upsert(NAME, frame.where("version >= 50000"), batch_id="2").engine == "spark"
        project.delete(NAME, frame.where("id > 5"))
        assert project.scan(NAME).count() == 6
    assert not spark.sparkContext._jsc.getPersistentRDDs()


OF_SPARK = {
    "a key twice": ("id % 20000 as id", "1 as v", "10,000 keys more than once"),
    "a key is NULL": ("nullif(id, 29999) as id", "1 as v", "id is NULL"),
    "a value does not fit": (
        "id",
        "if(id = 29999, 'x', '7') as v",
        "row 1[0,]+ of partition 2 of the data does not fit",
    ),
    "no value": ("id", "1 as w", "the data lacks v"),
    "no type": ("id", "interval 1 day as v", "Iceberg has no type for v"),
    "it fails": ("id", "assert_true(id < 29999) as v", "the Spark job failed"),
}


@pytest.mark.each(6)
@pytest.mark.spark
@pytest.mark.parametrize("why", OF_SPARK)
def test_a_dataframe_of_spark_that_does_not_fit_is_refused(spark: "SparkSession", tmp_path: Path, why: str) -> None:
    key, value, message = OF_SPARK[why]
    project = project_in(tmp_path, types={"v": "int"})
    project.upsert(NAME, pa.table({"id": [-1], "v": pa.array([0], pa.int32())}))
    before = snapshots(project)
    with pytest.raises(SourceError, match=message):
        project.upsert(NAME, spark.range(0, 30_000, numPartitions=3).selectExpr(key, value))
    assert snapshots(project) == before
    if why != "it fails":  # what a failed checkpoint leaves goes with the next garbage collection of the driver
        assert not spark.sparkContext._jsc.getPersistentRDDs()


NAMES_OF_SPARK = {
    "dots": ["id", "a.b", "a.b.c", "."],
    "backticks": ["id", "a`b", "`", "`a`.`b`"],
    "letter case": ["id", "ID", "Id"],
    "numbers": ["id", "2", "1", "0"],
    "spaces, quotes and other letters": ["id", " ", "a b", "\"'", "名"],
    "a key with a dot": ["i.d", "i", "d"],
}


@pytest.mark.each(8)
@pytest.mark.spark
@pytest.mark.parametrize("why", NAMES_OF_SPARK)
def test_columns_of_a_dataframe_of_spark_have_any_names(spark: "SparkSession", tmp_path: Path, why: str) -> None:
    key, *names = NAMES_OF_SPARK[why]
    project = project_in(tmp_path, key=[key])
    columns = ["id", *(f"id * {place} as c{place}" for place in range(2, len(names) + 2))]
    frame = spark.range(0, 4, numPartitions=2).selectExpr(*columns).toDF(key, *names)
    project.upsert(NAME, frame)
    expected = [{key: id_} | {name: id_ * place for place, name in enumerate(names, 2)} for id_ in range(4)]
    assert rows_of(project, key) == expected
    project.delete(NAME, frame.limit(2))
    assert project.scan(NAME).count() == 2
    assert project.replace(NAME, frame, where="true").events == {"u": 2}
    assert rows_of(project, key) == expected


NO_TYPES_OF_SPARK = {
    "parse_json('1')": "variant",
    "st_geomfromwkb(X'0101000000000000000000F03F0000000000000040')": "geometry",
    "st_geogfromwkb(X'0101000000000000000000F03F0000000000000040')": "geography",
    "interval 1 month": "interval month",
    "interval '1-2' year to month": "interval year to month",
    "interval 1 day": "interval day",
    "interval '1 2' day to hour": "interval day to hour",
    "make_interval(1, 2)": "interval",
}
PLACES = {
    "a column": "{}",
    "an element": "array({})",
    "a member": "named_struct('a', 1, 'interval', {}, 'c', 2)",
    "a last member": "array(named_struct('a', 1, 'b', {}))",
    "a value": "map('k', {})",
}


@pytest.mark.each(2)
@pytest.mark.spark
@pytest.mark.parametrize("place", PLACES)
def test_types_of_spark_that_iceberg_lacks_are_refused_at_every_depth(
    spark: "SparkSession", tmp_path: Path, place: str
) -> None:
    project = project_in(tmp_path)
    for value, kind in NO_TYPES_OF_SPARK.items():
        frame = spark.range(1).selectExpr("id", f"{PLACES[place].format(value)} as v")
        with pytest.raises(SourceError, match=rf"Iceberg has no type for v \(.*{kind}"):
            project.upsert(NAME, frame)
    assert snapshots(project) == [None, None]


@pytest.mark.spark
def test_members_of_spark_may_be_called_like_types(spark: "SparkSession", tmp_path: Path) -> None:
    project = project_in(tmp_path)
    names = ["variant", "geometry(0)", "interval", "interval of x", "variant of x", "interval day"]
    members = ", ".join(f"'{name}', 1" for name in names)
    project.upsert(NAME, spark.range(1).selectExpr("id", f"named_struct({members}) as v", "1 as interval"))
    assert rows_of(project) == [{"id": 0, "v": dict.fromkeys(names, 1), "interval": 1}]


@pytest.mark.each(2)
@pytest.mark.spark
@pytest.mark.parametrize("form", ["Spark", "Arrow"])
@pytest.mark.parametrize(
    "key", ["named_struct('a', 1)", "array(1)", "map('a', 1)", "array(named_struct('a', 1))", "1.5D", "1.5F"]
)
def test_a_key_of_a_type_that_identifies_no_row_is_refused_in_a_sentence(
    spark: "SparkSession", tmp_path: Path, key: str, form: str
) -> None:
    project = project_in(tmp_path)
    frame = spark.range(2).selectExpr(f"{key} as id", "id as v")
    for write in (project.upsert, project.delete):
        with pytest.raises(SchemaConflictError, match=r"^a key column has type .* cannot be keys; choose another key"):
            write(NAME, frame if form == "Spark" else frame.toArrow())
    assert snapshots(project) == [None, None]


@pytest.mark.spark
@pytest.mark.parametrize("options", [{}, {"order_by": ["v"]}])
def test_few_rows_in_many_partitions_become_few_files(
    spark: "SparkSession", tmp_path: Path, options: dict[str, Any]
) -> None:
    project = project_in(tmp_path, **options)
    project.upsert(NAME, spark.range(0, 100, numPartitions=150).selectExpr("id", "id as v"))
    assert rows_of(project) == [{"id": id_, "v": id_} for id_ in range(100)]
    for name in (NAME, "change_log.shop_orders"):
        assert len(project.scan(name).plan().tasks) <= 2


@pytest.mark.spark
def test_a_dataframe_of_spark_is_appended_replaces_rows_and_needs_no_project(
    spark: "SparkSession", tmp_path: Path
) -> None:
    frame = spark.range(0, 100, numPartitions=3).selectExpr("id", "id * 2 as v")
    project = project_in(tmp_path)
    project.upsert(NAME, [{"id": 5, "v": 10}, {"id": 200, "v": 0}])
    assert project.replace(NAME, frame, where="true").events == {"u": 99, "d": 1}
    for _ in range(2):
        assert project.append("shop.log", frame).events == {"c": 100}
    assert project.scan("shop.log").count() == 200
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=str(tmp_path / "lake"))
    catalog.create_namespace("a")
    table = catalog.create_table("a.b", pa.schema([("id", pa.int64()), ("v", pa.int64())]))
    upsert(table, frame, key="id")
    assert table.scan().to_arrow().num_rows == 100


def test_files_that_this_process_does_not_find_are_no_part_of_a_commit(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="on another machine"):
        check_found([f"file://{tmp_path}/lost.parquet"])


STREAM = """
import os, sys
from pyspark.sql import SparkSession
from nevermore import open_project
folder = sys.argv[1]
project = open_project(folder)
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.readStream.schema("id long, v long").option("maxFilesPerTrigger", 1).json(f"{folder}/landing")
write = project.writer("shop.orders", keep="last")
left = int(sys.argv[2])

def batch(frame, number):
    global left
    write(frame, number)
    left -= 1
    if left == 0:
        os._exit(9)  # after the commit, before Spark notes that the batch is done

query = rows.writeStream.foreachBatch(batch).option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
query.start().awaitTermination()
try:
    write(spark.range(1), 0)
except Exception as error:
    assert "foreachBatch of a streaming query" in str(error), error
else:
    raise AssertionError("written outside of a stream")
"""


@pytest.mark.slow
@pytest.mark.spark
def test_a_stream_of_spark_that_is_killed_and_started_again_applies_every_batch_once(tmp_path: Path) -> None:
    project = project_in(tmp_path)
    (tmp_path / "landing").mkdir()
    for number in range(5):
        lines = [{"id": number, "v": 1}, {"id": -1, "v": number}]
        (tmp_path / "landing" / f"{number}.json").write_text("\n".join(map(json.dumps, lines)))
        os.utime(tmp_path / "landing" / f"{number}.json", (1_700_000_000 + number, 1_700_000_000 + number))
    for kill_after, code in ((2, 9), (2, 9), (0, 0)):
        done = subprocess.run([sys.executable, "-c", STREAM, str(tmp_path), str(kill_after)], check=False)
        assert done.returncode == code
    assert rows_of(project) == [{"id": -1, "v": 4}, *({"id": n, "v": 1} for n in range(5))]
    assert project.table("change_log.shop_orders").scan().count() == 10


ENDLESS = """
import sys
from pyspark.sql import SparkSession
from nevermore import open_project
folder = sys.argv[1]
write = open_project(folder).writer("shop.orders", keep="last")
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.readStream.schema("id long, v long").option("maxFilesPerTrigger", 1).json(f"{folder}/landing")

def batch(frame, number):
    print("batch", number, flush=True)
    write(frame, number)

query = rows.writeStream.foreachBatch(batch).option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
query.start().awaitTermination()
print("end", flush=True)
"""
KILLS = int(os.environ.get("NEVERMORE_KILLS", "20"))


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(3600)
def test_a_stream_of_spark_that_is_killed_at_any_moment_loses_and_doubles_nothing(tmp_path: Path) -> None:
    project, chosen = project_in(tmp_path), random.Random(7)
    (tmp_path / "landing").mkdir()
    num_files = 3 * KILLS + 20
    for number in range(num_files):
        lines = [{"id": number * 10 + n, "v": number} for n in range(3)] + [{"id": -1, "v": number}]
        path = tmp_path / "landing" / f"{number:04d}.json"
        path.write_text("\n".join(map(json.dumps, lines)))
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    kills, said = 0, ""
    while "end" not in said:
        command = [sys.executable, "-c", ENDLESS, str(tmp_path)]
        with (tmp_path / "errors").open("ab") as errors:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
            )
            assert process.stdout is not None
            said, begun = process.stdout.readline(), [time.monotonic()]
            for _ in range(chosen.randint(0, 2)):  # so that a slow machine gets on, too
                said += process.stdout.readline()
                begun.append(time.monotonic())
            if kills < KILLS and "end" not in said:
                time.sleep(chosen.uniform(0, begun[-1] - begun[-2] if len(begun) > 1 else 3))
                os.killpg(process.pid, signal.SIGKILL)  # Python and the JVM
                kills += 1
            said += process.communicate()[0]
            assert process.returncode in {0, -signal.SIGKILL}, (tmp_path / "errors").read_text()[-2000:]
    assert kills == KILLS
    ids = [number * 10 + n for number in range(num_files) for n in range(3)]
    expected = [{"id": -1, "v": num_files - 1}, *({"id": id_, "v": id_ // 10} for id_ in ids)]
    assert rows_of(project) == expected
    log = project.table("change_log.shop_orders").scan().to_table()
    logged = Counter((row["id"], row["v"]) for row in log["after"].to_pylist())
    assert logged == Counter([*((id_, id_ // 10) for id_ in ids), *((-1, number) for number in range(num_files))])


SCHEMA = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        ("v", pa.float32()),
        ("tags", pa.list_(pa.string())),
        ("day", pa.date32()),
    ]
)
CONFIGS = {
    "no tables": "tables: {}\n",
    "one line": "tables: {shop.a: {source: {type: python}, key: [id]}}",
    "lines": "# ours\ntables:   # mirrors\n  # the first\n  shop.a:\n    source: {type: python}\n    key: [id]\n",
    "lines of Windows": "tables:\r\n    shop.a:\r\n        source: {type: python}\r\n        key: [id]\r\n",
}


@pytest.mark.each(2)
@pytest.mark.parametrize("kind", CONFIGS)
def test_a_table_is_created_and_added_to_the_config(tmp_path: Path, kind: str) -> None:
    path, before = tmp_path / "nevermore.yaml", CONFIGS[kind]
    path.write_bytes(before.encode())
    project = open_project(tmp_path)
    for opened in (project, project, open_project(tmp_path)):
        opened.create(NAME, SCHEMA, key="id", partition_by=["day"])
    after = path.read_bytes().decode()
    entry = f"{NAME}: {{source: {{type: python}}, key: [id], partition_by: [day]}}"
    assert after.count(entry) == 1
    assert kind != "no tables" or after == f"tables: {{{entry}}}\n"
    assert set(before.splitlines()) <= {*after.splitlines(), "tables: {}", CONFIGS["one line"]}
    assert list(load(path).tables) == [NAME, *([] if kind == "no tables" else ["shop.a"])]
    assert project.tables == [NAME]
    assert project.scan(NAME).to_table().schema.names == SCHEMA.names
    assert project.table("change_log.shop_orders").scan().count() == 0
    project.upsert(NAME, [{"id": 1, "v": 0.5, "tags": ["a"], "day": None, "more": 1}])
    project.create(NAME, SCHEMA, key=["id"])  # the table has grown, so it still has these columns
    assert project.scan(NAME).count() == 1


def test_rows_are_appended_to_a_table_that_was_created_without_a_key(project: Project) -> None:
    project.create("shop.events", pa.schema([("id", pa.int64())]))
    project.append("shop.events", [{"id": 1}, {"id": 1}])
    assert project.scan("shop.events").count() == 2


NOT_CREATED: dict[str, tuple[str, Any, dict[str, Any], type[Exception], str]] = {
    "other columns": (
        NAME,
        pa.schema([("id", pa.int64()), ("amount", pa.string())]),
        {"key": "id"},
        SchemaConflictError,
        r"shop\.orders exists with other columns: amount string \(so far double\)",
    ),
    "another key": (NAME, SCHEMA, {"key": "v"}, ConfigError, r"shop\.orders is in .* with another key"),
    "another option": (NAME, SCHEMA, {"key": "id", "commit_rows": 9}, ConfigError, "with another commit_rows"),
    "a table of files": ("shop.products", SCHEMA, {"key": "id"}, ConfigError, "with another source"),
    "an unknown option": ("shop.x", SCHEMA, {"key": "id", "colour": 1}, ConfigError, "unknown key 'colour'"),
    "no table name": ("x", SCHEMA, {"key": "id"}, ConfigError, r"must be namespace\.table"),
    "a key that is no column": ("shop.x", SCHEMA, {"key": "no"}, SourceError, "lacks no; it has id, v"),
    "a key of floats": ("shop.x", SCHEMA, {"key": "v"}, SchemaConflictError, "'v' has type float"),
    "no type": ("shop.x", pa.schema([("id", pa.null())]), {"key": "id"}, SourceError, "id has no type"),
    "a duration": ("shop.x", pa.schema([("id", pa.duration("s"))]), {"key": "id"}, SourceError, "no type for id"),
}


@pytest.mark.each(3)
@pytest.mark.parametrize("why", NOT_CREATED)
def test_a_table_that_cannot_be_created_leaves_the_config_and_the_catalog(project: Project, why: str) -> None:
    project.upsert(NAME, ROWS)
    before = project.config.path.read_text(), snapshots(project), project.tables
    name, schema, options, error, message = NOT_CREATED[why]
    with pytest.raises(error, match=message):
        project.create(name, schema, **options)
    assert (project.config.path.read_text(), snapshots(project), project.tables) == before


def test_a_config_that_cannot_be_written_names_what_to_add(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    entry = r"add to its tables: shop\.x: \{source: \{type: python\}, key: \[id\]\}"
    with pytest.raises(
        ConfigError, match=rf"nevermore\.yaml cannot be changed: Permission denied: change the rights there.*; {entry}"
    ):
        project.create("shop.x", SCHEMA, key="id")


def test_a_config_is_replaced_at_once_and_a_link_to_it_stays(project: Project) -> None:
    path, elsewhere = project.config.path, project.config.path.parent / "elsewhere" / "shop.yaml"
    elsewhere.parent.mkdir()
    path.rename(elsewhere)
    elsewhere.chmod(0o640)
    path.symlink_to(elsewhere)
    before = elsewhere.read_text()
    with elsewhere.open() as opened:
        project.create("shop.x", SCHEMA, key="id")
        assert opened.read() == before  # a program that reads the old file never sees a part of the new one
    assert path.is_symlink()
    assert elsewhere.stat().st_mode & 0o777 == 0o640
    assert "shop.x" in load(path).tables
    assert [*elsewhere.parent.iterdir()] == [elsewhere]


CREATE = """
import sys
import pyarrow as pa
from nevermore import open_project
project, number = open_project(sys.argv[1]), int(sys.argv[2])
for name in (f"shop.t{number}", "shop.common"):
    project.create(name, pa.schema([("id", pa.int64())]), key="id")
    project.upsert(name, [{"id": number}])
"""


@pytest.mark.slow
def test_processes_that_create_tables_at_the_same_time_lose_none(project: Project) -> None:
    started = [start(CREATE, project, number, 0) for number in range(4)]
    for process in started:
        assert process.communicate()[1] == ""
    assert {f"shop.t{n}" for n in range(4)} < {*load(project.config.path).tables}
    assert open_project(project.config.path).scan("shop.common").count() == 4


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ibis fetches in a way that DuckDB has renamed
def test_polars_and_ibis_see_the_tables(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.upsert(NAME, ROWS)
    assert project.polars(NAME).filter(pl.col("id") > 1).select("name").collect().to_dicts() == [{"name": "b"}]
    orders = project.ibis().table("orders", database="shop")
    assert orders.filter(orders.id > 1).name.to_pyarrow().to_pylist() == ["b"]
    monkeypatch.setitem(sys.modules, "ibis", None)
    with pytest.raises(MissingPackageError, match=r"ibis requires ibis: pip install 'ibis-framework\[duckdb\]'"):
        project.ibis()


@pytest.mark.parametrize("name", ["Object", "BIT", "TIME WITH X"])
def test_names_and_values_that_read_as_types_are_none(name: str) -> None:
    from nevermore.pipelines.ingest.python_source import _reader

    members = pa.table({"id": [1], "v": pa.array([{name: 1}])})
    for data in (
        members,
        pl.DataFrame({"id": [1], "v": [{name: 1}]}),
        duckdb.sql("select 1 as id, 'BIT'::enum('BIT', 'Object') as v"),
    ):
        assert _reader(data).read_all().num_rows == 1
