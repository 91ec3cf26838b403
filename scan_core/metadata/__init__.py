"""Table metadata from files: metadata.json, manifest lists and manifests."""
