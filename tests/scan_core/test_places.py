"""What the paths in a table's metadata may reach: its own folder, and what a caller or a catalog has named."""

import json
import os
import re
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from nevermore import scan_core
from nevermore.scan_core import MissingFileError
from nevermore.scan_core.io.location import is_within, parse_location
from nevermore.scan_core.model.errors import OutsideTableError
from nevermore.scan_core.spark.source import SourceOptions
from tests.support.avro_edit import rewrite_avro
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder

COLUMNS = [Column(1, "id", "long")]


def rows(table: Any, **arguments: Any) -> list[int]:
    return sorted(scan_core.open_table(table, **arguments).scan().to_table()["id"].to_pylist())


@pytest.fixture
def elsewhere(tmp_path: Path) -> tuple[TableBuilder, Path]:
    """A table with one data file in a folder outside of its own, and that folder."""
    table = TableBuilder(tmp_path / "tables" / "t", COLUMNS)
    inside, outside = table.data({"id": [1]}), table.data({"id": [2]})
    folder = tmp_path / "other"
    folder.mkdir()
    moved = folder / Path(outside.path).name
    shutil.move(outside.path, moved)
    outside.record["file_path"] = str(moved)
    table.commit(inside, outside)
    return table, folder


def test_a_file_outside_of_the_table_is_refused_unless_its_place_is_named(elsewhere: tuple[TableBuilder, Path]) -> None:
    table, folder = elsewhere
    with pytest.raises(OutsideTableError, match=f"--relocate {folder}={folder}"):
        rows(table.metadata_path)
    assert rows(table.metadata_path, relocate={str(folder): str(folder)}) == [1, 2]
    assert rows(table.metadata_path, relocate={"file:" + str(folder): "file:" + str(folder)}) == [1, 2]


def test_a_table_that_says_it_lies_elsewhere_reaches_nothing_there(elsewhere: tuple[TableBuilder, Path]) -> None:
    table, folder = elsewhere
    table.edit(lambda document: document.update(location="/"))
    with pytest.raises(OutsideTableError):
        rows(table.metadata_path)
    table.edit(lambda document: document.setdefault("properties", {}).update({"write.data.path": str(folder)}))
    with pytest.raises(OutsideTableError):
        rows(table.metadata_path)


def test_of_a_table_in_a_catalog_the_places_that_it_states_are_allowed(
    elsewhere: tuple[TableBuilder, Path], tmp_path: Path
) -> None:
    table, folder = elsewhere
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=str(tmp_path))
    catalog.create_namespace("n")
    with pytest.raises(OutsideTableError):
        rows(catalog.register_table("n.refused", str(table.metadata_path)))
    table.edit(lambda document: document.setdefault("properties", {}).update({"write.data.path": str(folder)}))
    registered = catalog.register_table("n.t", str(table.metadata_path))
    assert rows(registered) == [1, 2]
    carried = SourceOptions.of(scan_core.open_table(registered).scan())
    assert SourceOptions.parse(carried.as_text()).scan().to_table().num_rows == 2
    catalog.engine.dispose()


@pytest.mark.parametrize("place", ["manifest-list", "manifest", "data", "delete", "statistics"])
@pytest.mark.parametrize(
    "path",
    [
        "file:///etc/passwd",
        "/etc/passwd",
        "{table}/../../../../../../etc/passwd",
        "s3://bucket/x",
        "http://127.0.0.1:9/x",
    ],
)
def test_no_path_of_the_metadata_reaches_out(tmp_path: Path, place: str, path: str) -> None:
    path = path.format(table=tmp_path / "t")
    table = TableBuilder(tmp_path / "t", COLUMNS)
    data, delete = table.data({"id": [1, 2]}), table.equality_delete({"id": [1]}, ids=[1])
    if place in {"data", "delete"}:
        (data if place == "data" else delete).record["file_path"] = path
    table.commit(data)
    table.commit(delete)

    def change(document: dict[str, Any]) -> None:
        snapshot = document["snapshots"][-1]
        if place == "manifest-list":
            snapshot["manifest-list"] = path
        elif place == "statistics":
            entry = {"snapshot-id": snapshot["snapshot-id"], "statistics-path": path, "blob-metadata": []}
            document["statistics"] = [{**entry, "file-size-in-bytes": 100, "file-footer-size-in-bytes": 10}]

    table.edit(change)
    if place == "manifest":
        document = scan_core.open_table(table.metadata_path).metadata
        listed = document.snapshots[document.current_snapshot_id].manifest_list  # type: ignore[index]
        rewrite_avro(str(listed), lambda rows, _: [row.update(manifest_path=path) for row in rows])  # type: ignore[func-returns-value]
    if place == "statistics":
        scan_core.open_table(table.metadata_path).scan().where("id = 2").to_table()  # helps only: not opened
        return
    with pytest.raises(OutsideTableError, match="outside of the places"):
        rows(table.metadata_path)


