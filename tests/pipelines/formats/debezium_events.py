"""Debezium events to be decoded, and what became of them, as plain values."""

import json
from typing import Any

from nevermore.pipelines.decode.batches import from_documents
from nevermore.pipelines.decode.feed import FeedConfig, TableFeed
from nevermore.pipelines.formats.registry import DecodedFeed, decode

Row = dict[str, Any]


TABLE = "shop.products"


def event(op: str, after: Row | None = None, before: Row | None = None, **source: Any) -> Row:
    origin = {"db": "inventory", "table": "products", "ts_ms": 1_700_000_000_000, **source}
    return {"before": before, "after": after, "source": origin, "op": op, "ts_ms": 1_700_000_000_001}


def read(
    *events: Row | bytes | None,
    keys: list[Row | None] | None = None,
    options: dict[str, Any] | None = None,
    tables: tuple[TableFeed, ...] | None = None,
    **feed: Any,
) -> DecodedFeed:
    documents = [e if isinstance(e, bytes) or e is None else json.dumps(e).encode() for e in events]
    message_keys = None if keys is None else [None if k is None else json.dumps(k).encode() for k in keys]
    feeds = tables or (TableFeed(name=TABLE, **{"key": ("id",), **feed}),)
    config = FeedConfig(format="debezium-json", tables=feeds, options=options or {})
    return decode(from_documents(documents, "f", keys=message_keys), config)


def changes(decoded: DecodedFeed, *names: str) -> list[Row]:
    return decoded.tables[TABLE].table.select(list(names or ("op", "key", "before", "after"))).to_pylist()


def reasons(decoded: DecodedFeed) -> list[tuple[int, str]]:
    columns = ("source_offset", "reason")
    return [tuple(row[c] for c in columns) for row in decoded.rejected.table.to_pylist()]


def schema_of(fields: dict[str, str]) -> Row:
    row = [{"field": name, "type": kind, "optional": True} for name, kind in fields.items()]
    images = [{"field": name, "type": "struct", "fields": row} for name in ("before", "after")]
    return {"type": "struct", "fields": [*images, {"field": "op", "type": "string"}]}
