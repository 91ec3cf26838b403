"""Writes a config for a source that it looks into: tables, keys, types, and what stands in the way of reading them.

Databases are asked for their tables. Of topics and files, the first events are decoded.
"""

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path, PurePosixPath
from textwrap import wrap
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

import pyarrow as pa
import pyarrow.compute as pc
import yaml
from pydantic import ValidationError

from nevermore.pipelines.config.document import one_line
from nevermore.pipelines.config.project import change_log_name, is_table_name, parse
from nevermore.pipelines.config.sources import DEFAULT_SLOT, MysqlSource, PostgresSource
from nevermore.pipelines.config.tables import TableConfig, unfit_columns
from nevermore.pipelines.decode.batches import ChangeBatch, RawEvents
from nevermore.pipelines.decode.feed import Decided, FeedConfig, TableFeed
from nevermore.pipelines.errors import ConfigError, PipelineError, SourceError, WideBatchError
from nevermore.pipelines.formats.registry import ScannedFeed, scan, sniff
from nevermore.pipelines.iceberg.schema_evolution import iceberg_fields
from nevermore.pipelines.ingest.feeds import Readers, feeds_of
from nevermore.pipelines.sources.file_listing import list_files
from nevermore.pipelines.wording import counted
from nevermore.scan_core.io import remember_passwords

SAMPLE_MEMORY = "64MiB"
"""Memory limit of the table that is decoded as a sample: a sixteenth of it is read."""
LARGE_ROWS = 1_000_000
"""From so many rows on, partitions are suggested."""
MAX_TABLES = 1_000
COMMENT_WIDTH = 110
_EVENT_FILE = re.compile(r"(?P<kind>\.(jsonl?|ndjson|csv|tsv|parquet|avro)(\.(gz|zst|bz2))?)$", re.IGNORECASE)
_PARTITION_FOLDER = re.compile(r"[^/]*=[^/]*|\d{2,8}([-_]\d{2}){0,2}")
"""Folders that are created for each day or value: their files belong to one table."""
_NOT_IN_NAMES = re.compile(r"[^0-9A-Za-z_-]+")
_SECRET_OPTION = re.compile(
    r"(.*(password|passphrase|secret|token|credential|jaas|oauthbearer[.]config|key[.]pem|[_-]user|connection-string).*|.*key)=.*|.*://[^/]*@.*",
    re.IGNORECASE | re.DOTALL,
)
_TIMES = ("created_at", "created", "inserted_at", "ordered_at", "event_time", "occurred_at", "ts", "timestamp", "date")
_TIME_TYPE = re.compile(r"(timestamp|date).*")


@dataclass(frozen=True)
class FoundTable:
    """A table of a source, as an entry of a config.

    Attributes:
        name: name of its mirror.
        settings: settings of the entry in addition to its source.
        columns: names and types, for the reader of the config.
        facts: what was found, for the same reader.
        warnings: what would go wrong, and what to do.
        is_ready: whether the entry runs as it is; otherwise it is written as a comment.
    """

    name: str
    settings: Mapping[str, Any]
    columns: tuple[tuple[str, str], ...] = ()
    facts: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    is_ready: bool = True


@dataclass(frozen=True)
class FoundSource:
    """A source with its tables.

    Attributes:
        settings: the `source` of its tables.
        tables: what it has.
        steps: what to do before the first run.
        properties: properties of the catalog by which its files are reached.
    """

    settings: Mapping[str, Any]
    tables: tuple[FoundTable, ...]
    steps: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)


def discover(address: str, folder: Path) -> list[FoundSource]:
    """Look into a source. No two tables that are found have one name.

    Args:
        address: `postgresql://...`, `mysql://...`, `kafka://broker:9092/topic`, `s3://bucket/prefix`, or a local folder or file.
        folder: folder of the config; paths in it are relative to this.

    Raises:
        ConfigError: the address is of no known kind, or contains a secret that would get into the config.
        SourceError: the source cannot be reached, or has nothing that can be read.
    """
    remember_passwords(address)
    return _with_distinct_names(_found(address, folder))


