"""Which snapshots of the mirrors the rows of a published table were made from, partition by partition.

Told by the summaries of its own snapshots, so that a check can make the same rows again.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipelines.published.commit import MODE
from pipelines.published.state import PARTITIONS, QUERY, STATE, PublishedState, ancestors

SOURCE = "nevermore.source."
"""Of a summary, with the name of a mirror: its snapshot that was read."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What rows were made from.

    Attributes:
        query: hash of the SQL and of all in the config that decides its result; None where a snapshot does not tell.
        snapshots: read of each mirror; mirrors without snapshots are left out.
    """

    query: str | None
    snapshots: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where the rows of a published table come from.

    Attributes:
        made: by key, origins of partitions that were made alone since.
        rest: of all other rows; None where no snapshot tells.
    """

    made: Mapping[str, Origin] = field(default_factory=dict)
    rest: Origin | None = None


def provenance_of(table: Any) -> Provenance:
    """Where the rows come from, told by snapshots from the newest to the one that made all of the table.

    Args:
        table: from the catalog.
    """
    made: dict[str, Origin] = {}
    for snapshot in ancestors(table):
        told = {} if snapshot.summary is None else snapshot.summary.additional_properties
        if told.get(MODE, "replace") != "replace":  # rows of before are there, too
            return Provenance(made)
        if STATE in told:
            state = PublishedState.from_json(told[STATE])
            return Provenance(made, None if state is None else _of_state(state))
        if PARTITIONS in told:
            keys = json.loads(told[PARTITIONS])
        elif snapshot.summary is not None and snapshot.summary.operation.value == "replace":
            continue
        else:
            return Provenance(made)
        sources = {n.removeprefix(SOURCE): int(i) for n, i in told.items() if n.startswith(SOURCE)}
        for key in keys:
            made.setdefault(key, Origin(told.get(QUERY), sources))
    return Provenance(made)


def _of_state(state: PublishedState) -> Origin:
    known = {name: s.snapshot_id for name, s in state.sources.items() if s.snapshot_id is not None}
    return Origin(state.query, known)
