"""Row groups of which a page of each column does not fit into memory at the same time: columns decoded into a file."""

import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nevermore import scan_core
from nevermore.scan_core import ScanOptions
from nevermore.scan_core.columns.file_reader import DecodingLimits
from nevermore.scan_core.files.parquet.reader import open_parquet
from nevermore.scan_core.io.location import FileIOConfig
from nevermore.scan_core.io.private_files import spill_folder
from nevermore.scan_core.model.errors import MemoryLimitError
from nevermore.scan_core.rows.selection import from_ranges
from tests.support.iceberg_json import Column
from tests.support.memory import PEAK_BYTES
from tests.support.table_builder import TableBuilder

MIB = 1024**2
ROWS = 20_000
LIMITS = DecodingLimits(512 * 1024, 64 * MIB)


def wide_file(path: Path, **options: Any) -> pa.Table:
    """A row group with columns of several types whose pages are whole chunks."""
    random = np.random.default_rng(3)
    numbers = random.integers(0, 1 << 40, ROWS)
    texts = pa.array([None if n % 7 == 0 else f"{n:x}" * (n % 5) for n in numbers.tolist()])
    lists = pa.array([None if n % 11 == 0 else [n] * (n % 4) for n in numbers.tolist()], pa.list_(pa.int64()))
    columns = {f"n{i}": pa.array(numbers + i) for i in range(6)} | {
        "text": texts,
        "few": pa.array([f"{n % 50:<60}" for n in numbers.tolist()]),
        "lists": lists,
        "structs": pa.StructArray.from_arrays([texts, lists], ["a", "b"]),
        "small": pa.array(numbers % 3 == 0),
    }
    table = pa.table(columns)
    pq.write_table(table, path, data_page_size=64 * MIB, max_rows_per_page=10**6, write_batch_size=ROWS, **options)
    return table


@pytest.mark.each(2)
@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("options", [{"compression": "none"}, {"compression": "zstd", "data_page_version": "2.0"}])
def test_columns_decoded_apart_have_the_same_values(tmp_path: Path, options: dict[str, Any], parallelism: int) -> None:
    table = wide_file(tmp_path / "a.parquet", **options)
    reader = open_parquet(str(tmp_path / "a.parquet"), FileIOConfig(), parallelism=parallelism)
    (group,), columns = reader.row_groups, list(range(table.num_columns))
    windows = reader.windows(group, columns, range(ROWS), LIMITS)
    assert windows is not None
    assert len(windows) > 2
    for index, window in enumerate(windows):
        # some columns are wanted in some windows only, as filters leave them, and of these a part of the rows
        wanted = columns if index % 3 else columns[::2]
        rows = range(window.start, window.stop - index % 2)
        found = reader.read(group, wanted, from_ranges([(rows.start, rows.stop)], ROWS), window)
        for column, array in zip(wanted, found, strict=True):
            plain = array.dictionary_decode() if isinstance(array, pa.DictionaryArray) else array
            assert plain.equals(table.column(column).slice(rows.start, len(rows)).combine_chunks())
    assert reader.counts.bytes_spilled > 1 * MIB
    assert not reader.counts.over_limit
    assert not [name for name in spill_folder().names() if name != "lock"]
    reader.close()


def test_a_file_of_few_columns_is_not_decoded_apart(tmp_path: Path) -> None:
    wide_file(tmp_path / "a.parquet")
    reader = open_parquet(str(tmp_path / "a.parquet"), FileIOConfig())
    (group,) = reader.row_groups
    window, *_ = reader.windows(group, [6], range(ROWS), DecodingLimits(16 * 1024, 64 * MIB)) or ()
    reader.read(group, [6], from_ranges([(window.start, window.stop)], ROWS), window)
    assert reader.counts.bytes_spilled == 0
    assert reader.counts.over_limit
    reader.close()


def test_a_disk_without_room_is_told(tmp_path: Path) -> None:
    wide_file(tmp_path / "a.parquet")
    reader = open_parquet(str(tmp_path / "a.parquet"), FileIOConfig())
    (group,) = reader.row_groups
    window, *_ = reader.windows(group, [*range(11)], range(ROWS), LIMITS) or ()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(MemoryLimitError, match=r"a\.parquet: its columns do not fit .* File too large; make room"):
            reader.read(group, [*range(11)], from_ranges([(window.start, window.stop)], ROWS), window)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    reader.close()


KINDS: dict[str, Any] = {
    "long": "long",
    "text": "string",
    "few texts": "string",
    "list": {"type": "list", "element-id": 0, "element-required": False, "element": "long"},
}


