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
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Any

from nevermore.pipelines.config.project import Config, change_log_name
from nevermore.pipelines.config.sources import MysqlSource, PostgresSource
from nevermore.pipelines.errors import PositionLostError, SourceError
from nevermore.pipelines.iceberg import positions
from nevermore.pipelines.iceberg.catalog import find_table
from nevermore.pipelines.iceberg.commit import commit
from nevermore.pipelines.iceberg.loaded_table import storage_of

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table as CatalogTable

MOMENTS = "nevermore.moments"
"""Table property of a change log: moments of its source as JSON, oldest first."""
RECENT_TABLES = 500
"""The last moments are kept, up to so many tables in them, for readers of earlier times, and as a mirror may follow its log later."""
MAX_OLDER = 12
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
    newest = moments[::-1]
    recent = max(4, RECENT_TABLES // len(moment.reached))
    newer = newest[:recent]
    for older in newest[recent:]:
        if not any(older.reached.keys() <= m.reached.keys() for m in newer):
            newer.append(older)
    kept = newer[: recent + MAX_OLDER][::-1]
    text = json.dumps([[m.at, dict(m.reached)] for m in kept], separators=(",", ":"))
    host: Any = next(table for name in sorted(logs) if (table := find_table(catalog, name)) is not None)
    commit(host, [], [{"action": "set-properties", "updates": {MOMENTS: text}}])


def common_snapshots(
    catalog: "Catalog", config: Config, mirrors: "Mapping[str, CatalogTable]", until_ms: float = inf
) -> dict[str, int]:
    """Snapshots of mirrors that share a live source, at its last commit that all of them showed at a time.

    The result omits mirrors that are read at their current snapshot, and mirrors that are the only one of their source, as each snapshot
    of a mirror has whole transactions.

    Raises:
        SourceError: there is no such commit.
        PositionLostError: a table property or a position cannot be read.
    """
    found: dict[str, int] = {}
    by_source: dict[str, list[str]] = {}
    for name in (n for n in mirrors if n in config.tables):  # change logs are read as they are
        source = config.tables[name].source
        if isinstance(source, PostgresSource | MysqlSource):
            by_source.setdefault(source.model_dump_json(), []).append(name)
    for names in (names for names in by_source.values() if len(names) > 1):
        source = config.tables[names[0]].source
        logs = [change_log_name(name) for name, table in config.tables.items() if table.source == source]
        known = [moment for moment in moments_of(catalog, logs) if moment.reached.keys() >= {*names}]
        # Positions that logs have in common do not show that a table without later changes had been read further.
        if not known or until_ms == inf:
            known += _logged(catalog, names, until_ms)
        known.sort(key=lambda m: -sum(m.reached[name] for name in names))
        if (pinned := snapshots_at(known, {name: mirrors[name] for name in names}, until_ms)) is None:
            what = f"{' and '.join(names)} are of one database, and"
            raise SourceError(
                f"{what} there is no commit of which all of them have a snapshot: run "
                "nevermore ingest for all tables of the database, and fix those that fail first"
                if until_ms == inf
                else f"{what} it is not known which of their snapshots are of one commit at that time: ask for a later "
                "time, or for each table alone"
            )
        found |= {n: s for n, s in pinned.items() if s != mirrors[n].metadata.current_snapshot_id}
    return found


def _logged(catalog: "Catalog", names: Sequence[str], until_ms: float) -> list[Moment]:
    """Positions among the last ones of the change logs of all these tables at a time."""
    reached = {name: _commits(find_table(catalog, change_log_name(name)), until_ms) for name in names}
    shared = set[str].intersection(*map(set, reached.values()))
    return [Moment(at, {name: commits[at] for name, commits in reached.items()}) for at in shared]


def _commits(log: "CatalogTable | None", until_ms: float) -> dict[str, int]:
    """The last positions of a change log at a time, each with its last change up to there; without those within a load."""
    found: dict[str, int] = {}
    if log is None:
        return found
    line = (snapshot for snapshot in positions.ancestors(log) if snapshot.timestamp_ms <= until_ms)
    for snapshot in islice(line, LAST_COMMITS):
        summary = positions.summary_properties(snapshot)
        document = json.loads(positions.position_in(summary, storage_of(log)) or "{}")
        is_complete = positions.LAST_ORDINAL in summary and document.get("load") is None
        if is_complete and (at := document.get("at")):  # PostgreSQL, MySQL
            found.setdefault(str(at), int(summary[positions.LAST_ORDINAL]))
    return found


def snapshots_at(
    moments: Sequence[Moment], mirrors: "Mapping[str, CatalogTable]", until_ms: float = inf
) -> dict[str, int] | None:
    """The newest snapshots of mirrors, at a time, that have exactly the changes up to a moment.

    The moment is the first of these for which every mirror has such a snapshot; None if no moment is like that.
    """
    by_ordinal = {
        name: {
            positions.summary_properties(snapshot).get(positions.LOG_ORDINAL): snapshot.snapshot_id
            for snapshot in reversed([*positions.ancestors(mirror)])
            if snapshot.timestamp_ms <= until_ms
        }
        for name, mirror in mirrors.items()
    }
    for moment in moments:
        with suppress(KeyError):  # a mirror has no such snapshot
            return {name: known[str(moment.reached[name])] for name, known in by_ordinal.items()}
    return None
