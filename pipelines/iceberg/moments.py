"""Moments of a source: commit positions that several of its tables have reached together.

Each table of a source is committed by itself, so the newest snapshots of two mirrors may show a state that the database never
had. At the end of a round that brought tables to the same commit, it is recorded which change each of them has reached by
then. Readers of several mirrors take the snapshots of such a moment.

A moment names changes by their ordinals, not snapshots: maintenance that changes files only makes newer snapshots of the same
moment. It is a table property of the change log of one table, so it costs a commit per round, however many tables there are.

A run that was killed may not have recorded the moment that its tables reached. It shows in their change logs, as these are
committed at the same positions: only for a table without changes up to there, a moment must be recorded.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from nevermore.pipelines.errors import PositionLostError
from nevermore.pipelines.iceberg import positions
from nevermore.pipelines.iceberg.catalog import find_table
from nevermore.pipelines.iceberg.commit import commit
from nevermore.pipelines.iceberg.loaded_table import storage_of

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table as CatalogTable

MOMENTS = "nevermore.moments"
"""Table property of a change log: moments of its source as JSON, oldest first."""
RECENT = 4
"""The last moments are kept: a mirror that follows its log later may still be at one of them."""
MAX_MOMENTS = 12
"""Older ones are kept if tables of the source are read at different times: the last ones that have these tables together."""


LAST_COMMITS = 20
"""Commits of a change log that are compared with those of others."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A commit position.

    Attributes:
        at: the position, in the text of the source.
        reached: the last change of each table up to the position, by its ordinal in the change log.
    """

    at: str
    reached: Mapping[str, int]


def moments_of(catalog: "Catalog", logs: Sequence[str]) -> list[Moment]:
    """The moments of a source, oldest first; `logs` are the change logs of its tables.

    Raises:
        PositionLostError: the table property cannot be read.
    """
    for name in sorted(logs):
        log = find_table(catalog, name)
        text = None if log is None else log.metadata.properties.get(MOMENTS)
        if text is None:
            continue
        try:
            return [Moment(str(at), {str(t): int(n) for t, n in reached.items()}) for at, reached in json.loads(text)]
        except (ValueError, TypeError, AttributeError) as error:
            raise PositionLostError(f"{name}: table property {MOMENTS} cannot be read: {error}") from error
    return []


def record_moment(catalog: "Catalog", logs: Sequence[str], moment: Moment) -> None:
    """Record a moment, unless its tables have reached nothing new since the last one.

    Raises:
        PipelineError: it cannot be committed.
    """
    known = moments_of(catalog, logs)
    if known and known[-1].reached == moment.reached:
        return
    moments = [*known, moment]
    newer: list[Moment] = []  # newest first
    for number, older in enumerate(reversed(moments)):
        if number < RECENT or not any(older.reached.keys() <= m.reached.keys() for m in newer):
            newer.append(older)
    kept = newer[:MAX_MOMENTS][::-1]
    text = json.dumps([[m.at, dict(m.reached)] for m in kept], separators=(",", ":"))
    host: Any = next(table for name in sorted(logs) if (table := find_table(catalog, name)) is not None)
    commit(host, [], [{"action": "set-properties", "updates": {MOMENTS: text}}])


def common_snapshots(
    catalog: "Catalog", logs: Sequence[str], mirrors: "Mapping[str, tuple[str, CatalogTable]]"
) -> dict[str, int] | None:
    """The newest snapshots of mirrors that show one commit position; None if there are none.

    Args:
        catalog: where the tables are.
        logs: change logs of all tables of the source.
        mirrors: (change log, mirror) by name.

    Raises:
        PositionLostError: a table property or a position cannot be read.
    """
    recorded = (moment for moment in moments_of(catalog, logs) if mirrors.keys() <= moment.reached.keys())
    known = [*recorded, *_logged(catalog, {name: log for name, (log, _) in mirrors.items()})]
    for moment in sorted(known, key=lambda m: -sum(m.reached[name] for name in mirrors)):
        if (found := snapshots_at(moment, {name: mirror for name, (_, mirror) in mirrors.items()})) is not None:
            return found
    return None


def _logged(catalog: "Catalog", logs: Mapping[str, str]) -> list[Moment]:
    """Positions among the last ones of all these change logs."""
    reached = {name: _commits(find_table(catalog, log)) for name, log in logs.items()}
    shared = set[str].intersection(*map(set, reached.values()))
    return [Moment(at, {name: commits[at] for name, commits in reached.items()}) for at in shared]


def _commits(log: "CatalogTable | None") -> dict[str, int]:
    """The last positions of a change log, each with its last change up to there; without those within a load."""
    found: dict[str, int] = {}
    if log is None:
        return found
    for snapshot in islice(positions.ancestors(log), LAST_COMMITS):
        summary = positions.summary_properties(snapshot)
        text = positions.position_in(summary, storage_of(log))
        if text is None or positions.LAST_ORDINAL not in summary:
            continue
        document = json.loads(text)
        if document.get("load") is None and (at := document.get("at")):  # PostgreSQL, MySQL
            found.setdefault(str(at), int(summary[positions.LAST_ORDINAL]))
    return found


def snapshots_at(moment: Moment, mirrors: "Mapping[str, CatalogTable]") -> dict[str, int] | None:
    """The newest snapshot of each mirror that has exactly the changes up to a moment; None if one of them has none."""
    found = {}
    for name, mirror in mirrors.items():
        for snapshot in positions.ancestors(mirror):
            ordinal = positions.summary_properties(snapshot).get(positions.LOG_ORDINAL)
            if ordinal is not None and int(ordinal) == moment.reached.get(name):
                found[name] = snapshot.snapshot_id
                break
        else:
            return None
    return found