def _found(address: str, folder: Path) -> list[FoundSource]:
    scheme = address.partition("://")[0].lower() if "://" in address else ""
    if scheme in {"postgresql", "postgres"}:
        return [_postgres(address)]
    if scheme in {"mysql", "mariadb"}:
        return [_mysql(address)]
    if scheme == "kafka":
        return _kafka(address, folder)
    if scheme in {"", "file", "s3", "s3a", "gs", "abfs", "abfss"}:
        return _files(address, folder)
    raise ConfigError(
        f"--from {scheme}://: not a known kind of source; use postgresql://, mysql://, kafka://, s3:// or a local folder"
    )


def config_text(sources: Sequence[FoundSource]) -> str:
    """A commented config with all tables of these sources."""
    properties: dict[str, str] = {}
    for source in sources:
        properties |= source.properties
    lines = [
        "# Written by nevermore init from what the source has now. Paths are relative to this file; ${NAME} is an",
        "# environment variable. Check what is marked with WARNING, then run: nevermore doctor, nevermore ingest",
        "",
    ]
    for source in sources:
        lines += [f"# Before the first run: {_plain(step)}" for step in source.steps]
    lines += [
        "catalog:",
        "  type: sql                              # sql | rest | hive | glue",
        "  uri: sqlite:///warehouse/catalog.db",
        "  warehouse: warehouse                   # a folder, or s3://bucket/prefix",
    ]
    lines += [f"  {name}: {one_line(text)}" for name, text in sorted(properties.items())]
    ready = any(table.is_ready for source in sources for table in source.tables)
    lines += ["", "tables:" if ready else "tables: {}"]
    for number, source in enumerate(sources):
        is_first = True
        for table in source.tables:
            lines += _entry(
                table, source.settings, f"source{number}" if len(source.tables) > 1 else None, is_first=is_first
            )
            is_first = is_first and not table.is_ready
    lines += ["", '# ingest_schedule: "*/5 * * * *"         # when Dagster ingests, in UTC', ""]
    return "\n".join(lines)


def _entry(table: FoundTable, source: Mapping[str, Any], anchor: str | None, *, is_first: bool) -> list[str]:
    lines = [f"  # {_plain(text)}" for text in (*table.facts, *(f"WARNING: {each}" for each in table.warnings))]
    own = [f"  {one_line(table.name)}:"]
    if not is_first and anchor is not None and table.is_ready:
        own.append(f"    source: *{anchor}")
    else:
        own.append("    source:" + (f" &{anchor}" if anchor is not None and table.is_ready else ""))
        own += [f"      {name}: {one_line(value)}" for name, value in source.items()]
    own += [f"    {name}: {one_line(value)}" for name, value in table.settings.items()]
    if table.columns:
        text = ", ".join(f"{name} {kind}" for name, kind in table.columns)
        own += [
            f"    # {_plain(line)}"
            for line in wrap(f"columns: {text}", COMMENT_WIDTH, subsequent_indent=" ", break_on_hyphens=False)
        ]
    if not table.is_ready:
        own = [f"  # {line[2:]}" for line in own]
    return [*lines, *own, ""]


