"""The filter language against Spark itself, in ANSI mode: values, NULLs and failures of each expression on each row."""

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from nevermore.scan_core.expr import kernels
from nevermore.scan_core.expr.bind import _Binder, bind
from nevermore.scan_core.expr.normalize import normalize
from nevermore.scan_core.expr.parse import parse
from nevermore.scan_core.expr.vectors import Frame, array_from
from nevermore.scan_core.model.schema import Schema, arrow_type, parse_schema
from tests.support import random_predicates
from tests.support.evaluation import evaluate
from tests.support.random_predicates import Sql, predicates, tables
from tests.support.spark_session import SPARK_TEST

pytestmark = [*SPARK_TEST, pytest.mark.slow, pytest.mark.timeout(1200)]

NAN, INF = float("nan"), float("inf")
SCHEMA: Schema = parse_schema(
    {
        "type": "struct",
        "fields": [
            {"id": 1, "name": "i", "type": "int"},
            {"id": 2, "name": "l", "type": "long"},
            {"id": 3, "name": "d", "type": "double"},
            {"id": 4, "name": "s", "type": "string"},
            {"id": 5, "name": "dt", "type": "date"},
            {"id": 6, "name": "ts", "type": "timestamp"},
            {"id": 7, "name": "tz", "type": "timestamptz"},
            {"id": 8, "name": "b", "type": "boolean"},
            {"id": 9, "name": "dec", "type": "decimal(10, 2)"},
            {"id": 10, "name": "f", "type": "float"},
            {
                "id": 13,
                "name": "st",
                "type": {
                    "type": "struct",
                    "fields": [{"id": 14, "name": "a", "type": "int"}, {"id": 15, "name": "x", "type": "string"}],
                },
            },
            {"id": 16, "name": "li", "type": {"type": "list", "element-id": 17, "element": "int"}},
            {
                "id": 18,
                "name": "m",
                "type": {"type": "map", "key-id": 19, "key": "string", "value-id": 20, "value": "int"},
            },
        ],
    }
)


def at(*parts: int) -> dt.datetime:
    return dt.datetime(*parts, tzinfo=dt.UTC)  # type: ignore[misc,arg-type]


def day(*parts: int) -> dt.date:
    return dt.date(*parts)


