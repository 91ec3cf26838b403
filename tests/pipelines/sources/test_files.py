"""Event files as a source: layouts, and late, growing, renamed and re-delivered files."""

import bz2
import gzip
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines.errors import ConfigError, PositionLostError, SourceError
from pipelines.formats.registry import complete_events_of
from pipelines.sources import file_position, files
from pipelines.sources.file_options import FileOptions
from pipelines.sources.file_position import BLAKE2B, FilePosition
from pipelines.sources.files import FileBatch, discover
from pipelines.sources.raw_batching import PIECE_BYTES

Seen = list[tuple[str, int, Any]]


WAL2JSON = complete_events_of("wal2json", {})
PAIRS = complete_events_of("rows", {})


class Reader:
    """A process that reads a folder again and again, with nothing but the position between runs."""

    def __init__(self, folder: Path, pattern: str = "*") -> None:
        self.folder = folder
        self.pattern = pattern
        self.position: str | None = None
        self.clock = 1_700_000_000

    def write(self, name: str, text: str | bytes, mode: str = "w") -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = text.encode() if isinstance(text, str) else text
        with path.open(mode + "b") as file:
            file.write(data)

    def run(self, stop_after: int | None = None, **options: Any) -> Seen:
        """What is new; with `stop_after`, the process dies after so many batches."""
        extra = {k: options.pop(k) for k in ("applied_lines", "complete", "left_out") if k in options}
        position = None if self.position is None else FilePosition.from_json(self.position)
        seen: Seen = []
        batches = discover([str(self.folder / self.pattern)], position, FileOptions(**options), **extra)
        for number, batch in enumerate(batches):
            if number == stop_after:
                break
            seen += events_of(batch.raw)
            self.position = batch.position_after.to_json()
            assert FilePosition.from_json(self.position) == batch.position_after
        return seen


def events_of(raw: Any) -> Iterator[tuple[str, int, Any]]:
    names, offsets = raw.source_file.to_pylist(), raw.source_offset.to_pylist()
    if raw.rows is not None:
        return zip(names, offsets, raw.rows.to_pylist(), strict=True)
    values = [None if d is None else d.decode().strip() for d in raw.documents.to_pylist()]
    if raw.keys is not None:
        values = list(zip([k.decode().strip() for k in raw.keys.to_pylist()], values, strict=True))
    return zip(names, offsets, values, strict=True)


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    return Reader(tmp_path)


def lines(*numbers: int) -> str:
    return "".join(f'{{"n":{n}}}\n' for n in numbers)


def numbers(seen: Seen) -> list[int]:
    return [json.loads(document)["n"] for _, _, document in seen]


def test_files_are_read_in_name_order_once(reader: Reader) -> None:
    reader.write("b.jsonl", lines(3))
    reader.write("a.jsonl", lines(1, 2))
    assert reader.run() == [("a.jsonl", 1, '{"n":1}'), ("a.jsonl", 2, '{"n":2}'), ("b.jsonl", 1, '{"n":3}')]
    assert reader.run() == []


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('{"n":1}\r\n\r\n{"n":2}', [(1, '{"n":1}'), (3, '{"n":2}')]),
        ('\ufeff{"n":1}\n', [(1, '{"n":1}')]),
        ('/* licence\n * text */\n\n{"n":1}\n', [(4, '{"n":1}')]),
        ('[{"n":1},\n {"n":2}]\n', [(1, '{"n":1}'), (2, '{"n":2}')]),
        ("[]", []),
        ('{\n "n":1\n}\n{"n":2}', [(1, '{\n "n":1\n}'), (2, '{"n":2}')]),
        ('{"k":1}\t{"n":1}\n{"k":1}\n', [(1, ('{"k":1}', '{"n":1}')), (2, ('{"k":1}', None))]),
        ('{"k":1}\t1\n{"k":1}\t\r\n{"k":2}\t', [(1, ('{"k":1}', "1")), (2, ('{"k":1}', None)), (3, ('{"k":2}', None))]),
        ('{"id":1}\n{\n"op":"c", "after":{}\n}', [(1, '{"id":1}'), (2, "{"), (3, '"op":"c", "after":{}'), (4, "}")]),
        ('{\n"id":1}\n{\n"op":"c", "after":{}\n}', [(1, ('{\n"id":1}', '{\n"op":"c", "after":{}\n}'))]),
        ('{"n":1\n{"n":2}\n', [(1, '{"n":1'), (2, '{"n":2}')]),
        ('not json\n{"n":2}\n', [(1, "not json"), (2, '{"n":2}')]),
    ],
)
def test_layouts_are_seen_from_the_first_bytes(reader: Reader, text: str, wanted: list[tuple[int, Any]]) -> None:
    reader.write("f", text)
    assert [(offset, document) for _, offset, document in reader.run(report_incomplete=True)] == wanted
    assert reader.run() == []


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_compressed_files_are_read(reader: Reader, suffix: str) -> None:
    data = lines(1, 2).encode() + b'{"n":3}'
    packed = gzip.compress(data) if suffix == "gz" else pa.Codec("zstd").compress(data, asbytes=True)
    reader.write(f"f.jsonl.{suffix}", packed)
    assert numbers(reader.run(batch_rows=2)) == [1, 2, 3]
    assert reader.run() == []


