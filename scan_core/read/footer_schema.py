"""The schema in the footer of a Parquet file: its leaf columns, with what is needed to write one of them again.

Files of a table mostly have one schema, byte for byte, so that which was read last is known again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scan_core.read.footer_fields import structs_at
from scan_core.read.thrift import LIST, Struct, read_struct
from scan_core.read.thrift_writer import I32Value, write_struct

_REPEATED = 2


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf column of the schema.

    `elements` are the encoded schema elements from its top-level column down to it, structs with this one child; none
    if a list or map of several children is among them, so that they make no schema by themselves.
    """

    path: tuple[str, ...]
    physical_type: int
    max_repetition_level: int
    elements: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class FooterSchema:
    """The leaves of a schema, and the bytes it was read from."""

    leaves: tuple[Leaf, ...]
    encoded: bytes


_last = FooterSchema((), b"")


def read_schema(data: bytes, position: int, kind: int, depth: int) -> tuple[FooterSchema, int]:
    """The list of schema elements at `position`, and the position behind it.

    Raises:
        ThriftError, KeyError, ValueError, TypeError, AttributeError: it is none.
    """
    global _last  # noqa: PLW0603  a cache of one, replaced as a whole, so that threads need no lock
    known = _last
    if kind == LIST and known.encoded and data.startswith(known.encoded, position):
        return known, position + len(known.encoded)
    elements, end = _read_elements(data, position, kind, depth)
    _last = found = FooterSchema(_leaves(elements), data[position:end])
    return found, end


@dataclass(slots=True)
class _Group:
    """A schema element whose children are being read."""

    children_left: int
    path: tuple[str, ...]
    repetitions: int
    elements: tuple[bytes, ...]


def _leaves(elements: Sequence[tuple[Struct, bytes]]) -> tuple[Leaf, ...]:
    """Walk the flattened tree of schema elements."""
    leaves: list[Leaf] = []
    groups = [_Group(elements[0][0].get(5, 0), (), 0, ())]
    for element, raw in elements[1:]:
        while groups and groups[-1].children_left == 0:
            groups.pop()
        if not groups:
            raise ValueError("schema elements outside of the schema")
        above = groups[-1]
        above.children_left -= 1
        path = (*above.path, element[4].decode())
        repetitions = above.repetitions + (element.get(3) == _REPEATED)
        is_chain = len(groups) == 1 or above.elements != ()
        num_children = element.get(5, 0)
        is_chain = is_chain and (num_children <= 1 or element.get(3) != _REPEATED)
        raw_path = (*above.elements, raw if num_children <= 1 else _with_one_child(element)) if is_chain else ()
        if num_children:
            groups.append(_Group(num_children, path, repetitions, raw_path))
        elif 1 in element:
            leaves.append(Leaf(path, element[1], repetitions, raw_path))
    while groups and groups[-1].children_left == 0:
        groups.pop()
    if groups:
        raise ValueError("the schema lacks elements")
    return tuple(leaves)


def _with_one_child(group: Struct) -> bytes:
    """A group of the schema as if all but one of its children were not there."""
    fields: dict[int, Any] = {3: I32Value(group.get(3, 0)), 4: group[4], 5: I32Value(1)}
    if isinstance(field_id := group.get(9), int):
        fields[9] = I32Value(field_id)
    return write_struct(fields)


def _read_elements(data: bytes, position: int, kind: int, depth: int) -> tuple[list[tuple[Struct, bytes]], int]:
    """Schema elements, each with the bytes it was read from."""
    size, position = structs_at(data, position, kind)
    found = []
    for _ in range(size):
        element, end = read_struct(data, position, depth + 1)
        found.append((element, data[position:end]))
        position = end
    return found, position
