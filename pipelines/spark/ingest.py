"""The part of an ingest that runs in Spark: tasks read and decode pieces of files, write the change log, and fold by key.

Tasks pass changes on as compressed Arrow streams, a few rows for Spark, so that a shuffle copies bytes and converts
nothing. Files of tasks that fail or are overtaken are never named by a result, so no commit contains them. Tasks import
neither pyspark nor what only the driver needs.
"""

import pickle
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial, reduce
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nevermore.pipelines.changes.change_log import ORDINAL, FoldOrder, RemoteChanges
from nevermore.pipelines.changes.change_run import (
    ChangeRun,
    by_part,
    gathered,
    hash_codes,
    key_hashes,
    parts_by_key,
    repeated,
)
from nevermore.pipelines.changes.keys import num_to_truncate, same_rows
from nevermore.pipelines.changes.row_order import Order, sorted_rows
from nevermore.pipelines.config.sources import KafkaSource
from nevermore.pipelines.decode.batches import BatchEnd, ChangeBatch, Rejected, change_schema, in_row_type
from nevermore.pipelines.decode.column_types import widened
from nevermore.pipelines.decode.feed import ORDER, Decided, FeedConfig
from nevermore.pipelines.errors import PipelineError, SchemaConflictError, SourceError, WideBatchError
from nevermore.pipelines.formats.registry import complete_events_of, decode, lookup, other_format, parts_of
from nevermore.pipelines.iceberg.row_shape import conform, members_of, single_array
from nevermore.pipelines.iceberg.table_writer import WriteTarget, write_deletes, write_rows
from nevermore.pipelines.mirrors.fold import fold, squash
from nevermore.pipelines.sources.file_documents import FilePiece
from nevermore.pipelines.sources.file_listing import FileSystem, ListedFile
from nevermore.pipelines.sources.file_options import FileOptions
from nevermore.pipelines.sources.file_position import ReadFile
from nevermore.pipelines.sources.file_reader import whole_lines
from nevermore.pipelines.sources.files import Gathered, gather, read_pieces
from nevermore.pipelines.sources.kafka import KafkaTopics, OffsetRange, Partition
from nevermore.pipelines.spark.jobs import (
    ROWS,
    SparkJobs,
    begin_task,
    failing,
    packed_table,
    row_of,
    unpacked_table,
    values_of,
)
from nevermore.scan_core import ContentFile, PartitionSpec
from nevermore.scan_core.io import parse_location

_RESULT = -1
"""Instead of the number of a table: the row holds the `PieceResult`."""
_FOLDED = ("op", "key", "after", "unchanged")
"""Columns of changes that `fold` reads."""
PIECES_PER_TASK = 2
"""Decoded pieces that a task passes over, as it takes a fraction of what decoding takes, unless slots would be idle."""
CHANGES_PER_TASK = 10_000
"""Changes that a task passes over at least, unless slots would be idle: starting it and its files takes as long."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a file, or all that is new in it.

    Attributes:
        file: the file.
        known: the state of reading it before this part.
        stop: where the part ends, in bytes; None for the end of the file.
    """

    file: ListedFile
    known: ReadFile
    stop: int | None = None


Piece = tuple[Part, ...] | tuple[OffsetRange, ...]


