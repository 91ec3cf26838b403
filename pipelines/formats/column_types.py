"""Which type each column of a table's changes gets: config, then the feed, then the values; never against the mirror.

A type that the mirror's column can be promoted to (int to long, float to double, wider decimal, more members) wins
over the mirror's; values of any other must fit the mirror's column as they are (`fitting.py`), or are rejected.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.formats.feed import TableFeed
from pipelines.formats.fitting import is_number
from pipelines.formats.image import Columns
from pipelines.formats.inference import InferenceOptions, infer_together
from pipelines.formats.json_spans import SpanColumn
from pipelines.formats.member_types import paths_below, with_members
from pipelines.formats.span_text import NUMBER_KINDS, text
from pipelines.formats.value_type import Encoding, ValueType, as_written, from_arrow, from_config, with_written

_PLAIN = frozenset({Encoding.NATURAL, Encoding.PLAIN})
_WHOLE = r"^-?\d+(\.0*)?([eE]\+?\d+)?$"


def resolve_types(
    images: Sequence[Columns],
    feed: TableFeed,
    declared: Mapping[str, ValueType],
    inference: InferenceOptions,
    placeholders: tuple[bytes, ...],
    *,
    keys: Collection[str] = (),
) -> dict[str, ValueType]:
    """Value type by source column, for every column of the images that the table keeps.

    No table has a double for a key: numbers in the columns `keys` of the target that have no other type are long if any
    of them is whole. If none is, the key is as wrong as it looks, and is refused with the table.
    """
    explicit = from_config(feed.types, feed.encodings)
    explicit |= {column: explicit.get(feed.target_name(column), t) for column, t in explicit.items()}
    explicit |= from_config(feed.cast)
    types: dict[str, ValueType] = {}
    names = tuple(dict.fromkeys(name for image in images for name in image.names))
    for name in names:
        if not keeps(feed, name):
            continue
        target = feed.target_name(name)
        known = feed.known_types.get(target)
        given = explicit.get(name) or explicit.get(target)
        if given is None:
            given = declared.get(name)
        elif name in declared:
            given = as_written(given, declared[name])
        columns = [image.column(name) for image in images if name in image.names]
        is_text = isinstance(columns[0], SpanColumn)
        found = infer_together(columns, inference, placeholders) if given is None else given
        if given is None and is_text and target in keys and pa.types.is_floating(found.arrow) and _any_whole(columns):
            found = ValueType(pa.int64())
        inside = paths_below(explicit, target, names) | paths_below(explicit, name, names)
        if inside:
            found = given = with_members(found, inside, name)
            if name in declared:
                found = given = as_written(given, declared[name])
        if known is None:
            types[name] = found
        elif given is not None or not (is_text or pa.types.is_string(found.arrow) or pa.types.is_null(found.arrow)):
            types[name] = _beside(found, known, is_text=is_text)
        else:
            types[name] = _inferred_beside(found, known)
    return {name: with_written(type_, name, feed.known_encodings) for name, type_ in types.items()}


def _any_whole(columns: Sequence[object]) -> bool:
    spans = [column for column in columns if isinstance(column, SpanColumn)]
    words = [text(column, column.of_kind(*NUMBER_KINDS))[0] for column in spans]
    return any(pc.any(pc.match_substring_regex(found, _WHOLE)).as_py() for found in words)


def keeps(feed: TableFeed, column: str) -> bool:
    """Whether the table has this source column."""
    if column in feed.exclude:
        return False
    return not feed.include or column in feed.include or feed.target_name(column) in (*feed.include, *feed.key)


def widened(narrow: pa.DataType, wide: pa.DataType) -> pa.DataType | None:
    """The type that holds values of both by promotions that Iceberg knows; None if there is none."""
    if narrow == wide or pa.types.is_null(wide):
        return narrow
    if pa.types.is_null(narrow):
        return wide
    for small, large in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64())):
        if {narrow, wide} == {small, large}:
            return large
    if pa.types.is_decimal(narrow) and pa.types.is_decimal(wide) and narrow.scale == wide.scale:
        return pa.decimal128(max(narrow.precision, wide.precision), narrow.scale)
    if pa.types.is_struct(narrow) and pa.types.is_struct(wide):
        return _widened_struct(narrow, wide)
    if pa.types.is_list(narrow) and pa.types.is_list(wide):
        element = widened(narrow.value_type, wide.value_type)
        return None if element is None else pa.list_(pa.field("element", element))
    if pa.types.is_map(narrow) and pa.types.is_map(wide) and narrow.key_type == wide.key_type:
        value = widened(narrow.item_type, wide.item_type)
        return (
            None
            if value is None
            else pa.map_(pa.field("key", narrow.key_type, nullable=False), pa.field("value", value))
        )
    return None


def _widened_struct(first: pa.StructType, second: pa.StructType) -> pa.StructType | None:
    members = {first.field(i).name: first.field(i).type for i in range(first.num_fields)}
    for i in range(second.num_fields):
        field = second.field(i)
        both = widened(members.get(field.name, pa.null()), field.type)
        if both is None:
            return None
        members[field.name] = both
    return pa.struct([pa.field(name, arrow) for name, arrow in members.items()])


def _beside(given: ValueType, known: pa.DataType, *, is_text: bool) -> ValueType:
    both = widened(known, given.arrow)
    if both is not None:
        return given if both in (given.arrow, known) else _reshaped(given, both)
    if is_text and given.encoding in _PLAIN and is_number(given.arrow) and is_number(known):
        # The digits tell best whether the column can hold the number.
        encoding = given.encoding if pa.types.is_decimal(known) else Encoding.NATURAL
        return from_arrow(known, encoding, explicit=given.explicit)
    return replace(given, into=known)


def _inferred_beside(found: ValueType, known: pa.DataType) -> ValueType:
    """Inference sees only wide types (long, double): the mirror's narrower one stays unless the values need more."""
    if pa.types.is_nested(known) and found.members and pa.types.is_nested(found.arrow):
        both = widened(known, found.arrow)
        return from_arrow(known if both is None else both)
    if known == pa.int32() and found.arrow == pa.int64():
        return ValueType(pa.int32(), widens=True)
    return from_arrow(known)


def _reshaped(given: ValueType, arrow: pa.DataType) -> ValueType:
    """`given` with the wider type `arrow`, keeping the encodings of its members."""
    known = dict(given.members)
    plain = from_arrow(arrow, given.encoding, explicit=given.explicit)
    members = tuple(
        (name, _reshaped(known[name], member.arrow) if name in known else member) for name, member in plain.members
    )
    return replace(given, arrow=arrow, encoding=plain.encoding, members=members)
