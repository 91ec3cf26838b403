"""What has been appended to a published table from a state of its mirrors: all of it, or some partitions; once each.

Told by snapshots and, beyond those that have expired, by properties of the table. A snapshot that a rollback has taken
back does not count.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pipelines.published.commit import MODE
from pipelines.published.state import PARTITIONS, ancestors

SOURCES = "nevermore.sources"
"""Of a snapshot's summary: the state of the mirrors that its rows are from, in short."""
APPENDED = "nevermore.appended"
"""Property of the table: the state from which all was appended; with a key after a dot, that partition."""


@dataclass(frozen=True, slots=True)
class Appended:
    """What was appended from one state: everything, or partitions by their keys."""

    is_all: bool = False
    keys: frozenset[str] = frozenset()


def fingerprint(sources: Mapping[str, int]) -> str:
    """The state of mirrors, by the snapshots that are read, in short."""
    text = "\n".join(f"{name}={snapshot_id}" for name, snapshot_id in sorted(sources.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def remembered(state: str, keys: Collection[str] | None) -> dict[str, str]:
    """Properties of the table that say what a commit appends; None for all."""
    return {APPENDED: state} if keys is None else {f"{APPENDED}.{key}": state for key in keys}


def appended(table: Any, state: str) -> Appended:
    """What was appended to a table from the catalog, None for one that does not exist, from a state of the mirrors."""
    if table is None or table.metadata.current_snapshot_id is None:
        return Appended()
    line = {snapshot.snapshot_id: snapshot for snapshot in ancestors(table)}
    oldest = min(snapshot.sequence_number for snapshot in line.values())
    made: dict[str | None, list[Any]] = {}  # by key; None for all
    for snapshot in table.metadata.snapshots:
        told = {} if snapshot.summary is None else snapshot.summary.additional_properties
        if (told.get(MODE), told.get(SOURCES)) == ("append", state):
            for key in json.loads(told[PARTITIONS]) if PARTITIONS in told else [None]:
                made.setdefault(key, []).append(snapshot)
    found = {key for key, snapshots in made.items() if any(s.snapshot_id in line for s in snapshots)}
    for name, value in table.metadata.properties.items():
        if value != state or (name != APPENDED and not name.startswith(f"{APPENDED}.")):
            continue
        key = None if name == APPENDED else name.removeprefix(f"{APPENDED}.")
        # A tag may keep a snapshot beyond expired ancestors: that it was rolled back cannot be seen, so the property counts.
        snapshots = made.get(key, [])
        if not snapshots or any(s.sequence_number < oldest for s in snapshots):
            found.add(key)
    return Appended(None in found, frozenset(key for key in found if key is not None))
