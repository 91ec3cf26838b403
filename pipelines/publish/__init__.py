"""Published tables: SQL over mirrors, and their rows written by Spark."""
