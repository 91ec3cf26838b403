"""wal2json, format versions 1 and 2, plain or in the wrapper of pgcopydb.

Names, types and values come as lists of objects or as parallel lists and become columns here.
"""

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nevermore.pipelines.decode import casting
from nevermore.pipelines.decode.batches import Complete, RawEvents
from nevermore.pipelines.decode.events import (
    TWICE,
    Declared,
    Events,
    Refusal,
    blank,
    broken_documents,
    events_of,
    merged,
    op_codes,
    paths_of,
    refusal,
    skip_counts,
    strings,
    table_names,
    tombstones,
)
from nevermore.pipelines.decode.feed_schemas import postgres_type
from nevermore.pipelines.decode.image import CellImages
from nevermore.pipelines.decode.value_types import Encoding
from nevermore.pipelines.formats.options import Wal2JsonOptions
from nevermore.pipelines.jsonscan import value_kernels as kernels
from nevermore.pipelines.jsonscan.members import scan_arrays, scan_objects
from nevermore.pipelines.jsonscan.spans import Documents, Elements, Members, SpanColumn, from_binary
from nevermore.scan_core import Mask, Rows


@dataclass(frozen=True)
class Cells:
    """Name, type and value per column of each event.

    `given` marks events that have the list, `repeated` those with a member given twice in a part of it.
    """

    offsets: NDArray[np.int64]
    names: pa.StringArray
    types: pa.StringArray
    values: SpanColumn
    given: Mask
    uneven: Mask
    repeated: Mask

    def images(self, present: Mask) -> CellImages:
        """The cells as row images of the events that are `present` and have the list."""
        return CellImages(self.offsets, self.names, self.values, present & self.given)

    def signatures(self) -> pa.Array:
        """A text of all names and types per event."""
        texts = pc.binary_join_element_wise(self.names, self.types.fill_null(""), "\x1f", null_handling="replace")
        lists = pa.ListArray.from_arrays(pa.array(self.offsets.astype(np.int32)), texts)
        return pc.binary_join(lists, "\x1e")


def cells_of(lists: SpanColumn) -> Cells:
    """Cells of lists of {name, type, value}."""
    elements = scan_arrays(lists.documents(kernels.ARRAY))
    cells = scan_objects(elements.values.documents(kernels.OBJECT), ("name", "type", "value"), learn=False)
    event_of = np.repeat(np.arange(len(lists)), np.diff(elements.offsets))
    repeated = np.zeros(len(lists), np.bool_)
    repeated[event_of[cells.status == kernels.REPEATED]] = True
    return Cells(
        elements.offsets.astype(np.int64),
        strings(cells.column("name")).fill_null(""),
        strings(cells.column("type")),
        cells.column("value"),
        lists.of_kind(kernels.ARRAY),
        np.zeros(len(lists), np.bool_),
        repeated,
    )


def parallel(events: Members, names: str, types: str, values: str | None) -> Cells:
    """Make cells of three parallel lists."""
    lists: list[Elements] = [
        scan_arrays(events.column(name).documents(kernels.ARRAY)) for name in (names, types, values or names)
    ]
    lengths = [np.diff(part.offsets) for part in lists]
    uneven = (lengths[0] != lengths[1]) | (lengths[0] != lengths[2])
    if uneven.any():
        # Lists of different length in one event must not shift the cells of the others.
        even = [
            scan_arrays(events.column(n).documents(kernels.ARRAY).where(~uneven))
            for n in (names, types, values or names)
        ]
        lists = even
    return Cells(
        lists[0].offsets.astype(np.int64),
        strings(lists[0].values).fill_null(""),
        strings(lists[1].values),
        lists[2].values,
        events.column(names).of_kind(kernels.ARRAY),
        uneven,
        events.status == kernels.REPEATED,
    )


_V2 = {"I": "c", "U": "u", "D": "d", "T": "t"}
_V2_CONTROL = dict.fromkeys(("B", "C", "K", "E", "M", "X", "P", "R"), "x")
_V1 = {"insert": "c", "update": "u", "delete": "d", "truncate": "t"}
_TIMESTAMP = pa.timestamp("us", "UTC")


