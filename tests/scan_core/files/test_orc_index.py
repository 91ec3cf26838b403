"""Row indexes and Bloom filters inside the stripes of ORC files."""

import datetime as dt
import zlib
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import cramjam
import numpy as np
import pyarrow as pa
import pyarrow.orc as po
import pytest

from nevermore import scan_core
from nevermore.scan_core import ScanOptions
from nevermore.scan_core.files.orc import OrcFileReader, open_orc
from nevermore.scan_core.files.orc_streams import (
    OrcTail,
    Stripe,
    decompress,
    items_of,
    parse_bloom_filters,
    parse_stripe_footer,
    parse_stripe_statistics,
)
from nevermore.scan_core.io.location import FileIOConfig
from nevermore.scan_core.rows.selection import All
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder

ROWS, STRIDE = 12_000, 1_000
COLUMNS = (
    Column(1, "id", "long"),
    Column(2, "n", "int"),
    Column(3, "s", "string"),
    Column(4, "d", "date"),
    Column(5, "x", "double"),
    Column(6, "p", "string"),
)


def content(seed: int = 5) -> dict[str, Any]:
    """Numbers in clusters and at random, texts short and long, some of everything NULL."""
    draw = np.random.default_rng(seed)
    clusters = np.arange(ROWS) // STRIDE * 7 % (ROWS // STRIDE) * 1_000
    texts = [f"text {n}" * int(1 + n % 3) if n % 11 else None for n in draw.integers(0, 10**6, ROWS)]
    days = draw.integers(-20_000, 40_000, ROWS)
    return {
        "id": clusters + draw.permutation(ROWS) % 500,
        "n": [int(n) if n % 13 else None for n in draw.integers(-(2**31), 2**31, ROWS)],
        "s": texts,
        "d": [dt.date(1970, 1, 1) + dt.timedelta(int(n)) for n in days],
        "x": draw.random(ROWS) + clusters,
        "p": [f"payload {n}" for n in range(ROWS)],
    }


def table_of(path: Path, compression: str = "zstd") -> tuple[TableBuilder, dict[str, Any]]:
    rows = content()
    table = TableBuilder(path, COLUMNS)
    table.commit(
        table.data(
            rows,
            file_format="orc",
            compression=compression,
            row_index_stride=STRIDE,
            bloom_filter_columns=[0, 1, 2, 3],
            bloom_filter_fpp=0.0001,
            stripe_size=1 << 30,
        )
    )
    return table, rows


@pytest.mark.each(5)
@pytest.mark.parametrize("compression", ["uncompressed", "zlib", "snappy", "lz4", "zstd"])
def test_row_groups_are_bounded_and_their_filters_have_every_value(tmp_path: Path, compression: str) -> None:
    table, rows = table_of(tmp_path, compression)
    (path,) = table.location.rglob("*.orc")
    stored = po.ORCFile(path).read()
    with closing(open_orc(str(path), FileIOConfig())) as reader:
        (group,) = reader.row_groups
        for column in range(5):
            found = reader.page_statistics(group, column)
            assert found is not None
            assert found.edges.tolist() == [*range(0, ROWS, STRIDE), ROWS]
            assert (found.tests is not None) == (column < 3)  # the writer makes none for dates
            excluded = asked = 0
            for page, known in enumerate(found.statistics):
                values = stored.column(column).slice(page * STRIDE, STRIDE)
                plain = values.cast(pa.int32()) if pa.types.is_date(values.type) else values
                some = [v for v in plain.to_pylist() if v is not None]
                assert (known.lower, known.upper) == (min(some), max(some))
                assert known.null_count == values.null_count
                test = None if found.tests is None else found.tests(page)
                if test is None:
                    continue
                assert not any(map(test, some)), "a value that is there"
                others = [v * 3 + 1 if isinstance(v, int) else f"{v}?" for v in some[:200] if v not in {0, None}]
                absent = [v for v in others if v not in set(some)]
                excluded, asked = excluded + sum(map(test, absent)), asked + len(absent)
            assert excluded >= 0.9 * asked
    assert rows["id"][0] is not None


