"""Scans in Spark: DataFrames, a data source, joins, and the reports of tasks."""
