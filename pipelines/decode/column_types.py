"""Chooses the type of each column of a table's changes.

The config has priority over the feed, and the feed over the values; the mirror is never consulted. Values that do not
fit their column are moved to a separate column.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nevermore.pipelines.decode.arrow_columns import is_number
from nevermore.pipelines.decode.casting import cast_each
from nevermore.pipelines.decode.feed import TableFeed
from nevermore.pipelines.decode.image import Columns, Image, without_unsent
from nevermore.pipelines.decode.json_columns import NUMBER_KINDS, decode, text
from nevermore.pipelines.decode.value_types import (
    Encoding,
    ValueType,
    as_written,
    describe,
    from_arrow,
    from_config,
    list_of,
    list_type,
    map_type,
    paths_below,
    plain_type,
    struct_of,
    with_infinite_dates,
    with_members,
    with_written,
)
from nevermore.pipelines.jsonscan import text_kernels
from nevermore.pipelines.jsonscan import value_kernels as kernels
from nevermore.pipelines.jsonscan.members import scan_arrays, scan_objects
from nevermore.pipelines.jsonscan.spans import SpanColumn
from nevermore.scan_core import Mask

NOTHING = ValueType(pa.null())
MAX_INFERRED_MEMBERS = 200
"""An object with more member names is data rather than structure: it stays JSON text."""
MAX_INFERRED_DEPTH = 16
SAFE_DIGITS = 18
"""Integers of this many characters always fit 64 bits."""

_GROUPS = np.zeros(kernels.ARRAY + 1, np.int8)
_GROUPS[[kernels.FALSE, kernels.TRUE]] = 1
_GROUPS[[kernels.INT, kernels.FLOAT]] = 2
_GROUPS[[kernels.STRING, kernels.ESCAPED]] = 3
_GROUPS[kernels.OBJECT] = 4
_GROUPS[kernels.ARRAY] = 5
_GIVEN = slice(kernels.FALSE, None)


@dataclass(frozen=True, slots=True)
class InferenceOptions:
    """How objects are typed: as structs, or as JSON text."""

    objects_as_text: bool = False


def infer_together(columns: list[SpanColumn | pa.Array], options: InferenceOptions, placeholder: bytes) -> ValueType:
    """Infer the type of a column from several images of the same events."""
    sent = [without_unsent(column, placeholder)[0] for column in columns]
    spans = [column for column in sent if isinstance(column, SpanColumn)]
    if len(spans) < len(columns):
        arrow = plain_type(next(c for c in columns if not isinstance(c, SpanColumn)).type)
        return NOTHING if _has_no_elements(arrow) else from_arrow(arrow)
    given = [column for column in spans if column.kinds[_GIVEN].any()]
    return infer(_joined(given or spans[:1]), options)


def _has_no_elements(arrow: pa.DataType) -> bool:
    """Whether this is the type of lists without elements, as pyarrow writes them to Parquet."""
    while pa.types.is_list(arrow):
        arrow = arrow.value_type
    return bool(pa.types.is_null(arrow))


def infer(column: SpanColumn, options: InferenceOptions, depth: int = 0) -> ValueType:
    """Infer the type of a column; null if it has no value at all."""
    counts = np.bincount(_GROUPS, weights=column.kinds, minlength=6)[1:]
    present = np.flatnonzero(counts) + 1
    if len(present) == 0:
        return NOTHING
    group = present[0] if len(present) == 1 else _GROUPS[column.kind[int(np.argmax(column.has_value))]]
    if group == 1:
        return ValueType(pa.bool_())
    if group == 2:
        return ValueType(pa.float64()) if column.kinds[kernels.FLOAT] else _integers(column)
    if group == 3:
        return ValueType(pa.string())
    as_text = ValueType(pa.string(), Encoding.TEXT)
    if options.objects_as_text or depth >= MAX_INFERRED_DEPTH:
        return as_text
    nested = _struct(column, options, depth) if group == 4 else _list(column, options, depth)
    return as_text if nested is None else nested


def _integers(column: SpanColumn) -> ValueType:
    is_integer = column.of_kind(kernels.INT)
    if int((column.end - column.start).max(where=is_integer, initial=0)) <= SAFE_DIGITS:
        return ValueType(pa.int64())
    values = np.empty(len(column), np.int64)
    too_large = np.zeros(len(column), np.bool_)
    text_kernels.parse_integers(column.data, column.start, column.end, is_integer, values, too_large)
    return ValueType(pa.decimal128(38, 0) if too_large.any() else pa.int64())


def _struct(column: SpanColumn, options: InferenceOptions, depth: int) -> ValueType | None:
    objects = scan_objects(column.documents(kernels.OBJECT), enough=MAX_INFERRED_MEMBERS + 1)
    if len(objects.names) > MAX_INFERRED_MEMBERS:
        return None
    members = tuple((name, infer(objects.column(name), options, depth + 1)) for name in objects.names)
    known = tuple((name, member) for name, member in members if not pa.types.is_null(member.arrow))
    if not known:
        return None
    return replace(struct_of(known), inferred=True)


def _list(column: SpanColumn, options: InferenceOptions, depth: int) -> ValueType | None:
    elements = scan_arrays(column.documents(kernels.ARRAY)).values
    if len(np.unique(_GROUPS[elements.kind[elements.has_value]])) > 1:
        return None
    element = infer(elements, options, depth + 1)
    if pa.types.is_null(element.arrow):
        return NOTHING
    return list_of(element)


def _joined(columns: list[SpanColumn]) -> SpanColumn:
    if len(columns) == 1:
        return columns[0]
    if len({id(c.data) for c in columns}) > 1:
        raise ValueError("images of one event share their bytes")
    return SpanColumn(
        columns[0].data,
        np.concatenate([c.start for c in columns]),
        np.concatenate([c.end for c in columns]),
        np.concatenate([c.kind for c in columns]),
    )


_PLAIN = frozenset({Encoding.NATURAL, Encoding.PLAIN})
_WHOLE = r"^-?\d+(\.0*)?([eE]\+?\d+)?$"


def resolve_types(
    images: Sequence[Columns],
    feed: TableFeed,
    declared: Mapping[str, ValueType],
    inference: InferenceOptions,
    placeholder: bytes,
    *,
    keys: Collection[str] = (),
) -> dict[str, ValueType]:
    """Choose the value type by source column, for every column of the images that the table keeps.

    A key is never a double: numbers in the key columns `keys` (target names) that have no other type become long if any
    of them is whole. If none is, the key is wrong and is rejected with the table.
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
        found = infer_together(_comparable(columns, known), inference, placeholder) if given is None else given
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
            types[name] = _fit_to_known(found, known, is_text=is_text)
        else:
            types[name] = _infer_for_known(found, known)
    written = {name: with_written(type_, name, feed.known_encodings) for name, type_ in types.items()}
    # NULL in a key would make several rows one.
    in_keys = "quarantine" if feed.infinite_dates == "null" else feed.infinite_dates
    return {
        name: with_infinite_dates(type_, in_keys if feed.target_name(name) in keys else feed.infinite_dates)
        for name, type_ in written.items()
    }


