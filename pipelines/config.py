"""nevermore.yaml: what to read, into which tables, and how.

The file is validated as a whole before anything is done; every message names the line and, for an unknown key, the
nearest valid one. What a source or format makes of its options is decided there, not here.
"""

import os
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from pipelines.errors import ConfigError

DEFAULT_COMMIT_ROWS = 1_000_000
"""Large enough that files are worth their manifest entry, small enough for 1 GiB of wide rows."""
DEFAULT_COMMIT_INTERVAL_SECONDS = 60.0
"""A minute of lag for at most 1,440 snapshots a day."""
DEFAULT_MEMORY_LIMIT_BYTES = 1024**3
"""Leaves room for two tables side by side on a 4 GiB machine."""
DEFAULT_MAX_QUARANTINE_RATIO = 0.5
"""More rejected than accepted events: the config is wrong, not the events."""

_DURATION_UNITS: Mapping[str, float] = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE_UNITS: Mapping[str, int] = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_TABLE_NAME = re.compile(r"[^.\s/\\]+(\.[^.\s/\\]+)+")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_PLACE = re.compile(r"(?P<transform>\w+)\((?P<arguments>[^()]*)\)")


def _seconds(value: Any) -> Any:
    """A duration in seconds from a number or text such as `30s`, `5m`."""
    if isinstance(value, str) and (match := re.fullmatch(r"\s*([\d.]+)\s*(ms|s|m|h|d)\s*", value)):
        return float(match[1]) * _DURATION_UNITS[match[2]]
    return value


def _bytes(value: Any) -> Any:
    """A size in bytes from a number or text such as `512MiB`, `2g`."""
    if isinstance(value, str) and (match := re.fullmatch(r"\s*(\d+)\s*([kmg]?)i?b?\s*", value.lower())):
        return int(match[1]) * _SIZE_UNITS[match[2]]
    return value


