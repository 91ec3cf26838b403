"""What a mirror's change log tells of one key: for keys of which no snapshot of the mirror ever had a row.

Changes that came and went within one batch leave no trace in the mirror, for a batch is folded first.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scan_core.expr.nodes import Constantish, Expr, col
from scan_core.schema import StructType
from scan_core.table import Table

MOST_CHANGES = 20
_COLUMNS = ("ordinal", "op", "source_file", "source_offset", "source_ts")


@dataclass(frozen=True, slots=True)
class LoggedChange:
    """A change as the log has it; `op` is that of Debezium: r, c, u or d."""

    ordinal: int
    op: str
    source_file: str | None
    source_offset: int | None
    source_ts: datetime | None


@dataclass(frozen=True, slots=True)
class KeyLog:
    """The newest changes of a key, oldest first, and how many there are in all."""

    name: str
    num_changes: int
    newest: tuple[LoggedChange, ...]

    @property
    def ends_deleted(self) -> bool:
        """The last change removed the row."""
        return bool(self.newest) and self.newest[-1].op == "d"


def key_log(name: str, log: Table, key: Mapping[str, Constantish]) -> KeyLog | None:
    """The changes of a key in a change log.

    Args:
        name: of the log, for messages.
        log: the change log's table.
        key: columns and values; None if the log does not know one of the columns, or has no snapshot.
    """
    members = {column: _place(log, column) for column in key}
    if not members or any(place is None for place in members.values()):
        return None
    scan = log.scan()
    for column, place in members.items():
        scan = scan.where(_is(col(str(place)).member(column), key[column]))
    rows: list[dict[str, Any]] = scan.select(*_COLUMNS).to_table().sort_by("ordinal").to_pylist()
    return KeyLog(name, len(rows), tuple(LoggedChange(**row) for row in rows[-MOST_CHANGES:]))


def _place(log: Table, column: str) -> str | None:
    """The struct of the log that holds a column: the key, or the row after the change."""
    for place in ("key", "after"):
        if place in log.schema.names:
            kind = log.schema.find(place).type
            if isinstance(kind, StructType) and any(member.name == column for member in kind.fields):
                return place
    return None


def _is(operand: Expr, value: Constantish) -> Expr:
    return operand.is_null() if value is None else operand == value
