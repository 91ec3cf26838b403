"""The entry point to all formats: decodes a batch of raw events to change batches.

Detects the format of a feed, unwraps Kafka messages and routes events to tables. To add a format, add a module to
this folder, an entry to `FORMATS` here, and its options to `options.py`.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nevermore.pipelines.decode.assemble import DELETE, EMPTY, MOVED, Assembled, Reading, assemble
from nevermore.pipelines.decode.batches import (
    ChangeBatch,
    Complete,
    CompleteEvents,
    RawEvents,
    Rejected,
    from_documents,
    lost_events,
)
from nevermore.pipelines.decode.casting import cast_each
from nevermore.pipelines.decode.column_types import InferenceOptions
from nevermore.pipelines.decode.events import (
    USUAL_OP_COLUMNS,
    Events,
    blank,
    codes_of,
    each_once,
    in_order,
    no_events,
    places,
    reject,
    skip_counts,
    tombstones,
    without_refused,
)
from nevermore.pipelines.decode.feed import POSITION, Decided, FeedConfig, TableFeed, matches, origin_of
from nevermore.pipelines.decode.json_columns import json_text
from nevermore.pipelines.errors import ConfigError, SourceError, WideBatchError
from nevermore.pipelines.formats.binlog import decode_canal, decode_maxwell, decode_mysql_rows
from nevermore.pipelines.formats.change_rows import complete_pairs, decode_dms, decode_rows
from nevermore.pipelines.formats.debezium import (
    LETTERS,
    decode_debezium_avro,
    decode_debezium_protobuf,
    is_envelope,
    is_unwrapped,
)
from nevermore.pipelines.formats.debezium_json import decode_debezium
from nevermore.pipelines.formats.options import OPTIONS, DebeziumOptions, full_name, parse_options
from nevermore.pipelines.formats.pgoutput import decode_pgoutput
from nevermore.pipelines.formats.wal2json import complete_transactions, decode_wal2json
from nevermore.pipelines.jsonscan import value_kernels as kernels
from nevermore.pipelines.jsonscan.members import first_member_is, object_of, scan_objects, with_plain_names
from nevermore.pipelines.jsonscan.spans import Members, from_binary
from nevermore.scan_core import Mask

OTHER_TABLE, NO_TABLE, NO_CHANGE = -1, -2, -3
"""Replaces the number of a target."""
_OF_CONNECTOR = frozenset({"debezium_signal", "debezium_heartbeat"})
"""Names of the tables of Debezium's documentation by which a connector gets signals and heartbeats."""

_NONE, _ANY, _LAST_PART, _FULL, _STATED = range(5)


def route(
    events: Events, tables: tuple[TableFeed, ...], claims: Mapping[str, str], *, is_open: bool = False
) -> tuple[NDArray[np.int64], dict[str, str]]:
    """Assign each table of the feed with changes to a target; of an empty load, each table that it describes. See `route_tables`."""
    codes = np.unique(events.table_of[events.op != 0]).tolist() if len(events) else range(len(events.tables))
    return route_tables(events.tables, tables, claims, codes=codes, is_open=is_open)


def route_tables(
    names: Sequence[str],
    tables: tuple[TableFeed, ...],
    claims: Mapping[str, str],
    *,
    codes: Sequence[int],
    is_open: bool = False,
) -> tuple[NDArray[np.int64], dict[str, str]]:
    """Assign tables of the feed, `codes` among `names`, to the index of the target that takes each.

    Returns these and the new claims.

    OTHER_TABLE stands for tables without a target, NO_TABLE for events without a table name that fit several targets.
    In an open feed (`FeedConfig.is_open`) only names count, even if there is a single target.

    Raises:
        SourceError: it is ambiguous which table a target without `source_table` takes.
    """
    alone = len(tables) == 1 and not is_open
    result = np.full(max(len(names), 1), OTHER_TABLE, np.int64)
    wanted: dict[int, dict[str, int]] = {}
    named: dict[int, list[str]] = {}
    for code in codes:
        source = names[code]
        number, fit = _best(source, tables, alone=alone)
        if fit >= _FULL:
            result[code] = number
            if tables[number].names_one:
                wanted.setdefault(number, {})
                named.setdefault(number, []).append(source)
        elif not source:
            result[code] = 0 if alone else NO_TABLE
        elif fit > _NONE:
            wanted.setdefault(number, {})[source] = code
    after = dict(claims)
    for number, candidates in wanted.items():
        earlier = after.get(tables[number].name)
        claimed = _claimed(tables[number], candidates, earlier, full=named.get(number, ()))
        if claimed is not None:
            after[tables[number].name] = claimed
        if claimed in candidates:
            result[candidates[claimed]] = number
    return result, after


