"""Avro values by kernels against fastavro and a plain decoder that accepts what the specification allows and nothing else."""

import json
import struct
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from nevermore.pipelines.decode.avro import reader_of
from nevermore.pipelines.errors import SourceError, WideBatchError
from nevermore.scan_core.metadata import avro_values
from tests.pipelines.decode.avro_schemas import Schemas
from tests.support.avro_edit import encode_long


class BrokenError(Exception):
    """The bytes are not a value of the schema."""


class Strict:
    """Decodes one value byte by byte; values are those of Arrow's `to_pylist`."""

    def __init__(self, schema: Any, data: bytes) -> None:
        self.data, self.at, self.schema = data, 0, schema
        self.named: dict[str, Any] = {}

    def whole(self) -> Any:
        found = self.value(self.schema)
        if self.at != len(self.data):
            raise BrokenError
        return found

    def take(self, size: int) -> bytes:
        if size < 0 or size > len(self.data) - self.at:
            raise BrokenError
        self.at += size
        return self.data[self.at - size : self.at]

    def long(self, bits: int = 64) -> int:
        found = 0
        for place in range(10):
            byte = self.take(1)[0]
            found |= (byte & 127) << 7 * place
            if byte < 128:
                if found >= 2**64 or not -(2 ** (bits - 1)) <= (found >> 1) ^ -(found & 1) < 2 ** (bits - 1):
                    raise BrokenError
                return (found >> 1) ^ -(found & 1)
        raise BrokenError

    def among(self, values: list[Any]) -> int:
        place = self.long()
        if not 0 <= place < len(values):
            raise BrokenError
        return place

    def items(self, read: Any) -> list[Any]:
        found = []
        while count := self.long():
            if count < 0:
                size = self.long()
                if size < 0:
                    raise BrokenError
                end = self.at + size
            found += [read() for _ in range(abs(count))]
            if count < 0 and self.at != end:
                raise BrokenError
        return found

    def text(self) -> str:
        try:
            return self.take(self.long()).decode()
        except UnicodeDecodeError:
            raise BrokenError from None

    def value(self, schema: Any) -> Any:  # noqa: C901, PLR0912 - one branch per kind of type
        if isinstance(schema, list):
            branch = self.among(schema)
            found = self.value(schema[branch])
            names = [s if isinstance(s, str) else s.get("name", s["type"]) for s in schema]
            if len([name for name in names if name != "null"]) < 2 or names[branch] == "null":
                return found
            return {n: found if n == names[branch] else None for n in names if n != "null"}
        if isinstance(schema, dict) and "name" in schema:
            self.named[schema["name"]] = schema
        schema = self.named.get(schema, schema) if isinstance(schema, str) else schema
        match schema if isinstance(schema, str) else schema["type"]:
            case "null":
                return None
            case "boolean":
                if (byte := self.take(1)) > b"\1":
                    raise BrokenError
                return byte == b"\1"
            case "int":
                return self.long(32)
            case "long":
                return self.long()
            case "float":
                return struct.unpack("<f", self.take(4))[0]
            case "double":
                return struct.unpack("<d", self.take(8))[0]
            case "bytes":
                return self.take(self.long())
            case "string":
                return self.text()
            case "fixed":
                return self.take(schema["size"])
            case "enum":
                return schema["symbols"][self.among(schema["symbols"])]
            case "record":
                return {field["name"]: self.value(field["type"]) for field in schema["fields"]}
            case "array":
                return self.items(lambda: self.value(schema["items"]))
            case _:
                return self.items(lambda: (self.text(), self.value(schema["values"])))


def expected(schema: Any, messages: list[bytes]) -> list[Any]:
    """The value of each message; None for a broken one."""
    found: list[Any] = []
    for message in messages:
        try:
            found.append(Strict(schema, message).whole())
        except BrokenError:
            found.append(None)
    return found


def check(seed: int, *, unions: bool, count: int) -> int:
    """Compare kernels, fastavro and the plain decoder; returns how many messages are broken."""
    made = Schemas(seed, unions=unions)
    schema = made.record()
    good = [made.message(schema) for _ in range(count)]
    messages = good + [made.damaged(made.random.choice(good)) for _ in range(count)]
    made.random.shuffle(messages)
    wanted = expected(schema, messages)
    document = json.dumps(schema)
    table, bad = reader_of(document).read(pa.array(messages, pa.binary()))
    assert bad.tolist() == [row is None for row in wanted], (seed, document)
    chosen = table.filter(pa.array(~bad))
    chosen.validate(full=True)
    assert repr(chosen.to_pylist()) == repr([row for row in wanted if row is not None]), (seed, document)
    blocks = [(len(part), b"".join(part)) for part in (good[:3], [], good[3:4], good[4:])]
    block = reader_of(document).read_blocks(blocks)
    assert block is not None
    assert repr(block.to_pylist()) == repr(expected(schema, good))
    return int(bad.sum())


