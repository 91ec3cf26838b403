"""nevermore.yaml as a whole: its sections, the rules between them, and loading.

Contains the sections for the catalog, mirrors, published tables and Spark. Every error names the line and, for an
unknown key, the nearest valid one. YAML is read in `document.py`.
"""

import glob
import inspect
import json
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from difflib import get_close_matches
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from nevermore.pipelines.config import Engine
from nevermore.pipelines.config.document import (
    SPECIAL_IN_LOCATION,
    SPECIAL_IN_SQLITE,
    ConfigDocument,
    config_messages,
    one_line,
    refuse_special,
    unknown_key,
)
from nevermore.pipelines.config.published import PublishedConfig
from nevermore.pipelines.config.sources import (
    FilesSource,
    Source,
)
from nevermore.pipelines.config.tables import (
    DEFAULT_SPARK_ABOVE_BYTES,
    IngestConfig,
    MaintenanceConfig,
    TableConfig,
)
from nevermore.pipelines.config.values import Address, Count, Cron, Seconds, Section, Texts, placed, spelled
from nevermore.pipelines.errors import ConfigError, describe
from nevermore.scan_core import OptionError, ScanOptions
from nevermore.scan_core.io import whole_file, with_file_io, write_whole


class AlertsConfig(Section):
    """Who is notified when a run fails in Dagster, a check, or a table of `nevermore run`.

    Attributes:
        webhook: address to which a JSON object is posted, usually `${NAME}` from the environment; its `text` is what Slack, Mattermost and others show.
        ui: address of Dagster's UI, such as `https://dagster.example.com`, for links to runs.
        max_lag: `nevermore run` also tells when a mirror is further behind than this; never by default.
    """

    webhook: Address
    ui: Address | None = None
    max_lag: Seconds | None = None


class DocsConfig(Section):
    """Where `nevermore docs` writes Data Docs, and where others read them.

    Attributes:
        folder: the folder, relative to the config.
        url: address at which a web server shows the folder, such as `https://data.example.com/docs`; assets in Dagster then link to their pages.
    """

    folder: str = "data_docs"
    url: Address | None = None

    def folder_of(self, config: Path) -> Path:
        """The folder of a project with this config file."""
        return config.parent / Path(self.folder).expanduser()


LOCAL_MASTER = "local[*]"
SHIPPED = frozenset({"auto", "installed"})
"""Values of `package` other than a path."""


SparkMaster = Annotated[
    str,
    spelled(
        r"(yarn|(local|spark://|k8s://).*)?",  # the check of Spark itself, before a JVM is started
        "{!r} is not a Spark master; write local[4], spark://host:7077, yarn or k8s://host",
    ),
]
SparkRemote = Annotated[str, spelled(r"sc://.*", "{!r} is not a Spark Connect server; write sc://host:15002")]


class SparkConfig(Section):
    """Where and how Spark runs.

    Attributes:
        master: as for `spark-submit`: `local[4]`, `spark://host:7077`, `yarn`, `k8s://...`; `local[*]` if omitted.
        remote: a Spark Connect server to use instead, `sc://host:15002`.
        conf: Spark settings by name.
        package: how Nevermore's code gets to the workers of a cluster: `auto` builds an archive and ships it with each session, `installed` ships nothing, a path is an archive built by `nevermore spark-package`.
        reports: folder shared by driver and workers, where tasks report what they read; if omitted, the driver fetches the reports from each host.
    """

    master: SparkMaster | None = None
    remote: SparkRemote | None = None
    conf: Texts = Field(default_factory=dict)
    package: str = "auto"
    reports: str | None = None

    @model_validator(mode="after")
    def _is_at_one_place(self) -> "SparkConfig":
        if self.master is not None and self.remote is not None:
            raise ValueError("master and remote are mutually exclusive; remove one of them")
        return self

    @property
    def compares_case(self) -> bool:
        """Whether names in SQL that differ in case are different names."""
        return self.conf.get("spark.sql.caseSensitive", "false").lower() == "true"

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


MAX_THREADS = 512
DEFAULT_PARALLEL_STEPS = 4
"""Most steps wait for Spark, DuckDB or files most of the time."""
ALL_TABLES = ".*"
"""Suffix of entries that stand for all tables of their feed."""
_TABLE_NAME = re.compile(r"[^.\x00-\x1f/\\#?]+(\.[^.\x00-\x1f/\\#?]+)+")
"""`#` and `?` would end the path in the address of its folder."""
MAX_TABLE_NAME_BYTES = 200
"""The folder of a change log is named after its table, with a prefix; file systems limit names to 255 bytes."""


