import datetime as dt
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nevermore.scan_core.files.parquet import chunks
from nevermore.scan_core.files.parquet.file_layout import parse_column_index, read_layout
from nevermore.scan_core.files.parquet.reader import ParquetFileReader
from nevermore.scan_core.io.remote import ByteRanges
from nevermore.scan_core.model.errors import ScanError
from nevermore.scan_core.rows.selection import All, Mask
from tests.support.parquet_pages import parse_offset_index

ROWS = 6_000
_RNG = np.random.default_rng(3)


def _with_nulls(values: list[Any]) -> list[Any]:
    return [None if i % 11 == 3 else v for i, v in enumerate(values)]


COLUMNS = {
    "int": pa.array(_with_nulls(list(range(ROWS))), pa.int64()),
    "few": pa.array(_with_nulls([f"v{i % 9}" for i in range(ROWS)])),
    "many": pa.array([f"value-{i * 7919 % ROWS}" for i in range(ROWS)]),
    "overflow": pa.array([f"v{i % 9}" if i < ROWS // 2 else f"long value {i}" for i in range(ROWS)]),
    "large": pa.array([f"{i:08d}" for i in range(ROWS)], pa.large_string()),
    "double": pa.array(_RNG.random(ROWS)),
    "flag": pa.array(_with_nulls([i % 3 == 0 for i in range(ROWS)])),
    "stamp": pa.array(np.arange(ROWS), pa.timestamp("us", "UTC")),
    "zoned": pa.array(np.arange(ROWS), pa.timestamp("ms", "Europe/Berlin")),
    "day": pa.array([dt.date(2020, 1, 1) + dt.timedelta(i % 400) for i in range(ROWS)]),
    "price": pa.array([decimal.Decimal(i) / 100 for i in range(ROWS)], pa.decimal128(20, 2)),
    "fixed": pa.array([i.to_bytes(16, "big") for i in range(ROWS)], pa.binary(16)),
    "list": pa.array([None if i % 7 == 0 else list(range(i % 5)) for i in range(ROWS)], pa.list_(pa.int32())),
    "nested": pa.array([{"x": {"y": i if i % 4 else None}} if i % 6 else None for i in range(ROWS)]),
    "pair": pa.array([{"a": i, "b": str(i)} for i in range(ROWS)]),
    "nulls": pa.nulls(ROWS, pa.int64()),
    "required": pa.array(np.arange(ROWS, dtype=np.int32)),
}
TABLE = pa.table(COLUMNS).cast(pa.schema([pa.field(n, a.type, nullable=n != "required") for n, a in COLUMNS.items()]))
PAGED = [n for n in COLUMNS if n != "pair"]


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "_MIN_PAGED_BYTES", 0)
    monkeypatch.setattr(chunks, "_PAGED_SHARE_OF_BYTES", 1.0)


def opened(content: bytes, *, reads_pages: bool = True) -> ParquetFileReader:
    source = ByteRanges(pa.BufferReader(content))
    layout = read_layout(source, "f.parquet")
    return ParquetFileReader("f.parquet", source, layout, reads_pages=reads_pages)


def written(**options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    defaults: dict[str, Any] = {"write_page_index": True, "data_page_size": 512, "write_batch_size": 64}
    pq.write_table(TABLE, sink, **{**defaults, "dictionary_pagesize_limit": 2048, **options})
    return bytes(sink.getvalue())


def plain(array: pa.Array) -> pa.Array:
    return array.dictionary_decode() if isinstance(array, pa.DictionaryArray) else array


LAYOUTS = {
    "v1": written(),
    "v2": written(data_page_version="2.0", compression="zstd"),
    "plain": written(use_dictionary=False, compression="none"),
    "checksums": written(write_page_checksum=True, compression="lz4"),
    "row groups": written(row_group_size=2_500),
    "encodings": written(
        use_dictionary=False,
        column_encoding={
            "int": "DELTA_BINARY_PACKED",
            "many": "DELTA_BYTE_ARRAY",
            "large": "DELTA_LENGTH_BYTE_ARRAY",
            "double": "BYTE_STREAM_SPLIT",
            "flag": "RLE",
        },
    ),
    "int96": written(use_deprecated_int96_timestamps=True),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("density", [0.0005, 0.01, 0.3])
def test_selected_rows_by_page_equal_those_of_whole_chunks(layout: str, density: float) -> None:
    paged = opened(LAYOUTS[layout])
    whole = opened(LAYOUTS[layout], reads_pages=False)
    rng = np.random.default_rng(int(density * 10_000))
    indices = list(range(len(COLUMNS)))
    for group in paged.row_groups:
        selection = Mask(rng.random(group.num_rows) < density)
        for a, b in zip(paged.read(group, indices, selection), whole.read(group, indices, selection), strict=True):
            assert plain(a) == plain(b)
            assert plain(a).type == plain(b).type
            plain(a).validate(full=True)
    assert whole.counts.pages_read == 0
    assert paged.counts.fallbacks == 0
    assert density > 0.1 or paged.counts.pages_read >= len(PAGED) - 4


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sets(st.integers(0, ROWS - 1), min_size=1, max_size=60), st.sampled_from(["v1", "v2", "encodings"]))
def test_any_few_rows_are_right(rows: set[int], layout: str) -> None:
    reader = opened(LAYOUTS[layout])
    mask = np.zeros(ROWS, np.bool_)
    mask[list(rows)] = True
    indices = pa.array(sorted(rows))
    arrays = reader.read(reader.row_groups[0], range(len(COLUMNS)), Mask(mask))
    for name, array in zip(COLUMNS, arrays, strict=True):
        if layout != "int96":
            assert plain(array).to_pylist() == COLUMNS[name].take(indices).to_pylist()


def test_only_pages_of_selected_rows_are_counted_as_read() -> None:
    reader = opened(LAYOUTS["plain"])
    mask = np.zeros(ROWS, np.bool_)
    mask[3_000] = True
    index = list(COLUMNS).index("int")
    assert reader.read(reader.row_groups[0], [index], Mask(mask))[0].to_pylist() == [3_000]
    assert reader.counts.pages_read == 1
    assert reader.counts.pages_left_out > 40
    chunk_bytes = reader.compressed_bytes(reader.row_groups[0], [index])
    assert chunk_bytes - reader.counts.bytes_left_out < chunk_bytes / 40


def test_all_rows_and_files_without_index_are_read_by_chunk() -> None:
    for reader in (opened(written(write_page_index=False)), opened(LAYOUTS["v1"])):
        selection = All(ROWS) if reader._footer.row_groups[0].chunks[0].offset_index else Mask(np.arange(ROWS) == 5)
        reader.read(reader.row_groups[0], range(len(COLUMNS)), selection)
        assert (reader.counts.pages_read, reader.counts.fallbacks) == (0, 0)


def index_of(content: bytes, name: str) -> tuple[int, int]:
    footer = read_layout(ByteRanges(pa.BufferReader(content)), "f").footer
    leaf = [leaf.path[0] for leaf in footer.leaves].index(name)
    found = footer.row_groups[0].chunks[leaf].offset_index
    assert found is not None
    return found


def test_hostile_offset_index_gives_right_rows_or_a_clear_error() -> None:
    content = LAYOUTS["plain"]
    offset, length = index_of(content, "int")
    column = list(COLUMNS).index("int")
    rng = np.random.default_rng(5)
    mask = np.zeros(ROWS, np.bool_)
    mask[[17, 900, 4_321]] = True
    fallbacks = 0
    for _ in range(400):
        broken = bytearray(content)
        for position in rng.integers(offset, offset + length, 2):
            broken[position] = rng.integers(0, 256)
        reader = opened(bytes(broken))
        try:
            reader.read(reader.row_groups[0], [column], Mask(mask))
        except ScanError:
            continue
        fallbacks += reader.counts.fallbacks
    assert fallbacks > 50


def test_index_that_states_wrong_row_counts_is_not_believed() -> None:
    content = LAYOUTS["plain"]
    footer = read_layout(ByteRanges(pa.BufferReader(content)), "f").footer
    chunk = footer.row_groups[0].chunks[0]
    assert chunk.offset_index is not None
    offset, length = chunk.offset_index
    locations = parse_offset_index(content[offset : offset + length], chunk, ROWS)
    assert locations is not None
    shifted = locations.first_rows.copy()
    shifted[1:-1] += 3
    lying = type(locations)(locations.offsets, locations.lengths, shifted)
    reader = opened(content)
    reader._pages._locations[0, 0] = lying
    mask = np.zeros(ROWS, np.bool_)
    mask[[70, 5_000]] = True
    assert reader.read(reader.row_groups[0], [0], Mask(mask))[0].to_pylist() == [
        None if i % 11 == 3 else i for i in (70, 5_000)
    ]


def test_offset_indexes_outside_of_their_chunk_are_refused() -> None:
    content = LAYOUTS["plain"]
    footer = read_layout(ByteRanges(pa.BufferReader(content)), "f").footer
    first, second = (footer.row_groups[0].chunks[leaf] for leaf in range(2))
    assert first.offset_index is not None
    data = content[first.offset_index[0] : sum(first.offset_index)]
    assert parse_offset_index(data, first, ROWS) is not None
    assert parse_offset_index(data, second, ROWS) is None
    assert parse_offset_index(data, first, 10) is None
    assert parse_offset_index(data[:20], first, ROWS) is None
    assert parse_offset_index(b"", first, ROWS) is None


def test_column_index_gives_bounds_of_every_page() -> None:
    content = LAYOUTS["plain"]
    footer = read_layout(ByteRanges(pa.BufferReader(content)), "f").footer
    for name, kind in (("int", pa.int64()), ("nulls", pa.int64()), ("large", pa.large_string())):
        leaf = [leaf.path[0] for leaf in footer.leaves].index(name)
        chunk = footer.row_groups[0].chunks[leaf]
        assert chunk.offset_index is not None
        assert chunk.column_index is not None
        locations = parse_offset_index(content[chunk.offset_index[0] : sum(chunk.offset_index)], chunk, ROWS)
        assert locations is not None
        raw = content[chunk.column_index[0] : sum(chunk.column_index)]
        pages = parse_column_index(raw, footer.leaves[leaf], kind, locations)
        assert pages is not None
        assert len(pages) == locations.num_pages
        for page, start, end in zip(pages, locations.first_rows[:-1], locations.first_rows[1:], strict=True):
            values = [v for v in COLUMNS[name].slice(start, end - start).to_pylist() if v is not None]
            assert page.null_count == (end - start) - len(values)
            if values:
                assert page.lower <= min(values)
                assert page.upper >= max(values)
        assert parse_column_index(raw[:-3], footer.leaves[leaf], kind, locations) is None
