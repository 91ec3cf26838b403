"""Finds damage in the files of a table: every byte is read and every column is decoded.

This module lists the files, compares metadata, manifest lists and manifests with each other, and looks for contradictions
between the files of one snapshot and for rewrites that changed rows though they must not. Checksums inside files are compared
by `scan_core/verification.py`, and statements of manifests about rows by `manifest_facts.py`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from uuid import UUID

import pyarrow as pa

from nevermore.checks.manifest_facts import FileFacts, read_manifests, summary_faults
from nevermore.pipelines.iceberg.conversion import lost_keys
from nevermore.pipelines.wording import counted
from nevermore.scan_core import (
    Damage,
    DataFile,
    DeleteFile,
    FileFormat,
    MemoryLimitError,
    MissingFileError,
    ScanError,
    ScanOptions,
    Snapshot,
    Table,
    UnsupportedError,
    verify_bytes,
)
from nevermore.scan_core.io import file_size, read_bytes, relocate
from nevermore.scan_core.metadata import (
    DAMAGE,
    ManifestFile,
    Wanted,
    decompress_document,
    load_document,
    read_document,
    read_header,
    read_metadata_rows,
    snapshot_manifests,
)

_CLOCK_SKEW_MS = 60_000
"""Difference between the clocks of two writers that Iceberg tolerates."""
_LENGTHS = (
    Wanted(500, ("manifest_path",), pa.string(), required=True),
    Wanted(501, ("manifest_length",), pa.int64()),
)
_FORMATS = {b"PAR1": FileFormat.PARQUET, b"Obj\x01": FileFormat.AVRO, b"PFA1": FileFormat.PUFFIN}

_OPTIONS = ScanOptions.of(record_filters=False)
"""An index of what deletes once did would hide that they are gone."""


@dataclass(frozen=True, slots=True)
class Unprotected:
    """A file with bytes that no checksum covers.

    Attributes:
        file: path as written in the metadata.
        kind: what the file is.
        parts: the parts without a checksum; a changed bit there is found only if it violates a rule or a value stated elsewhere.
    """

    file: str
    kind: str
    parts: tuple[str, ...]


@dataclass(slots=True)
class Verification:
    """The result of verifying the files of one table.

    Attributes:
        snapshot_ids: snapshots whose files were read.
        files: number of files by kind.
        bytes: size of all files.
        damage: what is wrong, in the order in which it was found.
        unprotected: files with bytes that no checksum covers.
        not_compared: what could not be compared, and why.
    """

    snapshot_ids: list[int] = field(default_factory=list)
    files: dict[str, int] = field(default_factory=dict)
    bytes: int = 0
    damage: list[Damage] = field(default_factory=list)
    unprotected: list[Unprotected] = field(default_factory=list)
    not_compared: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Registered:
    """A catalog's record of a table, apart from the location of its metadata file."""

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
    """Read every byte of every file of a table's current snapshot and of its metadata.

    Memory is bounded: one piece, page, column or block is held at a time; of position deletes one file's.

    Args:
        table: an open table.
        all_snapshots: the files of every snapshot that the metadata names, each file once.
        registered: what the catalog states, to be compared with the metadata file.
        show: called before each file.
    """
    return _Verifier(table, show).run(all_snapshots=all_snapshots, registered=registered)


