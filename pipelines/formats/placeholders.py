"""Values that a feed says it did not send: what stands in their place, and where it does."""

import numpy as np
from numpy.typing import NDArray

from pipelines.formats import json_kernels as kernels
from pipelines.formats import row_kernels, text_kernels
from pipelines.formats.json_spans import Members, SpanColumn

Mask = NDArray[np.bool_]

DEFAULT_PLACEHOLDER = "__debezium_unavailable_value"


def placeholder_patterns(placeholder: str) -> tuple[bytes, ...]:
    """The forms in which Debezium writes the placeholder of a value it did not send, by the column's type."""
    from base64 import b64encode

    encoded = b64encode(placeholder.encode()).decode()
    texts = (
        placeholder,
        encoded,
        f'["{placeholder}"]',
        f'["{encoded}"]',
        *(f'{{"{placeholder}":{space}"{placeholder}"}}' for space in ("", " ")),
        *("[" + comma.join(str(b) for b in placeholder.encode()) + "]" for comma in (",", ", ")),
    )
    return tuple(text.encode() for text in texts)


def without(column: SpanColumn, placeholders: tuple[bytes, ...]) -> SpanColumn:
    """The column with NULL in place of placeholders."""
    hidden = find_placeholders(column, placeholders)
    return column if hidden is None else column.without(hidden)


def find_placeholders(column: SpanColumn, placeholders: tuple[bytes, ...]) -> Mask | None:
    """Events whose value is one of the placeholders; None if none."""
    found = np.zeros(len(column), np.bool_)
    for pattern in placeholders:
        kind = _kind_of(pattern)
        if column.kinds[kind]:
            wanted = column.kind == kind
            text_kernels.match_bytes(
                column.data, column.start, column.end, wanted, np.frombuffer(pattern, np.uint8), found
            )
    return found if found.any() else None


def columns_with(members: Members, placeholders: tuple[bytes, ...]) -> frozenset[str]:
    """The columns in which any placeholder stands: usually none, so all are asked at once."""
    if not placeholders or not members.names:
        return frozenset()
    found = np.zeros(len(members.names), np.bool_)
    offsets = np.cumsum([0, *(len(p) for p in placeholders)], dtype=np.int32)
    kinds = np.array([_kind_of(p) for p in placeholders], np.int8)
    patterns = np.frombuffer(b"".join(placeholders), np.uint8)
    asked = members.kinds[:, kernels.STRING :].any(axis=1)
    spans = (members.start, members.end, members.kind)
    row_kernels.find_patterns(members.data, *spans, asked, patterns, offsets, kinds, found)
    return frozenset(name for name, has in zip(members.names, found.tolist(), strict=True) if has)


def _kind_of(pattern: bytes) -> int:
    return {0x7B: kernels.OBJECT, 0x5B: kernels.ARRAY}.get(pattern[0], kernels.STRING)
