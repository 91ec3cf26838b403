"""Published tables: SQL over mirrors, which of their partitions changes reach, and their rows written by Spark."""
