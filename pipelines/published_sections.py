"""The entries of `published` in a config: which tables are made of mirrors, how, and how their files are laid out."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from pipelines.config_values import Bytes, Names, Section

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
        partition: column of the result, a date, by which the table is partitioned and re-made.
        start: first business day, for backfills.
        key: columns that identify a row of the result, for the checks and for `mode: upsert`.
        mode: what a run does with the rows of its day: `replace` those that are there, `append` to them once per state of the mirrors, or `upsert` by `key`.
        sort_by: columns by which rows are sorted within each file.
        schedule: time of day at which Dagster makes yesterday.
        checks: expectations on the table, read by the checks.
        options: how files are written.
    """

    sql: str
    partition: str
    start: str | None = None
    key: Names = ()
    mode: Annotated[Literal["replace", "append", "upsert"], BeforeValidator(_mode)] = "replace"
    sort_by: Names = ()
    schedule: str | None = None
    checks: dict[str, Any] = Field(default_factory=dict)
    options: PublishedOptions = PublishedOptions()

    @model_validator(mode="after")
    def _is_consistent(self) -> "PublishedConfig":
        if self.mode == "upsert" and not self.key:
            raise ValueError("mode: upsert needs the columns that identify a row: key: [...]")
        if self.options.distribution == "range" and not self.sort_by:
            raise ValueError("distribution: range needs the columns to range by: sort_by: [...]")
        return self
