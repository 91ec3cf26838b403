"""Variants become JSON text, whichever way they are stored; damaged ones are refused with file and column."""

import datetime as dt
import json
import struct
import tracemalloc
import uuid
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nevermore.scan_core import MalformedTableError, open_table
from nevermore.scan_core.expr import variant
from nevermore.scan_core.expr.variant import variant_text
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder

_EMPTY = b"\x01\x00\x00"
_FROM_SPARK = b"\x01\x08\x00\x01\x02\x03\x04\x05\x06\x07\x08abcdefgz"
"""Metadata as Spark 4.3 writes it."""


def encode(value: Any, size: int = 4) -> tuple[bytes, bytes]:
    """Metadata and value of JSON in the binary form, with numbers of `size` bytes for offsets and ids."""
    keys: dict[str, int] = {}

    def number(n: int) -> bytes:
        return n.to_bytes(size, "little")

    def encoded(part: Any) -> bytes:
        match part:
            case None | True | False:
                return bytes([{None: 0, True: 1, False: 2}[part] << 2])
            case int():
                width, kind = next(
                    (w, k) for w, k in ((1, 3), (2, 4), (4, 5), (8, 6)) if -(1 << 8 * w - 1) <= part < 1 << 8 * w - 1
                )
                return bytes([kind << 2]) + part.to_bytes(width, "little", signed=True)
            case float():
                return bytes([7 << 2]) + struct.pack("<d", part)
            case str():
                data = part.encode()
                short = (
                    bytes([len(data) << 2 | 1])
                    if len(data) < 64
                    else bytes([16 << 2]) + len(data).to_bytes(4, "little")
                )
                return short + data
            case list():
                parts = list(map(encoded, part))
                header = bytes([(size - 1) << 2 | 1 << 4 | 3]) + len(parts).to_bytes(4, "little")
                return header + offsets(parts) + b"".join(parts)
            case _:
                names = sorted(part)
                parts = [encoded(part[name]) for name in names]
                ids = b"".join(number(keys.setdefault(name, len(keys))) for name in names)
                header = bytes([(size - 1) << 2 | (size - 1) << 4 | 1 << 6 | 2]) + len(parts).to_bytes(4, "little")
                return header + ids + offsets(parts) + b"".join(parts)

    def offsets(parts: list[bytes]) -> bytes:
        ends = [sum(map(len, parts[:i])) for i in range(len(parts) + 1)]
        return b"".join(map(number, ends))

    found = encoded(value)
    names = [name.encode() for name in keys]
    return bytes([1 | (size - 1) << 6]) + number(len(names)) + offsets(names) + b"".join(names), found


def column(values: list[tuple[bytes, bytes] | None]) -> pa.StructArray:
    return pa.array(
        [None if v is None else {"metadata": v[0], "value": v[1]} for v in values],
        pa.struct([("metadata", pa.binary()), ("value", pa.binary())]),
    )


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=15,
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.none() | st.tuples(_JSON), max_size=5), st.sampled_from([2, 3, 4]), st.integers(0, 2))
def test_json_survives(values: list[Any], size: int, start: int) -> None:
    array = column([None if v is None else encode(v[0], size) for v in values])
    found = variant_text(array.slice(start)).to_pylist()
    assert [None if text is None else (json.loads(text),) for text in found] == values[start:]


_SECOND = 1_000_000
_DAY = 19_782  # 2024-02-29


@pytest.mark.parametrize(
    ("kind", "stored", "text"),
    [
        (3, b"\xfb", "-5"),
        (6, (5 * 10**9).to_bytes(8, "little"), "5000000000"),
        (7, struct.pack("<d", float("nan")), '"nan"'),
        (14, struct.pack("<f", 1.25), "1.25"),
        (8, b"\x03" + (123_456_789).to_bytes(4, "little"), "123456.789"),
        (9, b"\x02" + (-1).to_bytes(8, "little", signed=True), "-0.01"),
        (10, b"\x05" + (10**37 + 1).to_bytes(16, "little"), "100000000000000000000000000000000.00001"),
        (11, _DAY.to_bytes(4, "little"), '"2024-02-29"'),
        (12, (_DAY * 86_400 * _SECOND + 1).to_bytes(8, "little"), '"2024-02-29 00:00:00.000001Z"'),
        (13, (-1 * _SECOND).to_bytes(8, "little", signed=True), '"1969-12-31 23:59:59.000000"'),
        (17, (3_600 * _SECOND).to_bytes(8, "little"), '"01:00:00.000000"'),
        (19, (5).to_bytes(8, "little"), '"1970-01-01 00:00:00.000000005"'),
        (15, b"\x03\x00\x00\x00\x01\x02\xff", '"AQL/"'),
        (16, b"\x02\x00\x00\x00\xc3\xa9", '"é"'),
        (20, uuid.UUID(int=7).bytes, f'"{uuid.UUID(int=7)}"'),
    ],
)
def test_every_primitive_type(kind: int, stored: bytes, text: str) -> None:
    assert variant_text(column([(_EMPTY, bytes([kind << 2]) + stored)])).to_pylist() == [text]