def test_rows_of_parquet_and_csv_are_read_as_columns(reader: Reader) -> None:
    pq.write_table(pa.table({"Op": ["I", "D"], "id": [1, 2]}), reader.folder / "1.parquet")
    reader.write("2.csv", 'Op,id,t\nI,3,"a\nb"\nU,,""\n')
    assert reader.run() == [
        ("1.parquet", 1, {"Op": "I", "id": 1}),
        ("1.parquet", 2, {"Op": "D", "id": 2}),
        ("2.csv", 1, {"Op": "I", "id": "3", "t": "a\nb"}),
        ("2.csv", 2, {"Op": "U", "id": None, "t": ""}),
    ]
    assert reader.run() == []


def test_csv_without_header_takes_the_names_given(reader: Reader) -> None:
    reader.write("1.csv", "I;1\n")
    assert reader.run(header=False, columns=("Op", "id"), delimiter=";") == [("1.csv", 1, {"Op": "I", "id": "1"})]


def test_late_file_is_read(reader: Reader) -> None:
    reader.write("b", lines(1))
    reader.run()
    reader.write("a", lines(2))
    assert numbers(reader.run()) == [2]
    assert reader.run() == []


def test_growing_file_is_read_from_where_it_was_left(reader: Reader) -> None:
    reader.write("a", lines(1))
    reader.run()
    reader.write("a", lines(2), "a")
    assert reader.run() == [("a", 2, '{"n":2}')]
    reader.write("a", '{"n":3}', "a")
    assert reader.run() == [("a", 3, '{"n":3}')]
    reader.write("a", "\n" + lines(4), "a")
    assert reader.run() == [("a", 4, '{"n":4}')]


def test_unfinished_last_line_is_reported_once_and_read_when_it_is_whole(reader: Reader) -> None:
    reader.write("a", lines(1) + '{"n":')
    assert [offset for _, offset, _ in reader.run(report_incomplete=True)] == [1, 2]
    assert reader.run() == []
    reader.write("a", "2}\n", "a")
    assert reader.run() == [("a", 2, '{"n":2}')]


def test_unfinished_last_line_waits_where_it_is_not_to_be_reported(reader: Reader) -> None:
    reader.write("a", lines(1) + '{"n":')
    told: list[str] = []
    assert numbers(reader.run(left_out=told.append)) == [1]
    assert told == ["unfinished line"]
    assert reader.run() == []
    reader.write("a", "2}\n", "a")
    assert numbers(reader.run()) == [2]


def test_unfinished_last_line_is_given_up_when_a_newer_file_came_and_it_did_not_change(reader: Reader) -> None:
    reader.write("a", lines(1) + '{"n":')
    reader.run()
    reader.write("b", lines(2))
    assert reader.run() == [("a", 2, '{"n":'), ("b", 1, '{"n":2}')]
    assert reader.run() == []
    reader.write("a", "3}\n", "a")
    assert reader.run() == [("a", 2, '{"n":3}')]


def test_broken_last_line_is_read_when_its_newline_comes(reader: Reader) -> None:
    reader.write("a", lines(1) + "{bad")
    reader.run()
    reader.write("a", "\n", "a")
    assert reader.run() == [("a", 2, "{bad")]


