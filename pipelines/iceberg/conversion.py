"""Converts equality deletes to position deletes (format version 2) or deletion vectors (version 3).

Every engine reads those at speed, while many refuse equality deletes or read them slowly. The keys of all equality deletes of
a snapshot are looked up in the key columns of the data files that may hold them, and one commit replaces the delete files.
It changes no row. Nothing is kept from one conversion to the next: one that was killed leaves files that no metadata names,
and the next starts from the beginning.
"""

import logging
import struct
import time
import uuid
import zlib
from array import array as typed_array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from nevermore.pipelines.errors import CommitConflictError, SourceError, describe
from nevermore.pipelines.iceberg.bitmap_indexes import DELETION_VECTOR, PuffinWriter
from nevermore.pipelines.iceberg.commit import RowDelta
from nevermore.pipelines.iceberg.manifests import FileName, NamedFiles, name_of
from nevermore.pipelines.iceberg.positions import waiting_since
from nevermore.pipelines.iceberg.replacement import Replacement, State, Swap, position_deletes
from nevermore.pipelines.iceberg.table_writer import write_positions
from nevermore.pipelines.wording import counted
from nevermore.scan_core import (
    DataFile,
    DeleteContent,
    DeleteFile,
    FileFormat,
    FileScanTask,
    MalformedTableError,
    PartitionSpec,
    ScanContext,
    ScanMetrics,
    ScanOptions,
    ScanPlan,
    Schema,
    Split,
    Table,
    TableMetadata,
    open_table,
    run_splits,
)
from nevermore.scan_core.metadata import FILE_PATH_ID
from nevermore.scan_core.parts import PuffinBlob, field_id_of, open_file, resolve_deletes

if TYPE_CHECKING:
    from pyiceberg.table import Table as CatalogTable

_log = logging.getLogger(__name__)
_ROW_POSITION_ID = 2147483645
"""Reserved id of the position of a row, which Iceberg Java gives as the field of a deletion vector."""
_VECTOR_MAGIC = b"\xd1\xd3\x39\x64"
_INHERITED = -1
"""Snapshot and sequence number of a deletion vector's blob, as its file is written before its commit is known."""


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """Report of a conversion.

    Attributes:
        table: name of the table.
        snapshot_id: snapshot of the commit; None if there was nothing to convert.
        removed_files: delete files that left the table.
        removed_deletes: keys and positions in them.
        added_files: position-delete files or deletion vectors that took their place.
        added_positions: dead rows that they name.
        data_files: data files of the table.
        has_vectors: the new files are deletion vectors.
        seconds: time taken.
        warning: why a conversion in the background failed.
    """

    table: str
    snapshot_id: int | None = None
    removed_files: int = 0
    removed_deletes: int = 0
    added_files: int = 0
    added_positions: int = 0
    data_files: int = 0
    has_vectors: bool = False
    seconds: float = 0.0
    warning: str | None = None

    @property
    def lines(self) -> Iterator[str]:
        """What was done, as text; the warning is separate."""
        if self.snapshot_id is not None:
            kind = "deletion vector" if self.has_vectors else "position-delete file"
            yield (
                f"{counted(self.removed_files, 'delete file')} replaced by {counted(self.added_files, kind)} "
                f"of {counted(self.added_positions, 'dead row')} "
                f"in {self.seconds:.1f} s"
            )
        elif self.warning is None:
            yield "no deletes to convert"

    def as_metadata(self) -> dict[str, str | int]:
        """For the metadata of a materialization."""
        return {"deletes converted": self.removed_deletes, "conversion": self.warning or "; ".join(self.lines)}


