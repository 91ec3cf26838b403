"""Chooses the checks of a mirror and loads what they look at.

Also detects rollbacks: changes that were applied once and are no longer applied.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import scan_core
from checks.comparison import CheckResult
from checks.equality import (
    NeedsAllRows,
    check_changed_keys,
    key_is_unique,
    mirror_equals_reference,
    no_deleted_row_reappears,
    removals_find_rows,
)
from checks.kept_results import KeptResults, ResultStore
from checks.manifest_facts import NAME as MANIFESTS
from checks.manifest_facts import manifests_match_files
from checks.subject import Subject
from pipelines.changes.change_log import ChangeLog
from pipelines.config.project import Config, change_log_name
from pipelines.errors import SourceError
from pipelines.iceberg.catalog import find_table, has_catalog, open_catalog
from pipelines.iceberg.loaded_table import metadata_location, storage_of
from pipelines.iceberg.positions import LAST_ORDINAL, LOG_ORDINAL, LOG_SNAPSHOT, newest_property
from pipelines.mirrors.table_shape import KEY
from scan_core import TableMetadata
from scan_core.io import parse_location

NAME = "nothing_was_rolled_back"


def nothing_was_rolled_back(subject: Subject) -> CheckResult:
    """The current snapshots of the mirror and its change log hold every change that they have held before."""
    mirror = subject.opened.metadata
    applied_log, applied = subject.applied
    details = list(_set_back(mirror, LOG_ORDINAL, "the mirror"))
    notes = list(_forgotten(mirror, "the mirror"))
    compared = {"last change applied": applied or 0}
    if subject.change_log is not None:
        log = scan_core.open_table(subject.change_log, relocate=subject.relocate).metadata
        details += _set_back(log, LAST_ORDINAL, "the change log")
        notes += _forgotten(log, "the change log")
        held = _held(log, LAST_ORDINAL)
        if held is not None:
            compared["last change in log"] = held
            if applied is not None and applied > held:
                details.append(f"the mirror holds changes up to {applied}, its change log only those up to {held}")
        line = _line(log)
        if applied_log in log.snapshots and applied_log not in line:
            details.append(
                f"the mirror holds the changes of snapshot {applied_log} of its change log, from which the log's current "
                "snapshot does not descend: the log was set back, or its changes were made anew"
            )
    return CheckResult(NAME, not details, compared, details=[*details, *notes])


def _set_back(metadata: TableMetadata, ordinal: str, what: str) -> Iterator[str]:
    """A snapshot that was the current one, and holds changes that the current one does not hold."""
    were_current = {entry.snapshot_id for entry in metadata.snapshot_log} or set(metadata.snapshots)
    reached = [
        (int(snapshot.summary[ordinal]), snapshot.snapshot_id)
        for snapshot in metadata.snapshots.values()
        if snapshot.snapshot_id in were_current and ordinal in snapshot.summary
    ]
    last, snapshot_id = max(reached, default=(0, 0))
    held = _held(metadata, ordinal) or 0
    if last > held:
        yield (
            f"{what} was set back: snapshot {snapshot_id} held the changes up to {last}, the current snapshot "
            f"{metadata.current_snapshot_id} holds those up to {held}; make snapshot {snapshot_id} the current one again"
            + (", or apply the changes again with nevermore ingest" if ordinal == LOG_ORDINAL else "")
        )


def _forgotten(metadata: TableMetadata, what: str) -> Iterator[str]:
    """Said where the newest snapshot is gone, which expiring old ones never takes: nothing tells what it held."""
    newest = max((s.sequence_number for s in metadata.snapshots.values()), default=0)
    if metadata.last_sequence_number > newest:
        yield (
            f"not compared: {what} has had snapshots that are newer than all that it has now "
            f"(sequence number {metadata.last_sequence_number}, now {newest}): nothing tells what they held"
        )


def _held(metadata: TableMetadata, ordinal: str) -> int | None:
    """The last change that the current snapshot holds; None where it does not tell."""
    if metadata.current_snapshot_id is None:
        return None
    line = metadata.ancestors(metadata.current_snapshot_id)
    return next((int(s.summary[ordinal]) for s in line if ordinal in s.summary), None)


def _line(metadata: TableMetadata) -> set[int]:
    """The current snapshot and its ancestors."""
    if metadata.current_snapshot_id is None:
        return set()
    return {s.snapshot_id for s in metadata.ancestors(metadata.current_snapshot_id)}


MirrorCheck = Callable[[Subject], CheckResult]

MIRROR_CHECKS: Mapping[str, MirrorCheck] = {
    "no_deleted_row_reappears": no_deleted_row_reappears,
    "mirror_equals_reference": mirror_equals_reference,
    "key_is_unique": key_is_unique,
    "removals_find_rows": removals_find_rows,
    MANIFESTS: manifests_match_files,
    NAME: nothing_was_rolled_back,
}
"""By name, in the order in which people read them."""
FULL_CHECK_AFTER_SECONDS = 24 * 3600.0
"""Since all rows of a mirror were compared, after which the next check compares them all again."""
KEYLESS_CHECKS = ("mirror_equals_reference", "removals_find_rows", MANIFESTS, NAME)
"""What can be said of a table whose rows have no key (`identity: full`); `removals_find_rows` of no other.