def _claimed(
    table: TableFeed, candidates: Mapping[str, int], claimed: str | None, *, full: Sequence[str]
) -> str | None:
    """The table of the feed that this target takes; `full` are those with all parts of its name.

    Raises:
        SourceError: several tables fit, or rows of a table that fits less well are already applied.
    """
    is_best = claimed is not None and _fit(claimed, table, alone=True) >= _FULL
    if full and (claimed is None or is_best):
        several = sorted({*full, *([] if claimed is None else [claimed])})
        if len(several) > 1:
            raise SourceError(
                f"{table.name} fits {several[0]} and {several[1]}, which would become one mirror: choose one of them with "
                "source_table, in full, or state by a wildcard that they are parts of one table (source_table: '*."
                f"{(table.source_table or table.name).rpartition('.')[2]}')"
            )
        return several[0]
    if is_best:
        return claimed
    fits = {source: _fit(source, table, alone=True) for source in candidates}
    best = max([*fits.values(), _FULL if full else _NONE])
    if claimed is not None:
        if best > _fit(claimed, table, alone=True):
            better = table.name if full else next(s for s, fit in fits.items() if fit == best)
            raise SourceError(
                f"{table.name} takes the events of {claimed}, and now the feed carries {better}; choose one with "
                "source_table"
            )
        return claimed
    named = [source for source, fit in fits.items() if fit == best]
    if len(named) != 1:
        shown = ", ".join(sorted(named)[:10])
        raise SourceError(
            f"the feed carries {len(named)} tables ({shown}); choose the one for {table.name} with source_table"
        )
    return named[0]


def _best(source: str, tables: tuple[TableFeed, ...], *, alone: bool) -> tuple[int, int]:
    """The target that a table of the feed fits best, and how well.

    Raises:
        SourceError: only the last part of its name fits, and that of several targets.
    """
    fits = [_fit(source, table, alone=alone) for table in tables]
    best = max(fits, default=_NONE)
    if best == _LAST_PART and fits.count(best) > 1:
        names = " and ".join(table.name for table, fit in zip(tables, fits, strict=True) if fit == best)
        raise SourceError(f"the feed carries {source}, which may belong to {names}; choose with source_table")
    # The last of several matching patterns wins: general ones are written first.
    return (len(fits) - 1 - fits[::-1].index(best) if fits else 0), best


def _fit(source: str, table: TableFeed, *, alone: bool) -> int:
    if table.source_table is not None:
        return _STATED if table.takes(source) else _NONE
    if not source:
        return _NONE
    if matches(source, table.name):
        return _FULL
    if source.rsplit(".", 1)[-1] == table.name.rsplit(".", 1)[-1]:
        return _LAST_PART
    return _ANY if alone else _NONE


_PLACE = ("topic", "partition", "offset")
_ENVELOPE = frozenset(
    {*_PLACE, "key", "timestamp", "timestampType", "timestamp_type", "ts", "tstype", "broker", "headers"}
    | {"key_schema_id", "value_schema_id", "leaderEpoch"}
)
_VALUES = ("value", "payload")


