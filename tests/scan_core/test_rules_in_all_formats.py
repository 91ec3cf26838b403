"""Every rule of which rows are alive, end to end, with data and delete files in each of the three formats.

The engine, with and without its optimisations, and the reference agree on each table (`rows_of`). Details of a rule are
tested where it is implemented.
"""

import math
import re
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from nevermore import scan_core
from nevermore.checks.reference.expected_rows import live_rows
from nevermore.checks.reference.facts import RefusedError
from nevermore.scan_core import MalformedTableError
from tests.support.agreed_rows import rows_of, scanned_rows
from tests.support.built_files import BuiltFile
from tests.support.iceberg_json import Column, Partition, struct
from tests.support.table_builder import TableBuilder

ID, NAME = Column(1, "id", "long"), Column(2, "name", "string")
Build = Callable[..., "Formatted"]


class Formatted(TableBuilder):
    """A table whose data files are of one format and whose delete files of another."""

    data_format = delete_format = "parquet"

    def rows(self, **values: Any) -> BuiltFile:
        options = {k: values.pop(k) for k in ("partition", "spec_id", "columns", "field_ids") if k in values}
        return self.data(values, file_format=self.data_format, **options)

    def keys(self, *columns: Column, **values: Any) -> BuiltFile:
        options = {k: values.pop(k) for k in ("partition", "spec_id", "ids") if k in values}
        options.setdefault("ids", [c.id for c in columns])
        return self.equality_delete(values, columns=columns, file_format=self.delete_format, **options)

    def positions(self, *positions: tuple[BuiltFile | str, int], **options: Any) -> BuiltFile:
        return self.position_delete(positions, file_format=self.delete_format, **options)


@pytest.fixture(params=[("parquet", "orc"), ("orc", "avro"), ("avro", "parquet")], ids="-".join)
def build(request: pytest.FixtureRequest, tmp_path: Path) -> Build:
    def make(*columns: Column, **options: Any) -> Formatted:
        table = Formatted(tmp_path / "t", columns or (ID, NAME), **options)
        table.data_format, table.delete_format = request.param
        return table

    return make


def test_rule_01_equality_delete_hits_older_files_only(build: Build) -> None:
    table = build()
    table.commit(table.rows(id=[1, 2], name=["a", "b"]))
    table.commit(table.keys(ID, id=[1, 3]), table.rows(id=[1, 3], name=["new", "c"]))
    table.commit(table.rows(id=[2], name=["later"]))
    assert rows_of(table) == [(1, "new"), (2, "b"), (2, "later"), (3, "c")]


def test_rule_02_position_delete_hits_its_own_commit(build: Build) -> None:
    table = build()
    first, second = table.rows(id=[1, 2], name=["a", "b"]), table.rows(id=[3, 4], name=["c", "d"])
    table.commit(first)
    table.commit(second, table.positions((first, 0), (second, 1)))
    assert rows_of(table) == [(2, "b"), (3, "c")]


def test_rule_03_explicit_older_sequence_number_stays(build: Build) -> None:
    table = build()
    table.commit(table.rows(id=[1], name=["a"]))
    compacted = table.rows(id=[1, 2], name=["a", "b"])
    compacted.sequence_number = 1
    table.commit(table.keys(ID, id=[1]))
    table.commit(compacted)
    assert rows_of(table) == [(2, "b")]


def test_rule_04_scope_is_spec_and_partition_or_the_whole_table(build: Build) -> None:
    table = build(partitions=[Partition("name", 2)])
    for name in ("a", "b"):
        table.commit(table.rows(id=[1, 2, 3], name=[name] * 3, partition={"name": name}))
    unpartitioned = table.repartition()
    table.commit(table.keys(ID, id=[1], partition={"name": "a"}, spec_id=0))
    table.commit(table.keys(ID, id=[2], spec_id=unpartitioned))
    assert rows_of(table) == [(1, "b"), (3, "a"), (3, "b")]


