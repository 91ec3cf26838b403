"""Rows of every format with few and with many columns: each value is the one that was written."""

import csv
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nevermore.pipelines.decode.feed import FeedConfig, TableFeed
from nevermore.pipelines.formats.registry import decode
from nevermore.pipelines.sources.file_options import FileOptions
from nevermore.pipelines.sources.files import discover
from tests.pipelines.formats import avro_events

TABLE = "shop.products"
Row = dict[str, Any]
Change = tuple[Row | None, Row]
"""The row before, None for an insert, and after."""

SOURCE = {"db": "shop", "table": "products", "ts_ms": 1_700_000_000_000}
KINDS = ("integer", "text", "double")


def kind_of(name: str) -> str:
    return "object" if name == "s" else KINDS[int(name[1:]) % 3]


def value(row: int, column: int) -> Any:
    if row and (row + column) % 11 == 0:
        return None
    match KINDS[column % 3]:
        case "integer":
            return row * 10_000 + column
        case "text":
            return f'row {row}, "column" {column} é\n'
        case _:
            return row + column / 8


def changes(count: int, columns: int, *, nested: bool) -> list[Change]:
    """Inserts and updates of rows of `columns` columns; nested ones have them in `s`, which counts."""

    def row(key: int, number: int) -> Row:
        inner = {f"c{j}": value(number, j) for j in range(columns - (2 if nested else 1))}
        return {"id": key, **({"s": inner} if nested else inner)}

    return [(None if key % 2 == 0 else row(key, key + 1), row(key, key)) for key in range(count)]


def lines(events: list[Any]) -> bytes:
    return "".join(json.dumps(event, ensure_ascii=False) + "\n" for event in events).encode()


def debezium_event(change: Change) -> Row:
    before, after = change
    return {"before": before, "after": after, "source": SOURCE, "op": "u" if before else "c", "ts_ms": 1}


def debezium_schema(row: Row) -> Row:
    types = {"integer": "int64", "text": "string", "double": "double"}

    def fields(of: Row) -> list[Row]:
        return [
            {"field": name, "optional": True, "type": "struct", "fields": fields(v)}
            if isinstance(v, dict)
            else {"field": name, "optional": True, "type": "int64" if name == "id" else types[kind_of(name)]}
            for name, v in of.items()
        ]

    images = [{"field": name, "type": "struct", "fields": fields(row)} for name in ("before", "after")]
    return {"type": "struct", "fields": [*images, {"field": "op", "type": "string"}]}


def debezium(rows: list[Change]) -> bytes:
    return lines([debezium_event(r) for r in rows])


def debezium_enveloped(rows: list[Change]) -> bytes:
    schema = debezium_schema(rows[0][1])
    return lines([{"schema": schema, "payload": debezium_event(r)} for r in rows])


def debezium_unwrapped(rows: list[Change]) -> bytes:
    flags = {"__deleted": "false", "__table": "products", "__db": "shop"}
    return lines([{**after, "__op": "u" if before else "c", **flags} for before, after in rows])


def plain_rows(rows: list[Change]) -> bytes:
    return lines([{"_op": "U" if before else "I", **after} for before, after in rows])


def canal(rows: list[Change]) -> bytes:
    types = {"integer": "bigint", "text": "varchar(99)", "double": "double", "object": "json"}
    declared = {name: "bigint" if name == "id" else types[kind_of(name)] for name in rows[0][1]}

    def words(row: Row) -> Row:
        return {n: json.dumps(v) if isinstance(v, dict) else v if v is None else str(v) for n, v in row.items()}

    base = {"database": "shop", "table": "products", "isDdl": False, "es": 5, "pkNames": ["id"], "mysqlType": declared}
    return lines(
        [
            {
                **base,
                "type": "UPDATE" if before else "INSERT",
                "data": [words(after)],
                "old": [words(before)] if before else None,
            }
            for before, after in rows
        ]
    )


def maxwell(rows: list[Change]) -> bytes:
    base = {"database": "shop", "table": "products", "ts": 5}
    return lines(
        [
            {**base, "type": "update" if before else "insert", "data": after, **({"old": before} if before else {})}
            for before, after in rows
        ]
    )


def dms(rows: list[Change]) -> bytes:
    base = {"timestamp": "2024-10-27T12:39:03Z", "record-type": "data", "schema-name": "shop", "table-name": "products"}
    return lines(
        [
            {
                "data": after,
                "metadata": {**base, "operation": "update" if before else "insert"},
                **({"before-image": before} if before else {}),
            }
            for before, after in rows
        ]
    )


POSTGRES = {"integer": "bigint", "text": "text", "double": "double precision", "object": "jsonb"}


def postgres(name: str) -> str:
    return "bigint" if name == "id" else POSTGRES[kind_of(name)]


def postgres_value(given: Any) -> Any:
    return json.dumps(given) if isinstance(given, dict) else given


def wal2json_1(rows: list[Change]) -> bytes:
    def parts(row: Row, names: str, types: str, values: str) -> Row:
        return {
            names: list(row),
            types: [postgres(n) for n in row],
            values: [postgres_value(v) for v in row.values()],
        }

    changed = [
        {
            "kind": "update" if before else "insert",
            "schema": "shop",
            "table": "products",
            **parts(after, "columnnames", "columntypes", "columnvalues"),
            **({"oldkeys": parts(before, "keynames", "keytypes", "keyvalues")} if before else {}),
        }
        for before, after in rows
    ]
    return lines([{"change": changed[begin : begin + 100]} for begin in range(0, len(changed), 100)])