class Decoded:
    """What an ORC reader decoded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.columns = 0
        decode = OrcFileReader._decode

        def counted(reader: OrcFileReader, stripe: int, columns: Sequence[int]) -> list[pa.Array]:
            self.columns += len(columns)
            return decode(reader, stripe, columns)

        monkeypatch.setattr(OrcFileReader, "_decode", counted)


@pytest.mark.each(2)
@pytest.mark.parametrize(
    ("where", "switches", "decodes"),
    [
        ("id = 600", {}, 0),  # between two clusters
        ("id = 600", {"prune_pages": False}, 1),
        ("id > 3700 and id < 3900", {}, 0),
        ("s = 'text 5 of nobody'", {}, 0),
        ("s = 'text 5 of nobody'", {"use_bloom_filters": False}, 1),
        ("s in ('text 7 of nobody', 'text 8 of no one') and x >= 0", {}, 0),
        ("n = 123456789", {}, 0),
        ("d = date '2199-12-31' or id = -5", {}, 0),
        ("id = 1001", {}, 3),
    ],
)
def test_a_stripe_of_which_no_row_group_matches_is_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, switches: dict[str, bool], decodes: int
) -> None:
    table, rows = table_of(tmp_path)
    decoded = Decoded(monkeypatch)
    scan = scan_core.open_table(table.metadata_path).scan().select("id", "p").where(where)
    found = scan.with_options(ScanOptions.of(parallelism=1, **switches)).to_table().num_rows
    assert found == (rows["id"].tolist().count(1001) if where == "id = 1001" else 0)
    assert decoded.columns <= decodes if decodes else decoded.columns == 0
    assert bool(decoded.columns) == bool(decodes)


@pytest.mark.each(3)
@pytest.mark.parametrize("seed", range(3))
def test_filters_give_the_rows_that_they_give_without_any_pruning(tmp_path: Path, seed: int) -> None:
    table, rows = table_of(tmp_path)
    table.commit(table.equality_delete({"id": rows["id"][::17]}, ids=[1]))
    draw = np.random.default_rng(seed)
    opened = scan_core.open_table(table.metadata_path)
    for _ in range(12):
        at = int(draw.integers(0, ROWS))
        text = rows["s"][at] or "none"
        day = rows["d"][at]
        for where in (
            f"id = {rows['id'][at]}",
            f"id between {rows['id'][at]} and {int(rows['id'][at]) + 40}",
            f"s = '{text}'",
            f"s in ('{text}', 'other') and x < {rows['x'][at] + 0.2}",
            f"n = {rows['n'][at] or 5}",
            f"d = date '{day.isoformat()}'",
            f"n is null and id < {rows['id'][at]}",
            f"not (s = '{text}') and id = {rows['id'][at]}",
        ):
            scan = opened.scan().where(where)
            plain = scan.with_options(ScanOptions.without_optimisations())
            assert scan.to_table().equals(plain.to_table()), where


def test_an_index_that_is_not_of_its_stripe_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, _ = table_of(tmp_path)
    (path,) = table.location.rglob("*.orc")
    for name, parse in (("items_of", items_of), ("parse_bloom_filters", parse_bloom_filters)):
        monkeypatch.setattr(f"nevermore.scan_core.files.orc.{name}", lambda stream, p=parse: p(stream)[1:])
        with closing(open_orc(str(path), FileIOConfig())) as reader:
            found = reader.page_statistics(reader.row_groups[0], 0)
            assert found is None or (found.tests is not None and found.tests(0) is None)
            assert reader.counts.fallbacks == 1
        monkeypatch.undo()


def test_a_stripe_with_an_index_of_very_many_row_groups_is_read_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    po.write_table(pa.table({"id": range(50_000)}), tmp_path / "f.orc", row_index_stride=10_000)
    for most, has_index in ((4, False), (5, True)):
        monkeypatch.setattr("nevermore.scan_core.files.orc.MAX_FIELDS", most)
        with closing(open_orc(str(tmp_path / "f.orc"), FileIOConfig())) as reader:
            assert (reader.page_statistics(reader.row_groups[0], 0) is not None) == has_index
            assert reader.read(reader.row_groups[0], (0,), All(50_000))[0].to_pylist() == [*range(50_000)]


@pytest.mark.parametrize("data", [b"", b"\x0a", b"\x0a\x05\x12\x02", bytes(range(60)), b"\xff" * 40])
def test_damaged_indexes_are_refused_or_empty(data: bytes) -> None:
    for parse in (items_of, parse_bloom_filters):
        try:
            found: Sequence[Any] = parse(data)
        except (ValueError, TypeError):
            continue
        assert all(entry is None or not entry for entry in found) or data == bytes(range(60))


STRIPE, UNCOMPRESSED = Stripe(0, 10, 1, 1), OrcTail((), 0, 0, 0, 0, 0)


@pytest.mark.each(4)
@pytest.mark.parametrize(
    "parse",
    [
        items_of,
        parse_bloom_filters,
        lambda message: parse_stripe_footer(message, STRIPE),
        lambda message: parse_stripe_footer(message.replace(b"\x0a", b"\x12"), STRIPE),
        lambda message: parse_stripe_statistics(message, UNCOMPRESSED),
    ],
    ids=["row index", "Bloom filters", "streams", "encodings", "stripe statistics"],
)
def test_messages_of_millions_of_empty_fields_are_refused(parse: Callable[[bytes], object]) -> None:
    with pytest.raises(ValueError, match="fields"):
        parse(b"\x0a\x00" * 2_000_000)


CODECS: dict[int, Callable[[bytes], bytes]] = {
    1: lambda plain: (deflate := zlib.compressobj(wbits=-15)).compress(plain) + deflate.flush(),
    2: lambda plain: pa.compress(plain, codec="snappy", asbytes=True),
    4: lambda plain: bytes(cramjam.lz4.compress_block(plain, store_size=False)),
    5: lambda plain: pa.compress(plain, codec="zstd", asbytes=True),
}


@pytest.mark.parametrize("codec", CODECS)
def test_blocks_hold_no_more_than_the_file_states(codec: int) -> None:
    tail, plain = OrcTail((), 0, codec, 1_000, 0, 0), b"abcdefghij" * 1_000

    def section(size: int) -> bytes:
        block = CODECS[codec](plain[:size])
        return (len(block) << 1).to_bytes(3, "little") + block

    assert decompress(section(1_000) + section(999), tail) == plain[:1_000] + plain[:999]
    for size in (1_001, 10_000):
        with pytest.raises(ValueError, match=r"compressed block|buffer size"):
            decompress(section(size), tail)
    if codec == 1:
        cut = section(900)[3:-5]
        with pytest.raises(ValueError, match="compressed block"):
            decompress((len(cut) << 1).to_bytes(3, "little") + cut, tail)
