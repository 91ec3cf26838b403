from collections.abc import Iterator
from pathlib import Path

import pytest

from nevermore import scan_core
from nevermore.scan_core import Scan, ScanOptions
from tests.support.bitmap_indexes import bitmaps_for_nothing, index_columns
from tests.support.iceberg_json import Column, list_of, struct
from tests.support.table_builder import TableBuilder

ROWS = {
    "id": list(range(12)),
    "city": ["a", "b", "a", None, "c", "b", "a", "ab", "a", "b", None, "c"],
    "n": [1, 2, None, 3, 1, 2, 3, 1, None, 2, 1, 0],
    "x": [float(i) for i in range(12)],
    "tags": [["u"], ["u", "v"], [], None, ["v", None], ["w"], ["u", "u"], [None], ["v"], ["w", "u"], [], ["v"]],
    "s": [{"m": i % 3, "k": "q"} if i % 4 else None for i in range(12)],
}
OFF = ScanOptions.of(use_bitmap_indexes=False)
UNPRUNED = ScanOptions.of(prune_files=False, prune_row_groups=False, prune_pages=False)


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    columns = [
        Column(1, "id", "long"),
        Column(2, "city", "string"),
        Column(3, "n", "int"),
        Column(4, "x", "double"),
        Column(5, "tags", list_of(6, "string")),
        Column(7, "s", struct(Column(8, "m", "int"), Column(9, "k", "string"))),
    ]
    table = TableBuilder(tmp_path / "t", columns)
    file = table.data(ROWS, row_group_size=5)
    table.commit(file)
    table.commit(table.position_delete([(file, 6)]))
    return table


@pytest.fixture(autouse=True)
def _free() -> Iterator[None]:
    with bitmaps_for_nothing():
        yield


def scan_of(table: TableBuilder, where: str) -> Scan:
    return scan_core.open_table(table.location).scan().where(where).select("id")


def ids(scan: Scan) -> list[int]:
    found: list[int] = scan.to_table()["id"].to_pylist()
    return found


def same_rows(table: TableBuilder, where: str) -> Scan:
    scan = scan_of(table, where)
    assert ids(scan) == ids(scan.with_options(OFF)), where
    assert scan.count() == len(ids(scan))
    return scan


@pytest.mark.each(5)
@pytest.mark.parametrize(
    "where",
    [
        "city = 'a'",
        "city <> 'a'",
        "not (city = 'a' or n = 2)",
        "city is null",
        "city is not null and n is null",
        "city in ('a', 'c')",
        "city like 'a%'",
        "upper(city) = 'AB'",
        "length(city) > 1",
        "n > 1",
        "n between 1 and 2 and city <=> null",
        "array_contains(tags, 'u')",
        "not array_contains(tags, 'u')",
        "array_contains(tags, 'nothing')",
        "tags is null",
        "s.m = 1",
        "s.m is null",
        "not (city = 'a' and not array_contains(tags, 'v'))",
        "city = 'b' and n = 2 and id in (1, 9)",
    ],
)
def test_indexed_conjuncts_are_answered_without_their_columns(table: TableBuilder, where: str) -> None:
    index_columns(table.location, ["id", "city", "n", "tags", "s.m"])
    scan = same_rows(table, where).with_options(UNPRUNED)
    assert scan.count() == same_rows(table, where).count()
    assert scan.metrics.bitmap_indexes_used > 0
    assert scan.metrics.bytes_read == 0
    assert scan.metrics.rows_in_files == scan.metrics.rows_out + scan.metrics.rows_removed_by_filter + (
        scan.metrics.rows_removed_by_position_deletes
    )
    assert scan.metrics.rows_removed_by_bitmaps == scan.metrics.rows_removed_by_filter


@pytest.mark.each(2)
@pytest.mark.parametrize(
    "where",
    [
        "city = 'a' or x > 8",
        "(city = 'a' and x > 3) or n = 2",
        "(city = 'a' or n = 2) and (city <> 'b' or x < 5)",
        "not (city = 'a' and x > 3)",
        "length(city) = n or city = 'a'",
        "case when city = 'a' then x > 3 else n = 1 end or n = 2",
        "(city = 'a') = (x > 3) or n = 2",
        "coalesce(n, 5) > 2 or x < 1",
        "size(tags) = 1 or city is null",
    ],
)
def test_a_conjunct_across_indexed_and_other_columns_keeps_the_same_rows(table: TableBuilder, where: str) -> None:
    index_columns(table.location, ["city", "n", "tags"])
    same_rows(table, where)


