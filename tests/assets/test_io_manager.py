"""A Dagster project that somebody else wrote, with our resource and IO manager in it."""

import datetime as dt
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import yaml

from nevermore import open_project
from nevermore.assets import NevermoreIOManager, NevermoreResource, load_project, sensors
from nevermore.assets.jobs import INGEST_JOB
from nevermore.assets.project import change_log_key, mirror_key, published_key
from nevermore.pipelines.errors import ConfigError, SourceError
from nevermore.scan_core import Scan

SOURCE = {"source": {"type": "python"}}
TABLES = {
    "shop.prices": {**SOURCE, "key": ["id"]},
    "shop.sales": {**SOURCE, "key": ["id"], "partition_by": ["day"]},
    "shop.visits": {**SOURCE, "identity": "full"},
}
DAYS = dg.DailyPartitionsDefinition("2026-11-27", end_date="2026-11-29")
PRICES = [{"id": n, "price": n * 1.5, "city": "Oslo" if n % 2 else "O'Hare"} for n in range(4)]
pytestmark = pytest.mark.filterwarnings("ignore::dagster_shared.utils.warnings.BetaWarning")


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = tmp_path / "nevermore.yaml"
    path.write_text(yaml.safe_dump({"tables": TABLES}))
    return str(path)


def run(path: str, *assets: Any, mode: str = "upsert", **options: Any) -> dg.ExecuteInProcessResult:
    resources = {"io_manager": NevermoreIOManager(config_path=path, mode=mode)}
    return dg.materialize(list(assets), resources=resources, **options)


def prices_of(path: str) -> list[dict[str, Any]]:
    return open_project(path).scan("shop.prices").to_table().sort_by("id").to_pylist()  # type: ignore[no-any-return]


@dg.asset(key_prefix="shop")
def prices() -> pa.Table:
    return pa.Table.from_pylist(PRICES)


LOADED: dict[str, tuple[Any, Any]] = {
    "arrow": (pa.Table, pa.Table.to_pylist),
    "reader": (pa.RecordBatchReader, lambda reader: reader.read_all().to_pylist()),
    "pandas": (pd.DataFrame, lambda frame: frame.to_dict("records")),
    "polars": (pl.DataFrame, pl.DataFrame.to_dicts),
    "lazy": (pl.LazyFrame, lambda frame: frame.collect().to_dicts()),
    "duckdb": (duckdb.DuckDBPyRelation, lambda relation: relation.to_arrow_table().to_pylist()),
    "scan": (Scan, lambda scan: scan.to_table().to_pylist()),
    "nothing": (Any, pa.Table.to_pylist),
}


@pytest.mark.each(8)
@pytest.mark.parametrize("kind", LOADED)
def test_an_input_is_loaded_as_its_annotation_says_with_columns_and_filter_pushed_down(path: str, kind: str) -> None:
    annotation, rows_of = LOADED[kind]
    found: list[dict[str, Any]] = []

    def use(prices: Any) -> None:
        found.extend(rows_of(prices))

    use.__annotations__["prices"] = annotation
    metadata = {"columns": ["id", "price"], "where": "price > 1.5 and city <> 'Oslo'"}
    used = dg.asset(ins={"prices": dg.AssetIn(key=["shop", "prices"], metadata=metadata)})(use)
    result = run(path, prices, used)
    assert found == [{"id": 2, "price": 3.0}]
    (stored,) = [event for event in result.get_asset_materialization_events() if event.asset_key == prices.key]
    values = {name: value.value for name, value in stored.materialization.metadata.items()}
    assert (values["dagster/row_count"], values["status"]) == (4, "applied")
    assert values["snapshot id"] == str(open_project(path).table("shop.prices").metadata.current_snapshot_id)
    assert [column.name for column in values["dagster/column_schema"].columns] == ["id", "price", "city"]


@pytest.mark.slow
@pytest.mark.spark
def test_an_input_may_be_a_dataframe_of_spark(path: str) -> None:
    from pyspark.sql import DataFrame

    open_project(path).upsert("shop.prices", PRICES)

    def use(prices: Any) -> None:
        assert [row.id for row in prices.where("price < 3").orderBy("id").collect()] == [0, 1]

    use.__annotations__["prices"] = DataFrame
    used = dg.asset(ins={"prices": dg.AssetIn(key=["mirror", "shop", "prices"])})(use)
    assert run(path, dg.AssetSpec(["mirror", "shop", "prices"]), used).success


