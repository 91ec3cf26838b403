"""Parquet: footers, page indexes, pages, Bloom filters, and the reader that combines them."""
