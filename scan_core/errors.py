"""The errors of a scan, by what the caller can do about them.

One base, few children. A message says what is wrong, where (file, field), the value, and what to do.
"""

from scan_core.secret_values import hidden


class ScanError(Exception):
    """Base of every error that scan_core raises on purpose. Its text shows no secrets."""

    def __str__(self) -> str:
        return hidden(Exception.__str__(self))


class TableNotFoundError(ScanError, FileNotFoundError):
    """No table, metadata file or catalog entry at the given location."""


class SnapshotNotFoundError(ScanError, KeyError):
    """The table has no such snapshot, reference, or no snapshot at that time."""

    def __str__(self) -> str:
        return ScanError.__str__(self)  # KeyError would print the message's repr


class ColumnNotFoundError(ScanError, KeyError):
    """The schema in force has no such column; the message names the nearest ones."""

    def __str__(self) -> str:
        return ScanError.__str__(self)


class PredicateError(ScanError, ValueError):
    """A predicate that cannot be parsed or bound; the message points at the place with a caret."""


class EvaluationError(ScanError, ArithmeticError):
    """An expression failed on a row that passes every other filter (division by zero, bad cast)."""


class MalformedTableError(ScanError, ValueError):
    """A file that breaks the Iceberg, Parquet, ORC, Avro or Puffin specification: refused, never guessed."""


class MissingFileError(ScanError, FileNotFoundError):
    """A file that the snapshot names does not exist or cannot be opened."""


class OutsideTableError(MissingFileError):
    """A path in the metadata of a table that leads outside of the places where its files may lie."""


class UnsupportedError(ScanError, NotImplementedError):
    """Legal input that scan_core does not read (variant, geometry, encrypted files); the message names it."""


class MemoryLimitError(ScanError, MemoryError):
    """A single row, page or block that does not fit into `memory_limit_bytes` once decoded."""


class OptionError(ScanError, ValueError):
    """An option with a value outside its range."""


class MissingRuntimeError(ScanError, RuntimeError):
    """Something the machine must provide is missing (Java for Spark); the message says how to get it."""