def convert(table: "CatalogTable", options: ScanOptions | None = None) -> ConversionReport:
    """Replace the equality deletes of a table's current snapshot.

    Writers may go on meanwhile: their newer deletes stay as they are, for the next conversion.

    Args:
        table: a table of format version 2 or 3 from the catalog; updated to show the commit.
        options: limits for reading key columns.

    Raises:
        SourceError: the format version is another one, a data file is listed twice, or one lacks the column of a delete.
        CommitConflictError: other writers kept changing the files that were converted.
        CommitUnknownError: it is unknown whether the commit happened.
        MalformedTableError: a data or delete file breaks its specification.
        MissingFileError: a file is gone.
    """
    if table.format_version not in {2, 3}:
        raise SourceError(
            f"table {'.'.join(table.name())} has format version {table.format_version}; 2 and 3 have delete files and can be converted"
        )
    began, found = time.monotonic(), list[_Resolved]()
    report = ConversionReport(".".join(table.name()))
    with Replacement(table) as replacement:

        def choose(delta: RowDelta) -> Swap | None:
            nonlocal report
            state = State.of(open_table(table).scan().with_options(options or ScanOptions()).select())
            if state is None:
                return None
            if found and not found[0].holds_for(state):
                replacement.drop()
                found.clear()
            if not found:
                check_keys_stored(table, delta.schema, state.plan.tasks)
                with delta:
                    found.append(_resolve(state, delta))
                replacement.written += found[0].added.values()
            live = {task.data_file.path for task in state.plan.tasks}
            added = [file for path, file in found[0].added.items() if path in live]
            report = found[0].report(report.table, added)
            return Swap(added, found[0].leaving) if found[0].leaving else None

        committed = replacement.commit(choose)
    snapshot_id = None if committed is None else committed.snapshot_id
    return replace(report, snapshot_id=snapshot_id, seconds=time.monotonic() - began)


def keep_converted(
    table: "CatalogTable", *, max_age_seconds: float = 0.0, options: ScanOptions | None = None
) -> ConversionReport | None:
    """Convert the deletes of a table if some are older than this; a failure is reported and never stops the caller.

    Returns None if there is nothing to do yet.
    """
    since = waiting_since(table)
    if since is None or time.time() - since < max_age_seconds:
        return None
    try:
        return convert(table, options)
    except Exception as error:  # noqa: BLE001 - the rows are committed, whatever happens to their delete files
        # in a conflict, another writer converts them with its own
        _log.log(
            logging.INFO if isinstance(error, CommitConflictError) else logging.WARNING,
            "deletes were not converted",
            exc_info=error,
        )
        return ConversionReport(".".join(table.name()), warning=describe(error))


@dataclass(frozen=True, slots=True)
class _Resolved:
    """What the deletes of one snapshot became. Valid for later snapshots as long as `holds_for` says so.

    Attributes:
        state: the snapshot.
        leaving: names of the delete files that are replaced.
        added: the new files by path of their data file.
        older: names of the position deletes that touch each of these data files.
    """

    state: State
    leaving: dict[FileName, DeleteFile]
    added: Mapping[str, DeleteFile]
    older: Mapping[str, frozenset[FileName]]

    def holds_for(self, now: State) -> bool:
        """Whether the commit may be made upon another snapshot (SEMANTICS 31 and 32).

        Data files that came meanwhile must be newer than all deletes that leave, as new rows are; those of another
        writer's compaction may be older. Nobody else may have replaced one of these deletes, nor the vector of a data
        file that gets a new one.
        """
        live = {name_of(file) for file in now.deletes}
        if now.format_version != self.state.format_version or not live.issuperset(self.leaving):
            return False
        known = {_identity(task.data_file) for task in self.state.plan.tasks}
        newest = max(file.data_sequence_number for file in self.leaving.values())
        for task in now.plan.tasks:
            file = task.data_file
            if _identity(file) not in known and file.data_sequence_number < newest:
                return False
            if file.path in self.older and self.older[file.path] != _positions_of(task):
                return False
        return True

    def report(self, table: str, added: Sequence[DeleteFile]) -> ConversionReport:
        """What is replaced by some of the new files."""
        return ConversionReport(
            table,
            removed_files=len(self.leaving),
            removed_deletes=sum(file.record_count for file in self.leaving.values()),
            added_files=len(added),
            added_positions=sum(file.record_count for file in added),
            data_files=len(self.state.plan.tasks),
            has_vectors=self.state.format_version > 2,
        )


def _identity(file: DataFile) -> tuple[str, int]:
    return file.path, file.data_sequence_number


def _positions_of(task: FileScanTask) -> frozenset[FileName]:
    return frozenset(map(name_of, position_deletes(task)))


