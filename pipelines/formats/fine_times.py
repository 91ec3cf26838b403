"""Times that are finer than the microsecond that columns hold: their last digits are cut, and that is counted."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.formats.arrow_columns import is_finer
from pipelines.formats.json_scalars import whole_numbers
from pipelines.formats.json_spans import SpanColumn
from pipelines.formats.span_text import TEXT_KINDS, text, true_mask
from pipelines.formats.value_type import Encoding, ValueType

_NANOS = 1_000
_COARSE_CHARACTERS = 26
"""Of a date and time with six digits of a second, without a zone: no longer text has more."""
_NATURAL_NANOS = 10**17
"""Whole numbers from here on are nanoseconds where nothing says what they are (see `temporal.from_integers`)."""


def count_cut(column: "SpanColumn | pa.Array", wanted: ValueType) -> int:
    """How many values of a column lose digits as `wanted`."""
    if not _is_micros(wanted.arrow):
        return 0
    if isinstance(column, SpanColumn):
        return _of_numbers(column, wanted) + _of_text(column)
    if is_finer(column.type, wanted.arrow):
        column = column.view(pa.int64())
    elif wanted.encoding is not Encoding.NANOS or not pa.types.is_integer(column.type):
        return 0
    values = np.asarray(column.fill_null(0))
    return int((values % _NANOS != 0).sum())


def _is_micros(arrow: pa.DataType) -> bool:
    return bool((pa.types.is_timestamp(arrow) or pa.types.is_time64(arrow)) and arrow.unit == "us")


def _of_numbers(column: SpanColumn, wanted: ValueType) -> int:
    if wanted.encoding not in {Encoding.NANOS, Encoding.NATURAL}:
        return 0
    if wanted.encoding is Encoding.NATURAL and int((column.end - column.start).max(initial=0)) < len(
        str(_NATURAL_NANOS)
    ):
        return 0
    values, valid, _ = whole_numbers(column)
    fine = valid & (values % _NANOS != 0)
    if wanted.encoding is Encoding.NATURAL:
        fine &= (np.abs(values) >= _NATURAL_NANOS) & pa.types.is_timestamp(wanted.arrow)
    return int(fine.sum())


def _of_text(column: SpanColumn) -> int:
    long = column.of_kind(*TEXT_KINDS) & (column.end - column.start > _COARSE_CHARACTERS)
    rows = np.flatnonzero(long)
    if not len(rows):
        return 0
    words, _ = text(column.take(rows), np.ones(len(rows), np.bool_))
    return int(true_mask(pc.match_substring_regex(words, r"\.\d{6}\d*[1-9]")).sum())
