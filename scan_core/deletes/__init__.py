"""Delete files: loading, indexing and applying them."""
