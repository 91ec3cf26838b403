"""Debezium events: schemas in the stream, declared and known types."""

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from nevermore.pipelines.decode.feed import TableFeed
from tests.pipelines.formats.debezium_events import TABLE, changes, event, read, reasons, schema_of


def test_values_that_contradict_the_first_are_rejected_with_value_and_type() -> None:
    decoded = read(event("c", {"id": 1, "n": 5}), event("c", {"id": 2, "n": "five"}), event("c", {"id": 3, "n": 7}))
    assert [row["after"]["id"] for row in changes(decoded, "after")] == [1, 3]
    assert reasons(decoded) == [(2, "column n: text 'five' is no long")]


def test_numbers_with_a_fraction_in_an_untyped_key_are_whole_ones_or_rejected() -> None:
    decoded = read(*(event("c", {"id": key, "w": 5.0}) for key in (5.0, 6, 6.5, 1e3)))
    assert decoded.tables["shop.products"].row_type == pa.struct([("id", pa.int64()), ("w", pa.float64())])
    assert [change["key"]["id"] for change in changes(decoded, "key")] == [5, 6, 1000]
    assert reasons(decoded) == [(3, "column id: number '6.5' is no long")]


@pytest.mark.parametrize("schema_first", [True, False])
def test_declared_types_of_the_envelope_hold_in_either_member_order(schema_first: bool) -> None:  # noqa: FBT001 - a parameter
    schema = schema_of({"id": "int32", "n": "int64", "f": "float"})
    events = []
    for number in range(5):
        parts = [("schema", schema), ("payload", event("c", {"id": number, "n": 1, "f": 1}))]
        events.append(dict(parts if schema_first else parts[::-1]))
    decoded = read(*events)
    assert decoded.tables[TABLE].row_type == pa.struct([("id", pa.int32()), ("n", pa.int64()), ("f", pa.float32())])
    assert decoded.tables[TABLE].num_rows == 5


def test_schema_that_changes_in_mid_stream_widens_and_keeps_the_order() -> None:
    old, new = schema_of({"id": "int32", "n": "int32"}), schema_of({"id": "int32", "n": "int64", "extra": "string"})
    decoded = read(
        {"schema": old, "payload": event("c", {"id": 1, "n": 1})},
        {"schema": new, "payload": event("c", {"id": 2, "n": 2**40, "extra": "x"})},
        {"schema": old, "payload": event("c", {"id": 3, "n": 3})},
        event("c", {"id": 4, "n": 4}),
    )
    assert decoded.tables[TABLE].row_type == pa.struct([("id", pa.int32()), ("n", pa.int64()), ("extra", pa.string())])
    assert [row["after"] for row in changes(decoded, "after")] == [
        {"id": 1, "n": 1, "extra": None},
        {"id": 2, "n": 2**40, "extra": "x"},
        {"id": 3, "n": 3, "extra": None},
        {"id": 4, "n": 4, "extra": None},
    ]


def test_schema_that_changes_against_all_promotion_is_rejected() -> None:
    decoded = read(
        {"schema": schema_of({"id": "int32", "n": "int32"}), "payload": event("c", {"id": 1, "n": 1})},
        {"schema": schema_of({"id": "int32", "n": "string"}), "payload": event("c", {"id": 2, "n": "x"})},
    )
    assert [row["after"]["id"] for row in changes(decoded, "after")] == [1]
    assert reasons(decoded) == [(2, "column n changes from int to string, which no promotion covers: 'x'")]


def test_more_schemas_than_are_compared_are_still_cut() -> None:
    events = [
        {"schema": schema_of({"id": "int32", f"c{n}": "int32"}), "payload": event("c", {"id": n, f"c{n}": n})}
        for n in range(80)
    ]
    decoded = read(*events)
    assert decoded.tables[TABLE].num_rows == 80
    assert [row["after"]["id"] for row in changes(decoded, "after")] == list(range(80))


def test_columns_are_left_out_renamed_and_cast() -> None:
    decoded = read(
        event("c", {"ID": 1, "secret": "s", "price": "12.50", "n": 5}),
        key=("id",),
        exclude=("secret",),
        rename={"ID": "id", "n": "quantity"},
        types={"price": "decimal(10,2)"},
        cast={"n": "string"},
    )
    assert decoded.tables[TABLE].row_type == pa.struct(
        [("id", pa.int64()), ("price", pa.decimal128(10, 2)), ("quantity", pa.string())]
    )
    assert changes(decoded, "after")[0]["after"]["quantity"] == "5"


def test_include_keeps_only_what_it_names_and_the_key() -> None:
    decoded = read(event("c", {"id": 1, "a": 2, "b": 3}), include=("a",))
    assert changes(decoded, "after") == [{"after": {"id": 1, "a": 2}}]


