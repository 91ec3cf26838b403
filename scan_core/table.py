"""Opening a table: metadata file, table folder, catalog name or PyIceberg table -> Table."""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from scan_core.catalog import load_table, table_facts
from scan_core.errors import MalformedTableError, TableNotFoundError
from scan_core.file_io import is_folder
from scan_core.location import parse_location
from scan_core.location import relocate as relocate_path
from scan_core.metadata import LogEntry, TableMetadata
from scan_core.metadata_json import read_metadata
from scan_core.scan import Scan
from scan_core.schema import Schema
from scan_core.split import FileIOConfig

_IDENTIFIER = re.compile(r"[^/\\:.\s]+(\.[^/\\:.\s]+)+")
_PLACES = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")
"""Properties by which a table keeps files outside of its location."""
Relocation = Mapping[str, str] | Iterable[tuple[str, str]]


@dataclass(frozen=True, slots=True, repr=False)
class Table:
    """An open table: the facts of one metadata file, and how to open what they name.

    Attributes:
        metadata: as read when the table was opened; later commits are not seen.
        metadata_path: the file it was read from.
        io: relocation and FileIO properties of every file of the table.
    """

    metadata: TableMetadata
    metadata_path: str
    io: FileIOConfig

    def __repr__(self) -> str:
        return f"Table({self.location!r}, format v{self.metadata.format_version}, {len(self.metadata.snapshots)} snapshots)"

    @property
    def location(self) -> str:
        """The table's base location as its metadata states it, before relocation."""
        return self.metadata.location

    @property
    def schema(self) -> Schema:
        """The table's current schema."""
        return self.metadata.schema

    def scan(self) -> Scan:
        """All rows and columns of the current snapshot, to be narrowed."""
        return Scan(self)

    def history(self) -> tuple[LogEntry, ...]:
        """Which snapshot was current from when on, oldest first."""
        return self.metadata.history()


def open_table(
    table: str | os.PathLike[str] | Any,
    *,
    relocate: Relocation | None = None,
    properties: Mapping[str, str] | None = None,
) -> Table:
    """Open a table to read.

    Args:
        table: a metadata file of any name, a table's folder, a URI of either, `catalog.namespace.table` as PyIceberg's
            configuration knows it, or a PyIceberg `Table`.
        relocate: old path prefix -> new path prefix, for tables that were moved; the longest old prefix wins. Files outside
            of the table's folder are opened only below a new prefix: `{place: place}` allows a place as it is.
        properties: FileIO and catalog properties (`s3.endpoint`, `uri`, ...), over those of the catalog.

    Raises:
        TableNotFoundError: there is no such table.
        MalformedTableError: its metadata breaks the specification.
    """
    own = dict(properties or {})
    pairs = _longest_first(relocate)
    facts = None if isinstance(table, str | os.PathLike) else table_facts(table)
    if facts is not None:
        location, inherited = facts
        return _open(location, FileIOConfig(pairs, inherited | own), is_registered=True)
    if not isinstance(table, str | os.PathLike):
        raise TableNotFoundError(f"{type(table).__name__} is no location, identifier or PyIceberg table")
    text = os.fspath(table)
    io = FileIOConfig(pairs, own)
    try:
        return _open(text, io)
    except TableNotFoundError:
        if text.lower().startswith("file:") and unquote(text) != text:
            return _open(unquote(text), io)  # how URIs of paths with spaces are printed
        if not _IDENTIFIER.fullmatch(text):
            raise
    facts = table_facts(load_table(text, own))
    if facts is None:
        raise TableNotFoundError(f"catalog table {text!r} has no metadata file")
    location, inherited = facts
    return _open(location, FileIOConfig(pairs, inherited | own), is_registered=True)


def _open(location: str, io: FileIOConfig, *, is_registered: bool = False) -> Table:
    metadata, path = read_metadata(location, io)
    moved = _moved(metadata.location, _table_folder(path), io)
    places = places_of(metadata, path, io, is_registered=is_registered)
    return Table(metadata, path, replace(io, moved=moved, places=places))


def places_of(metadata: TableMetadata, path: str, io: FileIOConfig, *, is_registered: bool) -> tuple[str, ...]:
    """Folders that files of a table may lie in: where its metadata was found, and what the caller relocates to.

    Of a table that a catalog has registered, also the places that its metadata states: whoever may commit to the catalog
    decides about them.
    """
    folder = _table_folder(path)
    found = parse_location(folder) if parse_location(folder).is_local else relocate_path(folder, io)
    places = [str(Path(found.path).absolute()) if found.is_local else str(found), *(new for _, new in io.relocate)]
    if is_registered:
        stated = (metadata.location, *(metadata.properties.get(name) for name in _PLACES))
        places += [str(relocate_path(place, io)) for place in stated if place]
    return tuple(dict.fromkeys(places))


def _moved(stated: str, found: str, io: FileIOConfig) -> tuple[str, str] | None:
    try:
        is_there = relocate_path(stated, io).may_equal(relocate_path(found, io))
    except MalformedTableError:  # nothing lies at the location itself: it only helps in messages
        return None
    return None if is_there else (stated, found)


def _table_folder(metadata_path: str) -> str:
    folder = metadata_path.rpartition("/")[0]
    above, _, name = folder.rpartition("/")
    return above if name == "metadata" else folder


def _longest_first(relocate: Relocation | None) -> tuple[tuple[str, str], ...]:
    pairs = relocate.items() if isinstance(relocate, Mapping) else relocate or ()
    return tuple(sorted(((str(o), _decoded(str(n))) for o, n in pairs), key=lambda pair: -len(pair[0])))


def _decoded(folder: str) -> str:
    """A file URI as URIs are printed, spaces as %20, means the folder of that name, unless there is one with a %."""
    plain = unquote(folder)
    if plain == folder or not folder.lower().startswith("file:") or is_folder(folder, FileIOConfig()):
        return folder
    return plain
