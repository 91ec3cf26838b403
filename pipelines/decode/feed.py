"""What a decoder must know about a feed: its format and the tables wanted from it.

For each table, its key, types and columns. `ingest/feeds.py` creates these facts from the config.
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, Literal, TypeVar, get_type_hints

import pyarrow as pa
from pydantic import TypeAdapter, ValidationError

from nevermore.pipelines.config.document import wrong_value
from nevermore.pipelines.config.project import is_table_name
from nevermore.pipelines.config.tables import TableConfig
from nevermore.pipelines.decode.value_types import InfiniteDates
from nevermore.pipelines.errors import ConfigError, SourceError

POSITION = "position"
ORDER = "source_order"
"""Column of changes: their place in the configured order (`order_by`), as text; present only with `order_by`."""

T = TypeVar("T")


def options_of(kind: type[T], given: Mapping[str, Any]) -> T:
    """Options of a format or of files, a dataclass, from what a config says.

    Numbers and truth values may be text, as environment variables are.

    Raises:
        ConfigError: a value of another type. It is not shown where text is wanted, because it may be secret.
    """
    values = {}
    for name, value in given.items():
        reader = _readers(kind)[name]  # type: ignore[arg-type] # types can be hashed
        plain = tuple(value) if isinstance(value, list) else value
        try:
            with suppress(ValidationError):
                plain = reader.validate_python(_spelt(plain), strict=True)
            values[name] = reader.validate_python(plain, strict=True)
        except ValidationError as error:
            problems = error.errors()
            may_show = all(problem["type"] != "string_type" for problem in problems)
            raise ConfigError(f"{name} {wrong_value(problems, may_show=may_show)}") from None
    return kind(**values)


def _spelt(value: Any) -> Any:
    """The truth value or whole number that a text spells; other values as they are."""
    word = value.strip().lower() if isinstance(value, str) else ""
    if re.fullmatch("[0-9]{1,18}", word):
        return int(word)
    return {"true": True, "false": False}.get(word, value)


@cache
def _readers(kind: type) -> "Mapping[str, TypeAdapter[Any]]":
    return {name: TypeAdapter(hint) for name, hint in get_type_hints(kind).items()}


@dataclass(frozen=True, kw_only=True)
class TableFeed:
    """One target table of a feed.

    Attributes:
        name: name of the target, e.g. `shop.products`.
        source_table: the tables of the feed that it takes: `table`, `schema.table` or `db.schema.table`, `*` and `?`
            allowed. None takes the one whose name fits `name`, or the only one there is.
        is_found: whether a pattern of the config found `source_table`, which is then taken as it is.
        key: key columns by target name; empty takes them from the feed.
        known_key: key columns by target name of changes logged already, for events that do not declare them.
        identity_full: the whole old row identifies a row: all columns are the key.
        types: Iceberg type names by source column, with priority over the feed.
        encodings: encodings of the values of those columns (`millis`, `base64`, ...).
        known_encodings: how values are written, by path of source columns, as decided earlier by a schema or the
            config.
        known_types: types of the target's columns so far; a value that fits neither these nor a wider type is rejected.
        order_by: `position`, or paths into the event such as `source.ts_ms`.
        include: source columns to keep; empty keeps all.
        exclude: source columns to leave out.
        rename: target name by source column.
        cast: Iceberg type by source column, applied after decoding.
        on_conflict: what happens to a value that does not fit its column: `quarantine`, or `new_column`.
        infinite_dates: what becomes of dates outside of the years 1 to 9999.
        drops_columns: whether columns that the feed does not state any more leave the target, and what tells that a statement is newer
            than another: the `place` of events, or the `time` that the source gives them. Empty if columns stay.
        schema_version: version written to each change.
    """

    name: str
    source_table: str | None = None
    is_found: bool = False
    key: tuple[str, ...] = ()
    known_key: tuple[str, ...] = ()
    identity_full: bool = False
    types: Mapping[str, str] = field(default_factory=dict)
    encodings: Mapping[str, str] = field(default_factory=dict)
    known_encodings: Mapping[str, str] = field(default_factory=dict)
    known_types: Mapping[str, pa.DataType] = field(default_factory=dict)
    order_by: str | tuple[str, ...] = POSITION
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    cast: Mapping[str, str] = field(default_factory=dict)
    on_conflict: str = "quarantine"
    infinite_dates: InfiniteDates = "quarantine"
    drops_columns: Literal["", "place", "time"] = ""
    schema_version: int = 0

    def takes(self, source_table: str) -> bool:
        """Whether this table of the feed, written `[db.][schema.]table`, is taken."""
        if self.source_table is None:
            return False
        return source_table == self.source_table if self.is_found else matches(source_table, self.source_table)

    @property
    def names_one(self) -> bool:
        """Whether the config names a single table of the feed, perhaps without its database or schema."""
        return not self.is_found and not any(letter in "*?[" for letter in self.source_table or "")

    def target_name(self, column: str) -> str:
        """The name of the source column in the target."""
        return self.rename.get(column, column)


@dataclass(frozen=True)
class Decided:
    """Decisions made while a feed was read, which hold for all later batches.

    Attributes:
        claims: tables of the feed, by the target that takes them.
        encodings: encodings by target, by path of source columns (`value_types.encodings_of`).
        origins: topic or folder that the events of each table of the feed come from (`FeedConfig.origin`).
        servers: server that they come from, as they say themselves (`FeedConfig.one_server`).
    """

    claims: Mapping[str, str] = field(default_factory=dict)
    encodings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    servers: Mapping[str, str] = field(default_factory=dict)

    def as_members(self) -> dict[str, Any]:
        """The members of a position's JSON document that hold what was decided."""
        return {name: value for name, value in asdict(self).items() if value}

    @classmethod
    def of_members(cls, document: Mapping[str, Any]) -> "Decided":
        """What the document of a position says was decided up to there."""
        return cls(**{part.name: document[part.name] for part in fields(cls) if part.name in document})


