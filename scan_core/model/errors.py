"""The errors of a scan, by what the caller can do about them, and the values that no message may show.

Every exception that scan_core raises on purpose is a `ScanError`. Secrets are recognised here because every
message passes through here: values that came from the environment, and passwords in URLs.

"""

import logging
import re
from importlib import import_module
from io import TextIOBase
from typing import Any, ClassVar, TextIO

MIN_CHARACTERS = 4
"""Shorter values would also be replaced inside other words; where the place identifies a value, length does not matter."""

_IN_URL = re.compile(r"(?<=://)[^\s/@'\"]*:[^\s/'\"]*@")
_PASSWORD = re.compile(r"://[^\s/@:]*:(?!\d*/)(\S+)@|password=([^&\s]+)")
_known: dict[str, str] = {}


def remember_secret(variable: str, value: str) -> None:
    """Hide this value, which comes from an environment variable, in all messages."""
    _remember(value, f"${{{variable}}}")


def remember_passwords(text: str) -> None:
    """Hide the passwords of URLs in a text in all messages, also where a library shows only a part of the URL."""
    for found in _PASSWORD.findall(text):
        for part in ("".join(found), *re.split("[@/?#]", "".join(found))):  # a library may see its end at one of these
            _remember(part, "***")


def _remember(value: str, shown: str) -> None:
    if len(value) >= MIN_CHARACTERS and value not in _known:
        if not _known:
            _hide_in_logs()
        _known[value] = shown


def hide_secrets(text: str) -> str:
    """The text without secrets: names of variables in place of their values, `***@` in place of a password in a URL."""
    for value in sorted(_known, key=len, reverse=True):
        if value in text:
            text = text.replace(value, _known[value])
        elif (shown := repr(value)[1:-1]) in text:
            text = text.replace(shown, _known[value])
    return _IN_URL.sub("***@", text) if "://" in text else text


def hide_in_error(error: BaseException) -> None:
    """Remove secrets from an error of any library and from the errors that caused it, before its traceback is printed."""
    pending, seen = [error], set()
    while pending:
        one = pending.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if any(isinstance(a, str) and hide_secrets(a) != a for a in one.args):
            one.args = tuple(hide_secrets(a) if isinstance(a, str) else a for a in one.args)
        pending += [e for e in (one.__cause__, one.__context__) if e is not None]


class HidingStream(TextIOBase):
    """A text stream that lets no secret through; everything else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write it without secrets."""
        self._stream.write(hide_secrets(text))
        return len(text)

    def flush(self) -> None:
        """Write the buffered text."""
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the stream; without it click would write to the underlying stream directly."""
        return self._stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """How the stream handles encoding errors."""
        return self._stream.errors

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """The file descriptor of the stream."""
        return self._stream.fileno()


def _hide_in_logs() -> None:
    make = logging.getLogRecordFactory()

    def made(*arguments: Any, **named: Any) -> logging.LogRecord:
        record = make(*arguments, **named)
        try:
            message = record.getMessage()
        except (TypeError, ValueError):  # logging itself tells of a wrong format
            return record
        if hide_secrets(message) != message:
            record.msg, record.args = hide_secrets(message), ()
        if record.exc_info and record.exc_info[1] is not None:
            hide_in_error(record.exc_info[1])
        return record

    logging.setLogRecordFactory(made)


class ScanError(Exception):
    """Base of every error that scan_core raises on purpose. Its text shows no secrets."""

    exit_code: ClassVar[int] = 1
    """Of a command that ends with this error: 2 if the command, the config or the installation must be changed."""

    def __str__(self) -> str:
        return hide_secrets(Exception.__str__(self))


class TableNotFoundError(ScanError, FileNotFoundError):
    """No table, metadata file or catalog entry at the given location."""


class SnapshotNotFoundError(ScanError, KeyError):
    """The table has no such snapshot, reference, or no snapshot at that time."""

    def __str__(self) -> str:
        return ScanError.__str__(self)  # KeyError would print the message's repr


class ColumnNotFoundError(ScanError, KeyError):
    """The schema in force has no such column; the message names the nearest ones."""

    exit_code: ClassVar[int] = 2

    def __str__(self) -> str:
        return ScanError.__str__(self)


class PredicateError(ScanError, ValueError):
    """A predicate that cannot be parsed or bound; the message points at the place with a caret."""

    exit_code: ClassVar[int] = 2


class EvaluationError(ScanError, ArithmeticError):
    """An expression failed on a row that passes every other filter (division by zero, bad cast)."""


class MalformedTableError(ScanError, ValueError):
    """A file that breaks the Iceberg, Parquet, ORC, Avro or Puffin specification: refused, never guessed."""


class MissingFileError(ScanError, FileNotFoundError):
    """A file that the snapshot names does not exist or cannot be opened."""


class OutsideTableError(MissingFileError):
    """A path in table metadata that leads outside of the locations where files of the table may be stored."""


class UnsupportedError(ScanError, NotImplementedError):
    """Legal input that scan_core does not read (geometry, encrypted files); the message names it."""


class MemoryLimitError(ScanError, MemoryError):
    """A single row, page or block that does not fit into `memory_limit_bytes` once decoded."""


class ScanCancelledError(ScanError):
    """The scan was cancelled, possibly by another thread."""

    def __str__(self) -> str:
        return "the scan was cancelled"


class OptionError(ScanError, ValueError):
    """An option with a value outside its range."""

    exit_code: ClassVar[int] = 2


class MissingRuntimeError(ScanError, RuntimeError):
    """Something the machine must provide is missing (Java for Spark); the message says how to get it."""


class MissingPackageError(ScanError, ImportError):
    """An optional Python package is not installed; the message says how to get it."""

    exit_code: ClassVar[int] = 2


def require_package(name: str, what: str, install: str) -> Any:
    """Import a module of an optional package.

    Args:
        name: name of the module.
        what: what requires it, as the subject of a sentence.
        install: the argument of `pip install` that installs it.

    Raises:
        MissingPackageError: it is not installed, or cannot be imported.
    """
    try:
        return import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        why = "" if error.name == package else f" ({error})"
        raise MissingPackageError(f"{what} requires {package}: pip install '{install}'{why}") from error
