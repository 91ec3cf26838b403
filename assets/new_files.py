"""The sensor that starts an ingest of the sources that have new files.

A listing costs no run: as long as the files are those of the last look, nothing else is read. Sources that are no files
(topics, replication slots) cannot be listed; the ingest schedule serves them.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence

import dagster as dg

from assets.jobs import INGEST_JOB, ingest_job
from assets.project import Project, change_log_key, mirror_key
from pipelines.config.project import Config, FilesSource
from pipelines.errors import PipelineError
from pipelines.ingest.feed_run import found_nothing_new
from pipelines.ingest.feeds import Feed, feeds_of
from scan_core import ScanError

SENSOR = "new_files"
DEFAULT_INTERVAL_SECONDS = 30.0
TRIGGER = "nevermore/trigger"
"""Tag of runs: what started them."""
SOURCES = "nevermore/sources"
"""Tag of runs: the number of sources with new files."""
_UNFINISHED = [dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTING]
_UNFINISHED += [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]


def has_files(config: Config) -> bool:
    """Whether the sensor can do anything for a project."""
    return any(isinstance(entry.source, FilesSource) for entry in (*config.tables.values(), *config.patterns.values()))


def new_files_sensor(every_seconds: float | None) -> dg.SensorDefinition:
    """Looks for new files as often as the config says; without it, every half minute once the sensor is switched on."""

    @dg.sensor(
        name=SENSOR,
        job=ingest_job,
        minimum_interval_seconds=max(1, round(every_seconds or DEFAULT_INTERVAL_SECONDS)),
        default_status=dg.DefaultSensorStatus.STOPPED if every_seconds is None else dg.DefaultSensorStatus.RUNNING,
        description="Ingest the sources that have new files.",
    )
    def new_files(context: dg.SensorEvaluationContext, project: Project) -> dg.SensorResult | dg.SkipReason:
        if context.instance.get_runs(dg.RunsFilter(job_name=INGEST_JOB, statuses=_UNFINISHED), limit=1):
            return dg.SkipReason("an ingest is running; what it does not take is looked for again")
        try:
            config = project.config()
            seen, changed = look(config, json.loads(context.cursor or "{}"))
        except (PipelineError, ScanError) as error:
            return dg.SkipReason(str(error))
        cursor = json.dumps(seen)
        tables = [name for feed in changed for name in feed.wanted if name in config.tables]
        is_open = any(feed.patterns for feed in changed)
        if not changed or (not is_open and found_nothing_new(config, tables) is not None):
            return dg.SensorResult(skip_reason="no new files", cursor=cursor)
        request = dg.RunRequest(
            asset_selection=None if is_open else [key for t in tables for key in (change_log_key(t), mirror_key(t))],
            tags={TRIGGER: SENSOR, SOURCES: str(len(changed))},
        )
        return dg.SensorResult(run_requests=[request], cursor=cursor)

    return new_files


def look(config: Config, before: dict[str, str]) -> tuple[dict[str, str], Sequence[Feed]]:
    """List the files of all sources.

    Args:
        config: the project.
        before: fingerprints of an earlier look.

    Returns:
        (fingerprint of the files by source, sources whose files have changed since the earlier look)

    Raises:
        SourceError: a folder does not exist, or cannot be listed.
    """
    seen, changed = dict[str, str](), list[Feed]()
    for feed in _file_feeds(config):
        files = [(file.path, file.size, file.arrived_ns) for file in feed.listing.files]
        fingerprint = hashlib.sha256(json.dumps(files).encode()).hexdigest()[:16]
        seen[feed.source.title] = fingerprint
        if before.get(feed.source.title) != fingerprint:
            changed.append(feed)
    return seen, changed


def _file_feeds(config: Config) -> Iterator[Feed]:
    feeds = feeds_of(config, [*config.tables, *config.patterns])
    yield from (feed for feed in feeds if isinstance(feed.source, FilesSource))
