"""Jobs, and the schedules that start them.

A schedule runs by default only where the config names a time. The steps of a run work side by side in threads of one process, and
again if their failure passes by itself. Threads share one Spark session, and load the definitions once; a process for each step
would start a JVM each. What takes time (Arrow, DuckDB, compiled kernels, waiting for Spark) lets other threads run meanwhile. Runs
whose process died are retried by the instance, see `.dagster/dagster.yaml`.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import NoReturn

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from dagster._core.errors import DagsterExecutionInterruptedError
from dagster._core.events import EngineEventData
from dagster._core.execution.api import ExecuteRunWithPlanIterable
from dagster._core.execution.compute_logs import create_compute_log_file_key
from dagster._core.execution.context.system import (
    PlanExecutionContext,
    PlanOrchestrationContext,
    StepExecutionContext,
)
from dagster._core.execution.context_creation_job import PlanExecutionContextManager
from dagster._core.execution.plan.active import ActiveExecution
from dagster._core.execution.plan.execute_plan import dagster_event_sequence_for_step
from dagster._core.execution.plan.instance_concurrency_context import InstanceConcurrencyContext
from dagster._core.execution.plan.plan import ExecutionPlan
from dagster._core.execution.retries import RetryMode
from dagster._core.executor.base import Executor
from dagster._utils.error import serializable_error_info_from_exc_info

from nevermore.assets.launcher import hold
from nevermore.assets.project import NevermoreResource, published_key, table_pool
from nevermore.checks.asset_checks import fail, leave_run_failed
from nevermore.checks.equality import difference_of_base
from nevermore.pipelines.config.project import Config
from nevermore.pipelines.config.published import FORMATS, PublishedConfig, Unit
from nevermore.pipelines.errors import PipelineError
from nevermore.pipelines.iceberg.checked_catalog import open_existing
from nevermore.pipelines.iceberg.commit import is_transient
from nevermore.pipelines.maintain.compact import compact_mirror, tables_of
from nevermore.pipelines.maintain.log_base import MIN_SHARE, trim_logs
from nevermore.pipelines.maintain.orphans import orphans_of_all
from nevermore.pipelines.maintain.retention import expire_all
from nevermore.pipelines.publish.audit import CheckFailedError
from nevermore.scan_core import ScanError

INGEST_JOB = "ingest_job"
DAILY_JOB = "daily_job"
PUBLISH_JOB = "publish_job"
CHECK_JOB = "check_job"
COMPACT_JOB = "compact_job"
RETENTION_JOB = "retention_job"
JOBS_BY_UNIT: Mapping[Unit, str] = {
    "hour": "hourly_job",
    "day": DAILY_JOB,
    "month": "monthly_job",
    "year": "yearly_job",
}
"""Assets of one job share their partitions, so there is one job per unit of time."""


TRIGGER = "nevermore/trigger"
"""Tag of runs: what started them."""
POLL_SECONDS = 0.5
"""How often the run looks for an interrupt, and for slots of pools, while steps work."""


@dg.op(
    name="expire_snapshots_and_delete_orphans",
    description="Expire old snapshots of all tables, trim their change logs, and delete the files that nothing names.",
)
def maintain(context: dg.OpExecutionContext, project: NevermoreResource) -> None:
    """Expire snapshots, trim change logs and delete orphan files of all tables of the config, as its `maintenance` says.

    Raises:
        StepFailedError: with the error of every table that failed; the others were processed.
    """
    config = project.config()
    catalog = open_existing(config)
    expired = list(expire_all(catalog, config, show=context.log.debug))
    trimmed = list(trim_logs(catalog, config, difference_of_base, min_share=MIN_SHARE, show=context.log.debug))
    removed = list(orphans_of_all(catalog, config, delete=True, show=context.log.debug))
    errors = [
        *((done.table, done.error) for done in expired),
        *((done.log, done.error) for done in trimmed),
        *((done.table, done.error) for done in removed),
    ]
    failed = {table: error for table, error in errors if error is not None}
    context.add_output_metadata(
        {
            "snapshots expired": sum(len(done.expired) for done in expired),
            "files deleted": sum(sum(done.files.values()) for done in expired),
            "bytes deleted": sum(done.deleted_bytes for done in expired),
            "changes replaced in logs": sum(done.replaced - done.base for done in trimmed if done.base is not None),
            "orphan files deleted": sum(len(done.files) for done in removed),
            "orphan bytes deleted": sum(done.orphan_bytes for done in removed),
        }
    )
    if failed:
        fail(context, "; ".join(f"{table}: {error}" for table, error in failed.items()))


@dg.job(name=RETENTION_JOB, description="Expire old snapshots of all tables and delete the files that nothing names.")
def retention_job() -> None:
    """Run `maintain`."""
    maintain()


def check_job(checks: Sequence[dg.AssetChecksDefinition], name: str, other: str) -> UnresolvedAssetJobDefinition:
    """Checks of all mirrors, over all of their rows."""
    return dg.define_asset_job(
        name, selection=dg.AssetSelection.checks(*checks), description=f"Compare all rows of all mirrors with {other}."
    )


def compact_job(tables: Sequence[str]) -> dg.JobDefinition:
    """Compacts the mirrors of which scans have become slow; each waits until nothing else writes it."""

    def compact_one(table: str) -> dg.OpDefinition:
        @dg.op(name="compact_" + re.sub(r"\W", "_", table), pool=table_pool(table), description=f"Compact {table}.")
        def compact_table(context: dg.OpExecutionContext, project: NevermoreResource) -> None:
            for own in tables_of(table):
                report = compact_mirror(project.config(), table, own=own)
                for line in [f"{own}: nothing that may be compacted"] if report is None else report.lines:
                    context.log.info(line)
                if report is not None and own == table:
                    context.add_output_metadata(
                        asdict(report) | {"snapshot_id": str(report.snapshot_id), "indexes": list(report.indexes)}
                    )

        return compact_table

    @dg.job(name=COMPACT_JOB, description="Rewrite small files and files with many dead rows where scans are slow.")
    def compact_all() -> None:
        for table in tables:
            compact_one(table)()

    return compact_all


def jobs_by_time(published: Mapping[str, PublishedConfig]) -> Iterator[UnresolvedAssetJobDefinition]:
    """A job for each unit of time by which published tables are partitioned, over all tables of that unit."""
    for unit, job in JOBS_BY_UNIT.items():
        if names := tables_by(unit, published):
            yield dg.define_asset_job(
                job,
                selection=dg.AssetSelection.assets(*map(published_key, names)),
                description=f"Rebuild partitions of the tables published by {unit}, in one Spark session.",
            )


def tables_by(unit: Unit, published: Mapping[str, PublishedConfig]) -> list[str]:
    """Published tables that are partitioned by a unit of time."""
    return [n for n, entry in published.items() if entry.partitioning is not None and entry.partitioning.unit == unit]


_CRONS: Mapping[Unit, str] = {"hour": "10 * * * *", "day": "0 2 * * *", "month": "0 3 1 * *", "year": "0 4 1 1 *"}
"""Some time after the end of a partition, because events arrive late: for days, two hours after midnight."""


def schedule(
    name: str,
    job: dg.JobDefinition | UnresolvedAssetJobDefinition,
    usual: str,
    description: str,
    cron: str | None = None,
) -> dg.ScheduleDefinition:
    """Starts a job at the times that the config names; without any, at the usual ones once it is switched on."""
    return dg.ScheduleDefinition(
        name=name,
        job=job,
        cron_schedule=cron or usual,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus("RUNNING" if cron else "STOPPED"),
        description=description,
    )


def publish_schedules(published: Mapping[str, PublishedConfig]) -> Iterator[dg.ScheduleDefinition]:
    """One schedule per unit and cron expression of the published tables; it builds the partition that ended last."""
    for unit, job in JOBS_BY_UNIT.items():
        by_cron: dict[str, list[str]] = {}
        for name in tables_by(unit, published):
            by_cron.setdefault(published[name].schedule or _CRONS[unit], []).append(name)
        for number, (cron, names) in enumerate(by_cron.items(), 1):
            title = job.removesuffix("_job") + ("_schedule" if number == 1 else f"_schedule_{number}")
            is_asked = any(published[name].schedule for name in names)
            status = dg.DefaultScheduleStatus("RUNNING" if is_asked else "STOPPED")
            yield _publish_schedule(title, unit, cron, names, status)


def _publish_schedule(
    name: str, unit: Unit, cron: str, tables: list[str], status: dg.DefaultScheduleStatus
) -> dg.ScheduleDefinition:
    keys = [*map(published_key, tables)]

    @dg.schedule(
        name=name,
        job_name=JOBS_BY_UNIT[unit],
        cron_schedule=cron,
        execution_timezone="UTC",
        default_status=status,
        description=f"Build the last completed {unit} of {', '.join(tables)}.",
    )
    def publish_last(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
        last = last_key(unit, context.scheduled_execution_time.astimezone(UTC))
        return dg.RunRequest(run_key=f"{name}-{last}", partition_key=last, asset_selection=keys)

    return publish_last


def last_key(unit: Unit, moment: datetime) -> str:
    """Key of the last partition that is complete at a moment."""
    # an hour or a day before the moment, or before the first day of its month or year
    first = {"hour": moment, "day": moment, "month": moment.replace(day=1), "year": moment.replace(month=1, day=1)}
    before = first[unit] - timedelta(hours=1 if unit == "hour" else 24)
    return before.strftime(FORMATS[unit])


def executor_of(config: Config) -> dg.ExecutorDefinition:
    """The executor of all jobs of a project; the Launchpad can change `max_concurrent`."""
    return dg.ExecutorDefinition(
        name="threads",
        config_schema={
            "max_concurrent": dg.Field(
                int,
                default_value=config.parallel_steps,
                description="Steps that work at the same time; 1: one after the other.",
            )
        },
        executor_creation_fn=_made,
        description="Runs steps in threads of one process, which share one Spark session.",
    )


def _made(context: dg.InitExecutorContext) -> "ThreadsExecutor":
    most = context.executor_config["max_concurrent"]
    if not isinstance(most, int) or most < 1:
        raise dg.DagsterInvariantViolationError(f"max_concurrent must be at least 1, not {most}")
    return ThreadsExecutor(most)


class ThreadsExecutor(Executor):
    """Runs the steps of a run in threads of its process, as many at the same time as pools and `max_concurrent` allow."""

    def __init__(self, max_concurrent: int) -> None:
        self._max_concurrent = max_concurrent

    @property
    def retries(self) -> RetryMode:
        """Steps that ask for it are tried again."""
        return RetryMode.ENABLED

    def execute(
        self, plan_context: PlanOrchestrationContext, execution_plan: ExecutionPlan
    ) -> Iterator[dg.DagsterEvent]:
        """The events of the run."""
        hold(plan_context.instance, plan_context.run_id)
        manager = PlanExecutionContextManager(
            job=plan_context.job,
            retry_mode=plan_context.retry_mode,
            execution_plan=execution_plan,
            run_config=plan_context.run_config,
            dagster_run=plan_context.dagster_run,
            instance=plan_context.instance,
            raise_on_error=plan_context.raise_on_error,
            output_capture=plan_context.output_capture,
            step_dependency_config=self.step_dependency_config,
        )
        iterator = partial(_events_of_steps, executor=self, max_concurrent=self._max_concurrent)
        yield from ExecuteRunWithPlanIterable(execution_plan, iterator, manager)


def _events_of_steps(
    job_context: PlanExecutionContext, execution_plan: ExecutionPlan, executor: Executor, max_concurrent: int
) -> Iterator[dg.DagsterEvent]:
    """Start steps as soon as what they need is there, and pass on their events as they come."""
    context, plan = job_context, execution_plan
    arrived: SimpleQueue[tuple[str, dg.DagsterEvent | BaseException | None]] = SimpleQueue()
    working: set[str] = set()
    error: BaseException | None = None
    with ExitStack() as stack:
        pools = stack.enter_context(InstanceConcurrencyContext(context.instance, context.dagster_run))
        active = stack.enter_context(
            ActiveExecution(
                plan,
                retry_mode=executor.retries,
                max_concurrent=max_concurrent,
                instance_concurrency_context=pools,
                step_dependency_config=executor.step_dependency_config,
            )
        )
        yield from _capture_logs(context, plan, stack)
        while working or not (active.is_complete or error):
            if active.check_for_interrupts():
                active.mark_interrupted()
                message = "Interrupted: what the steps have not committed is left out."
                yield dg.DagsterEvent.engine_event(context, message, EngineEventData.interrupted([*working]))
                raise DagsterExecutionInterruptedError  # the threads end with the process
            for step in () if error else active.get_steps_to_execute(max_concurrent - len(working)):
                working.add(step.key)
                step_context = context.for_step(step, active.get_known_state())
                Thread(target=_work, args=(step_context, arrived), name=step.key, daemon=True).start()
            yield from active.concurrency_event_iterator(context)
            try:
                key, event = arrived.get(timeout=POLL_SECONDS)
            except Empty:
                continue
            match event:
                case dg.DagsterEvent():
                    yield event
                    active.handle_event(event)
                case None:
                    working.discard(key)
                    active.verify_complete(context, key)
                    yield from active.plan_events_iterator(context)
                case _:
                    working.discard(key)
                    error = error or event
        if error:
            raise error


def _work(
    context: StepExecutionContext, arrived: "SimpleQueue[tuple[str, dg.DagsterEvent | BaseException | None]]"
) -> None:
    """Run a step in this thread: its events, then None, or the error that is no result of the step."""
    key = context.step.key
    try:
        for event in dagster_event_sequence_for_step(context):
            arrived.put((key, event))
        arrived.put((key, None))
    except BaseException as error:  # noqa: BLE001 - the thread of the run raises it
        arrived.put((key, error))


def _capture_logs(context: PlanExecutionContext, plan: ExecutionPlan, stack: ExitStack) -> Iterator[dg.DagsterEvent]:
    """Capture what the process prints, for all of its steps together, until the stack closes."""
    logs = context.instance.compute_log_manager
    key = str(create_compute_log_file_key())  # type: ignore[no-untyped-call]
    log_key = logs.build_log_key_for_run(context.run_id, key)
    try:
        captured = stack.enter_context(logs.capture_logs(log_key))
    except OSError:
        error = EngineEventData(error=serializable_error_info_from_exc_info(sys.exc_info()))
        yield dg.DagsterEvent.engine_event(context, "What the steps print is not captured", error)
        return
    steps = [step.key for step in plan.get_steps_to_execute_in_topo_order()]
    yield dg.DagsterEvent.capture_logs(context, steps, log_key, captured)


MAX_RETRIES = 3
FIRST_WAIT_SECONDS = 10.0
"""Doubled for each further try: 10, 20 and 40 s outlast the restart of a catalog."""


def retry(context: dg.OpExecutionContext, error: Exception) -> NoReturn:
    """End the step and try it again after a while, unless it was tried often enough."""
    wait = FIRST_WAIT_SECONDS * 2**context.retry_number
    context.log.warning("%s; trying again in %g s, up to %s times", error, wait, MAX_RETRIES)
    raise dg.RetryRequested(max_retries=MAX_RETRIES, seconds_to_wait=wait) from error


@contextmanager
def retry_if_transient(context: dg.OpExecutionContext) -> Iterator[None]:
    """Try a step again whose error is transient; any other error fails the step and its run for good."""
    try:
        yield
    except CheckFailedError:
        raise  # with results of its own
    except Exception as error:
        if is_transient(error):
            retry(context, error)
        if isinstance(error, PipelineError | ScanError):  # raised on purpose: what to do is in the message
            fail(context, str(error))
        leave_run_failed(context)
        raise
