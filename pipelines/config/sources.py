"""Sections that say where change events come from: files, Kafka, PostgreSQL and MySQL."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import parse_qsl, urlsplit

from pydantic import AwareDatetime, Discriminator, Field, Tag, field_validator

from nevermore.pipelines.config.values import Bytes, Names, Section, spelled


class FilesSource(Section):
    """Event files in a folder of any FileIO.

    Attributes:
        type: `files`.
        path: a file, a glob pattern, or a list of them, relative to the config file.
        format: name of the event format; `nevermore init` writes it, and a source without it is refused with the format that its events look like.
        options: options of the format and of its files (delimiter, time zone, registry ...).
        merge_folders: whether one mirror may take events of the same table from several folders (entries `namespace.*`) or Debezium
            connectors (`source.name`, unless several paths are listed for a single table). Without it, such events are refused.
            Folders of partitions, days and runs, such as `day=2025-01-01`, `2025/01` or `run-7`, count as one folder.
    """

    type: Literal["files"] = "files"
    path: Names
    format: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    merge_folders: bool = False

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
    """

    type: Literal["postgres"]
    dsn: str = ""
    slot: Annotated[
        str,
        spelled("[a-z0-9_]{1,63}", "slot must consist of at most 63 lower case letters, digits and underscores"),
    ] = DEFAULT_SLOT
    publication: str = DEFAULT_SLOT
    chunk_bytes: Bytes = DEFAULT_CHUNK_BYTES
    max_held_bytes: Bytes = DEFAULT_HELD_BYTES

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


_BROKER = re.compile(r"(?:\w+://)?(?:\[[0-9a-fA-F:.]+\]|[^:/\s\[\]]+)(?::(?P<port>[0-9]{1,5}))?")


class KafkaSource(Section):
    """Topics of a Kafka cluster. Offsets are kept in the change logs, not in a consumer group.

    Attributes:
        type: `kafka`.
        brokers: `host:port` of brokers, separated by commas.
        topics: a topic, or a list of them; `^shop[.].*` stands for all topics whose whole name matches the regular expression.
        format: name of the event format; `nevermore init` writes it, and a source without it is refused with the format that its events look like.
        options: options of the format (registry, time zone ...).
        start: a time with its zone: a table that was never read begins with the first message of each partition that is not older,
            instead of the oldest one. Rows that did not change since are then missing.
        merge_topics: whether events of several topics, or of several Debezium connectors (`source.name`), that name the same table belong
            to one mirror, such as those of shards. Otherwise they are refused, unless several topics are listed for a single table without
            a regular expression.
        message_columns: columns that the tables have in addition, by what they hold of the message that wrote a row last: `topic`,
            `partition`, `offset`, `timestamp`, `key` or `headers`.
        properties: properties of librdkafka, such as `security.protocol`, `sasl.mechanism`, `sasl.username`, `sasl.password` and
            `ssl.ca.location`.
    """

    type: Literal["kafka"]
    brokers: str
    topics: Names
    format: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    start: AwareDatetime | None = None
    merge_topics: bool = False
    message_columns: dict[Literal["topic", "partition", "offset", "timestamp", "key", "headers"], str] = Field(
        default_factory=dict
    )
    properties: dict[str, str | int | float | bool] = Field(default_factory=dict)

    @field_validator("message_columns")
    @classmethod
    def _has_names_of_columns(cls, value: dict[Any, str]) -> dict[Any, str]:
        if not all(value.values()) or len(set(value.values())) < len(value):
            raise ValueError("message_columns must give each part of the message a column name of its own")
        return value

    @field_validator("brokers")
    @classmethod
    def _has_brokers(cls, value: str) -> str:
        for broker in value.split(","):
            # The client would take another port or host instead: 65536 more or less, or this machine.
            found = _BROKER.fullmatch(broker.strip())
            if found is None or not 0 < int(found["port"] or 9092) < 65_536:
                raise ValueError(f"brokers must be like localhost:9092, with commas between several, not {broker!r}")
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


class PythonSource(Section):
    """Rows that programs hand over: `open_project().upsert(...)`. `nevermore ingest` has nothing to read for such a table.

    Attributes:
        type: `python`.
        asset: key of the asset of your own Dagster project that hands them over, such as `marts/totals`: it stands for the
            mirror, with its checks, before the tables published from it.
    """

    type: Literal["python"]
    asset: str | None = None
    format: ClassVar[str] = "rows"
    title: ClassVar[str] = "Python programs"


def type_of_source(value: Any) -> str:
    """The `type` of a source as it is written in a config; files may leave it out."""
    return str(value.get("type", "files") if isinstance(value, Mapping) else getattr(value, "type", "files"))


Source = Annotated[
    Annotated[FilesSource, Tag("files")]
    | Annotated[PostgresSource, Tag("postgres")]
    | Annotated[MysqlSource, Tag("mysql")]
    | Annotated[KafkaSource, Tag("kafka")]
    | Annotated[PythonSource, Tag("python")],
    Discriminator(
        type_of_source,
        custom_error_type="source_type",
        custom_error_message="the type of a source must be 'files', 'kafka', 'mysql', 'postgres' or 'python'",
    ),
]
"""Where the events of tables are; distinguished by `type`, which may be omitted for files."""
