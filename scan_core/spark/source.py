"""The data source `format("nevermore")`: splits are planned on the driver, each task reads one split."""

import gc
import json
import logging
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from fnmatch import fnmatch
from functools import cache
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any
from zipimport import zipimporter

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import types as st
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from nevermore.scan_core.io.location import Location, parse_location
from nevermore.scan_core.io.object_store import INDEXES
from nevermore.scan_core.io.private_files import UnsafeFileError, user_folder
from nevermore.scan_core.model.errors import OptionError, ScanError
from nevermore.scan_core.model.options import ScanMetrics, ScanOptions
from nevermore.scan_core.native.compiled import is_missed
from nevermore.scan_core.plan.file_set import MIN_SMALL_FILES
from nevermore.scan_core.read.split_reader import read_split
from nevermore.scan_core.semi_join import joins_as_text, joins_from_text
from nevermore.scan_core.spark.reports import TaskReports
from nevermore.scan_core.spark.types import arrow_schema_of, conform, spark_schema
from nevermore.scan_core.split.tasks import ScanContext, pack_splits, share_row_groups, unpack_split

if TYPE_CHECKING:
    from nevermore.scan_core.plan.planner import ScanPlan
    from nevermore.scan_core.scan import Scan

_TABLE_ALIASES = ("table", "path")
"""`.load("...")` arrives as `path`."""
_OF_STORED_TABLES = "owner"
"""An option that Spark adds to those of CREATE TABLE alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Options of `format("nevermore")`.

    Attributes:
        table: table directory, metadata file, or `catalog.namespace.table`.
        columns: columns of the result, in order; None for all. As text: names with commas, or a JSON list.
        where: rows of the result, as SQL; exact, Spark need not filter again.
        joins: keys that rows must have, as `semi_join.py` writes them; prefilters among them may keep more.
        snapshot: id of the snapshot to read.
        as_of: point in time to read as of: ISO 8601, or milliseconds since the epoch.
        ref: branch or tag to read.
        sample: which random part of the rows to look at: a fraction, and after a comma a seed.
        relocate: old prefix of paths -> new prefix. As text: a JSON object, or `OLD=NEW` pairs with commas.
        properties: catalog and FileIO properties. As text: a JSON object.
        scan_options: options and switches as `ScanOptions.of` takes them. As text: a JSON object.
        parallelism: tasks Spark runs at once; splits become small enough to keep all of them busy.
        metrics_dir: folder for the reports of tasks, see `TaskReports`.
    """

    table: str
    columns: tuple[str, ...] | None = None
    where: str | None = None
    joins: str | None = None
    snapshot: int | None = None
    as_of: str | None = None
    ref: str | None = None
    sample: str | None = None
    relocate: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    scan_options: Mapping[str, Any] = field(default_factory=dict)
    parallelism: int = 1
    metrics_dir: Path | None = None

    @classmethod
    def of(cls, scan: "Scan", *, parallelism: int = 1, metrics_dir: Path | None = None) -> "SourceOptions":
        """Options that stand for `scan`, its metadata file and so its snapshot pinned. A limit is not among them."""
        return cls(
            table=scan.table.metadata_path,
            columns=scan.columns,
            where=" and ".join(f"({predicate})" for predicate in scan.predicates) or None,
            joins=joins_as_text(scan.joins) if scan.joins else None,
            snapshot=scan.snapshot_id,
            as_of=None if scan.timestamp_ms is None else str(scan.timestamp_ms),
            ref=scan.ref,
            sample=None if scan.row_sample is None else f"{scan.row_sample.fraction!r},{scan.row_sample.seed}",
            relocate=dict(scan.table.io.relocate) | _allowed(scan.table.io.places or ()),
            properties=dict(scan.table.io.properties),
            scan_options=scan.options.changed(),
            parallelism=parallelism,
            metrics_dir=metrics_dir,
        )

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SourceOptions":
        """Options from text.

        Raises:
            OptionError: an unknown option (names the nearest), no table, a value that does not parse, or CREATE TABLE.
        """
        if _OF_STORED_TABLES in options:
            raise OptionError(
                "CREATE TABLE ... USING nevermore is not supported, as Spark would keep a copy of the table's schema: "
                "write CREATE TEMPORARY VIEW ... USING nevermore OPTIONS (path '...')"
            )
        known = {f.name for f in fields(cls)}
        values: dict[str, Any] = {}
        for raw_name, text in options.items():
            name = "table" if raw_name.lower() in _TABLE_ALIASES else raw_name.lower()
            if name not in known:
                near = get_close_matches(name, sorted(known), n=1, cutoff=0.0)
                raise OptionError(f"unknown option {raw_name!r}; did you mean {near[0]!r}?")
            if name in values:
                raise OptionError(f"option {name!r} is given twice ({' and '.join(_TABLE_ALIASES)} are the same)")
            values[name] = _parse_value(name, text)
        if "table" not in values:
            raise OptionError(
                "option 'path' is missing: a table directory, metadata file or catalog.namespace.table, as in "
                "OPTIONS (path '/warehouse/shop/orders')"
            )
        return cls(**values)

    def as_text(self) -> dict[str, str]:
        """The options as text that `parse` reads; options at their default are left out."""
        result: dict[str, str] = {"table": self.table}
        if self.columns is not None:
            result["columns"] = json.dumps(list(self.columns))
        for name in ("where", "joins", "snapshot", "as_of", "ref", "sample", "metrics_dir"):
            if getattr(self, name) is not None:
                result[name] = str(getattr(self, name))
        for name in ("relocate", "properties", "scan_options"):
            if getattr(self, name):
                result[name] = json.dumps(dict(getattr(self, name)))
        if self.parallelism != 1:
            result["parallelism"] = str(self.parallelism)
        return result

    def scan(self) -> "Scan":
        """The scan that the options describe.

        Raises:
            ScanError: table, snapshot, column or predicate are wrong.
        """
        from nevermore.scan_core.scan import open_table

        table = open_table(self.table, relocate=dict(self.relocate), properties=dict(self.properties))
        scan = table.scan().with_options(ScanOptions.of(**self.scan_options))
        if self.snapshot is not None:
            scan = scan.as_of_snapshot(self.snapshot)
        if self.as_of is not None:
            scan = scan.as_of_time(self.as_of)
        if self.ref is not None:
            scan = scan.at_ref(self.ref)
        if self.columns is not None:
            scan = scan.select(*self.columns)
        if self.sample is not None:
            scan = scan.sample(*_sample(self.sample))
        if self.joins is not None:
            scan = replace(scan, joins=joins_from_text(self.joins))
        return scan if self.where is None else scan.where(self.where)