def test_a_failure_matters_only_where_the_bitmaps_leave_the_row_alive(table: TableBuilder) -> None:
    index_columns(table.location, ["city", "n"])
    assert ids(scan_of(table, "n <> 0 and 10 / n > 4")) == ids(
        scan_of(table, "n <> 0 and 10 / n > 4").with_options(OFF)
    )
    with pytest.raises(scan_core.EvaluationError):
        scan_of(table, "10 / n > 4").count()
    assert scan_of(table, "10 / n > 4 and city = 'a'").count() == 1


def test_explain_tells_what_indexes_answer(table: TableBuilder) -> None:
    index_columns(table.location, ["city", "n"])
    text = scan_of(table, "city = 'a' and (n = 2 or x > 3) and x < 100").explain()
    assert "bitmap indexes: 1 of 1 data files have one on a column of the filter" in text
    assert "rows found by bitmap before anything is decoded:\n      city = 'a'  (1 of 4 values, 33.3 % of rows)" in text
    assert "the rows left: matched on values:\n      n = 2 or x > 3.0D\n      x < 100.0D" in text
    assert "bitmap" not in scan_of(table, "x < 100").explain()


def test_unions_that_cost_more_than_the_values_are_left_to_values(
    table: TableBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    index_columns(table.location, ["city"])
    monkeypatch.setattr("nevermore.scan_core.bitmaps.answers.BITMAP_COST", 1e6)
    scan = same_rows(table, "city in ('a', 'b')")
    assert scan.metrics.bitmap_indexes_used == 0
    assert "not by bitmap, for values cost less: city in ('a', 'b') (2 of 4 values)" in scan.explain()


def test_conjunct_that_keeps_many_rows_is_left_to_values(table: TableBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nevermore.scan_core.bitmaps.answers.MAX_ANSWERED_SHARE", 0.1)
    index_columns(table.location, ["city", "id"])
    scan = same_rows(table, "city = 'a' and id = 2 and x < 100")
    text = scan.explain()
    assert text.index("id = 2  (1 of 12 values") < text.index("matched on values:\n      city = 'a'\n")
    assert scan.metrics.bitmap_indexes_used == 1
    assert same_rows(table, "city = 'a' or city = 'b'").metrics.rows_removed_by_bitmaps > 0


def test_most_values_are_found_as_those_that_are_not_the_others(
    table: TableBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nevermore.scan_core.bitmaps.answers.BITMAP_COST", 0.001)
    index_columns(table.location, ["id"])
    scan = same_rows(table, "id <> 3")
    assert "all but 1 of 12 values" in scan.explain()
    assert scan.metrics.bitmap_indexes_used == 1


def test_damaged_index_is_refused_counted_and_never_wrong(table: TableBuilder) -> None:
    report = index_columns(table.location, ["city"])
    path = Path(str(report.path))
    whole = path.read_bytes()
    expected = ids(scan_of(table, "city = 'a'").with_options(OFF))
    refused = 0
    for place in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[place] ^= 0x41
        path.write_bytes(bytes(damaged))
        scan = scan_of(table, "city = 'a'")
        assert ids(scan) == expected
        refused += scan.metrics.bitmap_indexes_refused
    assert refused > 10
    path.unlink()
    scan = scan_of(table, "city = 'a'")
    assert ids(scan) == expected
    assert scan.metrics.bitmap_indexes_refused == 1


def test_index_of_a_removed_data_file_is_of_no_use_and_new_files_are_read_by_value(table: TableBuilder) -> None:
    index_columns(table.location, ["city"])
    statistics = scan_core.open_table(table.location).metadata.statistics
    table.commit(table.data({"id": [50], "city": ["a"]}))
    table.edit(lambda document: document.update(statistics=list(statistics)))
    scan = same_rows(table, "city = 'a'")
    assert sorted(ids(scan)) == [0, 2, 8, 50]
    assert scan.metrics.bitmap_indexes_used == 1
    assert "1 data file without: matched on values alone" in scan.explain()


def test_column_that_was_promoted_keeps_its_index(table: TableBuilder) -> None:
    index_columns(table.location, ["n"])
    statistics = scan_core.open_table(table.location).metadata.statistics
    table.evolve(*(Column(c.id, c.name, "long") if c.name == "n" else c for c in table.columns))
    table.edit(lambda document: document.update(statistics=list(statistics)))
    scan = same_rows(table, "n = 2 or n > 4294967296")
    assert scan.metrics.bitmap_indexes_used == 1
