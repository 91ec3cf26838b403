"""What became of a commit: it happened, another writer was faster, or nobody tells; whatever the catalog has answered.

A proxy may repeat a request that was done, whose second answer is a conflict, or give up while the catalog is at work.
Files are removed only after what `settle` calls a conflict.
"""

import logging
import sys
import time
from collections.abc import Callable
from typing import Any, Literal

from pipelines.errors import CommitConflictError, CommitUnknownError

ATTEMPTS = 5
PAUSE_SECONDS = 1.0
"""Before the second attempt, doubled before each one after it."""
Outcome = Literal["done", "lost", "open", "untold"]

_log = logging.getLogger(__name__)


def settle(
    table: Any, base_id: int | None, snapshot_id: int, request: Callable[[], None], *, is_staged: bool = False
) -> None:
    """Ask the catalog for a commit until it is known what became of it.

    The same request is made again where it may or may not have been done. It asks for a table whose current snapshot is
    the base, so it is done once at most; and once any attempt has met another snapshot, none that is still on its way
    can be done any more. A conflict that leaves the table at the base says nothing of an attempt before it, which may be
    what it met: catalogs lock their tables.

    Args:
        table: from the catalog; shows the snapshot afterwards.
        base_id: snapshot upon which the commit builds.
        snapshot_id: that it makes.
        request: the commit. It raises `CommitConflictError` where another writer is known to have been faster, and
            whatever the catalog's client raises.
        is_staged: the snapshot is there already, and the commit makes it the current one.

    Raises:
        CommitConflictError: it has not happened and never will.
        CommitUnknownError: it may have happened, or may yet.
    """
    name = ".".join(table.name())
    last: Exception | None = None
    is_on_its_way = False
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE_SECONDS * 2 ** (attempt - 1))
        try:
            request()
        except Exception as error:  # noqa: BLE001 - whatever it was: the table tells what became of the commit
            last = error
        else:
            return
        if attempt == 0 and isinstance(last, CommitConflictError):
            raise last
        outcome = _outcome(table, base_id, snapshot_id, is_staged=is_staged)
        if outcome == "done":
            _log.warning("%s: the commit has happened, though the answer was: %s", name, last)
            return
        is_conflict = _is_conflict(last)
        is_on_its_way |= not is_conflict
        is_known = isinstance(last, CommitConflictError) or not is_on_its_way
        if outcome == "lost" or (outcome == "open" and is_known):
            raise CommitConflictError(f"another writer changed {name}: {last}") from last
        if not is_conflict and not _may_pass(last):
            raise last
        _log.warning("%s: whether the commit has happened is not known yet: %s", name, last)
    raise CommitUnknownError(
        f"{name}: the catalog does not tell whether the commit happened ({last}); nothing was removed. Run again when it "
        "answers: what has happened is not done twice"
    ) from last


def _outcome(table: Any, base_id: int | None, snapshot_id: int, *, is_staged: bool) -> Outcome:
    """By the table as the catalog has it now: the snapshot is there, or another one builds upon the base, or none does."""
    try:
        now = table.catalog.load_table(table.name())
    except Exception as error:  # noqa: BLE001 - a catalog that does not answer tells nothing
        _log.warning("%s cannot be loaded: %s", ".".join(table.name()), error)
        return "untold"
    parents = {snapshot.snapshot_id: snapshot.parent_snapshot_id for snapshot in now.metadata.snapshots}
    if snapshot_id in (_line(now) if is_staged else parents):
        table.metadata, table.metadata_location, table.io = now.metadata, now.metadata_location, now.io
        return "done"
    at = now.metadata.current_snapshot_id
    if at == base_id:
        return "open"
    while at in parents:
        at = parents[at]
        if at == base_id:
            return "lost"
    return "untold"  # the way back to the base has expired, or was rolled back: the snapshot may have been on it


def _line(table: Any) -> set[int]:
    """The current snapshot and its ancestors."""
    parents = {snapshot.snapshot_id: snapshot.parent_snapshot_id for snapshot in table.metadata.snapshots}
    found: set[int] = set()
    at = table.metadata.current_snapshot_id
    while at in parents and at not in found:
        found.add(at)
        at = parents[at]
    return found


def _is_conflict(error: Exception) -> bool:
    from pyiceberg.exceptions import CommitFailedException

    return isinstance(error, (CommitFailedException, CommitConflictError))


def _may_pass(error: Exception) -> bool:
    """Whether a catalog, or what stands before it, fails in this way while it is in trouble."""
    from pyiceberg.exceptions import CommitStateUnknownException, ServerError, ServiceUnavailableError
    from requests import RequestException

    kinds: tuple[type[BaseException], ...] = (CommitStateUnknownException, ServerError, ServiceUnavailableError)
    kinds = (*kinds, RequestException, ConnectionError, TimeoutError)
    if (alchemy := sys.modules.get("sqlalchemy.exc")) is not None:
        kinds = (*kinds, alchemy.OperationalError)
    return isinstance(error, kinds)
