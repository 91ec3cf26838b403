"""The options for reading event files."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from nevermore.pipelines.decode.feed import options_of
from nevermore.pipelines.errors import ConfigError


class Layout(Enum):
    """How documents are arranged in a file."""

    LINES = "lines"
    KEYED_LINES = "keyed-lines"
    """A key, a separator (by default a TAB) and a value; without a value it is a tombstone."""
    DOCUMENTS = "documents"
    """Consecutive objects, each of several lines."""
    KEYED_DOCUMENTS = "keyed-documents"
    """The same with alternating keys and values."""
    ARRAY = "array"
    FRAMED = "framed"
    """Each message after its length in four bytes, most significant first, as `kcat -f '%R%s'` writes; -1 is NULL."""
    CSV = "csv"
    PSQL = "psql"
    """Output of psql: lines that contain an object; others are decoration."""


DEFAULT_BATCH_ROWS = 250_000
"""Large enough to make the cost per batch negligible; small enough for a narrow batch to fit the caches of a small machine."""
DEFAULT_BATCH_BYTES = 32 * 1024**2
EVENT_SHARE = 4
"""A single event or block may use this fraction of the memory limit: its bytes, their decoded form and a copy must fit."""
_BATCHES_OF_EVENT = 8
"""Where no memory limit is known, a batch is taken for a thirty-second of it."""
_MIN_EVENT_BYTES = 16 * 1024**2
"""Ordinary events are read regardless of the limit."""
MAX_BATCH_BYTES = 512 * 1024**2
"""Positions in a batch are 32-bit numbers, even if one of its events is large."""
_MAX_EVENT_BYTES = 1024**3

_LINES = (Layout.LINES, Layout.KEYED_LINES, Layout.PSQL)
_LAYOUTS_WITH: Mapping[str, tuple[Layout, ...]] = {
    **dict.fromkeys(("delimiter", "header", "columns", "null_value"), (Layout.CSV,)),
    **dict.fromkeys(("first_line", "last_line"), _LINES),
    "comments": (*_LINES, Layout.DOCUMENTS, Layout.KEYED_DOCUMENTS, Layout.ARRAY),
    "key_separator": (Layout.KEYED_LINES,),
}
"""The layouts to which an option applies, for options that do not apply to all layouts."""

_OF_ALL_FILES = frozenset({"batch_rows", "batch_bytes", "unreadable"})
"""Options that also apply to Parquet and Avro files, which have neither lines nor documents."""

STOP, QUARANTINE = "stop", "quarantine"


@dataclass(frozen=True)
class FileOptions:
    """Options for reading files.

    Attributes:
        layout: how documents are arranged; detected from each file's first bytes where it is not given.
        batch_rows: maximum number of events that are read at once.
        batch_bytes: maximum size of what is read at once; at most 512 MiB.
        comments: prefixes of lines to skip, in addition to a leading `/* */` block.
        first_line: first line to read.
        last_line: last line to read; 0 is the end of the file.
        delimiter: delimiter of CSV; by default a tab in .tsv files, else the one in the first line, or a comma.
        header: whether the first line of CSV has the column names.
        columns: names of the columns of CSV without a header.
        null_value: text that means NULL in CSV; an empty unquoted value always does.
        key_separator: text between key and value of keyed lines; a tab by default.
        report_incomplete: return an unfinished last line immediately (it is rejected, and read again after it has
            grown); otherwise wait until the file is quiet.
        unreadable: `stop` at a file that cannot be read, so that none is applied before an earlier one; or `quarantine`
            the rest of it and continue. A file that replaces it is read as a late file.
    """

    layout: str | None = None
    batch_rows: int = DEFAULT_BATCH_ROWS
    batch_bytes: int = DEFAULT_BATCH_BYTES
    comments: tuple[str, ...] = ()
    first_line: int = 1
    last_line: int = 0
    delimiter: str | None = None
    header: bool = True
    columns: tuple[str, ...] = ()
    null_value: str | None = None
    key_separator: str | None = None
    report_incomplete: bool = False
    unreadable: str = STOP

    def __post_init__(self) -> None:
        if self.batch_rows < 1 or self.batch_bytes < 1024:
            raise ConfigError("batch_rows must be at least 1 and batch_bytes at least 1024")
        self._check_lines()
        if self.batch_bytes > MAX_BATCH_BYTES:
            raise ConfigError(f"batch_bytes must be at most {MAX_BATCH_BYTES}, not {self.batch_bytes}")
        if self.unreadable not in {STOP, QUARANTINE}:
            raise ConfigError(f"unreadable must be stop or quarantine, not {self.unreadable!r}")
        if self.delimiter is not None and len(self.delimiter.encode()) != 1:
            raise ConfigError(f"delimiter must be a single character, not {self.delimiter!r}")
        if self.key_separator is not None and (not self.key_separator or "\n" in self.key_separator):
            raise ConfigError(
                f"key_separator must be one or more characters other than newlines, not {self.key_separator!r}"
            )
        if self.layout is not None:
            try:
                layout = Layout(self.layout)
            except ValueError as error:
                valid = ", ".join(layout.value for layout in Layout)
                raise ConfigError(f"unknown layout {self.layout!r}; valid layouts are {valid}") from error
            self.check_for(layout)
        elif self.key_separator is not None:
            raise ConfigError("key_separator requires layout: keyed-lines; no other layout has keys on its lines")

    def _check_lines(self) -> None:
        if self.first_line < 1 or self.last_line < 0 or 0 < self.last_line < self.first_line:
            raise ConfigError(
                f"first_line {self.first_line} and last_line {self.last_line} leave no line: the first line is 1, and "
                "last_line is 0 for the end of the file, or not before first_line"
            )
        if "" in self.comments:
            raise ConfigError("comments has an empty prefix, with which every line begins; remove it")

    @property
    def max_event_bytes(self) -> int:
        """Maximum size of a single event, line or block of a file; larger ones are refused."""
        return _event_bytes(_BATCHES_OF_EVENT * self.batch_bytes)

    @property
    def separator(self) -> bytes:
        """Separator of key and value in keyed lines."""
        return b"\t" if self.key_separator is None else self.key_separator.encode()

    def check_for(self, layout: Layout) -> None:
        """Refuse options that do not apply to files of a layout.

        Raises:
            ConfigError: names the first of them.
        """
        for option, given in self._given():
            if (layouts := _LAYOUTS_WITH.get(option)) is not None and layout not in layouts:
                hint = "; key_separator separates keys from values" if option == "delimiter" else ""
                wanted = " or ".join(known.value for known in layouts)
                raise ConfigError(
                    f"{option} {given!r} has no effect for files whose layout is {layout.value}, only for {wanted}{hint}"
                )

    def check_for_columns(self, kind: str) -> None:
        """Refuse options that do not apply to columnar files of this kind.

        Raises:
            ConfigError: names the first of them.
        """
        for option, given in self._given():
            if option not in _OF_ALL_FILES:
                raise ConfigError(f"{option} {given!r} has no effect for {kind} files, only for text")

    def _given(self) -> list[tuple[str, Any]]:
        """Options with other values than their defaults."""
        every = ((option, getattr(self, option.name)) for option in fields(FileOptions))
        return [(option.name, given) for option, given in every if given != option.default]

    @classmethod
    def split(cls, options: Mapping[str, Any]) -> tuple["FileOptions", dict[str, Any]]:
        """Split options into those for files and those for the format."""
        names = {f.name for f in fields(cls)}
        own = {name: value for name, value in options.items() if name in names}
        if isinstance(own.get("comments"), str):
            own["comments"] = (own["comments"],)
        return options_of(cls, own), {name: value for name, value in options.items() if name not in names}

    def within(self, memory_limit_bytes: int) -> "BoundedOptions":
        """The options for reading within a memory limit."""
        return BoundedOptions(**vars(self), memory_limit_bytes=memory_limit_bytes)


@dataclass(frozen=True, kw_only=True)
class BoundedOptions(FileOptions):
    """Options for reading with a known memory limit, which decides how large an event may be."""

    memory_limit_bytes: int

    @property
    def max_event_bytes(self) -> int:
        """See `FileOptions`; whatever the size of a batch."""
        return _event_bytes(self.memory_limit_bytes // EVENT_SHARE)


def _event_bytes(wanted: int) -> int:
    return min(max(wanted, _MIN_EVENT_BYTES), _MAX_EVENT_BYTES)


def otherwise(max_bytes: int, change: str) -> str:
    """What to do where more than `max_bytes` must be read at once: `change`, or allow more memory if that helps."""
    return change if max_bytes >= _MAX_EVENT_BYTES else f"raise memory_limit_bytes, or {change}"
