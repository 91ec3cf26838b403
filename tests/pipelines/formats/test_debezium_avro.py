import json
from base64 import b64encode
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from nevermore.pipelines.decode.avro import reader_of
from nevermore.pipelines.decode.batches import RawEvents, from_documents
from nevermore.pipelines.decode.feed import FeedConfig, TableFeed
from nevermore.pipelines.errors import ConfigError, SourceError
from nevermore.pipelines.formats.registry import DecodedFeed, decode
from nevermore.pipelines.sources.file_options import FileOptions
from nevermore.pipelines.sources.files import discover
from tests.pipelines.formats.avro_events import (
    COLUMNS,
    KEY,
    container,
    envelope,
    event,
    message,
    named,
    row,
)

EVENTS = [event("r", row(1)), event("c", row(2)), event("u", row(2, name="new")), event("d", None, row(1))]
DECODED = {
    "id": 1,
    "name": "row 1",
    "price": Decimal("12.34"),
    "micros": datetime(2020, 9, 13, 12, 26, 40, 1),  # noqa: DTZ001 - Debezium's timestamps have no zone
    "millis": datetime(2020, 9, 13, 12, 26, 40, 1000),  # noqa: DTZ001 - the same
    "connect": datetime(2020, 9, 13, 12, 26, 40, 1000),  # noqa: DTZ001 - the same
    "zoned": datetime(2020, 1, 1, 0, 0, 0, 500_000, UTC),
    "day": date(2019, 4, 14),
    "time": time(1, 0, 0, 1),
    "iso": date(2020, 2, 29),
    "uuid": bytes.fromhex("123e4567e89b12d3a456426614174000"),
    "any_scale": "-1.234",
    "tags": ["a", None],
    "hstore": [("k", "v"), ("n", None)],
    "blob": b"\xff\x00",
    "json": '{"a": 1}',
    "size": "m",
    "flag": True,
    "ratio": 0.5,
}


@pytest.fixture
def schemas(tmp_path: Path) -> Path:
    folder = tmp_path / "schemas"
    folder.mkdir()
    (folder / "1.avsc").write_text(json.dumps(KEY))
    (folder / "2.avsc").write_text(json.dumps(envelope()))
    return folder


def decoded(raw: RawEvents, key: tuple[str, ...] = (), **options: Any) -> DecodedFeed:
    return decode(
        raw, FeedConfig(format="debezium-avro", tables=(TableFeed(name="public.t", key=key),), options=options)
    )


def key_of(change: dict[str, Any]) -> dict[str, Any]:
    return {"id": (change["after"] or change["before"])["id"]}


def documents_of(raw: RawEvents) -> list[bytes]:
    assert raw.documents is not None
    return list(raw.documents.to_pylist())


def ops(feed: DecodedFeed) -> list[tuple[str, int]]:
    table = feed.tables["public.t"].table
    return list(zip(table.column("op").to_pylist(), [k["id"] for k in table.column("key").to_pylist()], strict=True))


WANTED = [("r", 1), ("c", 2), ("u", 2), ("d", 1)]


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy"])
def test_events_in_an_avro_file_decode_by_the_names_in_its_schema(codec: str, tmp_path: Path) -> None:
    (tmp_path / "t+0+0000000000.avro").write_bytes(container(envelope(), EVENTS, codec))
    (batch,) = discover([str(tmp_path / "*.avro")])
    for format_name in ("debezium-avro", "debezium-json"):
        feed = FeedConfig(format=format_name, tables=(TableFeed(name="public.t", key=("id",)),))
        result = decode(batch.raw, feed)
        assert ops(result) == WANTED
        assert result.tables["public.t"].table.column("after")[0].as_py() == DECODED
        assert not result.rejected.num_rows


def test_block_that_claims_more_records_than_it_has_bytes_is_refused_before_memory_is_taken() -> None:
    empty = json.dumps({"type": "record", "name": "r", "fields": [{"name": "op", "type": "null"}]})
    assert reader_of(empty).read_blocks([(10**15, b"")]) is None


def test_messages_decode_by_the_schemas_that_they_name(schemas: Path) -> None:
    raw = from_documents(
        [*(message(envelope(), e, 2) for e in EVENTS), None],
        keys=[message(KEY, key_of(e), 1) for e in [*EVENTS, EVENTS[-1]]],
    )
    result = decoded(raw, schemas=str(schemas))
    assert ops(result) == WANTED
    assert result.tables["public.t"].key == ("id",)
    assert result.tables["public.t"].table.column("after")[0].as_py() == DECODED
    assert result.tables["public.t"].table.column("source_ts")[0].as_py() == datetime(1970, 1, 1, 0, 0, 0, 5000, UTC)
    assert result.skipped == {"tombstone": 1}


