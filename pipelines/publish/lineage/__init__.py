"""Which partitions of a published table depend on which rows of its mirrors."""
