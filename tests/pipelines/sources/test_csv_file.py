"""CSV record by record: what is none of the table's is rejected with its bytes, everything else is read as it stands."""

import csv
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nevermore.pipelines.decode.feed import FeedConfig, TableFeed
from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.formats.registry import decode
from nevermore.pipelines.sources.file_options import FileOptions
from nevermore.pipelines.sources.file_position import FilePosition
from nevermore.pipelines.sources.files import discover

Row = dict[str, str | None]


class Read:
    """What a run sees of one file, and the position after it."""

    def __init__(self, path: Path, content: bytes, position: FilePosition | None = None, **options: Any) -> None:
        path.write_bytes(content)
        self.rows: list[tuple[int, Row]] = []
        self.rejected: list[tuple[int, str, bytes]] = []
        self.position = position
        for batch in discover([str(path)], position, FileOptions(**options)):
            self.position = batch.position_after
            if batch.raw.rows is not None:
                self.rows += zip(batch.raw.source_offset.to_pylist(), batch.raw.rows.to_pylist(), strict=True)
            for event in batch.raw.rejected.table.to_pylist():
                assert event["source_file"] == path.name
                self.rejected.append((event["source_offset"], event["reason"], event["raw"]))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.csv"


def test_records_of_a_wrong_width_are_rejected_with_their_bytes_and_the_rest_goes_on(path: Path) -> None:
    read = Read(path, b'a,b\n1,x\n2,y,z\n3\n4,"q\n,"\n')
    assert read.rows == [(1, {"a": "1", "b": "x"}), (4, {"a": "4", "b": "q\n,"})]
    assert read.rejected == [
        (2, "3 values for 2 columns", b"2,y,z\n"),
        (3, "1 values for 2 columns", b"3\n"),
    ]


def test_records_that_are_no_utf8_or_wrongly_quoted_are_rejected(path: Path) -> None:
    read = Read(path, b'a,b\r\n1,\xff\r\n2,"x"y\r\n3,z\r\n4,"open\r\n5,w\r\n', report_incomplete=True)
    assert read.rows == [(3, {"a": "3", "b": "z"})]
    assert [(number, reason) for number, reason, _ in read.rejected] == [
        (1, "not UTF-8"),
        (2, "text after a closing quote"),
        (4, "unclosed quote"),
    ]


def test_quarantine_gets_what_csv_could_not_tell_apart(path: Path) -> None:
    path.write_bytes(b"op,id\nc,1\nc,2,3\n")
    (batch,) = discover([str(path)])
    result = decode(batch.raw, FeedConfig(format="rows", tables=(TableFeed(name="a.t", key=("id",)),)))
    assert result.tables["a.t"].num_rows == 1
    assert result.rejected.table.column("raw").to_pylist() == [b"c,2,3\n"]


def test_file_of_nothing_but_wrong_records_is_rejected_not_lost(path: Path) -> None:
    path.write_bytes(b"op,id\nc,2,3\n")
    (batch,) = discover([str(path)])
    result = decode(batch.raw, FeedConfig(format="rows", tables=(TableFeed(name="a.t", key=("id",)),)))
    assert result.rejected.num_rows == 1
    assert result.tables["a.t"].num_rows == 0


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_delimiter_is_the_one_of_the_first_line(delimiter: str, path: Path) -> None:
    read = Read(path, f"a{delimiter}b\n1{delimiter}x,y\n".encode())
    assert read.rows == [(1, {"a": "1", "b": "x,y"})]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a;b|c\n1;2|3\n", "set the delimiter"),
        (b"a,b,a\n1,2,3\n", "names 'a' twice"),
        (b"a,,b\n1,2,3\n", "no name for column 2"),
        ("a,b\n".encode("utf-16"), "UTF-16"),
        (b"a,\xff\n1,2\n", "no CSV header"),
    ],
)
def test_header_in_doubt_is_an_error(content: bytes, message: str, path: Path) -> None:
    with pytest.raises(SourceError, match=message):
        Read(path, content)


def test_byte_order_mark_blank_lines_and_carriage_returns_are_no_values(path: Path) -> None:
    read = Read(path, b'\xef\xbb\xbf"a","b"\r\n\r\n1,\r\n\r\n2,""\r\n')
    assert read.rows == [(1, {"a": "1", "b": None}), (2, {"a": "2", "b": ""})]


def test_full_load_of_dms_without_header_lacks_the_first_column(path: Path) -> None:
    options: dict[str, Any] = {"header": False, "columns": ("Op", "id", "v")}
    assert Read(path, b"1,x\n2,y\n", **options).rows[0][1] == {"id": "1", "v": "x"}
    assert Read(path, b"U,1,x\n", **options).rows[0][1] == {"Op": "U", "id": "1", "v": "x"}


def test_growing_file_is_read_on_from_where_its_last_whole_record_ended(path: Path) -> None:
    first = Read(path, b'a,b\n1,x\n2,"y')
    assert first.rows == [(1, {"a": "1", "b": "x"})]
    second = Read(path, b'a,b\n1,x\n2,"y\nz"\n3,w,\n', first.position)
    assert second.rows == [(2, {"a": "2", "b": "y\nz"})]
    assert [number for number, _, _ in second.rejected] == [3]


def test_csv_under_any_name_is_read_where_the_layout_says_so(tmp_path: Path) -> None:
    assert Read(tmp_path / "part-0", b"a,b\n1,x\n", layout="csv").rows == [(1, {"a": "1", "b": "x"})]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.lists(st.text(alphabet='ab",\n\r é', max_size=5), min_size=2, max_size=2), max_size=8),
    batch_rows=st.integers(1, 4),
)
def test_what_the_csv_module_writes_is_read_back(
    rows: list[list[str]], batch_rows: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows([["x", "y"], *rows])
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    read = Read(path, text.getvalue().encode(), batch_rows=batch_rows, batch_bytes=1024)
    assert not read.rejected
    assert [list(row.values()) for _, row in read.rows] == rows
    assert [number for number, _ in read.rows] == list(range(1, len(rows) + 1))
