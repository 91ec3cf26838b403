"""How many requests a scan makes, and for which bytes: what a table on an object store costs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from nevermore import scan_core
from nevermore.scan_core import Scan, ScanOptions
from nevermore.scan_core.deletes.indexes import DELETE_CACHE
from nevermore.scan_core.files.parquet.file_layout import FOOTERS
from nevermore.scan_core.io import cache
from nevermore.scan_core.io.remote import SMALL_FILE_BYTES, Pace, RemoteFile
from tests.io_patterns.recording import Recorder, RecordingHandler
from tests.support.iceberg_json import Column, list_of, struct
from tests.support.object_server import properties_of, serving, store_of
from tests.support.table_builder import TableBuilder

COLUMNS = (
    Column(1, "id", "long"),
    Column(2, "grp", "int"),
    Column(3, "first", "string"),
    Column(4, "second", "string"),
)
ROWS = 40_000
GROUP = 20_000
PAGES: dict[str, Any] = {
    "row_group_size": GROUP,
    "data_page_size": 16_384,
    "write_batch_size": 200,
    "use_dictionary": False,
}


@dataclass(frozen=True)
class Recorded:
    """A table behind the recording file system, and the places of its payload."""

    scan: Scan
    recorder: Recorder
    chunks: dict[str, list[tuple[int, int]]]

    def data(self) -> list[tuple[int, int]]:
        """Requests for the data file."""
        return [(r.offset, r.length) for r in self.recorder.of("data.parquet")]

    def touched(self, column: str) -> int:
        """How many bytes of a column's chunks were asked for, other than with the end of the file."""
        ends = max(r.offset + r.length for r in self.recorder.of("data.parquet"))
        asked = [r for r in self.recorder.of("data.parquet") if r.offset < ends - SMALL_FILE_BYTES]
        return sum(
            min(end, r.offset + r.length) - max(start, r.offset)
            for start, end in self.chunks[column]
            for r in asked
            if r.touches(start, end)
        )


def built(path: Path) -> TableBuilder:
    """Two row groups; two columns of payload, 200 and 100 random bytes wide; two delete files."""
    rng = np.random.default_rng(2)
    text = [rng.bytes(75).hex() for _ in range(ROWS)]
    table = TableBuilder(path, COLUMNS)
    rows = {
        "id": list(range(ROWS)),
        "grp": [i * 7919 % ROWS for i in range(ROWS)],
        "first": [t + t[:50] for t in text],
        "second": [t[50:] for t in text],
    }
    table.commit(table.data(rows, **PAGES))
    table.commit(table.equality_delete({"id": [5, 30_000]}, ids=[1]))
    table.commit(table.equality_delete({"id": [7, 31_000]}, ids=[1]))
    return table


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> TableBuilder:
    return built(tmp_path_factory.mktemp("io") / "t")


@pytest.fixture
def recorded(table: TableBuilder, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorded]:
    """The table as if it lay in a bucket; nothing of it is remembered."""
    yield from _recorded(table, monkeypatch, pafs.LocalFileSystem(), str(table.location.parent), {})


def _recorded(
    table: TableBuilder,
    monkeypatch: pytest.MonkeyPatch,
    inner: pafs.FileSystem,
    root: str,
    properties: dict[str, str],
) -> Iterator[Recorded]:
    recorder = Recorder()
    system = pafs.PyFileSystem(RecordingHandler(inner, "lake", root, recorder))
    monkeypatch.setattr(
        "nevermore.scan_core.io.catalog.filesystem", lambda location, _: (system, location.authority + location.path)
    )
    for forget in (cache.clear, FOOTERS.clear, DELETE_CACHE.clear):
        forget()
    name = f"s3://lake/{table.location.name}"
    opened = scan_core.open_table(
        f"{name}/metadata/{table.metadata_path.name}",
        relocate={str(table.location): name},
        properties=properties,
    )
    path = next(p for p in table.location.rglob("*.parquet") if "delete" not in p.name)
    metadata = pq.ParquetFile(path).metadata
    chunks: dict[str, list[tuple[int, int]]] = {}
    for group in range(metadata.num_row_groups):
        for index in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(index)
            start = chunk.dictionary_page_offset or chunk.data_page_offset
            chunks.setdefault(chunk.path_in_schema, []).append((start, start + chunk.total_compressed_size))
    yield Recorded(opened.scan().with_options(ScanOptions(parallelism=1)), recorder, chunks)
    for forget in (cache.clear, FOOTERS.clear, DELETE_CACHE.clear):
        forget()