class _Verifier:
    def __init__(self, table: Table, show: ShowDone) -> None:
        self._table = table
        self._show = show
        self._facts = FileFacts(table)
        self._found = Verification()
        self._expected_bytes = 0
        self._next_row_id: int | None = None

    def run(self, *, all_snapshots: bool, registered: Registered | None) -> Verification:
        metadata = self._table.metadata
        current = metadata.current_snapshot
        snapshots = list(metadata.snapshots.values()) if all_snapshots else [] if current is None else [current]
        self._found.snapshot_ids = [snapshot.snapshot_id for snapshot in snapshots]
        self._metadata(registered)
        files: dict[tuple[str, int | None], DataFile | DeleteFile] = {}
        manifests = list(self._manifests(snapshots))
        self._facts = FileFacts(self._table, manifests)
        for manifest in manifests:
            for file in self._files(manifest):
                files[file.path, file.content_offset if isinstance(file, DeleteFile) else None] = file
        statistics = self._statistics(self._found.snapshot_ids)
        sizes = {file.path: file.file_size_bytes for file in files.values()}
        self._expected_bytes = self._found.bytes + sum(sizes.values()) + sum(s or 0 for _, s in statistics)
        self._content(files)
        for path, size in statistics:
            self._bytes("statistics file", path, size, None)
        self._between_files(snapshots)
        if current is not None and not self._found.damage:  # what is damaged would be found again
            self._rewrites(snapshots if all_snapshots else metadata.ancestors(current.snapshot_id))
        self._found.not_compared |= self._facts.not_compared
        return self._found

    @contextmanager
    def _reporting(
        self,
        file: str,
        *,
        is_reported: bool = False,
        not_compared: tuple[type[ScanError], ...] = (UnsupportedError,),
    ) -> Iterator[None]:
        """Turn errors of a file into results; damage that `is_reported` already covers is not reported twice."""
        try:
            yield
        except not_compared as error:
            self._found.not_compared.add(str(error))
        except ScanError as error:
            if not is_reported:
                self._damaged(file, "", str(error))

    def _damaged(self, file: str, place: str, problem: str) -> None:
        self._found.damage.append(Damage(file, place, problem.removeprefix(f"{file}: ")))

    def _bytes(self, kind: str, path: str, size: int | None, file_format: FileFormat | None) -> bool:
        """Read a file as bytes, and return whether it is undamaged.

        Args:
            kind: of the file.
            path: of the file.
            size: as stated by the file that refers to it; None if it is not stated.
            file_format: of the file; None to detect it by its first bytes.
        """
        self._show(self._found.bytes, max(self._expected_bytes, self._found.bytes), path)
        io, before = self._table.io, len(self._found.damage)
        self._found.files[kind] = self._found.files.get(kind, 0) + 1
        try:
            found = file_size(path, io)
            self._found.bytes += found
            if size is not None and size != found:
                self._damaged(path, "", f"expected {size:,} bytes, found {found:,}")
            if file_format is None:
                file_format = _FORMATS.get(read_bytes(path, io, 0, min(4, found)), FileFormat.PUFFIN)
            verified = verify_bytes(path, file_format, io)
        except (ScanError, OSError) as error:
            self._damaged(path, "", str(error))
            return False
        self._found.damage += verified.damage
        if verified.unprotected:
            self._found.unprotected.append(Unprotected(path, kind, verified.unprotected))
        return len(self._found.damage) == before

    # Metadata

    def _metadata(self, registered: Registered | None) -> None:
        path = self._table.metadata_path
        data = read_bytes(path, self._table.io)
        self._found.files["metadata"] = 1
        self._found.bytes += len(data)
        self._found.unprotected.append(
            Unprotected(path, "metadata", ("everything (Iceberg metadata has no checksum)",))
        )
        document = load_document(decompress_document(data, path))
        next_row_id = document.get("next-row-id")
        self._next_row_id = next_row_id if isinstance(next_row_id, int) else None
        for place, problem in _metadata_faults(document, self._table, registered):
            self._damaged(path, place, problem)

    def _manifests(self, snapshots: Sequence[Snapshot]) -> Iterator[ManifestFile]:
        """The undamaged manifests of snapshots, each once; they and their lists are read as bytes."""
        listed: dict[str, ManifestFile] = {}
        lengths: dict[str, int] = {}
        for snapshot in snapshots:
            path = snapshot.manifest_list
            if path is not None and self._bytes("manifest list", path, None, FileFormat.AVRO):
                lengths |= self._list_header(snapshot, path)
            is_reported = any(d.file == path for d in self._found.damage)
            with self._reporting(path or self._table.metadata_path, is_reported=is_reported):
                listed |= {manifest.path: manifest for manifest in snapshot_manifests(snapshot, self._table.io)}
        self._expected_bytes = self._found.bytes + sum(lengths.values())
        for manifest in listed.values():
            if self._bytes("manifest", manifest.path, lengths.get(manifest.path), FileFormat.AVRO):
                yield manifest

    def _list_header(self, snapshot: Snapshot, path: str) -> dict[str, int]:
        """Compare the header of a manifest list with its snapshot; return the sizes of manifests according to the list."""
        data = read_bytes(path, self._table.io)
        try:
            header = read_header(data)
            fields, rows = read_metadata_rows(data)
            paths, sizes = (wanted.of(fields, rows.columns, len(rows)).to_pylist() for wanted in _LENGTHS)
            lengths: dict[str, int | None] = dict(zip(paths, sizes, strict=True))
        except DAMAGE as error:
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
        with self._reporting(manifest.path):
            for read, files in read_manifests(self._table, [manifest]):
                for fault in summary_faults(read, files, self._table.metadata):
                    self._damaged(manifest.path, "", fault)
                yield from files

    def _between_files(self, snapshots: Sequence[Snapshot]) -> None:
        """Contradictions between files; the same of several snapshots is reported once."""
        is_reported, known = bool(self._found.damage), set(self._found.damage)
        for snapshot in snapshots:
            with self._reporting(snapshot.manifest_list or self._table.metadata_path, is_reported=is_reported):
                for damage in snapshot_faults(self._table, snapshot, self._next_row_id):
                    if damage not in known:
                        known.add(damage)
                        self._found.damage.append(damage)

    def _rewrites(self, snapshots: Sequence[Snapshot]) -> None:
        """Rewrites that changed rows. Files of older snapshots that are gone cannot be compared."""
        skipped = (UnsupportedError, MemoryLimitError, MissingFileError)
        for snapshot in snapshots:
            file = snapshot.manifest_list or self._table.metadata_path
            with self._reporting(file, not_compared=skipped):
                if (damage := rewrite_fault(self._table, snapshot)) is not None:
                    self._found.damage.append(damage)

    # Content

    def _content(self, files: Mapping[tuple[str, int | None], DataFile | DeleteFile]) -> None:
        whole: dict[str, bool] = {}
        for file in files.values():
            if file.path not in whole:  # vectors share their files
                kind = "delete file" if isinstance(file, DeleteFile) else "data file"
                whole[file.path] = self._bytes(kind, file.path, file.file_size_bytes, file.format)
            if file.is_encrypted:
                self._found.not_compared.add(f"{file.path}: encrypted")
                continue
            reported = " ".join(d.place for d in self._found.damage if d.file == file.path)
            unreadable = (UnsupportedError, MemoryLimitError)
            with self._reporting(file.path, is_reported=not whole[file.path], not_compared=unreadable):
                for place, problem in self._facts.faults(file):
                    if not place or place not in reported:
                        self._damaged(file.path, place, problem)

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
    """Contradictions in a metadata file: it has no checksum, but states several things twice."""
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
        if snapshot.sequence_number > (last := metadata.last_sequence_number):
            yield place, f"expected a sequence number up to {last}, found {snapshot.sequence_number}"
        if snapshot.schema_id is not None and snapshot.schema_id not in metadata.schemas:
            yield place, f"expected a schema of the table, found schema-id {snapshot.schema_id}"
        if isinstance(updated, int) and snapshot.timestamp_ms > updated + _CLOCK_SKEW_MS:
            yield place, f"expected a time up to last-updated-ms {updated}, found {snapshot.timestamp_ms}"
    if len(metadata.snapshots) != len(document.get("snapshots") or ()):
        yield "snapshots", "an id occurs twice"
    for name, ref in metadata.refs.items():
        if ref.snapshot_id not in metadata.snapshots:
            yield f"ref {name!r}", f"expected a snapshot of the table, found {ref.snapshot_id}"
    current = metadata.current_snapshot_id
    main = (document.get("refs") or {}).get("main")
    if isinstance(main, Mapping) and main.get("snapshot-id") != current:
        yield "current-snapshot-id", f"expected {main.get('snapshot-id')} as in refs, found {current}"
    log = metadata.snapshot_log
    if log and current is not None and log[-1].snapshot_id != current:
        yield "snapshot-log", f"expected {current} to be its last entry, found {log[-1].snapshot_id}"