def test_numbers_of_one_byte_and_small_objects_as_spark_writes_them() -> None:
    value = b"\x02\x01\x07\x00\t\x1c\xea\x8c\xa09Y>)\xc6"
    assert variant_text(column([(_FROM_SPARK, value)])).to_pylist() == ['{"z":-1e+30}']


def _shredded() -> pa.StructArray:
    """Groups of value and typed_value, as Spark 4.3 writes them."""
    binary = pa.binary()
    text = pa.struct([("value", binary), ("typed_value", pa.string())])
    element = pa.struct([("value", binary)])
    inner = pa.struct([("f", text), ("g", pa.struct([("value", binary), ("typed_value", pa.bool_())]))])
    typed = pa.struct(
        [
            ("a", pa.struct([("value", binary), ("typed_value", pa.int32())])),
            ("c", pa.struct([("value", binary), ("typed_value", pa.list_(element))])),
            ("e", pa.struct([("value", binary), ("typed_value", inner)])),
        ]
    )
    whole = {
        "metadata": _FROM_SPARK,
        "value": b"\x02\x01\x07\x00\t\x1c\xea\x8c\xa09Y>)\xc6",
        "typed_value": {
            "a": {"value": None, "typed_value": 7},
            "c": {"value": None, "typed_value": [{"value": b"\x0c\x01"}, {"value": b"\x00"}]},
            "e": {
                "value": None,
                "typed_value": {"f": {"typed_value": 'q"uo\n'}, "g": {"value": b" \x02\xc9\x04\x00\x00"}},
            },
        },
    }
    other_types = {
        "metadata": _FROM_SPARK,
        "value": None,
        "typed_value": {"a": {"value": b"\x05x"}, "c": {"value": b"\x00"}, "e": {"value": None, "typed_value": None}},
    }
    no_object = {"metadata": _EMPTY, "value": b"\x0c\x09", "typed_value": None}
    nothing = {"metadata": _EMPTY, "value": None, "typed_value": None}
    return pa.array(
        [whole, None, other_types, no_object, nothing],
        pa.struct([("metadata", binary), ("value", binary), ("typed_value", typed)]),
    )


def test_shredded_parts_are_joined_again() -> None:
    found = [None if text is None else (json.loads(text),) for text in variant_text(_shredded()).to_pylist()]
    whole = {"z": -1e30, "a": 7, "c": [1, None], "e": {"f": 'q"uo\n', "g": 12.25}}
    assert found == [(whole,), None, ({"a": "x", "c": None},), (9,), (None,)]
    assert variant_text(_shredded().slice(2, 2)).to_pylist() == variant_text(_shredded()).to_pylist()[2:4]


@pytest.mark.parametrize(("offsets", "text"), [((0, 2), '["a","b"]'), ((2, 0), '["b","a"]'), ((2, 2), '["b","b"]')])
def test_elements_lie_in_any_order(offsets: tuple[int, int], text: str) -> None:
    value = bytes([3, 2, *offsets, 4]) + b"\x05a\x05b"
    assert variant_text(column([(_EMPTY, value)] * 2)).to_pylist() == [text] * 2


