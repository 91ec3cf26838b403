from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scan_core.errors import MalformedTableError, ScanError
from scan_core.read import paged_chunks
from scan_core.read.byte_ranges import ByteRanges
from scan_core.read.hybrid_runs import Lookups, expand_flags, walk_runs
from scan_core.read.parquet import ParquetFileReader
from scan_core.read.parquet_layout import read_layout
from scan_core.read.remote_file import opened_source
from scan_core.rows.selection import All, Mask

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
    monkeypatch.setattr(paged_chunks, "_LEAST_PAGED_BYTES", 0)


def written(**options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(TABLE, sink, write_page_index=True, data_page_size=4096, write_batch_size=512, **options)
    return bytes(sink.getvalue())


def opened(content: bytes, *, picks_values: bool = True) -> ParquetFileReader:
    source = ByteRanges(pa.BufferReader(content))
    return ParquetFileReader("f.parquet", source, read_layout(source, "f.parquet"), picks_values=picks_values)


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
@settings(max_examples=15, deadline=None)
@given(rows=st.sets(st.integers(0, ROWS - 1), min_size=1, max_size=40))
def test_picked_values_are_those_of_the_table(content: str, rows: set[int]) -> None:
    mask = np.zeros(ROWS, np.bool_)
    mask[list(rows)] = True
    reader = opened(CONTENTS[content])
    assert read(reader, mask) == [c.to_pylist() for c in TABLE.filter(pa.array(mask)).columns]
    assert reader.counts.pages_picked > 0
    assert reader.counts.fallbacks == 0


def test_few_rows_of_a_page_are_picked_and_many_decoded() -> None:
    few, many = np.zeros(ROWS, np.bool_), np.zeros(ROWS, np.bool_)
    few[::1_000], many[:2_000] = True, True
    for mask, is_picked in ((few, True), (many, False)):
        reader = opened(CONTENTS["plain"])
        reader.read(reader.row_groups[0], [1], Mask(mask))
        assert (reader.counts.pages_picked > 0) == is_picked


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


def encoded(values: list[int], width: int, pieces: list[bool]) -> bytes:
    """Hybrid encoding: eight values at a time, bit-packed or, where they are all the same, as a run."""
    out = bytearray()
    for index in range(0, len(values), 8):
        part = values[index : index + 8]
        if pieces[index // 8] and len(set(part)) == 1 and len(part) == 8:
            out += bytes([16]) + part[0].to_bytes((width + 7) // 8, "little")
        else:
            packed = sum(v << (i * width) for i, v in enumerate(part))
            out += bytes([3]) + packed.to_bytes(width, "little")
    return bytes(out)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_looked_up_codes_equal_the_encoded_ones(data: st.DataObject) -> None:
    lookups, expected = Lookups(), []
    for _ in range(data.draw(st.integers(1, 3))):
        width = data.draw(st.integers(1, 32))
        blocks = data.draw(
            st.lists(
                st.one_of(
                    st.integers(0, (1 << width) - 1).map(lambda v: [v] * 8),
                    st.lists(st.integers(0, (1 << width) - 1), min_size=8, max_size=8),
                ),
                min_size=1,
                max_size=12,
            )
        )
        values = [v for block in blocks for v in block]
        content = encoded(values, width, data.draw(st.lists(st.booleans(), min_size=12, max_size=12)))
        wanted = np.array(sorted(data.draw(st.sets(st.integers(0, len(values) - 1), min_size=1))), np.int64)
        runs = walk_runs(content, 0, len(content), width, int(wanted[-1]))
        assert runs is not None
        lookups.add(content, runs, width, wanted)
        expected += [values[i] for i in wanted]
        assert walk_runs(content, 0, len(content), width, len(values)) is None
        if width == 1:
            whole = walk_runs(content, 0, len(content), 1, len(values) - 1)
            assert whole is not None
            flags = expand_flags(np.frombuffer(content, np.uint8), whole, len(values))
            assert flags.tolist() == [v == 1 for v in values]
    assert lookups.found().tolist() == expected


@given(st.binary(max_size=60), st.integers(0, 40), st.integers(0, 500))
def test_any_bytes_as_runs_end(data: bytes, width: int, last: int) -> None:
    runs = walk_runs(data, 0, len(data), width, last)
    assert runs is None or runs.starts[-1] <= last


@given(st.lists(st.tuples(st.integers(0, 90), st.integers(0, 10)), max_size=12))
def test_ranges_read_together_equal_single_reads(ranges: list[tuple[int, int]]) -> None:
    content = bytes(range(100))
    for source in (pa.BufferReader(content), pa.PythonFile(pa.BufferReader(content), "r")):
        opened = opened_source(source)
        assert [bytes(d) for d in opened.read(ranges)] == [content[o : o + n] for o, n in ranges]
        opened.close()