def test_rule_05_the_null_partition_is_a_partition(build: Build) -> None:
    table = build(partitions=[Partition("name", 2)])
    table.commit(table.rows(id=[1, 2], name=[None, None], partition={"name": None}))
    table.commit(table.rows(id=[1, 2], name=["a", "a"], partition={"name": "a"}))
    table.commit(table.keys(ID, id=[1], partition={"name": None}))
    assert rows_of(table) == [(1, "a"), (2, "a"), (2, None)]


def test_rule_06_vector_replaces_position_deletes_but_not_equality_deletes(build: Build) -> None:
    table = build(version=3)
    data = table.rows(id=[1, 2, 3, 4], name=list("abcd"))
    table.commit(data)
    table.commit(table.positions((data, 0)))
    table.commit(table.deletion_vector(data, [1]), table.keys(ID, id=[3]))
    assert rows_of(table) == [(1, "a"), (4, "d")]


def test_rule_07_positions_match_by_path_after_relocation(build: Build, tmp_path: Path) -> None:
    table = build(written_location="hdfs://host:8020/warehouse/t")
    data = table.rows(id=[1, 2, 3], name=list("abc"))
    table.commit(data)
    table.commit(table.positions((data.path.replace("hdfs://host:8020", ""), 0), ("s3://other/x", 1), (data, 2)))
    assert rows_of(table, {"hdfs://host:8020/warehouse/t": str(tmp_path / "t")}) == [(2, "b")]


def test_rule_08_delete_that_meets_no_file_is_not_opened(build: Build) -> None:
    table = build()
    table.commit(table.keys(ID, id=[1], ids=[99]))  # an id that nobody knows, and older than every file
    table.commit(table.rows(id=[1], name=["a"]))
    assert rows_of(table) == [(1, "a")]


def test_rule_08b_query_prunes_no_delete_by_other_columns(build: Build) -> None:
    table = build()
    table.commit(table.rows(id=[1, 2], name=["a", "b"]))
    table.commit(table.keys(ID, NAME, id=[1], name=["stale"], ids=[1]))
    scan = scan_core.open_table(table.metadata_path).scan()
    assert scanned_rows(scan.where("name = 'a'")) == []
    assert rows_of(table) == [(2, "b")]


def test_rule_08c_covered_delete_keys_still_delete(build: Build) -> None:
    table = build()
    table.commit(table.rows(id=[1, 2], name=["a", "b"]))
    table.commit(table.keys(ID, id=[1]))
    table.commit(table.rows(id=[1, 2], name=["a", "b"]))
    table.commit(table.keys(ID, NAME, id=[1, 2], name=["a", "b"]))
    table.commit(table.rows(id=[1], name=["a"]))
    assert rows_of(table) == [(1, "a")]


def test_rule_09_null_equals_null_and_nothing_else(build: Build) -> None:
    table = build()
    table.commit(table.rows(id=[1, None, None, 2], name=["a", "b", None, None]))
    table.commit(table.keys(ID, NAME, id=[None, 1, 2], name=[None, None, "c"]))
    assert rows_of(table) == [(1, "a"), (2, None), (None, "b")]
    table.commit(table.keys(ID, id=[None]))
    assert rows_of(table) == [(1, "a"), (2, None)]


def test_rule_10_columns_are_found_by_id(build: Build) -> None:
    table = build(ID, Column(2, "a b.c", "long"))
    table.commit(table.data({"id": [1, 2], "a b.c": [2, 1]}, file_format=table.data_format))
    swapped = (Column(2, "id", "long"), Column(1, "other", "long"), Column(7, "extra", "string"))
    table.commit(table.keys(*swapped, id=[1], other=[2], extra=["x"], ids=[2, 1]))
    assert rows_of(table) == [(1, 2)]