@pytest.mark.parametrize("cut", range(1, 40, 4))
def test_file_whose_first_line_is_cut_anywhere_is_read_whole_later(reader: Reader, cut: int) -> None:
    text = '{"op":"c", "after": {"id": 1, "n": [1, 2]}}\n{"op":"c","after":{"id":2}}\n'
    reader.write("0", lines(0))
    reader.write("a", text[:cut])
    assert len(reader.run()) == 1
    reader.write("a", text)
    assert [(offset, document) for _, offset, document in reader.run()] == list(enumerate(text.splitlines(), 1))


@pytest.mark.parametrize("first", ['{"op":"c","after":{', "{bad", '{"op":"c","after":', '{"op":"c","s":"abc', "[]"])
def test_broken_first_line_leaves_the_others_alone(reader: Reader, first: str) -> None:
    rest = ['{"op":"c","after":{"id":1}}', '{"op":"c","after":{"id":2}}']
    reader.write("a", "\n".join([first, *rest]) + "\n")
    assert [document for _, _, document in reader.run()] == [first, *rest]


def test_broken_document_among_pretty_ones_takes_no_other_with_it(reader: Reader) -> None:
    pretty = ['{\n  "n": 1\n}', '{\n  "n": oops\n}', '{\n  "n": 3\n}']
    reader.write("a", "\n".join(pretty))
    assert [(offset, document) for _, offset, document in reader.run()] == list(enumerate(pretty, 1))


def test_growing_array_is_read_from_where_it_was_left(reader: Reader) -> None:
    reader.write("a", '[{"n":1},{"n":2}]')
    assert numbers(reader.run()) == [1, 2]
    reader.write("a", '[{"n":1},{"n":2},{"n":3}]')
    assert numbers(reader.run()) == [3]


def test_renamed_and_re_delivered_files_are_known(reader: Reader) -> None:
    reader.write("a", lines(1, 2))
    reader.write("b", lines(3))
    reader.run()
    (reader.folder / "a").rename(reader.folder / "z")
    assert reader.run() == []
    reader.write("a", lines(1, 2))
    reader.write("b", lines(3))
    assert reader.run() == []


def test_renamed_file_that_grew_is_read_from_where_it_was_left(reader: Reader) -> None:
    reader.write("a.part", lines(1, 2))
    reader.run()
    (reader.folder / "a.part").rename(reader.folder / "a.jsonl")
    reader.write("a.jsonl", lines(3), "a")
    assert reader.run() == [("a.jsonl", 3, '{"n":3}')]


def test_re_delivered_file_under_a_new_name_is_left_out_and_told(reader: Reader) -> None:
    reader.write("a", lines(1, 2))
    reader.run()
    reader.write("b", lines(1, 2))
    told: list[str] = []
    assert reader.run(left_out=told.append) == []
    assert told == ["re-delivered file"]


@pytest.mark.parametrize("name", ["a", "b"])
def test_files_alike_at_both_ends_are_different_files(reader: Reader, name: str) -> None:
    reader.write("a", lines(*range(1000, 3000)))
    reader.run()
    reader.write(name, lines(*range(1000, 1999), 7777, *range(2000, 3000)))
    assert len(reader.run(applied_lines=lambda names: dict.fromkeys(names, 2000) if name == "a" else {})) == 2000


def test_short_file_that_begins_like_one_read_long_ago_is_a_new_one(reader: Reader) -> None:
    for name, text in (("a", lines(1)), ("b", lines(2)), ("c", lines(1, 3))):
        reader.write(name, text)
        assert reader.run() != []
        (reader.folder / name).unlink()
    reader.write("d", lines(4))
    assert numbers(reader.run()) == [4]
    (reader.folder / "d").unlink()
    reader.write("e", lines(2, 5))
    assert numbers(reader.run()) == [2, 5]


def test_file_that_cannot_be_read_does_not_hold_up_those_before_it(reader: Reader) -> None:
    reader.write("a.jsonl", lines(1))
    reader.write("b.jsonl.gz", b"no gzip")
    with pytest.raises(SourceError, match=r"b\.jsonl\.gz"):
        reader.run()
    (reader.folder / "b.jsonl.gz").unlink()
    assert reader.run() == []


