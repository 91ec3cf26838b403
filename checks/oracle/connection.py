"""Private DuckDB connections that hand Arrow its exact types."""

import atexit
import shutil
import tempfile
from functools import cache

import duckdb


@cache
def _database() -> duckdb.DuckDBPyConnection:
    """One in-memory database per process: opening one costs twenty times a connection to it.

    What exceeds memory goes to a private folder, not to `.tmp` of whatever folder the process was started in, where others
    may have laid a link.
    """
    folder = tempfile.mkdtemp(prefix="nevermore-duckdb-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return duckdb.connect(config={"temp_directory": folder})


def open_connection() -> duckdb.DuckDBPyConnection:
    """A connection of its own: what it registers and its temporary tables are seen by nobody else."""
    connection = _database().cursor()
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET arrow_lossless_conversion = true")
    return connection
