"""Private DuckDB connections that hand Arrow its exact types."""

from functools import cache

import duckdb


@cache
def _database() -> duckdb.DuckDBPyConnection:
    """One in-memory database per process: opening one costs twenty times a connection to it."""
    return duckdb.connect()


def open_connection() -> duckdb.DuckDBPyConnection:
    """A connection of its own: what it registers and its temporary tables are seen by nobody else."""
    connection = _database().cursor()
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET arrow_lossless_conversion = true")
    return connection
