"""Protobuf messages against the protobuf library: types, presence, what is refused, and schemas that change."""

import random
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from nevermore.pipelines.decode.batches import from_documents
from nevermore.pipelines.decode.feed import FeedConfig, TableFeed
from nevermore.pipelines.decode.protobuf import ProtobufMessages, ProtobufReader
from nevermore.pipelines.decode.schema_registry import RegisteredSchema
from nevermore.pipelines.errors import SourceError, WideBatchError
from nevermore.pipelines.formats.registry import DecodedFeed, decode
from nevermore.pipelines.iceberg.row_shape import python_rows
from tests.pipelines.formats.protobuf_events import (
    class_of,
    envelope,
    field,
    file,
    framed,
    message,
    registered,
    with_map,
)

SCALARS = (
    *("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64"),
    *("sfixed32", "sfixed64", "bool", "string", "bytes"),
)


def reader_of(schema: RegisteredSchema, position: bytes = b"\0") -> ProtobufReader:
    return ProtobufMessages.reader(schema, position, is_key=False)


def read(made: FileDescriptorProto, values: list[bytes], **options: Any) -> tuple[list[dict[str, Any]], list[bool]]:
    table, bad = reader_of(registered(made, **options)).read(pa.array(values, pa.binary()))
    table.validate(full=True)
    return python_rows(table), bad.tolist()


@pytest.mark.parametrize("label", ["", "optional", "repeated"])
@pytest.mark.parametrize("syntax", ["proto2", "proto3"])
def test_every_scalar_type_keeps_its_value_and_its_absence(syntax: str, label: str) -> None:
    fields = [field(f"f_{kind}", n, kind, label) for n, kind in enumerate(SCALARS, 1)]
    made = file(message("Row", *fields), syntax=syntax)
    row_class = class_of(made, "Row")
    signed = {"int32": -(2**31), "sint32": -(2**31), "sfixed32": 2**31 - 1, "int64": -(2**63), "sint64": 2**63 - 1}
    values = signed | {"sfixed64": -(2**63), "uint32": 2**32 - 1, "fixed32": 2**32 - 1, "uint64": 2**64 - 1}
    values |= {"fixed64": 2**64 - 1, "bool": True, "string": "ä\0😀", "bytes": b"\xff\0", "double": 0.1, "float": 0.5}
    row = row_class()
    for kind, value in values.items():
        if label == "repeated":
            getattr(row, f"f_{kind}").extend(
                [value, row_class.DESCRIPTOR.fields_by_name[f"f_{kind}"].default_value or value]
            )
        else:
            setattr(row, f"f_{kind}", value)
    found, bad = read(made, [row.SerializeToString(), row_class().SerializeToString()])
    assert bad == [False, False]
    for kind, value in values.items():
        own, unset = found[0][f"f_{kind}"], found[1][f"f_{kind}"]
        if label == "repeated":
            assert (own[0], unset) == (value, [])
        else:
            assert own == value
            is_null = label == "optional" or syntax == "proto2"
            assert unset == (None if is_null else type(value)())


ROW = with_map(
    message(
        "Row",
        field("id", 1, "int64"),
        field("name", 2, "string", "optional"),
        field("at", 3, "google.protobuf.Timestamp"),
        field("took", 4, "google.protobuf.Duration"),
        field("day", 5, "google.type.Date"),
        field("time", 6, "google.type.TimeOfDay"),
        field("price", 7, "confluent.type.Decimal"),
        field("wrapped", 8, "google.protobuf.Int64Value"),
        field("unsigned", 9, "google.protobuf.UInt64Value"),
        field("color", 10, "shop.Color"),
        field("inner", 11, "shop.Inner"),
        field("inners", 12, "shop.Inner", "repeated"),
        field("ats", 13, "google.protobuf.Timestamp", "repeated"),
        field("text", 14, "string", oneof=0),
        field("number", 15, "int64", oneof=0),
        field("nothing", 16, "shop.Nothing"),
        oneofs=["choice"],
    ),
    *("attributes", 17, "string", "int64"),
)
INNER = message("Inner", field("x", 1, "int32", "optional"), field("at", 2, "google.protobuf.Timestamp"))
ROWS = file(ROW, INNER, message("Nothing"))


