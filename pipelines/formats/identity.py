"""Which row a change is about: the key columns, and the key of the row before the change.

A `before` that lacks a key column says nothing about the key; a delete that has neither `before` nor message key is
refused, because applying nothing in silence would keep a deleted row alive.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipelines.formats.feed import TableFeed
from pipelines.formats.image import Image
from pipelines.formats.rejections import Rejections

Mask = NDArray[np.bool_]

READ, CREATE, UPDATE, DELETE, TRUNCATE = (ord(letter) for letter in "rcudt")


def choose_key(
    feed: TableFeed, declared: Sequence[str], message_key: Image, row_type: pa.StructType
) -> tuple[str, ...]:
    """The key columns by target name.

    They are configured, all columns, declared by the feed, those of the message key, or else those that are logged.
    """
    if feed.identity_full:
        # A truncate alone has no columns.
        return tuple(row_type.field(i).name for i in range(row_type.num_fields)) or tuple(feed.known_types)
    if feed.key:
        return feed.key
    told = tuple(feed.target_name(name) for name in declared) or tuple(message_key.columns)
    return told or feed.known_key


def old_keys(
    op: NDArray[np.uint8],
    after: Image,
    before: Image,
    message_key: Image,
    *,
    key: Sequence[str],
    row_type: pa.StructType,
    rejections: Rejections,
) -> list[pa.Array]:
    """The key columns of the row before each change; NULL for truncates. Adds what has none to `rejections`."""
    written = (op == CREATE) | (op == READ) | (op == UPDATE)
    changes_old = (op == UPDATE) | (op == DELETE)
    for name in key:
        if name in before.wrong:
            rejections.add(changes_old & before.wrong[name][0], before.wrong[name][1])
        if name in message_key.wrong:
            rejections.add((op == DELETE) & message_key.wrong[name][0], message_key.wrong[name][1])
    for name in key:
        rejections.add(written & ~after.has(name), f"event without key column {name}")
    from_before = changes_old & _has_all(before, key)
    from_message = (op == DELETE) & ~from_before & _has_all(message_key, key)
    lost = (op == DELETE) & ~from_before & ~from_message
    rejections.add(lost, f"delete with neither before nor message key: no value for {', '.join(key)}")
    columns = []
    for name in key:
        arrow = row_type.field(name).type
        nothing = pa.nulls(len(op), arrow)
        column = after.columns.get(name, nothing)
        if (op == DELETE).any() or (op == TRUNCATE).any():
            column = pc.if_else(pa.array(written), column, pa.scalar(None, arrow))
        if from_before.any():
            column = pc.if_else(pa.array(from_before), before.columns[name], column)
        if from_message.any():
            column = pc.if_else(pa.array(from_message), message_key.columns[name], column)
        columns.append(column)
    return columns


def _has_all(image: Image, key: Sequence[str]) -> Mask:
    mask = image.present
    for name in key:
        mask = mask & image.has(name)
    return mask
