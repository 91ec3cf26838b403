"""What driver and worker share: frozen, picklable facts, and nothing else.

A worker that unpickles a Split needs no metadata, no manifests and no catalog. Facts that all splits of a scan share
are in one ScanContext; what belongs to one data file in its FileScanTask.
"""

import pickle
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from scan_core.io.location import FileIOConfig
from scan_core.model.options import ScanOptions
from scan_core.model.schema import NestedField, Schema
from scan_core.model.snapshot import DataFile, DeleteFile, PartitionSpec
from scan_core.rows.selection import RowSample

if TYPE_CHECKING:
    from scan_core.expr.bound import BoundExpr
    from scan_core.expr.nodes import BoundPredicate
    from scan_core.joins.request import RuntimeFilter


_REMEMBERED_GROUPS = 64


@dataclass(frozen=True, slots=True)
class ScanContext:
    """Facts that all splits of one scan share.

    Attributes:
        table: name or location, for messages.
        projection: the columns of the result, in order, as the schema in force has them; metadata columns are
            fields with the reserved ids of the specification.
        predicate: what rows must fulfil, bound to the schema in force; None keeps all.
        field_paths: for each field id of every schema of the table, at any depth, the fields from the top-level column
            down to it, as the newest schema that has it defines them: key columns of deletes and their types are
            looked up here, dropped ones included (rules 13 and 14).
        specs: partition specs by id, for identity-partition values of columns a file lacks (rule 16).
        name_mapping: `schema.name-mapping.default` as parsed JSON, or None.
        sample: which rows to look at; None for all.
        runtime_filters: keys that rows must have, in addition to the predicate.
        parts: columns of the result that are parts of lists and maps, such as `m['k']`: what they are, by field id.
    """

    table: str
    projection: Schema
    predicate: "BoundPredicate | None"
    field_paths: Mapping[int, tuple[NestedField, ...]]
    specs: Mapping[int, PartitionSpec]
    name_mapping: tuple[Any, ...] | None
    io: FileIOConfig
    options: ScanOptions
    sample: RowSample | None = None
    runtime_filters: tuple["RuntimeFilter", ...] = ()
    parts: Mapping[int, "BoundExpr"] = field(default_factory=dict)


@dataclass(frozen=True)
class EqualityDeleteGroup:
    """Equality-delete files of one key set and one scope: a worker builds one index from them (rule 18).

    `key_ids` is sorted. All files of the group may meet the data files that name the group; each data file's own
    sequence number decides, row by row, through key -> highest delete sequence number. `covered_by` are groups on fewer
    of its key columns with at least its scope: keys that they delete at no lower sequence number may be dropped (rule
    8c). The same for all tasks of a scan.
    """

    key_ids: tuple[int, ...]
    files: tuple[DeleteFile, ...]
    covered_by: tuple["EqualityDeleteGroup", ...] = ()

    @cached_property
    def _packed(self) -> bytes:
        """The compressed form that is pickled into every task that names the group, made once; paths of a table compress well."""
        return zlib.compress(pickle.dumps((self.key_ids, self.files, self.covered_by), pickle.HIGHEST_PROTOCOL), 1)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpacked, (self._packed,)

    @property
    def max_sequence_number(self) -> int:
        """Highest sequence number among the group's files."""
        return max(f.data_sequence_number for f in self.files)


@lru_cache(maxsize=_REMEMBERED_GROUPS)
def _unpacked(packed: bytes) -> EqualityDeleteGroup:
    """Return the same object for all tasks of a worker, so that its files are inspected once."""
    return EqualityDeleteGroup(*pickle.loads(zlib.decompress(packed)))  # noqa: S301 - a part of what is being unpickled


@dataclass(frozen=True, slots=True)
class BitmapIndexBlob:
    """Where the bitmap index of one column of one data file lies; `bitmaps/` reads it.

    Attributes:
        field_id: of the column or struct member.
        path: of the Puffin file.
        offset: of the blob in it, in bytes.
        length: of the blob, in bytes.
        directory_bytes: at its begin, what tells of the values.
        column_type: Iceberg type of its values when it was written, a primitive one.
        is_list: the values are elements of lists: a row has any number of them.
    """

    field_id: int
    path: str
    offset: int
    length: int
    directory_bytes: int
    column_type: str
    is_list: bool = False


@dataclass(frozen=True, slots=True)
class DeadRowBits:
    """Dead rows of one data file that were found before, and the deletes that came later.

    Attributes:
        vector: where the positions of all rows lie that the older deletes remove.
        equality_deletes: newer ones, which `vector` does not include.
        position_deletes: newer ones.
    """

    vector: DeleteFile
    equality_deletes: tuple[EqualityDeleteGroup, ...] = ()
    position_deletes: tuple[DeleteFile, ...] = ()


@dataclass(frozen=True, slots=True)
class FileScanTask:
    """One data file, or the part of it that starts in [start, start + length), with the deletes that may touch it.

    `equality_deletes` name only groups in which some file has a higher sequence number than the data file and bounds
    that meet it. `deletion_vector` excludes `position_deletes` (rule 6). `bitmap_indexes` are those of columns that the
    predicate reads. `dead_row_bits` has the same effect as the deletes of the task, which are applied if the bits cannot
    be read. `row_share` (k, n) is part k of n of the rows of each of its row groups.
    """

    data_file: DataFile
    start: int
    length: int
    equality_deletes: tuple[EqualityDeleteGroup, ...] = ()
    position_deletes: tuple[DeleteFile, ...] = ()
    deletion_vector: DeleteFile | None = None
    bitmap_indexes: tuple[BitmapIndexBlob, ...] = ()
    dead_row_bits: DeadRowBits | None = None
    row_share: tuple[int, int] = (0, 1)

    def owns(self, byte_offset: int) -> bool:
        """Whether a row group that begins at this offset belongs to this task.

        Each belongs to exactly one task, even if the file size in the manifest is wrong.
        """
        end = self.start + self.length
        is_last = end >= self.data_file.file_size_bytes
        return (self.start == 0 or byte_offset >= self.start) and (is_last or byte_offset < end)

    @property
    def has_deletes(self) -> bool:
        """Whether any delete may apply to the file."""
        return bool(self.equality_deletes or self.position_deletes or self.deletion_vector)

    def with_deletes(
        self,
        equality: tuple[EqualityDeleteGroup, ...] = (),
        positions: tuple[DeleteFile, ...] = (),
        vector: DeleteFile | None = None,
    ) -> "FileScanTask":
        """The task with these deletes instead of its own."""
        return replace(
            self, equality_deletes=equality, position_deletes=positions, deletion_vector=vector, dead_row_bits=None
        )

    @property
    def is_whole_file(self) -> bool:
        """Whether the task covers the whole file."""
        return self.start == 0 and self.length >= self.data_file.file_size_bytes and self.row_share == (0, 1)

    def rows_of(self, num_rows: int) -> range:
        """The task's part of a row group with this number of rows."""
        number, of = self.row_share
        return range(num_rows * number // of, num_rows * (number + 1) // of)


@dataclass(frozen=True, slots=True)
class Split:
    """The unit of work of one worker: some files or parts of files, read one after the other."""

    context: ScanContext
    tasks: tuple[FileScanTask, ...]
