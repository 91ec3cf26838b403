"""What tables state of themselves: metadata.json, manifest lists, manifests, types, transforms and reserved fields."""

from nevermore.scan_core.model.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
