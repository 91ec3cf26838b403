"""Columns of many events decoded together, row by row: the values that most columns have, without their odd cases.

What is decoded here waits in `SpanColumn.ready` for the decoders, which would do the same column by column.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipelines.formats import json_kernels as kernels
from pipelines.formats import row_kernels
from pipelines.formats.json_spans import Members, Ready, SpanColumn
from pipelines.formats.value_type import Encoding, ValueType

LEAST_COLUMNS = 4
"""Fewer are decoded faster one by one."""
_TEXT = (kernels.STRING, kernels.ESCAPED)
_NUMBER = (kernels.INT, kernels.FLOAT)
_PADDING = 8
"""Bytes behind the text of a column: it is copied eight at a time."""
_NO_OFFSETS, _NO_TEXT = np.zeros(0, np.int32), np.zeros(0, np.uint8)


def decoded_by_rows(members: Members, types: Mapping[str, ValueType]) -> dict[str, SpanColumn]:
    """The columns, those ready whose values are all of the kinds that their types usually have."""
    columns = {name: members.column(name) for name in members.names if name in types}
    plans = {name: plan for name, column in columns.items() if (plan := _plan(column, types[name])) is not None}
    if members.numbers is not None:
        for name in [name for name, (what, _) in plans.items() if what != row_kernels.TEXT]:
            at = members.names.index(name)
            columns[name] = _with_numbers(
                columns[name], plans.pop(name), members.numbers.bits[at], members.numbers.odd[at]
            )
    if len(plans) < LEAST_COLUMNS or not len(members):
        return columns
    count, number = len(members), len(plans)
    names = list(plans)
    places = np.array([members.names.index(name) for name in names], np.uint64)
    what = np.array([plans[name][0] for name in names], np.uint8)
    kinds = np.array([_bits(plans[name][1]) for name in names], np.uint64)
    sizes = [_size(columns[n], plans[n][1]) + _PADDING if plans[n][0] == row_kernels.TEXT else 0 for n in names]
    base = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    out = np.empty(int(base[-1]), np.uint8)
    offsets = np.empty((number, count + 1), np.int32)
    numbers = np.zeros((number, count), np.uint64)
    bad = np.zeros((number, count), np.bool_)
    row_kernels.parse_rows(
        members.data, members.start, members.end, members.kind, places, what, kinds,
        base[:-1], np.empty(number, np.int64), out, offsets, numbers, bad,
    )  # fmt: skip
    for k, name in enumerate(names):
        text = out[base[k] : base[k] + offsets[k, -1]] if what[k] == row_kernels.TEXT else out[:0]
        ready = Ready(int(what[k]), plans[name][1], numbers[k], offsets[k], text, bad[k])
        columns[name] = replace(columns[name], ready=ready)
    return columns


def _with_numbers(
    column: SpanColumn, plan: tuple[int, tuple[int, ...]], bits: NDArray[np.uint64], odd: NDArray[np.bool_]
) -> SpanColumn:
    """A column of numbers, ready with what was taken when they were found."""
    what, kinds = plan
    if what == row_kernels.DOUBLE and column.kinds[kernels.INT]:
        doubles = bits.view(np.int64).astype(np.float64).view(np.uint64)
        bits = np.where(column.kind == kernels.INT, doubles, bits)
    return replace(column, ready=Ready(what, kinds, bits, _NO_OFFSETS, _NO_TEXT, odd & (column.kind > kernels.NULL)))


def _plan(column: SpanColumn, wanted: ValueType) -> tuple[int, tuple[int, ...]] | None:
    """(what to decode, which kinds of value); None if the column is not of the usual kind."""
    arrow = wanted.arrow
    plan: tuple[int, tuple[int, ...]]
    if pa.types.is_string(arrow) and wanted.encoding is Encoding.NATURAL:
        plan = (row_kernels.TEXT, _TEXT)
    elif pa.types.is_decimal(arrow) and wanted.encoding is not Encoding.SCALED:
        plan = (row_kernels.TEXT, (*_NUMBER, *_TEXT))
    elif pa.types.is_floating(arrow):
        plan = (row_kernels.DOUBLE, _NUMBER)
    elif pa.types.is_integer(arrow) or pa.types.is_temporal(arrow):
        plan = (row_kernels.INTEGER, (kernels.INT,))
    else:
        return None
    given = column.kinds
    others = int(given.sum() - given[list(plan[1])].sum() - given[kernels.MISSING] - given[kernels.NULL])
    return plan if others == 0 else None


def _bits(kinds: Iterable[int]) -> int:
    return sum(1 << kind for kind in kinds)


def _size(column: SpanColumn, kinds: tuple[int, ...]) -> int:
    return int((column.end - column.start).sum(where=column.of_kind(*kinds), dtype=np.int64))
