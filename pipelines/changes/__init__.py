"""Decoded changes: their log, their keys, and the changes that could not be applied."""