def test_rule_11_key_inside_a_struct_is_null_where_the_struct_is(build: Build) -> None:
    table = build(ID, Column(2, "s", struct(Column(3, "x", "long"))))
    table.commit(table.rows(id=[1, 2, 3], s=[{"x": 1}, None, {"x": None}]))
    key = Column(2, "s", struct(Column(3, "x", "long")))
    table.commit(table.keys(key, s=[{"x": None}], ids=[3]))
    assert rows_of(table) == [(1, {"x": 1})]


@pytest.mark.parametrize("ids", [[], None, [9], [2]])
def test_rule_11_equality_ids_that_mean_nothing_are_refused(build: Build, ids: list[int] | None) -> None:
    table = build()
    table.commit(table.rows(id=[1], name=["a"]))
    table.commit(table.keys(ID, id=[1], ids=ids))
    with pytest.raises(MalformedTableError, match="equality"):
        scan_core.open_table(table.metadata_path).scan().to_table()


def test_rule_12_nan_is_nan_and_zeros_are_two(build: Build) -> None:
    table = build(ID, Column(2, "f", "double"))
    table.commit(table.rows(id=[1, 2, 3, 4], f=[math.nan, 0.0, -0.0, 1.0]))
    table.commit(table.keys(Column(2, "f", "double"), f=[math.nan, -0.0]))
    assert rows_of(table) == [(2, 0.0), (4, 1.0)]


def test_rule_13_promoted_keys_meet_in_the_wider_type(build: Build) -> None:
    table = build(Column(1, "id", "int"), NAME)
    table.commit(table.rows(id=[1, 2, 3], name=list("abc")))
    table.commit(table.keys(Column(1, "id", "int"), id=[1]))
    table.evolve(ID, NAME)
    table.commit(table.rows(id=[2**32 + 2], name=["wide"]))
    table.commit(table.keys(ID, id=[2, 2**32 + 3]))
    assert rows_of(table) == [(3, "c"), (2**32 + 2, "wide")]


def test_rule_14_renamed_dropped_and_added_keys(build: Build) -> None:
    table = build(ID, NAME, Column(3, "n", "int"))
    table.commit(table.rows(id=[1, 2, 3], name=list("abc"), n=[1, 2, 3]))
    table.commit(table.keys(ID, id=[1]), table.keys(Column(3, "n", "int"), n=[2]))
    table.evolve(Column(1, "key", "long"), Column(2, "id", "string"), Column(4, "n", "int"))
    assert rows_of(table) == [(3, "c", None)]
    table.commit(table.rows(key=[5], id=["e"], n=[5]))
    table.commit(table.keys(Column(4, "n", "int"), n=[None]))
    assert rows_of(table) == [(5, "e", 5)]


@pytest.mark.parametrize(("default", "key", "expected"), [
    (None, 2, [1, 3, 11, 12]),
    (None, None, [1, 2, 3]),
    (7, 7, [1, 2]),
    (7, 2, [1, 3, 11, 12]),
])  # fmt: skip
def test_rules_14_and_16_files_that_lack_a_dropped_key_have_its_default_or_null(
    build: Build, default: int | None, key: int | None, expected: list[int]
) -> None:
    """Iceberg Java reads the same rows."""
    n = Column(2, "n", "long", initial_default=default)
    table = build(ID, n, version=2 if default is None else 3)
    table.commit(table.rows(id=[1, 2, 3], n=[1, 2, 7]))
    table.evolve(ID)
    table.commit(table.rows(id=[11, 12]))
    table.commit(table.keys(n, n=[key]))
    assert sorted(row[0] for row in rows_of(table)) == expected


