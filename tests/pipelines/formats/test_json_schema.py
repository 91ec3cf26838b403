"""JSON Schemas of Connect's converter and of others, and the values of messages that name them."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nevermore.pipelines.decode.batches import RawEvents, from_documents
from nevermore.pipelines.decode.feed import FeedConfig, TableFeed
from nevermore.pipelines.decode.schema_registry import RegisteredSchema, unframed
from nevermore.pipelines.decode.schema_registry import framed as with_frames
from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.formats.debezium_json import connect_schema
from nevermore.pipelines.formats.registry import DecodedFeed, decode
from nevermore.pipelines.ingest.quarantine_replay import in_runs
from nevermore.pipelines.sources.file_options import FileOptions


def optional(schema: dict[str, Any], index: int) -> dict[str, Any]:
    return {"oneOf": [{"type": "null"}, schema], "connect.index": index}


ROW = {
    "type": "object",
    "title": "shop.Value",
    "properties": {
        "late": optional({"type": "boolean"}, 9),
        "id": {"type": "integer", "connect.type": "int64", "connect.index": 0},
        "at": optional({"type": "integer", "title": "io.debezium.time.MicroTimestamp", "connect.type": "int64"}, 1),
        "price": optional(
            {
                "type": "number",
                "title": "org.apache.kafka.connect.data.Decimal",
                "connect.type": "bytes",
                "connect.parameters": {"scale": "2", "connect.decimal.precision": "10"},
            },
            2,
        ),
        "data": optional({"type": "string", "connect.type": "bytes"}, 3),
        "tags": optional({"type": "array", "items": {"type": "integer", "connect.type": "int32"}}, 4),
        "labels": optional({"type": "object", "connect.type": "map", "additionalProperties": {"type": "number"}}, 5),
        "where": optional({"$ref": "#/definitions/Place"}, 6),
    },
}
ENVELOPE = {
    "type": "object",
    "properties": {"before": optional(ROW, 0), "after": optional(ROW, 1), "op": {"type": "string"}},
    "definitions": {"Place": {"type": "object", "properties": {"x": {"type": "integer"}}}},
}


def framed(schema_ids: list[int | None], documents: list[Any]) -> RawEvents:
    """Messages as the source of topics returns them."""
    raw = from_documents([json.dumps(document).encode() for document in documents])
    return RawEvents(
        raw.source_file,
        raw.source_offset,
        raw.documents,
        schema_ids=(pa.array(schema_ids, pa.int64()), pa.nulls(len(documents), pa.int64())),
    )


def decoded(raw: RawEvents, folder: Path) -> DecodedFeed:
    tables = (TableFeed(name="public.t", key=("id",)),)
    return decode(raw, FeedConfig(format="debezium-json", tables=tables, options={"schemas": str(folder)}))


def test_types_are_those_of_the_schema_that_a_message_names(tmp_path: Path) -> None:
    (tmp_path / "7.json").write_text(json.dumps(ENVELOPE))
    row = {"id": 2**53 + 1, "at": 1, "price": 12.3, "data": "/w==", "tags": [1], "labels": {"a": 1}, "where": {"x": 5}}
    events = [{"op": "c", "before": None, "after": row}, {"op": "d", "before": {"id": 5}, "after": None}]
    result = decoded(framed([7, 7], events), tmp_path)
    table = result.tables["public.t"].table
    assert table.column("op").to_pylist() == ["c", "d"]
    assert table.column("after")[0].as_py() == {
        "id": 2**53 + 1,
        "at": datetime(1970, 1, 1, 0, 0, 0, 1),  # noqa: DTZ001 - Debezium's timestamps have no zone
        "price": Decimal("12.30"),
        "data": b"\xff",
        "tags": [1],
        "labels": [("a", 1.0)],
        "where": {"x": 5},
    }
    types = table.schema.field("after").type
    assert (types.field("price").type, types.field("tags").type.value_type) == (pa.decimal128(10, 2), pa.int32())
    assert not result.rejected.num_rows


def test_an_unknown_schema_refuses_its_message_alone(tmp_path: Path) -> None:
    (tmp_path / "7.json").write_text(json.dumps(ENVELOPE))
    events = [{"op": "c", "after": {"id": n, "at": n}} for n in range(3)]
    result = decoded(framed([7, 8, 7], events), tmp_path)
    assert [row["id"] for row in result.tables["public.t"].table.column("after").to_pylist()] == [0, 2]
    assert result.rejected.table.column("source_offset").to_pylist() == [2]
    assert "no schema 8" in result.rejected.table.column("reason")[0].as_py()


def test_schemas_of_other_writers(tmp_path: Path) -> None:
    plain = {
        "type": "object",
        "properties": {
            "id": {"type": ["integer", "null"]},
            "at": {"type": "string", "format": "date-time"},
            "day": {"type": "string", "format": "date"},
            "data": {"type": "string", "contentEncoding": "base64"},
            "either": {"oneOf": [{"type": "string"}, {"type": "integer"}]},
            "free": {"type": "object"},
        },
    }
    (tmp_path / "1.json").write_text(json.dumps(plain))
    row = {
        "id": 1,
        "at": "2020-01-01T00:00:00+01:00",
        "day": "2020-02-29",
        "data": "YQ==",
        "either": 5,
        "free": {"a": 1},
    }
    result = decoded(framed([1], [row]), tmp_path)
    assert result.tables["public.t"].table.column("after")[0].as_py() == {
        "id": 1,
        "at": datetime(2019, 12, 31, 23, tzinfo=UTC),
        "day": date(2020, 2, 29),
        "data": b"a",
        "either": "5",
        "free": '{"a": 1}',
    }


def test_a_schema_refers_to_others() -> None:
    address = json.dumps(
        {
            "definitions": {"zip": {"type": "string"}},
            "properties": {"zip": {"$ref": "#/definitions/zip"}},
            "type": "object",
        }
    )
    own = json.dumps(
        {
            "type": "object",
            "properties": {"home": {"$ref": "address.json"}, "zip": {"$ref": "address.json#/definitions/zip"}},
        }
    )
    found = json.loads(connect_schema(RegisteredSchema(own, (("address.json", address),))))
    assert [field["type"] for field in found["fields"]] == ["struct", "string"]
    assert found["fields"][0]["fields"][0]["field"] == "zip"


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("{", "cannot be used"),
        ('{"$ref": "#"}', "contains itself"),
        ('{"type": "object", "properties": {"a": {"$ref": "#/none"}}}', "cannot be used"),
        ('{"type": "object", "properties": {"a": {"$ref": "other.json"}}}', "refers to other.json"),
    ],
)
def test_schemas_that_cannot_be_used_are_refused(schema: str, reason: str) -> None:
    with pytest.raises(SourceError, match=reason):
        connect_schema(RegisteredSchema(schema))


def test_a_refused_message_keeps_the_id_of_its_schema_and_is_read_with_it_when_it_is_known(tmp_path: Path) -> None:
    events = [{"op": "c", "after": {"id": 1, "at": 1}}, {"op": "c", "after": {"id": 2}}, {"op": "?", "after": {}}]
    refused = decoded(framed([7, 8, None], events), tmp_path).rejected.table.sort_by("source_offset")
    assert [raw[:5] for raw in refused.column("raw").to_pylist()] == [b"\0\0\0\0\7", b"\0\0\0\0\x08", b'{"op"']
    (tmp_path / "7.json").write_text(json.dumps(ENVELOPE))
    for is_text in (True, None):
        (run,) = in_runs(refused, FileOptions(), is_text=is_text)
        again = decoded(run.raw, tmp_path)
        (row,) = again.tables["public.t"].table.column("after").to_pylist()
        assert (row["id"], row["at"]) == (1, datetime(1970, 1, 1, 0, 0, 0, 1))  # noqa: DTZ001 - as above
        assert refused.column("raw")[1].as_py() in again.rejected.table.column("raw").to_pylist()


@pytest.mark.parametrize("is_text", [True, None, False])
def test_what_may_be_behind_the_frame_of_a_registry(*, is_text: bool | None) -> None:
    documents = pa.array(
        [b'\0\0\0\1\0{"a": 1}', b'{"a": 1}', None, b"\0\0\0\0", b"\0\0\0\0\5 7", b"\0\xff\xff\xff\xff{}"]
    )
    found = unframed(documents, is_text=is_text)
    ids = {True: [256, None, None, None, 5, 2**32 - 1], None: [256, None, None, None, None, 2**32 - 1]}
    assert found.ids.to_pylist() == ids.get(is_text, [None] * len(documents))
    assert with_frames(found.values, found.ids).to_pylist() == documents.to_pylist()
