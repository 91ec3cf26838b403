"""Delete files on disk and facts about them, for tests of loading."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nevermore.scan_core.io.location import FileIOConfig
from nevermore.scan_core.model.options import ScanOptions
from nevermore.scan_core.model.schema import parse_schema
from nevermore.scan_core.model.snapshot import DataFile, DeleteContent, DeleteFile, FileFormat, PartitionSpec
from nevermore.scan_core.split.tasks import EqualityDeleteGroup, FileScanTask, ScanContext
from tests.support.iceberg_json import Column
from tests.support.table_files import to_arrow, write_file

COLUMNS = (
    Column(1, "id", "long"),
    Column(2, "name", "string"),
    Column(3, "s", {"type": "struct", "fields": [{"id": 4, "name": "x", "type": "long", "required": False}]}),
    Column(5, "l", {"type": "list", "element-id": 6, "element": "long", "element-required": False}),
)
POSITION_COLUMNS = (Column(2147483546, "file_path", "string"), Column(2147483545, "pos", "long"))


def context_for(
    columns: Sequence[Column] = COLUMNS,
    *,
    options: ScanOptions | None = None,
    name_mapping: Any = None,
    relocate: tuple[tuple[str, str], ...] = (),
) -> ScanContext:
    schema = parse_schema({"type": "struct", "fields": [c.json() for c in columns]})
    return ScanContext(
        table="t",
        projection=schema,
        predicate=None,
        field_paths={i: schema.path(i) for i in schema.field_ids},
        specs={0: PartitionSpec(0, ())},
        name_mapping=name_mapping,
        io=FileIOConfig(relocate),
        options=options or ScanOptions(),
    )


def equality_file(
    path: Path,
    rows: dict[str, list[Any]],
    ids: Sequence[int],
    *,
    number: int = 2,
    columns: Sequence[Column] = COLUMNS,
    field_ids: bool = True,
) -> DeleteFile:
    """Written in the format of the path's suffix."""
    file_format = path.suffix[1:]
    write_file(path, to_arrow(rows, columns), columns, file_format, field_ids=field_ids)
    return delete_file(path, FileFormat(file_format), number=number, equality_ids=tuple(ids))


def position_file(path: Path, rows: Sequence[tuple[str, int]], **facts: Any) -> DeleteFile:
    """Written in the format of the path's suffix."""
    table = to_arrow({"file_path": [p for p, _ in rows], "pos": [n for _, n in rows]}, POSITION_COLUMNS)
    write_file(path, table, POSITION_COLUMNS, path.suffix[1:], field_ids=True)
    return delete_file(path, FileFormat(path.suffix[1:]), content=DeleteContent.POSITION, **facts)


def delete_file(path: Path, file_format: FileFormat, *, number: int = 2, **facts: Any) -> DeleteFile:
    return DeleteFile(
        path=str(path),
        format=file_format,
        spec_id=0,
        partition=(),
        record_count=facts.pop("record_count", 0),
        file_size_bytes=path.stat().st_size,
        data_sequence_number=number,
        **facts,
    )


def data_file(path: str = "data.parquet", number: int = 1) -> DataFile:
    return DataFile(path, FileFormat.PARQUET, 0, (), 100, 1000, number)


def task_for(
    *deletes: DeleteFile,
    key_ids: tuple[int, ...] = (1,),
    positions: tuple[DeleteFile, ...] = (),
    vector: DeleteFile | None = None,
    data: DataFile | None = None,
) -> FileScanTask:
    groups = (EqualityDeleteGroup(key_ids, deletes),) if deletes else ()
    return FileScanTask(data or data_file(), 0, 1000, groups, positions, vector)