@pytest.mark.parametrize("unions", [False, True])
def test_random_schemas_whole_and_damaged(*, unions: bool) -> None:
    broken = sum(check(seed, unions=unions, count=20) for seed in range(25))
    assert broken > 100


@pytest.mark.slow
@pytest.mark.parametrize("unions", [False, True])
def test_many_random_schemas_whole_and_damaged(*, unions: bool) -> None:
    broken = sum(check(seed, unions=unions, count=50) for seed in range(100, 400))
    assert broken > 5_000


WHOLE = {
    "type": "record",
    "name": "r",
    "fields": [{"name": "a", "type": ["null", "long"]}, {"name": "b", "type": {"type": "array", "items": "string"}}],
}


def test_calls_of_a_few_values_each_read_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_values, "_FOUND_BYTES", 1)
    monkeypatch.setattr(avro_values, "_MIN_FOUND", 3)
    for seed in range(5):
        check(seed, unions=False, count=20)


def test_no_values_missing_values_and_parts_of_arrays() -> None:
    reader = reader_of(json.dumps(WHOLE))
    table, bad = reader.read(pa.array([], pa.binary()))
    assert (table.num_rows, table.column_names, len(bad)) == (0, ["a", "b"], 0)
    values = pa.array([b"x", None, b"\2\4\0", b"", b"\0\0"], pa.binary())
    table, bad = reader.read(values)
    assert bad.tolist() == [True, True, False, True, False]
    table, bad = reader.read(values.slice(1, 3))
    assert bad.tolist() == [True, False, True]
    assert table.slice(1, 1).to_pylist() == [{"a": 2, "b": []}]


def test_a_block_holds_exactly_the_values_that_it_claims() -> None:
    reader = reader_of(json.dumps(WHOLE))
    data = b"\2\4\0" * 5
    whole = reader.read_blocks([(5, data)])
    assert whole is not None
    assert whole.num_rows == 5
    wrong = [(4, data), (6, data), (5, data + b"\0"), (5, data[:-1]), (1, b""), (0, b"x"), (5, data[:-1] + b"\4")]
    assert [reader.read_blocks([(5, data), block]) for block in wrong] == [None] * len(wrong)
    nothing = reader.read_blocks([(0, b"")])
    assert nothing is not None
    assert nothing.num_rows == 0


def test_what_only_a_broken_writer_writes_is_refused() -> None:
    fields = {
        "truth": ("boolean", b"\2"),
        "number": ("int", b"\x80\x80\x80\x80\x10"),
        "branch": (["null", "int"], b"\1\2"),
        "symbol": ({"type": "enum", "name": "e", "symbols": ["a", "b"]}, b"\1"),
        "bits": ("long", b"\xff" * 9 + b"\2"),
        "size": ({"type": "array", "items": "int"}, b"\3\0\2\4\0"),
        "count": ({"type": "array", "items": "int"}, b"\xff" * 9 + b"\1" + b"\0" * 3),
        "items": ({"type": "array", "items": {"type": "array", "items": "int"}}, b"\xfe" * 9 + b"\1" + b"\0" * 30),
    }
    for kind, data in fields.values():
        reader = reader_of(json.dumps({"type": "record", "name": "r", "fields": [{"name": "a", "type": kind}]}))
        assert reader.read(pa.array([data], pa.binary()))[1].tolist() == [True], kind


def test_arrays_nest_as_deeply_as_schemas_may() -> None:
    kind: Any = "int"
    for _ in range(60):
        kind = {"type": "array", "items": kind}
    schema = {"type": "record", "name": "r", "fields": [{"name": "a", "type": kind}]}
    value: Any = [1, 2]
    for _ in range(59):
        value = [value]
    data = BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(schema), {"a": value})
    table, bad = reader_of(json.dumps(schema)).read(pa.array([data.getvalue(), data.getvalue()[:-1]], pa.binary()))
    assert bad.tolist() == [False, True]
    assert table.slice(0, 1).to_pylist() == [{"a": value}]


