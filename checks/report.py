"""`nevermore report`: one HTML page that shows tables of a project: lineage, history, events, debt, scans, quarantine, checks.

What it shows is found out here; `report.html` draws it. The page loads nothing from elsewhere.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nevermore.checks.data_docs import newest_results
from nevermore.checks.mirror_checks import kept_results_of
from nevermore.pipelines.changes.quarantine import held_events, reasons
from nevermore.pipelines.config.project import Config, change_log_name
from nevermore.pipelines.errors import PipelineError
from nevermore.pipelines.iceberg.catalog import find_table
from nevermore.pipelines.iceberg.loaded_table import open_current
from nevermore.pipelines.iceberg.positions import ancestors, summary_properties
from nevermore.pipelines.maintain.debt import debt_of
from nevermore.pipelines.maintain.status import published_status, status
from nevermore.pipelines.publish.audit import CheckResult
from nevermore.pipelines.publish.query import tables_read
from nevermore.pipelines.wording import KINDS, counted
from nevermore.scan_core import ScanError
from nevermore.scan_core.parts import Bar, render

if TYPE_CHECKING:
    from nevermore.pipelines.iceberg.catalog import Catalog
    from nevermore.pipelines.iceberg.catalog import Table as CatalogTable

MAX_SNAPSHOTS = 20
"""Snapshots that are listed; charts show all that the metadata has."""
MAX_SAMPLES = 5
"""Quarantined events that are shown."""
MAX_SAMPLE_TEXT = 400


def report_page(
    config: Config, catalog: "Catalog", names: Sequence[str], show: Callable[[str], None] = lambda _: None
) -> str:
    """The page about mirrors and published tables of a project.

    Args:
        config: the project, without patterns.
        catalog: its catalog.
        names: tables of the config.
        show: called with what is being done.
    """
    tables = []
    for name in names:
        show(f"Reporting on {name}")
        tables.append(_published(config, catalog, name) if name in config.published else _mirror(config, catalog, name))
    made = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}"
    template = Path(__file__).with_suffix(".html")
    return render(template, tables=tables, made=made, config=config.path.name, max_snapshots=MAX_SNAPSHOTS)


def _mirror(config: Config, catalog: "Catalog", name: str) -> dict[str, Any]:
    mirror, log = find_table(catalog, name), find_table(catalog, change_log_name(name))
    (state,) = status(catalog, config, [name])
    held = [f"{counted(state.quarantined, 'event')} in quarantine"] if state.quarantined else []
    return {
        "name": name,
        "is_published": False,
        "lineage": ([config.tables[name].source.title], [change_log_name(name), *held], _readers(config, name)),
        "state": None if mirror is None else state,
        "rows_alive": None if mirror is None else _tried(lambda: open_current(mirror).scan().count()),
        "history": None if mirror is None else _history(mirror),
        "events": None if log is None else _tried(lambda: _events(log)),
        "debt": None if mirror is None else _tried(lambda: debt_of(mirror, config)),
        "quarantine": _tried(lambda: _quarantine(catalog, name)),
        "checks": _tried(lambda: [*kept_results_of(config, name).values(), *_expectations(config, name)]),
    }


def _published(config: Config, catalog: "Catalog", name: str) -> dict[str, Any]:
    (state,) = published_status(catalog, config, [name])
    table = find_table(catalog, name)
    return {
        "name": name,
        "is_published": True,
        "lineage": ([] if state.error is not None else tables_read(config, name), [], []),
        "state": state,
        "history": None if table is None else _history(table),
    }


def _expectations(config: Config, name: str) -> list[CheckResult]:
    """Their newest results; without Great Expectations there are none, as they are the default of mirrors."""
    return newest_results(config, name) if find_spec("great_expectations") else []


def _tried(find: Callable[[], Any]) -> Mapping[str, Any]:
    """What was found; an error of the table becomes part of the page, as the rest of it still helps."""
    try:
        return {"found": find(), "error": None}
    except (ScanError, PipelineError) as error:
        return {"error": error}


def _readers(config: Config, name: str) -> list[str]:
    """The published tables that read a mirror."""
    readers = []
    for published in config.published:
        try:
            readers += [published] if name in tables_read(config, published) else []
        except PipelineError:  # its own section says what is wrong with it
            continue
    return readers


def _history(table: "CatalogTable") -> list[tuple[Any, ...]]:
    """By snapshot, the newest first: a point of the chart, the cells of a row between, and the minute of the commit."""
    found = []
    for snapshot in ancestors(table):
        counts = summary_properties(snapshot)
        numbers = [_number(counts, f"added-{what}") for what in ("records", "equality-deletes", "data-files")]
        total, moment = _number(counts, "total-records"), datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)
        operation = "" if snapshot.summary is None else snapshot.summary.operation.value
        cells = (str(snapshot.snapshot_id), f"{moment:%Y-%m-%d %H:%M:%S}", operation, *numbers, total)
        found.append(((snapshot.timestamp_ms / 1000, float(total)), cells, f"{moment:%Y-%m-%d %H:%M}"))
    return found


def _events(log: "CatalogTable") -> list[Bar]:
    counts: Counter[str] = Counter()
    for batch in open_current(log).scan().select("op").to_batches():
        counts.update({str(c["values"]): c["counts"] for c in batch.column(0).value_counts().to_pylist()})
    return [Bar(KINDS.get(op, op), n, f"{n:,}") for op, n in counts.most_common()]


def _quarantine(catalog: "Catalog", name: str) -> dict[str, Any]:
    found = reasons(catalog, name)
    samples = [
        (f"{event['source_file'] or ''} at {event['source_offset']}", event["reason"], _cut(event.get("raw")))
        for event in (held_events(catalog, name, MAX_SAMPLES) if found else ())
    ]
    return {"reasons": [Bar(reason, n, f"{n:,}", "bad") for reason, n in found.items()], "samples": samples}


def _cut(raw: object) -> str:
    text = raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw or "")
    return text if len(text) <= MAX_SAMPLE_TEXT else f"{text[:MAX_SAMPLE_TEXT]} ..."


def _number(counts: Mapping[str, str], name: str) -> int:
    text = str(counts.get(name, "0"))
    return int(text) if text.isdigit() else 0
