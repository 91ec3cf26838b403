import datetime as dt
import decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nevermore.scan_core.columns.file_reader import FileReader
from nevermore.scan_core.files import open_file
from nevermore.scan_core.io.location import FileIOConfig
from nevermore.scan_core.model.errors import MalformedTableError, MissingFileError, ScanError, UnsupportedError
from nevermore.scan_core.model.snapshot import FileFormat
from nevermore.scan_core.rows.selection import All, Mask


def opened(path: Path) -> FileReader:
    return open_file(str(path), FileFormat.PARQUET, FileIOConfig())


def written(path: Path, table: pa.Table, **options: Any) -> Path:
    pq.write_table(table, path, **options)
    return path


def column(reader: FileReader, index: int) -> pa.Array:
    parts = [reader.read(g, [index], All(g.num_rows))[0] for g in reader.row_groups]
    plain = [p.dictionary_decode() if isinstance(p, pa.DictionaryArray) else p for p in parts]
    return pa.concat_arrays(plain)


def test_columns_are_found_by_place_whatever_their_names(tmp_path: Path) -> None:
    table = pa.table(
        [
            pa.array([{"a": 1, "b": {"c": "x"}}]),
            pa.array([1]),
            pa.array([[1, 2]]),
            pa.array([2]),
            pa.array([[("k", 3)]], pa.map_(pa.string(), pa.int64())),
            pa.array([3]),
        ],
        names=["s", "s.a", "with space", "é.list.element", "m", "m.key"],
    )
    reader = opened(written(tmp_path / "f.parquet", table))
    group = reader.row_groups[0]
    values = [a.to_pylist() for a in reader.read(group, [5, 0, 1, 4, 3, 2], All(1))]
    assert values == [[3], [{"a": 1, "b": {"c": "x"}}], [1], [[("k", 3)]], [2], [[1, 2]]]


def test_row_groups_tell_positions_and_offsets(tmp_path: Path) -> None:
    table = pa.table({"a": range(10)})
    reader = opened(written(tmp_path / "f.parquet", table, row_group_size=4))
    assert [(g.index, g.first_row_position, g.num_rows) for g in reader.row_groups] == [(0, 0, 4), (1, 4, 4), (2, 8, 2)]
    offsets = [g.byte_offset for g in reader.row_groups]
    assert offsets == sorted(set(offsets))
    assert offsets[0] == 4
    assert reader.num_rows == 10


def test_only_selected_rows_are_returned(tmp_path: Path) -> None:
    reader = opened(written(tmp_path / "f.parquet", pa.table({"a": range(5), "b": list("vwxyz")})))
    keep = np.array([True, False, False, True, False])
    a, b = reader.read(reader.row_groups[0], [0, 1], Mask(keep))
    assert a.to_pylist() == [0, 3]
    assert b.to_pylist() == ["v", "y"]
    (none,) = reader.read(reader.row_groups[0], [1], Mask(np.zeros(5, np.bool_)))
    assert none.to_pylist() == []


def test_low_cardinality_strings_come_as_dictionaries_and_others_plain(tmp_path: Path) -> None:
    few = pa.array([f"v{i % 7}" for i in range(20_000)])
    many = pa.array([f"value-{i}" for i in range(20_000)])
    table = pa.table({"few": few, "many": many, "large": few.cast(pa.large_string())})
    reader = opened(written(tmp_path / "f.parquet", table, dictionary_pagesize_limit=4096))
    group = reader.row_groups[0]
    arrays = reader.read(group, [0, 1, 2], All(group.num_rows))
    assert [isinstance(a, pa.DictionaryArray) for a in arrays] == [True, False, True]
    assert arrays[0].dictionary_decode() == few
    assert arrays[1] == many


