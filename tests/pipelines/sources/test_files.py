"""Event files as a source: layouts, and late, growing, renamed and re-delivered files."""

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pytest

from nevermore.pipelines.errors import ConfigError, SourceError
from nevermore.pipelines.sources.file_options import FileOptions
from nevermore.pipelines.sources.files import discover
from tests.pipelines.sources.folder_reader import Reader, events_of, lines


def test_files_are_read_in_name_order_once(reader: Reader) -> None:
    reader.write("b.jsonl", lines(3))
    reader.write("a.jsonl", lines(1, 2))
    assert reader.run() == [("a.jsonl", 1, '{"n":1}'), ("a.jsonl", 2, '{"n":2}'), ("b.jsonl", 1, '{"n":3}')]
    assert reader.run() == []


def test_file_that_cannot_be_read_does_not_hold_up_those_before_it(reader: Reader) -> None:
    reader.write("a.jsonl", lines(1))
    reader.write("b.jsonl.gz", b"no gzip")
    with pytest.raises(SourceError, match=r"b\.jsonl\.gz"):
        reader.run()
    (reader.folder / "b.jsonl.gz").unlink()
    assert reader.run() == []


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


def test_unreadable_files_are_named(reader: Reader) -> None:
    reader.write("a.parquet", b"PAR1 no parquet")
    with pytest.raises(SourceError, match=r"a\.parquet"):
        reader.run()


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="batch_rows"):
        FileOptions(batch_rows=0)
    own, rest = FileOptions.split({"comments": "#", "tombstones": "delete"})
    assert (own.comments, rest) == (("#",), {"tombstones": "delete"})