def is_table_name(name: str) -> bool:
    """Whether this is a valid table name, including its namespaces."""
    is_name = _TABLE_NAME.fullmatch(name) is not None and all(part.strip() for part in name.split("."))
    return is_name and len(name.encode()) <= MAX_TABLE_NAME_BYTES


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
                raise placed("a catalog property must be text, a number, or true or false", name)
        return self

    @field_validator("warehouse")
    @classmethod
    def _can_be_written(cls, value: str | None) -> str | None:
        """PyIceberg would write to another place, or to none."""
        if value is None or "://" not in value:
            return value
        if odd := SPECIAL_IN_LOCATION.search(value):
            raise ValueError(f"{odd[0]} has another meaning in an address; name a folder of the warehouse without it")
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
    parallel_tables: Count | None = None
    threads: Annotated[int, Field(ge=1, le=MAX_THREADS)] | None = None
    parallel_steps: Count = DEFAULT_PARALLEL_STEPS
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
            if set(name.removesuffix(ALL_TABLES)) & set("*?["):
                raise placed(
                    "the only pattern is namespace.*; select tables with include_tables and exclude_tables", name
                )
            if not is_table_name(name):
                raise placed(
                    f"{name!r} must be namespace.table, at most {MAX_TABLE_NAME_BYTES} bytes long, without slashes, # or control "
                    "characters",
                    name,
                )
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
    def _shares_nothing(self) -> "Config":
        owners: dict[str, str] = {}
        for name, table in self.tables.items():
            asset = f"asset {getattr(table.source, 'asset', None) or [name]}"
            for what in (f"change log {change_log_name(name)}", asset):
                if (other := owners.setdefault(what, name)) != name:
                    raise placed(f"would share the {what} with {other}; rename one of them", "tables", name)
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

    def with_engine(self, engine: Engine, names: Collection[str]) -> "Config":
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
                section: {name: changed(name, entry) for name, entry in getattr(self, section).items()}
                for section in ("tables", "patterns")
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
        hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(self.patterns) or 'no tables'}"
        raise ConfigError(f"no table {name!r} in {self.path.name}; {hint}")


def change_log_name(table: str) -> str:
    """`change_log.shop_products` for `shop.products`."""
    return "change_log." + table.replace(".", "_")


def quarantine_name(table: str) -> str:
    """`quarantine.shop_products` for `shop.products`."""
    return "quarantine." + table.replace(".", "_")


def sql_names(tables: Collection[str], existing: Collection[str]) -> dict[str, str]:
    """Mirrors, published tables, and their logs and quarantines that exist, by the names that SQL may use.

    Names that differ by letter case only are left out: DuckDB would take one table for the other.
    """
    logs = [name for table in tables for name in (change_log_name(table), quarantine_name(table))]
    names = {view: table for table, view in view_names(tables).items()}
    names |= {name: name for name in (*tables, *logs) if name in existing}
    spelled = Counter(map(str.lower, names))
    return {name: table for name, table in names.items() if spelled[name.lower()] == 1}


def view_names(tables: Collection[str]) -> dict[str, str]:
    """Name a view for each table: its last part, with the preceding parts where two tables share it."""
    short = [name.rpartition(".")[2].lower() for name in tables]
    return {
        name: name.rpartition(".")[2] if short.count(name.rpartition(".")[2].lower()) == 1 else name.replace(".", "_")
        for name in tables
    }


def _sections(kind: Any, place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], type[BaseModel]]]:
    """The models of sections by place, with `*` for any name, and the type of a source as a step of its own."""
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        for inner in get_args(kind):
            yield from _sections(inner, (*place, "*") if get_origin(kind) in {dict, tuple} else place)
        return
    if place[-1:] == ("source",):
        place = (*place, *get_args(kind.model_fields["type"].annotation))
    yield place, kind
    for name, field in kind.model_fields.items():
        if not field.exclude:
            yield from _sections(field.annotation, (*place, name))


SECTIONS = dict(_sections(Config))


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
        raise ConfigError("\n".join(config_messages(error, document, SECTIONS))) from None
    return _resolved(_with_suites(config, document))


