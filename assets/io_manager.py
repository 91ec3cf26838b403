"""An IO manager for assets of a user's own project: loads tables of a nevermore.yaml, and stores DataFrames in them by key."""

from collections.abc import Callable
from datetime import UTC
from typing import Any, Literal

import dagster as dg

from nevermore.assets.metadata import mirror_metadata
from nevermore.assets.project import MIRRORS, PUBLISHED
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.ingest.project import open_project
from nevermore.scan_core.polars import scan_iceberg


class NevermoreIOManager(dg.ConfigurableIOManager):
    """Loads inputs from tables of a project, and stores outputs in them, as changes like all others.

    The table of an asset is named by its metadata `dagster/table_name`, or by its key: `mirror/shop/orders` and `shop/orders`
    are `shop.orders`. An input is loaded as its annotation says: a DataFrame of pandas, Polars or Spark, a LazyFrame, an Arrow table
    or `RecordBatchReader`, a relation of DuckDB, or a `Scan`, which reads nothing yet; without annotation, an Arrow table.

    Metadata of an input, or of its asset: `columns` and `where` select what is read. `partition_expr` of a partitioned asset,
    or of the input of one if it has no partitions itself, is the column, or SQL, whose values are in a partition: keys, or times
    in UTC. `mode` of an asset overrides that below.

    Example: `dg.Definitions(assets=[...], resources={"io_manager": NevermoreIOManager(config_path="nevermore.yaml")})`

    Attributes:
        config_path: the nevermore.yaml.
        mode: how outputs are stored: `upsert` by key, `append` to a table without a key, or `replace`: the rows of the
            partitions, of an asset without partitions all rows, become exactly these.
    """

    config_path: str
    mode: Literal["upsert", "append", "replace"] = "upsert"

    def load_input(self, context: dg.InputContext) -> Any:
        """The rows of a table.

        Raises:
            ConfigError: partitions without `partition_expr`, or an annotation that is none of those above.
            ScanError: there is no such table or column, or it cannot be read.
        """
        project = open_project(self.config_path)
        made = context.upstream_output
        metadata = {**(made.definition_metadata if made else {}), **context.definition_metadata}
        name = _table(context, metadata)
        scan = project.scan(name)
        if columns := metadata.get("columns"):
            scan = scan.select(columns)
        if where := metadata.get("where"):
            scan = scan.where(where)
        if context.has_asset_partitions:
            scan = scan.where(_partitions(context, name, metadata))
        # a table without partitions, such as a mirror, in a step that has some
        elif "partition_expr" in metadata and (step := context._step_context) and step.entity_partitions_def:  # noqa: SLF001
            of_step = dg.build_input_context(
                asset_partitions_def=step.entity_partitions_def,
                asset_partition_key_range=step.partition_key_range,
                instance=context.instance,
            )
            scan = scan.where(_partitions(of_step, name, metadata))

        def in_spark() -> Any:
            from nevermore.pipelines.spark.session import project_session
            from nevermore.scan_core.spark import dataframe

            return dataframe(project_session(project.config.spark), scan)

        loaders: dict[str, Callable[[], Any]] = {
            "typing.Any": scan.to_table,
            "pyarrow.Table": scan.to_table,
            "pyarrow.RecordBatchReader": scan.to_reader,
            "pandas.DataFrame": scan.to_pandas,
            "polars.DataFrame": scan.to_polars,
            "polars.LazyFrame": lambda: scan_iceberg(scan),
            "duckdb.DuckDBPyRelation": lambda: scan.to_duckdb(name.rpartition(".")[2]),
            "pyspark.DataFrame": in_spark,
            "nevermore.Scan": lambda: scan,
        }
        kind = context.dagster_type.typing_type
        wanted = f"{kind.__module__.lstrip('_').partition('.')[0]}.{kind.__name__}"
        if wanted not in loaders:
            raise ConfigError(f"{name} cannot be loaded as {wanted}: annotate the input as one of {', '.join(loaders)}")
        return loaders[wanted]()

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Store rows in a table of `source: {type: python}`, in one commit; a retry of a step appends nothing twice.

        Raises:
            ConfigError: no such table, one that is filled from another source, or partitions without `partition_expr`.
            SourceError: rows that do not fit the table, or its partition; nothing was written.
        """
        if obj is None:
            raise ConfigError(f"{context.step_key} returned None: annotate it with -> None if it has no rows")
        project = open_project(self.config_path)
        metadata = context.definition_metadata
        name = _table(context, metadata)
        match metadata.get("mode", self.mode):
            case "upsert":
                report = project.upsert(name, obj)
            case "append":
                keys = context.asset_partition_keys if context.has_asset_partitions else []
                report = project.append(name, obj, batch_id=" ".join([context.run_id, context.step_key, *keys]))
            case "replace":
                where = _partitions(context, name, metadata) if context.has_asset_partitions else "true"
                report = project.replace(name, obj, where)
            case unknown:
                raise ConfigError(f"{name}: mode is {unknown!r}, not upsert, append or replace")
        context.add_output_metadata(mirror_metadata(project.config, report))


def _table(context: dg.InputContext | dg.OutputContext, metadata: Any) -> str:
    """The table of an asset."""
    if not context.has_asset_key:
        raise ConfigError(
            f"{context.name} of {context.op_def.name} belongs to no asset, whose key names a table: in a job of ops, take a"
            " NevermoreResource and call its upsert or scan, and leave the IO manager to assets"
        )
    key = context.asset_key
    path = key.path[1:] if key.path[0] in {MIRRORS, PUBLISHED} else key.path
    return str(metadata.get("dagster/table_name", ".".join(path)))


def _partitions(context: dg.InputContext | dg.OutputContext, name: str, metadata: Any) -> str:
    """A filter for the rows of the partitions of an asset."""
    column, partitions = metadata.get("partition_expr"), context.asset_partitions_def
    if not isinstance(column, str) or isinstance(partitions, dg.MultiPartitionsDefinition):
        raise ConfigError(
            f"{name}: rows of partitions are found by metadata of the asset, {{'partition_expr': 'COLUMN'}}, if it has one dimension"
        )
    if not isinstance(partitions, dg.TimeWindowPartitionsDefinition):
        keys = ", ".join("'" + key.replace("'", "''") + "'" for key in context.asset_partition_keys)
        return f"({column}) in ({keys})"
    window = context.asset_partitions_time_window
    if window.start.utcoffset():
        raise ConfigError(
            f"{name}: partitions of {partitions.timezone} are not those of UTC, in which times are compared"
        )
    start, end = (f"timestamp '{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}'" for moment in window)
    return f"({column}) >= {start} and ({column}) < {end}"
