"""Values that do not fit their column, in columns of their own: `price` as text goes to `price__string`.

For tables with `on_conflict: new_column`. The row keeps its place: the column itself is NULL where its value went to a
variant, and a variant is NULL wherever the value fits again. Key columns have no variants.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipelines.formats.casting import cast_each
from pipelines.formats.column_types import widened
from pipelines.formats.feed import TableFeed
from pipelines.formats.image import Columns, Image
from pipelines.formats.inference import InferenceOptions, infer_together
from pipelines.formats.json_columns import decode
from pipelines.formats.json_spans import SpanColumn
from pipelines.formats.value_type import ValueType, describe, from_arrow

Mask = NDArray[np.bool_]

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
    """Images whose wrong values are in variants of their columns, and all types, those of the variants included.

    Args:
        sources: row images as the feed has them.
        images: the same, typed, by source column.
        types: of their columns.
        feed: the table.
        declared: types that the feed itself declares.
        inference: how the type of a value is found where the feed does not tell.
        key: source columns that may identify a row: their values are never diverted.
    """
    after, all_types = list(images), dict(types)
    for name in types:
        target = feed.target_name(name)
        if name in key or target in feed.key:
            continue
        known = _variants_of(target, feed.known_types, types)
        misfits = _num_wrong(after, name)
        while misfits:  # one kind of values after the other: where a value goes must not depend on its neighbours
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
    """Variants that the table has; a column that the feed itself sends is none."""
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
    """The type of the values that do not fit: the declared one if they are of it, else what they look like."""
    misfits = [
        _only(source.column(name), image.wrong[name][0])
        for source, image in zip(sources, images, strict=True)
        if name in image.wrong
    ]
    if not misfits:
        return None
    if declared is not None and not any(_decoded(column, declared)[1].any() for column in misfits):
        return declared
    found = infer_together(misfits, inference, ())
    return None if pa.types.is_null(found.arrow) else found


def _variant_for(
    target: str, natural: ValueType, known: Mapping[str, pa.DataType], taken: Collection[str]
) -> tuple[str, ValueType]:
    """Name and type of the variant that takes values of a type: one that can hold them, or a new one."""
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
    """The image with a variant of a column; what is missing or was not sent of the one is so of the other."""
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
