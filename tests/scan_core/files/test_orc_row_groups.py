"""Rows of single row groups inside a stripe of an ORC file equal those of a reader that decodes whole stripes."""

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.orc as po
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nevermore import scan_core
from nevermore.scan_core import ScanOptions
from nevermore.scan_core.files import orc
from nevermore.scan_core.files.orc import OrcFileReader, open_orc
from nevermore.scan_core.files.orc_streams import BITS, BYTES, INTEGERS, OrcTail, Position, positions_of
from nevermore.scan_core.io.location import FileIOConfig
from nevermore.scan_core.model.errors import MemoryLimitError
from nevermore.scan_core.rows.selection import Mask, from_ranges
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder

ROWS = 7_003
CODECS = ("uncompressed", "zlib", "snappy", "lz4", "zstd")


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups are read however little that saves."""
    monkeypatch.setattr(orc, "_MIN_BYTES_LEFT_OUT", -(10**9))


def values_of(kind: pa.DataType, draw: np.random.Generator) -> pa.Array:
    """Runs, short and long values, and outliers, by which writers choose encodings."""
    near = np.where(draw.random(ROWS) < 0.01, draw.integers(0, 2**44, ROWS), draw.integers(0, 60, ROWS))
    numbers = np.where(np.arange(ROWS) % 900 < 500, near, np.arange(ROWS) * 7)
    wide = draw.integers(-(2**62), 2**62, ROWS)
    wide[ROWS // 2 :] = numbers[ROWS // 2 :]
    if pa.types.is_boolean(kind):
        return pa.array(draw.random(ROWS) < draw.random())
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        texts = [f"text {n}" * int(n % 4) for n in numbers % int(draw.integers(2, 5_000))]
        return pa.array(texts).cast(kind)
    if pa.types.is_decimal(kind):
        return pa.array([Decimal(int(n)).scaleb(-kind.scale) for n in wide % 10**9], kind)
    if pa.types.is_timestamp(kind):
        return (
            pa.array(wide % 10**18 // draw.choice([1, 10**3, 10**9]) * 1, pa.int64())
            .view(pa.timestamp("ns"))
            .cast(kind)
        )
    if pa.types.is_date(kind):
        return pa.array((wide % 40_000 - 20_000).astype(np.int32)).view(kind)
    return pa.array(wide).cast(kind, safe=False)


KINDS = {
    "boolean": pa.bool_(),
    "short": pa.int16(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("ns"),
    "timestamptz": pa.timestamp("ns", "UTC"),
    "decimal": pa.decimal128(12, 3),
    "wide decimal": pa.decimal128(38, 9),
    "string": pa.string(),
    "binary": pa.binary(),
}


def written(path: Path, columns: dict[str, pa.Array], **options: Any) -> Path:
    po.write_table(pa.table(columns), path, stripe_size=1 << 30, compression_block_size=65_536, **options)
    return path


def both(path: Path, rows: np.ndarray) -> tuple[list[pa.Array], list[pa.Array], OrcFileReader]:
    """All columns of these rows: by row group, and of the stripe decoded whole."""
    chosen = np.zeros(ROWS, np.bool_)
    chosen[rows] = True
    found = []
    for reads_pages in (True, False):
        with closing(open_orc(str(path), FileIOConfig(), reads_pages=reads_pages)) as reader:
            (group,) = reader.row_groups
            found.append((reader.read(group, range(len(reader.arrow_schema)), Mask(chosen)), reader))
    return found[0][0], found[1][0], found[0][1]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_row_groups_hold_the_rows_of_the_stripe(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    draw = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    nulls = data.draw(st.sampled_from([0.0, 0.02, 0.6, 0.999, 1.0]))
    columns = {name: with_nulls(values_of(kind, draw), draw.random(ROWS) < nulls) for name, kind in KINDS.items()}
    path = written(
        tmp_path_factory.mktemp("orc") / "f.orc",
        columns,
        compression=data.draw(st.sampled_from(CODECS)),
        row_index_stride=data.draw(st.sampled_from([1_000, 1_001, 1_999, 3_500])),
        dictionary_key_size_threshold=data.draw(st.sampled_from([0.0, 0.8])),
    )
    rows = np.array(data.draw(st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=4)))
    parts, whole, reader = both(path, rows)
    assert parts == whole
    assert reader.counts.pages_left_out > 0 or np.ptp(rows) > 1_000
    assert reader.counts.fallbacks == 0


def with_nulls(array: pa.Array, nulls: np.ndarray) -> pa.Array:
    return array.take(pa.array(np.arange(len(array)), mask=nulls))


@pytest.mark.parametrize("compression", CODECS)
def test_columns_that_are_not_cut_are_read_whole_beside_those_that_are(tmp_path: Path, compression: str) -> None:
    numbers = pa.array(np.arange(ROWS))
    columns = {
        "id": numbers,
        "tiny": numbers.cast(pa.int8(), safe=False),
        "pair": pa.StructArray.from_arrays([numbers], ["x"]),
        "list": pa.array([[n, n + 1] for n in range(ROWS)]),
    }
    path = written(tmp_path / "f.orc", columns, compression=compression, row_index_stride=1_000)
    parts, whole, reader = both(path, np.array([5, 3_333]))
    assert parts == whole
    assert (reader.counts.pages_read, reader.counts.pages_left_out) == (4, 4)


def test_timestamps_out_of_the_range_of_nanoseconds_in_some_row_groups(tmp_path: Path) -> None:
    far, near = datetime(9999, 12, 31, 23, 59, 59, 999_999), datetime(2026, 1, 1, 1, 1, 1, 5)  # noqa: DTZ001
    values = pa.array([far if n // 1_000 == 4 else near for n in range(ROWS)], pa.timestamp("us"))
    path = tmp_path / "f.orc"
    table = pa.table({"t": values, "z": values.cast(pa.timestamp("us", "UTC"))})
    po.write_table(table, path, stripe_size=1 << 30, row_index_stride=1_000)
    parts, _, _ = both(path, np.array([5, 4_010]))
    assert parts[0].to_pylist() == [near, far]
    assert [t.replace(tzinfo=UTC) for t in parts[1].to_pylist()] == [near.replace(tzinfo=UTC), far.replace(tzinfo=UTC)]


def changed(change: Callable[[list[Position]], list[Position]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Row indexes with other positions."""
    monkeypatch.setattr(f"{orc.__name__}.positions_of", lambda *given: change(positions_of(*given)))


