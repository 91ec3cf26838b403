"""The entry to all formats: a batch of raw events to the change batches of the tables wanted from it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.changes.change_batch import ChangeBatch, Rejected
from pipelines.errors import ConfigError, SourceError
from pipelines.formats.assemble import Reading, assemble
from pipelines.formats.canal import CanalOptions, decode_canal
from pipelines.formats.casting import cast_each
from pipelines.formats.change_rows import RowChangeOptions, complete_pairs, decode_rows
from pipelines.formats.debezium import decode_debezium
from pipelines.formats.debezium_avro import DebeziumAvroOptions, decode_debezium_avro
from pipelines.formats.debezium_options import DebeziumOptions
from pipelines.formats.dms import DmsOptions, decode_dms
from pipelines.formats.event_order import in_order, places
from pipelines.formats.events import Events, each_once, reject, without_refused
from pipelines.formats.feed import POSITION, Decided, FeedConfig
from pipelines.formats.inference import InferenceOptions
from pipelines.formats.maxwell import MaxwellOptions, decode_maxwell
from pipelines.formats.member_names import with_plain_names
from pipelines.formats.message_wrappers import unwrapped
from pipelines.formats.placeholders import placeholder_patterns
from pipelines.formats.routing import NO_TABLE, OTHER_TABLE, route
from pipelines.formats.sniff import SNIFFED_EVENTS, sniff
from pipelines.formats.table_parts import merge_parts
from pipelines.formats.wal2json import Wal2JsonOptions, complete_transactions, decode_wal2json
from pipelines.sources.event_groups import Complete, CompleteEvents
from pipelines.sources.raw_events import RawEvents, from_documents


@dataclass(frozen=True)
class DecodedFeed:
    """What a batch of raw events holds.

    Attributes:
        tables: changes by target table; every table of the feed config is there, perhaps without rows.
        rejected: events that could not be decoded, with the target table where it is known.
        skipped: number of events left out on purpose, by reason (tombstone, DDL, other table, ...).
        source_tables: names of the tables seen in the feed.
        decided: which tables the targets take though their full names differ, and how values are written; to be given
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
    """A format: how it reads its options, how it decodes, whether its documents are text, which of them go together.

    Decimals of some may be written as base64 without a word that they are.

    Attributes:
        of_documents: options that mean nothing for files of columns.
        of_columns: options that mean something for those alone, as for CSV.
        has_columns: whether it comes in files of columns at all.
    """

    options: type[Any]
    decode: Callable[[RawEvents, Any], Events]
    is_text: bool = True
    complete: Callable[..., Complete | None] | None = None
    may_write_base64: bool = False
    of_documents: tuple[str, ...] = ()
    of_columns: tuple[str, ...] = ()
    has_columns: bool = True


_OF_MESSAGES = ("registry", "registry_user", "registry_token", "registry_ca", "schemas", "schema_id_bytes")

FORMATS: Mapping[str, Format] = {
    "debezium-json": Format(
        DebeziumOptions, decode_debezium, may_write_base64=True, of_documents=("tombstones", "objects")
    ),
    "debezium-avro": Format(
        DebeziumAvroOptions, decode_debezium_avro, is_text=False, of_documents=("tombstones", *_OF_MESSAGES)
    ),
    "canal-json": Format(CanalOptions, decode_canal, has_columns=False),
    "maxwell-json": Format(MaxwellOptions, decode_maxwell, has_columns=False),
    "dms": Format(DmsOptions, decode_dms, of_documents=("objects",), of_columns=("op_column", "ts_column")),
    "wal2json": Format(Wal2JsonOptions, decode_wal2json, complete=complete_transactions, has_columns=False),
    "rows": Format(RowChangeOptions, decode_rows, complete=complete_pairs, of_documents=("objects",)),
}