def test_of_a_list_of_structs_only_the_leaf_that_is_filtered_and_selected_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    columns = [
        Column(1, "id", "long"),
        Column(2, "l", list_of(3, struct(Column(4, "a", "int"), Column(5, "b", "string")))),
    ]
    table = TableBuilder(tmp_path / "t", columns)
    lists = [[{"a": i % 7, "b": rng.bytes(500).hex()}] * (i % 3) for i in range(4_000)]
    table.commit(table.data({"id": range(4_000), "l": lists}, use_dictionary=False))
    leaf_a, leaf_b = ("l.list.element." + name for name in "ab")
    for recorded in _recorded(table, monkeypatch, pafs.LocalFileSystem(), str(tmp_path), {}):
        assert recorded.scan.where("try_element_at(l, 1).a = 3").select("l.a").count() == 380
        assert recorded.touched(leaf_a) >= sum(end - start for start, end in recorded.chunks[leaf_a])
        size = sum(end - start for start, end in recorded.chunks[leaf_b])
        assert size > 2_000_000
        assert recorded.touched(leaf_b) < 0.05 * size, "no more than what comes with the footer"


def test_planning_opens_metadata_and_each_manifest_once_and_no_data(recorded: Recorded) -> None:
    recorded.scan.plan()
    assert set(recorded.recorder.opened.values()) == {1}
    assert len(recorded.recorder.opened) == 1 + 1 + 3  # metadata, manifest list, manifests
    assert recorded.data() == []
    recorded.recorder.clear()
    recorded.scan.plan()
    assert recorded.recorder.requests == []


END = 1
"""Requests for the end of a file: the footer, and in front of it the page indexes."""


def test_counting_reads_delete_files_once_and_of_the_data_only_pages_that_deletes_may_touch(recorded: Recorded) -> None:
    assert recorded.scan.count() == ROWS - 4
    assert set(recorded.recorder.opened.values()) == {1}
    assert len(recorded.recorder.of("eq-delete")) == 2  # a small file is read as a whole
    assert len(recorded.data()) == END + 2  # of each row group one run of pages
    ids = sum(end - start for start, end in recorded.chunks["id"])
    assert 0 < recorded.touched("id") < ids / 5
    assert recorded.touched("grp") == recorded.touched("first") == recorded.touched("second") == 0
    recorded.recorder.clear()
    recorded.scan.count()
    assert recorded.recorder.of("eq-delete", "metadata") == []
    assert len(recorded.data()) == END + 2, "the footer is known, the page indexes are not"


def test_a_needle_reads_payload_only_of_the_page_that_holds_it(recorded: Recorded) -> None:
    scan = recorded.scan.where("grp = 7919")
    assert scan.to_table()["id"].to_pylist() == [1]
    pages = {name: recorded.touched(name) for name in recorded.chunks}
    whole = {name: sum(end - start for start, end in places) for name, places in recorded.chunks.items()}
    assert pages["grp"] == whole["grp"]
    assert pages["first"] <= whole["first"] / 90
    assert pages["second"] <= whole["second"] / 90
    assert len(recorded.data()) <= END + 2 * 2 + 3


