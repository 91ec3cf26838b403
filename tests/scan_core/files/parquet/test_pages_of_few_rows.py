from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nevermore.scan_core.files.parquet import chunks
from nevermore.scan_core.files.parquet.file_layout import read_layout
from nevermore.scan_core.files.parquet.reader import ParquetFileReader
from nevermore.scan_core.io.object_store import ArrowObject
from nevermore.scan_core.io.remote import ByteRanges, RemoteFile
from nevermore.scan_core.model.errors import MalformedTableError, ScanError
from nevermore.scan_core.rows.selection import All, Mask

ROWS = 20_000
_RNG = np.random.default_rng(8)
TABLE = pa.table(
    {
        "sorted": pa.array(np.arange(ROWS) // 50),
        "random": pa.array(_RNG.integers(0, 1 << 60, ROWS)),
        "few": pa.array([None if i % 5 == 0 else f"v{i * 7 % 300}" for i in range(ROWS)]),
        "sparse": pa.array([i if i % 400 == 7 else None for i in range(ROWS)], pa.int32()),
        "mostly": pa.array([None if i == 12_345 else float(i) for i in range(ROWS)]),
        "price": pa.array(_RNG.integers(0, 999, ROWS)).cast(pa.decimal128(19, 0)).cast(pa.decimal128(9, 2)),
    }
)


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "_MIN_PAGED_BYTES", 0)


def written(**options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(TABLE, sink, write_page_index=True, data_page_size=4096, write_batch_size=512, **options)
    return bytes(sink.getvalue())


def opened(content: bytes) -> ParquetFileReader:
    source = ByteRanges(pa.BufferReader(content))
    return ParquetFileReader("f.parquet", source, read_layout(source, "f.parquet"))


def read(reader: ParquetFileReader, mask: np.ndarray) -> list[list[Any]]:
    return [a.to_pylist() for a in reader.read(reader.row_groups[0], range(TABLE.num_columns), Mask(mask))]


CONTENTS = {
    "snappy, version 1": written(compression="snappy"),
    "zstd, version 2": written(compression="zstd", data_page_version="2.0"),
    "plain": written(compression="none", use_dictionary=False),
    "dictionaries that overflow": written(compression="zstd", dictionary_pagesize_limit=2_000),
    "decimals as integers": written(store_decimal_as_integer=True),
}


@pytest.mark.parametrize("content", CONTENTS)
@settings(max_examples=8, deadline=None)
@given(rows=st.sets(st.integers(0, ROWS - 1), min_size=1, max_size=40))
def test_few_rows_of_many_pages_are_those_of_the_table(content: str, rows: set[int]) -> None:
    mask = np.zeros(ROWS, np.bool_)
    mask[list(rows)] = True
    reader = opened(CONTENTS[content])
    assert read(reader, mask) == [c.to_pylist() for c in TABLE.filter(pa.array(mask)).columns]
    assert reader.counts.pages_left_out > 0
    assert reader.counts.fallbacks == 0


def test_damage_that_a_checksum_shows_never_gives_a_value() -> None:
    content = written(compression="zstd", write_page_checksum=True)
    mask = np.zeros(ROWS, np.bool_)
    mask[[3, 5_000, 12_345]] = True
    expected = [c.to_pylist() for c in TABLE.filter(pa.array(mask)).columns]
    rng, refused = np.random.default_rng(6), 0
    for _ in range(150):
        broken = bytearray(content)
        broken[rng.integers(4, len(content) * 2 // 3)] ^= 1 << int(rng.integers(0, 8))
        try:
            assert read(opened(bytes(broken)), mask) == expected
        except ScanError:
            refused += 1
    assert refused > 5


def test_codes_outside_of_the_dictionary_are_refused() -> None:
    table = pa.table({"c": pa.array([f"v{i % 5}" for i in range(1_000)])})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, write_page_index=True, compression="none", column_encoding=None)
    content = bytearray(sink.getvalue())
    reader = opened(bytes(content))
    chunk = reader._footer.row_groups[0].chunks[0]
    end = chunk.start + chunk.num_bytes
    content[end - 40 : end] = b"\xff" * 40  # bit-packed codes of three bits: 7 is in no dictionary of five
    damaged = opened(bytes(content))
    for selection in (Mask(np.arange(1_000) > 995), All(1_000)):
        with pytest.raises(MalformedTableError, match="code 7 in a dictionary of 5 values"):
            damaged.read(damaged.row_groups[0], [0], selection)


@given(st.lists(st.tuples(st.integers(0, 90), st.integers(0, 10)), max_size=12))
def test_ranges_read_together_equal_single_reads(ranges: list[tuple[int, int]]) -> None:
    content = bytes(range(100))
    near, far = pa.BufferReader(content), pa.PythonFile(pa.BufferReader(content), "r")
    for opened in (ByteRanges(near), RemoteFile(ArrowObject(far))):
        assert [bytes(d) for d in opened.read(ranges)] == [content[o : o + n] for o, n in ranges]
        opened.close()