@pytest.mark.parametrize("shape", ["objects", "base64", "keyed base64", "framed"])
def test_messages_are_read_from_every_kind_of_dump(shape: str, schemas: Path, tmp_path: Path) -> None:
    pairs = [(b64encode(message(KEY, key_of(e), 1)), b64encode(message(envelope(), e, 2))) for e in EVENTS]
    lines = {
        "objects": [json.dumps({"key": k.decode(), "value": v.decode()}).encode() for k, v in pairs],
        "base64": [v for _, v in pairs],
        "keyed base64": [k + b"\t" + v for k, v in pairs],
        "framed": [],
    }[shape]
    layout = {"keyed base64": "keyed-lines", "framed": "framed"}.get(shape)
    framed = [message(envelope(), e, 2) for e in EVENTS]
    content = b"".join(len(m).to_bytes(4, "big") + m for m in framed) + b"\xff\xff\xff\xff"
    (tmp_path / "1").write_bytes(content if shape == "framed" else b"\n".join(lines) + b"\n")
    (batch,) = discover([str(tmp_path / "1")], None, FileOptions(layout=layout))
    result = decoded(batch.raw, ("id",), schemas=str(schemas))
    assert ops(result) == WANTED
    assert not result.rejected.num_rows


def test_framed_messages_cut_by_batches_and_by_the_end_of_the_file_are_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "1"
    content = b"".join(len(m).to_bytes(4, "big") + m for m in [b"\0a" * 700, b"\0b", b"\0c" * 600])
    file.write_bytes(content[:-1])
    options = FileOptions(layout="framed", batch_bytes=1024)
    batches = list(discover([str(file)], None, options))
    assert [len(d) for b in batches for d in documents_of(b.raw)] == [1400, 2]
    file.write_bytes(content)
    (rest,) = discover([str(file)], batches[-1].position_after, options)
    assert documents_of(rest.raw) == [b"\0c" * 600]
    assert rest.raw.source_offset.to_pylist() == [3]


def test_a_broken_message_is_rejected_and_its_neighbours_are_not(schemas: Path) -> None:
    good = [message(envelope(), e, 2) for e in EVENTS]
    bad = [
        good[0][:-2],
        good[1] + b"x",
        b"\0\0\0\0\x63abc",
        b"\1" + good[1][1:],
        b"\0\0",
        good[2].replace(b"new", b"n\xffw"),
    ]
    mixed = [good[0], bad[0], good[1], bad[1], bad[2], bad[3], good[2], bad[4], bad[5], good[3]]
    result = decoded(from_documents(mixed), ("id",), schemas=str(schemas))
    assert ops(result) == WANTED
    reasons = dict(
        zip(
            result.rejected.table.column("source_offset").to_pylist(),
            result.rejected.table.column("reason").to_pylist(),
            strict=True,
        )
    )
    assert sorted(reasons) == [2, 4, 5, 6, 8, 9]
    assert "too short, too long or broken" in reasons[2]
    assert "no schema 99" in reasons[5]
    assert "does not begin with 0" in reasons[6]


def test_changes_are_ordered_by_a_column_that_another_schema_widens(schemas: Path) -> None:
    narrow, wide = envelope({"n": "int"}), envelope({"n": "long"})
    (schemas / "3.avsc").write_text(json.dumps(narrow))
    (schemas / "4.avsc").write_text(json.dumps(wide))
    raw = from_documents(
        [
            message(wide, event("u", {"id": 1, "n": 2}), 4),
            message(narrow, event("c", {"id": 1, "n": 1}), 3),
        ]
    )
    table = TableFeed(name="public.t", key=("id",), order_by=("after.n",))
    options = {"schemas": str(schemas)}
    assert ops(decode(raw, FeedConfig(format="debezium-avro", tables=(table,), options=options))) == [
        ("c", 1),
        ("u", 1),
    ]


