"""Reads batches of a feed, and finds out what their events are, in other threads while earlier batches are applied.

What becomes of the events depends on the batches before them: on columns, keys, encodings and tables that these brought. It is
decoded in turn.
"""

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

from nevermore.pipelines.decode.feed import FeedConfig
from nevermore.pipelines.formats.registry import ScannedFeed, scan
from nevermore.pipelines.sources.file_changes import AppliedLines, OnSkipped
from nevermore.pipelines.sources.files import FileBatch
from nevermore.pipelines.workers import num_threads

if TYPE_CHECKING:
    from nevermore.pipelines.sources.kafka import KafkaBatch

Batch = Union[FileBatch, "KafkaBatch"]
InTurn = Callable[[AppliedLines], AppliedLines]
"""Makes looking up applied lines wait until all batches before are applied."""
Source = Callable[[OnSkipped, InTurn], Iterator[Batch]]
"""Reads batches; is given what to call for skipped items."""


@dataclass(slots=True)
class Ahead:
    """A batch whose turn has come, with what was done ahead of it."""

    batch: Batch
    done: ScannedFeed | None = None

    def scanned(self, config: FeedConfig) -> ScannedFeed:
        """The events of the batch, as `registry.scan` returns them."""
        return scan(self.batch.raw, config) if self.done is None else self.done


class ScanAhead:
    """The batches of a source in order, the next of which are read and scanned meanwhile.

    Args:
        source: makes the iterator of batches.
        config: of the feed; scanning depends only on its format and options, which stay.
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
            while not self._is_stopped and (batch := next(batches, None)) is not None:
                self._begin(batch)
                with self._changed:
                    self._changed.wait_for(lambda: self._num_read - self._num_applied < self._most or self._is_stopped)
        except BaseException as error:  # noqa: BLE001 - raised where the next batch is asked for
            self._failure = error
        finally:
            with self._changed:
                self._is_at_end = True
                self._changed.notify_all()

    def _begin(self, batch: Batch) -> None:
        item = Ahead(batch)
        with suppress(Exception):  # raised when it is scanned again in its turn
            item.done = scan(batch.raw, self._config)
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