def _allowed(places: Sequence[str]) -> dict[str, str]:
    """Places of a table's files as relocations to themselves: where only its path is known, its catalog is not asked."""
    of_files = (parse_location(place) for place in places[1:])
    named = {str(Location("file", "", x.path)) if x.is_local else str(x) for x in of_files}
    return {place: place for place in sorted(named)}


def _parse_value(name: str, text: str) -> Any:
    try:
        match name:
            case "columns":
                return tuple(json.loads(text)) if text.lstrip().startswith("[") else _names(text)
            case "snapshot" | "parallelism":
                return int(text)
            case "relocate" if not text.lstrip().startswith("{"):
                return dict(pair.split("=", 1) for pair in _names(text))
            case "relocate" | "properties" | "scan_options":
                return dict(json.loads(text))
            case "metrics_dir":
                return Path(text)
            case _:
                return text
    except ValueError as error:
        raise OptionError(f"option {name!r}: cannot read {text!r:.80} ({error})") from error


def _sample(text: str) -> tuple[float, int]:
    fraction, _, seed = text.partition(",")
    try:
        return float(fraction), int(seed or 0)
    except ValueError as error:
        raise OptionError(
            f"option 'sample': cannot read {text!r:.80}: write a fraction, or 0.01,42 with a seed"
        ) from error


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for part in text.split(",") if (name := part.strip()))


def with_shared_indexes(context: ScanContext) -> ScanContext:
    """The context of a task, which shares indexes with the other workers of its host unless the scan says otherwise."""
    options = context.options
    if not options.switches.share_indexes or options.index_folder is not None:
        return context
    return replace(context, options=replace(options, index_folder=str(user_folder(INDEXES).path)))


FORMAT = "nevermore"
_log = logging.getLogger(__name__)
SPLITS_PER_CORE = 2
"""Two keep every core busy to the end; more only add the cost of starting a task."""
_SLACK = 9 / 8
"""Files that weigh about the same shall not leave a small split over that every core waits for."""
MIN_SPLIT_BYTES = 4 * 1024**2
"""Below this, handing a task to a Python worker costs more than reading it."""


_READS_ALL = (
    "format('nevermore') reads all rows of %s, as Spark does not pass the filters of a DataFrame or a query to it: "
    ".option('where', ...) reads only those that fulfil a condition, nevermore.scan_core.spark.sql only those that a query needs"
)


class NevermoreDataSource(DataSource):  # type: ignore[misc] # pyspark is not typed for mypy here
    """`format("nevermore")`; options are those of `SourceOptions`."""

    @classmethod
    def name(cls) -> str:
        """The name used in SQL and `format()`."""
        return FORMAT

    def schema(self) -> st.StructType:
        """All columns of the scan, unless `.schema(...)` chose some."""
        with _without_traceback():
            return spark_schema(SourceOptions.parse(self.options).scan().schema)

    def reader(self, schema: st.StructType) -> "NevermoreReader":
        """A reader of the columns of `schema`. Spark asks once per load: every use of a DataFrame reads one snapshot."""
        prepare_worker()  # here Spark plans, in a worker that it may use again
        with _without_traceback():
            options = SourceOptions.parse(self.options)
            if options.where is None and options.metrics_dir is None:  # `dataframe` gives a folder
                _log.warning(_READS_ALL, options.table)
            return NevermoreReader.plan(options, schema)


