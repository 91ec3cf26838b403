"""From span columns to Arrow columns of a wanted type, with the mask of values that are none.

A value that does not fit is never rounded, cut or replaced in silence: it is marked and the caller rejects its event.
"""

from collections.abc import Callable

import pyarrow as pa

from pipelines.formats import json_exact, json_nested, json_scalars
from pipelines.formats.json_spans import SpanColumn
from pipelines.formats.span_text import Decoded, json_text
from pipelines.formats.value_type import Encoding, ValueType


def decode(column: SpanColumn, wanted: ValueType) -> Decoded:
    """The column as `wanted`, and the mask of values that cannot be one (NULL there)."""
    arrow = wanted.arrow
    if pa.types.is_null(arrow):
        return pa.nulls(len(column)), column.has_value.copy()
    if wanted.encoding is Encoding.TEXT:
        return json_text(column)
    for is_type, decoder in _DECODERS:
        if is_type(arrow):
            return decoder(column, wanted)
    raise TypeError(f"no decoder for {arrow}")


def _structs(column: SpanColumn, wanted: ValueType) -> Decoded:
    return json_nested.structs(column, wanted, decode)


def _maps(column: SpanColumn, wanted: ValueType) -> Decoded:
    return json_nested.maps(column, wanted, decode)


def _lists(column: SpanColumn, wanted: ValueType) -> Decoded:
    return json_nested.lists(column, wanted, decode)


_DECODERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[SpanColumn, ValueType], Decoded]], ...] = (
    (pa.types.is_integer, json_scalars.typed_integers),
    (pa.types.is_floating, json_scalars.floats),
    (pa.types.is_string, json_scalars.strings),
    (pa.types.is_boolean, json_scalars.booleans),
    (pa.types.is_decimal, json_exact.decimals),
    (pa.types.is_temporal, json_scalars.temporals),
    (pa.types.is_binary, json_exact.binaries),
    (pa.types.is_fixed_size_binary, json_exact.binaries),
    (pa.types.is_struct, _structs),
    (pa.types.is_map, _maps),
    (pa.types.is_list, _lists),
)