def complete_events_of(name: str | None, options: Mapping[str, Any]) -> CompleteEvents | None:
    """How far events of a format may be handed on, for a source to ask; None for formats where each stands alone.

    Of a feed whose format is to be sniffed, the events themselves tell.

    Raises:
        ConfigError: unknown format or option.
    """
    if name is not None:
        return _complete_of(name, options)

    def told(events: pa.BinaryArray | pa.Table) -> Complete | None:
        try:
            found = sniff(_first_events(events))
        except SourceError:
            return None  # decoding says what is in doubt
        complete = _complete_of(found, options)
        return None if complete is None else complete(events)

    return told


def _complete_of(name: str, options: Mapping[str, Any]) -> CompleteEvents | None:
    chosen = lookup(name)
    if chosen.complete is None:
        return None
    complete = partial(chosen.complete, options=parse_options(chosen, options))
    return lambda events: complete(events if isinstance(events, pa.Table) else with_plain_names(events))


def _first_events(events: pa.BinaryArray | pa.Table) -> RawEvents:
    if not isinstance(events, pa.Table):
        return from_documents(with_plain_names(events.slice(0, SNIFFED_EVENTS)))
    first = events.slice(0, SNIFFED_EVENTS)
    return replace(from_documents(pa.nulls(first.num_rows, pa.binary())), documents=None, rows=first)


ALIASES: Mapping[str, str] = {
    "debezium": "debezium-json",
    "canal": "canal-json",
    "maxwell": "maxwell-json",
    **dict.fromkeys(("dms-json", "dms-csv", "dms-parquet"), "dms"),
    **dict.fromkeys(("wal2json-1", "wal2json-2"), "wal2json"),
    **dict.fromkeys(("rows-json", "rows-csv", "rows-parquet"), "rows"),
}


def decode(raw: RawEvents, feed: FeedConfig) -> DecodedFeed:
    """Decode a batch.

    Raises:
        ConfigError: unknown format or option, a type or order that the feed cannot give.
        SourceError: the feed carries several tables and the config does not tell which.
    """
    named = None if feed.format is None else lookup(feed.format)
    if not raw.num_events:
        nothing = {t.name: merge_parts([], t, raw)[0] for t in feed.tables}
        known = {t.name: t.known_encodings for t in feed.tables if t.known_encodings}
        return DecodedFeed(nothing, raw.rejected, raw.skipped, decided=Decided(feed.claims, known))
    if named is None or named.is_text:
        raw = _with_plain_names(unwrapped(_with_plain_names(raw)))
    chosen = named or lookup(sniff(raw))
    options = parse_options(chosen, feed.options)
    _check_options(chosen, options, raw)
    readable, unreadable = _only_text(raw) if chosen.is_text else (raw, Rejected.none())
    events = without_refused(chosen.decode(readable, options))
    reading = Reading(
        InferenceOptions(objects_as_text=getattr(options, "objects", "struct") == "text"),
        placeholder_patterns(options.placeholder) if hasattr(options, "placeholder") else (),
        may_be_base64=chosen.may_write_base64,
    )
    refused = [raw.rejected, unreadable, *(reject(readable, r.rows, r.reason) for r in each_once(events.refusals))]
    skipped = dict(raw.skipped)
    for reason, count in events.skipped.items():
        skipped[reason] = skipped.get(reason, 0) + count
    tables: dict[str, ChangeBatch] = {}
    encodings: dict[str, Mapping[str, str]] = {}
    is_change = events.op != 0
    codes, claims = route(events, feed.tables, feed.claims, is_open=feed.is_open)
    nameless = is_change & (codes[events.table_of] == NO_TABLE)
    if nameless.any():
        refused.append(reject(readable, np.unique(events.raw[nameless]), "names no table, and the feed fills several"))
    for number, table in enumerate(feed.tables):
        rows = np.flatnonzero(is_change & (codes[events.table_of] == number))
        ordered = events
        if table.order_by != POSITION and len(rows):
            found, reasons = places(events, table.order_by)
            ordered = replace(events, places=found)
            if reasons is not None:
                without = np.asarray(found.is_null())[rows]
                raw_rows, first = np.unique(events.raw[rows[without]], return_index=True)
                why = reasons.take(pa.array(rows[without][first]))
                refused.append(reject(readable, raw_rows, why, table.name))
                rows = rows[~without]
            rows = in_order(rows, found)
        done = assemble(ordered, rows, table, readable, reading)
        tables[table.name] = done.changes
        refused.append(done.rejected)
        encodings |= {table.name: done.encodings} if done.encodings else {}
        for reason, count in done.told.items():
            skipped[reason] = skipped.get(reason, 0) + count
    unwanted = is_change & (codes[events.table_of] == OTHER_TABLE)
    untaken = tuple(events.tables[code] for code in np.unique(events.table_of[unwanted]).tolist())
    if untaken:
        skipped["other table"] = int(unwanted.sum())
    seen = tuple(t for t in events.tables if t)
    return DecodedFeed(tables, Rejected.concat(refused), skipped, seen, Decided(claims, encodings), untaken)


