"""The reasons for which events are rejected.

A reason applies to several events, or each event has its own that shows the wrong value, shortened.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipelines.decode.casting import cast_each
from pipelines.decode.json_columns import TEXT_KINDS, json_text
from pipelines.decode.value_types import Encoding, ValueType, describe
from pipelines.jsonscan.spans import SpanColumn

Mask = NDArray[np.bool_]
Reasons = str | pa.StringArray

MAX_SHOWN = 60
"""Characters of a value that are shown: the event itself is in quarantine, too."""
DATE_STYLE_HINT = (
    "; if the server writes dates in another DateStyle than ISO, say which: "
    "options: {date_style: 'SQL, DMY'} of wal2json, or encodings: {column: sql-dmy}"
)
UNDECIDED = (
    " whose encoding is known: no schema says whether text is a number or base64 of its digits; say which: "
    "encodings: {{{0}: base64}} or {{{0}: plain}}, beside types"
)
_DATE_IN_A_STYLE = r"'(\d\d[-/.]\d\d[-/.]\d{4}|[A-Z][a-z]{2} (\d\d [A-Z][a-z]{2}|[A-Z][a-z]{2} \d\d) )"
_KIND_NAMES = ("missing", "null", "false", "true", "integer", "number", "text", "text", "object", "list")


def of_values(name: str, column: SpanColumn | pa.Array, bad: Mask, wanted: ValueType) -> pa.StringArray:
    """Why the values of a column that are `bad` do not fit its type, one text per event; NULL for the others."""
    rows = np.flatnonzero(bad)
    some = column.take(rows) if isinstance(column, SpanColumn) else column.take(pa.array(rows))
    values = shown(some)
    if wanted.into is not None:
        was, now = describe(wanted.into), describe(wanted.arrow)
        was, now = (was, now) if was != now else (str(wanted.into), str(wanted.arrow))
        texts = _joined(f"column {name} changes from {was} to {now}, which no promotion covers: ", values, "")
    elif isinstance(some, SpanColumn):
        kinds = pa.array(_KIND_NAMES).take(pa.array(some.kind))
        values = pc.binary_join_element_wise(kinds, values, " ")
        texts = _joined(f"column {name}: ", values, f" is no {describe(wanted.arrow)}")
        if pa.types.is_decimal(wanted.arrow) and wanted.encoding is Encoding.NATURAL:
            is_text = pa.array(some.of_kind(*TEXT_KINDS))
            texts = pc.if_else(is_text, _joined("", texts, UNDECIDED.format(name)), texts)
        if pa.types.is_date(wanted.arrow) or pa.types.is_timestamp(wanted.arrow):
            in_style = pc.match_substring_regex(texts, _DATE_IN_A_STYLE)
            texts = pc.if_else(in_style, _joined("", texts, DATE_STYLE_HINT), texts)
    else:
        texts = _joined(f"column {name}: ", values, f" is no {describe(wanted.arrow)}")
    return per_event(texts, bad)


def with_value(reason: str, values: SpanColumn | pa.Array, bad: Mask) -> pa.StringArray:
    """A reason behind which the value of each event that is `bad` stands; NULL for the others."""
    rows = np.flatnonzero(bad)
    some = values.take(rows) if isinstance(values, SpanColumn) else values.take(pa.array(rows))
    missing = some.is_null() if isinstance(some, pa.Array) else pa.array(~some.has_value)
    texts = pc.if_else(missing, f"{reason}: there is none", _joined(f"{reason}: ", shown(some), ""))
    return per_event(texts, bad)


def shown(values: SpanColumn | pa.Array) -> pa.StringArray:
    """Values as people read them: in quotes, and no longer than MAX_SHOWN."""
    is_text = True
    if isinstance(values, SpanColumn):
        texts = json_text(values)[0]
    else:
        is_text = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
        nested = pa.types.is_nested(values.type) or pa.types.is_binary(values.type)
        texts = (
            pa.array([str(value) for value in values.to_pylist()], pa.string())
            if nested
            else cast_each(values, pa.string())[0]
        )
    texts = pc.fill_null(texts, "")
    cut = pc.utf8_slice_codeunits(texts, 0, MAX_SHOWN)
    ends = pc.if_else(pc.greater(pc.utf8_length(texts), MAX_SHOWN), "...", "")
    cut = pc.replace_substring_regex(pc.binary_join_element_wise(cut, ends, ""), r"\s", " ")
    return pc.binary_join_element_wise("'", cut, "'", "") if is_text else cut


def per_event(texts: pa.StringArray, bad: Mask) -> pa.StringArray:
    """One text for each event that is `bad`, as one per event."""
    places = np.cumsum(bad) - 1
    return texts.take(pa.array(places, mask=~bad))


def _joined(before: str, values: pa.StringArray, after: str) -> pa.StringArray:
    return pc.binary_join_element_wise(before, values, after, "")
