"""Feeds of MySQL's binary log: Canal and Maxwell.

Each function turns the messages of one feed into changes; JSON itself is read in `jsonscan/`.

"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipelines.decode.batches import RawEvents
from pipelines.decode.events import (
    TWICE,
    Declared,
    Events,
    blank,
    broken_documents,
    counted,
    milliseconds,
    op_codes,
    paths_of,
    refusal,
    strings,
    table_names,
    tombstones,
)
from pipelines.decode.feed_schemas import RepeatedNameError, load, mysql_type, once
from pipelines.decode.image import Nothing, ObjectImages, OverlaidImages
from pipelines.decode.json_columns import integers, json_text
from pipelines.formats.options import CanalOptions, MaxwellOptions
from pipelines.jsonscan import value_kernels as kernels
from pipelines.jsonscan.members import scan_arrays, scan_objects
from pipelines.jsonscan.spans import Documents, Members, from_binary
from scan_core import Mask

_CANAL_NAMES = (
    "data", "database", "es", "id", "isDdl", "mysqlType", "old", "pkNames", "sql", "sqlType", "table", "ts", "type",
)  # fmt: skip
_NO_ROWS = dict.fromkeys(
    ("CREATE", "ALTER", "ERASE", "QUERY", "RENAME", "CINDEX", "DINDEX", "GTID", "XACOMMIT", "XAROLLBACK", "MHEARTBEAT", "INIT-DDL"),
    "x",
)  # fmt: skip
"""Canal's other event types: DDL, and events without rows."""
_CANAL_OPS = {"INSERT": "c", "UPDATE": "u", "DELETE": "d", "TRUNCATE": "t"}


def decode_canal(raw: RawEvents, _options: CanalOptions) -> Events:
    """Decode a batch of Canal JSON to changes, one per row of a message."""
    documents = from_binary(raw.documents)
    messages = scan_objects(documents, _CANAL_NAMES, learn=False)
    kinds = strings(messages.column("type"))
    op_of_message = op_codes(kinds, _CANAL_OPS)
    said = messages.column("isDdl").kind == kernels.TRUE
    ddl = messages.is_object & ((said & (op_of_message == 0)) | (op_codes(kinds, _NO_ROWS) != 0))
    contradictory = messages.is_object & said & (op_of_message != 0) & (op_of_message != ord("t"))
    data = scan_arrays(messages.column("data").documents(kernels.ARRAY))
    old = scan_arrays(messages.column("old").documents(kernels.ARRAY))
    truncate = messages.is_object & (op_of_message == ord("t"))
    count = np.where(truncate, 1, np.diff(data.offsets))
    declared_of, declared, repeated, broken = _canal_declared(messages)
    row_change = messages.is_object & ~ddl & ~contradictory & ~repeated & ~broken & (op_of_message != 0)
    count = np.where(row_change, count, 0)
    raw_of = np.repeat(np.arange(len(count)), count)
    rows = _elements(data.values.documents(kernels.OBJECT), data.offsets, raw_of, count)
    former = _elements(old.values.documents(kernels.OBJECT), old.offsets, raw_of, count)
    op = op_of_message[raw_of]
    names_of, tables = table_names([strings(messages.column(name)) for name in ("database", "table")])
    empty = row_change & ~truncate & (count == 0)
    unknown = messages.is_object & ~ddl & (op_of_message == 0)
    deleted = op == ord("d")
    return Events(
        raw=raw_of,
        op=op,
        table_of=names_of[raw_of],
        tables=tables,
        source_ts=milliseconds(*integers(messages.column("es"))).take(pa.array(raw_of)),
        after=ObjectImages(rows.where(~deleted)),
        before=OverlaidImages(rows.where(deleted | former.present), former.where(~deleted)),
        key=Nothing(),
        declared_of=declared_of[raw_of],
        declared=declared,
        order=paths_of(documents, raw_of),
        refusals=(
            *broken_documents(messages),
            *refusal(
                unknown,
                "not a Canal change: type is none of INSERT, UPDATE, DELETE, TRUNCATE, and isDdl not true",
                kinds,
            ),
            *refusal(contradictory, "isDdl is true, but type is that of a row change", kinds),
            *refusal(empty, "a change without rows: data is missing"),
            *refusal(repeated, f"mysqlType, sqlType or pkNames: {TWICE}"),
            *refusal(broken, f"mysqlType, sqlType or pkNames: {_BROKEN}"),
        ),
        skipped=counted(("blank line", blank(messages)), ("tombstone", tombstones(messages)), ("DDL", ddl)),
    )


def _elements(
    elements: Documents, offsets: NDArray[np.int32], raw_of: NDArray[np.int64], count: NDArray[np.int64]
) -> Documents:
    """Per change, the element at its place in the array of its message; missing where the array is shorter."""
    number = np.arange(len(raw_of)) - np.repeat(np.cumsum(count) - count, count)
    inside = number < np.diff(offsets)[raw_of]
    at = np.where(inside, offsets[:-1][raw_of] + number, 0)
    if not len(elements):
        nothing = np.full(len(raw_of), -1, np.int32)
        return Documents(elements.data, nothing, nothing)
    return elements.take(at).where(inside)


