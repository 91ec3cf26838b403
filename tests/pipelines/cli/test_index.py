import json
from collections.abc import Callable
from pathlib import Path

from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder

Run = Callable[..., tuple[int, str, str]]


def table_in(folder: Path) -> TableBuilder:
    table = TableBuilder(folder / "t", [Column(1, "id", "long"), Column(2, "x", "double"), Column(3, "city", "string")])
    table.commit(table.data({"id": list(range(30)), "x": [1.0] * 30, "city": ["a", "b", "c"] * 10}))
    return table


def test_index_tells_what_was_built_and_left_out(run: Run, tmp_path: Path) -> None:
    location = table_in(tmp_path).location
    code, output, _ = run("index", location, "--columns", "city,id", "--max-values", "5")
    assert code == 0
    assert "1 index built, 0 kept, 1 skipped" in output
    assert "more than 5 distinct values" in output
    code, output, _ = run("index", location, "--columns", "city", "--json")
    report = json.loads(output)
    assert (code, report["built"], report["kept"], report["path"]) == (0, 0, 1, None)
    assert run("scan", location, "--where", "city = 'a'", "--count")[:2] == (0, "10\n")
    assert "bitmap indexes: 1 of 1 data files" in run("explain", location, "--where", "city = 'a'")[1]


def test_mistakes_are_told_in_one_message(run: Run, tmp_path: Path) -> None:
    location = table_in(tmp_path).location
    assert run("index", location, "--columns", "city", "--snapshot", "7")[0] == 1
    code, _, errors = run("index", location, "--columns", "nothing")
    assert (code, "Traceback" in errors) == (2, False)


def test_sample_of_a_scan_is_repeatable(run: Run, tmp_path: Path) -> None:
    location = table_in(tmp_path).location
    first, second = (run("scan", location, "--sample", "0.5", "--seed", "3", "--format", "csv")[1] for _ in range(2))
    assert first == second
    assert 2 < len(first.splitlines()) < 29
    assert run("scan", location, "--sample", "7", "--count")[0] == 2


def test_an_index_of_nothing_is_refused(run: Run, tmp_path: Path) -> None:
    location = table_in(tmp_path).location
    code, _, errors = run("index", location)
    assert code == 2
    assert "choose --columns A,B, or add an index section" in errors