@dataclass(slots=True)
class TablePart:
    """What a piece contributes to one table. Mutable while the piece is decoded.

    Attributes:
        num_rows: number of changes.
        counts: the same by operation.
        row_type: columns of the rows; None without changes.
        key: key columns; none without changes.
        sent: columns of the feed that the events have.
        rows_to_truncate: number of changes up to the last truncate, inclusive.
        moves_rows: whether a change of a key follows that truncate.
        lacks_values: whether a change does not have all values of its row.
        places: with `order_by`, the first and the last place of each batch.
    """

    num_rows: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    row_type: pa.StructType | None = None
    key: tuple[str, ...] = ()
    sent: set[str] = field(default_factory=set)
    rows_to_truncate: int = 0
    moves_rows: bool = False
    lacks_values: bool = False
    places: list[str] = field(default_factory=list)

    def add(self, batch: ChangeBatch) -> None:
        """Add a batch.

        Raises:
            SchemaConflictError: it has another key, or types that do not fit those before.
        """
        if not batch.num_rows:
            self.sent |= batch.sent
            return
        row_type = batch.row_type if self.row_type is None else united(self.row_type, batch.row_type)
        if row_type is None or self.key not in {(), batch.key}:
            raise SchemaConflictError(
                f"the key or the types of columns change from ({', '.join(self.key)}) {self.row_type} to "
                f"({', '.join(batch.key)}) {batch.row_type} within a piece of a file: ingest it with engine: local"
            )
        table = batch.table
        first = num_to_truncate(table)
        rows = table.slice(first)
        lacks = bool(pc.any(pc.greater(pc.list_value_length(rows.column("unchanged")), 0)).as_py())
        places = [table.column(ORDER)[at].as_py() for at in (0, -1)] if ORDER in table.column_names else []
        moves, counts = _moves(rows, batch.key), Counter(batch.counts)
        self.then(TablePart(batch.num_rows, counts, row_type, batch.key, {*batch.sent}, first, moves, lacks, places))

    def then(self, part: "TablePart") -> None:
        """Add what follows, whose columns and key fit."""
        self.sent |= part.sent
        if part.row_type is None:
            return
        self.row_type = part.row_type if self.row_type is None else united(self.row_type, part.row_type)
        self.key = part.key
        if part.rows_to_truncate:
            self.rows_to_truncate = self.num_rows + part.rows_to_truncate
            self.moves_rows = self.lacks_values = False
        self.moves_rows |= part.moves_rows
        self.lacks_values |= part.lacks_values
        self.num_rows += part.num_rows
        self.counts.update(part.counts)
        self.places += part.places


def _moves(rows: pa.Table, key: Sequence[str]) -> bool:
    after = single_array(rows.column("after"))
    is_new = np.asarray(pc.is_valid(after))
    given = members_of(after)
    return bool((is_new & ~same_rows(_keys(rows), [given[name] for name in key])).any())


def _keys(changes: pa.Table) -> list[pa.Array]:
    return list(single_array(changes.column("key")).flatten())


def united(first: pa.StructType, second: pa.StructType) -> pa.StructType | None:
    """The columns of both, in types that can represent the values of both; None if there is none."""
    both = widened(first, second)
    return None if both is None else pa.struct(list(both))


@dataclass(slots=True)
class PieceResult:
    """What decoding a piece has found. Mutable while it is decoded.

    Attributes:
        number: of the piece.
        files: the state of reading its files after it.
        offsets: the next offset of the partition after it.
        tables: what it contributes to the tables of the feed, in their order.
        decided: decisions for decoding after it.
        num_read: number of its events, including rejected ones.
        rejected: events that could not be decoded.
        skipped: number of events skipped on purpose, by reason.
        untaken: tables with changes that no table of the config takes.
        looks_like: the format that a batch with rejected events looks like, if it is another than that of the config.
        waiting: number of events at its end that wait for the rest of their group in the next piece, by reason.
        of_transactions: whether it ends at the end of a transaction.
        error: why the rest of the piece could not be decoded.
    """

    number: int
    tables: list[TablePart]
    decided: Decided
    files: dict[str, ReadFile] = field(default_factory=dict)
    offsets: dict[Partition, int] = field(default_factory=dict)
    num_read: int = 0
    rejected: Rejected = field(default_factory=Rejected.none)
    skipped: Counter[str] = field(default_factory=Counter)
    untaken: set[str] = field(default_factory=set)
    looks_like: str | None = None
    waiting: Mapping[str, int] = field(default_factory=dict)
    of_transactions: bool = False
    error: PipelineError | None = None


