"""What Dagster sees."""