def changed_once(
    change: Callable[[list[Position]], list[Position]], asked: Iterator[int], which: int, found: list[Position]
) -> list[Position]:
    return change(found) if next(asked) == which else found


def moved(found: list[Position], at: int, by: int) -> list[Position]:
    return [tuple(n + by * (i == at) for i, n in enumerate(p)) for p in found]  # type: ignore[misc,operator]


@pytest.mark.parametrize("compression", ["uncompressed", "zstd"])
@pytest.mark.parametrize(
    "change",
    [
        lambda found: moved(found, 0, 7_777_777),
        lambda found: moved(found, 0, 2**63),
        lambda found: moved(found, 1, 1),
        lambda found: moved(found, 1, 2**62),
        lambda found: moved(found, 2, 1),
        lambda found: moved(found, 2, 511),
        lambda _: [(0, 0, 0), (0, 0, 0)],
        lambda _: [],
    ],
    ids=["behind", "beyond 64 bits", "in a block", "behind a block", "in a run", "behind a run", "all alike", "none"],
)
def test_an_index_that_contradicts_the_streams_is_counted_and_not_used(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    compression: str,
    change: Callable[[list[Position]], list[Position]],
) -> None:
    columns = {"id": pa.array(np.arange(ROWS) ** 2), "s": pa.array([f"text {n}" for n in range(ROWS)])}
    path = written(tmp_path / "f.orc", columns, compression=compression, row_index_stride=1_000)
    for changed_one in range(2):  # where the row group begins, or ends
        asked = count()
        with monkeypatch.context() as patched:
            changed(partial(changed_once, change, asked, changed_one), patched)
            parts, whole, reader = both(path, np.array([5_500]))
        assert parts == whole
        assert reader.counts.fallbacks > 0


@pytest.mark.parametrize("stream", range(3))
def test_positions_that_no_writer_states_are_refused(stream: int) -> None:
    tail, forms = OrcTail((), 0, 5, 1 << 18, 0, 0), (BITS, BYTES, INTEGERS)
    good = [[1, 2, 129, 7], [3, 4], [5, 6, 511]]

    def entry(numbers: list[list[int]]) -> memoryview:
        packed = b"".join(bytes([n & 127 | 128, n >> 7]) for of_stream in numbers for n in of_stream)
        return memoryview(bytes([10, len(packed)]) + packed)

    assert positions_of(entry(good), forms, tail) == [(1, 2, 1_039), (3, 4, 0), (5, 6, 511)]
    with pytest.raises((ValueError, LookupError)):
        positions_of(entry(good[:stream]), forms, tail)
    with pytest.raises(ValueError, match="positions"):
        positions_of(entry([*good, [1]]), forms, tail)
    for place, limit in ((2, 130), (3, 8)) if stream == 0 else ((2, 512),) if stream == 2 else ():
        bad = [[*of_stream] for of_stream in good]
        bad[stream][place] = limit
        with pytest.raises(ValueError, match="behind the beginning of a run"):
            positions_of(entry(bad), forms, tail)


