"""What Iceberg Java's generic reader finds in a table, row by row, with the identity of every row."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError

from tests.interop.histories.gateway import Java
from tests.interop.histories.table import JavaTable

IDENTITY = ("FILE_PATH", "ROW_POSITION")
LINEAGE = ("ROW_ID", "LAST_UPDATED_SEQUENCE_NUMBER")
DROPPED_KEY = "Cannot find required field for ID"


def with_metadata_columns(java: Java, schema: Any, names: Sequence[str]) -> Any:
    """A schema followed by these columns."""
    columns = java.jvm.java.util.ArrayList(schema.columns())
    for name in names:
        columns.add(getattr(java.iceberg.MetadataColumns, name))
    return java.iceberg.Schema(columns)


@dataclass(frozen=True, slots=True)
class Found:
    """Records and their schema: the one asked for, or that and all columns once dropped, if Java needs them."""

    records: Any
    schema: Any
    helped: bool = False


def read_rows(table: JavaTable, snapshot_id: int, schema: Any) -> Found:
    """The rows of a snapshot. Columns that were not asked for come after those that were, within structs too."""
    try:
        return Found(_read(table.java, table.table, snapshot_id, schema), schema)
    except Py4JJavaError as error:
        if DROPPED_KEY not in str(error.java_exception):
            raise
    metadata = json.loads(table.java.iceberg.TableMetadataParser.toJson(table.table.operations().current()))
    schema = _with_dropped_columns(table, schema, metadata)
    return Found(_read(table.java, _forgetting_nothing(table, metadata), snapshot_id, schema), schema, helped=True)


def dump(table: JavaTable, snapshot_id: int, schema: Any, path: Path) -> dict[str, Any]:
    """Write what Java reads to a Parquet file; returns the columns and what had to be done."""
    java, iceberg = table.java, table.java.iceberg
    wanted = with_metadata_columns(java, schema, IDENTITY + (LINEAGE if table.version > 2 else ()))
    found = read_rows(table, snapshot_id, wanted)
    output = iceberg.encryption.EncryptedFiles.plainAsEncryptedOutput(iceberg.Files.localOutput(str(path)))
    writer = (
        iceberg.formats.FormatModelRegistry.dataWriteBuilder(iceberg.FileFormat.PARQUET, java.record, output)
        .schema(found.schema)
        .spec(iceberg.PartitionSpec.unpartitioned())
        .set("parquet.enable.dictionary", "false")  # in a dictionary 0.0 and -0.0 are one value
        .build()
    )
    java.write_all(writer, found.records)
    writer.close()
    fields = [{"id": f["id"], "name": f["name"], "type": f["type"]} for f in table.fields(wanted)]
    return {"dump": str(path), "rows": len(found.records), "fields": fields, "helped": found.helped}


def _read(java: Java, table: Any, snapshot_id: int, schema: Any) -> Any:
    return java.rows(java.iceberg.data.IcebergGenerics.read(table).project(schema).useSnapshot(snapshot_id).build())


def _forgetting_nothing(table: JavaTable, metadata: dict[str, Any]) -> Any:
    """The table as if no column had ever been dropped: the generic reader looks for keys in the current schema only."""
    iceberg = table.java.iceberg
    whole = json.loads(iceberg.SchemaParser.toJson(_with_dropped_columns(table, table.table.schema(), metadata)))
    whole["schema-id"] = 1 + max(s["schema-id"] for s in metadata["schemas"])
    shown = {**metadata, "schemas": [*metadata["schemas"], whole], "current-schema-id": whole["schema-id"]}
    operations = iceberg.StaticTableOperations(
        iceberg.TableMetadataParser.fromJson(json.dumps(shown)), table.table.operations().io()
    )
    return iceberg.BaseTable(operations, "whole")


def _with_dropped_columns(table: JavaTable, schema: Any, metadata: Mapping[str, Any]) -> Any:
    """A schema and all columns and struct members that the table has or had, in their last types."""
    parser = table.java.iceberg.SchemaParser
    whole = json.loads(parser.toJson(schema))
    current = metadata["current-schema-id"]
    for older in sorted(metadata["schemas"], key=lambda s: (s["schema-id"] != current, -s["schema-id"])):
        whole = {**whole, "fields": _merged(whole["fields"], older["fields"])}
    return parser.fromJson(json.dumps(whole))


def _merged(fields: Sequence[Mapping[str, Any]], older: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    merged = {f["id"]: dict(f) for f in fields}
    for field in older:
        known = merged.get(field["id"])
        if known is None:
            merged[field["id"]] = {**field, "name": f"dropped_{field['id']}", "required": False}
        elif isinstance(known["type"], dict) and known["type"]["type"] == "struct" == field["type"]["type"]:
            known["type"] = {**known["type"], "fields": _merged(known["type"]["fields"], field["type"]["fields"])}
    return list(merged.values())
