"""The sensors of a project: one starts an ingest of sources that have new events, two post alerts to a webhook.

To look for new events costs no run: files are listed, a Kafka cluster is asked for the ends of its partitions, a PostgreSQL
server for the first changes in the replication slot. What was there at the last look is not reported again.

An alert is one JSON object for each run that failed, and for each failed check of a run that did not. No message contains the
address of the webhook, a value from the environment or a password.
"""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dagster as dg
from dagster._core.definitions.data_version import DATA_VERSION_TAG
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES

from nevermore.assets.jobs import INGEST_JOB, TRIGGER
from nevermore.assets.metadata import change_log_state, mirror_state, news_of
from nevermore.assets.project import (
    NevermoreResource,
    change_log_key,
    mirror_key,
    own_key,
    published_key,
    rows_key,
    table_pool,
)
from nevermore.assets.published import ROW_CHECKS, unseen_materializations
from nevermore.checks.asset_checks import check_result, evaluation_of
from nevermore.checks.data_docs import newest_results
from nevermore.checks.expectations import NAMES
from nevermore.checks.mirror_checks import all_checks_of, kept_results_of, run_checks
from nevermore.pipelines.config.project import AlertsConfig, Config, change_log_name
from nevermore.pipelines.errors import PipelineError
from nevermore.pipelines.iceberg.catalog import has_catalog, open_to_look
from nevermore.pipelines.ingest.feeds import Feed, feeds_of
from nevermore.pipelines.maintain.status import status
from nevermore.pipelines.publish.audit import CheckResult, was_audited
from nevermore.pipelines.sources.file_changes import Listing
from nevermore.pipelines.sources.live import TellsNews
from nevermore.pipelines.watch import post, shown
from nevermore.scan_core import ScanError
from nevermore.scan_core.io import hide_secrets

RUN_SENSOR = "alert_on_failed_runs"
CHECK_SENSOR = "alert_on_failed_checks"
SENSOR = "new_events"
DEFAULT_INTERVAL_SECONDS = 30.0
OUTSIDE_SENSOR = "show_what_commands_did"
OUTSIDE_SECONDS, MAX_LOOK_SECONDS = 60, 30.0
"""Seconds between two looks, and of one look, which the next one goes on from; Dagster ends a tick after 60."""
LATE_INTERVALS, MIN_LATE_SECONDS = 10, 300.0
"""A run for which the sensor has waited longer is late: intervals, and seconds of short ones."""
LATE = "nevermore/late"
"""Tag of runs: the alert that they are late."""
SOURCES = "nevermore/sources"
"""Tag of runs: the number of sources with new events."""


def alert_sensors() -> list[dg.SensorDefinition]:
    """Both run by default: a project without `alerts` in its config has none of them."""

    @dg.run_failure_sensor(
        name=RUN_SENSOR,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Post an alert for each failed run.",
    )
    def failed_runs(context: dg.RunFailureSensorContext, project: NevermoreResource) -> None:
        steps = [event.step_failure_data.error for event in context.get_step_failure_events()]
        causes = [_innermost(error) for error in steps if error is not None]
        _post(project, context, "run_failed", causes or [context.failure_event.message or "the run failed"])

    @dg.run_status_sensor(
        name=CHECK_SENSOR,
        run_status=dg.DagsterRunStatus.SUCCESS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Post an alert for the failed checks of each run that succeeded all the same.",
    )
    def failed_checks(context: dg.RunStatusSensorContext, project: NevermoreResource) -> None:
        if any(not check["passed"] for check in _checks(context)):
            _post(project, context, "checks_failed", [])

    return [failed_runs, failed_checks]


def _post(project: NevermoreResource, context: dg.RunStatusSensorContext, event: str, errors: Sequence[str]) -> None:
    """Post the alert of a run.

    Raises:
        PipelineError: it could not be delivered; the tick of the sensor fails and shows it.
    """
    alerts = project.config().alerts
    if alerts is None:
        return
    post(alerts.webhook, alert(context, alerts, event, errors))


def alert(
    context: dg.RunStatusSensorContext, alerts: AlertsConfig, event: str, errors: Sequence[str]
) -> dict[str, Any]:
    """The posted object: `text` for people, and the same facts by name."""
    run = context.dagster_run
    failed = [check for check in _checks(context) if not check["passed"]]
    texts = [shown(alerts.webhook, error) for error in errors]
    what = "failed" if event == "run_failed" else "succeeded, but checks failed"
    link = None if alerts.ui is None else f"{alerts.ui.rstrip('/')}/runs/{run.run_id}"
    lines = [f"{run.job_name} {what} (run {run.run_id})", *texts]
    lines += [f"{check['asset']}: {check['check']}: {check['description']}" for check in failed]
    return {
        "text": "\n".join([*lines, *([link] if link else [])]),
        "event": event,
        "job": run.job_name,
        "run_id": run.run_id,
        "partition": run.tags.get("dagster/partition"),
        "errors": texts,
        "checks": failed,
        "url": link,
    }


