"""Struct members as columns of their own: read without their siblings, NULL where a struct above them is.

A way is a top-level column by its place in the file, then the place of a child in each struct; members inside lists
and maps have none. How the bytes are read is the business of `parquet.py`.
"""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.types as pt

Way = tuple[int, ...]


def leaf_ranges(schema: pa.Schema) -> tuple[range, ...]:
    """For each top-level column the indices of its leaf columns."""
    ranges: list[range] = []
    start = 0
    for field in schema:
        stop = start + _leaf_count(field.type)
        ranges.append(range(start, stop))
        start = stop
    return tuple(ranges)


def members_of(schema: pa.Schema, leaves: Sequence[range]) -> list[tuple[Way, pa.Field, range]]:
    """Every member at any depth of structs alone: the way to it, its field, its leaf columns."""
    return [found for i, field in enumerate(schema) for found in _members((i,), field.type, leaves[i].start)]


def read_members(
    arrays: Mapping[int, pa.Array], ways: Sequence[Way], ranges: Mapping[Way, range], leaves: Sequence[int]
) -> list[pa.Array]:
    """The columns at the end of these ways.

    Args:
        arrays: top-level columns as decoded from `leaves` alone: structs have only the children of which some leaf was
            read.
        ways: to the columns and members wanted.
        ranges: the leaf columns of every member.
        leaves: that were read.
    """
    read = set(leaves)
    found = []
    for way in ways:
        steps = []
        for depth in range(1, len(way)):
            before = (ranges[*way[:depth], k] for k in range(way[depth]))
            steps.append(sum(not read.isdisjoint(leaf_columns) for leaf_columns in before))
        found.append(descended(arrays[way[0]], steps))
    return found


def descended(array: pa.Array, steps: Sequence[int]) -> pa.Array:
    """The member of a struct that these steps lead to; NULL where a struct on the way is."""
    for step in steps:
        array = array.flatten()[step]
    return array


def _members(way: Way, data_type: pa.DataType, start: int) -> Iterator[tuple[Way, pa.Field, range]]:
    if not pt.is_struct(data_type):
        return
    for index in range(data_type.num_fields):
        field = data_type.field(index)
        stop = start + _leaf_count(field.type)
        yield (*way, index), field, range(start, stop)
        yield from _members((*way, index), field.type, start)
        start = stop


def _leaf_count(data_type: pa.DataType) -> int:
    if isinstance(data_type, pa.BaseExtensionType):
        return _leaf_count(data_type.storage_type)
    if pt.is_nested(data_type):
        return sum(_leaf_count(data_type.field(i).type) for i in range(data_type.num_fields))
    return 1
