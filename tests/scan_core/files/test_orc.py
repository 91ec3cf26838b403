from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import orc

from nevermore import scan_core
from nevermore.scan_core.columns.file_reader import field_id_of
from nevermore.scan_core.files import open_file
from nevermore.scan_core.files.orc import OrcFileReader, _since_1970, column_statistics, open_orc
from nevermore.scan_core.io.location import FileIOConfig
from nevermore.scan_core.model.errors import MalformedTableError, MissingFileError, UnsupportedError
from nevermore.scan_core.model.snapshot import FileFormat
from nevermore.scan_core.model.statistics import ColumnStatistics
from nevermore.scan_core.rows.selection import All, Mask, Ranges
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder

IO = FileIOConfig()


def field(name: str, kind: pa.DataType, field_id: int | None, **attributes: str) -> pa.Field:
    ids = {} if field_id is None else {"iceberg.id": str(field_id)}
    return pa.field(name, kind, metadata=ids | {f"iceberg.{k.replace('_', '-')}": v for k, v in attributes.items()})


def write(path: Path, fields: list[pa.Field], columns: list[Any], **options: Any) -> Path:
    arrays = [pa.array(c, f.type) for c, f in zip(columns, fields, strict=True)]
    orc.write_table(pa.Table.from_arrays(arrays, schema=pa.schema(fields)), path, **options)
    return path


def opened(path: Path) -> OrcFileReader:
    return open_orc(str(path), IO)


def read_all(reader: OrcFileReader, *columns: int) -> list[list[Any]]:
    groups = [reader.read(g, columns, All(g.num_rows)) for g in reader.row_groups]
    return [[v for arrays in groups for v in arrays[i].to_pylist()] for i in range(len(columns))]


NESTED = pa.struct(
    [
        field("x", pa.int32(), 5),
        field("l", pa.list_(field("item", pa.string(), 7)), 6),
        field("t", pa.int64(), 8, long_type="TIME"),
    ]
)
MAPPED = pa.map_(field("key", pa.string(), 11).with_nullable(False), field("value", pa.int64(), 12))


def test_rule_10_field_ids_at_all_depths_come_from_attributes(tmp_path: Path) -> None:
    rows = [{"x": 1, "l": ["q", None], "t": 5}, None]
    fields = [field("s", NESTED, 4), field("m", MAPPED, 10), field("no id", pa.bool_(), None)]
    reader = opened(write(tmp_path / "f.orc", fields, [rows, [[("k", 1)], None], [True, None]]))
    assert reader.has_field_ids
    structure, mapped, bare = reader.arrow_schema
    assert [field_id_of(f) for f in (structure, mapped, bare)] == [4, 10, None]
    assert [field_id_of(structure.type.field(i)) for i in range(3)] == [5, 6, 8]
    assert field_id_of(structure.type.field(1).type.value_field) == 7
    assert [field_id_of(f) for f in (mapped.type.key_field, mapped.type.item_field)] == [11, 12]
    (arrays,) = [reader.read(g, [0, 1, 2], All(2)) for g in reader.row_groups]
    assert arrays[0].type.field(2).type == pa.time64("us")
    assert arrays[0].field("t").cast(pa.int64()).to_pylist() == [5, None]
    assert arrays[1].to_pylist() == [[("k", 1)], None]


def test_rule_17_types_that_orc_has_no_name_for(tmp_path: Path) -> None:
    fields = [
        field("time", pa.int64(), 1, long_type="TIME"),
        field("uuid", pa.binary(), 2, binary_type="UUID"),
        field("ts", pa.timestamp("us"), 3, timestamp_unit="MICROS"),
        field("tz", pa.timestamp("us", "UTC"), 4),
        field("amount", pa.decimal128(38, 10), 5),
    ]
    when = datetime(2024, 2, 3, 4, 5, 6, 7)  # noqa: DTZ001 - without zone on purpose
    values = [[5], [b"\xff" * 16], [when], [when.replace(tzinfo=UTC)], [Decimal("-12.0000000001")]]
    reader = opened(write(tmp_path / "f.orc", fields, values))
    kinds = [f.type for f in reader.arrow_schema]
    assert kinds[0] == pa.time64("us")
    assert (kinds[2].tz, kinds[3].tz) == (None, "UTC")
    arrays = reader.read(reader.row_groups[0], [2, 3, 4], All(1))
    nanoseconds = [a.cast(pa.int64()).to_pylist()[0] for a in arrays[:2]]
    assert nanoseconds == [int(when.replace(tzinfo=UTC).timestamp()) * 10**9 + 7000] * 2
    assert arrays[2].to_pylist() == [Decimal("-12.0000000001")]


