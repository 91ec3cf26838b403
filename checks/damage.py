"""Whether each file that snapshots of a table need is whole: every byte is read, every column decoded.

Checksums inside files are compared by `scan_core/verification.py`, what manifests say of rows by `manifest_facts.py`. Here it
is decided which files there are, and metadata, manifest lists and manifests are held against each other.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from checks.manifest_facts import FileFacts, read_manifests, summary_faults
from scan_core import (
    Damage,
    DataFile,
    DeleteContent,
    DeleteFile,
    FileFormat,
    MemoryLimitError,
    ScanError,
    ScanMetrics,
    ScanOptions,
    Snapshot,
    Table,
    UnsupportedError,
    VerifiedBytes,
    position_count,
    read_deletion_vector,
    read_position_deletes,
    verify_bytes,
)
from scan_core.io import exists, file_size, read_bytes, relocate
from scan_core.metadata import (
    AvroError,
    ManifestFile,
    Wanted,
    compile_record,
    decompress_document,
    load_document,
    parse_avro_schema,
    read_blocks,
    read_document,
    read_header,
    snapshot_manifests,
)

METADATA, MANIFEST_LIST, MANIFEST, DATA, DELETES, PUFFIN = (
    "metadata",
    "manifest list",
    "manifest",
    "data file",
    "delete file",
    "statistics file",
)
_CLOCK_SKEW_MS = 60_000
"""By which Iceberg lets the clocks of two writers differ."""
_LENGTHS = (
    Wanted(500, ("manifest_path",), "text", 0, required=True),
    Wanted(501, ("manifest_length",), "integer", 1),
)
_FORMATS = {b"PAR1": FileFormat.PARQUET, b"Obj\x01": FileFormat.AVRO, b"PFA1": FileFormat.PUFFIN}


@dataclass(frozen=True, slots=True)
class Unprotected:
    """A file of which some or all bytes have no checksum.

    Attributes:
        file: path as metadata writes it.
        kind: what the file is.
        parts: which parts of it; a changed bit there is found only where it breaks a rule or a value stated elsewhere.
    """

    file: str
    kind: str
    parts: tuple[str, ...]


@dataclass(slots=True)
class Verification:
    """What became of the files of one table.

    Attributes:
        snapshot_ids: of the snapshots whose files were read.
        num_files: by kind.
        num_bytes: of all of them.
        damage: what is wrong, in the order in which it was found.
        unprotected: files with bytes that no checksum covers.
        not_compared: what could not be compared, and why.
    """

    snapshot_ids: list[int] = field(default_factory=list)
    num_files: dict[str, int] = field(default_factory=dict)
    num_bytes: int = 0
    damage: list[Damage] = field(default_factory=list)
    unprotected: list[Unprotected] = field(default_factory=list)
    not_compared: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Registered:
    """What a catalog says of a table beside the place of its metadata file."""

    table_uuid: str
    last_updated_ms: int


ShowDone = Callable[[int, int, str], None]
"""Called before each file: bytes read so far, bytes of all files known by then, the file's path."""


def verify_table(
    table: Table,
    *,
    all_snapshots: bool = False,
    registered: Registered | None = None,
    show: ShowDone = lambda _done, _total, _file: None,
) -> Verification:
    """Read every byte of every file of a table's current snapshot, and of what describes it.

    Memory is bounded: one piece, page, column or block is held at a time; of position deletes one file's.

    Args:
        table: an open table.
        all_snapshots: the files of every snapshot that the metadata names, each file once.
        registered: what the catalog says, to be compared with the metadata file.
        show: told before each file.
    """
    return _Verifier(table, show).run(all_snapshots=all_snapshots, registered=registered)


