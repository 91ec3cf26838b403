"""Alerts: one JSON object to a webhook for each run that failed, and for each failed check of a run that did not.

No message contains the address of the webhook, a value from the environment or a password.
"""

from collections.abc import Sequence
from typing import Any

import dagster as dg

from assets.project import Project
from pipelines.config.project import AlertsConfig
from pipelines.watch.alerts import post, shown
from scan_core import hide_secrets

RUN_SENSOR = "alert_on_failed_runs"
CHECK_SENSOR = "alert_on_failed_checks"


def alert_sensors() -> list[dg.SensorDefinition]:
    """Both run by default: a project without `alerts` in its config has none of them."""

    @dg.run_failure_sensor(
        name=RUN_SENSOR,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Post an alert for each failed run.",
    )
    def failed_runs(context: dg.RunFailureSensorContext, project: Project) -> None:
        steps = [event.step_failure_data.error for event in context.get_step_failure_events()]
        causes = [_innermost(error) for error in steps if error is not None]
        _post(project, context, "run_failed", causes or [context.failure_event.message or "the run failed"])

    @dg.run_status_sensor(
        name=CHECK_SENSOR,
        run_status=dg.DagsterRunStatus.SUCCESS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Post an alert for the failed checks of each run that succeeded all the same.",
    )
    def failed_checks(context: dg.RunStatusSensorContext, project: Project) -> None:
        if any(not check["passed"] for check in _checks(context)):
            _post(project, context, "checks_failed", [])

    return [failed_runs, failed_checks]


def _post(project: Project, context: dg.RunStatusSensorContext, event: str, errors: Sequence[str]) -> None:
    """Post the alert of a run.

    Raises:
        PipelineError: it could not be delivered; the tick of the sensor fails and shows it.
    """
    alerts = project.config().alerts
    if alerts is None:
        return
    post(alerts, alert(context, alerts, event, errors))


def alert(
    context: dg.RunStatusSensorContext, alerts: AlertsConfig, event: str, errors: Sequence[str]
) -> dict[str, Any]:
    """The posted object: `text` for people, and the same facts by name."""
    run = context.dagster_run
    failed = [check for check in _checks(context) if not check["passed"]]
    texts = [shown(alerts, error) for error in errors]
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
