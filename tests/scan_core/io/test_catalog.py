"""Remote files through the catalog library's FileIO, with a file system of our own behind a scheme."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from pyarrow import fs
from pyiceberg.io.pyarrow import PyArrowFileIO

from nevermore.scan_core.io.catalog import filesystem, table_facts
from nevermore.scan_core.io.files import exists, file_size, is_folder, list_folder, open_input, read_bytes
from nevermore.scan_core.io.location import FileIOConfig, parse_location
from nevermore.scan_core.model.errors import MissingFileError
from nevermore.scan_core.scan import open_table
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder


class FolderFileIO(PyArrowFileIO):
    """Opens `store://bucket/x` below the folder that its properties name."""

    def _initialize_fs(self, scheme: str, netloc: str | None = None) -> fs.FileSystem:  # noqa: ARG002 - as PyIceberg calls it
        if scheme != "store":
            raise ValueError(f"Unrecognized filesystem type in URI: {scheme}")
        return fs.SubTreeFileSystem(self.properties["root"], fs.LocalFileSystem())


@pytest.fixture
def properties(tmp_path: Path) -> Mapping[str, str]:
    return {"py-io-impl": f"{__name__}.FolderFileIO", "root": str(tmp_path)}


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "pyiceberg.io._import_file_io", lambda impl, given: FolderFileIO(given) if "Folder" in impl else None
    )


def test_remote_files_are_opened_sized_and_listed(tmp_path: Path, properties: Mapping[str, str]) -> None:
    (tmp_path / "bucket" / "x").mkdir(parents=True)
    (tmp_path / "bucket" / "x" / "f").write_bytes(b"0123456789")
    io = FileIOConfig(properties=properties)
    assert read_bytes("store://bucket/x/f", io, 3, 4) == b"3456"
    assert file_size("store://bucket/x/f", io) == 10
    assert list_folder("store://bucket/x", io) == ["f"]
    assert list_folder("store://bucket/y", io) == []
    assert is_folder("store://bucket/x", io)
    assert exists("store://bucket/x/f", io)
    assert not exists("store://bucket/x/g", io)
    with open_input("store://bucket/x/f", io) as file:
        assert file.read() == b"0123456789"
    with pytest.raises(MissingFileError, match="store://bucket/x/g"):
        read_bytes("store://bucket/x/g", io)


def test_a_remote_table_is_found_and_read(tmp_path: Path, properties: Mapping[str, str]) -> None:
    table = TableBuilder(tmp_path / "bucket" / "t", [Column(1, "id", "long")], written_location="store://bucket/t")
    table.commit(table.data({"id": [1, 2, 3]}))
    table.commit(table.equality_delete({"id": [2]}, ids=[1]))
    opened = open_table("store://bucket/t", properties=properties)
    assert opened.scan().to_table().column("id").to_pylist() == [1, 3]


def test_a_file_system_is_opened_once(properties: Mapping[str, str]) -> None:
    one, inner = filesystem(parse_location("store://bucket/a"), properties)
    two, _ = filesystem(parse_location("store://bucket/b"), dict(properties))
    assert one is two
    assert inner == "bucket/a"


def test_an_unknown_scheme_names_itself(properties: Mapping[str, str]) -> None:
    with pytest.raises(MissingFileError, match="no file system for gopher://"):
        filesystem(parse_location("gopher://h/x"), properties)
    with pytest.raises(MissingFileError, match=r"no file system for http://; known are abfs://"):  # and no warning
        filesystem(parse_location("http://h/x"), {})


def test_what_is_no_table_has_no_facts() -> None:
    assert table_facts(object()) is None
    assert table_facts("x") is None
