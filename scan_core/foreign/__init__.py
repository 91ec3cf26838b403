"""Scans as other libraries see them: their filters and projections are pushed down, rows leave as Arrow data."""
