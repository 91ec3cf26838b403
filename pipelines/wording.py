"""How messages write numbers of things."""

from collections.abc import Mapping
from typing import Any

KINDS = {"c": "create", "u": "update", "d": "delete", "r": "snapshot read", "t": "truncate"}


def counted(number: int, noun: str) -> str:
    """`1 file`, `2,000 files`, `2 indexes`."""
    ending = "" if number == 1 else "es" if noun.endswith("x") else "s"
    return f"{number:,} {noun}{ending}"


def counts(by_kind: Mapping[str, int]) -> str:
    """`data files: 3, manifests: 1`."""
    return ", ".join(f"{what}: {number:,}" for what, number in by_kind.items())


def applied_text(table: Any) -> str:
    """What a `TableReport` says, in one line: `shop.orders: 2 updates; 2 rows and 2 deletes in 1 commit, snapshot 1`."""
    if table.status != "applied":
        return f"{table.table}: {table.error or table.status}"
    events = ", ".join(counted(number, KINDS[op]) for op, number in sorted(table.events.items()))
    result = "nothing to commit"
    if table.mirror_commits:
        written = f"{counted(table.data_rows, 'row')} and {counted(table.delete_rows, 'delete')}"
        result = f"{written} in {counted(table.mirror_commits, 'commit')}, snapshot {table.snapshot_id}"
    return f"{table.table}: {events or 'no events'}; {result}"
