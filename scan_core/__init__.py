"""A columnar scan engine for Apache Iceberg tables with deletes: the names that its users need, listed in `__init__.pyi`.

Names load on first use: a worker that only unpickles a split loads no planner, no SQL parser and no catalog client.
"""

from nevermore.scan_core.model.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
