"""Change batches by hand, and a mirror with its change log to apply them to."""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from nevermore.pipelines.changes.change_log import ChangeLog
from nevermore.pipelines.config.tables import TableConfig
from nevermore.pipelines.decode.batches import ChangeBatch, Rejected, change_schema
from nevermore.pipelines.mirrors.mirror import Applied, Mirror
from tests.pipelines.iceberg_tables import catalog_in, reloaded, rows_of

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
Change = dict[str, Any]


def change(op: str, row: dict[str, Any] | None = None, **more: Any) -> Change:
    """A change: `row` after it (before it, for a delete); `key`, `before` and `unchanged` by name."""
    after = None if op in "dt" else row
    before = more.get("before", row if op == "d" else None)
    return {"op": op, "after": after, "before": before, "key": more.get("key"), "unchanged": more.get("unchanged")}


def batch_of(changes: Sequence[Change], row_type: dict[str, pa.DataType], key: Sequence[str] = ("id",)) -> ChangeBatch:
    """The batch of these changes; the key of each is that of its row before, unless it is given."""
    struct = pa.struct(list(row_type.items()))
    rows = []
    for offset, c in enumerate(changes, start=1):
        source = c["key"] or c["before"] or c["after"]
        rows.append(
            {
                **c,
                "key": None if c["op"] == "t" else {k: source[k] for k in key},
                "source_file": "file",
                "source_offset": offset,
                "source_ts": NOW,
                "ingested_at": NOW,
                "schema_version": 0,
            }
        )
    return ChangeBatch(pa.Table.from_pylist(rows, change_schema(struct, key)), struct, tuple(key))


@dataclass
class Pipeline:
    """A table's change log and mirror in a folder; every `run` is what a process of its own would do."""

    folder: Path
    row_type: dict[str, pa.DataType]
    key: tuple[str, ...] = ("id",)
    options: dict[str, Any] = field(default_factory=dict)
    runs: int = 0
    rejected: list[Rejected] = field(default_factory=list)

    def run(self, *changes: Change) -> list[Applied]:
        """Log the changes and bring the mirror up to date."""
        self.log(*changes)
        return self.catch_up()

    def log(self, *changes: Change) -> None:
        self.runs += 1
        log = ChangeLog(catalog_in(self.folder), "change_log.shop_t")
        log.append(batch_of(changes, self.row_type, self.key), f"run {self.runs}")

    def catch_up(self) -> list[Applied]:
        log = ChangeLog(catalog_in(self.folder), "change_log.shop_t")
        config = TableConfig.model_validate({"source": {"path": "x"}, **self.options})
        mirror = Mirror(catalog_in(self.folder), "shop.t", config, self.key)
        return list(mirror.catch_up(log, reject=self.rejected.append))

    @property
    def table(self) -> Any:
        return reloaded(catalog_in(self.folder))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The mirror's live rows, by id."""
        return rows_of(self.table)
