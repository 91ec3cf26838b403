"""Decoded changes: batches of them, their log, and the keys by which they belong together."""
