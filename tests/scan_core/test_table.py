"""Opening tables: by file, folder, URI, catalog name and PyIceberg table."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from nevermore.scan_core.model.errors import MissingFileError, TableNotFoundError
from nevermore.scan_core.scan import open_table
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder

COLUMNS = [Column(1, "id", "long")]


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    table = TableBuilder(tmp_path / "my table", COLUMNS)
    table.commit(table.data({"id": [1, 2]}))
    return table


def test_a_table_opens_by_file_folder_and_uri(table: TableBuilder) -> None:
    folder = table.location
    for location in (
        table.metadata_path,
        str(table.metadata_path),
        folder,
        f"{folder}/",
        folder / "metadata",
        f"file:{folder}",
        f"file://{folder}",
        folder.as_uri(),
        table.metadata_path.as_uri(),
    ):
        opened = open_table(location)
        assert opened.schema.names == ("id",)
        assert opened.metadata_path.endswith(table.metadata_path.name)
        assert [e.snapshot_id for e in opened.history()] == [table.current_snapshot_id]


def test_a_moved_table_opens_by_relocation_the_longest_prefix_first(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", COLUMNS, written_location="s3://bucket/warehouse/t")
    table.commit(table.data({"id": [1]}))
    relocate = {"s3://bucket": "/nowhere", "s3://bucket/warehouse": str(tmp_path)}
    for location in (str(table.location), "s3a://bucket/warehouse/t"):
        opened = open_table(location, relocate=relocate)
        assert opened.location == "s3://bucket/warehouse/t"
        assert opened.scan().count() == 1
    assert open_table(table.location, relocate=list(relocate.items())).io == opened.io


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, dict[str, str]]]:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    catalog = load_catalog("shop", **properties)
    catalog.create_namespace("a")
    rows = pa.table({"id": pa.array([1, 2, 3], pa.int64())})
    catalog.create_table("a.items", schema=rows.schema).append(rows)
    yield catalog, properties
    catalog.close()


def test_a_catalog_table_opens_by_name_and_as_object(catalog: tuple[Any, dict[str, str]]) -> None:
    known, properties = catalog
    by_object = open_table(known.load_table("a.items"))
    assert by_object.scan().count() == 3
    by_name = open_table("shop.a.items", properties=properties)
    assert by_name.metadata_path == by_object.metadata_path
    assert by_name.io.properties["uri"] == properties["uri"]


def test_an_unknown_catalog_table_is_named(catalog: tuple[Any, dict[str, str]]) -> None:
    _, properties = catalog
    with pytest.raises(TableNotFoundError, match=r"catalog 'shop' has no table 'a\.item'"):
        open_table("shop.a.item", properties=properties)
    with pytest.raises(TableNotFoundError, match="cannot open a catalog 'nowhere'"):
        open_table("nowhere.a.items")


def test_files_of_a_moved_table_tell_how_to_relocate_it(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", COLUMNS, written_location="hdfs://nn/wh/t")
    table.commit(table.data({"id": [1]}))
    with pytest.raises(MissingFileError) as caught:
        open_table(tmp_path / "t").scan().count()
    assert f"--relocate 'hdfs://nn/wh/t={tmp_path}/t'" in str(caught.value)
    assert open_table(tmp_path / "t", relocate={"hdfs://nn/wh/t": f"{tmp_path}/t"}).scan().count() == 1


def test_a_file_that_is_gone_from_where_the_table_lies_gets_a_general_hint(table: TableBuilder) -> None:
    data = table.data({"id": [1]})
    table.commit(data)
    data.local.unlink()
    with pytest.raises(MissingFileError, match="--relocate OLD=NEW"):
        open_table(table.location).scan().to_table()


@pytest.mark.parametrize("location", ["s3://bucket/x/../t", "s3://bucket/t\0", "", "."])
def test_an_odd_location_in_the_metadata_hinders_nobody(tmp_path: Path, location: str) -> None:
    table = TableBuilder(tmp_path / "t", COLUMNS, written_location="s3://bucket/t")
    table.commit(table.data({"id": [1]}))
    table.edit(lambda document: document.update(location=location))
    assert open_table(tmp_path / "t", relocate={"s3://bucket": str(tmp_path)}).scan().count() == 1


def test_relocation_to_a_uri_as_uris_are_printed(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    table = TableBuilder(folder, COLUMNS, written_location="s3a://bucket/t")
    table.commit(table.data({"id": [1]}))
    assert open_table(folder, relocate={"s3://bucket/t": folder.as_uri()}).scan().count() == 1


def test_a_folder_of_tables_names_them(tmp_path: Path) -> None:
    for name in ("orders", "customers"):
        TableBuilder(tmp_path / "shop" / name, COLUMNS)
    (tmp_path / "shop" / "expected.json").write_text('{"orders": []}')
    with pytest.raises(TableNotFoundError, match="the tables in it are customers, orders: name one of them"):
        open_table(tmp_path / "shop")


@pytest.mark.parametrize("location", ["", "/nowhere", "nowhere/at/all", "v1.metadata.json", 5, None])
def test_nothing_there_is_a_table_not_found(location: Any) -> None:
    with pytest.raises(TableNotFoundError):
        open_table(location)


def test_the_catalog_library_is_not_loaded_for_a_local_table(table: TableBuilder) -> None:
    code = (
        "import sys; from nevermore.scan_core.scan import open_table; "
        f"open_table({str(table.location)!r}).scan().plan(); "
        "print([m for m in ('pyiceberg', 'pandas', 'numba', 'fastavro', 'dagster') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
