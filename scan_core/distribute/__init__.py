"""Running splits: in this process, in threads, on Spark."""
