"""Chooses and runs the checks of a mirror, and keeps their results in files next to its manifests.

A publication asks for the results before it reads a snapshot, and the next check starts from the last snapshot that passed.
Also detects rollbacks, changes that were applied once and are no longer applied, and adds evidence to the keys of a failed
check: the snapshot, the files that hold their rows, and the command that tells more.
"""

import csv
import io
import logging
import shlex
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from nevermore.checks.configured import configured, mirror_results, severity_of
from nevermore.checks.equality import ROW_CHECKS, NeedsAllRows, check_changed_keys, row_results
from nevermore.checks.kept_results import KeptResults, ResultStore
from nevermore.checks.manifest_facts import NAME as MANIFESTS
from nevermore.checks.manifest_facts import manifests_match_files
from nevermore.checks.reference.expected_rows import ordinals
from nevermore.checks.reference.sql_columns import TemporaryFolderError, limited_memory
from nevermore.checks.subject import Subject, find_recorded
from nevermore.pipelines.changes.change_log import ChangeLog
from nevermore.pipelines.config.project import Config, change_log_name
from nevermore.pipelines.iceberg.catalog import find_table, has_catalog, open_catalog
from nevermore.pipelines.iceberg.positions import LAST_ORDINAL, LOG_BASE, LOG_ORDINAL, LOG_SNAPSHOT, newest_property
from nevermore.pipelines.mirrors.table_shape import KEY
from nevermore.pipelines.publish.audit import CheckResult
from nevermore.pipelines.wording import counted
from nevermore.scan_core import KeyReport, ScanError, TableMetadata, key_report

if TYPE_CHECKING:
    from nevermore.pipelines.iceberg.catalog import Table as CatalogTable

NAME = "nothing_was_rolled_back"

_log = logging.getLogger(__name__)

MAX_TRACED_KEYS = 3
"""Keys whose files are named; each costs a scan with a filter on the key."""


def nothing_was_rolled_back(subject: Subject) -> CheckResult:
    """The current snapshots of the mirror and its change log contain every change that they contained before."""
    mirror = subject.opened.metadata
    recorded = find_recorded(mirror, mirror.current_snapshot_id, LOG_ORDINAL)
    applied = _last_change(mirror, LOG_ORDINAL)
    details = list(_set_back(mirror, LOG_ORDINAL, "the mirror"))
    notes = list(_missing_newest(mirror, "the mirror"))
    compared = {"last change applied": applied or 0}
    if subject.change_log is not None:
        log = subject.open(subject.change_log).metadata
        details += _set_back(log, LAST_ORDINAL, "the change log")
        notes += _missing_newest(log, "the change log")
        last = _last_change(log, LAST_ORDINAL)
        if last is not None:
            compared["last change in log"] = last
            if applied is not None and applied > last:
                details.append(f"the mirror has changes up to {applied}, its change log only up to {last}")
        line = log.ancestors(log.current_snapshot_id) if log.current_snapshot_id is not None else ()
        applied_log = int((recorded.summary.get(LOG_SNAPSHOT) if recorded else None) or 0)
        if applied_log in log.snapshots and all(s.snapshot_id != applied_log for s in line):
            details.append(
                f"the mirror has the changes of snapshot {applied_log} of its change log, which is not an ancestor of the "
                "log's current snapshot: the log was set back, or its changes were written again"
            )
    return CheckResult(NAME, not details, compared, details=[*details, *notes])


def _last_change(metadata: TableMetadata, ordinal: str) -> int | None:
    """The last change that the current snapshot contains; None if it is not recorded."""
    recorded = find_recorded(metadata, metadata.current_snapshot_id, ordinal)
    return None if recorded is None else int(recorded.summary[ordinal])