def _resolve(state: State, delta: RowDelta) -> _Resolved:
    """Look up all keys, and write the positions of their rows."""
    has_vectors = state.format_version > 2
    leaving = {name_of(file): file for file in state.deletes if _is_converted(file, has_vectors=has_vectors)}
    touched = [task for task in state.plan.tasks if any(name_of(file) in leaving for file in _deletes_of(task))]
    if touched:
        check_listed_once(".".join(delta.table.name()), state.plan)
    older = {task.data_file.path: _positions_of(task) for task in touched}
    added = _written(touched, state.plan.context, delta, has_vectors=has_vectors)
    return _Resolved(state, leaving | _superseded(touched, added), added, older)


def check_listed_once(name: str, plan: ScanPlan) -> None:
    """Refuse a table that lists a data file several times, as some engines do that add existing files to it.

    All its rows are there as often, but an equality delete removes only those of older listings, and a position names them all.

    Raises:
        SourceError: a data file is listed twice.
    """
    paths = list(plan.index.tasks.data_files.paths())
    if len(set(paths)) == len(paths):
        return
    path, times = Counter(paths).most_common(1)[0]
    raise SourceError(
        f"{name} lists the data file {path} {times} times, so the positions of its rows do not tell them apart; remove the "
        "file from the table with the engine that added it, and add it once"
    )


def lost_keys(tasks: Iterable[FileScanTask], table: Table) -> Iterator[tuple[str, str]]:
    """Paths of data files that lack the column of a delete because it had been dropped when they were written, and what is wrong.

    A delete by a dropped column still applies, and files from before the column was added have its default. But what files from
    after it was dropped would have is unknown: NULL, which scans read, is a guess that deletes no row of them, or each.
    """
    metadata = table.metadata
    known, paths = frozenset(metadata.schema.field_ids), metadata.field_paths()
    for task in tasks:
        dropped = {i: group for group in task.equality_deletes for i in group.key_ids if i not in known}
        if not dropped:
            continue
        file = task.data_file
        with closing(open_file(file.path, file.format, table.io)) as reader:
            stored = set(_field_ids(reader.arrow_schema)) if reader.has_field_ids else dropped.keys()
        spec = metadata.specs[file.spec_id]
        from_partition = {f.source_id for f in spec.fields if f.transform == "identity"}
        number = file.file_sequence_number or file.data_sequence_number
        for field_id in dropped.keys() - stored - from_partition:
            if number >= _dropped_at(field_id, metadata) or any(i > field_id for i in stored & paths.keys()):
                delete = dropped[field_id].files[-1].path
                column = ".".join(field.name for field in paths[field_id])
                problem = (
                    f"{delete} deletes rows by column {column!r}, which the table does not have any more, but data file {file.path} "
                    "was written without it, so nobody can tell which of its rows are deleted"
                )
                yield file.path, problem


def _field_ids(fields: Iterable[pa.Field]) -> Iterator[int]:
    """Ids at every depth."""
    for one in fields:
        if (field_id := field_id_of(one)) is not None:
            yield field_id
        yield from _field_ids([one.type.field(i) for i in range(one.type.num_fields)])


def _dropped_at(field_id: int, metadata: TableMetadata) -> float:
    """Sequence number of the oldest snapshot that is known to have been committed after a column was dropped."""
    has = {schema.schema_id for schema in metadata.schemas.values() if field_id in schema.field_ids}
    line = sorted(metadata.snapshots.values(), key=lambda s: s.sequence_number)
    first = min((s.sequence_number for s in line if s.schema_id in has), default=inf)
    for snapshot in line:
        if snapshot.schema_id is None or snapshot.schema_id in has:
            continue
        if snapshot.sequence_number > first or snapshot.schema_id > max(has):
            return snapshot.sequence_number
    return inf


def check_keys_stored(table: "CatalogTable", schema: Schema, tasks: Iterable[FileScanTask]) -> None:
    """Refuse deletes that cannot be applied, which a rewrite or a conversion would make permanent or forget.

    Args:
        table: the table.
        schema: its current schema.
        tasks: its data files with their deletes.

    Raises:
        SourceError: a data file was written after the column of a delete was dropped.
    """
    known = frozenset(schema.field_ids)
    concerned = [task for task in tasks if any(not known.issuperset(g.key_ids) for g in task.equality_deletes)]
    for _, problem in lost_keys(concerned, open_table(table)) if concerned else ():
        raise SourceError(
            f"{'.'.join(table.name())}: {problem}. End the writer that still deletes by this column, roll the table back to a "
            "snapshot before this delete, and delete the rows by a column that exists"
        )


