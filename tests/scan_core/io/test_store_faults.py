"""An object store that is late, fails, or sends half an answer: the rows are the same, or one error names the object."""

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest

from nevermore import scan_core
from nevermore.scan_core import Scan, ScanCancelledError, ScanError, ScanOptions
from nevermore.scan_core.deletes.indexes import DELETE_CACHE
from nevermore.scan_core.files.parquet.file_layout import FOOTERS
from nevermore.scan_core.io import cache, object_store, read_bytes
from nevermore.scan_core.io.files import open_source
from nevermore.scan_core.io.location import FileIOConfig
from tests.support.avro_edit import rewrite_avro
from tests.support.faulty_store import Asked, Fault, Store, faulty_store
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder

ROWS = 40_000
OPTIONS = ScanOptions(parallelism=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bucket with one table: two files larger than what is read of a file's end at once, and deletes."""
    root = tmp_path_factory.mktemp("bucket")
    table = TableBuilder(root / "t", [Column(1, "id", "long"), Column(2, "text", "string")])
    rng = np.random.default_rng(1)
    for start in (0, ROWS // 2):
        ids = range(start, start + ROWS // 2)
        rows = {"id": ids, "text": [rng.bytes(40).hex() for _ in ids]}
        table.commit(table.data(rows, use_dictionary=False, write_page_checksum=True))
    table.commit(table.equality_delete({"id": [5, 30_000]}, ids=[1]))
    return root


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    forget()
    with faulty_store(folder) as running:
        yield running
    forget()


def forget() -> None:
    for clear in (cache.clear, FOOTERS.clear, DELETE_CACHE.clear):
        clear()


def opened(store: Store, folder: Path) -> Scan:
    metadata = max((folder / "t" / "metadata").glob("*.metadata.json"), key=lambda p: p.name)
    table = scan_core.open_table(
        f"s3://bench/t/metadata/{metadata.name}", properties=store.properties, relocate={str(folder): "s3://bench"}
    )
    return table.scan().with_options(OPTIONS)


def ids_of(scan: Scan) -> list[int]:
    found: list[int] = sorted(scan.select("id", "text").to_table()["id"].to_pylist())
    return found


EXPECTED = [i for i in range(ROWS) if i not in {5, 30_000}]


def test_no_object_is_asked_for_its_size(store: Store, folder: Path) -> None:
    assert ids_of(opened(store, folder)) == EXPECTED
    assert not [asked for asked in store.asked if asked.bytes == "HEAD" and not asked.name.endswith(".json")]


@pytest.mark.parametrize("status", [500, 503])
def test_requests_that_fail_are_repeated(store: Store, folder: Path, status: int) -> None:
    store.fault = lambda asked: Fault(status) if asked.before < 2 else None
    assert ids_of(opened(store, folder)) == EXPECTED
    assert max(asked.before for asked in store.asked) >= 2


def test_answers_that_are_cut_short_are_read_again(store: Store, folder: Path) -> None:
    store.fault = lambda asked: Fault(is_cut=True) if asked.before < 1 and "data" in asked.name else None
    assert ids_of(opened(store, folder)) == EXPECTED


READS = {
    "rows": lambda scan: sorted(scan.select("id", "text").to_table()["id"].to_pylist()),
    "a filter": lambda scan: scan.select("id").where("id < 29000").to_table().num_rows + 10_999,
    "a count": lambda scan: scan.where("text >= ''").count(),
    "an aggregate": lambda scan: scan.aggregate(("count", "text"))[0],
}
PARTS = {"data": 1000, "data, its end": -1, "delete": -1, "snap": 1, "-m": 1}


@pytest.mark.each(10)
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("part", PARTS)
def test_bytes_that_are_damaged_on_the_way_are_forgotten_and_read_again(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, part: str, read: str
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    expected = EXPECTED if read == "rows" else len(EXPECTED)
    wanted = part.partition(",")[0]
    hit = set()

    def damage(asked: Asked) -> Fault | None:
        is_wanted = wanted in asked.name and (wanted == "delete" or "delete" not in asked.name)
        if asked.bytes == "HEAD" or not is_wanted or asked.name in hit:
            return None
        hit.add(asked.name)
        return Fault(damaged=PARTS[part])

    store.fault = damage
    assert READS[read](opened(store, folder)) == expected
    assert hit
    for _ in range(2):
        forget()
        assert READS[read](opened(store, folder)) == expected


@pytest.mark.parametrize("place", ["name", "bucket"])
def test_a_path_that_is_damaged_on_the_way_fails_one_scan_and_no_later_one(
    store: Store, folder: Path, place: str
) -> None:
    for path in (folder / "t" / "metadata").glob("snap-*.avro"):
        rewrite_avro(str(path), lambda *_: None)  # without compression, so that the path is found
    hit = set()

    def damage(asked: Asked) -> Fault | None:
        if hit or "snap" not in asked.name or asked.bytes == "HEAD":
            return None
        hit.add(asked.name)
        data = next(folder.rglob(asked.name)).read_bytes()
        end = data.rindex(b"/t/metadata/")
        return Fault(damaged=end + 16 if place == "name" else end - 1)

    store.fault = damage
    with pytest.raises(scan_core.ScanError):
        ids_of(opened(store, folder))
    assert hit
    assert ids_of(opened(store, folder)) == EXPECTED


@pytest.mark.parametrize("part", ["data", "delete"])
def test_damage_in_the_store_itself_is_one_error(store: Store, folder: Path, part: str) -> None:
    store.fault = lambda asked: Fault(damaged=1000 if part == "data" else -1) if part in asked.name else None
    with pytest.raises(scan_core.MalformedTableError, match=part):
        ids_of(opened(store, folder))


def test_a_request_that_takes_far_too_long_is_sent_again_and_the_first_answer_counts(
    store: Store, folder: Path
) -> None:
    scan = opened(store, folder)
    assert ids_of(scan) == EXPECTED
    DELETE_CACHE.clear()

    def is_stuck(asked: Asked) -> bool:
        return asked.before == 0 and "data" in asked.name and not asked.bytes.startswith("bytes=-")

    store.clear()
    store.fault = lambda asked: Fault(seconds=4) if is_stuck(asked) else None
    assert ids_of(scan) == EXPECTED
    assert [asked for asked in store.asked if is_stuck(asked)]
    assert [asked for asked in store.asked if asked.before == 1]
    deadline = time.monotonic() + 200  # the slower answers were not waited for
    while any(t.name.startswith("scan-range") for t in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.05)


@pytest.mark.parametrize(("status", "repeats"), [(403, 0), (500, 1)])
def test_what_fails_for_good_is_one_error_with_the_name_of_the_object(
    store: Store, folder: Path, status: int, repeats: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "_RETRIES", repeats)
    object_store._store.cache_clear()
    scan = opened(store, folder)
    store.fault = lambda asked: Fault(status) if "data" in asked.name and "delete" not in asked.name else None
    with pytest.raises(scan_core.MissingFileError, match=r"cannot open .*data.*parquet") as caught:
        ids_of(scan)
    assert "no-secret" not in str(caught.value)
    assert "\n" not in str(caught.value)
    object_store._store.cache_clear()


@pytest.mark.parametrize(
    "name", ["plain.bin", "day=2026-01-01 00:00.bin", "100%25.bin", "k\N{LATIN SMALL LETTER E WITH ACUTE}y+&?#.bin"]
)
@pytest.mark.parametrize("size", [0, 1, 300_000])
def test_objects_of_any_name_and_size(store: Store, folder: Path, name: str, size: int) -> None:
    content = np.random.default_rng(size).bytes(size)
    (folder / name).write_bytes(content)
    io = FileIOConfig(properties=store.properties)
    path = f"s3://bench/{name}"
    assert read_bytes(path, io) == content
    assert read_bytes(path, io, size // 2) == content[size // 2 :]
    with pytest.raises(scan_core.MalformedTableError, match="not inside"):
        read_bytes(path, io, size // 2, size + 1)
    source = open_source(path, io)
    assert source.size() == size
    assert source.read([(0, min(size, 5)), (size // 2, size)]) == [content[:5], content[size // 2 :]]
    assert source.for_arrow().read() == content
    source.close()
    assert quote(name) in {asked.name for asked in store.asked}


def replace(path: Path, content: bytes) -> None:
    """Another object of the same name."""
    new = path.with_name("new")
    new.write_bytes(content)
    os.utime(new, ns=(1, path.stat().st_mtime_ns + 1))
    new.replace(path)


@pytest.mark.parametrize("first", ["a range", "its end", "its size"])
def test_an_object_that_is_replaced_between_two_reads_is_refused(store: Store, folder: Path, first: str) -> None:
    path = folder / "replaced.bin"
    replace(path, b"a" * 600_000) if path.exists() else path.write_bytes(b"a" * 600_000)
    source = open_source("s3://bench/replaced.bin", FileIOConfig(properties=store.properties))
    match first:
        case "a range":
            assert source.read_at(5, 100) == b"aaaaa"
        case "its end":
            assert source.read_tail(5)[-5:] == b"aaaaa"
        case _:
            assert source.size() == 600_000
    replace(path, b"b" * 600_000)
    with pytest.raises(scan_core.MissingFileError, match=r"cannot read s3://bench/replaced.bin: it was replaced"):
        source.read_at(5, 50_000)
    source.close()


def test_a_data_file_that_is_replaced_is_never_read_by_the_footer_of_the_one_before(store: Store, folder: Path) -> None:
    scan = opened(store, folder).with_options(ScanOptions(parallelism=1))
    assert ids_of(scan) == EXPECTED
    path = max((folder / "t" / "data").glob("*.parquet"), key=lambda p: p.stat().st_size)
    content = path.read_bytes()
    replace(path, content)
    with pytest.raises(scan_core.MissingFileError, match=rf"cannot read .*{path.name}.*: it was replaced"):
        ids_of(scan)
    assert ids_of(scan) == EXPECTED, "its own footer is read the next time"


def test_a_missing_object_is_named(store: Store) -> None:
    io = FileIOConfig(properties=store.properties)
    for read in (lambda: read_bytes("s3://bench/none", io), lambda: open_source("s3://bench/none", io).size()):
        with pytest.raises(scan_core.MissingFileError, match="cannot open s3://bench/none"):
            read()


def test_a_forked_process_reads_as_well(store: Store, folder: Path) -> None:
    """Threads of the client do not exist in it."""
    scan = opened(store, folder)
    assert ids_of(scan) == EXPECTED
    child = os.fork()
    if child == 0:
        try:
            forget()
            os._exit(0 if ids_of(scan) == EXPECTED else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


def test_properties_that_only_the_file_io_understands_are_left_to_it(store: Store, folder: Path) -> None:
    store.properties["s3.proxy-uri"] = ""
    assert ids_of(opened(store, folder)) == EXPECTED
    assert [asked for asked in store.asked if asked.bytes == "HEAD" and asked.name.endswith(".parquet")]


@pytest.mark.each(2)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AWS_SESSION_TOKEN", "of-somebody-else"),
        ("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9"),
        ("AWS_SKIP_SIGNATURE", "true"),
        ("HTTP_PROXY", "http://127.0.0.1:9"),
        ("http_proxy", "http://127.0.0.1:9"),
    ],
)
def test_environment_variables_that_the_file_io_does_not_read_change_nothing(
    store: Store, folder: Path, name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert ids_of(opened(store, folder)) == EXPECTED
    assert [asked for asked in store.asked if asked.bytes == "HEAD" and asked.name.endswith(".parquet")]


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_REGION", "AWS_PROFILE"])
def test_properties_override_the_environment(
    store: Store, folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "other")
    assert ids_of(opened(store, folder)) == EXPECTED
    assert not [asked for asked in store.asked if asked.bytes == "HEAD" and asked.name.endswith(".parquet")]


@pytest.mark.parametrize("client", ["obstore", pytest.param("pyarrow", marks=pytest.mark.slow)])
@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("silent", ["manifests", "deletes", "footers", "pages"])
def test_a_scan_is_cancelled_while_the_store_is_silent(
    store: Store, folder: Path, silent: str, parallelism: int, client: str
) -> None:
    begun, released = threading.Event(), threading.Event()
    scan = opened(store, folder)
    if client == "pyarrow":
        store.properties["py-io-impl"] = "pyiceberg.io.pyarrow.PyArrowFileIO"
        scan = opened(store, folder)
    scan = scan.with_options(ScanOptions(parallelism=parallelism)).select("id", "text")
    if silent == "pages":
        scan.select("id").to_table()  # footers are known

    def hang(asked: Asked) -> Fault | None:
        kinds = {"manifests": ".avro", "deletes": "delete", "footers": "data", "pages": "data"}
        if kinds[silent] in asked.name and asked.bytes != "HEAD":
            begun.set()
            released.wait(300)
        return None

    store.fault = hang
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(scan.to_table)
        try:
            assert begun.wait(300)
            scan.cancel()
            with pytest.raises(ScanCancelledError):
                running.result(200)  # the store answers after that
            assert not released.is_set()
        finally:
            released.set()
    store.fault = lambda _: None
    assert ids_of(opened(store, folder)) == EXPECTED


@pytest.mark.parametrize("status", [403, *(pytest.param(n, marks=pytest.mark.slow) for n in (400, 401, 404, 412))])
@pytest.mark.parametrize("answered", [0, 1, 3, 5])
def test_credentials_that_expire_within_a_scan(store: Store, folder: Path, status: int, answered: int) -> None:
    options = ScanOptions(parallelism=2)
    scan = opened(store, folder).with_options(options)
    assert ids_of(scan) == EXPECTED
    forget()
    store.clear()
    store.fault = lambda _: Fault(status) if len(store.asked) > answered else None
    with pytest.raises(ScanError, match=r"\.(parquet|avro|json)") as raised:
        ids_of(scan)
    assert "no-secret" not in str(raised.value)
    assert len(store.asked) < 60, "refused requests are not repeated for long"