class _Verifier:
    def __init__(self, table: Table, show: ShowDone) -> None:
        self._table = table
        self._show = show
        self._facts = FileFacts(table)
        self._found = Verification()
        self._expected_bytes = 0

    def run(self, *, all_snapshots: bool, registered: Registered | None) -> Verification:
        metadata = self._table.metadata
        current = metadata.current_snapshot
        snapshots = list(metadata.snapshots.values()) if all_snapshots else [] if current is None else [current]
        self._found.snapshot_ids = [snapshot.snapshot_id for snapshot in snapshots]
        self._metadata(registered)
        files: dict[tuple[str, int | None], DataFile | DeleteFile] = {}
        for manifest in self._manifests(snapshots):
            for file in self._files(manifest):
                files[file.path, file.content_offset if isinstance(file, DeleteFile) else None] = file
        statistics = self._statistics(self._found.snapshot_ids)
        sizes = {file.path: file.file_size_bytes for file in files.values()}
        self._expected_bytes = self._found.num_bytes + sum(sizes.values()) + sum(s or 0 for _, s in statistics)
        self._content(files)
        for path, size in statistics:
            self._bytes(PUFFIN, path, size, None)
        self._found.not_compared |= self._facts.not_compared
        return self._found

    def _damaged(self, file: str, place: str, problem: str) -> None:
        self._found.damage.append(Damage(file, place, problem.removeprefix(f"{file}: ")))

    def _bytes(self, kind: str, path: str, size: int | None, file_format: FileFormat | None) -> bool:
        """Read a file as bytes; whether it is as it should be.

        Args:
            kind: of the file.
            path: of the file.
            size: by whoever names it; None if that is not said.
            file_format: of the file; None to go by how it begins.
        """
        self._show(self._found.num_bytes, max(self._expected_bytes, self._found.num_bytes), path)
        io, before = self._table.io, len(self._found.damage)
        self._found.num_files[kind] = self._found.num_files.get(kind, 0) + 1
        try:
            found = file_size(path, io)
            self._found.num_bytes += found
            if size is not None and size != found:
                self._damaged(path, "", f"expected {size:,} bytes, found {found:,}")
            if file_format is None:
                file_format = _FORMATS.get(read_bytes(path, io, 0, min(4, found)), FileFormat.PUFFIN)
            verified = verify_bytes(path, file_format, io)
        except (ScanError, OSError) as error:
            self._damaged(path, "", str(error))
            return False
        self._keep(kind, path, verified)
        return len(self._found.damage) == before

    def _keep(self, kind: str, path: str, verified: VerifiedBytes) -> None:
        self._found.damage += verified.damage
        if verified.unprotected:
            self._found.unprotected.append(Unprotected(path, kind, verified.unprotected))

    # Metadata

    def _metadata(self, registered: Registered | None) -> None:
        path = self._table.metadata_path
        data = read_bytes(path, self._table.io)
        self._found.num_files[METADATA] = 1
        self._found.num_bytes += len(data)
        self._found.unprotected.append(Unprotected(path, METADATA, ("everything (Iceberg metadata has no checksum)",)))
        document = load_document(decompress_document(data, path))
        for place, problem in _metadata_faults(document, self._table, registered):
            self._damaged(path, place, problem)

    def _manifests(self, snapshots: Sequence[Snapshot]) -> Iterator[ManifestFile]:
        """The manifests of snapshots, each once, their lists and they themselves read as bytes."""
        listed: dict[str, ManifestFile] = {}
        lengths: dict[str, int] = {}
        for snapshot in snapshots:
            if snapshot.manifest_list is not None and self._bytes(
                MANIFEST_LIST, snapshot.manifest_list, None, FileFormat.AVRO
            ):
                lengths |= self._list_header(snapshot, snapshot.manifest_list)
            try:
                listed |= {manifest.path: manifest for manifest in snapshot_manifests(snapshot, self._table.io)}
            except UnsupportedError as error:
                self._found.not_compared.add(str(error))
            except ScanError as error:
                if not any(d.file == snapshot.manifest_list for d in self._found.damage):
                    self._damaged(snapshot.manifest_list or self._table.metadata_path, "", str(error))
        self._expected_bytes = self._found.num_bytes + sum(lengths.values())
        for manifest in listed.values():
            if self._bytes(MANIFEST, manifest.path, lengths.get(manifest.path), FileFormat.AVRO):
                yield manifest

    def _list_header(self, snapshot: Snapshot, path: str) -> dict[str, int]:
        """Compare what a manifest list says of itself with its snapshot; sizes of manifests by the list."""
        data = read_bytes(path, self._table.io)
        try:
            header = read_header(data)
            decode = compile_record(parse_avro_schema(header.schema), _LENGTHS, len(_LENGTHS), {})
            lengths = {}
            for count, block in read_blocks(data, header):
                position = 0
                for _ in range(count):
                    (manifest, length), position = decode(block, position)
                    lengths[manifest] = length
        except (AvroError, IndexError, RecursionError, UnicodeDecodeError) as error:
            self._damaged(path, "", str(error))
            return {}
        for name, expected in (
            ("snapshot-id", snapshot.snapshot_id),
            ("sequence-number", snapshot.sequence_number),
            ("parent-snapshot-id", snapshot.parent_id),
        ):
            stated = header.metadata.get(name, b"null").decode("ascii", "replace")
            if stated != "null" and expected is not None and stated != str(expected):
                self._damaged(path, "header", f"expected {name} {expected} by the table's metadata, found {stated}")
        return {manifest: length for manifest, length in lengths.items() if length is not None}

    def _files(self, manifest: ManifestFile) -> Iterator[DataFile | DeleteFile]:
        try:
            for read, files in read_manifests(self._table, [manifest]):
                for fault in summary_faults(read, files, self._table.metadata):
                    self._damaged(manifest.path, "", fault)
                yield from files
        except UnsupportedError as error:
            self._found.not_compared.add(str(error))
        except ScanError as error:
            self._damaged(manifest.path, "", str(error))

    # Content

    def _content(self, files: Mapping[tuple[str, int | None], DataFile | DeleteFile]) -> None:
        io = self._table.io
        rows = {relocate(f.path, io).path: f.record_count for f in files.values() if isinstance(f, DataFile)}
        whole: dict[str, bool] = {}
        for file in files.values():
            if file.path not in whole:  # vectors share their files
                kind = DELETES if isinstance(file, DeleteFile) else DATA
                whole[file.path] = self._bytes(kind, file.path, file.file_size_bytes, file.format)
            if file.is_encrypted:
                self._found.not_compared.add(f"{file.path}: encrypted")
                continue
            told = " ".join(d.place for d in self._found.damage if d.file == file.path)
            try:
                for place, problem in self._content_faults(file, rows):
                    if not place or place not in told:
                        self._damaged(file.path, place, problem)
            except (UnsupportedError, MemoryLimitError) as error:
                self._found.not_compared.add(str(error))
            except ScanError as error:
                if whole[file.path]:  # else it was said already
                    self._damaged(file.path, "", str(error))

    def _content_faults(self, file: DataFile | DeleteFile, rows: Mapping[str, int]) -> Iterator[tuple[str, str]]:
        """What is wrong with the values in a file, `rows` being those of each data file by its path."""
        is_damaged = False
        if not (isinstance(file, DeleteFile) and file.is_deletion_vector):
            for fault in self._facts.by_all_rows(file):
                is_damaged = True
                yield fault
        if isinstance(file, DeleteFile) and not is_damaged:
            yield from self._positions(file, rows)

    def _positions(self, file: DeleteFile, rows: Mapping[str, int]) -> Iterator[tuple[str, str]]:
        """Deleted positions that their data file does not have."""
        io = self._table.io
        if file.is_deletion_vector:
            vector = read_deletion_vector(file, io, ScanMetrics())
            held = rows.get(relocate(file.referenced_data_file, io).path) if file.referenced_data_file else None
            last = position_count(vector)[1]
            if held is not None and last >= held:
                yield (
                    f"vector at byte {file.content_offset}",
                    f"deletes row {last:,}, but its data file has {held:,} rows",
                )
        elif file.content is DeleteContent.POSITION:
            for path, positions in read_position_deletes(file, io, ScanMetrics(), ScanOptions()).by_path.items():
                held, last = rows.get(relocate(path, io).path), position_count(positions)[1]
                if held is not None and last >= held:
                    yield "column 'pos'", f"deletes row {last:,} of {path}, which has {held:,} rows"

    def _statistics(self, snapshot_ids: Sequence[int]) -> list[tuple[str, int | None]]:
        """Statistics files of the snapshots, and those of others that hold indexes of data files, with their sizes."""
        wanted = set(snapshot_ids)
        found: dict[str, int | None] = {}
        for entry in self._table.metadata.statistics:
            path, size = entry.get("statistics-path"), entry.get("file-size-in-bytes")
            if isinstance(path, str) and (entry.get("snapshot-id") in wanted or path.endswith(".puffin")):
                found[path] = size if isinstance(size, int) else None
        return list(found.items())


