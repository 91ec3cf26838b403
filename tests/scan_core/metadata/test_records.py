"""Records of manifests: fields by id or name, lazy maps, and schemas that must not be believed."""

import io
import json
import pickle
from collections.abc import Sequence
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nevermore.scan_core.metadata.avro_container import AvroError, read_blocks, read_header
from nevermore.scan_core.metadata.avro_values import AvroReader, Wanted, parse_record
from nevermore.scan_core.metadata.bulk_manifests import LazyPairs
from nevermore.scan_core.native import compiled
from nevermore.scan_core.native.machine_code import plain_kernel
from nevermore.scan_core.rows.buffers import byte_spans

LONGS = {"type": "array", "items": "long"}
LONG = pa.int64()


pytestmark = pytest.mark.usefixtures("kernels")


def reader_of(schema: Any, raw: Sequence[int | str] = ()) -> AvroReader:
    return AvroReader.of(parse_record(schema, physical=True, raw=raw))


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
    reader = reader_of(parsed)
    table = reader.rows([(1, block)])
    return [w.of(reader.fields, table.columns, 1)[0].as_py() for w in wanted]


def test_fields_are_found_by_id_whatever_their_names_and_order() -> None:
    schema = record(("b", 2, "string"), ("skipped", 9, "double"), ("renamed", 1, ["null", "int"]))
    row = {"b": "x", "skipped": 1.0, "renamed": 7}
    assert decoded(schema, row, Wanted(1, ("a",), LONG), Wanted(2, ("b",), pa.string())) == [7, "x"]


def test_fields_are_found_by_name_where_the_schema_has_no_ids() -> None:
    schema = record(("a", None, "long"), ("c", None, "string"))
    row = {"a": 7, "c": "x"}
    assert decoded(schema, row, Wanted(1, ("a",), LONG), Wanted(2, ("b", "c"), pa.string())) == [7, "x"]


def test_an_absent_field_is_none_unless_it_is_required() -> None:
    schema = record(("a", 1, "long"))
    assert decoded(schema, {"a": 1}, Wanted(5, ("x",), LONG)) == [None]
    with pytest.raises(AvroError, match=r"lacks the field x \(5\)"):
        decoded(schema, {"a": 1}, Wanted(5, ("x",), LONG, required=True))


@pytest.mark.parametrize(
    ("text", "number"), [(["null", "string"], ["null", "long"]), (["string", "null"], ["long", "null"])]
)
def test_unions_may_have_null_on_either_side(text: list[str], number: list[str]) -> None:
    schema = record(("a", 1, text), ("b", 2, number))
    wanted = (Wanted(1, ("a",), pa.string()), Wanted(2, ("b",), LONG))
    assert decoded(schema, {"a": None, "b": None}, *wanted) == [None, None]
    assert decoded(schema, {"a": "x", "b": 1_000_000}, *wanted) == ["x", 1_000_000]


@given(
    st.dictionaries(st.integers(0, 2**31 - 1), st.binary(max_size=100), max_size=60),
    st.dictionaries(st.integers(0, 2**31 - 1), st.integers(-(2**63), 2**63 - 1), max_size=60),
)
def test_lazy_maps_hold_what_was_written(of_bytes: dict[int, bytes], of_longs: dict[int, int]) -> None:
    schema = record(("a", 1, ["null", pairs_type("bytes")]), ("b", None, pairs_type("long")), ("c", 3, "long"))
    row = {
        "a": [{"key": k, "value": v} for k, v in of_bytes.items()],
        "b": [{"key": k, "value": v} for k, v in of_longs.items()],
        "c": 42,
    }
    parsed, block = encoded(schema, [row, {**row, "a": None}])
    raw, longs, numbers = reader_of(parsed, [1, "b"]).rows([(2, block)]).columns
    assert raw.is_valid().to_pylist() == [True, False]
    assert dict(LazyPairs(raw.combine_chunks(), 0, of_bytes=True)) == of_bytes
    assert dict(LazyPairs(longs.combine_chunks(), 1, of_bytes=False)) == of_longs
    assert numbers.to_pylist() == [42, 42]
    whole = reader_of(parsed).rows([(2, block)])
    assert [dict(whole.column("a")[0].as_py()), dict(whole.column("b")[1].as_py())] == [of_bytes, of_longs]


MAP = b"\x03\x06\x02\x02x\x04\x00\x02\x02\x02y\x00"
"""Pairs of 1 and x, and 2 and nothing, in a block that states its size; 1 and y in another."""


