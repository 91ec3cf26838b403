"""Where Iceberg Java 1.12 is known to be wrong, by name. A difference is excused only as far as a known fault goes.

A fault that loses deletes excuses a row of Java's only if no other delete removes it: the reference decides that by
reading the table without the delete files that have the fault.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nevermore import scan_core
from nevermore.checks.reference.facts import FileFacts, read_table_facts
from nevermore.scan_core.model.schema import NestedField, PrimitiveType
from tests.interop.three_readings import Readings, Rows, reference_rows, scan_of

Row = list[Any]
Identity = tuple[str, int]
KeyPaths = Sequence[tuple[NestedField, ...]]
"""Of the columns that a delete file compares: the fields on the way to each."""

REFUSED = {
    "orc_default": "ORC cannot read default value for field",
    # partition values of promoted columns, and times: constants come in a class that the column does not have
    "constant_class": "cannot be cast to class java.",
    "orc_partition_member": "Missing ORC reader for field",
}
"""Faults by which Java refuses to read, and what it says."""


@dataclass(frozen=True, slots=True)
class LostDelete:
    """A fault by which Java misses deletes: which equality-delete files have it, and which rows it may keep alive."""

    is_in: Callable[[FileFacts, KeyPaths], bool]
    may_keep: Callable[[Row], bool]


def _has_uuid_key(_: FileFacts, paths: KeyPaths) -> bool:
    """The planner compares bounds as pairs of signed longs, and prunes delete files (apache/iceberg#14216)."""
    return "uuid" in _types(paths)


def _has_fixed_key(file: FileFacts, paths: KeyPaths) -> bool:
    """Keys of a fixed size share one buffer when read from Parquet or Avro: all have the value of the last one."""
    return file.format != "orc" and "fixed" in _types(paths)


def _has_float_key_in_orc(file: FileFacts, paths: KeyPaths) -> bool:
    """Once promoted, -0.0 is 0.0 when read from ORC."""
    return file.format == "orc" and not _types(paths).isdisjoint({"float", "double"})


def _has_member_as_key(_: FileFacts, paths: KeyPaths) -> bool:
    """A struct that is NULL and one whose member is NULL are different keys."""
    return any(len(path) > 1 for path in paths)


def _any_row(_: Row) -> bool:
    return True


def _has_null(row: Row) -> bool:
    return any(value is None or (isinstance(value, dict) and None in value.values()) for value in row)


LOST_DELETES = {
    "uuid_bounds": LostDelete(_has_uuid_key, _any_row),
    "fixed_keys": LostDelete(_has_fixed_key, _any_row),
    "null_struct": LostDelete(_has_member_as_key, _has_null),
}
WRONG_DELETES = {"fixed_keys": _has_fixed_key, "zero_in_orc": _has_float_key_in_orc}
"""Faults by which Java takes keys for others and deletes rows that are alive, and the delete files that have them."""

LAST_UPDATED = "_last_updated_sequence_number"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Names of the known faults behind what Java does differently, and what they do not explain."""

    faults: frozenset[str]
    unexplained: str | None = None


def verdict(history: Mapping[str, Any], read: Mapping[str, Any], found: Readings) -> Verdict:
    """Why Java's reading differs from ours, which the reference confirms."""
    # the generic reader fails on deletes by a column that is gone; it was shown a schema that still has it
    faults = {"dropped_key"} if read.get("helped") else set()
    if isinstance(found.java, str):
        known = {name for name, text in REFUSED.items() if text in found.java}
        return Verdict(frozenset(faults | known), None if known else found.java)
    columns = [f["name"] for f in read["fields"]]
    java, ours = _by_identity(found.java, columns), _by_identity(found.ours, columns)
    problems: list[str] = []
    if missing := ours.keys() - java.keys():
        wrong = {name for name, has_fault in WRONG_DELETES.items() if _any_delete(history, read, has_fault)}
        faults |= wrong
        problems += [] if wrong else [f"Java lacks {ours[key]}" for key in missing]
    sequences = _file_sequence_numbers(history, read) if LAST_UPDATED in columns else {}
    for key in ours.keys() & java.keys():
        if java[key] == ours[key]:
            continue
        lineage = _lineage_fault(columns, java[key], ours[key], sequences.get(key[0]))
        faults |= {lineage} if lineage else set()
        problems += [] if lineage else [f"Java has {java[key]}, we have {ours[key]}"]
    surplus = {key: java[key] for key in java.keys() - ours.keys()}
    for name, fault in LOST_DELETES.items():
        concerned = {key: row for key, row in surplus.items() if fault.may_keep(row)}
        explained = _alive_without(history, read, concerned, fault.is_in)
        faults |= {name} if explained else set()
        surplus = {key: row for key, row in surplus.items() if key not in explained}
    both = _alive_without(history, read, surplus, _has_any_fault)
    problems += [f"Java also has {row}" for key, row in surplus.items() if key not in both]
    return Verdict(frozenset(faults), "\n".join(problems[:5]) or None)


def _by_identity(rows: Rows, columns: Sequence[str]) -> dict[Identity, Row]:
    at = columns.index("_file")
    found: dict[Identity, Row] = {(row[at], row[at + 1]): row for row in map(json.loads, rows)}
    assert len(found) == len(rows), "a row was read twice"
    return found


def _lineage_fault(columns: Sequence[str], java: Row, ours: Row, file_sequence_number: int | None) -> str | None:
    """The fault behind two versions of one row, if it is known."""
    at = columns.index(LAST_UPDATED) if LAST_UPDATED in columns else -1
    if at < 0 or [*java[:at], *java[at + 1 :]] != [*ours[:at], *ours[at + 1 :]]:
        return None
    if ours[at] is None and ours[columns.index("_row_id")] is None:
        return "last_updated_before_upgrade"
    # of the commit that wrote the file, instead of the rows' data sequence number (apache/iceberg#17039)
    return "last_updated_of_file" if java[at] == file_sequence_number else None


def _file_sequence_numbers(history: Mapping[str, Any], read: Mapping[str, Any]) -> dict[str, int | None]:
    tasks = scan_of(history, read).plan().tasks
    return {task.data_file.path: task.data_file.file_sequence_number for task in tasks}


def _alive_without(
    history: Mapping[str, Any],
    read: Mapping[str, Any],
    rows: Mapping[Identity, Row],
    has_fault: Callable[[FileFacts, KeyPaths], bool],
) -> set[Identity]:
    """Which of the rows are alive, by the reference, if equality-delete files with a fault do nothing."""
    if not rows:
        return set()
    paths = scan_core.open_table(history["metadata"]).metadata.field_paths()

    def counts(file: FileFacts) -> bool:
        return file.content != 2 or not has_fault(file, [paths[i] for i in file.equality_ids])

    columns = [f["name"] for f in read["fields"]]
    alive = _by_identity(reference_rows(history, read, columns, counts), columns)
    at = columns.index("_file")
    return {key for key, row in rows.items() if key in alive and alive[key][: at + 2] == row[: at + 2]}


def _any_delete(
    history: Mapping[str, Any], read: Mapping[str, Any], has_fault: Callable[[FileFacts, KeyPaths], bool]
) -> bool:
    table = read_table_facts(history["metadata"])
    paths = scan_core.open_table(history["metadata"]).metadata.field_paths()
    files = table.files(table.snapshot(read.get("snapshot"), read.get("ref"))[0])
    return any(f.content == 2 and has_fault(f, [paths[i] for i in f.equality_ids]) for f in files)


def _has_any_fault(file: FileFacts, paths: KeyPaths) -> bool:
    return any(fault.is_in(file, paths) for fault in LOST_DELETES.values())


def _types(paths: KeyPaths) -> set[str]:
    return {path[-1].type.name for path in paths if isinstance(path[-1].type, PrimitiveType)}
