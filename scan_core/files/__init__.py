"""Readers of data and delete files in Parquet, ORC and Avro."""