def _set_back(metadata: TableMetadata, ordinal: str, what: str) -> Iterator[str]:
    """Reports an earlier current snapshot that contains changes that the current one does not contain."""
    were_current = {entry.snapshot_id for entry in metadata.snapshot_log} or set(metadata.snapshots)
    reached = [
        (int(snapshot.summary[ordinal]), snapshot.snapshot_id)
        for snapshot in metadata.snapshots.values()
        if snapshot.snapshot_id in were_current and ordinal in snapshot.summary
    ]
    last, snapshot_id = max(reached, default=(0, 0))
    now = _last_change(metadata, ordinal) or 0
    if last > now:
        yield (
            f"{what} was set back: snapshot {snapshot_id} has the changes up to {last}, the current snapshot "
            f"{metadata.current_snapshot_id} only up to {now}; make snapshot {snapshot_id} the current one again"
            + (", or apply the changes again with nevermore ingest" if ordinal == LOG_ORDINAL else "")
        )


def _missing_newest(metadata: TableMetadata, what: str) -> Iterator[str]:
    """Reports that the newest snapshot is gone. Expiry never removes it, and nothing else records what it contained."""
    newest = max((s.sequence_number for s in metadata.snapshots.values()), default=0)
    if metadata.last_sequence_number > newest:
        yield (
            f"not compared: {what} had snapshots that are newer than all of its snapshots now "
            f"(sequence number {metadata.last_sequence_number}, now {newest}); their content is unknown"
        )


