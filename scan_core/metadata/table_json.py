"""Finds the metadata file of a table and parses it (format v1 to v3) into TableMetadata, with field-by-field errors."""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import orjson

from nevermore.scan_core.io.files import (
    exists,
    file_size,
    is_fixed,
    is_folder,
    list_folder,
    list_folders,
    read_bytes,
    read_twice,
)
from nevermore.scan_core.io.location import FileIOConfig, parse_location
from nevermore.scan_core.metadata import avro_container
from nevermore.scan_core.metadata.avro_container import BlockTooLargeError, check_json_size
from nevermore.scan_core.model.errors import (
    MalformedTableError,
    MissingFileError,
    ScanError,
    TableNotFoundError,
    UnsupportedError,
)
from nevermore.scan_core.model.schema import Schema, parse_schema
from nevermore.scan_core.model.snapshot import PartitionField, PartitionSpec, Snapshot
from nevermore.scan_core.model.table_metadata import LogEntry, SnapshotRef, TableMetadata

MAX_LONG = 2**63 - 1
_LONG = "a signed 64-bit integer"


class Document:
    """One JSON object and its place in its file."""

    __slots__ = ("_content", "_file", "_path")

    def __init__(self, file: str, content: Any, path: str = "") -> None:
        if not isinstance(content, Mapping):
            place = f"{path}: " if path else ""
            raise MalformedTableError(f"{file}: {place}expected an object, found {content!r:.60}")
        self._file, self._content, self._path = file, content, path

    def __contains__(self, name: str) -> bool:
        return self._content.get(name) is not None

    @property
    def content(self) -> Mapping[str, Any]:
        """The object itself."""
        return self._content

    def integer(self, name: str, default: int | None = None) -> int:
        """A signed 64-bit integer; malformed if it is absent and there is no default."""
        value = self.optional_integer(name)
        if value is None and default is None:
            raise self.malformed(name, _LONG)
        return default if value is None else value  # type: ignore[return-value] # one of them is there

    def optional_integer(self, name: str) -> int | None:
        """A signed 64-bit integer, or None if absent or null."""
        value: int | None = self._optional(name, _is_long, _LONG)
        return value

    def text(self, name: str) -> str:
        """A string; malformed if absent."""
        value = self.optional_text(name)
        if value is None:
            raise self.malformed(name, "a string")
        return value

    def optional_text(self, name: str) -> str | None:
        """A string, or None if absent or null."""
        value: str | None = self._optional(name, lambda value: isinstance(value, str), "a string")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings; empty if absent."""
        return tuple(self._list(name, lambda value: isinstance(value, str), "a list of strings"))

    def integers(self, name: str) -> tuple[int, ...]:
        """A list of integers; empty if absent."""
        return tuple(self._list(name, _is_long, "a list of integers"))

    def mapping(self, name: str) -> Mapping[str, Any]:
        """An object as it is; empty if absent."""
        return self._optional(name, lambda value: isinstance(value, Mapping), "an object") or {}

    def text_mapping(self, name: str) -> dict[str, str]:
        """An object of strings; numbers and booleans, which some writers do not quote, as text."""
        result = {}
        for key, value in self.mapping(name).items():
            if isinstance(value, bool):
                result[key] = str(value).lower()
            elif isinstance(value, str | int | float):
                result[key] = str(value)
            elif value is not None:
                raise self.malformed(f"{name}.{key}", "a string")
        return result

    def objects(self, name: str) -> list["Document"]:
        """A list of objects; empty if absent."""
        return [Document(self._file, item, f"{self._place(name)}[{i}]") for i, item in enumerate(self._list(name))]

    def required_objects(self, name: str) -> list["Document"]:
        """A list of objects, which may be empty; malformed if absent or null."""
        if name not in self:
            raise self.malformed(name, "a list")
        return self.objects(name)

    def named_objects(self, name: str) -> dict[str, "Document"]:
        """An object of objects; empty if absent."""
        return {k: Document(self._file, v, f"{self._place(name)}.{k}") for k, v in self.mapping(name).items()}

    def malformed(self, name: str, expected: str) -> MalformedTableError:
        """The error for a field that is missing or wrong."""
        found = repr(self._content[name])[:60] if name in self._content else "nothing"
        return MalformedTableError(f"{self._file}: {self._place(name)}: expected {expected}, found {found}")

    def _list(self, name: str, is_item: Callable[[Any], bool] = bool, expected: str = "a list") -> list[Any]:
        values: list[Any] = self._optional(name, lambda value: isinstance(value, list), "a list") or []
        if expected != "a list" and not all(map(is_item, values)):
            raise self.malformed(name, expected)
        return values

    def _optional(self, name: str, is_valid: Callable[[Any], bool], expected: str) -> Any:
        value = self._content.get(name)
        if value is not None and not is_valid(value):
            raise self.malformed(name, expected)
        return value

    def _place(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name


def _is_long(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -MAX_LONG - 1 <= value <= MAX_LONG


MAX_METADATA_BYTES = 1 << 28
"""Size of a metadata file, decompressed or not: that of half a million snapshots is smaller."""
_MAX_HINT_BYTES = 1024
_MAX_FOLDERS = 100
_MAX_LISTED = 12
"""Of the folders and tables in a folder that is not a table itself, those that are looked at and named."""
_CODECS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstandard"}
"""By the first bytes of a metadata file."""
_METADATA_NAME = re.compile(r".*\.metadata\.json(\.gz|\.zst)?|.*\.metadata\.(gz|zstd?)\.json", re.IGNORECASE)
_LOOSE_NAME = re.compile(r".*\.json(\.gz|\.zst)?", re.IGNORECASE)
_HINT_NAME = re.compile(r"version[-_]?hint.*", re.IGNORECASE)
_VERSION = re.compile(r"v?(\d+)(?![0-9a-f])", re.IGNORECASE)


def find_metadata_file(location: str, io: FileIOConfig) -> str:
    """The path of the metadata file.

    Raises:
        TableNotFoundError: there is nothing at the location, or a folder without metadata.
    """
    if not location.strip():
        raise TableNotFoundError("an empty location names no table")
    if is_fixed(location, io):
        with suppress(MissingFileError):  # reported below
            read_bytes(location, io, max_bytes=MAX_METADATA_BYTES)  # which is kept, so that it is one request
            return location
    configs = (FileIOConfig(properties=io.properties), io)  # what a person types is usually a path of this machine
    for config in configs if parse_location(location).is_local else (io,):
        if is_folder(location, config):
            return _newest(location.rstrip("/"), config)
        if exists(location, config):
            return location
    raise TableNotFoundError(f"nothing at {location}: no metadata file, no table folder")


def decompress_document(data: bytes, file: str) -> bytes:
    """The document in a metadata file; its first bytes, not its name, tell the compression.

    Raises:
        MalformedTableError: damaged, or absurdly large when decompressed.
    """
    codec = next((codec for magic, codec in _CODECS.items() if data.startswith(magic)), "null")
    try:
        return avro_container.decompress(data, codec, MAX_METADATA_BYTES)
    except BlockTooLargeError as error:
        raise MalformedTableError(f"{file}: larger than {MAX_METADATA_BYTES} bytes when decompressed") from error
    except ValueError as error:
        raise MalformedTableError(f"{file}: cannot be decompressed: {error}") from error


def _newest(folder: str, io: FileIOConfig) -> str:
    for candidate in (f"{folder}/metadata", folder):
        names = list_folder(candidate, io)
        found = _hinted(candidate, names, io) or _highest(candidate, names, io)
        if found:
            return f"{candidate}/{found}"
    raise TableNotFoundError(
        f"{folder or '/'} contains no table: there is no *.metadata.json in {folder}/metadata{_tables_in(folder, io)}"
    )


def _tables_in(folder: str, io: FileIOConfig) -> str:
    """A hint for a folder of tables."""
    names = list_folders(folder, io)[:_MAX_FOLDERS]
    tables = [name for name in names if is_folder(f"{folder}/{name}/metadata", io)]
    if not tables:
        return ""
    more = f" and {len(tables) - _MAX_LISTED} more" if len(tables) > _MAX_LISTED else ""
    return f"; the tables in it are {', '.join(tables[:_MAX_LISTED])}{more}: name one of them"


def _hinted(folder: str, names: list[str], io: FileIOConfig) -> str | None:
    for hint in (n for n in names if _HINT_NAME.fullmatch(n)):
        path = f"{folder}/{hint}"
        size = min(file_size(path, io), _MAX_HINT_BYTES)
        text = read_bytes(path, io, 0, size).decode("utf-8", "replace").strip()
        named = next(
            (n for n in names if n == text or (_METADATA_NAME.fullmatch(n) and n.startswith(text + "."))), None
        )
        if text and named:
            return named
        match = re.fullmatch(r"v?(\d+)", text, re.IGNORECASE)
        if match is None:
            continue
        version = int(match[1])
        found = None
        while following := _with_version(names, version):
            found, version = following, version + 1
        if found:
            return found
    return None


def _with_version(names: list[str], version: int) -> str | None:
    return next((n for n in names if _METADATA_NAME.fullmatch(n) and _version(n) == version), None)


def _highest(folder: str, names: list[str], io: FileIOConfig) -> str | None:
    candidates = [n for n in names if _METADATA_NAME.fullmatch(n)]
    if not candidates:
        loose = [n for n in names if _LOOSE_NAME.fullmatch(n)]
        candidates = [n for n in loose if "format-version" in _content(f"{folder}/{n}", io)]
    if not candidates:
        return None
    top = max(_version(n) for n in candidates)
    best = [n for n in candidates if _version(n) == top]
    if len(best) == 1:
        return best[0]
    return max(best, key=lambda name: _last_updated(f"{folder}/{name}", io))


def _version(name: str) -> int:
    match = _VERSION.match(name)
    return int(match[1]) if match else -1


def _last_updated(path: str, io: FileIOConfig) -> int:
    """`last-updated-ms` of a metadata file; -1 for a file that is not a metadata file."""
    try:
        return int(_content(path, io)["last-updated-ms"])
    except (ValueError, KeyError, TypeError):
        return -1


def _content(path: str, io: FileIOConfig) -> Mapping[str, Any]:
    """The JSON object in a file; empty for a file that holds none."""
    try:
        content = read_document(path, io)
    except (ScanError, ValueError):
        return {}
    return content if isinstance(content, Mapping) else {}


NEWEST_FORMAT_VERSION = 3
_NAME_MAPPING = "schema.name-mapping.default"
_DATA_FILES = {b"PAR1": "a Parquet", b"ORC": "an ORC", b"Obj\x01": "an Avro", b"PFA1": "a Puffin"}


def read_metadata(location: str, io: FileIOConfig) -> tuple[TableMetadata, str]:
    """The metadata in a file, or the newest of a table's folder, and the path it was read from.

    Raises:
        TableNotFoundError: no metadata there.
        MalformedTableError: it breaks the specification; names file and field.
        UnsupportedError: a format version newer than this reader.
    """
    path = find_metadata_file(location, io)
    read = partial(read_bytes, path, io, max_bytes=MAX_METADATA_BYTES)
    return read_twice(path, io, lambda: parse_metadata(read(), path)), path


def read_document(path: str, io: FileIOConfig) -> Any:
    """The JSON document in a metadata file, compressed or not.

    Raises:
        MissingFileError: there is no such file.
        MalformedTableError: it cannot be decompressed, or is too large.
        ValueError: no JSON document, or one of too many values.
    """
    return load_document(decompress_document(read_bytes(path, io, max_bytes=MAX_METADATA_BYTES), path))


def load_document(text: bytes | str) -> Any:
    """A JSON document of table metadata.

    Raises:
        ValueError: none, or one of too many values.
    """
    check_json_size(text)
    return orjson.loads(text)


def parse_metadata(data: bytes, file: str) -> TableMetadata:
    """The facts in the bytes of a metadata file, compressed or not; `file` names it in errors."""
    for magic, kind in _DATA_FILES.items():
        if data.startswith(magic):
            raise MalformedTableError(f"{file} is {kind} file and no table: name a metadata file or a table's folder")
    try:
        content = load_document(decompress_document(data, file))
    except MalformedTableError:
        raise
    except (ValueError, RecursionError) as error:
        raise MalformedTableError(f"{file}: not a JSON document that can be read: {error}") from error
    document = Document(file, content)
    version = document.integer("format-version")
    if version > NEWEST_FORMAT_VERSION:
        raise UnsupportedError(f"{file}: format version {version} is newer than {NEWEST_FORMAT_VERSION}")
    if version < 1:
        raise document.malformed("format-version", "1, 2 or 3")
    metadata = _parse(document, version, file)
    _check_references(metadata, document)
    return metadata


def _parse(document: Document, version: int, file: str) -> TableMetadata:
    schemas = _schemas(document, file)
    specs = _specs(document)
    current = document.optional_integer("current-snapshot-id")
    snapshots = {s.snapshot_id: s for s in map(_snapshot, document.objects("snapshots"))}
    properties = document.text_mapping("properties")
    current_id = None if current in {None, -1} else current
    log = tuple(LogEntry(e.integer("timestamp-ms"), e.integer("snapshot-id")) for e in document.objects("snapshot-log"))
    return TableMetadata(
        location=document.text("location").rstrip("/"),
        table_uuid=document.optional_text("table-uuid"),
        format_version=version,
        schemas=schemas,
        current_schema_id=_chosen(document, "schemas", "current-schema-id", schemas),
        specs=specs,
        default_spec_id=_chosen(document, "partition-specs", "default-spec-id", specs),
        snapshots=snapshots,
        current_snapshot_id=current_id,
        snapshot_log=log,
        refs=_refs(document, current_id),
        properties=properties,
        name_mapping=_name_mapping(properties.get(_NAME_MAPPING), file),
        statistics=tuple(s.content for s in document.objects("statistics")),
        last_sequence_number=document.integer("last-sequence-number", default=0),
        metadata_file=file,
    )


def _chosen(document: Document, list_name: str, id_name: str, listed: Mapping[int, Any]) -> int:
    """The id of the current schema or spec; a v1 table may have a single one without an id."""
    only = next(iter(listed))
    return document.integer(id_name, default=only) if document.objects(list_name) else only


def _schemas(document: Document, file: str) -> dict[int, Schema]:
    listed = [d.content for d in document.objects("schemas")]
    if not listed:
        if "schema" not in document:
            raise document.malformed("schemas", "a list of schemas")
        listed = [document.mapping("schema")]
    schemas = {}
    for content in listed:
        try:
            schema = parse_schema(content)
        except (MalformedTableError, TypeError, ValueError, AttributeError) as error:
            raise MalformedTableError(f"{file}: schemas: {error}") from error
        names = [path[-1].name for path in map(schema.path, schema.field_ids)]
        if not all(isinstance(name, str) for name in names) or not isinstance(schema.schema_id, int):
            raise MalformedTableError(f"{file}: schemas: a name that is no string, or an id that is no integer")
        schemas[schema.schema_id] = schema
    return schemas


def _specs(document: Document) -> dict[int, PartitionSpec]:
    listed = document.objects("partition-specs")
    if not listed:
        if "partition-spec" not in document:
            raise document.malformed("partition-specs", "a list of partition specs")
        return {0: PartitionSpec(0, _partition_fields(document.objects("partition-spec")))}
    return {
        spec_id: PartitionSpec(spec_id, _partition_fields(spec.required_objects("fields")))
        for spec in listed
        for spec_id in [spec.integer("spec-id")]
    }


def _partition_fields(fields: list[Document]) -> tuple[PartitionField, ...]:
    return tuple(_partition_field(f, index) for index, f in enumerate(fields))


def _partition_field(document: Document, index: int) -> PartitionField:
    source_ids = document.integers("source-ids")
    source_id = document.optional_integer("source-id")
    if source_id is None:
        if not source_ids:
            raise document.malformed("source-id", "a signed 64-bit integer")
        source_id = source_ids[0]
    return PartitionField(
        field_id=document.integer("field-id", default=1000 + index),  # v1 numbers them by position
        source_id=source_id,
        name=document.text("name"),
        transform=document.text("transform"),
        source_ids=source_ids,
    )


def _snapshot(document: Document) -> Snapshot:
    summary = document.text_mapping("summary")
    manifest_list = document.optional_text("manifest-list")
    return Snapshot(
        snapshot_id=document.integer("snapshot-id"),
        parent_id=document.optional_integer("parent-snapshot-id"),
        sequence_number=document.integer("sequence-number", default=0),
        timestamp_ms=document.integer("timestamp-ms"),
        operation=summary.get("operation"),
        summary=summary,
        manifest_list=manifest_list,
        inline_manifests=() if manifest_list else document.texts("manifests"),
        schema_id=document.optional_integer("schema-id"),
        first_row_id=document.optional_integer("first-row-id"),
        key_id=document.optional_text("key-id"),
    )


def _refs(document: Document, current_id: int | None) -> dict[str, SnapshotRef]:
    refs = {}
    for name, ref in document.named_objects("refs").items():
        kind = ref.text("type").lower()
        if kind not in {"branch", "tag"}:
            raise ref.malformed("type", "'branch' or 'tag'")
        refs[name] = SnapshotRef(ref.integer("snapshot-id"), kind == "branch")
    if current_id is not None:
        refs["main"] = SnapshotRef(current_id, is_branch=True)
    return refs


def _name_mapping(text: str | None, file: str) -> tuple[Any, ...] | None:
    if text is None:
        return None
    try:
        content = load_document(text)
    except ValueError as error:
        raise MalformedTableError(f"{file}: properties.{_NAME_MAPPING}: not a JSON document: {error}") from error
    if not isinstance(content, list):
        raise MalformedTableError(f"{file}: properties.{_NAME_MAPPING}: expected a list, found {content!r:.60}")
    return tuple(content)


def _check_references(metadata: TableMetadata, document: Document) -> None:
    if metadata.current_schema_id not in metadata.schemas:
        raise document.malformed("current-schema-id", f"one of {sorted(metadata.schemas)}")
    if metadata.default_spec_id not in metadata.specs:
        raise document.malformed("default-spec-id", f"one of {sorted(metadata.specs)}")
    if metadata.current_snapshot_id is not None and metadata.current_snapshot_id not in metadata.snapshots:
        raise document.malformed("current-snapshot-id", "the id of a snapshot")
