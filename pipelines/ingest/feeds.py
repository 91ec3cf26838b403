"""A feed: a source together with all tables that it fills, so that it is read and decoded once; and the tables that a run takes."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from nevermore.pipelines.changes.change_log import SOURCE_TABLE
from nevermore.pipelines.config.project import ALL_TABLES, Config, change_log_name, quarantine_name
from nevermore.pipelines.config.sources import (
    FilesSource,
    KafkaSource,
    MysqlSource,
    PostgresSource,
    PythonSource,
    Source,
)
from nevermore.pipelines.config.tables import TableConfig
from nevermore.pipelines.decode.batches import Rejected, SourceBatch
from nevermore.pipelines.decode.feed import POSITION, Decided, FeedConfig, TableFeed, discovered
from nevermore.pipelines.errors import ConfigError, SourceError
from nevermore.pipelines.formats.options import OPTIONS, full_name, parse_options, with_located_options
from nevermore.pipelines.formats.registry import complete_events_of, lookup, route_tables
from nevermore.pipelines.iceberg.catalog import find_table
from nevermore.pipelines.sources.file_changes import AppliedLines, Listing, OnSkipped, may_have_news
from nevermore.pipelines.sources.file_listing import RemoteFiles
from nevermore.pipelines.sources.file_options import MAX_BATCH_BYTES, FileOptions
from nevermore.pipelines.sources.file_position import FilePosition
from nevermore.pipelines.sources.files import discover
from nevermore.pipelines.sources.kafka import KafkaPosition, KafkaTopics
from nevermore.pipelines.sources.live import LiveSource
from nevermore.pipelines.workers import num_threads

if TYPE_CHECKING:
    from nevermore.pipelines.iceberg.catalog import Catalog
    from nevermore.pipelines.ingest.report import TableReport
    from nevermore.pipelines.ingest.table_ingest import TableIngest

READ_SHARE = 32
"""Share of the memory limit of a feed's smallest table that raw events of a batch may take."""
AHEAD_SHARE = 8
"""The same for all batches that are held at a time: decoded, they take several times as much."""
ORDER_SHARE = 8
"""The same where a run's events must be sorted before any is applied."""
MAX_ORDERED_ROWS = 50_000_000
MESSAGE_BYTES = 512
"""What a message is taken for where its size matters before it is read: clusters tell the number of messages alone."""


Reader = Listing | KafkaTopics | LiveSource
"""What reads a source: files by their listing, all others by a connection."""


class Readers:
    """The readers of sources, kept from one run to the next, as are the connections of live sources."""

    def __init__(self) -> None:
        self._listings: dict[tuple[str, ...], Listing] = {}
        self._connected: dict[str, KafkaTopics | LiveSource] = {}

    def of(self, source: Source, filesystem: RemoteFiles | None) -> Reader:
        """The reader of a source; opens no connection."""
        if isinstance(source, PythonSource):
            return Listing(())
        if isinstance(source, FilesSource):
            return self._listings.setdefault(source.path, Listing(source.path, filesystem))
        known = source.model_dump_json()
        if known not in self._connected:
            self._connected[known] = _connection(source)
        return self._connected[known]

    def forget_listings(self) -> None:
        """List files again when they are asked for."""
        self._listings.clear()

    def close(self) -> None:
        """Close all connections."""
        for reader in self._connected.values():
            reader.close()
        self._connected.clear()


def _connection(source: KafkaSource | MysqlSource | PostgresSource) -> KafkaTopics | LiveSource:
    """The reader of a source that is connected to; its modules are loaded only if they are needed."""
    if isinstance(source, KafkaSource):
        return KafkaTopics(source)
    if isinstance(source, MysqlSource):
        from nevermore.pipelines.sources.mysql.reader import MysqlReader

        return MysqlReader(source)
    from nevermore.pipelines.sources.postgres.reader import PostgresReader

    return PostgresReader(source)