@dataclass(frozen=True, slots=True)
class SplitPartition(InputPartition):  # type: ignore[misc]
    """One split, as bytes that only its task unpacks."""

    index: int
    num_splits: int
    split: bytes


@dataclass(eq=False)
class NevermoreReader(DataSourceReader):  # type: ignore[misc]
    """Planned on the driver, reads in tasks; Spark pickles it once for all of its tasks, with what splits share."""

    declared: st.StructType
    metrics_dir: Path | None
    shared: bytes
    splits: list[InputPartition]

    @classmethod
    def plan(cls, options: SourceOptions, schema: st.StructType) -> "NevermoreReader":
        """Plan a scan of the columns that the schema which Spark was given names."""
        scan = options.scan().select(*schema.names)
        _require_same_types(spark_schema(scan.schema), schema)
        plan = scan.plan()
        split_bytes = fair_split_bytes(plan, options.parallelism, plan.context.options.split_bytes)
        splits = tuple(share_row_groups(plan.splits(split_bytes), split_bytes))
        if options.metrics_dir is not None:
            TaskReports(options.metrics_dir).write_plan(plan.metrics, len(splits))
        packed = pack_splits(splits)
        parts = [SplitPartition(index, len(splits), split) for index, split in enumerate(packed.splits)]
        return cls(schema, options.metrics_dir, packed.shared, parts)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "splits": []}

    def partitions(self) -> list[InputPartition]:
        """One partition per split."""
        return list(self.splits)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one split, conformed to the declared schema."""
        if not isinstance(partition, SplitPartition):
            return  # Spark makes one empty partition of an empty list
        prepare_worker()
        target = arrow_schema_of(self.declared)
        split = unpack_split(self.shared, partition.split)
        split = replace(split, context=with_shared_indexes(split.context))
        metrics = ScanMetrics(fallbacks=is_missed())
        try:
            with _without_traceback():
                for batch in read_split(split, metrics):
                    yield conform(batch, target)
        finally:
            task = TaskContext.get()
            if self.metrics_dir is not None and task is not None:
                reports = TaskReports(self.metrics_dir)
                try:
                    reports.write_task(task.stageId(), partition.index, metrics, partition.num_splits)
                except UnsafeFileError as error:  # another user who creates that folder first must not stop the query
                    _log.warning("the report of a task is missing: %s", error)


def fair_split_bytes(plan: "ScanPlan", parallelism: int, most: int) -> int:
    """The target size of splits with which tasks keep every core busy and are worth their start-up.

    Many small files weigh more than they have bytes; only `most` stored bytes are put into a split, whatever they weigh.
    """
    num_splits = SPLITS_PER_CORE * parallelism
    weight = plan.total_weight if len(plan.tasks) > num_splits * MIN_SMALL_FILES else plan.total_bytes
    fair = math.ceil(_SLACK * weight / num_splits)
    return max(MIN_SPLIT_BYTES, min(most * weight // max(plan.total_bytes, 1), fair))


@contextmanager
def _without_traceback() -> Iterator[None]:
    """Let Spark's message of an error begin with what the error says: a Python worker asks this variable, and then ends."""
    try:
        yield
    except ScanError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


def _require_same_types(table: st.StructType, declared: st.StructType) -> None:
    for have, want in zip(table, declared, strict=True):
        if have.dataType.simpleString() != want.dataType.simpleString():
            raise OptionError(
                f"column {want.name!r} is {have.dataType.simpleString()}, the schema given to Spark says "
                f"{want.dataType.simpleString()}"
            )


_ARCHIVES_OF_SPARK = ("pyspark.zip", "py4j-*.zip", "spark-core_*.jar")


def prepare_worker() -> None:
    """Spare the next tasks of this worker what Spark does around each task; called at the start of a task.

    - Before each task a worker calls `importlib.invalidate_caches()`, for which Python up to 3.12 reads the directory of every
      archive on the path at once. Those of PySpark and of Spark's jar hold thousands of names, a fifth of a second a task,
      and never change while a worker lives. Other archives are read again.
    - After each task a worker collects garbage, for which Python visits every object of every module: a third of a second and more
      with ours. What the modules have made is excluded.
    """
    for finder in sys.path_importer_cache.values():  # one for each package of an archive, all of which read the whole
        if isinstance(finder, zipimporter) and any(
            fnmatch(PurePath(finder.archive).name, x) for x in _ARCHIVES_OF_SPARK
        ):
            setattr(finder, "invalidate_caches", _keep)  # noqa: B010 - mypy knows that it is a method
    main = getattr(sys.modules["__main__"], "__spec__", None)
    if "pyspark.daemon" in sys.modules or (main is not None and main.name == "pyspark.daemon"):
        _freeze_imports(len(sys.modules))


@cache
def _freeze_imports(_num_modules: int) -> None:
    """Exclude all objects from garbage collection, once more only after further imports, as garbage would stay with them."""
    gc.freeze()


def _keep() -> None:
    """Do nothing: the archives need not be read again."""
