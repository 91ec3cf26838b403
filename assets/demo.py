"""The demo project, a week of a small shop. It runs in this process, with the same Dagster jobs that the UI shows.

On the fifth day a script of someone else appends rows of deleted customers to the mirror: a check fails, and the mirror is
rolled back. The UI shows the failed run, and `nevermore why` still explains it. From that day on, an expectation about e-mail
addresses warns. Scans of orders become slow, and a compaction mends that on the sixth day.
"""

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import dagster as dg
import pyarrow.compute as pc
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run
from dagster._core.execution.job_execution_result import JobExecutionResult
from dagster._core.remote_origin import (
    ManagedGrpcPythonEnvCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin

from nevermore.assets.jobs import CHECK_JOB, COMPACT_JOB, DAILY_JOB, INGEST_JOB
from nevermore.assets.project import mirror_key, published_key
from nevermore.pipelines.config.document import dagster_home, project_name, workspace
from nevermore.pipelines.config.project import Config, load
from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.maintain.rollback import roll_back
from nevermore.pipelines.publish.audit import CheckResult
from nevermore.pipelines.simulate import SimulatedFile, simulate
from nevermore.pipelines.wording import counted
from nevermore.scan_core import open_table
from nevermore.scan_core.io import write_whole

ORDERS_DAILY = "shop.orders_daily"
CUSTOMERS = "shop.customers"
DAYS = 7
DAY_OF_THE_STORY = 5
DAY_OF_COMPACTION = 6
RESTORED = 3
"""Deleted customers that the script of the story brings back."""

_CONFIG = """\
# The demo's shop. `nevermore init` writes a config for your own tables, with every option explained.

catalog:
  type: sql
  uri: sqlite:///warehouse/catalog.db
  warehouse: warehouse

tables:
  shop.customers:
    description: Customers of the shop, as they are now.
    owners: [team:shop]
    source: {type: files, path: "landing/customers/*.jsonl", format: debezium-json}
    key: [id]
    types: {credit: "decimal(10, 2)", updated_at: timestamptz}
    column_descriptions:
      id: Number of the customer; changes when accounts are merged.
      name: Name on invoices.
      email: Address for messages; empty if the customer gave none.
      city: City of the invoice address.
      credit: Limit for open invoices, in euros.
      updated_at: Time of the last change in the shop.
    checks:
      expectations:                      # since the fifth day it warns; `nevermore docs` writes pages about it
        - expect_column_values_to_match_regex: {column: email, regex: "^[^@ ]+@[^@ ]+$"}
          severity: warn

  shop.orders:                           # partitioned by a column that is no part of the key
    description: Orders of the shop, as they are now.
    owners: [team:shop]
    source: {type: files, path: "landing/orders/*.jsonl", format: debezium-json}
    key: [id]
    deletes: equality                    # as Flink leaves them; without this line, every engine reads the table
    types: {amount: "decimal(12, 2)", ordered_at: timestamptz}
    partition_by: ["day(ordered_at)"]
    column_descriptions:
      id: Number of the order.
      customer_id: Customer who ordered.
      status: new, paid, packed, shipped or returned.
      amount: Total with taxes, in euros.
      note: What the customer wrote.
      ordered_at: Time of the order.

  shop.order_lines:                      # a key of two columns
    description: The lines of all orders, as they are now.
    owners: [team:shop]
    source: {type: files, path: "landing/order_lines/*.jsonl", format: debezium-json}
    key: [order_id, line_no]
    types: {price: "decimal(10, 2)", quantity: int}
    column_descriptions:
      order_id: Order that the line belongs to.
      line_no: Number of the line within its order.
      product: What was ordered.
      quantity: How many of it.
      price: Price of one, in euros.
      gift: Whether it is wrapped as a gift; empty if nobody asked.

published:
  shop.orders_daily:
    description: Orders and revenue by day and city.
    owners: [team:sales]
    column_descriptions:
      day: Day of the order, in UTC.
      city: City of the customer; `unknown` without one.
      orders: Number of orders.
      order_lines: Number of their lines.
      revenue: Quantities times prices, in euros.
    partition: day
    start: "{first_day}"
    sql: >
      select cast(o.ordered_at as date) as day,
             coalesce(c.city, 'unknown') as city,
             count(distinct o.id) as orders,
             count(l.line_no) as order_lines,
             cast(coalesce(sum(l.quantity * l.price), 0) as decimal(18, 2)) as revenue
      from shop.orders o
      left join shop.customers c on c.id = o.customer_id
      left join shop.order_lines l on l.order_id = o.id
      group by 1, 2
"""


def write_demo_config(folder: Path, first_day: date) -> Path:
    """Write the demo's nevermore.yaml to `folder` unless it exists; the user may have changed it.

    Args:
        folder: folder of the project.
        first_day: day of the first simulated orders, and first partition of the published table.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "nevermore.yaml"
    if not path.exists():
        write_whole(folder / "workspace.yaml", workspace(folder))
        write_whole(path, _CONFIG.replace("{first_day}", str(first_day)))
    return path


@dataclass(frozen=True, slots=True)
class Story:
    """A check that failed during the demo, and how it was mended.

    Attributes:
        failed: names of the checks that failed.
        key: `id=17`, one of the deleted keys that were in the table again.
        snapshot_id: the snapshot with these rows.
        repaired_to: the snapshot to which the mirror was rolled back.
        run_id: the Dagster run in which the checks failed.
    """

    failed: tuple[str, ...]
    key: str
    snapshot_id: int
    repaired_to: int
    run_id: str

    @property
    def why(self) -> str:
        """The command that explains it."""
        return f"nevermore why {CUSTOMERS} --key {self.key} --snapshot {self.snapshot_id}"


@dataclass(slots=True)
class DemoReport:
    """What the demo did.

    Attributes:
        simulated: events by table and kind; empty if nothing was simulated.
        has_news: whether an ingest changed a table.
        rows_alive: live rows of each mirror now.
        days: days that were published, in order.
        checks: result by table and check, of the last run that evaluated it; tables in the order of the config.
        ingest_runs: number of runs of the ingest job.
        story: the check that failed in between; None if nothing was simulated.
    """

    simulated: dict[str, Counter[str]] = field(default_factory=dict)
    has_news: bool = False
    rows_alive: dict[str, int] = field(default_factory=dict)
    days: list[str] = field(default_factory=list)
    checks: dict[tuple[str, str], CheckResult] = field(default_factory=dict)
    ingest_runs: int = 0
    story: Story | None = None

    @property
    def found_nothing_new(self) -> bool:
        """Whether no event was new and no day was made."""
        return not self.days and not self.has_news

    @property
    def passed(self) -> bool:
        """Whether every check that blocks passed when it ran last."""
        return not any(check.blocks for check in self.checks.values())


def run_demo(
    folder: Path, *, seed: int, rows: int, say: Callable[[str], None], first_day: date | None = None
) -> DemoReport:
    """Simulate the shop into `folder` unless it exists, ingest batch by batch, publish the days that need it.

    Args:
        folder: folder of the project; created if missing.
        seed: seed of the simulator.
        rows: approximate number of events.
        say: called with a line about each step before it begins.
        first_day: day of the first simulated orders; by default the last batch is of today in UTC, because the backfill
            dialog of Dagster's UI begins there.

    Raises:
        dagster.DagsterError: a run failed; a failed blocking check is one.
        ValueError: too few rows.
    """
    if first_day is None:
        first_day = datetime.now(UTC).date() - timedelta(days=DAYS - 1)
    config_path = write_demo_config(folder, first_day).resolve()
    config = load(config_path)
    os.environ["DAGSTER_HOME"] = str(dagster_home(folder))
    os.environ["NEVERMORE_CONFIG"] = str(config_path)
    from nevermore.assets.definitions import project_definitions

    jobs = project_definitions(config)
    report = DemoReport()
    landing = folder / "landing"
    feed = simulate(landing, seed=seed, rows=rows, batches=DAYS, first_day=first_day)
    with dg.DagsterInstance.get() as instance:
        for day in _batches(landing, feed, report, say):
            say("Dagster: ingest_job (change logs, mirrors, checks)")
            result = _run(jobs, instance, INGEST_JOB)
            report.ingest_runs += 1
            report.has_news |= bool(result.get_asset_materialization_events())
            _add_checks(result, report)
            if day == DAY_OF_THE_STORY:
                report.story = _story(jobs, instance, config, say)
            if day == DAY_OF_COMPACTION:
                say("Dagster: compact_job (tables whose scans have become slow)")
                _run(jobs, instance, COMPACT_JOB)
        report.days = _days_to_publish(config, instance, report)
        if report.days:
            say(f"Dagster: daily_job ({report.days[0]} to {report.days[-1]}, Spark)")
            tags = {
                "dagster/asset_partition_range_start": report.days[0],
                "dagster/asset_partition_range_end": report.days[-1],
            }
            _add_checks(_run(jobs, instance, DAILY_JOB, tags), report)
    for name in config.tables:
        report.rows_alive[name] = open_table(find_table(open_catalog(config), name)).scan().count()
    order = [*config.tables, *config.published]
    report.checks = dict(sorted(report.checks.items(), key=lambda check: order.index(check[0][0])))
    return report


def _run(
    jobs: dg.Definitions,
    instance: dg.DagsterInstance,
    name: str,
    tags: Mapping[str, str] | None = None,
    *,
    may_fail: bool = False,
) -> JobExecutionResult:
    """Run a job in this process, recorded as if the code location that `nevermore ui` loads had run it.

    Without its origin, Dagster's timeline and the pages of the jobs would not show the run.
    """
    job = jobs.resolve_job_def(name)
    target = LoadableTargetOrigin(executable_path=sys.executable, module_name="nevermore.assets.definitions")
    location = ManagedGrpcPythonEnvCodeLocationOrigin(
        target, location_name=project_name(Path(instance.root_directory).parent)
    )
    repository = RemoteRepositoryOrigin(location, jobs.get_repository_def().name)
    quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    run = instance.create_run_for_job(
        job_def=job, run_config=quiet, tags=tags, remote_job_origin=RemoteJobOrigin(repository, name)
    )
    return execute_run(InMemoryJob(job), run, instance, raise_on_error=not may_fail)


def _story(jobs: dg.Definitions, instance: dg.DagsterInstance, config: Config, say: Callable[[str], None]) -> Story:
    """Bring deleted customers back as a script would that knows nothing of the change log; check, and roll back."""
    table = find_table(open_catalog(config), CUSTOMERS)
    if table is None:
        raise SourceError(f"{CUSTOMERS} does not exist after an ingest")
    mirror = open_table(table)
    last, *_, first = mirror.metadata.ancestors(mirror.metadata.current_snapshot_id or 0)
    of_first_day = mirror.scan().as_of_snapshot(first.snapshot_id).to_table()
    is_alive = pc.is_in(of_first_day["id"], mirror.scan().select("id").to_table()["id"])
    gone = of_first_day.filter(pc.invert(is_alive)).sort_by("id").slice(0, RESTORED)
    say(f"A script that knows nothing of the change log appends {gone.num_rows} deleted customers to {CUSTOMERS}")
    table.append(gone.cast(table.schema().as_arrow()))
    damaged = open_table(table).metadata.current_snapshot_id

    say("Dagster: check_job (compares mirrors, change logs and files)")
    tags = {"nevermore/story": "a script appended deleted customers"}
    result = _run(jobs, instance, CHECK_JOB, tags, may_fail=True)
    failed = sorted(
        {
            c.check_name
            for c in result.get_asset_check_evaluations()
            if c.severity == dg.AssetCheckSeverity.ERROR and not c.passed
        }
    )

    say(f"{' and '.join(failed)} failed: nevermore rollback {CUSTOMERS} --to {last.snapshot_id}")
    done = roll_back(open_catalog(config), config, CUSTOMERS, snapshot_id=last.snapshot_id)
    instance.report_runless_asset_event(
        dg.AssetObservation(
            mirror_key(CUSTOMERS),
            description="Rolled back: a script had appended deleted customers.",
            metadata={"snapshot id": str(done.snapshot_id), "snapshots undone": len(done.undone)},
        )
    )
    return Story(tuple(failed), f"id={gone['id'][0].as_py()}", damaged or 0, done.snapshot_id, result.run_id)


def _batches(
    landing: Path, feed: Iterable[list[SimulatedFile]], report: DemoReport, say: Callable[[str], None]
) -> Iterator[int | None]:
    """Yield the number of each day after its batch has landed; None if an earlier run landed everything."""
    if landing.exists():
        say(f"{landing} exists: nothing is simulated")
        yield None
        return
    for day, landed in enumerate(feed, 1):
        events = sum(sum(file.events.values()) for file in landed)
        say(f"Simulated {counted(events, 'event')} into {landing}/*/{landed[0].path.name}")
        for file in landed:
            report.simulated.setdefault(file.table, Counter()).update(file.events)
        yield day


def _days_to_publish(config: Config, instance: dg.DagsterInstance, report: DemoReport) -> list[str]:
    """All days with orders if a table changed or a day was never published; otherwise none."""
    orders = find_table(open_catalog(config), "shop.orders")
    moments = open_table(orders).scan().select("ordered_at").to_table()["ordered_at"]
    days = sorted({str(day) for day in pc.unique(moments.cast("date32")).to_pylist() if day is not None})
    made = instance.get_materialized_partitions(published_key(ORDERS_DAILY))
    return days if report.has_news or not made.issuperset(days) else []


def _add_checks(result: JobExecutionResult, report: DemoReport) -> None:
    for check in result.get_asset_check_evaluations():
        table = ".".join(check.asset_key.path[1:])
        report.checks[table, check.check_name] = CheckResult(
            check.check_name,
            check.passed,
            {
                name: value.value or 0
                for name, value in check.metadata.items()
                if isinstance(value, dg.IntMetadataValue)
            },
            severity="block" if check.severity == dg.AssetCheckSeverity.ERROR else "warn",
            table=table,
        )
