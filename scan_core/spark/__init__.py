"""Scans in Spark: DataFrames, a data source, SQL, and the reports of tasks."""

from nevermore.scan_core.model.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