@pytest.mark.parametrize("size", [1, 40, 200])
def test_pieces_of_any_size_give_the_same(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    plain = column([encode({"k": [1, "x"]}), None, *(encode(n) for n in range(9)), encode({"k": 1, "other": "é"})])
    arrays = _shredded(), plain, plain.slice(3), plain.slice(0, 0)
    wanted = [variant_text(array).to_pylist() for array in arrays]
    monkeypatch.setattr(variant, "_PIECE_BYTES", size)
    assert [variant_text(array).to_pylist() for array in arrays] == wanted


@pytest.mark.parametrize("scale", [0, 1, 9, 10, 18, 19, 38])
@pytest.mark.parametrize(("kind", "digits", "width"), [(8, 9, 4), (9, 18, 8), (10, 38, 16)])
def test_decimals_keep_their_digits(kind: int, digits: int, width: int, scale: int) -> None:
    numbers = [0, 1, -1, 10**digits - 1, 1 - 10**digits]
    values = [bytes([kind << 2, scale]) + number.to_bytes(width, "little", signed=True) for number in numbers]
    found = variant_text(column([(_EMPTY, value) for value in values])).to_pylist()
    assert [Decimal(text) for text in found] == [Decimal(number).scaleb(-scale, Context(prec=40)) for number in numbers]


@pytest.mark.parametrize("rows", [1, 64])
@pytest.mark.parametrize("kind", [15, 16])
def test_long_values_take_little_besides_their_text(kind: int, rows: int) -> None:
    size = (16 << 20) // rows
    array = column([(_EMPTY, bytes([kind << 2]) + size.to_bytes(4, "little") + b"x" * size)] * rows)
    tracemalloc.start()
    try:
        text = variant_text(array)
        peak = tracemalloc.get_traced_memory()[1]  # of NumPy and Python
    finally:
        tracemalloc.stop()
    assert peak < (6 if rows == 1 else 2) * text.nbytes


_OUTSIDE = {
    f"{kind} {number}": (part, number.to_bytes(width, "little", signed=True), kind)
    for part, width, kind, numbers in (
        (11, 4, pa.date32(), (-(2**31), 2**31 - 1)),
        (12, 8, pa.timestamp("us", "UTC"), (-(2**63), 2**63 - 1)),
        (13, 8, pa.timestamp("us"), (-(2**63), 2**63 - 1)),
        (17, 8, pa.time64("us"), (-1, 86_400 * _SECOND)),
    )
    for number in numbers
}
"""Days and times that no text can tell."""


@pytest.mark.parametrize(
    ("metadata", "value"),
    [
        pytest.param(_EMPTY, b"", id="empty"),
        pytest.param(_EMPTY, b"\x18\x00", id="short number"),
        pytest.param(_EMPTY, bytes([16 << 2]) + b"\xff\xff\xff\x7fx", id="short text"),
        pytest.param(_EMPTY, b"\x05\xff", id="no UTF-8"),
        pytest.param(_EMPTY, b"\xfc", id="unknown type"),
        pytest.param(_EMPTY, b"\x02\x01\x00\x00\x01\x00", id="no such key"),
        pytest.param(b"\x02\x00\x00", b"\x02\x01\x00\x00\x01\x00", id="version"),
        pytest.param(_EMPTY, b"\x03\xff\x00", id="more elements than bytes"),
        pytest.param(_EMPTY, b"\x13\xff\xff\xff\xff\x00", id="very many elements"),
        pytest.param(_EMPTY, b"".join(b"\x03\x02\x00\x00\x01" for _ in range(30)) + b"\x00", id="shared elements"),
        pytest.param(_EMPTY, b"\x03\x01\x00\x01" * 200 + b"\x00", id="deep"),
        pytest.param(b"\x01\x01\x00\xff", b"\x02\x01\x00\x00\x01\x00", id="key outside"),
        pytest.param(b"\x01\x01\x05\x02abcdef", b"\x02\x01\x00\x00\x01\x00", id="key of negative length"),
        pytest.param(_EMPTY, b"\x20\x63\x00\x00\x00\x00", id="scale"),
        *(pytest.param(_EMPTY, bytes([kind << 2]) + stored, id=name) for name, (kind, stored, _) in _OUTSIDE.items()),
    ],
)
def test_damaged_values_are_refused(metadata: bytes, value: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  whatever the fault is
        variant_text(column([(metadata, value)]))


@pytest.mark.parametrize("name", _OUTSIDE)
def test_damaged_values_of_a_column_are_refused(name: str) -> None:
    _, stored, kind = _OUTSIDE[name]
    typed = pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(stored)])
    metadata, value = pa.array([_EMPTY]), pa.array([None], pa.binary())
    with pytest.raises(ValueError, match=f"a {str(kind)[:4]}.* out of range"):
        variant_text(pa.StructArray.from_arrays([metadata, value, typed], ["metadata", "value", "typed_value"]))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=40), st.binary(max_size=20))
def test_any_bytes_are_text_or_an_error(value: bytes, metadata: bytes) -> None:
    try:
        found = variant_text(column([(metadata, value)])).to_pylist()
    except ValueError:
        return
    json.loads(found[0])