def test_lazy_maps_of_several_blocks_take_the_first_value_of_a_key_and_pickle_as_what_they_hold() -> None:
    found = LazyPairs(pa.array([None, MAP], pa.binary()), 1, of_bytes=True)
    assert pickle.loads(pickle.dumps(found)) == {1: b"x", 2: b""}  # noqa: S301 - our own bytes
    assert found == {1: b"x", 2: b""}
    assert (found.get(9), found.get(9, 4), 1 in found) == (None, 4, True)
    offsets, data = byte_spans(pa.array([MAP, b"\0", MAP], pa.binary()))
    places = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
    for kernel in (compiled.load()["find_in_pairs"], plain_kernel("find_in_pairs")):
        starts, lengths = np.zeros(3, np.int64), np.zeros(3, np.int64)
        assert kernel(data, len(data), *places, 3, 1, 1, starts, lengths) == 2
        assert (starts[[0, 2]] - offsets[[0, 2]]).tolist() == [4, 4]
        assert lengths.tolist() == [1, -1, 1]


def test_array_blocks_with_sizes_are_read_and_skipped() -> None:
    block = b"\x03\x04\x02\x04\x01\x02\x06\x00\x54"  # -2 items in 2 bytes, -1 item in 1 byte
    schema = record(("a", 1, LONGS), ("b", 2, "long"))
    assert reader_of(schema).rows([(1, block)]).to_pylist() == [{"a": [1, 2, 3], "b": 42}]
    assert reader_of(schema, [1]).rows([(1, block)]).to_pylist() == [{"a": block[:-1], "b": 42}]


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("boolean", True, True),
        ("float", 0.5, 0.5),
        ("double", -2.25, -2.25),
        ({"type": "fixed", "name": "f", "size": 3}, b"abc", b"abc"),
        ({"type": "enum", "name": "e", "symbols": ["x", "y"]}, "y", "y"),
        ({"type": "map", "values": "long"}, {"k": 1}, [("k", 1)]),
        (["null", "long", "string"], "s", {"long": None, "string": "s"}),
        (record(("x", None, "long"), ("y", None, "string")), {"x": 1, "y": "z"}, {"x": 1, "y": "z"}),
    ],
)
def test_any_type_can_be_decoded_and_skipped(kind: Any, value: Any, expected: Any) -> None:
    parsed, block = encoded(record(("a", 1, kind), ("b", 2, "long")) | {"name": "outer"}, [{"a": value, "b": 42}])
    assert reader_of(parsed).rows([(1, block)]).to_pylist() == [{"a": expected, "b": 42}]
    assert reader_of(parsed, [1]).rows([(1, block)]).to_pylist() == [{"a": block[:-1], "b": 42}]


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [("string", LONG), ("long", pa.string()), (LONGS, LONG), ("bytes", pa.string()), ("double", pa.list_(LONG))],
)
def test_a_field_of_another_type_is_refused(kind: Any, wanted: pa.DataType) -> None:
    reader = reader_of(record(("a", 1, kind)))
    with pytest.raises(AvroError, match=r"a \(1\): expected"):
        Wanted(1, ("a",), wanted).of(reader.fields, reader.schema.empty_table().columns, 0)


def nested(depth: int) -> Any:
    kind: Any = "long"
    for _ in range(depth):
        kind = {"type": "array", "items": kind}
    return kind


def explosive(depth: int) -> Any:
    """Each type holds the one before twice: 2 ** depth values."""
    kind: Any = "long"
    for level in range(depth):
        kind = {
            "type": "record",
            "name": f"r{level}",
            "fields": [{"name": "a", "type": kind}, {"name": "b", "type": f"r{level - 1}" if level else "long"}],
        }
    return kind


@pytest.mark.each(4)
@pytest.mark.parametrize(
    "schema",
    [
        "long",
        [],
        {"type": "record"},
        {"type": "record", "fields": [5]},
        None,
        3,
        record(("a", 1, nested(200))),
        record(("a", 1, "r")),
        record(("a", 1, explosive(25))) | {"name": "outer"},
        record(("a", 1, {"type": "nonsense"})),
        record(("a", 1, {"type": "array"})),
        record(("a", 1, {"type": "array", "items": "null"})),
        record(("a", 1, {"type": "map"})),
        record(("a", 1, {"type": "enum", "name": "e"})),
        record(("a", 1, {"type": "fixed", "name": "f", "size": -1})),
        record(("a", 1, {"type": "fixed", "name": "f", "size": 2**40})),
        record(("a", True, "long")),
    ],
)
def test_hostile_schemas_are_refused(schema: Any) -> None:
    with pytest.raises(AvroError):
        reader_of(schema)


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
@pytest.mark.parametrize("raw", [[], [1]])
def test_lengths_that_lie_are_refused(block: bytes, raw: list[int]) -> None:
    with pytest.raises(AvroError):
        reader_of(record(("a", 1, pairs_type("bytes"))), raw).rows([(1, block)])


@pytest.mark.parametrize("kind", ["float", "double", {"type": "fixed", "name": "f", "size": 3}])
def test_a_number_that_is_cut_off_is_refused(kind: Any) -> None:
    with pytest.raises(AvroError):
        reader_of(record(("a", 1, kind))).rows([(1, b"\0")])
