"""The facts of one snapshot: which data files and delete files it names.

Plain values as manifests state them, with inheritance already applied (sequence numbers, first_row_id, spec id).
`metadata/manifests.py` reads them from Avro; `plan/` decides which delete applies to which file.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from typing import Any


class FileFormat(Enum):
    """Formats of data and delete files."""

    PARQUET = "parquet"
    ORC = "orc"
    AVRO = "avro"
    PUFFIN = "puffin"


class DeleteContent(Enum):
    """What a delete file holds: `content` of its manifest entry."""

    POSITION = 1
    EQUALITY = 2


@dataclass(frozen=True, slots=True)
class PartitionField:
    """One field of a partition spec. `transform` is its text in the metadata, e.g. `bucket[16]`."""

    field_id: int
    source_id: int
    name: str
    transform: str
    source_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """A partition spec of the table."""

    spec_id: int
    fields: tuple[PartitionField, ...]

    @property
    def is_unpartitioned(self) -> bool:
        """No fields, or only void ones: equality deletes written under it are global (SEMANTICS rule 4)."""
        return all(f.transform == "void" for f in self.fields)


_NOTHING: Mapping[int, Any] = {}
UNCOMMITTED = -1
"""Sequence number of a file that no commit has added yet: it will have that of its commit."""


@dataclass(frozen=True, slots=True)
class ContentFile:
    """What data and delete files have in common.

    `path` is as the manifest writes it. `partition` holds one value per field of the spec, in its order, normalised
    so that `==` is partition equality (rule 5: floats as canonical bits). Bounds are Iceberg single-value bytes by
    field id; a missing id means unknown. What `repr` does not show, such as bounds and counts, does not count for equality. Of a
    file in a table it serves planning alone, and stays behind when the file is pickled into a task. `snapshot_id` is None where the manifest list states it.
    """

    path: str
    format: FileFormat
    spec_id: int
    partition: tuple[Any, ...]
    record_count: int
    file_size_bytes: int
    data_sequence_number: int = UNCOMMITTED
    file_sequence_number: int | None = None
    lower_bounds: Mapping[int, bytes] = field(default_factory=dict, repr=False, compare=False)
    upper_bounds: Mapping[int, bytes] = field(default_factory=dict, repr=False, compare=False)
    value_counts: Mapping[int, int] = field(default_factory=dict, repr=False, compare=False)
    null_value_counts: Mapping[int, int] = field(default_factory=dict, repr=False, compare=False)
    nan_value_counts: Mapping[int, int] = field(default_factory=dict, repr=False, compare=False)
    column_sizes: Mapping[int, int] = field(default_factory=dict, repr=False, compare=False)
    split_offsets: tuple[int, ...] = field(default=(), repr=False, compare=False)
    key_metadata: bytes | None = None
    snapshot_id: int | None = field(default=None, repr=False, compare=False)
    sort_order_id: int | None = field(default=None, repr=False, compare=False)

    @property
    def is_encrypted(self) -> bool:
        """Whether it can be read only with a key."""
        return bool(self.key_metadata)

    def __reduce__(self) -> tuple[Any, ...]:
        is_new = self.data_sequence_number == UNCOMMITTED
        return type(self), tuple(
            getattr(self, f.name) if f.repr or is_new else _NOTHING if f.default is MISSING else f.default
            for f in fields(self)
        )

    def null_count(self, field_id: int) -> int | None:
        """How many rows have NULL in a column; None if unknown.

        Iceberg Java counts a member of a struct in ORC files only where the struct is not NULL itself: rows that are
        not among the values are NULL.
        """
        nulls, values = self.null_value_counts.get(field_id), self.value_counts.get(field_id)
        if nulls is None or values is None:
            return None
        return nulls + max(self.record_count - values, 0)

    def value_count(self, field_id: int) -> int | None:
        """How many values a column has, NULLs included; None if unknown."""
        values = self.value_counts.get(field_id)
        return None if values is None else max(values, self.record_count)


@dataclass(frozen=True, slots=True)
class DataFile(ContentFile):
    """A data file. `first_row_id` is None where the snapshot assigns no row ids."""

    first_row_id: int | None = None


@dataclass(frozen=True, slots=True)
class DeleteFile(ContentFile):
    """An equality-delete file, a position-delete file, or a deletion vector (format PUFFIN)."""

    content: DeleteContent = DeleteContent.EQUALITY
    equality_ids: tuple[int, ...] = ()
    referenced_data_file: str | None = None
    content_offset: int | None = None
    content_size_bytes: int | None = None

    @property
    def is_deletion_vector(self) -> bool:
        """True for a blob in a Puffin file."""
        return self.format is FileFormat.PUFFIN


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot as the table metadata states it. Times are milliseconds since the epoch, UTC.

    `key_id` names the key that its manifest list is encrypted with, if it is.
    """

    snapshot_id: int
    parent_id: int | None
    sequence_number: int
    timestamp_ms: int
    operation: str | None
    summary: Mapping[str, str]
    manifest_list: str | None
    inline_manifests: tuple[str, ...] = ()
    schema_id: int | None = None
    first_row_id: int | None = None
    key_id: str | None = None