def _any_whole(columns: Sequence[object]) -> bool:
    spans = [column for column in columns if isinstance(column, SpanColumn)]
    words = [text(column, column.of_kind(*NUMBER_KINDS))[0] for column in spans]
    return any(pc.any(pc.match_substring_regex(found, _WHOLE)).as_py() for found in words)


def keeps(feed: TableFeed, column: str) -> bool:
    """Whether the table keeps this source column."""
    if column in feed.exclude:
        return False
    return not feed.include or column in feed.include or feed.target_name(column) in (*feed.include, *feed.key)


def widened(narrow: pa.DataType, wide: pa.DataType, *, keeps: bool = False) -> pa.DataType | None:
    """The type that holds values of both by promotions that Iceberg knows.

    Where there is none, that of the first one and of its members if it `keeps` them, else None.
    """
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
        return _widened_struct(narrow, wide, keeps=keeps)
    if pa.types.is_list(narrow) and pa.types.is_list(wide):
        element = widened(narrow.value_type, wide.value_type, keeps=keeps)
        return None if element is None else list_type(element)
    if pa.types.is_map(narrow) and pa.types.is_map(wide) and narrow.key_type == wide.key_type:
        value = widened(narrow.item_type, wide.item_type, keeps=keeps)
        return None if value is None else map_type(narrow.key_type, value)
    return narrow if keeps else None