ROWS: list[tuple[Any, ...]] = [
    (1, 10, 1.5, "abc", day(2020, 1, 31), at(2020, 1, 1, 5, 6, 7), True, "1.50", 1.5, {"a": 1, "x": "q"}, [1, 2], [("k", 1)]),
    (2, None, NAN, "Äb%c", day(1969, 12, 31), None, False, "-2.25", NAN, None, None, None),
    (None, 3, None, None, None, at(1960, 1, 1), None, None, None, {"a": None, "x": "z"}, [], []),
    (-5, 2**62, -0.0, "", day(2024, 2, 29), at(2024, 2, 29, 23, 59, 59, 999_999), True, "99999999.99", 0.1, {"a": 4, "x": None}, [None, 5], [("z", None), ("k", 7)]),
    (2**31 - 1, -(2**63), INF, " 12 ", day(1, 1, 1), at(1969, 12, 31, 23, 59, 59, 1), False, "0.01", -INF, {"a": 0, "x": "İΣß"}, [7], [("", 0)]),
    (-(2**31), 2**63 - 1, 1e300, "1e3", day(9999, 12, 31), at(9999, 12, 31, 23, 59, 59, 999_999), True, "-99999999.99", 3.4e38, {"a": -1, "x": "a\nb"}, [0, None, 3], [("k", None)]),
    (0, 0, -2.5, "2020-02-30", day(2000, 12, 31), at(2000, 2, 29, 12), False, "0.00", -2.5, {"a": 7, "x": "true"}, [1], [("a", 1)]),
    (7, -7, 0.1, "2020-2-3", day(1582, 10, 4), at(1582, 10, 15, 1, 2, 3), True, "12.35", 0.2, {"a": 7, "x": "TRUE"}, [1], [("a", 1)]),
    (100, 99, 123456789.125, "+7", day(2021, 1, 1), at(2021, 1, 3), True, "-0.05", 16777216.0, {"a": 7, "x": "ΑΣ"}, [1], [("a", 1)]),
]  # fmt: skip
_TEXTS = """1|-1|+1| 1|1.5|1.|.|.5|1e3|1E-3|1e40|inf|-Infinity|NaN|1d|1f|0x10|1,000|99999999999999999999|2147483648
-2147483648|9223372036854775807|9223372036854775808|2020|2020-1|2020-01-01 |2020-01-01T|2020-01-01T10|2020-01-01 10:5
2020-01-01 10:05:06.1234567|2020-01-01 10:05:06 Z|2020-01-01 10:05:06+1:30|2020-01-01 10:05:06 GMT+1|2020-01-01 24:00:00
2020-13-01|0000-01-01|20200-01-01|-2020-01-01|202-01-01|2020-1-1 xyz|true|t|yes|off|n|--1|1L|9999-12-31 23:59:59.999999
2020-01-01 10:05:06-19:00|2020-01-01 10:05:06-01:02:03|12345678901234567890123456789|0.005|-0.005|12:30|T12:3:5.25|T12|12|24:00
2020-01-01 10:05Z|2020-01-01 10:05+01:00|2020-01-01 10:05:06+130|2020-01-01 10:05:06+0130|2020-01-01 10:05:06+013005
2020-01-01 10:05:06+01:3005|2020-01-01 10:05:06 UTC+1:3|2020-01-01 10:05:06.Z|2020-01-01 10:05:06 -7|0294247-01-01|12:30Z
\uff11\uff12|\u0663.\u0665|1\u0662e\u0661|\uff0b1|\U0001d7cf|\u0967\u0968-01-01|1.5e+\u0661|0e400|1e37|1e38|1e-50"""
TEXTS = [text for line in _TEXTS.split("\n") for text in line.split("|")]