@pytest.mark.parametrize(
    ("known", "value", "wanted"),
    [
        (pa.int32(), 5, pa.int32()),
        (pa.int32(), 2**40, pa.int64()),
        (pa.float64(), 5, pa.float64()),
        (pa.decimal128(10, 2), "1.5", pa.decimal128(10, 2)),
        (pa.timestamp("us"), "2020-01-01T00:00:00", pa.timestamp("us")),
        (pa.string(), None, pa.string()),
        (pa.struct([("x", pa.int32())]), {"x": 1, "y": "n"}, pa.struct([("x", pa.int64()), ("y", pa.string())])),
    ],
)
def test_columns_of_the_mirror_keep_their_type_unless_a_value_needs_a_wider_one(
    known: pa.DataType, value: Any, wanted: pa.DataType
) -> None:
    decoded = read(event("c", {"id": 1, "n": value}), known_types={"n": known})
    assert not reasons(decoded)
    assert decoded.tables[TABLE].row_type.field("n").type == wanted


@pytest.mark.parametrize(
    ("known", "value"), [(pa.int64(), 1.5), (pa.int64(), "x"), (pa.string(), 5), (pa.date32(), "n")]
)
def test_values_that_the_mirrors_column_cannot_hold_are_rejected(known: pa.DataType, value: Any) -> None:
    decoded = read(event("c", {"id": 1, "n": value}), event("c", {"id": 2, "n": None}), known_types={"n": known})
    assert [offset for offset, _ in reasons(decoded)] == [1]
    assert decoded.tables[TABLE].num_rows == 1


def test_decimals_that_each_state_their_scale_need_no_schema() -> None:
    feed = TableFeed(name=TABLE, key=("id",), types={"n": "decimal(10, 2)"})
    rows = [{"id": 1, "n": {"scale": 2, "value": "ANY="}}, {"id": 2, "n": {"scale": 0, "value": "Aw=="}}]
    decoded = read(*(event("c", row) for row in rows), tables=(feed,))
    assert [r["after"]["n"] for r in changes(decoded, "after")] == [Decimal("2.14"), Decimal("3.00")]


@pytest.mark.parametrize(
    ("value", "cut"),
    [(1_600_000_000_000_001_000, 0), (1_600_000_000_000_001_001, 1), ("2020-01-01T00:00:00.1234567", 1)],
)
def test_times_finer_than_a_microsecond_are_cut_and_counted(value: Any, cut: int) -> None:
    feed = TableFeed(name=TABLE, key=("id",), types={"at": "timestamp"})
    decoded = read(event("c", {"id": 1, "at": value}), tables=(feed,))
    assert decoded.skipped.get("digits below a microsecond", 0) == cut
    assert changes(decoded, "after")[0]["after"]["at"] is not None


def test_declared_nanoseconds_are_kept_as_numbers_where_config_says_long() -> None:
    feed = TableFeed(name=TABLE, key=("id",), types={"at": "long"})
    decoded = read(event("c", {"id": 1, "at": 1_600_000_000_000_001_001}), tables=(feed,))
    assert changes(decoded, "after")[0]["after"]["at"] == 1_600_000_000_000_001_001
    assert decoded.skipped == {}


@pytest.mark.parametrize("wrong", [{"x": "t"}, "text", [1], 5, {"x": {"y": 1}}])
@pytest.mark.parametrize("wrong_first", [True, False])
def test_a_new_member_is_kept_whatever_other_events_have(wrong: Any, wrong_first: bool) -> None:  # noqa: FBT001 - a parameter
    rows = [{"id": 1, "a": wrong}, {"id": 2, "a": {"x": 1, "w": 5}}]
    events = [event("c", row) for row in (rows if wrong_first else rows[::-1])]
    decoded = read(*events, known_types={"a": pa.struct([("x", pa.int64())])})
    assert changes(decoded, "after") == [{"after": {"id": 2, "a": {"x": 1, "w": 5}}}]
    assert len(reasons(decoded)) == 1


@pytest.mark.parametrize("value", [[], [None], [[]]])
@pytest.mark.parametrize("known", [None, pa.struct([("x", pa.int64())])])
def test_a_list_without_elements_in_a_member_of_unknown_type_is_rejected(value: Any, known: pa.DataType | None) -> None:
    events = [event("c", {"id": 1, "a": {"x": 1, "z": value}}), event("c", {"id": 2, "a": {"x": 2, "z": None}})]
    decoded = read(*events, known_types={} if known is None else {"a": known})
    assert changes(decoded, "after") == [{"after": {"id": 2, "a": {"x": 2}}}]
    ((offset, reason),) = reasons(decoded)
    assert offset == 1
    assert "{a.MEMBER.element: ...}" in reason


@pytest.mark.parametrize(
    ("types", "value"), [({"a.element": "long"}, []), ({"a.z.element": "long"}, {"x": 1, "z": []})]
)
def test_lists_without_elements_are_read_once_the_config_says_what_they_hold(types: dict[str, str], value: Any) -> None:
    decoded = read(event("c", {"id": 1, "a": value}), types=types)
    assert not reasons(decoded)
    assert changes(decoded, "after") == [{"after": {"id": 1, "a": value}}]