def _widened_struct(first: pa.StructType, second: pa.StructType, *, keeps: bool) -> pa.StructType | None:
    members = {f.name: f.type for f in first}
    for field in second:
        both = widened(members.get(field.name, pa.null()), field.type, keeps=keeps)
        if both is None:
            return None
        members[field.name] = both
    return pa.struct([pa.field(name, arrow) for name, arrow in members.items()])


def _fit_to_known(given: ValueType, known: pa.DataType, *, is_text: bool) -> ValueType:
    both = widened(known, given.arrow)
    if both is not None:
        return given if both in (given.arrow, known) else _reshaped(given, both)
    if is_text and given.encoding in _PLAIN and is_number(given.arrow) and is_number(known):
        # The digits tell best whether the column can hold the number.
        encoding = given.encoding if pa.types.is_decimal(known) else Encoding.NATURAL
        return from_arrow(known, encoding, explicit=given.explicit)
    return replace(given, into=known)


def _infer_for_known(found: ValueType, known: pa.DataType) -> ValueType:
    """Inference only finds wide types (long, double); the mirror's narrower one is kept unless values need more."""
    if pa.types.is_nested(known) and found.members and pa.types.is_nested(found.arrow):
        return _inferred(from_arrow(widened(known, found.arrow, keeps=True)))
    if known == pa.int32() and found.arrow == pa.int64():
        return ValueType(pa.int32(), widens=True)
    return _inferred(from_arrow(known))


def _comparable(columns: list["SpanColumn | pa.Array"], known: pa.DataType | None) -> list["SpanColumn | pa.Array"]:
    """The values that may belong into a known nested column: others are wrong whatever they are."""
    if known is None or not pa.types.is_nested(known):
        return columns
    kinds = (kernels.ARRAY,) if pa.types.is_list(known) else (kernels.OBJECT,)
    return [c.without(c.has_value & ~c.of_kind(*kinds)) if isinstance(c, SpanColumn) else c for c in columns]


def _inferred(type_: ValueType) -> ValueType:
    return replace(type_, inferred=True, members=tuple((name, _inferred(member)) for name, member in type_.members))


def _reshaped(given: ValueType, arrow: pa.DataType) -> ValueType:
    """`given` widened to `arrow`, with the encodings of its members."""
    known = dict(given.members)
    plain = from_arrow(arrow, given.encoding, explicit=given.explicit)
    members = tuple(
        (name, _reshaped(known[name], member.arrow) if name in known else member) for name, member in plain.members
    )
    return replace(given, arrow=arrow, encoding=plain.encoding, members=members)


SEPARATOR = "__"
_SUFFIX = re.compile(
    r"(boolean|int|long|float|double|decimal_\d+_\d+|date|time|timestamp|timestamptz|timestamp_ns|timestamptz_ns"
    r"|string|uuid|fixed_\d+|binary|struct|list|map)(_v\d+)?"
)


def divert(
    sources: Sequence[Columns],
    images: Sequence[Image],
    types: Mapping[str, ValueType],
    *,
    feed: TableFeed,
    declared: Mapping[str, ValueType],
    inference: InferenceOptions,
    key: Collection[str],
) -> tuple[list[Image], dict[str, ValueType]]:
    """Move wrong values to variants of their columns; return the images and all types, including those of variants.

    Args:
        sources: row images of the feed.
        images: the same images typed, by source column.
        types: types of their columns.
        feed: the table.
        declared: types that the feed itself declares.
        inference: how to infer the type of a value that the feed does not declare.
        key: source columns that may identify a row; their values are never moved.
    """
    after, all_types = list(images), dict(types)
    for name in types:
        target = feed.target_name(name)
        if name in key or target in feed.key:
            continue
        known = _variants_of(target, feed.known_types, types)
        misfits = _num_wrong(after, name)
        while misfits:  # one kind of values after the other: the target of a value must not depend on its neighbours
            natural = _natural_type(name, sources, after, declared.get(name), inference)
            if natural is None:
                break
            variant, kind = _variant_for(target, natural, known, all_types)
            all_types[variant] = kind
            known.pop(variant, None)
            after = [_with_variant(s, i, name, variant, kind, takes=True) for s, i in zip(sources, after, strict=True)]
            before, misfits = misfits, _num_wrong(after, name)
            if misfits == before:
                break
        for variant, arrow in known.items():
            all_types[variant] = from_arrow(arrow)
            kind = all_types[variant]
            after = [_with_variant(s, i, name, variant, kind, takes=False) for s, i in zip(sources, after, strict=True)]
    return after, all_types


