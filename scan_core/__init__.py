"""A columnar scan engine for Apache Iceberg tables with deletes.

Names load on first use: a worker that only unpickles a split loads no planner, no SQL parser and no catalog client.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scan_core.diff import Changes
    from scan_core.expr.nodes import col
    from scan_core.joins.late_keys import LateKeys
    from scan_core.model.errors import (
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
    from scan_core.model.metrics import ScanMetrics
    from scan_core.model.options import ScanOptions
    from scan_core.scan import Scan, Table, open_table
    from scan_core.semi_join import induced_ranges

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
    "Changes": "scan_core.diff",
    "LateKeys": "scan_core.joins.late_keys",
    "Scan": "scan_core.scan",
    "ScanMetrics": "scan_core.model.metrics",
    "ScanOptions": "scan_core.model.options",
    "Table": "scan_core.scan",
    "col": "scan_core.expr.nodes",
    "induced_ranges": "scan_core.semi_join",
    "open_table": "scan_core.scan",
}
"""Where the public names live; all others are errors."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'scan_core' has no attribute {name!r}")
    value = getattr(import_module(_MODULES.get(name, "scan_core.model.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
