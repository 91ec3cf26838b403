"""Parts of the engine on which the writers and checks of this project build, listed in `parts.pyi`.

Readers of files, deletes by position, bitmap indexes, hashes of keys, texts of conditions and plans. They may change with
any version; users find what they need in `nevermore.scan_core`.
"""

from nevermore.scan_core.model.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
