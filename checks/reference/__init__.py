"""A second implementation of reading Iceberg tables, written from the specification alone.

It shares no code with the engine that it checks.
"""
