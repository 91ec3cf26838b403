"""Iceberg tables as they are written: files, manifests, schemas and snapshots, whatever the rows mean."""
