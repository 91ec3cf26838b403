"""A column whose declared type changes against all promotion: values that lose nothing fit, others are refused."""

import json
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from nevermore.pipelines.decode.arrow_columns import fitted
from nevermore.pipelines.decode.batches import from_documents
from nevermore.pipelines.decode.feed import FeedConfig, TableFeed
from nevermore.pipelines.formats.registry import DecodedFeed, decode

TABLE = "shop.products"
DATE, MICROS = "io.debezium.time.Date", "io.debezium.time.MicroTimestamp"
Field = dict[str, Any]


def decimals(scale: int) -> Field:
    return {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": str(scale)}}


def event(key: int, value: Any, field: Field) -> bytes:
    fields = [{"field": "id", "type": "int32"}, {"field": "x", "optional": True, **field}]
    schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": fields}]}
    payload = {"op": "c", "before": None, "after": {"id": key, "x": value}, "source": {"table": "products"}}
    return json.dumps({"schema": schema, "payload": payload}).encode()


def read(*events: bytes, known: pa.DataType | None = None) -> DecodedFeed:
    types = {} if known is None else {"id": pa.int32(), "x": known}
    feed = TableFeed(name=TABLE, key=("id",), known_types=types)
    return decode(from_documents(list(events)), FeedConfig(format="debezium-json", tables=(feed,)))


def values(decoded: DecodedFeed) -> list[Any]:
    return [row["after"]["x"] for row in decoded.tables[TABLE].table.to_pylist()]


CASES = [
    # 12345 of scale 2, then of scale 4; 12300 of scale 4 has no more than two digits behind the point
    (decimals(2), "MDk=", pa.decimal128(38, 2), Decimal("123.45"), decimals(4), ["MDk="], {"MAw=": Decimal("1.23")}),
    (
        {"type": "int32", "name": DATE},
        1,
        pa.date32(),
        date(1970, 1, 2),
        {"type": "int64", "name": MICROS},
        [86_400_000_000],
        {},
    ),
    (
        {"type": "int64", "name": MICROS},
        1,
        pa.timestamp("us"),
        datetime(1970, 1, 1, 0, 0, 0, 1),  # noqa: DTZ001 - no zone
        {"type": "int32", "name": DATE},
        [],
        {1: datetime(1970, 1, 2)},  # noqa: DTZ001 - no zone
    ),
    (
        {"type": "int64", "name": MICROS},
        1,
        pa.timestamp("us"),
        datetime(1970, 1, 1, 0, 0, 0, 1),  # noqa: DTZ001 - no zone
        {"type": "string", "name": "io.debezium.time.ZonedTimestamp"},
        ["2020-01-01T00:00:00+02:00"],
        {},
    ),
    ({"type": "string"}, "YQ==", pa.string(), "YQ==", {"type": "bytes"}, ["YQ=="], {}),
    ({"type": "bytes"}, "YQ==", pa.binary(), b"a", {"type": "string"}, ["YQ=="], {}),
    ({"type": "int32"}, 1, pa.int32(), 1, decimals(2), ["MDk="], {"AMg=": 2}),
    ({"type": "double"}, 1.5, pa.float64(), 1.5, decimals(2), [], {"MDk=": 123.45}),
]


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(("old", "first", "known", "value", "new", "refused", "taken"), CASES)
def test_values_of_another_type_fit_or_are_refused_however_batches_are_cut(
    old: Field,
    first: Any,
    known: pa.DataType,
    value: Any,
    new: Field,
    refused: list[Any],
    taken: dict[Any, Any],
    together: bool,  # noqa: FBT001 - a parameter
) -> None:
    later = [event(2 + n, v, new) for n, v in enumerate([*refused, *taken, None])]
    decoded = read(event(1, first, old), *later) if together else read(*later, known=known)
    assert values(decoded) == [*([value] if together else []), *taken.values(), None]
    reasons = decoded.rejected.table.column("reason").to_pylist()
    assert len(reasons) == len(refused)
    assert all("which no promotion covers" in reason for reason in reasons)


@pytest.mark.parametrize(
    ("array", "arrow", "wanted"),
    [
        (pa.array([1, 2**53 + 1]), pa.float64(), [1.0, None]),
        (pa.array([1.0, 1.5, float("inf")]), pa.int64(), [1, None, None]),
        (pa.array([True, False]), pa.int32(), [1, 0]),
        (pa.array([0, 1, 2]), pa.bool_(), [False, True, None]),
        (pa.array([[1], [2**40, 1], None]), pa.list_(pa.field("element", pa.int32())), [[1], None, None]),
        (pa.array([{"a": 1, "b": None}, {"a": 1, "b": 2}]), pa.struct([("a", pa.int64())]), [{"a": 1}, None]),
        (pa.array([b"ab", b"abc"]), pa.binary(2), [b"ab", None]),
        (pa.array(["5"]), pa.int64(), [None]),
        (pa.array([5]), pa.string(), [None]),
    ],
)
def test_only_what_loses_nothing_fits(array: pa.Array, arrow: pa.DataType, wanted: list[Any]) -> None:
    result, bad = fitted(array, arrow)
    assert result.type == arrow
    assert result.to_pylist() == wanted
    assert bad.tolist() == [w is None and v is not None for w, v in zip(wanted, array.to_pylist(), strict=True)]


def test_columns_of_files_widen_those_of_the_mirror() -> None:
    from nevermore.pipelines.decode.batches import RawEvents

    rows = pa.table({"Op": ["I"], "id": [1], "x": pa.array([Decimal("12345678.90")], pa.decimal128(12, 2))})
    raw = RawEvents(pa.array([""]).dictionary_encode(), pa.array([1]), rows=rows)
    feed = TableFeed(name=TABLE, key=("id",), known_types={"id": pa.int64(), "x": pa.decimal128(5, 2)})
    decoded = decode(raw, FeedConfig(format="dms", tables=(feed,)))
    assert decoded.tables[TABLE].row_type.field("x").type == pa.decimal128(12, 2)


@pytest.mark.parametrize(
    ("types", "wanted"),
    [({}, [{"id": 2, "x": None}]), ({"x.element": "long"}, [{"id": 1, "x": []}, {"id": 2, "x": None}])],
)
def test_lists_without_elements_in_files_are_rejected_unless_declared(types: dict[str, str], wanted: list[Any]) -> None:
    from nevermore.pipelines.decode.batches import RawEvents

    rows = pa.table({"Op": ["I", "I"], "id": [1, 2], "x": pa.array([[], None], pa.list_(pa.null()))})
    raw = RawEvents(pa.array(["", ""]).dictionary_encode(), pa.array([1, 2]), rows=rows)
    decoded = decode(raw, FeedConfig(format="dms", tables=(TableFeed(name=TABLE, key=("id",), types=types),)))
    found = decoded.tables[TABLE].table.column("after").to_pylist()
    assert [{"x": None, **row} for row in found] == wanted
    assert decoded.rejected.num_rows == 2 - len(wanted)


def undeclared(key: int, value: Any) -> bytes:
    return json.dumps(json.loads(event(key, value, {"type": "int32"}))["payload"]).encode()


KINDS: dict[str, tuple[str | float, pa.DataType]] = {
    "double": (1.5, pa.float64()),
    "string": ("a", pa.string()),
    "int64": (2**40, pa.int64()),
    "boolean": (True, pa.bool_()),
}


@pytest.mark.parametrize("other", KINDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("known", [False, True])
def test_an_event_without_declarations_has_the_types_of_the_table(kind: str, other: str, *, known: bool) -> None:
    # What contradicts them may be in an earlier batch, of which only the types of the table are left.
    value, arrow = KINDS[kind]
    first, contradicts = event(1, value, {"type": kind}), event(2, None, {"type": other})
    rest = [contradicts, event(3, value, {"type": kind}), undeclared(4, value)]
    decoded = read(*rest, known=arrow) if known else read(first, *rest)
    assert decoded.rejected.num_rows == 0
    assert values(decoded)[-1] == value
