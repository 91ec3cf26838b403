"""Every shared fixture table at every snapshot, read as a Spark DataFrame by both readers, has the expected rows."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from nevermore.scan_core.model.schema import ListType, MapType, StructType, Type
from nevermore.scan_core.spark.frames import dataframe, why_not_native
from tests.conformance.queries import Query, opened, queries
from tests.support.fixture_tables import fixture_tables, snapshots
from tests.support.rendering import differences, rendered
from tests.support.spark_session import SPARK_TEST

pytestmark = [*SPARK_TEST, pytest.mark.slow]

_NOT_IN_SPARK = frozenset({"time", "timestamp_ns", "timestamptz_ns"})


@pytest.mark.parametrize(("name", "snapshot"), snapshots())
def test_both_readers_give_the_expected_rows(shared_dir: Path, spark: SparkSession, name: str, snapshot: str) -> None:
    whole = opened(name).scan().as_of(int(snapshot))
    scan = whole.select(*(f.name for f in whole.schema.fields if _is_in_spark(f.type)))
    rows = scan.to_table()
    frame = dataframe(spark, scan, reader="python")
    assert rendered(_arrow(frame)) == rendered(rows)
    assert frame.count() == rows.num_rows
    if scan.arrow_schema == whole.arrow_schema:
        assert differences(_arrow(frame), fixture_tables()[name].facts["rows_by_snapshot"][snapshot]) == []
    if why_not_native(spark, scan) is None:
        native = dataframe(spark, scan, reader="native")
        assert rendered(_arrow(native)) == rendered(rows)
        assert native.count() == rows.num_rows
    for query in _one_predicate_per_role(name, snapshot, rows):
        asked = dataframe(spark, query.ask(scan), reader="python")
        assert rendered(_arrow(asked)) == rendered(query.answer(rows)), query.name


def test_some_tables_are_read_by_sparks_own_reader(spark: SparkSession, shared_dir: Path) -> None:
    found = {name for name in fixture_tables() if why_not_native(spark, opened(name).scan()) is None}
    assert len(found) >= 10


def _one_predicate_per_role(name: str, snapshot: str, rows: pa.Table) -> list[Query]:
    """On a key, a payload and a partition column."""
    equalities = [q for q in queries(name, snapshot, rows) if " = " in q.name]
    return list({q.name.partition(":")[0]: q for q in equalities}.values())


def _arrow(frame: DataFrame) -> pa.Table:
    return frame.toArrow()


def _is_in_spark(kind: Type) -> bool:
    match kind:
        case StructType(members):
            return all(_is_in_spark(m.type) for m in members)
        case ListType(element):
            return _is_in_spark(element.type)
        case MapType(key, value):
            return _is_in_spark(key.type) and _is_in_spark(value.type)
        case _:
            return kind.name not in _NOT_IN_SPARK