def log_is_complete(subject: Subject, after: int | None = None) -> CheckResult:
    """The change log has every change that it numbered, once, up to the last one that its snapshots record.

    A batch that is lost in the log and in the mirror alike leaves no other trace.

    Args:
        subject: a mirror.
        after: look only at changes after this one, because those before have passed; None for all.
    """
    if subject.change_log is None:
        return CheckResult(COMPLETE, passed=True, details=[f"{subject.table} has no change log"])
    log = subject.open(subject.change_log).metadata
    recorded = find_recorded(log, log.current_snapshot_id, LOG_BASE)
    base, in_base = (0, 0) if recorded is None else map(int, recorded.summary[LOG_BASE].split())
    since = base if after is None else max(base, after)
    with limited_memory(subject.memory_bytes // 2):
        found = ordinals(subject.change_log, after_ordinal=since, **subject.store)
    last = _last_change(log, LAST_ORDINAL)
    end = max(found.last, since, subject.required_ordinal or 0) if last is None else last
    details = [f"changes {first} to {final} are missing from the log" for first, final in found.gaps]
    if found.last < end and end > since:
        details.append(f"changes {max(found.last, since) + 1} to {end} are missing from the log")
    if found.last > end:
        details.append(f"the log has changes up to {found.last}, its snapshots record only {end}")
    if repeated := found.num_after - found.num_distinct:
        details.append(f"{counted(repeated, 'change')} of the log with the number of another one")
    if base and since == base and found.num_in_base != in_base:
        details.append(f"the base of the log had {in_base} changes, now {found.num_in_base}")
    if details:
        details.append("if their source still has them: nevermore resync TABLE")
    return CheckResult(COMPLETE, not details, {"changes in log": found.num_in_base + found.num_after}, details=details)


COMPLETE = "log_is_complete"
MirrorCheck = Callable[[Subject], CheckResult]


def _of_rows(subject: Subject, name: str) -> CheckResult:
    return row_results(subject, [name])[name]


MIRROR_CHECKS: Mapping[str, MirrorCheck] = {
    **{name: partial(_of_rows, name=name) for name in ROW_CHECKS},
    MANIFESTS: manifests_match_files,
    NAME: nothing_was_rolled_back,
    COMPLETE: log_is_complete,
}
"""Checks by name, in the order of output."""


def results_of(subject: Subject, names: Sequence[str]) -> Iterator[CheckResult]:
    """The results of some of `MIRROR_CHECKS`, in their order; rows are read once for all of them.

    Raises:
        TemporaryFolderError: at the end, after the results of the checks that need no such folder.
    """
    try:
        of_rows, error = row_results(subject, [name for name in names if name in ROW_CHECKS]), None
    except TemporaryFolderError as raised:
        of_rows, error = {}, raised
    for name in names:
        if name not in ROW_CHECKS or name in of_rows:
            yield of_rows[name] if name in of_rows else MIRROR_CHECKS[name](subject)
    if error is not None:
        raise error


FULL_CHECK_AFTER_SECONDS = 24 * 3600.0
"""Maximum time between two comparisons of all rows of a mirror."""
KEYLESS_CHECKS = ("mirror_equals_reference", "removals_find_rows", MANIFESTS, NAME, COMPLETE)
"""Checks of a table whose rows have no key (`identity: full`). `removals_find_rows` applies to no other table.

With a key, a delete that finds no row leaves no wrong row: a stream may begin with deletes of older rows, and events may
be delivered twice.
"""
KEYED_CHECKS = ("no_deleted_row_reappears", "mirror_equals_reference", "key_is_unique", MANIFESTS, NAME, COMPLETE)


def checks_of(config: Config, table: str) -> dict[str, MirrorCheck]:
    """The checks that apply to every mirror of this kind, without those that the config adds."""
    names = KEYLESS_CHECKS if config.tables[table].identity == "full" else KEYED_CHECKS
    return {name: MIRROR_CHECKS[name] for name in names}


def all_checks_of(config: Config, table: str) -> list[str]:
    """The names of all checks of a mirror, with those that the config adds."""
    return [*checks_of(config, table), *configured(config.tables[table])]


def mirror_subject(config: Config, table: str, metadata: str | None = None) -> Subject | None:
    """The mirror and its change log, by their current metadata files; None if nothing was ingested yet.

    Args:
        config: the project.
        table: a mirror of the project.
        metadata: an earlier metadata file of the mirror, to check the snapshot that was current then.
    """
    if not has_catalog(config):
        return None
    catalog = open_catalog(config)
    mirror = find_table(catalog, table)
    log = ChangeLog(catalog, change_log_name(table))
    if mirror is None or log.table is None:
        return None
    settings = config.tables[table]
    # an adopted table states its key itself; the log knows it from the first change on
    declared = tuple(filter(None, mirror.metadata.properties.get(KEY, "").split(",")))
    return Subject(
        table=metadata or str(mirror.metadata_location),
        key=() if settings.identity == "full" else log.key or declared,
        change_log=str(log.table.metadata_location),
        soft_delete=settings.soft_delete,
        options=config.scan_options,
        properties=store_properties(config, mirror),
        memory_bytes=settings.checks.memory_bytes,
    )


def store_properties(config: Config, table: "CatalogTable") -> dict[str, str]:
    """How the object store that has a table is opened; a catalog may lend rights with each table."""
    return {n: v for n, v in {**config.catalog.properties, **table.io.properties}.items() if "." in n}


def run_checks(config: Config, table: str, names: Iterable[str], *, full: bool = False) -> Iterator[CheckResult]:
    """Run checks of a mirror by name over all of its rows, and keep the results.

    A table that is not a mirror yet passes, with a note. Expectations that were met by an earlier snapshot are checked on the
    rows that changed since, unless `full`.
    """
    subject, names = mirror_subject(config, table), list(names)
    if subject is None:
        yield from _results_without_log(config, table, names).values()
        return
    found: dict[str, CheckResult] = {}
    began = time.time()
    own = [name for name in names if name in MIRROR_CHECKS]
    try:
        for result in results_of(subject, own):
            found[result.name] = with_evidence(result, subject, _command(config, table))
            yield found[result.name]
    except TemporaryFolderError as error:  # which is not kept
        yield from (CheckResult(n, passed=False, details=[f"not checked: {error}"]) for n in own if n not in found)
    if found:
        _keep(config, table, subject, found, began)
    yield from mirror_results(config, table, subject, names, full=full)


def _command(config: Config, table: str) -> list[str]:
    """How commands name a mirror."""
    return [table, "--config", str(config.path)]


def _keep(config: Config, table: str, subject: Subject, found: Mapping[str, CheckResult], began: float) -> None:
    store, snapshot_id = _store(config, table, subject), _snapshot_id(subject)
    earlier = store.find(snapshot_id)
    if earlier is not None and earlier.since is None:
        store.keep(KeptResults(snapshot_id, {**earlier.results, **found}, None, min(began, earlier.full_at)))
    else:
        store.keep(KeptResults(snapshot_id, dict(found), None, began))


def snapshot_results(config: Config, table: str, metadata: str | None = None) -> KeptResults:
    """The results of all checks of one snapshot of a mirror that block: kept ones, or else new ones, which are then kept.

    If an earlier snapshot has passed, only the keys that changed since are compared, unless the last comparison of all
    rows is too old, or the changes cannot be used.

    Args:
        config: the project.
        table: a mirror of the project.
        metadata: the metadata file in which the snapshot is the current one; None for the current metadata file.
    """
    names = list(checks_of(config, table))
    subject = mirror_subject(config, table, metadata)
    if subject is None:
        return KeptResults(0, _results_without_log(config, table, names), None, time.time())
    added = [name for name, severity in configured(config.tables[table]).items() if severity == "block"]
    made = _snapshot_results(config, table, subject, names)
    of_config = {result.name: result for result in mirror_results(config, table, subject, added)}
    return replace(made, results={**made.results, **of_config})


def _snapshot_results(config: Config, table: str, subject: Subject, names: list[str]) -> KeptResults:
    store, snapshot_id = _store(config, table, subject), _snapshot_id(subject)
    kept = store.find(snapshot_id)
    if kept is not None and set(names) <= set(kept.results):
        # not kept: this snapshot may have become the current one again by a rollback
        return replace(kept, results={**kept.results, NAME: nothing_was_rolled_back(subject)})
    made = _check_since_green(subject, store, names) or KeptResults(
        snapshot_id, {result.name: result for result in results_of(subject, names)}, None, time.time()
    )
    explained = {n: with_evidence(result, subject, _command(config, table)) for n, result in made.results.items()}
    made = replace(made, results=explained)
    store.keep(made)
    return made


def run_changed_checks(config: Config, table: str) -> Iterator[CheckResult]:
    """All checks of the current snapshot of a mirror, from kept results and the keys that changed since, where possible."""
    kept = snapshot_results(config, table)
    how = [] if kept.since is None else [f"compared since snapshot {kept.since}"]
    yield from (replace(result, details=[*result.details, *how]) for result in kept.results.values())
    warning = [name for name, severity in configured(config.tables[table]).items() if severity == "warn"]
    yield from run_checks(config, table, warning)


def kept_results_of(config: Config, table: str) -> Mapping[str, CheckResult]:
    """Kept results of the checks of a mirror's current snapshot by name; none if it was not checked. Nothing is checked now."""
    subject = mirror_subject(config, table)
    kept = None if subject is None else _store(config, table, subject).find(_snapshot_id(subject))
    return {} if kept is None else kept.results


def _check_since_green(subject: Subject, store: ResultStore, names: Collection[str]) -> KeptResults | None:
    """Check the keys that changed since the last snapshot that passed; None if all rows must be compared."""
    if (green := store.last_green(snapshot_id := _snapshot_id(subject), names)) is None:
        return None
    if time.time() - green.full_at > FULL_CHECK_AFTER_SECONDS:
        found: Iterable[CheckResult] | NeedsAllRows = NeedsAllRows(
            f"the last comparison of all rows is more than {FULL_CHECK_AFTER_SECONDS:.0f} seconds old"
        )
    else:
        found = check_changed_keys(subject, green.snapshot_id)
    if isinstance(found, NeedsAllRows):
        _log.info("%s: comparing all rows: %s", subject.table, found.reason)
        return None
    made = {result.name: result for result in found}
    made[MANIFESTS] = manifests_match_files(subject, since=green.snapshot_id)
    made[NAME] = nothing_was_rolled_back(subject)
    made[COMPLETE] = log_is_complete(subject, subject.applied_ordinal(green.snapshot_id))
    return KeptResults(snapshot_id, {n: made[n] for n in names}, green.snapshot_id, green.full_at)


def _snapshot_id(subject: Subject) -> int:
    return subject.opened.metadata.current_snapshot_id or 0


def _store(config: Config, table: str, subject: Subject) -> ResultStore:
    # with another key, or with `soft_delete` switched, the results are those of another check
    return ResultStore(config, table, subject.opened, [subject.key, subject.soft_delete])


def _results_without_log(config: Config, table: str, names: Iterable[str]) -> dict[str, CheckResult]:
    """The results for a table that cannot be compared; they fail if it has had a change log before."""
    found = find_table(open_catalog(config), table) if has_catalog(config) else None
    passed = True
    if found is None:
        reason = f"{table} does not exist yet: nothing to compare"
    elif newest_property(found, LOG_SNAPSHOT):
        passed = False
        reason = (
            f"the change log {change_log_name(table)} of {table} is no longer in the catalog, so its rows cannot be "
            "checked; register the log again, or rebuild the mirror"
        )
    elif newest_property(found, LOG_ORDINAL) is not None:
        reason = f"{table} has no change log, like an adopted table before its first change: nothing to compare it with"
    else:
        reason = (
            f"{table} exists, but is not a mirror: another program created it, and no change log is applied to it, so there "
            f"is nothing to compare; nevermore adopt {table} turns it into a mirror, or says why it cannot"
        )
    settings = config.tables[table]
    return {
        name: CheckResult(name, passed=passed, details=[reason], severity=severity_of(settings, name)) for name in names
    }


def with_evidence(result: CheckResult, subject: Subject, command: Sequence[str]) -> CheckResult:
    """The result of a check of a mirror; if it failed, with snapshot, files and commands.

    Args:
        result: of any check of `subject`.
        subject: the mirror.
        command: how commands name the table, such as `["shop.orders", "--config", "nevermore.yaml"]`.
    """
    if result.passed:
        return result
    snapshot_id = subject.opened.metadata.current_snapshot_id
    details, commands = [*result.details, f"in snapshot {snapshot_id} of {command[0]}"], list[str]()
    keys = [{name: row[name] for name in subject.key} for row in result.offending_keys if {*subject.key} <= row.keys()]
    for key in keys[:MAX_TRACED_KEYS] if subject.key else ():
        text = key_text(key)
        if text is None:
            continue
        at = [] if snapshot_id is None else ["--snapshot", str(snapshot_id)]
        commands.append(shlex.join(["nevermore", "why", command[0], "--key", text, *at, *command[1:]]))
        try:
            details += _traces(text, key_report(subject.opened.scan(), key))
        except ScanError as error:  # a damaged table, which other checks report, or a key without a text form
            details.append(f"{text}: cannot be looked up: {error}")
    return replace(result, details=details, reproduce=commands)


def key_text(key: Mapping[str, Any]) -> str | None:
    """A key as `nevermore why --key` reads it; None if a value has no text that the command reads back."""
    parts = []
    for name, value in key.items():
        if "=" in name or isinstance(value, bytes | dict | list):
            return None
        text = "null" if value is None else str(value)
        is_ambiguous = isinstance(value, str) and (value.lower() == "null" or value[:1] == value[-1:] == "'")
        parts.append(f"{name}='{text}'" if is_ambiguous else f"{name}={text}")
    written = io.StringIO()
    csv.writer(written, lineterminator="").writerow(parts)
    return written.getvalue()


def _traces(text: str, report: KeyReport) -> list[str]:
    if report.seen_in is None:
        return [f"{text}: no snapshot of the table has a row with this key"]
    if report.seen_in != report.snapshot:
        gone = "" if report.removed_in is None else f"; snapshot {report.removed_in.snapshot_id} removed the files"
        return [f"{text}: last in {row.file} row {row.position}{gone}" for row in report.rows]
    return [
        f"{text}: alive in {row.file} row {row.position}"
        if row.deleted_by is None
        else f"{text}: in {row.file} row {row.position}, deleted by {row.deleted_by.path}"
        for row in report.rows
    ]