def unwrapped(raw: RawEvents) -> RawEvents:
    """Unwrap messages with their keys; other events are returned unchanged."""
    if raw.documents is None or raw.keys is not None:
        return raw
    documents = from_binary(raw.documents)
    rows = np.flatnonzero(first_member_is(documents, *_ENVELOPE, *_VALUES))
    if not len(rows):
        return raw
    members = scan_objects(documents.take(rows), ("key", *_VALUES, *_PLACE))
    wrapped = _are_messages(members)
    if not wrapped.any():
        return raw
    # Each is judged by its own member: a message is a tombstone only if its own value is null.
    values = pc.coalesce(*(json_text(members.column(name))[0] for name in _VALUES)).cast(pa.binary())
    keys = json_text(members.column("key"))[0].cast(pa.binary())
    places = np.full(len(documents), -1, np.int64)
    places[rows[wrapped]] = np.flatnonzero(wrapped)
    inside, taken = pa.array(places >= 0), pa.array(places, mask=places < 0)
    return replace(raw, documents=pc.if_else(inside, values.take(taken), raw.documents), keys=keys.take(taken))


def _are_messages(members: Members) -> Mask:
    """Which objects are messages and have only the members of such dumps."""
    kinds = {name: members.column(name).kind for name in ("key", *_VALUES, *_PLACE)}
    given = {name: kind != kernels.MISSING for name, kind in kinds.items()}
    result: Mask = members.of_names({*_ENVELOPE, *_VALUES}) & (given["value"] ^ given["payload"])
    placed = np.all([given[name] for name in _PLACE], axis=0)
    # A row may have columns named key and value: messages are assumed only if these are objects.
    value = np.where(given["value"], kinds["value"], kinds["payload"])
    is_object = (kinds["key"] == kernels.OBJECT) | (value == kernels.OBJECT)
    is_nothing_else = np.all(
        [(kind == kernels.OBJECT) | (kind == kernels.NULL) for kind in (kinds["key"], value)], axis=0
    )
    result &= placed | (is_object & is_nothing_else)
    return result


SNIFFED_EVENTS = 200


_DEBEZIUM = (
    *(("op", "before"), ("op", "after"), ("op", "source"), ("schema", "payload"), ("__deleted",)),
    # Events that share files with changes: transaction markers and schema changes.
    *(("status", "id", "event_count"), ("ddl", "databaseName"), ("ddl", "tableChanges")),
)
_CANAL = (("isDdl", "data", "type"), ("mysqlType", "data", "type"), ("isDdl", "sql", "type"))
_MAXWELL = (("database", "table", "type", "ts", "data"), ("database", "type", "ts", "def"), ("database", "type", "sql"))
_FULL_LOAD = r"(^|/)LOAD[0-9A-F]{8}\.(csv|parquet)(\.gz)?$"
_TRANSACTION_MEMBERS = frozenset(
    {"action", "xid", "timestamp", "lsn", "nextlsn", "origin", "transactional", "prefix", "content", "message"}
)


def sniff(raw: RawEvents) -> str:
    """Detect the name of the format.

    Raises:
        SourceError: the events look like no format, or like several.
    """
    found = _likely_formats(raw)
    # Events of other formats may also have an operation in one of the usual columns.
    found = tuple(name for name in found if name != "rows") or found
    if len(found) == 1:
        return found[0]
    if raw.documents is None:
        names = [] if raw.rows is None else raw.rows.column_names
        raise SourceError(
            f"no column of {', '.join(names[:10])} contains the operation: use format: dms or rows, with op_column or no_op"
        )
    first = raw.documents.slice(0, SNIFFED_EVENTS)
    events = scan_objects(from_binary(first), learn=False)
    if not found and (blank(events) | tombstones(events)).all():
        return "debezium-json"  # only tombstones, which it skips
    shown = next((document for document in first.to_pylist() if document and document.strip()), b"")
    looks = f"look like {' and '.join(found)}" if found else "look like no known format"
    if not found and (too_deep := int((events.status == kernels.TOO_DEEP).sum())):
        looks += f" ({too_deep} of them nested too deeply: more than {kernels.MAX_DEPTH} levels)"
    raise SourceError(f"the events {looks}; state the format (format: ...). The first is {shown[:120]!r}")


