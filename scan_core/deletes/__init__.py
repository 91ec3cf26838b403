"""Deletes of a data file: loading, indexing, and applying them."""
