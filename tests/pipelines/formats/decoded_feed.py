"""Events of a feed decoded, and what became of them, as plain values."""

import json
from typing import Any

from nevermore.pipelines.decode.batches import RawEvents, from_documents
from nevermore.pipelines.decode.feed import FeedConfig, TableFeed
from nevermore.pipelines.formats.registry import DecodedFeed, decode, sniff

TABLE = "shop.products"


Row = dict[str, Any]


def read(
    format_name: str | None,
    *events: Any,
    options: dict[str, Any] | None = None,
    raw: RawEvents | None = None,
    **feed: Any,
) -> DecodedFeed:
    documents = [e if isinstance(e, bytes) else json.dumps(e).encode() for e in events]
    feeds = (TableFeed(name=TABLE, **{"key": ("id",), **feed}),)
    raw = raw or from_documents(documents, "f")
    config = FeedConfig(format=format_name or sniff(raw), tables=feeds, options=options or {})
    return decode(raw, config)


def changes(decoded: DecodedFeed, *names: str) -> list[Row]:
    return decoded.tables[TABLE].table.select(list(names or ("op", "key", "before", "after"))).to_pylist()


def reasons(decoded: DecodedFeed) -> list[str]:
    return decoded.rejected.table.column("reason").to_pylist()


# -- Canal ---------------------------------------------------------------------------------------------------------------


def canal(kind: str, data: Any, old: Any = None, **more: Any) -> Row:
    types = {"id": "BIGINT", "n": "VARCHAR(9)"}
    base = {
        "data": data,
        "old": old,
        "type": kind,
        "database": "d",
        "table": "products",
        "isDdl": False,
        "es": 1700000000000,
    }
    return {**base, "mysqlType": types, "pkNames": ["id"], **more}


# -- DMS -----------------------------------------------------------------------------------------------------------------


def dms(operation: str, data: Row, **more: Any) -> Row:
    metadata = {"timestamp": "2024-10-27T12:39:03.210671Z", "record-type": "data", "operation": operation}
    return {"data": data, "metadata": {**metadata, "schema-name": "d", "table-name": "products"}, **more}


# -- wal2json ------------------------------------------------------------------------------------------------------------


def wal(action: str, columns: Row | None = None, identity: Row | None = None, **more: Any) -> Row:
    kinds = {"id": "integer", "n": "numeric(8,3)", "t": "text"}

    def cells(row: Row) -> list[Row]:
        return [{"name": name, "type": kinds[name], "value": value} for name, value in row.items()]

    event: Row = {"action": action, "schema": "public", "table": "products", **more}
    return (
        event
        | ({} if columns is None else {"columns": cells(columns)})
        | ({} if identity is None else {"identity": cells(identity)})
    )
