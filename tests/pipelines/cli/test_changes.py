import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder

Run = Callable[..., tuple[int, str, str]]
COLUMNS = [Column(1, "id", "long"), Column(2, "name", "string")]


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    """Snapshots 1001 to 1003: two rows, one updated, one added."""
    table = TableBuilder(tmp_path / "t", COLUMNS)
    table.commit(table.data({"id": [1, 2], "name": ["a", "b"]}))
    delete = table.equality_delete({"id": [2]}, ids=[1], columns=COLUMNS[:1])
    table.commit(delete, table.data({"id": [2], "name": ["B"]}))
    table.commit(table.data({"id": [3], "name": ["c"]}))
    return table


def test_changes_are_written_in_the_formats_of_scan(run: Run, table: TableBuilder, tmp_path: Path) -> None:
    code, lines, _ = run("changes", table.location, "--from", 1001, "--format", "jsonl")
    rows = [json.loads(line) for line in lines.splitlines()]
    assert code == 0
    assert rows == [
        {"_change_type": "delete", "id": 2, "name": "b"},
        {"_change_type": "insert", "id": 2, "name": "B"},
        {"_change_type": "insert", "id": 3, "name": "c"},
    ]
    assert run("changes", table.location, "--from", 1001, "--json")[1] == lines
    found = csv.DictReader(io.StringIO(run("changes", table.location, "--from", 1001, "--format", "csv")[1]))
    assert [row["_change_type"] for row in found] == ["delete", "insert", "insert"]
    printed = run("changes", table.location, "--from", 1001)[1]
    assert "insert" in printed
    assert "3 rows" in printed


def test_range_columns_filter_and_limit(run: Run, table: TableBuilder) -> None:
    def ids(*options: object) -> list[int]:
        code, lines, errors = run("changes", table.location, *options, "--columns", "id", "--json")
        assert code == 0, errors
        return [json.loads(line)["id"] for line in lines.splitlines()]

    assert ids("--to", 1001) == [1, 2]
    assert ids("--from", 1002, "--to", 1003) == ids("--from", 1002) == [3]
    assert ids("--from", 1001, "--where", "id = 2") == [2, 2]
    assert ids("--from", 1001, "--limit", 1) == [2]
    assert ids("--from", 1001, "--trust-rewrites") == [2, 2, 3]


def test_count_tells_both_kinds(run: Run, table: TableBuilder) -> None:
    assert run("changes", table.location, "--from", 1001, "--count")[1] == "-1 +2\n"
    counts, errors = run("changes", table.location, "--from", 1001, "--count", "--json", "--metrics")[1:]
    assert json.loads(counts) == {"deletes": 1, "inserts": 2}
    assert json.loads(errors)["data_files_read"] == 3


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--from", "7"], 1, "no snapshot 7"),
        (["--from", "1002", "--to", "1001"], 1, "swap them"),
        (["--from", "1001", "--to", "1002", "--ref", "main"], 2, "--to and --ref are mutually exclusive"),
        (["--from", "1001", "--columns", "nam"], 2, "name"),
        (["--from", "1001", "--where", "_pos = 1"], 2, "_pos"),
    ],
)
def test_bad_requests_end_with_one_clear_message(
    run: Run, table: TableBuilder, options: list[str], code: int, message: str
) -> None:
    found, output, errors = run("changes", table.location, *options)
    assert (found, output) == (code, "")
    assert message in errors
    assert "Traceback" not in errors