@dataclass(frozen=True, kw_only=True)
class FeedConfig:
    """A feed: its format and the tables it fills.

    Attributes:
        format: name in the registry; with None, the first events are refused with the format that they look like.
        tables: at least one, unless the feed is open.
        options: options of the format; an unknown one is an error.
        decided: what earlier batches decided.
        is_open: whether targets are added as tables appear in the feed, so that a single target takes only its own
            table.
        origin: `topic` or `folder` if all events of a table of the feed must come from a single one; empty if the config merges
            tables of the same name.
        one_server: the setting that would let events of a table come from several servers; empty if the config does so.
    """

    tables: tuple[TableFeed, ...]
    format: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    decided: Decided = field(default_factory=Decided)
    is_open: bool = False
    origin: str = ""
    one_server: str = ""


_BATCH_FOLDER = re.compile(
    r"[^/]*=[^/]*|([A-Za-z]+[-_.])?\d[\dTZ:._-]*|[0-9a-fA-F]{8}(-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}"
)
"""Matches folders of partitions, days and runs: `day=2025-01-01`, `2025`, `20250101T100000Z`, `run-0001`, and UUIDs."""


def origin_of(kind: str, place: str) -> str:
    """The topic of `topic-partition`, or the folder of a file without the folders of partitions, days and runs."""
    if kind == "topic":
        return place.rpartition("-")[0]
    return "/".join(part for part in place.split("/")[:-1] if _BATCH_FOLDER.fullmatch(part) is None) or "."


def matches(source_table: str, pattern: str) -> bool:
    """Whether a pattern matches a table; it may leave out leading parts (db, schema)."""
    if fnmatchcase(source_table, pattern):
        return True
    parts = source_table.split(".")
    return any(fnmatchcase(".".join(parts[i:]), pattern) for i in range(1, len(parts)))


def discovered(
    source_tables: Iterable[str], patterns: Mapping[str, TableConfig], known: Mapping[str, str | None]
) -> dict[str, tuple[str, str]]:
    """New mirrors for tables of a feed: (pattern, table of the feed) by name.

    Args:
        source_tables: tables without a mirror, as the feed names them.
        patterns: of the config, for this feed.
        known: the existing mirrors with their tables of the feed, None if unknown.

    Raises:
        SourceError: a table of the feed has a name that is invalid for a mirror, or two of them would become one mirror.
    """
    found: dict[str, tuple[str, str]] = {}
    for source in sorted(source_tables):
        pattern = next((p for p, settings in patterns.items() if _takes(settings, source)), None)
        if not source or pattern is None:
            continue
        name = pattern.removesuffix("*") + source.rpartition(".")[2]
        if not is_table_name(name):
            raise SourceError(
                f"the feed contains {source!r}, for which {pattern} would create {name!r}, an invalid table name: exclude it "
                "with exclude_tables, or add an entry with source_table for it"
            )
        taken = found[name][1] if name in found else known.get(name)
        if name in known or name in found:
            raise SourceError(
                f"the feed contains {source}, for which {pattern} would create {name}, but that mirror contains the events of "
                f"{taken or 'another table'}: exclude one with exclude_tables, or add an entry with source_table for it"
            )
        found[name] = pattern, source
    return found


def _takes(settings: TableConfig, source: str) -> bool:
    if any(matches(source, pattern) for pattern in settings.exclude_tables):
        return False
    return not settings.include_tables or any(matches(source, pattern) for pattern in settings.include_tables)
