"""A columnar scan engine for Apache Iceberg tables with deletes.

Names load on first use: a worker that only unpickles a split loads no planner, no SQL parser and no catalog client.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scan_core.changes.request import Changes
    from scan_core.errors import (
        ColumnNotFoundError,
        EvaluationError,
        MalformedTableError,
        MissingFileError,
        OptionError,
        PredicateError,
        ScanError,
        SnapshotNotFoundError,
        TableNotFoundError,
        UnsupportedError,
    )
    from scan_core.expr.nodes import col
    from scan_core.metrics import ScanMetrics
    from scan_core.options import ScanOptions
    from scan_core.runtime_filter.induced import induced_ranges
    from scan_core.runtime_filter.late_keys import LateKeys
    from scan_core.scan import Scan
    from scan_core.table import Table, open_table

__all__ = [
    "Changes",
    "ColumnNotFoundError",
    "EvaluationError",
    "LateKeys",
    "MalformedTableError",
    "MissingFileError",
    "OptionError",
    "PredicateError",
    "Scan",
    "ScanError",
    "ScanMetrics",
    "ScanOptions",
    "SnapshotNotFoundError",
    "Table",
    "TableNotFoundError",
    "UnsupportedError",
    "col",
    "induced_ranges",
    "open_table",
]

_MODULES = {
    "Changes": "scan_core.changes.request",
    "LateKeys": "scan_core.runtime_filter.late_keys",
    "Scan": "scan_core.scan",
    "ScanMetrics": "scan_core.metrics",
    "ScanOptions": "scan_core.options",
    "Table": "scan_core.table",
    "col": "scan_core.expr.nodes",
    "induced_ranges": "scan_core.runtime_filter.induced",
    "open_table": "scan_core.table",
}
"""Where the public names live; all others are errors."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'scan_core' has no attribute {name!r}")
    value = getattr(import_module(_MODULES.get(name, "scan_core.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
