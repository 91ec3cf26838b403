"""Equality of keys in bulk: key columns as words, 64-bit hashes, hash tables, and indexes from key to rank."""
