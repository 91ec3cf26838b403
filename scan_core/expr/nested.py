"""Members of structs, subscripts of lists and maps: by offsets over the child arrays, never row by row."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from scan_core.expr.compare import compare, numbers
from scan_core.expr.vectors import BoolMask, Kernel, Operand, Vector, array_of, null_mask, nulls_of, outcome, valid_mask
from scan_core.model.schema import ListType, MapType, Type

OUT_OF_RANGE = "a position outside the list"


def member(array: pa.Array, index: int) -> pa.Array:
    """A member of a struct, NULL where the struct is."""
    return pc.struct_field(array, [index])


def offsets_of(array: pa.Array) -> npt.NDArray[np.int64]:
    """Where each row's elements begin and the last one's end, in the child arrays."""
    dtype = np.int64 if pa.types.is_large_list(array.type) else np.int32
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(len(array) + 1, dtype=np.int64)
    return np.frombuffer(buffer, dtype=dtype)[array.offset : array.offset + len(array) + 1].astype(np.int64)


def _lengths(array: pa.Array) -> npt.NDArray[np.int64]:
    return np.diff(offsets_of(array))


def _size(arguments: tuple[Operand, ...], types: tuple[Type, ...], result: Type) -> Vector:  # noqa: ARG001
    return outcome(_lengths(arguments[0]), nulls_of(*arguments), None, result, "")


def _gather(child: pa.Array, places: npt.NDArray[np.int64], present: BoolMask) -> pa.Array:
    return child.take(pa.array(places, mask=~present))


def _list_get(*, from_one: bool) -> Kernel:
    def kernel(arguments: tuple[Operand, ...], types: tuple[Type, ...], result: Type) -> Vector:  # noqa: ARG001
        array, positions = arguments[0], numbers(arguments[1], types[1])
        offsets = offsets_of(array)
        lengths = np.diff(offsets)
        if from_one:
            index: Any = np.where(np.asarray(positions) < 0, lengths + positions, positions - 1)
        else:
            index = np.broadcast_to(np.asarray(positions), len(array))
        null = nulls_of(*arguments)
        present = (index >= 0) & (index < lengths)
        failed = ~present if null is None else ~present & ~null
        present = present if null is None else present & ~null
        values = _gather(array.values, offsets[:-1] + index, present)
        return Vector(values, failed if failed.any() else None, OUT_OF_RANGE if failed.any() else "")

    return kernel


def _map_get(arguments: tuple[Operand, ...], types: tuple[Type, ...], result: Type) -> Vector:  # noqa: ARG001
    array, key = arguments
    places, present = _find_keys(array, key, types)
    return Vector(_gather(array.items, places, present))


def _find_keys(array: pa.Array, key: Operand, types: tuple[Type, ...]) -> tuple[npt.NDArray[np.int64], BoolMask]:
    map_type = types[0]
    assert isinstance(map_type, MapType)  # noqa: S101  # binding gives map_get maps only
    return find_elements(array, array.keys, map_type.key.type, key)


def find_elements(
    array: pa.Array, child: pa.Array, child_type: Type, wanted: Operand
) -> tuple[npt.NDArray[np.int64], BoolMask]:
    """For each row the place in `child` of the first element that equals `wanted`, and whether there is one."""
    offsets = offsets_of(array)
    first, last = int(offsets[0]), int(offsets[-1])
    elements = child.slice(first, last - first)
    if isinstance(wanted, pa.Array):
        wanted = wanted.take(pa.array(np.repeat(np.arange(len(array)), np.diff(offsets))))
    hits = compare("=", elements, wanted, child_type, child_type)
    for side in (elements, wanted):
        valid = valid_mask(side) if isinstance(side, pa.Array) else None
        hits = hits if valid is None else hits & valid
    found = np.flatnonzero(hits) + first
    if len(found) == len(array) and bool(((found >= offsets[:-1]) & (found < offsets[1:])).all()):
        return found, np.ones(len(array), dtype=np.bool_)  # each row has it once: no search
    places = np.searchsorted(found, offsets[:-1])
    clipped = found[np.minimum(places, len(found) - 1)] if len(found) else np.full(len(array), -1)
    null = nulls_of(array)
    present = (places < len(found)) & (clipped < offsets[1:])
    return clipped, present if null is None else present & ~null


def _array_contains(arguments: tuple[Operand, ...], types: tuple[Type, ...], result: Type) -> Vector:
    array, wanted = arguments
    list_type = types[0]
    assert isinstance(list_type, ListType)  # noqa: S101  # by binding
    _, present = find_elements(array, array.values, list_type.element.type, wanted)
    null = nulls_of(array, wanted)
    holds_null = _rows_with_null(array)
    unknown = ~present & holds_null if holds_null is not None else None
    if unknown is not None:
        null = unknown if null is None else null | unknown
    return Vector(array_of(present, null, result))


def _rows_with_null(array: pa.Array) -> BoolMask | None:
    offsets = offsets_of(array)
    first, last = int(offsets[0]), int(offsets[-1])
    null = null_mask(array.values.slice(first, last - first))
    if null is None:
        return None
    counts = np.concatenate(([0], np.cumsum(null)))
    return np.asarray(counts[offsets[1:] - first] > counts[offsets[:-1] - first])


def _map_contains_key(arguments: tuple[Operand, ...], types: tuple[Type, ...], result: Type) -> Vector:
    _, present = _find_keys(arguments[0], arguments[1], types)
    return Vector(array_of(present, nulls_of(*arguments), result))


KERNELS: Mapping[str, Kernel] = {
    "size": _size,
    "list_get": _list_get(from_one=False),
    "list_element_at": _list_get(from_one=True),
    "map_get": _map_get,
    "array_contains": _array_contains,
    "map_contains_key": _map_contains_key,
}