def _checks(context: dg.RunStatusSensorContext) -> list[dict[str, Any]]:
    """All checks that the run evaluated."""
    records = context.instance.all_logs(context.dagster_run.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION)
    events = [record.dagster_event for record in records if record.dagster_event is not None]
    found = [e.event_specific_data for e in events if isinstance(e.event_specific_data, dg.AssetCheckEvaluation)]
    return [
        {
            "asset": check.asset_key.to_user_string(),
            "check": check.check_name,
            "severity": check.severity.value,
            "passed": check.passed,
            "description": hide_secrets(check.description or ""),
        }
        for check in found
    ]


def _innermost(error: Any) -> str:
    """The message of the error that Dagster's own errors wrap."""
    while error.cause is not None:
        error = error.cause
    return str(error.message).strip()


def new_events_sensor(every_seconds: float | None) -> dg.SensorDefinition:
    """Looks for new events as often as the config says; without it, every half minute once the sensor is switched on."""
    every = max(1, round(every_seconds or DEFAULT_INTERVAL_SECONDS))

    @dg.sensor(
        name=SENSOR,
        job_name=INGEST_JOB,
        minimum_interval_seconds=every,
        default_status=dg.DefaultSensorStatus.STOPPED if every_seconds is None else dg.DefaultSensorStatus.RUNNING,
        description="Ingest the sources that have new events.",
    )
    def new_events(context: dg.SensorEvaluationContext, project: NevermoreResource) -> dg.SensorResult | dg.SkipReason:
        try:
            config = project.config()
        except (PipelineError, ScanError) as error:
            return dg.SkipReason(str(error))
        unfinished = dg.RunsFilter(job_name=INGEST_JOB, statuses=NOT_FINISHED_STATUSES)
        if found := context.instance.get_run_records(unfinished, limit=1, ascending=True):
            _complain_if_late(context.instance, config, found[0], LATE_INTERVALS * every)
            return dg.SkipReason("an ingest is running; what it does not take is looked for again")
        seen, changed, unknown = look(config, json.loads(context.cursor or "{}"))
        for problem in unknown:
            context.log.warning(problem)
        cursor = json.dumps(seen)
        changed = [feed for feed in changed if not _is_read(config, feed)]
        tables = [name for feed in changed for name in feed.wanted if name in config.tables]
        is_open = any(feed.patterns for feed in changed)
        if not changed:
            return dg.SensorResult(skip_reason="; ".join(unknown) or "no new events", cursor=cursor)
        request = dg.RunRequest(
            asset_selection=None if is_open else [key for t in tables for key in (change_log_key(t), mirror_key(t))],
            tags={TRIGGER: SENSOR, SOURCES: str(len(changed))},
        )
        return dg.SensorResult(run_requests=[request], cursor=cursor)

    return new_events


def outside_sensor() -> dg.SensorDefinition:
    """Shows what commands did outside of Dagster: snapshots as materializations, results of checks that they kept as evaluations."""

    @dg.sensor(
        name=OUTSIDE_SENSOR,
        minimum_interval_seconds=OUTSIDE_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Show what commands such as `nevermore run`, `publish` and `check` did.",
    )
    def outside(context: dg.SensorEvaluationContext, project: NevermoreResource) -> dg.SensorResult:
        config = project.config()
        names, ends = [*config.tables, *config.published], time.monotonic() + MAX_LOOK_SECONDS
        start = int(context.cursor or 0) if has_catalog(config) else len(names)
        events: list[Any] = []
        while start < len(names) and time.monotonic() < ends:
            name, start = names[start], start + 1
            # a step that works on the table tells what it does
            if not context.instance.event_log_storage.get_concurrency_info(table_pool(name)).claimed_slots:
                try:
                    events += _unseen(config, name, context.instance)
                except (PipelineError, ScanError) as error:
                    context.log.warning("%s: %s", name, error)
        return dg.SensorResult(asset_events=events, cursor=str(start if start < len(names) else 0))

    return outside