@pytest.mark.parametrize("kind", ["fifo", "socket", "device", "loop", "folder"])
@pytest.mark.parametrize("place", ["metadata", "manifest-list", "data"])
def test_what_is_no_plain_file_is_refused_by_name_and_not_waited_for(tmp_path: Path, kind: str, place: str) -> None:
    table = TableBuilder(tmp_path / "t", COLUMNS)
    data = table.data({"id": [1]})
    table.commit(data)
    document = scan_core.open_table(table.metadata_path).metadata
    path = {
        "metadata": Path(table.metadata_path),
        "manifest-list": Path(str(document.snapshots[document.current_snapshot_id].manifest_list)),  # type: ignore[index]
        "data": Path(data.path),
    }[place]
    path.unlink()
    with socket.socket(socket.AF_UNIX) as server:
        match kind:
            case "fifo":
                os.mkfifo(path)
            case "socket":
                os.chdir(path.parent)  # names of sockets are short
                server.bind(path.name)
            case "device":
                path.symlink_to("/dev/zero")
            case "loop":
                path.symlink_to(path)
            case "folder":
                path.mkdir()
        os.chdir("/")
        with pytest.raises((MissingFileError, scan_core.TableNotFoundError), match=path.name):
            rows(str(path) if place == "metadata" else table.metadata_path)


@pytest.mark.parametrize(
    ("path", "folder", "inside"),
    [
        ("/t/data/x", "/t", True),
        ("file:/t/x", "file:///t/", True),
        ("/t", "/t", True),
        ("/t2/x", "/t", False),
        ("/t/../u/x", "/t", False),
        ("/t/a/../x", "/t", True),
        ("s3a://b/t/x", "s3://b/t", True),
        ("s3://c/t/x", "s3://b/t", False),
        ("s3://b/t/x", "s3://b", True),
        ("s3://b/x", "s3://b/", True),
        ("s3://c/x", "s3://b", False),
        ("s3://b/t/../u", "s3://b/t", False),
        ("/t/x", "s3://b/t", False),
        ("s3://b/t/x", "/t", False),
        ("hdfs:///t/x", "hdfs://name/t", True),
        ("abfss://c@a.dfs/t/x", "abfs://c@a.dfs/t", True),
        ("gcs://b/t/x", "gs://b/t", True),
        ("http://h/t/x", "/t", False),
    ],
)
def test_which_files_lie_in_a_folder(path: str, folder: str, *, inside: bool) -> None:
    assert is_within(parse_location(path), parse_location(folder)) == inside


def test_a_table_is_read_through_a_link_to_its_folder(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", COLUMNS)
    table.commit(table.data({"id": [1]}))
    (tmp_path / "link").symlink_to(tmp_path / "t")
    assert rows(str(tmp_path / "link")) == [1]


def _relative(value: Any, root: str, place: str) -> Any:
    match value:
        case dict():
            return {key: _relative(each, root, place) for key, each in value.items()}
        case list():
            return [_relative(each, root, place) for each in value]
        case str():
            return value.replace(root, place)
        case _:
            return value


@pytest.mark.parametrize("location", ["{root}", "elsewhere/t", "file:///elsewhere/t"])
@pytest.mark.parametrize("prefix", ["t", "data/warehouse/t"])
def test_the_hint_for_relative_paths_reads_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, location: str, prefix: str
) -> None:
    root = tmp_path / "t"
    table = TableBuilder(root, [Column(1, "id", "long")])
    table.commit(table.data({"id": [1, 2, 3]}))
    metadata = Path(table.metadata_path)
    place = f"{prefix}/"
    for path in root.rglob("*.avro"):
        rewrite_avro(str(path), lambda rows, _: rows.__setitem__(slice(None), _relative(rows, f"{root}/", place)))
    text = metadata.read_text().replace(f"{root}/", place)
    metadata.write_text(json.dumps(json.loads(text) | {"location": location.format(root=root)}))
    monkeypatch.chdir("/")
    with pytest.raises(scan_core.ScanError) as refused:
        scan_core.open_table(root).scan().count()
    old, new = re.search(r"--relocate '?(\S+?)=([^\s']+)", str(refused.value)).groups()  # type: ignore[union-attr]
    assert scan_core.open_table(root, relocate={old: new}).scan().count() == 3
