"""A table that PyIceberg loaded: its facts as scan_core describes them, and where its files go."""

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.iceberg.metadata_swap import current_location
from nevermore.pipelines.iceberg.positions import ancestors, current_snapshot, position_in, summary_properties
from nevermore.pipelines.iceberg.storage import Storage
from nevermore.scan_core import Schema, Table
from nevermore.scan_core.io import FileIOConfig, table_facts
from nevermore.scan_core.metadata import parse_metadata, parse_schema, places_of

if TYPE_CHECKING:
    from pyiceberg.table import Table as CatalogTable


def open_current(table: "CatalogTable", *, is_written: bool = False) -> "Table":
    """Open a table for scans of its current snapshot, without the cost of parsing all its other snapshots.

    Args:
        table: the table.
        is_written: open it for a commit, which needs only the current schema, if that has all columns of the specs.
    """
    from pyiceberg.typedef import IcebergBaseModel

    facts = table_facts(table)
    if facts is None:
        raise SourceError(f"table {'.'.join(table.name())} has no metadata file")
    location, properties = facts
    metadata: Any = table.metadata
    current = current_snapshot(table)
    kept: dict[str, Any] = {
        "snapshots": [] if current is None else [current],
        "snapshot_log": [],
        "metadata_log": [],
        "refs": {},
    }
    sources = {field.source_id for spec in metadata.partition_specs for field in spec.fields}
    if is_written and sources <= {*table.schema().field_ids}:
        kept["schemas"] = [table.schema()]
    shown = metadata.model_copy(update={**kept, "statistics": [], "partition_statistics": []})
    # PyIceberg itself refuses to write that of format version 3, although it knows all of it
    text = IcebergBaseModel.model_dump_json(shown).encode()
    known, io = parse_metadata(text, location), FileIOConfig(properties=properties)
    return Table(known, location, replace(io, places=places_of(known, location, io, is_registered=True)))


def refresh(table: "CatalogTable") -> None:
    """Load the current metadata of a table, unless the catalog shows that it has not changed."""
    if current_location(table.catalog, table.name()) != table.metadata_location:
        table.refresh()


def source_position(log: "CatalogTable") -> str | None:
    """The position in its source up to which a change log has it; None if no snapshot states one."""
    storage = storage_of(log)
    found = (position_in(summary_properties(each), storage) for each in ancestors(log))
    return next((position for position in found if position is not None), None)


def storage_of(table: "CatalogTable") -> Storage:
    """Access to the files of a table."""
    return Storage(FileIOConfig(properties={str(k): str(v) for k, v in table.io.properties.items()}))


def current_schema(table: "CatalogTable") -> Schema:
    """The table's current schema."""
    return parse_schema(json.loads(table.schema().model_dump_json()))


def data_location(table: "CatalogTable") -> str:
    """The folder for data and delete files."""
    return str(table.properties.get("write.data.path") or f"{table.location().rstrip('/')}/data").rstrip("/")


def metadata_location(table: "CatalogTable") -> str:
    """The folder for metadata files and manifests."""
    return str(table.properties.get("write.metadata.path") or f"{table.location().rstrip('/')}/metadata").rstrip("/")


def check_writable(table: "CatalogTable") -> None:
    """Refuse tables whose format version the writer does not support.

    Raises:
        SourceError: tables of version 1 have no delete files, those above 3 are unknown.
    """
    version = table.format_version
    if version not in {2, 3}:
        raise SourceError(f"table {'.'.join(table.name())} has format version {version}; versions 2 and 3 are written")