def full_row(**more: Any) -> Any:
    row = class_of(ROWS, "Row")(id=2**53 + 1, name="", color=3, text="", **more)
    row.at.FromJsonString("2020-09-13T12:26:40.000001Z")
    row.took.FromNanoseconds(-1_500_000_001)
    row.day.year, row.day.month, row.day.day = 2020, 2, 29
    row.time.hours, row.time.minutes, row.time.seconds, row.time.nanos = 23, 59, 59, 999_999_000
    row.price.value, row.price.scale = (-1234).to_bytes(2, "big", signed=True), 2
    row.wrapped.value = 0
    row.unsigned.value = 2**64 - 1
    row.inners.add(x=0)
    row.inners.add()
    row.ats.add(seconds=-1, nanos=999_000_000)
    row.nothing.SetInParent()
    row.attributes["a"] = 5
    return row


@pytest.mark.slow
def test_empty_messages_with_many_fields_do_not_take_much_memory() -> None:
    made = file(message("Row", *(field(f"f{n}", n + 1, "int64") for n in range(100))))
    few = [class_of(made, "Row")(f7=1).SerializeToString()] * 40_000
    assert len(read(made, few)[0]) == 40_000
    with pytest.raises(WideBatchError, match="50,000 messages with 100 fields"):
        read(made, [*few, *few[:10_000]])


def test_well_known_types_have_the_types_of_columns() -> None:
    found, bad = read(ROWS, [full_row().SerializeToString(), class_of(ROWS, "Row")().SerializeToString()])
    assert bad == [False, False]
    assert found[0] == {
        "id": 2**53 + 1,
        "name": "",
        "at": datetime(2020, 9, 13, 12, 26, 40, 1, UTC),
        "took": -1_500_000_001,
        "day": date(2020, 2, 29),
        "time": time(23, 59, 59, 999_999),
        "price": {"value": b"\xfb\x2e", "precision": 0, "scale": 2},
        "wrapped": 0,
        "unsigned": Decimal(2**64 - 1),
        "color": "BLUE",
        "inner": None,
        "inners": [{"x": 0, "at": None}, {"x": None, "at": None}],
        "ats": [datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC)],
        "text": "",
        "number": None,
        "nothing": True,
        "attributes": [("a", 5)],
    }
    unset: dict[str, Any] = dict.fromkeys(found[0], None)
    assert found[1] == unset | {"id": 0, "color": "RED", "inners": [], "ats": [], "attributes": []}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("at", {"nanos": -1}),
        ("at", {"nanos": 10**9}),
        ("took", {"seconds": 2**40}),
        ("took", {"seconds": 1, "nanos": -1}),
        ("day", {"year": 2021, "month": 2, "day": 29}),
        ("day", {"year": 2020}),
        ("day", {"year": 10_000, "month": 2, "day": 30}),
        ("time", {"hours": 24}),
        ("time", {"minutes": -1}),
    ],
)
def test_times_that_do_not_exist_are_refused(name: str, values: dict[str, int]) -> None:
    row = class_of(ROWS, "Row")(id=1)
    getattr(row, name).SetInParent()
    for part, value in values.items():
        setattr(getattr(row, name), part, value)
    assert read(ROWS, [full_row().SerializeToString(), row.SerializeToString()])[1] == [False, True]