def with_state(config: FeedConfig, result: PieceResult) -> FeedConfig:
    """The decoder's config after a piece: what it has shown holds for all that follow."""
    tables = []
    for table, part in zip(config.tables, result.tables, strict=True):
        known = dict(table.known_types)
        known |= {f.name: f.type for f in part.row_type or () if not pa.types.is_null(f.type)}
        encodings = result.decided.encodings.get(table.name, table.known_encodings)
        known_key = table.known_key or part.key
        tables.append(replace(table, known_types=known, known_key=known_key, known_encodings=encodings))
    return replace(config, tables=tuple(tables), decided=result.decided)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePieces:
    """Reads and decodes pieces; pickled to the workers. Every attempt reads the same bytes.

    Attributes:
        config: the decoder's config before each piece.
        options: how files are read, and the size of batches.
        filesystem: file system of remote paths.
        topics: the cluster of ranges of offsets; with its secrets, so it is not among the data of the job.
        ingested_at: time of the run.
    """

    config: FeedConfig
    options: FileOptions
    filesystem: FileSystem | None
    topics: KafkaSource | None
    ingested_at: datetime

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decode the pickled pieces in `batches`: yield their changes by table, and the result of each."""
        begin_task()
        for number, packed in values_of(batches, "number", "packed"):
            yield from self._decoded(number, pickle.loads(packed))  # noqa: S301 - of our own driver

    def _decoded(self, number: int, piece: Piece) -> Iterator[pa.RecordBatch]:
        config, place = self.config, 0
        result = PieceResult(number, [TablePart() for _ in config.tables], config.decided)
        try:
            for part in self._gathered(piece, result):
                result.waiting = part.waiting
                result.of_transactions |= part.end is BatchEnd.TRANSACTION
                if part.end is BatchEnd.WITHIN_TRANSACTION:
                    raise SourceError(
                        "a transaction is larger than a batch, which only engine: local reads; let batches be larger "
                        "(batch_bytes among the options of the source, memory_limit_bytes)"
                    )
                waiting = deque([part.raw] if part.raw is not None and part.raw.num_read else [])
                while waiting:
                    raw = replace(waiting.popleft(), ingested_at=self.ingested_at)
                    try:
                        done = decode(raw, config)
                    except WideBatchError as error:
                        waiting.extendleft(reversed(parts_of(raw, config, error)))
                        continue
                    for code, batch in enumerate(done.tables.values()):
                        result.tables[code].add(batch)
                        if batch.num_rows:
                            yield row_of(number, place, code, packed_table(batch.table))
                            place += 1
                    result.num_read += raw.num_read
                    result.rejected = Rejected.concat([result.rejected, done.rejected])
                    result.skipped.update(done.skipped)
                    result.untaken.update(done.untaken)
                    result.decided = done.decided
                    if done.rejected.num_rows:
                        result.looks_like = other_format(raw, config.format)
                    config = with_state(config, result)
                result.files |= {file.name: file for file in part.files}
        except PipelineError as error:
            result.error = error
        yield row_of(number, place, _RESULT, pickle.dumps(result))

    def _gathered(self, piece: Piece, result: PieceResult) -> Iterator[Gathered]:
        """The batches of a piece; moves the offsets of the result."""
        name = self.config.format
        complete = complete_events_of(name, self.config.options)
        if self.topics is None:
            pieces = chain.from_iterable(self._read(part) for part in piece if isinstance(part, Part))
            yield from gather(pieces, self.options.batch_rows, self.options.batch_bytes, complete)
            return
        ranges = [part for part in piece if isinstance(part, OffsetRange)]
        with closing(KafkaTopics(self.topics)) as topics:
            whole = replace(ranges[0], stop=ranges[-1].stop)
            waiting: dict[str, int] = {}
            is_text = lookup(name).is_text if name else None
            found = topics.messages_between(whole, self.options.batch_bytes, complete, waiting, is_text=is_text)
            for raw, reached in found:
                yield Gathered(raw, [], waiting=waiting)
                result.offsets[whole.partition] = reached

    def _read(self, part: Part) -> Iterator[FilePiece]:
        for piece in read_pieces(part.file, part.known, self.options, self.filesystem, part.stop):
            is_end = part.stop is None or part.stop >= part.file.size
            yield piece if is_end else replace(piece, after=replace(piece.after, finished=False))


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """Decodes the partitions of a DataFrame, each as a piece; pickled to the workers.

    Attributes:
        changes: makes changes of the rows of a partition, whose number it gets.
        names: columns of the rows; `IngestJobs.decode_rows` passes rows without them.
        most_bytes: rows that are decoded together.
    """

    changes: Callable[[Iterable[pa.Table], int], Iterable[ChangeBatch]]
    names: Sequence[str]
    most_bytes: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the changes of `batches`, and the result of the partition."""
        from pyspark import TaskContext  # which every worker has imported

        begin_task()
        number = TaskContext.get().partitionId()
        rows = (pa.Table.from_batches([batch.rename_columns(self.names)]) for batch in batches)
        yield from _piece_of(number, 0, self.changes(gathered(rows, self.most_bytes), number))


