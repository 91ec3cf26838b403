"""nevermore.yaml as a whole: its sections, the rules between them, and loading.

Contains the sections for the catalog, mirrors, published tables and Spark. Every error names the line and, for an
unknown key, the nearest valid one. YAML is read in `document.py`.
"""

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import date
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import parse_qsl, urlsplit

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)

from pipelines.config.checks import (
    ChecksConfig,
    ExpectationConfig,
    FreshnessConfig,
    PublishedChecksConfig,
    QuarantineConfig,
    VolumeConfig,
)
from pipelines.config.document import ConfigDocument, config_messages, config_template, unknown_key
from pipelines.config.publish_partition import PublishedPartition
from pipelines.config.values import (
    AutoOrOff,
    Bytes,
    BytesOrZero,
    Cron,
    Day,
    Group,
    Labels,
    Names,
    Owners,
    Seconds,
    Section,
    TableProperties,
    TypeName,
    placed,
)
from pipelines.errors import ConfigError
from scan_core import OptionError, ScanOptions
from scan_core.io import with_file_io

DEFAULT_SPARK_ABOVE_BYTES = 10 * 1024**3
DEFAULT_COMMIT_ROWS = 1_000_000
"""Large enough that files are worth their manifest entry, small enough for 1 GiB of wide rows."""
DEFAULT_COMMIT_INTERVAL_SECONDS = 60.0
"""A minute of lag for at most 1,440 snapshots a day."""
DEFAULT_MEMORY_LIMIT_BYTES = 1024**3
"""Leaves room for two tables side by side on a 4 GiB machine."""
DEFAULT_CONVERT_AFTER_SECONDS = 300.0
"""A conversion writes a file for every data file with new dead rows, so not every commit is worth one."""
DEFAULT_MAX_QUARANTINE_RATIO = 0.5
"""If most events are rejected, the config is wrong, not the events."""
DEFAULT_MAX_VALUES = 10_000
"""Beyond it, the directory of a bitmap index costs more than most filters save."""
DEFAULT_EVERY_ROWS = 100_000
"""Fewer rows without an index are filtered in milliseconds; an update of the indexes is a commit of its own."""
_PLACE = re.compile(r"(?P<transform>\w+)\((?P<arguments>[^()]*)\)")