def _metadata_faults(
    document: Mapping[str, Any], table: Table, registered: Registered | None
) -> Iterator[tuple[str, str]]:
    """What a metadata file says that cannot be: it has no checksum, but says several things twice."""
    metadata = table.metadata
    uuid, updated = metadata.table_uuid, document.get("last-updated-ms")
    if uuid is None:
        if metadata.format_version > 1:
            yield "table-uuid", "expected a UUID, found none"
    else:
        try:
            UUID(uuid)
        except ValueError:
            yield "table-uuid", f"expected a UUID, found {uuid!r:.60}"
        if (earlier := _earlier_uuid(document, table)) not in {None, uuid}:
            yield "table-uuid", f"expected {earlier} as in the metadata file before, found {uuid}"
    if registered is not None and uuid != registered.table_uuid:
        yield "table-uuid", f"expected {registered.table_uuid} by the catalog, found {uuid}"
    if registered is not None and updated != registered.last_updated_ms:
        yield "last-updated-ms", f"expected {registered.last_updated_ms} by the catalog, found {updated}"
    yield from _snapshot_faults(document, table)
    yield from _id_faults(document, table)


def _snapshot_faults(document: Mapping[str, Any], table: Table) -> Iterator[tuple[str, str]]:
    metadata, updated = table.metadata, document.get("last-updated-ms")
    for snapshot in metadata.snapshots.values():
        place = f"snapshot {snapshot.snapshot_id}"
        if snapshot.sequence_number > metadata.last_sequence_number:
            yield (
                place,
                f"expected a sequence number up to {metadata.last_sequence_number}, found {snapshot.sequence_number}",
            )
        if snapshot.schema_id is not None and snapshot.schema_id not in metadata.schemas:
            yield place, f"expected a schema of the table, found schema-id {snapshot.schema_id}"
        if isinstance(updated, int) and snapshot.timestamp_ms > updated + _CLOCK_SKEW_MS:
            yield place, f"expected a time up to last-updated-ms {updated}, found {snapshot.timestamp_ms}"
    if len(metadata.snapshots) != len(document.get("snapshots") or ()):
        yield "snapshots", "an id is there twice"
    for name, ref in metadata.refs.items():
        if ref.snapshot_id not in metadata.snapshots:
            yield f"ref {name!r}", f"expected a snapshot of the table, found {ref.snapshot_id}"
    main = (document.get("refs") or {}).get("main")
    if isinstance(main, Mapping) and main.get("snapshot-id") != metadata.current_snapshot_id:
        yield (
            "current-snapshot-id",
            f"expected {main.get('snapshot-id')} as in refs, found {metadata.current_snapshot_id}",
        )
    log = metadata.snapshot_log
    if log and metadata.current_snapshot_id is not None and log[-1].snapshot_id != metadata.current_snapshot_id:
        yield (
            "snapshot-log",
            f"expected {metadata.current_snapshot_id} to be its last entry, found {log[-1].snapshot_id}",
        )