def test_dictionary_is_decided_per_row_group(tmp_path: Path) -> None:
    values = ["same"] * 5_000 + [f"value-{i}" for i in range(5_000)]
    table = pa.table({"s": values})
    reader = opened(written(tmp_path / "f.parquet", table, row_group_size=5_000, dictionary_pagesize_limit=1024))
    kinds = [isinstance(reader.read(g, [0], All(g.num_rows))[0], pa.DictionaryArray) for g in reader.row_groups]
    assert kinds == [True, False]
    assert column(reader, 0).to_pylist() == values


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (pa.decimal128(9, 2), {"store_decimal_as_integer": True}),
        (pa.decimal128(18, 2), {"store_decimal_as_integer": True}),
        (pa.decimal128(9, 2), {}),
        (pa.decimal128(38, 10), {}),
    ],
)
def test_rule_17_decimals_of_every_physical_encoding(tmp_path: Path, kind: pa.DataType, options: Any) -> None:
    values = [decimal.Decimal("-1234567.89"), None, decimal.Decimal("0.01")]
    stored = pa.array(values, kind)
    reader = opened(written(tmp_path / "f.parquet", pa.table({"d": stored}), **options))
    assert column(reader, 0) == stored
    statistics = reader.statistics(reader.row_groups[0], 0)
    assert statistics is not None
    assert (statistics.lower, statistics.upper, statistics.null_count) == (values[0], values[2], 1)


def test_rule_17_wide_decimals_have_exact_bounds(tmp_path: Path) -> None:
    value = decimal.Decimal("1234567890123456789012345678.9012345678")
    reader = opened(written(tmp_path / "f.parquet", pa.table({"d": pa.array([value], pa.decimal128(38, 10))})))
    statistics = reader.statistics(reader.row_groups[0], 0)
    assert statistics is not None
    assert statistics.lower == statistics.upper == value


def test_rule_17_int96_timestamps_far_from_now_are_exact(tmp_path: Path) -> None:
    values = [dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999), None]  # noqa: DTZ001
    table = pa.table({"t": pa.array(values, pa.timestamp("us"))})
    reader = opened(written(tmp_path / "f.parquet", table, use_deprecated_int96_timestamps=True))
    assert column(reader, 0).to_pylist() == values
    statistics = reader.statistics(reader.row_groups[0], 0)
    assert statistics is None or statistics.lower is None


def test_bounds_are_values_of_the_column_type(tmp_path: Path) -> None:
    table = pa.table(
        {
            "date": pa.array([dt.date(1970, 1, 2)]),
            "stamp": pa.array([5], pa.timestamp("ms")),
            "text": pa.array(["é"]),
            "blob": pa.array([b"\xff"]),
            "flag": pa.array([True]),
            "zero": pa.array([0.0]),
            "nan": pa.array([float("nan")]),
            "list": pa.array([[1]]),
        }
    )
    reader = opened(written(tmp_path / "f.parquet", table))
    found = [reader.statistics(reader.row_groups[0], i) for i in range(table.num_columns)]
    bounds = [(s.lower, s.upper) if s else None for s in found]
    assert bounds[:5] == [(1, 1), (5, 5), ("é", "é"), (b"\xff", b"\xff"), (True, True)]
    assert str(bounds[5]) == "(-0.0, 0.0)"
    assert bounds[6:] == [(None, None), None]


def test_field_ids_are_told_where_the_file_has_them(tmp_path: Path) -> None:
    field = pa.field("a", pa.int64(), metadata={"PARQUET:field_id": "7"})
    with_ids = opened(written(tmp_path / "a.parquet", pa.table([[1]], schema=pa.schema([field]))))
    without = opened(written(tmp_path / "b.parquet", pa.table({"a": [1]})))
    assert with_ids.has_field_ids
    assert not without.has_field_ids


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"gone\.parquet"):
        opened(tmp_path / "gone.parquet")


@pytest.mark.parametrize("keep", [0, 1, 4, 11, 100, -1, -9])
def test_truncated_file_is_malformed_and_named(tmp_path: Path, keep: int) -> None:
    path = written(tmp_path / "f.parquet", pa.table({"a": range(1000)}))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(MalformedTableError, match=r"f\.parquet"):
        opened(path)