def _likely_formats(raw: RawEvents) -> tuple[str, ...]:
    """Formats that any of the first events looks like."""
    if raw.documents is None:
        return () if raw.rows is None else _likely_formats_of_columns(raw, raw.rows)
    first = raw.documents.slice(0, SNIFFED_EVENTS)
    if pc.any(pc.starts_with(first, b"\0")).as_py():
        return ("debezium-avro",)
    found = {name for document in first.to_pylist() for name in _likely_formats_of_object(object_of(document or b""))}
    return tuple(name for name in FORMATS if name in found)


def _likely_formats_of_object(event: Mapping[str, Any]) -> list[str]:
    names, action, inside, payload = (event.keys(), *map(event.get, ("action", "metadata", "payload")))

    def has_any(marks: tuple[tuple[str, ...], ...]) -> bool:
        return any(names >= {*mark} for mark in marks)

    def has_value(of: Any, *wanted: str) -> bool:
        return isinstance(of, dict) and any(of.get(name) is not None for name in wanted)

    canal = has_any(_CANAL)
    letters = [*LETTERS]
    is_bare = (
        isinstance(payload, dict)
        and payload.get("op") in letters
        and not payload.keys().isdisjoint({"before", "after"})
    )
    is_heartbeat = names == {"ts_ms"} and type(event["ts_ms"]) is int
    marks = {
        "debezium-json": has_any(_DEBEZIUM)
        or event.get("__op") in letters
        or is_heartbeat
        or (names == {"payload"} and is_bare),
        "canal-json": canal,
        "maxwell-json": has_any(_MAXWELL) and not canal,  # Canal's messages have all members of Maxwell's
        "dms": has_value(inside, "operation") and has_value(inside, "record-type", "table-name"),
        # Transactions of version 1, changes of version 2, or events around them and around pgcopydb's messages.
        "wal2json": isinstance(event.get("change"), list)
        or (action in [*"IUDT"] and has_value(event, "table", "message"))
        or (action in [*"BCMKEXPR"] and names <= _TRANSACTION_MEMBERS),
    }
    found = [name for name, is_marked in marks.items() if is_marked]
    return found or ["rows"] * has_value(event, *USUAL_OP_COLUMNS)


def _likely_formats_of_columns(raw: RawEvents, rows: pa.Table) -> tuple[str, ...]:
    names = rows.column_names
    if is_envelope(rows) or is_unwrapped(rows):
        return ("debezium-avro",)
    files = pc.unique(raw.source_file.cast(pa.string()))
    if (names and names[0] == "Op") or pc.all(pc.match_substring_regex(files, _FULL_LOAD)).as_py():
        return ("dms",)
    return ("rows",) if any(name in USUAL_OP_COLUMNS for name in names) else ()


@dataclass(frozen=True)
class DecodedFeed:
    """Content of a batch of raw events.

    Attributes:
        tables: changes by target table, with every table of the feed config, perhaps without rows.
        rejected: events that could not be decoded, with the target table where it is known.
        skipped: number of events skipped on purpose, by reason (tombstone, DDL, other table, ...).
        source_tables: names of the tables seen in the feed.
        decided: tables that targets take although their full names differ, and encodings of values; pass it
            to the decoding of later batches.
        untaken: tables of the feed that carried changes and that no target takes.
    """

    tables: Mapping[str, ChangeBatch]
    rejected: Rejected
    skipped: Mapping[str, int] = field(default_factory=dict)
    source_tables: tuple[str, ...] = ()
    decided: Decided = field(default_factory=Decided)
    untaken: tuple[str, ...] = ()

    @property
    def claims(self) -> Mapping[str, str]:
        """Tables of the feed by the target that takes them."""
        return self.decided.claims


@dataclass(frozen=True)
class Format:
    """A format: how it decodes, whether documents are text, and which belong together; its options are in `options.py`.

    Some formats may write decimals as base64 without declaring it.

    Attributes:
        of_documents: options without effect for columnar files.
        of_columns: options with an effect only for columnar files such as CSV.
        has_columns: whether it occurs in columnar files.
        accounts_for_all: whether every event that is no change is refused or counted as skipped; replication protocols also have
            messages that describe others, and transactions without changes.
    """

    decode: Callable[[RawEvents, Any], Events]
    is_text: bool = True
    complete: Callable[..., Complete | None] | None = None
    may_write_base64: bool = False
    of_documents: tuple[str, ...] = ()
    of_columns: tuple[str, ...] = ()
    has_columns: bool = True
    accounts_for_all: bool = True