def _id_faults(document: Mapping[str, Any], table: Table) -> Iterator[tuple[str, str]]:
    metadata = table.metadata
    if len(metadata.schemas) < len(document.get("schemas") or ()):
        yield "schemas", "an id is there twice"
    if len(metadata.specs) < len(document.get("partition-specs") or ()):
        yield "partition-specs", "an id is there twice"
    columns = max((i for schema in metadata.schemas.values() for i in schema.field_ids), default=0)
    if isinstance(last := document.get("last-column-id"), int) and last < columns:
        yield "last-column-id", f"expected {columns} or more, found {last}"
    fields = [f for spec in metadata.specs.values() for f in spec.fields]
    partitions = max((f.field_id for f in fields), default=0)
    if isinstance(last := document.get("last-partition-id"), int) and last < partitions:
        yield "last-partition-id", f"expected {partitions} or more, found {last}"
    orders = {o.get("order-id") for o in document.get("sort-orders") or () if isinstance(o, Mapping)}
    if orders and document.get("default-sort-order-id") not in orders:
        yield "default-sort-order-id", f"expected one of {sorted(map(str, orders))}"


def _earlier_uuid(document: Mapping[str, Any], table: Table) -> str | None:
    """The table's uuid in the metadata file before this one; None if that is gone or cannot be read."""
    log = document.get("metadata-log")
    last = log[-1] if isinstance(log, list) and log else None
    path = last.get("metadata-file") if isinstance(last, Mapping) else None
    try:
        if not isinstance(path, str) or not exists(path, table.io):
            return None
        earlier = read_document(path, table.io)
    except (ScanError, ValueError):
        return None
    uuid = earlier.get("table-uuid") if isinstance(earlier, Mapping) else None
    return uuid if isinstance(uuid, str) else None