_BROKEN = "not names and types: it contains a number out of range"
_BETWEEN = "\x1d"
"""A character that JSON text cannot contain."""


def _canal_declared(messages: Any) -> tuple[NDArray[np.int32], tuple[Declared, ...], Mask, Mask]:
    """Column types from `mysqlType` and key from `pkNames`, per distinct set of texts; see `_parsed`."""
    texts = [json_text(messages.column(name))[0].fill_null("") for name in ("mysqlType", "pkNames", "sqlType")]
    encoded = pc.binary_join_element_wise(*texts, _BETWEEN).dictionary_encode()
    return _parsed(encoded, lambda text: _canal_types(*text.split(_BETWEEN)))


def _parsed(
    encoded: pa.DictionaryArray, parse: Callable[[str], Declared]
) -> tuple[NDArray[np.int32], tuple[Declared, ...], Mask, Mask]:
    """Parse declarations: codes per message, declarations, messages that repeat a name, and unreadable messages."""
    declared: list[Declared] = []
    repeated: list[int] = []
    broken: list[int] = []
    for text in encoded.dictionary.to_pylist():
        found = Declared()
        try:
            found = parse(text)
        except RepeatedNameError:
            repeated.append(len(declared))
        except ValueError:  # numbers that no JSON parser accepts, such as 1e999
            broken.append(len(declared))
        declared.append(found)
    codes = np.asarray(encoded.indices).astype(np.int32)
    return codes, tuple(declared), np.isin(codes, repeated), np.isin(codes, broken)


def _canal_types(types: str, keys: str, codes: str) -> Declared:
    columns = load(types) if types.startswith("{") else {}
    if codes.startswith("{"):
        load(codes)  # JDBC types: less specific than the names, but also checked for repeated names
    return Declared({name: mysql_type(str(text)) for name, text in columns.items()}, _key(keys))


def _key(text: str) -> tuple[str, ...]:
    key = load(text) if text.startswith("[") else []
    return once(key) if all(isinstance(name, str) for name in key) else ()


_MAXWELL_NAMES = ("database", "table", "type", "ts", "xid", "data", "old", "primary_key_columns", "encrypted")
_MAXWELL_OPS = {"insert": "c", "update": "u", "delete": "d", "bootstrap-insert": "r"}
_CONTROL = dict.fromkeys(
    (
        *("bootstrap-start", "bootstrap-complete", "heartbeat", "table-create", "table-alter", "table-drop"),
        *("database-create", "database-alter", "database-drop"),
    ),
    "x",
)


def decode_maxwell(raw: RawEvents, _options: MaxwellOptions) -> Events:
    """Decode a batch of Maxwell JSON to changes."""
    documents = from_binary(raw.documents)
    messages = scan_objects(documents, _MAXWELL_NAMES, learn=False)
    kinds = strings(messages.column("type"))
    encrypted = messages.column("encrypted").has_value
    op = np.where(encrypted, np.uint8(0), op_codes(kinds, _MAXWELL_OPS))
    control = messages.is_object & (op_codes(kinds, _CONTROL) != 0)
    rows = messages.column("data").documents(kernels.OBJECT)
    former = messages.column("old").documents(kernels.OBJECT)
    unknown = messages.is_object & (op == 0) & ~control & ~encrypted
    deleted = op == ord("d")
    table_of, tables = table_names([strings(messages.column(name)) for name in ("database", "table")])
    seconds, given = integers(messages.column("ts"))
    declared_of, declared, repeated, broken = _maxwell_declared(messages)
    return Events(
        raw=np.arange(len(op)),
        op=op,
        table_of=table_of,
        tables=tables,
        source_ts=milliseconds(seconds * 1000, given),
        after=ObjectImages(rows.where(~deleted)),
        before=OverlaidImages(rows.where(deleted | former.present), former.where(~deleted)),
        key=Nothing(),
        declared_of=declared_of,
        declared=declared,
        order=paths_of(documents),
        refusals=(
            *broken_documents(messages),
            *refusal(encrypted, "encrypted: only Maxwell's own key can decrypt it; run Maxwell without encryption"),
            *refusal(unknown, "not a Maxwell change: type is none of insert, update, delete, bootstrap-insert", kinds),
            *refusal(repeated, f"primary_key_columns: {TWICE}"),
            *refusal(broken, f"primary_key_columns: {_BROKEN}"),
        ),
        skipped=counted(
            ("blank line", blank(messages)), ("tombstone", tombstones(messages)), ("control event", control)
        ),
    )


def _maxwell_declared(messages: Members) -> tuple[NDArray[np.int32], tuple[Declared, ...], Mask, Mask]:
    encoded = json_text(messages.column("primary_key_columns"))[0].fill_null("").dictionary_encode()
    return _parsed(encoded, lambda text: Declared(key=_key(text)))
