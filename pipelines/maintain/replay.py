"""Part of a change log applied to its mirror once more: keys touched in a range are brought to what the log says.

Of those keys every later change is applied too, so replaying an old range never brings old rows back. Making the whole
mirror anew is `maintain/resync.py`.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.changes.change_log import ORDINAL, ChangeLog, read_changes
from pipelines.changes.change_run import BATCH_SHARE, ChangeRun
from pipelines.changes.keys import KeySet, keys_touched
from pipelines.changes.quarantine import quarantine
from pipelines.config.project import Config, change_log_name, quarantine_name
from pipelines.decode.batches import Rejected
from pipelines.errors import ConfigError, SourceError
from pipelines.iceberg.loaded_table import open_current
from pipelines.iceberg.row_shape import distinct_rows
from pipelines.mirrors.mirror import Mirror

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Replayed:
    """Changes that were applied once more.

    Attributes:
        table: the mirror.
        first: first ordinal of the range.
        last: last ordinal of the range.
        num_changes: applied, those of the same keys after the range included.
        commits: snapshots of the mirror.
        snapshot_id: of the mirror afterwards.
        quarantined: changes newly rejected.
    """

    table: str
    first: int
    last: int
    num_changes: int
    commits: int
    snapshot_id: int | None
    quarantined: int


def replay(catalog: Any, config: Config, name: str, start: str | None, end: str | None) -> Replayed:
    """Apply the changes of a range once more.

    Args:
        catalog: with the tables.
        config: of the project.
        name: the mirror.
        start: first ordinal, or ISO time of ingestion (UTC unless it has an offset); None is the first change.
        end: last ordinal, or time; None is the last change that the mirror has.

    Raises:
        ConfigError: an unknown table, or a start or end that is neither number nor time.
        SourceError: nothing is in the range, or it holds what can only be mended by `resync`.
    """
    table_config = config.table(name)
    log = ChangeLog(catalog, change_log_name(name))
    mirror = Mirror(catalog, name, table_config, table_config.key or log.key)
    if log.table is None or mirror.table is None:
        raise SourceError(f"{name} has nothing to replay yet; ingest first")
    if table_config.identity == "full":
        raise SourceError(
            f"{name} has no key, so applying changes twice would count rows twice; use `nevermore resync`"
        )
    applied = mirror.applied_ordinal
    first = _ordinal(log, start, "from", 1)
    last = min(_ordinal(log, end, "to", applied), applied)
    if first > last:
        asked = " ".join(f"--{side} {text}" for side, text in (("from", start), ("to", end)) if text is not None)
        raise SourceError(f"no change of {name} lies within {asked}; its mirror has changes 1 to {applied}")
    _refuse_truncates(log, name, first, applied)
    quarantined = 0

    def keep(rejected: Rejected) -> None:
        nonlocal quarantined
        quarantined += quarantine(catalog, quarantine_name(name), rejected)

    limit = table_config.memory_limit_bytes // BATCH_SHARE
    logged = read_changes(log.table, first - 1, applied, limit)
    # One commit: after a part of them the mirror would show old rows again.
    with closing(ChangeRun.of(_concerned(logged, last, mirror.key), limit)) as changes:
        num_changes = changes.num_rows
        if num_changes == 0:
            raise SourceError(
                f"{log.name} has lost changes {first} to {last}; use `nevermore resync {name} --snapshot-source`"
            )
        mirror.reapply(changes, log, reject=keep)
    return Replayed(name, first, last, num_changes, 1, mirror.table.metadata.current_snapshot_id, quarantined)


def _concerned(logged: Iterator[pa.Table], last: int, key: tuple[str, ...]) -> Iterator[pa.Table]:
    """The changes up to `last`, and of those that follow all that concern the same rows, whatever keys they go on to have."""
    touched: list[pa.Table] = []
    for changes in logged:
        if changes.num_rows == 0:
            continue
        within = changes.filter(pc.less_equal(changes.column(ORDINAL), last))
        touched += [keys_touched(within, key)] if within.num_rows else []
        later = changes.slice(within.num_rows)
        chosen = np.zeros(later.num_rows, np.bool_)
        while touched and later.num_rows:
            found = _of(later, touched, key)
            if (found == chosen).all():
                break
            touched.append(keys_touched(later.filter(pa.array(found & ~chosen)), key))
            chosen = found
        if not touched:
            continue
        touched = [distinct_rows(pa.concat_tables(touched, promote_options="permissive"))]
        yield pa.concat_tables([within, later.filter(pa.array(chosen))])


def _of(changes: pa.Table, touched: list[pa.Table], key: tuple[str, ...]) -> Mask:
    """Which changes are of keys touched, before or after them."""
    keys = KeySet(pa.concat_tables(touched, promote_options="permissive").columns)
    found = keys.find(keys_touched(changes, key).columns) >= 0
    return np.logical_or(found[: changes.num_rows], found[changes.num_rows :])


def _refuse_truncates(log: ChangeLog, name: str, first: int, last: int) -> None:
    where = f"op = 't' and ordinal >= {first} and ordinal <= {last}"
    if open_current(log.table).scan().where(where).count():
        raise SourceError(
            f"{name} was truncated after change {first}, which concerns every row; use `nevermore resync`"
        )


def _ordinal(log: ChangeLog, text: str | None, side: str, default: int) -> int:
    if text is None:
        return default
    if text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"--{side} {text!r} is neither an ordinal nor an ISO time") from error
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    from scan_core import col

    arrived = col("ingested_at")
    scan = open_current(log.table).scan().select(ORDINAL)
    found = scan.where(arrived >= moment if side == "from" else arrived <= moment).to_table().column(ORDINAL)
    bounds = pc.min_max(found).as_py()
    return int((bounds["min"] or log.last_ordinal + 1) if side == "from" else bounds["max"] or 0)