def _is_converted(file: DeleteFile, *, has_vectors: bool) -> bool:
    """Whether a delete file leaves the table whatever it touches.

    All its keys were looked up in all data files that may hold them. With deletion vectors, position-delete files leave, too.
    """
    return file.content is DeleteContent.EQUALITY or (has_vectors and not file.is_deletion_vector)


def _replaced(task: FileScanTask) -> Iterator[DeleteFile]:
    """Position deletes of only the data file of a task, whose positions are all among the new ones."""
    path = task.data_file.path.encode()
    for file in task.position_deletes:
        bounds = {file.lower_bounds.get(FILE_PATH_ID), file.upper_bounds.get(FILE_PATH_ID)}
        if file.referenced_data_file == task.data_file.path or bounds == {path}:
            yield file
    if task.deletion_vector is not None:
        yield task.deletion_vector


def _superseded(touched: Sequence[FileScanTask], added: Mapping[str, DeleteFile]) -> dict[FileName, DeleteFile]:
    """The position deletes that leave because a new file names their rows, too."""
    changed = (task for task in touched if task.data_file.path in added)
    return {name_of(file): file for task in changed for file in _replaced(task)}


_Dead = Iterator[tuple[FileScanTask, "BitMap64"]]


def _deletes_of(task: FileScanTask) -> Iterator[DeleteFile]:
    """The delete files that may touch the data file of a task and are newer than it."""
    for group in task.equality_deletes:
        yield from (f for f in group.files if f.data_sequence_number > task.data_file.data_sequence_number)
    yield from position_deletes(task)


def dead_rows(tasks: Sequence[FileScanTask], context: ScanContext) -> Iterator[BitMap64]:
    """The positions of the dead rows of whole data files, one bitmap for each, found on several threads.

    Raises:
        MalformedTableError: a data or delete file breaks its specification.
        MissingFileError: a file is gone.
    """
    splits = [Split(context, (task,)) for task in tasks]
    return run_splits(splits, _dead_in, ScanMetrics(), context.options.parallelism)


def _dead_in(split: Split, metrics: ScanMetrics) -> Iterator[BitMap64]:
    (task,) = split.tasks
    dead, first = BitMap64(), 0
    for flags in resolve_deletes(task, split.context, metrics):
        dead |= BitMap64(typed_array("Q", (np.flatnonzero(flags) + first).astype(np.uint64).tobytes()))
        first += len(flags)
    if first != task.data_file.record_count:
        raise MalformedTableError(
            f"{task.data_file.path} has {first} rows, but its manifest states {task.data_file.record_count}"
        )
    dead.run_optimize()
    yield dead


def _framed(dead: BitMap64) -> bytes:
    """A bitmap as the specification frames a `deletion-vector-v1` blob: length, magic, bitmap, CRC-32."""
    content = _VECTOR_MAGIC + dead.serialize()
    return struct.pack(">I", len(content)) + content + struct.pack(">I", zlib.crc32(content))


def _written(
    touched: Sequence[FileScanTask], context: ScanContext, delta: RowDelta, *, has_vectors: bool
) -> Mapping[str, DeleteFile]:
    """The dead rows of data files that no position delete names yet, by path of the data file.

    They are written as position deletes or vectors, together with the older dead rows of the same data file.
    """
    found = zip(touched, dead_rows(touched, context), strict=True)
    dead = (
        (task, rows)
        for task, rows in found
        if rows and ((has_vectors and task.position_deletes) or _num_named(task, context) < len(rows))
    )
    return (_write_vectors if has_vectors else _write_files)(dead, delta)


def _num_named(task: FileScanTask, context: ScanContext) -> int:
    """How many rows of a data file are dead by position."""
    if task.deletion_vector is not None:
        return task.deletion_vector.record_count
    if not task.position_deletes:
        return 0
    return sum(map(len, dead_rows([task.with_deletes((), task.position_deletes)], context)))


def _write_files(dead: _Dead, delta: RowDelta) -> Mapping[str, DeleteFile]:
    added: dict[str, DeleteFile] = {}
    for task, rows in dead:
        file = task.data_file
        positions = np.frombuffer(rows.to_array(), np.uint64).astype(np.int64)
        added[file.path] = write_positions(file, positions, delta.target)
    return added


