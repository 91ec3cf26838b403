"""A new table for a random history: its columns, its spec and how its files are to be written."""

import json
import random
from pathlib import Path
from typing import Any

from tests.interop.histories.evolution import term, transforms
from tests.interop.histories.gateway import Java
from tests.interop.histories.table import JavaTable
from tests.interop.histories.values import KEY_TYPES, KEY_TYPES_V3, PROMOTIONS

PROPERTIES: dict[str, list[str]] = {
    "write.metadata.metrics.default": ["truncate(16)", "truncate(1)", "full", "counts", "none"],
    "write.parquet.compression-codec": ["zstd", "snappy", "gzip", "uncompressed", "lz4_raw"],
    "write.orc.compression-codec": ["zlib", "zstd", "snappy", "lz4", "none"],
    "write.avro.compression-codec": ["gzip", "zstd", "snappy", "uncompressed"],
    "write.metadata.compression-codec": ["none", "gzip"],
    "write.object-storage.enabled": ["false", "false", "true"],
    "write.parquet.page-row-limit": ["20000", "2"],
    "commit.manifest.min-count-to-merge": ["100", "2"],
}
SMALL_ROW_GROUPS = {
    "write.parquet.row-group-size-bytes": "1",
    "write.parquet.row-group-check-min-record-count": "1",
    "write.parquet.row-group-check-max-record-count": "2",
}


def create(java: Java, rng: random.Random, folder: Path) -> tuple[JavaTable, list[str]]:
    """The empty table, and the formats that its files have."""
    version = rng.choice([1, 2, 2, 3, 3])
    types = KEY_TYPES_V3 if version > 2 else KEY_TYPES
    # columns that can be promoted come often, so that some are
    first, second, third = (rng.choice(list(PROMOTIONS) if rng.random() < 0.3 else types) for _ in range(3))
    inner = rng.choice([t for t in types if t != "uuid"])
    columns = [
        _column(1, "a", first, required=rng.random() < 0.2),
        _column(2, "b", second),
        _column(3, "n", third),
        # Java takes a NULL struct and a struct of NULLs for different keys: in half of the tables there is no NULL struct
        _column(4, "s", _struct(_column(5, "x", inner), _column(6, "y", "int")), required=rng.random() < 0.5),
    ]
    if rng.random() < 0.5:
        columns.append(_column(7, "l", {"type": "list", "element-id": 8, "element-required": False, "element": "int"}))
        value = _struct(_column(12, "v", "float"), _column(13, "w", "string"))
        pairs = {"type": "map", "key-id": 10, "key": "string", "value-id": 11, "value-required": False, "value": value}
        columns.append(_column(9, "m", pairs))
    if version > 2 and rng.random() < 0.2:
        columns.append(_column(14, "u", "unknown"))
    iceberg = java.iceberg
    schema = iceberg.SchemaParser.fromJson(json.dumps({"type": "struct", "schema-id": 0, "fields": columns}))
    properties = {name: rng.choice(values) for name, values in PROPERTIES.items()} | {"format-version": str(version)}
    if rng.random() < 0.4:
        properties |= SMALL_ROW_GROUPS
    location = rng.choice(["", "file:", "file://"]) + str(folder / "table")
    unpartitioned = iceberg.PartitionSpec.unpartitioned()
    java.tables.create(schema, unpartitioned, iceberg.SortOrder.unsorted(), properties, location)
    table = JavaTable(java, java.tables.load(location), folder / "rows.parquet")
    _partition(table, rng, [("a", first), ("b", second), ("n", third), ("s.x", inner)])
    formats = rng.choice([["PARQUET"], ["PARQUET"], ["ORC"], ["AVRO"], ["PARQUET", "ORC", "AVRO"]])
    return table, formats


def _partition(table: JavaTable, rng: random.Random, columns: list[tuple[str, str]]) -> None:
    chosen = rng.sample(columns, rng.choice([0, 0, 1, 1, 2]))
    if not chosen:
        return
    update = table.table.updateSpec()
    for name, kind in chosen:
        update.addField(term(table.java, name, rng.choice(transforms(kind)), rng))
    update.commit()


def _column(field_id: int, name: str, kind: Any, *, required: bool = False) -> dict[str, Any]:
    return {"id": field_id, "name": name, "required": required, "type": kind}


def _struct(*members: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(members)}
