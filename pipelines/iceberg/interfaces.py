"""The part of a table's interface that reading needs, shared by PyIceberg's tables and those of `sqlite_catalog.py`.

Functions that only read take a `ReadableTable`; functions that commit take PyIceberg's `Table`.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # names for other packages, which do not import PyIceberg
    from pyiceberg.catalog import Catalog as Catalog  # noqa: PLC0414 - exported
    from pyiceberg.table import Table as Table  # noqa: PLC0414 - exported


class ReadableSummary(Protocol):
    """The summary of a snapshot; items are its properties, None for missing ones."""

    @property
    def operation(self) -> Enum: ...  # noqa: D102 - the specification's word
    @property
    def additional_properties(self) -> Mapping[str, str]: ...  # noqa: D102 - all properties but the operation
    def __getitem__(self, name: str, /) -> str | None: ...


class ReadableSnapshot(Protocol):
    """A snapshot."""

    @property
    def snapshot_id(self) -> int: ...  # noqa: D102 - these are the specification's words
    @property
    def parent_snapshot_id(self) -> int | None: ...  # noqa: D102
    @property
    def timestamp_ms(self) -> int: ...  # noqa: D102
    @property
    def summary(self) -> ReadableSummary | None: ...  # noqa: D102


class ReadableMetadata(Protocol):
    """The metadata of a table; snapshots are in the order of the file, parents before their children."""

    @property
    def properties(self) -> Mapping[str, str]: ...  # noqa: D102 - these are the specification's words
    @property
    def snapshots(self) -> Sequence[ReadableSnapshot]: ...  # noqa: D102
    @property
    def current_snapshot_id(self) -> int | None: ...  # noqa: D102


class ReadableIO(Protocol):
    """Access to the files of a table."""

    @property
    def properties(self) -> Mapping[str, Any]: ...  # noqa: D102 - of PyIceberg's FileIO


class ReadableTable(Protocol):
    """A table from a catalog."""

    @property
    def metadata(self) -> ReadableMetadata: ...  # noqa: D102 - these are PyIceberg's words
    @property
    def metadata_location(self) -> str: ...  # noqa: D102
    @property
    def io(self) -> ReadableIO: ...  # noqa: D102
    @property
    def format_version(self) -> int: ...  # noqa: D102
    def name(self) -> tuple[str, ...]: ...  # noqa: D102
    def location(self) -> str: ...  # noqa: D102
