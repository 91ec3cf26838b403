import csv
import io
from collections.abc import Generator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.csv
import pytest

from nevermore.pipelines.cli.row_output import RENDER_ROWS, write_rows
from nevermore.pipelines.errors import ConfigError
from tests.support.rendering import all_rows

UTC_MICROS = pa.timestamp("us", "UTC")


def rendered(values: list[Any], kind: pa.DataType) -> list[Any]:
    array = pa.array([None, *values], kind)
    rows = list(all_rows(pa.table({"v": array})))
    sliced = list(all_rows(pa.table({"v": array}).slice(1)))
    assert rows[0] == {"v": None}
    assert sliced == rows[1:]
    return [row["v"] for row in sliced]


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (pa.date32(), date(1, 1, 1), "0001-01-01"),
        (pa.time64("us"), time(23, 59, 59, 1), "23:59:59.000001"),
        (pa.timestamp("us"), datetime(2026, 1, 2, 3, 4, 5, 6), "2026-01-02T03:04:05.000006"),  # noqa: DTZ001 - Iceberg's timestamp
        (UTC_MICROS, datetime(1969, 12, 31, 23, tzinfo=UTC), "1969-12-31T23:00:00.000000+00:00"),
        (pa.decimal128(9, 2), Decimal("-1.20"), "-1.20"),
        (pa.decimal128(38, 10), Decimal("0E-10"), "0.0000000000"),
        (pa.uuid(), UUID(int=1).bytes, "00000000-0000-0000-0000-000000000001"),
        (pa.binary(), b"\x00\xff", "00ff"),
        (pa.binary(2), b"ab", "6162"),
        (pa.float64(), float("nan"), "NaN"),
        (pa.float32(), float("-inf"), "-Infinity"),
        (pa.float32(), 0.1, 0.1),
        (pa.float64(), 0.1, 0.1),
        (pa.list_(pa.float32()), [1e-7, 3.4e38], [1e-7, 3.4e38]),
        (pa.list_(pa.date32()), [date(2026, 1, 1), None], ["2026-01-01", None]),
        (pa.map_(pa.int32(), pa.binary()), [(1, b"a"), (2, None)], {"1": "61", "2": None}),
        (pa.struct([("a", pa.struct([("b", pa.binary())]))]), {"a": {"b": b"a"}}, {"a": {"b": "61"}}),
        (pa.struct([("a", pa.int8())]), {"a": None}, {"a": None}),
    ],
)
def test_values_are_written_as_documented(kind: pa.DataType, value: Any, text: Any) -> None:
    assert rendered([value], kind) == [text]


@pytest.mark.each(2)
@pytest.mark.parametrize("offset", range(5))
def test_every_slice_of_maps_and_lists_is_written(offset: int) -> None:
    maps = [{"a": [1.0, None]}, None, {}, {"b": None, "c": []}, {"d": [2.0]}]
    array = pa.array(
        [None if m is None else list(m.items()) for m in maps], pa.map_(pa.string(), pa.list_(pa.float64()))
    )
    for length in range(len(maps) - offset + 1):
        rows = list(all_rows(pa.table({"v": array}).slice(offset, length)))
        assert [row["v"] for row in rows] == maps[offset : offset + length]
    many = array.slice(offset, 1).take([0] * (2 * RENDER_ROWS + 1))  # rendered in several slices of one batch
    assert [row["v"] for row in all_rows(pa.table({"v": many}))] == maps[offset : offset + 1] * len(many)


def test_nanoseconds_have_nine_digits() -> None:
    array = pa.array([1, None]).cast(pa.timestamp("ns", "UTC"))
    assert [row["v"] for row in all_rows(pa.table({"v": array}))] == ["1970-01-01T00:00:00.000000001+00:00", None]


def test_dictionaries_and_chunks_read_as_their_values() -> None:
    chunks = pa.chunked_array([pa.array(["a", None]).dictionary_encode(), pa.array(["b"]).dictionary_encode()])
    assert [row["v"] for row in all_rows(pa.table({"v": chunks}))] == ["a", None, "b"]


def test_json_lines_are_one_object_a_row(tmp_path: Path) -> None:
    write_rows(Rows(pa.table({"a": [1, 2], "b": ["x", None]})), "jsonl", tmp_path / "rows")
    assert (tmp_path / "rows").read_bytes() == b'{"a":1,"b":"x"}\n{"a":2,"b":null}\n'


class Rows:
    def __init__(self, table: pa.Table) -> None:
        self.arrow_schema = table.schema
        self._table = table

    def to_batches(self) -> Generator[pa.RecordBatch, None, None]:
        yield from self._table.to_batches()


TEXTS = [None, "", "NULL", "\\N", "a", "a,b", 'say "x"', '"', "two\nlines", "\r", " blank ", "'NULL'", "None", "ø"]


@pytest.mark.parametrize("null", [None, "NULL", "\\N", " "])
def test_csv_distinguishes_every_text_from_null(tmp_path: Path, null: str | None) -> None:
    table = pa.table({"n": range(len(TEXTS)), "t,": TEXTS, "b": [value is None for value in TEXTS]})
    write_rows(Rows(table), None, tmp_path / "rows.csv", null=null)
    text = (tmp_path / "rows.csv").read_bytes().decode()
    assert text.startswith(f'n,"t,",b\r\n0,{null or ""},true\r\n1,"",false\r\n')
    assert [row[1] for row in csv.reader(io.StringIO(text, newline=""))][1:] == [
        (null or "") if value is None else value for value in TEXTS
    ]
    read = pyarrow.csv.read_csv(
        tmp_path / "rows.csv",
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(
            null_values=[null or ""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            column_types={"t,": pa.string()},
        ),
    )
    assert read.column("t,").to_pylist() == TEXTS


@pytest.mark.parametrize("null", ["a,b", '"', "\n"])
def test_csv_refuses_a_null_that_it_would_have_to_quote(tmp_path: Path, null: str) -> None:
    with pytest.raises(ConfigError, match="--null"):
        write_rows(Rows(pa.table({"a": [1]})), None, tmp_path / "rows.csv", null=null)


def test_null_is_an_option_of_csv_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--null 'x'.*csv"):
        write_rows(Rows(pa.table({"a": [1]})), None, tmp_path / "rows.jsonl", null="x")


def test_the_terminal_shows_null_and_nested_values(tmp_path: Path) -> None:
    values = [{"a": [1, None], "b": True}, None]
    table = pa.table({"t": ["", "NULL"], "n": [None, 1], "v": pa.array(values), "f": [True, None]})
    write_rows(Rows(table), None, tmp_path / "rows.txt")
    lines = (tmp_path / "rows.txt").read_text().splitlines()
    cells = [[cell.strip() for cell in line.split("│")] for line in lines[2:4]]
    assert cells == [["", "NULL", '{"a":[1,null],"b":true}', "true"], ["'NULL'", "1", "NULL", "NULL"]]