def _piece_of(number: int, code: int, batches: Iterable[ChangeBatch]) -> Iterator[pa.RecordBatch]:
    """The changes of a table as those of a piece, and the result of that."""
    result = PieceResult(number, [TablePart()], Decided())
    try:
        for place, batch in enumerate(batches):
            result.tables[0].add(batch)
            yield row_of(number, place, code, packed_table(batch.table))
    except PipelineError as error:
        result.error = error
    yield row_of(number, 0, _RESULT, pickle.dumps(result))


def repeated_hashes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Task: yield the hashes of keys that occur more than once in buckets of changes."""
    begin_task()
    keys = [_keys(unpacked_table(data)) for (data,) in values_of(batches, "data")]
    if keys:
        yield row_of(0, 0, 0, repeated(np.concatenate([*map(key_hashes, keys)])).tobytes())


@dataclass(frozen=True, slots=True)
class WriteLog:
    """Writes the changes of pieces to files of the change log; pickled to the workers.

    Attributes:
        target: schema and place of the files.
        spec: partition spec under which they are written.
        row_type: columns of all rows.
        key: key columns.
        firsts: the ordinal of the first change of each piece.
        most_bytes: changes that are held for a file.
    """

    target: WriteTarget
    spec: PartitionSpec
    row_type: pa.StructType
    key: tuple[str, ...]
    firsts: Mapping[int, int]
    most_bytes: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return a report of the files of the changes in `batches`."""
        begin_task()
        written = Written()
        held: list[pa.Table] = []
        for _, first, changes in numbered(batches, self.row_type, self.key, self.firsts):
            written.num_changes += changes.num_rows
            ordinals = pa.array(np.arange(first, first + changes.num_rows, dtype=np.int64))
            held.append(changes.add_column(0, pa.field(ORDINAL, pa.int64()), ordinals))
            if sum(table.nbytes for table in held) >= self.most_bytes:
                written.files += write_rows(pa.concat_tables(held), self.target, self.spec)
                held = []
        if held:
            written.files += write_rows(pa.concat_tables(held), self.target, self.spec)
        yield row_of(0, 0, 0, pickle.dumps(written))


def numbered(
    batches: Iterable[pa.RecordBatch],
    row_type: pa.StructType,
    key: tuple[str, ...],
    firsts: Mapping[int, int],
    columns: Sequence[str] | None = None,
) -> Iterator[tuple[tuple[int, int], int, pa.Table]]:
    """((piece, place), first ordinal, changes) of all rows of a task; of the changes only these columns, None for all."""
    at: dict[int, int] = dict(firsts)
    last = (-1, -1)
    for piece, place, data in values_of(batches, "piece", "place", "data"):
        if piece == last[0] and place <= last[1]:
            raise RuntimeError(f"changes of piece {piece} are out of order: {place} after {last[1]}")
        last = (piece, place)
        own = in_row_type(unpacked_table(data, columns), row_type, key)
        yield last, at[piece], own
        at[piece] += own.num_rows


@dataclass(slots=True)
class Written:
    """What tasks wrote.

    Attributes:
        files: new files.
        num_changes: changes that they come from.
        num_missed: removals of rows that do not exist, as far as known without reading the table.
    """

    files: list[ContentFile] = field(default_factory=list)
    num_changes: int = 0
    num_missed: int = 0


