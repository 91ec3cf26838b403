"""Debezium events: bare, unwrapped, dumped with their keys, mixed in one batch."""

import json

import pytest

from nevermore.pipelines.formats.debezium import KEYLESS
from tests.pipelines.formats.debezium_events import Row, changes, event, read, reasons, schema_of


def test_unwrapped_rows_with_flags_decode() -> None:
    decoded = read(
        {"id": 1, "n": "a", "__op": "c", "__deleted": "false", "__table": "products", "__source_ts_ms": 5},
        {"id": 1, "n": "b", "__op": "u", "__deleted": "false", "__table": "products", "__source_ts_ms": 6},
        {"id": 1, "n": "b", "__op": "d", "__deleted": "true", "__table": "products", "__source_ts_ms": 7},
        None,
        {"id": 2, "n": None, "__deleted": True, "__table": "products"},
    )
    assert changes(decoded) == [
        {"op": "c", "key": {"id": 1}, "before": None, "after": {"id": 1, "n": "a"}},
        {"op": "u", "key": {"id": 1}, "before": None, "after": {"id": 1, "n": "b"}},
        {"op": "d", "key": {"id": 1}, "before": {"id": 1, "n": "b"}, "after": None},
        {"op": "d", "key": {"id": 2}, "before": {"id": 2, "n": None}, "after": None},
    ]
    assert decoded.skipped == {"tombstone": 1}


def test_unwrapped_tombstones_delete_where_they_are_the_only_sign() -> None:
    decoded = read({"id": 1, "n": "a"}, None, keys=[{"id": 1}, {"id": 1}], options={"tombstones": "delete"}, key=())
    assert changes(decoded, "op", "key") == [{"op": "u", "key": {"id": 1}}, {"op": "d", "key": {"id": 1}}]


def test_a_tombstone_that_is_to_delete_must_say_what() -> None:
    decoded = read({"id": 1, "n": "a"}, None, None, keys=[{"id": 1}, 1, None], options={"tombstones": "delete"}, key=())
    assert changes(decoded, "op", "key") == [{"op": "u", "key": {"id": 1}}]
    assert reasons(decoded) == [(2, KEYLESS), (3, KEYLESS)]
    assert not decoded.skipped


def test_unwrapped_rows_may_have_columns_called_op_and_after() -> None:
    row = {"id": 1, "op": "c", "after": "noon"}
    decoded = read(row | {"__op": "c"})
    assert changes(decoded, "after") == [{"after": row}]
    assert reasons(decoded) == []


def test_envelopes_and_rows_of_one_batch_are_told_apart_one_by_one() -> None:
    decoded = read(
        event("c", {"id": 1, "n": "a"}),
        {"id": 2, "n": "b"},
        {"id": 3, "n": "c", "__op": "c", "__db": "inventory", "__table": "products"},
        event("d", None, {"id": 1, "n": "a"}),
        {"id": 2, "n": "b", "__deleted": "true"},
        {"id": 4, "status": "open", "ddl": "x", "n": "d"},
        event("u", {"id": 3, "n": "e"}, {"id": 3, "n": "c"}),
    )
    assert not reasons(decoded)
    assert [(row["op"], row["key"]["id"]) for row in changes(decoded, "op", "key")] == [
        *(("c", 1), ("u", 2), ("c", 3), ("d", 1)),
        *(("d", 2), ("u", 4), ("u", 3)),
    ]
    assert changes(decoded, "after")[5]["after"] == {"id": 4, "n": "d", "status": "open", "ddl": "x"}


@pytest.mark.parametrize(
    "odd",
    [
        *({"op": "c"}, {"op": 5, "after": {"id": 9}}, {"after": {"id": 9}}, {"before": None, "after": None}),
        *({"source": {"db": "d"}, "ts_ms": 1}, {"id": 9, "before": {"id": 9}}, {}),
    ],
)
def test_envelope_that_lacks_something_is_no_row(odd: Row) -> None:
    decoded = read(event("c", {"id": 1}), odd, {"id": 2})
    assert [number for number, _ in reasons(decoded)] == [2]
    assert [row["key"]["id"] for row in changes(decoded, "key")] == [1, 2]


def test_bare_events_are_of_the_types_that_enveloped_ones_before_them_declare() -> None:
    date = {"field": "d", "type": "int32", "name": "io.debezium.time.Date", "optional": True}
    schema = schema_of({"id": "int32"})
    schema["fields"][1]["fields"].append(date)
    decoded = read(
        {"schema": schema, "payload": event("c", {"id": 2, "d": 2})},
        event("c", {"id": 1, "d": 1}),
        {"schema": None, "payload": event("c", {"id": 2**40, "d": 3})},
        {"id": 4, "d": 4},
    )
    assert not reasons(decoded)
    assert [str(row["after"]["d"])[-1] for row in changes(decoded, "after")] == ["3", "2", "4", "5"]


@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.parametrize("beside", [{}, {"topic": "t", "partition": 0, "offset": 7, "ts": 1}])
def test_messages_that_were_dumped_with_key_and_value_are_read(as_text: bool, beside: Row) -> None:  # noqa: FBT001 - parameters
    name = "payload" if as_text else "value"
    pairs = [({"id": 1}, event("c", {"id": 1, "n": 'a"b'})), ({"id": 2}, event("d")), ({"id": 1}, None)]
    place = {"topic": "t", "partition": 0, "offset": 7} if as_text else beside
    text = json.dumps if as_text else (lambda value: value)
    decoded = read(*({**place, "key": text(k), name: None if v is None else text(v)} for k, v in pairs), b" \n", key=())
    assert changes(decoded, "op", "key") == [{"op": "c", "key": {"id": 1}}, {"op": "d", "key": {"id": 2}}]
    assert decoded.skipped == {"tombstone": 1, "blank line": 1}


def test_rows_of_columns_key_and_value_are_no_dumped_messages() -> None:
    decoded = read({"key": "a", "value": "b"}, {"key": "b", "value": "c"}, key=("key",))
    assert [row["after"] for row in changes(decoded, "after")] == [
        {"key": "a", "value": "b"},
        {"key": "b", "value": "c"},
    ]
