"""Reads a feed of files or topics with the tasks of Spark: the driver cuts it into pieces, orders the results, and commits.

A piece is decoded with all that earlier pieces have shown (types, keys, encodings), as if one process read everything:
pieces are decoded together as long as none shows anything new, and those after one that does are decoded again.
"""

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from nevermore.pipelines.changes.change_log import RemoteChanges
from nevermore.pipelines.changes.change_run import BATCH_SHARE, in_groups
from nevermore.pipelines.config.project import SparkConfig
from nevermore.pipelines.config.sources import KafkaSource
from nevermore.pipelines.decode.batches import Rejected
from nevermore.pipelines.decode.feed import POSITION, FeedConfig
from nevermore.pipelines.errors import PipelineError, SchemaConflictError, SourceError
from nevermore.pipelines.ingest.feeds import Feed
from nevermore.pipelines.sources.file_changes import AppliedLines, OnSkipped, Sweep, begin_sweep
from nevermore.pipelines.sources.file_listing import ListedFile, is_quiet
from nevermore.pipelines.sources.file_position import FilePosition, ReadFile
from nevermore.pipelines.sources.file_reader import line_layout
from nevermore.pipelines.sources.files import Gathered, advanced
from nevermore.pipelines.sources.kafka import KafkaPosition, KafkaTopics, OffsetRange
from nevermore.pipelines.spark.ingest import (
    DecodedChanges,
    DecodePieces,
    IngestJobs,
    Part,
    Piece,
    PieceResult,
    TablePart,
    remote_changes,
    united,
    with_state,
)
from nevermore.pipelines.spark.jobs import forget
from nevermore.pipelines.workers import ahead

PIECE_MESSAGES = 50_000
"""Messages of a piece: tasks read them in batches, so that their memory depends on the size of a batch alone."""
PIECE_BATCHES = 8
"""Batches that a piece of files holds at most, unless there is too much input: a task costs as much as reading some of them."""
PIECES_PER_SLOT = 4
"""Pieces are no larger than leaves each slot of the cluster this many."""
MAX_PIECES = 4_000
"""A shuffle has a block for each pair of a piece and a bucket: more input makes larger pieces, not more of them."""
LOOKED_AT_BYTES = 4 * 1024**3
"""Size of new files from which tasks, not the driver, look at their bytes to know them again."""
_GROWTH = 8
"""While pieces show nothing new, each round has this many times the pieces of the one before."""
_NEVER_QUIET = 2**62
"""Time of arrival of a file whose end may be unfinished: attempts of a task must agree on that, however late they run."""


@dataclass(frozen=True, slots=True)
class SparkBatch:
    """Decoded events that are committed together.

    Attributes:
        tables: changes of each table, None for none, and the columns of the feed that its events have.
        pieces: what decoding its pieces has found.
        rejected: events that could not be decoded.
        position: position after them, as text.
        frames: what Spark keeps until `close`.
    """

    tables: Mapping[str, tuple[RemoteChanges | None, frozenset[str]]]
    pieces: Sequence[PieceResult]
    rejected: Rejected
    position: str
    frames: Sequence[Any]

    def close(self) -> None:
        """Let Spark forget the changes."""
        for frame in self.frames:
            frame.unpersist()


@dataclass(slots=True)
class _Gathering:
    """Results that will be one batch. Mutable.

    Attributes:
        totals: what they contribute to each table.
        results: the results.
        frames: what Spark keeps of them, each with the numbers of the first and last piece that count.
    """

    totals: list[TablePart]
    results: list[PieceResult] = field(default_factory=list)
    frames: list[tuple[Any, int, int]] = field(default_factory=list)

    def takes(self, result: PieceResult) -> bool:
        """Whether a piece can be committed together with these: same keys, compatible types."""
        return all(
            known.row_type is None
            or part.row_type is None
            or (known.key == part.key and united(known.row_type, part.row_type) is not None)
            for known, part in zip(self.totals, result.tables, strict=True)
        )

    def take(self, result: PieceResult) -> None:
        """Add a result."""
        self.results.append(result)
        for total, part in zip(self.totals, result.tables, strict=True):
            total.then(part)

    def widen(self, config: FeedConfig) -> None:
        """Add the tables that a config has in addition: no event was theirs so far."""
        for results in (self.totals, *(result.tables for result in self.results)):
            results += [TablePart() for _ in config.tables[len(results) :]]

    def part(self, code: int) -> tuple[DecodedChanges, TablePart]:
        """The changes of a table as the tasks have them, and what they contribute."""
        rows = {result.number: result.tables[code].num_rows for result in self.results}
        changes = DecodedChanges(tuple(self.frames), code, {n: count for n, count in rows.items() if count})
        return changes, self.totals[code]

    def remote(self, jobs: IngestJobs, code: int, order_by: Any, limit: int, kept: list[Any]) -> RemoteChanges | None:
        """The changes of a table, as `remote_changes` has them."""
        changes, total = self.part(code)
        is_ordered = order_by != POSITION and total.places
        bounds = range_bounds(total.places, changes.num_tasks(jobs.num_slots())) if is_ordered else None
        return remote_changes(jobs, changes, total, bounds, limit=limit, kept=kept)