@dataclass(frozen=True, slots=True)
class ToBuckets:
    """Distributes changes to buckets by key; pickled to the workers. Changes before `first` have no effect.

    Only what folding reads travels: neither old rows nor where a change comes from.
    """

    row_type: pa.StructType
    key: tuple[str, ...]
    firsts: Mapping[int, int]
    num_buckets: int
    first: int
    most_bytes: int
    columns: Sequence[str]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the changes of `batches` by bucket, many at a time, as every row of Spark repeats their schema."""
        begin_task()
        held: list[pa.Table] = []
        at = (-1, -1)
        for (piece, place), ordinal, changes in numbered(batches, self.row_type, self.key, self.firsts, self.columns):
            if held and (piece != at[0] or sum(table.nbytes for table in held) >= self.most_bytes):
                yield from self._by_bucket(*at, pa.concat_tables(held))
                held = []
            at = (piece, place)
            held.append(changes.slice(min(changes.num_rows, max(0, self.first - ordinal))))
        if held:
            yield from self._by_bucket(*at, pa.concat_tables(held))

    def _by_bucket(self, piece: int, place: int, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        codes = hash_codes(_keys(rows), self.num_buckets)
        for number, own in by_part(rows, codes, self.num_buckets):
            yield row_of(piece, place, number, packed_table(own))


@dataclass(frozen=True, slots=True)
class FoldBuckets:
    """Folds the changes of each bucket, and writes data files and delete files; pickled to the workers.

    Attributes:
        order: how they become files.
        after_truncate: whether the table is emptied before the changes.
        limit_bytes: changes that are held in memory.
    """

    order: FoldOrder
    after_truncate: bool
    limit_bytes: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return a report of the files of the buckets in `batches`, which are sorted by bucket, piece and place."""
        begin_task()
        rows = groupby(values_of(batches, "number", "data"), key=lambda row: row[0])
        written = self.written((unpacked_table(data) for _, data in bucket) for _, bucket in rows)
        yield row_of(0, 0, 0, pickle.dumps(written))

    def written(self, buckets: Iterable[Iterable[pa.Table]]) -> Written:
        """Write the files of buckets of changes."""
        written, deletes = Written(), list[pa.Table]()
        for bucket in buckets:
            with closing(ChangeRun.of(bucket, self.limit_bytes)) as run:
                written.num_changes += run.num_rows
                for part in parts_by_key(run, self.order.key, self.limit_bytes, partial(squash, key=self.order.key)):
                    deletes.append(self._fold(part.changes, written))
            if sum(held.nbytes for held in deletes) > self.limit_bytes:
                self._write(deletes, written)
                deletes = []
        self._write(deletes, written)
        return written

    def _fold(self, changes: pa.Table, written: Written) -> pa.Table:
        """Write the rows of changes; return the keys to delete."""
        order, key_ids = self.order, self._key_ids
        folded = fold(changes, order.key, after_truncate=self.after_truncate)
        if folded.needs_lookup is not None or folded.unresolved.num_rows:
            raise RuntimeError("changes that lack values of their rows are not folded in tasks")
        written.num_missed += folded.num_missed
        written.files += write_rows(folded.upserts, order.target, order.spec, key_ids=key_ids)
        keys = conform(folded.deletes, order.target.schema.select(key_ids))
        if self.after_truncate:
            return keys.slice(0, 0)
        wanted = order.live.may_hold(keys)
        written.num_missed += int((folded.delete_removes & ~wanted).sum())
        if order.trusts_inserts:
            wanted &= ~folded.delete_is_insert
        return keys.filter(pa.array(wanted))

    def _write(self, deletes: Sequence[pa.Table], written: Written) -> None:
        keys = pa.concat_tables(deletes) if deletes else None
        if keys is not None and keys.num_rows and (spec := self.order.delete_spec) is not None:
            written.files += write_deletes(keys, self.order.target, spec, self._key_ids)

    @property
    def _key_ids(self) -> tuple[int, ...]:
        return tuple(self.order.target.schema.find(name).field_id for name in self.order.key)


