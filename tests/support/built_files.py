"""Files of test tables and what manifests will say of them: data, equality and position deletes, deletion vectors."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.support.iceberg_json import Column
from tests.support.table_files import Rows, statistics, to_arrow, vector_blob, write_file, write_puffin

ADDED, EXISTING, DELETED = 1, 0, 2
DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2
_POSITION_COLUMNS = (
    Column(2147483546, "file_path", "string", required=True),
    Column(2147483545, "pos", "long", required=True),
)


@dataclass(eq=False)
class BuiltFile:
    """A file on disk and what its manifest entry will say.

    `sequence_number` None is inherited from the manifest list; a number is written into the entry. `status` is the
    entry's in its first manifest.
    """

    record: dict[str, Any]
    spec_id: int
    local: Path
    sequence_number: int | None = None
    status: int = ADDED
    committed_sequence: int | None = field(default=None, repr=False)
    first_row_id: int | None = None

    @property
    def path(self) -> str:
        """As manifests write it."""
        return str(self.record["file_path"])

    @property
    def is_delete(self) -> bool:
        return self.record["content"] != DATA


class FileBuilder:
    """Writes files into a table's folder, by default in its current schema and spec."""

    def __init__(self, location: Path, columns: Sequence[Column], written_location: str | None = None) -> None:
        self.location = location
        self.written_location = written_location or str(location)
        self.schemas: list[tuple[Column, ...]] = [tuple(columns)]
        self.schema_id = 0
        self.spec_id = 0
        self._numbers: Iterator[int] = itertools.count(1)

    @property
    def columns(self) -> tuple[Column, ...]:
        """The current schema."""
        return self.schemas[self.schema_id]

    def data(
        self,
        rows: Rows,
        *,
        file_format: str = "parquet",
        partition: Mapping[str, Any] | None = None,
        spec_id: int | None = None,
        columns: Sequence[Column] | None = None,
        field_ids: bool = True,
        **options: Any,
    ) -> BuiltFile:
        """A data file; columns that `rows` lacks are not in it. `options` go to the format's writer."""
        return self._file("data", DATA, rows, file_format, partition, spec_id, columns, field_ids, options)

    def equality_delete(
        self,
        rows: Rows,
        *,
        ids: Sequence[int] | None,
        file_format: str = "parquet",
        partition: Mapping[str, Any] | None = None,
        spec_id: int | None = None,
        columns: Sequence[Column] | None = None,
        field_ids: bool = True,
        **options: Any,
    ) -> BuiltFile:
        """An equality-delete file with the given `equality_ids`, whatever columns `rows` has."""
        file = self._file(
            "eq-delete", EQUALITY_DELETES, rows, file_format, partition, spec_id, columns, field_ids, options
        )
        file.record["equality_ids"] = None if ids is None else list(ids)
        return file

    def position_delete(
        self,
        positions: Sequence[tuple[BuiltFile | str, int]],
        *,
        file_format: str = "parquet",
        partition: Mapping[str, Any] | None = None,
        spec_id: int | None = None,
        referenced: BuiltFile | None = None,
        **options: Any,
    ) -> BuiltFile:
        """A position-delete file of (data file or path, position)."""
        paths = [f if isinstance(f, str) else f.path for f, _ in positions]
        rows = {"file_path": paths, "pos": [p for _, p in positions]}
        first = next((f for f, _ in positions if isinstance(f, BuiltFile)), None)
        if first is not None and spec_id is None and partition is None:
            partition, spec_id = first.record["partition"], first.spec_id
        file = self._file(
            "pos-delete", POSITION_DELETES, rows, file_format, partition, spec_id, _POSITION_COLUMNS, True, options
        )
        file.record["referenced_data_file"] = referenced.path if referenced else None
        return file

    def deletion_vectors(self, positions: Mapping[BuiltFile, Sequence[int]]) -> list[BuiltFile]:
        """Deletion vectors of several data files in one Puffin file."""
        local = self.location / "data" / f"{next(self._numbers):05d}-deletes.puffin"
        blobs = [(f.path, vector_blob(p), len(p)) for f, p in positions.items()]
        offsets = write_puffin(local, blobs)
        return [
            BuiltFile(
                self._record(POSITION_DELETES, local, "PUFFIN", target.record["partition"], cardinality)
                | {
                    "referenced_data_file": path,
                    "content_offset": offset,
                    "content_size_in_bytes": len(blob),
                    "sort_order_id": None,
                },
                target.spec_id,
                local,
            )
            for target, (path, blob, cardinality), offset in zip(positions, blobs, offsets, strict=True)
        ]

    def deletion_vector(self, target: BuiltFile, positions: Sequence[int]) -> BuiltFile:
        """The deletion vector of one data file."""
        return self.deletion_vectors({target: positions})[0]

    def _file(
        self,
        kind: str,
        content: int,
        rows: Rows,
        file_format: str,
        partition: Mapping[str, Any] | None,
        spec_id: int | None,
        columns: Sequence[Column] | None,
        field_ids: bool,  # noqa: FBT001 - private, all arguments are passed on
        options: Mapping[str, Any],
    ) -> BuiltFile:
        columns = self.columns if columns is None else columns
        table = to_arrow(rows, columns)
        local = self.location / "data" / f"{next(self._numbers):05d}-{kind}.{file_format}"
        write_file(local, table, columns, file_format, field_ids=field_ids, **options)
        spec_id = self.spec_id if spec_id is None else spec_id
        record = self._record(content, local, file_format.upper(), dict(partition or {}), table.num_rows)
        if file_format != "avro":
            record |= statistics(table, columns)
        return BuiltFile(record, spec_id, local)

    def _record(
        self, content: int, local: Path, file_format: str, partition: Mapping[str, Any], num_rows: int
    ) -> dict[str, Any]:
        return {
            "content": content,
            "file_path": self._written(local),
            "file_format": file_format,
            "partition": {k: v.bytes if isinstance(v, UUID) else v for k, v in partition.items()},
            "record_count": num_rows,
            "file_size_in_bytes": local.stat().st_size,
            "block_size_in_bytes": 67108864,
        }

    def _written(self, local: Path) -> str:
        return f"{self.written_location}/{local.relative_to(self.location).as_posix()}"
