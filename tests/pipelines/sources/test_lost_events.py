"""A reader that loses an event is found before anything is written of it: one seeded fault in each way of reading."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nevermore.pipelines.decode.batches import RawEvents, from_documents
from nevermore.pipelines.errors import LostEventsError
from nevermore.pipelines.jsonscan import object_kernels
from nevermore.pipelines.sources import csv_file, file_documents, file_reader, files
from nevermore.pipelines.sources.file_documents import Piece
from nevermore.pipelines.sources.file_options import FileOptions
from nevermore.pipelines.sources.files import discover

Patch = pytest.MonkeyPatch
EVENTS = [b'{"id": %d}' % number for number in range(6)]
ROWS = pa.table({"id": list(range(6))})


def lines(path: Path) -> None:
    path.write_bytes(b"\n".join(EVENTS) + b"\n")


def array(path: Path) -> None:
    path.write_bytes(b"[" + b",\n".join(EVENTS) + b"]")


def keyed_lines(path: Path) -> None:
    path.write_bytes(b"".join(b'{"id": 1}\t%s\n' % event for event in EVENTS))


def framed(path: Path) -> None:
    path.write_bytes(b"".join(len(event).to_bytes(4, "big") + event for event in EVENTS))


def csv(path: Path) -> None:
    path.write_text("id,name\n" + "".join(f"{number},a\n" for number in range(6)))


def parquet(path: Path) -> None:
    pq.write_table(ROWS, path, row_group_size=2)


def avro(path: Path) -> None:
    schema = {"type": "record", "name": "event", "fields": [{"name": "id", "type": "long"}]}
    with path.open("wb") as out:
        fastavro.writer(out, schema, ROWS.to_pylist(), sync_interval=1)


def without_last(piece: Piece) -> Piece:
    """A piece that has one event less, and claims to have read as far."""
    count = len(piece.offsets) - 1
    keys = None if piece.keys is None else piece.keys.slice(0, count)
    return replace(piece, documents=piece.documents.slice(0, count), keys=keys, offsets=piece.offsets[:count])


def wrapped(patch: Patch, module: Any, name: str, change: Callable[[Any], Any]) -> None:
    original = getattr(module, name)
    patch.setattr(module, name, lambda *given, **options: change(original(*given, **options)))


def a_line_is_left_out(patch: Patch) -> None:
    wrapped(patch, file_reader, "split_lines", without_last)


def a_document_is_not_found(patch: Patch) -> None:
    wrapped(patch, file_documents, "_document_spans", lambda found: (np.delete(found[0], 2, axis=0), found[1] - 1))


def a_message_is_not_found(patch: Patch) -> None:
    split = object_kernels.split_frames

    def split_all_but_one(view: Any, spans: Any) -> tuple[int, int, bool]:
        found, reached, valid = split(view, spans)
        return found - 1, reached, valid

    patch.setattr(object_kernels, "split_frames", split_all_but_one)


def a_message_is_left_out(patch: Patch) -> None:
    wrapped(patch, file_reader, "split_frames", lambda found: (without_last(found[0]), found[1]))


def a_record_is_left_out(patch: Patch) -> None:
    wrapped(
        patch, csv_file, "read_records", lambda r: replace(r, rows=r.rows.slice(0, 5), numbers=r.numbers[:5])
    )  # fmt: skip


def a_row_group_is_left_out(patch: Patch) -> None:
    wrapped(patch, file_reader, "read_layout", lambda found: replace(found, row_groups=found.row_groups[:-1]))


def a_block_is_left_out(patch: Patch) -> None:
    wrapped(patch, file_reader, "_together", lambda found: list(found)[:-1])
    patch.setattr(file_reader, "_TOGETHER_ROWS", 1)


def an_event_is_lost_between_batches(patch: Patch) -> None:
    cut = files._Cutting.cut

    def losing(self: Any, pending: Any, **options: Any) -> Any:
        done, left = cut(self, pending, **options)
        done.pieces = done.pieces[1:]
        return done, left

    patch.setattr(files._Cutting, "cut", losing)


def a_column_is_short(patch: Patch) -> None:
    wrapped(patch, files, "_documents", lambda found: found.slice(1))


FAULTS: Mapping[str, tuple[Callable[[Path], None], str, Callable[[Patch], None]]] = {
    "a line is left out": (lines, "jsonl", a_line_is_left_out),
    "a keyed line is left out": (keyed_lines, "tsv", a_line_is_left_out),
    "a document of an array is not found": (array, "json", a_document_is_not_found),
    "a framed message is not found": (framed, "bin", a_message_is_not_found),
    "a framed message is left out": (framed, "bin", a_message_is_left_out),
    "a CSV record is left out": (csv, "csv", a_record_is_left_out),
    "a row group is left out": (parquet, "parquet", a_row_group_is_left_out),
    "an Avro block is left out": (avro, "avro", a_block_is_left_out),
    "events are lost between pieces and batches": (lines, "jsonl", an_event_is_lost_between_batches),
    "a column of a batch is short": (lines, "jsonl", a_column_is_short),
}


def num_read(folder: Path, options: FileOptions) -> int:
    return sum(batch.raw.num_read for batch in discover([str(folder / "events.*")], None, options))


@pytest.mark.parametrize("fault", FAULTS)
def test_an_event_that_a_reader_loses_ends_the_run(tmp_path: Path, monkeypatch: Patch, fault: str) -> None:
    write, suffix, seed = FAULTS[fault]
    write(tmp_path / f"events.{suffix}")
    options = FileOptions(layout="framed" if write is framed else None)
    assert num_read(tmp_path, options) == len(EVENTS)
    seed(monkeypatch)
    with pytest.raises(LostEventsError, match="This is a fault of Nevermore: nothing was written of them"):
        num_read(tmp_path, options)


def test_columns_of_messages_stay_with_their_events_when_a_batch_is_cut() -> None:
    raw = replace(from_documents([json.dumps({"id": n}).encode() for n in range(9)]), message=pa.table({"n": range(9)}))
    assert raw.slice(3, 2).message.to_pydict() == {"n": [3, 4]}
    with pytest.raises(LostEventsError):
        RawEvents(raw.source_file, raw.source_offset, raw.documents, message=raw.message.slice(1))
