import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from nevermore.pipelines.config.project import load
from nevermore.pipelines.iceberg.catalog import create_table, open_catalog
from nevermore.pipelines.iceberg.commit import RowDelta
from nevermore.pipelines.iceberg.schema_evolution import iceberg_fields
from nevermore.pipelines.iceberg.table_writer import write_rows
from tests.pipelines.project import Project
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder

Run = Callable[..., tuple[int, str, str]]
COLUMNS = [Column(1, "id", "long"), Column(2, "name", "string")]


def test_verify_by_name_of_the_config_and_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    project = Project(tmp_path)
    catalog = open_catalog(load(tmp_path / "nevermore.yaml"))
    rows = pa.table({"id": pa.array(range(20), pa.int64()), "name": ["n"] * 20})
    delta = RowDelta(create_table(catalog, "shop.products", iceberg_fields(rows.schema)))
    delta.commit(write_rows(rows, delta.target, delta.default_spec), {})
    monkeypatch.chdir(tmp_path)
    code, output, errors = run("verify", "shop.products", "--all-snapshots", "--json")
    assert (code, errors) == (0, "")
    found = json.loads(output)
    assert found["table"] == "shop.products"
    assert found["damage"] == []
    assert [f["kind"] for f in found["unprotected"]] == ["metadata", "manifest list", "manifest", "data file"]
    folder = Path(project.table("shop.products").location().removeprefix("file://"))
    victim = next((folder / "data").rglob("*.parquet"))
    data = bytearray(victim.read_bytes())
    data[len(data) // 3] ^= 4
    victim.write_bytes(data)
    code, output, _ = run("verify", folder, "shop.products")
    assert code == 1
    lines = output.splitlines()
    assert sum(line.startswith("DAMAGED") and victim.name in line for line in lines) >= 2
    assert "fault" in lines[-1]


def test_verify_of_metadata_that_was_cut_is_one_line(tmp_path: Path, run: Run) -> None:
    table = TableBuilder(tmp_path, COLUMNS)
    text = table.metadata_path.read_text()
    table.metadata_path.write_text(text[: len(text) // 2])
    code, output, errors = run("verify", table.metadata_path)
    assert (code, errors) == (1, "")
    assert output.startswith(f"DAMAGED  {table.metadata_path}: not a JSON document")


def test_verify_of_no_table_is_an_error(tmp_path: Path, run: Run) -> None:
    code, output, errors = run("verify", tmp_path / "nothing")
    assert code != 0
    assert output == ""
    assert "nothing" in errors
