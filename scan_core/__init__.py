"""A columnar scan engine for Apache Iceberg tables with deletes."""