def _values(kind: str, rows: int, seed: int) -> Any:
    random = np.random.default_rng(seed)
    numbers = random.integers(0, 1 << 40, rows)
    if kind == "long":
        return numbers
    if kind == "text":
        return pa.array(numbers).cast(pa.string())
    if kind == "few texts":
        return pa.array([f"value {i:06} of {seed}" for i in range(5_000)]).take(pa.array(numbers % 5_000))
    offsets = np.append(0, np.cumsum(random.integers(0, 4, rows))).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(random.integers(0, 1 << 40, int(offsets[-1]))))


def wide_table(path: Path, kind: str, columns: int, rows: int, options: dict[str, Any]) -> Path:
    names = [f"v{i}" for i in range(2, columns + 1)]
    types = [{**KINDS[kind], "element-id": 1000 + i} if kind == "list" else KINDS[kind] for i in range(len(names))]
    fields = [Column(i, name, of) for i, (name, of) in enumerate(zip(names, types, strict=True), 2)]
    table = TableBuilder(path, (Column(1, "id", "long"), *fields))
    content = {"id": np.arange(rows)} | {name: _values(kind, rows, i) for i, name in enumerate(names)}
    table.commit(table.data(content, max_rows_per_page=10**8, write_batch_size=4096, **options))
    table.commit(table.equality_delete({"id": np.arange(0, rows, 5)}, ids=[1]))
    return table.metadata_path


@pytest.mark.slow
@pytest.mark.parametrize("where", ["", "id % 3 = 1 and v2 is not null and v3 is not null"])
@pytest.mark.parametrize("page", [64 * 1024, 8 * MIB])
@pytest.mark.parametrize(
    ("kind", "columns"), [("long", 40), ("long", 200), ("text", 40), ("few texts", 40), ("list", 40)]
)
@pytest.mark.parametrize(("codec", "parallelism"), [("none", 1), ("zstd", 2)])
def test_a_scan_of_a_wide_table_keeps_to_its_limit(
    tmp_path: Path, kind: str, columns: int, codec: str, page: int, parallelism: int, where: str
) -> None:
    """No more than 1.25 times the limit and one batch, whatever the pages are."""
    values = {"long": 4_000_000, "text": 2_000_000, "few texts": 1_500_000, "list": 2_000_000}[kind]
    limit, rows = 16 * MIB, values // columns
    options = {"data_page_size": page, "compression": codec, "use_dictionary": kind == "few texts"}
    metadata = wide_table(tmp_path / "large", kind, columns, rows, options)
    small = wide_table(tmp_path / "small", kind, columns, 100, options)
    found, growth, batch = growth_of(metadata, small, limit, parallelism, where)
    numbers = np.arange(rows)
    assert found == np.count_nonzero((numbers % 5 != 0) & ((numbers % 3 == 1) | (not where)))
    assert growth <= 1.25 * limit + batch


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", [1, 2])
def test_lists_keep_to_a_small_limit_with_what_allocators_keep(tmp_path: Path, parallelism: int) -> None:
    metadata, small = (wide_table(tmp_path / str(rows), "list", 2, rows, {}) for rows in (800_000, 1_000))
    found, growth, batch = growth_of(metadata, small, 16 * MIB, parallelism, "")
    assert found == 640_000
    assert growth <= 1.25 * 16 * MIB + batch


def growth_of(metadata: Path, small: Path, limit: int, parallelism: int, where: str) -> tuple[int, ...]:
    """Rows, growth and largest batch of a scan in a process that has scanned the small table."""
    code = f"""{PEAK_BYTES}
from nevermore import scan_core
from nevermore.scan_core import ScanOptions

def batches(path, limit):
    options = ScanOptions(memory_limit_bytes=limit, parallelism={parallelism})
    scan = scan_core.open_table(path).scan().with_options(options)
    for batch in (scan.where({where!r}) if {where!r} else scan).to_batches():
        yield batch.num_rows, batch.nbytes

list(batches({str(small)!r}, 1))
before, rows, most = peak_bytes(), 0, 0
for num_rows, num_bytes in batches({str(metadata)!r}, {limit}):
    rows, most = rows + num_rows, max(most, num_bytes)
print(rows, peak_bytes() - before, most)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return tuple(map(int, result.stdout.split()))


def test_what_went_through_a_file_is_counted(tmp_path: Path) -> None:
    options = {"data_page_size": MIB, "compression": "none", "use_dictionary": False}
    metadata = wide_table(tmp_path / "t", "long", 24, 30_000, options)
    scan = scan_core.open_table(metadata).scan()
    tight = scan.with_options(ScanOptions(memory_limit_bytes=4 * MIB, parallelism=1))
    assert tight.to_table() == scan.to_table()
    assert tight.metrics.bytes_spilled > 4 * MIB
    assert scan.metrics.bytes_spilled == 0
