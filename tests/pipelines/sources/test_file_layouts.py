"""What stands in an event file is seen from its bytes: layouts, compressions, rows of Parquet and CSV."""

import bz2
import gzip
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.sources.files import discover
from tests.pipelines.sources.folder_reader import Reader, lines, numbers


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('{"n":1}\r\n\r\n{"n":2}', [(1, '{"n":1}'), (3, '{"n":2}')]),
        ('\ufeff{"n":1}\n', [(1, '{"n":1}')]),
        ('/* licence\n * text */\n\n{"n":1}\n', [(4, '{"n":1}')]),
        ('[{"n":1},\n {"n":2}]\n', [(1, '{"n":1}'), (2, '{"n":2}')]),
        ("[]", []),
        ('{\n "after":{}\n}\n{"n":2}', [(1, '{\n "after":{}\n}'), (2, '{"n":2}')]),
        ('{"k":1}\t{"n":1}\n{"k":1}\n', [(1, ('{"k":1}', '{"n":1}'))]),
        ('{"k":1}\t1\n{"k":1}\t\r\n{"k":2}\t', [(1, ('{"k":1}', "1")), (2, ('{"k":1}', None)), (3, ('{"k":2}', None))]),
        ('{"id":1}\n{\n"op":"c", "after":{}\n}', [(1, '{"id":1}'), (2, "{"), (3, '"op":"c", "after":{}'), (4, "}")]),
        ('{\n"id":1}\n{\n"op":"c", "after":{}\n}', [(1, ('{\n"id":1}', '{\n"op":"c", "after":{}\n}'))]),
        ('{"n":1\n{"n":2}\n', [(1, '{"n":1'), (2, '{"n":2}')]),
        ('not json\n{"n":2}\n', [(1, "not json"), (2, '{"n":2}')]),
    ],
)
def test_layouts_are_seen_from_the_first_bytes(reader: Reader, text: str, wanted: list[tuple[int, Any]]) -> None:
    reader.write("f", text)
    assert [(offset, document) for _, offset, document in reader.run(report_incomplete=True)] == wanted
    assert reader.run() == []


@pytest.mark.parametrize("sign", ["", "-"])
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('{"n":@}\n{"n":2}\n', [(1, '{"n":@}'), (2, '{"n":2}')]),
        ('{\n"op":"c", "after":{"n":@}\n}', [(1, '{\n"op":"c", "after":{"n":@}\n}')]),
        ('[{"n":@},\n{"n":2}]', [(1, '{"n":@}'), (2, '{"n":2}')]),
        ('{"k":@}\t{"n":1}\n', [(1, ('{"k":@}', '{"n":1}'))]),
        ('{\n"id":@}\n{\n"op":"c", "after":{"n":@}\n}', [(1, ('{\n"id":@}', '{\n"op":"c", "after":{"n":@}\n}'))]),
    ],
    ids=["lines", "documents", "array", "keyed lines", "keyed documents"],
)
def test_layouts_are_seen_from_numbers_of_more_digits_than_python_reads(
    reader: Reader, text: str, wanted: list[tuple[int, Any]], sign: str
) -> None:
    def filled(value: Any) -> Any:
        return tuple(map(filled, value)) if isinstance(value, tuple) else value.replace("@", sign + "9" * 5_000)

    reader.write("f", filled(text))
    expected = [(number, filled(document)) for number, document in wanted]
    assert [(offset, document) for _, offset, document in reader.run(report_incomplete=True)] == expected


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_compressed_files_are_read(reader: Reader, suffix: str) -> None:
    data = lines(1, 2).encode() + b'{"n":3}'
    packed = gzip.compress(data) if suffix == "gz" else pa.Codec("zstd").compress(data, asbytes=True)
    reader.write(f"f.jsonl.{suffix}", packed)
    assert numbers(reader.run(batch_rows=2)) == [1, 2, 3]
    assert reader.run() == []