def _id_faults(document: Mapping[str, Any], table: Table) -> Iterator[tuple[str, str]]:
    metadata = table.metadata
    for name, by_id in (("schemas", metadata.schemas), ("partition-specs", metadata.specs)):
        if len(by_id) < len(document.get(name) or ()):
            yield name, "an id occurs twice"
    columns = [i for schema in metadata.schemas.values() for i in schema.field_ids]
    partitions = [f.field_id for spec in metadata.specs.values() for f in spec.fields]
    for name, ids in (("last-column-id", columns), ("last-partition-id", partitions)):
        if isinstance(last := document.get(name), int) and last < max(ids, default=0):
            yield name, f"expected {max(ids)} or more, found {last}"
    orders = {o.get("order-id") for o in document.get("sort-orders") or () if isinstance(o, Mapping)}
    if orders and document.get("default-sort-order-id") not in orders:
        yield "default-sort-order-id", f"expected one of {sorted(map(str, orders))}"


def _earlier_uuid(document: Mapping[str, Any], table: Table) -> str | None:
    """The table's uuid in the metadata file before this one; None if that is gone or cannot be read."""
    try:
        path = str(document["metadata-log"][-1]["metadata-file"])
        return str(read_document(path, table.io)["table-uuid"] or "") or None
    except (ScanError, ValueError, LookupError, TypeError):
        return None


