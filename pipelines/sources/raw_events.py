"""What a source hands to the decoders: documents or rows with their positions, nothing interpreted yet."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.changes.change_batch import Rejected


@dataclass(frozen=True)
class RawEvents:
    """A batch of raw events in source order.

    Either `documents` is set (JSON texts, one event each, surrounding white space allowed) or `rows` is (Parquet, CSV,
    Avro: already columns). The arrays have one entry per event.

    Attributes:
        source_file: file name or topic-partition; dictionary-encoded strings.
        source_offset: line (from 1), row or offset in it.
        documents: binary; NULL is a message without a value (tombstone).
        keys: message keys as binary documents, or None where the source has none.
        rows: columns by name.
        ingested_at: when the batch was read.
        skipped: number of lines left out on purpose, by reason (blank, comment).
        rejected: what could not even be told apart as an event; it has no entry in the arrays.
    """

    source_file: pa.DictionaryArray
    source_offset: pa.Int64Array
    documents: pa.BinaryArray | None = None
    keys: pa.BinaryArray | None = None
    rows: pa.Table | None = None
    ingested_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    skipped: dict[str, int] = field(default_factory=dict)
    rejected: Rejected = field(default_factory=Rejected.none)

    @property
    def num_read(self) -> int:
        """Number of events, rejected ones included."""
        return self.num_events + self.rejected.num_rows

    @property
    def num_events(self) -> int:
        """Number of events."""
        return len(self.source_offset)

    @property
    def num_bytes(self) -> int:
        """Bytes of the events' documents or columns."""
        if self.rows is not None:
            return int(self.rows.nbytes)
        return int(pc.sum(pc.binary_length(self.documents)).as_py() or 0)

    def take(self, rows: pa.Array) -> "RawEvents":
        """The events at these positions, in that order."""
        return replace(
            self,
            source_file=self.source_file.take(rows),
            source_offset=self.source_offset.take(rows),
            documents=None if self.documents is None else self.documents.take(rows),
            keys=None if self.keys is None else self.keys.take(rows),
            rows=None if self.rows is None else self.rows.take(rows),
            skipped={},
            rejected=Rejected.none(),
        )


def from_documents(
    documents: "list[bytes | None] | pa.Array", source_file: str = "", *, keys: list[bytes | None] | None = None
) -> RawEvents:
    """Raw events from documents in memory, with offsets from 1."""
    values = documents if isinstance(documents, pa.Array) else pa.array(documents, pa.binary())
    count = len(values)
    return RawEvents(
        source_file=pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array([source_file])),
        source_offset=pa.array(np.arange(1, count + 1, dtype=np.int64)),
        documents=values,
        keys=None if keys is None else pa.array(keys, pa.binary()),
    )