def _num_wrong(images: Sequence[Image], name: str) -> int:
    return sum(int(image.wrong[name][0].sum()) for image in images if name in image.wrong)


def _variants_of(
    target: str, known: Mapping[str, pa.DataType], types: Mapping[str, ValueType]
) -> dict[str, pa.DataType]:
    """Variants that the table has; a column that the feed itself sends is not a variant."""
    prefix = target + SEPARATOR
    return {
        name: arrow
        for name, arrow in known.items()
        if name.startswith(prefix) and name not in types and _SUFFIX.fullmatch(name.removeprefix(prefix))
    }


def _natural_type(
    name: str,
    sources: Sequence[Columns],
    images: Sequence[Image],
    declared: ValueType | None,
    inference: InferenceOptions,
) -> ValueType | None:
    """The type of the values that do not fit: the declared one if they have it, else an inferred one."""
    misfits = [
        _only(source.column(name), image.wrong[name][0])
        for source, image in zip(sources, images, strict=True)
        if name in image.wrong
    ]
    if not misfits:
        return None
    if declared is not None and not any(_decoded(column, declared)[1].any() for column in misfits):
        return declared
    found = infer_together(misfits, inference, b"")
    return None if pa.types.is_null(found.arrow) else found


def _variant_for(
    target: str, natural: ValueType, known: Mapping[str, pa.DataType], taken: Collection[str]
) -> tuple[str, ValueType]:
    """Name and type of the variant for values of a type: an existing one that can hold them, or a new one."""
    for name, arrow in known.items():
        both = widened(arrow, natural.arrow)
        if both is not None:
            return name, natural if both == natural.arrow else from_arrow(both, natural.encoding)
    first = f"{target}{SEPARATOR}{_suffix(natural.arrow)}"
    names = (first, *(f"{first}_v{number}" for number in range(2, len(taken) + len(known) + 3)))
    return next(name for name in names if name not in taken and name not in known), natural


def _suffix(arrow: pa.DataType) -> str:
    if pa.types.is_list(arrow):
        return "list"
    if pa.types.is_map(arrow):
        return "map"
    return re.sub(r"\W+", "_", describe(arrow)).strip("_")


def _with_variant(source: Columns, image: Image, name: str, variant: str, kind: ValueType, *, takes: bool) -> Image:
    """Add a variant of a column to the image; it is missing or not sent in the same rows as the column."""
    if name not in image.columns:
        return image
    values = pa.nulls(len(image), kind.arrow)
    wrong = dict(image.wrong)
    if takes and name in wrong:
        bad, reason = wrong.pop(name)
        values, failed = _decoded(_only(source.column(name), bad), kind)
        if failed.any():
            wrong[name] = (failed, reason)
    return replace(
        image,
        columns={**image.columns, variant: values},
        wrong=wrong,
        missing=_copied(image.missing, name, variant),
        unavailable=_copied(image.unavailable, name, variant),
    )


def _copied(masks: Mapping[str, Mask], name: str, variant: str) -> dict[str, Mask]:
    return {**masks, variant: masks[name]} if name in masks else dict(masks)


def _only(column: "SpanColumn | pa.Array", chosen: Mask) -> "SpanColumn | pa.Array":
    if isinstance(column, SpanColumn):
        return column.without(~chosen)
    return pc.if_else(pa.array(chosen), column, pa.scalar(None, column.type))


def _decoded(column: "SpanColumn | pa.Array", kind: ValueType) -> tuple[pa.Array, Mask]:
    if isinstance(column, SpanColumn):
        return decode(column, kind)
    return cast_each(column, kind.arrow)
