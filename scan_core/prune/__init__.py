"""What need not be read: verdicts from partitions, bounds, statistics and indexes."""
