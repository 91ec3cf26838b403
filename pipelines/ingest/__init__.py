"""The ingest: from what is new in the sources to change logs and mirrors."""
