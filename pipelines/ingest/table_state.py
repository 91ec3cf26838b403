"""A table as earlier runs have left it, which `table_ingest.py` goes on from. Loads no decoder and no writer."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar, cast

from nevermore.pipelines.changes.log_state import LogState, check_order
from nevermore.pipelines.config.project import change_log_name
from nevermore.pipelines.config.tables import TableConfig
from nevermore.pipelines.iceberg.catalog import find_table
from nevermore.pipelines.iceberg.interfaces import ReadableTable
from nevermore.pipelines.iceberg.loaded_table import check_writable
from nevermore.pipelines.iceberg.positions import applied_ordinal, waiting_since
from nevermore.pipelines.ingest.report import TableReport
from nevermore.pipelines.ingest.table_patterns import SOURCE_TABLE
from nevermore.pipelines.mirrors.table_shape import ADOPTED, KEY, check_unchanged

if TYPE_CHECKING:
    from nevermore.pipelines.iceberg.catalog import LightCatalog
    from nevermore.pipelines.iceberg.interfaces import Catalog


class TableState:
    """A table as earlier runs have left it: its change log, its mirror, and whether they agree with the config."""

    def __init__(
        self,
        catalog: "Catalog | LightCatalog",
        name: str,
        config: TableConfig,
        report: TableReport,
        log: LogState | None = None,
    ) -> None:
        """`log` is its change log, if it is open already."""
        self.name = name
        self.config = config
        self.report = report
        self._catalog = cast("Catalog", catalog)  # a LightCatalog only where nothing is written
        self._state = LogState(catalog, change_log_name(name)) if log is None else log
        self._adopted_key: tuple[str, ...] = ()

    @property
    def position(self) -> str | None:
        """The position in the source up to which the change log contains it."""
        return self._state.position

    @property
    def last_ordinal(self) -> int:
        """The last change in the change log."""
        return self._state.last_ordinal

    @property
    def is_reloading(self) -> bool:
        """Whether rows that take the place of all earlier ones are not logged completely, so that the mirror waits for them."""
        return self._state.is_reloading

    @property
    def source_table(self) -> str | None:
        """The table of the feed for which a pattern of the config created this one."""
        return self._state.property(SOURCE_TABLE)

    @property
    def key(self) -> tuple[str, ...]:
        """Key columns, if the config or the adopted table states them."""
        return self.config.key or self._adopted_key

    def check(self) -> ReadableTable | None:
        """Refuse a config that contradicts the change log or the mirror; returns the mirror, if it exists.

        Raises:
            ConfigError: key, partitioning or order of the config differ from those of the existing tables.
        """
        mirror = find_table(self._catalog, self.name)
        if mirror is not None and ADOPTED in mirror.metadata.properties:
            self._adopted_key = tuple(filter(None, mirror.metadata.properties.get(KEY, "").split(",")))
        check_unchanged(self.name, self.config, log_name=self._state.name, logged_key=self._state.key, table=mirror)
        check_order(self.name, self.config, self._state)
        return mirror

    def is_at_rest(self) -> bool:
        """Whether the mirror contains all logged changes, and no deletes to convert, so that a run changes nothing here.

        Fills the report as such a run does.

        Raises:
            PipelineError: what a run reports for this table.
        """
        mirror = self.check()
        if mirror is not None:
            check_writable(mirror)
        applied = applied_ordinal(self.name, mirror)
        self._state.check_reached(self.name, applied)
        is_converted = self.config.deletes != "converted" or mirror is None or waiting_since(mirror) is None
        is_applied = applied == self._state.ready_ordinal and not self.is_reloading
        if self.position is None or not is_applied or not is_converted:
            return False
        self.report.log_snapshot_id = self._state.snapshot_id
        self.report.position = self.position
        if mirror is not None:
            self.report.snapshot_id = mirror.metadata.current_snapshot_id
        return True


State = TypeVar("State", bound=TableState)


def by_position(tables: Sequence[State]) -> dict[str | None, list[State]]:
    """Tables by their position in the source: those with the same position are read together."""
    groups: dict[str | None, list[State]] = {}
    for table in tables:
        groups.setdefault(table.position, []).append(table)
    return groups
