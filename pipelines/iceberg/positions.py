"""Positions in snapshot summaries: how much of its source a table contains.

All other modules write and read them by these functions and names.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from nevermore.pipelines.errors import PositionLostError
from nevermore.pipelines.iceberg.storage import Storage

if TYPE_CHECKING:
    from pyiceberg.table import Table as CatalogTable
    from pyiceberg.table.snapshots import Snapshot

POSITION = "nevermore.position"
"""Key of a change log: the position in its source up to which it is complete, in the source's own text."""
POSITION_FILE = "nevermore.position-file"
"""The same, stored in a file because the text is long."""
LAST_ORDINAL = "nevermore.last-ordinal"
"""Key of a change log: its highest ordinal."""
LOG_SNAPSHOT = "nevermore.change-log-snapshot"
"""Key of a mirror: the snapshot of its change log that is applied."""
LOG_ORDINAL = "nevermore.change-log-ordinal"
"""Key of a mirror: the last ordinal applied."""
ATOMIC = "nevermore.atomic"
"""Key of a change log: the snapshot's changes end with a transaction of the source, and are applied as a whole."""
ORDER_REACHED = "nevermore.order-reached"
"""Key of a change log whose changes are ordered by payload columns: their highest value in it."""
ORDER_BY = "nevermore.order-by"
"""Key of such a log: those columns."""
LOG_BASE = "nevermore.log-base"
"""Key of a change log that does not hold every change any more: `ORDINAL COUNT`. Up to the ordinal it holds this number of
changes, which lead to the same rows; it holds all later ones."""
RELOAD = "nevermore.reload"
"""Key of a change log: the first ordinal of a load that takes the place of all earlier rows and is not complete; 0 if it is.
Mirrors wait for its end."""
RELOADED = "nevermore.reloaded"
"""Key of the snapshot of a change log that ended such a load: `FIRST LAST`, the ordinals that mirrors apply as a whole."""
ERASED = "nevermore.erased"
"""Key of any table: the snapshot lacks rows that older ones have, and these must not stay."""
POSITION_PROPERTIES = (
    POSITION,
    POSITION_FILE,
    LAST_ORDINAL,
    LOG_SNAPSHOT,
    LOG_ORDINAL,
    ORDER_REACHED,
    ORDER_BY,
    LOG_BASE,
    RELOAD,
)
"""Keys that maintenance copies to its snapshots; the last snapshot that has one of them never expires."""
_PLACES = {POSITION, POSITION_FILE}
"""Two places of one value: a snapshot has one of them."""


def num_carriers(summaries: Sequence[Mapping[str, str]]) -> int:
    """How many snapshots of a line must stay so that no position is lost: the newest carrier of each, and all newer ones.

    Args:
        summaries: of the current snapshot and its ancestors, newest first: positions are looked up from parent to parent.
    """
    missing, count = set(POSITION_PROPERTIES), 0
    for number, summary in enumerate(summaries, 1):
        if carried := missing.intersection(summary):
            count = number
            missing -= carried | (_PLACES if carried & _PLACES else set())
    return count


MAX_INLINE = 4096
"""Maximum characters of a position in a summary: metadata files repeat every summary."""


def position_properties(position: str, folder: str, storage: Storage) -> dict[str, str]:
    """The summary properties that carry a position; a long one goes to a file in `folder`."""
    if len(position) <= MAX_INLINE:
        return {POSITION: position}
    path = f"{folder}/position-{uuid.uuid4()}.txt"
    storage.write(path, position.encode())
    return {POSITION_FILE: path}


def position_in(summary: Mapping[str, str], storage: Storage) -> str | None:
    """The position in a summary; None if there is none."""
    if (path := summary.get(POSITION_FILE)) is not None:
        return storage.read(path).decode()
    return summary.get(POSITION)


def ancestors(table: "CatalogTable") -> "Iterator[Snapshot]":
    """Yield the current snapshot and its ancestors that the table still has, newest first.

    Reading only the newest is cheap, however many there are, because parents precede their children.
    """
    wanted = table.metadata.current_snapshot_id
    passed: dict[int, Snapshot] = {}
    for snapshot in reversed(table.metadata.snapshots):
        if snapshot.snapshot_id == wanted:
            yield snapshot
            wanted = snapshot.parent_snapshot_id
        else:
            passed[snapshot.snapshot_id] = snapshot
    while wanted is not None and (found := passed.pop(wanted, None)) is not None:
        yield found
        wanted = found.parent_snapshot_id


def current_snapshot(table: "CatalogTable") -> "Snapshot | None":
    """The current snapshot, found from the newest on; PyIceberg searches from the oldest."""
    return next(ancestors(table), None)


def summary_properties(snapshot: "Snapshot | None") -> Mapping[str, str]:
    """The properties in a snapshot's summary; empty without a snapshot or summary."""
    return {} if snapshot is None or snapshot.summary is None else snapshot.summary.additional_properties


def newest_property(table: "CatalogTable", name: str) -> str | None:
    """The value of a summary property in the newest ancestor that has it (rule 29)."""
    for snapshot in ancestors(table):
        if (value := summary_properties(snapshot).get(name)) is not None:
            return str(value)
    return None


def applied_ordinal(name: str, mirror: "CatalogTable | None") -> int:
    """The last ordinal of the change log that is in the mirror `name`; 0 for none.

    Raises:
        PositionLostError: the table has rows, but no snapshot records which changes they contain.
    """
    if mirror is None:
        return 0
    text = newest_property(mirror, LOG_ORDINAL)
    if text is None and mirror.metadata.current_snapshot_id is not None:
        raise PositionLostError(
            f"{name} has snapshots but none records which changes of its log it contains; it was not created "
            f"by this pipeline, or that snapshot has expired. Keep its rows and apply the log to them: nevermore adopt "
            f"{name}. Or rebuild it from its log alone, which drops all present rows: nevermore resync {name}"
        )
    return int(text or 0)


def waiting_since(table: "CatalogTable") -> float | None:
    """When the oldest commit with equality deletes was made that are not converted, in seconds since the epoch.

    None if the current snapshot has none, or does not state their number.
    """
    oldest = None
    for snapshot in ancestors(table):
        if summary_properties(snapshot).get("total-equality-deletes", "0") == "0":
            break
        oldest = snapshot.timestamp_ms / 1000
    return oldest


def carried_positions(table: "CatalogTable") -> dict[str, str]:
    """Summary properties for a snapshot of maintenance: the positions that the table has reached (rule 29)."""
    missing, found = set(POSITION_PROPERTIES), dict[str, str]()
    for snapshot in ancestors(table):
        summary = summary_properties(snapshot)
        for name in missing.intersection(summary):
            found[name] = summary[name]
            missing -= _PLACES if name in _PLACES else {name}
        if not missing:
            break
    return found