def _plain(text: str) -> str:
    """A text on one line, with escapes for what YAML does not allow in a comment."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def _with_distinct_names(sources: Sequence[FoundSource]) -> list[FoundSource]:
    """The sources with a number after names that are taken, also in another case, or have a change log that is."""
    wanted = {_place(table.name) for source in sources for table in source.tables}
    seen: set[str] = set()
    result = []
    for source in sources:
        tables = []
        for table in source.tables:
            numbered = (f"{table.name}_{number}" for number in count(2))
            free = (name for name in numbered if _place(name) not in wanted | seen)
            name = next(free) if _place(table.name) in seen else table.name
            seen.add(_place(name))
            tables.append(replace(_fit(table), name=name))
        result.append(replace(source, tables=tuple(tables)))
    return result


def _place(name: str) -> str:
    return change_log_name(name).lower()


def _literal(name: str) -> str:
    """A `source_table` that takes this table alone: what has a meaning in patterns and configs has none in brackets."""
    return re.sub(r"[*?[]|[$](?={)", r"[\g<0>]", name)


def _mirror(namespace: str, name: str) -> str:
    clean = [_NOT_IN_NAMES.sub("_", part).strip("_") or "t" for part in (namespace, name)]
    return ".".join(clean) if is_table_name(".".join(clean)) else f"{clean[0][:60]}.{clean[1][:100]}"


def partition_fact(columns: Sequence[tuple[str, str]], key: Sequence[str], rows: int) -> str | None:
    """A suggestion for the partitions of a large table."""
    if rows < LARGE_ROWS:
        return None
    times = [name for name, kind in columns if _TIME_TYPE.match(kind)]
    best = next((name for name in _TIMES if name in times), times[0] if times else None)
    choices = [] if best is None else [f"[month({best})], if its values never change"]
    choices += [f'["bucket(16, {key[0]})"]'] if key else []
    return f"large: consider partition_by: {', or '.join(choices)}" if choices else None


def _facts(columns: Sequence[tuple[str, str]], key: Sequence[str], rows: int) -> tuple[str, ...]:
    """What a database knows of the number of rows of a table, -1 for nothing, and what follows from that."""
    known = f"about {counted(rows, 'row')}" if rows >= 0 else "never analysed: the number of rows is not known"
    return tuple(filter(None, (known, partition_fact(columns, key, rows))))


def _postgres(address: str) -> FoundSource:
    """All tables of a database; what cannot be followed is a comment."""
    from nevermore.pipelines.sources.postgres.inspection import database_of

    source = PostgresSource(type="postgres", dsn=address)
    database = database_of(source)
    from psycopg2.extensions import make_dsn, parse_dsn

    if not database.tables:
        raise SourceError(f"database {database.name} has no tables")
    given = parse_dsn(address)
    shown = {name: value for name, value in given.items() if not re.search("password|secret", name)}
    found = []
    for table in database.tables[:MAX_TABLES]:
        name = _mirror(database.name if table.schema == "public" else table.schema, table.name)
        settings: dict[str, Any] = {"source_table": _literal(f"{table.schema}.{table.name}")}
        warnings = []
        is_ready = True
        if table.identity == "f" and not table.key:
            settings["identity"] = "full"
            warnings.append(
                "no key: the whole row identifies it, so that equal rows are counted, and deletes are larger"
            )
        elif table.identity == "n" or not table.key:
            why = "REPLICA IDENTITY NOTHING" if table.identity == "n" else "no primary key"
            is_ready = False
            warnings.append(
                f"{why}, so PostgreSQL refuses updates and deletes once it is published: ALTER TABLE {table.sql_name} ADD PRIMARY KEY "
                f"(...), or ALTER TABLE {table.sql_name} REPLICA IDENTITY FULL with identity: full here"
            )
        else:
            settings["key"] = list(table.key)
        if types := {column: f"decimal(38, {digits[0]})" for column, digits in table.decimals.items() if digits}:
            settings["types"] = types
        for column, digits in table.decimals.items():
            what = (
                "so it is text, which holds every value; a decimal of the config holds only some"
                if digits is None
                else f"and its first values have up to {digits[1]} digits before the point and {digits[0]} after it: values that {types[column]} "
                "does not hold, such as NaN, go to quarantine. Without types it is text, which holds every value"
            )
            warnings.append(f"{column} is numeric without precision, {what}")
        facts = _facts(table.columns, table.key, table.rows)
        found.append(FoundTable(name, settings, table.columns, facts, tuple(warnings), is_ready))
    wanted = {f"{t.schema}.{t.name}": t.sql_name for t, f in zip(database.tables, found, strict=False) if f.is_ready}
    publication, steps = _publication(wanted, database.publications)
    if given != shown:
        steps.append("set PGPASSWORD, or add a line to ~/.pgpass: the password is not written to this file")
    # In other words than the address only if it must be: what a password is, libpq decides in its own way.
    dsn = address if given == shown else make_dsn(**shown)
    entry = {"type": "postgres", "dsn": dsn, "slot": DEFAULT_SLOT, "publication": publication}
    return FoundSource(entry, tuple(found), tuple(steps))


def _mysql(address: str) -> FoundSource:
    """All tables of a server or of one of its databases; what cannot be followed is a comment."""
    from nevermore.pipelines.sources.mysql.load import refused
    from nevermore.pipelines.sources.mysql.server import Server

    try:
        source = MysqlSource(type="mysql", dsn=address)
    except ValidationError as error:
        raise ConfigError(f"--from: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None
    with closing(Server(source)) as server:
        steps = [what for what in server.settings().values() if what is not None]
        tables = server.tables()
        if not tables:
            raise SourceError(f"{source.title} has no tables, or none that the user may read")
        rows = server.row_counts()
        found = []
        for name in tables[:MAX_TABLES]:
            described = server.describe(name)
            settings: dict[str, Any] = {"source_table": _literal(name)}
            warnings, is_ready = [], True
            try:
                server.check_engine(name)
            except SourceError as error:
                warnings.append(str(error))
                is_ready = False
            if described.key:
                settings["key"] = list(described.key)
            else:
                settings["identity"] = "full"
                warnings.append(
                    "no primary key: the whole row identifies it, so that equal rows are counted, and deletes are larger"
                )
            if unreadable := refused(described):
                settings["exclude"] = sorted(unreadable)
                what = ", ".join(f"{column} ({kind})" for column, kind in sorted(unreadable.items()))
                warnings.append(f"excluded, as the binary log has them in a form that cannot be read: {what}")
                is_ready = is_ready and unreadable.keys().isdisjoint(described.key)
            columns = tuple((column.name, column.type) for column in described.columns)
            facts = _facts(columns, described.key, rows.get(name, 0))
            found.append(FoundTable(_mirror(*name.split(".", 1)), settings, columns, facts, tuple(warnings), is_ready))
    parts = urlsplit(address)
    user, at, host = parts.netloc.rpartition("@")
    name, has_password, _ = user.partition(":")
    if has_password:
        steps.append("set MYSQL_PWD: the password is not written to this file")
    dsn = urlunsplit(parts._replace(netloc=f"{name}{at}{host}"))
    return FoundSource({"type": "mysql", "dsn": dsn}, tuple(found), tuple(steps))


def _fit(table: FoundTable) -> FoundTable:
    """Add what the config of a table needs so that its columns can be in a mirror."""
    settings, warnings, key = {**table.settings}, [*table.warnings], table.settings.get("key", ())
    types, names = unfit_columns(TableConfig.model_construct(**settings), dict(table.columns), key)
    if types:
        settings["types"] = {**settings.get("types", {}), **types}
        warnings.append(f"{', '.join(types)}: text, as floats, lists and maps identify no rows")
    if names:
        settings["rename"] = names
        warnings.append(f"{', '.join(names)}: renamed, as Iceberg reserves the name, or another differs by case only")
        settings |= {"key": [names.get(column, column) for column in key]} if key else {}
    return replace(table, settings=settings, warnings=(*warnings,))


def _publication(wanted: Mapping[str, str], known: Mapping[str, frozenset[str]]) -> tuple[str, list[str]]:
    """The publication that has most of the tables, and the SQL for what it lacks."""
    from nevermore.pipelines.sources.postgres.server import added_to

    if not wanted:
        return DEFAULT_SLOT, []
    best = max(sorted(known), key=lambda name: len(known[name] & set(wanted)), default=None)
    if best is None or not known[best] & set(wanted):
        tables = ", ".join(wanted.values())
        options = "WITH (publish_via_partition_root = true)"
        return DEFAULT_SLOT, [
            f"as the owner of the tables, CREATE PUBLICATION {DEFAULT_SLOT} FOR TABLE {tables} {options}"
        ]
    missing = [sql for name, sql in wanted.items() if name not in known[best]]
    return best, [added_to(best, missing)] if missing else []


def _options(query: str) -> dict[str, str]:
    """Options behind the `?` of an address; secrets must be names of environment variables."""
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name, value in options.items():
        if _SECRET_OPTION.fullmatch(f"{name}={value}") and not re.fullmatch(r"\$\{\w+\}", value):
            raise ConfigError(
                f"--from: {name} would be written to the config; put it into an environment variable and pass its name: "
                f"'...?{name}=${{MY_SECRET}}' (in single quotes)"
            )
    return options


def _kafka(address: str, folder: Path) -> list[FoundSource]:
    """Topics by the format of their first messages."""
    parts = urlsplit(address)
    if not parts.netloc:
        raise ConfigError("--from kafka://: name a broker, such as kafka://localhost:9092/topic")
    options = _options(parts.query)
    registry = {name: value for name, value in options.items() if name.startswith("registry")}
    properties = {name: value for name, value in options.items() if name not in registry}
    base: dict[str, Any] = {"type": "kafka", "brokers": parts.netloc}
    if properties:
        base["properties"] = properties
    of_registry = {"options": registry} if registry else {}
    topics = [unquote(t) for t in parts.path.strip("/").split(",") if t]
    topics = topics or _topics(base, folder)
    by_format: dict[str | None, list[tuple[str, tuple[FoundTable, ...]]]] = defaultdict(list)
    failures = []
    for topic in topics[:MAX_TABLES]:
        settings = {**base, "topics": [topic], **of_registry}
        try:
            kind, tables = _sampled(settings, folder, ("kafka", topic.rpartition(".")[2]), topic)
        except PipelineError as error:
            failures.append(f"topic {topic}: {error}")
            continue
        by_format[kind].append((topic, tables))
    found = [
        FoundSource(
            {**base, "topics": [t for t, _ in entries], "format": kind, **of_registry},
            tuple(table for _, tables in entries for table in tables),
            tuple(f"not included: {failure}" for failure in failures) if number == 0 else (),
        )
        for number, (kind, entries) in enumerate(sorted(by_format.items(), key=lambda item: str(item[0])))
    ]
    if not found:
        raise SourceError("; ".join(failures) or f"the Kafka cluster at {parts.netloc} has no topics")
    return found


def _topics(base: Mapping[str, Any], folder: Path) -> list[str]:
    """All topics of a cluster, without those of Kafka itself and of its tools."""
    with closing(Readers()) as readers:
        (feed,) = feeds_of(_probe({**base, "topics": ["^.*"]}, folder), [_PROBE], readers)
        names = [] if feed.topics is None else feed.topics.names()
        return [name for name in names if not name.startswith(("_", "connect-"))]


_PROBE = "probe.*"


def _probe(settings: Mapping[str, Any], folder: Path, catalog: Mapping[str, str] | None = None) -> Any:
    entry = {"source": dict(settings), "memory_limit_bytes": SAMPLE_MEMORY}
    return parse(yaml.safe_dump({"tables": {_PROBE: entry}, "catalog": dict(catalog or {})}), folder / "nevermore.yaml")


def _sampled(
    settings: Mapping[str, Any],
    folder: Path,
    default: tuple[str, str],
    place: str,
    catalog: Mapping[str, str] | None = None,
) -> tuple[str, tuple[FoundTable, ...]]:
    """(format, tables) of the first events of a source; `default` is the namespace and name of a table without a name.

    Raises:
        SourceError: there are none, or they are of no known format.
    """
    with closing(Readers()) as readers:
        config = _probe(settings, folder, catalog)
        (feed,) = feeds_of(config, [_PROBE], readers)
        batch = feed.first_batch(None)
    if batch is None:
        raise SourceError(f"{place}: there are no events yet, so their format is not known")
    kind = settings.get("format") or sniff(batch.raw)
    feed_config = FeedConfig(format=kind, options=feed.format_options, tables=())
    raw = batch.raw
    while True:
        try:
            return kind, _tables(raw, feed_config, default, place)
        except WideBatchError:
            if raw.num_events == 1:
                raise
            raw = raw.slice(0, max(raw.num_events // 8, 1))


def _tables(raw: RawEvents, feed: FeedConfig, default: tuple[str, str], place: str) -> tuple[FoundTable, ...]:
    """The tables of some events."""
    scanned, fact = scan(raw, replace(feed, is_open=True)), _sample(raw.num_events, place)
    names = [table for table in dict.fromkeys(scanned.events.tables) if table]
    if not names:
        return (_table(scanned, feed, _mirror(*default), None, fact),)
    return tuple(_table(scanned, feed, _mirror(*_qualified(table, default[0])), table, fact) for table in names)


def _sample(count: int, place: str) -> str:
    return f"from the first {counted(count, 'event')} of {place}"


def _qualified(table: str, namespace: str) -> tuple[str, str]:
    rest, _, name = table.rpartition(".")
    return rest.rpartition(".")[2] or namespace, name


def _table(scanned: ScannedFeed, feed: FeedConfig, name: str, source_table: str | None, fact: str) -> FoundTable:
    """A table with the key that its events declare, or one that its columns suggest."""
    wanted = TableFeed(name=name, source_table=source_table)
    settings: dict[str, Any] = (
        {} if source_table is None or source_table == name else {"source_table": _literal(source_table)}
    )
    changes = _decoded(scanned, feed, wanted)
    if changes is not None and changes.num_rows and changes.key:
        settings["key"] = list(changes.key)
        return FoundTable(name, settings, _columns(changes), (fact,))
    whole = _decoded(scanned, feed, replace(wanted, identity_full=True))
    if whole is None or not whole.num_rows:
        why = "its first events cannot be decoded: see nevermore quarantine after a run"
        return FoundTable(name, {**settings, "key": ["id"]}, (), (fact,), (why,), is_ready=False)
    guess = _likely_key(whole, name.rpartition(".")[2])
    if guess is None:
        why = "the events do not state which columns identify a row: set key"
        return FoundTable(name, {**settings, "key": ["?"]}, _columns(whole), (fact,), (why,), is_ready=False)
    why = f"the events do not state the key; {guess} is a guess from its name: check it"
    return FoundTable(name, {**settings, "key": [guess]}, _columns(whole), (fact,), (why,))


def _decoded(scanned: ScannedFeed, feed: FeedConfig, table: TableFeed) -> ChangeBatch | None:
    config = replace(feed, tables=(table,), is_open=table.source_table is not None, decided=Decided())
    try:
        return scanned.decode(config).tables[table.name]
    except WideBatchError:
        raise
    except PipelineError:
        return None  # reported as a table that is not ready


def _columns(changes: ChangeBatch) -> tuple[tuple[str, str], ...]:
    return tuple((f.name, str(f.type)) for f in iceberg_fields(changes.row_type))


def _likely_key(changes: ChangeBatch, table: str) -> str | None:
    """A column whose name says that it identifies rows, and which always has a value."""
    after = changes.table.column("after").combine_chunks()
    names = [f.name for f in changes.row_type]
    singular = table.removesuffix("s")
    for name in ("id", "_id", f"{table}_id", f"{singular}_id", f"{singular}Id", "uuid", "key"):
        if name in names:
            values = after.field(name).filter(after.is_valid())
            if not values.null_count and not pa.types.is_nested(values.type) and pc.count_distinct(values).as_py():
                return name
    return None


def _files(address: str, folder: Path) -> list[FoundSource]:
    """Event files by folder and kind."""
    parts = urlsplit(address) if "://" in address and not address.startswith("file:") else None
    if not (parts.netloc if parts is not None else address.removeprefix("file://").strip()):
        raise ConfigError(f"--from {address!r}: name a folder, or a bucket as in s3://bucket/prefix")
    options = {} if parts is None else _options(parts.query)
    catalog = {} if parts is None else {f"{parts.scheme.rstrip('a')}.{n}": value for n, value in options.items()}
    root = address if parts is None else urlunsplit((parts.scheme, parts.netloc, parts.path, "", ""))
    root = root.removeprefix("file://").rstrip("/") or "/"
    local = None if parts is not None else Path(root).expanduser()
    if local is not None and not local.exists():
        raise SourceError(f"there is no folder {root}")
    if local is not None and local.is_file():
        groups = {(str(local.parent), local.name): 1}
    else:
        groups = _groups(root, catalog, folder)
    if not groups:
        raise SourceError(f"{root} has no event files (.jsonl, .json, .csv, .parquet, .avro, also compressed)")
    found, failures = [], []
    for (place, pattern), number in sorted(groups.items()):
        path = f"{place}/{pattern}" if parts is not None else _relative(Path(place) / pattern, folder)
        title = PurePosixPath(place)
        settings = {"type": "files", "path": path}
        name = title.name if "*" in pattern else pattern.partition(".")[0]
        namespace = title.parent.name or "landing"
        try:
            kind, tables = _sampled(settings, folder, (namespace, name or "events"), path, catalog)
        except PipelineError as error:
            failures.append(f"{path}: {error}")
            continue
        facts = tuple(replace(t, facts=(*t.facts, counted(number, "file"))) for t in tables)
        found.append(FoundSource({**settings, "format": kind}, facts, properties=catalog))
    if not found:
        raise SourceError("; ".join(failures))
    return [replace(found[0], steps=tuple(f"not included: {failure}" for failure in failures)), *found[1:]]


def _groups(root: str, catalog: Mapping[str, str], folder: Path) -> dict[tuple[str, str], int]:
    """Number of event files by (folder, pattern of names)."""
    config = _probe({"type": "files", "path": f"{root}/**"}, folder, catalog)
    (feed,) = feeds_of(config, [_PROBE], Readers())
    filesystem = feed.listing.filesystem
    groups: dict[tuple[str, str], int] = defaultdict(int)
    for file in list_files([f"{root}/**/*"], filesystem):
        kind = _EVENT_FILE.search(file.path)
        if kind is None:
            continue
        place, is_deep = file.path.rpartition("/")[0], False
        while place != root and _PARTITION_FOLDER.fullmatch(place.rpartition("/")[2]):
            place, is_deep = place.rpartition("/")[0], True
        groups[place, f"**/*{kind['kind']}" if is_deep else f"*{kind['kind']}"] += 1
    return groups


def _relative(path: Path, folder: Path) -> str:
    whole = Path(os.path.abspath(path))  # noqa: PTH100 - wildcards must not be resolved
    try:
        return whole.relative_to(folder.absolute()).as_posix()
    except ValueError:
        return whole.as_posix()


def tables_of(sources: Sequence[FoundSource]) -> Iterator[dict[str, Any]]:
    """What was found, as JSON objects."""
    for source in sources:
        for table in source.tables:
            yield {
                "name": table.name,
                "key": list(table.settings.get("key", ())),
                "columns": [{"name": name, "type": kind} for name, kind in table.columns],
                "warnings": list(table.warnings),
                "ready": table.is_ready,
            }