def test_stripes_are_row_groups_and_only_selected_rows_come(tmp_path: Path) -> None:
    count = 300_000
    noise = np.random.default_rng(1).integers(0, 2**62, count)
    path = write(
        tmp_path / "f.orc",
        [field("id", pa.int64(), 1), field("v", pa.int64(), 2)],
        [np.arange(count), noise],
        stripe_size=500_000,
    )
    reader = opened(path)
    assert reader.num_rows == count
    assert len(reader.row_groups) > 2
    offsets = [g.byte_offset for g in reader.row_groups]
    assert offsets == sorted(offsets)
    for group in reader.row_groups:
        (ids,) = reader.read(group, [0], Ranges(np.array([3]), np.array([5]), group.num_rows))
        assert ids.to_pylist() == [group.first_row_position + 3, group.first_row_position + 4]
    last = reader.row_groups[-1]
    mask = np.zeros(last.num_rows, np.bool_)
    assert reader.read(last, [1, 0], Mask(mask))[1].to_pylist() == []
    mask[-1] = True
    values, ids = reader.read(last, [1, 0], Mask(mask))
    assert (ids.to_pylist(), values.to_pylist()) == ([count - 1], [noise[-1]])


@pytest.mark.parametrize("names", [["a.b", "a", "a.c"], ["a", "b", "c d"]])
def test_columns_with_dots_and_spaces_in_their_names(tmp_path: Path, names: list[str]) -> None:
    fields = [field(n, pa.int64(), i) for i, n in enumerate(names)]
    fields[1] = field(names[1], pa.struct([field("b", pa.int64(), 9)]), 1)
    reader = opened(write(tmp_path / "f.orc", fields, [[1], [{"b": 2}], [3]]))
    assert read_all(reader, 2, 0) == [[3], [1]]


@pytest.mark.parametrize("compression", ["uncompressed", "zlib", "snappy", "zstd"])
def test_stripe_statistics_bound_the_values(tmp_path: Path, compression: str) -> None:
    fields = [
        field("s", NESTED, 4),
        field("i", pa.int64(), 1),
        field("t", pa.string(), 2),
        field("d", pa.decimal128(9, 2), 3),
        field("f", pa.float64(), 13),
        field("day", pa.date32(), 14),
    ]
    columns = [[None] * 3, [5, None, -3], ["b", "é", ""], [Decimal("1.25"), None, None], [0.0, 2.5, None], [9, 8, 7]]
    reader = opened(write(tmp_path / "f.orc", fields, columns, compression=compression))
    found = [reader.statistics(reader.row_groups[0], i) for i in range(len(fields))]
    assert found[0] is None
    assert found[1] == ColumnStatistics(-3, 5, 1, None, 3)
    assert found[2] == ColumnStatistics("", "é", 0, None, 3)
    assert found[3] == ColumnStatistics(Decimal("1.25"), Decimal("1.25"), 2, None, 3)
    assert found[4] == ColumnStatistics(-0.0, 2.5, 1, None, 3)
    assert found[5] == ColumnStatistics(7, 9, 0, None, 3)


@pytest.mark.parametrize(
    ("message", "null_count"),
    [
        (b"\x08\x02\x50\x01", 1),
        (b"\x08\x03\x50\x00", 0),
        (b"\x08\x00\x50\x01", 3),
        (b"\x08\x02", 1),
        (b"\x08\x03", 0),
        pytest.param(b"\x08\x00\x50\x00", None, id="written by ORC Java without indexes"),
        pytest.param(b"\x08\x00", None, id="the same of a writer that does not say whether any is NULL"),
        pytest.param(b"\x08\x02\x50\x00", None, id="some are lacking, none is NULL"),
        pytest.param(b"\x08\x03\x50\x01", None, id="all are there, some are NULL"),
        (b"\x08\x04\x50\x00", None),
        (b"", None),
    ],
)
def test_statistics_that_contradict_themselves_say_nothing_of_null(message: bytes, null_count: int | None) -> None:
    assert column_statistics(message, 3, pa.int64()).null_count == null_count


def test_rule_23_file_without_rows(tmp_path: Path) -> None:
    reader = opened(write(tmp_path / "f.orc", [field("id", pa.int64(), 1)], [[]]))
    assert reader.num_rows == sum(g.num_rows for g in reader.row_groups) == 0
    assert read_all(reader, 0) == [[]]


FAR = [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999), datetime(1677, 9, 21), datetime(2262, 4, 12)]  # noqa: DTZ001


@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize("compression", ["uncompressed", "zlib", "snappy", "zstd"])
def test_rule_17_timestamps_beyond_nanoseconds_are_exact(tmp_path: Path, compression: str, zone: str | None) -> None:
    random = np.random.default_rng(7)
    micros = [int(random.integers(-(2**55), 2**55)) for _ in range(3000)] + [i * 10**6 for i in range(-2000, 2000)]
    near = datetime(2024, 1, 1)  # noqa: DTZ001
    dates = [None, *FAR, *[near] * 700, *FAR, None, *(near + timedelta(seconds=i) for i in range(600))]
    micros += [round((d - datetime(1970, 1, 1)) / timedelta(microseconds=1)) for d in dates if d is not None]  # noqa: DTZ001
    rows: list[int | None] = list(micros)
    rows[::17] = [None] * len(rows[::17])
    kind = pa.timestamp("us", zone)
    fields = [field("id", pa.int64(), 1), field("ts", kind, 2)]
    options = {"compression": compression}
    reader = opened(
        write(tmp_path / "f.orc", fields, [range(len(rows)), pa.array(rows, pa.int64()).view(kind)], **options)
    )
    ((ids, found),) = (reader.read(g, (0, 1), All(g.num_rows)) for g in reader.row_groups)
    assert ids.to_pylist() == list(range(len(rows)))
    assert found.view(pa.int64()).to_pylist() == rows