EXPRESSIONS = """
i > 1.5 | i = 1.5 | d = double('nan') | d > 1 | f > d | f = 0.1 | cast(0.1 as float) = f | d = -0.0 | dec > 1.505 | dec = d
l > 1e3 | i < l | i + 1 | l * 2 | i - l | i / 2 | i / 0 | l div i | l % i | i % 3 | d % 2 | d / 0 | f * 2 | f + d | dec + 1
dec * dec | dec / 3 | dec / dec | dec / i | dec % 0.3 | dec + d | 1 / dec | dec * 1.234567 | -i | -l | -d | -dec
abs(i) | abs(dec) | floor(d) | ceil(d) | floor(dec) | ceil(dec) | cast(d as int) | cast(d as bigint) | cast(f as int)
cast(l as int) | cast(dec as int) | cast(dec as decimal(4,1)) | cast(d as decimal(10,2)) | cast(f as decimal(38,18))
cast(l as decimal(19,0)) | cast(l as decimal(10,0)) | cast(i as boolean) | cast(d as boolean) | cast(b as int)
cast(b as string) | cast(i as string) | cast(dec as string) | cast(dt as string) | cast(ts as string) | cast(tz as string)
try_cast(s as int) | cast(dt as timestamp) | cast(dt as timestamp_ntz) | cast(ts as date) | cast(tz as date)
cast(ts as timestamp) | cast(tz as timestamp_ntz) | cast(l as float) | cast(dec as double) | cast(s as binary)
year(dt) | month(dt) | day(dt) | quarter(dt) | dayofweek(dt) | weekday(dt) | dayofyear(dt) | weekofyear(dt) | year(ts)
hour(ts) | minute(tz) | second(ts) | hour(dt) | extract(doy from dt) | extract(dow from dt) | extract(week from dt)
date_trunc('year', ts) | date_trunc('quarter', tz) | date_trunc('week', tz) | date_trunc('day', tz) | date_trunc('hour', tz)
date_trunc('millisecond', tz) | date_trunc('month', dt) | trunc(dt, 'month') | trunc(dt, 'week') | date_add(dt, 5)
date_sub(dt, 40) | dt + 1 | add_months(dt, 1) | add_months(dt, -13) | last_day(dt) | datediff(dt, date '2020-01-01')
dt + interval 1 month | ts + interval 3 days | tz - interval 2 hours | ts > timestamp '2000-01-01' | tz > '2000-01-01'
date_add(dt, i) | date_sub(dt, i) | dt + i | dt - i | datediff(date_add(dt, i), dt) | add_months(dt, i) | dec % l
cast(dec as decimal(38,10)) % cast(l as decimal(20,0))
l * -3 <= i + cast(null as int) | l * 3 in (null) | l * 3 between null and null | cast(s as int) <=> cast(s as int)
case when cast(s as double) is null then st.x else st.x end
if(cast(s as int) > 1, s, s) | date_add(cast(s as date), null) | cast(s as int) + null | coalesce(1, cast(s as int))
dt > ts | ts = tz | dt = '2020-01-31' | lower(s) | upper(s) | lower(st.x) | upper(st.x) | length(s) | substr(s, 2)
substr(s, 2, 2) | substr(s, -2, 1) | substr(s, -5, 3) | substr(s, 0, 2) | left(s, 2)
right(s, 2) | trim(s) | ltrim(s) | rtrim(s) | reverse(s) | replace(s, 'b', 'XX') | concat(s, 'x', st.x)
endswith(s, 'c') | s like 'a%' | s like '_b%' | s not like 'a%' | st.x like 'a%b'
s ilike 'ä%' | s rlike '^.b' | st.x rlike 'a.b' | st.x rlike 'a$' | i in (1, 2, null) | i not in (1, null)
i in (1, 3000000000) | i in (1.0, 2.5) | d in (1.5, double('nan')) | i not between 1 and 100 | i <=> l | i is distinct from 1
b and null | b or null | not b | b = 'true' | b is true | coalesce(i, l, 7) | coalesce(i, 1/0) | nvl2(i, 1, 2) | nullif(i, 1)
if(b, i, l) | if(b, 1/0, 2) | case when i > 1 then s else 'z' end | case i when 1 then 'a' when 2 then 'b' else 'c' end
isnan(d) | isnan(f) | li[0] | li[1] | element_at(li, 1) | element_at(li, -1) | try_element_at(li, 3) | get(li, i) | m['k']
element_at(m, 'k') | size(li) | cardinality(m) | array_contains(li, 5) | map_contains_key(m, 'z') | st.x = 'q' | s = 5
i = '1' | dec = '1.50' | try_divide(i, 0) | try_add(i, 1) | try_multiply(l, 2) | try_mod(i, 0) | equal_null(i, l) | mod(i, 2)
round(d) | round(d, 2) | round(f, 1) | round(dec, 1) | round(dec) | round(i, 2)
date_part('year', dt) | date_part('doy', ts) | unix_date(dt) | unix_seconds(tz) | unix_millis(ts) | unix_micros(tz)
date_from_unix_date(i) | timestamp_seconds(i) | timestamp_millis(l) | timestamp_micros(l) | length(cast(s as binary)) | array_size(li)
ts + interval 1 month | tz - interval 13 months | tz + interval 1 year
"""
TEXT_CASTS = [
    f"cast(s as {t})" for t in ("int", "bigint", "double", "decimal(38,10)", "decimal(5,2)", "boolean", "date")
]
TEXT_CASTS += [f"cast(s as {t})" for t in ("timestamp", "timestamp_ntz")]
TEXT_CASTS += [text.replace("cast(", "try_cast(") for text in TEXT_CASTS]


def rows_of_values() -> pa.Table:
    names = ["i", "l", "d", "s", "dt", "ts", "b", "dec", "f", "st", "li", "m"]
    columns = dict(zip(names, map(list, zip(*ROWS, strict=True)), strict=True))
    columns["dec"] = [None if v is None else Decimal(v) for v in columns["dec"]]
    columns["tz"] = columns["ts"]
    columns["ts"] = [None if v is None else v.replace(tzinfo=None) for v in columns["ts"]]
    return pa.table({f.name: pa.array(columns[f.name], arrow_type(f.type)) for f in SCHEMA.fields})


