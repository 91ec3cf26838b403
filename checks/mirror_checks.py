"""Which checks a mirror of a project gets, and where their subject comes from: catalog and config."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from checks.deleted_rows import no_deleted_row_reappears
from checks.equality import mirror_equals_reference
from checks.keys import key_is_unique
from checks.result import CheckResult
from checks.subject import Subject
from pipelines.catalog import find_table, has_catalog, open_catalog
from pipelines.changes.change_log import ChangeLog
from pipelines.config import Config, change_log_name
from pipelines.tables.positions import LOG_ORDINAL, newest_property
from pipelines.tables.table_shape import KEY

MirrorCheck = Callable[[Subject], CheckResult]

MIRROR_CHECKS: Mapping[str, MirrorCheck] = {
    "no_deleted_row_reappears": no_deleted_row_reappears,
    "mirror_equals_reference": mirror_equals_reference,
    "key_is_unique": key_is_unique,
}
"""By name, in the order in which people read them."""
KEYLESS_CHECKS = ("mirror_equals_reference",)
"""What can be said of a table whose rows have no key (`identity: full`)."""


def checks_of(config: Config, table: str) -> dict[str, MirrorCheck]:
    """The checks that apply to a mirror."""
    if config.tables[table].identity == "full":
        return {name: MIRROR_CHECKS[name] for name in KEYLESS_CHECKS}
    return dict(MIRROR_CHECKS)


def mirror_subject(config: Config, table: str) -> Subject | None:
    """The mirror and its change log, by their current metadata files; None where nothing was ingested yet."""
    if not has_catalog(config):
        return None
    catalog = open_catalog(config)
    mirror = find_table(catalog, table)
    log = ChangeLog(catalog, change_log_name(table))
    if mirror is None or log.table is None:
        return None
    settings = config.tables[table]
    return Subject(
        table=str(mirror.metadata_location),
        key=() if settings.identity == "full" else log.key or _declared_key(mirror),
        change_log=str(log.table.metadata_location),
        soft_delete=settings.soft_delete,
    )


def _declared_key(mirror: Any) -> tuple[str, ...]:
    """What an adopted table says of its key: the log knows it from the first change on."""
    return tuple(filter(None, mirror.metadata.properties.get(KEY, "").split(",")))


def run_checks(config: Config, table: str, names: Iterable[str]) -> Iterator[CheckResult]:
    """Checks of a mirror by name, over one state of it; what is no mirror yet passes, and is said to be what it is."""
    subject = mirror_subject(config, table)
    for name in names:
        if subject is None:
            yield CheckResult(name, passed=True, details=[_why_not_compared(config, table)])
        else:
            yield MIRROR_CHECKS[name](subject)


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
