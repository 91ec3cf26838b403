"""What driver and worker share: frozen, picklable facts, and nothing else.

A worker that unpickles a Split needs no metadata, no manifests and no catalog. Facts that all splits of a scan share
are in one ScanContext; what belongs to one data file in its FileScanTask. Splits travel as bytes: shared facts once, large splits
cut into shares of their rows.
"""

import hashlib
import io
import os
import pickle
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from nevermore.scan_core.io.cache import BoundedCache
from nevermore.scan_core.io.location import FileIOConfig
from nevermore.scan_core.model.cached_property import cached_property
from nevermore.scan_core.model.options import ScanOptions
from nevermore.scan_core.model.schema import NestedField, Schema
from nevermore.scan_core.model.snapshot import DataFile, DeleteFile, FileFormat, PartitionSpec
from nevermore.scan_core.rows.selection import RowSample

if TYPE_CHECKING:
    from nevermore.scan_core.expr.bound import BoundExpr
    from nevermore.scan_core.expr.nodes import BoundPredicate
    from nevermore.scan_core.joins.request import RuntimeFilter


_REMEMBERED_GROUPS = 64

SHARED_GROUP_FILES = 64
"""A delete set of fewer files costs a task less than a millisecond, wherever it comes from."""
_REMEMBERED = 4
"""Reads whose shared part a worker keeps unpacked."""


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
class FileScanTask:
    """One data file, or the part of it that starts in [start, start + length), with the deletes that may touch it.

    `equality_deletes` name only groups in which some file has a higher sequence number than the data file and bounds
    that meet it. `deletion_vector` excludes `position_deletes` (rule 6). `bitmap_indexes` are those of columns that the
    predicate reads. `row_share` (k, n) is part k of n of the rows of each of its row groups.
    """

    data_file: DataFile
    start: int
    length: int
    equality_deletes: tuple[EqualityDeleteGroup, ...] = ()
    position_deletes: tuple[DeleteFile, ...] = ()
    deletion_vector: DeleteFile | None = None
    bitmap_indexes: tuple[BitmapIndexBlob, ...] = ()
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
        return replace(self, equality_deletes=equality, position_deletes=positions, deletion_vector=vector)

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


@dataclass(frozen=True, slots=True)
class PackedSplits:
    """Splits as bytes.

    Attributes:
        shared: what several of them name.
        splits: what each has of its own, in order.
    """

    shared: bytes
    splits: tuple[bytes, ...]


def pack_splits(splits: Sequence[Split]) -> PackedSplits:
    """The splits of one plan as bytes, from which `unpack_split` restores each split."""
    splits = tuple(splits)  # a plan makes them when asked, others each time
    uses: Counter[int] = Counter()
    for split in splits:
        uses.update({id(group) for task in split.tasks for group in task.equality_deletes})
    shared: dict[int, Any] = {}
    for split in splits:
        shared.setdefault(id(split.context), split.context)
        for task in split.tasks:
            for group in task.equality_deletes:
                if uses[id(group)] > 1 and len(group.files) >= SHARED_GROUP_FILES:
                    shared.setdefault(id(group), group)
    numbers = {key: number for number, key in enumerate(shared)}
    packed = tuple(_dump((numbers[id(split.context)], split.tasks), numbers) for split in splits)
    return PackedSplits(pickle.dumps([*shared.values()], protocol=5), packed)


def unpack_split(shared: bytes, packed: bytes) -> Split:
    """One split; what it shares with others is unpacked once per process, and the same object for all of them."""
    digest = hashlib.sha256(shared).digest()
    parts = _SHARED.get(digest, lambda: pickle.loads(shared), _REMEMBERED)  # noqa: S301 - see the charter
    number, tasks = _Loader(io.BytesIO(packed), parts).load()
    context: ScanContext = parts[number]
    return Split(context, tasks)


def _dump(value: Any, numbers: dict[int, int]) -> bytes:
    buffer = io.BytesIO()
    _Dumper(buffer, numbers).dump(value)
    return buffer.getvalue()


class _Dumper(pickle.Pickler):
    """Pickles the number of a shared object instead of the object."""

    def __init__(self, file: io.BytesIO, numbers: dict[int, int]) -> None:
        super().__init__(file, protocol=5)
        self._numbers = numbers

    def persistent_id(self, obj: Any) -> int | None:
        return self._numbers.get(id(obj)) if isinstance(obj, EqualityDeleteGroup) else None


class _Loader(pickle.Unpickler):
    """Replaces the number of a shared object by the object."""

    def __init__(self, file: io.BytesIO, parts: list[Any]) -> None:
        super().__init__(file)
        self._parts = parts

    def persistent_load(self, number: int) -> Any:
        return self._parts[number]


_SHARED: BoundedCache[bytes, list[Any]] = BoundedCache()
"""The shared parts of recent reads, unpacked."""
os.register_at_fork(after_in_child=_SHARED.forget_threads)


MIN_SHARES = 3
"""A third of a row group is read by page; of larger parts whole columns are decoded."""


def share_row_groups(splits: Iterable[Split], split_bytes: int) -> Iterator[Split]:
    """The splits, those of a single part of a Parquet file that is longer than two splits in shares.

    Args:
        splits: of a plan, cut at row groups already.
        split_bytes: what a split should weigh.
    """
    for split in splits:
        (task, *others) = split.tasks
        is_large = task.length > 2 * split_bytes and task.data_file.format is FileFormat.PARQUET
        if others or not is_large:
            yield split
            continue
        of = max(MIN_SHARES, -(-task.length // split_bytes))
        for number in range(of):
            yield Split(split.context, (replace(task, row_share=(number, of)),))