def lookup(name: str | None) -> Format:
    """The format of this name.

    Raises:
        ConfigError: there is none; names the nearest.
    """
    if name is not None and (own := ALIASES.get(name, name)) in FORMATS:
        return FORMATS[own]
    near = get_close_matches(name or "", FORMATS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"valid are {', '.join(FORMATS)}"
    raise ConfigError(f"unknown format {name!r}; {hint}")


def other_format(raw: RawEvents, name: str | None) -> str | None:
    """The format that events look like, if it is another than `name`; None where they look like none, or like several."""
    if name is None or not raw.num_events:
        return None
    try:
        found = sniff(_with_plain_names(raw))
    except SourceError:
        return None
    return None if FORMATS[found] is lookup(name) else found


def parse_options(chosen: Format, options: Mapping[str, Any]) -> Any:
    """The format's own options out of those of the source; unknown ones are an error."""
    valid = {f.name for f in fields(chosen.options)}
    for name in options:
        if name not in valid:
            near = get_close_matches(name, valid, n=1)
            hint = f"did you mean {near[0]}?" if near else f"valid are {', '.join(sorted(valid))}"
            raise ConfigError(f"unknown option {name!r} of the format; {hint}")
    return chosen.options.from_mapping(options)


def _with_plain_names(raw: RawEvents) -> RawEvents:
    documents, keys = (None if a is None else with_plain_names(a) for a in (raw.documents, raw.keys))
    return raw if documents is raw.documents and keys is raw.keys else replace(raw, documents=documents, keys=keys)


def _check_options(chosen: Format, options: Any, raw: RawEvents) -> None:
    """Refuse files that a format has not, and options that mean nothing for the files at hand.

    Raises:
        ConfigError: names the first of the options.
        SourceError: the format is one of JSON alone.
    """
    in_columns = raw.rows is not None
    name = next(name for name, known in FORMATS.items() if known is chosen)
    if in_columns and not chosen.has_columns:
        raise SourceError(
            f"format {name} is JSON, and the files are CSV, Parquet or Avro: format: rows, dms or debezium"
        )
    for option in chosen.of_documents if in_columns else chosen.of_columns:
        default = next(f for f in fields(chosen.options) if f.name == option).default
        if getattr(options, option) != default:
            files, others = (
                ("CSV, Parquet and Avro files", "messages") if in_columns else ("JSON", "CSV, Parquet and Avro files")
            )
            raise ConfigError(f"{option} means nothing for {files} of format {name}, only for {others}")


def _only_text(raw: RawEvents) -> tuple[RawEvents, Rejected]:
    """The events whose bytes are UTF-8, and the others as rejected."""
    if raw.documents is None:
        return raw, Rejected.none()
    bad = np.zeros(raw.num_events, np.bool_)
    for array in (raw.documents, raw.keys):
        if array is not None:
            bad |= cast_each(array, pa.string())[1]
    if not bad.any():
        return raw, Rejected.none()
    good = raw.take(pa.array(np.flatnonzero(~bad)))
    return good, reject(raw, np.flatnonzero(bad), "not UTF-8")