def test_a_mirror_of_the_merged_definitions_is_an_input_by_its_key(path: str) -> None:
    open_project(path).upsert("shop.prices", PRICES)

    @dg.asset(ins={"prices": dg.AssetIn(key=["mirror", "shop", "prices"])})
    def number(prices: pd.DataFrame) -> None:
        assert len(prices) == 4

    mine = dg.Definitions(assets=[number], resources={"io_manager": NevermoreIOManager(config_path=path)})
    defs = dg.Definitions.merge(mine, load_project(Path(path)))
    dg.Definitions.validate_loadable(defs)
    graph = defs.resolve_asset_graph()
    assert graph.get(number.key).parent_keys == {dg.AssetKey(["mirror", "shop", "prices"])}
    assert defs.resolve_implicit_global_asset_job_def().execute_in_process(asset_selection=[number.key]).success


@pytest.mark.each(2)
@pytest.mark.parametrize(("mode", "ids"), [("upsert", [0, 1, 2, 3]), ("replace", [1, 2])])
def test_the_mode_says_what_becomes_of_other_rows(path: str, mode: str, ids: list[int]) -> None:
    open_project(path).upsert("shop.prices", PRICES)

    @dg.asset(key=["anything"], metadata={"dagster/table_name": "shop.prices", "mode": mode})
    def some() -> pd.DataFrame:
        return pd.DataFrame([{**PRICES[1], "price": 99.0}, PRICES[2]])

    assert run(path, some).success
    assert [row["id"] for row in prices_of(path)] == ids
    assert prices_of(path)[ids.index(1)]["price"] == 99.0


def test_rows_are_appended_once_by_a_step_that_is_retried(path: str) -> None:
    tries = []

    class Failing(NevermoreIOManager):
        def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
            super().handle_output(context, obj)
            tries.append(context.run_id)
            if len(tries) == 1:
                raise dg.RetryRequested

    @dg.asset(key=["shop", "visits"])
    def visits() -> pl.DataFrame:
        return pl.DataFrame({"page": ["/", "/"]})

    for _ in range(2):
        dg.materialize([visits], resources={"io_manager": Failing(config_path=path, mode="append")})
    assert len(tries) == 3
    assert open_project(path).scan("shop.visits").count() == 4


SALES = [{"id": n, "day": dt.date(2026, 11, 27 + n % 2), "kind": "ab"[n % 2]} for n in range(6)]


@pytest.mark.parametrize(
    ("partitions", "column", "key"),
    [(DAYS, "day", "2026-11-28"), (dg.StaticPartitionsDefinition(["a", "b", "it's"]), "kind", "b")],
)
def test_a_partition_is_replaced_and_loaded_alone(path: str, partitions: Any, column: str, key: str) -> None:
    open_project(path).upsert("shop.sales", SALES)
    found: list[int] = []
    given = [SALES[1], {**SALES[1], "id": 7}]

    @dg.asset(key_prefix="shop", partitions_def=partitions, metadata={"partition_expr": column, "mode": "replace"})
    def sales() -> list[dict[str, Any]]:
        return given

    @dg.asset(partitions_def=partitions, ins={"sales": dg.AssetIn(key=["shop", "sales"])})
    def used(sales: pa.Table) -> None:
        found.extend(sales["id"].to_pylist())

    assert run(path, sales, used, partition_key=key).success
    assert sorted(found) == [1, 7]
    assert sorted(open_project(path).scan("shop.sales").to_table()["id"].to_pylist()) == [0, 1, 2, 4, 7]
    given = [SALES[0]]
    with pytest.raises(SourceError, match=r"rows of the data do not match .*such as id = 0"):
        run(path, sales, partition_key=key)