def _write_vectors(dead: _Dead, delta: RowDelta) -> Mapping[str, DeleteFile]:
    first = next(dead, None)
    if first is None:
        return {}
    path = f"{delta.target.data_location}/{uuid.uuid4().hex}-deletes.puffin"
    written: list[tuple[DataFile, int]] = []
    with PuffinWriter(path, delta.storage) as writer:
        for task, rows in chain([first], dead):
            properties = {"referenced-data-file": task.data_file.path, "cardinality": str(len(rows))}
            blob = PuffinBlob(DELETION_VECTOR, (_ROW_POSITION_ID,), _INHERITED, _INHERITED, 0, 0, None, properties)
            writer.write_blob(blob, [_framed(rows)])
            written.append((task.data_file, len(rows)))
        writer.close({"created-by": "nevermore"})
    added = {}
    for (file, num_rows), blob in zip(written, writer.blobs, strict=True):
        added[file.path] = DeleteFile(
            path,
            FileFormat.PUFFIN,
            file.spec_id,
            file.partition,
            num_rows,
            writer.size_bytes,
            content=DeleteContent.POSITION,
            referenced_data_file=file.path,
            content_offset=blob.offset,
            content_size_bytes=blob.length,
        )
    return added


class ResolvedKeys:
    """The keys that a commit deletes, resolved to deletion vectors before it happens: the table never has an equality delete.

    They can be resolved again when other commits have replaced files of the table, but changed no row.
    """

    def __init__(self, delta: RowDelta, keys: Sequence[DeleteFile], options: ScanOptions) -> None:
        """Resolve nothing yet.

        Args:
            delta: the commit, to a table of format version 3.
            keys: equality-delete files, which are not added to the table; `close` removes them.
            options: limits for reading key columns.
        """
        self._delta = delta
        self._keys = keys
        self._options = options
        self._is_first = True
        self._vectors: Mapping[str, DeleteFile] = {}
        self._written: list[DeleteFile] = []

    def resolve(self) -> tuple[list[DeleteFile], NamedFiles]:
        """The vectors that the commit adds, and the older ones that leave with it."""
        delta = self._delta
        everywhere = PartitionSpec(
            max(delta.specs) + 1, ()
        )  # of deletes that apply to all partitions and are never committed
        table = open_table(delta.table)
        facts = replace(
            delta.facts,
            schemas={**table.metadata.schemas, **delta.facts.schemas},
            specs={**delta.specs, everywhere.spec_id: everywhere},
        )
        table = replace(table, metadata=facts)
        number = facts.last_sequence_number + 1
        # Rewrites may have moved rows to another partition spec, out of reach of their deletes (rule 27).
        place: dict[str, Any] = {} if self._is_first else {"spec_id": everywhere.spec_id, "partition": ()}
        uncommitted = [
            replace(file, data_sequence_number=number, file_sequence_number=number, **place) for file in self._keys
        ]
        self._is_first = False
        plan = table.scan().with_options(self._options).select().plan(uncommitted)
        new = {name_of(file) for file in uncommitted}
        touched = [task for task in plan.tasks if any(name_of(file) in new for file in _deletes_of(task))]
        if touched:
            check_listed_once(".".join(delta.table.name()), plan)
            touched = list(_with_equality_deletes(touched, new))
        self._vectors = _written(touched, plan.context, delta, has_vectors=True)
        self._written += self._vectors.values()
        return [*self._vectors.values()], NamedFiles(frozenset(_superseded(touched, self._vectors)))

    def close(self) -> None:
        """Remove the keys, and the vectors that were resolved again."""
        used = {file.path for file in self._vectors.values()}
        left = {file.path for file in self._written} - used
        self._delta.storage.remove([*(file.path for file in self._keys), *left])


def _with_equality_deletes(tasks: Sequence[FileScanTask], names: Collection[FileName]) -> Iterator[FileScanTask]:
    """The tasks without other equality deletes: these stay in the table, and nobody has checked that they may become permanent."""
    groups = {id(group): group for task in tasks for group in task.equality_deletes}
    left = {
        number: replace(group, files=files, covered_by=())
        for number, group in groups.items()
        if (files := tuple(file for file in group.files if name_of(file) in names))
    }
    for task in tasks:
        equality = tuple(left[id(group)] for group in task.equality_deletes if id(group) in left)
        yield task.with_deletes(equality, task.position_deletes, task.deletion_vector)
