"""Footers: the facts are those stored, and damaged ones are read or refused, with compiled kernels and without."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nevermore.scan_core.files.parquet import footer as module
from nevermore.scan_core.files.parquet.file_layout import ParquetLayout, read_layout
from nevermore.scan_core.files.parquet.footer import Chunk
from nevermore.scan_core.files.parquet.thrift import read_struct
from nevermore.scan_core.io.remote import ByteRanges
from nevermore.scan_core.model.errors import MalformedTableError, UnsupportedError
from nevermore.scan_core.native.compiled import load
from tests.support.kernels_used import kernels_used

_NESTED = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])


def written(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    return bytes(sink.getvalue().to_pybytes())


def layout_of(content: bytes) -> ParquetLayout:
    return read_layout(ByteRanges(pa.BufferReader(content)), "f")


def chunks_of(layout: ParquetLayout) -> list[Chunk]:
    return [chunk for group in layout.footer.row_groups for chunk in group.chunks]


def tables() -> Iterator[tuple[str, pa.Table, dict[str, Any]]]:
    numbers = pa.table({"id": pa.array(range(50)), "text": [f"t{i % 3}" for i in range(50)]})
    yield "plain", numbers, {}
    yield "row groups", numbers, {"row_group_size": 7, "write_page_index": True}
    yield "no dictionary", numbers, {"use_dictionary": False, "write_statistics": False}
    yield "no rows", numbers.slice(0, 0), {}
    yield "no columns", pa.table({}), {}
    for count in (14, 15, 16, 300):  # the header of a list of 15 has a form of its own
        yield f"{count} columns", pa.table({f"c{i}": pa.array([i]) for i in range(count)}), {}
    yield "nested", pa.table({"s": pa.nulls(9, _NESTED), "m": pa.nulls(9, pa.map_(pa.string(), pa.int64()))}), {}
    yield "lz4", numbers, {"compression": "lz4"}
    yield "zstd", numbers, {"compression": "zstd", "use_dictionary": False, "column_encoding": "PLAIN"}


@pytest.fixture(scope="module", autouse=True)
def kernels() -> None:
    load()


@pytest.mark.parametrize("are_on", [True, False], ids=["kernel", "field by field"])
@pytest.mark.parametrize(("table", "options"), [pytest.param(t, o, id=name) for name, t, o in tables()])
def test_the_facts_are_those_stored(table: pa.Table, options: dict[str, Any], *, are_on: bool) -> None:
    content = written(table, **options)
    with kernels_used(are_on=are_on):
        footer = layout_of(content).footer
    document, _ = read_struct(content[-8 - int.from_bytes(content[-8:-4], "little") : -8])
    stored = document.get(4, [])
    assert footer.num_rows == document[3]
    assert [g.num_rows for g in footer.row_groups] == [g[3] for g in stored]
    assert footer.has_column_orders
    for chunk, column in zip(
        [c for g in footer.row_groups for c in g.chunks], [c for g in stored for c in g[1]], strict=True
    ):
        metadata = column[3]
        assert (chunk.codec, set(chunk.encodings)) == (metadata[4], set(metadata[2]))
        assert (chunk.num_values, chunk.uncompressed_bytes, chunk.num_bytes) == tuple(metadata[i] for i in (5, 6, 7))
        assert chunk.data_page_offset == metadata[9]
        assert chunk.dictionary_page_offset == (metadata.get(11) if table.num_rows else None)
        assert chunk.null_count == metadata.get(12, {}).get(3)
        assert chunk.offset_index == ((column[4], column[5]) if 4 in column else None)
        assert chunk.column_index == ((column[6], column[7]) if 6 in column else None)


@pytest.mark.parametrize("are_on", [True, False], ids=["kernel", "field by field"])
def test_damaged_footers_are_read_or_refused(*, are_on: bool) -> None:
    random = np.random.default_rng(5)
    table = pa.table({"id": pa.array(range(40)), "text": ["x"] * 40})
    content = written(table, row_group_size=15, write_page_index=True)
    begin = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    outcomes = []
    for _ in range(1_500):
        damaged = bytearray(content)
        for _ in range(random.integers(1, 3)):
            damaged[begin + random.integers(len(content) - 8 - begin)] = int(random.integers(256))
        try:
            with kernels_used(are_on=are_on):
                layout = layout_of(bytes(damaged))
            _ = layout.footer.has_column_orders
            assert layout.footer.num_rows == sum(group.num_rows for group in layout.row_groups)
            for chunk in chunks_of(layout):
                assert 4 <= chunk.start <= chunk.start + chunk.num_bytes <= len(content)
                _ = chunk.offset_index, chunk.column_index, chunk.null_count, chunk.statistics, chunk.bloom_filter
            outcomes.append(True)
        except (MalformedTableError, UnsupportedError) as error:
            assert str(error).startswith("f: ")  # noqa: PT017
            outcomes.append(False)
    assert 100 < sum(outcomes) < 1_400


def test_a_thread_that_reads_another_schema_meanwhile_changes_nothing() -> None:
    one, other = (written(pa.table({name: [1]})) for name in ("a", "b"))
    one, other = (content[-8 - int.from_bytes(content[-8:-4], "little") : -8] for content in (one, other))

    class Interrupted(bytes):
        def startswith(self, *arguments: Any) -> bool:
            found = super().startswith(*arguments)
            module._schema_of(other)
            return found

    module._schema_of(one)
    schema, _ = module._schema_of(Interrupted(one))
    assert [leaf.path for leaf in schema.leaves] == [("a",)]