@contextmanager
def adding_table(config: Config, name: str, entry: Mapping[str, Any]) -> Iterator[Config]:
    """The config with one more table, which is added to its file, below `tables:`, if the block ends without an error.

    A config that has the table with these settings stays as it is.

    Raises:
        ConfigError: the entry is invalid, the table has other settings, or the file cannot be written.
    """
    text, path = one_line({name: entry})[1:-1], config.path
    wanted = parse(f"tables: {{{text}}}", path).table(name)
    with ExitStack() as opened:
        if name not in config.tables:
            try:
                file = opened.enter_context(_locked(path.resolve()))
                before = file.read_text(encoding="utf-8")
                config = parse(before, path)
                if name not in config.tables:
                    whole = opened.enter_context(whole_file(file, None))
                    after = ConfigDocument.of(before, path).inserted(before, "tables", text)
                    config = parse(after, path)
                    whole.write(after.encode())
            except OSError as error:
                raise ConfigError(f"{path} cannot be changed: {describe(error)}; add to its tables: {text}") from error
        if other := [option for option in entry if getattr(config.tables[name], option) != getattr(wanted, option)]:
            raise ConfigError(f"{name} is in {path} with another {', '.join(other)}: change it there, or use that")
        yield config


@contextmanager
def _locked(file: Path) -> Iterator[Path]:
    """A file that may be replaced, while other programs that change files of its folder in this way wait.

    Raises:
        OSError: it may not be written.
    """
    file.open("r+b").close()
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        flock(folder, LOCK_EX)
        yield file
    finally:
        os.close(folder)


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
        uri = _resolved_sqlite(uri or "sqlite:///warehouse/catalog.db", config)
    if warehouse is not None and catalog.type in {"sql", "in-memory"} and "://" not in warehouse:
        warehouse = f"file://{_absolute(warehouse, folder)}"
        refuse_special(SPECIAL_IN_LOCATION, warehouse, f"{config.path}: catalog.warehouse")
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
        literal = Path(glob.escape(str(folder)))  # wildcards are those of the config, not of folders around it
        return source.model_copy(update={"path": tuple(_absolute(p, literal) for p in source.path)})
    return source


def _absolute(path: str, folder: Path) -> str:
    if "://" in path:
        return path
    return os.path.normpath(folder / Path(path).expanduser())


def _resolved_sqlite(uri: str, config: Config) -> str:
    prefix = "sqlite:///"
    rest = uri.removeprefix(prefix)
    if not uri.startswith(prefix) or rest.startswith((":memory:", "/")) or not rest:
        return uri
    file = _absolute(rest, config.folder)
    refuse_special(SPECIAL_IN_SQLITE, file, f"{config.path}: catalog.uri")
    return f"{prefix}{file}"


SCHEMA = "nevermore.schema.json"
"""Name of the file next to a config with which editors complete and check it; `nevermore init` writes it."""


def meanings_of(kind: type[Any]) -> dict[str, str]:
    """What the docstring of a class says of each attribute."""
    attributes = (inspect.getdoc(kind) or "").partition("Attributes:\n")[2]
    found = re.finditer(r"^    (\w+): (.*(?:\n     +.*)*)", attributes, re.MULTILINE)
    return {match[1]: " ".join(match[2].split()) for match in found}


class _Schema(GenerateJsonSchema):
    """The schema of what the file may hold, where validators take more than the type behind them."""

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        inner = super().function_before_schema(schema)
        if schema["function"]["function"].__name__ == "_is_no_truth_value":
            return inner
        return {"anyOf": [inner, {"type": ["boolean", "null", "string", "integer", "object", "array"]}]}


def write_config(path: Path, text: str) -> None:
    """Write a config, and next to it the schema with which editors complete and check it."""
    path = path.resolve()
    # the config last: without it, the command that could not write it can be run again
    write_whole(path.with_name(SCHEMA), json.dumps(json_schema(), indent=1))
    write_whole(path, f"# yaml-language-server: $schema={SCHEMA}\n{text}")


def json_schema() -> dict[str, Any]:
    """The JSON schema of nevermore.yaml."""
    schema = Config.model_json_schema(schema_generator=_Schema)
    for section in {*SECTIONS.values()}:
        place = schema if section is Config else schema["$defs"].get(section.__name__)
        for name, text in meanings_of(section).items():
            if place is not None and name in place.get("properties", {}):
                place["properties"][name]["description"] = text
    return schema | {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "nevermore.yaml",
        "description": "A project of Nevermore: catalog, mirrors and published tables.",
    }