@dataclass(frozen=True, slots=True)
class ToRanges:
    """Distributes changes to ranges of their places in the order of `order_by`; pickled to the workers.

    Attributes:
        row_type: columns of all rows.
        key: key columns.
        bounds: the first place of each range but the first.
    """

    row_type: pa.StructType
    key: tuple[str, ...]
    bounds: Sequence[str]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the changes of `batches` by range. Those of a batch are in order."""
        begin_task()
        for piece, place, data in values_of(batches, "piece", "place", "data"):
            own = in_row_type(unpacked_table(data), self.row_type, self.key)
            places, rows = own.column(ORDER), range(own.num_rows)
            cuts = [bisect_left(rows, bound, key=lambda row: places[row].as_py()) for bound in self.bounds]
            for number, (start, stop) in enumerate(pairwise([0, *cuts, len(rows)])):
                if stop > start:
                    yield row_of(piece, place, number, packed_table(own.slice(start, stop - start)))


@dataclass(frozen=True, slots=True)
class SortRanges:
    """Sorts the changes of ranges; pickled to the workers. What it yields has the form of decoded pieces.

    Attributes:
        code: number of the table in the feed.
        row_type: columns of all rows.
        key: key columns.
        limit_bytes: changes that are held in memory.
    """

    code: int
    row_type: pa.StructType
    key: tuple[str, ...]
    limit_bytes: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the changes of each range in order, and its result; `batches` are sorted by range, piece and place."""
        begin_task()
        for number, given in groupby(values_of(batches, "number", "data"), key=lambda row: row[0]):
            with closing(ChangeRun.of((unpacked_table(data) for _, data in given), self.limit_bytes)) as run:
                rows = partial(_batches, run)
                parts = sorted_rows(rows(), Order((ORDER,)), self.limit_bytes, rows)
                changes = (ChangeBatch(part, self.row_type, self.key) for part in parts)
                yield from _piece_of(number, self.code, changes)


def _batches(run: ChangeRun) -> Iterator[pa.RecordBatch]:
    for table in run.tables():
        yield from table.to_batches()


