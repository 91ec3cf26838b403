"""The entries of `published` in a config: which tables are made of mirrors, how, and how their files are laid out."""

from datetime import date
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from pipelines.config_values import Bytes, Cron, Day, Names, Section, TableProperties, Unsupported
from pipelines.published.partition import PublishedPartition

DEFAULT_TARGET_FILE_BYTES = 256 * 1024**2
"""Two of Iceberg's splits."""
DEFAULT_ROW_GROUP_BYTES = 128 * 1024**2
"""What a task holds in memory while it writes."""


def _mode(value: Any) -> Any:
    """Spark says overwrite where tables say replace."""
    return "replace" if value == "overwrite" else value


class PublishedOptions(Section):
    """How the files of a published table are written.

    Attributes:
        target_file_bytes: a task begins another file when one has reached this size.
        row_group_bytes: of rows in memory, after which they are written as a row group.
        row_group_rows: most rows of a row group.
        page_rows: most rows of a page; every column has a page index.
        compression: Parquet codec.
        bloom_filters: columns that get Bloom filters.
        distribution: `none` writes rows by the tasks that computed them; `rebalance` shuffles them into even files; `range` also puts neighbours by `sort_by` into the same file.
        direct_copy: let the tasks that read a mirror write the files, where the SQL only selects columns of one mirror and nothing is sorted or moved.
    """

    target_file_bytes: Bytes = DEFAULT_TARGET_FILE_BYTES
    row_group_bytes: Bytes = DEFAULT_ROW_GROUP_BYTES
    row_group_rows: Annotated[int, Field(ge=1)] = 1_000_000
    page_rows: Annotated[int, Field(ge=1)] = 10_000
    compression: Literal["zstd", "snappy", "gzip", "lz4", "none"] = "zstd"
    bloom_filters: Names = ()
    distribution: Literal["none", "rebalance", "range"] = "none"
    direct_copy: bool = True


class PublishedConfig(Section):
    """A published table, re-made partition by partition from mirrors.

    Attributes:
        sql: a query over mirrors, by their names here.
        partition: by what the table is partitioned and re-made: a date column of the result, or `hour(at)`, `month(day)`, `year(day)`, `value(city)` of a column; nothing for one whole table.
        start: first partition, for backfills and for SQL that asks for `:partition`.
        values: partitions of `value(...)` that Dagster offers and that SQL with `:partition` is run for.
        parameters: values of `:name` in the SQL, beside `:partition`, `:partition_start` and `:partition_end`.
        incremental: whether `publish` makes only partitions that changes of the mirrors can have reached: `true` refuses SQL for which that is never certain, `auto` then makes all.
        key: columns that identify a row of the result, for the checks and for `mode: upsert`.
        mode: what a run does with the rows of its partition: `replace` those that are there, `append` to them once per state of the mirrors, or `upsert` by `key`.
        sort_by: columns by which rows are sorted within each file.
        schedule: cron expression of when Dagster makes the last partition that is over, in UTC.
        properties: Iceberg table properties; set when the table is made and by the next publication after a change here.
        checks: not supported yet; refused.
        options: how files are written.
    """

    sql: str
    partition: str | None = None
    start: Day | None = None
    values: Names = ()
    parameters: dict[str, bool | int | float | date | str] = Field(default_factory=dict)
    incremental: bool | Literal["auto"] = False
    key: Names = ()
    mode: Annotated[Literal["replace", "append", "upsert"], BeforeValidator(_mode)] = "replace"
    sort_by: Names = ()
    schedule: Cron | None = None
    properties: TableProperties = Field(default_factory=dict)
    checks: Unsupported = None
    options: PublishedOptions = PublishedOptions()

    @property
    def partitioning(self) -> PublishedPartition | None:
        """By what the table is partitioned."""
        return None if self.partition is None else PublishedPartition.parse(self.partition)

    @field_validator("partition")
    @classmethod
    def _is_partition(cls, value: str | None) -> str | None:
        if value is not None:
            PublishedPartition.parse(value)
        return value

    @model_validator(mode="after")
    def _has_partitions_that_mean_something(self) -> "PublishedConfig":
        partition = self.partitioning
        if self.mode != "replace" and self.incremental:
            raise ValueError(f"incremental tables replace partitions; leave out mode: {self.mode}")
        if self.values and (partition is None or partition.is_time):
            raise ValueError("values are the partitions of partition: value(column)")
        if self.schedule is not None and (partition is None or not partition.is_time):
            raise ValueError("a schedule makes the last hour, day, month or year, and the table has no such partition")
        if self.start is not None and partition is not None and partition.is_time:
            partition.period(self.start)
        if taken := sorted(set(self.parameters) & {"partition", "partition_start", "partition_end"}):
            raise ValueError(f"parameters: {taken[0]} is the partition that is made; take another name")
        return self

    @model_validator(mode="after")
    def _is_consistent(self) -> "PublishedConfig":
        if self.mode == "upsert" and not self.key:
            raise ValueError("mode: upsert needs the columns that identify a row: key: [...]")
        if self.options.distribution == "range" and not self.sort_by:
            raise ValueError("distribution: range needs the columns to range by: sort_by: [...]")
        return self
