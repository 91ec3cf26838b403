"""`nevermore report`: one HTML page that shows tables of a project: lineage, history, events, debt, scans, quarantine, checks.

The page loads nothing from elsewhere.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from nevermore.checks.mirror_checks import kept_results_of
from nevermore.pipelines.changes.quarantine import held_events, reasons
from nevermore.pipelines.config.project import Config, change_log_name
from nevermore.pipelines.errors import PipelineError
from nevermore.pipelines.iceberg.catalog import find_table
from nevermore.pipelines.iceberg.loaded_table import open_current
from nevermore.pipelines.iceberg.positions import ancestors, summary_properties
from nevermore.pipelines.maintain.debt import debt_of
from nevermore.pipelines.maintain.status import TableStatus, published_status, status
from nevermore.pipelines.publish.audit import CheckResult
from nevermore.pipelines.publish.query import tables_read
from nevermore.pipelines.wording import counted
from nevermore.scan_core import ScanError
from nevermore.scan_core.parts import Bar, Html, bars, chain, escaped, facts, grid, line_chart, page, section

if TYPE_CHECKING:
    from nevermore.pipelines.iceberg.catalog import Catalog
    from nevermore.pipelines.iceberg.catalog import Table as CatalogTable

MAX_SNAPSHOTS = 20
"""Snapshots that are listed; charts show all that the metadata has."""
MAX_SAMPLES = 5
"""Quarantined events that are shown."""
MAX_SAMPLE_TEXT = 400
_OPERATIONS = {"r": "snapshot read", "c": "create", "u": "update", "d": "delete", "t": "truncate"}


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
    bodies = []
    for name in names:
        show(f"Reporting on {name}")
        parts = _published(config, catalog, name) if name in config.published else _mirror(config, catalog, name)
        bodies.append(Html(f"<article id='{escaped(name)}'>{section(name, *parts)}</article>"))
    links = "".join(f"<a href='#{escaped(name)}'>{escaped(name)}</a> " for name in names)
    made = f"<p class=muted>made {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC from {escaped(config.path.name)}</p>"
    title = names[0] if len(names) == 1 else f"{len(names)} tables"
    return page(f"Nevermore: {title}", made, f"<nav>{links}</nav>" if len(names) > 1 else "", *bodies)


def _mirror(config: Config, catalog: "Catalog", name: str) -> Iterator[str]:
    mirror, log = find_table(catalog, name), find_table(catalog, change_log_name(name))
    (state,) = status(catalog, config, [name])
    yield _titled("Lineage", _lineage(config, name, state))
    if mirror is None:
        yield "<p class=muted>no row has been written to this table yet</p>"
    else:
        yield from _told(lambda: _state(state, mirror))
        yield _titled("Snapshots", _history(mirror))
    if log is not None:
        yield _titled("Changes by kind", *_told(lambda: _events(log)))
    if mirror is not None:
        yield _titled("Delete debt", *_told(lambda: _debt(config, mirror)))
    yield _titled("Quarantine", *_told(lambda: _quarantine(catalog, name)))
    yield _titled("Checks", *_told(lambda: _checks(kept_results_of(config, name))))


def _published(config: Config, catalog: "Catalog", name: str) -> Iterator[str]:
    (state,) = published_status(catalog, config, [name])
    if state.error is not None:
        yield f"<p class=fail>{escaped(state.error)}</p>"
        return
    yield _titled("Lineage", chain([tables_read(config, name), [Html(f"<b>{escaped(name)}</b>")]]))
    table = find_table(catalog, name)
    if table is None:
        yield "<p class=muted>this table has never been published</p>"
        return
    behind = "unknown" if state.behind is None else ", ".join(state.behind) or "nothing: up to date"
    yield facts([("rows", state.rows), ("data files", state.data_files), ("behind", behind)])
    yield _titled("Snapshots", _history(table))


def _titled(title: str, *parts: str) -> Html:
    return Html(f"<h3>{escaped(title)}</h3>{''.join(parts)}")


def _told(make: Callable[[], Iterator[Html]]) -> Iterator[Html]:
    """What `make` yields; an error of the table becomes part of the page, as the rest of it still helps."""
    try:
        yield from make()
    except (ScanError, PipelineError) as error:
        yield Html(f"<p class=fail>{escaped(error)}</p>")


def _lineage(config: Config, name: str, state: TableStatus) -> Html:
    source = config.tables[name].source
    match source.type:
        case "files":
            feed = ", ".join(source.path)
        case "kafka":
            feed = f"Kafka {', '.join(source.topics)}"
        case "mysql" | "python":
            feed = source.title
        case _:
            feed = f"PostgreSQL publication {source.publication}"
    readers = []
    for published in config.published:
        try:
            readers += [published] if name in tables_read(config, published) else []
        except PipelineError:  # its own section says what is wrong with it
            continue
    held = [f"{counted(state.quarantined, 'event')} in quarantine"] if state.quarantined else []
    return chain([[feed], [change_log_name(name), *held], [Html(f"<b>{escaped(name)}</b>")], readers])


def _state(state: TableStatus, mirror: "CatalogTable") -> Iterator[Html]:
    lag = "unknown" if state.lag_seconds is None else f"{state.lag_seconds:,.0f} s"
    yield facts(
        [
            ("rows alive", open_current(mirror).scan().count()),
            ("rows in files", state.rows_written),
            ("data files", state.data_files),
            ("delete files", state.delete_files),
            ("delete rows per row", f"{state.delete_debt:.0%}"),
            ("changes logged", state.logged),
            ("waiting", "unknown" if state.waiting is None else state.waiting),
            ("lag", lag),
            ("in quarantine", state.quarantined),
        ]
    )


def _history(table: "CatalogTable") -> Html:
    found = [(snapshot, summary_properties(snapshot)) for snapshot in ancestors(table)]
    rows = [
        (
            str(snapshot.snapshot_id),
            f"{_moment(snapshot.timestamp_ms):%Y-%m-%d %H:%M:%S}",
            "" if snapshot.summary is None else snapshot.summary.operation.value,
            *(_number(counts, f"added-{what}") for what in ("records", "equality-deletes", "data-files")),
            _number(counts, "total-records"),
        )
        for snapshot, counts in found
    ]
    headings = (
        "snapshot",
        "committed (UTC)",
        "operation",
        "rows added",
        "deletes added",
        "files added",
        "rows in files",
    )
    points = [(s.timestamp_ms / 1000, float(_number(counts, "total-records"))) for s, counts in reversed(found)]
    if not found:
        return grid(headings, rows)
    start, end = (f"{_moment(snapshot.timestamp_ms):%Y-%m-%d %H:%M} UTC" for snapshot, _ in (found[-1], found[0]))
    top = f"rows in files: up to {max(y for _, y in points):,.0f}"
    return Html(line_chart(points, start=start, end=end, top=top) + grid(headings, rows, max_rows=MAX_SNAPSHOTS))


def _events(log: "CatalogTable") -> Iterator[Html]:
    counts: Counter[str] = Counter()
    for batch in open_current(log).scan().select("op").to_batches():
        counts.update({str(c["values"]): c["counts"] for c in batch.column(0).value_counts().to_pylist()})
    yield bars([Bar(_OPERATIONS.get(op, op), n, f"{n:,}") for op, n in counts.most_common()])


def _debt(config: Config, mirror: Any) -> Iterator[Html]:
    debt = debt_of(mirror, config)
    yield facts(
        [
            ("of a scan is lost", f"{debt.share:.0%}"),
            ("rows that are dead", debt.dead_rows),
            ("files that are small", debt.small_files),
            ("above max_debt", "yes" if debt.is_too_much else "no"),
        ]
    )


def _quarantine(catalog: "Catalog", name: str) -> Iterator[Html]:
    found = reasons(catalog, name)
    if not found:
        yield Html("<p class=muted>empty: every event was applied</p>")
        return
    yield bars([Bar(reason, number, f"{number:,}", "bad") for reason, number in found.items()])
    samples = [
        (f"{event['source_file'] or ''} at {event['source_offset']}", event["reason"], _cut(event.get("raw")))
        for event in held_events(catalog, name, MAX_SAMPLES)
    ]
    yield grid(("where", "reason", "event"), samples)


def _cut(raw: object) -> str:
    text = raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw or "")
    return text if len(text) <= MAX_SAMPLE_TEXT else f"{text[:MAX_SAMPLE_TEXT]} ..."


def _checks(kept: Mapping[str, CheckResult] | None) -> Iterator[Html]:
    if kept is None:
        yield Html("<p class=muted>this snapshot has not been checked yet: run nevermore check</p>")
        return
    rows = [
        (
            Html("<span class=pass>passed</span>") if result.passed else Html("<span class=fail>FAILED</span>"),
            result.name,
            result.summary(),
            "; ".join(map(str, result.offending_keys)),
        )
        for result in kept.values()
    ]
    yield grid(("", "check", "result", "wrong keys"), rows)


def _number(counts: Mapping[str, str], name: str) -> int:
    text = str(counts.get(name, "0"))
    return int(text) if text.isdigit() else 0


def _moment(timestamp_ms: int) -> datetime:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC)
