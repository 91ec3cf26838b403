"""The manifests of a table's current snapshot."""

from typing import Any

from nevermore.scan_core.io.location import FileIOConfig
from nevermore.scan_core.metadata.manifest_list import ManifestFile, snapshot_manifests
from nevermore.scan_core.metadata.manifests import read_data_manifests, read_delete_manifests
from nevermore.scan_core.model.snapshot import DataFile, DeleteFile
from nevermore.scan_core.model.table_metadata import TableMetadata
from tests.support.iceberg_json import Column
from tests.support.plans import read
from tests.support.table_builder import TableBuilder

COLUMNS = [Column(1, "id", "long"), Column(2, "name", "string")]


IO = FileIOConfig()


def current(table: TableBuilder) -> tuple[TableMetadata, tuple[ManifestFile, ...]]:
    metadata, io = read(table.metadata_path)
    assert metadata.current_snapshot is not None
    return metadata, snapshot_manifests(metadata.current_snapshot, io)


def of_content(manifests: tuple[ManifestFile, ...], content: int) -> list[ManifestFile]:
    return [m for m in manifests if m.content == content]


def data_files(table: TableBuilder) -> list[DataFile]:
    metadata, manifests = current(table)
    return [f for files in read_data_manifests(of_content(manifests, 0), metadata, IO) for f in files]


def delete_files(table: TableBuilder) -> list[DeleteFile]:
    metadata, manifests = current(table)
    return [f for files in read_delete_manifests(of_content(manifests, 1), metadata, IO) for f in files]


def rows(number: int = 2) -> dict[str, list[Any]]:
    return {"id": list(range(number)), "name": [f"n{i}" for i in range(number)]}