def test_a_last_row_group_without_values(tmp_path: Path) -> None:
    columns = {
        "id": pa.array(np.where(np.arange(ROWS) < 2_500, 7, 0), mask=np.arange(ROWS) >= 2_500),
        "s": pa.array(["x" if n < 2_500 else None for n in range(ROWS)]),
        "none": pa.nulls(ROWS, pa.int64()),
    }
    path = written(tmp_path / "f.orc", columns, row_index_stride=1_000)
    for row in (10, 2_499, 2_500, 3_400, ROWS - 1):
        parts, whole, reader = both(path, np.array([row]))
        assert parts == whole
        assert reader.counts.fallbacks == 0


@pytest.mark.parametrize("is_dictionary", [True, False])
def test_row_groups_fit_or_are_refused_with_their_stripe(tmp_path: Path, is_dictionary: bool) -> None:  # noqa: FBT001
    texts = pa.array(["x" * 2_000] * ROWS)
    path = written(
        tmp_path / "f.orc", {"s": texts}, row_index_stride=1_000, dictionary_key_size_threshold=float(is_dictionary)
    )
    with closing(open_orc(str(path), FileIOConfig())) as reader:
        (group,) = reader.row_groups
        reader._max_bytes = 9_000_000
        (found,) = reader.read(group, [0], from_ranges([(10, 12)], ROWS))
        assert found.to_pylist() == ["x" * 2_000] * 2
        assert reader.counts.fallbacks == 0
        for rows in ([(0, 1_500)], [(0, ROWS)]):
            with pytest.raises(MemoryLimitError):
                reader.read(group, [0], from_ranges(rows, ROWS))


def test_a_needle_reads_a_small_part_of_its_stripe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    count, draw = 100_000, np.random.default_rng(3)
    names = ("id", "n", "s", "d", "x")
    kinds = ("long", "long", "string", "date", "double")
    table = TableBuilder(tmp_path, tuple(Column(i, n, k) for i, (n, k) in enumerate(zip(names, kinds, strict=True), 1)))
    rows = {
        "id": draw.permutation(count),
        "n": draw.integers(0, 2**60, count),
        "s": [f"a text of row {n}" for n in range(count)],
        "d": [date(2026, 1, 1)] * count,
        "x": draw.random(count),
    }
    table.commit(table.data(rows, file_format="orc", stripe_size=1 << 30, row_index_stride=1_000))
    scan = scan_core.open_table(table.metadata_path).scan().where("id = 77")
    whole = scan.with_options(ScanOptions.of(prune_pages=False))
    assert scan.to_table() == whole.to_table()
    assert scan.metrics.pages_skipped > scan.metrics.pages_read > 0
    assert scan.metrics.bytes_read + scan.metrics.bytes_skipped == whole.metrics.bytes_read
    assert scan.metrics.bytes_read < whole.metrics.bytes_read / 2


@pytest.mark.each(4)
@pytest.mark.parametrize("seed", range(4))
def test_random_conditions_find_the_rows_of_whole_stripes(tmp_path: Path, seed: int) -> None:
    size, draw = 12_000, np.random.default_rng(seed)
    names = {"id": "long", "n": "int", "s": "string", "k": "string", "d": "date", "x": "double", "b": "boolean"}
    table = TableBuilder(tmp_path, tuple(Column(i, name, kind) for i, (name, kind) in enumerate(names.items(), 1)))
    rows: dict[str, Any] = {
        "id": (np.arange(size) // 1_000 * 1_000 + draw.permutation(size) % 1_000).tolist(),
        "n": [int(n) if n % 13 else None for n in draw.integers(-500, 500, size)],
        "s": [f"text {n}" * int(n % 3) if n % 11 else None for n in draw.integers(0, 10**6, size)],
        "k": [f"kind {n}" for n in draw.integers(0, 30, size)],
        "d": [date.fromordinal(700_000 + int(n)) for n in draw.integers(0, 9_000, size)],
        "x": draw.random(size).tolist(),
        "b": (draw.random(size) < 0.5).tolist(),
    }
    codec = str(draw.choice(CODECS))
    table.commit(table.data(rows, file_format="orc", stripe_size=1 << 30, row_index_stride=1_000, compression=codec))
    table.commit(table.equality_delete({"id": rows["id"][::17]}, ids=[1]))
    scan, read = scan_core.open_table(table.metadata_path).scan(), 0
    for _ in range(30):
        at, span = int(draw.integers(0, size)), int(draw.integers(1, 2_000))
        places = rows["id"][at], rows["id"][at] + span
        other = [f"n = {rows['n'][at] or 7}", f"k = '{rows['k'][at]}'", "n is null", "b", "s like 'text 1%'", "x < 0.1"]
        where = f"id between {places[0]} and {places[1]} and ({other[int(draw.integers(6))]} or id = {places[0]})"
        parts, whole = scan.where(where), scan.where(where).with_options(ScanOptions.of(prune_pages=False))
        assert parts.to_table() == whole.to_table(), where
        read += parts.metrics.pages_read
        assert parts.metrics.fallbacks == 0
    assert read
