"""The position of a table in the changes of a PostgreSQL database.

A change of the stream is part of a chunk of a load if its transaction was visible there. Visibility is decided by transaction identifiers, not by log positions: a transaction becomes visible some time
after its commit is in the log.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from nevermore.pipelines.sources.table_position import TablePosition
from nevermore.scan_core import Mask


def lsn_text(lsn: int) -> str:
    """A log position as PostgreSQL writes it: `0/16B3748`."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_of(text: str) -> int:
    """The number of a log position.

    Raises:
        ValueError: not a log position.
    """
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) | int(low, 16)


@dataclass(frozen=True, slots=True)
class Visibility:
    """Which transactions a snapshot of the database sees (`pg_current_snapshot()`).

    Attributes:
        xmin: all transactions below were finished.
        xmax: no transaction from here on was finished.
        running: transactions in between that were not finished.
    """

    xmin: int
    xmax: int
    running: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Visibility":
        """Parse `xmin:xmax:running,running`."""
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), tuple(int(x) for x in running.split(",") if x))

    def sees(self, xids: NDArray[np.int64]) -> Mask:
        """Which committed transactions are visible; the stream has the low 32 bits of identifiers."""
        distance = (xids - (self.xmax & 0xFFFFFFFF) + 2**31) % 2**32 - 2**31
        full = self.xmax + distance
        seen: Mask = (full < self.xmax) & ~np.isin(full, np.array(self.running, np.int64))
        return seen


class UnsentError(Exception):
    """Rows of a table changed without being sent.

    Attributes:
        is_another_type: whether the mirror may not hold what they are now.
        is_another_key: whether the mirror identifies rows by other columns.
    """

    def __init__(self, message: str, *, is_another_type: bool = False, is_another_key: bool = False) -> None:
        super().__init__(message)
        self.is_another_type = is_another_type
        self.is_another_key = is_another_key


@dataclass(frozen=True, slots=True)
class _Column:
    """A column; of one that is dropped or not sent, only the name and the type are known, if it was sent before.

    Attributes:
        name: what identifies its name.
        has_values: whether it may have been added with values for existing rows.
        type: number of its type, and modifier.
        described_by: transaction that described it; empty if it is not sent.
    """

    name: str
    has_values: bool = False
    type: str = ""
    described_by: str = ""

    @classmethod
    def parse(cls, text: str) -> "_Column":
        if text.startswith("-"):
            name, _, kind = text[1:].partition(":")
            return cls(name, type=kind)
        kind, _, described_by = text[7:].partition(":")
        return cls(text[:6], text[6] == "+", kind, described_by)

    @property
    def is_sent(self) -> bool:
        return self.described_by != ""

    def __str__(self) -> str:
        if not self.is_sent:
            return f"-{self.name}:{self.type}" if self.type else f"-{self.name}"
        return f"{self.name}{'+' if self.has_values else '='}{self.type}:{self.described_by}"