@pytest.mark.each(2)
@pytest.mark.parametrize("parent", ["column", "member", "missing struct"])
def test_rules_14_and_16_a_file_that_lacks_a_dropped_key_that_was_required_is_refused(
    build: Build, parent: str
) -> None:
    """Only if such a delete applies to it; a struct that is missing is NULL, and so are its members."""
    n, m = Column(2, "n", "long", required=True), Column(4, "m", "long")
    s = Column(3, "s", struct(m) if parent == "column" else struct(n, m))
    left = {"column": (ID, s), "member": (ID, Column(3, "s", struct(m))), "missing struct": (ID,)}[parent]
    table = build(ID, n, s) if parent == "column" else build(ID, s)
    members = {} if parent == "column" else {"n": 5}
    old = {"id": [1, 2], "s": [{"m": 1, **members}, {"m": 2, **members}]} | ({} if members else {"n": [5, 6]})
    table.commit(table.rows(**old))
    key = (n, {"n": [5]}) if parent == "column" else (s, {"s": [{"n": 5, "m": None}]})
    table.commit(table.keys(key[0], ids=[2], **key[1]))
    table.evolve(*left)
    table.commit(table.rows(id=[11], **({} if parent == "missing struct" else {"s": [{"m": 3}]})))
    alive = [2, 11] if parent == "column" else [11]
    assert sorted(row[0] for row in rows_of(table)) == alive
    table.commit(table.keys(key[0], ids=[2], **key[1]))
    if parent == "missing struct":
        assert sorted(row[0] for row in rows_of(table)) == alive
        return
    with pytest.raises(MalformedTableError, match=r"lacks the required column 'n' \(id 2\)"):
        scan_core.open_table(table.metadata_path).scan().count()
    with pytest.raises(RefusedError, match="is required, and a data file lacks it"):
        live_rows(table.metadata_path)


def test_rule_15_keys_are_read_privately(build: Build) -> None:
    table = build()
    table.commit(table.rows(id=[1, 2], name=["a", "b"]))
    table.commit(table.keys(ID, id=[1]))
    scan = scan_core.open_table(table.metadata_path).scan().select("name")
    assert scanned_rows(scan) == [("b",)]


def test_rule_16_missing_columns_are_partition_value_mapping_default_or_null(build: Build) -> None:
    mapping = '[{"field-id": 1, "names": ["ID"]}]'
    columns = (ID, NAME, Column(3, "d", "int", initial_default=7), Column(4, "u", "string"))
    properties = {"schema.name-mapping.default": mapping}
    table = build(*columns, version=3, partitions=[Partition("name", 2)], properties=properties)
    unnamed = table.rows(ID=[1, 2], partition={"name": "p"}, columns=[Column(1, "ID", "long")], field_ids=False)
    table.commit(unnamed)
    assert rows_of(table) == [(1, "p", 7, None), (2, "p", 7, None)]
    table.commit(table.keys(columns[2], ID, d=[7], id=[1], partition={"name": "p"}, ids=[3, 1]))
    assert rows_of(table) == [(2, "p", 7, None)]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("decimal(38,10)", [Decimal("1.0000000001"), Decimal("1.0000000002"), Decimal("-12345678901234567890.5")]),
        ("uuid", [UUID(int=1), UUID(int=2**127), UUID(int=2**128 - 1)]),
        ("fixed[3]", [b"abc", b"ab\0", b"\xff\xff\xff"]),
        ("binary", [b"", b"\0", b"\0\0"]),
        ("timestamp", [datetime(1, 1, 1), datetime(1969, 12, 31, 23, 59, 58, 1), datetime(9999, 12, 31)]),  # noqa: DTZ001
        ("date", [date(1, 1, 1), date(1969, 12, 31), date(9999, 12, 31)]),
    ],
)
def test_rule_17_values_are_compared_exactly(build: Build, kind: str, values: list[Any]) -> None:
    if kind == "timestamp" and "orc" in (build().data_format, build().delete_format):
        pytest.skip("the reference cannot read such timestamps of ORC; tests/scan_core/files/test_orc.py does")
    key = Column(2, "v", kind)
    table = build(ID, key)
    table.commit(table.rows(id=[0, 1, 2], v=values))
    table.commit(table.keys(key, v=values[1:2]))
    assert rows_of(table) == [(0, values[0]), (2, values[2])]