def _one_or_many(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Seconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0)]
Bytes = Annotated[int, BeforeValidator(_bytes), Field(ge=1024**2)]
Names = Annotated[tuple[str, ...], BeforeValidator(_one_or_many)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class CatalogConfig(BaseModel):
    """Which Iceberg catalog: `type` and whatever properties PyIceberg knows for it pass through."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = "nevermore"
    type: Literal["sql", "rest", "hive", "glue", "dynamodb", "in-memory"] = "sql"
    uri: str | None = None
    warehouse: str | None = None

    @property
    def properties(self) -> dict[str, str]:
        """Everything as PyIceberg takes it: text by name."""
        given = self.model_dump(exclude={"name"}, exclude_none=True)
        return {name: str(value) for name, value in given.items()}


class FilesSource(_Section):
    """Event files in a folder of any FileIO.

    Attributes:
        path: file, glob, or several of them; relative to the config file.
        format: name of a format; None looks at the first file.
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


class TableConfig(_Section):
    """One mirror: where its events come from and how they become rows.

    Attributes:
        source: where the events are.
        key: columns that identify a row; may be left out where the feed tells, or with `identity: full`.
        source_table: name of the table in the feed, where it differs from the name here.
        order_by: `position`, or payload columns that order the events of a key.
        types: Iceberg types of columns, where the feed does not tell or to override it.
        partition_by: Iceberg partition fields: `day(created_at)`, `bucket(16, id)`, `region`.
        include: columns to keep; empty keeps all.
        exclude: columns to leave out.
        rename: new name by source column.
        cast: Iceberg type by source column, applied after decoding.
        inserts: `checked` also writes a delete row for an insert whose key might exist, `trusted` does not.
        soft_delete: keep deleted rows with `_deleted` true instead of removing them.
        global_deletes: whether a delete may be written to reach every partition of a partitioned table.
        identity: `key`, or `full` for tables without a key, where the whole old row identifies a row.
        on_conflict: what a value does that does not fit its column: `quarantine`, or `new_column`.
        commit_rows: most changes of one commit.
        commit_interval: least seconds between commits of a continuous run.
        memory_limit_bytes: what a batch may hold in memory; larger ones are cut.
        max_quarantine_ratio: rejected share of a batch above which nothing of it is applied.
        checks: expectations on the mirror, read by the checks.
    """

    source: FilesSource
    key: Names = ()
    source_table: str | None = None
    order_by: Literal["position"] | tuple[str, ...] = "position"
    types: dict[str, str] = Field(default_factory=dict)
    partition_by: Names = ()
    include: Names = ()
    exclude: Names = ()
    rename: dict[str, str] = Field(default_factory=dict)
    cast: dict[str, str] = Field(default_factory=dict)
    inserts: Literal["checked", "trusted"] = "checked"
    soft_delete: bool = False
    global_deletes: Literal["allow", "refuse"] = "allow"
    identity: Literal["key", "full"] = "key"
    on_conflict: Literal["quarantine", "new_column"] = "quarantine"
    commit_rows: Annotated[int, Field(ge=1)] = DEFAULT_COMMIT_ROWS
    commit_interval: Seconds = DEFAULT_COMMIT_INTERVAL_SECONDS
    memory_limit_bytes: Bytes = DEFAULT_MEMORY_LIMIT_BYTES
    max_quarantine_ratio: Annotated[float, Field(ge=0, le=1)] = DEFAULT_MAX_QUARANTINE_RATIO
    checks: dict[str, Any] = Field(default_factory=dict)

    @field_validator("types", "cast")
    @classmethod
    def _are_types(cls, value: dict[str, str]) -> dict[str, str]:
        from scan_core.errors import ScanError
        from scan_core.schema import parse_type

        for column, text in value.items():
            try:
                parse_type(text)
            except ScanError as error:
                raise ValueError(f"column {column}: {error}") from error
        return value

    @field_validator("partition_by")
    @classmethod
    def _are_partition_fields(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            partition_field(text)
        return value

    @model_validator(mode="after")
    def _is_consistent(self) -> "TableConfig":
        if self.identity == "full" and self.key:
            raise ValueError("identity: full is for tables without a key; leave out one of the two")
        if both := sorted(set(self.include) & set(self.exclude)):
            raise ValueError(f"columns both included and excluded: {', '.join(both)}")
        if lost := sorted(set(self.key) & set(self.exclude)):
            raise ValueError(f"key columns cannot be excluded: {', '.join(lost)}")
        return self


class PublishedConfig(_Section):
    """A published table, re-made partition by partition from mirrors.

    Attributes:
        sql: a query over mirrors, by their names here.
        partition: column of the result, a date, by which the table is partitioned and re-made.
        start: first business day, for backfills.
        key: columns that identify a row of the result, for the checks.
        options: sort order, target file size and other options of the writer.
    """

    sql: str
    partition: str
    start: str | None = None
    key: Names = ()
    mode: Literal["overwrite", "append", "upsert"] = "overwrite"
    sort_by: Names = ()
    schedule: str | None = None
    checks: dict[str, Any] = Field(default_factory=dict)
    options: dict[str, Any] = Field(default_factory=dict)


class Config(_Section):
    """A whole nevermore.yaml, with paths resolved against its folder."""

    catalog: CatalogConfig = CatalogConfig()
    tables: dict[str, TableConfig]
    published: dict[str, PublishedConfig] = Field(default_factory=dict)
    path: Path = Field(default=Path("nevermore.yaml"), exclude=True)

    @field_validator("tables", "published")
    @classmethod
    def _are_table_names(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in value:
            if not _TABLE_NAME.fullmatch(name):
                raise ValueError(f"{name!r} must be namespace.table")
        return value

    @model_validator(mode="after")
    def _has_distinct_logs(self) -> "Config":
        logs: dict[str, str] = {}
        for name in self.tables:
            other = logs.setdefault(change_log_name(name), name)
            if other != name:
                raise ValueError(f"tables {other} and {name} would share the change log {change_log_name(name)}")
        if both := sorted(set(self.tables) & set(self.published)):
            raise ValueError(f"names used both in tables and in published: {', '.join(both)}")
        return self

    @property
    def folder(self) -> Path:
        """The folder of the config file, against which its paths are resolved."""
        return self.path.parent


def change_log_name(table: str) -> str:
    """`change_log.shop_products` for `shop.products`."""
    return "change_log." + table.replace(".", "_")


def quarantine_name(table: str) -> str:
    """`quarantine.shop_products` for `shop.products`."""
    return "quarantine." + table.replace(".", "_")


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


def load(path: str | Path) -> Config:
    """The config in a file.

    Raises:
        ConfigError: no such file, not YAML, an unset environment variable, or anything invalid in it, with its line.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"no config file {file}; `nevermore init` writes one") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from error
    return parse(text, file)


def parse(text: str, path: str | Path = "nevermore.yaml") -> Config:
    """The config in a text; `path` gives the folder for relative paths and the name for messages."""
    file = Path(path).absolute()
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(document, Mapping) or not isinstance(root, yaml.MappingNode):
        raise ConfigError(
            f"{path}: a config has the sections catalog, tables and published; `nevermore init` shows one"
        )
    _refuse_duplicates(root, path)
    try:
        config = Config.model_validate({**_filled(document, (), root, path), "path": file})
    except ValidationError as error:
        raise ConfigError("\n".join(_messages(error, root, path))) from error
    return _resolved(config)


def _refuse_duplicates(node: yaml.Node, path: str | Path) -> None:
    if isinstance(node, yaml.SequenceNode):
        for child in node.value:
            _refuse_duplicates(child, path)
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if key.value in seen:
                raise ConfigError(f"{path}:{key.start_mark.line + 1}: {key.value!r} is given twice")
            seen.add(key.value)
            _refuse_duplicates(value, path)


def _filled(value: Any, place: tuple[Any, ...], root: yaml.Node, path: str | Path) -> Any:
    """`value` with ${NAME} and ${NAME:-default} replaced from the environment."""
    if isinstance(value, Mapping):
        return {k: _filled(v, (*place, k), root, path) for k, v in value.items()}
    if isinstance(value, list):
        return [_filled(v, (*place, i), root, path) for i, v in enumerate(value)]
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        found = os.environ.get(match[1], match[2])
        if found is None:
            raise ConfigError(f"{path}:{_line(root, place)}: environment variable {match[1]} is not set")
        return found

    return _VARIABLE.sub(replace, value)


def _messages(error: ValidationError, root: yaml.Node, path: str | Path) -> list[str]:
    messages = []
    for problem in error.errors():
        place = problem["loc"]
        where = ".".join(str(p) for p in place)
        what = str(problem["msg"]).removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            valid = _valid_names(place[:-1])
            near = get_close_matches(str(place[-1]), valid, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"valid are {', '.join(valid)}"
            what = f"unknown key {str(place[-1])!r}; {hint}"
        elif problem["type"] == "missing":
            what = f"{str(place[-1])!r} is missing"
        else:
            what = f"{where}: {what}" if where else what
        messages.append(f"{path}:{_line(root, place)}: {what}")
    return messages


def _valid_names(place: Sequence[str | int]) -> list[str]:
    models: dict[int, Any] = {0: Config}
    match list(place):
        case []:
            model: type[BaseModel] = models[0]
        case ["tables", _]:
            model = TableConfig
        case ["tables", _, "source", *_]:
            model = FilesSource
        case ["published", _]:
            model = PublishedConfig
        case _:
            return []
    return sorted(name for name, f in model.model_fields.items() if not f.exclude)


def _line(root: yaml.Node, place: Sequence[str | int]) -> int:
    """The line, from 1, of the deepest node on the way to `place`."""
    node, line = root, root.start_mark.line
    for step in place:
        if isinstance(node, yaml.MappingNode):
            found = next(((k, v) for k, v in node.value if k.value == str(step)), None)
            if found is None:
                break
            line, node = found[0].start_mark.line, found[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
            line = node.start_mark.line
        else:
            break
    return line + 1


def _resolved(config: Config) -> Config:
    """The config with every relative path made absolute against the folder of its file."""
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
                "source": table.source.model_copy(
                    update={"path": tuple(_absolute(p, folder) for p in table.source.path)}
                )
            }
        )
        for name, table in config.tables.items()
    }
    return config.model_copy(
        update={"catalog": catalog.model_copy(update={"uri": uri, "warehouse": warehouse}), "tables": tables}
    )


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


def config_template() -> str:
    """The commented nevermore.yaml that `nevermore init` writes."""
    return _TEMPLATE


_TEMPLATE = """\
# What to read, into which tables, and how. Paths are relative to this file; ${NAME} is filled from the environment.

catalog:
  type: sql                              # sql | rest | hive | glue; other properties go to PyIceberg as they are
  uri: sqlite:///warehouse/catalog.db
  warehouse: warehouse

tables:
  shop.products:                         # the mirror; its change log is change_log.shop_products
    source:
      type: files
      path: landing/products/*.jsonl     # applied in name order; new files are picked up by the next run
      format: debezium-json              # leave it out to let the first file tell
    key: [id]
    # order_by: position                 # or payload columns that order the events of a key
    # types: {price: "decimal(10,2)"}    # only where the feed does not tell, or to override it
    # partition_by: [day(created_at)]    # also column, bucket(16, id), truncate(4, sku), year, month, hour
    # include: []                        # columns to keep; exclude: columns to leave out
    # rename: {old_name: new_name}
    # cast: {quantity: long}
    # inserts: checked                   # trusted: an insert never meets a live key, so it writes no delete row
    # soft_delete: false                 # true: keep deleted rows, with _deleted set
    # global_deletes: allow              # refuse: fail rather than write a delete that reaches every partition
    # commit_rows: 1000000
    # commit_interval: 60s
    # memory_limit_bytes: 1GiB
    # max_quarantine_ratio: 0.5          # more rejected events stop the batch

# published:                             # re-made day by day with Spark, from mirrors
#   shop.products_daily:
#     partition: day
#     sql: >
#       select cast(updated_at as date) as day, count(*) as products
#       from shop.products group by 1
"""