def wal2json_2(rows: list[Change]) -> bytes:
    def cells(row: Row) -> list[Row]:
        return [{"name": n, "type": postgres(n), "value": postgres_value(v)} for n, v in row.items()]

    return lines(
        [
            {
                "action": "U" if before else "I",
                "schema": "shop",
                "table": "products",
                "columns": cells(after),
                **({"identity": cells(before)} if before else {}),
            }
            for before, after in rows
        ]
    )


def as_csv(rows: list[Change]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["_op", *rows[0][1]])
    for before, after in rows:
        cells = (json.dumps(v) if isinstance(v, dict) else v for v in after.values())
        writer.writerow(["U" if before else "I", *cells])
    return text.getvalue().encode()


def parquet(rows: list[Change]) -> bytes:
    stream = io.BytesIO()
    # the last row has no NULL where the first has none, so that each column has its type
    table = pa.Table.from_pylist([after for _, after in rows])
    table = table.add_column(0, "_op", pa.array(["U" if before else "I" for before, _ in rows]))
    pq.write_table(table, stream)
    return stream.getvalue()


def avro(rows: list[Change]) -> bytes:
    types = {"integer": "long", "text": "string", "double": "double"}

    def fields(of: Row) -> dict[str, Any]:
        return {
            name: {
                "type": "record",
                "name": "S",
                "fields": [{"name": n, "type": ["null", t], "default": None} for n, t in fields(v).items()],
            }
            if isinstance(v, dict)
            else types[kind_of(name)]
            for name, v in of.items()
        }

    schema = avro_events.envelope(fields({n: v for n, v in rows[0][1].items() if n != "id"}))
    return avro_events.container(
        schema, [avro_events.event("u" if before else "c", after, before) for before, after in rows]
    )


@dataclass(frozen=True)
class Format:
    """A way to write changes: what decodes it, the file's suffix, whether old rows come through and all is text."""

    write: Callable[[list[Change]], bytes]
    decoder: str
    suffix: str = "json"
    has_before: bool = True
    is_text: bool = False


FORMATS = {
    "debezium": Format(debezium, "debezium-json"),
    "debezium with schema": Format(debezium_enveloped, "debezium-json"),
    "debezium unwrapped": Format(debezium_unwrapped, "debezium-json", has_before=False),
    "debezium avro": Format(avro, "debezium-avro", "avro"),
    "canal": Format(canal, "canal-json"),
    "maxwell": Format(maxwell, "maxwell-json"),
    "dms": Format(dms, "dms"),
    "wal2json 1": Format(wal2json_1, "wal2json"),
    "wal2json 2": Format(wal2json_2, "wal2json"),
    "rows": Format(plain_rows, "rows", has_before=False),
    "csv": Format(as_csv, "rows", "csv", has_before=False, is_text=True),
    "parquet": Format(parquet, "rows", "parquet", has_before=False),
}


def decoded(written: Format, rows: list[Change], folder: Path) -> list[Change]:
    """The changes as they come out of a file of this format."""
    path = folder / f"1.{written.suffix}"
    path.write_bytes(written.write(rows))
    feed = FeedConfig(format=written.decoder, tables=(TableFeed(name=TABLE, key=("id",)),))
    found: list[Change] = []
    for batch in discover([str(path)], None, FileOptions()):
        result = decode(batch.raw, feed)
        assert result.rejected.num_rows == 0, result.rejected.table.column("reason")[0]
        table = result.tables[TABLE].table
        found += zip(table.column("before").to_pylist(), table.column("after").to_pylist(), strict=True)
    return found


def plain(written: Format, row: Row | None, names: list[str]) -> Row | None:
    """What a decoded row says: objects out of text, numbers out of the texts of CSV."""
    if row is None:
        return None

    def read(name: str, given: Any) -> Any:
        if given is None:
            return None
        if name == "s":
            inner = json.loads(given) if isinstance(given, str) else given
            return {n: inner.get(n) for n in names}
        if written.is_text and (name == "id" or kind_of(name) != "text"):
            return float(given)
        return given

    return {name: read(name, v) for name, v in row.items()}


def check(name: str, count: int, columns: int, folder: Path, *, nested: bool) -> None:
    written = FORMATS[name]
    rows = changes(count, columns, nested=nested)
    inner = list(rows[0][1].get("s", {}))
    found = decoded(written, rows, folder)
    assert len(found) == count
    of = partial(plain, written, names=inner)
    for (before, after), (wanted_before, wanted_after) in zip(found, rows, strict=True):
        assert of(after) == wanted_after
        if written.has_before:
            assert of(before) == wanted_before


@pytest.mark.each(4)
@pytest.mark.parametrize("nested", [False, True], ids=["flat", "nested"])
@pytest.mark.parametrize("name", FORMATS)
def test_rows_of_more_columns_than_are_expected_at_first_are_read(name: str, tmp_path: Path, *, nested: bool) -> None:
    check(name, 3, 37, tmp_path, nested=nested)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 1000])
@pytest.mark.parametrize("columns", [1, 31, 32, 33, 63, 64, 65, 129, 300, 1000])
@pytest.mark.parametrize("nested", [False, True], ids=["flat", "nested"])
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_reads_rows_of_any_width(
    name: str, columns: int, count: int, tmp_path: Path, *, nested: bool
) -> None:
    if nested and columns < 3:
        pytest.skip("an object needs a member")
    check(name, count, columns, tmp_path, nested=nested)