@pytest.mark.each(2)
@pytest.mark.parametrize(
    ("partitions", "column", "tags", "ids"),
    [
        (DAYS, "day", {"dagster/partition": "2026-11-28"}, [1, 3, 5]),
        (dg.StaticPartitionsDefinition(["a", "b"]), "kind", {"dagster/partition": "a"}, [0, 2, 4]),
        (
            dg.DailyPartitionsDefinition("2026-11-26", end_date="2026-11-30"),
            "day",
            {"dagster/asset_partition_range_start": "2026-11-26", "dagster/asset_partition_range_end": "2026-11-27"},
            [0, 2, 4],
        ),
        (None, "day", {}, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_a_partition_reads_its_rows_of_a_table_without_partitions(
    path: str, partitions: Any, column: str, tags: dict[str, str], ids: list[int]
) -> None:
    open_project(path).upsert("shop.sales", SALES)
    found: list[int] = []
    key = dg.AssetKey(["mirror", "shop", "sales"])

    @dg.asset(
        ins={"sales": dg.AssetIn(key=key, metadata={"partition_expr": column})},
        partitions_def=partitions,
        backfill_policy=dg.BackfillPolicy.single_run() if len(tags) > 1 else None,
    )
    def used(sales: pa.Table) -> None:
        found.extend(sales["id"].to_pylist())

    assert run(path, dg.AssetSpec(key), used, tags=tags, partition_key=tags.get("dagster/partition")).success
    assert sorted(found) == ids


def test_a_step_without_partitions_reads_all_rows_in_a_run_with_some(path: str) -> None:
    open_project(path).upsert("shop.sales", SALES)
    found: dict[str, int] = {}
    key = dg.AssetKey(["mirror", "shop", "sales"])
    ins = {"sales": dg.AssetIn(key=key, metadata={"partition_expr": "day"})}

    @dg.asset(ins=ins, partitions_def=DAYS)
    def of_a_day(sales: pa.Table) -> None:
        found["day"] = sales.num_rows

    @dg.asset(ins=ins)
    def whole(sales: pa.Table) -> None:
        found["whole"] = sales.num_rows

    sales = dg.AssetSpec(key, metadata={"partition_expr": "day"})
    assert run(path, sales, of_a_day, whole, partition_key="2026-11-28").success
    assert found == {"day": 3, "whole": 6}
    definitions = dg.Definitions([sales], resources={"io_manager": NevermoreIOManager(config_path=path)})
    with dg.DagsterInstance.ephemeral() as instance:
        assert definitions.load_asset_value(key, instance=instance).num_rows == 6


def test_partitions_that_no_filter_can_find_are_refused(path: str) -> None:
    for partitions, metadata, message in (
        (DAYS, {}, "metadata of the asset"),
        (dg.DailyPartitionsDefinition("2026-11-27", timezone="Europe/Oslo"), {"partition_expr": "day"}, "Europe/Oslo"),
    ):

        @dg.asset(key=["shop", "sales"], partitions_def=partitions, metadata={**metadata, "mode": "replace"})
        def sales() -> list[dict[str, Any]]:
            return SALES

        with pytest.raises(ConfigError, match=message):
            run(path, sales, partition_key="2026-11-28")


def test_what_cannot_be_loaded_or_stored_is_refused(path: str) -> None:
    @dg.asset(ins={"prices": dg.AssetIn(key=["shop", "prices"])})
    def used(prices: dict[str, int]) -> None:
        del prices

    with pytest.raises(ConfigError, match=r"annotate the input as one of .*pandas\.DataFrame"):
        run(path, prices, used)

    @dg.asset(key=["shop", "prices"], metadata={"mode": "merge"})
    def merged() -> pa.Table:
        return pa.Table.from_pylist(PRICES)

    with pytest.raises(ConfigError, match="mode is 'merge', not upsert, append or replace"):
        run(path, merged)

    @dg.asset
    def nothing():  # type: ignore[no-untyped-def]  # noqa: ANN202
        return None

    with pytest.raises(ConfigError, match="nothing returned None: annotate it with -> None"):
        run(path, nothing)


def test_ops_without_assets_are_told_what_to_do(path: str) -> None:
    @dg.op(out=dg.Out(io_manager_key="rows"))
    def make() -> list[dict[str, Any]]:
        return PRICES

    @dg.op(ins={"given": dg.In(dg.Nothing), "prices": dg.In(input_manager_key="rows")})
    def use(prices: pa.Table) -> None:
        del prices

    @dg.op(out=dg.Out(dg.Nothing))
    def start() -> None:
        """Hands over nothing."""

    @dg.op
    def plain() -> list[dict[str, Any]]:
        return PRICES

    @dg.job(resource_defs={"rows": NevermoreIOManager(config_path=path)})
    def storing() -> None:
        make()

    @dg.job(resource_defs={"rows": NevermoreIOManager(config_path=path)})
    def loading() -> None:
        use(given=start(), prices=plain())

    for job, what in ((storing, "result of make"), (loading, "prices of use")):
        with pytest.raises(ConfigError, match=rf"{what}.* no asset.*NevermoreResource.*upsert.*scan"):
            job.execute_in_process()


def test_the_resource_reads_and_writes(path: str) -> None:
    @dg.asset
    def job(shop: NevermoreResource) -> None:
        shop.upsert("shop.prices", PRICES, batch_id="1")
        shop.delete("shop.prices", [{"id": 0}])
        assert shop.replace("shop.prices", PRICES[:2], where="id < 2").events == {"u": 1}
        assert shop.scan("shop.prices").count() == 4
        assert shop.duckdb().execute("select count(*) from shop.prices").fetchall() == [(4,)]

    assert dg.materialize([job], resources={"shop": NevermoreResource(config_path=path)}).success


@pytest.mark.each(6)
@pytest.mark.parametrize("kind", ["returns rows", "upserts"])
@pytest.mark.parametrize("key", ["mirror/shop/prices", "shop/prices", "finance/price_list"])
def test_an_asset_of_the_user_and_the_mirror_that_it_fills_are_one(path: str, key: str, kind: str) -> None:
    own, log = dg.AssetKey.from_user_string(key), change_log_key("shop.prices")
    entry = {"source": {"type": "python", "asset": key}, "key": ["id"]}
    published = {"shop.cities": {"sql": "select city, sum(price) as price from shop.prices group by city"}}
    tables = {"shop.prices": entry, "shop.visits": TABLES["shop.visits"]}
    Path(path).write_text(yaml.safe_dump({"tables": tables, "published": published}))

    @dg.asset(key=own, metadata={"dagster/table_name": "shop.prices"})
    def returning() -> list[dict[str, Any]]:
        return PRICES

    @dg.asset(key=own)
    def upserting(project: NevermoreResource) -> None:
        project.upsert("shop.prices", PRICES)

    mine = dg.Definitions(
        assets=[returning if kind == "returns rows" else upserting],
        resources={"io_manager": NevermoreIOManager(config_path=path)},
    )
    defs = dg.Definitions.merge(mine, load_project(Path(path)))
    dg.Definitions.validate_loadable(defs)
    graph = defs.resolve_asset_graph()
    assert graph.get(own).is_executable
    assert graph.get(own).child_keys == {log, published_key("shop.cities")}
    assert not graph.get(log).is_executable
    checks = {check.name for check in graph.get(own).check_keys}
    assert {"no_deleted_row_reappears", "mirror_equals_reference"} <= checks
    others = {change_log_key("shop.visits"), mirror_key("shop.visits"), published_key("shop.cities")}
    assert graph.get_all_asset_keys() == {own, log, *others}
    job = defs.resolve_job_def(INGEST_JOB)
    assert job.asset_layer.executable_asset_keys == others - {published_key("shop.cities")}

    with dg.DagsterInstance.ephemeral() as instance:

        def tick(name: str) -> dg.SensorResult:
            resources = dict(defs.resources or {})
            repository = defs.get_repository_def()
            context = dg.build_sensor_context(instance=instance, resources=resources, repository_def=repository)
            return defs.resolve_sensor_def(name)(context)  # type: ignore[return-value]

        assert not tick(sensors.SENSOR).run_requests  # nothing is new in a program that did not run
        everything = defs.resolve_implicit_global_asset_job_def()
        done = everything.execute_in_process(asset_selection=[own], instance=instance)
        found = {check.check_name: check.passed for check in done.get_asset_check_evaluations()}
        assert found == dict.fromkeys(checks, True)
        (made,) = done.get_asset_materialization_events()
        assert (
            "dagster/column_lineage" not in made.materialization.metadata
        )  # it says itself where its columns come from
        outside = tick(sensors.OUTSIDE_SENSOR).asset_events
        assert [event.asset_key for event in outside if isinstance(event, dg.AssetMaterialization)] == [log]


FOREIGN = """
from pathlib import Path
import dagster as dg
import pandas as pd
from nevermore.assets import NevermoreIOManager, load_project

@dg.asset(ins={"prices": dg.AssetIn(key=["mirror", "shop", "prices"])})
def report(prices: pd.DataFrame) -> None:
    print(len(prices))

defs = dg.Definitions.merge(
    dg.Definitions(assets=[report], resources={"io_manager": NevermoreIOManager(config_path="nevermore.yaml")}),
    load_project(Path("nevermore.yaml")),
)
"""


def test_definitions_of_somebody_elses_project_are_valid(path: str) -> None:
    folder = Path(path).parent
    (folder / "definitions.py").write_text(FOREIGN)
    command = [sys.executable, "-m", "dagster", "definitions", "validate", "-f", "definitions.py"]
    # not what a Spark session of this process has set for its workers: with PYTHONSAFEPATH, Dagster forgets the first folder
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
