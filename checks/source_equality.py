"""Mirrors against the databases that they are read from: what was lost before the change log leaves no other trace.

The database and DuckDB hash the same texts of the same rows, and compare sums by ranges of the key, and the hashes of the rows of
ranges that differ. What differs may have changed meanwhile: the change log names these keys, and the stream of the database those that the log
does not have yet. Only if others differ, or if values have no such text, all rows are read as a load reads them: that shows both
values and what cannot be decoded, but shares the decoder with the mirror.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nevermore.checks.comparison import MAX_OFFENDING_KEYS, Relation
from nevermore.checks.equality import MirrorRows, mirror_rows, result_of, unless_none
from nevermore.checks.kept_results import KeptResults, ResultStore
from nevermore.checks.mirror_checks import mirror_subject, with_evidence
from nevermore.pipelines.changes.change_log import ChangeLog, read_changes
from nevermore.pipelines.config.project import Config, change_log_name
from nevermore.pipelines.decode.batches import with_members
from nevermore.pipelines.decode.feed import Decided, FeedConfig, TableFeed
from nevermore.pipelines.errors import PipelineError, SourceError
from nevermore.pipelines.formats.registry import decode
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.ingest.feeds import Readers, feeds_of
from nevermore.pipelines.ingest.report import TableReport
from nevermore.pipelines.ingest.table_ingest import TableIngest
from nevermore.pipelines.publish.audit import CheckResult
from nevermore.pipelines.sources.live import LiveSource, hashed_in_duckdb

NAME = "mirror_equals_source"
WAIT_SECONDS = 300.0
"""How long a stream is waited for that another process reads."""
RETRY_SECONDS = 1.0
KEEP_SECONDS = 10.0
"""How much work of a comparison an interruption costs."""
RESUME_SECONDS = 24 * 3600.0
"""How old what it has read of the database may be."""


def mirror_equals_source(config: Config, table: str) -> CheckResult:
    """The mirror has exactly the rows of its table in the database, without those that changed while they were read.

    Raises:
        PipelineError: the database cannot be read, or the table was truncated meanwhile.
    """
    settings, subject = config.table(table), mirror_subject(config, table)
    nothing = result_of(NAME, {}, notes=[f"{table} has not been loaded from a database: nothing to compare"])
    with closing(Readers()) as readers:
        feed = feeds_of(config, [table], readers)[0]
        if feed.live is None or subject is None:
            return nothing
        catalog = open_catalog(config)
        ingest = TableIngest(catalog, table, settings, TableReport(table))
        ingest.check()  # finds the key of an adopted table
        if ingest.position is None or not feed.live.is_loaded(ingest.position):
            return nothing
        decided = Decided(claims=feed.live.positions.from_json(ingest.position).claims)
        known = feed.remembering(catalog)
        decoding, target = known.config([ingest], decided), known.config_of(table, ingest, decided)
        with mirror_rows(subject) as rows:
            like = rows.arriving.schema
            most = settings.checks.max_rows_per_second
            reading = _Reading(config, feed.live, decoding, target, table, feed.read_bytes, most, rows, catalog)
            num_unlike = 0
            if (hashes := reading.by_hashes(decided.claims[table])) is not None:
                compared, source, mirror = hashes
                differing = reading.unchanged(source, mirror, source.schema.names[:-1], are_texts=True)
                if differing is None:
                    return result_of(NAME, compared, notes=reading.notes)
                num_unlike = differing[0].among(differing[1].select(source.schema.names[:-1])).num_rows
                reading.notes.clear()
            source = rows.stored("source", like, reading.paced(reading.rows(ingest.position, like)))
            compared = {"rows in database": source.num_rows, "rows in mirror": rows.alive.num_rows}
            names = [name for name in dict.fromkeys((*subject.key, *like.names)) if name not in reading.lacking]
            source, key = source.select(names), subject.key or names
            notes = [f"not compared: {name}, which the database does not have" for name in sorted(reading.lacking)]
            notes += unless_none(reading.num_rejected, "row", "that cannot be decoded")
            differing = reading.unchanged(source, rows.alive.select(names), key)
            rest = "that the database writes as other text, though a load reads the same values: report this fault"
            wrong, shown = unless_none(num_unlike, "row", rest), list[dict[str, Any]]()
            again = f"load the table again: nevermore resync {table} --from-source"
            if differing is not None:
                wrong, shown = _differences(*differing, key, subject.key)
                if hashes is not None:
                    again = f"load these rows again: nevermore resync {table} --keys={_ranges(*differing, hashes[1].schema.names[0])}"
    notes += reading.notes
    if wrong:
        notes.append(again)
    severity = settings.checks.mirror_equals_source
    result = replace(result_of(NAME, compared, wrong, shown, notes), severity="warn" if severity == "off" else severity)
    return with_evidence(result, subject, [table, "--config", str(config.path)])


@dataclass
class _Reading:
    """Reads a table of a database, and what changes in it.

    Attributes:
        project: has the mirror.
        config: how changes are decoded.
        target: how rows of the table are decoded, among those of its feed.
        table: the mirror.
        most: rows to read in a second.
        mirror: rows of the mirror.
        catalog: has the change log.
        lacking: columns of the mirror that the table does not have.
        notes: what is not compared.
        num_rejected: rows that could not be decoded.
        until: the place in the log of the database up to which changes may be in the rows that were read, or not.
    """

    project: Config
    live: LiveSource
    config: FeedConfig
    target: TableFeed
    table: str
    limit_bytes: int
    most: int | None
    mirror: MirrorRows
    catalog: Any
    lacking: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    num_rejected: int = 0
    until: int = 0

    def by_hashes(self, source_table: str) -> tuple[dict[str, int], Relation, Relation] | None:
        """(Numbers of rows, rows of ranges whose sums differ in the database, those of the mirror), as `HashedTable` has them.

        None if a type has no text that is the same on both sides, or the key does not begin with an integer.
        """
        theirs, rows = self.live.hashed(self.target, source_table), self.mirror.arriving
        ours, names = hashed_in_duckdb(rows, theirs.key), rows.schema.names
        if {*theirs.key} != {*self.mirror.subject.key} or not theirs.is_like(ours, names):
            return None
        # storing the rows themselves would take longer than hashing them
        kept = self.mirror.read("hashes", f"FROM {ours.hashed(names)}")
        ours = replace(ours, stored=kept.sql)
        shape = [theirs.server, theirs.hashed(names), self.most]
        store = ResultStore(self.project, self.table, self.mirror.subject.opened, shape, "source-")
        begun = store.find(0)
        if begun is None or time.time() - begun.full_at > RESUME_SECONDS:
            begun = KeptResults(0, {}, None, time.time(), [{}])
        known, saved = dict[str, Any](begun.documents[0]), time.monotonic()
        if known:
            since = datetime.fromtimestamp(begun.full_at, UTC)
            self.notes.append(f"went on with what was read since {since:%Y-%m-%d %H:%M} UTC")

        def once(name: str, find: Callable[[], Any]) -> Any:
            nonlocal saved
            if name not in known:
                known[name] = find()
                if time.monotonic() - saved > KEEP_SECONDS:
                    store.keep(replace(begun, documents=[known]))
                    saved = time.monotonic()
                if self.most is not None:
                    time.sleep(1)
            return known[name]

        num_rows, width, places = theirs.differing(ours, names, self.most, once)
        there = self.mirror.stored("source", theirs.schema, self.paced(theirs.rows(names, width, places)))
        here = self.mirror.stored("hashed", ours.schema, ours.rows(names, width, places))
        self.until = theirs.now()
        store.keep(KeptResults(0, {}, None, 0.0))
        return {"rows in database": num_rows, "rows in mirror": kept.num_rows}, there, here

    def unchanged(
        self, database: Relation, mirror: Relation, key: Sequence[str], *, are_texts: bool = False
    ) -> tuple[Relation, Relation] | None:
        """Rows of the database and of the mirror that differ, without those of keys that changed; None if there are none."""
        if (found := database.compare(mirror)).equal:
            return None
        kinds = pa.schema([self.mirror.arriving.schema.field(name) for name in key])
        ends = time.monotonic() + WAIT_SECONDS
        while True:
            log = ChangeLog(self.catalog, change_log_name(self.table))
            try:
                changed = self.mirror.stored("changed", kinds, self._changed(log, kinds))
                break
            except SourceError as error:  # another process reads the stream, and logs what it gets
                self.live.interrupt()
                if time.monotonic() > ends:
                    self.notes.append(
                        f"changes that are not in the log after {WAIT_SECONDS:.0f} s are unknown: {error}"
                    )
                    self.until = 0
                time.sleep(RETRY_SECONDS)
        if are_texts:
            hashed = hashed_in_duckdb(changed, key)
            texts = (f"{hashed.text(name)} AS c{i}" for i, name in enumerate(key))
            changed = replace(changed, sql=f"(SELECT {', '.join(texts)} FROM {changed.sql})")
        left, right = (_surplus(side, changed, database.schema) for side in ("l", "r"))
        num_left = max(found.num_left_only - left.num_rows, found.num_right_only - right.num_rows)
        self.notes += unless_none(num_left, "row", "that changed meanwhile not compared")
        return (left, right) if left.num_rows + right.num_rows else None

    def rows(self, position: str, like: pa.Schema) -> Iterator[pa.Table]:
        """All rows of the table."""
        known = self.live.positions.from_json(position)
        for batch in self.live.load(self.target, known.claims[self.table], known.again, self.limit_bytes):
            self.until = 0 if batch.position.load is None else batch.position.load.until
            decoded = decode(batch.raw, self.config)
            self.num_rejected += decoded.rejected.num_rows
            changes = decoded.tables[self.table]
            if changes.num_rows:
                self.lacking = {*like.names} - {member.name for member in changes.row_type}
                yield _members(changes.table.column("after"), like)

    def paced(self, read: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """The same rows, at most so many in a second."""
        began, count = time.monotonic(), 0
        for rows in read:
            yield rows
            count += rows.num_rows
            if self.most is not None:
                time.sleep(max(0.0, count / self.most - (time.monotonic() - began)))

    def _changed(self, log: ChangeLog, kinds: pa.Schema) -> Iterator[pa.Table]:
        """Keys of the changes after those of the mirror, until the table was read."""
        after = self.mirror.subject.required_ordinal or 0
        logged = read_changes(log.table, after, log.last_ordinal, self.limit_bytes)
        for changes in chain(logged, self._streamed(str(log.position))):
            if pc.any(pc.equal(changes.column("op"), "t")).as_py():
                raise PipelineError(f"{self.table} was truncated while it was compared: check it again")
            for rows in (changes.column("key"), changes.column("after")):
                yield _members(rows.filter(rows.is_valid()), kinds)

    def _streamed(self, position: str) -> Iterator[pa.Table]:
        """Changes that the log does not have yet."""
        if self.live.positions.from_json(position).at >= self.until:
            return
        self.live.begin({self.table: position})
        for batch in self.live.stream({self.table: position}, self.limit_bytes):
            yield decode(batch.raw, self.config).tables[self.table].table


def _members(rows: pa.ChunkedArray, like: pa.Schema) -> pa.Table:
    """Members of a struct as columns."""
    return pa.Table.from_arrays(with_members(rows, pa.struct(list(like))).flatten(), schema=like)


def _surplus(side: str, changed: Relation, schema: pa.Schema) -> Relation:
    """The rows of one side in `surplus` whose keys have not changed."""
    columns = ", ".join(f"{side}c{i} AS c{i}" for i in range(len(schema)))
    sql = f"(SELECT {columns} FROM surplus WHERE {side}n IS NOT NULL)"
    return Relation(changed.connection, sql, schema).among(changed, "ANTI")


def _ranges(left: Relation, right: Relation, number: str) -> str:
    """The values of a column of rows that differ, as `resync --keys` takes them: at most 20 values and ranges."""
    sql = f"""
        WITH gaps AS (SELECT c0, c0::HUGEINT - lag(c0) OVER (ORDER BY c0) AS gap FROM (FROM {left.select([number]).sql} UNION FROM {right.select([number]).sql})),
        begun AS (
            SELECT *, coalesce(gap, 2) > 1 AND row_number() OVER (ORDER BY gap DESC NULLS FIRST) <= {MAX_OFFENDING_KEYS} AS b FROM gaps
        ),
        parts AS (SELECT *, sum(b::INT) OVER (ORDER BY c0) AS part FROM begun),
        ranges AS (SELECT min(c0) AS a, max(c0) AS z FROM parts GROUP BY part)
        SELECT string_agg(CASE WHEN a = z THEN a::VARCHAR ELSE a || '..' || z END, ',' ORDER BY a) FROM ranges"""
    return str(left.connection.execute(sql).fetchall()[0][0])


def _differences(
    left: Relation, right: Relation, key: Sequence[str], shown: Sequence[str]
) -> tuple[list[str], list[dict[str, Any]]]:
    """What is wrong with rows of a database and of its mirror, which differ; and the first ones, with the columns `shown`."""
    missing, extra = left.among(right.select(key), "ANTI"), right.among(left.select(key), "ANTI")
    other, others = left.among(right.select(key)), right.among(left.select(key))
    wrong = [
        *unless_none(missing.num_rows, "row", "of the database missing in the mirror"),
        *unless_none(extra.num_rows, "row", "of the mirror not in the database"),
        *unless_none(other.num_rows, "row", "with other values than in the database"),
    ]
    pairs: Iterator[tuple[dict[str, Any], dict[str, Any]]] = chain(
        zip(other.sample(), others.sample(), strict=False),
        ((row, {}) for row in missing.sample()),
        (({}, row) for row in extra.sample()),
    )
    return wrong, [
        {name: (a or b)[name] for name in shown} | {"database": _unlike(a, b), "mirror": _unlike(b, a)}
        for a, b in pairs
    ]


def _unlike(row: dict[str, Any], other: dict[str, Any]) -> dict[str, Any] | None:
    """The values of a row that another one does not have; None without any."""
    return {name: value for name, value in row.items() if name not in other or other[name] != value} or None