def test_a_wrong_time_within_a_list_refuses_its_message_alone() -> None:
    row_class = class_of(ROWS, "Row")
    wrong, fine = row_class(id=1), row_class(id=2)
    wrong.inners.add()
    wrong.inners.add().at.nanos = -1
    fine.inners.add().at.nanos = 1_000
    values = [fine.SerializeToString(), wrong.SerializeToString(), fine.SerializeToString()]
    assert read(ROWS, values)[1] == [False, True, False]


def test_instants_finer_than_microseconds_are_cut_and_counted(tmp_path: Path) -> None:
    made = envelope(message("Row", field("id", 1, "int64"), field("at", 2, "google.protobuf.Timestamp")))
    event = class_of(made, "Envelope")(op="c")
    event.after.id, event.after.at.seconds, event.after.at.nanos = 1, -1, 1_999
    result = decoded(made, [event], tmp_path)
    assert result.tables["public.t"].table.column("after")[0].as_py()["at"] == datetime(
        1969, 12, 31, 23, 59, 59, 1, UTC
    )
    assert result.skipped == {"digits below a microsecond": 1}


def test_messages_in_parts_are_merged_as_the_format_says() -> None:
    row_class = class_of(ROWS, "Row")
    both = row_class(text="a").SerializeToString() + row_class(number=1).SerializeToString()
    entries = row_class(attributes={"a": 1}).SerializeToString() + row_class(attributes={"b": 1}).SerializeToString()
    scalars = row_class(id=1, name="a").SerializeToString() + row_class(id=2).SerializeToString()
    found, bad = read(ROWS, [both, entries, scalars])
    assert not any(bad)
    assert (found[0]["text"], found[0]["number"]) == (None, 1)
    assert sorted(found[1]["attributes"]) == [("a", 1), ("b", 1)]
    assert (found[2]["id"], found[2]["name"]) == (2, "a")


def test_text_that_is_not_utf8_refuses_its_message_alone() -> None:
    made = file(message("Row", field("id", 1, "int64"), field("name", 2, "string")), syntax="proto2")
    fine = class_of(made, "Row")(id=1, name="a").SerializeToString()
    assert read(made, [fine, b"\x12\x01\xff", fine])[1] == [False, True, False]


def test_required_fields_and_defaults_of_proto2() -> None:
    row = message(
        "Row", field("id", 1, "int64", "required"), field("n", 2, "int32", default="5"), field("inner", 3, "shop.Inner")
    )
    inner = message("Inner", field("x", 1, "int32", "required"), field("color", 2, "shop.Color"))
    made = file(row, inner, syntax="proto2")
    row_class = class_of(made, "Row")
    values = [
        row_class(id=1).SerializeToString(),
        b"",
        row_class(id=1).SerializeToString() + b"\x1a\x00",
        row_class(id=1).SerializeToString() + b"\x1a\x04\x08\x01\x10\x09",
    ]
    found, bad = read(made, values)
    assert bad == [False, True, True, False]
    assert found[0] == {"id": 1, "n": None, "inner": None}
    # A number without a name is a field that proto2 does not know.
    assert found[3]["inner"] == {"x": 1, "color": None}


def test_types_that_no_column_can_hold_are_refused_by_name() -> None:
    recursive = file(message("Row", field("id", 1, "int64"), field("parent", 2, "shop.Row")))
    with pytest.raises(SourceError, match=r"shop\.Row\.parent .* contains itself"):
        reader_of(registered(recursive))
    free = file(message("Row", field("any", 1, "google.protobuf.Struct")), imports=["google/protobuf/struct.proto"])
    with pytest.raises(SourceError, match="contains itself"):
        reader_of(registered(free))
    group = message("Row", field("x", 1, "int32"))
    group.nested_type.add(name="G").field.append(field("y", 1, "int32"))
    group.field.add(name="g", number=2, type=10, label=1, type_name=".shop.Row.G")
    with pytest.raises(SourceError, match=r"shop\.Row\.g is a group"):
        reader_of(registered(file(group, syntax="proto2")))


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (RegisteredSchema('syntax = "proto3"; message A {}'), "not a serialized descriptor"),
        (RegisteredSchema("AAAA"), "not a serialized descriptor"),
        (registered(file(message("A", field("b", 1, "shop.B")))), "cannot be used"),
        (registered(file(message("A"), imports=["other.proto"])), "imports other.proto, to which it has no reference"),
        (registered(file(message("A"), imports=["google/type/none.proto"])), "cannot be used"),
    ],
)
def test_schemas_that_cannot_be_used_are_refused(schema: RegisteredSchema, reason: str) -> None:
    with pytest.raises(SourceError, match=reason):
        reader_of(schema)


