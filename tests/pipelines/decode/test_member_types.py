"""Types from the config for what is inside structs, lists and maps."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from pipelines.decode.batches import from_documents
from pipelines.decode.feed import FeedConfig, TableFeed
from pipelines.decode.value_types import Encoding, from_config
from pipelines.errors import ConfigError
from pipelines.formats.registry import decode

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
