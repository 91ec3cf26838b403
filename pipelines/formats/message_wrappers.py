"""Messages of Kafka that were dumped as JSON, one object each with its key and value: what `kcat -J` and others write.

`{"key": ..., "value": ...}`, or `payload` in place of `value`, as JSON or as text of JSON, perhaps beside topic, partition,
offset and the like. The first message of a batch tells whether it is of such messages.
"""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.formats import json_kernels as kernels
from pipelines.formats.documents import Mask, from_binary
from pipelines.formats.json_scan import scan_objects
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
    """The messages inside, with their keys; the same events where they are no such dump."""
    if raw.documents is None or raw.keys is not None or not _is_dump(raw.documents):
        return raw
    documents = from_binary(raw.documents)
    members = scan_objects(documents, ("key", *_VALUES, *_PLACE), learn=False)
    wrapped = members.is_object & _has_value(members)
    # Each by its own member: a message is a tombstone only if its own value is null.
    inner = pc.coalesce(*(json_text(members.column(name))[0] for name in _VALUES)).cast(pa.binary())
    keys = json_text(members.column("key"))[0].cast(pa.binary())
    return replace(raw, documents=pc.if_else(pa.array(wrapped), inner, raw.documents), keys=keys)


def _is_dump(documents: pa.BinaryArray) -> bool:
    """Whether the first object is a message with nothing but what such dumps have."""
    texts = from_binary(documents)
    head = scan_objects(texts.take(np.flatnonzero(texts.present)[:1]))
    if not head.is_object.all() or not len(head):
        return False
    names = set(head.names)
    inside = [name for name in _VALUES if name in names]
    if len(inside) != 1 or not names <= {*_BESIDE, *inside}:
        return False
    if set(_PLACE) <= names:
        return True
    # A row may have columns that are called key and value: only objects are messages then.
    both = [int(head.column(name).kind[0]) for name in ("key", "value")]
    return all(kind in (kernels.OBJECT, kernels.NULL) for kind in both) and kernels.OBJECT in both


def _has_value(members: Members) -> Mask:
    given: Mask = np.any([members.column(name).kind != kernels.MISSING for name in _VALUES], axis=0)
    return given
