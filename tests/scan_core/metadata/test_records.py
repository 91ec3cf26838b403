"""Records of manifests: fields by id or name, lazy maps, and schemas that must not be believed."""

import io
import json
import pickle
from collections.abc import Callable
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nevermore.scan_core.metadata.avro_container import AvroError, NamedTypes, read_blocks, read_header
from nevermore.scan_core.metadata.avro_decoders import Decoder, LazyPairs, Wanted, compile_record, value_decoder

LONGS = {"type": "array", "items": "long"}


def compile_any(schema: Any) -> Decoder:
    return value_decoder(schema, NamedTypes(schema))


def pairs_type(value: str) -> dict[str, Any]:
    fields = [{"name": "key", "type": "int"}, {"name": "value", "type": value}]
    return {"type": "array", "logicalType": "map", "items": {"type": "record", "name": f"kv_{value}", "fields": fields}}


def record(*fields: tuple[str, int | None, Any]) -> dict[str, Any]:
    return {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": name, "type": kind} | ({} if field_id is None else {"field-id": field_id})
            for name, field_id, kind in fields
        ],
    }


def encoded(schema: dict[str, Any], rows: list[Any]) -> tuple[Any, bytes]:
    out = io.BytesIO()
    fastavro.writer(out, schema, rows)
    header = read_header(out.getvalue())
    ((_, block),) = read_blocks(out.getvalue(), header)
    return json.loads(header.schema), block


def decoded(schema: dict[str, Any], row: Any, *wanted: Wanted) -> list[Any]:
    parsed, block = encoded(schema, [row])
    values, end = compile_record(parsed, wanted, len(wanted), {})(block, 0)
    assert end == len(block)
    return list(values)


def test_fields_are_found_by_id_whatever_their_names_and_order() -> None:
    schema = record(("b", 2, "string"), ("skipped", 9, "double"), ("renamed", 1, ["null", "long"]))
    row = {"b": "x", "skipped": 1.0, "renamed": 7}
    assert decoded(schema, row, Wanted(1, ("a",), "integer", 0), Wanted(2, ("b",), "text", 1)) == [7, "x"]


def test_fields_are_found_by_name_where_the_schema_has_no_ids() -> None:
    schema = record(("a", None, "long"), ("c", None, "string"))
    row = {"a": 7, "c": "x"}
    assert decoded(schema, row, Wanted(1, ("a",), "integer", 0), Wanted(2, ("b", "c"), "text", 1)) == [7, "x"]


def test_an_absent_field_is_none_unless_it_is_required() -> None:
    schema = record(("a", 1, "long"))
    assert decoded(schema, {"a": 1}, Wanted(5, ("x",), "integer", 0)) == [None]
    with pytest.raises(AvroError, match=r"lacks the field x \(5\)"):
        decoded(schema, {"a": 1}, Wanted(5, ("x",), "integer", 0, required=True))


@pytest.mark.parametrize(
    ("text", "number"), [(["null", "string"], ["null", "long"]), (["string", "null"], ["long", "null"])]
)
def test_unions_may_have_null_on_either_side(text: list[str], number: list[str]) -> None:
    schema = record(("a", 1, text), ("b", 2, number))
    wanted = (Wanted(1, ("a",), "text", 0), Wanted(2, ("b",), "integer", 1))
    assert decoded(schema, {"a": None, "b": None}, *wanted) == [None, None]
    assert decoded(schema, {"a": "x", "b": 1_000_000}, *wanted) == ["x", 1_000_000]


@given(
    st.dictionaries(st.integers(0, 2**31 - 1), st.binary(max_size=100), max_size=60),
    st.dictionaries(st.integers(0, 2**31 - 1), st.integers(-(2**63), 2**63 - 1), max_size=60),
)
def test_lazy_maps_hold_what_was_written(of_bytes: dict[int, bytes], of_longs: dict[int, int]) -> None:
    schema = record(("a", 1, ["null", pairs_type("bytes")]), ("b", 2, pairs_type("long")), ("c", 3, "long"))
    row = {
        "a": [{"key": k, "value": v} for k, v in of_bytes.items()],
        "b": [{"key": k, "value": v} for k, v in of_longs.items()],
        "c": 42,
    }
    wanted = (Wanted(1, ("a",), "pairs", 0), Wanted(2, ("b",), "pairs", 1), Wanted(3, ("c",), "integer", 2))
    found = decoded(schema, row, *wanted)
    assert [dict(found[0]), dict(found[1]), found[2]] == [of_bytes, of_longs, 42]
    assert decoded(schema, row, Wanted(3, ("c",), "integer", 0)) == [42]


def test_lazy_maps_pickle_as_what_they_hold() -> None:
    schema = record(("a", 1, pairs_type("bytes")))
    (found,) = decoded(schema, {"a": [{"key": 3, "value": b"x"}]}, Wanted(1, ("a",), "pairs", 0))
    assert isinstance(found, LazyPairs)
    assert pickle.loads(pickle.dumps(found)) == {3: b"x"}  # noqa: S301 - our own bytes
    assert found == {3: b"x"}
    assert found.get(9) is None
    assert 3 in found


