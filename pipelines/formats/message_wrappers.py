"""Messages of Kafka that were dumped as JSON, one object each with its key and value: what `kcat -J` and others write.

`{"key": ..., "value": ...}`, or `payload` in place of `value`, as JSON or as text of JSON, perhaps beside topic, partition,
offset and the like. Each event tells by itself whether it is such a message.
"""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.formats import json_kernels as kernels
from pipelines.formats.documents import Mask, from_binary
from pipelines.formats.json_scan import first_member_is, scan_objects
from pipelines.formats.json_spans import Members
from pipelines.formats.span_text import json_text
from pipelines.sources.raw_events import RawEvents

_PLACE = ("topic", "partition", "offset")
_BESIDE = frozenset(
    {*_PLACE, "key", "timestamp", "timestampType", "timestamp_type", "ts", "tstype", "broker", "headers"}
    | {"key_schema_id", "value_schema_id", "leaderEpoch"}
)
_VALUES = ("value", "payload")


def unwrapped(raw: RawEvents) -> RawEvents:
    """The messages inside, with their keys; events that are no such message as they are."""
    if raw.documents is None or raw.keys is not None:
        return raw
    documents = from_binary(raw.documents)
    rows = np.flatnonzero(first_member_is(documents, *_BESIDE, *_VALUES))
    if not len(rows):
        return raw
    members = scan_objects(documents.take(rows), ("key", *_VALUES, *_PLACE))
    wrapped = _are_messages(members)
    if not wrapped.any():
        return raw
    # Each by its own member: a message is a tombstone only if its own value is null.
    values = pc.coalesce(*(json_text(members.column(name))[0] for name in _VALUES)).cast(pa.binary())
    keys = json_text(members.column("key"))[0].cast(pa.binary())
    places = np.full(len(documents), -1, np.int64)
    places[rows[wrapped]] = np.flatnonzero(wrapped)
    inside, taken = pa.array(places >= 0), pa.array(places, mask=places < 0)
    return replace(raw, documents=pc.if_else(inside, values.take(taken), raw.documents), keys=keys.take(taken))


def _are_messages(members: Members) -> Mask:
    """Which objects are messages with nothing but what such dumps have."""
    kinds = {name: members.column(name).kind for name in ("key", *_VALUES, *_PLACE)}
    given = {name: kind != kernels.MISSING for name, kind in kinds.items()}
    result: Mask = members.of_names({*_BESIDE, *_VALUES}) & (given["value"] ^ given["payload"])
    placed = np.all([given[name] for name in _PLACE], axis=0)
    # A row may have columns that are called key and value: only objects are messages then.
    value = np.where(given["value"], kinds["value"], kinds["payload"])
    is_object = (kinds["key"] == kernels.OBJECT) | (value == kernels.OBJECT)
    is_nothing_else = np.all(
        [(kind == kernels.OBJECT) | (kind == kernels.NULL) for kind in (kinds["key"], value)], axis=0
    )
    result &= placed | (is_object & is_nothing_else)
    return result
