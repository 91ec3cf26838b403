"""Looks at everything that a run needs before anything is read: catalog, warehouse, sources, rights, settings, clocks.

Nothing is created, changed or acknowledged, but a file of a few bytes that is written to the warehouse and deleted again.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nevermore.pipelines.config.project import Config, change_log_name
from nevermore.pipelines.config.sources import FilesSource, KafkaSource, MysqlSource, PostgresSource
from nevermore.pipelines.config.tables import TableConfig
from nevermore.pipelines.decode.batches import Rejected
from nevermore.pipelines.decode.feed import Decided
from nevermore.pipelines.errors import ConfigError, PipelineError, explained
from nevermore.pipelines.formats.registry import scan
from nevermore.pipelines.iceberg.catalog import expanded, find_table, open_to_look, sqlite_file
from nevermore.pipelines.iceberg.warehouse import local_warehouse, write_probe
from nevermore.pipelines.ingest.feeds import Feed, Readers, decided_in, feeds_of
from nevermore.pipelines.ingest.report import TableReport
from nevermore.pipelines.ingest.table_ingest import TableIngest
from nevermore.pipelines.sources.live import Finding
from nevermore.pipelines.wording import counted
from nevermore.scan_core import ScanError

if TYPE_CHECKING:
    from nevermore.pipelines.iceberg.catalog import Catalog


@dataclass(frozen=True, slots=True)
class Examined:
    """A finding, and what it is about: `catalog`, or the title of a source."""

    subject: str
    finding: Finding

    def as_dict(self) -> dict[str, str]:
        """As a JSON object."""
        return {"subject": self.subject, **asdict(self.finding)}


def examine(config: Config) -> Iterator[Examined]:
    """Look at everything that a run of this config needs."""
    catalog = None
    try:
        catalog = open_to_look(config)
        text = f"{config.catalog.type}, {counted(len(config.tables), 'table')} in the config"
        if catalog is None:
            text = f"{sqlite_file(config)} does not exist yet; the first run creates it"
        yield Examined("catalog", Finding("catalog", "ok", text))
    except (PipelineError, ScanError) as error:
        yield Examined("catalog", Finding("catalog", "failed", str(error)))
    yield Examined("catalog", _warehouse(config, catalog))
    known = config if catalog is None else expanded(config, catalog)
    with closing(Readers()) as readers:
        for feed in feeds_of(known, [*known.tables, *known.patterns], readers):
            for finding in _source(feed, partial(_positions, feed, catalog)):
                yield Examined(feed.source.title, finding)


def _positions(feed: Feed, catalog: "Catalog | None") -> dict[str, str | None]:
    """Check the tables of a feed, and tell up to where they were read."""
    feed.check()
    positions: dict[str, str | None] = dict.fromkeys(feed.tables)
    if catalog is not None:
        for name, settings in feed.tables.items():
            table = TableIngest(catalog, name, settings, TableReport(name))
            table.check()
            positions[name] = table.position
    return positions


def _said(error: Exception) -> str:
    """What an error of a catalog or store says; any other one is raised again."""
    if (said := explained(error)) is None:
        raise error
    return said


def _warehouse(config: Config, catalog: "Catalog | None") -> Finding:
    try:
        return Finding("warehouse", *_writable(config, catalog))
    except Exception as error:  # noqa: BLE001 - raised again unless a catalog or store has failed
        return Finding("warehouse", "failed", _said(error))


def _writable(config: Config, catalog: "Catalog | None") -> tuple[Literal["ok", "warning"], str]:
    folder, place = local_warehouse(config), config.catalog.warehouse
    if folder is not None:
        parent = next(p for p in (folder, *folder.parents) if p.exists())
        if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
            raise ConfigError(f"{parent} cannot be written: change its rights, or catalog.warehouse")
        return "ok", f"{folder} can be written"
    if place is not None and "://" in place:
        write_probe(place, config.catalog.properties)
        return "ok", f"{place}: a file was written, read and deleted"
    # The catalog decides the places of tables: one that exists is tried, with the rights that come with it.
    if catalog is None:
        return "warning", "not tried, as the catalog could not be asked for a table"
    found = (find_table(catalog, name) for name in (*map(change_log_name, config.tables), *config.tables))
    table = next(filter(None, found), None)
    if table is None:
        return "warning", (
            "not tried: the catalog decides where tables are and gives the rights with each, and none of the config exists "
            "yet; the first run shows whether files can be written"
        )
    place = f"{table.location()}/data"
    write_probe(place, table.io.properties)
    return "ok", f"{place}: a file was written, read and deleted with the rights of that table"


def _source(feed: Feed, read: Callable[[], dict[str, str | None]]) -> Iterator[Finding]:
    source, names = feed.source, [*feed.tables]
    try:
        positions = read()
    except Exception as error:  # noqa: BLE001 - raised again unless a catalog or store has failed
        yield Finding("tables", "failed", _said(error))
        return

    def wanted(source_tables: Sequence[str]) -> dict[str, TableConfig]:
        """The tables of a database that the feed reads, and what it would read if it were there, with their settings."""
        claims = feed.claims(source_tables, Decided(), []).claims
        found = feed.found([name for name in source_tables if name not in claims.values()])
        names.extend(found)
        known = {claims.get(name, table.source_table or name): table for name, table in feed.tables.items()}
        return known | {source: settings for settings, source in found.values()}

    if isinstance(source, PostgresSource):
        from nevermore.pipelines.sources.postgres.inspection import findings

        yield from findings(source, wanted, lambda: [*filter(None, read().values())])
    elif isinstance(source, MysqlSource):
        from nevermore.pipelines.sources.mysql import reader

        yield from reader.findings(source, wanted)
    elif isinstance(source, KafkaSource):
        yield from _topics(feed, positions)
    elif isinstance(source, FilesSource):
        yield from _files(feed)
    places = [name.lower() for name in names]
    if alike := [name for name in names if places.count(name.lower()) > 1]:
        what = "differ by case only, which SQL and some catalogs do not tell apart: give their mirrors other names, with source_table"
        yield Finding("names of tables", "warning", f"{', '.join(alike)} {what}")


def _topics(feed: Feed, positions: dict[str, str | None]) -> Iterator[Finding]:
    if feed.topics is None:
        return
    from nevermore.pipelines.sources.kafka import findings

    for finding in findings(feed.topics):
        yield finding
        if finding.status == "failed":
            return
    for position in dict.fromkeys(positions.values() or [None]):
        tables = ", ".join(name for name, at in positions.items() if at == position) or "the tables of patterns"
        try:
            unread = feed.topics.unread(position)
            yield Finding("messages", "ok", f"{unread:,} to read for {tables}")
            if unread:
                yield _first_events(feed, position)
        except PipelineError as error:
            yield Finding("messages", "failed", f"{tables}: {error}")


def _first_events(feed: Feed, position: str | None) -> Finding:
    """Whether the first events that a run would read are of the format, with the schemas that they refer to."""
    batch = feed.first_batch(position)
    if batch is None:
        return Finding("events", "ok", "only marks of transactions: there is no event yet")
    scanned = scan(batch.raw, feed.config([], decided_in(position)))
    refused = Rejected.concat(scanned.refused)
    what = f"the first {batch.raw.num_events:,} were read, of format {feed.source.format}"
    if refused.num_rows:
        first = refused.table.slice(0, 1).to_pylist()[0]
        reason = f"{first['source_file']}:{first['source_offset']}: {first['reason']}"
        return Finding("events", "warning", f"{what}; {refused.num_rows:,} would go to quarantine, such as {reason}")
    return Finding("events", "ok", what)


def _files(feed: Feed) -> Iterator[Finding]:
    try:
        files = feed.listing.files
    except PipelineError as error:
        yield Finding("files", "failed", str(error))
        return
    unreadable = [f.path for f in files if Path(f.path).is_absolute() and not os.access(f.path, os.R_OK)]
    if unreadable:
        yield Finding(
            "files", "failed", f"{len(unreadable)} cannot be read, such as {unreadable[0]}: change their rights"
        )
    elif not files:
        yield Finding("files", "warning", "there are none yet: check `path` if there should be some")
    else:
        yield Finding("files", "ok", f"{counted(len(files), 'file')}, {sum(f.size for f in files):,} bytes")