def test_replaced_file_is_read_from_its_begin_whatever_the_change_log_has_of_the_old_one(reader: Reader) -> None:
    reader.write("a", lines(1, 2))
    reader.run()
    reader.write("a", lines(3))
    assert numbers(reader.run(applied_lines=lambda names: dict.fromkeys(names, 2))) == [3]


def test_other_content_under_an_old_name_is_new(reader: Reader) -> None:
    reader.write("a", lines(1, 2))
    reader.run()
    reader.write("a", lines(3))
    assert numbers(reader.run()) == [3]


def test_removed_files_change_nothing(reader: Reader) -> None:
    reader.write("a", lines(1))
    reader.write("b", lines(2))
    reader.run()
    (reader.folder / "a").unlink()
    assert reader.run() == []


def test_touched_files_are_known(reader: Reader) -> None:
    for n in range(5):
        reader.write(f"f{n}", lines(n))
    reader.run()
    for n in range(5):
        os.utime(reader.folder / f"f{n}")
    assert reader.run() == []


def test_files_older_than_the_ledger_are_looked_up_in_the_change_log(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_position, "MAX_NAMED_FILES", 2)
    monkeypatch.setattr(file_position, "MAX_FINGERPRINTS", 2)
    for n in range(9):
        reader.write(f"f{n}", lines(n, n + 10))
    reader.run()
    for n in range(9):
        os.utime(reader.folder / f"f{n}")
    reader.write("f0", lines(99), "a")
    reader.write("e9", lines(77))
    asked: list[str] = []

    def applied(names: Any) -> dict[str, int]:
        asked.extend(names)
        return {name: 2 for name in names if name.startswith("f")}

    assert numbers(reader.run(applied_lines=applied)) == [77, 99]
    assert "f0" in asked
    assert "f8" not in asked


def test_position_stays_small_however_many_files(reader: Reader) -> None:
    for n in range(5000):
        reader.write(f"{n // 1000}/f{n:05}", lines(n))
    reader.pattern = "**/f*"
    assert numbers(reader.run(batch_rows=700)) == list(range(5000))
    assert reader.position is not None
    assert len(reader.position) < 64_000
    assert reader.run() == []