@dataclass(frozen=True, slots=True)
class Shape:
    """What the catalog says about the storage of a table. Some commands change rows without sending them, and are seen only here.

    Attributes:
        file: number of the file of the rows; another one after a command that rewrote all of them.
        columns: columns by their number, dropped ones included.
        parts: partitions by the number of each and that of its file: the transaction that attached it, with an `a` if it was a
            table of its own before; empty if that is not known.
        key: numbers of the columns that identify rows, in their order; empty if there are none.
        publication: transaction that wrote the settings of the publication; empty if it is not known.
        types: how values of types of the database's own are written, by their number: words for the values of an enum in order of their
            creation, which may get more; `+` and `-` for the fields of a composite type, and a point.
    """

    file: str
    columns: tuple[_Column, ...]
    parts: Mapping[str, str]
    key: str = ""
    publication: str = ""
    types: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> "Shape":
        """Parse `file;columns;parts;key;publication;types`."""
        file, columns, parts, key, publication, types = text.split(";")
        attached = dict(part.split("@") for part in parts.split())
        words = dict(each.split("=") for each in types.split())
        return cls(file, tuple(map(_Column.parse, columns.split())), attached, key, publication, words)

    def __str__(self) -> str:
        parts = " ".join(f"{part}@{by}" for part, by in self.parts.items())
        types = " ".join(f"{number}={words}" for number, words in self.types.items())
        return f"{self.file};{' '.join(map(str, self.columns))};{parts};{self.key};{self.publication};{types}"

    def after(self, before: "Shape") -> "Shape":
        """This shape, with the names and types that dropped columns had."""
        old = (*before.columns, *self.columns[len(before.columns) :])
        columns = (
            now if now.is_sent else _Column(was.name, type=was.type)
            for was, now in zip(old, self.columns, strict=False)
        )
        return replace(self, columns=tuple(columns))

    def check(self, now: "Shape") -> None:
        """Compare with a later shape.

        Raises:
            UnsentError: rows may have changed from one to the other without being sent.
        """
        self._check_key(now)
        both = [(a, b) for a, b in zip(self.columns, now.columns, strict=False) if a.is_sent and b.is_sent]
        added = [column for column in now.columns[len(self.columns) :] if column.is_sent]
        gone = {column.name: column.type for column in now.after(self).columns if not column.is_sent and column.name}
        is_rewritten = self.file != now.file
        is_lost = not self.parts.keys() <= now.parts.keys()
        again = [(gone[column.name], column.type) for column in added if gone.get(column.name)]
        changed = [*again, *((a.type, b.type) for a, b in both if is_rewritten or is_lost)]
        if not all(_is_widened(before, after) for before, after in changed):
            raise UnsentError("a column has another type", is_another_type=True)
        is_renamed = any(a.name != b.name for a, b in both) or any(column.name in gone for column in added)
        is_sent_now = any(not a.is_sent and b.is_sent for a, b in zip(self.columns, now.columns, strict=False))
        is_described = is_rewritten and (bool(added) or any(a != b for a, b in both))
        reasons = {
            "a column has another name, or that of a dropped one": is_renamed,
            "a column was added with a value for existing rows": any(column.has_values for column in added),
            "a column is sent that was not sent before": is_sent_now,
            "a change of its columns rewrote all rows": is_described,
            "a partition was dropped, detached, truncated or rewritten": is_lost,
            "a partition was attached": any(by.endswith("a") and p not in self.parts for p, by in now.parts.items()),
            "a partition was detached and attached again": any(
                self.parts.get(p, "") not in {"", by} for p, by in now.parts.items()
            ),
            "the settings of the publication were changed, perhaps for some time only": self.publication
            not in {"", now.publication},
            "values of an enum were renamed, or a composite type has other fields": any(
                not now.types.get(number, words).startswith(words) for number, words in self.types.items()
            ),
        }
        if why := next((text for text, is_so in reasons.items() if is_so), None):
            raise UnsentError(why)

    def _check_key(self, now: "Shape") -> None:
        if self.key and self.key != now.key:
            raise UnsentError("other columns identify its rows", is_another_key=True)
        numbers = [int(number) - 1 for number in self.key.split(",") if number]
        if any(self.columns[n].name != now.columns[n].name for n in numbers):
            raise UnsentError("columns of other names identify its rows", is_another_key=True)


_WIDER = {"21": {"23", "20"}, "23": {"20"}, "700": {"701"}}
"""Types by number, and those that hold all of their values: integers, floats."""
_TEXTS = {"25", "1042", "1043"}


def _is_widened(before: str, after: str) -> bool:
    """Whether a column of a later type (number and modifier) holds all values of an earlier one."""
    (old, old_modifier), (new, new_modifier) = before.split("."), after.split(".")
    if old == new == "1700" and "-1" not in (old_modifier, new_modifier):  # numeric: precision and scale
        (old_digits, old_scale), (new_digits, new_scale) = (
            divmod(int(m) - 4, 65_536) for m in (old_modifier, new_modifier)
        )
        return new_scale == old_scale and new_digits >= old_digits
    return before == after or new in _WIDER.get(old, ()) or {old, new} <= _TEXTS


@dataclass(frozen=True, kw_only=True)
class PostgresPosition(TablePosition):
    """A position: `at` is the place in the log after which commits are not contained.

    Attributes:
        system: identifier of the database cluster.
        slot: name of the replication slot.
        member: what identifies the table and its membership in the publication; None if it is not known.
        timeline: history of the cluster that the position is of; 0 if it is not known. A standby that becomes the primary begins
            another one, in which the same positions may mean other changes.
        shape: text of the `Shape` that the table had when the round began; empty if it is not known.
    """

    source: ClassVar[str] = "postgres"
    title: ClassVar[str] = "PostgreSQL"
    system: str
    slot: str
    member: str | None = None
    timeline: int = 0
    shape: str = ""

    @property
    def place(self) -> str:
        """See `TablePosition`."""
        return lsn_text(self.at)

    @property
    def stated(self) -> str:
        """See `TablePosition`."""
        return f"{self.place} of slot {self.slot}"

    def shaped(self, shape: str) -> str:
        """The shape of the table after it became another one; empty if that is not known."""
        if not self.shape or shape in {"", self.shape}:
            return shape or self.shape
        return str(Shape.parse(shape).after(Shape.parse(self.shape)))