@dataclass(frozen=True, slots=True)
class Feed:
    """A source, all tables that the config fills from it, and those that this run updates.

    Attributes:
        source: where the events are.
        tables: settings by name, including known tables of patterns.
        wanted: names of tables to update, and of patterns whose tables to find.
        reader: what reads the source.
        patterns: entries `namespace.*` of the config for this source.
        found_for: table of the feed by the name of the mirror that a pattern created for it.
    """

    source: Source
    tables: Mapping[str, TableConfig]
    wanted: tuple[str, ...]
    reader: Reader
    patterns: Mapping[str, TableConfig] = field(default_factory=dict)
    found_for: Mapping[str, str] = field(default_factory=dict)

    @property
    def settings(self) -> list[TableConfig]:
        """Settings of the wanted tables and patterns."""
        return [self.patterns[name] if name in self.patterns else self.tables[name] for name in self.wanted]

    @property
    def has_one_table(self) -> bool:
        """Whether all events of the source can only be meant for one table."""
        return len(self.tables) == 1 and not self.patterns

    @property
    def listing(self) -> Listing:
        """The files of the source.

        Raises:
            TypeError: it is not a source of files.
        """
        if not isinstance(self.reader, Listing):
            raise TypeError(f"{self.source.title} has no files")
        return self.reader

    @property
    def topics(self) -> KafkaTopics | None:
        """The connection of a source of topics; None for others."""
        return self.reader if isinstance(self.source, KafkaSource) else None  # type: ignore[return-value] # see `_connection`

    @property
    def live(self) -> LiveSource | None:
        """The connection of a source whose tables are loaded first; None for files and topics, which are only read on."""
        return self.reader if isinstance(self.source, PostgresSource | MysqlSource) else None  # type: ignore[return-value] # see `_connection`

    @property
    def source_options(self) -> Mapping[str, Any]:
        """Options of the source as the config has them."""
        return self.source.options if isinstance(self.source, FilesSource | KafkaSource) else {}

    def choose_engine(self, position: str | None, reports: Sequence["TableReport"]) -> str:
        """Whether tasks of Spark (`spark`) or this process (`local`) read what is new; reported to tables at that position.

        Raises:
            SourceError: as `why_local`.
        """
        why = self.why_local(position)
        engine = "spark" if why is None else "local"
        is_chosen = self.settings[0].ingest.engine == "auto"
        for report in reports:
            report.engine, report.why_local = engine, why if is_chosen else None
        return engine

    def why_local(self, position: str | None) -> str | None:
        """Why this process reads what is new since a position; None if tasks of Spark do.

        Raises:
            SourceError: no such path, or a cluster that does not answer.
        """
        ingest = self.settings[0].ingest
        if ingest.engine != "auto":
            return None if ingest.engine == "spark" else "engine: local"
        if self.live is not None:
            return f"{self.source.title} is read through a connection"
        if self.topics is not None:
            size = self.topics.unread(position) * MESSAGE_BYTES
        else:
            settled = -1 if position is None else FilePosition.from_json(position).settled_ns
            size = sum(f.size for f in self.listing.files if f.arrived_ns > settled)
        if size >= ingest.spark_above_bytes:
            return None
        return f"{size:,} new bytes are less than spark_above_bytes: {ingest.spark_above_bytes:,}"

    def first_batch(self, position: str | None) -> SourceBatch | None:
        """The first batch with events that follow a position; None if there are none."""
        with closing(self.batches(position, self.applied_lines([]), lambda *_: None)) as opened:  # type: ignore[type-var] # generators
            return next((batch for batch in opened if batch.raw.num_events), None)

    def applied_lines(self, tables: Sequence["TableIngest"]) -> AppliedLines:
        """Looks up in the change logs of tables how far files were read."""

        def applied(files: Sequence[str]) -> dict[str, int]:
            logged = [table.lines_logged(files) for table in tables]
            return {file: max(lines.get(file, 0) for lines in logged) for file in set().union(*logged)}

        return applied

    @property
    def read_bytes(self) -> int:
        """Size of the raw events of a batch; of all events that have to be sorted, as far as memory allows."""
        return min(MAX_BATCH_BYTES, self.memory_limit_bytes // (ORDER_SHARE if self.is_ordered else READ_SHARE))

    @property
    def file_options(self) -> FileOptions:
        """How files are read: no batch larger than the smallest table can take."""
        options, _ = FileOptions.split(self.source_options)
        if self.is_ordered:
            options = replace(options, batch_rows=MAX_ORDERED_ROWS, batch_bytes=MAX_BATCH_BYTES)
        return self._bounded(options, self.read_bytes)

    @property
    def task_options(self) -> FileOptions:
        """How tasks of Spark read the source, in the same batches whatever the order of the events."""
        options = FileOptions.split(self.source_options)[0] if isinstance(self.source, FilesSource) else FileOptions()
        return self._bounded(options, self.memory_limit_bytes // READ_SHARE)

    def _bounded(self, options: FileOptions, most: int) -> FileOptions:
        return replace(options, batch_bytes=min(options.batch_bytes, most)).within(self.memory_limit_bytes)

    @property
    def memory_limit_bytes(self) -> int:
        """Memory for all tables that are read together: the smallest limit among them."""
        return min(settings.memory_limit_bytes for settings in self.settings)

    @property
    def format_options(self) -> dict[str, Any]:
        """Options for the format."""
        if not isinstance(self.source, FilesSource):
            return dict(self.source_options)
        _, options = FileOptions.split(self.source_options)
        return options

    def check(self) -> None:
        """Refuse unknown formats and options, and two tables for one table of the feed, before anything is read."""
        entries = {**self.tables, **self.patterns}
        engines = {settings.ingest for settings in entries.values()}
        if len(engines) > 1:
            shown = "; ".join(f"{name}: {settings.ingest}" for name, settings in entries.items())
            raise ConfigError(
                f"tables of one source are read together, but their ingest settings differ; set the same for all: {shown}"
            )
        taken: dict[str, str] = {}
        for name, source in ((name, table.source_table) for name, table in self.tables.items()):
            if source is not None and (first := taken.setdefault(source, name)) != name:
                raise ConfigError(f"{first} and {name} both take source_table {source} of one source: leave one out")
        try:
            if self.source.format is not None:
                parse_options(OPTIONS[full_name(self.source.format)], self.format_options)
        except ConfigError as error:
            raise ConfigError(f"source of {', '.join((*self.tables, *self.patterns))}: {error}") from error

    @property
    def quarantine(self) -> str:
        """The table for rejected events that belong to none of several tables."""
        first = next(iter((*self.tables, *self.patterns))).removesuffix(ALL_TABLES)
        namespace, _, name = quarantine_name(first).partition(".")
        return f"{namespace}.feed_of_{name}"

    def config(self, running: Sequence["TableIngest"], decided: Decided) -> FeedConfig:
        """The decoder's config, with all tables of the feed, so that no table takes the events of another.

        `decided` comes from the position where reading starts, or from the previous batch.
        """
        active = {table.name: table for table in running}
        return FeedConfig(
            format=self.source.format,
            options=self.format_options,
            decided=replace(
                decided,
                origins=self._still_read(decided.origins),
                servers=decided.servers if self.one_server else {},
            ),
            tables=tuple(self.config_of(name, active.get(name), decided) for name in self.tables),
            is_open=bool(self.patterns),
            origin=self.origin,
            one_server=self.one_server,
        )

    def config_of(self, name: str, table: "TableIngest | None", decided: Decided) -> TableFeed:
        """What the decoder must know of a table; `table` if it runs."""
        encodings = decided.encodings.get(name, {})
        return table_feed(name, self.tables[name], table, self.found_for.get(name), encodings)

    def _still_read(self, origins: Mapping[str, str]) -> Mapping[str, str]:
        """Origins without topics that the config has replaced by others."""
        if not isinstance(self.source, KafkaSource):
            return origins if self.origin else {}
        topics = self.source.topics
        return {
            table: topic
            for table, topic in origins.items()
            if self.origin and any(re.fullmatch(t, topic) if t.startswith("^") else t == topic for t in topics)
        }

    @property
    def origin(self) -> str:
        """What all events of a table of the feed must have in common: see `FeedConfig`.

        Topics or files that the config lists for a single table are parts of it.
        """
        if isinstance(self.source, KafkaSource):
            is_listed = self.has_one_table and not any(topic.startswith("^") for topic in self.source.topics)
            return "" if is_listed or self.source.merge_topics else "topic"
        return (
            "folder" if isinstance(self.source, FilesSource) and self.patterns and not self.source.merge_folders else ""
        )

    @property
    def one_server(self) -> str:
        """See `FeedConfig`. Several topics or paths that the config lists for a single table are parts of it."""
        if isinstance(self.source, KafkaSource):
            is_listed = self.has_one_table and len(self.source.topics) > 1 and not self.origin
            return "" if is_listed or self.source.merge_topics else "merge_topics"
        if isinstance(self.source, FilesSource):
            is_listed = self.has_one_table and len(self.source.path) > 1
            return "" if is_listed or self.source.merge_folders else "merge_folders"
        return ""

    def claims(self, source_tables: Sequence[str], decided: Decided, running: Sequence["TableIngest"]) -> Decided:
        """Decide which of the tables that a live source has belongs to which target, before any event is read.

        Raises:
            SourceError: it is ambiguous.
        """
        tables = self.config(running, decided).tables
        every = range(len(source_tables))
        codes, claims = route_tables(source_tables, tables, decided.claims, codes=every, is_open=bool(self.patterns))
        taken: dict[str, str] = {}
        twice = {name for name, count in Counter(source_tables).items() if count > 1}
        for name, code in zip(source_tables, codes, strict=False):
            if code >= 0 and name in twice:
                raise SourceError(f"{name} may be either of two tables, as their names have dots: rename one of them")
            if code >= 0 and (first := taken.setdefault(tables[int(code)].name, name)) != name:
                target = tables[int(code)].name
                raise SourceError(f"{target} fits {first} and {name}: choose one of them with source_table, in full")
        return replace(decided, claims={**claims, **taken})

    def found(self, untaken: Sequence[str]) -> dict[str, tuple[TableConfig, str]]:
        """Settings, and name in the feed, of new mirrors for tables of the feed that match a wanted pattern."""
        patterns = {name: settings for name, settings in self.patterns.items() if name in self.wanted}
        known = {name: table.source_table or self.found_for.get(name) for name, table in self.tables.items()}
        return {
            name: (patterns[pattern], source)
            for name, (pattern, source) in discovered(untaken, patterns, known).items()
        }

    def with_tables(self, found: Mapping[str, tuple[TableConfig, str]]) -> "Feed":
        """The feed with more wanted tables, as returned by `found`."""
        tables = {name: settings for name, (settings, _) in found.items()}
        sources = {name: source for name, (_, source) in found.items()}
        return replace(
            self,
            tables={**self.tables, **tables},
            wanted=(*self.wanted, *tables),
            found_for={**self.found_for, **sources},
        )

    def remembering(self, catalog: "Catalog", started: Sequence["TableIngest"] = ()) -> "Feed":
        """The feed with all tables recorded by the change logs of its patterns, wanted or not."""
        settings = list(self.patterns.values())
        known = {table.name: table.source_table for table in started}
        found = {
            name: known[name] if name in known else found_source(catalog, name)
            for name, table in self.tables.items()
            if table in settings
        }
        return replace(self, found_for={name: source for name, source in found.items() if source is not None})

    @property
    def most_ahead(self) -> int:
        """How many batches may be held at a time, so that their events and changes are within the memory limit."""
        size = self.file_options.batch_bytes if isinstance(self.source, FilesSource) else self.read_bytes
        return min(num_threads() + 1, self.memory_limit_bytes // AHEAD_SHARE // size)

    def batches(
        self,
        position: str | None,
        applied: AppliedLines,
        on_skipped: OnSkipped,
        warn: Callable[[str], None] | None = None,
    ) -> Iterator[SourceBatch]:
        """Read what is new since a position.

        Args:
            position: to continue from.
            applied: looks up how far files were read in the change logs of the tables that have reached it.
            on_skipped: called with the reason and number of skipped items.
            warn: called with what someone should see to.
        """
        if self.topics is not None:
            return self._messages(self.topics, position, on_skipped)
        start = None if position is None else FilePosition.from_json(position)
        return discover(
            self.listing,
            start,
            self.file_options,
            applied_lines=applied,
            complete=complete_events_of(self.source.format, self.format_options),
            on_skipped=on_skipped,
            warn=None if self.is_ordered else warn,
        )

    @property
    def is_ordered(self) -> bool:
        """Whether values in the events order them, so that nothing depends on when a file appears."""
        return any(settings.order_by != POSITION for settings in self.settings)

    def _messages(self, topics: KafkaTopics, position: str | None, on_skipped: OnSkipped) -> Iterator[SourceBatch]:
        """Read the messages of topics that follow a position."""
        name = self.source.format
        waiting: dict[str, int] = {}
        complete = complete_events_of(name, self.format_options)
        is_text = lookup(name).is_text if name else None
        yield from topics.batches(position, self.read_bytes, complete, waiting, is_text=is_text)
        for reason, count in waiting.items():
            on_skipped(reason, count)

    def may_have_news(self, position: str) -> bool:
        """Whether files might hold something new since a position.

        Raises:
            SourceError: no such path.
        """
        return may_have_news(self.listing, FilePosition.from_json(position), self.file_options)

    def restart(self, position: str) -> str:
        """The position of a table at `position` that is read again from the start of its source.

        Raises:
            ConfigError: its source is files.
            SourceError: the source cannot be reached.
        """
        if self.live is not None:
            return self.live.restart()
        if self.topics is None:
            raise ConfigError(
                f"{', '.join(self.wanted)} is read from files: load it again from files of a full load (--snapshot-source PATH)"
            )
        return self.topics.restart(position)

    def rejected_of(self, table: str, rejected: Rejected) -> Rejected:
        """The rejected events of a table; those of no known table belong to it if it is the only one."""
        mine = pc.equal(rejected.table.column("table_name"), table)
        return Rejected(rejected.table.filter(pc.fill_null(mine, self.has_one_table)))

    def unassigned(self, rejected: Rejected) -> Rejected:
        """The rejected events that belong to no table: none where there is only one table to belong to."""
        if self.has_one_table:
            return Rejected.none()
        known = pc.is_in(rejected.table.column("table_name"), value_set=pa.array(list(self.tables), pa.string()))
        return Rejected(rejected.table.filter(pc.invert(known)))


def check_tables(config: Config) -> None:
    """Refuse a config without mirrors.

    Raises:
        ConfigError: it has none; says how to declare one.
    """
    if not config.tables and not config.patterns:
        raise ConfigError(
            f"{config.path}: there are no entries under tables, so there is nothing to ingest; add one, such as "
            "shop.orders: {source: {path: landing/orders/*.jsonl, format: debezium-json}, key: [id]}"
        )


def chosen_names(config: Config, tables: Collection[str] | None) -> list[str]:
    """The requested tables and patterns; for a pattern, all its known tables.

    Raises:
        ConfigError: an unknown table.
    """
    entries = [*config.tables, *config.patterns]
    if tables is None:
        return entries
    for name in sorted(set(tables) - set(entries)):
        config.table(name)  # refuses what no pattern covers, and names the nearest
        raise ConfigError(f"no table {name} in {config.path}; it has {', '.join(entries)}")
    asked = {name for name in tables if name in config.patterns}
    return [
        name
        for name in entries
        if name in tables or (config.tables.get(name) in [config.patterns[p] for p in asked] and _covers(asked, name))
    ]


def _covers(patterns: Collection[str], name: str) -> bool:
    return any(name.startswith(pattern.removesuffix("*")) for pattern in patterns)


def unmatched_patterns(reports: Collection[str], config: Config, chosen: Sequence[str]) -> tuple[str, ...]:
    """Patterns without any of the reported tables."""
    return tuple(p for p in chosen if p in config.patterns and not any(_covers([p], name) for name in reports))


def found_source(catalog: "Catalog", name: str) -> str | None:
    """The table of the feed for which a pattern created a mirror, as stored with its change log."""
    log = find_table(catalog, change_log_name(name))
    return None if log is None else log.metadata.properties.get(SOURCE_TABLE)


def decided_in(position: str | None) -> Decided:
    """Decisions recorded in a position of files or topics."""
    if position is None:
        return Decided()
    if position.startswith('{"source":"kafka"'):
        return KafkaPosition.from_json(position).decided
    return FilePosition.from_json(position).decided


def feeds_of(config: Config, chosen: Sequence[str], readers: Readers | None = None) -> list[Feed]:
    """The sources of these tables and patterns; `readers` are those of an earlier call, and are added to."""
    entries = {**config.tables, **config.patterns}
    sources: list[Source] = []
    for name in chosen:
        if entries[name].source not in sources:
            sources.append(entries[name].source)
    filesystem = remote_files(config)
    known = Readers() if readers is None else readers
    feeds = []
    for source in sources:
        sharing = {name: table for name, table in config.tables.items() if table.source == source}
        patterns = {name: table for name, table in config.patterns.items() if table.source == source}
        wanted = tuple(name for name in (*sharing, *patterns) if name in chosen)
        reader = known.of(source, filesystem)
        feeds.append(Feed(with_located_options(source, config.folder), sharing, wanted, reader, patterns))
    return feeds


def remote_files(config: Config) -> RemoteFiles | None:
    """Object stores as the properties of the catalog describe them; None without such properties."""
    # Properties of FileIO have a dot in their names: s3.endpoint, s3.access-key-id ...
    properties = {name: value for name, value in config.catalog.properties.items() if "." in name}
    return RemoteFiles(properties) if properties else None


def table_feed(
    name: str,
    config: TableConfig,
    table: "TableIngest | None" = None,
    found_for: str | None = None,
    encodings: Mapping[str, str] | None = None,
) -> TableFeed:
    """What a decoder must know of a table; `found_for` is the table of the feed for which a pattern created it."""
    return TableFeed(
        name=name,
        source_table=config.source_table or found_for,
        is_found=config.source_table is None and found_for is not None,
        key=config.key if table is None else table.key,
        known_key=() if table is None else table.known_key,
        identity_full=config.identity == "full",
        types=config.types,
        encodings=config.encodings,
        known_encodings=encodings or {},
        known_types={} if table is None else table.known_types,
        order_by=config.order_by,
        include=config.include,
        exclude=config.exclude,
        rename=config.rename,
        cast=config.cast,
        on_conflict=config.on_conflict,
        infinite_dates=config.infinite_dates,
        drops_columns=("time" if isinstance(config.source, KafkaSource) else "place")
        if config.dropped_columns == "drop"
        else "",
        schema_version=0 if table is None else table.schema_version,
    )
