"""What a Spark task does to publish: Arrow batches in, Parquet files out, and a report that names them.

A snapshot names only files of reports that reached the driver, one report per task that Spark counts as done: retried
and speculative attempts leave files that nothing names, never rows twice. No pyspark here.
"""

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from pipelines.file_metrics import WrittenFile
from pipelines.table_writer import WriteTarget, write_rows
from scan_core.snapshot import PartitionSpec

REPORT_SCHEMA = "report binary"
"""Of the batches that a task yields, as Spark writes a schema."""


@dataclass(frozen=True, slots=True)
class PublishTask:
    """Writes the rows of one task under one spec; pickled to the workers."""

    target: WriteTarget
    spec: PartitionSpec

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One report: the pickled files of all rows of `batches`."""
        files: list[WrittenFile] = []
        for rows in _pieces(batches, self.target.options.file_bytes):
            files += write_rows(rows, self.target, self.spec)
        yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(files)], pa.binary())], names=["report"])


def files_of(reports: Iterable[bytes]) -> list[WrittenFile]:
    """The files that tasks reported, in a stable order."""
    files = [file for report in reports for file in pickle.loads(report)]  # noqa: S301 - written by our own tasks
    return sorted(files, key=lambda file: file.path)


def _pieces(batches: Iterable[pa.RecordBatch], piece_bytes: int) -> Iterator[pa.Table]:
    """Batches gathered to the size of a file, so that a task holds one file's rows at most."""
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        held.append(batch)
        held_bytes += batch.nbytes
        if held_bytes >= piece_bytes:
            yield pa.Table.from_batches(held)
            held, held_bytes = [], 0
    if held:
        yield pa.Table.from_batches(held)