def test_the_message_type_is_found_by_its_position() -> None:
    outer = message("Outer", field("a", 1, "int32"))
    middle = message("Middle", field("b", 1, "int32"))
    middle.nested_type.append(message("Deep", field("c", 1, "int32")))
    outer.nested_type.append(middle)
    many = [message(f"M{n}", field(f"f{n}", 1, "int32")) for n in range(100)]
    schema = registered(file(outer, *many))
    for position, name in [(b"\0", "a"), (b"\x02\0", "a"), (b"\x06\0\0\0", "c"), (b"\x02\xc8\x01", "f99")]:
        assert list(reader_of(schema, position).types) == [name]
        lengths = ProtobufMessages.prefix_lengths(pa.array([framed(b"xyz", 1, position)], pa.binary()).slice(0), 5)
        assert lengths.tolist() == [5 + len(position)]
    for position in (b"\x02\x01", b"\x02\xca\x01", b"\x04\0\x02"):
        with pytest.raises(SourceError, match="does not exist or is ambiguous"):
            reader_of(schema, position)
    broken = [
        framed(b"", 1, b""),
        framed(b"", 1, b"\x02"),
        framed(b"", 1, b"\x01"),
        framed(b"", 1, b"\x02\x80"),
        b"",
        None,
    ]
    assert ProtobufMessages.prefix_lengths(pa.array(broken, pa.binary()), 5).tolist() == [0] * 6


def test_random_bytes_are_read_as_the_protobuf_library_reads_them() -> None:
    chance = random.Random(5)
    row_class = class_of(ROWS, "Row")
    good = full_row().SerializeToString()
    values = []
    for _ in range(3_000):
        changed = bytearray(good)
        for _ in range(chance.randint(1, 2)):
            place = chance.randrange(len(changed))
            match chance.randrange(3):
                case 0:
                    changed[place] = chance.randrange(256)
                case 1:
                    del changed[place]
                case _:
                    changed.insert(place, chance.randrange(256))
        values.append(bytes(changed))
    found, bad = read(ROWS, values)
    num_read = 0
    for value, row, is_bad in zip(values, found, bad, strict=True):
        try:
            expected = row_class.FromString(value)
        except DecodeError:
            assert is_bad
            continue
        if not is_bad:
            num_read += 1
            assert row["id"] == expected.id
            assert row["name"] == (expected.name if expected.HasField("name") else None)
            assert [inner["x"] for inner in row["inners"]] == [
                i.x if i.HasField("x") else None for i in expected.inners
            ]
            assert dict(row["attributes"]) == dict(expected.attributes)
            assert (row["wrapped"] is None) == (not expected.HasField("wrapped"))
            assert row["number"] == (expected.number if expected.WhichOneof("choice") == "number" else None)
    assert num_read > 200


def test_numbers_are_read_packed_and_unpacked() -> None:
    kinds = ("int32", "sint64", "fixed32", "double", "bool", "uint64")
    made = file(message("Row", *(field(f"f_{kind}", n, kind, "repeated") for n, kind in enumerate(kinds, 1))))
    old = file(*made.message_type, syntax="proto2")
    values = {f"f_{kind}": [1, 0, 1] if kind == "bool" else [3, 1, 2] for kind in kinds}
    rows = [class_of(which, "Row")(**values).SerializeToString() for which in (made, old)]
    found, bad = read(made, [rows[0], rows[1], rows[0] + rows[1], rows[0][:-1]])
    assert bad == [False, False, False, True]
    assert found[0] == found[1] == values
    assert found[2] == {name: both * 2 for name, both in values.items()}