def test_a_needle_waits_for_its_keys_and_then_for_its_payload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For each row group, filter columns and dictionaries are fetched ahead, then keys, then what a few rows need in one step."""
    rng = np.random.default_rng(6)
    words = [rng.bytes(400).hex() for _ in range(500)]
    rows = {
        "id": rng.permutation(ROWS).tolist(),
        "grp": [i * 7919 % ROWS for i in range(ROWS)],
        "first": [words[i * 7 % 500] for i in range(ROWS)],
        "second": [rng.bytes(75).hex() for _ in range(ROWS)],
    }
    table = TableBuilder(tmp_path / "t", COLUMNS)
    pages = {**PAGES, "use_dictionary": ["first"], "dictionary_pagesize_limit": 4 * 1024**2, "data_page_size": 4_096}
    table.commit(table.data(rows, **pages))
    table.commit(table.equality_delete({"id": [rows["id"][0], rows["id"][ROWS - 1]]}, ids=[1]))
    waits: list[str] = []
    request = RemoteFile._request

    def counted(file: RemoteFile, ranges: Sequence[tuple[int, int]], ahead_for: int | None) -> int:
        if ranges and ahead_for is None and len(file.read_tail(1)):
            waits.append(f"{len(ranges)} ranges")
        return request(file, ranges, ahead_for)

    monkeypatch.setattr(RemoteFile, "_request", counted)
    for recorded in _recorded(table, monkeypatch, pafs.LocalFileSystem(), str(table.location.parent), {}):
        found = recorded.scan.where("grp in (7919, 15838, 39999)")
        for scan in (found.with_options(ScanOptions(parallelism=1, read_ahead_bytes=0)), found):
            for forget in (FOOTERS.clear, DELETE_CACHE.clear, waits.clear):
                forget()
            assert sorted(scan.to_table()["grp"].to_pylist()) == [7919, 15838, 39999]
        # the first row group asks for its dictionaries while the columns of its filter are fetched
        assert len(waits) <= 4
        assert found.metrics.bytes_read_in_vain == 0


@pytest.mark.each(2)
@pytest.mark.parametrize("has_pages", [True, False])
@pytest.mark.parametrize("where", [None, "id >= 0"])
def test_a_limit_reads_no_more_than_the_first_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_pages: bool, where: str | None
) -> None:
    table = TableBuilder(tmp_path / "t", [Column(1, "id", "long"), Column(2, "payload", "long")])
    rng = np.random.default_rng(4)
    for _ in range(3):
        rows = {name: rng.integers(0, 2**60, 1_000_000) for name in ("id", "payload")}
        table.commit(table.data(rows, row_group_size=500_000, write_page_index=has_pages, use_dictionary=False))
    size = sum(path.stat().st_size for path in tmp_path.rglob("*.parquet"))
    for recorded in _recorded(table, monkeypatch, pafs.LocalFileSystem(), str(tmp_path), {}):
        scan = recorded.scan if where is None else recorded.scan.where(where)
        expected = next(scan.to_batches()).slice(0, 5)
        FOOTERS.clear()
        recorded.recorder.clear()
        few = scan.with_options(ScanOptions(parallelism=2)).limit(5)
        assert few.to_table().to_batches() == [expected]
        assert recorded.recorder.num_bytes(".parquet") < size / 10
        assert few.metrics.bytes_read < size / 10
        recorded.recorder.clear()
        connection = duckdb.connect()
        scan.with_options(ScanOptions(parallelism=2, wants_few=True)).to_duckdb("t", connection)
        assert len(connection.execute("select * from t limit 5").fetchall()) == 5
        assert recorded.recorder.num_bytes(".parquet") < size / 4


def test_where_nothing_survives_no_payload_is_read(recorded: Recorded) -> None:
    assert recorded.scan.where("grp = 7919 and id > 100").to_table().num_rows == 0
    assert recorded.touched("first") == recorded.touched("second") == 0
    assert recorded.scan.where("id in (5, 7, 30000, 31000)").to_table().num_rows == 0
    assert recorded.touched("first") == recorded.touched("second") == 0


class _SteadyPace(Pace):
    def record(self, num_bytes: int, seconds: float) -> None:
        """Learn nothing: the load of this machine would decide how large requests are."""


def test_all_columns_of_a_row_group_are_requested_at_once_in_parts_of_about_a_megabyte(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace = _SteadyPace(latency=0.01)
    monkeypatch.setattr("nevermore.scan_core.io.files._pace", lambda *_: pace)
    assert recorded.scan.to_table().num_rows == ROWS - 4
    everything = sum(end - start for places in recorded.chunks.values() for start, end in places)
    parts = sorted(recorded.data())
    ends = [part for part in parts if part[1] == SMALL_FILE_BYTES]
    parts = [part for part in parts if part not in ends]
    assert len(ends) == END
    assert sum(length for _, length in parts) == everything
    runs = [offset for offset, _ in parts if offset not in {begin + length for begin, length in parts}]
    assert 1 <= len(runs) <= 2, "one run for each row group; they lie side by side"
    assert all(500_000 < length < 2_000_000 for _, length in parts)


def test_without_page_reading_whole_chunks_are_read_and_the_rows_are_the_same(recorded: Recorded) -> None:
    scan = recorded.scan.where("grp = 7919")
    plain = scan.with_options(ScanOptions.of(parallelism=1, prune_pages=False))
    assert plain.to_table() == scan.to_table()
    recorded.recorder.clear()
    plain.to_table()
    assert recorded.touched("first") > 0.4 * sum(end - start for start, end in recorded.chunks["first"])


def test_an_s3_endpoint_sees_the_same_requests(table: TableBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as endpoint:
        store = store_of(properties_of(endpoint))
        store.create_dir("lake")
        pafs.copy_files(str(table.location), f"lake/{table.location.name}", pafs.LocalFileSystem(), store)
        seen = []
        for inner, root in ((store, "lake"), (pafs.LocalFileSystem(), str(table.location.parent))):
            for recorded in _recorded(table, monkeypatch, inner, root, {}):
                assert recorded.scan.where("grp = 7919").to_table()["id"].to_pylist() == [1]
                seen.append(sorted((r.path, r.offset, r.length) for r in recorded.recorder.requests))
        assert seen[0] == seen[1]


def test_bounds_of_what_columns_become_cost_one_request_for_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dictionaries are looked at together; the pages of a chunk are, once it was fetched."""
    table = TableBuilder(tmp_path / "t", COLUMNS)
    rng = np.random.default_rng(3)
    words = [rng.bytes(400).hex() for _ in range(500)]
    rows = {
        "id": list(range(ROWS)),
        "grp": rng.integers(0, 1 << 30, ROWS).tolist(),
        "first": [words[i * 7 % 500] for i in range(ROWS)],
        "second": [words[i * 11 % 499] for i in range(ROWS)],
    }
    table.commit(table.data(rows, row_group_size=ROWS, data_page_size=4_096, compression="zstd"))
    for recorded in _recorded(table, monkeypatch, pafs.LocalFileSystem(), str(table.location.parent), {}):
        options = ScanOptions(parallelism=1, read_ahead_bytes=0)
        assert sum(b.num_rows for b in recorded.scan.with_options(options).to_batches()) == ROWS
        assert len(recorded.data()) <= END + 2