@pytest.mark.parametrize("columns", [["n"], ["a", "n", "b", "m"]])
def test_numbers_far_apart_are_read_from_parquet_as_duckdb_writes_them(reader: Reader, columns: list[str]) -> None:
    numbers = "(case i % 2 when 0 then -2147483648 + i else 2147483647 - i end)::int"
    with duckdb.connect() as database:
        rows = database.sql(f"select 'x' || i as a, {numbers} as n, [i] as b, {numbers} as m from range(500) t(i)")
        chosen = rows.project(", ".join(columns))
        expected = chosen.to_arrow_table().to_pylist()
        path = reader.folder / "1.parquet"
        database.execute(f"copy (from chosen) to '{path}' (format parquet, parquet_version v2)")
    assert [row for _, _, row in reader.run(batch_rows=120)] == expected


def test_rows_of_parquet_and_csv_are_read_as_columns(reader: Reader) -> None:
    pq.write_table(pa.table({"Op": ["I", "D"], "id": [1, 2]}), reader.folder / "1.parquet")
    reader.write("2.csv", 'Op,id,t\nI,3,"a\nb"\nU,,""\n')
    assert reader.run() == [
        ("1.parquet", 1, {"Op": "I", "id": 1}),
        ("1.parquet", 2, {"Op": "D", "id": 2}),
        ("2.csv", 1, {"Op": "I", "id": "3", "t": "a\nb"}),
        ("2.csv", 2, {"Op": "U", "id": None, "t": ""}),
    ]
    assert reader.run() == []


def test_csv_without_header_takes_the_names_given(reader: Reader) -> None:
    reader.write("1.csv", "I;1\n")
    assert reader.run(header=False, columns=("Op", "id"), delimiter=";") == [("1.csv", 1, {"Op": "I", "id": "1"})]


def test_lines_may_be_chosen_and_comments_left_out(reader: Reader) -> None:
    reader.write("a", "# one\n" + lines(1, 2, 3, 4))
    assert numbers(reader.run(first_line=3, last_line=4, comments=("#",))) == [2, 3]


def test_psql_output_gives_its_objects(reader: Reader) -> None:
    reader.write("a", 'SELECT 1;\n data\n------\n {"n":1}\n(1 row)\n')
    assert reader.run(layout="psql") == [("a", 4, '{"n":1}')]


def test_objects_one_behind_the_other_on_one_line_are_documents(reader: Reader) -> None:
    reader.write("1", '{"n":1}{"n":2} {"n":3}\n{"n":4}')
    assert [value for _, _, value in reader.run()] == ['{"n":1}', '{"n":2}', '{"n":3}', '{"n":4}']


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress])
def test_kind_and_compression_are_told_by_the_bytes_not_the_name(reader: Reader, compress: Any) -> None:
    reader.write("1", compress(lines(1).encode()))
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": [2]}), sink)
    reader.write("2.jsonl", sink.getvalue().to_pybytes())
    assert [value for _, _, value in reader.run()] == ['{"n":1}', {"n": 2}]


def test_events_of_arrow_stay_binary(reader: Reader) -> None:
    reader.write("a", lines(1))
    (batch,) = discover([str(reader.folder / "a")])
    assert batch.raw.documents is not None
    assert pc.all(pc.is_valid(batch.raw.documents)).as_py()
    assert batch.raw.take(pa.array([0])).num_events == 1


@pytest.mark.parametrize("text", ["", "\n", "id,n", "id,n\n"])
def test_csv_without_rows_holds_up_nothing(reader: Reader, text: str) -> None:
    reader.write("a.csv", text)
    reader.write("b.csv", "id,n\n1,2\n")
    assert reader.run() == [("b.csv", 1, {"id": "1", "n": "2"})]


def test_csv_that_cannot_be_read_is_named(reader: Reader) -> None:
    reader.write("broken.csv", "id,id\n1,2\n")
    with pytest.raises(SourceError, match=r"broken\.csv"):
        reader.run()
