"""Lookup structures: key hash tables, Bloom filters, bitmap indexes."""
