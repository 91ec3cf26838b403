"""Footers parsed by the compiled kernel and field by field: the same facts, the same refusals."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nevermore.scan_core.files.parquet.footer import Chunk, ChunkMetadata, Footer, parse_footer
from nevermore.scan_core.model.errors import MalformedTableError, UnsupportedError
from nevermore.scan_core.native.compiled import load
from tests.support.kernels_used import kernels_used

_NESTED = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])


@pytest.fixture(scope="module", autouse=True)
def kernels() -> None:
    load()


def written(table: pa.Table, **options: Any) -> tuple[bytes, int]:
    """(footer, size of the file)."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    content = sink.getvalue().to_pybytes()
    return content[-8 - int.from_bytes(content[-8:-4], "little") : -8], len(content)


def chunk_facts(chunk: Chunk) -> tuple[Any, ...]:
    return (
        chunk.metadata,
        chunk.offset_index,
        chunk.column_index,
        chunk.start,
        chunk.num_bytes,
        chunk.num_values,
        chunk.uncompressed_bytes,
        chunk.data_page_offset,
        chunk.dictionary_page_offset,
        chunk.bloom_filter,
        chunk.null_count,
    )


def facts(footer: Footer) -> tuple[Any, ...]:
    groups = [(g.num_rows, g.num_bytes, [chunk_facts(c) for c in g.chunks]) for g in footer.row_groups]
    return footer.num_rows, footer.leaves, footer.has_column_orders, footer.schema_identity, groups


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
    yield "bloom", numbers, {"bloom_filter_options": {"id": True}}


@pytest.mark.parametrize(("table", "options"), [pytest.param(t, o, id=name) for name, t, o in tables()])
def test_the_kernel_finds_what_the_parser_finds(table: pa.Table, options: dict[str, Any]) -> None:
    try:
        data, size = written(table, **options)
    except TypeError:
        pytest.skip("this version of pyarrow writes no Bloom filters by this option")
    with kernels_used(are_on=False):
        plain = facts(parse_footer(data, size))
    assert facts(parse_footer(data, size)) == plain


def outcome(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except (ValueError, KeyError, TypeError, AttributeError, MalformedTableError, UnsupportedError) as error:
        return type(error)


def test_damaged_footers_are_read_alike_or_refused() -> None:
    random = np.random.default_rng(5)
    data, size = written(pa.table({"id": pa.array(range(40)), "text": ["x"] * 40}), row_group_size=15)
    for _ in range(1_500):
        found = bytearray(data)
        for _ in range(random.integers(1, 3)):
            found[random.integers(len(found))] = int(random.integers(256))
        damaged = bytes(found)
        with kernels_used(are_on=False):
            slow = outcome(lambda damaged=damaged: facts(parse_footer(damaged, size)))
        fast = outcome(lambda damaged=damaged: facts(parse_footer(damaged, size, "f")))
        # damage inside the metadata of one column chunk is found when it is asked for, which `facts` does
        assert isinstance(fast, type) == isinstance(slow, type)
        assert isinstance(fast, type) or repr(fast) == repr(slow)


def test_metadata_that_repeats_a_field_names_the_file_when_it_is_read() -> None:
    twice = bytes([0x15, 0x02, 0x05, 0x02, 0x02, 0x00])  # field 1, then field 1 again by its number
    with pytest.raises(MalformedTableError, match=r"a\.parquet: footer: field 1 appears twice"):
        _ = ChunkMetadata(twice, 0, "a.parquet").fields
