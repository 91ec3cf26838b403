"""What proves that the tables are right."""
