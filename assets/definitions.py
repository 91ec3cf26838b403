"""What `dagster dev` loads: definitions built from one nevermore.yaml.

Found through NEVERMORE_CONFIG, else ./nevermore.yaml, else the demo project. Without any, Dagster still starts and
says what to do; a config that is there but wrong is an error with its line.
"""

import os
from pathlib import Path

import dagster as dg

from assets.jobs import check_job, check_schedule, ingest_job, ingest_schedule, jobs_by_time, publish_schedules
from assets.mirrors import change_log_assets, mirror_asset
from assets.project import Project, mirror_key
from assets.published import partitions_of, publish_after_ingest, publish_job, published_asset
from checks.asset_checks import mirror_asset_checks
from pipelines.config.project import Config, load
from pipelines.iceberg.catalog import open_catalog
from pipelines.ingest.feed_run import sources
from pipelines.ingest.table_patterns import expanded

CONFIG_VARIABLE = "NEVERMORE_CONFIG"
SPARK_VARIABLE = "NEVERMORE_SPARK_MASTER"
CANDIDATES = (Path("nevermore.yaml"), Path("demo/nevermore.yaml"))


def project_definitions(config: Config) -> dg.Definitions:
    """Assets, checks, jobs and schedules of one project; of patterns for tables those that are known by now."""
    if config.patterns:
        config = expanded(config, open_catalog(config)).model_copy(update={"patterns": {}})
    refresh = publish_job(config)
    assets = [
        *(change_log_assets(tables, config) for tables in sources(config)),
        *(mirror_asset(table, config) for table in config.tables),
        *(published_asset(name, config, partitions_of(name, config.published)) for name in config.published),
    ]
    mirror_checks = [mirror_asset_checks(table, mirror_key(table), config) for table in config.tables]
    check_all = check_job(mirror_checks)
    return dg.Definitions(
        assets=assets,
        asset_checks=mirror_checks,
        jobs=[ingest_job, check_all, *jobs_by_time(config.published), *([refresh] if refresh else [])],
        schedules=[
            ingest_schedule(config.ingest_schedule),
            check_schedule(check_all),
            *publish_schedules(config.published),
        ],
        sensors=[publish_after_ingest(refresh)] if refresh else [],
        executor=dg.in_process_executor,  # one Spark session per run, not one per step
        resources={"project": Project(config_path=str(config.path), spark_master=os.environ.get(SPARK_VARIABLE))},
    )


def find_config() -> Path | None:
    """The nevermore.yaml to load; None if there is none."""
    named = os.environ.get(CONFIG_VARIABLE)
    if named:
        return Path(named)
    return next((path for path in CANDIDATES if path.is_file()), None)


def load_definitions() -> dg.Definitions:
    """The definitions of the config that is found, or one asset that says how to get a config.

    Raises:
        ConfigError: the config is invalid, or NEVERMORE_CONFIG names no file.
    """
    path = find_config()
    if path is not None:
        return project_definitions(load(path))
    message = (
        f"No nevermore.yaml in {Path.cwd()}. Run `nevermore init` (or `nevermore demo`) there, or set {CONFIG_VARIABLE}"
        " to a config file, then reload this code location."
    )
    dg.get_dagster_logger().warning(message)
    return dg.Definitions(assets=[dg.AssetSpec("no_config_found", description=message, group_name="start_here")])


defs = load_definitions()