_OF_REGISTRIES = ("registry", "registry_user", "registry_token", "registry_ca", "schemas")
_OF_MESSAGES = (*_OF_REGISTRIES, "schema_id_bytes")

FORMATS: Mapping[str, Format] = {
    "debezium-json": Format(
        decode_debezium,
        may_write_base64=True,
        of_documents=("tombstones", "objects", *_OF_REGISTRIES),
    ),
    "debezium-avro": Format(decode_debezium_avro, is_text=False, of_documents=("tombstones", *_OF_MESSAGES)),
    "debezium-protobuf": Format(decode_debezium_protobuf, is_text=False, has_columns=False),
    "canal-json": Format(decode_canal, has_columns=False),
    "maxwell-json": Format(decode_maxwell, has_columns=False),
    "dms": Format(decode_dms, of_documents=("objects",), of_columns=("op_column", "ts_column")),
    "wal2json": Format(decode_wal2json, complete=complete_transactions, has_columns=False, accounts_for_all=False),
    "pgoutput": Format(decode_pgoutput, is_text=False, has_columns=False, accounts_for_all=False),
    "mysql-rows": Format(decode_mysql_rows, is_text=False, has_columns=False, accounts_for_all=False),
    "rows": Format(decode_rows, complete=complete_pairs, of_documents=("objects",)),
}


def complete_events_of(name: str | None, options: Mapping[str, Any]) -> CompleteEvents | None:
    """How many events of a format are complete, for sources; None for formats whose events are independent.

    Raises:
        ConfigError: unknown format or option.
    """
    if name is None:
        return None  # decoding refuses the events
    chosen, own = lookup(name), OPTIONS[full_name(name)]
    if issubclass(own, DebeziumOptions):
        return partial(_complete_moves, FeedConfig(format=name, options=options, tables=()))
    if chosen.complete is None:
        return None
    complete = partial(chosen.complete, options=parse_options(own, options))
    return lambda events: complete(events if isinstance(events, pa.Table) else with_plain_names(events))


_LAST = 64
"""Events at the end of a batch among which its last change is looked for; the others are marks and tombstones."""


def _complete_moves(feed: FeedConfig, events: pa.BinaryArray | pa.Table) -> Complete:
    """All events but a delete at the end: the insert behind it may be of the same change of a key, and lack its values."""
    first = max(len(events) - _LAST, 0)
    last = events.slice(first)
    numbered = from_documents(pa.nulls(len(last), pa.binary()))
    given = {"documents": None, "rows": last} if isinstance(last, pa.Table) else {"documents": last}
    scanned = scan(replace(numbered, **given), feed)
    changes = np.flatnonzero(scanned.events.op)
    if not len(changes) or scanned.events.op[changes[-1]] != DELETE:
        return Complete(len(events))
    offset = scanned.raw.source_offset[int(scanned.events.raw[changes[-1]])].as_py()
    return Complete(first + offset - 1, may_end=True)


def decode(raw: RawEvents, feed: FeedConfig) -> DecodedFeed:
    """Decode a batch.

    Raises:
        ConfigError: unknown format or option, or a type or order that does not fit the feed.
        SourceError: the feed carries several tables and the config does not choose one.
    """
    return scan(raw, feed).decode(feed)


_PARTS = 8


