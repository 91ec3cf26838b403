"""Paths and bytes: locations, files, object stores, the catalog library, private files, caches of a process."""
