"""Reads and decodes batches of a feed in other threads while earlier ones are applied.

What a batch becomes depends on the batches before it: on columns, keys, encodings and tables that they brought. So each is
decoded with what is known once it is read. What was decoded is thrown away if the batches in between have changed that.
"""

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Union

from nevermore.pipelines.decode.feed import FeedConfig
from nevermore.pipelines.formats.registry import DecodedFeed, ScannedFeed, scan
from nevermore.pipelines.sources.file_changes import AppliedLines, OnSkipped
from nevermore.pipelines.sources.files import FileBatch
from nevermore.pipelines.workers import num_threads, submitted

if TYPE_CHECKING:
    from nevermore.pipelines.sources.kafka import KafkaBatch

Batch = Union[FileBatch, "KafkaBatch"]
InTurn = Callable[[AppliedLines], AppliedLines]
"""Makes looking up applied lines wait until all batches before are applied."""
Source = Callable[[OnSkipped, InTurn], Iterator[Batch]]
"""Reads batches; is given what to call for skipped items."""


@dataclass(frozen=True, slots=True)
class _Done:
    """A batch that was scanned, and perhaps decoded, with the config that was assumed for it.

    Scanning depends only on the format and its options, which are the same for all batches of a feed.
    """

    scanned: ScannedFeed
    decoded: DecodedFeed | None = None
    decoded_with: FeedConfig | None = None


@dataclass(slots=True)
class Ahead:
    """A batch whose turn has come, with what was done ahead of it."""

    batch: Batch
    work: "Future[_Done] | None" = None

    def scanned(self, config: FeedConfig) -> ScannedFeed:
        """The events of the batch, as `registry.scan` returns them."""
        done = self._done()
        return scan(self.batch.raw, config) if done is None else done.scanned

    def decoded(self, scanned: ScannedFeed, config: FeedConfig) -> DecodedFeed:
        """The changes of the batch, as `ScannedFeed.decode` returns them."""
        done = self._done()
        if (
            done is None
            or done.decoded is None
            or done.scanned is not scanned
            or not _is_same(done.decoded_with, config)
        ):
            return scanned.decode(config)
        return done.decoded

    def _done(self) -> _Done | None:
        # A failure under assumptions tells nothing: a real one is raised again by doing the work in turn.
        return None if self.work is None or self.work.exception() is not None else self.work.result()


def _is_same(first: FeedConfig | None, second: FeedConfig) -> bool:
    """Whether events are decoded to the same under both; the order of known columns counts, too."""
    return first == second and all(
        list(a.known_types) == list(b.known_types)
        for a, b in zip(first.tables if first else (), second.tables, strict=True)
    )


class DecodeAhead:
    """The batches of a source in order, the next of which are read and decoded meanwhile.

    Args:
        source: makes the iterator of batches.
        config: the decoder's config before the first batch.
        most: how many batches may be held at a time; with 1, each is read when it is asked for.
        on_skipped: called for skipped items in the thread of the caller, before the batch that follows them.
    """

    def __init__(self, source: Source, config: FeedConfig, most: int, on_skipped: OnSkipped) -> None:
        self._source = source
        self._config = config
        self._most = most if num_threads() > 1 else 1
        self._on_skipped = on_skipped
        self._skipped: list[tuple[str, int]] = []
        self._changed = threading.Condition()
        self._ready: deque[tuple[Ahead, Sequence[tuple[str, int]]]] = deque()
        self._num_read = self._num_applied = 0
        self._is_at_end = self._is_stopped = False
        self._failure: BaseException | None = None

    def taken(self) -> Generator[Ahead]:
        """Yield the batches; each counts as applied when the next is asked for.

        Raises:
            SourceError: what reading raises, after the batches before it.
        """
        if self._most <= 1:
            for batch in self._source(self._on_skipped, lambda applied: applied):
                yield Ahead(batch)
            return
        reader = threading.Thread(target=copy_context().run, args=(self._read,), name="nevermore-reader")
        reader.start()
        try:
            while (item := self._next()) is not None:
                yield item
                with self._changed:
                    self._num_applied += 1
                    self._changed.notify_all()
        finally:
            with self._changed:
                self._is_stopped = True
                self._changed.notify_all()
            reader.join()
            for item, _ in self._ready:
                if item.work is not None:
                    item.work.cancel()

    def decides(self, config: FeedConfig) -> None:
        """State the config that the batches so far have led to: what is read from now on is decoded with it."""
        self._config = config

    def _next(self) -> Ahead | None:
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._is_at_end)
            item, skipped = self._ready.popleft() if self._ready else (None, tuple(self._skipped))
        for reason, count in skipped:
            self._on_skipped(reason, count)
        if item is None and self._failure is not None:
            raise self._failure
        return item

    def _read(self) -> None:
        """Read all batches: what the reader's thread does."""
        try:
            batches = self._source(lambda *entry: self._skipped.append(entry), self._in_turn)
            while self._has_room() and (batch := next(batches, None)) is not None:
                self._begin(batch)
        except BaseException as error:  # noqa: BLE001 - raised where the next batch is asked for
            self._failure = error
        finally:
            with self._changed:
                self._is_at_end = True
                self._changed.notify_all()

    def _has_room(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._num_read - self._num_applied < self._most or self._is_stopped)
            return not self._is_stopped

    def _begin(self, batch: Batch) -> None:
        item = Ahead(batch, submitted(partial(self._decoded, batch)))
        with self._changed:
            self._ready.append((item, tuple(self._skipped)))
            self._skipped.clear()
            self._num_read += 1
            self._changed.notify_all()

    def _in_turn(self, applied: AppliedLines) -> AppliedLines:
        def looked_up(files: Sequence[str]) -> Mapping[str, int]:
            with self._changed:
                self._changed.wait_for(lambda: self._num_applied == self._num_read or self._is_stopped)
                return {} if self._is_stopped else applied(files)

        return looked_up

    def _decoded(self, batch: Batch) -> _Done:
        """Scan a batch, and decode it if its columns may be known: the first batch brings those of new tables."""
        config = self._config
        scanned = scan(batch.raw, config)
        is_known = any(table.known_types for table in config.tables)
        return _Done(scanned, scanned.decode(config), config) if is_known else _Done(scanned)