def decode_wal2json(raw: RawEvents, options: Wal2JsonOptions) -> Events:
    """Decode a batch of wal2json events to changes. Versions are detected per event, unless the config sets one."""
    documents, wrapper, is_first = _unwrapped(from_binary(raw.documents))
    if options.version is not None:
        is_first = np.full(len(documents), options.version == 1)
    parts = [_version_1(documents.where(is_first), wrapper, options.dates)] if is_first.any() else []
    parts += [] if is_first.all() else [_version_2(documents.where(~is_first), wrapper, options.dates)]
    events = merged(parts)
    skipped = skip_counts(("blank line", blank(wrapper)), ("tombstone", tombstones(wrapper)))
    return replace(events, skipped={**skipped, **events.skipped})


def complete_transactions(documents: pa.BinaryArray | pa.Table, options: Wal2JsonOptions) -> Complete | None:
    """The number of events in finished transactions; None if no event marks transactions."""
    if isinstance(documents, pa.Table) or options.version == 1:
        return None
    inner, _, _ = _unwrapped(from_binary(documents))
    action = strings(scan_objects(inner, ("action",), learn=False).column("action"))
    begins = np.flatnonzero(np.asarray(pc.fill_null(pc.equal(action, "B"), False)))
    commits = np.flatnonzero(np.asarray(pc.fill_null(pc.equal(action, "C"), False)))
    if not len(begins) and not len(commits):
        return None
    last_commit = int(commits[-1]) + 1 if len(commits) else 0
    open_begins = begins[begins >= last_commit]
    count = int(open_begins[0]) if len(open_begins) else len(documents) if len(commits) else 0
    return Complete(count, of_transactions=True)


def _unwrapped(documents: Documents) -> tuple[Documents, Members, Mask]:
    """(messages, wrappers, which messages are of version 1).

    Messages are taken out of the wrapper of pgcopydb. The wrappers, or the events themselves, have the times.
    """
    wrapper = scan_objects(documents, ("action", "xid", "lsn", "timestamp", "message", "change"), learn=False)
    message = wrapper.column("message")
    wrapped = message.of_kind(kernels.OBJECT)
    if not wrapped.any():
        return documents, wrapper, _is_version_1(wrapper)
    inner = message.documents(kernels.OBJECT)
    start = np.where(wrapped, inner.start, documents.start)
    messages = Documents(documents.data, start, np.where(wrapped, inner.end, documents.end))
    return messages, wrapper, _is_version_1(scan_objects(messages, ("change", "action"), learn=False))


def _is_version_1(events: Members) -> Mask:
    return events.column("change").of_kind(kernels.ARRAY) & ~events.column("action").has_value


def _version_2(documents: Documents, wrapper: Members, dates: Encoding) -> Events:
    names = ("action", "schema", "table", "columns", "identity", "pk", "timestamp")
    events = scan_objects(documents, names, learn=False)
    action = strings(events.column("action"))
    op, control = op_codes(action, _V2), op_codes(action, _V2_CONTROL) != 0
    unknown = events.is_object & (op == 0) & ~control
    return _events(
        op,
        np.arange(len(op)),
        events,
        tuple(cells_of(events.column(name)) for name in ("columns", "identity", "pk")),
        pc.coalesce(strings(events.column("timestamp")), strings(wrapper.column("timestamp"))),
        documents=documents,
        dates=dates,
        refusals=(
            *broken_documents(events),
            *refusal(unknown, "not a wal2json event: action is none of I, U, D, T, B, C, M", action),
        ),
        skipped=skip_counts(("control event", events.is_object & control)),
    )


def _version_1(documents: Documents, wrapper: Members, dates: Encoding) -> Events:
    transactions = scan_objects(documents, ("change", "timestamp"), learn=False)
    changes = scan_arrays(transactions.column("change").documents(kernels.ARRAY))
    raw_of = np.repeat(np.arange(len(documents)), np.diff(changes.offsets))
    names = ("kind", "schema", "table", "columnnames", "columntypes", "columnvalues", "oldkeys", "pk")
    events = scan_objects(changes.values.documents(kernels.OBJECT), names, learn=False)
    kind = strings(events.column("kind"))
    op, message = op_codes(kind, _V1), op_codes(kind, {"message": "x"}) != 0
    columns = parallel(events, "columnnames", "columntypes", "columnvalues")
    old = scan_objects(
        events.column("oldkeys").documents(kernels.OBJECT), ("keynames", "keytypes", "keyvalues"), learn=False
    )
    keys = scan_objects(events.column("pk").documents(kernels.OBJECT), ("pknames", "pktypes"), learn=False)
    cells = (columns, parallel(old, "keynames", "keytypes", "keyvalues"), parallel(keys, "pknames", "pktypes", None))
    times = pc.coalesce(strings(transactions.column("timestamp")), strings(wrapper.column("timestamp")))
    odd = np.unique(raw_of[((op == 0) & ~message) | columns.uneven | cells[1].uneven])
    reason = (
        "not a wal2json change: kind is none of insert, update, delete, truncate, or names and values differ in number"
    )
    no_change = transactions.is_object & (transactions.column("change").kind != kernels.ARRAY)
    return _events(
        op,
        raw_of,
        events,
        cells,
        times.take(pa.array(raw_of)),
        documents=documents,
        dates=dates,
        refusals=(
            *broken_documents(transactions),
            *refusal(no_change, "not a wal2json transaction: change is missing"),
            *refusal(np.isin(np.arange(len(documents)), odd), reason),
        ),
        skipped=skip_counts(("control event", message)),
    )