ITEM = {"type": "record", "name": "i", "fields": [{"name": f"f{n}", "type": "long"} for n in range(100)]}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (["null", ITEM], b"\0"),
        ({"type": "array", "items": ["null", ITEM]}, encode_long(50_001) + b"\2" + bytes(50_100) + b"\0"),
        ({"type": "map", "values": [ITEM, "null"]}, encode_long(50_000) + b"\2a\2" * 50_000 + b"\0"),
    ],
)  # fmt: skip
def test_values_of_few_bytes_with_many_parts_do_not_take_much_memory(kind: Any, message: bytes) -> None:
    reader = reader_of(json.dumps({"type": "record", "name": "r", "fields": [{"name": "a", "type": kind}]}))
    messages = [message] * (50_000 if len(message) == 1 else 1)
    with pytest.raises(WideBatchError, match=r"50,00[01] Avro values with 10[123] parts"):
        reader.read(pa.array(messages, pa.binary()))
    with pytest.raises(WideBatchError, match=r"50,00[01] Avro values with 10[123] parts"):
        reader.read_blocks([(len(messages), b"".join(messages))])


def test_a_union_of_several_types_is_a_struct_with_the_value_under_the_name_of_its_type() -> None:
    inner = {"type": "record", "name": "inner", "namespace": "a.b", "fields": [{"name": "x", "type": "int"}]}
    day = {"type": "int", "logicalType": "date"}
    schema = {"type": "record", "name": "r", "fields": [{"name": "u", "type": ["null", "string", day, inner]}]}
    reader = reader_of(json.dumps(schema))
    table, bad = reader.read(pa.array([b"\0", b"\2\2a", b"\4\2", b"\6\4", b"\x08"], pa.binary()))
    assert bad.tolist() == [False, False, False, False, True]
    nothing = {"string": None, "int": None, "inner": None}
    values = [None, {**nothing, "string": "a"}, {**nothing, "int": 1}, {**nothing, "inner": {"x": 2}}]
    assert [row["u"] for row in table.slice(0, 4).to_pylist()] == values
    assert [name for name, _ in reader.types["u"].members] == ["string", "int", "inner"]
    assert str(reader.types["u"].arrow) == "struct<string: string, int: date32[day], inner: struct<x: int32>>"


def test_types_of_a_union_with_the_same_name_have_their_full_names() -> None:
    branches = [{"type": "fixed", "name": "f", "namespace": space, "size": 1} for space in ("a", "b")]
    schema = {"type": "record", "name": "r", "fields": [{"name": "u", "type": branches}]}
    table, _ = reader_of(json.dumps(schema)).read(pa.array([b"\2x"], pa.binary()))
    assert table.to_pylist() == [{"u": {"a.f": None, "b.f": b"x"}}]


FIXED = {"type": "fixed", "name": "f", "size": 8}
MILLIS = {"logicalType": "timestamp-millis"}
CONNECT = {"connect.name": "io.debezium.time.Timestamp"}


@pytest.mark.parametrize(
    ("kind", "around"),
    [
        ({"type": "long"}, MILLIS),
        ({"type": {"type": "long"}}, MILLIS),
        ({"type": "long", "connect.version": 1}, CONNECT),
        (["null", "long"], CONNECT),
        ({"type": "bytes"}, {"logicalType": "decimal", "precision": 9, "scale": 2}),
        ({"type": "string"}, {"logicalType": "uuid"}),
        (FIXED, {"logicalType": "decimal", "precision": 9, "scale": 2}),
    ],
    ids=["logical", "twice", "connect", "union", "decimal", "uuid", "fixed"],
)
def test_what_is_said_around_a_type_counts_as_if_said_in_it(kind: Any, around: dict[str, Any]) -> None:
    def type_of(schema: Any) -> Any:
        document = {"type": "record", "name": "r", "fields": [{"name": "a", "type": schema}]}
        return reader_of(json.dumps(document)).types["a"]

    inner = kind if isinstance(kind, dict) and isinstance(kind["type"], str) else {"type": "long"}
    assert type_of({"type": kind, **around}) == type_of({**inner, **around}) != type_of(kind)


@pytest.mark.parametrize("number", ["1e999", "-1e999", "9" * 5_000])
@pytest.mark.parametrize("name", ["precision", "scale"])
def test_a_decimal_of_no_size_is_an_error_that_shows_the_schema(name: str, number: str) -> None:
    kind = '{"type": "bytes", "logicalType": "decimal", "precision": 5, "NAME": @}'.replace("NAME", name)
    with pytest.raises(SourceError, match="an Avro schema that cannot be read"):
        reader_of(
            '{"type": "record", "name": "r", "fields": [{"name": "a", "type": KIND}]}'.replace(
                "KIND", kind.replace("@", number)
            )
        )
