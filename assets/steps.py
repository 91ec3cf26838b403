"""How the steps of a run work: side by side in threads of one process, and again if their failure passes by itself.

Threads share one Spark session, and load the definitions once; a process for each step would start a JVM each. What takes
time (Arrow, DuckDB, compiled kernels, waiting for Spark) lets other threads run meanwhile. Runs whose process died are
retried by the instance, see `.dagster/dagster.yaml`.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import NoReturn

import dagster as dg
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

from checks.asset_checks import fail, leave_run_failed
from pipelines.config.project import Config
from pipelines.errors import PipelineError
from pipelines.iceberg.commit import is_transient
from pipelines.publish.audit import CheckFailedError
from scan_core import ScanError

POLL_SECONDS = 0.5
"""How often the run looks for an interrupt, and for slots of pools, while steps work."""


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


def retry(context: dg.OpExecutionContext, error: Exception | str) -> NoReturn:
    """End the step and try it again after a while, unless it was tried often enough."""
    wait = FIRST_WAIT_SECONDS * 2**context.retry_number
    context.log.warning("%s; trying again in %g s, up to %s times", error, wait, MAX_RETRIES)
    raise dg.RetryRequested(max_retries=MAX_RETRIES, seconds_to_wait=wait) from (
        error if isinstance(error, Exception) else None
    )


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
