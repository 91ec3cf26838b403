"""Paths, bytes and secrets: locations, files, object stores, the catalog library, private files, caches of a process."""

from nevermore.scan_core.model.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