@pytest.mark.each(2)
@pytest.mark.parametrize("garbage", [b'{"x": 1}', b"\0\0", b"\xff\xfe", b"no base64!"])
@pytest.mark.parametrize("shape", ["bytes", "base64", "objects"])
@pytest.mark.parametrize("place", [0, 2])
def test_garbage_of_another_shape_is_rejected_alone(shape: str, garbage: bytes, place: int, schemas: Path) -> None:
    good = [message(envelope(), e, 2) for e in EVENTS]
    messages = {
        "bytes": [*good],
        "base64": [b64encode(m) for m in good],
        "objects": [json.dumps({"value": b64encode(m).decode()}).encode() for m in good],
    }[shape]
    messages.insert(place, garbage)
    result = decoded(from_documents([*messages]), ("id",), schemas=str(schemas))
    assert ops(result) == WANTED
    assert result.rejected.table.column("source_offset").to_pylist() == [place + 1]


def test_schema_that_changes_in_mid_stream_widens_columns_and_adds_new_ones(schemas: Path) -> None:
    first, second = envelope({"n": "int"}), envelope({"n": "long", "more": "string"})
    (schemas / "3.avsc").write_text(json.dumps(first))
    (schemas / "4.avsc").write_text(json.dumps(second))
    raw = from_documents(
        [
            message(first, event("c", {"id": 1, "n": 1}), 3),
            message(second, event("c", {"id": 2, "n": 2**40, "more": "x"}), 4),
            message(first, event("c", {"id": 3, "n": None}), 3),
        ]
    )
    result = decoded(raw, ("id",), schemas=str(schemas))
    assert not result.rejected.num_rows
    assert result.tables["public.t"].table.column("after").to_pylist() == [
        {"id": 1, "n": 1, "more": None},
        {"id": 2, "n": 2**40, "more": "x"},
        {"id": 3, "n": None, "more": None},
    ]


def test_value_that_does_not_fit_its_logical_type_rejects_its_event_only(schemas: Path) -> None:
    bad = [row(1, price=b"\x01" * 17), row(2, iso="no date"), row(3, day=2_932_896), row(4)]
    raw = from_documents([message(envelope(), event("c", r), 2) for r in bad])
    result = decoded(raw, ("id",), schemas=str(schemas))
    assert ops(result) == [("c", 3), ("c", 4)]
    reasons = result.rejected.table.column("reason").to_pylist()
    assert ["price" in reasons[0], "iso" in reasons[1]] == [True, True]


def test_placeholder_is_found_in_text_bytes_lists_and_maps(schemas: Path) -> None:
    sign = "__debezium_unavailable_value"
    unsent = row(1, name=sign, blob=sign.encode(), tags=[sign], hstore={sign: sign}, json=sign)
    result = decoded(from_documents([message(envelope(), event("u", unsent), 2)]), ("id",), schemas=str(schemas))
    assert result.tables["public.t"].table.column("unchanged").to_pylist() == [
        ["name", "tags", "hstore", "blob", "json"]
    ]


def test_unwrapped_rows_say_by_op_and_deleted_what_happened(schemas: Path) -> None:
    schema = {
        "type": "record",
        "name": "Value",
        "fields": [
            {"name": "id", "type": "int"},
            {"name": "at", "type": COLUMNS["micros"]},
            {"name": "__op", "type": ["null", "string"]},
            {"name": "__deleted", "type": ["null", "string"]},
            {"name": "__table", "type": "string"},
        ],
    }
    (schemas / "5.avsc").write_text(json.dumps(schema))
    rows = [
        {"id": 1, "at": 1, "__op": "c", "__deleted": "false", "__table": "t"},
        {"id": 1, "at": 2, "__op": "d", "__deleted": "true", "__table": "t"},
    ]
    raw = from_documents([message(schema, r, 5) for r in rows])
    result = decoded(raw, ("id",), schemas=str(schemas))
    assert ops(result) == [("c", 1), ("d", 1)]
    after = result.tables["public.t"].table.column("after")[0].as_py()
    assert after == {"id": 1, "at": datetime(1970, 1, 1, 0, 0, 0, 1)}  # noqa: DTZ001 - without zone


def test_tombstones_delete_where_they_are_the_only_sign(schemas: Path) -> None:
    raw = from_documents([None], keys=[message(KEY, {"id": 7}, 1)])
    result = decoded(raw, schemas=str(schemas), tombstones="delete")
    assert ops(result) == [("d", 7)]