def _events(
    op: NDArray[np.uint8],
    raw: Rows,
    changes: Members,
    cells: tuple[Cells, ...],
    times: pa.StringArray,
    *,
    documents: Documents,
    dates: Encoding,
    refusals: tuple[Refusal, ...],
    skipped: dict[str, int],
) -> Events:
    """Changes of either version; `cells` are their columns, old identity and primary key."""
    columns, identity, _ = cells
    tables = table_names([strings(changes.column(name)) for name in ("schema", "table")])
    declared_of, declared, twice = _declared(tables[0], op, cells, dates)
    for part in cells:
        twice |= part.repeated
    twice_of = np.zeros(len(documents), np.bool_)
    twice_of[raw[twice]] = True
    return events_of(
        op,
        tables,
        columns.images((op == ord("c")) | (op == ord("u"))),
        identity.images((op == ord("u")) | (op == ord("d"))),
        raw=raw,
        source_ts=casting.from_text(times, _TIMESTAMP)[0],
        declared=(declared_of, declared),
        order=paths_of(documents, raw),
        sparse_updates=True,
        refusals=(*refusals, *refusal(twice_of, TWICE)),
        skipped=skipped,
    )


def _declared(
    table_of: NDArray[np.int32], op: NDArray[np.uint8], cells: tuple[Cells, ...], dates: Encoding
) -> tuple[NDArray[np.int32], tuple[Declared, ...], Mask]:
    """Declarations of columns and key, merged per table and key as long as no types conflict.

    The mask marks changes that name a key column twice.
    """
    parts = [pc.cast(pa.array(table_of), pa.string()), *(c.signatures().fill_null("") for c in cells)]
    encoded = pc.binary_join_element_wise(*parts, "\x1d").dictionary_encode()
    codes = np.asarray(encoded.indices)
    group_of_signature = np.zeros(max(len(encoded.dictionary), 1), np.int32)
    groups: list[Declared] = []
    latest: dict[tuple[str, tuple[str, ...], bool], int] = {}
    repeated: list[int] = []
    for code, signature in enumerate(encoded.dictionary.to_pylist()):
        table, own, old, keys = signature.split("\x1d")
        if any(len({n for n, _ in _pairs(part)}) < len(_pairs(part)) for part in (own, old, keys)):
            repeated.append(code)
            own = old = keys = ""  # its event is rejected and must not declare anything for others
        types = {name: postgres_type(text, dates) for name, text in _pairs(own) + _pairs(old) if text}
        # Without a primary key the replica identity is the best choice, unless it is the whole row.
        names = tuple(n for n, _ in _pairs(keys)) or tuple(
            n for n, _ in _pairs(old) if len(_pairs(old)) < len(_pairs(own)) or not own
        )
        # Events that lack a key or a type do not take one from those decoded with them: see `assemble`.
        group = table, names, all(text for _, text in _pairs(own) + _pairs(old))
        at = latest.get(group)
        if at is None or any(groups[at].types.get(name, t) != t for name, t in types.items()):
            latest[group] = at = len(groups)
            groups.append(Declared(types, names))
        else:
            groups[at] = replace(groups[at], types={**groups[at].types, **types})
        group_of_signature[code] = at
    group_of = group_of_signature[codes] if len(codes) else np.zeros(len(op), np.int32)
    return group_of, tuple(groups) or (Declared(),), np.isin(codes, repeated)


def _pairs(signature: str) -> list[tuple[str, str]]:
    return [(n, t) for n, _, t in (cell.partition("\x1f") for cell in signature.split("\x1e"))] if signature else []