@pytest.mark.parametrize("version", ["0.11", "0.12"])
@pytest.mark.parametrize("micros", [[-14_831_769_599_500_000] * 10, [*range(-14_831_769_599_500_000, 0, 10**14)]])
def test_fractions_before_1970_are_exact_in_every_kind_of_run(tmp_path: Path, micros: list[int], version: str) -> None:
    fields, options = [field("ts", pa.timestamp("us"), 1)], {"file_version": version}
    reader = opened(write(tmp_path / "f.orc", fields, [pa.array(micros).view(fields[0].type)], **options))
    ((found,),) = (reader.read(g, (0,), All(g.num_rows)) for g in reader.row_groups)
    assert found.view(pa.int64()).to_pylist() == micros


def test_timestamps_beyond_nanoseconds_are_read_end_to_end(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", [Column(1, "id", "long"), Column(2, "ts", "timestamp")])
    table.commit(table.data({"id": list(range(len(FAR))), "ts": FAR}, file_format="orc"))
    table.commit(table.equality_delete({"ts": FAR[:1]}, ids=[2], columns=table.columns[1:], file_format="orc"))
    scan = scan_core.open_table(table.metadata_path).scan()
    assert scan.to_table()["ts"].to_pylist() == FAR[1:]
    assert scan.where("ts = timestamp '9999-12-31 23:59:59.999999'").select("id").to_table()["id"].to_pylist() == [1]


def test_far_timestamps_inside_of_others_are_refused_with_their_column_alone(tmp_path: Path) -> None:
    nested = pa.struct([field("ts", pa.timestamp("us"), 3)])
    fields = [field("id", pa.int64(), 1), field("s", nested, 2)]
    reader = opened(write(tmp_path / "f.orc", fields, [[1], [{"ts": datetime(9999, 12, 31)}]]))  # noqa: DTZ001
    assert read_all(reader, 0) == [[1]]
    with pytest.raises(UnsupportedError, match=r"f\.orc: .*column 's'"):
        read_all(reader, 0, 1)


def test_file_without_ids_says_so(tmp_path: Path) -> None:
    assert not opened(write(tmp_path / "f.orc", [pa.field("id", pa.int64())], [[1]])).has_field_ids


def test_open_file_resolves_orc_and_missing_files(tmp_path: Path) -> None:
    path = write(tmp_path / "f.orc", [field("id", pa.int64(), 1)], [[1]])
    reader = open_file(str(path), FileFormat.ORC, IO)
    assert isinstance(reader, OrcFileReader)
    reader.close()
    with pytest.raises(MissingFileError, match=r"gone\.orc"):
        open_file(str(tmp_path / "gone.orc"), FileFormat.ORC, IO)


def test_truncated_and_flipped_files_are_refused_or_read_but_never_crash(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    fields = [field("id", pa.int64(), 1), field("t", pa.string(), 2), field("s", NESTED, 4)]
    raw = write(tmp_path / "f.orc", fields, [[1, None], ["a", "b"], [{"x": 1, "l": ["u"], "t": 1}, None]]).read_bytes()
    broken = tmp_path / "broken.orc"
    refused = 0
    for _ in range(400):
        data = bytearray(raw)
        if rng.random() < 0.2:
            del data[int(rng.integers(0, len(data))) :]
        else:
            for place in rng.integers(0, len(data), int(rng.integers(1, 4))):
                data[place] ^= 1 << int(rng.integers(0, 8))
        broken.write_bytes(data)
        try:
            reader = opened(broken)
            read_all(reader, 0, 1, 2)
            reader.statistics(reader.row_groups[0], 0)
        except MalformedTableError as error:
            refused += 1
            assert "broken.orc" in str(error)  # noqa: PT017 - most inputs raise, a few still decode
        except IndexError:
            assert not reader.row_groups
    assert refused > 200


@pytest.mark.parametrize("since_1970", [2**63 // 10**6 - 1, 0, -(2**63) // 10**6 + 2_840_140_802])
def test_the_furthest_times_are_read(since_1970: int) -> None:
    found = _since_1970(np.array([since_1970 - 1_420_070_400]), np.array([0]), 10**6)
    assert found.tolist() == [since_1970 * 10**6]


@pytest.mark.parametrize(("seconds", "nanos"), [(-(2**63), 0), (2**62, 0), (0, 8 * 10**9)])
def test_times_that_microseconds_cannot_hold_are_refused(seconds: int, nanos: int) -> None:
    with pytest.raises(ValueError, match="a time that 64 bits"):
        _since_1970(np.array([0, seconds]), np.array([0, nanos]), 10**6)
