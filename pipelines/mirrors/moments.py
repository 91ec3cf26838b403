"""Moments of a source: commit positions that several of its tables have reached together; and mirrors as of a time.

Each table of a source is committed by itself, so the newest snapshots of two mirrors may show a state that the database never
had. At the end of a round that brought tables to the same commit, it is recorded which change each of them has reached by
then. Readers of several mirrors take the snapshots of such a moment.

A moment names changes by their ordinals, not snapshots: maintenance that changes files only makes newer snapshots of the same
moment. It is a table property of the change log of one table, so it costs a commit per round, however many tables there are.

A run that was killed may not have recorded the moment that its tables reached. It shows in their change logs, as these are
committed at the same positions: only for a table without changes up to there, a moment must be recorded.

Rows as of a time whose snapshot has expired are rebuilt from the change log, in temporary files.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from shutil import rmtree
from tempfile import mkdtemp
from typing import TYPE_CHECKING
from weakref import finalize

from nevermore.pipelines.changes.change_log import ChangeLog
from nevermore.pipelines.config.project import Config, change_log_name
from nevermore.pipelines.config.sources import MysqlSource, PostgresSource
from nevermore.pipelines.errors import PositionLostError, SourceError
from nevermore.pipelines.iceberg import positions
from nevermore.pipelines.iceberg.catalog import find_table
from nevermore.pipelines.iceberg.commit import commit
from nevermore.pipelines.iceberg.loaded_table import storage_of
from nevermore.pipelines.mirrors.mirror import Mirror, check_whole
from nevermore.scan_core import Scan, SnapshotNotFoundError, open_table
from nevermore.scan_core.io import load_catalog, spill_folder

if TYPE_CHECKING:
    from nevermore.pipelines.iceberg.catalog import Catalog
    from nevermore.pipelines.iceberg.catalog import Table as CatalogTable

LIVE = PostgresSource | MysqlSource
"""Sources whose tables have commits in common."""
MOMENTS = "nevermore.moments"
"""Table property of a change log: moments of its source as JSON, oldest first."""
RECENT_TABLES = 500
"""The last moments are kept, up to so many tables in them, for readers of earlier times, and as a mirror may follow its log later."""
MAX_OLDER = 12
"""Older ones are kept if tables of the source are read at different times: the last ones that have these tables together."""


Moment = Mapping[str, int]
"""The last change of each table up to a commit of their database, by its ordinal in the change log."""


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
            return [{str(t): int(n) for t, n in reached.items()} for _, reached in json.loads(text)]
        except (ValueError, TypeError, AttributeError) as error:
            raise PositionLostError(f"{name}: table property {MOMENTS} cannot be read: {error}") from error
    return []


def record_moment(catalog: "Catalog", logs: Sequence[str], moment: Moment) -> None:
    """Record a moment, unless its tables have reached nothing new since the last one.

    Raises:
        PipelineError: it cannot be committed.
    """
    known = moments_of(catalog, logs)
    if known and known[-1] == moment:
        return
    newest = [moment, *known[::-1]]
    recent = max(4, RECENT_TABLES // len(moment))
    newer = newest[:recent]
    for older in newest[recent:]:
        if not any(older.keys() <= m.keys() for m in newer):
            newer.append(older)
    text = json.dumps([["", m] for m in newer[: recent + MAX_OLDER][::-1]], separators=(",", ":"))
    host = next(filter(None, (find_table(catalog, name) for name in sorted(logs))))
    commit(host, [], [{"action": "set-properties", "updates": {MOMENTS: text}}])


def common_snapshots(catalog: "Catalog", config: Config, mirrors: "Mapping[str, CatalogTable]") -> dict[str, int]:
    """Snapshots of mirrors that share a live source, at its last commit that all of them show.

    The result omits mirrors that are read at their current snapshot, and mirrors that are the only one of their source, as each snapshot
    of a mirror has whole transactions.

    Raises:
        SourceError: there is no such commit.
        PositionLostError: a table property or a position cannot be read.
    """
    found: dict[str, int] = {}
    for together, logs in by_source(config, mirrors):
        if len(together) == 1:
            continue
        known = [moment for moment in moments_of(catalog, logs) if moment.keys() >= together.keys()]
        # Positions that logs have in common do not show that a table without later changes had been read further.
        known += _logged(catalog, together)
        known.sort(key=lambda m: -sum(m[name] for name in together))
        if (pinned := snapshots_at(known, together)) is None:
            raise SourceError(
                f"{' and '.join(together)} are of one database, and there is no commit of which all of them have a snapshot: run "
                "nevermore ingest for all tables of the database, and fix those that fail first"
            )
        found |= {n: s for n, s in pinned.items() if s != mirrors[n].metadata.current_snapshot_id}
    return found


def by_source(
    config: Config, mirrors: "Mapping[str, CatalogTable]"
) -> "Iterator[tuple[dict[str, CatalogTable], list[str]]]":
    """Those of some mirrors that are of one database, and the change logs of all its tables; other mirrors alone."""
    found: dict[str, dict[str, CatalogTable]] = {}
    for name in filter(config.tables.__contains__, mirrors):  # change logs are read as they are
        source = config.tables[name].source
        found.setdefault(source.model_dump_json() if isinstance(source, LIVE) else name, {})[name] = mirrors[name]
    for together in found.values():
        source = config.tables[min(together)].source
        yield together, [change_log_name(name) for name, table in config.tables.items() if table.source == source]


def moment_within(catalog: "Catalog", logs: Sequence[str], limits: Moment) -> Moment:
    """The last moment of these tables of a source at which none had reached more than a change of its own.

    Raises:
        SourceError: there is none.
    """
    for moment in reversed(moments_of(catalog, logs)):
        if moment.keys() >= limits.keys() and all(moment[name] <= n for name, n in limits.items()):
            return {name: moment[name] for name in limits}
    raise SourceError(
        f"{' and '.join(limits)} are of one database, and it is not known which of their changes are of one commit at that time: "
        "ask for a later time, or for each table alone"
    )


def _logged(catalog: "Catalog", names: Collection[str]) -> list[Moment]:
    """Positions among the last ones of the change logs of all these tables, without those within a load."""
    reached = []
    for name in names:
        if (log := find_table(catalog, change_log_name(name))) is None:
            return []
        newest = map(positions.summary_properties, [*islice(positions.ancestors(log), 20)][::-1])
        found = {  # without what a position says of its table alone
            str(positions.position_in(summary, storage_of(log))).partition(',"claims"')[0]: int(
                summary[positions.LAST_ORDINAL]
            )
            for summary in newest
            if positions.LAST_ORDINAL in summary
        }
        reached.append(found)
    shared = set(reached[0]).intersection(*reached)
    return [
        dict(zip(names, [known[at] for known in reached], strict=True)) for at in shared if at.endswith('"load":null')
    ]


def snapshots_at(moments: Sequence[Moment], mirrors: "Mapping[str, CatalogTable]") -> dict[str, int] | None:
    """The newest snapshots of mirrors that have exactly the changes up to a moment.

    The moment is the first of these for which every mirror has such a snapshot; None if no moment is like that.
    """
    by_ordinal = {
        name: {
            positions.summary_properties(snapshot).get(positions.LOG_ORDINAL): snapshot.snapshot_id
            for snapshot in reversed([*positions.ancestors(mirror)])
        }
        for name, mirror in mirrors.items()
    }
    for moment in moments:
        with suppress(KeyError):  # a mirror has no such snapshot
            return {name: known[str(moment[name])] for name, known in by_ordinal.items()}
    return None


_PLAIN = {"properties": {}, "partition_by": (), "deletes": "equality", "max_quarantine_ratio": 1.0}
"""How rows are rebuilt: without what only helps a mirror that stays, and in temporary files alone. What was refused then is in quarantine."""


def scans_at(
    catalog: "Catalog", config: Config, mirrors: "Mapping[str, CatalogTable]", scans: Mapping[str, Scan]
) -> Iterator[tuple[str, Scan]]:
    """Scans of mirrors in place of those as of a time: of one database at its last commit that all had read, of others without a snapshot.

    Rows without a snapshot are made from the change log. Before the first change, a mirror is left out.

    Raises:
        SourceError: a log does not hold every change since, or no commit of their database is known that all had read.
        AdoptedRowsError: a mirror had rows that its log does not have.
    """
    for together, logs in by_source(config, mirrors):
        first, *others = together
        with suppress(SnapshotNotFoundError):
            if not others and scans[first].snapshot:
                continue
        when = datetime.fromtimestamp((scans[first].timestamp_ms or 0) / 1000, UTC)
        known = {name: ChangeLog(catalog, change_log_name(name)) for name in together}
        reached: Moment = {name: log.read_before(when) for name, log in known.items()}
        if not any(reached.values()):
            continue
        if others:
            reached = moment_within(catalog, logs, reached)
        elif isinstance(config.tables[first].source, LIVE):
            known[first].check_between(reached[first])
        pinned = snapshots_at([reached], together)
        for name, ordinal in reached.items():
            if pinned:
                yield name, scans[name].as_of_snapshot(pinned[name])
                continue
            log, settings = known[name], config.tables[name]
            check_whole(together[name], log, ordinal)
            folder = mkdtemp(dir=spill_folder().path)
            own = load_catalog(name, {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": folder})
            made = Mirror(own, name, settings.model_copy(update=_PLAIN), settings.key or log.key)
            opened = open_table(made.rebuild(log, ordinal, reject=lambda _: None), options=scans[name].options)
            finalize(opened.metadata, rmtree, folder)  # with the last scan, or the process
            yield name, opened.scan()