@pytest.mark.parametrize("narrow", ["delete", "join", "both"])
def test_of_a_delete_file_whose_keys_another_set_or_a_join_makes_unnecessary_other_columns_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, narrow: str
) -> None:
    rng = np.random.default_rng(4)
    table = TableBuilder(tmp_path / "t", [Column(1, "id", "long"), Column(2, "name", "string")])
    names = [rng.bytes(250).hex() for _ in range(12_000)]
    table.commit(table.data({"id": range(12_000), "name": names}, **PAGES))
    wide = table.equality_delete({"id": range(10_000), "name": names[:10_000]}, ids=[1, 2], **PAGES)
    table.commit(wide)
    if narrow != "join":
        table.commit(table.equality_delete({"id": [*range(9_900), 9_950]}, ids=[1]))
    group = pq.ParquetFile(wide.local).metadata.row_group(0)
    begin, size = group.column(1).data_page_offset, group.column(1).total_compressed_size
    assert size > 2_000_000
    for recorded in _recorded(table, monkeypatch, pafs.LocalFileSystem(), str(tmp_path), {}):
        scan = recorded.scan
        if narrow != "delete":
            scan = scan.semi_join("id", [9_898, 9_920, 9_921, 11_000])
        plain = scan.with_options(ScanOptions.of(prune_deletes=False))
        expected = 2_000 if narrow == "delete" else 1
        assert scan.count() == expected
        asked = [r for r in recorded.recorder.of(wide.local.name) if r.touches(begin, begin + size)]
        assert 0 < sum(r.length for r in asked) < 0.1 * size
        assert scan.metrics.delete_keys_left_out >= 9_899
        DELETE_CACHE.clear()
        recorded.recorder.clear()
        assert plain.count() == expected
        assert recorded.recorder.num_bytes(wide.local.name) > size