class FilesSource(Section):
    """Event files in a folder of any FileIO.

    Attributes:
        type: `files`.
        path: a file, a glob pattern, or a list of them, relative to the config file.
        format: name of the event format; detected from the first file if omitted.
        options: options of the format and of its files (delimiter, time zone, registry ...).
    """

    type: Literal["files"] = "files"
    path: Names
    format: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)

    @field_validator("path")
    @classmethod
    def _has_a_path(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value or not all(value):
            raise ValueError("path must name at least one file or pattern")
        return value

    @property
    def title(self) -> str:
        """Where the events are, for people."""
        return ", ".join(self.path)


DEFAULT_SLOT = "nevermore"
"""Name of the replication slot and of the publication, if the config names none."""
DEFAULT_HELD_BYTES = 10 * 1024**3
DEFAULT_CHUNK_BYTES = 64 * 1024**2
"""A load of a large table takes hundreds of commits; an interruption costs seconds."""
_SLOT_NAME = re.compile(r"[a-z0-9_]{1,63}")


class PostgresSource(Section):
    """Tables of a PostgreSQL database, read through a replication slot.

    Attributes:
        type: `postgres`.
        dsn: connection, as libpq accepts it: `postgresql://user@host/database` or `host=... dbname=...`; what it leaves out is taken
            from the usual environment variables (PGHOST, PGPORT, PGDATABASE, PGUSER, PGPASSWORD) and `~/.pgpass`.
        slot: name of the replication slot; created when the tables are loaded for the first time.
        publication: name of the publication, which decides which tables, columns, rows and operations are sent.
        chunk_bytes: size of the rows of a table that a load reads and commits at once, as an estimate: what an interruption costs.
        max_held_bytes: size of the log that the server may keep for the slot: beyond it `ingest`, `status` and the check `slot_holds_little_log` warn.
        streaming: whether the server sends large transactions while they are in progress. They are kept on local disk until they are
            committed, beyond a share of `memory_limit_bytes`; otherwise the server keeps them, and sends them afterwards.
    """

    type: Literal["postgres"]
    dsn: str = ""
    slot: str = DEFAULT_SLOT
    publication: str = DEFAULT_SLOT
    chunk_bytes: Bytes = DEFAULT_CHUNK_BYTES
    max_held_bytes: Bytes = DEFAULT_HELD_BYTES
    streaming: bool = True

    @field_validator("slot")
    @classmethod
    def _is_slot_name(cls, value: str) -> str:
        if _SLOT_NAME.fullmatch(value) is None:
            raise ValueError("slot must consist of at most 63 lower case letters, digits and underscores")
        return value

    @property
    def format(self) -> str:
        """Name of the event format."""
        return "pgoutput"

    @property
    def title(self) -> str:
        """Where the events are, for people; without the connection, which may contain a password."""
        return f"slot {self.slot}, publication {self.publication} of PostgreSQL"


class MysqlSource(Section):
    """Tables of a MySQL or MariaDB server, read through its binary log.

    Attributes:
        type: `mysql`.
        dsn: connection: `mysql://user@host:3306/database`; without a database, tables of all databases can be read. Options: `ssl=true`,
            `ssl_ca=FILE`. The password is taken from MYSQL_PWD if it is not part of it (`${VARIABLE}`).
        chunk_bytes: size of the rows of a table that a load reads and commits at once, as an estimate: what an interruption costs.
    """

    type: Literal["mysql"]
    dsn: str
    chunk_bytes: Bytes = DEFAULT_CHUNK_BYTES

    @field_validator("dsn")
    @classmethod
    def _is_address(cls, value: str) -> str:
        try:
            parts = urlsplit(value)
            is_known = parts.scheme in {"mysql", "mariadb"} and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_known = False
        if not is_known:
            raise ValueError("dsn must be like mysql://user@host:3306/database")
        if unknown := sorted({name for name, _ in parse_qsl(parts.query, keep_blank_values=True)} - {"ssl", "ssl_ca"}):
            raise ValueError(f"dsn has the unknown option {unknown[0]}; known are ssl and ssl_ca")
        return value

    @property
    def format(self) -> str:
        """Name of the event format."""
        return "mysql-rows"

    @property
    def title(self) -> str:
        """Where the events are, for people; without the password."""
        parts = urlsplit(self.dsn)
        return f"MySQL at {parts.hostname}:{parts.port or 3306}{parts.path}"


_RESERVED_PROPERTIES = frozenset(
    {
        "bootstrap.servers",
        "metadata.broker.list",
        "auto.offset.reset",
        "enable.partition.eof",
        "isolation.level",
        "queued.max.messages.kbytes",
    }
)
"""Properties of the client that decide what is read; the source sets them."""
_GROUP_PROPERTIES = re.compile(
    r"group[.].*|partition[.]assignment[.]strategy|(session|heartbeat|max[.]poll)[.].*|coordinator[.].*"
    r"|(enable[.])?auto[.]commit.*|enable[.]auto[.]offset[.]store|offset[.]store[.].*"
)
"""Properties of consumer groups, which are not used."""


class KafkaSource(Section):
    """Topics of a Kafka cluster. Offsets are kept in the change logs, not in a consumer group.

    Attributes:
        type: `kafka`.
        brokers: `host:port` of brokers, separated by commas.
        topics: a topic, or a list of them; `^shop[.].*` stands for all topics whose whole name matches the regular expression.
        format: name of the event format; detected from the first messages if omitted.
        options: options of the format (registry, time zone ...).
        start: a time with its zone: a table that was never read begins with the first message of each partition that is not older,
            instead of the oldest one. Rows that did not change since are then missing.
        properties: properties of librdkafka, such as `security.protocol`, `sasl.mechanism`, `sasl.username`, `sasl.password` and
            `ssl.ca.location`.
    """

    type: Literal["kafka"]
    brokers: str
    topics: Names
    format: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    start: AwareDatetime | None = None
    properties: dict[str, str | int | float | bool] = Field(default_factory=dict)

    @field_validator("brokers")
    @classmethod
    def _has_brokers(cls, value: str) -> str:
        if not all(broker.strip() for broker in value.split(",")):
            raise ValueError("brokers must name at least one broker, such as localhost:9092")
        return value

    @field_validator("topics")
    @classmethod
    def _has_topics(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value or not all(value):
            raise ValueError("topics must name at least one topic")
        for topic in value:
            if topic.startswith("^"):
                try:
                    re.compile(topic)
                except re.error as error:
                    raise ValueError(f"{topic!r} is not a regular expression: {error}") from error
        return value

    @field_validator("properties")
    @classmethod
    def _leaves_reserved_properties(cls, value: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(_RESERVED_PROPERTIES & set(value)):
            raise ValueError(f"{taken[0]} is set by the source and cannot be changed")
        if grouped := sorted(name for name in value if _GROUP_PROPERTIES.fullmatch(name)):
            raise ValueError(
                f"{grouped[0]} has no effect: no consumer group is used, because the change logs keep the offsets; leave it out"
            )
        return value

    @property
    def title(self) -> str:
        """Where the events are, for people."""
        return f"topics {', '.join(self.topics)} of Kafka"


Source = FilesSource | PostgresSource | MysqlSource | KafkaSource
"""Where the events of tables are; distinguished by `type`, which may be omitted for files."""


def _type_of_source(value: Any) -> str:
    found = value.get("type", "files") if isinstance(value, Mapping) else getattr(value, "type", "files")
    return str(found)


class IndexConfig(Section):
    """Indexes that are kept up to date by the commits of a table.

    Attributes:
        bitmap: columns that get bitmap indexes, `struct.member` for a member of a struct; `auto`: columns whose filters removed many
            rows only after their values were read, in scans of this user on this host.
        dead_rows: record which rows are deleted, so that scans skip them by position.
        bloom: columns that get Parquet Bloom filters in new data files of a mirror, in addition to the key with `bloom_filters: true`.
        max_values: a file in which a column has more distinct values than this gets no bitmap index for the column.
        every_rows: update the indexes when this many rows and deletes have been committed since the last update, or when the
            snapshot of that update has expired; `1` updates them after every commit.
    """

    bitmap: Literal["auto"] | Names = ()
    dead_rows: bool = False
    bloom: Names = ()
    max_values: Annotated[int, Field(ge=1)] = DEFAULT_MAX_VALUES
    every_rows: Annotated[int, Field(ge=1)] = DEFAULT_EVERY_ROWS

    @model_validator(mode="after")
    def _has_an_index(self) -> "IndexConfig":
        if not self.bitmap and not self.dead_rows and not self.bloom:
            raise ValueError("no index is chosen: add bitmap: [columns], dead_rows: true or bloom: [columns]")
        return self


Engine = Literal["local", "spark", "auto"]
"""What does the work: this process, tasks of Spark, or what the size of the work suggests."""
DEFAULT_TARGET_FILE_BYTES = 256 * 1024**2
"""Two of Iceberg's default splits."""
DEFAULT_MAX_DEBT = 0.5
"""Automatic compaction begins at about half of it: a warning means that it is off or does not keep up."""
DEFAULT_KEEP_SNAPSHOTS = 10
DEFAULT_KEEP_FOR_SECONDS = 5 * 86400.0
"""As Iceberg's `history.expire.max-snapshot-age-ms`."""
DEFAULT_ORPHAN_AGE_SECONDS = 3 * 86400.0
"""Files of a commit in progress are not named by any metadata yet; this is longer than any commit takes."""


class RetentionConfig(Section):
    """How long snapshots and files are kept.

    Attributes:
        keep_snapshots: number of snapshots of each branch that are kept at any age.
        keep_for: states of the table that were current within this time are kept, for time travel and for readers that run.
        orphan_age: minimum age of files that `nevermore orphans` deletes; no metadata version of this time may name them either.
        expire_every: how often `nevermore run` expires snapshots; if omitted, only `nevermore expire` and Dagster's `retention_job` do.
    """

    keep_snapshots: Annotated[int, Field(ge=1)] = DEFAULT_KEEP_SNAPSHOTS
    keep_for: Seconds = DEFAULT_KEEP_FOR_SECONDS
    orphan_age: Seconds = DEFAULT_ORPHAN_AGE_SECONDS
    expire_every: Seconds | None = None

    def under(self, defaults: "RetentionConfig") -> Self:
        """These options; those that are not set are set as in `defaults`."""
        names = (defaults.model_fields_set & type(self).model_fields.keys()) - self.model_fields_set
        return self.model_copy(update={name: getattr(defaults, name) for name in names})


class MaintenanceConfig(RetentionConfig):
    """How tables are kept fast and small. At the top level it applies to all tables; the section of a table overrides single options.

    Attributes:
        keep_snapshots: number of snapshots of each branch that are kept at any age.
        keep_for: states of the table that were current within this time are kept, for time travel and for readers that run.
        orphan_age: minimum age of files that `nevermore orphans` deletes; no metadata version of this time may name them either.
        expire_every: how often `nevermore run` expires snapshots; if omitted, only `nevermore expire` and Dagster's `retention_job` do.
        compact: `auto` rewrites small files and files with many dead rows once scans lose a noticeable part of their time by them; `off` leaves that to `nevermore compact`.
        target_file_size: size of the files that compaction writes.
        compact_engine: `local` compacts in this process, `spark` by tasks of Spark, in the session of `spark`. `auto` takes Spark where that
            section names a master or a remote, for at least `spark_above_bytes`.
        spark_above_bytes: stored bytes of the files to rewrite from which `auto` takes Spark.
        max_debt: the check `scans_are_fast` in Dagster warns if scans of a mirror lose more than this part of their time by small files and deletes.
        keep_log: how long the change log of a mirror keeps every change; `nevermore trim-log` and Dagster's `retention_job` replace older ones by the last of each key. If omitted, all are kept.
    """

    compact: AutoOrOff = "auto"
    target_file_size: Bytes = DEFAULT_TARGET_FILE_BYTES
    compact_engine: Engine = "auto"
    spark_above_bytes: Bytes = DEFAULT_SPARK_ABOVE_BYTES
    max_debt: Annotated[float, Field(ge=0, le=1)] = DEFAULT_MAX_DEBT
    keep_log: Seconds | None = None

    @model_validator(mode="after")
    def _is_read(self) -> "MaintenanceConfig":
        if {"spark_above_bytes", "compact_engine"} <= self.model_fields_set and self.compact_engine != "auto":
            raise placed(
                f"spark_above_bytes has no effect with compact_engine: {self.compact_engine}; remove it",
                "spark_above_bytes",
            )
        return self


MIN_FRESHNESS_SECONDS = 60.0
"""Dagster looks every half minute."""


class AssetConfig(Section):
    """What people see of a table in Dagster. None of it changes what the pipelines do.

    Attributes:
        description: what the table is, in Markdown.
        owners: who is responsible: e-mail addresses, or teams as `team:data`.
        tags: names with values, or a list of names, by which assets can be selected.
        group: the group of its assets; by default the namespace of the table.
        freshness: maximum time between two updates; after it, Dagster shows the table as overdue.
        column_descriptions: what columns are, by their names, in Markdown.
    """

    description: str | None = None
    owners: Owners = ()
    tags: Labels = Field(default_factory=dict)
    group: Group | None = None
    freshness: Annotated[Seconds, Field(ge=MIN_FRESHNESS_SECONDS)] | None = None
    column_descriptions: dict[str, str] = Field(default_factory=dict)


class IngestConfig(Section):
    """Which engine reads and decodes the events of a table.

    Attributes:
        engine: `local` works in this process. `spark` lets tasks read and decode pieces of files or topics, write the change
            log, and fold the changes by key; the session is that of `spark`. `auto` takes `spark` when at least
            `spark_above_bytes` are new. All tables of a source have the same engine.
        spark_above_bytes: size of new files, as they are stored, from which `auto` takes Spark; a message of a topic counts as
            512 bytes.
    """

    engine: Engine = "local"
    spark_above_bytes: Bytes = DEFAULT_SPARK_ABOVE_BYTES

    @model_validator(mode="after")
    def _is_read(self) -> "IngestConfig":
        if "spark_above_bytes" in self.model_fields_set and self.engine != "auto":
            raise placed(f"spark_above_bytes has no effect with engine: {self.engine}; remove it", "spark_above_bytes")
        return self


class TableConfig(AssetConfig):
    """One mirror: where its events come from and how they become rows.

    Attributes:
        description: what the table is, in Markdown.
        owners: who is responsible: e-mail addresses, or teams as `team:data`.
        tags: names with values, or a list of names, by which assets can be selected.
        group: the group of its assets; by default the namespace of the table.
        freshness: maximum time between two updates; after it, Dagster shows the table as overdue.
        column_descriptions: what columns are, by their names, in Markdown.
        source: where the events are.
        key: columns that identify a row; can be omitted if the feed states them, or with `identity: full`.
        source_table: name of the table in the feed, if it differs from the name here.
        include_tables: for an entry `namespace.*`: the tables of the feed to include (`*` and `?` are wildcards); all if empty.
        exclude_tables: for an entry `namespace.*`: the tables of the feed to exclude.
        order_by: `position`, or paths in the event that order the events of a key, also across runs: `source.lsn`, `after.updated_at`; columns, if events are plain rows.
        types: Iceberg types of columns, if the feed does not declare them or to override them.
        partition_by: Iceberg partition fields: `day(created_at)`, `bucket(16, id)`, `region`.
        include: columns to keep; all if empty.
        exclude: columns to drop.
        rename: new names by source column; `key`, `partition_by` and `sort_by` use the new names.
        cast: Iceberg types by source column, applied after decoding.
        encodings: how the values of a column are encoded, if the feed does not declare it (`millis`, `base64` ...).
        inserts: `checked` also writes a delete row for an insert whose key may already exist; `trusted` does not, for tables
            whose rows all come from the feed.
        soft_delete: keep deleted rows and set `_deleted` to true, instead of removing them.
        global_deletes: whether a delete may be written so that it applies to every partition of a partitioned table.
        identity: `key`, or `full` for tables without a key: a row is identified by the whole old row, as far as the event contains it.
        on_conflict: what happens to a value that does not fit its column: `quarantine`, or `new_column` (`price__string`).
        schema_changes: what happens when events bring a new column or a wider type. `evolve`: the mirror gets it. `freeze`: the table
            stops before the batch, and nothing of it is applied. `approve`: the same until `nevermore approve TABLE` lets it through.
        sort_by: columns by which the rows of each data file are sorted; if empty, rows keep the order of the changes.
        bloom_filters: write Parquet Bloom filters for the key columns, in data files and delete files.
        index: indexes that are kept up to date.
        maintenance: what is done to keep the mirror fast and small; `keep_...` also apply to its change log and its quarantine.
        format_version: Iceberg format version of the mirror, 2 or 3; a table of version 2 is upgraded with its next commit.
        deletes: how deleted rows are recorded. `equality`: by key, the cheapest to write. `converted`: by key, and every run replaces
            the keys by the positions of the rows, which every engine reads fast. `vectors`: by deletion vectors from the first
            commit on; requires format version 3.
        convert_after: with `deletes: converted`, a continuous run converts once a delete is older than this; other runs convert
            at their end.
        compact_log: write numbers in the change log with encodings that are smaller and faster (Parquet's DELTA_BINARY_PACKED
            and BYTE_STREAM_SPLIT); set to false if other readers of the log do not support them.
        ingest: where events are read and decoded: in this process, or [by the tasks of Spark](ingesting.md#on-spark).
        commit_rows: commit after this many changes.
        commit_interval: minimum time between two commits of a continuous run.
        memory_limit_bytes: maximum memory for the changes of a batch; beyond it changes are spilled to disk.
        max_quarantine_ratio: if a larger share of a batch is rejected, while decoding or applying it, none of the batch is applied.
        properties: Iceberg table properties of the mirror; set when the table is created, and by the next commit after a change here. Removing a property here does not remove it from the table.
        checks: what must hold in addition: [expectations, freshness, volume](checks.md#your-own-checks).
    """

    source: Annotated[
        Annotated[FilesSource, Tag("files")]
        | Annotated[PostgresSource, Tag("postgres")]
        | Annotated[MysqlSource, Tag("mysql")]
        | Annotated[KafkaSource, Tag("kafka")],
        Discriminator(
            _type_of_source,
            custom_error_type="source_type",
            custom_error_message="the type of a source must be 'files', 'kafka', 'mysql' or 'postgres'",
        ),
    ]
    key: Names = ()
    source_table: str | None = None
    include_tables: Names = ()
    exclude_tables: Names = ()
    order_by: Literal["position"] | tuple[str, ...] = "position"
    types: dict[str, TypeName] = Field(default_factory=dict)
    partition_by: Names = ()
    include: Names = ()
    exclude: Names = ()
    rename: dict[str, str] = Field(default_factory=dict)
    cast: dict[str, TypeName] = Field(default_factory=dict)
    encodings: dict[str, str] = Field(default_factory=dict)
    inserts: Literal["checked", "trusted"] = "checked"
    soft_delete: bool = False
    global_deletes: Literal["allow", "refuse"] = "allow"
    identity: Literal["key", "full"] = "key"
    on_conflict: Literal["quarantine", "new_column"] = "quarantine"
    schema_changes: Literal["evolve", "freeze", "approve"] = "evolve"
    sort_by: Names = ()
    bloom_filters: bool = False
    index: IndexConfig | None = None
    maintenance: MaintenanceConfig = MaintenanceConfig()
    format_version: Literal[2, 3] = 2
    deletes: Literal["equality", "converted", "vectors"] = "equality"
    convert_after: Seconds = DEFAULT_CONVERT_AFTER_SECONDS
    compact_log: bool = True
    ingest: IngestConfig = IngestConfig()
    commit_rows: Annotated[int, Field(ge=1)] = DEFAULT_COMMIT_ROWS
    commit_interval: Seconds = DEFAULT_COMMIT_INTERVAL_SECONDS
    memory_limit_bytes: Bytes = DEFAULT_MEMORY_LIMIT_BYTES
    max_quarantine_ratio: Annotated[float, Field(ge=0, le=1)] = DEFAULT_MAX_QUARANTINE_RATIO
    properties: TableProperties = Field(default_factory=dict)
    checks: ChecksConfig = ChecksConfig()

    @model_validator(mode="after")
    def _is_for_its_engine(self) -> "TableConfig":
        if self.ingest.engine == "spark" and (reason := self.why_not_on_spark()) is not None:
            raise placed(f"{reason}; leave ingest out, or set engine: local or auto", "ingest")
        return self

    def why_not_on_spark(self) -> str | None:
        """Why the tasks of Spark cannot ingest the table; None if they can."""
        if isinstance(self.source, FilesSource | KafkaSource):
            return None
        return f"Spark ingests files and topics, and {self.source.title} is read through a connection"

    @field_validator("partition_by")
    @classmethod
    def _are_partition_fields(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for number, text in enumerate(value):
            try:
                partition_field(text)
            except ValueError as error:
                raise placed(str(error), number) from error
        return value

    @model_validator(mode="after")
    def _is_consistent(self) -> "TableConfig":
        if self.identity == "full" and self.key:
            raise placed("identity: full is for tables without a key; remove one of the two", "identity")
        if self.identity == "full" and self.soft_delete:
            raise placed("soft_delete requires a key, but tables with identity: full have none", "soft_delete")
        if self.identity == "full" and self.inserts == "trusted":
            raise placed("inserts: trusted requires a key, but tables with identity: full have none", "inserts")
        if self.order_by != "position" and self.inserts == "trusted":
            raise placed(
                "inserts: trusted cannot be combined with order_by: inserts after a late event are applied again",
                "inserts",
            )
        if isinstance(self.source, PostgresSource | MysqlSource) and self.order_by != "position":
            raise placed("the changes of a database are ordered by position; remove order_by", "order_by")
        if self.deletes == "vectors" and self.format_version < 3:
            raise placed("deletes: vectors requires format version 3: add format_version: 3", "deletes")
        if "convert_after" in self.model_fields_set and self.deletes != "converted":
            raise placed(f"convert_after has no effect with deletes: {self.deletes}; remove it", "convert_after")
        if both := sorted(set(self.include) & set(self.exclude)):
            raise placed(f"columns are both included and excluded: {', '.join(both)}", "exclude")
        if lost := sorted(set(self.key) & set(self.exclude)):
            raise placed(f"key columns cannot be excluded: {', '.join(lost)}", "exclude")
        return self


def partition_field(text: str) -> tuple[str, str]:
    """(transform, source column) of one entry of `partition_by`, e.g. ("bucket[16]", "id").

    Raises:
        ValueError: not `column`, `transform(column)` or `transform(number, column)`.
    """
    match = _PLACE.fullmatch(text.strip())
    if match is None:
        if not text.strip() or re.search(r"[()]", text):
            raise ValueError(f"{text!r} is not a partition field; write column, day(column) or bucket(16, column)")
        return "identity", text.strip()
    transform = match["transform"].lower().rstrip("s")
    arguments = [a.strip() for a in match["arguments"].split(",")]
    if transform in {"bucket", "truncate"}:
        numbers = [a for a in arguments if a.isdigit()]
        columns = [a for a in arguments if not a.isdigit()]
        if len(numbers) == 1 and len(columns) == 1 and int(numbers[0]) > 0:
            return f"{transform}[{numbers[0]}]", columns[0]
        raise ValueError(f"{text!r}: write {transform}(16, column)")
    if transform in {"identity", "year", "month", "day", "hour", "void"} and len(arguments) == 1 and arguments[0]:
        return transform, arguments[0]
    raise ValueError(f"{text!r}: transforms are identity, bucket, truncate, year, month, day, hour")


DEFAULT_ROW_GROUP_BYTES = 128 * 1024**2
"""Determines the memory of a task while it writes."""


def _mode(value: Any) -> Any:
    """Also accept Spark's name of the mode."""
    return "replace" if value == "overwrite" else value


class PublishedOptions(Section):
    """How the files of a published table are written.

    Attributes:
        target_file_bytes: a task starts a new file when the current one reaches this size.
        row_group_bytes: size of the rows in memory at which they are written as a row group.
        row_group_rows: maximum number of rows in a row group.
        page_rows: maximum number of rows in a page; every column has a page index.
        compression: Parquet codec.
        bloom_filters: columns that get Bloom filters.
        distribution: `none`: the tasks that computed the rows write them; `rebalance`: rows are shuffled into files of even size; `range`: rows are also shuffled so that files do not overlap in `sort_by`.
        direct_copy: let the tasks that read a mirror write the files, if the SQL only selects columns of one mirror and no row is sorted or shuffled.
        push_down: pass conditions and join keys that the SQL puts on the rows of a mirror to its scan.
        reader: `auto` chooses for each mirror, by expected cost, between Spark's own Parquet reader and tasks in Python; `python` always reads in Python.
        driver_bytes: rows of a mirror that take at most this much memory are read, and small results written, by the process that publishes, where that costs less than starting tasks for them; 0 leaves everything to tasks.
    """

    target_file_bytes: Bytes = DEFAULT_TARGET_FILE_BYTES
    row_group_bytes: Bytes = DEFAULT_ROW_GROUP_BYTES
    row_group_rows: Annotated[int, Field(ge=1)] = 1_000_000
    page_rows: Annotated[int, Field(ge=1)] = 10_000
    compression: Literal["zstd", "snappy", "gzip", "lz4", "none"] = "zstd"
    bloom_filters: Names = ()
    distribution: Literal["none", "rebalance", "range"] = "none"
    direct_copy: bool = True
    push_down: bool = True
    reader: Literal["auto", "python"] = "auto"
    driver_bytes: BytesOrZero = 16 * 1024**2


class PublishedConfig(AssetConfig):
    """A published table, built from mirrors and rebuilt partition by partition.

    Attributes:
        description: what the table is, in Markdown.
        owners: who is responsible: e-mail addresses, or teams as `team:data`.
        tags: names with values, or a list of names, by which assets can be selected.
        group: the group of its assets; by default the namespace of the table.
        freshness: maximum time between two updates; after it, Dagster shows the table as overdue.
        column_descriptions: what columns are, by their names, in Markdown.
        sql: a query over mirrors, by their names in this config.
        partition: how the table is partitioned and rebuilt: a date column of the result, or `hour(at)`, `month(day)`, `year(day)` or `value(city)` of a column; if omitted, the table is rebuilt as a whole.
        start: first partition, for backfills and for SQL that uses `:partition`.
        values: partitions of `value(...)` that Dagster offers, and for which SQL with `:partition` is run.
        parameters: values of `:name` in the SQL, in addition to `:partition`, `:partition_start` and `:partition_end`.
        incremental: whether `publish` rebuilds only the partitions that changes of the mirrors can affect: `true` refuses SQL for which this can never be determined, `auto` then rebuilds everything; `keys` rebuilds only the keys that changes can affect, where that is certain, and otherwise works as `auto`.
        consistent: whether mirrors of one database are read at one commit of the database, so that a join never shows a state that it did not have; `false` reads each as it is now.
        key: columns that identify a row of the result, for the checks, for `mode: upsert` and for `incremental: keys`.
        mode: what a run does with the existing rows of its partition: `replace` them, `append` to them once per state of the mirrors, or `upsert` by `key`.
        sort_by: columns by which the rows of each file are sorted.
        schedule: cron expression, in UTC, for when Dagster builds the most recent completed partition.
        properties: Iceberg table properties; set when the table is created, and by the next publication after a change here.
        index: indexes that are kept up to date.
        maintenance: how many old snapshots are kept.
        checks: what must hold in addition: [expectations and freshness](checks.md#your-own-checks).
        options: how files are written.
    """

    sql: str
    partition: str | None = None
    start: Day | None = None
    values: Names = ()
    parameters: dict[str, bool | int | float | date | str] = Field(default_factory=dict)
    incremental: bool | Literal["auto", "keys"] = False
    consistent: bool = True
    key: Names = ()
    mode: Annotated[Literal["replace", "append", "upsert"], BeforeValidator(_mode)] = "replace"
    sort_by: Names = ()
    schedule: Cron | None = None
    properties: TableProperties = Field(default_factory=dict)
    index: IndexConfig | None = None
    maintenance: RetentionConfig = RetentionConfig()
    checks: PublishedChecksConfig = PublishedChecksConfig()
    options: PublishedOptions = PublishedOptions()

    @property
    def partitioning(self) -> PublishedPartition | None:
        """How the table is partitioned; None if it is not."""
        return None if self.partition is None else PublishedPartition.parse(self.partition)

    @field_validator("partition")
    @classmethod
    def _is_partition(cls, value: str | None) -> str | None:
        if value is not None:
            PublishedPartition.parse(value)
        return value

    @model_validator(mode="after")
    def _has_valid_partitions(self) -> "PublishedConfig":
        partition = self.partitioning
        if self.mode != "replace" and self.incremental:
            raise ValueError(f"incremental tables always replace partitions; remove mode: {self.mode}")
        if self.values and (partition is None or partition.is_time):
            raise ValueError("values applies only to a table with partition: value(column)")
        if self.schedule is not None and (partition is None or not partition.is_time):
            raise ValueError(
                "a schedule builds the last hour, day, month or year, so the table must be partitioned by time"
            )
        if self.start is not None and partition is not None and partition.is_time:
            partition.period(self.start)
        if taken := sorted(set(self.parameters) & {"partition", "partition_start", "partition_end"}):
            raise ValueError(f"parameters: {taken[0]} is reserved for the partition; choose another name")
        return self

    @model_validator(mode="after")
    def _is_consistent(self) -> "PublishedConfig":
        if self.index is not None and self.index.bloom:
            raise placed(
                "choose the Bloom filters of a published table in options: bloom_filters: [...]", "index", "bloom"
            )
        if self.mode == "upsert" and not self.key:
            raise ValueError("mode: upsert requires the columns that identify a row: key: [...]")
        if self.incremental == "keys" and not self.key:
            raise ValueError("incremental: keys requires the columns by which rows are rebuilt: key: [...]")
        if self.options.distribution == "range" and not self.sort_by:
            raise ValueError("distribution: range requires the columns that define the ranges: sort_by: [...]")
        return self


class AlertsConfig(Section):
    """Who is notified when a run fails in Dagster, a check, or a table of `nevermore run`.

    Attributes:
        webhook: address to which a JSON object is posted, usually `${NAME}` from the environment; its `text` is what Slack, Mattermost and others show.
        ui: address of Dagster's UI, such as `https://dagster.example.com`, for links to runs.
        max_lag: `nevermore run` also tells when a mirror is further behind than this; never by default.
    """

    webhook: str
    ui: str | None = None
    max_lag: Seconds | None = None

    @field_validator("webhook", "ui")
    @classmethod
    def _is_address(cls, value: str | None) -> str | None:
        if value is not None and re.match(r"https?://[^/\s]+", value) is None:
            raise ValueError("must be an address that begins with http:// or https://")
        return value


class DocsConfig(Section):
    """Where `nevermore docs` writes Data Docs, and where others read them.

    Attributes:
        folder: the folder, relative to the config.
        url: address at which a web server shows the folder, such as `https://data.example.com/docs`; assets in Dagster then link to their pages.
    """

    folder: str = "data_docs"
    url: str | None = None

    def folder_of(self, config: Path) -> Path:
        """The folder of a project with this config file."""
        return config.parent / Path(self.folder).expanduser()

    @field_validator("url")
    @classmethod
    def _is_address(cls, value: str | None) -> str | None:
        if value is not None and re.match(r"https?://[^/\s]+", value) is None:
            raise ValueError("must be an address that begins with http:// or https://")
        return value


LOCAL_MASTER = "local[*]"
SHIPPED = frozenset({"auto", "installed"})
"""Values of `package` other than a path."""


class SparkConfig(Section):
    """Where and how Spark runs.

    Attributes:
        master: as for `spark-submit`: `local[4]`, `spark://host:7077`, `yarn`, `k8s://...`; `local[*]` if omitted.
        remote: a Spark Connect server to use instead, `sc://host:15002`.
        conf: Spark settings by name.
        package: how Nevermore's code gets to the workers of a cluster: `auto` builds an archive and ships it with each session, `installed` ships nothing, a path is an archive built by `nevermore spark-package`.
        reports: folder shared by driver and workers, where tasks report what they read; if omitted, the driver fetches the reports from each host.
    """

    master: str | None = None
    remote: str | None = None
    conf: dict[str, str] = Field(default_factory=dict)
    package: str = "auto"
    reports: str | None = None

    @field_validator("conf", mode="before")
    @classmethod
    def _is_text(cls, value: Any) -> Any:
        """Spark settings are text, which YAML may read as numbers or booleans."""
        if not isinstance(value, dict):
            return value
        return {name: _as_text(setting) for name, setting in value.items()}

    @field_validator("remote")
    @classmethod
    def _is_remote(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith("sc://"):
            raise ValueError(f"{value!r} is not a Spark Connect server; write sc://host:15002")
        return value

    @field_validator("master")
    @classmethod
    def _is_master(cls, value: str | None) -> str | None:
        """The check of Spark itself, before a JVM is started."""
        if value and value != "yarn" and not value.startswith(("local", "spark://", "k8s://")):
            raise ValueError(f"{value!r} is not a Spark master; write local[4], spark://host:7077, yarn or k8s://host")
        return value

    @model_validator(mode="after")
    def _is_at_one_place(self) -> "SparkConfig":
        if self.master is not None and self.remote is not None:
            raise ValueError("master and remote are mutually exclusive; remove one of them")
        return self

    def at(self, master: str | None = None, remote: str | None = None) -> "SparkConfig":
        """These settings with another master or Connect server, if one is given.

        Raises:
            ConfigError: both are given, or one that is invalid.
        """
        if master is None and remote is None:
            return self
        if master is not None and remote is not None:
            raise ConfigError("--master and --remote are mutually exclusive; give one of them")
        try:
            return SparkConfig.model_validate({**self.model_dump(), "master": master, "remote": remote})
        except ValidationError as error:
            option = "--remote" if master is None else "--master"
            raise ConfigError(f"{option}: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from error


def _as_text(value: Any) -> Any:
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)
        case _:
            return value


MAX_THREADS = 512
DEFAULT_PARALLEL_STEPS = 4
"""Most steps wait for Spark, DuckDB or files most of the time."""
ALL_TABLES = ".*"
"""Suffix of entries that stand for all tables of their feed."""
_TABLE_NAME = re.compile(r"[^.\x00-\x1f/\\]+(\.[^.\x00-\x1f/\\]+)+")
MAX_TABLE_NAME_BYTES = 200
"""The folder of a change log is named after its table, with a prefix; file systems limit names to 255 bytes."""


def is_table_name(name: str) -> bool:
    """Whether this is a valid table name, including its namespaces."""
    return _TABLE_NAME.fullmatch(name) is not None and len(name.encode()) <= MAX_TABLE_NAME_BYTES


class CatalogConfig(BaseModel):
    """An Iceberg catalog; all properties other than these are passed to PyIceberg."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = "nevermore"
    type: Literal["sql", "rest", "hive", "glue", "dynamodb", "in-memory"] = "sql"
    uri: str | None = None
    warehouse: str | None = None

    @model_validator(mode="after")
    def _has_plain_values(self) -> "CatalogConfig":
        for name, value in (self.model_extra or {}).items():
            if not isinstance(value, str | int | float | None):
                kind = (
                    "list"
                    if isinstance(value, list)
                    else "mapping"
                    if isinstance(value, dict)
                    else "value of another type"
                )
                raise placed(f"a catalog property must be text, a number, or true or false, not a {kind}", name)
        return self

    @field_validator("warehouse")
    @classmethod
    def _can_be_written(cls, value: str | None) -> str | None:
        """PyIceberg would write to another place, or to none."""
        if value is None or "://" not in value:
            return value
        if odd := next((c for c in "#?" if c in value), None):
            raise ValueError(f"{odd} has another meaning in an address; name a folder of the warehouse without it")
        container, at, host = urlsplit(value).netloc.partition("@")
        if at and "py-io-impl" in with_file_io(value, {}):
            short = value.replace(f"{container}{at}{host}", container, 1)
            raise ValueError(
                f"without adlfs, the container stands alone and the account is a property: write {short} and "
                f"adls.account-name: {host.partition('.')[0]}"
            )
        return value

    @property
    def properties(self) -> dict[str, str]:
        """All properties by name, as text, for PyIceberg."""
        given = self.model_dump(exclude={"name"}, exclude_none=True)
        return with_file_io(self.warehouse or "", {name: str(value) for name, value in given.items()})


class Config(Section):
    """A whole nevermore.yaml, with paths resolved against its folder.

    Attributes:
        catalog: where tables are.
        tables: mirrors by name.
        published: tables built from mirrors, by name.
        spark: where and how Spark runs.
        ingest_schedule: cron expression, in UTC, for when Dagster ingests; the schedule then runs by default. If omitted, the schedule runs every five minutes once it is switched on.
        ingest_sensor: how often Dagster looks for new events; the sensor then runs by default, and ingests the sources that have some.
        alerts: who is notified when a run or a check fails in Dagster.
        docs: where Data Docs of expectations are.
        maintenance: what is done to keep tables fast and small, for all tables.
        retention_schedule: cron expression, in UTC, for when Dagster expires snapshots and deletes orphan files; the schedule then runs by default.
        tables_elsewhere: whether a run may write to tables of the catalog that are outside `warehouse` although `warehouse` also has files of them, as in a copied project.
        parallel_tables: number of tables of a feed that are folded, written and committed at the same time; if omitted, one per thread, but at least two.
        threads: number of threads that read, decode and encode during an ingest; if omitted, one per core.
        parallel_steps: steps of a Dagster run that work at the same time, in one process and with one Spark session; 1 for one after the other.
        patterns: entries of `tables` named `namespace.*`; their mirrors become known when the feed delivers them.
        scan: scan options by name, as accepted by `ScanOptions.of`; sizes also as text, such as 64MiB.
        path: path of the config file.
        lines: line of each entry of `tables` and `published` in the file, by name.
    """

    catalog: CatalogConfig = CatalogConfig()
    tables: dict[str, TableConfig]
    published: dict[str, PublishedConfig] = Field(default_factory=dict)
    spark: SparkConfig = SparkConfig()
    ingest_schedule: Cron | None = None
    ingest_sensor: Seconds | None = None
    alerts: AlertsConfig | None = None
    docs: DocsConfig = DocsConfig()
    maintenance: MaintenanceConfig = MaintenanceConfig()
    retention_schedule: Cron | None = None
    tables_elsewhere: Literal["refuse", "allow"] = "refuse"
    parallel_tables: Annotated[int, Field(ge=1)] | None = None
    threads: Annotated[int, Field(ge=1, le=MAX_THREADS)] | None = None
    parallel_steps: Annotated[int, Field(ge=1)] = DEFAULT_PARALLEL_STEPS
    patterns: dict[str, TableConfig] = Field(default_factory=dict, exclude=True)
    scan: dict[str, Any] = Field(default_factory=dict)
    path: Path = Field(default=Path("nevermore.yaml"), exclude=True)
    lines: dict[str, int] = Field(default_factory=dict, exclude=True)

    @field_validator("scan")
    @classmethod
    def _are_scan_options(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name, setting in value.items():
            try:
                ScanOptions.from_settings({name: setting})
            except OptionError as error:
                raise placed(str(error), name) from error
        return value

    @field_validator("tables", "published")
    @classmethod
    def _are_table_names(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in value:
            if not is_table_name(name):
                raise placed(
                    f"{name!r} must be namespace.table, at most {MAX_TABLE_NAME_BYTES} bytes long, without slashes or control "
                    "characters",
                    name,
                )
            if set(name.removesuffix(ALL_TABLES)) & set("*?["):
                what = "the only pattern is namespace.*; select tables with include_tables and exclude_tables"
                raise placed(what, name)
        return value

    @model_validator(mode="after")
    def _has_applicable_options(self) -> "Config":
        for name, table in self.tables.items():
            is_pattern = name.endswith(ALL_TABLES)
            if not is_pattern and (table.include_tables or table.exclude_tables):
                what = "include_tables and exclude_tables apply only to entries named namespace.*"
                raise placed(what, "tables", name)
            if is_pattern and table.source_table is not None:
                what = "source_table applies to a single table; use include_tables"
                raise placed(what, "tables", name, "source_table")
        return self

    @model_validator(mode="after")
    def _has_distinct_logs(self) -> "Config":
        logs: dict[str, str] = {}
        for name in self.tables:
            other = logs.setdefault(change_log_name(name), name)
            if other != name:
                what = f"would share the change log {change_log_name(name)} with {other}; rename one of them"
                raise placed(what, "tables", name)
        if both := sorted(set(self.tables) & set(self.published)):
            what = f"{both[0]} is also the name of a mirror; a published table needs its own name"
            raise placed(what, "published", both[0])
        return self

    @property
    def scan_options(self) -> ScanOptions:
        """Default options of the project's scans; a relative `index_folder` is resolved against the config's folder."""
        options = ScanOptions.from_settings(self.scan)
        folder = options.index_folder
        return options if folder is None else replace(options, index_folder=str(self.folder / folder))

    def with_scan(self, settings: Mapping[str, Any]) -> "Config":
        """The same project, with its scan options overridden by these."""
        return self.model_copy(update={"scan": {**self.scan, **settings}}) if settings else self

    def line(self, name: str) -> int:
        """Line of the entry of a table, or of the pattern that found it; 1 if the config was not read from a file."""
        return self.lines.get(name, self.lines.get(name.rpartition(".")[0] + ALL_TABLES, 1))

    @property
    def folder(self) -> Path:
        """The folder of the config file, against which its paths are resolved."""
        return self.path.parent

    def with_engine(self, engine: Literal["local", "spark", "auto"], names: Collection[str]) -> "Config":
        """The config in which this engine ingests tables and patterns, and all others of their sources.

        Raises:
            ConfigError: Spark cannot ingest one of them.
        """
        sources = [entry.source for name, entry in {**self.tables, **self.patterns}.items() if name in names]

        def changed(name: str, entry: TableConfig) -> TableConfig:
            if entry.source not in sources:
                return entry
            if engine == "spark" and (reason := entry.why_not_on_spark()) is not None:
                raise ConfigError(f"{name}: {reason}; name other tables, or leave out --engine {engine}")
            above = entry.ingest.spark_above_bytes if entry.ingest.engine == "auto" else DEFAULT_SPARK_ABOVE_BYTES
            given = {"engine": engine} | ({"spark_above_bytes": above} if engine == "auto" else {})
            return entry.model_copy(update={"ingest": IngestConfig.model_validate(given)})

        return self.model_copy(
            update={
                "tables": {name: changed(name, entry) for name, entry in self.tables.items()},
                "patterns": {name: changed(name, entry) for name, entry in self.patterns.items()},
            }
        )

    def table(self, name: str) -> TableConfig:
        """The config of a mirror.

        Raises:
            ConfigError: no such entry; names the nearest.
        """
        if name in self.tables:
            return self.tables[name]
        if (pattern := name.rpartition(".")[0] + ALL_TABLES) in self.patterns and not name.endswith(ALL_TABLES):
            return self.patterns[pattern]
        near = get_close_matches(name, sorted(self.tables), n=1, cutoff=0.0)
        hint = f"did you mean {near[0]}?" if near else "the config has no tables"
        raise ConfigError(f"no table {name!r} in {self.path.name}; {hint}")


def change_log_name(table: str) -> str:
    """`change_log.shop_products` for `shop.products`."""
    return "change_log." + table.replace(".", "_")


def quarantine_name(table: str) -> str:
    """`quarantine.shop_products` for `shop.products`."""
    return "quarantine." + table.replace(".", "_")


__all__ = [
    "ALL_TABLES",
    "CatalogConfig",
    "Config",
    "FilesSource",
    "IndexConfig",
    "KafkaSource",
    "MaintenanceConfig",
    "MysqlSource",
    "PostgresSource",
    "PublishedConfig",
    "PublishedOptions",
    "RetentionConfig",
    "Source",
    "SparkConfig",
    "TableConfig",
    "change_log_name",
    "config_template",
    "load",
    "parse",
    "partition_field",
    "quarantine_name",
]

_SECTIONS: dict[tuple[str, ...], type[BaseModel]] = {
    (): Config,
    ("tables", "*"): TableConfig,
    ("tables", "*", "source", "files"): FilesSource,
    ("tables", "*", "source", "kafka"): KafkaSource,
    ("tables", "*", "source", "mysql"): MysqlSource,
    ("tables", "*", "source", "postgres"): PostgresSource,
    ("tables", "*", "index"): IndexConfig,
    ("tables", "*", "maintenance"): MaintenanceConfig,
    ("published", "*"): PublishedConfig,
    ("published", "*", "index"): IndexConfig,
    ("published", "*", "maintenance"): RetentionConfig,
    ("published", "*", "options"): PublishedOptions,
    ("tables", "*", "checks"): ChecksConfig,
    ("tables", "*", "checks", "expectations", "*"): ExpectationConfig,
    ("tables", "*", "checks", "freshness"): FreshnessConfig,
    ("tables", "*", "checks", "volume"): VolumeConfig,
    ("tables", "*", "checks", "quarantine_is_small"): QuarantineConfig,
    ("published", "*", "checks"): PublishedChecksConfig,
    ("published", "*", "checks", "expectations", "*"): ExpectationConfig,
    ("published", "*", "checks", "freshness"): FreshnessConfig,
    ("spark",): SparkConfig,
    ("maintenance",): MaintenanceConfig,
    ("alerts",): AlertsConfig,
    ("docs",): DocsConfig,
}


def load(path: str | Path) -> Config:
    """Load a config file.

    Raises:
        ConfigError: no such file, not YAML, an unset environment variable, or anything invalid in it, with its line.
    """
    file = Path(path)
    try:
        if not file.is_file() and file.exists():  # opening a FIFO would block
            raise ConfigError(f"{file} is not a regular file; specify the config file")
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"no config file {file}; `nevermore init` writes one") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from error
    return parse(text, file)


def parse(text: str, path: str | Path = "nevermore.yaml") -> Config:
    """Parse a config; `path` is the base of relative paths and appears in messages."""
    document = ConfigDocument.of(text, path)
    values = document.values()
    valid = sorted(name for name, field in Config.model_fields.items() if not field.exclude)
    for name, field in Config.model_fields.items():
        if field.exclude and name in values:
            raise ConfigError(f"{document.where([name])}: {unknown_key(name, valid)[0]}")
    try:
        config = Config.model_validate(
            {**values, "path": Path(path).absolute(), "lines": document.lines_of("tables", "published")}
        )
    except ValidationError as error:
        # not `from error`: pydantic's errors contain values from the environment, and a traceback would show them
        raise ConfigError("\n".join(config_messages(error, document, _SECTIONS))) from None
    return _resolved(_with_suites(config, document))


def _with_suites(config: Config, document: ConfigDocument) -> Config:
    """The config with the expectations of the suites that it names, which are in files next to it."""
    found: dict[str, dict[str, Any]] = {}
    for section in ("tables", "published"):
        found[section] = {}
        for name, entry in getattr(config, section).items():
            try:
                found[section][name] = entry.model_copy(update={"checks": entry.checks.with_suite(config.folder)})
            except ConfigError as error:
                raise ConfigError(f"{document.where([section, name, 'checks', 'suite'])}: {error}") from error
    return config.model_copy(update=found)


def _resolved(config: Config) -> Config:
    """The config with every relative path resolved against the folder of its file."""
    folder = config.folder
    catalog = config.catalog
    warehouse = catalog.warehouse if catalog.warehouse is not None else "warehouse" if catalog.type == "sql" else None
    uri = catalog.uri
    if catalog.type == "sql":
        uri = _resolved_sqlite(uri or "sqlite:///warehouse/catalog.db", folder)
    if warehouse is not None and catalog.type in {"sql", "in-memory"} and "://" not in warehouse:
        warehouse = f"file://{_absolute(warehouse, folder)}"
    tables = {
        name: table.model_copy(
            update={
                "source": _resolved_source(table.source, folder),
                "maintenance": table.maintenance.under(config.maintenance),
            }
        )
        for name, table in config.tables.items()
    }
    return config.model_copy(
        update={
            "catalog": catalog.model_copy(update={"uri": uri, "warehouse": warehouse}),
            "tables": {name: table for name, table in tables.items() if not name.endswith(ALL_TABLES)},
            "patterns": {name: table for name, table in tables.items() if name.endswith(ALL_TABLES)},
            "published": {
                name: entry.model_copy(update={"maintenance": entry.maintenance.under(config.maintenance)})
                for name, entry in config.published.items()
            },
            "spark": config.spark.model_copy(
                update={
                    "package": config.spark.package
                    if config.spark.package in SHIPPED
                    else _absolute(config.spark.package, folder),
                    "reports": config.spark.reports and _absolute(config.spark.reports, folder),
                }
            ),
        }
    )


def _resolved_source(source: Source, folder: Path) -> Source:
    if isinstance(source, FilesSource):
        return source.model_copy(update={"path": tuple(_absolute(p, folder) for p in source.path)})
    return source


def _absolute(path: str, folder: Path) -> str:
    if "://" in path:
        return path
    return os.path.normpath(folder / Path(path).expanduser())


def _resolved_sqlite(uri: str, folder: Path) -> str:
    prefix = "sqlite:///"
    rest = uri.removeprefix(prefix)
    if not uri.startswith(prefix) or rest.startswith((":memory:", "/")) or not rest:
        return uri
    return f"{prefix}{_absolute(rest, folder)}"