def test_damaged_pages_are_malformed_and_name_the_column(tmp_path: Path) -> None:
    path = written(tmp_path / "f.parquet", pa.table({"broken col": range(1000)}), use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[4:40] = b"\xff" * 36
    path.write_bytes(bytes(content))
    reader = opened(path)
    with pytest.raises(MalformedTableError, match=r"f\.parquet: row group 0, columns 'broken col'"):
        reader.read(reader.row_groups[0], [0], All(1000))


def test_flipped_bit_in_a_page_with_checksum_is_found(tmp_path: Path) -> None:
    table = pa.table({"a": np.arange(1000)})
    path = written(tmp_path / "f.parquet", table, use_dictionary=False, compression="none", write_page_checksum=True)
    content = bytearray(path.read_bytes())
    content[4000] ^= 1
    path.write_bytes(bytes(content))
    reader = opened(path)
    with pytest.raises(MalformedTableError, match="CRC"):
        reader.read(reader.row_groups[0], [0], All(1000))


def test_encrypted_footer_is_unsupported(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    path.write_bytes(b"PARE" + b"\0" * 100 + b"PARE")
    with pytest.raises(UnsupportedError, match="encrypted"):
        opened(path)


def test_mutated_files_never_raise_anything_but_scan_errors(tmp_path: Path) -> None:
    table = pa.table({"a": range(300), "s": [f"v{i % 5}" for i in range(300)], "l": [[i] for i in range(300)]})
    path = written(tmp_path / "f.parquet", table, row_group_size=100, write_page_checksum=True)
    original = path.read_bytes()
    rng = np.random.default_rng(7)
    for _ in range(300):
        content = bytearray(original)
        for position in rng.integers(0, len(content), rng.integers(1, 4)):
            content[position] = rng.integers(0, 256)
        path.write_bytes(bytes(content))
        try:
            reader = opened(path)
            for group in reader.row_groups:
                for index in range(len(reader.arrow_schema)):
                    reader.statistics(group, index)
                    reader.read(group, [index], All(group.num_rows))
        except ScanError:
            pass


def test_file_without_rows_or_columns_is_normal_input(tmp_path: Path) -> None:
    empty = opened(written(tmp_path / "a.parquet", pa.table({"a": pa.array([], pa.int64())})))
    assert empty.num_rows == 0
    assert sum(g.num_rows for g in empty.row_groups) == 0
    columnless = opened(written(tmp_path / "b.parquet", pa.table({"a": [1, 2]}).select([])))
    assert len(columnless.arrow_schema) == 0


@pytest.mark.parametrize("codec", ["snappy", "zstd", "uncompressed"])
def test_differences_of_more_than_32_bits_are_read_as_duckdb_writes_them(tmp_path: Path, codec: str) -> None:
    path = tmp_path / "wide.parquet"
    number = "case i % 3 when 0 then -2147483648 + i when 1 then 2147483647 - i end::int"
    columns = {
        "a": number,
        "u": "(i * 2654435761 % 4294967296)::uinteger",
        "d": "case i % 2 when 0 then date 'infinity' else date '-infinity' end",
        "s": f"{{'x': {number}}}",
        "l": f"[{number}, i::int]",
        "near": "i::int",
        "text": "'t' || i",
    }
    asked = ", ".join(f"{sql} as {name}" for name, sql in columns.items())
    query = f"select {asked} from range(5000) t(i) order by i"
    with duckdb.connect() as database:
        database.execute(f"copy ({query}) to '{path}' (format parquet, parquet_version v2, compression {codec})")
        expected = database.sql(query).to_arrow_table()
    with pytest.raises(OSError, match="Unexpected end"):
        pq.read_table(path)
    reader = opened(path)
    numbers = {field.name: i for i, field in enumerate(reader.arrow_schema)}
    for selection in (All(5000), Mask(np.arange(5000) % 7 == 1)):
        kept = expected if isinstance(selection, All) else expected.filter(pa.array(selection.values))
        found = reader.read(reader.row_groups[0], [*numbers.values()], selection)
        for name, array in zip(numbers, found, strict=True):
            array.validate(full=True)
            wanted = kept[name].combine_chunks()
            assert array.cast(wanted.type).to_pylist() == wanted.to_pylist() if name != "d" else array.equals(wanted)
