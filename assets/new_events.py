"""The sensor that starts an ingest of the sources that have new events: files, messages of topics, changes of databases.

A look costs no run: files are listed, a Kafka cluster is asked for the ends of its partitions, a PostgreSQL server for the
first changes in the replication slot. What was there at the last look is not reported again.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence

import dagster as dg

from assets.jobs import INGEST_JOB, ingest_job
from assets.project import Project, change_log_key, mirror_key
from pipelines.config.project import Config
from pipelines.errors import PipelineError
from pipelines.iceberg.catalog import open_to_look
from pipelines.ingest.at_rest import found_nothing_new
from pipelines.ingest.feeds import Feed, feeds_of
from pipelines.maintain.status import status
from pipelines.sources.file_changes import Listing
from pipelines.sources.live import TellsNews
from scan_core import ScanError

SENSOR = "new_events"
DEFAULT_INTERVAL_SECONDS = 30.0
TRIGGER = "nevermore/trigger"
"""Tag of runs: what started them."""
SOURCES = "nevermore/sources"
"""Tag of runs: the number of sources with new events."""
_UNFINISHED = [dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTING]
_UNFINISHED += [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]


def new_events_sensor(every_seconds: float | None) -> dg.SensorDefinition:
    """Looks for new events as often as the config says; without it, every half minute once the sensor is switched on."""

    @dg.sensor(
        name=SENSOR,
        job=ingest_job,
        minimum_interval_seconds=max(1, round(every_seconds or DEFAULT_INTERVAL_SECONDS)),
        default_status=dg.DefaultSensorStatus.STOPPED if every_seconds is None else dg.DefaultSensorStatus.RUNNING,
        description="Ingest the sources that have new events.",
    )
    def new_events(context: dg.SensorEvaluationContext, project: Project) -> dg.SensorResult | dg.SkipReason:
        if context.instance.get_runs(dg.RunsFilter(job_name=INGEST_JOB, statuses=_UNFINISHED), limit=1):
            return dg.SkipReason("an ingest is running; what it does not take is looked for again")
        try:
            config = project.config()
        except (PipelineError, ScanError) as error:
            return dg.SkipReason(str(error))
        seen, changed, unknown = look(config, json.loads(context.cursor or "{}"))
        for problem in unknown:
            context.log.warning(problem)
        cursor = json.dumps(seen)
        tables = [name for feed in changed for name in feed.wanted if name in config.tables]
        is_open = any(feed.patterns for feed in changed)
        if not changed or (not is_open and found_nothing_new(config, tables) is not None):
            return dg.SensorResult(skip_reason="; ".join(unknown) or "no new events", cursor=cursor)
        request = dg.RunRequest(
            asset_selection=None if is_open else [key for t in tables for key in (change_log_key(t), mirror_key(t))],
            tags={TRIGGER: SENSOR, SOURCES: str(len(changed))},
        )
        return dg.SensorResult(run_requests=[request], cursor=cursor)

    return new_events


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
        return hashlib.sha256(json.dumps(files).encode()).hexdigest()[:16]
    if not isinstance(feed.reader, TellsNews):
        return None
    tables = [name for name in feed.wanted if name in config.tables]
    known = {entry.position for entry in status(open_to_look(config), config, tables)} if tables else set()
    return feed.reader.news(known or {None})