def _table(folder: Path, values: pa.StructArray) -> TableBuilder:
    """A table whose column `v` is of type variant. Its manifest has bounds of the values, which mean nothing as text."""
    table = TableBuilder(folder, [Column(1, "id", "long"), Column(2, "v", "binary")], version=3)
    file = table.data(
        {"id": list(range(len(values))), "v": [b"b" if valid else None for valid in values.is_valid().to_pylist()]}
    )
    fields = [
        pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"}),
        pa.field("v", values.type, metadata={"PARQUET:field_id": "2"}),
    ]
    pq.write_table(
        pa.table([pa.array(range(len(values)), pa.int64()), values], pa.schema(fields)), file.local, store_schema=False
    )
    file.record["file_size_in_bytes"] = file.local.stat().st_size
    table.commit(file)
    table.edit(lambda document: document["schemas"][0]["fields"][1].update(type="variant"))
    return table


def test_a_table_is_read_filtered_and_deleted_from(tmp_path: Path) -> None:
    table = _table(tmp_path, _shredded())
    table.commit(table.equality_delete({"id": [2]}, ids=[1]))
    scan = open_table(table.metadata_path).scan()
    rows = [
        (i, None if v is None else json.loads(v)) for i, v in zip(*scan.to_table().to_pydict().values(), strict=True)
    ]
    assert rows[1:] == [(1, None), (3, 9), (4, None)]
    assert rows[0][1]["e"] == {"f": 'q"uo\n', "g": 12.25}
    assert scan.arrow_schema.field("v").type == pa.string()
    conditions = {
        "v like '%\"a\":7%'": [0],
        "v = '9'": [3],
        "v is null": [1],
        "length(v) > 20 and id < 2": [0],
        "v in ('9', 'a')": [3],
    }
    for condition, ids in conditions.items():
        assert scan.where(condition).select("id").to_table()["id"].to_pylist() == ids, condition
    assert scan.where("v = '9'").count() == 1


def test_variants_inside_structs_and_lists(tmp_path: Path) -> None:
    table = TableBuilder(
        tmp_path, [Column(1, "id", "long"), Column(2, "s", "binary"), Column(3, "l", "binary")], version=3
    )
    file = table.data({"id": [0, 1], "s": [b"b"] * 2, "l": [b"b"] * 2})
    one, other = column([encode({"k": 1}), None]), column([encode("x"), encode([1])])

    def with_id(number: int) -> dict[str, str]:
        return {"PARQUET:field_id": str(number)}

    inner = pa.field("v", one.type, metadata=with_id(4))
    element = pa.field("element", other.type, metadata=with_id(5))
    arrays = [
        pa.array([0, 1], pa.int64()),
        pa.StructArray.from_arrays([one], fields=[inner]),
        pa.ListArray.from_arrays(pa.array([0, 2, 2], pa.int32()), other, type=pa.list_(element)),
    ]
    schema = pa.schema(
        [
            pa.field(n, a.type, metadata=with_id(i))
            for i, (n, a) in enumerate(zip(["id", "s", "l"], arrays, strict=True), 1)
        ]
    )
    pq.write_table(pa.table(arrays, schema), file.local, store_schema=False)
    file.record["file_size_in_bytes"] = file.local.stat().st_size
    table.commit(file)
    struct = {"type": "struct", "fields": [{"id": 4, "name": "v", "type": "variant", "required": False}]}
    listed = {"type": "list", "element-id": 5, "element": "variant", "element-required": False}
    for place, kind in ((1, struct), (2, listed)):
        table.edit(lambda document, place=place, kind=kind: document["schemas"][0]["fields"][place].update(type=kind))
    scan = open_table(table.metadata_path).scan()
    assert scan.to_table().to_pylist() == [
        {"id": 0, "s": {"v": '{"k":1}'}, "l": ['"x"', "[1]"]},
        {"id": 1, "s": {"v": None}, "l": []},
    ]
    assert scan.where("s.v like '{%'").select("id").to_table()["id"].to_pylist() == [0]
    assert scan.where("s.v is null").count() == 1


def test_a_damaged_value_names_file_and_column(tmp_path: Path) -> None:
    table = _table(tmp_path, column([(_EMPTY, b"\x18\x00")]))
    with pytest.raises(
        MalformedTableError,
        match=r"-data\.parquet: column 'v' \(id 2\): a value of type struct.* does not fit variant: a value that ends outside",
    ):
        open_table(table.metadata_path).scan().to_table()
    assert open_table(table.metadata_path).scan().select("id").count() == 1


def test_dates_in_python_are_those_of_the_test() -> None:
    assert dt.date(1970, 1, 1) + dt.timedelta(days=_DAY) == dt.date(2024, 2, 29)