def test_rule_18_a_row_dies_if_any_delete_applies(build: Build) -> None:
    table = build()
    table.commit(table.rows(id=[1, 2, 3, 4], name=list("abcd")))
    table.commit(table.keys(ID, id=[1, 1]), table.keys(NAME, ID, name=["b"], id=[2]))
    table.commit(table.rows(id=[1, 2, 3], name=list("abc")))
    table.commit(table.keys(NAME, name=["c"]), table.keys(ID, id=[2]))
    assert rows_of(table) == [(1, "a"), (4, "d")]


def test_rule_19_counts_come_from_files(build: Build) -> None:
    table = build()
    data = table.rows(id=[1, 2, 3], name=list("abc"))
    data.record["record_count"] = 1
    table.commit(data)
    assert scan_core.open_table(table.metadata_path).scan().count() == 3
    table.commit(table.keys(ID, id=[2]))
    assert rows_of(table) == [(1, "a"), (3, "c")]


@pytest.mark.parametrize("bounds", ["absent", "cut"])
def test_rule_20_bounds_that_say_little_prune_nothing(build: Build, bounds: str) -> None:
    table = build()
    long = "abcdefghijklmnop"
    data = table.rows(id=[1, 2], name=[long + "1", long + "2"])
    table.commit(data)
    keys = table.keys(NAME, name=[long + "2"])
    cut = [{"key": 2, "value": long.encode()}]
    keys.record |= {
        "lower_bounds": None if bounds == "absent" else cut,
        "upper_bounds": None if bounds == "absent" else cut,
    }
    table.commit(keys)
    assert rows_of(table) == [(1, long + "1")]


def test_rule_21_rows_keep_their_positions_and_ids(build: Build) -> None:
    table = build(version=3)
    table.commit(table.rows(id=[1, 2, 3], name=list("abc")), table.rows(id=[4], name=["d"]))
    table.commit(table.keys(ID, id=[1]))
    scan = scan_core.open_table(table.metadata_path).scan()
    wanted = scan.select("id", "_pos", "_row_id", "_last_updated_sequence_number")
    assert scanned_rows(wanted) == [(2, 1, 1, 1), (3, 2, 2, 1), (4, 0, 3, 1)]


def test_rule_22_snapshots_read_in_their_own_schema(build: Build) -> None:
    table = build()
    first = table.commit(table.rows(id=[1, 2], name=["a", "b"]))
    table.evolve(Column(1, "key", "long"))
    table.ref("old", first, "tag")
    table.commit(table.keys(Column(1, "key", "long"), key=[1]))
    scan = scan_core.open_table(table.metadata_path).scan()
    assert scan.as_of_snapshot(first).to_table().column_names == ["id", "name"]
    assert scanned_rows(scan.at_ref("old")) == [(1, "a"), (2, "b")]
    assert rows_of(table) == [(2,)]


def test_rule_23_empty_files_and_files_of_dead_rows(build: Build) -> None:
    table = build()
    table.commit(table.rows(id=[], name=[]), table.rows(id=[1, 2], name=["a", "b"]), table.keys(ID, id=[]))
    table.commit(table.keys(ID, id=[1, 2]), table.keys(NAME, name=[]))
    assert rows_of(table) == []
    assert scan_core.open_table(table.metadata_path).scan().to_table().column_names == ["id", "name"]


def test_every_rule_has_a_test_named_after_it() -> None:
    named = {
        number
        for path in Path(__file__).parents[1].rglob("test_*.py")
        for name in re.findall(r"def test_rule((?:_(?:and_)?\d\d[a-z]?)+)", path.read_text(encoding="utf-8"))
        for number in re.findall(r"\d\d[a-z]?", name)
    }
    assert named >= {f"{n:02d}" for n in range(1, 24)} | {"08b", "08c"}