@pytest.mark.parametrize("schema", ["string", {"type": "long"}, {"type": "string", "connect.name": "x"}])
def test_keys_that_are_a_plain_value_name_no_column(schema: Any, schemas: Path) -> None:
    (schemas / "9.avsc").write_text(json.dumps(schema))
    key = b"\0\0\0\0\x09\x02\x31"
    events = from_documents([message(envelope(), EVENTS[0], 2), None], keys=[key, key])
    ignored = decoded(events, ("id",), schemas=str(schemas))
    assert ops(ignored)
    assert (ignored.skipped, ignored.rejected.num_rows) == ({"tombstone": 1}, 0)
    wanted = decoded(events, ("id",), schemas=str(schemas), tombstones="delete")
    assert "its key is not an object of columns" in wanted.rejected.table.column("reason")[0].as_py()


def test_messages_without_a_place_for_schemas_are_an_error_that_says_what_to_add() -> None:
    with pytest.raises(ConfigError, match="registry or schemas"):
        decoded(from_documents([message(envelope(), EVENTS[0], 2)]), ("id",))


def test_a_union_of_several_types_in_a_row_is_a_struct_with_values_of_their_logical_types(schemas: Path) -> None:
    odd = ["string", named("long", "io.debezium.time.MicroTimestamp"), {"type": "array", "items": "int"}]
    schema = envelope({"odd": odd})
    (schemas / "6.avsc").write_text(json.dumps(schema))
    values = ["a", 1, [1, 2]]
    raw = from_documents([message(schema, event("c", {"id": i, "odd": v}), 6) for i, v in enumerate(values)])
    result = decoded(raw, ("id",), schemas=str(schemas))
    assert not result.rejected.num_rows
    assert [row["odd"] for row in result.tables["public.t"].table.column("after").to_pylist()] == [
        {"string": "a", "long": None, "array": None},
        {"string": None, "long": datetime(1970, 1, 1, 0, 0, 0, 1), "array": None},  # noqa: DTZ001 - without zone
        {"string": None, "long": None, "array": [1, 2]},
    ]


def test_damaged_avro_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "1.avro").write_bytes(container(envelope(), EVENTS)[:-20])
    with pytest.raises(SourceError, match=r"1\.avro.*block"):
        list(discover([str(tmp_path / "1.avro")]))


def test_logical_types_are_those_of_columns(schemas: Path) -> None:
    def of(kind: str, logical: str, **more: Any) -> dict[str, Any]:
        return {"type": kind, "logicalType": logical, **more}

    utc, local = datetime(1970, 1, 1, tzinfo=UTC), datetime(1970, 1, 1)  # noqa: DTZ001 - a local timestamp
    number = b"\0\0\x04\xd2"
    columns: dict[str, tuple[Any, Any, Any]] = {
        "day": (of("int", "date"), 1, date(1970, 1, 2)),
        "time_ms": (of("int", "time-millis"), 1_001, time(0, 0, 1, 1_000)),
        "time_us": (of("long", "time-micros"), 1_001, time(0, 0, 0, 1_001)),
        "time_ns": (of("long", "time-nanos"), 1_001_001, time(0, 0, 0, 1_001)),
        "at_ms": (of("long", "timestamp-millis"), -1, utc - timedelta(milliseconds=1)),
        "at_us": (of("long", "timestamp-micros"), -1, utc - timedelta(microseconds=1)),
        "at_ns": (of("long", "timestamp-nanos"), -1, utc - timedelta(microseconds=1)),
        "local_ns": (of("long", "local-timestamp-nanos"), 1_999, local + timedelta(microseconds=1)),
        "price": (of("bytes", "decimal", precision=5, scale=2), number, Decimal("12.34")),
        "fixed": (of("fixed", "decimal", name="f", size=4, precision=9, scale=2), number, Decimal("12.34")),
        "uuid": (of("string", "uuid"), "00010203-0405-0607-0809-0a0b0c0d0e0f", bytes(range(16))),
        "raw": (of("fixed", "uuid", name="u", size=16), bytes(range(16)), bytes(range(16))),
    }
    schema = envelope({name: kind for name, (kind, _, _) in columns.items()})
    (schemas / "7.avsc").write_text(json.dumps(schema))
    sent = {"id": 1, **{name: value for name, (_, value, _) in columns.items()}}
    result = decoded(from_documents([message(schema, event("c", sent), 7)]), ("id",), schemas=str(schemas))
    after = result.tables["public.t"].table.column("after")[0].as_py()
    assert after == {"id": 1, **{name: value for name, (_, _, value) in columns.items()}}
    assert result.skipped == {"digits below a microsecond": 3}
