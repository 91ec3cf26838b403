"""The worker half: from a split to record batches, counts or aggregates."""
