"""The names that ExtractNewRecordState gives to what it adds to a row."""

ORIGIN_PREFIXES = ("__", "__source_")
"""Before `db`, `schema` and `table`, as `add.fields` is written with or without `source.`."""

_OF_SOURCE = [
    "db",
    "schema",
    "table",
    "ts_ms",
    "ts_us",
    "ts_ns",
    "lsn",
    "txId",
    "connector",
    "name",
    "version",
    "file",
    "pos",
    "row",
    "snapshot",
    "gtid",
    "server_id",
    "thread",
    "sequence",
    "xmin",
    "scn",
    "commit_scn",
    "change_lsn",
    "commit_lsn",
    "event_serial_no",
]
_OF_EVENT = ["deleted", "op", "transaction_id", "transaction_total_order", "transaction_data_collection_order"]

ADDED = frozenset([f"__{name}" for name in _OF_EVENT] + [p + name for p in ORIGIN_PREFIXES for name in _OF_SOURCE])
"""Members that are none of the row."""
