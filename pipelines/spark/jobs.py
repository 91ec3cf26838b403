"""Runs tasks of our own in Spark: each gets rows of bytes and yields such rows, so that Spark copies bytes and converts nothing.

Tasks import neither pyspark nor what only the driver needs. What tasks write that fail or are overtaken is never named by a
result, so no commit contains it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from nevermore.pipelines.errors import SourceError

ROWS = "piece int, place int, number int, data binary"
"""Rows between tasks: a piece of the work, the place of the data in it, a table or a bucket, and the data."""
_ROW_SCHEMA = pa.schema([("piece", pa.int32()), ("place", pa.int32()), ("number", pa.int32()), ("data", pa.binary())])
FOR_FEW_ROWS = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "4",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Settings for frames of few rows that may take megabytes each: few are passed at a time, and nothing is compiled for them."""


@dataclass(frozen=True, slots=True)
class SparkJobs:
    """Starts jobs in a session and collects what they report."""

    session: Any

    def num_slots(self) -> int:
        """How many tasks the session runs at once."""
        from nevermore.scan_core.spark import parallelism_of

        return parallelism_of(self.session)

    def spread(self, packed: Mapping[int, bytes]) -> Any:
        """A frame of numbered work with one row per task, in columns `number` and `packed`."""
        rows = {"number": pa.array(list(packed), pa.int32()), "packed": pa.array(list(packed.values()), pa.binary())}
        return self.session.createDataFrame(pa.table(rows)).coalesce(1).repartition(len(packed))

    def collected(self, frame: Any) -> list[Any]:
        """The rows of a frame.

        Raises:
            SourceError: the job failed.
        """
        with failing(), self.for_few_rows():
            return list(frame.collect())

    def streamed(self, frame: Any) -> Iterator[Any]:
        """The rows of a frame, a partition at a time.

        Raises:
            SourceError: the job failed.
        """
        with failing(), self.for_few_rows():
            yield from frame.toLocalIterator()

    def for_few_rows(self) -> AbstractContextManager[None]:
        """A context in which Spark plans and runs frames with `FOR_FEW_ROWS`."""
        from nevermore.scan_core.spark import configured

        return configured(self.session, FOR_FEW_ROWS)


@contextmanager
def failing() -> Iterator[None]:
    """Raise what Spark says of a failed job as a SourceError."""
    from nevermore.scan_core.spark import SPARK_FAILURES, spark_message

    try:
        yield
    except SPARK_FAILURES as error:
        raise SourceError(f"the Spark job failed: {spark_message(error)}") from error


def forget(checkpointed: Any) -> None:
    """Let Spark forget a frame of `localCheckpoint`, which otherwise waits for a garbage collection of the driver."""
    if hasattr(checkpointed, "_jdf"):  # a Connect server forgets it with this object
        rdd = checkpointed._jdf.queryExecution().logical().rdd()  # noqa: SLF001 - no public way
        rdd.sparkContext().unpersistRDD(rdd.id(), False)  # `unpersist` would log a warning for each


def begin_task() -> None:
    """Prepare the worker of a task."""
    from nevermore.scan_core.spark import prepare_worker

    prepare_worker()


def values_of(batches: Iterable[pa.RecordBatch], *names: str) -> Iterator[tuple[Any, ...]]:
    """These columns of the rows that Spark passes; each holds many changes."""
    for batch in batches:
        columns = [batch.column(batch.schema.get_field_index(name)) for name in names]
        for row in range(batch.num_rows):
            yield tuple(column[row].as_py() for column in columns)


def row_of(piece: int, place: int, number: int, data: bytes) -> pa.RecordBatch:
    """One row of `ROWS`."""
    return pa.RecordBatch.from_pylist(
        [{"piece": piece, "place": place, "number": number, "data": data}], schema=_ROW_SCHEMA
    )


def packed_table(table: pa.Table) -> bytes:
    """A table as compressed bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(table.combine_chunks())
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def unpacked_table(data: bytes, columns: Sequence[str] | None = None) -> pa.Table:
    """The table of `packed_table`, or these columns of it in their order there; others are not decompressed."""
    if columns is None:
        return pa.ipc.open_stream(data).read_all()
    names = pa.ipc.read_schema(pa.py_buffer(data)).names
    chosen = [number for number, name in enumerate(names) if name in columns]
    return pa.ipc.open_stream(data, options=pa.ipc.IpcReadOptions(included_fields=chosen)).read_all()
