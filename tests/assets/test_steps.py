"""The steps of a run side by side in threads: in what order, within which limits, and what happens when one fails."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run
from dagster._core.execution.job_execution_result import JobExecutionResult

from nevermore.assets.jobs import executor_of
from nevermore.pipelines.config.document import dagster_home
from nevermore.pipelines.config.project import parse
from tests.support.shop_project import ShopProject

CONFIG = "tables: {s.t: {source: {path: 't.jsonl'}, key: [id]}}\n"
WAIT = 200.0


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    """As `nevermore ui` makes it: on disk, one slot in each pool."""
    monkeypatch.setenv("DAGSTER_HOME", str(dagster_home(tmp_path)))
    with dg.DagsterInstance.get() as instance:
        yield instance


def job_of(
    *works: Callable[[], object], pools: tuple[str | None, ...] = (), at_once: int = 4, after: bool = False
) -> dg.JobDefinition:
    """A job with a step for each function; with `after` another step, which needs the first one."""

    def op_of(number: int, work: Callable[[], object]) -> dg.OpDefinition:
        @dg.op(name=f"step_{number}", pool=pools[number] if pools else None)
        def step() -> int:
            work()
            return 1

        return step

    ops = [op_of(number, work) for number, work in enumerate(works)]

    @dg.op
    def needs_first(one: int) -> int:
        return one + 1

    @dg.job(executor_def=executor_of(parse(f"{CONFIG}parallel_steps: {at_once}")))
    def made() -> None:
        done = [op() for op in ops]
        if after:
            needs_first(done[0])

    return made


def run(instance: dg.DagsterInstance, job: dg.JobDefinition, *, raises: bool = False) -> JobExecutionResult:
    created = instance.create_run_for_job(job)
    return execute_run(InMemoryJob(job), created, instance, raise_on_error=raises)


class Overlap:
    """Counts the threads that are in `work` at the same time; they stay there until as many have been as may."""

    def __init__(self, expected: int) -> None:
        self._changed = threading.Condition()
        self._expected = expected
        self._now = 0
        self.most = 0

    def work(self) -> None:
        with self._changed:
            self._now += 1
            self.most = max(self.most, self._now)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.most >= self._expected, WAIT)
        time.sleep(0.1)  # in which one too many may come
        with self._changed:
            self._now -= 1


def test_steps_work_at_the_same_time_in_one_process(instance: dg.DagsterInstance) -> None:
    together = threading.Barrier(3)  # no step gets past it alone
    seen = []

    def work() -> None:
        together.wait(WAIT)
        seen.append((os.getpid(), threading.get_ident()))

    assert run(instance, job_of(work, work, work)).success
    assert {pid for pid, _ in seen} == {os.getpid()}
    assert len({thread for _, thread in seen}) == 3


@pytest.mark.each(4)
@pytest.mark.parametrize(
    ("at_once", "pools", "most"),
    [(1, (), 1), (2, (), 2), (4, ("a", "a", "a"), 1), (4, ("a", "a", "b"), 2)],
)
def test_no_more_steps_than_allowed_and_than_pools_have_slots(
    at_once: int, pools: tuple[str, ...], most: int, instance: dg.DagsterInstance
) -> None:
    overlap = Overlap(most)
    assert run(instance, job_of(*[overlap.work] * 3, pools=pools, at_once=at_once)).success
    assert overlap.most == most


def test_a_failed_step_leaves_the_others_alone_and_what_needs_it_does_not_begin(instance: dg.DagsterInstance) -> None:
    finished = []

    def fail() -> None:
        raise ValueError("this step fails")

    def slow() -> None:
        time.sleep(0.2)
        finished.append(True)

    result = run(instance, job_of(fail, slow, after=True))
    assert not result.success
    assert finished == [True]
    assert {e.step_key for e in result.get_step_failure_events()} == {"step_0"}
    assert {e.step_key for e in result.get_step_success_events()} == {"step_1"}
    assert not result.events_for_node("needs_first") or not result.is_node_success("needs_first")
    with pytest.raises(ValueError, match="this step fails"):
        run(instance, job_of(fail, slow), raises=True)


def test_outputs_reach_the_steps_that_need_them_and_a_step_that_asks_is_tried_again(
    instance: dg.DagsterInstance,
) -> None:
    tries = []

    def second_time() -> None:
        tries.append(True)
        if len(tries) == 1:
            raise dg.RetryRequested(max_retries=1, seconds_to_wait=0.1)

    result = run(instance, job_of(second_time, after=True))
    assert result.success
    assert len(tries) == 2
    assert result.retry_attempts_for_node("step_0") == 1
    assert result.is_node_success("needs_first")


def test_an_interrupt_cancels_the_run_without_waiting_for_its_steps(instance: dg.DagsterInstance) -> None:
    release = threading.Event()

    def hang() -> None:
        (started,) = instance.get_runs()
        instance.report_run_canceling(started)  # what a click on Terminate does
        os.kill(os.getpid(), signal.SIGINT)
        release.wait(WAIT)

    began = time.monotonic()
    try:
        result = run(instance, job_of(hang))
    finally:
        release.set()
    assert time.monotonic() - began < WAIT
    assert result.dagster_run.status is dg.DagsterRunStatus.CANCELED


@pytest.mark.each(2)
@pytest.mark.parametrize("most", [0, -1])
def test_a_wrong_number_in_the_launchpad_is_told(most: int, instance: dg.DagsterInstance) -> None:
    job = job_of(lambda: None)
    config = {"execution": {"config": {"max_concurrent": most}}}
    created = instance.create_run_for_job(job, run_config=config)
    result = execute_run(InMemoryJob(job), created, instance)
    assert not result.success
    assert f"max_concurrent must be at least 1, not {most}" in str(result.all_events[-1])


def test_all_jobs_of_a_project_work_this_way(tmp_path: Path) -> None:
    definitions = ShopProject(tmp_path).definitions
    jobs = list(definitions.get_repository_def().get_all_jobs())
    assert {job.executor_def.name for job in jobs} == {"threads"}
