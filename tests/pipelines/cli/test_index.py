import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from nevermore.pipelines.iceberg.commit import RowDelta
from nevermore.pipelines.iceberg.table_writer import write_rows
from tests.pipelines.iceberg_tables import catalog_in, new_table
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder

Run = Callable[..., tuple[int, str, str]]
CONFIG = """
catalog: {type: sql, uri: "%s", warehouse: warehouse}
tables: {}
"""


def table_in(folder: Path) -> TableBuilder:
    table = TableBuilder(folder / "t", [Column(1, "id", "long"), Column(2, "x", "double"), Column(3, "city", "string")])
    table.commit(table.data({"id": list(range(30)), "x": [1.0] * 30, "city": ["a", "b", "c"] * 10}))
    return table


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A catalog with the table shop.t of 30 rows."""
    catalog = catalog_in(tmp_path)
    table = new_table(catalog, {"id": "long", "city": "string"})
    delta = RowDelta(table)
    rows = pa.table({"id": list(range(30)), "city": ["a", "b", "c"] * 10})
    delta.commit(write_rows(rows, delta.target, delta.default_spec), {})
    path = tmp_path / "nevermore.yaml"
    path.write_text(CONFIG % catalog.properties["uri"])
    return path


def test_index_tells_what_was_built_and_left_out(run: Run, config: Path) -> None:
    code, output, errors = run("index", "shop.t", "--columns", "city,id", "--max-values", "5", "--config", config)
    assert code == 0, errors
    assert "1 index built, 0 kept, 1 skipped" in output
    assert "more than 5 distinct values" in output
    code, output, _ = run("index", "shop.t", "--columns", "city", "--json", "--config", config)
    report = json.loads(output)
    assert (code, report["built"], report["kept"], report["path"]) == (0, 0, 1, None)
    where = ("--where", "city = 'a'", "--config", config)
    assert run("scan", "shop.t", *where, "--count")[:2] == (0, "10\n")
    assert "bitmap indexes: 1 of 1 data files" in run("explain", "shop.t", *where)[1]


def test_mistakes_are_told_in_one_message(run: Run, config: Path) -> None:
    assert run("index", "shop.t", "--columns", "city", "--snapshot", "7", "--config", config)[0] == 1
    code, _, errors = run("index", "shop.t", "--columns", "nothing", "--config", config)
    assert (code, "Traceback" in errors) == (2, False)


@pytest.mark.parametrize("words", [["index", "--columns", "id"], ["compact"], ["convert"]])
def test_tables_without_a_catalog_are_not_changed(run: Run, tmp_path: Path, words: list[str]) -> None:
    code, _, errors = run(words[0], table_in(tmp_path).location, *words[1:])
    assert (code, "is a path, and only a catalog can make a commit" in errors) == (2, True), errors


def test_sample_of_a_scan_is_repeatable(run: Run, tmp_path: Path) -> None:
    location = table_in(tmp_path).location
    first, second = (run("scan", location, "--sample", "0.5", "--seed", "3", "--format", "csv")[1] for _ in range(2))
    assert first == second
    assert 2 < len(first.splitlines()) < 29
    assert run("scan", location, "--sample", "7", "--count")[0] == 2


def test_an_index_of_nothing_is_refused(run: Run, config: Path) -> None:
    code, _, errors = run("index", "shop.t", "--config", config)
    assert code == 2
    assert "choose --columns A,B, or add an index section" in errors
