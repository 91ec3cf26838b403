"""Records of a block as columns of positions and numbers, found by compiled code: for manifests of many entries.

It knows what writers of Iceberg write; for anything else, damage included, the caller decodes record by record.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from scan_core.avro.container import AvroError
from scan_core.avro.pairs import is_pair
from scan_core.avro.records import Wanted, wanted_for
from scan_core.avro.schema import INTEGER_TYPES, NamedTypes, part, record_fields, resolve, type_name
from scan_core.native.machine_code import Kernels

NULL = -(1 << 63)
"""A number that is NULL."""
LEAST_RECORDS = 16
"""Fewer are decoded one by one in the time that arrays take to set up."""
_LONG, _SPAN, _FIXED, _INTEGER_PAIRS, _BYTES_PAIRS, _LONGS, _MARK = range(7)
_COLUMNS = {_LONG: 1, _SPAN: 2, _FIXED: 1, _INTEGER_PAIRS: 2, _BYTES_PAIRS: 2, _LONGS: 2, _MARK: 1}
_NOBODY = -1
_FIXED_BYTES = {"boolean": 1, "float": 4, "double": 8}


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Steps that walk one record; `column_of` maps a wanted slot to its first column, `width` counts them all."""

    steps: npt.NDArray[np.uint64]
    column_of: Mapping[int, int]
    width: int

    def columns(self, data: bytes, blocks: Sequence[tuple[int, int]], kernels: Kernels) -> npt.NDArray[np.int64] | None:
        """One row per record; None if the data are not what they should be, or have something that steps do not know.

        Args:
            data: all blocks, one after the other.
            blocks: number of records and bytes of each.
            kernels: compiled code.
        """
        counts, sizes = (np.array(part, np.int64) for part in zip(*blocks, strict=True))
        count = int(counts.sum())
        out = np.zeros((count, self.width), np.int64)
        steps = self.steps, len(self.steps)
        walked = kernels["walk_records"](np.frombuffer(data, np.uint8), len(data), count, *steps, out, self.width)
        if walked < count or not counts.all():
            return None
        ends = out[np.cumsum(counts) - 1, -1]
        return out if (ends == np.cumsum(sizes)).all() else None


def compile_columns(schema: Any, wanted: Sequence[Wanted], marked: Sequence[int]) -> Program | None:
    """Steps for records of this schema; None if it has types that steps do not know.

    A number has one column, NULL in some; text and bytes have where they begin and their length; arrays where they
    begin and their count. Lengths and counts of what is NULL are -1.

    Args:
        schema: the writer's schema as parsed JSON.
        wanted: fields as `compile_record` takes them.
        marked: slots of records of which the columns are where they begin and where they end.
    """
    compiler = _Compiler(NamedTypes(schema), marked)
    try:
        if not compiler.add_fields(schema, wanted):
            return None
    except (AvroError, RecursionError):
        return None
    return Program(np.array(compiler.steps, np.uint64), compiler.column_of, compiler.width + 1)


class _Compiler:
    """Collects steps and columns; the first columns are for what nobody wants."""

    def __init__(self, named: NamedTypes, marked: Sequence[int]) -> None:
        self._named = named
        self._marked = marked
        self.steps: list[tuple[int, int, int, int]] = []
        self.column_of: dict[int, int] = {}
        self.width = max(_COLUMNS.values())

    def add_fields(self, record: Any, wanted: Sequence[Wanted]) -> bool:
        """Steps for the fields of a record; False if one has a type that steps do not know."""
        return all(
            self._add_field(field["type"], wanted_for(field, wanted))
            for field in record_fields(resolve(record, self._named))
        )

    def _add_field(self, kind: Any, want: Wanted | None) -> bool:
        if want is None:
            return self._add_value(kind, _NOBODY)
        if want.slot in self._marked:
            first = self._new_columns(want.slot, 2)
            self.steps.append((_MARK, first, 0, 0))
            known = self.add_fields(kind, ())
            self.steps.append((_MARK, first + 1, 0, 0))
            return known
        if want.kind == "record":
            return self.add_fields(kind, want.fields)
        return self._add_value(kind, want.slot)

    def _add_value(self, kind: Any, slot: int) -> bool:
        kind, union = self._without_null(resolve(kind, self._named))
        step = None if isinstance(kind, list) else _step_of(kind, self._named)
        if step is None:
            return type_name(kind) == "record" and slot == _NOBODY and union == 0 and self.add_fields(kind, ())
        column = 0 if slot == _NOBODY else self._new_columns(slot, _COLUMNS[step[0]])
        self.steps.append((step[0], column, union, step[1]))
        return True

    def _without_null(self, kind: Any) -> tuple[Any, int]:
        """The other type of a union with null, and whether null comes first (1) or second (2) in it."""
        if not isinstance(kind, list) or len(kind) != 2:
            return kind, 0
        branches = [resolve(branch, self._named) for branch in kind]
        nulls = [type_name(branch) == "null" for branch in branches]
        if sum(nulls) != 1:
            return kind, 0
        return (branches[1], 1) if nulls[0] else (branches[0], 2)

    def _new_columns(self, slot: int, count: int) -> int:
        self.column_of[slot] = self.width
        self.width += count
        return self.column_of[slot]


def _step_of(kind: Any, named: NamedTypes) -> tuple[int, int] | None:
    """Kind and bytes of the step for a type that is neither record nor union."""
    name = type_name(kind)
    if name in INTEGER_TYPES:
        return _LONG, 0
    if name in {"string", "bytes"}:
        return _SPAN, 0
    if name in _FIXED_BYTES:
        return _FIXED, _FIXED_BYTES[name]
    if name == "fixed":
        size = kind.get("size")
        return (_FIXED, size) if isinstance(size, int) and 0 <= size < 1 << 31 else None
    if name != "array":
        return None
    items = resolve(part(kind, "items"), named)
    if type_name(items) in INTEGER_TYPES:
        return _LONGS, 0
    if not is_pair(items, named):
        return None
    value = type_name(resolve(record_fields(items)[1]["type"], named))
    return (_BYTES_PAIRS if value == "bytes" else _INTEGER_PAIRS), 0