def test_arrivals_with_an_old_time_are_found(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    filesystem = pa.fs.LocalFileSystem()
    reader.write("a", lines(1))
    reader.write("b", lines(2))
    for name, moment in (("a", 5_000), ("b", 5_010)):
        os.utime(reader.folder / name, (moment, moment))
    pattern = [f"{reader.folder}/*".replace("//", "/")]
    monkeypatch.setattr("pipelines.sources.files.list_files", lambda *_: remote_listing(reader.folder))
    (first,) = discover(pattern, None, filesystem=filesystem)
    assert numbers(list(events_of(first.raw))) == [1, 2]
    reader.write("aa", lines(3))
    os.utime(reader.folder / "aa", (5_005, 5_005))
    batches = list(discover(pattern, first.position_after, applied_lines=lambda _: {}))
    assert [numbers(list(events_of(b.raw))) for b in batches] == [[3]]
    assert list(discover(pattern, batches[0].position_after, applied_lines=lambda _: {})) == []


def remote_listing(folder: Path) -> list[Any]:
    """The folder as an object store lists it: modification times only."""
    from pipelines.sources.file_listing import ListedFile

    return [ListedFile(p.name, str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in sorted(folder.iterdir())]


def test_files_of_a_filesystem_object_are_listed_and_read(tmp_path: Path) -> None:
    (tmp_path / "x" / "y").mkdir(parents=True)
    (tmp_path / "x" / "1.jsonl").write_text(lines(1))
    (tmp_path / "x" / "y" / "2.jsonl").write_text(lines(2))
    filesystem = pa.fs.SubTreeFileSystem(str(tmp_path), pa.fs.LocalFileSystem())
    (batch,) = discover(["mem://x/*.jsonl"], None, filesystem=_WithoutScheme(filesystem))
    assert list(events_of(batch.raw)) == [("1.jsonl", 1, '{"n":1}')]


class _WithoutScheme:
    """A filesystem that is addressed as `mem://path`."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def get_file_info(self, selector: Any) -> list[Any]:
        chosen = pa.fs.FileSelector(selector.base_dir.removeprefix("mem://"), recursive=selector.recursive)
        return [_Info(i) for i in self.inner.get_file_info(chosen)]

    def open_input_file(self, path: str) -> Any:
        return self.inner.open_input_file(path.removeprefix("mem://"))


class _Info:
    def __init__(self, info: Any) -> None:
        self.is_file, self.size, self.mtime_ns = info.is_file, info.size, info.mtime_ns
        self.path = "mem://" + info.path


def test_batches_are_bounded_and_a_killed_run_goes_on_where_it_stopped(reader: Reader) -> None:
    reader.write("a", lines(*range(10)))
    reader.write("b", lines(*range(10, 25)))
    seen: Seen = []
    for _ in range(20):
        new = reader.run(stop_after=1, batch_rows=4)
        assert len(new) <= 4
        seen += new
    assert numbers(seen) == list(range(25))


def test_bytes_bound_a_batch_too(reader: Reader) -> None:
    reader.write("a", lines(*range(2000)))
    position, sizes = None, []
    for batch in discover([str(reader.folder / "a")], position, FileOptions(batch_bytes=1024)):
        sizes.append(batch.raw.num_bytes)
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


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_file_that_was_cut_keeps_its_place_while_one_before_it_is_applied(reader: Reader, suffix: str) -> None:
    def rows(*words: str) -> str:
        return "".join(f"{word},1\n" if suffix == "csv" else f'{{"op":"{word}"}}\n' for word in words)

    header = "op,id\n" if suffix == "csv" else ""
    reader.write(f"b.{suffix}", header + rows(*9 * ["+I"], "-U"))
    assert len(reader.run(batch_rows=4, complete=PAIRS)) == 9
    reader.write(f"b.{suffix}", rows("+U"), "a")
    reader.write(f"a.{suffix}", header + rows(*3 * ["+I"]))
    killed = reader.run(batch_rows=4, complete=PAIRS, stop_after=1)
    seen = [(name, offset) for name, offset, _ in killed + reader.run(batch_rows=4, complete=PAIRS)]
    assert seen == [*((f"a.{suffix}", n) for n in (1, 2, 3)), *((f"b.{suffix}", n) for n in (10, 11))]


def test_transactions_larger_than_a_batch_are_handed_on_in_parts(reader: Reader) -> None:
    begin, commit = '{"action":"B"}\n', '{"action":"C"}\n'
    change = '{"action":"I","columns":[]}\n'
    reader.write("1", begin + change + commit + begin + 3_000 * change)
    reader.write("2", 3_000 * change)
    options = FileOptions(batch_bytes=16 * 1024)

    def run(position: FilePosition | None) -> list[FileBatch]:
        return list(discover([str(reader.folder / "*")], position, options, complete=WAL2JSON))

    first, *parts = run(None)
    assert (first.raw.num_events, first.is_open) == (3, False)
    assert len(parts) > 5
    assert all(part.is_open and part.raw.num_bytes < 64 * 1024 for part in parts)
    reader.write("2", 3_000 * change + commit + begin + commit)
    *parts, last = run(first.position_after)
    assert [p.is_open for p in (*parts, last)] == [True] * len(parts) + [False]
    begun = max(number for number, part in enumerate(parts) if not part.goes_on)  # files are swept in two goes
    assert sum(p.raw.num_events for p in (*parts[begun:], last)) == 6_000 + 4
    assert run(last.position_after) == []


def test_lines_may_be_chosen_and_comments_left_out(reader: Reader) -> None:
    reader.write("a", "# one\n" + lines(1, 2, 3, 4))
    assert numbers(reader.run(first_line=3, last_line=4, comments=("#",))) == [2, 3]


def test_psql_output_gives_its_objects(reader: Reader) -> None:
    reader.write("a", 'SELECT 1;\n data\n------\n {"n":1}\n(1 row)\n')
    assert reader.run(layout="psql") == [("a", 4, '{"n":1}')]


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no file"):
        list(discover([str(tmp_path / "none.jsonl")]))
    with pytest.raises(SourceError, match="no folder"):
        list(discover([str(tmp_path / "none" / "*.jsonl")]))
    with pytest.raises(SourceError, match="no file matches"):
        list(discover([str(tmp_path / "*.jsonl")]))


def test_folder_that_was_emptied_after_it_was_read_has_nothing_new(reader: Reader) -> None:
    reader.write("a.jsonl", lines(1))
    assert len(reader.run()) == 1
    (reader.folder / "a.jsonl").unlink()
    assert reader.run() == []


def test_wildcards_leave_out_files_that_are_no_data_or_not_finished(reader: Reader) -> None:
    for name in ("_SUCCESS", "1.jsonl", ".1.jsonl.crc", "2.jsonl.tmp", "3.jsonl._COPYING_"):
        reader.write(name, lines(1))
    assert [name for name, _, _ in reader.run()] == ["1.jsonl"]
    for pattern in ("*.tmp", "_*", "_SUCCESS"):
        assert len(Reader(reader.folder, pattern).run()) == 1


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


def test_objects_one_behind_the_other_on_one_line_are_documents(reader: Reader) -> None:
    reader.write("1", '{"n":1}{"n":2} {"n":3}\n{"n":4}')
    assert [value for _, _, value in reader.run()] == ['{"n":1}', '{"n":2}', '{"n":3}', '{"n":4}']


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress])
def test_kind_and_compression_are_told_by_the_bytes_not_the_name(reader: Reader, compress: Any) -> None:
    reader.write("1", compress(lines(1).encode()))
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": [2]}), sink)
    reader.write("2.jsonl", sink.getvalue().to_pybytes())
    assert [value for _, _, value in reader.run()] == ['{"n":1}', {"n": 2}]


def test_file_that_cannot_be_read_stops_before_later_ones_or_is_rejected_as_a_whole(reader: Reader) -> None:
    reader.write("1.jsonl", lines(1))
    reader.write("2.jsonl.gz", gzip.compress(lines(*range(100)).encode())[:-20])
    reader.write("3.jsonl", lines(3))
    with pytest.raises(SourceError, match=r"2\.jsonl\.gz"):
        reader.run()
    batches = list(discover([str(reader.folder / "*")], None, FileOptions(unreadable="quarantine")))
    assert [name for b in batches for name, _, _ in events_of(b.raw)] == ["1.jsonl", "3.jsonl"]
    (rejected,) = [event for b in batches for event in b.raw.rejected.table.to_pylist()]
    assert rejected["source_file"] == "2.jsonl.gz"
    assert "Truncated" in rejected["reason"]
    reader.position = batches[-1].position_after.to_json()
    reader.write("2.jsonl.gz", gzip.compress(lines(2).encode()))
    assert [name for name, _, _ in reader.run(unreadable="quarantine")] == ["2.jsonl.gz"]
    assert reader.run(unreadable="quarantine") == []


def test_file_that_is_renamed_and_grows_more_than_once_is_read_from_where_it_was_left(reader: Reader) -> None:
    long = "".join(f'{{"n":{n},"text":"{"x" * 2000}"}}\n' for n in range(3)).splitlines(keepends=True)
    reader.write("a", long[0])
    assert len(reader.run()) == 1
    for name, other, line in (("a", "b", long[1]), ("b", "c", long[2])):
        (reader.folder / name).rename(reader.folder / other)
        reader.write(other, line, "a")
        assert [offset for _, offset, _ in reader.run()] == [long.index(line) + 1]
    assert reader.run() == []


def test_position_of_the_first_version_knows_its_files_again(reader: Reader) -> None:
    reader.position = replace(FilePosition(), hash=BLAKE2B).to_json()
    assert json.loads(reader.position)["version"] == 1
    reader.write("a", lines(1, 2))
    reader.write("b", lines(3))
    assert numbers(reader.run()) == [1, 2, 3]
    assert json.loads(reader.position)["version"] == 1
    reader.write("a", lines(4), "a")
    (reader.folder / "b").rename(reader.folder / "c")
    assert numbers(reader.run()) == [4]
    fresh = Reader(reader.folder)
    fresh.run()
    assert json.loads(fresh.position or "")["version"] == 2


def test_many_small_files_are_batches_of_bounded_memory(reader: Reader) -> None:
    for n in range(20):
        reader.write(f"{n:02}", lines(n))
    batches = list(discover([str(reader.folder / "*")], None, FileOptions(batch_bytes=8 * PIECE_BYTES)))
    assert [batch.raw.num_events for batch in batches] == [4] * 5


def test_unreadable_files_are_named(reader: Reader) -> None:
    reader.write("a.parquet", b"PAR1 no parquet")
    with pytest.raises(SourceError, match=r"a\.parquet"):
        reader.run()


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="batch_rows"):
        FileOptions(batch_rows=0)
    own, rest = FileOptions.split({"comments": "#", "tombstones": "delete"})
    assert (own.comments, rest) == (("#",), {"tombstones": "delete"})


@pytest.mark.parametrize("text", ["{}", "nonsense", '{"source":"files","version":3}', '{"source":"kafka","version":1}'])
def test_foreign_positions_are_refused(text: str) -> None:
    with pytest.raises(PositionLostError):
        FilePosition.from_json(text)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_random_deliveries_and_kills_give_every_line_once(tmp_path_factory: Any, data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "DISTINCT_BYTES", 0)  # no two lines are alike here, however short
        _deliver_and_kill(Reader(tmp_path_factory.mktemp("landing")), data)


def _deliver_and_kill(reader: Reader, data: st.DataObject) -> None:
    seen: Seen = []
    written = 0
    for _ in range(data.draw(st.integers(1, 8))):
        action = data.draw(st.sampled_from(["new", "new", "grow", "rename", "again", "run", "run"]))
        present = sorted(p.name for p in reader.folder.iterdir())
        if action == "new" or not present:
            name = f"{data.draw(st.integers(0, 99)):02}-{written}"
            count = data.draw(st.integers(1, 6))
            reader.write(name, lines(*range(written, written + count)))
            written += count
        elif action == "grow":
            count = data.draw(st.integers(1, 3))
            reader.write(data.draw(st.sampled_from(present)), lines(*range(written, written + count)), "a")
            written += count
        elif action == "rename":
            name = data.draw(st.sampled_from(present))
            seen += reader.run()
            (reader.folder / name).rename(reader.folder / f"{data.draw(st.integers(0, 99)):02}-r{name}")
        elif action == "again":
            seen += reader.run()
            name = data.draw(st.sampled_from(present))
            reader.write(name, (reader.folder / name).read_bytes())
        else:
            seen += reader.run(stop_after=data.draw(st.integers(0, 3)), batch_rows=data.draw(st.integers(1, 4)))
    seen += reader.run()
    assert sorted(numbers(seen)) == list(range(written))


def test_events_of_arrow_stay_binary(reader: Reader) -> None:
    reader.write("a", lines(1))
    (batch,) = discover([str(reader.folder / "a")])
    assert batch.raw.documents is not None
    assert pc.all(pc.is_valid(batch.raw.documents)).as_py()
    assert batch.raw.take(pa.array([0])).num_events == 1


def test_last_row_of_csv_without_newline_waits_until_it_is_whole(reader: Reader) -> None:
    reader.write("a.csv", "id,n\n1,1\n2,12")
    told: list[str] = []
    assert reader.run(left_out=told.append) == [("a.csv", 1, {"id": "1", "n": "1"})]
    assert told == ["unfinished line"]
    reader.write("a.csv", "34\n", "a")
    assert reader.run() == [("a.csv", 2, {"id": "2", "n": "1234"})]


def test_last_row_of_csv_without_newline_is_read_when_a_newer_file_came(reader: Reader) -> None:
    reader.write("a.csv", "id\n1\n2")
    reader.run()
    reader.write("b.csv", "id\n3\n")
    assert [row["id"] for _, _, row in reader.run()] == ["2", "3"]
    assert reader.run() == []


@pytest.mark.parametrize("text", ["", "\n", "id,n", "id,n\n"])
def test_csv_without_rows_holds_up_nothing(reader: Reader, text: str) -> None:
    reader.write("a.csv", text)
    reader.write("b.csv", "id,n\n1,2\n")
    assert reader.run() == [("b.csv", 1, {"id": "1", "n": "2"})]


def test_csv_that_cannot_be_read_is_named(reader: Reader) -> None:
    reader.write("broken.csv", "id,id\n1,2\n")
    with pytest.raises(SourceError, match=r"broken\.csv"):
        reader.run()
