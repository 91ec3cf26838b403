import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def table(shared_dir: Path) -> tuple[str, ...]:
    """Arguments that name a table of three live rows and its relocation."""
    folder = shared_dir / "fixtures_java"
    return (str(folder / "date_key"), "--relocate", f"/warehouse/nevermore={folder}")


def test_every_format_holds_the_same_rows(run: Run, table: tuple[str, ...], tmp_path: Path) -> None:
    code, lines, _ = run("scan", *table, "--format", "jsonl")
    rows = [json.loads(line) for line in lines.splitlines()]
    assert code == 0
    assert sorted(row["n"] for row in rows) == [3, 6, 1001]

    assert [json.loads(line) for line in run("scan", *table, "--json")[1].splitlines()] == rows
    csv_rows = list(csv.DictReader(io.StringIO(run("scan", *table, "--format", "csv")[1])))
    assert csv_rows == [{"k": row["k"] or "", "n": str(row["n"])} for row in rows]
    for suffix, read in (("parquet", pq.read_table), ("arrow", lambda path: pa.ipc.open_stream(path).read_all())):
        path = tmp_path / f"rows.{suffix}"
        assert run("scan", *table, "--output", path)[0] == 0
        assert read(path)["n"].to_pylist() == [row["n"] for row in rows]
    printed = run("scan", *table)[1]
    assert all(str(row["n"]) in printed for row in rows)
    assert "3 rows" in printed


@pytest.mark.parametrize("words", [["--format", "csv"], ["--output", "rows.parquet"], ["--format", "table"]])
def test_json_beside_another_format_is_refused(
    run: Run, table: tuple[str, ...], tmp_path: Path, words: list[str]
) -> None:
    words = [str(tmp_path / word) if "." in word else word for word in words]
    code, output, errors = run("scan", *table, "--json", *words)
    assert (code, output, list(tmp_path.iterdir())) == (2, "", [])
    assert "--json writes JSON lines, but " in json.loads(errors.splitlines()[-1])["error"]


def test_count_columns_where_and_limit(run: Run, table: tuple[str, ...]) -> None:
    assert run("scan", *table, "--count")[:2] == (0, "3\n")
    assert json.loads(run("scan", *table, "--count", "--json")[1]) == {"count": 3}
    assert run("scan", *table, "--count", "--where", "k is null")[1] == "1\n"
    lines = run("scan", *table, "--columns", "n", "--limit", "2", "--format", "jsonl")[1].splitlines()
    assert [list(json.loads(line)) for line in lines] == [["n"], ["n"]]


@pytest.mark.parametrize("words", [["--count"], [], ["--limit", "100"], ["--format", "csv"], ["--output", "-"]])
def test_metrics_say_what_deletes_removed(run: Run, table: tuple[str, ...], words: list[str]) -> None:
    _, output, errors = run("scan", *table, *words, "--metrics")
    assert output
    metrics = json.loads(errors)
    assert metrics["rows_out"] == 3
    assert metrics["rows_removed_by_equality_deletes"] > 0


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--columns", "kk"], 2, "no column 'kk'"),
        (["--where", "n >"], 2, "^"),
        (["--where", "m = 1"], 2, "no column 'm'"),
        (["--snapshot", "1"], 1, "1"),
        (["--ref", "gone"], 1, "gone"),
        (["--as-of", "yesterday"], 2, "'yesterday'"),
        (["--as-of", "2001-01-01"], 1, "2001"),
        (["--snapshot", "1", "--ref", "main"], 2, "are mutually exclusive"),
        (["--limit", "-1"], 2, "-1"),
        (["--output", "no/such/folder/x.csv"], 2, "no/such/folder"),
        (["--relocate", "nothing"], 2, "OLD=NEW"),
        (["--formt", "csv"], 2, "--format"),
    ],
)
def test_bad_requests_end_with_one_clear_message(
    run: Run, table: tuple[str, ...], options: list[str], code: int, message: str
) -> None:
    found, output, errors = run("scan", *table, *options)
    assert found == code
    assert output == ""
    assert message in errors
    assert "Traceback" not in errors


def test_a_missing_table_is_named(run: Run, tmp_path: Path) -> None:
    code, _, errors = run("scan", tmp_path / "none")
    assert code == 1
    assert str(tmp_path / "none") in errors


def test_errors_are_objects_with_json(run: Run, tmp_path: Path) -> None:
    _, _, errors = run("scan", tmp_path / "none", "--json")
    assert "none" in json.loads(errors)["error"]


def test_a_failed_scan_leaves_no_output_file(run: Run, shared_dir: Path, tmp_path: Path) -> None:
    folder = shared_dir / "fixtures_java" / "date_key"
    output = tmp_path / "rows.csv"
    code, _, errors = run("scan", folder, "--relocate", "/warehouse/nevermore=/nowhere", "--output", output)
    assert code == 1
    assert "/nowhere" in errors
    assert not list(tmp_path.iterdir())


def test_explain_tells_files_and_deletes(run: Run, table: tuple[str, ...]) -> None:
    code, output, _ = run("explain", *table)
    assert code == 0
    assert "equality" in output
    document = json.loads(run("explain", *table, "--json")[1])
    assert document["metrics"]["data_files_planned"] > 0
