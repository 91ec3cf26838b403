"""A page of a data or delete file of ours has a flipped bit: rows are right, or reading is refused."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from nevermore import scan_core
from nevermore.pipelines.config.project import load
from nevermore.pipelines.iceberg.catalog import create_table, open_catalog
from nevermore.pipelines.iceberg.commit import RowDelta
from nevermore.pipelines.iceberg.parquet_output import WriterOptions
from nevermore.pipelines.iceberg.schema_evolution import iceberg_fields
from nevermore.pipelines.iceberg.table_writer import write_deletes, write_rows
from nevermore.scan_core import Scan, ScanError, ScanOptions
from nevermore.scan_core.deletes.indexes import DELETE_CACHE
from nevermore.scan_core.files.parquet.file_layout import FOOTERS, read_layout
from nevermore.scan_core.io import cache
from nevermore.scan_core.io.remote import ByteRanges
from tests.pipelines.project import Project
from tests.support.parquet_pages import page_places, parse_offset_index

ROWS = 2_000
WORDS = ("north", "south", "east", None)
OPTIONS = WriterOptions(page_rows=100, row_group_rows=1_000, bloom_filters=True)
READS: dict[str, Callable[[Scan], Any]] = {
    "all": lambda scan: scan.to_table().sort_by("id").to_pylist(),
    "count": lambda scan: scan.count(),
    "needle": lambda scan: scan.where("id = 777").to_table().to_pylist(),
    "page": lambda scan: scan.where("id between 350 and 420 and word = 'north'").to_table().sort_by("id").to_pylist(),
    "sum": lambda scan: scan.where("amount > 500").select("amount").to_table().column("amount").to_pylist(),
}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The metadata file of a table of our writers: two data files, equality deletes, and lists of values."""
    project = Project(tmp_path_factory.mktemp("flips"))
    catalog = open_catalog(load(project.folder / "nevermore.yaml"))
    rows = pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "word": pa.array([WORDS[i % 4] for i in range(ROWS)]),
            "amount": pa.array([i * 0.5 if i % 7 else None for i in range(ROWS)]),
            "tags": pa.array([[i, i + 1][: i % 3] for i in range(ROWS)], pa.list_(pa.int32())),
        }
    )
    made = create_table(catalog, "shop.flips", iceberg_fields(rows.schema))
    delta = RowDelta(made, options=OPTIONS)
    delta.commit(write_rows(rows, delta.target, delta.default_spec), {})
    delta = RowDelta(catalog.load_table("shop.flips"), options=OPTIONS)
    keys = pa.table({"id": pa.array(range(0, ROWS, 9), pa.int64())})
    files = write_deletes(keys, delta.target, delta.default_spec, [1])
    delta.commit([*files, *write_rows(rows.slice(0, 500), delta.target, delta.default_spec)], {})
    return Path(catalog.load_table("shop.flips").metadata_location.removeprefix("file://"))


def files_of(metadata: Path) -> dict[str, list[Path]]:
    """Data and delete files."""
    warehouse = metadata.parent.parent
    return {
        "data": sorted(p for p in (warehouse / "data").rglob("*.parquet") if "delete" not in p.name),
        "delete": sorted((warehouse / "data").rglob("*deletes*.parquet")),
    }


def outcome(metadata: Path, read: str, options: ScanOptions) -> Any:
    cache.clear()
    DELETE_CACHE.clear()
    FOOTERS.clear()
    try:
        return READS[read](scan_core.open_table(metadata).scan().with_options(options))
    except ScanError:
        return "refused"


def page_bytes(data: bytes) -> list[int]:
    """Places of bytes of the bodies of pages: headers have at most 60 bytes, and pages are smaller where they take more than a half."""
    footer = read_layout(ByteRanges(pa.BufferReader(data)), "file").footer
    return [
        at + size - 1 - byte
        for group in footer.row_groups
        for chunk in group.chunks
        if chunk.offset_index is not None
        for place, length in [chunk.offset_index]
        if (locations := parse_offset_index(data[place : place + length], chunk, group.num_rows)) is not None
        for at, size in page_places(chunk, locations)
        for byte in range(size // 4)
    ]


def tally(metadata: Path, kind: str, times: int, **options: bool) -> Counter[str]:
    """What became of reads of a table with one flipped bit, so many times in files of a kind, each time another one."""
    random = Random(kind)
    ways = (ScanOptions.of(parallelism=1, **options), ScanOptions.without_optimisations())  # type: ignore[arg-type]
    right = {read: outcome(metadata, read, ways[0]) for read in READS}
    found: Counter[str] = Counter()
    files = [(path, data, page_bytes(data)) for path in files_of(metadata)[kind] for data in [path.read_bytes()]]
    files = [file for file in files if file[2]]
    for number in range(times):
        path, data, possible = random.choice(files)
        place = random.choice(possible)
        read = random.choice(list(READS))
        changed = bytearray(data)
        changed[place] ^= 1 << random.randrange(8)
        path.write_bytes(changed)
        try:
            got = outcome(metadata, read, ways[number % len(ways)] if not options else ways[0])
        finally:
            path.write_bytes(data)
        found["right" if got == right[read] else "refused" if got == "refused" else "wrong"] += 1
    return found


KINDS = ("data", "delete")


@pytest.mark.parametrize("kind", KINDS)
def test_no_flipped_bit_of_a_page_gives_wrong_rows(table: Path, kind: str) -> None:
    found = tally(table, kind, 20)
    assert found["wrong"] == 0
    assert found["refused"] > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_none_of_many_flipped_bits_of_pages_gives_wrong_rows(table: Path, kind: str) -> None:
    found = tally(table, kind, 800)
    print(kind, dict(found))  # noqa: T201 - the rate is worth knowing
    assert found["wrong"] == 0
    assert found["refused"] > 0


@pytest.mark.slow
def test_without_a_look_at_checksums_some_do(table: Path) -> None:
    assert tally(table, "data", 600, verify_checksums=False)["wrong"] > 0