def decoded(
    made: FileDescriptorProto, events: list[Any], folder: Path, *, keys: Any = None, key: tuple[str, ...] = ("id",)
) -> DecodedFeed:
    (folder / "2.desc").write_bytes(file_set(made))
    values = [
        event if isinstance(event, bytes) or event is None else framed(event.SerializeToString(), 2) for event in events
    ]
    tables = (TableFeed(name="public.t", key=key),)
    feed = FeedConfig(format="debezium-protobuf", tables=tables, options={"schemas": str(folder)})
    return decode(from_documents(values, keys=keys), feed)


def file_set(*files: FileDescriptorProto) -> bytes:
    return bytes(FileDescriptorSet(file=files).SerializeToString())


def events_of(made: FileDescriptorProto) -> list[Any]:
    event_class = class_of(made, "Envelope")
    source = {"db": "d", "schema": "public", "table": "t", "ts_ms": 5_000}
    made_events = [
        event_class(op="c", after={"id": 1, "name": "a"}, source=source),
        event_class(op="u", before={"id": 1, "name": "a"}, after={"id": 1}, source=source),
        event_class(op="d", before={"id": 1}, source=source),
    ]
    made_events[0].after.price.value, made_events[0].after.price.scale = b"\x7b", 1
    return made_events


SHOP_ROW = message(
    "Row", field("id", 1, "int64"), field("name", 2, "string", "optional"), field("price", 3, "confluent.type.Decimal")
)


def test_envelopes_keys_and_tombstones_of_debezium(tmp_path: Path) -> None:
    made = envelope(SHOP_ROW)
    (tmp_path / "1.desc").write_bytes(file_set(file(message("Key", field("id", 1, "int64")))))
    key = framed(class_of(file(message("Key", field("id", 1, "int64"))), "Key")(id=1).SerializeToString(), 1)
    result = decoded(made, [*events_of(made), None], tmp_path, keys=[key] * 4, key=())
    changes = result.tables["public.t"]
    assert changes.key == ("id",)
    assert changes.table.column("op").to_pylist() == ["c", "u", "d"]
    assert changes.table.column("after").to_pylist() == [
        {"id": 1, "name": "a", "price": "12.3"},
        {"id": 1, "name": None, "price": None},
        None,
    ]
    assert changes.table.column("source_ts")[0].as_py() == datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)
    assert result.skipped == {"tombstone": 1}
    assert not result.rejected.num_rows


@pytest.mark.parametrize(
    ("precision", "kind", "price"), [(10, pa.decimal128(10, 2), Decimal("12.30")), (65, pa.string(), "12.3")]
)
def test_decimals_have_the_scale_that_the_converter_states(
    tmp_path: Path, precision: int, kind: pa.DataType, price: object
) -> None:
    row = DescriptorProto.FromString(SHOP_ROW.SerializeToString())
    parameters = b"".join(
        b"\x12" + bytes([len(entry)]) + entry
        for entry in (b"\x0a\x05scale\x12\x012", b"\x0a\x09precision\x12\x02%d" % precision)
    )
    option = b"\x82\x44" + bytes([len(parameters)]) + parameters  # number 1088
    row.field[2].options.MergeFromString(option)
    made = envelope(row)
    result = decoded(made, events_of(made), tmp_path)
    after = result.tables["public.t"].table.column("after")
    assert after.type.field("price").type == kind
    assert after[0].as_py()["price"] == price


