"""Finds contradictions between the files of one snapshot, and rewrites that changed rows though they must not.

What manifests state about a single file is compared with it by `manifest_facts.py`.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from checks.manifest_facts import read_manifests
from pipelines.iceberg.conversion import lost_keys
from scan_core import Damage, DataFile, DeleteFile, ScanOptions, Snapshot, Table
from scan_core.io import relocate
from scan_core.metadata import snapshot_manifests

_OPTIONS = ScanOptions.of(use_dead_row_bits=False, record_filters=False)
"""An index of what deletes once did would hide that they are gone."""


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
        f"it replaces files of snapshot {parent}, which must change no row, but {came:,} rows came and {went:,} went; "
        "nevermore changes shows them",
    )
