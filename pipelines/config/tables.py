"""Sections of a mirror: its source, key, columns, deletes, indexes, maintenance and how it is ingested."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from nevermore.pipelines.config import Engine
from nevermore.pipelines.config.checks import ChecksConfig
from nevermore.pipelines.config.sources import (
    FilesSource,
    KafkaSource,
    MysqlSource,
    PostgresSource,
    Source,
)
from nevermore.pipelines.config.values import (
    AutoOrOff,
    Bytes,
    Count,
    Group,
    InfiniteDates,
    Labels,
    Names,
    NamesInOrder,
    Owners,
    Seconds,
    Section,
    TableProperties,
    TypeName,
    placed,
)

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
RESERVED_NAMES = frozenset(
    {"_file", "_pos", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number", "_delete_file"}
)
"""Names of metadata columns; `_deleted` is allowed, as sources often flag their rows with it."""
_NO_KEY = re.compile(r"(?:real|float|double|double precision|(?:half)?vector\b.*|hstore|.*\[\])", re.IGNORECASE)
"""Types of databases whose values identify no row: floats, lists and maps."""
_PLACE = re.compile(r"(?P<transform>\w+)\((?P<arguments>[^()]*)\)")


class IndexConfig(Section):
    """Indexes that are kept up to date by the commits of a table.

    Attributes:
        bitmap: columns that get bitmap indexes, `struct.member` for a member of a struct; `auto`: columns whose filters removed many
            rows only after their values were read, in scans of this user on this host.
        bloom: columns that get Parquet Bloom filters in new data files of a mirror, in addition to the key with `bloom_filters: true`.
        max_values: a file in which a column has more distinct values than this gets no bitmap index for the column.
        every_rows: update the indexes when this many rows and deletes have been committed since the last update, or when the
            snapshot of that update has expired; `1` updates them after every commit.
    """

    bitmap: Literal["auto"] | Names = ()
    bloom: Names = ()
    max_values: Count = DEFAULT_MAX_VALUES
    every_rows: Count = DEFAULT_EVERY_ROWS

    @model_validator(mode="after")
    def _has_an_index(self) -> "IndexConfig":
        if not self.bitmap and not self.bloom:
            raise ValueError("no index is chosen: add bitmap: [columns] or bloom: [columns]")
        return self


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

    keep_snapshots: Count = DEFAULT_KEEP_SNAPSHOTS
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
    """What people see of a table, in Dagster and as comments in other engines. None of it changes what the pipelines do.

    Attributes:
        description: what the table is, in Markdown; also the `comment` of the Iceberg table.
        owners: who is responsible: e-mail addresses, or teams as `team:data`.
        tags: names with values, or a list of names, by which assets can be selected.
        group: the group of its assets; by default the namespace of the table.
        freshness: maximum time between two updates; after it, Dagster shows the table as overdue.
        column_descriptions: what columns are, by their names, in Markdown; members of structs as `address.city`. Also the comments of the Iceberg columns.
        properties: Iceberg table properties.
    """

    description: str | None = None
    owners: Owners = ()
    tags: Labels = Field(default_factory=dict)
    group: Group | None = None
    freshness: Annotated[Seconds, Field(ge=MIN_FRESHNESS_SECONDS)] | None = None
    column_descriptions: dict[str, str] = Field(default_factory=dict)
    properties: TableProperties = Field(default_factory=dict)

    @property
    def table_properties(self) -> dict[str, str]:
        """Properties of the table, with the description as the `comment` that other engines show."""
        return ({} if self.description is None else {"comment": self.description}) | self.properties


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
        description: what the table is, in Markdown; also the `comment` of the Iceberg table.
        owners: who is responsible: e-mail addresses, or teams as `team:data`.
        tags: names with values, or a list of names, by which assets can be selected.
        group: the group of its assets; by default the namespace of the table.
        freshness: maximum time between two updates; after it, Dagster shows the table as overdue.
        column_descriptions: what columns are, by their names, in Markdown; members of structs as `address.city`. Also the comments of the Iceberg columns.
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
        identity: `key`, or `full` for tables without a key: a row is identified by the whole old row, as far as the event contains it.
        on_conflict: what happens to a value that does not fit its column: `quarantine`, or `new_column` (`price__string`).
        infinite_dates: what becomes of a date or timestamp outside of the years 1 to 9999, such as PostgreSQL's `infinity`: `quarantine`, `null`,
            or `clamp` (0001-01-01 or 9999-12-31T23:59:59.999999).
        schema_changes: what happens when events bring a new column or a wider type. `evolve`: the mirror gets it. `freeze`: the table
            stops before the batch, and nothing of it is applied.
        dropped_columns: what becomes of a column that the source drops. `keep`: it stays, and is NULL in later rows. `drop`: it leaves the table, and
            older snapshots keep it; for [feeds that state their columns](how-changes-are-applied.md#what-happens-to-a-column-that-is-added-dropped-or-changed).
        sort_by: columns by which the rows of each data file are sorted; if empty, rows keep the order of the changes.
        bloom_filters: write Parquet Bloom filters for the key columns, in data files and delete files.
        index: indexes that are kept up to date.
        maintenance: what is done to keep the mirror fast and small; `keep_...` also apply to its change log and its quarantine.
        format_version: Iceberg format version of the mirror, 2 or 3; a table of version 2 is upgraded with its next commit.
        deletes: how deleted rows are recorded. `converted`: by key, and every run replaces the keys by the positions of the rows,
            which every engine reads fast. `equality`: by key, the cheapest to write. `vectors`: by deletion vectors from the first
            commit on; requires format version 3.
        convert_after: with `deletes: converted`, a continuous run converts once a delete is older than this; other runs convert
            at their end.
        ingest: where events are read and decoded: in this process, or [by the tasks of Spark](ingest-on-spark.md).
        commit_rows: commit after this many changes.
        commit_interval: minimum time between two commits of a continuous run.
        memory_limit_bytes: maximum memory for the changes of a batch; beyond it changes are spilled to disk.
        max_quarantine_ratio: if a larger share of a batch is rejected, while decoding or applying it, none of the batch is applied.
        properties: Iceberg table properties of the mirror; set when the table is created, and by the next commit after a change here. Removing a property here does not remove it from the table.
        checks: what must hold in addition: [expectations, freshness, volume](expectations.md).
    """

    source: Source
    key: Names = ()
    source_table: str | None = None
    include_tables: Names = ()
    exclude_tables: Names = ()
    order_by: Literal["position"] | NamesInOrder = "position"
    types: dict[str, TypeName] = Field(default_factory=dict)
    partition_by: Names = ()
    include: Names = ()
    exclude: Names = ()
    rename: dict[str, str] = Field(default_factory=dict)
    cast: dict[str, TypeName] = Field(default_factory=dict)
    encodings: dict[str, str] = Field(default_factory=dict)
    inserts: Literal["checked", "trusted"] = "checked"
    soft_delete: bool = False
    identity: Literal["key", "full"] = "key"
    on_conflict: Literal["quarantine", "new_column"] = "quarantine"
    infinite_dates: InfiniteDates = "quarantine"
    schema_changes: Literal["evolve", "freeze"] = "evolve"
    dropped_columns: Literal["keep", "drop"] = "keep"
    sort_by: Names = ()
    bloom_filters: bool = False
    index: IndexConfig | None = None
    maintenance: MaintenanceConfig = MaintenanceConfig()
    format_version: Literal[2, 3] = 2
    deletes: Literal["equality", "converted", "vectors"] = "converted"
    convert_after: Seconds = DEFAULT_CONVERT_AFTER_SECONDS
    ingest: IngestConfig = IngestConfig()
    commit_rows: Count = DEFAULT_COMMIT_ROWS
    commit_interval: Seconds = DEFAULT_COMMIT_INTERVAL_SECONDS
    memory_limit_bytes: Bytes = DEFAULT_MEMORY_LIMIT_BYTES
    max_quarantine_ratio: Annotated[float, Field(ge=0, le=1)] = DEFAULT_MAX_QUARANTINE_RATIO
    checks: ChecksConfig = ChecksConfig()

    @model_validator(mode="after")
    def _is_for_its_engine(self) -> "TableConfig":
        if self.ingest.engine == "spark" and (reason := self.why_not_on_spark()) is not None:
            raise placed(f"{reason}; leave ingest out, or set engine: local or auto", "ingest")
        if self.dropped_columns == "drop" and (
            self.identity == "full" or self.schema_changes == "freeze" or self.order_by != "position"
        ):
            raise placed(
                "dropped_columns: drop cannot be combined with identity: full, schema_changes: freeze or order_by",
                "dropped_columns",
            )
        return self

    def why_not_on_spark(self) -> str | None:
        """Why the tasks of Spark cannot ingest the table; None if they can."""
        if isinstance(self.source, KafkaSource) and self.source.message_columns:
            return "Spark adds no message_columns"
        if self.dropped_columns == "drop":
            return "Spark drops no columns"
        if isinstance(self.source, FilesSource | KafkaSource):
            return None
        return f"Spark ingests files and topics, and {self.source.title} is read through a connection"

    @model_validator(mode="after")
    def _has_rows_that_messages_do_not_tell_apart(self) -> "TableConfig":
        if self.identity == "full" and isinstance(self.source, KafkaSource) and self.source.message_columns:
            raise placed(
                "identity: full makes every column a key, and message_columns differ from message to message",
                "identity",
            )
        return self

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


def read_columns(config: TableConfig, columns: Iterable[str]) -> list[str]:
    """The columns of a database's table that the mirror has."""
    return [c for c in columns if c not in config.exclude and (not config.include or c in config.include)]


def unfit_columns(
    config: TableConfig, columns: Mapping[str, str], key: Collection[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """(`types` without which columns cannot identify rows, `rename` for names that are reserved or differ by case only) of a table.

    Args:
        config: of the mirror.
        columns: types of the columns as the database names them.
        key: columns of the table's own key.
    """
    names = {c: config.rename.get(c, c) for c in read_columns(config, columns)}
    given = {*config.key} or {names.get(c, c) for c in key}
    typed = {*config.types, *config.cast}
    identity = [c for c in names if c not in typed and (config.identity == "full" or names[c] in given)]
    lower = [name.lower() for name in names.values()]
    taken = {c: f"{c}_" for i, c in enumerate(names) if lower[i] in {*RESERVED_NAMES, *lower[:i]}}
    return {c: "string" for c in identity if _NO_KEY.fullmatch(columns[c])}, taken


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