def rows_of_texts() -> pa.Table:
    return pa.table(
        {f.name: pa.array(TEXTS) if f.name == "s" else pa.nulls(len(TEXTS), arrow_type(f.type)) for f in SCHEMA.fields}
    )


def show(spark: SparkSession, table: pa.Table, folder: Path) -> None:
    path = folder / "rows.parquet"
    numbered = table.append_column("row", pa.array(range(table.num_rows)))
    pq.write_table(numbered, path, coerce_timestamps="us")
    spark.read.parquet(str(path)).createOrReplaceTempView("rows")


def as_numbers(type_name: str, expression: str) -> str:
    """Dates and timestamps beyond Python's as numbers."""
    if type_name == "date":
        return f"unix_date({expression})"
    return f"unix_micros(cast(({expression}) as timestamp))" if type_name.startswith("timestamp") else expression


def comparable(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if value != value else value + 0.0  # noqa: PLR0124
    return bytes(value) if isinstance(value, bytearray) else value


def ours(expression: str, table: pa.Table) -> tuple[str, list[Any], list[bool]]:
    node = normalize(_Binder(SCHEMA, expression, case_sensitive=True).bind(parse(expression)))
    columns = {f.field_id: table.column(f.name).combine_chunks() for f in SCHEMA.fields}
    vector = kernels.vector_of(node, Frame(columns, table.num_rows))
    array = array_from(vector.values, table.num_rows)
    if pa.types.is_temporal(array.type):
        array = array.cast(pa.int32() if pa.types.is_date(array.type) else pa.int64())
    failed = [False] * table.num_rows if vector.failed is None else vector.failed.tolist()
    return str(node.type), [comparable(v) for v in array.to_pylist()], failed


def assert_agrees(spark: SparkSession, expression: str, table: pa.Table) -> None:
    type_name, values, failed = ours(expression, table)
    text = as_numbers(type_name, expression)
    good = [i for i in range(table.num_rows) if not failed[i]]
    found = spark.sql(f"select row, {text} as v from rows where row in ({', '.join(map(str, good))})").collect()
    assert {r["row"]: comparable(r["v"]) for r in found} == {i: values[i] for i in good}, expression
    for i in np.flatnonzero(failed)[:3]:
        with pytest.raises(PySparkException):
            spark.sql(f"select {text} as v from rows where row = {i}").collect()


def test_expressions_agree(ansi_spark: SparkSession, tmp_path: Path) -> None:
    table = rows_of_values()
    show(ansi_spark, table, tmp_path)
    for expression in [e.strip() for line in EXPRESSIONS.strip().split("\n") for e in line.split(" | ")]:
        if all(ours(expression, table)[2]):
            continue
        assert_agrees(ansi_spark, expression, table)


def test_casts_of_strings_agree(ansi_spark: SparkSession, tmp_path: Path) -> None:
    table = rows_of_texts()
    show(ansi_spark, table, tmp_path)
    for expression in TEXT_CASTS:
        assert_agrees(ansi_spark, expression, table)


@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
@given(table=tables(20), conditions=st.lists(predicates(6), min_size=10, max_size=30))
def test_random_filters_agree(
    ansi_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, table: pa.Table, conditions: list[Sql]
) -> None:
    show(ansi_spark, table, tmp_path_factory.mktemp("random"))
    listed = ", ".join(f"coalesce(({c.spark}), false) as c{i}" for i, c in enumerate(conditions))
    found = sorted(ansi_spark.sql(f"select row, {listed} from rows").collect(), key=lambda r: r["row"])
    columns = {f.field_id: table.column(f.name).combine_chunks() for f in random_predicates.SCHEMA.fields}
    for index, condition in enumerate(conditions):
        kept = np.ones(table.num_rows, dtype=np.bool_)
        for conjunct in bind(condition.spark, random_predicates.SCHEMA).conjuncts:
            kept &= evaluate(conjunct, columns, table.num_rows)
        assert kept.tolist() == [row[f"c{index}"] for row in found], condition.spark