def parts_of(raw: RawEvents, feed: FeedConfig, error: WideBatchError) -> list[RawEvents]:
    """The parts of a batch that is too wide to be decoded at once; a single event that is becomes a rejected one.

    Events that belong together stay in one part.
    """
    count = raw.num_events
    if count == 1:
        rejected = Rejected.concat([raw.rejected, reject(raw, np.zeros(1, np.int64), str(error))])
        return [replace(raw.slice(0, 0), skipped=raw.skipped, rejected=rejected)]
    complete = complete_events_of(feed.format, feed.options)
    parts, first = [], 0
    while first < count:
        size = _together(raw.slice(first, max(count // _PARTS, 1)), complete)
        parts.append(raw.slice(first, size or count - first))
        first += parts[-1].num_events
    parts[0] = replace(parts[0], skipped=raw.skipped, rejected=raw.rejected)
    return parts


def _together(raw: RawEvents, complete: CompleteEvents | None) -> int:
    """How many of the first events can be decoded without later ones."""
    events = raw.documents if raw.rows is None else raw.rows
    found = None if complete is None or events is None else complete(events)
    return raw.num_events if found is None or found.of_transactions else found.num_events


@dataclass(frozen=True)
class ScannedFeed:
    """A batch with known events, before their target tables and columns are known.

    Attributes:
        raw: the events that can be read.
        events: their changes.
        reading: options for reading the format's values.
        refused: events that are not a change.
        skipped: number of events skipped on purpose, by reason.
    """

    raw: RawEvents
    events: Events
    reading: Reading
    refused: tuple[Rejected, ...]
    skipped: Mapping[str, int]

    def untaken(self, feed: FeedConfig) -> tuple[str, ...]:
        """Tables with changes that no target of the feed takes."""
        return self._untaken(route(self.events, feed.tables, feed.decided.claims, is_open=feed.is_open)[0])

    def _untaken(self, codes: NDArray[np.int64]) -> tuple[str, ...]:
        is_unwanted = (self.events.op != 0) & (codes[self.events.table_of] == OTHER_TABLE) & ~self._of_connector
        return tuple(self.events.tables[code] for code in np.unique(self.events.table_of[is_unwanted]).tolist())

    @property
    def _of_connector(self) -> Mask:
        """Changes of tables that only tell a connector what to do."""
        is_control = [name.rpartition(".")[2] in _OF_CONNECTOR for name in self.events.tables]
        return np.array(is_control, np.bool_)[self.events.table_of]

    def decode(self, feed: FeedConfig) -> DecodedFeed:
        """Decode the changes of each table of the feed. See `decode`."""
        events, refused, skipped = self.events, list(self.refused), Counter(self.skipped)
        codes, claims = route(events, feed.tables, feed.decided.claims, is_open=feed.is_open)
        taken_by = np.where(events.op != 0, codes[events.table_of], NO_CHANGE)
        if (nameless := taken_by == NO_TABLE).any():
            rows = np.unique(events.raw[nameless])
            refused.append(reject(self.raw, rows, "names no table, and the feed fills several"))
        origins = self._origins(feed, taken_by) if feed.origin else {}
        servers = self._servers(feed, taken_by) if feed.one_server else {}
        tables: dict[str, ChangeBatch] = {}
        encodings: dict[str, Mapping[str, str]] = {}
        for number, table in enumerate(feed.tables):
            rows, ordered, unplaced = self._ordered(np.flatnonzero(taken_by == number), table)
            is_empty_load = not len(events) and int(codes[0]) == number
            done = assemble(ordered, rows, table, self.raw, self.reading, is_empty_load=is_empty_load)
            _require_every_change(self.raw, events.raw[rows], table.name, done)
            tables[table.name] = done.changes
            refused += [unplaced, done.rejected]
            encodings |= {table.name: done.encodings} if done.encodings else {}
            skipped.update(done.counts)
        untaken = self._untaken(codes)
        others, control = taken_by == OTHER_TABLE, self._of_connector
        skipped.update(skip_counts(("control event", others & control), ("other table", others & ~control)))
        seen = tuple(t for t in events.tables if t)
        decided = Decided(claims, encodings, origins, servers)
        return DecodedFeed(tables, Rejected.concat(refused), skipped, seen, decided, untaken)

    def _origins(self, feed: FeedConfig, taken_by: NDArray[np.int64]) -> Mapping[str, str]:
        """The topic or folder of each table of the feed that was taken so far; see `_one_each`."""
        places = self.raw.source_file
        files = np.asarray(places.indices)[self.events.raw]
        names = [origin_of(feed.origin, place) for place in places.dictionary.to_pylist()]
        what = (
            f"{feed.origin}s {{}} and {{}} both have {{}}, which would become one mirror: give each an entry with a source of its own, "
            f"or set merge_{feed.origin}s: true if they are parts of one table"
        )
        return self._one_each(feed.decided.origins, np.where(taken_by >= 0, files, -1), names, what)

    def _servers(self, feed: FeedConfig, taken_by: NDArray[np.int64]) -> Mapping[str, str]:
        """The server of each table of the feed that was taken so far, as its events state it; see `_one_each`."""
        if self.events.servers is None:
            return feed.decided.servers
        codes, names = codes_of(self.events.servers())
        what = (
            "the connectors {} and {} (source.name) both have {}, which would become one mirror: give each an entry with a source of "
            f"its own; or set {feed.one_server}: true among its settings, if they are parts of one table or the connector was given "
            "another name"
        )
        return self._one_each(feed.decided.servers, np.where(taken_by >= 0, codes, -1), names, what)

    def _one_each(
        self, known: Mapping[str, str], codes: NDArray[np.int64], names: Sequence[str], what: str
    ) -> Mapping[str, str]:
        """The only place that has events of each table so far, from `known` ones and the name of that of each event; -1 for none.

        Raises:
            SourceError: a second one has events of the same table; `what` says it of both and of their events.
        """
        given = np.flatnonzero(codes >= 0)
        pairs = self.events.table_of[given].astype(np.int64) * (len(names) + 1) + codes[given]
        pairs = np.unique(pairs[np.diff(pairs, prepend=-1) != 0])
        found = dict(known)
        for code, at in (divmod(pair, len(names) + 1) for pair in pairs.tolist()):
            table = self.events.tables[code]
            if (first := found.setdefault(table, names[at])) != names[at]:
                both = f"events of {table}" if table else "events that name no table"
                raise SourceError(what.format(first, names[at], both))
        return found

    def _ordered(self, rows: NDArray[np.int64], table: TableFeed) -> tuple[NDArray[np.int64], Events, Rejected]:
        """(changes of a table in its configured order, all events with their places, events without a place)."""
        if table.order_by == POSITION or not len(rows):
            return rows, self.events, Rejected.none()
        found, reasons = places(self.events, table.order_by)
        unplaced = Rejected.none()
        if reasons is not None:
            without = np.asarray(found.is_null())[rows]
            raw_rows, first = np.unique(self.events.raw[rows[without]], return_index=True)
            unplaced = reject(self.raw, raw_rows, reasons.take(pa.array(rows[without][first])), table.name)
            rows = rows[~without]
        return in_order(rows, found), replace(self.events, places=found), unplaced


def scan(raw: RawEvents, feed: FeedConfig) -> ScannedFeed:
    """Do the first half of `decode`: determine what each event is, by the format of the feed."""
    chosen = None if feed.format is None else lookup(feed.format)
    if not raw.num_events and not raw.is_load:
        return ScannedFeed(raw, no_events(), Reading(InferenceOptions()), (raw.rejected,), raw.skipped)
    if chosen is None or chosen.is_text:
        plain = _with_plain_names(raw)
        raw = unwrapped(plain)
        raw = raw if raw.documents is plain.documents else _with_plain_names(raw)
    if chosen is None:
        name = sniff(raw)
        raise ConfigError(f"the source names no format: its events look like {name}, so add format: {name}")
    name = full_name(feed.format)
    options = parse_options(OPTIONS[name], feed.options)
    _check_options(name, options, raw)
    readable, unreadable = _only_text(raw) if chosen.is_text else (raw, Rejected.none())
    events = chosen.decode(readable, options)
    if chosen.accounts_for_all:
        _require_every_event(readable, events)
    events = without_refused(events)
    reading = Reading(
        InferenceOptions(objects_as_text=getattr(options, "objects", "struct") == "text"),
        options.placeholder_bytes if hasattr(options, "placeholder") else events.placeholder,
        may_be_base64=chosen.may_write_base64,
    )
    refused = (reject(readable, r.rows, r.reason) for r in each_once(events.refusals))
    skipped = Counter(raw.skipped) + Counter(events.skipped)
    return ScannedFeed(readable, events, reading, (raw.rejected, unreadable, *refused), skipped)


def _require_every_event(raw: RawEvents, events: Events) -> None:
    """No event may get lost without a trace: it is a change, refused, or skipped for a reason that is counted.

    Changes are numbered only after this, so nothing later could tell that one is missing.

    Raises:
        LostEventsError: the decoder of the format has left some out.
    """
    is_known = np.zeros(raw.num_events, bool)
    is_known[events.raw[events.op != 0]] = True
    for refusal in events.refusals:
        is_known[refusal.rows] = True
    others = np.flatnonzero(~is_known)
    lost = len(others) - sum(events.skipped.values())
    if lost > 0:
        first = int(others[0])
        raise lost_events(
            f"{lost} of {raw.num_events} events would be lost: they are neither changes, nor refused, nor skipped for a "
            f"reason; the first event that is no change: {raw.source_file[first]} {raw.source_offset[first]}"
        )


def _require_every_change(raw: RawEvents, rows: NDArray[np.int64], table: str, done: Assembled) -> None:
    """No change may get lost or be doubled between its event and the columns of its table.

    Raises:
        LostEventsError: there are fewer or more changes than were taken from events.
    """
    taken = done.changes.num_rows + done.counts[EMPTY] + done.counts[MOVED]
    if done.rejected.num_rows:  # with all changes of its event
        offsets = pa.chunked_array(done.rejected.table["source_offset"])
        taken += int(pc.sum(pc.is_in(raw.source_offset.take(pa.array(rows)), offsets.combine_chunks())).as_py() or 0)
    if taken < len(rows) or (taken > len(rows) and not done.rejected.num_rows):
        raise lost_events(f"{table}: {len(rows)} changes were read from events, but {taken} are left to be written")


def lookup(name: str | None) -> Format:
    """The format of this name.

    Raises:
        ConfigError: there is none; names the nearest.
    """
    return FORMATS[full_name(name)]


def other_format(raw: RawEvents, name: str | None) -> str | None:
    """The format that events look like, if it differs from `name`; None if they look like none or several."""
    if name is None or not raw.num_events:
        return None
    try:
        found = sniff(raw)
    except SourceError:
        return None
    return None if FORMATS[found] is lookup(name) else found


def _with_plain_names(raw: RawEvents) -> RawEvents:
    documents, keys = (None if a is None else with_plain_names(a) for a in (raw.documents, raw.keys))
    return raw if documents is raw.documents and keys is raw.keys else replace(raw, documents=documents, keys=keys)


def _check_options(name: str, options: Any, raw: RawEvents) -> None:
    """Reject files that a format does not support, and options that have no effect for these files.

    Raises:
        ConfigError: names the first of the options.
        SourceError: the format only supports JSON.
    """
    in_columns, chosen = raw.rows is not None, FORMATS[name]
    if in_columns and not chosen.has_columns:
        raise SourceError(
            f"format {name} is JSON, and the files are CSV, Parquet or Avro: format: rows, dms or debezium"
        )
    for option in chosen.of_documents if in_columns else chosen.of_columns:
        default = next(f for f in fields(options) if f.name == option).default
        if getattr(options, option) != default:
            files, others = (
                ("CSV, Parquet and Avro files", "messages") if in_columns else ("JSON", "CSV, Parquet and Avro files")
            )
            raise ConfigError(f"{option} has no effect for {files} of format {name}, only for {others}")


def _only_text(raw: RawEvents) -> tuple[RawEvents, Rejected]:
    """Events whose bytes are UTF-8, and the others as rejected; a key that is no text names no column and counts as none."""
    if raw.documents is None:
        return raw, Rejected.none()
    if raw.keys is not None and (binary := cast_each(raw.keys, pa.string())[1]).any():
        raw = replace(raw, keys=pc.if_else(pa.array(binary), pa.scalar(None, pa.binary()), raw.keys))
    bad = cast_each(raw.documents, pa.string())[1]
    if not bad.any():
        return raw, Rejected.none()
    good = raw.take(pa.array(np.flatnonzero(~bad)))
    return good, reject(raw, np.flatnonzero(bad), "not UTF-8")
