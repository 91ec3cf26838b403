"""What a change log has reached, read from its table's metadata alone; it is written in `change_log.py`.

Loads no decoder and no writer, so that a run which finds nothing new starts quickly.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from nevermore.pipelines.config.tables import TableConfig
from nevermore.pipelines.decode.feed import ORDER, POSITION
from nevermore.pipelines.errors import ConfigError, PositionLostError
from nevermore.pipelines.iceberg import positions
from nevermore.pipelines.iceberg.catalog import find_table
from nevermore.pipelines.iceberg.loaded_table import check_writable, current_schema, storage_of
from nevermore.scan_core import Schema, StructType, arrow_type

if TYPE_CHECKING:
    from nevermore.pipelines.iceberg.catalog import LightCatalog
    from nevermore.pipelines.iceberg.interfaces import Catalog
    from nevermore.pipelines.iceberg.interfaces import Table as CatalogTable


@dataclass(frozen=True, slots=True)
class LogBase:
    """The part of a change log that does not hold every change any more, but changes that lead to the same rows.

    Attributes:
        ordinal: the last change that it stands for; the log holds all later ones.
        num_changes: the changes in it.
    """

    ordinal: int = 0
    num_changes: int = 0

    @classmethod
    def of(cls, table: "CatalogTable") -> "LogBase":
        """The base of a change log; an empty one if every change is held."""
        text = positions.newest_property(table, positions.LOG_BASE)
        return cls() if text is None else cls(*map(int, text.split()))

    @property
    def properties(self) -> dict[str, str]:
        """Summary properties of the snapshots that have it."""
        return {positions.LOG_BASE: f"{self.ordinal} {self.num_changes}"} if self.ordinal else {}


class LogState:
    """The state of a change log when it was last looked at."""

    def __init__(self, catalog: "Catalog | LightCatalog", name: str) -> None:
        self.name = name
        self._catalog = cast("Catalog", catalog)  # a LightCatalog only where nothing is written
        self.table = find_table(self._catalog, name)
        self._read_state()

    def _read_state(self) -> None:
        self.position: str | None = None
        self.last_ordinal = 0
        self.reload_from: int | None = None
        """First ordinal of a load that is not complete; 0 if the last one is, None without any."""
        self.base = LogBase()
        self.order_by = self.order_reached = None
        if self.table is None:
            return
        check_writable(self.table)
        storage = storage_of(self.table)
        for snapshot in positions.ancestors(self.table):
            self.position = positions.position_in(positions.summary_properties(snapshot), storage)
            if self.position is not None:
                break
        ordinal = positions.newest_property(self.table, positions.LAST_ORDINAL)
        if (self.position is None or ordinal is None) and _has_rows(self.table):
            raise PositionLostError(
                f"{self.name} contains changes, but none of its snapshots has a source position: reading from the start "
                "would apply everything twice. Restore the snapshots that had it, or drop the table and its mirror"
            )
        self.last_ordinal = int(ordinal or 0)
        self.base = LogBase.of(self.table)
        reload = positions.newest_property(self.table, positions.RELOAD)
        self.reload_from = None if reload is None else int(reload)
        if ORDER in current_schema(self.table).names:
            self.order_by = positions.newest_property(self.table, positions.ORDER_BY)
            self.order_reached = positions.newest_property(self.table, positions.ORDER_REACHED)

    @property
    def snapshot_id(self) -> int | None:
        """The log's current snapshot."""
        return None if self.table is None else self.table.metadata.current_snapshot_id

    @property
    def is_reloading(self) -> bool:
        """Whether rows that take the place of all earlier ones are not logged completely."""
        return bool(self.reload_from)

    @property
    def ready_ordinal(self) -> int:
        """The last change that a mirror may have: those of a load that is not complete wait for its end."""
        return self.reload_from - 1 if self.reload_from else self.last_ordinal

    @property
    def schema(self) -> Schema | None:
        """The log's schema, or None before its first commit."""
        return None if self.table is None else current_schema(self.table)

    @property
    def row_types(self) -> dict[str, pa.DataType]:
        """Arrow type of every column of the rows logged so far."""
        return self._member_types("after")

    @property
    def key(self) -> tuple[str, ...]:
        """Key columns of the changes logged so far."""
        return tuple(self._member_types("key"))

    def _member_types(self, column: str) -> dict[str, pa.DataType]:
        schema = self.schema
        if schema is None or column not in schema.names:
            return {}
        struct = schema.find(column).type
        return {m.name: arrow_type(m.type) for m in struct.fields} if isinstance(struct, StructType) else {}

    def check_reached(self, mirror: str, applied: int) -> None:
        """Refuse to go on with a mirror that contains this log up to an ordinal from which the log does not lead on.

        Raises:
            PositionLostError: the log ends before it, or its base stands for more.
        """
        if applied > self.last_ordinal:
            raise PositionLostError(
                f"{mirror} holds changes up to {applied}, but {self.name} ends at {self.last_ordinal}: the log was "
                "re-made; rebuild the mirror"
            )
        if 0 < applied < self.base.ordinal:
            raise PositionLostError(
                f"{mirror} holds changes up to {applied}, but {self.name} has only the last change of each key "
                f"up to {self.base.ordinal}; rebuild the mirror: nevermore resync {mirror}"
            )

    def property(self, name: str) -> str | None:
        """A property of the table."""
        return None if self.table is None else self.table.metadata.properties.get(name)


def _has_rows(table: "CatalogTable") -> bool:
    snapshot = positions.current_snapshot(table)
    return snapshot is not None and (snapshot.summary is None or snapshot.summary["total-records"] != "0")


def order_text(config: TableConfig) -> str | None:
    """`order_by` as stored in change logs; None if the position in the source orders the changes."""
    return None if config.order_by == POSITION else ", ".join(config.order_by)


def check_order(name: str, config: TableConfig, log: LogState) -> None:
    """Refuse a config whose `order_by` differs from that of the changes logged so far.

    Raises:
        ConfigError: it differs; says what to do.
    """
    wanted = order_text(config)
    if wanted is not None and log.order_by is not None and wanted != log.order_by:
        raise ConfigError(
            f"{name}: order_by was [{log.order_by}] and is now [{wanted}]; changes cannot be compared with those in "
            f"{log.name}: restore the previous order_by, or drop {log.name} and {name} and ingest again"
        )
