"""Changes that were applied once, and are not any more: a mirror or its change log that was set back to an earlier snapshot.

Such a mirror is right for what it claims to hold, so that comparing rows finds nothing.
"""

from collections.abc import Iterator

import scan_core
from checks.result import CheckResult
from checks.subject import Subject
from pipelines.tables.positions import LAST_ORDINAL, LOG_ORDINAL
from scan_core.metadata import TableMetadata

NAME = "nothing_was_rolled_back"


def nothing_was_rolled_back(subject: Subject) -> CheckResult:
    """The current snapshots of the mirror and its change log hold every change that they have held before."""
    mirror = subject.opened.metadata
    applied_log, applied = subject.applied
    details = list(_set_back(mirror, LOG_ORDINAL, "the mirror"))
    notes = list(_forgotten(mirror, "the mirror"))
    compared = {"last change applied": applied or 0}
    if subject.change_log is not None:
        log = scan_core.open_table(subject.change_log, relocate=subject.relocate).metadata
        details += _set_back(log, LAST_ORDINAL, "the change log")
        notes += _forgotten(log, "the change log")
        held = _held(log, LAST_ORDINAL)
        if held is not None:
            compared["last change in log"] = held
            if applied is not None and applied > held:
                details.append(f"the mirror holds changes up to {applied}, its change log only those up to {held}")
        line = _line(log)
        if applied_log in log.snapshots and applied_log not in line:
            details.append(
                f"the mirror holds the changes of snapshot {applied_log} of its change log, from which the log's current "
                "snapshot does not descend: the log was set back, or its changes were made anew"
            )
    return CheckResult(NAME, not details, compared, details=[*details, *notes])


def _set_back(metadata: TableMetadata, ordinal: str, what: str) -> Iterator[str]:
    """A snapshot that was the current one, and holds changes that the current one does not hold."""
    were_current = {entry.snapshot_id for entry in metadata.snapshot_log} or set(metadata.snapshots)
    reached = [
        (int(snapshot.summary[ordinal]), snapshot.snapshot_id)
        for snapshot in metadata.snapshots.values()
        if snapshot.snapshot_id in were_current and ordinal in snapshot.summary
    ]
    last, snapshot_id = max(reached, default=(0, 0))
    held = _held(metadata, ordinal) or 0
    if last > held:
        yield (
            f"{what} was set back: snapshot {snapshot_id} held the changes up to {last}, the current snapshot "
            f"{metadata.current_snapshot_id} holds those up to {held}; make snapshot {snapshot_id} the current one again"
            + (", or apply the changes again with nevermore ingest" if ordinal == LOG_ORDINAL else "")
        )


def _forgotten(metadata: TableMetadata, what: str) -> Iterator[str]:
    """Said where the newest snapshot is gone, which expiring old ones never takes: nothing tells what it held."""
    newest = max((s.sequence_number for s in metadata.snapshots.values()), default=0)
    if metadata.last_sequence_number > newest:
        yield (
            f"not compared: {what} has had snapshots that are newer than all that it has now "
            f"(sequence number {metadata.last_sequence_number}, now {newest}): nothing tells what they held"
        )


def _held(metadata: TableMetadata, ordinal: str) -> int | None:
    """The last change that the current snapshot holds; None where it does not tell."""
    if metadata.current_snapshot_id is None:
        return None
    line = metadata.ancestors(metadata.current_snapshot_id)
    return next((int(s.summary[ordinal]) for s in line if ordinal in s.summary), None)


def _line(metadata: TableMetadata) -> set[int]:
    """The current snapshot and its ancestors."""
    if metadata.current_snapshot_id is None:
        return set()
    return {s.snapshot_id for s in metadata.ancestors(metadata.current_snapshot_id)}
