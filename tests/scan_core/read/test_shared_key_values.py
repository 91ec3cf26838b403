"""Key columns that have one value in all delete keys, as the columns of a partition: not decoded where statistics prove it."""

from pathlib import Path
from typing import Any

import pytest

from nevermore import scan_core
from nevermore.scan_core import Scan, ScanOptions
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder

COLUMNS = (Column(1, "id", "long"), Column(2, "part", "int"), Column(3, "day", "date"))
OFF = ScanOptions.of(prune_deletes=False)
ROWS = 3_000


def table(path: Path, parts: list[int | None], deletes: dict[str, list[Any]], ids: list[int], **options: Any) -> Scan:
    built = TableBuilder(path / "t", COLUMNS)
    rows = {"id": list(range(ROWS)), "part": parts, "day": [i // 1_000 for i in range(ROWS)]}
    built.commit(built.data(rows, row_group_size=1_000, **options))
    built.commit(built.equality_delete(deletes, ids=ids))
    return scan_core.open_table(built.metadata_path).scan().with_options(ScanOptions(parallelism=1))


def live(scan: Scan) -> list[int]:
    return sorted(scan.to_table().column("id").to_pylist())


KEYS = {"id": [5, 1_001, 2_999], "part": [7, 7, 7], "day": [1, 1, 1]}
CASES: dict[str, tuple[list[int | None], list[int], set[int]]] = {
    "all rows have the value": ([7] * ROWS, [1, 2], {5, 1_001, 2_999}),
    "no row has it": ([8] * ROWS, [1, 2], set()),
    "some rows have it": ([7 if i % 2 else 8 for i in range(ROWS)], [1, 2], {5, 1_001, 2_999}),
    "some are NULL": ([None if i == 5 else 7 for i in range(ROWS)], [1, 2], {1_001, 2_999}),
    "all are NULL": ([None] * ROWS, [1, 2], set()),
    "the value comes first in the key": ([7] * ROWS, [2, 1], {5, 1_001, 2_999}),
    "two shared columns": ([7] * ROWS, [2, 3, 1], {1_001}),
    "only shared columns": ([7 if i < 10 else 8 for i in range(ROWS)], [2, 3], set()),
    "a single shared column": ([7 if i < 10 else 8 for i in range(ROWS)], [2], set(range(10))),
}


@pytest.mark.each(4)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("statistics", [True, False], ids=["statistics", "no-statistics"])
def test_rows_are_deleted_by_the_whole_key(case: str, statistics: bool, tmp_path: Path) -> None:  # noqa: FBT001
    parts, ids, dead = CASES[case]
    names = {1: "id", 2: "part", 3: "day"}
    deletes = {names[i]: KEYS[names[i]] for i in ids}
    scan = table(tmp_path, parts, deletes, ids, write_statistics=statistics)
    expected = sorted(set(range(ROWS)) - dead)
    assert live(scan) == live(scan.with_options(OFF)) == expected
    assert scan.count() == scan.with_options(OFF).count() == len(expected)
    assert live(scan.where("id < 1500 and part is not null")) == live(
        scan.with_options(OFF).where("id < 1500 and part is not null")
    )


def test_columns_whose_statistics_prove_the_value_are_not_read(tmp_path: Path) -> None:
    scan = table(tmp_path, [7] * ROWS, {"id": [5, 1_001, 2_999], "part": [7, 7, 7]}, [1, 2])
    plain = scan.with_options(OFF)
    assert scan.count() == plain.count() == ROWS - 3
    assert scan.metrics.bytes_read < plain.metrics.bytes_read


def test_deletes_of_several_files_that_share_no_value(tmp_path: Path) -> None:
    built = TableBuilder(tmp_path / "t", COLUMNS)
    rows = {"id": list(range(20)), "part": [i % 2 for i in range(20)], "day": [0] * 20}
    built.commit(built.data(rows))
    for part in (0, 1, 1):
        built.commit(built.equality_delete({"id": [0, 1, 2, 3], "part": [part] * 4}, ids=[1, 2]))
    built.commit(built.data({"id": [1, 2], "part": [1, 0], "day": [0, 0]}))
    built.commit(built.equality_delete({"id": [1, 9], "part": [1, 1]}, ids=[1, 2]))
    scan = scan_core.open_table(built.metadata_path).scan()
    assert live(scan) == live(scan.with_options(OFF)) == [2, 4, 5, 6, 7, 8, *range(10, 20)]
