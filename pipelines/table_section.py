"""The section of nevermore.yaml that describes one mirror: its source, its identity, how and when it is committed.

What a source or format makes of its options is decided there, not here.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from pipelines.config_values import Bytes, Names, Seconds, Section, TableProperties, TypeName, Unsupported, placed

DEFAULT_COMMIT_ROWS = 1_000_000
"""Large enough that files are worth their manifest entry, small enough for 1 GiB of wide rows."""
DEFAULT_COMMIT_INTERVAL_SECONDS = 60.0
"""A minute of lag for at most 1,440 snapshots a day."""
DEFAULT_MEMORY_LIMIT_BYTES = 1024**3
"""Leaves room for two tables side by side on a 4 GiB machine."""
DEFAULT_MAX_QUARANTINE_RATIO = 0.5
"""More rejected than accepted events: the config is wrong, not the events."""
_PLACE = re.compile(r"(?P<transform>\w+)\((?P<arguments>[^()]*)\)")


class FilesSource(Section):
    """Event files in a folder of any FileIO.

    Attributes:
        type: `files`.
        path: file, glob, or several of them; relative to the config file.
        format: name of a format; without one the first file tells.
        options: what the format wants to know (delimiter, time zone, registry ...).
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


class TableConfig(Section):
    """One mirror: where its events come from and how they become rows.

    Attributes:
        source: where the events are.
        key: columns that identify a row; may be left out where the feed tells, or with `identity: full`.
        source_table: name of the table in the feed, where it differs from the name here.
        include_tables: of an entry `namespace.*`: tables of the feed that it takes, `*` and `?` allowed; all if empty.
        exclude_tables: of such an entry: tables of the feed that it leaves out.
        order_by: `position`, or payload columns that order the events of a key, also over runs.
        types: Iceberg types of columns, where the feed does not tell or to override it.
        partition_by: Iceberg partition fields: `day(created_at)`, `bucket(16, id)`, `region`.
        include: columns to keep; empty keeps all.
        exclude: columns to leave out.
        rename: new name by source column; `key`, `partition_by` and `sort_by` say the new one.
        cast: Iceberg type by source column, applied after decoding.
        encodings: how the values of a column are written, where the feed does not tell (`millis`, `base64` ...).
        inserts: `checked` also writes a delete row for an insert whose key might exist, `trusted` does not, where all rows came
            from the feed.
        soft_delete: keep deleted rows with `_deleted` true instead of removing them.
        global_deletes: whether a delete may be written to reach every partition of a partitioned table.
        identity: `key`, or `full` for tables without a key, where the whole old row identifies a row, as far as an event has it.
        on_conflict: where a value goes that does not fit its column: `quarantine`, or a `new_column` (`price__string`).
        sort_by: columns by which the rows of each data file are sorted; none keeps the order of the changes.
        bloom_filters: write Parquet Bloom filters of the key columns, into data files and delete files.
        compact_log: write numbers into the change log in encodings that are smaller and faster (Parquet's DELTA_BINARY_PACKED
            and BYTE_STREAM_SPLIT); false for other readers of it that do not know them.
        commit_rows: so many changes are enough for a commit.
        commit_interval: least seconds between commits of a continuous run.
        memory_limit_bytes: what a batch may hold in memory; what is more is spilled to the disk.
        max_quarantine_ratio: rejected share of a batch, in decoding or in applying, above which nothing of it is applied.
        properties: Iceberg table properties of the mirror, `nevermore.keep-snapshots` among them; set when it is made and by the next commit after a change here. One that is removed here stays on the table.
        checks: not supported yet; refused.
    """

    source: FilesSource
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
    sort_by: Names = ()
    bloom_filters: bool = False
    compact_log: bool = True
    commit_rows: Annotated[int, Field(ge=1)] = DEFAULT_COMMIT_ROWS
    commit_interval: Seconds = DEFAULT_COMMIT_INTERVAL_SECONDS
    memory_limit_bytes: Bytes = DEFAULT_MEMORY_LIMIT_BYTES
    max_quarantine_ratio: Annotated[float, Field(ge=0, le=1)] = DEFAULT_MAX_QUARANTINE_RATIO
    properties: TableProperties = Field(default_factory=dict)
    checks: Unsupported = None

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
            raise placed("identity: full is for tables without a key; leave out one of the two", "identity")
        if self.identity == "full" and self.soft_delete:
            raise placed("soft_delete flags rows by their key, and with identity: full there is none", "soft_delete")
        if self.identity == "full" and self.inserts == "trusted":
            raise placed("inserts: trusted is about keys, and with identity: full there is none", "inserts")
        if self.order_by != "position" and self.inserts == "trusted":
            raise placed(
                "inserts: trusted cannot be with order_by: inserts that follow a late event are applied once more",
                "inserts",
            )
        if both := sorted(set(self.include) & set(self.exclude)):
            raise placed(f"columns both included and excluded: {', '.join(both)}", "exclude")
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
            raise ValueError(f"{text!r} is no partition field; write column, day(column) or bucket(16, column)")
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