def range_bounds(places: Sequence[str], most: int) -> tuple[str, ...]:
    """The first places of all ranges but the first, which hold about as many of these places each: at most `most` ranges."""
    ordered = sorted(places)
    chosen = {ordered[len(ordered) * number // most] for number in range(1, most)}
    return tuple(sorted(chosen - {ordered[0]}))


Position = FilePosition | KafkaPosition
Join = Callable[[Collection[str]], FeedConfig | None]
"""Makes mirrors for tables of the feed that nothing takes yet; the config with them at the end, None if there are none."""


@dataclass(frozen=True, slots=True)
class _Work:
    """The pieces of what is new, and how positions follow from their results.

    Attributes:
        pieces: in order.
        start: the position before them.
        reached: the position after some results, from the one before them.
        ended: the same after all of them.
        continues: whether a group of events may continue from one piece in the next.
        has_moved: whether a position is worth a commit without events.
    """

    pieces: list[Piece]
    start: Position
    reached: Callable[[Any, Sequence[PieceResult]], Position]
    ended: Callable[[Any], Position]
    continues: Callable[[Piece, Piece], bool]
    has_moved: Callable[[Any], bool]

    def joins_next(self, result: PieceResult) -> bool:
        """Whether a group of events continues in the next piece; then both become one, which is decoded again."""
        pieces, number = self.pieces, result.number
        is_last = number + 1 == len(pieces)
        if not result.waiting or result.error or is_last or not self.continues(*pieces[number : number + 2]):
            return False
        pieces[number : number + 2] = [(*pieces[number], *pieces[number + 1])]
        return True


class FrameRows:
    """The rows of a DataFrame of Spark, decoded by its tasks."""

    def __init__(self, frame: Any, limit_bytes: int) -> None:
        self._jobs, self._frame, self._limit = IngestJobs(frame.sparkSession), frame, limit_bytes
        self._decoder: Any = None
        self._gathering, self._kept = _Gathering([TablePart()]), list[Any]()

    def changes(self, decoder: Any, order_by: Any) -> RemoteChanges | None:
        """The rows as changes, decoded again only by another decoder; None without rows.

        Raises:
            PipelineError: as the decoder, or the job failed.
        """
        if decoder != self._decoder:
            self.close()
            self._gathering = _Gathering([TablePart()])
            frame, results = self._jobs.decode_rows(self._frame, decoder, self._limit)
            self._gathering.frames.append((frame, 0, len(results)))
            for result in results:
                if result.error is not None:
                    raise result.error
                if not self._gathering.takes(result):
                    raise SchemaConflictError("the rows of partitions have columns whose types do not fit: cast them")
                self._gathering.take(result)
            self._decoder = decoder
        return self._gathering.remote(self._jobs, 0, order_by, self._limit, self._kept)

    def repeated(self) -> Any:
        """Hashes of keys that occur more than once in the rows."""
        return self._jobs.repeated(*self._gathering.part(0), self._limit)

    def close(self) -> None:
        """Let Spark forget the rows."""
        for frame, _, _ in self._gathering.frames:
            forget(frame)
        for frame in self._kept:
            frame.unpersist()


class SparkReading:
    """Reads what is new in a feed of files or topics with Spark."""

    def __init__(
        self,
        feed: Feed,
        spark: SparkConfig,
        config: FeedConfig,
        *,
        applied: AppliedLines,
        on_skipped: OnSkipped,
        warn: Callable[[str], None] | None,
        join: Join,
    ) -> None:
        """`config` is the decoder's config before the first piece; `applied`, `on_skipped` and `warn` are those of `discover`."""
        from nevermore.pipelines.spark.session import project_session

        self._feed = feed
        self._config = config
        self._applied = applied
        self._skip = on_skipped
        self._warn = warn
        self._join = join
        self._options = feed.task_options
        self._filesystem = feed.listing.filesystem if feed.topics is None else None
        self._ingested_at = datetime.now(UTC)
        self._jobs = IngestJobs(project_session(spark))

    def batches(self, position: str | None) -> Iterator[SparkBatch]:
        """Decode everything after a position; a batch ends where keys or types change in a way that needs a commit.

        Raises:
            SourceError: no such path, or a file that cannot be read; everything before it was yielded.
            PipelineError: the same for events that cannot be decoded.
        """
        if self._feed.topics is not None:
            yield from self._decoded(self._of_topics(self._feed.topics, position))
            return
        now = FilePosition() if position is None else FilePosition.from_json(position)
        if not self._feed.listing.files and position is None:
            raise SourceError(f"no file matches {', '.join(self._feed.listing.patterns)}")
        for _ in range(2 if now.is_sweeping else 1):
            settled = now.settled_ns
            size = sum(file.size for file in self._feed.listing.files if file.arrived_ns > settled)
            look = self._jobs.in_tasks if size > LOOKED_AT_BYTES else ahead
            sweep = begin_sweep(
                self._feed.listing, now, self._options, self._applied, self._skip, warn=self._warn, look=look
            )
            now = yield from self._decoded(self._of_files(sweep))

    def _of_files(self, sweep: Sweep) -> _Work:
        def reached(now: FilePosition, results: Sequence[PieceResult]) -> FilePosition:
            files: dict[str, ReadFile] = {}
            for result in results:
                files |= result.files
            waiting = results[-1].waiting if results else {}
            return advanced(now, Gathered(None, list(files.values()), waiting=waiting), self._skip)

        pieces = self._pieces(sweep.files)
        return _Work(
            pieces,
            sweep.position,
            reached,
            ended=sweep.settled,
            continues=lambda _, following: bool(following),
            has_moved=lambda _: False,
        )

    def _of_topics(self, topics: KafkaTopics, position: str | None) -> _Work:
        start, ranges = topics.ranges(position)
        most = max(PIECE_MESSAGES, sum(stop - first for _, first, stop in ranges) // MAX_PIECES)
        pieces: list[Piece] = [
            (OffsetRange(partition, at, min(at + most, stop)),)
            for partition, first, stop in ranges
            for at in range(first, stop, most)
        ]

        def reached(now: KafkaPosition, results: Sequence[PieceResult]) -> KafkaPosition:
            offsets = dict(now.offsets)
            for result in results:
                offsets |= result.offsets
                for reason, count in result.waiting.items():
                    self._skip(reason, count)
            return replace(now, offsets=offsets)

        def is_one_partition(piece: Piece, following: Piece) -> bool:
            return isinstance(piece[0], OffsetRange) and piece[0].partition == following[0].partition  # type: ignore[union-attr]

        known = {} if position is None else KafkaPosition.from_json(position).offsets
        # Ends of transactions have offsets, too: without a commit they would be read again by every run.
        return _Work(
            pieces,
            start,
            reached,
            ended=lambda now: now,
            continues=is_one_partition,
            has_moved=lambda now: now.offsets != known,
        )

    def _decoded(self, work: _Work) -> Generator[SparkBatch, None, Any]:
        """Yield the batches of pieces; return the position after them."""
        pieces, now, at = work.pieces, work.start, 0
        size = len(pieces) if all(t.known_types for t in self._config.tables) else 1
        gathering = _Gathering([TablePart() for _ in self._config.tables])
        while at < len(pieces):
            chosen = dict(enumerate(pieces[at : at + size], at))
            frame, results = self._jobs.decode(chosen, self._task())
            first = at
            for found in results:
                if work.joins_next(found) or (result := self._with_tables(found, gathering)) is None:
                    break
                if not gathering.takes(result):
                    if result.number > first:
                        gathering.frames.append((frame, first, result.number - 1))
                    now = work.reached(now, gathering.results)
                    yield from self._batch(gathering, now, work)
                    # The frame may have been released with that batch: what follows is decoded again.
                    gathering = _Gathering([TablePart() for _ in self._config.tables])
                    first = at
                    break
                gathering.take(result)
                at = result.number + 1
                after = with_state(self._config, result)
                is_new, self._config = after != self._config, after
                if result.error is not None:
                    last = result.number if result.num_read else result.number - 1
                    gathering.frames.append((frame, first, last))
                    now = work.reached(now, gathering.results)
                    yield from self._batch(gathering, now, work)
                    raise result.error
                if is_new:
                    break
            if at > first:
                gathering.frames.append((frame, first, at - 1))
            elif frame not in [kept for kept, _, _ in gathering.frames]:
                frame.unpersist()
            size = max(1, size * _GROWTH)
        now = work.ended(work.reached(now, gathering.results))
        yield from self._batch(gathering, now, work)
        return now

    def _with_tables(self, result: PieceResult, gathering: _Gathering) -> PieceResult | None:
        """The result of a piece whose tables have mirrors, or why they cannot have any.

        None if a pattern has made mirrors for some: the piece is decoded again with them.
        """
        try:
            joined = self._join(result.untaken) if result.untaken else None
        except PipelineError as error:
            empty = [TablePart() for _ in result.tables]
            return PieceResult(result.number, empty, self._config.decided, error=error)
        if joined is None:
            return result
        new = joined.tables[len(self._config.tables) :]
        self._config = replace(self._config, tables=(*self._config.tables, *new))
        gathering.widen(self._config)
        return None

    def _task(self) -> DecodePieces:
        return DecodePieces(
            config=self._config,
            options=self._options,
            filesystem=self._filesystem,
            topics=self._feed.source if isinstance(self._feed.source, KafkaSource) else None,
            ingested_at=self._ingested_at,
        )

    def _batch(self, gathering: _Gathering, reached: Position, work: _Work) -> Iterator[SparkBatch]:
        """The batch of what was gathered; none if there is nothing to commit."""
        results, decided = gathering.results, self._config.decided
        frames = [frame for frame, _, _ in gathering.frames]
        if not any(result.num_read for result in results) and not work.has_moved(reached):
            for frame in frames:
                frame.unpersist()
            return
        after, limit = replace(reached, decided=decided), self._feed.memory_limit_bytes // BATCH_SHARE
        yield SparkBatch(
            tables={
                table.name: (
                    gathering.remote(self._jobs, code, table.order_by, limit, frames),
                    frozenset(gathering.totals[code].sent),
                )
                for code, table in enumerate(self._config.tables)
            },
            pieces=results,
            rejected=Rejected.concat(result.rejected for result in results),
            position=after.to_json(),
            frames=frames,
        )

    def _pieces(self, files: Sequence[tuple[ListedFile, ReadFile]]) -> list[Piece]:
        """Cut files into parts, where their format allows it, and gather small ones."""
        total = sum(file.size for file, _ in files)
        most = piece_bytes(total, self._options.batch_bytes, self._jobs.num_slots())
        pinned = [(file if is_quiet(file) else replace(file, arrived_ns=_NEVER_QUIET), known) for file, known in files]
        parts = [[Part(file, known, file.size)] for file, known in pinned]
        layouts = self._layouts(pinned, most)
        asked = [
            (n, start, min(start + most, pinned[n][0].size))
            for n in layouts
            for start in range(pinned[n][1].read_bytes, pinned[n][0].size, most)
        ]
        if asked:
            places = [(pinned[n][0], start, stop) for n, start, stop in asked]
            found = self._jobs.counted_lines(places, self._filesystem)
            for number, layout in layouts.items():
                own = [answer for (n, _, _), answer in zip(asked, found, strict=True) if n == number]
                parts[number] = _lines_of(*pinned[number], layout, own)
        cut = (part for of_file in parts for part in of_file)
        return [
            tuple(held)
            for held in in_groups(cut, lambda part: (part.stop or part.file.size) - part.known.read_bytes, most)
        ]

    def _layouts(self, files: Sequence[tuple[ListedFile, ReadFile]], most: int) -> dict[int, str]:
        """The layout of lines of each file that is to be cut, by its number."""
        found = {}
        for number, (file, known) in enumerate(files):
            if file.size - known.read_bytes > most and (layout := self._layout(file, known)) is not None:
                found[number] = layout
        return found

    def _layout(self, file: ListedFile, known: ReadFile) -> str | None:
        try:
            layout = line_layout(file, known, self._options, self._filesystem)
        except SourceError:
            return None  # the task that reads the file reports it
        return None if layout is None else layout.value


def _lines_of(file: ListedFile, known: ReadFile, layout: str, found: Sequence[tuple[int, int]]) -> list[Part]:
    """The parts of a file, from the begin of the first line and the number of lines of each place that was looked at."""
    lines, start = known.lines, known.read_bytes
    parts: list[Part] = []
    begins = [begin for begin, _ in found[1:]] + [file.size]
    for (_, count), stop in zip(found, begins, strict=True):
        if stop > start:
            state = replace(known, read_bytes=start, lines=lines, layout=layout) if parts else known
            parts.append(Part(file, state, stop))
        lines, start = lines + count, stop
    return parts


def piece_bytes(total: int, batch_bytes: int, num_slots: int) -> int:
    """Size of the pieces of files of `total` bytes, for a cluster that runs `num_slots` tasks at once."""
    fair = total // (PIECES_PER_SLOT * num_slots)
    return max(batch_bytes, min(PIECE_BATCHES * batch_bytes, fair), total // MAX_PIECES)