def _unseen(
    config: Config, name: str, instance: dg.DagsterInstance
) -> Iterator[dg.AssetMaterialization | dg.AssetCheckEvaluation]:
    """What Dagster has not seen of a published table, or of a mirror and its change log."""
    if name in config.published:
        # a check that only warns may have failed
        is_sure = config.published[name].checks.published_equals_duckdb == "block" and was_audited(config, name)
        for made in unseen_materializations(config, name, instance):
            yield made
            for check in ROW_CHECKS if is_sure else ():
                yield evaluation_of(
                    dg.AssetCheckResult(asset_key=made.asset_key, check_name=check, passed=True), made.partition
                )
        yield from map(evaluation_of, _unseen_results(newest_results(config, name), published_key(name), instance))
        return
    mirror, log = rows_key(config, name), (change_log_key(name), change_log_name(name), change_log_state)
    # an asset of the user's own tells of its runs
    for key, table, state in [log] if own_key(config, name) else [log, (mirror, name, mirror_state)]:
        if version := news_of(config, table, key, instance):
            metadata = state(config, name) | {"snapshot id": version.value}
            yield dg.AssetMaterialization(key, metadata=metadata, tags={DATA_VERSION_TAG: version.value})
    kept = kept_results_of(config, name)
    found = _unseen_results([*kept.values(), *newest_results(config, name)], mirror, instance)
    if found and kept:  # the health of a table is not kept, as it is that of the moment
        health = [check for check in all_checks_of(config, name) if check not in {*kept, *NAMES.values()}]
        found += [check_result(result, mirror) for result in run_checks(config, name, health)]
    yield from map(evaluation_of, found)


def _unseen_results(
    found: Sequence[CheckResult], key: dg.AssetKey, instance: dg.DagsterInstance
) -> list[dg.AssetCheckResult]:
    """The results that are not those that Dagster shows."""
    results = [check_result(result, key) for result in found]
    known = instance.event_log_storage.get_latest_asset_check_execution_by_key(
        [dg.AssetCheckKey(key, result.name) for result in found]
    )
    events = (record.event.dagster_event.event_specific_data for record in known.values() if record.event)  # type: ignore[union-attr]
    shown = [_outcome(event) for event in events if isinstance(event, dg.AssetCheckEvaluation)]
    return [result for result in results if _outcome(result) not in shown]


def _outcome(result: Any) -> tuple[Any, ...]:
    # where new rows alone were compared, a step says so and what is kept does not
    return result.check_name, result.passed, None if result.check_name in NAMES.values() else result.description


def _complain_if_late(instance: dg.DagsterInstance, config: Config, found: dg.RunRecord, after_seconds: float) -> None:
    """Fail the tick if new events have waited long for a run; with `alerts`, post it once for each run.

    Raises:
        PipelineError: it is neither finished nor young; names the run.
    """
    run, seconds = found.dagster_run, time.time() - found.create_timestamp.timestamp()
    if seconds < max(after_seconds, MIN_LATE_SECONDS):
        return
    text = (
        f"{run.job_name} is {run.status.value} since {seconds / 60:.0f} minutes (run {run.run_id}), and new events wait for its "
        "end: look at the page of the run; if it hangs, terminate it there"
    )
    if config.alerts is not None and LATE not in run.tags:
        post(config.alerts.webhook, {"text": text, "event": "ingest_late", "job": run.job_name, "run_id": run.run_id})
        instance.add_run_tags(run.run_id, {LATE: "posted"})
    raise PipelineError(text)


def look(config: Config, before: Mapping[str, str]) -> tuple[dict[str, str], Sequence[Feed], Sequence[str]]:
    """Ask all sources what is new.

    Args:
        config: the project.
        before: what an earlier look found.

    Returns:
        (what there is, by source; sources with something that was not there at the earlier look; why others could not be
        asked)
    """
    seen, changed, unknown = dict[str, str](), list[Feed](), list[str]()
    for feed in feeds_of(config, [*config.tables, *config.patterns]):
        title = feed.source.title
        try:
            found = _news(config, feed)
        except (PipelineError, ScanError) as error:
            unknown.append(f"{title}: {error}")
            found = before.get(title)
        finally:
            if not isinstance(feed.reader, Listing):
                feed.reader.close()
        if found is not None:
            seen[title] = found
            if before.get(title) != found:
                changed.append(feed)
    return seen, changed, unknown


def _news(config: Config, feed: Feed) -> str | None:
    """A text that is another one whenever something new is there; None if nothing is, or nobody can tell."""
    if isinstance(feed.reader, Listing):
        files = [(file.path, file.size, file.arrived_ns) for file in feed.reader.files]
        return hashlib.sha256(json.dumps(files).encode()).hexdigest() if files else None
    if not isinstance(feed.reader, TellsNews):
        return None
    return feed.reader.news(_positions(config, feed) or {None})


def _positions(config: Config, feed: Feed) -> set[str | None]:
    """The positions up to which the tables of a source have read it; None for a table that has read nothing."""
    tables = [name for name in feed.wanted if name in config.tables]
    return {entry.position for entry in status(open_to_look(config), config, tables)} if tables else set()


def _is_read(config: Config, feed: Feed) -> bool:
    """Whether all tables of a source of files have read it: other files than at the last look may only be fewer, or touched."""
    if feed.patterns or not isinstance(feed.reader, Listing):
        return False
    try:
        return not any(known is None or feed.may_have_news(known) for known in _positions(config, feed))
    except (PipelineError, ScanError):
        return False  # a run reports it