def test_a_broken_message_is_rejected_and_its_neighbours_are_not(tmp_path: Path) -> None:
    made = envelope(SHOP_ROW)
    good = [framed(event.SerializeToString(), 2) for event in events_of(made)]
    bad = [good[0][:-2], b"\0\0\0\0\x63\0abc", b"\1" + good[1][1:], b"\0\0", good[0][:5], b"no base64!"]
    mixed = [good[0], *bad[:3], good[1], *bad[3:], good[2]]
    result = decoded(made, mixed, tmp_path)
    assert result.tables["public.t"].table.column("op").to_pylist() == ["c", "u", "d"]
    assert sorted(result.rejected.table.column("source_offset").to_pylist()) == [2, 3, 4, 6, 7, 8]
    reasons = result.rejected.table.column("reason").to_pylist()
    assert "no schema 99" in " ".join(reasons)
    assert all("Protobuf" in reason or "schema" in reason for reason in reasons)


def test_rows_without_an_envelope_are_upserted(tmp_path: Path) -> None:
    made = file(message("Order", field("id", 1, "int64"), field("status", 2, "shop.Color")))
    rows = [class_of(made, "Order")(id=n, status=3 * (n % 2)) for n in range(3)]
    result = decoded(made, rows, tmp_path)
    assert result.tables["public.t"].table.column("after").to_pylist() == [
        {"id": n, "status": "BLUE" if n % 2 else "RED"} for n in range(3)
    ]


def test_schemas_that_gain_lose_and_renumber_fields_are_each_read_by_their_own(tmp_path: Path) -> None:
    fields = [
        [field("id", 1, "int64"), field("name", 2, "string")],
        [field("id", 1, "int64"), field("name", 2, "string"), field("more", 3, "int32", "optional")],
        [field("id", 1, "int64")],
        [field("name", 1, "string"), field("id", 2, "int64")],
    ]
    documents = []
    for number, of_version in enumerate(fields, 10):
        made = envelope(message("Row", *of_version))
        (tmp_path / f"{number}.desc").write_bytes(file_set(made))
        event = class_of(made, "Envelope")(op="c", after={"id": number})
        for name, value in (("name", f"n{number}"), ("more", 0)):
            if name in {f.name for f in of_version}:
                setattr(event.after, name, value)
        documents.append(framed(event.SerializeToString(), number))
    result = decoded(envelope(SHOP_ROW), documents, tmp_path)
    assert result.tables["public.t"].table.column("after").to_pylist() == [
        {"id": 10, "name": "n10", "more": None},
        {"id": 11, "name": "n11", "more": 0},
        {"id": 12, "name": None, "more": None},
        {"id": 13, "name": "n13", "more": None},
    ]


def test_a_schema_refers_to_others(tmp_path: Path) -> None:
    common = file(message("Row", field("id", 1, "int64"), field("at", 2, "google.protobuf.Timestamp")))
    common.name = "common.proto"
    made = FileDescriptorProto(name="e.proto", package="other", syntax="proto3", dependency=["common.proto"])
    made.message_type.append(message("Envelope", field("op", 1, "string"), field("after", 2, "shop.Row")))
    event = class_of(made, "Envelope", [common])(op="c", after={"id": 4})
    event.after.at.seconds = 5
    found, bad = read(made, [event.SerializeToString()], references=[common])
    assert found == [{"op": "c", "after": {"id": 4, "at": datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)}}]
    assert bad == [False]


def test_no_messages_and_many_broken_ones() -> None:
    good = full_row().SerializeToString()
    table, bad = reader_of(registered(ROWS)).read(pa.array([], pa.binary()))
    assert (table.num_rows, len(bad)) == (0, 0)
    values = [good if n % 7 else good[:-1] for n in range(1_000)]
    table, bad = reader_of(registered(ROWS)).read(pa.array([b"", *values], pa.binary()).slice(1))
    assert bad.tolist() == [n % 7 == 0 for n in range(1_000)]
    assert set(table["id"].drop_null().to_pylist()) == {2**53 + 1}
