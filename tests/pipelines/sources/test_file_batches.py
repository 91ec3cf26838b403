"""How files become batches: bounded in size, transactions and pairs of rows together, full loads first."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

from nevermore.pipelines.config.project import parse
from nevermore.pipelines.decode.batches import SourceBatch
from nevermore.pipelines.errors import ConfigError, SourceError
from nevermore.pipelines.formats.registry import complete_events_of
from nevermore.pipelines.ingest.feeds import feeds_of
from nevermore.pipelines.sources import file_reader
from nevermore.pipelines.sources.file_listing import ListedFile
from nevermore.pipelines.sources.file_options import MAX_BATCH_BYTES, FileOptions, otherwise
from nevermore.pipelines.sources.file_position import FilePosition
from nevermore.pipelines.sources.files import PIECE_BYTES, BatchEnd, discover
from tests.pipelines.sources.folder_reader import PAIRS, Reader, Seen, events_of, lines, numbers

MIB = 1024**2
WAL2JSON = complete_events_of("wal2json", {})


def test_batches_are_bounded_and_a_killed_run_goes_on_where_it_stopped(reader: Reader) -> None:
    reader.write("a", lines(*range(10)))
    reader.write("b", lines(*range(10, 25)))
    seen: Seen = []
    for _ in range(20):
        new = reader.run(stop_after=1, batch_rows=4)
        assert len(new) <= 4
        seen += new
    assert numbers(seen) == list(range(25))


@pytest.mark.parametrize("text", [b"", b"\n", b"a", b"a\n", b"\n\nab\n\n\nc", b"aaaa\nb\nccc\n\n"])
@pytest.mark.parametrize("block", [1, 3, 100])
def test_lines_of_parts_are_all_lines_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes, block: int
) -> None:
    monkeypatch.setattr(file_reader, "_COUNTED_BYTES", block)
    (tmp_path / "a").write_bytes(text)
    file = ListedFile("a", str(tmp_path / "a"), len(text), 0)
    starts = [0, *(n + 1 for n, byte in enumerate(text) if byte == ord("\n"))]
    for start in range(len(text) + 1):
        for stop in range(start + 1, len(text) + 1):
            begin = min((at for at in starts if at >= start), default=len(text))
            end = min((at for at in starts if at >= stop and at > 0), default=len(text))
            found = file_reader.whole_lines(file, start, stop)
            assert found == (begin, text[begin:end].count(b"\n")), (start, stop)


def test_bytes_bound_a_batch_too(reader: Reader) -> None:
    reader.write("a", lines(*range(2000)))
    position, sizes = None, []
    for batch in discover([str(reader.folder / "a")], position, FileOptions(batch_bytes=1024)):
        sizes.append(sum(map(len, batch.raw.documents.to_pylist())))
        position = batch.position_after
    assert len(sizes) > 10
    assert max(sizes) <= 2048


def test_one_line_longer_than_a_batch_is_read_whole(reader: Reader) -> None:
    reader.write("a", '{"n":1,"t":"' + "x" * 10_000 + '"}\n' + lines(2))
    assert numbers(reader.run(batch_bytes=1024)) == [1, 2]


def test_uncommitted_tail_waits_for_its_commit(reader: Reader) -> None:
    begin, commit = '{"action":"B"}\n', '{"action":"C"}\n'
    reader.write("1", begin + lines(1) + commit + begin + lines(2))
    assert [o for _, o, _ in reader.run(complete=WAL2JSON)] == [1, 2, 3]
    assert reader.run(complete=WAL2JSON) == []
    reader.write("2", lines(3))
    assert reader.run(complete=WAL2JSON) == []
    reader.write("3", lines(4) + commit + begin)
    assert [d for _, _, d in reader.run(complete=WAL2JSON)] == [
        '{"action":"B"}',
        '{"n":2}',
        '{"n":3}',
        '{"n":4}',
        '{"action":"C"}',
    ]
    assert reader.run(complete=WAL2JSON) == []


@pytest.mark.parametrize("batch_rows", [1, 2, 3, 4])
@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_rows_before_and_after_an_update_are_handed_on_together(reader: Reader, suffix: str, batch_rows: int) -> None:
    def write(words: list[str], name: str = "a") -> None:
        rows = [{"op": word, "id": number} for number, word in enumerate(words)]
        if suffix == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), reader.folder / f"{name}.{suffix}")
        else:
            header = "op,id\n" if suffix == "csv" else ""
            shown = (f"{r['op']},{r['id']}\n" if header else json.dumps(r) + "\n" for r in rows)
            reader.write(f"{name}.{suffix}", header + "".join(shown))

    def run() -> list[list[int]]:
        position = None if reader.position is None else FilePosition.from_json(reader.position)
        pattern, offsets = str(reader.folder / "*"), []
        for batch in discover([pattern], position, FileOptions(batch_rows=batch_rows), complete=PAIRS):
            offsets.append(batch.raw.source_offset.to_pylist())
            reader.position = batch.position_after.to_json()
        return offsets

    write(["+I", "-U", "+U", "-D", "-U"])
    found = run()
    assert [row for rows in found for row in rows] == [1, 2, 3, 4]
    assert any({2, 3} <= set(rows) for rows in found)
    assert run() == []
    write(["+I", "-U", "+U", "-D", "-U", "+U"] if suffix != "parquet" else ["+U"], "a" if suffix != "parquet" else "b")
    assert run() == ([[5, 6]] if suffix != "parquet" else [[5, 1]])


def test_row_before_an_update_is_not_cut_from_it_by_a_file_that_ends_with_another(reader: Reader) -> None:
    for name, words in {"a": ["+I", "+I", "-U"], "b": ["-U"], "c": ["+U", "+U", "+I"]}.items():
        pq.write_table(pa.table({"op": words}), reader.folder / f"{name}.parquet")
    found = discover([str(reader.folder / "*")], None, FileOptions(batch_rows=4), complete=PAIRS)
    assert [[o for _, o, _ in events_of(batch.raw)] for batch in found] == [[1, 2], [3, 1, 1, 2, 3]]


def test_transactions_larger_than_a_batch_are_handed_on_in_parts(reader: Reader) -> None:
    begin, commit = '{"action":"B"}\n', '{"action":"C"}\n'
    change = '{"action":"I","columns":[]}\n'
    reader.write("1", begin + change + commit + begin + 3_000 * change)
    reader.write("2", 3_000 * change)
    options = FileOptions(batch_bytes=16 * 1024)

    def run(position: FilePosition | None) -> list[SourceBatch]:
        return list(discover([str(reader.folder / "*")], position, options, complete=WAL2JSON))

    first, *parts = run(None)
    assert (first.raw.num_events, first.end) == (3, BatchEnd.TRANSACTION)
    assert len(parts) > 5
    assert all(
        part.end is BatchEnd.WITHIN_TRANSACTION and sum(map(len, part.raw.documents.to_pylist())) < 64 * 1024
        for part in parts
    )
    reader.write("2", 3_000 * change + commit + begin + commit)
    *parts, last = run(first.position_after)
    assert [p.end for p in (*parts, last)] == [BatchEnd.WITHIN_TRANSACTION] * len(parts) + [BatchEnd.TRANSACTION]
    begun = max(number for number, part in enumerate(parts) if not part.continues)  # files are swept in two goes
    assert sum(p.raw.num_events for p in (*parts[begun:], last)) == 6_000 + 4
    assert run(last.position_after) == []


def test_full_load_of_dms_comes_before_its_changes_in_every_folder(reader: Reader) -> None:
    reader.pattern = "**/*.jsonl"
    for name in (
        "t/20240101-000000000.jsonl",
        "t/LOAD00000002.jsonl",
        "t/LOAD0000000A.jsonl",
        "s/2.jsonl",
        "u/1.jsonl",
    ):
        reader.write(name, lines(1))
    assert [name for name, _, _ in reader.run(batch_rows=1)] == [
        "s/2.jsonl",
        "t/LOAD00000002.jsonl",
        "t/LOAD0000000A.jsonl",
        "t/20240101-000000000.jsonl",
        "u/1.jsonl",
    ]
    assert reader.run() == []


@pytest.mark.parametrize("stop_after", [1, 2, 3])
def test_full_load_that_was_interrupted_goes_on_in_its_order(reader: Reader, stop_after: int) -> None:
    for number, name in enumerate(("LOAD00000001.jsonl", "20240101-000000000.jsonl", "20240102-000000000.jsonl")):
        reader.write(name, lines(number))
    first = reader.run(stop_after=stop_after, batch_rows=1)
    assert len([*first, *reader.run(batch_rows=1)]) == 3


def test_many_small_files_are_batches_of_bounded_memory(reader: Reader) -> None:
    for n in range(20):
        reader.write(f"{n:02}", lines(n))
    batches = list(discover([str(reader.folder / "*")], None, FileOptions(batch_bytes=8 * PIECE_BYTES)))
    assert [batch.raw.num_events for batch in batches] == [4] * 5


def test_batches_are_never_larger_than_places_of_32_bits_reach() -> None:
    with pytest.raises(ConfigError, match="batch_bytes must be at most 536870912, not 4294967296"):
        FileOptions(batch_bytes=2**32)
    table = {"source": {"path": "landing/*"}, "key": ["id"], "order_by": ["source.ts_ms"], "memory_limit_bytes": 2**40}
    config = parse(json.dumps({"tables": {"shop.t": table}}), Path("nevermore.yaml"))
    (feed,) = feeds_of(config, ["shop.t"])
    assert feed.file_options.batch_bytes == MAX_BATCH_BYTES
    assert feed.task_options.max_event_bytes == 2 * MAX_BATCH_BYTES


@pytest.mark.each(3)
@pytest.mark.parametrize("layout", ["lines", "csv", "array", "framed"])
def test_memory_decides_how_large_an_event_may_be(layout: str, tmp_path: Path) -> None:
    text = b"x" * (20 * MIB)
    event = b'{"a": "' + text + b'"}'
    files = {"lines": event + b"\n", "array": b"[" + event + b"]", "csv": b"a\n" + text + b"\n"}
    content = files.get(layout, len(event).to_bytes(4, "big") + event)
    (tmp_path / "events").write_bytes(content)
    for memory in (48 * MIB, 88 * MIB):
        options = FileOptions(layout=layout, batch_bytes=MIB).within(memory)
        batches = discover([str(tmp_path / "events")], None, options)
        if memory < 4 * len(text):
            with pytest.raises(SourceError, match=r"more than 16777216 bytes.*raise memory_limit_bytes"):
                list(batches)
        else:
            assert [batch.raw.num_events for batch in batches] == [1]


def test_more_memory_is_not_advised_where_it_does_not_help() -> None:
    most = FileOptions().within(2**40).max_event_bytes
    assert otherwise(most, "shorten it") == "shorten it"
    assert otherwise(most - 1, "shorten it") == "raise memory_limit_bytes, or shorten it"
