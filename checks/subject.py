"""What a check looks at: a table as the engine reads it, as its own files say, and as the log of changes demands.

Each view is computed once per subject. Tables are named by metadata file or folder, so that no catalog is needed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

import scan_core
from checks.reference.expected_rows import AdoptedRows, Folded, KeyRange, fold_log, live_rows
from pipelines.iceberg.positions import LOG_ORDINAL, LOG_SNAPSHOT
from pipelines.mirrors.table_shape import ADOPTED, ADOPTED_ORDINAL, ADOPTED_SNAPSHOT

DELETED_FLAG = "_deleted"
"""The column of a mirror in soft-delete mode: its rows that are true count as gone."""


@dataclass(frozen=True)
class Subject:
    """A mirror or published table to check.

    Attributes:
        table: metadata file or folder of the table.
        key: columns that identify a row.
        change_log: metadata file or folder of the log that the table follows; None where there is none.
        soft_delete: whether deleted rows stay in the table, flagged.
        up_to_ordinal: the last change that the table must contain; None reads it from the table's snapshots, where
            the mirror's writer leaves it.
        relocate: old path prefix -> new path prefix, for both tables.
        sample_rows: if the table has more rows, compare whole rows only within a range of the first key column with
            about so many; another range for each snapshot. None compares all.
    """

    table: str
    key: tuple[str, ...]
    change_log: str | None = None
    soft_delete: bool = False
    up_to_ordinal: int | None = None
    relocate: Mapping[str, str] | None = None
    sample_rows: int | None = None

    @cached_property
    def opened(self) -> scan_core.Table:
        """The table, opened by the engine."""
        return scan_core.open_table(self.table, relocate=self.relocate)

    @cached_property
    def key_range(self) -> KeyRange | None:
        """The range to which the comparison of whole rows is limited."""
        snapshot_id = self.opened.metadata.current_snapshot_id
        if self.sample_rows is None or not self.key or snapshot_id is None:
            return None
        if self.opened.scan().count() <= self.sample_rows:
            return None
        column = self.opened.scan().select(self.key[0]).to_table().column(0).drop_null()
        ranks = pc.array_sort_indices(column)
        first = snapshot_id % max(len(ranks) - self.sample_rows, 1)
        last = min(first + self.sample_rows, len(ranks)) - 1
        return KeyRange(self.key[0], column[ranks[first].as_py()], column[ranks[last].as_py()])

    @cached_property
    def engine_rows(self) -> pa.Table:
        """All rows that the engine returns, within `key_range` if there is one."""
        scan = self.opened.scan()
        if self.key_range is not None:
            column = scan_core.col(self.key_range.column)
            scan = scan.where(column >= self.key_range.low.as_py()).where(column <= self.key_range.high.as_py())
        return scan.to_table()

    @cached_property
    def engine_keys(self) -> pa.Table:
        """The key columns of the rows that the engine returns and that count as alive."""
        scan = self.opened.scan()
        if self.soft_delete:
            scan = scan.where(f"`{DELETED_FLAG}` is null or not `{DELETED_FLAG}`")
        return scan.select(*self.key).to_table()

    @cached_property
    def file_rows(self) -> pa.Table:
        """The rows that the table's own files and manifests make alive, read without the engine."""
        return live_rows(self.table, within=self.key_range, relocate=self.relocate)

    @cached_property
    def applied(self) -> tuple[int | None, int | None]:
        """Snapshot of the log and last ordinal that the table's newest carrier of a position names; else (None, None)."""
        metadata = self.opened.metadata
        newest = metadata.current_snapshot_id
        for snapshot in metadata.ancestors(newest) if newest is not None else ():
            if LOG_ORDINAL in snapshot.summary:
                of_log = snapshot.summary.get(LOG_SNAPSHOT)
                return int(of_log) if of_log else None, int(snapshot.summary[LOG_ORDINAL])
        return None, None

    @cached_property
    def why_not_by_log(self) -> str | None:
        """Why the log cannot tell all rows of an adopted table; None if it can, together with the adopted rows."""
        properties = self.opened.metadata.properties
        if ADOPTED not in properties:
            return None
        snapshot_id = properties.get(ADOPTED_SNAPSHOT)
        if snapshot_id is None:
            return "the table was adopted, and does not tell with which rows"
        if snapshot_id and int(snapshot_id) not in self.opened.metadata.snapshots:
            return f"snapshot {snapshot_id}, with whose rows the table was adopted, has expired"
        return None

    @cached_property
    def adopted(self) -> AdoptedRows | None:
        """The rows that the table had before its log, where it was adopted and they are still known."""
        properties = self.opened.metadata.properties
        if ADOPTED not in properties or self.why_not_by_log is not None:
            return None
        snapshot_id = properties[ADOPTED_SNAPSHOT]
        return AdoptedRows(
            self.table,
            int(snapshot_id) if snapshot_id else None,
            int(properties.get(ADOPTED_ORDINAL, 0)),
            DELETED_FLAG if self.soft_delete else None,
        )

    @cached_property
    def folded(self) -> Folded:
        """What log and adopted rows demand, up to the last change that the table claims to contain.

        Raises:
            ValueError: the subject has no log.
        """
        if self.change_log is None:
            raise ValueError(f"{self.table} has no change log to compare with")
        ordinal = self.up_to_ordinal if self.up_to_ordinal is not None else self.applied[1]
        return fold_log(
            self.change_log,
            self.key,
            up_to_ordinal=ordinal,
            adopted=self.adopted,
            within=self.key_range,
            relocate=self.relocate,
        )
