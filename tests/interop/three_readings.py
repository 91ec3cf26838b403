"""The rows of one snapshot as Iceberg Java, scan_core and the reference read them, in one form that compares as text."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from nevermore import scan_core
from nevermore.checks.reference.expected_rows import RefusedError, live_rows
from nevermore.checks.reference.facts import FileFacts, TableFacts
from nevermore.scan_core import Scan, ScanError
from tests.support.rendering import rendered

Rows = list[str] | str
"""One text per row, or why there are none."""


@dataclass(frozen=True, slots=True)
class Readings:
    """What each reader says."""

    java: Rows
    ours: Rows
    reference: Rows

    @property
    def agree(self) -> bool:
        """All three say the same."""
        return self.java == self.ours == self.reference


def readings(history: Mapping[str, Any], read: Mapping[str, Any]) -> Readings:
    """All three for one entry of a history's `reads`, with the identity of every row."""
    scan = scan_of(history, read)
    if "error" in read:
        names, java = [*scan.schema.names, "_file", "_pos"], read["error"]
    else:
        names, java = [f["name"] for f in read["fields"]], rendered(_java_table(read))
    return Readings(java, _rows(lambda: scan.select(*names).to_table()), reference_rows(history, read, names))


def scan_of(history: Mapping[str, Any], read: Mapping[str, Any]) -> Scan:
    """Our scan of what Java read."""
    scan = scan_core.open_table(history["metadata"]).scan()
    if "time" in read:
        return scan.as_of_time(read["time"])
    if "snapshot" in read:
        return scan.as_of_snapshot(read["snapshot"])
    return scan.at_ref(read["ref"]) if "ref" in read else scan


def reference_rows(
    history: Mapping[str, Any],
    read: Mapping[str, Any],
    names: list[str],
    counts: Callable[[FileFacts], bool] | None = None,
) -> Rows:
    """What the reference reads, of all files or of those that count."""
    files = TableFacts.files

    def some_files(table: TableFacts, snapshot: Mapping[str, Any] | None) -> list[FileFacts]:
        return [f for f in files(table, snapshot) if counts is None or counts(f)]

    with patch.object(TableFacts, "files", some_files):
        return _rows(
            lambda: live_rows(history["metadata"], snapshot_id=read.get("snapshot"), ref=read.get("ref"), columns=names)
        )


def _rows(read: Callable[[], pa.Table]) -> Rows:
    try:
        return rendered(read())
    except (ScanError, RefusedError) as error:
        return f"{type(error).__name__}: {error}"


def _java_table(read: Mapping[str, Any]) -> pa.Table:
    """Java's rows in the order of their schema. A column of type unknown is in no Parquet file."""
    names = [f["name"] for f in read["fields"]]
    if not read["rows"]:
        return pa.table({name: pa.nulls(0) for name in names})
    stored = pq.read_table(read["dump"]).to_batches()
    columns = _chosen(pa.concat_batches(stored).to_struct_array(), read["fields"])
    return pa.Table.from_arrays(columns, names=names)


def _chosen(struct: pa.StructArray, fields: list[dict[str, Any]]) -> list[pa.Array]:
    """The members with these field ids."""
    by_id = {int(f.metadata[b"PARQUET:field_id"]): i for i, f in enumerate(struct.type)}
    return [
        _renamed(struct.field(by_id[f["id"]]), f["type"]) if f["id"] in by_id else pa.nulls(len(struct)) for f in fields
    ]


def _renamed(array: pa.Array, kind: Any) -> pa.Array:
    """With the names of struct members as the schema has them: Parquet files of Java's have only tame ones."""
    match kind:
        case {"type": "struct", "fields": fields}:
            names = [f["name"] for f in fields]
            return pa.StructArray.from_arrays(_chosen(array, fields), names=names, mask=array.is_null())
        case {"type": "list", "element": element}:
            return pa.ListArray.from_arrays(array.offsets, _renamed(array.values, element), mask=array.is_null())
        case {"type": "map", "value": value}:
            found = pa.MapArray.from_arrays(array.offsets, array.keys, _renamed(array.items, value))
            return pc.if_else(array.is_null(), None, found) if array.null_count else found
        case _:
            return array