def snapshot_faults(table: Table, snapshot: Snapshot, next_row_id: int | None) -> Iterator[Damage]:
    """What the entries of a snapshot's manifests contradict in each other.

    Args:
        table: an open table.
        snapshot: one of its snapshots.
        next_row_id: row id that the metadata gives to the next row; None if it states none.

    Raises:
        MissingFileError: a manifest is gone.
        MalformedTableError: a manifest cannot be read.
    """
    found = read_manifests(table, snapshot_manifests(snapshot, table.io))
    files = [file for _, listed in found for file in listed]
    data = [file for file in files if isinstance(file, DataFile)]
    deletes = [file for file in files if isinstance(file, DeleteFile)]
    known = frozenset(table.metadata.schema.field_ids)
    for file in files:
        if file.data_sequence_number > snapshot.sequence_number:
            yield Damage(
                file.path,
                "",
                f"has sequence number {file.data_sequence_number:,}, but snapshot {snapshot.snapshot_id} has "
                f"{snapshot.sequence_number:,}: deletes apply to the wrong rows",
            )
    yield from _repeated(table, data, deletes)
    yield from _vector_faults(table, data, deletes)
    yield from _row_id_faults(data, next_row_id)
    if any(not known.issuperset(file.equality_ids) for file in deletes):
        plan = table.scan().with_options(_OPTIONS).as_of_snapshot(snapshot.snapshot_id).select().plan()
        yield from (Damage(path, "", problem) for path, problem in lost_keys(plan.tasks, table))


def _repeated(table: Table, data: Sequence[DataFile], deletes: Sequence[DeleteFile]) -> Iterator[Damage]:
    """Files that are live twice: all rows of such a data file would be read twice."""
    seen: set[tuple[str, int | None]] = set()
    for file in (*data, *deletes):
        place = relocate(file.path, table.io).path, file.content_offset if isinstance(file, DeleteFile) else None
        if place in seen:
            yield Damage(file.path, "", "is in two entries of one snapshot")
        seen.add(place)


def _vector_faults(table: Table, data: Sequence[DataFile], deletes: Sequence[DeleteFile]) -> Iterator[Damage]:
    """A data file has at most one deletion vector, which is not older than the file."""
    by_path = {relocate(file.path, table.io).path: file for file in data}
    seen: set[str] = set()
    for vector in deletes:
        if not vector.is_deletion_vector or vector.referenced_data_file is None:
            continue
        place = f"vector at byte {vector.content_offset}"
        path = relocate(vector.referenced_data_file, table.io).path
        if path in seen:
            yield Damage(vector.path, place, f"is a second vector of {vector.referenced_data_file}")
        seen.add(path)
        file = by_path.get(path)
        if file is not None and vector.data_sequence_number < file.data_sequence_number:
            yield Damage(
                vector.path,
                place,
                f"has sequence number {vector.data_sequence_number:,}, but its data file {file.path} "
                f"{file.data_sequence_number:,}: a vector is never older",
            )


def _row_id_faults(data: Sequence[DataFile], next_row_id: int | None) -> Iterator[Damage]:
    """Each row id is given to one row."""
    ranges = sorted((f.first_row_id, f.record_count, f.path) for f in data if f.first_row_id is not None)
    for (first, num_rows, other), (begin, _, path) in pairwise(ranges):
        if begin < first + num_rows:
            yield Damage(
                path, "", f"its first row id {begin:,} is one of {other}, which has {first:,} and the {num_rows:,} next"
            )
    if ranges and next_row_id is not None:
        first, num_rows, path = ranges[-1]
        if first + num_rows > next_row_id:
            yield Damage(
                path, "", f"has row ids up to {first + num_rows - 1:,}, but next-row-id of the table is {next_row_id:,}"
            )


def rewrite_fault(table: Table, snapshot: Snapshot) -> Damage | None:
    """What a snapshot changed although its operation is `replace`, which changes no row by the specification.

    Rewrites of other tools have dropped deletes that still applied, so that deleted rows returned. Rows of files that were
    replaced are compared; None if nothing changed, if it is no rewrite, or if its parent has expired.

    Raises:
        MissingFileError: a file of the snapshot or of its parent is gone.
        MalformedTableError: one of them cannot be read.
    """
    parent = snapshot.parent_id
    if snapshot.operation != "replace" or parent not in table.metadata.snapshots:
        return None
    changes = table.scan().with_options(_OPTIONS).as_of_snapshot(snapshot.snapshot_id).changes(parent)
    if changes.count() == 0:
        return None
    came, went = changes.inserts.count(), changes.deletes.count()
    file = snapshot.manifest_list or table.metadata_path
    return Damage(
        file,
        f"snapshot {snapshot.snapshot_id}",
        f"it replaces files of snapshot {parent}, which must change no row, but {counted(came, 'row')} came and {went:,} went; "
        "nevermore changes shows them",
    )
