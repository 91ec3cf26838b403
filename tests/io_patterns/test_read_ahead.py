"""Bytes of an object store are fetched before their turn: which ones, how many, and what that saves."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from nevermore import scan_core
from nevermore.scan_core import MalformedTableError, Scan, ScanMetrics, ScanOptions
from nevermore.scan_core.deletes.indexes import DELETE_CACHE
from nevermore.scan_core.files.parquet.file_layout import FOOTERS
from nevermore.scan_core.io import cache
from nevermore.scan_core.read.read_ahead import FilesAhead
from tests.io_patterns.recording import Delay, Recorder, RecordingHandler
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder

COLUMNS = (Column(1, "id", "long"), Column(2, "grp", "int"), Column(3, "text", "string"))
FILES, GROUPS, GROUP = 4, 6, 2_000
ROWS = FILES * GROUPS * GROUP
PLAIN = ScanOptions.of(parallelism=1, read_ahead_bytes=0, prune_pages=False)
AHEAD = replace(PLAIN, read_ahead_bytes=64 * 1024**2)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> TableBuilder:
    rng = np.random.default_rng(5)
    built = TableBuilder(tmp_path_factory.mktemp("ahead") / "t", COLUMNS)
    for file in range(FILES):
        ids = range(file * GROUPS * GROUP, (file + 1) * GROUPS * GROUP)
        rows = {
            "id": list(ids),
            "grp": [i * 7919 % ROWS for i in ids],
            "text": [rng.bytes(60).hex() for _ in ids],
        }
        built.commit(built.data(rows, row_group_size=GROUP, use_dictionary=False))
    built.commit(built.equality_delete({"id": [5, 30_000]}, ids=[1]))
    return built


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def scan(table: TableBuilder, recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scan]:
    """The table as if it lay in a bucket; nothing of its data is remembered."""
    handler = RecordingHandler(pafs.LocalFileSystem(), "lake", str(table.location.parent), recorder)
    system = pafs.PyFileSystem(handler)
    monkeypatch.setattr(
        "nevermore.scan_core.io.catalog.filesystem", lambda location, _: (system, location.authority + location.path)
    )
    forget()
    name = f"s3://lake/{table.location.name}"
    opened = scan_core.open_table(f"{name}/metadata/{table.metadata_path.name}", relocate={str(table.location): name})
    opened.scan().plan()
    yield opened.scan()
    forget()


def forget() -> None:
    for clear in (cache.clear, FOOTERS.clear, DELETE_CACHE.clear):
        clear()


def run_anew(scan: Scan, options: ScanOptions, recorder: Recorder) -> tuple[pa.Table, Scan]:
    FOOTERS.clear()
    DELETE_CACHE.clear()
    recorder.clear()
    asked = scan.with_options(options)
    return asked.to_table(), asked


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("scan-")]


@pytest.mark.each(6)
@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("where", [None, "grp < 40000", "id = 17"])
def test_rows_are_those_without_reading_ahead_and_requests_and_bytes_no_more(
    scan: Scan, recorder: Recorder, where: str | None, parallelism: int
) -> None:
    asked = scan if where is None else scan.where(where)
    expected, _ = run_anew(asked, PLAIN, recorder)
    requests, num_bytes = len(recorder.of("-data")), recorder.num_bytes("-data")
    found, ahead = run_anew(asked, replace(AHEAD, parallelism=parallelism), recorder)
    assert found == expected
    assert len(recorder.of("-data")) <= requests
    assert recorder.num_bytes("-data") <= num_bytes
    assert ahead.metrics.bytes_read_in_vain == 0
    assert threads() == []


def test_the_next_row_group_and_the_next_files_are_on_their_way_while_one_is_decoded(
    scan: Scan, recorder: Recorder
) -> None:
    batches = scan.with_options(AHEAD).to_batches()
    next(batches)
    deadline = time.monotonic() + 200
    while len(recorder.of("-data")) < 3 * 2 + 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    asked = Counter(r.path for r in recorder.of("-data"))
    assert sorted(asked.values()) == [2, 2, 2, 3], (
        "of each file footer and first row group; of the first one the second"
    )
    batches.close()  # type: ignore[attr-defined]  # it is a generator
    run_anew(scan, AHEAD, recorder)
    assert recorder.most_at_a_time >= 2
    run_anew(scan, PLAIN, recorder)
    recorder.most_at_a_time = 0
    run_anew(scan, PLAIN, recorder)
    assert recorder.most_at_a_time == 1


def test_requests_are_under_way_while_others_are_waited_for(scan: Scan, recorder: Recorder) -> None:
    recorder.delay = Delay(request_seconds=0.02)
    run_anew(scan, PLAIN, recorder)
    assert recorder.overlapping == 0
    _, asked = run_anew(scan, AHEAD, recorder)
    assert asked.metrics.bytes_read_ahead > 0.6 * asked.metrics.bytes_read
    assert recorder.overlapping > 0


_MOST_OF_FIRST_GROUP = max(i * 7919 % ROWS for i in range(GROUP))


@pytest.mark.parametrize(("where", "rows"), [("id < 10", 9), (f"id < {GROUP} and grp > {_MOST_OF_FIRST_GROUP}", 0)])
def test_deletes_are_on_their_way_while_their_data_file_is_opened(
    scan: Scan, recorder: Recorder, where: str, rows: int
) -> None:
    one_file = scan.where(where).select("id")
    recorder.delay = Delay(request_seconds=0.2)  # a busy machine may take long to start the thread that reads ahead
    waited: dict[ScanOptions, int] = {}
    for options in (PLAIN, AHEAD):
        FOOTERS.clear()
        DELETE_CACHE.clear()
        recorder.clear()
        recorder.overlapping = 0
        asked = one_file.with_options(options)
        assert asked.count() == rows
        waited[options] = recorder.overlapping
        assert (
            asked.metrics.delete_files_opened
            <= len({r.path for r in recorder.of("-delete")})
            == (rows > 0 or options is AHEAD)
        )
    assert waited[PLAIN] == 0
    assert waited[AHEAD] > 0
    assert threads() == []


@pytest.mark.parametrize(("num_bytes", "num_loaded"), [(1, 0), (64 * 1024**2, 1)])
def test_deletes_of_files_that_wait_take_no_more_than_the_option_allows(
    scan: Scan, num_bytes: int, num_loaded: int
) -> None:
    plan = scan.plan()
    task = next(task for task in plan.tasks if task.equality_deletes)
    with FilesAhead(replace(AHEAD, read_ahead_bytes=num_bytes)) as ahead:
        ahead.expect_task(task, plan.context)
        assert len(ahead._deletes) == num_loaded
        ahead.open(task, plan.context).close()
        assert not ahead.deletes(task, plan.context, ScanMetrics()).is_empty
    assert threads() == []


def test_no_more_than_the_option_allows_is_fetched_ahead(scan: Scan, recorder: Recorder) -> None:
    _, ample = run_anew(scan, AHEAD, recorder)
    group_bytes = ample.metrics.bytes_read // (FILES * GROUPS)
    expected, little = run_anew(scan, replace(AHEAD, read_ahead_bytes=group_bytes), recorder)
    assert 0 < little.metrics.bytes_read_ahead < 0.6 * ample.metrics.bytes_read_ahead
    assert expected.num_rows == ROWS - 2
    _, small = run_anew(scan, replace(AHEAD, memory_limit_bytes=2 * group_bytes), recorder)
    assert small.metrics.bytes_read_ahead < ample.metrics.bytes_read_ahead


def test_bytes_that_nobody_asks_for_are_counted(scan: Scan, recorder: Recorder) -> None:
    FOOTERS.clear()
    asked = scan.where("grp < 40000 or id > 20000").with_options(AHEAD)
    for batch in asked.to_batches():
        assert batch.num_rows
        break
    assert threads() == []
    found, asked = run_anew(scan.where("id < 4500 and grp >= 0"), AHEAD, recorder)
    assert found.num_rows == 4_499
    assert asked.metrics.bytes_read_in_vain <= asked.metrics.bytes_read_ahead


def test_errors_of_files_opened_ahead_are_raised_and_leave_no_thread(
    scan: Scan, table: TableBuilder, recorder: Recorder
) -> None:
    path = sorted(p for p in table.location.rglob("*.parquet") if "delete" not in p.name)[2]
    content = path.read_bytes()
    path.write_bytes(content[:-9] + b"x" + content[-8:])
    try:
        for parallelism in (1, 2):
            with pytest.raises(MalformedTableError, match=path.name):
                run_anew(scan, replace(AHEAD, parallelism=parallelism), recorder)
            assert threads() == []
    finally:
        path.write_bytes(content)


def test_closing_early_leaves_no_thread(scan: Scan) -> None:
    for parallelism in (1, 3):
        batches = scan.with_options(replace(AHEAD, parallelism=parallelism)).to_batches()
        next(batches)
        assert threads() != []
        batches.close()  # type: ignore[attr-defined]  # it is a generator
        assert threads() == []


def test_orc_reads_a_stripe_and_a_column_at_a_time_and_no_payload_where_nothing_survives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, stripe = 60_000, 20_000
    rng = np.random.default_rng(9)
    built = TableBuilder(tmp_path / "o", COLUMNS)
    data = {
        "id": list(range(rows)),
        "grp": rng.permutation(rows).tolist(),
        "text": [rng.bytes(60).hex() for _ in range(rows)],
    }
    built.commit(built.data(data, file_format="orc", stripe_size=1024**2, batch_size=1024))
    (path,) = (tmp_path / "o").rglob("*.orc")
    from pyarrow import orc

    assert orc.ORCFile(path).nstripes >= 3
    recorder = Recorder()
    system = pafs.PyFileSystem(RecordingHandler(pafs.LocalFileSystem(), "lake", str(tmp_path), recorder))
    monkeypatch.setattr(
        "nevermore.scan_core.io.catalog.filesystem", lambda location, _: (system, location.authority + location.path)
    )
    opened = scan_core.open_table(
        f"s3://lake/o/metadata/{built.metadata_path.name}", relocate={str(built.location): "s3://lake/o"}
    )
    scan = opened.scan().with_options(ScanOptions(parallelism=1))
    size = path.stat().st_size
    assert scan.where("grp = -1").count() == 0  # bounds of every stripe exclude it: only the tail is read
    assert recorder.num_bytes(".orc") < size / 20
    recorder.clear()
    assert scan.where("grp % 60001 = 60000").to_table().num_rows == 0
    assert recorder.num_bytes(".orc") < size / 4, "the filter's column of all stripes, no payload"
    recorder.clear()
    assert scan.where("id = 100").to_table().num_rows == 1
    assert recorder.num_bytes(".orc") < size / 2, "one stripe of three"
    assert stripe < rows
    forget()
