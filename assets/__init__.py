"""What Dagster sees. Names load on first use: `nevermore ui` starts without Dagster's own imports."""

from nevermore.scan_core.parts import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