With a key, a delete of a row that is not there leaves no wrong row: streams begin in mid-table, and events come twice.
"""
KEYED_CHECKS = ("no_deleted_row_reappears", "mirror_equals_reference", "key_is_unique", MANIFESTS, NAME)

_log = logging.getLogger(__name__)


def checks_of(config: Config, table: str) -> dict[str, MirrorCheck]:
    """The checks that apply to a mirror."""
    names = KEYLESS_CHECKS if config.tables[table].identity == "full" else KEYED_CHECKS
    return {name: MIRROR_CHECKS[name] for name in names}


def mirror_subject(config: Config, table: str, metadata: str | None = None) -> Subject | None:
    """The mirror and its change log, by their current metadata files; None where nothing was ingested yet.

    Args:
        config: the project.
        table: a mirror of it.
        metadata: an earlier metadata file of the mirror, to look at the snapshot that was current then.
    """
    if not has_catalog(config):
        return None
    catalog = open_catalog(config)
    mirror = find_table(catalog, table)
    log = ChangeLog(catalog, change_log_name(table))
    if mirror is None or log.table is None:
        return None
    settings = config.tables[table]
    return Subject(
        table=metadata or str(mirror.metadata_location),
        key=() if settings.identity == "full" else log.key or _declared_key(mirror),
        change_log=str(log.table.metadata_location),
        soft_delete=settings.soft_delete,
    )


def _declared_key(mirror: Any) -> tuple[str, ...]:
    """What an adopted table says of its key: the log knows it from the first change on."""
    return tuple(filter(None, mirror.metadata.properties.get(KEY, "").split(",")))


def run_checks(config: Config, table: str, names: Iterable[str]) -> Iterator[CheckResult]:
    """Checks of a mirror by name, over all rows of one state of it, whose results are kept.

    What is no mirror yet passes, and is said to be what it is.
    """
    subject = mirror_subject(config, table)
    if subject is None:
        yield from _without_subject(config, table, names).values()
        return
    found: dict[str, CheckResult] = {}
    began = time.time()
    for name in names:
        found[name] = MIRROR_CHECKS[name](subject)
        yield found[name]
    store, snapshot_id = _store(config, table, subject), _snapshot_id(subject)
    earlier = store.find(snapshot_id)
    if earlier is not None and earlier.since is None:
        store.keep(KeptResults(snapshot_id, {**earlier.results, **found}, None, min(began, earlier.full_at)))
    else:
        store.keep(KeptResults(snapshot_id, found, None, began))


def snapshot_results(config: Config, table: str, metadata: str | None = None) -> KeptResults:
    """The results of all checks of one snapshot of a mirror: those that are kept, else found out now and kept.

    Where an earlier snapshot has passed, only the keys that changed since are compared, unless all rows were compared
    too long ago, or the changes cannot tell.

    Args:
        config: the project.
        table: a mirror of it.
        metadata: the metadata file by which the snapshot is the current one; None for that of the catalog.
    """
    names = list(checks_of(config, table))
    if metadata is not None and not parse_location(metadata).is_local:
        return _not_compared(names, "the reference reads local files only")
    subject = mirror_subject(config, table, metadata)
    if subject is None:
        return KeptResults(0, _without_subject(config, table, names), None, time.time())
    store, snapshot_id = _store(config, table, subject), _snapshot_id(subject)
    kept = store.find(snapshot_id)
    if kept is not None and set(names) <= set(kept.results):
        # the same snapshot may have become the current one again since
        return replace(kept, results={**kept.results, NAME: nothing_was_rolled_back(subject)})
    made = _since_green(subject, store, names) or KeptResults(
        snapshot_id, {name: MIRROR_CHECKS[name](subject) for name in names}, None, time.time()
    )
    store.keep(made)
    return made


def is_known_green(config: Config, table: str, snapshot_id: int | None) -> bool:
    """Whether the checks of a snapshot of a mirror have passed, as far as results are kept; nothing is checked now."""
    subject = mirror_subject(config, table)
    if subject is None or not parse_location(subject.table).is_local:
        return False
    kept = _store(config, table, subject).find(snapshot_id or 0)
    return kept is not None and kept.is_green(checks_of(config, table))


def _since_green(subject: Subject, store: ResultStore, names: Iterable[str]) -> KeptResults | None:
    """The results by the keys that changed since the last snapshot that has passed; None where all rows are to be compared."""
    snapshot_id = _snapshot_id(subject)
    for snapshot in subject.opened.metadata.ancestors(snapshot_id)[1:] if snapshot_id else ():
        green = store.find(snapshot.snapshot_id)
        if green is None or not green.is_green(names):
            continue
        if time.time() - green.full_at > FULL_CHECK_AFTER_SECONDS:
            _log.info(
                "%s: all rows are compared: they were last %s seconds ago", subject.table, FULL_CHECK_AFTER_SECONDS
            )
            return None
        found = check_changed_keys(subject, green.snapshot_id)
        if isinstance(found, NeedsAllRows):
            _log.info("%s: all rows are compared: %s", subject.table, found.reason)
            return None
        found[MANIFESTS] = manifests_match_files(subject, since=green.snapshot_id)
        found[NAME] = nothing_was_rolled_back(subject)
        return KeptResults(snapshot_id, {n: found[n] for n in names}, green.snapshot_id, green.full_at)
    return None


def _not_compared(names: Iterable[str], reason: str) -> KeptResults:
    passed = {name: CheckResult(name, passed=True, details=[f"not compared: {reason}"]) for name in names}
    return KeptResults(0, passed, None, time.time())


def _snapshot_id(subject: Subject) -> int:
    return subject.opened.metadata.current_snapshot_id or 0


def _store(config: Config, table: str, subject: Subject) -> ResultStore:
    mirror = find_table(open_catalog(config), table)
    if mirror is None:
        raise SourceError(f"{table} has vanished")
    return ResultStore(subject, storage_of(mirror), metadata_location(mirror))


def _without_subject(config: Config, table: str, names: Iterable[str]) -> dict[str, CheckResult]:
    """The results where there is nothing to compare with; they fail if there was."""
    found = find_table(open_catalog(config), table) if has_catalog(config) else None
    if found is not None and newest_property(found, LOG_SNAPSHOT):
        reason = (
            f"{table} follows the change log {change_log_name(table)}, which the catalog does not have any more, so nothing "
            "tells whether its rows are right; register the log again, or build the mirror anew"
        )
        return {name: CheckResult(name, passed=False, details=[reason]) for name in names}
    reason = _why_not_compared(config, table)
    return {name: CheckResult(name, passed=True, details=[reason]) for name in names}


def _why_not_compared(config: Config, table: str) -> str:
    found = find_table(open_catalog(config), table) if has_catalog(config) else None
    if found is None:
        return f"{table} does not exist yet: nothing to compare"
    if newest_property(found, LOG_ORDINAL) is not None:
        return f"{table} has no change log, like an adopted table before its first change: nothing to compare it with"
    return (
        f"{table} exists, but is no mirror: others made it, and no change log is applied to it, so there is nothing to "
        f"compare; nevermore adopt {table} makes it one, or says why it cannot"
    )
