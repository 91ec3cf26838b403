"""Types from the config for what is inside structs, lists and maps."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from nevermore.pipelines.decode.batches import from_documents
from nevermore.pipelines.decode.feed import FeedConfig, TableFeed
from nevermore.pipelines.decode.value_types import Encoding, from_config
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.formats.registry import decode

ROW = {"id": 1, "a": {"zip": 123, "at": 1_700_000_000_000, "sums": [{"x": 1.10}, {"x": 2, "y": 1}]}, "a.b": 5}


def read(row: dict[str, Any], **feed: Any) -> tuple[pa.StructType, Any, list[str]]:
    table = TableFeed(name="shop.t", key=("id",), **feed)
    decoded = decode(from_documents([json.dumps(row).encode()]), FeedConfig(format="debezium-json", tables=(table,)))
    batch = decoded.tables["shop.t"]
    after = batch.table.column("after").to_pylist()
    return batch.row_type, after[0] if after else None, decoded.rejected.table.column("reason").to_pylist()


def test_members_elements_and_what_they_hold_are_of_the_types_that_config_says() -> None:
    types = {"a.zip": "string", "a.at": "timestamptz", "a.sums.element.x": "decimal(9, 2)", "a.b": "string"}
    row_type, row, _ = read(ROW, types=types, encodings={"a.at": "millis"})
    assert row == {
        "id": 1,
        "a": {
            "zip": "123",
            "at": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
            "sums": [{"x": Decimal("1.10"), "y": None}, {"x": Decimal("2.00"), "y": 1}],
        },
        "a.b": "5",
    }
    again, same, _ = read(
        ROW, types=types, encodings={"a.at": "millis"}, known_types={f.name: f.type for f in row_type}
    )
    assert (again, same) == (row_type, row)


def test_member_that_does_not_fit_its_type_rejects_the_event() -> None:
    _, row, reasons = read(ROW, types={"a.zip": "boolean"})
    assert row is None
    assert "column a" in reasons[0]


@pytest.mark.parametrize("path", ["id.x", "a.sums.x", "a.zip.x"])
def test_path_into_nothing_is_an_error_that_says_what_is_there(path: str) -> None:
    with pytest.raises(ConfigError, match=rf"types: {path}: .* which contains"):
        read(ROW, types={path: "int"})


def test_member_that_no_event_has_yet_waits_for_its_type() -> None:
    row_type, row, _ = read({"id": 1, "a": {"zip": None, "n": 1}}, types={"a.zip": "string"})
    assert row_type.field("a").type == pa.struct([("n", pa.int64()), ("zip", pa.string())])
    assert row == {"id": 1, "a": {"n": 1, "zip": None}}


@pytest.mark.each(2)
@pytest.mark.parametrize(
    ("value", "path", "read_as"),
    [
        ({}, "a.x", {"x": None}),
        ({"x": None}, "a.x", {"x": None}),
        ({"x": None, "y": None}, "a.x", {"x": None}),
        ({"b": {}}, "a.b.x", {"b": {"x": None}}),
        ({"b": None}, "a.b.x", {"b": None}),
        ({}, "a.b.x", {"b": None}),
        ({"n": 1, "b": {}}, "a.b.x", {"n": 1, "b": {"x": None}}),
        ([{}], "a.element.x", [{"x": None}]),
        ([], "a.element.x", []),
        ([], "a.element.b.x", []),
        ([[]], "a.element.element.x", [[]]),
        ([{}], "a.element.b.element.x", [{"b": None}]),
        ({"b": []}, "a.b.element.x", {"b": []}),
    ],
)
def test_declared_members_decide_what_empty_objects_and_lists_are(value: Any, path: str, read_as: Any) -> None:
    row = {"id": 1, "a": value}
    row_type, found, reasons = read(row, types={path: "int"})
    assert (found, reasons) == ({"id": 1, "a": read_as}, [])
    known = {f.name: f.type for f in row_type}
    assert read(row, types={path: "int"}, known_types=known) == (row_type, found, [])


def test_objects_that_are_kept_as_text_have_the_members_that_are_declared() -> None:
    event = {"id": 1, "a": {"x": 5}, "b": {"x": 5}}
    table = TableFeed(name="shop.t", key=("id",), types={"a.x": "int"})
    feed = FeedConfig(format="debezium-json", tables=(table,), options={"objects": "text"})
    after = decode(from_documents([json.dumps(event).encode()]), feed).tables["shop.t"].table.column("after")
    assert after.to_pylist() == [{"id": 1, "a": {"x": 5}, "b": '{"x": 5}'}]


@pytest.mark.parametrize("value", [{"y": 1}, {"x": 1, "y": 1}])
def test_a_member_that_is_not_declared_is_not_lost(value: Any) -> None:
    table = TableFeed(name="shop.t", key=("id",), types={"a.x": "int"})
    feed = FeedConfig(format="debezium-json", tables=(table,), options={"objects": "text"})
    decoded = decode(from_documents([json.dumps({"id": 1, "a": value}).encode()]), feed)
    assert "column a" in decoded.rejected.table.column("reason").to_pylist()[0]


@pytest.mark.each(10)
@pytest.mark.parametrize("text", ["boolean", "long", "double", "string", "date", "time", "timestamptz", "uuid", "binary",
                                  "decimal(10,2)"])  # fmt: skip
@pytest.mark.parametrize("encoding", [e.value for e in Encoding if e is not Encoding.NATURAL])
def test_an_encoding_is_read_or_refused(encoding: str, text: str) -> None:
    row = {"id": 1, "a": "AQ=="}
    try:
        found = from_config({"a": text}, {"a": encoding})["a"]
    except ConfigError as error:
        assert f"{encoding} is not an encoding of a" in str(error)  # noqa: PT017
    else:
        assert encoding in str(found)
        read(row, types={"id": "long", "a": text}, encodings={"a": encoding})