def run_each(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Task: call pickled functions, several in each row; return their results."""
    begin_task()
    for number, packed in values_of(batches, "number", "packed"):
        yield row_of(number, 0, 0, pickle.dumps([task() for task in pickle.loads(packed)]))  # noqa: S301 - of our own driver


def lines_or_error(
    file: ListedFile, start: int, stop: int, filesystem: FileSystem | None
) -> tuple[int, int] | SourceError:
    """`whole_lines`; why the file cannot be read."""
    try:
        return whole_lines(file, start, stop, filesystem)
    except SourceError as error:
        return error


def check_found(paths: Iterable[str]) -> None:
    """Refuse files of tasks that are on another machine.

    Raises:
        SourceError: one is a local file that does not exist here.
    """
    for path in paths:
        if (place := parse_location(path)).is_local and not Path(place.path).exists():
            raise SourceError(
                f"a task has written {path} on another machine: let the warehouse be an object store, or a folder that all "
                "machines share; nothing was committed"
            )


def _check_number(found: int, decoded: int) -> None:
    if found != decoded:
        raise SourceError(
            f"tasks found {found} changes where {decoded} were decoded before: the source has changed while it was read; "
            "nothing was committed, run again"
        )


T = TypeVar("T")
MAX_TASKS = 4_000
"""Maximum tasks of a job: more functions become larger tasks."""


@dataclass(frozen=True, slots=True)
class IngestJobs(SparkJobs):
    """The Spark jobs of an ingest."""

    def counted_lines(
        self, parts: Sequence[tuple[ListedFile, int, int]], filesystem: FileSystem | None
    ) -> list[tuple[int, int]]:
        """`whole_lines` of parts of files.

        Raises:
            SourceError: a file cannot be read.
        """
        found = []
        for answer in self.in_tasks(partial(lines_or_error, *part, filesystem) for part in parts):
            if isinstance(answer, SourceError):
                raise answer
            found.append(answer)
        return found

    def in_tasks(self, functions: Iterable[Callable[[], T]]) -> Iterator[T]:
        """Call functions, which must not raise, in tasks; return their results in order.

        Raises:
            SourceError: the job failed.
        """
        asked = list(functions)
        each = -(-len(asked) // MAX_TASKS) or 1
        packed = {n: pickle.dumps(asked[n : n + each]) for n in range(0, len(asked), each)}
        rows = self.collected(self.spread(packed).mapInArrow(run_each, ROWS)) if packed else []
        for row in sorted(rows, key=lambda row: row["piece"]):
            yield from pickle.loads(bytes(row["data"]))  # noqa: S301 - of our own tasks

    def decode(self, pieces: Mapping[int, Piece], task: DecodePieces) -> tuple[Any, list[PieceResult]]:
        """(changes, which Spark keeps until `unpersist`; the results of the pieces in order).

        Raises:
            SourceError: the job failed.
        """
        frame = self.spread({number: pickle.dumps(piece) for number, piece in pieces.items()})
        with self.for_few_rows():  # what is kept is planned now
            decoded = frame.mapInArrow(task, ROWS).persist()
        return decoded, self._results(decoded)

    def decode_rows(self, frame: Any, changes: Any, most_bytes: int) -> tuple[Any, list[PieceResult]]:
        """As `decode`; see `DecodeRows`. Rows are computed once: if an executor is lost, the jobs fail, as a DataFrame may give other rows then."""
        from nevermore.scan_core.spark import equip

        equip(self.session)
        # `mapInArrow` looks columns up by name, and does not find those with dots, or that differ in letter case alone.
        names = frame.columns
        by_place, task = frame.toDF(*map(str, range(len(names)))), DecodeRows(changes, names, most_bytes)
        with failing():
            decoded = by_place.mapInArrow(task, ROWS).localCheckpoint()
        return decoded, self._results(decoded.coalesce(self.num_slots()))

    def _results(self, decoded: Any) -> list[PieceResult]:
        rows = self.collected(decoded.where(f"number = {_RESULT}").select("data"))
        results = (pickle.loads(bytes(row["data"])) for row in rows)  # noqa: S301 - of our own tasks
        return sorted(results, key=lambda result: result.number)

    def repeated(self, changes: "DecodedChanges", total: TablePart, limit: int) -> Any:
        """Hashes of keys that occur more than once.

        Raises:
            SourceError: as `write_log`.
        """
        hashes = self._by_bucket(changes, total, limit, ("key",)).mapInArrow(repeated_hashes, ROWS)
        return np.frombuffer(b"".join(bytes(row["data"]) for row in self.collected(hashes)), np.uint64)

    def in_order(
        self, changes: "DecodedChanges", spread: ToRanges, limit: int
    ) -> tuple["DecodedChanges", TablePart, Any]:
        """(changes in the order of their places; what they contribute; what Spark keeps of them until `unpersist`).

        Raises:
            SourceError: as `write_log`.
        """
        ranges = self._shuffled(changes, spread, len(spread.bounds) + 1)
        with self.for_few_rows():
            ordered = ranges.mapInArrow(SortRanges(changes.code, spread.row_type, spread.key, limit), ROWS).persist()
        total, rows = TablePart(), {}
        for result in self._results(ordered):
            if result.error is not None:
                raise result.error
            total.then(result.tables[0])
            rows[result.number] = result.tables[0].num_rows
        _check_number(total.num_rows, changes.num_rows)
        return DecodedChanges([(ordered, 0, max(rows))], changes.code, rows), total, ordered

    def fetched(self, changes: "DecodedChanges", row_type: pa.StructType, key: tuple[str, ...]) -> Iterator[pa.Table]:
        """The changes in order, for this process.

        Raises:
            SourceError: as `write_log`.
        """
        found = 0
        for row in self.streamed(changes.frame(self.num_slots()).sort("piece", "place").select("data")):
            own = in_row_type(unpacked_table(bytes(row["data"])), row_type, key)
            yield own
            found += own.num_rows
        _check_number(found, changes.num_rows)

    def write_log(self, changes: "DecodedChanges", task: WriteLog) -> list[ContentFile]:
        """Write the changes to files of the change log.

        Raises:
            SourceError: the job failed, or a file has changed since it was read.
        """
        return self._written(self._passed(changes, task), changes.num_rows).files

    def write_mirror(
        self, changes: "DecodedChanges", total: TablePart, task: FoldBuckets
    ) -> tuple[list[ContentFile], int]:
        """Write the files of a mirror.

        Raises:
            SourceError: as `write_log`.
        """
        ordered = self._by_bucket(changes, total, task.limit_bytes, _FOLDED, total.rows_to_truncate)
        written = self._written(ordered.mapInArrow(task, ROWS), changes.num_rows - total.rows_to_truncate)
        return written.files, written.num_missed

    def _by_bucket(
        self, changes: "DecodedChanges", total: TablePart, limit: int, columns: Sequence[str], first: int = 0
    ) -> Any:
        """The changes, without those before `first`, by buckets of keys, in their order."""
        buckets = changes.num_tasks(self.num_slots())
        spread = ToBuckets(total.row_type, total.key, changes.firsts(0), buckets, first, limit, columns)
        return self._shuffled(changes, spread, buckets)

    def _shuffled(self, changes: "DecodedChanges", spread: Any, most: int) -> Any:
        whole = self._passed(changes, spread).repartition(most, "number")
        return whole.sortWithinPartitions("number", "piece", "place")

    def _passed(self, changes: "DecodedChanges", task: Any) -> Any:
        """What a task makes of the changes."""
        return changes.frame(self.num_slots()).mapInArrow(task, ROWS)

    def _written(self, frame: Any, num_changes: int) -> Written:
        parts = [pickle.loads(bytes(row["data"])) for row in self.collected(frame)]  # noqa: S301 - of our own tasks
        files = [file for part in parts for file in part.files]
        total = Written(files, sum(p.num_changes for p in parts), sum(p.num_missed for p in parts))
        _check_number(total.num_changes, num_changes)
        check_found(file.path for file in files)
        return total


@dataclass(frozen=True, slots=True)
class DecodedChanges:
    """The changes of one table in the kept results of jobs.

    Attributes:
        frames: results, each with the numbers of the first and last piece that count.
        code: number of the table in the feed.
        rows: number of changes by piece.
    """

    frames: Sequence[tuple[Any, int, int]]
    code: int
    rows: Mapping[int, int]

    @property
    def num_rows(self) -> int:
        """Number of changes."""
        return sum(self.rows.values())

    def firsts(self, first: int) -> dict[int, int]:
        """The ordinal of the first change of each piece, if that of the first piece is `first`."""
        numbers = sorted(self.rows)
        starts = np.cumsum([first, *(self.rows[number] for number in numbers)]).tolist()
        return dict(zip(numbers, starts, strict=False))

    def num_tasks(self, num_slots: int) -> int:
        """Tasks that pass over them on a cluster of so many slots: a task costs Java as much as many changes."""
        pieces = len(self.rows)
        return max(1, min(pieces, num_slots), min(pieces // PIECES_PER_TASK, self.num_rows // CHANGES_PER_TASK))

    def frame(self, num_slots: int) -> Any:
        """The changes, in partitions for a cluster of so many slots."""
        chosen = [f.where(f"number = {self.code} and piece between {a} and {b}") for f, a, b in self.frames]
        whole = reduce(type(chosen[0]).union, chosen)
        return whole.coalesce(self.num_tasks(num_slots))


def remote_changes(
    jobs: IngestJobs,
    changes: DecodedChanges,
    total: TablePart,
    bounds: Sequence[str] | None,
    *,
    limit: int,
    kept: list[Any],
) -> RemoteChanges | None:
    """Changes of a table that tasks write, for the change log and the mirror.

    Args:
        jobs: starts the jobs.
        changes: the decoded changes, in the order of the feed.
        total: what they contribute to the table.
        bounds: with `order_by`, the first place of each range of sorted changes but the first; None to keep the order.
        limit: bytes of changes that a task holds.
        kept: receives the frames that Spark keeps until the caller unpersists them.
    """
    if total.row_type is None:
        return None
    row_type, key = total.row_type, total.key
    if bounds is not None:
        changes, total, frame = jobs.in_order(changes, ToRanges(row_type, key, bounds), limit)
        kept.append(frame)

    def write_log(target: WriteTarget, spec: PartitionSpec, first: int) -> list[ContentFile]:
        task = WriteLog(target, spec, row_type, key, changes.firsts(first), limit)
        return jobs.write_log(changes, task)

    def write_mirror(order: FoldOrder) -> tuple[list[ContentFile], int]:
        return jobs.write_mirror(changes, total, FoldBuckets(order, total.rows_to_truncate > 0, limit))

    return RemoteChanges(
        num_rows=total.num_rows,
        schema=change_schema(row_type, key, is_ordered=bounds is not None),
        counts=total.counts,
        truncates=total.rows_to_truncate > 0,
        first_place=min(total.places, default=None),
        last_place=max(total.places, default=None),
        why_local="some changes lack values, which are in the rows of the mirror"
        if total.lacks_values
        else "some changes give a row another key"
        if total.moves_rows
        else None,
        write_log=write_log,
        write_mirror=write_mirror,
        tables=lambda: jobs.fetched(changes, row_type, key),
    )
