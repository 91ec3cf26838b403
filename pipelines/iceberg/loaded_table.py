"""A table that PyIceberg loaded: its facts as scan_core describes them, and where its files go."""

import json
from dataclasses import replace
from typing import Any

from pipelines.errors import SourceError
from pipelines.iceberg.metadata_swap import current_location
from pipelines.iceberg.positions import current_snapshot
from pipelines.iceberg.sqlite_catalog import StoredTable
from pipelines.iceberg.storage import Storage
from scan_core import PartitionField, PartitionSpec, Schema, Table, Type, parse_schema, places_of
from scan_core.io import FileIOConfig, table_facts
from scan_core.metadata import parse_metadata


def open_current(table: Any) -> Table:
    """A table for scans of its current snapshot as loaded, without the cost of parsing all its other snapshots."""
    facts = table_facts(table)
    if facts is None:
        raise SourceError(f"table {'.'.join(table.name())} has no metadata file")
    location, properties = facts
    if isinstance(table, StoredTable):
        return Table(
            table.facts,
            location,
            replace(table.io, places=places_of(table.facts, location, table.io, is_registered=True)),
        )
    metadata = table.metadata
    current = current_snapshot(table)
    kept = {"snapshots": [] if current is None else [current], "snapshot_log": [], "metadata_log": [], "refs": {}}
    text = metadata.model_copy(update={**kept, "statistics": [], "partition_statistics": []}).model_dump_json()
    parsed, io = parse_metadata(text.encode(), location), FileIOConfig(properties=properties)
    return Table(parsed, location, replace(io, places=places_of(parsed, location, io, is_registered=True)))


def refresh(table: Any) -> None:
    """Bring a table to its current metadata; without reading it where the catalog tells that nothing has changed."""
    if current_location(table.catalog, table.name()) != table.metadata_location:
        table.refresh()


def storage_of(table: Any) -> Storage:
    """Writing and reading files of a table."""
    return Storage(FileIOConfig(properties={str(k): str(v) for k, v in table.io.properties.items()}))


def current_schema(table: Any) -> Schema:
    """The table's current schema."""
    if isinstance(table, StoredTable):
        return table.facts.schema
    return parse_schema(json.loads(table.schema().model_dump_json()))


def specs_of(table: Any) -> dict[int, PartitionSpec]:
    """All partition specs of a table, by id."""
    return {
        spec_id: PartitionSpec(
            spec_id,
            tuple(PartitionField(f.field_id, f.source_id, f.name, str(f.transform)) for f in spec.fields),
        )
        for spec_id, spec in table.specs().items()
    }


def source_types(table: Any) -> dict[int, Type]:
    """Type of every field of every schema of a table, the newest winning."""
    types: dict[int, Type] = {}
    for schema in sorted(table.metadata.schemas, key=lambda s: s.schema_id):
        if any(spec.fields for spec in table.metadata.partition_specs):
            facts = parse_schema(json.loads(schema.model_dump_json()))
            types.update({i: facts.field(i).type for i in facts.field_ids})
    return types


def data_location(table: Any) -> str:
    """The folder for data and delete files."""
    return str(table.properties.get("write.data.path") or f"{table.location().rstrip('/')}/data").rstrip("/")


def metadata_location(table: Any) -> str:
    """The folder for manifests."""
    return str(table.properties.get("write.metadata.path") or f"{table.location().rstrip('/')}/metadata").rstrip("/")


def check_writable(table: Any) -> None:
    """Refuse tables whose format version the writer does not know.

    Raises:
        SourceError: a v1 table has no delete files, v3 needs row ids.
    """
    version = table.format_version
    if version != 2:
        raise SourceError(f"table {'.'.join(table.name())} has format version {version}; only version 2 is written")


def upgrade(table: Any, version: int) -> None:
    """Bring a table to a later format version."""
    with table.transaction() as change:
        change.upgrade_table_version(version)
    table.refresh()
