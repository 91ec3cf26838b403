"""Which target takes the events of which table of a feed: by name, the same however the events are cut into batches.

A full name (or `source_table`) decides by itself. Where only the last part fits, or nothing and the feed has a single
target, the first table that comes is claimed; the claim goes into the position of the source, so later batches agree.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from pipelines.errors import SourceError
from pipelines.formats.events import Events
from pipelines.formats.feed import TableFeed, matches

OTHER_TABLE = -1
NO_TABLE = -2

_NONE, _ANY, _LAST_PART, _FULL, _TOLD = range(5)


def route(
    events: Events, tables: tuple[TableFeed, ...], claims: Mapping[str, str], *, is_open: bool = False
) -> tuple[NDArray[np.int64], dict[str, str]]:
    """Per table of the feed the index of the target that takes it, and the claims afterwards.

    OTHER_TABLE stands for tables that nobody takes, NO_TABLE for events without a name that may be meant for several.
    In an open feed (`FeedConfig.is_open`) only names count, even of a single target.

    Raises:
        SourceError: it is in doubt which table a target without `source_table` takes.
    """
    alone = len(tables) == 1 and not is_open
    result = np.full(max(len(events.tables), 1), OTHER_TABLE, np.int64)
    wanted: dict[int, dict[str, int]] = {}
    named: set[int] = set()
    for code in np.unique(events.table_of[events.op != 0]).tolist():
        source = events.tables[code]
        number, fit = _best(source, tables, alone=alone)
        if fit >= _FULL:
            result[code] = number
            if fit == _FULL:
                wanted.setdefault(number, {})
                named.add(number)
        elif not source:
            result[code] = 0 if alone else NO_TABLE
        elif fit > _NONE:
            wanted.setdefault(number, {})[source] = code
    after = dict(claims)
    for number, candidates in wanted.items():
        earlier = after.get(tables[number].name)
        claimed = _claimed(tables[number], candidates, earlier, has_full=number in named)
        if claimed is not None:
            after[tables[number].name] = claimed
        if claimed in candidates:
            result[candidates[claimed]] = number
    return result, after


def _claimed(table: TableFeed, candidates: Mapping[str, int], claimed: str | None, *, has_full: bool) -> str | None:
    """The table of the feed that this target takes beside those of its full name.

    Raises:
        SourceError: several come into question, or rows of a table that fitted less well are applied already.
    """
    if claimed is None and has_full:
        # Its own name is the best that can come, so no other is taken from now on.
        return table.name
    if claimed == table.name:
        return claimed
    fits = {source: _fit(source, table, alone=True) for source in candidates}
    best = max([*fits.values(), _FULL if has_full else _NONE])
    if claimed is not None:
        if best > _fit(claimed, table, alone=True):
            better = table.name if has_full else next(s for s, fit in fits.items() if fit == best)
            raise SourceError(
                f"{table.name} takes the events of {claimed}, and now the feed carries {better}; say which is meant: "
                "source_table"
            )
        return claimed
    named = [source for source, fit in fits.items() if fit == best]
    if len(named) != 1:
        shown = ", ".join(sorted(named)[:10])
        raise SourceError(f"the feed carries {len(named)} tables ({shown}); say which is {table.name}: source_table")
    return named[0]


def _best(source: str, tables: tuple[TableFeed, ...], *, alone: bool) -> tuple[int, int]:
    """The target that a table of the feed fits best, and how well.

    Raises:
        SourceError: only the last part of its name fits, and that of several targets.
    """
    fits = [_fit(source, table, alone=alone) for table in tables]
    best = max(fits, default=_NONE)
    if best == _LAST_PART and fits.count(best) > 1:
        names = " and ".join(table.name for table, fit in zip(tables, fits, strict=True) if fit == best)
        raise SourceError(f"the feed carries {source}, which may be {names}; say which: source_table")
    # Of several patterns the last one wins: the general one is written first.
    return (len(fits) - 1 - fits[::-1].index(best) if fits else 0), best


def _fit(source: str, table: TableFeed, *, alone: bool) -> int:
    if table.source_table is not None:
        return _TOLD if table.takes(source) else _NONE
    if not source:
        return _NONE
    if matches(source, table.name):
        return _FULL
    if source.rsplit(".", 1)[-1] == table.name.rsplit(".", 1)[-1]:
        return _LAST_PART
    return _ANY if alone else _NONE
