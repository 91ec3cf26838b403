"""The contract of a file reader, and how columns of files become columns of tables."""
