"""Parquet: footers, page indexes, pages, Bloom filters, checksums, and the reader that combines them."""
