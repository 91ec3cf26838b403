"""Iceberg tables as they are written: files, manifests, schemas and snapshots, independent of what the rows mean."""