def test_array_blocks_with_sizes_are_read_and_skipped() -> None:
    block = b"\x03\x04\x02\x04\x01\x02\x06\x00\x54"  # -2 items in 2 bytes, -1 item in 1 byte
    schema = record(("a", 1, LONGS), ("b", 2, "long"))
    both = compile_record(schema, (Wanted(1, ("a",), "integers", 0), Wanted(2, ("b",), "integer", 1)), 2, {})
    assert both(block, 0) == ([[1, 2, 3], 42], len(block))
    one = compile_record(schema, (Wanted(2, ("b",), "integer", 0),), 1, {})
    assert one(block, 0) == ([42], len(block))


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("boolean", True, True),
        ("float", 0.5, 0.5),
        ("double", -2.25, -2.25),
        ({"type": "fixed", "name": "f", "size": 3}, b"abc", b"abc"),
        ({"type": "enum", "name": "e", "symbols": ["x", "y"]}, "y", 1),
        ({"type": "map", "values": "long"}, {"k": 1}, [(b"k", 1)]),
        (["null", "long", "string"], "s", "s"),
        (record(("x", None, "long"), ("y", None, "string")), {"x": 1, "y": "z"}, (1, "z")),
    ],
)
def test_any_type_can_be_decoded_and_skipped(kind: Any, value: Any, expected: Any) -> None:
    parsed, block = encoded(record(("a", 1, kind), ("b", 2, "long")) | {"name": "outer"}, [{"a": value, "b": 42}])
    found, _ = compile_any(parsed)(block, 0)
    assert found == (expected, 42)
    assert compile_record(parsed, (Wanted(2, ("b",), "integer", 0),), 1, {})(block, 0) == ([42], len(block))


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [("string", "integer"), ("long", "text"), (LONGS, "pairs"), ("bytes", "text"), ("double", "integers")],
)
def test_a_field_of_another_type_is_refused(kind: Any, wanted: str) -> None:
    with pytest.raises(AvroError, match=r"a \(1\)|a map has|where a record belongs"):
        compile_record(record(("a", 1, kind)), (Wanted(1, ("a",), wanted, 0),), 1, {})


@pytest.mark.parametrize("schema", ["long", [], {"type": "record"}, {"type": "record", "fields": [5]}, None, 3])
def test_what_is_no_record_schema_is_refused(schema: Any) -> None:
    with pytest.raises(AvroError):
        compile_record(schema, (), 0, {})


def nested(depth: int) -> Any:
    kind: Any = "long"
    for _ in range(depth):
        kind = {"type": "array", "items": kind}
    return kind


def explosive(depth: int) -> Any:
    """Each type holds the one before twice: 2 ** depth values if compiled without memory."""
    kind: Any = "long"
    for level in range(depth):
        kind = {
            "type": "record",
            "name": f"r{level}",
            "fields": [{"name": "a", "type": kind}, {"name": "b", "type": f"r{level - 1}" if level else "long"}],
        }
    return kind


@pytest.mark.parametrize(
    "schema",
    [
        record(("a", 1, nested(200))),
        record(("a", 1, "r")),
        record(("a", 1, {"type": "nonsense"})),
        record(("a", 1, {"type": "array"})),
        record(("a", 1, {"type": "map"})),
        record(("a", 1, {"type": "fixed", "name": "f", "size": -1})),
        record(("a", 1, {"type": "fixed", "name": "f", "size": 2**40})),
    ],
)
def test_hostile_schemas_are_refused(schema: Any) -> None:
    with pytest.raises(AvroError):
        compile_any(schema)


def test_a_schema_of_doubling_types_compiles_in_no_time() -> None:
    compile_any(record(("a", 1, explosive(25))) | {"name": "outer"})


@pytest.mark.parametrize(
    "block",
    [
        b"\xfe\xff\xff\xff\x0f",  # a billion items, none there
        b"\x02\x02\xfe\xff\xff\xff\x0f",  # one item of a gigabyte
        b"\x02\x02\x01",  # an item of a negative length
        b"\x01\x01",  # a block of a negative size
        b"\x02",
        b"",
    ],
)
@pytest.mark.parametrize("kind", ["pairs", None])
def test_lengths_that_lie_are_refused(block: bytes, kind: str | None) -> None:
    wanted = () if kind is None else (Wanted(1, ("a",), kind, 0),)
    decode: Callable[[bytes, int], Any] = compile_record(record(("a", 1, pairs_type("bytes"))), wanted, 1, {})
    with pytest.raises((AvroError, IndexError)):
        decode(block, 0)


@pytest.mark.parametrize("kind", ["float", "double", {"type": "fixed", "name": "f", "size": 3}])
def test_a_number_that_is_cut_off_is_refused(kind: Any) -> None:
    with pytest.raises(AvroError, match="where 1 are left"):
        compile_any(record(("a", 1, kind)))(b"\0", 0)
