"""The order in which a table's changes apply where its config names what orders them (`order_by`).

What is read at once is sorted. What comes later in the same run must not be older: it is refused, because what it was to
come before is applied already.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipelines.errors import ConfigError, SourceError
from pipelines.formats.events import Events
from pipelines.formats.feed import POSITION, TableFeed

Rows = NDArray[np.int64]
Reached = tuple[Any, ...]
"""The last change of a table so far, as the values that order it."""


def in_order(events: Events, rows: Rows, feed: TableFeed, reached: Reached | None) -> tuple[Rows, Reached | None]:
    """`rows` in the order of their table, and what is reached after them.

    Args:
        events: of the batch.
        rows: those of the table.
        feed: its config.
        reached: after the batch before of the same run.

    Raises:
        ConfigError: the events have nothing of the name that is to order them.
        SourceError: one is older than what is applied.
    """
    if feed.order_by == POSITION or not len(rows):
        return rows, reached
    columns = _columns(events, rows, feed.order_by)
    sort_keys = [(name, "ascending", "at_start") for name in columns]
    places = np.asarray(pc.sort_indices(pa.table(columns), sort_keys=sort_keys)).astype(np.int64)
    first, last = (tuple(column[int(at)].as_py() for column in columns.values()) for at in (places[0], places[-1]))
    if reached is not None and _comparable(first) < _comparable(reached):
        raise SourceError(
            f"{feed.name}: order_by {', '.join(feed.order_by)}: an event at {_shown(first)} comes after one at "
            f"{_shown(reached)} was applied. This run has more events than are put in order at once: raise "
            "memory_limit_bytes, or land fewer files at a time"
        )
    return rows[places], last


def _columns(events: Events, rows: Rows, order_by: Sequence[str]) -> dict[str, pa.Array]:
    """Values that order; those without a value (snapshots) come first."""
    columns = {}
    for number, path in enumerate(order_by):
        try:
            columns[str(number)] = events.order(path).take(pa.array(rows))
        except KeyError as error:
            raise ConfigError(f"order_by: events of this format have no {path}") from error
    return columns


def _comparable(values: Reached) -> tuple[tuple[bool, str, Any], ...]:
    """Values that compare even where one is missing or of another kind."""
    return tuple(
        (
            value is not None,
            "" if isinstance(value, int | float) else type(value).__name__,
            0 if value is None else value,
        )
        for value in values
    )


def _shown(values: Reached) -> str:
    return ", ".join(str(value) for value in values)
